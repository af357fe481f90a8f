//! How well a layer's output can be rebuilt from fewer of its inputs: which units of a group to keep, and what keeping
//! so many costs, given that the layer that reads them is re-fitted.
//!
//! Optimal brain surgeon on whole units (Hassibi and Stork 1993; Frantar et al. 2022 for units): with the Gram matrix
//! `G` of the reader's inputs, removing the columns `u` and re-fitting the others raises the squared error by
//! `tr(W_u (G⁻¹_uu)⁻¹ W_uᵀ)`. Units go one by one, cheapest first, weights and inverse updated after each.

use super::ridge::Sums;
use super::runner::Runner;
use super::sample;
use super::segment::only_token;
use super::{RepairError, RepairOptions, RepairUpdate};
use crate::data::Dataset;
use crate::exec::Cancel;
use crate::graph::op;
use crate::graph::{NodeId, Op, ParamRole, shapes};
use crate::model::Model;
use crate::prune::{Group, Member, MemberRole};
use candle_core::Tensor;
use faer::linalg::solvers::{DenseSolveCore, Solve};
use faer::{Mat, Side};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::collections::BTreeMap;

/// Units of one group by what they are worth to the layer that reads them.
#[derive(Debug, Clone, PartialEq)]
pub struct Rebuild {
    /// Per unit: the error at which it goes, so that keeping the largest scores keeps the best set of any size.
    pub scores: Vec<f32>,
    /// `error[n]`: the reader's squared error with `n` units gone and the rest re-fitted, as a part of its output's
    /// variance; never falls with `n`.
    pub error: Vec<f64>,
}

/// [`Rebuild`] of every unprotected group that a single convolution or linear layer reads, by group id, from the
/// model's own activations on `calib`.
///
/// # Errors
/// Unreadable calibration data, execution failures, cancellation (looked for before every batch).
pub fn rebuild(
    model: &Model,
    groups: &[Group],
    calib: &Dataset,
    options: &RepairOptions,
    cancel: &Cancel,
    say: &mut dyn FnMut(RepairUpdate),
) -> Result<BTreeMap<String, Rebuild>, RepairError> {
    if calib.is_empty() {
        return Err(RepairError::NoImages(calib.card().name));
    }
    let graph = &model.graph;
    let (consumers, shapes) = (graph.consumers(), shapes(graph)?);
    let mut readers: Vec<Reader> = Vec::new();
    for group in groups.iter().filter(|g| g.protected.is_none()) {
        let all: Vec<&Member> = group.members.iter().filter(|m| m.role == MemberRole::Consumer).collect();
        let [member] = all.as_slice() else { continue };
        let Some(id) = graph.by_name(&member.node) else { continue };
        let node = graph.node(id);
        let outputs = match node.op {
            Op::Conv2d(op::Conv2d { groups: 1, out_ch, .. }) => out_ch,
            Op::Linear(op::Linear { out_features, .. }) => out_features,
            _ => continue,
        };
        let Some(weight) = node.param(ParamRole::Weight) else { continue };
        let inputs = model.params.get(weight)?.numel() / outputs.max(1);
        readers.push(Reader {
            group,
            member,
            id,
            places: sample::Places { per_image: options.positions.max(1), token: only_token(graph, &consumers, id) },
            sums: Sums::new(inputs, 1),
        });
    }
    let names: Vec<&str> =
        readers.iter().filter_map(|r| Some(graph.node(*graph.node(r.id).inputs.first()?).name.as_str())).collect();
    let runner = Runner::new(graph, &model.params, &model.precision, &names)?;
    let mut order: Vec<usize> = (0..calib.len()).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(options.seed));
    order.truncate(options.images.max(1));
    let each: usize =
        readers.iter().map(|r| shapes[graph.node(r.id).inputs[0].index()].iter().product::<usize>() * 4).sum();
    let size = ((256 << 20) / each.max(1)).clamp(2, 128);
    for (c, picks) in order.chunks(size).enumerate() {
        cancel.check()?;
        say(RepairUpdate::Progress { done: c * size, total: order.len(), what: "rebuild errors".into() });
        let (x, _) = calib.batch(picks, &model.info.preprocess)?;
        let (_, values) = runner.run(&x)?;
        for (r, name) in readers.iter_mut().zip(&names) {
            let Some(value) = values.get(*name) else { continue };
            let (total, out_width) = sample::places_of(&shapes[r.id.index()]);
            let mut rng = ChaCha8Rng::seed_from_u64(options.seed ^ ((r.id.0 as u64) << 32));
            rng.set_stream(c as u64 + 1);
            let at: Vec<Vec<usize>> = picks.iter().map(|_| sample::draw(r.places, total, &mut rng)).collect();
            let rows = sample::inputs(&graph.node(r.id).op, value, out_width, &at)?;
            let none = Tensor::zeros((rows.dim(0)?, 1), rows.dtype(), rows.device())?;
            r.sums.add(&rows, &none)?;
        }
    }
    let mut out = BTreeMap::new();
    for r in &readers {
        cancel.check()?;
        let Some(weight) = graph.node(r.id).param(ParamRole::Weight) else { continue };
        let weight = model.params.get(weight)?.values();
        if let Some(rebuilt) = r.eliminate(&weight, options.lambda) {
            out.insert(r.group.id.clone(), rebuilt);
        }
    }
    Ok(out)
}

