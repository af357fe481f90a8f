//! Rounding of weights that knows what they are multiplied with: GPTQ for our own codes of 4 and 8 bits and for shared values; to GGML's formats, and
//! of language models: `blocks`. What is learnt is kept where the calibration loss falls; all else is rounded to the nearest, as without this stage.
//!
//! A layer's Gram matrix is that of its inputs in the compressed network, so that the layers before it are rounded already. Where the
//! layer or the norm after it has something to add, what rounding changes of the mean output goes there, and the matrix is centred
//! (bias correction, Nagel et al. 2019, arXiv 1906.04721).
//!
//! Not here: how one row is rounded (`quant::gptq`, `quant::shared`).

use super::blocks;
use super::ridge::add_to;
use super::segment::{fit_target, only_token, part};
use super::state::State;
use super::walk::{Stretch, Walk, stretches};
use super::{RepairError, sample};
use crate::graph::{Graph, Node, NodeId, Op, ParamRole, Precision, WeightFormat, op, shapes};
use crate::model::int4::Int4;
use crate::model::{Model, Param, ParamStore};
use crate::quant::{Grid, gptq, share};
use candle_core::Tensor;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use std::borrow::Cow;
use std::time::Instant;

/// Columns of a weight that is learnt at most: four matrices of them are in memory at a time. Wider ones are rounded to the nearest.
pub(super) const WIDEST: usize = 6144;

/// Roundings that [`run`] will try.
pub(super) fn repairs(state: &State) -> usize {
    blocks::repairs(state) + learnable(state).len()
}

/// Rounds weights for the inputs that they get.
///
/// # Errors
/// Unreadable calibration data, execution failures, cancellation (looked for before every batch).
pub(super) fn run(state: &mut State) -> Result<(), RepairError> {
    if repairs(state) == 0 {
        return Ok(());
    }
    // Of the weights that will run: a mask's zeros are not filled by what others round away.
    state.settle()?;
    let images = state.images()?;
    // What becomes two weights is rounded to the nearest, as two.
    let aside: Vec<(String, Precision)> = {
        let names: Vec<String> = state.in_one_piece().cloned().collect();
        names.iter().filter_map(|n| state.model.precision.nodes.remove_entry(n)).collect()
    };
    blocks::run(state, &images)?;
    let layers = learnable(state);
    let stretches = stretches(state, &|i| layers.contains(&i));
    if stretches.iter().any(|s| !s.layers.is_empty()) {
        let mut walk = Walk::start(state, &images)?;
        stretches.iter().try_for_each(|stretch| pass(&mut walk, stretch))?;
    }
    aside.into_iter().for_each(|(name, p)| state.model.precision.set(name, p));
    state.rounded();
    Ok(())
}

/// Indices of the layers whose rounding is learnt one by one: those with codes of our own that are not rounded yet, but of language models, which
/// have many layers and take long to judge (`blocks`).
fn learnable(state: &State) -> Vec<usize> {
    let model = &state.model;
    if model.graph.vocabulary().is_some() {
        return Vec::new();
    }
    let wanted = |n: &Node| {
        let ungrouped = matches!(n.op, Op::Linear(_) | Op::Conv2d(op::Conv2d { groups: 1, .. }));
        let format = model.precision.get(&n.name).weights();
        let Some(Ok(weight)) = n.param(ParamRole::Weight).map(|name| model.params.get(name)) else { return false };
        let columns: usize = weight.shape().iter().skip(1).product();
        ungrouped
            && codes(format, columns).is_some()
            && !weight.is_in(format)
            && columns <= WIDEST
            // What else reads the weight was not asked.
            && model.graph.sharing(n).is_none()
            // Two weights, later.
            && !state.in_one_piece().any(|name| *name == n.name)
    };
    model.graph.live().filter(|(_, n)| wanted(n)).map(|(id, _)| id.index()).collect()
}

/// What weights of a format of our own are rounded to.
#[derive(Clone, Copy)]
pub(super) enum Codes {
    Grid(Grid),
    /// 2^bits values.
    Shared(u8),
}

/// Those of a format, for rows of `columns`.
pub(super) fn codes(format: WeightFormat, columns: usize) -> Option<Codes> {
    match format {
        WeightFormat::Int8 => Some(Codes::Grid(Grid { top: 127, group: columns })),
        WeightFormat::Int4 { group } => {
            Some(Codes::Grid(Grid { top: 7, group: group.unwrap_or(columns).min(columns) }))
        }
        WeightFormat::Codebook { bits } => Some(Codes::Shared(bits)),
        WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16 | WeightFormat::Fp8 | WeightFormat::Block(_) => None,
    }
}

