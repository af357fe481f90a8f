//! Differentiable reference execution through candle operations; also the truth that kernels are checked against.
//!
//! Every op is built from operations that have a backward pass, so gradients reach parameters, the input and captured
//! nodes. Values have the shapes of [`Op`]'s documentation with the batch axis first. Slow by design: measuring is
//! `exec::Plan`'s business.

use super::error::{ExecError, kind};
use super::fused::{self, BatchNorm, LayerNorm, Softmax};
use super::unfold::{Unfold, Window};
use crate::graph::{Activation, Graph, Node, NodeId, Op, ParamRole};
use crate::model::ParamStore;
use candle_core::{D, DType, Device, Tensor};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Parameters by checkpoint name.
pub type TensorMap = HashMap<String, Tensor>;

/// Which statistics batch norms use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The stored running mean and variance.
    #[default]
    Eval,
    /// The batch's own (biased variance to normalise, as in training); reported in [`Capture::stats`].
    Batch,
}

/// Statistics of one batch norm's input over batch and positions, each `[c]`.
#[derive(Debug, Clone)]
pub struct BatchStats {
    pub mean: Tensor,
    /// Unbiased (divided by `n - 1`), as running variances are kept.
    pub var: Tensor,
}

/// What a forward pass should leave behind besides its result.
#[derive(Debug, Clone, Default)]
pub struct Capture {
    want: HashSet<String>,
    all: bool,
    /// Outputs of the wanted nodes by node name.
    pub values: HashMap<String, Tensor>,
    /// In [`Mode::Batch`], the statistics of every batch norm by node name.
    pub stats: HashMap<String, BatchStats>,
}

impl Capture {
    /// Keeps nothing (statistics excepted).
    pub fn none() -> Capture {
        Capture::default()
    }

    /// Keeps the outputs of these nodes.
    pub fn of<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Capture {
        Capture { want: names.into_iter().map(|s| s.as_ref().to_owned()).collect(), ..Capture::default() }
    }

    /// Keeps every node's output.
    pub fn all() -> Capture {
        Capture { all: true, ..Capture::default() }
    }
}

/// All parameters as tensors on `device`, `f32`.
pub fn tensors(params: &ParamStore, device: &Device) -> Result<TensorMap, ExecError> {
    params.iter().map(|(name, p)| Ok((name.to_owned(), Tensor::from_slice(&p.values(), p.shape(), device)?))).collect()
}

/// Runs `graph` on `x` `[N, C, H, W]` and returns the output node's value (`[N, classes]`).
///
/// # Errors
/// A missing or misshapen parameter, an input of another shape, and whatever the tensor library reports; all name the node.
pub fn forward(
    graph: &Graph,
    params: &TensorMap,
    x: &Tensor,
    mode: Mode,
    capture: &mut Capture,
) -> Result<Tensor, ExecError> {
    forward_with(graph, params, x, mode, capture, &mut |_, _| Ok(()))
}

/// As [`forward`], calling `after` with every node and its value as soon as it is computed.
///
/// # Errors
/// As [`forward`], and what `after` returns.
pub fn forward_with(
    graph: &Graph,
    params: &TensorMap,
    x: &Tensor,
    mode: Mode,
    capture: &mut Capture,
    after: &mut dyn FnMut(NodeId, &Tensor) -> Result<(), ExecError>,
) -> Result<Tensor, ExecError> {
    interpret(graph, params, Some(x), &BTreeMap::new(), mode, capture, after)
}

/// Finishes a forward pass from the values of `start`, which every path from the input to the output crosses.
///
/// # Errors
/// As [`forward`]; a needed value that neither `start` has nor can be computed from it.
pub fn resume(
    graph: &Graph,
    params: &TensorMap,
    start: &BTreeMap<NodeId, Tensor>,
    mode: Mode,
    capture: &mut Capture,
) -> Result<Tensor, ExecError> {
    interpret(graph, params, None, start, mode, capture, &mut |_, _| Ok(()))
}

