//! Which precision each node is stored and computed in. The graph itself stays float.
//!
//! Nothing here touches a tensor: formats, their sizes, and what runs as a kernel of its own. How values are rounded is
//! in `model`, how they are multiplied in `exec`.

use super::ggml::Block;
use super::{Op, ParamRole, Range, param_shapes};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What the weights of a conv or linear node are stored in, and what it computes in. Menus list them in this order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    #[default]
    F32,
    /// Dynamic int8: activations quantized at run time with one scale a row (linear) or image (convolution), weights
    /// symmetric per output channel, i32 accumulation.
    Int8,
    /// As [`Precision::Int8`], but with one fixed scale and zero point for the whole input tensor of the layer, from a range
    /// that the plan holds.
    Int8Static,
    /// Weight-only 8 bit, symmetric per output channel.
    W8,
    /// Weight-only 4 bit, symmetric per output channel.
    W4,
    /// Weight-only 4 bit with one scale for every 128 (64, 32) weights along a row.
    W4g128,
    W4g64,
    W4g32,
    F16,
    Bf16,
    /// 8-bit floats (E4M3): weights with one scale an output channel, activations quantized at run time with one scale a row
    /// (linear) or image (convolution); summed in f32.
    Fp8,
    /// Weights that are one of sixteen (eight, four) values of their layer each, found by k-means.
    Lut4,
    Lut3,
    Lut2,
    /// Weights in one of GGML's formats, which llama.cpp computes with; rows must be whole blocks.
    #[serde(untagged)]
    Block(Block),
}

/// How a layer's weights lie in a file and in memory. Biases and norms stay f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WeightFormat {
    F32,
    F16,
    Bf16,
    /// One byte a weight, one f32 scale a row (output channel).
    Int8,
    /// One byte a weight (E4M3), one f32 scale a row.
    Fp8,
    /// Two weights a byte, rows begin on a byte; one f32 scale a row, or one for every `group` weights of it.
    Int4 {
        group: Option<usize>,
    },
    /// `bits` bits a weight, rows begin on a byte; 2^bits f32 values, one of which each weight is.
    Codebook {
        bits: u8,
    },
    /// GGML's blocks, scales in them.
    Block(Block),
}

/// Whether what is computed is what is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// A kernel multiplies the stored numbers.
    Real,
    /// Stored and exported so, with the accuracy that follows; multiplied by the f32 kernels after unpacking. A GPU may have a
    /// kernel where this is said.
    Simulated,
}

/// Of ours, and those in which weights share values.
const ANYWHERE: usize = Precision::ALL.len() + Precision::SHARED.len();

/// Every precision, GGML's formats last.
static EVERY: [Precision; 26] = {
    let mut every = [Precision::F32; 26];
    let (mut i, ours) = (0, Precision::ALL.len());
    while i < every.len() {
        every[i] = if i < ours {
            Precision::ALL[i]
        } else if i < ANYWHERE {
            Precision::SHARED[i - ours]
        } else {
            Precision::Block(Block::ALL[i - ANYWHERE])
        };
        i += 1;
    }
    every
};

impl Precision {
    /// Those that any layer can have. Those of shared values and GGML's formats are besides: see [`Precision::menu`].
    pub const ALL: [Precision; 11] = [
        Precision::F32,
        Precision::Int8,
        Precision::Int8Static,
        Precision::W8,
        Precision::W4,
        Precision::W4g128,
        Precision::W4g64,
        Precision::W4g32,
        Precision::F16,
        Precision::Bf16,
        Precision::Fp8,
    ];

    /// Those in which a layer's weights share a few values. No kernel multiplies them: they are unpacked everywhere.
    pub const SHARED: [Precision; 3] = [Precision::Lut4, Precision::Lut3, Precision::Lut2];

