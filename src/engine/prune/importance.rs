//! How much each unit of a group matters. Scores compare units within one group, and nothing else is done with them: how
//! much of a group goes is decided by measured sensitivities. (LAMP of Lee et al. 2021 is therefore not here. It compares
//! weights across layers; within one it ranks as magnitude does.)

use super::error::{PruneError, Result};
use super::experts;
use super::group::{Group, GroupKind, Member, MemberRole};
use crate::graph::{Graph, Node, NodeId, Op, ParamRole, op};
use crate::model::Model;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// How units are ranked. A unit's rows are those that compute it in every producer of the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// Sum of absolute weights of the unit's rows, each row scaled by `|γ| / √(var + ε)` of the batch norm after it
    /// (Li et al. 2017, with the folded batch norm).
    L1,
    /// Euclidean norm of the same. (Journals of older versions may say `lamp`, which ranked one producer's rows alike.)
    #[default]
    #[serde(alias = "lamp")]
    L2,
    /// `|γ|` of the batch norm after the rows (Liu et al. 2017, network slimming); L2 where there is none.
    BatchNorm,
    /// Sum of distances to the other units' rows: what others can stand in for matters less (He et al. 2019).
    Fpgm,
    /// Mean over calibration images of `(Σ w · ∂L/∂w)²` over all of the unit's rows, weights and biases (Molchanov et al.
    /// 2019, equation 8 with the gate on the unit).
    Taylor,
    /// `½ Σ w² · h` with the Hessian's diagonal `h` as the mean over calibration images of squared gradients (LeCun et
    /// al. 1990, optimal brain damage; the empirical Fisher information for `h` as in Theis et al. 2018).
    Hessian,
    /// `Σ |w| · ‖x‖` with the norm of every input channel over the calibration images and places (Sun et al. 2023, Wanda,
    /// summed by row). Of an expert the sum of what it adds: its weight times the norm of its output, over the tokens that are sent to it
    /// (Lasby et al. 2025, REAP, without their division by how many those are).
    Activation,
    /// By lot, the same every time: what any method must beat.
    Random,
}

impl Method {
    pub const ALL: [Method; 8] = [
        Method::L1,
        Method::L2,
        Method::BatchNorm,
        Method::Fpgm,
        Method::Taylor,
        Method::Hessian,
        Method::Activation,
        Method::Random,
    ];

    pub fn label(self) -> &'static str {
        match self {
            Method::L1 => "l1",
            Method::L2 => "l2",
            Method::BatchNorm => "batch-norm",
            Method::Fpgm => "fpgm",
            Method::Taylor => "taylor",
            Method::Hessian => "hessian",
            Method::Activation => "activation",
            Method::Random => "random",
        }
    }

    /// Does it need [`Evidence`] from calibration images?
    pub fn needs_evidence(self) -> bool {
        matches!(self, Method::Taylor | Method::Hessian | Method::Activation)
    }

    /// Does it take no longer than reading the weights once? (FPGM compares every unit with every other.)
    pub fn is_quick(self) -> bool {
        !self.needs_evidence() && self != Method::Fpgm
    }
}

impl std::str::FromStr for Method {
    type Err = String;

    fn from_str(s: &str) -> Result<Method, String> {
        let wanted = s.trim().to_lowercase().replace('_', "-");
        if wanted == "lamp" {
            let words = "importance `lamp` compares layers with each other and ranks the units of one as `l2` does; how much \
                         of each goes is decided by measured sensitivity; hint: l2";
            return Err(words.to_owned());
        }
        Method::ALL.into_iter().find(|m| m.label() == wanted).ok_or_else(|| {
            let known: Vec<&str> = Method::ALL.iter().map(|m| m.label()).collect();
            format!("unknown importance `{s}`; hint: one of {}", known.join(", "))
        })
    }
}

/// What calibration images say about the output rows of every convolution and linear layer, by node name. Small: a few
/// numbers per row.
#[derive(Debug, Clone, Default)]
pub struct Evidence {
    /// Per image, `Σ w · ∂L/∂w` of every row (weight and bias).
    pub first: HashMap<String, Vec<Vec<f32>>>,
    /// `½ Σ w² · h` of every row (weight and bias), `h` the images' mean of `(∂L/∂w)²`.
    pub second: HashMap<String, Vec<f32>>,
    /// `Σ |w| · ‖x‖` of every row; of a router's rows what their experts add.
    pub activation: HashMap<String, Vec<f32>>,
}