fn interpret(
    graph: &Graph,
    params: &TensorMap,
    x: Option<&Tensor>,
    start: &BTreeMap<NodeId, Tensor>,
    mode: Mode,
    capture: &mut Capture,
    after: &mut dyn FnMut(NodeId, &Tensor) -> Result<(), ExecError>,
) -> Result<Tensor, ExecError> {
    let needed = needed(graph, &capture.want, start, capture.all)?;
    let mut uses = vec![0usize; graph.nodes.len()];
    for ((id, node), _) in graph.iter().zip(&needed).filter(|(_, n)| **n) {
        if !start.contains_key(&id) {
            node.inputs.iter().for_each(|i| uses[i.index()] += 1);
        }
    }
    let mut values: Vec<Option<Tensor>> = vec![None; graph.nodes.len()];
    for (id, node) in graph.iter().filter(|(id, _)| needed[id.index()]) {
        if let Some(t) = start.get(&id) {
            values[id.index()] = Some(t.clone());
            continue;
        }
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            match values.get(input.index()).and_then(Option::as_ref) {
                Some(t) => inputs.push(t.clone()),
                None => return Err(ExecError::unsupported(node, "an input is computed after it or not at all")),
            }
        }
        let out = Env { node, params, mode }.run(x, &inputs, capture)?;
        after(id, &out)?;
        if capture.all || capture.want.contains(&node.name) {
            capture.values.insert(node.name.clone(), out.clone());
        }
        values[id.index()] = Some(out);
        for input in &node.inputs {
            uses[input.index()] -= 1;
            if uses[input.index()] == 0 && *input != graph.output {
                values[input.index()] = None;
            }
        }
    }
    values
        .get_mut(graph.output.index())
        .and_then(Option::take)
        .ok_or_else(|| ExecError::UnknownNode { name: "output".into(), hint: "the graph's output is missing".into() })
}

/// Which nodes the output or a wanted node depends on, given the values of `start`.
fn needed(
    graph: &Graph,
    want: &HashSet<String>,
    start: &BTreeMap<NodeId, Tensor>,
    all: bool,
) -> Result<Vec<bool>, ExecError> {
    for name in want {
        if graph.by_name(name).is_none() {
            let hint = "captures take node names".into();
            return Err(ExecError::UnknownNode { name: name.clone(), hint });
        }
    }
    let mut needed = if all && start.is_empty() { graph.reachable() } else { vec![false; graph.nodes.len()] };
    for (id, node) in graph.iter().rev() {
        if needed[id.index()] || id == graph.output || want.contains(&node.name) {
            needed[id.index()] = true;
            if !start.contains_key(&id) {
                node.inputs.iter().for_each(|i| needed[i.index()] = true);
            }
        }
    }
    Ok(needed)
}

struct Env<'a> {
    node: &'a Node,
    params: &'a TensorMap,
    mode: Mode,
}