/// Rounds the stretch's layers one after the other, and moves on to its end.
fn pass(walk: &mut Walk, stretch: &Stretch) -> Result<(), RepairError> {
    let graph = walk.state.model.graph.clone();
    let shapes = shapes(&graph)?;
    let whole = part(&graph, stretch.from, &shapes[stretch.from.index()], stretch.to);
    if !stretch.layers.is_empty() {
        let mut judge = walk.judge(stretch.to)?;
        let mut before = walk.loss_through(&whole, stretch.to, &mut judge)?;
        for &id in &stretch.layers {
            let started = Instant::now();
            let name = format!("round {}", graph.node(id).name);
            walk.state.trying(&name);
            let inputs = Inputs::gather(walk, &graph, stretch.from, id, &shapes)?;
            let new = learnt(&walk.state.model, &graph, id, &inputs)?;
            walk.state.tried();
            let Some(new) = new else { continue };
            let old = std::mem::replace(&mut walk.state.model.params, new);
            let after = walk.loss_through(&whole, stretch.to, &mut judge)?;
            if walk.state.judged(name, (before, after), inputs.rows as u64, started) {
                before = after;
            } else {
                walk.state.model.params = old;
            }
        }
    }
    walk.advance(&whole)
}

/// Sums over a layer's sampled input rows `x`.
pub(super) struct Inputs {
    pub rows: f64,
    /// `Σ x xᵀ`, `[columns, columns]`.
    pub gram: Vec<f64>,
    /// `Σ x`.
    sum: Vec<f64>,
}

impl Inputs {
    /// What layer `id` reads of the images that are fitted on, which stand at `from`.
    pub fn gather(
        walk: &Walk,
        graph: &Graph,
        from: NodeId,
        id: NodeId,
        shapes: &[Vec<usize>],
    ) -> Result<Inputs, RepairError> {
        let state = &*walk.state;
        let node = graph.node(id);
        let source = node.inputs.first().copied().unwrap_or(from);
        let before = part(graph, from, &shapes[from.index()], source);
        let mut runner = match source == from {
            true => None,
            false => Some(state.runner(&before, (&state.model.params, &state.model.precision), &[])?),
        };
        let (total, width) = sample::places_of(&shapes[id.index()]);
        let token = only_token(graph, &graph.consumers(), id);
        // Tokens of a text are few, and its windows too.
        let per_image = if graph.is_language_model() { total } else { state.options.positions.max(1) };
        let places = sample::Places { per_image, token };
        let mut out = Inputs { rows: 0.0, gram: Vec::new(), sum: Vec::new() };
        for (c, chunk) in walk.chunks.iter().enumerate().filter(|(_, chunk)| chunk.answer.is_none()) {
            state.cancel.check()?;
            let value = match &mut runner {
                Some(runner) => runner.run(&chunk.compressed)?.0,
                None => chunk.compressed.clone(),
            };
            let mut rng = ChaCha8Rng::seed_from_u64(state.options.seed ^ (u64::from(id.0) << 32));
            rng.set_stream(c as u64 + 1);
            let at: Vec<Vec<usize>> = (0..value.dim(0)?).map(|_| sample::draw(places, total, &mut rng)).collect();
            out.add(&sample::inputs(&node.op, &value, width, &at)?)?;
        }
        Ok(out)
    }

    /// Adds rows `[n, columns]`.
    fn add(&mut self, x: &Tensor) -> candle_core::Result<()> {
        let (n, columns) = x.dims2()?;
        self.gram.resize(columns * columns, 0.0);
        self.sum.resize(columns, 0.0);
        // Small enough that partial sums in f32 lose nothing that the damping would notice.
        for start in (0..n).step_by(2048) {
            let part = x.narrow(0, start, 2048.min(n - start))?;
            add_to(&mut self.gram, &part.t()?.matmul(&part)?)?;
            add_to(&mut self.sum, &part.sum(0)?)?;
        }
        self.rows += n as f64;
        Ok(())
    }

    pub fn columns(&self) -> usize {
        self.sum.len()
    }

