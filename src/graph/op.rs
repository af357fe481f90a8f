//! The closed set of layer-sized operations. Match it without a wildcard: a new op must not compile until
//! shape, axis links, cost, execution and export exist for it.

use super::window::{PositionBias, Windows};
use serde::{Deserialize, Serialize};

/// Elementwise activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// Exact GELU, `x/2 (1 + erf(x/√2))`.
    GeluErf,
    /// The tanh approximation of GELU.
    GeluTanh,
    /// `x · sigmoid(x)`, also called swish.
    Silu,
    Sigmoid,
    /// `relu6(x + 3) / 6`.
    HardSigmoid,
    /// `x · relu6(x + 3) / 6` (Howard et al. 2019).
    HardSwish,
    Tanh,
}

impl Activation {
    pub const ALL: [Activation; 9] = [
        Activation::Relu,
        Activation::Relu6,
        Activation::GeluErf,
        Activation::GeluTanh,
        Activation::Silu,
        Activation::Sigmoid,
        Activation::HardSigmoid,
        Activation::HardSwish,
        Activation::Tanh,
    ];

    pub fn label(self) -> &'static str {
        match self {
            Activation::Relu => "relu",
            Activation::Relu6 => "relu6",
            Activation::GeluErf => "gelu",
            Activation::GeluTanh => "gelu tanh",
            Activation::Silu => "silu",
            Activation::Sigmoid => "sigmoid",
            Activation::HardSigmoid => "hard sigmoid",
            Activation::HardSwish => "hard swish",
            Activation::Tanh => "tanh",
        }
    }
}

/// What a parameter tensor is to its node; shapes are PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParamRole {
    /// Conv `[out, in/groups, kh, kw]`, linear `[out, in]`, norm scale `[c]`.
    Weight,
    /// `[out]` or `[c]`.
    Bias,
    /// Batch-norm running mean `[c]`.
    Mean,
    /// Batch-norm running variance `[c]`.
    Var,
    /// Learned tokens `[1, count, dim]` or learned positions `[1, tokens, dim]`.
    Embedding,
    /// An attention core's position bias: a table `[(2h-1)·(2w-1), heads]` over relative positions, or `[heads, n, n]`.
    PositionBias,
    /// Cosine attention's logarithmic factor per head, `[heads, 1, 1]`.
    LogitScale,
    /// First layer of the network that makes a continuous position bias, `[hidden, 2]`, and its bias `[hidden]`.
    PositionMlp1,
    PositionMlp1Bias,
    /// Its second layer, `[heads, hidden]`.
    PositionMlp2,
}

/// Floats as decimal text. `serde_json` reads numbers to within an ulp only, and a graph that comes back from a file
/// must be the very same graph.
mod exact {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(v: &f64, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(&format_args!("{v:e}"))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<f64, D::Error> {
        let text = String::deserialize(d)?;
        text.parse().ok().filter(|v: &f64| v.is_finite()).ok_or_else(|| D::Error::custom("expected a number as text"))
    }
}

/// Padding as `[top, left, bottom, right]`; two numbers mean the same on both sides.
fn sides<'de, D: serde::Deserializer<'de>>(d: D) -> Result<[usize; 4], D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Sides {
        Four([usize; 4]),
        Two([usize; 2]),
    }
    Ok(match Sides::deserialize(d)? {
        Sides::Four(p) => p,
        Sides::Two([y, x]) => [y, x, y, x],
    })
}

/// The axis that carries channels or width in a shape without the batch axis: the first of an image `[c, h, w]`, the
/// last of tokens `[t, d]` and vectors `[d]`.
pub fn channel_axis(shape: &[usize]) -> usize {
    if shape.len() == 3 { 0 } else { shape.len().saturating_sub(1) }
}