    /// What people choose from: GGML's formats too for a language model, which may go to llama.cpp. By name all can be had anywhere.
    pub fn menu(language: bool) -> &'static [Precision] {
        if language { &EVERY } else { &EVERY[..ANYWHERE] }
    }

    /// Its name, what [`Precision::describe`] says of it, and how the weights are stored.
    fn facts(self) -> (&'static str, &'static str, WeightFormat) {
        use WeightFormat::{Bf16, Codebook, F16, F32, Fp8, Int4, Int8};
        let grouped = |group| Int4 { group: Some(group) };
        match self {
            Precision::F32 => ("f32", "32-bit floats", F32),
            Precision::Int8 => ("int8", "8-bit weights a channel, activations to 8 bits as they come", Int8),
            Precision::Int8Static => {
                ("int8-static", "8-bit weights a channel, activations to 8 bits over a calibrated range", Int8)
            }
            Precision::W8 => ("w8", "8-bit weights a channel, computed in f32", Int8),
            Precision::W4 => ("w4", "4-bit weights a channel, computed in f32", Int4 { group: None }),
            Precision::W4g128 => ("w4g128", "4-bit weights in groups of 128, computed in f32", grouped(128)),
            Precision::W4g64 => ("w4g64", "4-bit weights in groups of 64, computed in f32", grouped(64)),
            Precision::W4g32 => ("w4g32", "4-bit weights in groups of 32, computed in f32", grouped(32)),
            Precision::F16 => ("f16", "16-bit floats, computed in f32 on a CPU", F16),
            Precision::Bf16 => ("bf16", "bfloat16, computed in f32 on a CPU", Bf16),
            Precision::Fp8 => ("fp8", "8-bit floats (E4M3), activations too, summed in f32", Fp8),
            Precision::Lut4 => ("lut4", "4 bits: one of 16 values of the layer (k-means)", Codebook { bits: 4 }),
            Precision::Lut3 => ("lut3", "3 bits: one of 8 values of the layer (k-means)", Codebook { bits: 3 }),
            Precision::Lut2 => ("lut2", "2 bits: one of 4 values of the layer (k-means)", Codebook { bits: 2 }),
            Precision::Block(block) => {
                let (label, about) = of_block(block);
                (label, about, WeightFormat::Block(block))
            }
        }
    }

    pub fn label(self) -> &'static str {
        self.facts().0
    }

    /// One line on what is stored and what is computed, for people.
    pub fn describe(self) -> &'static str {
        self.facts().1
    }

    /// The precision that people and other programs call `name`, in any case.
    pub fn parse(name: &str) -> Option<Precision> {
        let name = name.trim().to_ascii_lowercase().replace('_', "-");
        let known = EVERY.iter().copied().find(|p| p.label().replace('_', "-") == name);
        known.or(match name.as_str() {
            "fp32" | "float32" | "float" => Some(Precision::F32),
            "static" | "static-int8" | "int8s" => Some(Precision::Int8Static),
            "i8" | "w8a8" | "int8-dynamic" | "dynamic-int8" => Some(Precision::Int8),
            "w8a16" | "int8-weight-only" | "weight-only-int8" => Some(Precision::W8),
            "int4" | "i4" | "w4a16" | "int4-weight-only" | "weight-only-int4" => Some(Precision::W4),
            "fp16" | "float16" | "half" => Some(Precision::F16),
            "bfloat16" => Some(Precision::Bf16),
            "codebook4" | "kmeans4" | "palette4" => Some(Precision::Lut4),
            "codebook3" | "kmeans3" | "palette3" => Some(Precision::Lut3),
            "codebook2" | "kmeans2" | "palette2" => Some(Precision::Lut2),
            "f8" | "float8" | "e4m3" | "fp8-e4m3" | "f8e4m3" => Some(Precision::Fp8),
            _ => None,
        })
    }

    /// How the weights are stored.
    pub fn weights(self) -> WeightFormat {
        self.facts().2
    }

    /// Is there something to choose when weights are rounded to it?
    pub fn is_learnt(self) -> bool {
        let floats = [WeightFormat::F32, WeightFormat::F16, WeightFormat::Bf16, WeightFormat::Fp8];
        self != Precision::Block(Block::Q8_0) && !floats.contains(&self.weights())
    }

    /// What the CPU does with it.
    pub fn runs(self) -> Runs {
        match self {
            Precision::F32 | Precision::Int8 | Precision::Int8Static => Runs::Real,
            Precision::W8
            | Precision::W4
            | Precision::W4g128
            | Precision::W4g64
            | Precision::W4g32
            | Precision::F16
            | Precision::Bf16
            | Precision::Fp8
            | Precision::Lut4
            | Precision::Lut3
            | Precision::Lut2
            | Precision::Block(_) => Runs::Simulated,
        }
    }

    /// The precision whose kernel runs it where it has none of its own.
    pub fn timed_as(self) -> Precision {
        if self.int8_products() { Precision::Int8 } else { Precision::F32 }
    }

    /// A precision that rounds the same weights more coarsely, so that its loss, where only that was measured, bounds this
    /// one's.
    pub fn bounded_by(self) -> Option<Precision> {
        match self {
            // What 8-bit floats do to activations no other one's loss tells.
            Precision::F32 | Precision::Int8 | Precision::Int8Static | Precision::W4 | Precision::Fp8 => None,
            // One table for all rows may be finer than a scale a row, and coarser.
            Precision::Lut4 | Precision::Lut3 | Precision::Lut2 => None,
            Precision::W8 | Precision::F16 | Precision::Bf16 => Some(Precision::Int8),
            Precision::W4g128 | Precision::W4g64 | Precision::W4g32 => Some(Precision::W4),
            Precision::Block(block) => match block {
                Block::Q8_0 => Some(Precision::Int8),
                Block::Q4_0 | Block::Q4_1 | Block::Q5_0 | Block::Q5_1 | Block::Q4_K | Block::Q5_K | Block::Q6_K => {
                    Some(Precision::W4)
                }
                Block::IQ4_NL | Block::IQ4_XS => Some(Precision::W4),
                Block::Q2_K | Block::Q3_K => None,
            },
        }
    }

    /// Only the weights are rounded, to our own codes of 8 or 4 bits; what they are multiplied with stays f32.
    pub fn weight_only(self) -> bool {
        match self {
            Precision::W8 | Precision::W4 | Precision::W4g128 | Precision::W4g64 | Precision::W4g32 => true,
            Precision::F32 | Precision::Int8 | Precision::Int8Static => false,
            Precision::F16 | Precision::Bf16 | Precision::Fp8 | Precision::Block(_) => false,
            Precision::Lut4 | Precision::Lut3 | Precision::Lut2 => false,
        }
    }

    /// Why the weight of `op`, or the keys and values that it keeps, cannot be stored so, in words with a hint; `None` where it can.
    pub fn unfit(self, op: &Op) -> Option<String> {
        if op.caches() && ![Precision::F32, Precision::F16, Precision::Int8].contains(&self) {
            return Some(format!("keys and values are not kept in {}; hint: f32, f16 or int8", self.label()));
        }
        let (Precision::Block(block), Some(row)) = (self, row_of(op)) else { return None };
        if row.is_multiple_of(block.values()) {
            return None;
        }
        let (label, values) = (self.label(), block.values());
        let instead = self.instead(op).label();
        Some(format!(
            "its rows of {row} values are no whole blocks of {values}, which {label} needs; hint: {instead} can be had"
        ))
    }

    /// This precision, or what llama.cpp falls back to where rows are no whole blocks: the format of blocks of 32 that comes
    /// next, then f16. (`llama_tensor_get_type` in llama.cpp's `llama-quant.cpp`.)
    pub fn instead(self, op: &Op) -> Precision {
        let (Precision::Block(block), Some(row)) = (self, row_of(op)) else { return self };
        let next = match block {
            _ if row.is_multiple_of(block.values()) => block,
            Block::Q2_K | Block::Q3_K | Block::IQ4_XS => Block::IQ4_NL,
            Block::Q4_K => Block::Q5_0,
            Block::Q5_K => Block::Q5_1,
            Block::Q6_K => Block::Q8_0,
            Block::Q4_0 | Block::Q4_1 | Block::Q5_0 | Block::Q5_1 | Block::Q8_0 | Block::IQ4_NL => block,
        };
        if row.is_multiple_of(next.values()) { Precision::Block(next) } else { Precision::F16 }
    }

    /// This precision, or for weights with zeros that are to stay the one with a zero that comes next in size.
    pub fn with_zero(self) -> Precision {
        match self {
            Precision::Block(block) => Precision::Block(block.with_zero()),
            other => other,
        }
    }

    /// Products are of 8-bit integers; otherwise of f32.
    pub fn int8_products(self) -> bool {
        matches!(self, Precision::Int8 | Precision::Int8Static)
    }
}

