//! What every op is called and what is true of it whatever its sizes: one row an op, side by side.
//!
//! Not here: what depends on an op's fields ([`super::Facts`]).

use super::Op;

/// What an op is called, and yes or no for whoever walks a graph. Every op says all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Traits {
    /// The op in messages: `conv2d`, `layer norm`.
    pub name: &'static str,
    /// One word to make a node's name of, where a file gives none: `conv`, `bn`.
    pub word: &'static str,
    /// What it is in lists, where its geometry does not matter.
    pub kind: &'static str,
    /// An engineer would name it as a layer of its own.
    pub layer: bool,
    /// Token `t` of its output depends on token `t` of its inputs alone.
    pub per_token: bool,
    /// Its output is of its first input's kind (image, tokens, vector), and channel `c` of it is made of channel `c`.
    pub per_channel: bool,
    /// It may run in half precision: a move, a maximum or elementwise, never a sum over many values.
    pub half: bool,
    /// It only moves values about.
    pub moves: bool,
}

/// Called so everywhere, and nothing else is true of it.
fn of(name: &'static str, word: &'static str) -> Traits {
    Traits { name, word, kind: name, layer: false, per_token: false, per_channel: false, half: false, moves: false }
}

impl Op {
    pub fn traits(&self) -> Traits {
        match self {
            Op::Input(_) => of("input", "input"),
            Op::Embedding(_) => Traits { layer: true, per_token: true, ..of("embedding", "embedding") },
            Op::Conv2d(_) => Traits { layer: true, ..of("conv2d", "conv") },
            Op::Linear(_) => Traits { layer: true, per_token: true, ..of("linear", "linear") },
            Op::BatchNorm2d(_) => {
                Traits { kind: "batchnorm", per_token: true, per_channel: true, ..of("batch norm", "bn") }
            }
            Op::LayerNorm(_) => Traits { kind: "layernorm", layer: true, per_token: true, ..of("layer norm", "norm") },
            Op::RmsNorm(_) => Traits { kind: "rmsnorm", layer: true, per_token: true, ..of("rms norm", "norm") },
            Op::Activation { act } => {
                let (kind, word) = act.words();
                Traits { kind, per_token: true, per_channel: true, half: true, ..of("activation", word) }
            }
            Op::Softmax => Traits { per_token: true, ..of("softmax", "softmax") },
            Op::Add => Traits { per_token: true, per_channel: true, half: true, ..of("add", "add") },
            // Not token by token: the second factor may be one row for all of them.
            Op::Mul => Traits { per_channel: true, half: true, ..of("multiply", "mul") },
            Op::Scale(_) => Traits { per_token: true, per_channel: true, ..of("layer scale", "scale") },
            Op::Scalar(_) => Traits { per_token: true, per_channel: true, ..of("scalar", "scalar") },
            Op::MaxPool2d(_) => Traits { per_channel: true, half: true, ..of("max pool", "maxpool") },
            Op::AvgPool2d(_) => Traits { per_channel: true, ..of("average pool", "avgpool") },
            Op::AdaptiveAvgPool2d(_) => Traits { per_channel: true, ..of("adaptive average pool", "avgpool") },
            // A vector comes of an image: not per channel in the sense of [`Traits::per_channel`].
            Op::GlobalAvgPool => Traits { kind: "avgpool", ..of("global average pool", "avgpool") },
            // Its zeros are made in f32.
            Op::ChannelPad(_) => Traits { moves: true, ..of("channel pad", "channels") },
            Op::Concat(_) => Traits { per_token: true, half: true, ..of("concat", "concat") },
            Op::Flatten => Traits { half: true, moves: true, ..of("flatten", "flatten") },
            Op::ToTokens => Traits { half: true, moves: true, ..of("to tokens", "tokens") },
            Op::ToImage(_) => Traits { half: true, moves: true, ..of("to image", "image") },
            Op::PatchMerge(_) => Traits { half: true, moves: true, ..of("patch merge", "merge") },
            Op::PrependTokens(_) => of("prepend tokens", "extra_tokens"),
            Op::AddPositions(_) => Traits { kind: "positions", ..of("add positions", "positions") },
            Op::Attention(_) => Traits { layer: true, ..of("attention", "attention_core") },
            Op::SelectToken(_) => Traits { moves: true, ..of("select token", "token") },
            Op::MeanTokens(_) => of("mean tokens", "mean_tokens"),
        }
    }
}
