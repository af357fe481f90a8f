//! Rounding to GGML's formats: by the importance of columns, as llama.cpp does, and with GPTQ, whose errors are made up for by the columns that
//! are not rounded yet. All weights at once are judged, since layers of a language model are too many to judge each; what has the least
//! calibration loss stays, rounding to the nearest included.
//!
//! Not here: how one row is rounded (`quant`, `model::ggml`).

use super::importance::importance;
use super::rounding::{Inputs, WIDEST};
use super::segment::part;
use super::state::{Images, State};
use super::walk::{Walk, stretches};
use super::{RepairError, batchnorm};
use crate::graph::ggml::Block;
use crate::graph::{Node, NodeId, ParamRole, Precision, Precisions, shapes};
use crate::model::{Model, Param, ParamStore};
use crate::quant::gptq_blocks;
use crate::words::counted;
use std::path::Path;
use std::time::Instant;

/// The weight of a layer that will be rounded to one of GGML's formats in which there is something to choose, with its name and that format.
fn to_round<'m>(model: &'m Model, node: &'m Node) -> Option<(&'m str, Block)> {
    let precision = model.precision.get(&node.name);
    let Precision::Block(block) = precision else { return None };
    if block == Block::Q8_0 || precision.unfit(&node.op).is_some() {
        return None;
    }
    let name = node.param(ParamRole::Weight)?;
    (!model.params.get(name).ok()?.is_in(precision.weights())).then_some((name, block))
}

/// How many there are.
fn weights(model: &Model) -> usize {
    model.graph.live().filter(|(_, n)| to_round(model, n).is_some()).count()
}

/// Roundings that [`run`] will try.
pub(super) fn repairs(state: &State) -> usize {
    if weights(&state.model) > 0 { 2 } else { 0 }
}

/// Rounds what goes into GGML's formats.
///
/// # Errors
/// Unreadable calibration data, execution failures, cancellation (looked for before every batch).
pub(super) fn run(state: &mut State, images: &Images) -> Result<(), RepairError> {
    if repairs(state) == 0 {
        return Ok(());
    }
    let n = counted(weights(&state.model), "weight");
    let mut best = batchnorm::loss(state, &state.model.params, images)?;
    let mut stays = state.model.params.clone();
    let mut judge = |state: &mut State, what: &str, started: Instant, rounded: &ParamStore| {
        state.tried();
        let loss = batchnorm::loss(state, rounded, images)?;
        if state.judged(format!("round {n} {what}"), (best, loss), images.fit.len() as u64, started) {
            best = loss;
            stays = rounded.clone();
        }
        Ok::<_, RepairError>(())
    };
    let started = Instant::now();
    state.trying("round by importance");
    let weighted = weighted(state, images)?;
    judge(state, "by importance", started, &weighted)?;
    let started = Instant::now();
    state.trying("round with GPTQ");
    let learnt = learnt(state, images, &weighted)?;
    judge(state, "with GPTQ", started, &learnt)?;
    state.model.params = stays;
    Ok(())
}

/// All weights by the importance of their columns, in one pass of the network as it is before it is rounded.
fn weighted(state: &State, images: &Images) -> Result<ParamStore, RepairError> {
    let float = Model { precision: Precisions::default(), ..state.model.clone() };
    let batches = state.calib.parts(&images.fit, images.batch);
    let found = importance(&float, &mut |i| -> Result<_, RepairError> {
        state.cancel.check()?;
        let Some(picks) = batches.get(i) else { return Ok(None) };
        Ok(Some(state.calib.batch(picks, &state.original.info.preprocess)?.0))
    })?;
    let mut rounded = state.model.clone();
    found.round(&mut rounded, Path::new("calibration"))?;
    Ok(rounded.params)
}

/// Layer after layer by the Gram matrix of what it reads in the network whose earlier layers are rounded already; those that are too wide
/// for that as in `weighted`.
fn learnt(state: &mut State, images: &Images, weighted: &ParamStore) -> Result<ParamStore, RepairError> {
    let graph = state.model.graph.clone();
    let shapes = shapes(&graph)?;
    let plain = state.model.params.clone();
    let wanted = |i: usize| to_round(&state.model, &graph.nodes[i]).is_some();
    let stretches = stretches(state, &wanted);
    let mut walk = Walk::start(state, images)?;
    let total: usize = stretches.iter().map(|s| s.layers.len()).sum();
    let mut done = 0;
    for stretch in &stretches {
        let whole = part(&graph, stretch.from, &shapes[stretch.from.index()], stretch.to);
        // Queries, keys and values read the same.
        let mut read: Option<(NodeId, Inputs)> = None;
        for &id in &stretch.layers {
            let node = graph.node(id);
            walk.state.progress(done, total, &format!("round {}", node.name));
            done += 1;
            // A weight that an earlier layer shares is rounded by now.
            let Some((name, block)) = to_round(&walk.state.model, node) else { continue };
            let (name, weight) = (name.to_owned(), walk.state.model.params.get(name)?.clone());
            let columns: usize = weight.shape().iter().skip(1).product();
            let source = node.inputs.first().copied().unwrap_or(stretch.from);
            let mut found = None;
            if columns <= WIDEST {
                let inputs = match read.take() {
                    Some((from, inputs)) if from == source => inputs,
                    _ => Inputs::gather(&walk, &graph, stretch.from, id, &shapes)?,
                };
                found = gptq_blocks(&weight.values(), &inputs.gram, block);
                read = Some((source, inputs));
            }
            let rounded = found.and_then(|f| Param::of_blocks(weight.shape().to_vec(), f.bytes, block));
            let rounded = match rounded {
                Some(rounded) => rounded,
                None => weighted.get(&name)?.clone(),
            };
            walk.state.model.params.insert(name, rounded);
        }
        if stretch.to != graph.output {
            walk.advance(&whole)?;
        }
    }
    Ok(std::mem::replace(&mut state.model.params, plain))
}
