//! Actions applied: [`shrink`] to the graph alone (pure, quick enough for every drag of a slider), [`apply`] to the
//! model, parameters and precision plan included.
//!
//! Invariants: node ids, order and names never change; the original is untouched; parameters of nodes that a removed
//! block leaves unreachable are dropped.

use super::action::{Action, Target};
use super::edit::{Edits, stand_ins};
use super::error::Result;
use super::group::Group;
use super::lowrank::{flatten, ranks};
use crate::graph::{Graph, Op, ParamRole, PositionBias, Precision, WeightFormat, op};
use crate::model::{Model, Param, ParamStore};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// The graph after `actions`, for forecasts: a `Prune` whose units are not resolved yet counts the units that its
/// ratio keeps. Precisions do not show in a graph; see [`precision_of`].
pub fn shrink(graph: &Graph, groups: &[Group], actions: &[(Target, Action)]) -> Result<Graph> {
    let edits = Edits::new(graph, groups, actions, true)?;
    shrunk(graph, &edits)
}

/// The model after `actions`, a pure function of the two. Kept units must be resolved. Layers with a rank have the weights that it leaves, in
/// one piece ([`super::split`] makes two of each).
pub fn apply(model: &Model, groups: &[Group], actions: &[(Target, Action)]) -> Result<Model> {
    let edits = Edits::new(&model.graph, groups, actions, false)?;
    let graph = shrunk(&model.graph, &edits)?;
    graph.check()?;
    let mut params = sliced(&model.graph, &graph, &model.params, &edits)?;
    zero(&graph, &mut params, &edits)?;
    let mut precision = model.precision.clone();
    for (node, p) in &edits.precision {
        precision.set(node.clone(), *p);
    }
    // What was cut may be left with rows that are no whole blocks.
    for (_, node) in graph.live() {
        if let Some(p) = precision.nodes.get_mut(&node.name) {
            *p = p.instead(&node.op);
        }
    }
    let info = model.info.clone();
    let mut model = Model { graph: Arc::new(graph), params, precision, info, origin: model.origin.clone() };
    hold_zeros(&mut model, actions);
    let ranks = ranks(&model.graph, actions);
    flatten(&mut model, &ranks)?;
    widen(&mut model);
    model.info.hash = model.params.hash();
    Ok(model)
}

/// Gives the layers among `actions` that get zeros a precision that has one ([`Precision::with_zero`]).
pub fn hold_zeros(model: &mut Model, actions: &[(Target, Action)]) {
    for (target, action) in actions {
        if let (Target::Weights(name), Action::Sparsify { .. }) = (target, action)
            && let Some(p) = model.precision.nodes.get_mut(name)
        {
            *p = p.with_zero();
        }
    }
}

/// Unpacks the weights of layers that are decided to be f32 and are stored in fewer bits.
pub fn widen(model: &mut Model) {
    for (name, precision) in &model.precision.nodes {
        let node = model.graph.by_name(name).map(|id| model.graph.node(id)).filter(|_| *precision == Precision::F32);
        let Some(weight) = node.and_then(|n| n.param(ParamRole::Weight)) else { continue };
        let narrow = model.params.get(weight).ok().filter(|p| !p.is_in(WeightFormat::F32));
        if let Some(wide) = narrow.map(|p| p.stored_in(WeightFormat::F32)) {
            model.params.insert(weight.to_owned(), wide);
        }
    }
}

/// The masks among `actions` laid over `model`, which they were otherwise applied to: what a re-fit filled in between
/// goes again, by the magnitudes that are there now.
///
/// # Errors
/// As [`apply`].
pub fn sparsify(model: &mut Model, groups: &[Group], actions: &[(Target, Action)]) -> Result<()> {
    // Factors take a layer's zeros back; whether they are still smaller than what was cut is no matter here.
    let mask = |(target, action): &(Target, Action)| match (target, action) {
        (Target::Weights(_), Action::Factorise { .. }) => Some((target.clone(), Action::Keep)),
        (Target::Weights(_), _) => Some((target.clone(), action.clone())),
        _ => None,
    };
    let masks: Vec<_> = actions.iter().filter_map(mask).collect();
    if masks.is_empty() {
        return Ok(());
    }
    let edits = Edits::new(&model.graph, groups, &masks, true)?;
    zero(&model.graph, &mut model.params, &edits)?;
    model.info.hash = model.params.hash();
    Ok(())
}

fn zero(graph: &Graph, params: &mut ParamStore, edits: &Edits) -> Result<()> {
    let reachable = graph.reachable();
    for (name, sparsity) in &edits.sparse {
        let node = graph.by_name(name).filter(|id| reachable[id.index()]).map(|id| graph.node(id));
        let Some(weight) = node.and_then(|n| n.param(ParamRole::Weight)) else { continue };
        let old = params.get(weight)?;
        let mut values = old.values().into_owned();
        sparsity.apply(&mut values, old.shape());
        params.set(weight, values)?;
    }
    Ok(())
}