/// Layer-sized operations. "Channels" are those of [`channel_axis`]. Shapes below leave out the batch axis, which is always first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Op {
    /// The image, `[c, h, w]`.
    Input {
        shape: Vec<usize>,
    },
    /// `[in_ch, h, w]` → `[out_ch, h', w']`.
    Conv2d {
        in_ch: usize,
        out_ch: usize,
        kernel: [usize; 2],
        stride: [usize; 2],
        /// `[top, left, bottom, right]`.
        #[serde(deserialize_with = "sides")]
        padding: [usize; 4],
        groups: usize,
        bias: bool,
    },
    /// Over the last axis: `[.., in]` → `[.., out]`.
    Linear {
        in_features: usize,
        out_features: usize,
        bias: bool,
    },
    /// Inference batch norm per channel, of images, tokens or vectors.
    BatchNorm2d {
        channels: usize,
        #[serde(with = "exact")]
        eps: f64,
    },
    /// Over the channels (of an image: at every pixel).
    LayerNorm {
        dim: usize,
        #[serde(with = "exact")]
        eps: f64,
    },
    /// `x / sqrt(mean(x²) + eps) · w` over the channels (Zhang and Sennrich 2019).
    RmsNorm {
        dim: usize,
        #[serde(with = "exact")]
        eps: f64,
    },
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
    /// A learned factor per channel (layer scale; Touvron et al. 2021).
    Scale {
        channels: usize,
    },
    /// `x · mul + add`.
    Scalar {
        #[serde(with = "exact")]
        mul: f64,
        #[serde(with = "exact")]
        add: f64,
    },
    MaxPool2d {
        kernel: [usize; 2],
        stride: [usize; 2],
        /// `[top, left, bottom, right]`.
        #[serde(deserialize_with = "sides")]
        padding: [usize; 4],
    },
    /// Mean over windows; padding counts as zeros, or not at all.
    AvgPool2d {
        kernel: [usize; 2],
        stride: [usize; 2],
        /// `[top, left, bottom, right]`.
        #[serde(deserialize_with = "sides")]
        padding: [usize; 4],
        count_padding: bool,
    },
    /// Mean over `out[0] x out[1]` nearly equal cells: cell `i` of `n` over a side of `len` is
    /// `⌊i·len/n⌋ .. ⌈(i+1)·len/n⌉`, as PyTorch has it.
    AdaptiveAvgPool2d {
        out: [usize; 2],
    },
    /// `[c, h, w]` → `[c]`.
    GlobalAvgPool,
    /// Takes every `stride`-th row and column of an image (1 for tokens and vectors), then output channel `j` is input
    /// channel `map[j]` or zero: He et al.'s option-A shortcut, slices and shuffles of channels. `in_ch` is the number
    /// of input channels.
    ChannelPad {
        stride: usize,
        in_ch: usize,
        map: Vec<Option<u32>>,
    },
    /// One after the other along the channels; everything else equal.
    Concat {
        inputs: usize,
    },
    /// `[c, h, w]` → `[c·h·w]`, channel by channel.
    Flatten,
    /// `[c, h, w]` → `[h·w, c]`.
    ToTokens,
    /// `[h·w, c]` → `[c, h, w]`.
    ToImage {
        h: usize,
        w: usize,
    },
    /// Swin's patch merging without its norm and projection: the tokens of every 2x2 cell of a grid beside each other,
    /// `[h·w, d]` → `[h/2·w/2, 4·d]`, in the order (0,0), (1,0), (0,1), (1,1) of (row, column).
    PatchMerge {
        grid: [usize; 2],
    },
    /// Learned tokens put before token `at`: `[t, d]` → `[count + t, d]`.
    PrependTokens {
        count: usize,
        dim: usize,
        #[serde(default)]
        at: usize,
    },
    /// Adds learned positions `[tokens, dim]`.
    AddPositions {
        tokens: usize,
        dim: usize,
    },
    /// Softmax attention without its projections. With `fused`, one input `[t, heads·(2·qk_dim + v_dim)]` laid out
    /// q, k, v (each head-major); otherwise three inputs `[t, heads·qk_dim]`, `[t, heads·qk_dim]`, `[t, heads·v_dim]`.
    /// Output `[t, heads·v_dim]`. `scale` multiplies q·kᵀ. With `cosine`, q and k are brought to length 1 per head
    /// first and `exp(min(logit scale, ln 100))` multiplies as well (Swin v2, Liu et al. 2022).
    Attention {
        heads: usize,
        qk_dim: usize,
        v_dim: usize,
        fused: bool,
        #[serde(with = "exact")]
        scale: f64,
        #[serde(default)]
        cosine: bool,
        #[serde(default)]
        windows: Option<Windows>,
        #[serde(default)]
        bias: PositionBias,
    },
    /// `[t, d]` → `[d]`.
    SelectToken {
        index: usize,
    },
    /// Mean over tokens from `skip` on: `[t, d]` → `[d]`.
    MeanTokens {
        skip: usize,
    },
}

