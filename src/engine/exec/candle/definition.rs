//! What every op computes, composed of operations of the tensor library that have a backward pass.
//!
//! Not here: the operations themselves (`ops`), parameters (`site`), kernels that may run instead (`build`). Invariants: every op has a definition; values have the
//! shapes of [`Op`]'s documentation with the batch axis first; what an op does not take is refused by its own shape rule
//! before the tensor library sees it.

use super::experts;
use super::fused::{self, BatchNorm};
use super::heads::{Angles, rotated};
use super::ops;
use super::site::{BatchStats, Mode, Site, Stats};
use crate::exec::error::{ExecError, Result};
use crate::exec::input;
use crate::graph::{self, Op, ParamRole, PositionBias, op};
use candle_core::{D, DType, Tensor};

impl Site<'_> {
    /// The node's value for those of its inputs; for the graph's input, the batch as its only one. In [`Mode::Batch`] a batch
    /// norm adds its statistics to `seen`.
    pub fn define(&self, inputs: &[Tensor], seen: &mut Stats) -> Result<Tensor> {
        if !matches!(self.node.op, Op::Input(_)) {
            let shapes: Vec<&[usize]> = inputs.iter().map(|t| t.dims().get(1..).unwrap_or_default()).collect();
            graph::node_shape(self.node, &shapes)?;
        }
        self.value(inputs, seen).map_err(|e| match e {
            ExecError::Tensor(said) => ExecError::at(self.node, said),
            other => other,
        })
    }

    /// `inputs` are as many as the op takes, of shapes that it takes.
    fn value(&self, inputs: &[Tensor], seen: &mut Stats) -> Result<Tensor> {
        let x = inputs.first().ok_or_else(|| ExecError::unsupported(self.node, "has no input"))?;
        let other = inputs.get(1).unwrap_or(x);
        Ok(match &self.node.op {
            Op::Input(input) => {
                input::check(self.node, input, x)?;
                x.clone()
            }
            Op::Embedding(op::Embedding { dim, .. }) => {
                let (n, tokens) = x.dims2()?;
                let ids = x.to_dtype(DType::U32)?.contiguous()?.flatten_all()?;
                self.weight()?.index_select(&ids, 0)?.reshape((n, tokens, *dim))?
            }
            Op::Conv2d(conv) => {
                let y = ops::conv(x, &self.weight()?, conv.into(), conv.groups)?;
                match conv.bias {
                    true => y.broadcast_add(&ops::per_channel(&self.param(ParamRole::Bias)?, &y)?)?,
                    false => y,
                }
            }
            Op::Linear(op::Linear { bias, .. }) => {
                let b = bias.then(|| self.param(ParamRole::Bias)).transpose()?;
                ops::linear(x, &self.weight()?, b.as_ref())?
            }
            Op::BatchNorm2d(op::BatchNorm2d { channels, eps }) => self.batch_norm(x, *channels, *eps, seen)?,
            Op::LayerNorm(op::LayerNorm { eps, .. }) => {
                let (w, b) = (self.param(ParamRole::Weight)?, self.param(ParamRole::Bias)?);
                ops::over_channels(x, |x| ops::layer_norm(x, &w, &b, *eps))?
            }
            Op::RmsNorm(op::RmsNorm { eps, .. }) => {
                let w = self.param(ParamRole::Weight)?;
                ops::over_channels(x, |x| ops::rms_norm(x, &w, *eps))?
            }
            Op::Activation { act } => ops::activate(x, *act)?,
            Op::Softmax => ops::over_channels(x, |x| ops::softmax(x, 1.0))?,
            Op::Mul => ops::multiply(x, other)?,
            Op::Scale(_) => x.broadcast_mul(&ops::per_channel(&self.param(ParamRole::Weight)?, x)?)?,
            Op::Scalar(op::Scalar { mul, add }) => x.affine(*mul, *add)?,
            Op::Add => (x + other)?,
            Op::MaxPool2d(pool) => ops::max_pool(x, pool.into())?,
            Op::AvgPool2d(pool) => ops::avg_pool(x, pool.into(), pool.count_padding)?,
            Op::AdaptiveAvgPool2d(op::AdaptiveAvgPool2d { out }) => ops::adaptive_avg_pool(x, *out)?,
            Op::Concat(_) => Tensor::cat(inputs, ops::channel_axis(x))?,
            Op::Flatten => x.contiguous()?.flatten_from(1)?,
            Op::ToImage(op::ToImage { h, w }) => {
                x.transpose(1, 2)?.contiguous()?.reshape((x.dim(0)?, x.dim(2)?, *h, *w))?
            }
            Op::PatchMerge(op::PatchMerge { grid }) => ops::patch_merge(x, *grid)?,
            Op::GlobalAvgPool => x.mean((2, 3))?,
            Op::ChannelPad(op::ChannelPad { stride, map, .. }) => ops::channel_pad(x, *stride, map)?,
            Op::ToTokens => x.flatten_from(2)?.transpose(1, 2)?.contiguous()?,
            Op::PrependTokens(op::PrependTokens { count, dim, at }) => {
                let (n, have, _) = x.dims3()?;
                let t = self.param(ParamRole::Embedding)?.broadcast_as((n, *count, *dim))?.contiguous()?;
                match *at {
                    0 => Tensor::cat(&[&t, x], 1)?,
                    at if at == have => Tensor::cat(&[x, &t], 1)?,
                    at => Tensor::cat(&[&x.narrow(1, 0, at)?, &t, &x.narrow(1, at, have - at)?], 1)?,
                }
            }
            Op::AddPositions(_) => {
                let (all, tokens) = (self.param(ParamRole::Embedding)?, x.dim(1)?);
                let places = self.starts().into_iter().map(|start| all.narrow(1, start, tokens));
                x.broadcast_add(&Tensor::cat(&places.collect::<candle_core::Result<Vec<_>>>()?, 0)?)?
            }
            Op::Attention(attention) => self.attention(x, inputs, attention)?,
            Op::Rope(rope) => match self.starts()[..] {
                // The kernel that a plan's step runs, of other places: what decodes is what the step is named after.
                [start] if x.device().is_cuda() => {
                    let angles = Angles::of(rope, start..start + x.dim(1)?, x.device())?;
                    rotated(x, rope, &angles)?
                }
                ref starts => ops::rope(x, rope, starts)?,
            },
            Op::HeadNorm(op::HeadNorm { head_dim, eps }) => {
                let (n, tokens, width) = x.dims3()?;
                let w = self.param(ParamRole::Weight)?;
                let heads = x.contiguous()?.reshape((n, tokens, width / head_dim.max(&1), *head_dim))?;
                ops::rms_norm(&heads, &w, *eps)?.reshape((n, tokens, width))?
            }
            Op::Route(op::Route { top, normalised, .. }) => experts::route(x, *top, *normalised)?,
            Op::Dispatch(op::Dispatch { expert, .. }) => x.broadcast_mul(&experts::sent(other, *expert)?)?,
            Op::Combine(_) => experts::combine(inputs)?,
            Op::SelectToken(op::SelectToken { index }) => x.narrow(1, *index, 1)?.squeeze(1)?.contiguous()?,
            Op::MeanTokens(op::MeanTokens { skip }) => x.narrow(1, *skip, x.dim(1)? - skip)?.mean(1)?,
        })
    }

    fn attention(&self, x: &Tensor, inputs: &[Tensor], attention: &op::Attention) -> Result<Tensor> {
        let op::Attention { heads, group, causal, most, reach, cap, scale, cosine, windows, bias, .. } = *attention;
        let [qw, kw, vw] = attention.widths();
        let [q, k, v] = match inputs {
            [q, k, v] => [q, k, v].map(Tensor::clone),
            _ => {
                let part = |start, len| x.narrow(D::Minus1, start, len);
                [part(0, qw)?, part(qw, kw)?, part(qw + kw, vw)?]
            }
        };
        // A relative bias has windows.
        let size = windows.map_or([0; 2], |w| w.size);
        let bias = match bias {
            PositionBias::None => None,
            PositionBias::Full { .. } => Some(self.param(ParamRole::PositionBias)?),
            PositionBias::Table => Some(ops::relative_bias(&self.param(ParamRole::PositionBias)?, size)?),
            PositionBias::Continuous { trained, .. } => {
                let net = [ParamRole::PositionMlp1, ParamRole::PositionMlp1Bias, ParamRole::PositionMlp2];
                let [w1, b1, w2] = net.map(|role| self.param(role));
                Some(ops::continuous_bias([&w1?, &b1?, &w2?], size, trained)?)
            }
        };
        let factors = cosine.then(|| self.param(ParamRole::LogitScale)).transpose()?;
        let core = ops::Attention { heads, group, causal, most, reach, cap, factors, windows, bias };
        Ok(match &self.pass.turn {
            Some(turn) => turn.attend(&self.node.name, &core, [&q, &k, &v], scale)?,
            None => core.run(&q, &k, &v, scale)?,
        })
    }

    /// Tokens before the first of each image; one number where it is the same for all.
    fn starts(&self) -> Vec<usize> {
        self.pass.turn.map_or_else(|| vec![0], |turn| turn.starts())
    }

    fn batch_norm(&self, x: &Tensor, c: usize, eps: f64, seen: &mut Stats) -> Result<Tensor> {
        let (w, b) = (self.param(ParamRole::Weight)?, self.param(ParamRole::Bias)?);
        if self.pass.mode == Mode::Eval {
            let (mean, var) = (self.param(ParamRole::Mean)?, self.param(ParamRole::Var)?);
            let scale = (w / (var + eps)?.sqrt()?)?;
            let shift = (b - (mean * &scale)?)?;
            return Ok(x.broadcast_mul(&ops::per_channel(&scale, x)?)?.broadcast_add(&ops::per_channel(&shift, x)?)?);
        }
        let n = x.elem_count() / c.max(1);
        let fix = n as f64 / (n.max(2) - 1) as f64;
        if ops::fusable(x) && x.rank() == 4 {
            let x = x.contiguous()?;
            let data = x.detach().flatten_all()?.to_vec1::<f32>()?;
            let stats = fused::moments(&data, c, x.dim(2)? * x.dim(3)?);
            let mean = Tensor::from_iter(stats.iter().map(|s| s.0 as f32), x.device())?;
            let var = Tensor::from_iter(stats.iter().map(|s| (s.1 * fix) as f32), x.device())?;
            seen.insert(self.node.name.clone(), BatchStats { mean, var });
            return Ok(x.apply_op3(&w, &b, BatchNorm { eps })?);
        }
        let ch = ops::channel_axis(x);
        let others: Vec<usize> = (0..x.rank()).filter(|&a| a != ch).collect();
        let mean = x.mean_keepdim(others.as_slice())?;
        let centred = x.broadcast_sub(&mean)?;
        let var = centred.sqr()?.mean_keepdim(others.as_slice())?;
        let unbiased = (var.detach().flatten_all()? * fix)?;
        seen.insert(self.node.name.clone(), BatchStats { mean: mean.detach().flatten_all()?, var: unbiased });
        let y = centred.broadcast_div(&(var + eps)?.sqrt()?)?;
        Ok(y.broadcast_mul(&ops::per_channel(&w, x)?)?.broadcast_add(&ops::per_channel(&b, x)?)?)
    }
}
