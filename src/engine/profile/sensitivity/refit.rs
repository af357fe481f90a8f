//! A quick local re-fit for measuring: the layers that read a pruned group are fitted, in closed form, to give what they
//! gave before.
//!
//! With `x` the reader's input, `G` the second moments of `x` on calibration data (about the mean where the reader has a
//! free intercept) and `S` the kept columns: `W' = (G_SS + λI)⁻¹ (G_S· Wᵀ + λ W_Sᵀ)`, the ridge towards the old weights.
//! One gathering of `G` serves every ratio. The thorough repair with error correction is `recover`'s.

use super::super::Result;
use crate::exec::{Cancel, CompileOptions, Plan};
use crate::graph::{Graph, NodeId, Op, ParamRole, op, shapes};
use crate::model::Model;
use crate::prune::{Group, MemberRole};
use crate::recover::{Places, add_to, draw, inputs, places_of};
use crate::task::Targets;
use candle_core::Tensor;
use faer::linalg::solvers::Solve;
use faer::{Mat, Side};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Ridge as a part of the mean diagonal.
const LAMBDA: f64 = 1e-3;
/// Samples aimed at.
const SAMPLES: usize = 8_192;
/// Bytes of activations captured at once.
const CAPTURE_BYTES: usize = 128 << 20;
/// A group whose moments take more than this is measured without re-fit.
const MOST_BYTES: usize = 1 << 30;

/// Moments of the inputs of every reader of one group.
pub(super) struct Refit {
    readers: Vec<Reader>,
}

struct Reader {
    node: NodeId,
    input: NodeId,
    /// Weight columns that unit `u` owns.
    columns: Vec<Vec<usize>>,
    d: usize,
    /// Output positions.
    places: usize,
    out_width: usize,
    n: f64,
    xx: Vec<f64>,
    x: Vec<f64>,
}

/// Memory that a group's moments take.
pub(super) fn bytes(graph: &Graph, group: &Group) -> usize {
    readers(graph, group).iter().map(|(_, d, _)| 8 * d * d).sum()
}

/// Readers of the group that can be re-fitted: node, fan-in, weight columns per unit.
fn readers(graph: &Graph, group: &Group) -> Vec<(NodeId, usize, Vec<Vec<usize>>)> {
    let consumers: Vec<_> = group.members.iter().filter(|m| m.role == MemberRole::Consumer && m.axis == 1).collect();
    let mut out = Vec::new();
    for m in consumers {
        let Some(id) = graph.by_name(&m.node) else { continue };
        let (channels, patch) = match graph.node(id).op {
            Op::Conv2d(op::Conv2d { in_ch, kernel, groups: 1, .. }) => (in_ch, kernel[0] * kernel[1]),
            Op::Linear(op::Linear { in_features, .. }) => (in_features, 1),
            _ => continue,
        };
        // What else reads the weight was not asked.
        if graph.sharing(graph.node(id)).is_some() {
            continue;
        }
        let own_rows = group.members.iter().any(|o| o.node == m.node && o.axis == 0);
        if own_rows {
            continue;
        }
        let columns = (0..group.size)
            .map(|u| m.indices(u).filter(|c| *c < channels).flat_map(|c| c * patch..(c + 1) * patch).collect())
            .collect();
        out.push((id, channels * patch, columns));
    }
    if out.iter().map(|(_, d, _)| 8 * d * d).sum::<usize>() > MOST_BYTES {
        out.clear();
    }
    out
}

/// Gathers the moments for `groups` in one pass over the batches.
pub(super) fn gather(
    model: &Model,
    groups: &[&Group],
    batches: &[(Tensor, Targets)],
    compile: &CompileOptions,
    cancel: &Cancel,
) -> Result<Vec<(String, Refit)>> {
    let graph = &model.graph;
    let shapes = shapes(graph)?;
    let mut out: Vec<(String, Refit)> = Vec::new();
    for g in groups {
        let mut list = Vec::new();
        for (node, d, columns) in readers(graph, g) {
            let Some(&input) = graph.node(node).inputs.first() else { continue };
            let shape = shapes.get(node.index()).map_or(&[][..], Vec::as_slice);
            let (places, out_width) = places_of(shape);
            let (xx, x) = (vec![0.0; d * d], vec![0.0; d]);
            list.push(Reader { node, input, columns, d, places, out_width, n: 0.0, xx, x });
        }
        out.push((g.id.clone(), Refit { readers: list }));
    }
    let all = || out.iter().flat_map(|(_, r)| &r.readers);
    let mut names: Vec<&str> = Vec::new();
    for r in all() {
        let name = graph.node(r.input).name.as_str();
        if !names.contains(&name) {
            names.push(name);
        }
    }
    if names.is_empty() {
        return Ok(out);
    }
    let mut session = Plan::of(model, &compile.clone().keeping(names.iter().copied()))?.session();
    let images: usize = batches.iter().map(|(_, y)| y.len()).sum();
    // Twice as many samples as columns at least, where the images have as many places.
    let per_image = |d: usize| SAMPLES.max(2 * d).div_ceil(images.max(1)).max(24);
    // Small pieces bound the memory of the captures.
    let held: usize = all().filter_map(|r| shapes.get(r.input.index())).map(|s| 4 * s.iter().product::<usize>()).sum();
    let piece = (CAPTURE_BYTES / held.max(1)).clamp(1, 32);
    let mut seed = 0;
    for (x, _) in batches {
        let n = x.dim(0)?;
        for start in (0..n).step_by(piece) {
            cancel.check()?;
            let (_, values) = session.capture(&x.narrow(0, start, piece.min(n - start))?, &names)?;
            for reader in out.iter_mut().flat_map(|(_, r)| &mut r.readers) {
                let node = graph.node(reader.node);
                let Some(value) = values.get(&graph.node(reader.input).name) else { continue };
                let mut rng = ChaCha8Rng::seed_from_u64(seed ^ ((reader.node.index() as u64) << 32));
                let places = Places { per_image: per_image(reader.d), token: None };
                // A sequence has as many as it is long.
                let all = if value.rank() == 3 { value.dim(1)? } else { reader.places };
                let at: Vec<_> = (0..value.dim(0)?).map(|_| draw(places, all, &mut rng)).collect();
                reader.add(&inputs(&node.op, value, reader.out_width, &at)?)?;
            }
            seed += 1;
        }
    }
    Ok(out)
}

