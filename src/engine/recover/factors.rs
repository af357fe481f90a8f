//! Low-rank factors by what a layer reads: of all weights of a rank those with the least error of its outputs on calibration data, in the network
//! compressed so far. Where the layer or the norm after it has something to add, what is lost of the mean output goes there.
//!
//! All together are held against the truncated singular value decompositions by the network's answer. The weights stay in one piece until the
//! recipe's end (`State::split`), so that nodes are those of the original. Not here: the arithmetic (`prune::lowrank`).

use super::RepairError;
use super::batchnorm;
use super::rounding::{Inputs, WIDEST};
use super::segment::part;
use super::state::State;
use super::walk::{Stretch, Walk, stretches};
use crate::graph::{Graph, NodeId, Op, ParamRole, shapes};
use crate::prune::{self, Factors};
use crate::words::counted;
use std::time::Instant;

/// Repairs that [`run`] will try: all layers are judged at once.
pub(super) fn repairs(state: &State) -> usize {
    usize::from(!state.ranks.is_empty())
}

/// Gives layers that have a rank the weights of it that suit what they read.
///
/// # Errors
/// Unreadable calibration data, execution failures, cancellation (looked for before every batch).
pub(super) fn run(state: &mut State) -> Result<(), RepairError> {
    if state.ranks.is_empty() {
        return Ok(());
    }
    let started = Instant::now();
    let name = format!("factors of {}", counted(state.ranks.len(), "layer"));
    state.trying(&name);
    let images = state.images()?;
    let graph = state.model.graph.clone();
    let ranked = |i: usize| {
        let node = &graph.nodes[i];
        let columns = node
            .param(ParamRole::Weight)
            .and_then(|w| state.model.params.get(w).ok())
            .map(|p| p.shape()[1..].iter().product());
        state.ranks.contains_key(&node.name) && columns.is_some_and(|c: usize| c <= WIDEST)
    };
    let stretches = stretches(state, &ranked);
    let mut plain = state.model.clone();
    prune::flatten(&mut plain, &state.ranks)?;
    let names: Vec<String> = state.ranks.keys().cloned().collect();
    let decided = state.unrounded(&names.iter().map(String::as_str).collect());
    let before = batchnorm::loss(state, &plain.params, &images)?;
    let full = state.model.params.clone();
    // Those of more columns than sums are kept of.
    for name in &names {
        let weight = graph.by_name(name).and_then(|id| graph.node(id).param(ParamRole::Weight));
        if let Some((weight, p)) = weight.and_then(|w| Some((w, plain.params.get(w).ok()?))) {
            state.model.params.insert(weight, p.clone());
        }
    }
    let mut walk = Walk::start(state, &images)?;
    let mut samples = 0;
    for (i, stretch) in stretches.iter().enumerate() {
        let found = pass(&mut walk, &graph, stretch, (&full, i + 1 < stretches.len()))?;
        samples = samples.max(found);
    }
    state.tried();
    let after = batchnorm::loss(state, &state.model.params, &images)?;
    if !state.judged(name, (before, after), samples, started) {
        state.model.params = plain.params;
    }
    state.model.precision = decided;
    Ok(())
}

/// Gives the stretch's layers their weights, of those that they had whole, and moves on to its end where there is more; how many samples there were.
fn pass(
    walk: &mut Walk,
    graph: &Graph,
    stretch: &Stretch,
    (full, more): (&crate::model::ParamStore, bool),
) -> Result<u64, RepairError> {
    let shapes = shapes(graph)?;
    let mut samples = 0;
    let source = |id: &NodeId| graph.node(*id).inputs.first().copied();
    let linear = |id: &NodeId| matches!(graph.node(*id).op, Op::Linear(_));
    // Queries, keys and values read the same.
    for together in stretch.layers.chunk_by(|a, b| linear(a) && linear(b) && source(a) == source(b)) {
        let inputs = Inputs::gather(walk, graph, stretch.from, together[0], &shapes)?;
        samples = samples.max(inputs.rows as u64);
        for &id in together {
            fit(walk.state, graph, id, (full, &inputs))?;
        }
    }
    if more {
        walk.advance(&part(graph, stretch.from, &shapes[stretch.from.index()], stretch.to))?;
    }
    Ok(samples)
}

/// Gives layer `id` the weights of its rank that suit `inputs`; it keeps those it has where there are none.
fn fit(
    state: &mut State,
    graph: &Graph,
    id: NodeId,
    (full, inputs): (&crate::model::ParamStore, &Inputs),
) -> Result<(), RepairError> {
    let node = graph.node(id);
    let (Some(name), Some(&rank)) = (node.param(ParamRole::Weight), state.ranks.get(&node.name)) else { return Ok(()) };
    let (old, moved) = (full.get(name)?.values(), inputs.movable(graph, id));
    let gram = inputs.seen(moved.is_some());
    let columns = inputs.columns();
    let Some(found) = Factors::of(&old, columns, rank as usize, Some(&gram)) else { return Ok(()) };
    let new = found.whole(columns);
    if let Some(moved) = moved {
        inputs.keep_mean(&mut state.model.params, moved, (&old, &new))?;
    }
    state.model.params.set(name, new)?;
    Ok(())
}
