//! The CPU kernel of each op, packed for the shapes that it meets.
//!
//! Not here: parameters and what is folded into them (`layer`). Invariant: the name that a kernel gets is that of what runs.

use super::layer::Builder;
use super::step::Kernel;
use crate::exec::error::ExecError;
use crate::exec::kernel::attention::Attention;
use crate::exec::kernel::dense::{Dense, Source};
use crate::exec::kernel::geometry::{Codes, Epilogue, Geometry};
use crate::exec::kernel::simple::Pool;
use crate::exec::kernel::window::Around;
use crate::exec::unfold::Window;
use crate::graph::{Op, ParamRole, Precision, Runs, channel_axis, op};

/// A kernel, its name and its parameter bytes, stored and in memory.
pub(super) type Made = (Kernel, String, [u64; 2]);

impl Builder<'_> {
    fn pool(&self, window: Window) -> Result<Pool, ExecError> {
        let (channels, image) = self.image()?;
        match self.shapes[self.chain.lead.index()][..] {
            [_, h, w] => Ok(Pool { image, out_image: [h, w], channels, window }),
            ref other => Err(ExecError::shape(self.node, other, "[channels, height, width]")),
        }
    }

    pub fn kernel(&self) -> Result<Made, ExecError> {
        let plain = |k: Kernel, name: &str| Ok((k, name.to_owned(), [0; 2]));
        let held = |k: Kernel, name: &str, n: usize| Ok((k, name.to_owned(), [4 * n as u64; 2]));
        match &self.node.op {
            Op::Conv2d(conv) => self.conv(conv),
            Op::Embedding(op::Embedding { vocab, dim }) => {
                let table = self.values(self.node, ParamRole::Weight, &[*vocab, *dim])?;
                held(Kernel::Gather { table, dim: *dim }, "gather-f32", vocab * dim)
            }
            Op::Linear(op::Linear { in_features, out_features, bias }) => {
                if self.input(0)?.len() > 2 {
                    return Err(ExecError::shape(self.node, self.input(0)?, "[tokens, features] or [features]"));
                }
                // Rows are on their own; an image of one holds for any number of them.
                let rows = if self.graph.is_free() { 1 } else { self.rows()?.0 };
                let geo = Geometry::linear(rows, *in_features, *out_features);
                self.dense(geo, &[*out_features, *in_features], *bias)
            }
            Op::BatchNorm2d(op::BatchNorm2d { channels, eps }) => {
                let (scale, shift) = self.batch_norm(self.node, *channels, *eps)?;
                held(Kernel::Affine { scale, shift, act: self.act() }, "affine-f32", 2 * channels)
            }
            Op::LayerNorm(op::LayerNorm { dim, eps }) => {
                self.rows()?;
                let w = self.values(self.node, ParamRole::Weight, &[*dim])?;
                let b = self.values(self.node, ParamRole::Bias, &[*dim])?;
                held(Kernel::LayerNorm { w, b, eps: *eps as f32 }, "layernorm-f32", 2 * dim)
            }
            Op::RmsNorm(op::RmsNorm { dim, eps }) => {
                let w = self.values(self.node, ParamRole::Weight, &[*dim])?;
                held(Kernel::RmsNorm { w, eps: *eps as f32 }, "rmsnorm-f32", *dim)
            }
            Op::Activation { act } => plain(Kernel::Activation(*act), "activation-f32"),
            Op::Softmax => plain(Kernel::Softmax { width: self.rows()?.1 }, "softmax-f32"),
            Op::Mul => {
                let (_, channels) = self.rows()?;
                let kernel = match self.input(0)?.len() == self.input(1)?.len() {
                    true => Kernel::Mul,
                    false => Kernel::MulRows { channels },
                };
                plain(kernel, "multiply-f32")
            }
            Op::Scale(op::Scale { channels }) => {
                let scale = self.values(self.node, ParamRole::Weight, &[*channels])?;
                let shift = vec![0.0; *channels];
                held(Kernel::Affine { scale, shift, act: self.act() }, "affine-f32", *channels)
            }
            Op::Scalar(op::Scalar { mul, add }) => {
                plain(Kernel::Scalar { mul: *mul as f32, add: *add as f32 }, "scalar-f32")
            }
            Op::Add => plain(Kernel::Add { act: self.act() }, "add-f32"),
            Op::MaxPool2d(pool) => plain(Kernel::MaxPool(self.pool(pool.into())?), "maxpool-f32"),
            Op::AvgPool2d(pool) => {
                let (pool, count_padding) = (self.pool(pool.into())?, pool.count_padding);
                plain(Kernel::AvgPool { pool, count_padding }, "avgpool-f32")
            }
            Op::AdaptiveAvgPool2d(_) => {
                let window = Window { kernel: [1; 2], stride: [1; 2], padding: [0; 4] };
                plain(Kernel::AdaptivePool(self.pool(window)?), "avgpool-f32")
            }
            Op::Concat(op::Concat { inputs }) => {
                let width = |i| Ok(self.input(i)?[channel_axis(self.input(i)?)]);
                let widths = (0..*inputs).map(width).collect::<Result<_, ExecError>>()?;
                plain(Kernel::Concat { widths }, "copy-f32")
            }
            Op::Flatten => {
                let (channels, [h, w]) = self.image()?;
                plain(Kernel::Flatten { channels, positions: h * w }, "copy-f32")
            }
            Op::PatchMerge(op::PatchMerge { grid }) => {
                let (_, width) = self.rows()?;
                plain(Kernel::PatchMerge { grid: *grid, width }, "copy-f32")
            }
            Op::GlobalAvgPool => {
                let (channels, _) = self.image()?;
                plain(Kernel::Mean { skip: 0, channels }, "mean-f32")
            }
            Op::ChannelPad(pad) => {
                let pool = self.padded(pad)?;
                plain(Kernel::ChannelPad { pool, map: pad.map.clone() }, "pad-f32")
            }
            Op::PrependTokens(op::PrependTokens { count, dim, at }) => {
                let tokens = self.values(self.node, ParamRole::Embedding, &[1, *count, *dim])?;
                held(Kernel::Insert { tokens, at: at * dim }, "copy-f32", count * dim)
            }
            Op::AddPositions(op::AddPositions { tokens, dim }) => {
                let p = self.values(self.node, ParamRole::Embedding, &[1, *tokens, *dim])?;
                held(Kernel::Positions(p), "add-f32", tokens * dim)
            }
            Op::Attention(attention) => self.attention(attention),
            Op::SelectToken(op::SelectToken { index }) => {
                let (_, channels) = self.rows()?;
                plain(Kernel::Select { index: *index, channels }, "copy-f32")
            }
            Op::MeanTokens(op::MeanTokens { skip }) => {
                let (_, channels) = self.rows()?;
                plain(Kernel::Mean { skip: *skip, channels }, "mean-f32")
            }
            Op::Input(_) | Op::ToTokens | Op::ToImage(_) => Err(ExecError::unsupported(self.node, "is not a step")),
        }
    }

    fn conv(&self, conv: &op::Conv2d) -> Result<Made, ExecError> {
        let op::Conv2d { in_ch: channels, out_ch: out_channels, kernel, groups, bias, .. } = *conv;
        let (window, image, out_image) = self.window(conv)?;
        let geo = Geometry { image, channels, out_image, out_channels, window, groups, codes: Codes::Image };
        self.dense(geo, &[out_channels, channels / groups, kernel[0], kernel[1]], bias)
    }

    /// The positions that a channel padding keeps; every row of tokens.
    fn padded(&self, pad: &op::ChannelPad) -> Result<Pool, ExecError> {
        let window = Window { kernel: [1, 1], stride: [pad.stride; 2], padding: [0; 4] };
        if self.input(0)?.len() == 3 {
            return self.pool(window);
        }
        // Rows of tokens are images of one pixel.
        let (_, channels) = self.rows()?;
        Ok(Pool { image: [1, 1], out_image: [1, 1], channels, window })
    }

    fn attention(&self, attention: &op::Attention) -> Result<Made, ExecError> {
        let op::Attention { heads, qk_dim, v_dim, fused, scale, cosine, windows, bias } = *attention;
        let (tokens, _) = self.rows()?;
        let tokens = windows.map_or(tokens, |w| w.tokens());
        let core = Attention { tokens, heads, qk: qk_dim, v: v_dim, scale: scale as f32 };
        let (factors, bias, held) = self.position(cosine, windows, bias)?;
        let plain = factors.is_none() && windows.is_none() && bias.is_none();
        let around = (!plain).then(|| Around::new(&core, windows, factors, bias));
        let name = core.kernel();
        Ok((Kernel::Attention { core, fused, windowed: windows.is_some(), around }, name, [held; 2]))
    }

    fn dense(&self, geo: Geometry, shape: &[usize], has_bias: bool) -> Result<Made, ExecError> {
        let precision = self.wanted();
        let geo = match precision {
            Precision::Int8Static => Geometry { codes: Codes::Fixed(self.calibrated()?), ..geo },
            _ => geo,
        };
        let weight = self.weight(shape, precision)?;
        let mut folded = self.folded(geo.out_channels, has_bias)?;
        let epilogue = Epilogue { bias: std::mem::take(&mut folded.bias), act: self.act() };
        let dense = match (precision.int8_products(), weight.as_int8()) {
            (true, Some((q, scales))) => Dense::new(geo, Source::Int8 { q, factors: &folded.times(scales) }, epilogue),
            _ => Dense::new(geo, Source::F32 { w: &weight.values(), factors: folded.factors.as_deref() }, epilogue),
        };
        let (mut name, stored) = (dense.kernel(), weight.stored_bytes());
        let held = match precision.runs() {
            Runs::Real if precision == Precision::Int8Static => {
                name += " (static)";
                stored
            }
            Runs::Real => stored,
            Runs::Simulated => {
                name = format!("{name} ({} unpacked)", precision.label());
                4 * weight.numel() as u64
            }
        };
        Ok((Kernel::Dense(dense), name, [stored + folded.stored, held + folded.stored]))
    }
}