/// The name of one of GGML's formats, and a line on it.
fn of_block(block: Block) -> (&'static str, &'static str) {
    match block {
        Block::Q4_0 => ("q4_0", "llama.cpp's: 4 bits, a scale for 32 weights"),
        Block::Q4_1 => ("q4_1", "llama.cpp's: 4 bits, a scale and a minimum for 32 weights"),
        Block::Q5_0 => ("q5_0", "llama.cpp's: 5 bits, a scale for 32 weights"),
        Block::Q5_1 => ("q5_1", "llama.cpp's: 5 bits, a scale and a minimum for 32 weights"),
        Block::Q8_0 => ("q8_0", "llama.cpp's: 8 bits, a scale for 32 weights"),
        Block::Q2_K => ("q2_k", "llama.cpp's: 2 bits in blocks of 256 (2.6 with scales)"),
        Block::Q3_K => ("q3_k", "llama.cpp's: 3 bits in blocks of 256 (3.4 with scales)"),
        Block::Q4_K => ("q4_k", "llama.cpp's: 4 bits in blocks of 256 (4.5 with scales)"),
        Block::Q5_K => ("q5_k", "llama.cpp's: 5 bits in blocks of 256 (5.5 with scales)"),
        Block::Q6_K => ("q6_k", "llama.cpp's: 6 bits in blocks of 256 (6.6 with scales)"),
        Block::IQ4_NL => ("iq4_nl", "llama.cpp's: 4 unevenly spaced bits, a scale for 32 weights"),
        Block::IQ4_XS => ("iq4_xs", "llama.cpp's: 4 unevenly spaced bits in blocks of 256"),
    }
}

