//! One node of the reference: its inputs and parameters checked, then computed by the operations of `ops`.
//!
//! Not here: which nodes run and what is kept of them (`reference`). Invariant: whatever does not fit is an error that
//! names the node before the tensor library sees it.

use super::ops;
use crate::exec::error::ExecError;
use crate::exec::fused::{self, BatchNorm};
use crate::exec::input;
use crate::exec::unfold::Window;
use crate::graph::op;
use crate::graph::{Node, Op, ParamRole, PositionBias};
use candle_core::{D, DType, Tensor};
use std::collections::HashMap;

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

/// Statistics by node name.
type Stats = HashMap<String, BatchStats>;

/// A node and where its parameters are found.
pub(super) struct Env<'a> {
    pub node: &'a Node,
    pub params: &'a TensorMap,
    pub mode: Mode,
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
        ExecError::NoParam {
            node: self.node.name.clone(),
            op: self.node.op.facts().traits().name,
            role: role_name(role),
        }
    }

    /// What the tensor library reports.
    fn candle(&self, source: candle_core::Error) -> ExecError {
        ExecError::Candle { node: self.node.name.clone(), op: self.node.op.facts().traits().name, source }
    }

    /// The node's value for those of its inputs; for the graph's input, the batch as its only one. In [`Mode::Batch`] a batch
    /// norm adds its statistics to `seen`.
    pub fn run(&self, inputs: &[Tensor], seen: &mut Stats) -> Result<Tensor, ExecError> {
        let err = |source| self.candle(source);
        let first = inputs.first().ok_or_else(|| ExecError::unsupported(self.node, "has no input"))?;
        match &self.node.op {
            Op::Input(input) => input::check(self.node, input, first).map(|_| first.clone()),
            Op::Embedding(op::Embedding { vocab, dim }) => {
                self.rank(first, 2)?;
                let table = self.param(ParamRole::Weight, &[*vocab, *dim])?;
                let ids = first.to_dtype(DType::U32).and_then(|ids| ids.contiguous()?.flatten_all()).map_err(err)?;
                let shape = (first.dims()[0], first.dims()[1], *dim);
                table.index_select(&ids, 0).and_then(|rows| rows.reshape(shape)).map_err(err)
            }
            Op::Conv2d(conv) => self.conv(first, conv),
            Op::Linear(linear) => self.linear(first, linear),
            Op::BatchNorm2d(op::BatchNorm2d { channels, eps }) => {
                self.channels(first, *channels)?;
                self.batch_norm(first, *channels, *eps, seen)
            }
            Op::LayerNorm(op::LayerNorm { dim, eps }) => {
                self.channels(first, *dim)?;
                let w = self.param(ParamRole::Weight, &[*dim])?;
                let b = self.param(ParamRole::Bias, &[*dim])?;
                ops::over_channels(first, |x| ops::layer_norm(x, &w, &b, *eps)).map_err(err)
            }
            Op::RmsNorm(op::RmsNorm { dim, eps }) => {
                self.channels(first, *dim)?;
                let w = self.param(ParamRole::Weight, &[*dim])?;
                ops::over_channels(first, |x| ops::rms_norm(x, &w, *eps)).map_err(err)
            }
            Op::Activation { act } => ops::activate(first, *act).map_err(err),
            Op::Softmax => ops::over_channels(first, |x| ops::softmax(x, 1.0)).map_err(err),
            Op::Mul => match inputs {
                [a, b] => ops::multiply(a, b).map_err(err),
                _ => Err(ExecError::shape(self.node, inputs.len(), "two inputs")),
            },
            Op::Scale(op::Scale { channels }) => {
                self.channels(first, *channels)?;
                let w = self.param(ParamRole::Weight, &[*channels])?;
                first.broadcast_mul(&ops::per_channel(&w, first)?).map_err(err)
            }
            Op::Scalar(op::Scalar { mul, add }) => first.affine(*mul, *add).map_err(err),
            Op::Add => match inputs {
                [a, b] if a.dims() == b.dims() => (a + b).map_err(err),
                _ => {
                    let found: Vec<_> = inputs.iter().map(|t| t.dims().to_vec()).collect();
                    Err(ExecError::shape(self.node, found, "two equal shapes"))
                }
            },
            Op::MaxPool2d(op::MaxPool2d { kernel, stride, padding }) => {
                let window = Window { kernel: *kernel, stride: *stride, padding: *padding };
                self.fits(first, window)?;
                ops::max_pool(first, window).map_err(err)
            }
            Op::AvgPool2d(op::AvgPool2d { kernel, stride, padding, count_padding }) => {
                let window = Window { kernel: *kernel, stride: *stride, padding: *padding };
                self.fits(first, window)?;
                ops::avg_pool(first, window, *count_padding).map_err(err)
            }
            Op::AdaptiveAvgPool2d(op::AdaptiveAvgPool2d { out }) => {
                self.rank(first, 4)?;
                ops::adaptive_avg_pool(first, *out).map_err(err)
            }
            Op::Concat(_) => {
                let axis = ops::channel_axis(first);
                Tensor::cat(inputs, axis).map_err(err)
            }
            Op::Flatten => first.contiguous().and_then(|x| x.flatten_from(1)).map_err(err),
            Op::ToImage(op::ToImage { h, w }) => {
                self.rank(first, 3)?;
                self.dim(first, 1, h * w)?;
                let image = || first.transpose(1, 2)?.contiguous()?.reshape((first.dim(0)?, first.dim(2)?, *h, *w));
                image().map_err(err)
            }
            Op::PatchMerge(op::PatchMerge { grid }) => {
                self.rank(first, 3)?;
                self.dim(first, 1, grid[0] * grid[1])?;
                ops::patch_merge(first, *grid).map_err(err)
            }
            Op::GlobalAvgPool => {
                self.rank(first, 4)?;
                first.mean((2, 3)).map_err(err)
            }
            Op::ChannelPad(op::ChannelPad { stride, in_ch, map }) => {
                self.channels(first, *in_ch)?;
                if *stride > 1 {
                    self.rank(first, 4)?;
                }
                if map.iter().flatten().any(|&c| c as usize >= *in_ch) || *stride == 0 {
                    return Err(ExecError::unsupported(self.node, "its channel map reaches past its input"));
                }
                ops::channel_pad(first, *stride, map).map_err(err)
            }
            Op::ToTokens => {
                self.rank(first, 4)?;
                first.flatten_from(2).and_then(|t| t.transpose(1, 2)?.contiguous()).map_err(err)
            }
            Op::PrependTokens(tokens) => self.prepend(first, tokens),
            Op::AddPositions(op::AddPositions { tokens, dim }) => {
                self.rank(first, 3)?;
                self.dim(first, 1, *tokens)?;
                self.last(first, *dim)?;
                first.broadcast_add(&self.param(ParamRole::Embedding, &[1, *tokens, *dim])?).map_err(err)
            }
            Op::Attention(attention) => self.attention(inputs, attention),
            Op::SelectToken(op::SelectToken { index }) => {
                self.rank(first, 3)?;
                if *index >= first.dims()[1] {
                    return Err(ExecError::shape(self.node, first.dims(), format!("more than {index} tokens")));
                }
                first.narrow(1, *index, 1).and_then(|t| t.squeeze(1)?.contiguous()).map_err(err)
            }
            Op::MeanTokens(op::MeanTokens { skip }) => {
                self.rank(first, 3)?;
                let t = first.dims()[1];
                if *skip >= t {
                    return Err(ExecError::shape(self.node, first.dims(), format!("more than {skip} tokens")));
                }
                first.narrow(1, *skip, t - skip).and_then(|t| t.mean(1)).map_err(err)
            }
        }
    }

    fn conv(&self, x: &Tensor, conv: &op::Conv2d) -> Result<Tensor, ExecError> {
        let op::Conv2d { in_ch, out_ch, kernel, stride, padding, groups, bias } = *conv;
        self.rank(x, 4)?;
        self.dim(x, 1, in_ch)?;
        if groups == 0 || in_ch % groups != 0 || out_ch % groups != 0 {
            return Err(ExecError::unsupported(self.node, format!("{groups} groups do not divide channels")));
        }
        let w = self.param(ParamRole::Weight, &[out_ch, in_ch / groups, kernel[0], kernel[1]])?;
        let window = Window { kernel, stride, padding };
        self.fits(x, window)?;
        let y = ops::conv(x, &w, window, groups).map_err(|e| self.candle(e))?;
        if bias {
            let b = self.param(ParamRole::Bias, &[out_ch])?;
            return y.broadcast_add(&b.reshape((1, out_ch, 1, 1))?).map_err(|e| self.candle(e));
        }
        Ok(y)
    }

    fn linear(&self, x: &Tensor, linear: &op::Linear) -> Result<Tensor, ExecError> {
        let op::Linear { in_features, out_features, bias } = *linear;
        self.last(x, in_features)?;
        let w = self.param(ParamRole::Weight, &[out_features, in_features])?;
        let b = bias.then(|| self.param(ParamRole::Bias, &[out_features])).transpose()?;
        ops::linear(x, &w, b.as_ref()).map_err(|e| self.candle(e))
    }

    fn prepend(&self, x: &Tensor, tokens: &op::PrependTokens) -> Result<Tensor, ExecError> {
        let op::PrependTokens { count, dim, at } = *tokens;
        self.rank(x, 3)?;
        self.last(x, dim)?;
        let t = self.param(ParamRole::Embedding, &[1, count, dim])?;
        let have = x.dims()[1];
        if at > have {
            return Err(ExecError::shape(self.node, x.dims(), format!("at least {at} tokens")));
        }
        let insert = || {
            let t = t.broadcast_as((x.dims()[0], count, dim))?.contiguous()?;
            match at {
                0 => Tensor::cat(&[&t, x], 1),
                at if at == have => Tensor::cat(&[x, &t], 1),
                at => Tensor::cat(&[&x.narrow(1, 0, at)?, &t, &x.narrow(1, at, have - at)?], 1),
            }
        };
        insert().map_err(|e| self.candle(e))
    }

    fn attention(&self, inputs: &[Tensor], attention: &op::Attention) -> Result<Tensor, ExecError> {
        let op::Attention { heads: h, qk_dim: qk, v_dim: v, fused, scale, .. } = *attention;
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
        self.around(attention, q.dims()[1])?.run(&q, &k, &vs, scale).map_err(|e| self.candle(e))
    }

    /// What attention does besides the products.
    fn around(&self, attention: &op::Attention, tokens: usize) -> Result<ops::Attention, ExecError> {
        let op::Attention { heads, cosine, windows, bias, .. } = *attention;
        let err = |source| self.candle(source);
        if let Some(w) = windows {
            w.check(tokens).map_err(|why| ExecError::unsupported(self.node, why))?;
        }
        let size = windows.map(|w| w.size);
        let shapes = crate::graph::param_shapes(&self.node.op);
        let get = |role: ParamRole| {
            let shape = shapes.iter().find(|(r, _)| *r == role).map(|(_, s)| s.as_slice());
            self.param(role, shape.ok_or_else(|| self.no_param(role))?)
        };
        let bias = match (bias, size) {
            (PositionBias::None, _) => None,
            (PositionBias::Full { .. }, _) => Some(get(ParamRole::PositionBias)?),
            (PositionBias::Table, Some(size)) => {
                Some(ops::relative_bias(&get(ParamRole::PositionBias)?, size).map_err(err)?)
            }
            (PositionBias::Continuous { trained, .. }, Some(size)) => {
                let net = [ParamRole::PositionMlp1, ParamRole::PositionMlp1Bias, ParamRole::PositionMlp2].map(get);
                let [w1, b1, w2] = net;
                Some(ops::continuous_bias([&w1?, &b1?, &w2?], size, trained).map_err(err)?)
            }
            (_, None) => return Err(ExecError::unsupported(self.node, "has a relative bias without windows")),
        };
        let factors = cosine.then(|| get(ParamRole::LogitScale)).transpose()?;
        Ok(ops::Attention { heads, factors, windows, bias })
    }

    fn batch_norm(&self, x: &Tensor, c: usize, eps: f64, seen: &mut Stats) -> Result<Tensor, ExecError> {
        let err = |source| ExecError::Candle { node: self.node.name.clone(), op: "batch norm", source };
        let w = self.param(ParamRole::Weight, &[c])?;
        let b = self.param(ParamRole::Bias, &[c])?;
        match self.mode {
            Mode::Eval => {
                let (mean, var) = (self.param(ParamRole::Mean, &[c])?, self.param(ParamRole::Var, &[c])?);
                let apply = || {
                    let scale = (w / (var + eps)?.sqrt()?)?;
                    let shift = (b - (mean * &scale)?)?;
                    x.broadcast_mul(&ops::per_channel(&scale, x)?)?.broadcast_add(&ops::per_channel(&shift, x)?)
                };
                apply().map_err(err)
            }
            Mode::Batch => {
                let apply = |seen: &mut Stats| {
                    let n = x.elem_count() / c.max(1);
                    if ops::fusable(x) && x.rank() == 4 {
                        let x = x.contiguous()?;
                        let data = x.detach().flatten_all()?.to_vec1::<f32>()?;
                        let stats = fused::moments(&data, c, x.dim(2)? * x.dim(3)?);
                        let fix = n as f64 / (n.max(2) - 1) as f64;
                        let mean = Tensor::from_iter(stats.iter().map(|s| s.0 as f32), x.device())?;
                        let var = Tensor::from_iter(stats.iter().map(|s| (s.1 * fix) as f32), x.device())?;
                        seen.insert(self.node.name.clone(), BatchStats { mean, var });
                        return x.apply_op3(&w, &b, BatchNorm { eps });
                    }
                    let ch = ops::channel_axis(x);
                    let others: Vec<usize> = (0..x.rank()).filter(|&a| a != ch).collect();
                    let mean = x.mean_keepdim(others.as_slice())?;
                    let centred = x.broadcast_sub(&mean)?;
                    let var = centred.sqr()?.mean_keepdim(others.as_slice())?;
                    let unbiased = (var.detach().flatten_all()? * (n as f64 / (n.max(2) - 1) as f64))?;
                    let stats = BatchStats { mean: mean.detach().flatten_all()?, var: unbiased };
                    seen.insert(self.node.name.clone(), stats);
                    let y = centred.broadcast_div(&(var + eps)?.sqrt()?)?;
                    y.broadcast_mul(&ops::per_channel(&w, x)?)?.broadcast_add(&ops::per_channel(&b, x)?)
                };
                apply(seen).map_err(err)
            }
        }
    }

    fn rank(&self, x: &Tensor, rank: usize) -> Result<(), ExecError> {
        if x.rank() == rank {
            return Ok(());
        }
        Err(ExecError::shape(self.node, x.dims(), format!("{rank} axes with the batch")))
    }

    /// `x` are images that `window` fits.
    fn fits(&self, x: &Tensor, window: Window) -> Result<(), ExecError> {
        self.rank(x, 4)?;
        if window.out(0, x.dims()[2]).is_some() && window.out(1, x.dims()[3]).is_some() {
            return Ok(());
        }
        Err(ExecError::shape(self.node, x.dims(), "an image that the kernel fits"))
    }

    fn dim(&self, x: &Tensor, axis: usize, len: usize) -> Result<(), ExecError> {
        if x.dims().get(axis) == Some(&len) {
            return Ok(());
        }
        Err(ExecError::shape(self.node, x.dims(), format!("{len} along axis {axis}")))
    }

    fn channels(&self, x: &Tensor, len: usize) -> Result<(), ExecError> {
        self.dim(x, ops::channel_axis(x), len)
    }

    fn last(&self, x: &Tensor, len: usize) -> Result<(), ExecError> {
        self.dim(x, x.rank().saturating_sub(1), len)
    }
}

pub(in crate::exec) fn role_name(role: ParamRole) -> &'static str {
    match role {
        ParamRole::Weight => "weight",
        ParamRole::Bias => "bias",
        ParamRole::Mean => "running mean",
        ParamRole::Var => "running variance",
        ParamRole::Embedding => "embedding",
        ParamRole::PositionBias => "position bias",
        ParamRole::LogitScale => "logit scale",
        ParamRole::PositionMlp1 => "first position weight",
        ParamRole::PositionMlp1Bias => "first position bias",
        ParamRole::PositionMlp2 => "second position weight",
    }
}
