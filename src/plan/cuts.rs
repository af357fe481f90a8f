//! Which cuts of a language model take enough of its weights away with the least harm, by what each was measured to cost (`recover::curves`).
//!
//! Costs are taken to add up over blocks and, within one, over its groups; a block that goes takes its groups along. Not here: what is measured,
//! and sessions' plans (`planner`).

use super::choices::{Choice, allocate};
use crate::prune::{Action, Target};
use crate::recover::{Curve, Cut};
use std::collections::BTreeMap;

/// What is to be cut.
#[derive(Debug, Clone, PartialEq)]
pub struct Cuts {
    pub actions: Vec<(Target, Action)>,
    /// Weights that go.
    pub weights: u64,
    /// Nats a token, were costs to add up; `None` where nothing was asked of them.
    pub cost: Option<f64>,
    /// No choice of as many has less, were they to.
    pub least: Option<f64>,
}

/// Ways to cut a block before those are left out that others beat: mixtures have more groups than can all be combined.
const MANY: usize = 8192;

/// A way to cut one block.
#[derive(Clone)]
struct Way<'c> {
    cuts: Vec<(&'c Target, &'c Cut)>,
    weights: u64,
    cost: f64,
}

/// Cuts of at least `gone` weights, chosen jointly over all groups and blocks; `None` where all cuts together are too few.
pub fn joint(curves: &[Curve], gone: u64) -> Option<Cuts> {
    let blocks = ways(curves);
    let most: Vec<u64> = blocks.iter().map(|ways| ways.iter().map(|w| w.weights).max().unwrap_or(0)).collect();
    // Sizes are what stays of the most that a block can lose.
    let choice = |(ways, most): (&Vec<Way>, &u64)| -> Vec<Choice> {
        ways.iter().map(|w| Choice { size: most - w.weights, harm: w.cost }).collect()
    };
    let all: Vec<Vec<Choice>> = blocks.iter().zip(&most).map(choice).collect();
    let room = most.iter().sum::<u64>().checked_sub(gone)?;
    let found = allocate(&all, room)?;
    let taken: Vec<&Way> = blocks.iter().zip(&found.taken).map(|(ways, i)| &ways[*i]).collect();
    let actions = taken.iter().flat_map(|w| &w.cuts).map(|(t, c)| ((*t).clone(), c.action.clone())).collect();
    let weights = taken.iter().map(|w| w.weights).sum();
    Some(Cuts { actions, weights, cost: Some(found.harm), least: Some(found.least) })
}

/// Weights that all cuts together take at most.
pub fn most(curves: &[Curve]) -> u64 {
    ways(curves).iter().map(|ways| ways.iter().map(|w| w.weights).max().unwrap_or(0)).sum()
}

/// All ways to cut each block, nothing among them.
fn ways(curves: &[Curve]) -> Vec<Vec<Way<'_>>> {
    let mut by_block: BTreeMap<&str, Vec<&Curve>> = BTreeMap::new();
    for curve in curves {
        // What lies in no block is one of its own.
        let own = curve.block.as_deref().unwrap_or_else(|| curve.target.name());
        by_block.entry(own).or_default().push(curve);
    }
    by_block.into_values().map(of_block).collect()
}

/// All ways to cut one.
fn of_block(curves: Vec<&Curve>) -> Vec<Way<'_>> {
    let mut ways = vec![Way { cuts: Vec::new(), weights: 0, cost: 0.0 }];
    let (whole, parts): (Vec<&Curve>, Vec<&Curve>) =
        curves.into_iter().partition(|c| matches!(c.target, Target::Block(_)));
    // Whole experts last: what lies in them is known by then.
    let (inside, other): (Vec<&Curve>, Vec<&Curve>) = parts.into_iter().partition(|c| c.expert.is_some());
    let expert = |target: &Target| inside.iter().find(|c| c.target == *target)?.expert.clone();
    for curve in inside.iter().chain(&other) {
        let before = ways.clone();
        for cut in &curve.cuts {
            // A cut of an expert that goes is none.
            let idle = |(target, _): &(&Target, &Cut)| {
                expert(target).is_some_and(|(group, e)| {
                    let kept = matches!(&cut.action, Action::Prune { kept, .. } if kept.contains(&e));
                    group == curve.target.name() && !kept
                })
            };
            ways.extend(before.iter().filter(|way| !way.cuts.iter().any(idle)).map(|way| {
                let mut cuts = way.cuts.clone();
                cuts.push((&curve.target, cut));
                // A cut that is told to help was measured on too little to be believed.
                Way { cuts, weights: way.weights + cut.weights, cost: way.cost + cut.cost.max(0.0) }
            }));
        }
        if ways.len() > MANY {
            ways = thinned(ways);
        }
    }
    for curve in whole {
        let cut = |cut| Way { cuts: vec![(&curve.target, cut)], weights: cut.weights, cost: cut.cost.max(0.0) };
        ways.extend(curve.cuts.iter().map(cut));
    }
    ways
}

