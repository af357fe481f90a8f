//! The closed set of layer-sized operations. Match it without a wildcard: a new op must not compile until
//! shape, axis links, cost, execution and export exist for it.

use serde::{Deserialize, Serialize};

/// Elementwise activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    Relu,
    /// Exact GELU, `x/2 (1 + erf(x/√2))`.
    GeluErf,
    /// The tanh approximation of GELU.
    GeluTanh,
    Silu,
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

/// Layer-sized operations. Shapes below leave out the batch axis, which is always first.
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
        padding: [usize; 2],
        groups: usize,
        bias: bool,
    },
    /// Over the last axis: `[.., in]` → `[.., out]`.
    Linear {
        in_features: usize,
        out_features: usize,
        bias: bool,
    },
    /// Inference batch norm over axis 0 of `[c, h, w]`.
    BatchNorm2d {
        channels: usize,
        #[serde(with = "exact")]
        eps: f64,
    },
    /// Over the last axis.
    LayerNorm {
        dim: usize,
        #[serde(with = "exact")]
        eps: f64,
    },
    Activation {
        act: Activation,
    },
    /// Elementwise sum of two equal shapes.
    Add,
    MaxPool2d {
        kernel: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
    },
    /// `[c, h, w]` → `[c]`.
    GlobalAvgPool,
    /// He et al.'s option-A shortcut: takes every `stride`-th row and column, then output channel `j` is input
    /// channel `map[j]` or zero. `in_ch` is the number of input channels.
    ChannelPad {
        stride: usize,
        in_ch: usize,
        map: Vec<Option<u32>>,
    },
    /// `[c, h, w]` → `[h·w, c]`.
    ToTokens,
    /// Learned tokens put before the sequence: `[t, d]` → `[count + t, d]`.
    PrependTokens {
        count: usize,
        dim: usize,
    },
    /// Adds learned positions `[tokens, dim]`.
    AddPositions {
        tokens: usize,
        dim: usize,
    },
    /// Softmax attention without its projections. With `fused`, one input `[t, heads·(2·qk_dim + v_dim)]` laid out
    /// q, k, v (each head-major); otherwise three inputs `[t, heads·qk_dim]`, `[t, heads·qk_dim]`, `[t, heads·v_dim]`.
    /// Output `[t, heads·v_dim]`. `scale` multiplies q·kᵀ.
    Attention {
        heads: usize,
        qk_dim: usize,
        v_dim: usize,
        fused: bool,
        #[serde(with = "exact")]
        scale: f64,
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
        Op::Activation { act } => match act {
            Activation::Relu => "relu".into(),
            Activation::GeluErf => "gelu".into(),
            Activation::GeluTanh => "gelu tanh".into(),
            Activation::Silu => "silu".into(),
        },
        Op::Add => "add".into(),
        Op::MaxPool2d { kernel: [h, w], .. } => format!("maxpool {h}x{w}"),
        Op::GlobalAvgPool => "avgpool".into(),
        Op::ChannelPad { stride, .. } => format!("shortcut pad /{stride}"),
        Op::ToTokens => "to tokens".into(),
        Op::PrependTokens { count, .. } => format!("tokens +{count}"),
        Op::AddPositions { .. } => "positions".into(),
        Op::Attention { heads, .. } => format!("attention {heads}h"),
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
            let op = Op::Attention { heads: 1, qk_dim: head, v_dim: head, fused: true, scale };
            let back: Op = serde_json::from_str(&serde_json::to_string(&op).unwrap()).unwrap();
            assert_eq!(op, back);
        }
        assert!(serde_json::from_str::<Op>(r#"{"kind":"layer_norm","dim":4,"eps":"inf"}"#).is_err());
    }

    #[test]
    fn descriptions_name_what_matters() {
        let conv = |groups, stride| Op::Conv2d {
            in_ch: 8,
            out_ch: 8,
            kernel: [3, 3],
            stride,
            padding: [1, 1],
            groups,
            bias: false,
        };
        for (op, want) in [
            (conv(1, [1, 1]), "conv 3x3"),
            (conv(1, [2, 2]), "conv 3x3/2"),
            (conv(8, [2, 1]), "depthwise conv 3x3/2x1"),
            (conv(4, [1, 1]), "conv g4 3x3"),
            (Op::Attention { heads: 6, qk_dim: 64, v_dim: 64, fused: true, scale: 0.125 }, "attention 6h"),
        ] {
            assert_eq!(describe(&op), want);
        }
    }
}