/// Which original indices are left of every axis that `actions` cut, by node name and axis (0 rows, 1 columns).
pub fn kept_indices(
    graph: &Graph,
    groups: &[Group],
    actions: &[(Target, Action)],
) -> Result<HashMap<(String, usize), Vec<u32>>> {
    let edits = Edits::new(graph, groups, actions, true)?;
    let kept = |mask: &[bool]| (0u32..).zip(mask).filter(|(_, k)| **k).map(|(i, _)| i).collect();
    Ok((edits.masks.iter())
        .filter(|(_, mask)| mask.contains(&false))
        .map(|((node, axis), mask)| ((graph.nodes[*node].name.clone(), *axis), kept(mask)))
        .collect())
}

fn shrunk(graph: &Graph, edits: &Edits) -> Result<Graph> {
    let mut g = graph.clone();
    for ((node, axis), mask) in &edits.masks {
        if let Some(facts) = g.nodes[*node].op.facts_mut() {
            facts.narrow(*axis, mask);
        }
        if matches!(g.nodes[*node].op, Op::Combine(_)) {
            // The router's weights come first.
            let mut stays = std::iter::once(true).chain(mask.iter().copied());
            g.nodes[*node].inputs.retain(|_| stays.next().unwrap_or(true));
        }
    }
    if !edits.removed.is_empty() {
        let to = stand_ins(graph, &edits.removed)?;
        for node in &mut g.nodes {
            for input in &mut node.inputs {
                *input = to[input.index()];
            }
        }
        g.output = to[g.output.index()];
    }
    Ok(g)
}

fn sliced(before: &Graph, after: &Graph, params: &ParamStore, edits: &Edits) -> Result<ParamStore> {
    let mut out = params.clone();
    let used: HashSet<&str> = after.live().flat_map(|(_, n)| &n.params).map(|p| p.name.as_str()).collect();
    for (i, node) in before.nodes.iter().enumerate() {
        for p in &node.params {
            if !used.contains(p.name.as_str()) {
                out.remove(&p.name);
                continue;
            }
            let axes: &[usize] = match (p.role, &node.op) {
                (ParamRole::Weight, Op::Conv2d(op::Conv2d { groups: 1, .. }) | Op::Linear(_)) => &[0, 1],
                // A row is a word's.
                (ParamRole::Weight, Op::Embedding(_)) => &[1],
                (ParamRole::PositionBias, Op::Attention(op::Attention { bias: PositionBias::Table, .. })) => &[1],
                (ParamRole::PositionBias | ParamRole::LogitScale | ParamRole::PositionMlp2, _) => &[0],
                // Shared by all heads.
                (ParamRole::PositionMlp1 | ParamRole::PositionMlp1Bias, _) => &[],
                (ParamRole::Weight | ParamRole::Bias | ParamRole::Mean | ParamRole::Var, _) => &[0],
                (ParamRole::Embedding, _) => &[2],
            };
            let masks: Vec<_> = axes.iter().filter_map(|&axis| Some((axis, edits.masks.get(&(i, axis))?))).collect();
            if !masks.is_empty() {
                let whole = params.get(&p.name)?.clone();
                let cut = masks.iter().fold(whole.clone(), |t, &(axis, mask)| select(&t, axis, mask));
                // A table's format is its file's: nothing else tells it.
                let cut = if matches!(node.op, Op::Embedding(_)) { cut.in_floats_of(&whole) } else { cut };
                out.insert(p.name.clone(), cut);
            }
        }
    }
    Ok(out)
}

/// The kept indices of one axis of a tensor; the tensor itself when its shape lacks that axis.
fn select(t: &Param, axis: usize, mask: &[bool]) -> Param {
    let shape = t.shape();
    if shape.get(axis) != Some(&mask.len()) {
        return t.clone();
    }
    if let Some(kept) = t.kept_blocks(axis, mask) {
        return kept;
    }
    let inner: usize = shape[axis + 1..].iter().product();
    let n = mask.iter().filter(|&&k| k).count();
    let values = t.values();
    let mut data = Vec::with_capacity(values.len() / mask.len().max(1) * n);
    for slab in values.chunks_exact((mask.len() * inner).max(1)) {
        for (row, _) in slab.chunks_exact(inner.max(1)).zip(mask).filter(|(_, k)| **k) {
            data.extend_from_slice(row);
        }
    }
    let mut shape = shape.to_vec();
    shape[axis] = n;
    Param::owned(shape, data).unwrap_or_else(|| t.clone())
}