/// The one layer that reads a group.
struct Reader<'a> {
    group: &'a Group,
    member: &'a Member,
    id: NodeId,
    places: sample::Places,
    sums: Sums,
}

impl Reader<'_> {
    fn eliminate(&self, weight: &[f32], lambda: f64) -> Option<Rebuild> {
        let gram = self.sums.centred(lambda)?;
        let d = gram.nrows();
        let o = weight.len() / d.max(1);
        // Each channel of a convolution is a run of kernel taps among the columns.
        let channels = self.group.size * self.member.span.width * self.member.span.blocks;
        let taps = d / channels.max(1);
        let columns: Vec<Vec<usize>> = (0..self.group.size)
            .map(|u| self.member.indices(u).flat_map(|i| i * taps..(i + 1) * taps).collect())
            .collect();
        if columns.iter().flatten().any(|&c| c >= d) || columns.iter().map(Vec::len).sum::<usize>() != d {
            return None;
        }
        let mut w = Mat::<f64>::from_fn(o, d, |j, i| f64::from(weight[j * d + i]));
        let variance = {
            let wg = &w * &gram;
            (0..o).map(|j| (0..d).map(|i| wg[(j, i)] * w[(j, i)]).sum::<f64>()).sum::<f64>()
        };
        let mut inverse = gram.llt(Side::Lower).ok()?.inverse();
        let mut left: Vec<usize> = (0..self.group.size).collect();
        let mut scores = vec![f32::INFINITY; self.group.size];
        let mut error = vec![0.0];
        let mut total = 0.0;
        while left.len() > 1 {
            let mut best: Option<(f64, usize, Mat<f64>)> = None;
            for (at, &u) in left.iter().enumerate() {
                let c = &columns[u];
                let block = Mat::<f64>::from_fn(c.len(), c.len(), |a, b| inverse[(c[a], c[b])]);
                let wt = Mat::<f64>::from_fn(c.len(), o, |a, j| w[(j, c[a])]);
                let solved = block.llt(Side::Lower).ok()?.solve(&wt);
                let cost: f64 = (0..o).map(|j| (0..c.len()).map(|a| wt[(a, j)] * solved[(a, j)]).sum::<f64>()).sum();
                if best.as_ref().is_none_or(|b| cost < b.0) {
                    best = Some((cost, at, block));
                }
            }
            let (cost, at, block) = best?;
            let u = left.remove(at);
            let c = &columns[u];
            total += cost.max(0.0);
            let part = total / variance.max(f64::MIN_POSITIVE);
            scores[u] = part as f32;
            error.push(part);
            // W -= W_u B⁻¹ G⁻¹_u,  G⁻¹ -= G⁻¹ᵤᵀ B⁻¹ G⁻¹_u.
            let rows = Mat::<f64>::from_fn(c.len(), d, |a, i| inverse[(c[a], i)]);
            let solved = block.llt(Side::Lower).ok()?.solve(&rows);
            let wu = Mat::<f64>::from_fn(o, c.len(), |j, a| w[(j, c[a])]);
            w -= &wu * &solved;
            inverse -= rows.transpose() * &solved;
            // Gone columns stay out of every later product.
            for &i in c {
                for k in 0..d {
                    inverse[(i, k)] = 0.0;
                    inverse[(k, i)] = 0.0;
                }
                for j in 0..o {
                    w[(j, i)] = 0.0;
                }
            }
        }
        error.push(1f64.max(total / variance.max(f64::MIN_POSITIVE)));
        Some(Rebuild { scores, error })
    }
}
