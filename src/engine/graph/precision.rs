//! Which precision each node is stored and computed in. The graph itself stays float.
//!
//! Nothing here touches a tensor: formats, their sizes, and what runs as a kernel of its own. How values are rounded is
//! in `model`, how they are multiplied in `exec`.

use super::Range;
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

impl Precision {
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

    /// Its name, what [`Precision::describe`] says of it, and how the weights are stored.
    fn facts(self) -> (&'static str, &'static str, WeightFormat) {
        use WeightFormat::{Bf16, F16, F32, Fp8, Int4, Int8};
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
        let known = Precision::ALL.into_iter().find(|p| p.label() == name);
        known.or(match name.as_str() {
            "fp32" | "float32" | "float" => Some(Precision::F32),
            "static" | "static-int8" | "int8s" => Some(Precision::Int8Static),
            "i8" | "w8a8" | "int8-dynamic" | "dynamic-int8" => Some(Precision::Int8),
            "w8a16" | "int8-weight-only" | "weight-only-int8" => Some(Precision::W8),
            "int4" | "i4" | "w4a16" | "int4-weight-only" | "weight-only-int4" => Some(Precision::W4),
            "fp16" | "float16" | "half" => Some(Precision::F16),
            "bfloat16" => Some(Precision::Bf16),
            "f8" | "float8" | "e4m3" | "fp8-e4m3" | "f8e4m3" => Some(Precision::Fp8),
            _ => None,
        })
    }

    /// How the weights are stored.
    pub fn weights(self) -> WeightFormat {
        self.facts().2
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
            | Precision::Fp8 => Runs::Simulated,
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
            Precision::W8 | Precision::F16 | Precision::Bf16 => Some(Precision::Int8),
            Precision::W4g128 | Precision::W4g64 | Precision::W4g32 => Some(Precision::W4),
        }
    }

    /// Only the weights are rounded, to codes of 8 or 4 bits; what they are multiplied with stays f32.
    pub fn weight_only(self) -> bool {
        match self {
            Precision::W8 | Precision::W4 | Precision::W4g128 | Precision::W4g64 | Precision::W4g32 => true,
            Precision::F32 | Precision::Int8 | Precision::Int8Static => false,
            Precision::F16 | Precision::Bf16 | Precision::Fp8 => false,
        }
    }

    /// Products are of 8-bit integers; otherwise of f32.
    pub fn int8_products(self) -> bool {
        matches!(self, Precision::Int8 | Precision::Int8Static)
    }
}

impl WeightFormat {
    /// Scales of a row of `cols` weights.
    pub fn scales(self, cols: usize) -> usize {
        match self {
            WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16 => 0,
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
        }
    }

    /// Bytes of `rows` rows of `cols` weights with their scales.
    pub fn bytes(self, rows: usize, cols: usize) -> u64 {
        rows as u64 * (self.row_bytes(cols) + 4 * self.scales(cols)) as u64
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
        for p in Precision::ALL {
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
    }
}