impl Env<'_> {
    /// The parameter in `role`, checked against `shape`.
    fn param(&self, role: ParamRole, shape: &[usize]) -> Result<Tensor, ExecError> {
        let r = self.node.params.iter().find(|p| p.role == role);
        let r = r.ok_or_else(|| self.no_param(role))?;
        let t = self
            .params
            .get(&r.name)
            .ok_or_else(|| ExecError::param(self.node, crate::model::ParamError::Missing { name: r.name.clone() }))?;
        if t.dims() != shape {
            let (name, found, expected) = (r.name.clone(), t.dims().to_vec(), shape.to_vec());
            return Err(ExecError::param(self.node, crate::model::ParamError::Shape { name, found, expected }));
        }
        Ok(t.clone())
    }

    fn no_param(&self, role: ParamRole) -> ExecError {
        ExecError::NoParam { node: self.node.name.clone(), op: kind(&self.node.op), role: role_name(role) }
    }

    fn run(&self, x: Option<&Tensor>, inputs: &[Tensor], capture: &mut Capture) -> Result<Tensor, ExecError> {
        let err = |source| ExecError::Candle { node: self.node.name.clone(), op: kind(&self.node.op), source };
        if let Op::Input { shape } = &self.node.op {
            let x = x.ok_or_else(|| ExecError::unsupported(self.node, "the cached values do not cover this input"))?;
            return match x.dims() {
                [_, rest @ ..] if rest == shape.as_slice() => Ok(x.clone()),
                dims => Err(ExecError::Input { found: dims.to_vec(), expected: shape.clone() }),
            };
        }
        let first = inputs.first().ok_or_else(|| ExecError::unsupported(self.node, "has no input"))?;
        match &self.node.op {
            Op::Input { .. } => Ok(first.clone()),
            Op::Conv2d { in_ch, out_ch, kernel, stride, padding, groups, bias } => {
                self.rank(first, 4)?;
                self.dim(first, 1, *in_ch)?;
                if *groups == 0 || in_ch % groups != 0 || out_ch % groups != 0 {
                    return Err(ExecError::unsupported(self.node, format!("{groups} groups do not divide channels")));
                }
                let w = self.param(ParamRole::Weight, &[*out_ch, in_ch / groups, kernel[0], kernel[1]])?;
                let window = Window { kernel: *kernel, stride: *stride, padding: *padding };
                if window.out(0, first.dims()[2]).is_none() || window.out(1, first.dims()[3]).is_none() {
                    return Err(ExecError::shape(self.node, first.dims(), "an image that the kernel fits"));
                }
                let y = conv(first, &w, window, *groups).map_err(err)?;
                if *bias {
                    let b = self.param(ParamRole::Bias, &[*out_ch])?;
                    return y.broadcast_add(&b.reshape((1, *out_ch, 1, 1))?).map_err(err);
                }
                Ok(y)
            }
            Op::Linear { in_features, out_features, bias } => {
                self.last(first, *in_features)?;
                let w = self.param(ParamRole::Weight, &[*out_features, *in_features])?;
                let b = bias.then(|| self.param(ParamRole::Bias, &[*out_features])).transpose()?;
                linear(first, &w, b.as_ref()).map_err(err)
            }
            Op::BatchNorm2d { channels, eps } => {
                self.rank(first, 4)?;
                self.dim(first, 1, *channels)?;
                self.batch_norm(first, *channels, *eps, capture)
            }
            Op::LayerNorm { dim, eps } => {
                self.last(first, *dim)?;
                let w = self.param(ParamRole::Weight, &[*dim])?;
                let b = self.param(ParamRole::Bias, &[*dim])?;
                layer_norm(first, &w, &b, *eps).map_err(err)
            }
            Op::Activation { act } => activate(first, *act).map_err(err),
            Op::Add => match inputs {
                [a, b] if a.dims() == b.dims() => (a + b).map_err(err),
                _ => {
                    let found: Vec<_> = inputs.iter().map(|t| t.dims().to_vec()).collect();
                    Err(ExecError::shape(self.node, found, "two equal shapes"))
                }
            },
            Op::MaxPool2d { kernel, stride, padding } => {
                self.rank(first, 4)?;
                let window = Window { kernel: *kernel, stride: *stride, padding: *padding };
                if window.out(0, first.dims()[2]).is_none() || window.out(1, first.dims()[3]).is_none() {
                    return Err(ExecError::shape(self.node, first.dims(), "an image that the kernel fits"));
                }
                max_pool(first, window).map_err(err)
            }
            Op::GlobalAvgPool => {
                self.rank(first, 4)?;
                first.mean((2, 3)).map_err(err)
            }
            Op::ChannelPad { stride, in_ch, map } => {
                self.rank(first, 4)?;
                self.dim(first, 1, *in_ch)?;
                if map.iter().flatten().any(|&c| c as usize >= *in_ch) || *stride == 0 {
                    return Err(ExecError::unsupported(self.node, "its channel map reaches past its input"));
                }
                channel_pad(first, *stride, map).map_err(err)
            }
            Op::ToTokens => {
                self.rank(first, 4)?;
                first.flatten_from(2).and_then(|t| t.transpose(1, 2)?.contiguous()).map_err(err)
            }
            Op::PrependTokens { count, dim } => {
                self.rank(first, 3)?;
                self.last(first, *dim)?;
                let t = self.param(ParamRole::Embedding, &[1, *count, *dim])?;
                let t = t.broadcast_as((first.dims()[0], *count, *dim)).map_err(err)?;
                Tensor::cat(&[&t.contiguous()?, first], 1).map_err(err)
            }
            Op::AddPositions { tokens, dim } => {
                self.rank(first, 3)?;
                self.dim(first, 1, *tokens)?;
                self.last(first, *dim)?;
                first.broadcast_add(&self.param(ParamRole::Embedding, &[1, *tokens, *dim])?).map_err(err)
            }
            Op::Attention { heads, qk_dim, v_dim, fused, scale } => {
                let (h, qk, v) = (*heads, *qk_dim, *v_dim);
                let (q, k, vs) = match (fused, inputs) {
                    (true, [x]) => {
                        self.last(x, h * (2 * qk + v))?;
                        let part = |start, len| x.narrow(D::Minus1, start, len);
                        (part(0, h * qk)?, part(h * qk, h * qk)?, part(2 * h * qk, h * v)?)
                    }
                    (false, [q, k, v_in]) => {
                        self.last(q, h * qk)?;
                        self.last(k, h * qk)?;
                        self.last(v_in, h * v)?;
                        (q.clone(), k.clone(), v_in.clone())
                    }
                    _ => return Err(ExecError::shape(self.node, inputs.len(), "one fused input or three")),
                };
                self.rank(&q, 3)?;
                attention(&q, &k, &vs, h, *scale).map_err(err)
            }
            Op::SelectToken { index } => {
                self.rank(first, 3)?;
                if *index >= first.dims()[1] {
                    return Err(ExecError::shape(self.node, first.dims(), format!("more than {index} tokens")));
                }
                first.narrow(1, *index, 1).and_then(|t| t.squeeze(1)?.contiguous()).map_err(err)
            }
            Op::MeanTokens { skip } => {
                self.rank(first, 3)?;
                let t = first.dims()[1];
                if *skip >= t {
                    return Err(ExecError::shape(self.node, first.dims(), format!("more than {skip} tokens")));
                }
                first.narrow(1, *skip, t - skip).and_then(|t| t.mean(1)).map_err(err)
            }
        }
    }

    fn batch_norm(&self, x: &Tensor, c: usize, eps: f64, capture: &mut Capture) -> Result<Tensor, ExecError> {
        let err = |source| ExecError::Candle { node: self.node.name.clone(), op: "batch norm", source };
        let w = self.param(ParamRole::Weight, &[c])?;
        let b = self.param(ParamRole::Bias, &[c])?;
        match self.mode {
            Mode::Eval => {
                let (mean, var) = (self.param(ParamRole::Mean, &[c])?, self.param(ParamRole::Var, &[c])?);
                let apply = || {
                    let scale = (w / (var + eps)?.sqrt()?)?;
                    let shift = (b - (mean * &scale)?)?;
                    let shape = (1, c, 1, 1);
                    x.broadcast_mul(&scale.reshape(shape)?)?.broadcast_add(&shift.reshape(shape)?)
                };
                apply().map_err(err)
            }
            Mode::Batch => {
                let apply = |capture: &mut Capture| {
                    let n = x.elem_count() / c.max(1);
                    if fusable(x) {
                        let x = x.contiguous()?;
                        let data = x.detach().flatten_all()?.to_vec1::<f32>()?;
                        let stats = fused::moments(&data, c, x.dim(2)? * x.dim(3)?);
                        let fix = n as f64 / (n.max(2) - 1) as f64;
                        let mean = Tensor::from_iter(stats.iter().map(|s| s.0 as f32), x.device())?;
                        let var = Tensor::from_iter(stats.iter().map(|s| (s.1 * fix) as f32), x.device())?;
                        capture.stats.insert(self.node.name.clone(), BatchStats { mean, var });
                        return x.apply_op3(&w, &b, BatchNorm { eps });
                    }
                    let mean = x.mean_keepdim((0, 2, 3))?;
                    let centred = x.broadcast_sub(&mean)?;
                    let var = centred.sqr()?.mean_keepdim((0, 2, 3))?;
                    let unbiased = (var.detach().flatten_all()? * (n as f64 / (n.max(2) - 1) as f64))?;
                    let stats = BatchStats { mean: mean.detach().flatten_all()?, var: unbiased };
                    capture.stats.insert(self.node.name.clone(), stats);
                    let shape = (1, c, 1, 1);
                    let y = centred.broadcast_div(&(var + eps)?.sqrt()?)?;
                    y.broadcast_mul(&w.reshape(shape)?)?.broadcast_add(&b.reshape(shape)?)
                };
                apply(capture).map_err(err)
            }
        }
    }

    fn rank(&self, x: &Tensor, rank: usize) -> Result<(), ExecError> {
        if x.rank() == rank {
            return Ok(());
        }
        Err(ExecError::shape(self.node, x.dims(), format!("{rank} axes with the batch")))
    }

    fn dim(&self, x: &Tensor, axis: usize, len: usize) -> Result<(), ExecError> {
        if x.dims().get(axis) == Some(&len) {
            return Ok(());
        }
        Err(ExecError::shape(self.node, x.dims(), format!("{len} along axis {axis}")))
    }

    fn last(&self, x: &Tensor, len: usize) -> Result<(), ExecError> {
        self.dim(x, x.rank().saturating_sub(1), len)
    }
}

