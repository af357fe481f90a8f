//! How much each unit of a group matters: magnitudes scaled by the batch norm that follows, and first-order Taylor.
//!
//! Scores compare units within one group and, for L1/L2 scaled by batch norm, roughly across groups of one network.

use super::error::PruneError;
use super::group::{Group, MemberRole};
use crate::graph::{Graph, Node, NodeId, Op, ParamRole};
use crate::model::Model;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// How units are ranked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Sum of absolute weights of the unit's rows, each row scaled by `|γ| / √(var + ε)` of the batch norm after it.
    L1,
    /// Euclidean norm of the same (Li et al. 2017, with the folded batch norm).
    #[default]
    L2,
    /// `|Σ w · ∂L/∂w|` over the unit's rows, a mean over calibration batches (Molchanov et al. 2019).
    Taylor,
}

/// What first-order Taylor importance needs of the calibration data: per node and batch, `Σ w · ∂L/∂w` of every output
/// row (weight and bias). Small: one number per row and batch.
#[derive(Debug, Clone, Default)]
pub struct Gradients {
    pub rows: HashMap<String, Vec<Vec<f32>>>,
}

/// One score per unit, at least zero; larger matters more. Several producers: the sum of their scores.
pub fn importance(
    model: &Model,
    group: &Group,
    method: Method,
    gradients: Option<&Gradients>,
) -> Result<Vec<f32>, PruneError> {
    let mut scores = vec![0f32; group.size];
    for m in group.members.iter().filter(|m| m.role == MemberRole::Producer && !m.roles.is_empty()) {
        let foreign = || PruneError::Foreign { group: group.id.clone(), node: m.node.clone(), axis: m.axis };
        let id = model.graph.by_name(&m.node).ok_or_else(foreign)?;
        if method == Method::Taylor {
            let missing = || PruneError::NoGradients { node: m.node.clone() };
            let batches = gradients.and_then(|g| g.rows.get(&m.node)).filter(|b| !b.is_empty()).ok_or_else(missing)?;
            for rows in batches {
                for (u, score) in scores.iter_mut().enumerate() {
                    let sum: f32 = m.indices(u).map(|i| rows.get(i).copied().unwrap_or(0.0)).sum();
                    *score += sum.abs() / batches.len() as f32;
                }
            }
            continue;
        }
        let rows = row_norms(model, id, method)?;
        for (u, score) in scores.iter_mut().enumerate() {
            let parts = m.indices(u).map(|i| rows.get(i).copied().unwrap_or(0.0));
            *score += match method {
                Method::L1 => parts.sum::<f32>(),
                Method::L2 | Method::Taylor => parts.map(|r| r * r).sum::<f32>().sqrt(),
            };
        }
    }
    Ok(scores)
}

/// Norm of every output row of a conv or linear, scaled by the batch norm that reads it, if one does.
fn row_norms(model: &Model, id: NodeId, method: Method) -> Result<Vec<f32>, PruneError> {
    let node = model.graph.node(id);
    let Some(weight) = node.param(ParamRole::Weight) else { return Ok(Vec::new()) };
    let weight = model.params.get(weight)?;
    let rows = weight.shape().first().copied().unwrap_or(0);
    let scale = bn_scale(model, id)?;
    let values = weight.values();
    let norm = |r: &[f32]| match method {
        Method::L1 => r.iter().map(|w| w.abs()).sum::<f32>(),
        Method::L2 | Method::Taylor => r.iter().map(|w| w * w).sum::<f32>().sqrt(),
    };
    let width = (values.len() / rows.max(1)).max(1);
    Ok(values
        .chunks_exact(width)
        .enumerate()
        .map(|(i, r)| norm(r) * scale.as_ref().and_then(|s| s.get(i)).copied().unwrap_or(1.0))
        .collect())
}

/// `|γ| / √(var + ε)` of the batch norm that reads `id`.
fn bn_scale(model: &Model, id: NodeId) -> Result<Option<Vec<f32>>, PruneError> {
    let Some((bn, eps)) = batch_norm_after(&model.graph, id) else { return Ok(None) };
    let (Some(gamma), Some(var)) = (bn.param(ParamRole::Weight), bn.param(ParamRole::Var)) else { return Ok(None) };
    let gamma = model.params.get(gamma)?.values();
    let var = model.params.get(var)?.values();
    Ok(Some(gamma.iter().zip(var.iter()).map(|(g, v)| g.abs() / (v + eps as f32).sqrt()).collect()))
}

fn batch_norm_after(graph: &Graph, id: NodeId) -> Option<(&Node, f64)> {
    graph.nodes.iter().find_map(|n| match n.op {
        Op::BatchNorm2d { eps, .. } if n.inputs.first() == Some(&id) => Some((n, eps)),
        _ => None,
    })
}

/// The units that stay when `ratio` of `group` goes: the most important ones, a multiple of the granule, ascending.
/// Equal scores keep the lower index; a NaN counts as unimportant.
pub fn resolve(group: &Group, scores: &[f32], ratio: f64) -> Vec<u32> {
    let mut order: Vec<u32> = (0..group.size as u32).collect();
    let score = |u: u32| scores.get(u as usize).copied().filter(|s| !s.is_nan()).unwrap_or(f32::NEG_INFINITY);
    order.sort_by(|&a, &b| score(b).total_cmp(&score(a)).then(a.cmp(&b)));
    order.truncate(group.kept_at(ratio));
    order.sort_unstable();
    order
}
