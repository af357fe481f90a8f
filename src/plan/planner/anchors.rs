//! Whole plans to learn from before anything is proposed: built and tried, they tell what measured harms add up to in this
//! model (see `quality`).
//!
//! Invariants: the same tables give the same anchors; each can be applied to the original. Nobody is asked to approve one.

use super::{PlannerInput, plan};
use crate::graph::Graph;
use crate::plan::{Action, Budget, Decision, Forecaster, QualityInput, Target};
use crate::profile::{Profile, Sensitivity};
use crate::prune::Group;
use crate::quant::Precision;

/// Parts of the MACs that cuts are planned for: mild, usual, harsh.
const KEPT: [f64; 3] = [0.8, 0.62, 0.45];
/// Cuts everywhere alike go in steps of this part of a group.
const STEP: f64 = 1.0 / 32.0;

/// The anchors for a model: the planner's cuts, cuts everywhere alike, precisions; kept units are still to be resolved.
/// Latency has no part in them.
pub fn anchors(graph: &Graph, groups: &[Group], profile: &Profile, sens: &Sensitivity) -> Vec<Vec<(Target, Action)>> {
    let mut out: Vec<Vec<(Target, Action)>> = Vec::new();
    for kept in KEPT {
        let input = PlannerInput {
            graph,
            groups,
            profile,
            ladders: &[],
            sensitivity: sens,
            budget: &Budget { macs: Some(kept), ..Budget::default() },
            constraints: &[],
            round: 1,
            first_id: 0,
            in_force: &[],
            quality: &QualityInput::default(),
        };
        let Ok(found) = plan(&input, &mut |_| {}) else { continue };
        let actions: Vec<(Target, Action)> = found.decisions.iter().map(Decision::planned).collect();
        if !actions.is_empty() && !out.contains(&actions) {
            out.push(actions);
        }
    }
    let forecaster = Forecaster::new(graph, groups, profile, &[], sens);
    if let Some(alike) = out.last().and_then(|harsh| everywhere(&forecaster, groups, harsh))
        && !out.contains(&alike)
    {
        out.push(alike);
    }
    for precision in [Precision::Int8, Precision::W4] {
        let layers = graph.nodes.iter().filter(|n| n.op.is_conv_or_linear());
        let actions: Vec<(Target, Action)> =
            layers.map(|n| (Target::Layer(n.name.clone()), Action::Precision { precision })).collect();
        if !actions.is_empty() {
            out.push(actions);
        }
    }
    out
}

/// Every group cut by the same part, to about the harm that `harsh` adds up to: what the planner leaves alone is learnt from
/// too, and whether the same harm costs as much there. The mildest that cuts at all, where even that harms more.
fn everywhere(forecaster: &Forecaster, groups: &[Group], harsh: &[(Target, Action)]) -> Option<Vec<(Target, Action)>> {
    let (limit, _) = forecaster.harm(harsh);
    let cut = |part: f64| -> Vec<(Target, Action)> {
        (groups.iter().filter(|g| g.protected.is_none()))
            .map(|g| (Target::Group(g.id.clone()), g.ratio_of(g.kept_at(part))))
            .filter(|(_, ratio)| *ratio > 0.0 && *ratio < 1.0)
            .map(|(target, ratio)| (target, Action::Prune { ratio, kept: Vec::new() }))
            .collect()
    };
    let mut found: Option<Vec<(Target, Action)>> = None;
    for step in 1..=(0.75 / STEP) as usize {
        let actions = cut(step as f64 * STEP);
        if actions.is_empty() || forecaster.costs.cost(&actions).is_err() {
            continue;
        }
        let (harm, unknown) = forecaster.harm(&actions);
        if unknown > 0 || (found.is_some() && harm > limit) {
            break;
        }
        found = Some(actions);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::{chain, curves, profile_of};

    #[test]
    fn one_anchor_cuts_every_group_alike_and_harms_about_as_much_as_the_planners_harsh_one() {
        let (graph, mut groups) = chain(&[32, 64, 64, 64], 16);
        groups[3].protected = Some("the output".into());
        let (profile, layers) = (profile_of(&graph, 1.0), ["conv1", "conv2", "conv3"]);
        let sensitivity = curves(&groups, &[4.0, 0.5, 0.1, 1.0], &layers, 0.002);
        let all = anchors(&graph, &groups, &profile, &sensitivity);
        assert_eq!(all.len(), KEPT.len() + 3, "{all:?}");
        let ratios = |actions: &[(Target, Action)]| -> Vec<f64> {
            let cut = |a: &Action| if let Action::Prune { ratio, .. } = a { *ratio } else { 0.0 };
            actions.iter().map(|(_, a)| cut(a)).collect()
        };
        let (harsh, alike) = (&all[KEPT.len() - 1], &all[KEPT.len()]);
        assert_eq!(ratios(alike).len(), 3, "every group that may be cut: {alike:?}");
        assert!(ratios(alike).iter().all(|r| (r - ratios(alike)[0]).abs() < STEP + 1e-9), "{alike:?}");
        let spread = ratios(harsh).iter().fold((1.0f64, 0.0f64), |(l, h), r| (l.min(*r), h.max(*r)));
        assert!(spread.1 - spread.0 > 0.2, "the planner's go where it harms least: {harsh:?}");
        let forecaster = Forecaster::new(&graph, &groups, &profile, &[], &sensitivity);
        let (theirs, limit) = (forecaster.harm(alike).0, forecaster.harm(harsh).0);
        assert!(theirs <= limit && theirs > 0.7 * limit, "{theirs} {limit}");
    }
}
