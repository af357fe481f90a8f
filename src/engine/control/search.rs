//! Which MLPs a ladder's levels lose, measured: at every rung each branch's next cut is tried alone on calibration text, and those that
//! cost the least divergence for the bytes that they save are taken until the rung's share of the weights is gone.
//!
//! Neurons of a branch go by what they are worth to what reads them, `E[h²]·‖w‖²` of a neuron's output `h` and the column `w` that
//! reads it (the branch's own output's change, were neurons independent; the score of LeCun et al. 1990 for the layer's output).
//! Not here: what levels do on other text (`trace`, `trial`), how long they take (`profile::levels`).

use super::error::{ControlError, Result};
use super::ladder::{Ladder, Level, Place, level_model, placed};
use crate::exec::{Cancel, CompileOptions, Plan};
use crate::graph::ParamRole;
use crate::model::Model;
use crate::prune::Group;
use crate::task::Divergences;
use candle_core::Tensor;

/// How levels are searched for.
#[derive(Debug, Clone)]
pub struct SearchOptions {
    /// Levels, the whole network among them.
    pub levels: usize,
    /// The last level's share of the bytes that a token of the whole network reads.
    pub least: f64,
    /// Cuts that a branch goes in.
    pub steps: usize,
    /// Rungs that are measured anew between two levels.
    pub rungs: usize,
}

/// What was done, for whoever watches.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tried {
    pub rung: usize,
    pub rungs: usize,
    /// Branches tried in this rung, of how many.
    pub done: usize,
    pub of: usize,
}

/// A ladder of `model` on `windows`, token ids `[n, tokens]`; compiled by `options`.
///
/// # Errors
/// A model without such branches; what running it reports; cancellation.
pub fn search(
    model: &Model,
    groups: &[Group],
    windows: &Tensor,
    (how, options): (&SearchOptions, &CompileOptions),
    cancel: &Cancel,
    told: &mut dyn FnMut(Tried),
) -> Result<Ladder> {
    let found = placed(model, groups);
    if found.is_empty() {
        return Err(ControlError::NoBranches { model: model.info.name.clone() });
    }
    let (mut branches, places): (Vec<_>, Vec<Place>) = found.into_iter().unzip();
    let (worth, dense) = worths(model, &places, windows, options)?;
    for (branch, worth) in branches.iter_mut().zip(&worth) {
        branch.order.sort_by(|a, b| worth[*b as usize].total_cmp(&worth[*a as usize]).then(a.cmp(b)));
    }
    let whole = Level { kept: branches.iter().map(|b| b.order.len() as u32).collect() };
    let mut ladder = Ladder { branches, levels: vec![whole.clone()] };
    let plan = Plan::of(model, options)?;
    let all = plan.bytes_per_token() as f64;
    // Bytes of one neuron, of each branch: its rows and its column.
    let neuron: Vec<f64> = places.iter().map(|p| neuron_bytes(model, groups, &ladder, p)).collect();
    let (levels, rungs) = (how.levels.max(2), how.rungs.max(1));
    let total = (levels - 1) * rungs;
    let mut now = whole;
    for rung in 1..=total {
        let wanted = all * (1.0 - how.least) * rung as f64 / total as f64;
        let mut tries: Vec<(f64, usize, u32)> = Vec::new();
        let next: Vec<Option<u32>> =
            places.iter().enumerate().map(|(i, p)| cut(&ladder, i, now.kept[i], p.granule, how.steps)).collect();
        let of = next.iter().flatten().count();
        for (i, kept) in next.into_iter().enumerate().filter_map(|(i, k)| Some((i, k?))) {
            cancel.check()?;
            told(Tried { rung, rungs: total, done: tries.len(), of });
            let mut level = now.clone();
            level.kept[i] = kept;
            let kl = divergence(model, groups, (&ladder, &level), windows, &dense, options)?;
            let saved = neuron[i] * f64::from(now.kept[i] - kept);
            tries.push((kl / saved.max(1.0), i, kept));
        }
        told(Tried { rung, rungs: total, done: of, of });
        // Of what all cost together: that of the rung before is in each, so that the order by share is by what is added.
        let base = if now == ladder.levels[0] {
            0.0
        } else {
            divergence(model, groups, (&ladder, &now), windows, &dense, options)?
        };
        for (rate, i, kept) in &mut tries {
            let saved = neuron[*i] * f64::from(now.kept[*i] - *kept);
            *rate -= base / saved.max(1.0);
        }
        tries.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        let mut gone: f64 = saved(&ladder, &now, &neuron);
        for (_, i, kept) in tries {
            if gone >= wanted {
                break;
            }
            gone += neuron[i] * f64::from(now.kept[i] - kept);
            now.kept[i] = kept;
        }
        if rung % rungs == 0 {
            ladder.levels.push(now.clone());
        }
    }
    ladder.levels.dedup();
    Ok(ladder)
}