/// Those that no other beats; of about as many weights the one of least cost.
fn thinned(ways: Vec<Way<'_>>) -> Vec<Way<'_>> {
    let most = ways.iter().map(|w| w.weights).max().unwrap_or(0);
    let mut best: BTreeMap<u64, Way> = BTreeMap::new();
    for way in ways {
        // Nothing at all is a way of its own.
        let at = if way.weights == 0 { 0 } else { 1 + way.weights * (MANY as u64 / 4) / most.max(1) };
        match best.get(&at) {
            Some(b) if b.cost <= way.cost => {}
            _ => drop(best.insert(at, way)),
        }
    }
    let mut out: Vec<Way> = Vec::new();
    for way in best.into_values().rev() {
        if out.last().is_none_or(|more: &Way| way.cost < more.cost) {
            out.push(way);
        }
    }
    out.reverse();
    out
}

/// Whole blocks of at least `gone` weights, those first that change least what passes through them; `None` where all are too few.
pub fn by_influence(curves: &[Curve], gone: u64) -> Option<Cuts> {
    let mut blocks: Vec<(f64, &Curve)> = curves.iter().filter_map(|c| Some((c.influence?, c))).collect();
    blocks.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (mut actions, mut weights) = (Vec::new(), 0);
    for (_, curve) in blocks {
        if weights >= gone {
            break;
        }
        let Some(cut) = curve.cuts.first() else { continue };
        weights += cut.weights;
        actions.push((curve.target.clone(), cut.action.clone()));
    }
    (weights >= gone).then_some(Cuts { actions, weights, cost: None, least: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(target: Target, block: &str, cuts: &[(u64, f64)], influence: Option<f64>) -> Curve {
        let action = |n: u64| match target {
            Target::Block(_) => Action::RemoveBlock,
            _ => Action::Prune { ratio: 0.1, kept: vec![n as u32] },
        };
        let cut = |(weights, cost): &(u64, f64)| Cut {
            action: action(*weights),
            weights: *weights,
            cost: *cost,
            measured: true,
        };
        Curve {
            target: target.clone(),
            block: Some(block.into()),
            expert: None,
            cuts: cuts.iter().map(cut).collect(),
            influence,
        }
    }

    fn curves() -> Vec<Curve> {
        let mut out = Vec::new();
        for (b, scale) in [("a", 1.0), ("b", 0.2), ("c", 3.0)] {
            out.push(curve(
                Target::Group(format!("{b}.mlp")),
                b,
                &[(10, 0.1 * scale), (20, 0.4 * scale), (30, 0.9 * scale)],
                None,
            ));
            out.push(curve(Target::Group(format!("{b}.heads")), b, &[(8, 0.2 * scale)], None));
            out.push(curve(Target::Block(b.into()), b, &[(60, 1.5 * scale)], Some(scale)));
        }
        out
    }

    /// The least cost of at least `gone`, by all combinations.
    fn by_force(curves: &[Curve], gone: u64) -> f64 {
        let blocks = ways(curves);
        let mut best = f64::INFINITY;
        for i in 0..blocks.iter().map(Vec::len).product() {
            let (mut k, mut weights, mut cost) = (i, 0, 0.0);
            for ways in &blocks {
                let way = &ways[k % ways.len()];
                (weights, cost, k) = (weights + way.weights, cost + way.cost, k / ways.len());
            }
            best = if weights >= gone { f64::min(best, cost) } else { best };
        }
        best
    }

    #[test]
    fn joint_cuts_take_enough_and_come_near_the_best() {
        let curves = curves();
        for gone in [1, 10, 15, 28, 40, 70, 120, 180] {
            let found = joint(&curves, gone).unwrap();
            let (best, cost, least) = (by_force(&curves, gone), found.cost.unwrap(), found.least.unwrap());
            assert!(found.weights >= gone, "{gone}");
            assert!(least <= best + 1e-12 && best <= cost + 1e-12, "{gone}: {least} {best} {cost}");
            assert!(cost <= 1.5 * best + 0.2, "{gone}: {cost}, not {best}");
            // A block that goes takes its groups along.
            for (target, _) in found.actions.iter().filter(|(t, _)| matches!(t, Target::Block(_))) {
                let of = |t: &Target| t != target && t.name().starts_with(target.name());
                assert!(!found.actions.iter().any(|(t, _)| of(t)), "{gone}");
            }
        }
        assert!(joint(&curves, 181).is_none());
    }

    #[test]
    fn blocks_go_by_how_little_they_change() {
        let found = by_influence(&curves(), 61).unwrap();
        let names: Vec<&str> = found.actions.iter().map(|(t, _)| t.name()).collect();
        assert_eq!((names, found.weights), (vec!["b", "a"], 120));
        assert!(by_influence(&curves(), 181).is_none());
    }
}
