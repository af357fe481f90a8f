//! The closed set of layer-sized operations, a file per family: each op says all that is true of it without a tensor
//! ([`Facts`]: names and traits, shapes, axis links, costs, parameters). Whoever runs, writes or checks ops matches [`Op`]
//! without a wildcard: a new op must not compile until they know it.

mod activation;
mod attention;
mod elementwise;
mod embedding;
mod experts;
mod facts;
mod heads;
mod input;
mod layer;
mod layout;
mod norm;
mod numbers;
mod pool;
mod tokens;

pub use activation::Activation;
pub use attention::Attention;
pub use elementwise::{Scalar, Scale};
pub use embedding::Embedding;
pub use experts::{Combine, Dispatch, EXPERTS, Route};
pub use facts::{Facts, Length, MAX_ELEMENTS, Traits, channel_axis};
pub(super) use facts::{output, product};
pub use heads::{Beyond, HeadNorm, Longer, Rope, Scaling};
pub use input::{Dim, Input, InputType};
pub use layer::{Conv2d, Linear};
pub use layout::{ChannelPad, Concat, PatchMerge, ToImage};
pub use norm::{BatchNorm2d, LayerNorm, RmsNorm};
pub use pool::{AdaptiveAvgPool2d, AvgPool2d, MaxPool2d};
pub use tokens::{AddPositions, MeanTokens, PrependTokens, SelectToken};

use serde::{Deserialize, Serialize};

/// Layer-sized operations. "Channels" are those of [`channel_axis`]. Shapes leave out the batch axis, which is always first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Op {
    Input(Input),
    Embedding(Embedding),
    Conv2d(Conv2d),
    Linear(Linear),
    BatchNorm2d(BatchNorm2d),
    LayerNorm(LayerNorm),
    RmsNorm(RmsNorm),
    Activation {
        act: Activation,
    },
    /// Over the channels.
    Softmax,
    /// Elementwise sum of two equal shapes.
    Add,
    /// Elementwise product of two equal shapes, or of an image or tokens with a vector `[channels]` as second input
    /// (squeeze-and-excitation).
    Mul,
    Scale(Scale),
    Scalar(Scalar),
    MaxPool2d(MaxPool2d),
    AvgPool2d(AvgPool2d),
    AdaptiveAvgPool2d(AdaptiveAvgPool2d),
    /// `[c, h, w]` → `[c]`.
    GlobalAvgPool,
    ChannelPad(ChannelPad),
    Concat(Concat),
    /// `[c, h, w]` → `[c·h·w]`, channel by channel.
    Flatten,
    /// `[c, h, w]` → `[h·w, c]`.
    ToTokens,
    ToImage(ToImage),
    PatchMerge(PatchMerge),
    PrependTokens(PrependTokens),
    AddPositions(AddPositions),
    Attention(Attention),
    Rope(Rope),
    HeadNorm(HeadNorm),
    SelectToken(SelectToken),
    MeanTokens(MeanTokens),
    Route(Route),
    Dispatch(Dispatch),
    Combine(Combine),
}

/// The facts of `$op`: what it holds, or what is said of those that hold nothing.
macro_rules! facts {
    ($op:expr, $($plain:tt)*) => {
        match $op {
            Op::Input(op) => op,
            Op::Embedding(op) => op,
            Op::Conv2d(op) => op,
            Op::Linear(op) => op,
            Op::BatchNorm2d(op) => op,
            Op::LayerNorm(op) => op,
            Op::RmsNorm(op) => op,
            Op::Activation { act } => act,
            Op::Scale(op) => op,
            Op::Scalar(op) => op,
            Op::MaxPool2d(op) => op,
            Op::AvgPool2d(op) => op,
            Op::AdaptiveAvgPool2d(op) => op,
            Op::ChannelPad(op) => op,
            Op::Concat(op) => op,
            Op::ToImage(op) => op,
            Op::PatchMerge(op) => op,
            Op::PrependTokens(op) => op,
            Op::AddPositions(op) => op,
            Op::Attention(op) => op,
            Op::Rope(op) => op,
            Op::HeadNorm(op) => op,
            Op::SelectToken(op) => op,
            Op::MeanTokens(op) => op,
            Op::Route(op) => op,
            Op::Dispatch(op) => op,
            Op::Combine(op) => op,
            $($plain)*
        }
    };
}