/// Bytes of a token that `level` does not read.
fn saved(ladder: &Ladder, level: &Level, neuron: &[f64]) -> f64 {
    let of = |((b, k), n): ((&super::ladder::Branch, &u32), &f64)| n * (b.order.len() as f64 - f64::from(*k));
    ladder.branches.iter().zip(&level.kept).zip(neuron).map(of).sum()
}

/// The next cut of branch `i`, of which `kept` neurons are left: a whole number of granules, or nothing where it is the last.
fn cut(ladder: &Ladder, i: usize, kept: u32, granule: usize, steps: usize) -> Option<u32> {
    let size = ladder.branches[i].order.len();
    let step = (size / steps.max(1)).next_multiple_of(granule.max(1)).clamp(1, size) as u32;
    let left = kept.saturating_sub(step);
    // What is left of less than half a step is not worth a branch.
    (kept > 0).then_some(if 2 * left < step { 0 } else { left })
}

/// Bytes that a neuron of a branch takes, in all layers that it has a part in.
fn neuron_bytes(model: &Model, groups: &[Group], ladder: &Ladder, place: &Place) -> f64 {
    let down = &model.graph.node(place.down).name;
    let group = groups.iter().find(|g| g.members.iter().any(|m| m.node == *down && g.size > 0) && is_of(ladder, g));
    let Some(group) = group else { return 0.0 };
    let bytes = |node: &str| {
        let node = model.graph.by_name(node).map(|id| model.graph.node(id));
        let weight = node.and_then(|n| model.params.get(n.param(ParamRole::Weight)?).ok());
        weight.map_or(0, |w| w.stored_bytes())
    };
    group.members.iter().map(|m| bytes(&m.node)).sum::<u64>() as f64 / group.size as f64
}

fn is_of(ladder: &Ladder, group: &Group) -> bool {
    ladder.branches.iter().any(|b| b.group == group.id)
}

/// What each neuron of each branch is worth, and the whole network's logits for `windows`.
fn worths(
    model: &Model,
    places: &[Place],
    windows: &Tensor,
    options: &CompileOptions,
) -> Result<(Vec<Vec<f64>>, Tensor)> {
    let name = |p: &Place| model.graph.node(p.neurons).name.clone();
    let names: Vec<String> = places.iter().map(name).collect();
    let plan = Plan::of(model, &options.clone().keeping(names.iter().cloned()))?;
    let asked: Vec<&str> = names.iter().map(String::as_str).collect();
    let (logits, values) = plan.session().capture(windows, &asked)?;
    let mut worth = Vec::new();
    for (place, name) in places.iter().zip(&names) {
        let node = model.graph.node(place.down);
        let weight = node.param(ParamRole::Weight).unwrap_or_default();
        let weight = model.params.get(weight)?;
        let (columns, w) = (weight.shape().get(1).copied().unwrap_or(1).max(1), weight.values());
        let mut norms = vec![0f64; columns];
        for row in w.chunks_exact(columns) {
            norms.iter_mut().zip(row).for_each(|(n, v)| *n += f64::from(*v) * f64::from(*v));
        }
        let mut squares = vec![0f64; columns];
        let value = values.get(name).map(|t| t.flatten_all()?.to_vec1::<f32>()).transpose()?.unwrap_or_default();
        for row in value.chunks_exact(columns) {
            squares.iter_mut().zip(row).for_each(|(s, v)| *s += f64::from(*v) * f64::from(*v));
        }
        worth.push(norms.iter().zip(squares).map(|(n, s)| n * s).collect());
    }
    Ok((worth, logits))
}

/// Mean divergence in nats a token of a level from the whole network, whose logits are `dense`.
fn divergence(
    model: &Model,
    groups: &[Group],
    (ladder, level): (&Ladder, &Level),
    windows: &Tensor,
    dense: &Tensor,
    options: &CompileOptions,
) -> Result<f64> {
    let plan = Plan::of(&level_model(model, groups, ladder, level)?, options)?;
    let logits = plan.run(windows)?;
    let mut all = Divergences::default();
    all.add(dense, &logits)?;
    Ok(all.found().kl.value)
}