    /// The Gram matrix to fit by: of the rows less their mean, where that is made up for.
    pub fn seen(&self, mean_kept: bool) -> Cow<'_, [f64]> {
        if mean_kept { self.centred().into() } else { (&self.gram).into() }
    }

    /// What can be moved to keep the mean output of layer `id`: its own bias, or the mean that the norm after it takes away, with the sign of each.
    pub fn movable<'g>(&self, graph: &'g Graph, id: NodeId) -> Option<(&'g str, f64)> {
        let norm = fit_target(graph, &graph.consumers(), id).norm.map(|n| graph.node(n));
        let mean = norm.filter(|n| matches!(n.op, Op::BatchNorm2d(_))).and_then(|n| n.param(ParamRole::Mean));
        graph.node(id).param(ParamRole::Bias).map(|b| (b, 1.0)).or(mean.map(|m| (m, -1.0)))
    }

    /// Moves `to` by what the mean output loses where weights `old` become `new`.
    pub fn keep_mean(
        &self,
        params: &mut ParamStore,
        (to, sign): (&str, f64),
        (old, new): (&[f32], &[f32]),
    ) -> Result<(), RepairError> {
        let columns = self.columns();
        let mut shift = params.get(to)?.values().into_owned();
        let lines = old.chunks_exact(columns).zip(new.chunks_exact(columns));
        for (s, (old, new)) in shift.iter_mut().zip(lines) {
            let lost: f64 = (0..columns).map(|i| f64::from(old[i] - new[i]) * self.mean(i)).sum();
            *s += (sign * lost) as f32;
        }
        Ok(params.set(to, shift)?)
    }

    /// The mean of column `i`.
    fn mean(&self, i: usize) -> f64 {
        self.sum[i] / self.rows.max(1.0)
    }

    /// The Gram matrix of rows less their mean.
    fn centred(&self) -> Vec<f64> {
        let n = self.sum.len();
        let one = |(i, v): (usize, &f64)| v - self.sum[i / n] * self.mean(i % n);
        self.gram.iter().enumerate().map(one).collect()
    }
}

/// Weights rounded for inputs with this Gram matrix, as they are stored. `None`: there is nothing to learn from.
pub(super) fn rounded(
    values: &[f32],
    gram: &[f64],
    codes: Codes,
    (shape, format): (Vec<usize>, WeightFormat),
) -> Option<Param> {
    let columns = gram.len().isqrt();
    let rows = values.len() / columns.max(1);
    match codes {
        Codes::Shared(bits) => share(values, gram, bits).and_then(|found| Param::codebook(shape, found.codebook)),
        Codes::Grid(grid) => gptq(values, gram, grid).and_then(|found| match format {
            WeightFormat::Int4 { group } => {
                let codes = Int4::of_codes(rows, columns, group, &found.codes, found.scales);
                codes.and_then(|codes| Param::int4(shape, codes))
            }
            _ => Param::int8(shape, found.codes, found.scales),
        }),
    }
}

/// The parameters with the weight of layer `id` rounded for `inputs`, and what that changes of the mean output put right. `None`:
/// there is nothing to learn from.
fn learnt(model: &Model, graph: &Graph, id: NodeId, inputs: &Inputs) -> Result<Option<ParamStore>, RepairError> {
    let node = graph.node(id);
    let Some(name) = node.param(ParamRole::Weight) else { return Ok(None) };
    let (weight, format) = (model.params.get(name)?, model.precision.get(&node.name).weights());
    let columns = inputs.sum.len();
    let Some(codes) = codes(format, columns) else { return Ok(None) };
    let moved = inputs.movable(graph, id);
    let (gram, values) = (inputs.seen(moved.is_some()), weight.values());
    let rounded = rounded(&values, &gram, codes, (weight.shape().to_vec(), format));
    let Some(rounded) = rounded else { return Ok(None) };
    let mut params = model.params.clone();
    if let Some(moved) = moved {
        inputs.keep_mean(&mut params, moved, (&values, &rounded.values()))?;
    }
    params.insert(name, rounded);
    Ok(Some(params))
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn sums_are_those_of_the_rows_and_their_centre() {
        let x: Vec<f32> = (0..15).map(|i| ((i * 7) % 11) as f32 - 3.0).collect();
        let mut sums = Inputs { rows: 0.0, gram: Vec::new(), sum: Vec::new() };
        for part in [0..2, 2..5] {
            let rows = x[part.start * 3..part.end * 3].to_vec();
            sums.add(&Tensor::from_vec(rows, (part.len(), 3), &Device::Cpu).unwrap()).unwrap();
        }
        let at = |r: usize, c: usize| f64::from(x[r * 3 + c]);
        for (i, centred) in sums.centred().into_iter().enumerate() {
            let (a, b) = (i / 3, i % 3);
            let mean = |c: usize| (0..5).map(|r| at(r, c)).sum::<f64>() / 5.0;
            assert!((sums.gram[i] - (0..5).map(|r| at(r, a) * at(r, b)).sum::<f64>()).abs() < 1e-9);
            let want = (0..5).map(|r| (at(r, a) - mean(a)) * (at(r, b) - mean(b))).sum::<f64>();
            assert!((centred - want).abs() < 1e-9, "{i}: {centred} {want}");
        }
    }
}
