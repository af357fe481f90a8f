//! Rounding to GGML's formats, and of language models to our own: by the importance of columns, as llama.cpp does for its formats; with GPTQ, whose
//! errors are made up for by the columns that are not rounded yet; and so again after scales were moved between layers. All weights at once are
//! judged, since layers of a language model are too many to judge each; what has the least calibration loss stays, rounding to the nearest
//! included.
//!
//! Not here: how one row is rounded (`quant`, `model::ggml`).

use super::importance::importance;
use super::rounding::{Codes, Inputs, WIDEST, codes, rounded};
use super::segment::part;
use super::state::{Images, State};
use super::walk::{Walk, stretches};
use super::{RepairError, batchnorm, smooth};
use crate::graph::ggml::Block;
use crate::graph::{Node, NodeId, Op, ParamRole, Precision, Precisions, WeightFormat, shapes};
use crate::model::{Model, Param, ParamStore};
use crate::quant::gptq_blocks;
use crate::words::counted;
use std::path::Path;
use std::time::Instant;

/// What a weight is rounded to.
#[derive(Clone, Copy)]
enum To {
    Block(Block),
    Own(Codes, WeightFormat),
}

/// The weight of a layer that will be rounded to a format in which there is something to choose, with its name and that format.
fn to_round<'m>(model: &'m Model, node: &'m Node) -> Option<(&'m str, To)> {
    let precision = model.precision.get(&node.name);
    if precision == Precision::Block(Block::Q8_0) || precision.unfit(&node.op).is_some() {
        return None;
    }
    let name = node.param(ParamRole::Weight)?;
    let weight = model.params.get(name).ok()?;
    let format = precision.weights();
    let to = match precision {
        Precision::Block(block) => To::Block(block),
        // Layers of networks for images are judged one by one (`rounding`), texts of classifiers have no one length. What an embedding shares is as wide as the vocabulary.
        _ if !model.graph.is_language_model() || model.graph.sharing(node).is_some() => return None,
        _ if !matches!(node.op, Op::Linear(_)) => return None,
        _ => To::Own(codes(format, weight.shape().last().copied()?)?, format),
    };
    (!weight.is_in(format)).then_some((name, to))
}

/// `weight` of `node` in the blocks that it is decided to be in: by GPTQ for inputs with the Gram matrix `gram`, and to the nearest. Nothing, where it
/// is in no format whose rounding is chosen, or its rows are no whole blocks.
pub(super) fn rounded_now(model: &Model, node: &Node, weight: &[f32], gram: &[f64]) -> Vec<Param> {
    let Precision::Block(block) = model.precision.get(&node.name) else { return Vec::new() };
    let Some(Ok(prior)) = node.param(ParamRole::Weight).map(|name| model.params.get(name)) else { return Vec::new() };
    let shape = prior.shape().to_vec();
    if !shape.last().is_some_and(|row| row.is_multiple_of(block.values())) {
        return Vec::new();
    }
    let learnt = gptq_blocks(weight, gram, block).map(|f| f.bytes);
    let all = learnt.into_iter().chain([block.encode(weight)]);
    all.filter_map(|bytes| Param::of_blocks(shape.clone(), bytes, block)).collect()
}

/// How many there are.
fn weights(model: &Model) -> usize {
    model.graph.live().filter(|(_, n)| to_round(model, n).is_some()).count()
}

/// How many of them go into formats that know of importances.
fn by_importance(model: &Model) -> usize {
    model.graph.live().filter(|(_, n)| matches!(to_round(model, n), Some((_, To::Block(_))))).count()
}

/// Roundings that [`run`] will try.
pub(super) fn repairs(state: &State) -> usize {
    let model = &state.model;
    match weights(model) {
        0 => 0,
        _ => 1 + usize::from(by_importance(model) > 0) + usize::from(model.graph.is_language_model()),
    }
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
    let weighted = match by_importance(&state.model) {
        0 => state.model.params.clone(),
        _ => {
            state.trying("round by importance");
            let found = weighted(state, images)?;
            judge(state, "by importance", started, &found)?;
            found
        }
    };
    let started = Instant::now();
    state.trying("round with GPTQ");
    let found = learnt(state, images, &weighted, false)?;
    judge(state, "with GPTQ", started, &found)?;
    if state.model.graph.is_language_model() {
        let started = Instant::now();
        state.trying("round with GPTQ after scales");
        let found = learnt(state, images, &weighted, true)?;
        judge(state, "with GPTQ after moved scales", started, &found)?;
    }
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
/// for that as in `weighted`. `scaled`: scales are moved first ([`smooth`]).
fn learnt(state: &mut State, images: &Images, weighted: &ParamStore, scaled: bool) -> Result<ParamStore, RepairError> {
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
        if scaled {
            let rounded = |model: &Model, id: NodeId| to_round(model, graph.node(id)).is_some();
            smooth::pass(&mut walk, &graph, stretch, &rounded)?;
        }
        // Queries, keys and values read the same.
        let mut read: Option<(NodeId, Inputs)> = None;
        for &id in &stretch.layers {
            let node = graph.node(id);
            walk.state.progress(done, total, &format!("round {}", node.name));
            done += 1;
            // A weight that an earlier layer shares is rounded by now.
            let Some((name, to)) = to_round(&walk.state.model, node) else { continue };
            let (name, weight) = (name.to_owned(), walk.state.model.params.get(name)?.clone());
            let columns: usize = weight.shape().iter().skip(1).product();
            let source = node.inputs.first().copied().unwrap_or(stretch.from);
            let mut found = None;
            if columns <= WIDEST {
                let inputs = match read.take() {
                    Some((from, inputs)) if from == source => inputs,
                    _ => Inputs::gather(&walk, &graph, stretch.from, id, &shapes)?,
                };
                let (shape, values) = (weight.shape().to_vec(), weight.values());
                found = match to {
                    To::Block(block) => {
                        gptq_blocks(&values, &inputs.gram, block).and_then(|f| Param::of_blocks(shape, f.bytes, block))
                    }
                    To::Own(codes, format) => rounded(&values, &inputs.gram, codes, (shape, format)),
                };
                read = Some((source, inputs));
            }
            let rounded = match found {
                Some(rounded) => rounded,
                // Scales that were moved are not in what was rounded before.
                None if scaled => weight.stored_in(walk.state.model.precision.get(&node.name).weights()),
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
