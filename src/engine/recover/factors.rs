//! Low-rank factors by what a layer reads: of all weights of a rank those with the least error of its outputs on calibration images, in the network
//! compressed so far; once of the weights as they are and once of those re-fitted to what the original's layer gives, so that what earlier layers lost
//! is corrected (reduced-rank regression). Where the layer or the norm after it has something to add, what is lost of the mean output goes there. Of these
//! and the truncated singular value decomposition the one stays with which the calibration loss is least.
//!
//! The weights stay in one piece until the recipe's end (`State::split`), so that nodes are those of the original. Not here: the arithmetic
//! (`prune::lowrank`), language models (`language`).

use super::RepairError;
use super::refit::{Layer, refit};
use super::rounding::Inputs;
use super::sample;
use super::walk::{Judge, Walk};
use crate::graph::{Graph, NodeId, ParamRole, shapes};
use crate::model::{ParamStore, printable};
use crate::prune::{Action, Factors, Target};
use candle_core::Tensor;
use std::time::Instant;

/// Which layers of `made` are one that `actions` gave factors, in words: they were cut until those would have been no smaller, or their block is away.
pub fn stayed_whole(made: &Graph, actions: &[(Target, Action)]) -> Option<String> {
    let two: Vec<&str> = made.factored().into_iter().map(|(_, layer)| layer.name.as_str()).collect();
    let mut whole: Vec<&str> = Vec::new();
    for (target, action) in actions.iter().filter(|(t, _)| matches!(t, Target::Weights(_))) {
        whole.retain(|name| *name != target.name());
        if matches!(action, Action::Factorise { .. }) && !two.contains(&target.name()) {
            whole.push(target.name());
        }
    }
    let (first, rest) = whole.split_first()?;
    let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
    Some(format!(
        "`{}`{more} got no factors: what is left of it after the cuts would be no smaller in two",
        printable(first)
    ))
}

/// Gives a layer that has a rank its weights; returns the calibration loss with them.
///
/// # Errors
/// Unreadable calibration data, execution failures, cancellation (looked for before every batch).
pub(super) fn choose(
    walk: &mut Walk,
    (part, from, to): (&Graph, NodeId, NodeId),
    layer: &Layer,
    targets: &[sample::Target],
    judge: &mut Judge,
) -> Result<f64, RepairError> {
    let started = Instant::now();
    let graph = walk.state.model.graph.clone();
    let name = format!("factors of {}", graph.node(layer.id).name);
    walk.state.trying(&name);
    let inputs = Inputs::gather(walk, &graph, from, layer.id, &shapes(&graph)?)?;
    let options = walk.state.options;
    let chunks: Vec<&Tensor> = walk.chunks.iter().filter(|c| c.answer.is_none()).map(|c| &c.compressed).collect();
    let refitted = refit(&walk.state.model, part, layer, &chunks, targets, options.lambda, walk.state.cancel)?;
    let old = walk.state.model.params.clone();
    let mut tried = Vec::new();
    for (of, by) in [(Some(&old), None), (Some(&old), Some(&inputs)), (refitted.as_ref(), Some(&inputs))] {
        let Some(made) = of.map(|params| factored(walk, &graph, layer.id, params, by)).transpose()?.flatten() else {
            continue;
        };
        walk.state.model.params = made;
        tried.push((walk.loss_through(part, to, judge)?, walk.state.model.params.clone()));
    }
    walk.state.tried();
    let plain = tried.first().map_or(f64::INFINITY, |(loss, _)| *loss);
    let best = tried.into_iter().min_by(|a, b| a.0.total_cmp(&b.0));
    let Some((loss, params)) = best else {
        return Err(crate::prune::PruneError::NoFactors { node: graph.node(layer.id).name.clone() }.into());
    };
    walk.state.model.params = params;
    walk.state.judged(name, (plain, loss), inputs.rows as u64, started);
    Ok(loss)
}

/// `params` with the weight of layer `id` of its rank: for these inputs, or for none in particular.
fn factored(
    walk: &Walk,
    graph: &Graph,
    id: NodeId,
    params: &ParamStore,
    inputs: Option<&Inputs>,
) -> Result<Option<ParamStore>, RepairError> {
    let node = graph.node(id);
    let (Some(name), Some(&rank)) = (node.param(ParamRole::Weight), walk.state.ranks.get(&node.name)) else {
        return Ok(None);
    };
    let weight = params.get(name)?;
    let columns = weight.shape().iter().skip(1).product();
    let moved = inputs.and_then(|inputs| Some((inputs, inputs.movable(graph, id)?)));
    let gram = inputs.map(|inputs| inputs.seen(moved.is_some()));
    let old = weight.values();
    let Some(found) = Factors::of(&old, columns, rank as usize, gram.as_deref()) else { return Ok(None) };
    let (new, mut out) = (found.whole(columns), params.clone());
    if let Some((inputs, moved)) = moved {
        inputs.keep_mean(&mut out, moved, (&old, &new))?;
    }
    out.set(name, new)?;
    Ok(Some(out))
}