pub(crate) fn role_name(role: ParamRole) -> &'static str {
    match role {
        ParamRole::Weight => "weight",
        ParamRole::Bias => "bias",
        ParamRole::Mean => "running mean",
        ParamRole::Var => "running variance",
        ParamRole::Embedding => "embedding",
    }
}

type Candle<T> = candle_core::Result<T>;

fn conv(x: &Tensor, w: &Tensor, window: Window, groups: usize) -> Candle<Tensor> {
    let [sy, sx] = window.stride;
    if !x.device().is_cpu() && sy == sx && window.padding[0] == window.padding[1] {
        return x.conv2d(w, window.padding[0], sy, 1, groups);
    }
    if groups == 1 {
        return conv_one(x, w, window);
    }
    let (ci, co) = (x.dim(1)? / groups, w.dim(0)? / groups);
    let parts = (0..groups)
        .map(|g| conv_one(&x.narrow(1, g * ci, ci)?, &w.narrow(0, g * co, co)?, window))
        .collect::<Candle<Vec<_>>>()?;
    Tensor::cat(&parts, 1)
}

fn conv_one(x: &Tensor, w: &Tensor, window: Window) -> Candle<Tensor> {
    let (n, _, h, wd) = x.dims4()?;
    let (out_ch, in_ch, kh, kw) = w.dims4()?;
    let (Some(oh), Some(ow)) = (window.out(0, h), window.out(1, wd)) else {
        candle_core::bail!("a {kh}x{kw} kernel does not fit {h}x{wd}")
    };
    let w = w.reshape((out_ch, in_ch * kh * kw))?;
    let cols = if x.device().is_cpu() {
        x.contiguous()?.apply_op1(Unfold(window))?
    } else {
        unfold_composed(x, window, oh, ow)?
    };
    w.matmul(&cols)?.reshape((out_ch, n, oh, ow))?.transpose(0, 1)?.contiguous()
}

