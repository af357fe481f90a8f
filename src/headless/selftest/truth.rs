//! Every op in double precision by plain loops, together with how far a correct kernel may be from it.
//!
//! Shares no code with `exec`: neither its kernels nor the tensor library that its reference runs on. The bounds follow
//! the computation. A sum of `k` rounded products is off by about `√k · u · Σ|products|` (Higham & Mary 2019; `u` is
//! half an ulp of f32), several times what is seen and far below what an approximate format such as TF32 leaves. An
//! int8 product is off by what its codes cut away: a step `s_x = (max - min) / top` for activations, `s_w = max|w| / 127`
//! for weights, each value uniformly up to half a step. That error has the variance
//! `Σ (x² s_w² + w² s_x² + s_x² s_w² / 12) / 12`, and six standard deviations are allowed. Weights alone in codes are the same
//! with an `s_x` of zero, and with `s_w = max|w| / 7` over a row or a group of it in 4 bits. A product in f16 or bf16 rounds both
//! factors, each by up to `u` (half an ulp of one) of itself, and then the sum: `(2 Σ (x w)² + y²) u² / 3`. 8-bit floats round each
//! by half of what lies between its neighbours, `h`: `Σ (x² h_w² + w² h_x² + h_x² h_w² / 3) / 3`.

mod attention;
mod elementwise;
mod experts;
mod heads;
mod layer;
mod layout;
mod norm;
mod pool;
mod site;

use crate::graph::{Op, op, shapes};
use anyhow::{Result, bail};
use site::{Expected, Site};
pub(super) use site::{Run, SIGMAS};

impl Run<'_> {
    /// The graph's output for `x` `[images, c, h, w]`, or ids `[images, tokens]`.
    pub(super) fn output(&self, x: &[f32]) -> Result<Expected> {
        let shapes = shapes(self.graph)?;
        let mut values: Vec<Expected> = Vec::with_capacity(shapes.len());
        for (id, node) in self.graph.iter() {
            let inputs: Vec<(&Expected, &[usize])> =
                node.inputs.iter().map(|i| (&values[i.index()], shapes[i.index()].as_slice())).collect();
            let out = &shapes[id.index()];
            let value = match (&node.op, &inputs[..]) {
                (Op::Input(_), _) => x.iter().map(|v| (f64::from(*v), 0.0)).collect(),
                (_, [(x, shape), rest @ ..]) => value(&Site { run: self, node, x, shape, rest, out })?,
                (_, []) => bail!("node `{}` has no input", node.name),
            };
            let expected = self.images * out.iter().product::<usize>();
            if value.y.len() != expected {
                bail!("node `{}`: {} values, expected {expected}", node.name, value.y.len());
            }
            values.push(value);
        }
        Ok(values.swap_remove(self.graph.output.index()))
    }
}

/// What a node with inputs makes of them.
fn value(at: &Site<'_>) -> Result<Expected> {
    Ok(match &at.node.op {
        Op::Input(_) => bail!("node `{}` is an input with inputs", at.node.name),
        Op::Embedding(op::Embedding { dim, .. }) => layout::embedding(at, *dim)?,
        Op::Conv2d(conv) => layer::conv(at, conv)?,
        Op::Linear(linear) => layer::linear(at, linear)?,
        Op::BatchNorm2d(_) | Op::LayerNorm(_) | Op::RmsNorm(_) | Op::Softmax | Op::Scale(_) if at.shape.len() == 3 => {
            norm::over_pixels(at, value)?
        }
        Op::BatchNorm2d(norm) => norm::batch_norm(at, norm)?,
        Op::LayerNorm(norm) => norm::layer_norm(at, norm)?,
        Op::RmsNorm(norm) => norm::rms_norm(at, norm)?,
        Op::Softmax => norm::softmax(at),
        Op::Activation { act } => elementwise::activate(at, *act),
        Op::Add => elementwise::add(at)?,
        Op::Mul => elementwise::multiply(at)?,
        Op::Scale(scale) => elementwise::scale(at, scale)?,
        Op::Scalar(scalar) => elementwise::scalar(at, scalar),
        Op::AddPositions(_) => elementwise::add_positions(at)?,
        Op::MaxPool2d(pool) => pool::max(at, pool)?,
        Op::AvgPool2d(pool) => pool::average(at, pool)?,
        Op::AdaptiveAvgPool2d(_) => pool::adaptive(at)?,
        Op::GlobalAvgPool => pool::global(at)?,
        Op::MeanTokens(op::MeanTokens { skip }) => pool::tokens(at, *skip),
        Op::Concat(_) => layout::concat(at),
        Op::Flatten => at.x.clone(),
        Op::ToTokens => layout::to_tokens(at)?,
        Op::ToImage(op::ToImage { h, w }) => at.turned(at.x, h * w, at.last()),
        Op::PatchMerge(op::PatchMerge { grid }) => layout::patch_merge(at, *grid),
        Op::ChannelPad(pad) => layout::channel_pad(at, pad)?,
        Op::PrependTokens(tokens) => layout::prepend(at, tokens)?,
        Op::SelectToken(op::SelectToken { index }) => layout::select(at, *index),
        Op::Attention(attention) => attention::attention(at, attention)?,
        Op::Rope(rope) => heads::rope(at, rope),
        Op::HeadNorm(norm) => heads::norm(at, norm)?,
        Op::Route(route) => experts::route(at, route)?,
        Op::Dispatch(dispatch) => experts::dispatch(at, dispatch)?,
        Op::Combine(combine) => experts::combine(at, combine),
    })
}
