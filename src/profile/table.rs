//! Plain data that profiling produces: serializable, no tensors, shared with sessions and screens.

use super::Reading;
use crate::graph::Macs;
use crate::quant::Precision;
use serde::{Deserialize, Serialize};

/// Order statistics of latency samples in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyStats {
    pub n: usize,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub mean: f64,
    pub min: f64,
}

/// Which ceiling a layer sits under on this device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    Memory,
    Compute,
}

/// One heatmap row: a layer as it ran. Nodes fused into it (batch norm, activation, residual add) are listed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerRow {
    /// The leading node's name.
    pub name: String,
    /// Short kind for people: `conv 3x3/2`, `linear`, `attention 8h`, `layernorm`.
    pub kind: String,
    /// The block this row folds under, if any.
    pub block: Option<String>,
    /// Names of nodes that ran fused into this row.
    pub fused: Vec<String>,
    /// Which kernel ran, e.g. `gemm-f32/avx512`, `gemm-u8i8/vnni`.
    pub kernel: String,
    pub precision: Precision,
    /// Time per batch, observers on.
    pub latency: LatencyStats,
    /// Share of the observed total, 0 to 1.
    pub share: f64,
    /// Stored weight bytes at the precision that ran.
    pub weight_bytes: u64,
    /// Bytes of the row's output for the whole batch.
    pub activation_bytes: u64,
    /// MACs for one image.
    pub macs: Macs,
    pub params: u64,
    /// MACs·2 over bytes moved (weights, inputs, outputs), FLOP per byte.
    pub intensity: f64,
    pub bound: Bound,
    /// Achieved part of the ceiling that binds, 0 to 1.
    pub efficiency: f64,
    /// Output shape without batch.
    pub out_shape: Vec<usize>,
}

/// Ceilings measured on this device at start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    pub f32_gflops: f64,
    pub int8_gops: f64,
    pub bandwidth_gbs: f64,
}

/// A profile of one model on one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    pub device: String,
    pub threads: usize,
    pub batch: usize,
    pub runs: usize,
    pub ceilings: Ceilings,
    pub rows: Vec<LayerRow>,
    /// Whole-model latency per batch, measured without observers.
    pub whole: LatencyStats,
    /// Sum of stored weight bytes.
    pub weight_bytes: u64,
    pub params: u64,
    pub macs: Macs,
    /// Largest set of live activations, bytes, whole batch. On a GPU measured: the most that its memory pool handed out at
    /// once beyond weights and input, what kernels need meanwhile included.
    pub peak_activation_bytes: u64,
    /// What else a GPU told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuFigures>,
    /// What did not go as asked, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// Figures that only a GPU has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct GpuFigures {
    /// The most of the memory pool in use at once, weights included, bytes.
    pub peak_used_bytes: u64,
    /// The most that the pool held of the device's memory, bytes.
    pub peak_reserved_bytes: u64,
    /// While whole runs went on.
    pub gauges: Option<Reading>,
    /// Of whole runs, by the board's energy counter.
    pub energy_mj_per_image: Option<f64>,
}

/// Measured loss and output change at one setting of a group or layer.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SensPoint {
    /// Part of the group removed, 0 to 1 (for precisions: unused, 0).
    pub ratio: f64,
    /// Cross-entropy against labels minus the baseline's, nats.
    pub d_loss: f64,
    /// KL(baseline ‖ changed) of the output distribution, nats; both softened where the baseline is over-sure, see
    /// [`super::sensitivity`].
    pub kl: f64,
    /// Top-1 of the changed model minus the baseline's on calibration data, points.
    pub d_top1: f64,
}

/// Sensitivity of a group (over ratios), or of a layer at a precision, or of a block's removal.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SensCurve {
    pub target: SensTarget,
    pub points: Vec<SensPoint>,
    /// Calibration images used.
    pub images: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SensTarget {
    Group(String),
    Layer(String, Precision),
    Block(String),
}

/// All curves measured so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sensitivity {
    pub curves: Vec<SensCurve>,
    /// Baseline cross-entropy and top-1 (0 to 1) on the calibration data.
    pub base_loss: f64,
    pub base_top1: f64,
}

impl Sensitivity {
    pub fn get(&self, target: &SensTarget) -> Option<&SensCurve> {
        self.curves.iter().find(|c| &c.target == target)
    }
}

/// Measured latency of one layer at one width and precision, relative to nothing: milliseconds per batch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LadderPoint {
    pub in_width: usize,
    pub out_width: usize,
    pub precision: Precision,
    pub ms: f64,
}

/// Latency ladder of one layer: points at several widths, for forecasts between them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ladder {
    pub layer: String,
    pub points: Vec<LadderPoint>,
}