/// [`Unfold`] from plain tensor operations, for devices it has no kernel for.
fn unfold_composed(x: &Tensor, window: Window, oh: usize, ow: usize) -> Candle<Tensor> {
    let (n, c, _, _) = x.dims4()?;
    let slices = window_slices(x, window, oh, ow, 0.0)?;
    let k = slices.len();
    let cols = Tensor::stack(&slices, 2)?; // [n, c, k, oh, ow]
    cols.permute((1, 2, 0, 3, 4))?.contiguous()?.reshape((c * k, n * oh * ow))
}

/// For every kernel offset, the `[n, c, oh, ow]` input values under it; outside the image `fill`.
fn window_slices(x: &Tensor, w: Window, oh: usize, ow: usize, fill: f64) -> Candle<Vec<Tensor>> {
    let ([kh, kw], [sy, sx], [py, px]) = (w.kernel, w.stride, w.padding);
    // Enough on the far side that each strided slice is a whole number of strides.
    let (hh, ww) = (oh * sy + kh - 1, ow * sx + kw - 1);
    let x = pad_axis(x, 2, py, hh, fill)?;
    let x = pad_axis(&x, 3, px, ww, fill)?;
    let (n, c, _, _) = x.dims4()?;
    let mut out = Vec::with_capacity(kh * kw);
    for ky in 0..kh {
        for kx in 0..kw {
            let mut s = x.narrow(2, ky, oh * sy)?.narrow(3, kx, ow * sx)?;
            if sy > 1 || sx > 1 {
                s = s.contiguous()?.reshape((n, c, oh, sy, ow, sx))?;
                s = s.narrow(3, 0, 1)?.narrow(5, 0, 1)?.squeeze(5)?.squeeze(3)?;
            }
            out.push(s.contiguous()?);
        }
    }
    Ok(out)
}

/// Pads `axis` with `before` fills, then pads or cuts its end to `total`.
fn pad_axis(x: &Tensor, axis: usize, before: usize, total: usize, fill: f64) -> Candle<Tensor> {
    let block = |len: usize| -> Candle<Tensor> {
        let mut dims = x.dims().to_vec();
        dims[axis] = len;
        (Tensor::zeros(dims, x.dtype(), x.device())? + fill)?.contiguous()
    };
    let mut parts = vec![];
    if before > 0 {
        parts.push(block(before)?);
    }
    parts.push(x.clone());
    let have = before + x.dim(axis)?;
    if have < total {
        parts.push(block(total - have)?);
    }
    let out = if parts.len() == 1 { x.clone() } else { Tensor::cat(&parts, axis)? };
    if out.dim(axis)? > total { out.narrow(axis, 0, total)?.contiguous() } else { Ok(out) }
}