impl Evidence {
    /// A hash over all of it, so that what was measured with it can be kept by content.
    pub fn hash(&self) -> String {
        let mut hash = blake3::Hasher::new();
        let mut add = |name: &str, rows: &[f32]| {
            hash.update(name.as_bytes()).update(&[0]);
            for v in rows {
                hash.update(&v.to_le_bytes());
            }
        };
        let mut names: Vec<&String> =
            self.first.keys().chain(self.second.keys()).chain(self.activation.keys()).collect();
        names.sort();
        for name in names {
            self.first.get(name).into_iter().flatten().for_each(|image| add(name, image));
            [self.second.get(name), self.activation.get(name)].into_iter().flatten().for_each(|rows| add(name, rows));
        }
        hash.finalize().to_hex().to_string()
    }
}

/// One score per unit, at least zero; larger matters more. Several producers: the sum of their scores, with `taylor` the
/// score of their sum.
///
/// # Errors
/// [`PruneError::NoGradients`] when `method` needs evidence that is not there; a group of another model.
pub fn importance(model: &Model, group: &Group, method: Method, evidence: Option<&Evidence>) -> Result<Vec<f32>> {
    if method == Method::Random {
        let seed = blake3::hash(group.id.as_bytes());
        let mut rng = ChaCha8Rng::from_seed(*seed.as_bytes());
        return Ok((0..group.size).map(|_| rng.random::<f32>()).collect());
    }
    if group.kind == GroupKind::Experts && method != Method::Activation {
        return experts::importance(model, group, method, evidence);
    }
    let mut scores = vec![0f32; group.size];
    // Per image and unit, with first-order evidence.
    let mut moved: Vec<Vec<f64>> = Vec::new();
    for m in group.members.iter().filter(|m| m.role == MemberRole::Producer && !m.roles.is_empty()) {
        let foreign = || PruneError::Foreign { group: group.id.clone(), node: m.node.clone(), axis: m.axis };
        let id = model.graph.by_name(&m.node).ok_or_else(foreign)?;
        let missing = || PruneError::NoGradients { node: m.node.clone() };
        let known = |rows: fn(&Evidence) -> &HashMap<String, Vec<f32>>| {
            evidence.and_then(|e| rows(e).get(&m.node)).ok_or_else(missing)
        };
        let add = |scores: &mut [f32], rows: &[f32], f: fn(f32) -> f32, g: fn(f32) -> f32| {
            for (u, score) in scores.iter_mut().enumerate() {
                *score += g(m.indices(u).map(|i| f(rows.get(i).copied().unwrap_or(0.0))).sum());
            }
        };
        let same = |v: f32| v;
        match method {
            Method::Random => {}
            Method::Taylor => {
                let images = evidence.and_then(|g| g.first.get(&m.node)).filter(|i| !i.is_empty());
                let images = images.ok_or_else(missing)?;
                moved.resize(images.len(), vec![0.0; group.size]);
                for (moved, rows) in moved.iter_mut().zip(images) {
                    for (u, sum) in moved.iter_mut().enumerate() {
                        *sum += m.indices(u).filter_map(|i| rows.get(i)).map(|v| f64::from(*v)).sum::<f64>();
                    }
                }
            }
            Method::Hessian => add(&mut scores, known(|e| &e.second)?, same, same),
            Method::Activation => add(&mut scores, known(|e| &e.activation)?, same, same),
            Method::L1 => add(&mut scores, &row_norms(model, id, true)?, same, same),
            Method::L2 => add(&mut scores, &row_norms(model, id, false)?, |v| v * v, f32::sqrt),
            Method::BatchNorm => match gammas(model, id)? {
                Some(rows) => add(&mut scores, &rows, f32::abs, same),
                None => add(&mut scores, &row_norms(model, id, false)?, |v| v * v, f32::sqrt),
            },
            Method::Fpgm => fpgm(model, id, m, &mut scores)?,
        }
    }
    for (u, score) in scores.iter_mut().enumerate().filter(|_| !moved.is_empty()) {
        *score = (moved.iter().map(|m| m[u] * m[u]).sum::<f64>() / moved.len() as f64) as f32;
    }
    Ok(scores)
}