impl Op {
    /// What is true of it without a tensor.
    pub fn facts(&self) -> &dyn Facts {
        facts!(self,
            Op::Softmax => &norm::Softmax,
            Op::Add => &elementwise::Add,
            Op::Mul => &elementwise::Mul,
            Op::GlobalAvgPool => &pool::GlobalAvgPool,
            Op::Flatten => &layout::Flatten,
            Op::ToTokens => &layout::ToTokens,
        )
    }

    /// The same, to be changed; `None` for ops that have nothing to change.
    pub fn facts_mut(&mut self) -> Option<&mut dyn Facts> {
        Some(facts!(self,
            Op::Softmax | Op::Add | Op::Mul | Op::GlobalAvgPool | Op::Flatten | Op::ToTokens => return None,
        ))
    }

    pub fn traits(&self) -> Traits {
        self.facts().traits()
    }

    /// A convolution or a linear layer: what has a weight matrix, so that its precision and its zeros can be chosen.
    pub fn is_conv_or_linear(&self) -> bool {
        self.facts().widths().is_some()
    }

    /// Attention whose keys and values are kept while tokens are decoded: in what is a choice as well.
    pub fn caches(&self) -> bool {
        matches!(self, Op::Attention(a) if a.causal && !a.fused && a.windows.is_none())
    }

    /// Something of it has a precision that can be chosen: a weight, or what is kept of earlier tokens.
    pub fn has_precision(&self) -> bool {
        self.is_conv_or_linear() || self.caches()
    }

    /// Attention over all tokens, without a position bias.
    pub fn attention(heads: usize, qk_dim: usize, v_dim: usize, fused: bool, scale: f64) -> Op {
        Op::Attention(Attention::plain(heads, qk_dim, v_dim, fused, scale))
    }
}

/// A few words for people: `conv 3x3/2`, `linear`, `attention 8h`.
pub fn describe(op: &Op) -> String {
    op.facts().describe().unwrap_or_else(|| op.traits().kind.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_survive_json_bit_for_bit() {
        for head in 1..200usize {
            let scale = 1.0 / (head as f64).sqrt();
            let op = Op::attention(1, head, head, true, scale);
            let back: Op = serde_json::from_str(&serde_json::to_string(&op).unwrap()).unwrap();
            assert_eq!(op, back);
        }
        assert!(serde_json::from_str::<Op>(r#"{"kind":"layer_norm","dim":4,"eps":"inf"}"#).is_err());
    }

    #[test]
    fn older_files_have_padding_the_same_on_both_sides() {
        let text = r#"{"kind":"max_pool2d","kernel":[3,3],"stride":[2,2],"padding":[1,2]}"#;
        let want = Op::MaxPool2d(MaxPool2d { kernel: [3, 3], stride: [2, 2], padding: [1, 2, 1, 2] });
        assert_eq!(serde_json::from_str::<Op>(text).unwrap(), want);
        assert_eq!(serde_json::from_str::<Op>(&serde_json::to_string(&want).unwrap()).unwrap(), want);
        let text = r#"{"kind":"attention","heads":1,"qk_dim":2,"v_dim":2,"fused":true,"scale":"1"}"#;
        assert_eq!(serde_json::from_str::<Op>(text).unwrap(), Op::attention(1, 2, 2, true, 1.0));
    }

    #[test]
    fn descriptions_name_what_matters() {
        let conv = |groups, stride| {
            Op::Conv2d(Conv2d { in_ch: 8, out_ch: 8, kernel: [3, 3], stride, padding: [1; 4], groups, bias: false })
        };
        for (op, want) in [
            (conv(1, [1, 1]), "conv 3x3"),
            (conv(1, [2, 2]), "conv 3x3/2"),
            (conv(8, [2, 1]), "depthwise conv 3x3/2x1"),
            (conv(4, [1, 1]), "conv g4 3x3"),
            (Op::attention(6, 64, 64, true, 0.125), "attention 6h"),
        ] {
            assert_eq!(describe(&op), want);
        }
    }
}