fn linear(x: &Tensor, w: &Tensor, b: Option<&Tensor>) -> Candle<Tensor> {
    let (out, inp) = w.dims2()?;
    let mut dims = x.dims().to_vec();
    let rows = x.elem_count() / inp.max(1);
    let y = x.contiguous()?.reshape((rows, inp))?.matmul(&w.t()?)?;
    let y = match b {
        Some(b) => y.broadcast_add(b)?,
        None => y,
    };
    if let Some(last) = dims.last_mut() {
        *last = out;
    }
    y.reshape(dims)
}

/// Whether the fused operations of the CPU apply.
fn fusable(x: &Tensor) -> bool {
    x.device().is_cpu() && x.dtype() == DType::F32
}

fn layer_norm(x: &Tensor, w: &Tensor, b: &Tensor, eps: f64) -> Candle<Tensor> {
    if fusable(x) {
        return x.contiguous()?.apply_op3(w, b, LayerNorm { eps });
    }
    let mean = x.mean_keepdim(D::Minus1)?;
    let x = x.broadcast_sub(&mean)?;
    let var = x.sqr()?.mean_keepdim(D::Minus1)?;
    x.broadcast_div(&(var + eps)?.sqrt()?)?.broadcast_mul(w)?.broadcast_add(b)
}

fn activate(x: &Tensor, act: Activation) -> Candle<Tensor> {
    match act {
        Activation::Relu => x.relu(),
        Activation::GeluErf => x.gelu_erf(),
        Activation::GeluTanh => x.gelu(),
        Activation::Silu => x.silu(),
    }
}

fn max_pool(x: &Tensor, window: Window) -> Candle<Tensor> {
    let (_, _, h, w) = x.dims4()?;
    let (Some(oh), Some(ow)) = (window.out(0, h), window.out(1, w)) else { candle_core::bail!("kernel does not fit") };
    let slices = window_slices(x, window, oh, ow, f32::MIN as f64)?;
    let mut slices = slices.into_iter();
    let Some(first) = slices.next() else { candle_core::bail!("an empty pooling kernel") };
    slices.try_fold(first, |m, s| m.maximum(&s))
}

fn channel_pad(x: &Tensor, stride: usize, map: &[Option<u32>]) -> Candle<Tensor> {
    let (n, c, h, w) = x.dims4()?;
    let (oh, ow) = (h.div_ceil(stride), w.div_ceil(stride));
    let one = Window { kernel: [1, 1], stride: [stride, stride], padding: [0, 0] };
    let x = window_slices(x, one, oh, ow, 0.0)?.swap_remove(0);
    // A zero channel at the end stands for the padding.
    let x = Tensor::cat(&[&x, &Tensor::zeros((n, 1, oh, ow), x.dtype(), x.device())?], 1)?;
    let index: Vec<u32> = map.iter().map(|m| m.unwrap_or(c as u32)).collect();
    x.index_select(&Tensor::new(index, x.device())?, 1)
}

fn attention(q: &Tensor, k: &Tensor, v: &Tensor, heads: usize, scale: f64) -> Candle<Tensor> {
    let (n, t, _) = q.dims3()?;
    let split = |x: &Tensor| x.reshape((n, t, heads, ()))?.transpose(1, 2)?.contiguous();
    let (q, k, v) = (split(&q.contiguous()?)?, split(&k.contiguous()?)?, split(&v.contiguous()?)?);
    let scores = q.matmul(&k.transpose(2, 3)?.contiguous()?)?;
    let p = if fusable(&scores) {
        scores.apply_op1(Softmax { scale })?
    } else {
        // The shift by the maximum is for range only and carries no gradient.
        let scores = (scores * scale)?;
        let e = scores.broadcast_sub(&scores.detach().max_keepdim(D::Minus1)?)?.exp()?;
        e.broadcast_div(&e.sum_keepdim(D::Minus1)?)?
    };
    p.matmul(&v)?.transpose(1, 2)?.contiguous()?.flatten_from(2)
}

#[cfg(test)]
mod tests;