impl Refit {
    /// Whether some reader was fitted on fewer samples than it has columns.
    pub fn is_thin(&self) -> bool {
        self.readers.iter().any(|r| r.n < r.d as f64)
    }

    /// Sets the readers' weights in `changed` (the model with only `kept` units left) to the best fit of the original.
    pub fn mend(&self, original: &Model, changed: &mut Model, kept: &[u32]) -> Result<()> {
        for r in &self.readers {
            r.mend(original, changed, kept)?;
        }
        Ok(())
    }
}

impl Reader {
    fn add(&mut self, rows: &Tensor) -> candle_core::Result<()> {
        add_to(&mut self.xx, &rows.t()?.matmul(rows)?)?;
        add_to(&mut self.x, &rows.sum(0)?)?;
        self.n += rows.dim(0)? as f64;
        Ok(())
    }

    fn mend(&self, original: &Model, changed: &mut Model, kept: &[u32]) -> Result<()> {
        let node = original.graph.node(self.node);
        let (Some(weight), true) = (node.param(ParamRole::Weight), self.n > 0.0) else { return Ok(()) };
        let shift = shift(&original.graph, self.node);
        let old = original.params.get(weight)?.values();
        let rows = old.len() / self.d.max(1);
        let keep: Vec<usize> = {
            let mut all = vec![true; self.d];
            for (u, columns) in self.columns.iter().enumerate() {
                if kept.binary_search(&(u as u32)).is_err() {
                    columns.iter().for_each(|&c| all[c] = false);
                }
            }
            (0..self.d).filter(|&c| all[c]).collect()
        };
        let s = keep.len();
        let mean = |i: usize| self.x[i] / self.n;
        let centre = if shift.is_none() { 0.0 } else { 1.0 };
        let moment = |i: usize, j: usize| self.xx[i * self.d + j] / self.n - centre * mean(i) * mean(j);
        let cross = Mat::<f64>::from_fn(s, self.d, |a, j| moment(keep[a], j));
        let ridge = LAMBDA * (0..s).map(|a| cross[(a, keep[a])]).sum::<f64>() / s.max(1) as f64;
        let dense = Mat::<f64>::from_fn(self.d, rows, |j, o| f64::from(old[o * self.d + j]));
        let mut rhs = &cross * &dense;
        let mut gram = Mat::<f64>::from_fn(s, s, |a, b| cross[(a, keep[b])]);
        for a in 0..s {
            gram[(a, a)] += ridge;
            for o in 0..rows {
                rhs[(a, o)] += ridge * dense[(keep[a], o)];
            }
        }
        // A reader whose inputs never vary has nothing to fit.
        let Ok(factor) = gram.llt(Side::Lower) else { return Ok(()) };
        let fitted = factor.solve(&rhs);
        let mut values = vec![0f32; rows * s];
        let mut offset = vec![0f32; rows];
        for o in 0..rows {
            let mut b: f64 = (0..self.d).map(|j| dense[(j, o)] * mean(j)).sum();
            for a in 0..s {
                values[o * s + a] = fitted[(a, o)] as f32;
                b -= fitted[(a, o)] * mean(keep[a]);
            }
            offset[o] = b as f32;
        }
        if values.iter().chain(&offset).any(|v| !v.is_finite()) {
            return Ok(());
        }
        changed.params.set(weight, values)?;
        if let Some((name, sign)) = shift {
            let old = changed.params.get(name)?.values();
            let values = old.iter().zip(&offset).map(|(v, b)| v + sign * b).collect();
            changed.params.set(name, values)?;
        }
        Ok(())
    }
}

/// Where a change of the reader's mean output can be put, and with which sign: its bias, or the mean of the batch norm that
/// alone reads it.
fn shift(graph: &Graph, node: NodeId) -> Option<(&str, f32)> {
    if let Some(bias) = graph.node(node).param(ParamRole::Bias) {
        return Some((bias, 1.0));
    }
    let [next] = graph.consumers()[node.index()][..] else { return None };
    let next = graph.node(next);
    if matches!(next.op, Op::BatchNorm2d(_)) { Some((next.param(ParamRole::Mean)?, -1.0)) } else { None }
}