/// Weights of a row of a layer's weight.
fn row_of(op: &Op) -> Option<usize> {
    let weight = param_shapes(op).into_iter().find(|(role, _)| *role == ParamRole::Weight)?.1;
    Some(weight.get(1..)?.iter().product())
}

impl WeightFormat {
    /// Scales of a row of `cols` weights.
    pub fn scales(self, cols: usize) -> usize {
        match self {
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16 | WeightFormat::Block(_) => 0,
            WeightFormat::Codebook { .. } => 0,
            WeightFormat::Int8 | WeightFormat::Fp8 | WeightFormat::Int4 { group: None } => 1,
            WeightFormat::Int4 { group: Some(g) } => cols.div_ceil(g.max(1)),
        }
    }

    /// Bytes of a row of `cols` weights, scales left out.
    pub fn row_bytes(self, cols: usize) -> usize {
        match self {
            WeightFormat::F32 => 4 * cols,
            WeightFormat::F16 | WeightFormat::Bf16 => 2 * cols,
            WeightFormat::Int8 | WeightFormat::Fp8 => cols,
            WeightFormat::Int4 { .. } => cols.div_ceil(2),
            WeightFormat::Codebook { bits } => (cols * usize::from(bits)).div_ceil(8),
            WeightFormat::Block(block) => cols.div_ceil(block.values()) * block.size(),
        }
    }

    /// Bytes of `rows` rows of `cols` weights with their scales, or the values that they share.
    pub fn bytes(self, rows: usize, cols: usize) -> u64 {
        let shared = if let WeightFormat::Codebook { bits } = self { 4 << bits } else { 0 };
        rows as u64 * (self.row_bytes(cols) + 4 * self.scales(cols)) as u64 + shared
    }
}

/// Per-node precision by node name; absent means f32.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Precisions {
    pub nodes: BTreeMap<String, Precision>,
    /// What the inputs of static int8 layers range over, by the layer's name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub inputs: BTreeMap<String, Range>,
}