impl Op {
    /// A convolution or a linear layer: what has a weight matrix, so that its precision and its zeros can be chosen.
    pub fn is_conv_or_linear(&self) -> bool {
        matches!(self, Op::Conv2d { .. } | Op::Linear { .. })
    }

    /// Attention over all tokens, without a position bias.
    pub fn attention(heads: usize, qk_dim: usize, v_dim: usize, fused: bool, scale: f64) -> Op {
        let (cosine, windows, bias) = (false, None, PositionBias::None);
        Op::Attention { heads, qk_dim, v_dim, fused, scale, cosine, windows, bias }
    }
}

/// A few words for people: `conv 3x3/2`, `linear`, `attention 8h`.
pub fn describe(op: &Op) -> String {
    match op {
        Op::Input { .. } => "input".into(),
        Op::Conv2d { in_ch, out_ch, kernel: [h, w], stride, groups, .. } => {
            let kind = match *groups {
                1 => "conv".to_owned(),
                g if g == *in_ch && g == *out_ch => "depthwise conv".to_owned(),
                g => format!("conv g{g}"),
            };
            let step = match stride {
                [1, 1] => String::new(),
                [a, b] if a == b => format!("/{a}"),
                [a, b] => format!("/{a}x{b}"),
            };
            format!("{kind} {h}x{w}{step}")
        }
        Op::Linear { .. } => "linear".into(),
        Op::BatchNorm2d { .. } => "batchnorm".into(),
        Op::LayerNorm { .. } => "layernorm".into(),
        Op::RmsNorm { .. } => "rmsnorm".into(),
        Op::Activation { act } => act.label().into(),
        Op::Softmax => "softmax".into(),
        Op::Add => "add".into(),
        Op::Mul => "multiply".into(),
        Op::Scale { .. } => "layer scale".into(),
        Op::Scalar { .. } => "scalar".into(),
        Op::MaxPool2d { kernel: [h, w], .. } => format!("maxpool {h}x{w}"),
        Op::AvgPool2d { kernel: [h, w], .. } => format!("avgpool {h}x{w}"),
        Op::AdaptiveAvgPool2d { out: [h, w] } => format!("avgpool to {h}x{w}"),
        Op::GlobalAvgPool => "avgpool".into(),
        Op::ChannelPad { stride: 1, .. } => "channel map".into(),
        Op::ChannelPad { stride, .. } => format!("shortcut pad /{stride}"),
        Op::Concat { .. } => "concat".into(),
        Op::Flatten => "flatten".into(),
        Op::ToTokens => "to tokens".into(),
        Op::ToImage { .. } => "to image".into(),
        Op::PatchMerge { .. } => "patch merge".into(),
        Op::PrependTokens { count, .. } => format!("tokens +{count}"),
        Op::AddPositions { .. } => "positions".into(),
        Op::Attention { heads, windows: None, .. } => format!("attention {heads}h"),
        Op::Attention { heads, windows: Some(w), .. } => {
            let shifted = if w.shift == [0, 0] { "" } else { " shifted" };
            format!("attention {heads}h {}x{}{shifted}", w.size[0], w.size[1])
        }
        Op::SelectToken { index } => format!("token {index}"),
        Op::MeanTokens { .. } => "mean tokens".into(),
    }
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
        let want = Op::MaxPool2d { kernel: [3, 3], stride: [2, 2], padding: [1, 2, 1, 2] };
        assert_eq!(serde_json::from_str::<Op>(text).unwrap(), want);
        assert_eq!(serde_json::from_str::<Op>(&serde_json::to_string(&want).unwrap()).unwrap(), want);
        let text = r#"{"kind":"attention","heads":1,"qk_dim":2,"v_dim":2,"fused":true,"scale":"1"}"#;
        assert_eq!(serde_json::from_str::<Op>(text).unwrap(), Op::attention(1, 2, 2, true, 1.0));
    }

    #[test]
    fn descriptions_name_what_matters() {
        let conv = |groups, stride| Op::Conv2d {
            in_ch: 8,
            out_ch: 8,
            kernel: [3, 3],
            stride,
            padding: [1; 4],
            groups,
            bias: false,
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