/// Adds the sum of distances between a unit's rows (scaled by the batch norm after them) and all other units'.
fn fpgm(model: &Model, id: NodeId, m: &Member, scores: &mut [f32]) -> Result<()> {
    let Some(weight) = model.graph.node(id).param(ParamRole::Weight) else { return Ok(()) };
    let weight = model.params.get(weight)?;
    let (values, scale) = (weight.values(), bn_scale(model, id)?);
    let width = (values.len() / weight.shape().first().copied().unwrap_or(1).max(1)).max(1);
    let row = |i: usize| values.get(i * width..(i + 1) * width).unwrap_or(&[]);
    let factor = |i: usize| scale.get(i).copied().unwrap_or(1.0);
    for a in 0..scores.len() {
        for b in a + 1..scores.len() {
            let square: f32 = m
                .indices(a)
                .zip(m.indices(b))
                .map(|(i, j)| {
                    let (fi, fj) = (factor(i), factor(j));
                    row(i).iter().zip(row(j)).map(|(x, y)| (x * fi - y * fj).powi(2)).sum::<f32>()
                })
                .sum();
            let distance = square.sqrt();
            scores[a] += distance;
            scores[b] += distance;
        }
    }
    Ok(())
}

/// L1 or L2 norm of every output row of a conv or linear, scaled by the batch norm that reads it, if one does.
fn row_norms(model: &Model, id: NodeId, l1: bool) -> Result<Vec<f32>> {
    let node = model.graph.node(id);
    let Some(weight) = node.param(ParamRole::Weight) else { return Ok(Vec::new()) };
    let weight = model.params.get(weight)?;
    let rows = weight.shape().first().copied().unwrap_or(0);
    let scale = bn_scale(model, id)?;
    let values = weight.values();
    let norm = |r: &[f32]| match l1 {
        true => r.iter().map(|w| w.abs()).sum::<f32>(),
        false => r.iter().map(|w| w * w).sum::<f32>().sqrt(),
    };
    let width = (values.len() / rows.max(1)).max(1);
    let scaled = |(i, r): (usize, &[f32])| norm(r) * scale.get(i).copied().unwrap_or(1.0);
    Ok(values.chunks_exact(width).enumerate().map(scaled).collect())
}

/// `|γ| / √(var + ε)` of the batch norm that reads `id`; nothing where none does.
fn bn_scale(model: &Model, id: NodeId) -> Result<Vec<f32>> {
    let Some((bn, eps)) = batch_norm_after(&model.graph, id) else { return Ok(Vec::new()) };
    let (Some(gamma), Some(var)) = (bn.param(ParamRole::Weight), bn.param(ParamRole::Var)) else {
        return Ok(Vec::new());
    };
    let gamma = model.params.get(gamma)?.values();
    let var = model.params.get(var)?.values();
    Ok(gamma.iter().zip(var.iter()).map(|(g, v)| g.abs() / (v + eps as f32).sqrt()).collect())
}

fn gammas(model: &Model, id: NodeId) -> Result<Option<Vec<f32>>> {
    let gamma = batch_norm_after(&model.graph, id).and_then(|(bn, _)| bn.param(ParamRole::Weight));
    Ok(gamma.map(|g| model.params.get(g)).transpose()?.map(|p| p.values().into_owned()))
}

fn batch_norm_after(graph: &Graph, id: NodeId) -> Option<(&Node, f64)> {
    graph.nodes.iter().find_map(|n| match n.op {
        Op::BatchNorm2d(op::BatchNorm2d { eps, .. }) if n.inputs.first() == Some(&id) => Some((n, eps)),
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_method_has_a_name_that_is_read_back() {
        for m in Method::ALL {
            assert_eq!(m.label().parse(), Ok(m));
        }
        assert!("magic".parse::<Method>().unwrap_err().contains("batch-norm"));
        assert!("lamp".parse::<Method>().unwrap_err().contains("hint: l2"));
        assert_eq!(serde_json::from_str::<Method>("\"lamp\"").ok(), Some(Method::L2), "older sessions open");
    }
}