impl Precisions {
    pub fn get(&self, node: &str) -> Precision {
        self.nodes.get(node).copied().unwrap_or_default()
    }

    pub fn set(&mut self, node: impl Into<String>, precision: Precision) {
        let node = node.into();
        if precision != Precision::Int8Static {
            self.inputs.remove(&node);
        }
        self.nodes.insert(node, precision);
    }
}

/// These nodes, without ranges; all others in f32.
impl<S: Into<String>> FromIterator<(S, Precision)> for Precisions {
    fn from_iter<I: IntoIterator<Item = (S, Precision)>>(nodes: I) -> Precisions {
        let nodes = nodes.into_iter().map(|(name, precision)| (name.into(), precision)).collect();
        Precisions { nodes, inputs: BTreeMap::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_precision_is_found_by_its_label_and_by_its_name_in_json() {
        for p in Precision::menu(true).iter().copied() {
            assert_eq!(Precision::parse(&p.label().to_uppercase()), Some(p));
            let json = serde_json::to_string(&p).unwrap();
            assert_eq!(serde_json::from_str::<Precision>(&json).unwrap(), p);
            assert!([Precision::F32, Precision::Int8].contains(&p.timed_as()));
            assert!(p.runs() == Runs::Simulated || p.int8_products() || p.timed_as() == p);
        }
        // Journals and files of earlier versions have these.
        for (name, p) in [("f32", Precision::F32), ("int8", Precision::Int8)] {
            assert_eq!(serde_json::from_str::<Precision>(&format!("\"{name}\"")).unwrap(), p);
        }
        assert_eq!(Precision::parse("w5"), None);
        assert_eq!(Precision::parse("Q4-K"), Some(Precision::Block(Block::Q4_K)));
        let anywhere = Precision::menu(false);
        assert_eq!((&anywhere[..11], &anywhere[11..]), (&Precision::ALL[..], &Precision::SHARED[..]));
        assert_eq!(Precision::menu(true).len(), 26);
    }

    #[test]
    fn rows_that_are_no_whole_blocks_get_what_llama_cpp_gives_them() {
        let linear = |n| Op::Linear(crate::graph::op::Linear { in_features: n, out_features: 3, bias: false });
        let instead = |block, n| Precision::Block(block).instead(&linear(n)).label();
        for (block, next) in
            [(Block::Q2_K, "iq4_nl"), (Block::Q4_K, "q5_0"), (Block::Q5_K, "q5_1"), (Block::Q6_K, "q8_0")]
        {
            assert_eq!(instead(block, 512), Precision::Block(block).label());
            assert_eq!((instead(block, 96), instead(block, 33)), (next, "f16"));
            let why = Precision::Block(block).unfit(&linear(96)).unwrap();
            assert!(
                why.contains("96") && why.contains("256") && why.ends_with(&format!("hint: {next} can be had")),
                "{why}"
            );
        }
        assert_eq!((instead(Block::Q8_0, 96), instead(Block::Q8_0, 40)), ("q8_0", "f16"));
        assert_eq!(
            (Precision::W4g32.unfit(&linear(33)), Precision::W4g32.instead(&linear(33))),
            (None, Precision::W4g32)
        );
    }

    #[test]
    fn sizes_count_scales_and_odd_rows() {
        let of = |p: Precision| p.weights().bytes(10, 33);
        assert_eq!(of(Precision::F32), 10 * 33 * 4);
        assert_eq!(of(Precision::F16), 10 * 33 * 2);
        assert_eq!((of(Precision::Int8), of(Precision::Fp8)), (10 * (33 + 4), 10 * (33 + 4)));
        assert_eq!(of(Precision::W4), 10 * (17 + 4));
        assert_eq!(of(Precision::W4g32), 10 * (17 + 8));
        assert_eq!(of(Precision::W4g128), 10 * (17 + 4));
        assert_eq!((of(Precision::Lut4), of(Precision::Lut3)), (10 * 17 + 64, 10 * 13 + 32));
        assert_eq!(Precision::Block(Block::Q4_K).weights().bytes(10, 512), 10 * 2 * 144);
    }
}
