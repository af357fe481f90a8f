//! Experts of a mixture as units: which layers each has, and how much it matters.
//!
//! Not here: how a graph is cut by them (`apply`), and which nodes make up an expert (`graph::experts`).

use super::error::{PruneError, Result};
use super::group::{Group, GroupKind};
use super::importance::{Evidence, Method};
use crate::graph::experts::{Mixture, mixtures};
use crate::graph::{Graph, NodeId, ParamRole};
use crate::model::Model;
use candle_core::Tensor;
use std::collections::HashMap;

/// What each expert adds: its weight times the norm of its output, summed over tokens; from the values of the sum's inputs.
pub fn added(mixture: &Mixture, graph: &Graph, values: &HashMap<String, Tensor>) -> candle_core::Result<Vec<f64>> {
    let rows = |id: &NodeId| -> candle_core::Result<Option<Tensor>> {
        let Some(t) = values.get(&graph.node(*id).name) else { return Ok(None) };
        t.detach().reshape(((), t.dim(candle_core::D::Minus1)?)).map(Some)
    };
    let made = &graph.node(mixture.combine).inputs[1..];
    let Some(weights) = rows(&mixture.route)? else { return Ok(vec![0.0; made.len()]) };
    let one = |(e, id): (usize, &NodeId)| -> candle_core::Result<f64> {
        let Some(y) = rows(id)? else { return Ok(0.0) };
        let norms = y.sqr()?.sum(1)?.sqrt()?;
        (norms * weights.narrow(1, e, 1)?.squeeze(1)?)?.sum_all()?.to_scalar::<f32>().map(f64::from)
    };
    made.iter().enumerate().map(one).collect()
}

/// Weights of each expert, with its row of the router.
pub fn weights(mixture: &Mixture, model: &Model) -> Vec<u64> {
    let of = |id: &NodeId| -> u64 {
        let params = &model.graph.node(*id).params;
        params.iter().filter_map(|p| Some(model.params.get(&p.name).ok()?.numel() as u64)).sum()
    };
    let row = of(&mixture.router) / mixture.layers.len().max(1) as u64;
    mixture.layers.iter().map(|layers| row + layers.iter().map(of).sum::<u64>()).collect()
}

/// The mixture whose experts are the units of `group`.
pub fn of_group(graph: &Graph, group: &Group) -> Option<Mixture> {
    let is = |m: &Mixture| graph.node(m.router).name == group.id && m.layers.len() == group.size;
    (group.kind == GroupKind::Experts).then(|| mixtures(graph).into_iter().find(is)).flatten()
}

/// One score per expert by what its layers are: norms of all their weights; with gradients the gate on what it gives (first order), or the sum
/// over all rows (second).
///
/// # Errors
/// [`PruneError::NoGradients`] when `method` needs evidence that is not there; a group of another model.
pub(super) fn importance(
    model: &Model,
    group: &Group,
    method: Method,
    evidence: Option<&Evidence>,
) -> Result<Vec<f32>> {
    let foreign = || PruneError::Foreign { group: group.id.clone(), node: group.id.clone(), axis: 0 };
    let mixture = of_group(&model.graph, group).ok_or_else(foreign)?;
    let missing = |id: &NodeId| PruneError::NoGradients { node: model.graph.node(*id).name.clone() };
    let known = |id: &NodeId| (evidence.ok_or_else(|| missing(id)), &model.graph.node(*id).name);
    let mut scores = Vec::with_capacity(group.size);
    for layers in &mixture.layers {
        let mut score = 0f64;
        match method {
            Method::Taylor => {
                let last = layers.last().ok_or_else(foreign)?;
                let (evidence, name) = known(last);
                let images = evidence?.first.get(name).ok_or_else(|| missing(last))?;
                let gate = |rows: &Vec<f32>| rows.iter().map(|v| f64::from(*v)).sum::<f64>().powi(2);
                score = images.iter().map(gate).sum::<f64>() / images.len().max(1) as f64;
            }
            Method::Hessian => {
                for id in layers {
                    let (evidence, name) = known(id);
                    let rows = evidence?.second.get(name).ok_or_else(|| missing(id))?;
                    score += rows.iter().map(|v| f64::from(*v)).sum::<f64>();
                }
            }
            _ => {
                let l1 = method == Method::L1;
                for id in layers {
                    let Some(weight) = model.graph.node(*id).param(ParamRole::Weight) else { continue };
                    let size = |w: &f32| if l1 { f64::from(w.abs()) } else { f64::from(*w).powi(2) };
                    score += model.params.get(weight)?.values().iter().map(size).sum::<f64>();
                }
                score = if l1 { score } else { score.sqrt() };
            }
        }
        scores.push(score as f32);
    }
    Ok(scores)
}
