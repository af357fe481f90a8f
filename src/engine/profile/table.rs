//! Plain data that profiling produces: serializable, no tensors, shared with sessions and screens.

use super::{LayerParameters, Load, Reading, Workload};
use crate::graph::Macs;
use crate::quant::Precision;
use serde::{Deserialize, Serialize};

/// Order statistics of latency samples in milliseconds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct LatencyStats {
    pub n: usize,
    pub p50: f64,
    pub p95: f64,
    /// `None` below [`LatencyStats::TAIL`] samples; ask [`LatencyStats::p99`], since older versions always wrote one.
    pub p99: Option<f64>,
    pub mean: f64,
    pub min: f64,
    /// How far another measurement's median is expected to lie at most, as a part of `p50`; see [`LatencyStats::spread`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
    /// From the lower to the upper quartile, as a part of `p50`.
    #[serde(default)]
    pub middle: f64,
    /// On a GPU: each sample is one launch of a captured CUDA graph, so that what launching its kernels takes the host is no
    /// part of it. Otherwise they were launched one by one, as layers' always are.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub replayed: bool,
}

impl LatencyStats {
    /// How it was measured, to follow other words on that; nothing where there is nothing to tell.
    pub fn origin(&self) -> &'static str {
        if self.replayed { ", replayed from a CUDA graph" } else { "" }
    }
}

/// Why a figure is not to be decided on. It is shown with a mark, until it is measured again.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "why")]
pub enum Doubt {
    /// Samples scatter, or drift: the median is known to this part of it only.
    Scatter { spread: f64 },
    /// Rows of the same shape and kernel take so long at the median.
    Outlier { twins_ms: f64 },
    /// Others had this part of the processors, 0 to 1, and were in the way.
    Contention { others: f64 },
    /// Threads that measured waited for a processor for this part of their time, 0 to 1, and others had few of them.
    Waiting { part: f64 },
    /// Others had the GPU for this part of the time, 0 to 1.
    Shared { others: f64 },
    /// The clock fell by this part.
    Clock { by: f64 },
}

impl std::fmt::Display for Doubt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Doubt::Scatter { spread } => write!(f, "its samples scatter, known to ±{:.0} % only", spread * 100.0),
            Doubt::Outlier { twins_ms } => write!(f, "rows of the same shape take {twins_ms:.3} ms"),
            Doubt::Contention { others } => write!(f, "others had {:.0} % of the processors meanwhile", others * 100.0),
            Doubt::Waiting { part } => {
                write!(f, "its threads waited {:.0} % of their time for a processor", part * 100.0)
            }
            Doubt::Shared { others } => write!(f, "others had {:.0} % of the GPU meanwhile", others * 100.0),
            Doubt::Clock { by } => write!(f, "the clock fell by {:.0} % meanwhile", by * 100.0),
        }
    }
}

/// A latency over another one's, measured in pairs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Pairs.
    pub n: usize,
    /// The median of the pairs' ratios.
    pub value: f64,
    /// Its interval, by order statistics.
    pub low: f64,
    pub high: f64,
    /// The probability that such an interval holds the median: at least 0.95, less where there are fewer than six pairs.
    pub coverage: f64,
}

impl Ratio {
    /// One that was not measured.
    pub const UNKNOWN: Ratio = Ratio { n: 0, value: f64::NAN, low: f64::NAN, high: f64::NAN, coverage: 0.0 };
}

/// Latency of a model and of the original it is compared with: whole runs of one batch without observers, in pairs, the
/// order within each pair by chance.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Paired {
    pub base: LatencyStats,
    pub new: LatencyStats,
    /// `new` over `base`.
    pub ratio: Ratio,
    /// Why it is not to be decided on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<Doubt>,
    /// What the machine did meanwhile.
    #[serde(default)]
    pub load: Load,
}

/// Which ceiling a layer sits under on this device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    Memory,
    #[default]
    Compute,
    /// A ceiling that would tell is not known, or how many tokens an expert was sent.
    Unknown,
}

/// One heatmap row: a layer as it ran. Nodes fused into it (batch norm, activation, residual add) are listed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
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
    /// Time per batch, observers on. What is shown is [`Profile::ms`].
    pub latency: LatencyStats,
    /// Why that is not to be decided on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<Doubt>,
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
    /// Achieved part of the ceiling that binds; 0 where that is not known. Above 1 where a cache holds what memory would have to
    /// bring, or the ceiling was measured on a busier machine than this.
    pub efficiency: f64,
    /// Output shape without batch.
    pub out_shape: Vec<usize>,
}

/// Ceilings measured on this device at start; 0: not known, since a GPU had no memory to measure it with.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Ceilings {
    pub f32_gflops: f64,
    pub int8_gops: f64,
    pub bandwidth_gbs: f64,
}

impl Ceilings {
    /// All of them are known.
    pub fn complete(&self) -> bool {
        [self.f32_gflops, self.int8_gops, self.bandwidth_gbs].iter().all(|v| *v > 0.0)
    }
}

/// How many blocks there are, and how many of them were measured; see [`super::sampled`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sampled {
    pub blocks: usize,
    pub measured: usize,
}

/// A profile of one model on one device.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    pub device: String,
    pub threads: usize,
    pub batch: usize,
    /// What a run is; what is counted for one image is then for one token.
    #[serde(default, skip_serializing_if = "Workload::is_pass")]
    pub workload: Workload,
    pub runs: usize,
    pub ceilings: Ceilings,
    pub rows: Vec<LayerRow>,
    /// Whole-model latency per batch, measured without observers, in turns with the runs that rows come from.
    pub whole: LatencyStats,
    /// Why `whole` is not to be decided on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<Doubt>,
    /// What the machine did meanwhile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Load>,
    /// Sum of stored weight bytes.
    pub weight_bytes: u64,
    /// Keys and values that a token reads, bytes; 0 where a run is a pass.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub cache_bytes: u64,
    pub params: u64,
    pub macs: Macs,
    /// Largest set of live activations, bytes, whole batch. On a GPU measured: the most that its memory pool handed out at
    /// once beyond weights and input, what kernels need meanwhile included.
    pub peak_activation_bytes: u64,
    /// Not all blocks were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled: Option<Sampled>,
    /// What else a GPU told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu: Option<GpuFigures>,
    /// The weights of the model's layers, by node; none in sessions of older versions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parameters: Vec<LayerParameters>,
    /// What did not go as asked, for people.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

impl Profile {
    /// What a row's observed time is multiplied by to be a part of the whole model's latency: observers cost a little, and
    /// medians do not add up.
    pub fn scale(&self) -> f64 {
        let sum: f64 = self.rows.iter().map(LayerRow::counted).sum();
        if sum > 0.0 && self.whole.p50 > 0.0 { self.whole.p50 / sum } else { 1.0 }
    }

    /// What `row` contributes to the whole model's latency, milliseconds a batch: the figure that every view shows, and
    /// of which an action cannot save more.
    pub fn ms(&self, row: &LayerRow) -> f64 {
        row.latency.p50 * self.scale()
    }

    /// Why `row` is not to be decided on, in the figures that are shown.
    pub fn doubt_of(&self, row: &LayerRow) -> Option<Doubt> {
        Some(match row.doubt? {
            Doubt::Outlier { twins_ms } => Doubt::Outlier { twins_ms: twins_ms * self.scale() },
            other => other,
        })
    }

    /// As [`Profile::ms`] in forecasts: what stands out among rows of its shape counts as they do.
    pub fn counted_ms(&self, row: &LayerRow) -> f64 {
        row.counted() * self.scale()
    }

    /// Takes `fresh`'s figures for the row named `row`, and for whatever is in doubt here and not there. Figures of the same
    /// model: what it stores, computes and moves stays. Of other batches nothing is taken: their times are others.
    pub fn renew(&mut self, row: &str, fresh: &Profile) {
        if fresh.batch != self.batch {
            return;
        }
        for old in &mut self.rows {
            let Some(new) = fresh.rows.iter().find(|n| n.name == old.name && n.kernel == old.kernel) else { continue };
            if old.name == row || (old.doubt.is_some() && new.doubt.is_none()) {
                *old = new.clone();
            }
        }
        if self.doubt.is_some() && fresh.doubt.is_none() {
            (self.whole, self.doubt, self.load) = (fresh.whole, None, fresh.load);
        }
        self.share();
    }

    /// Works out every row's share of the observed total.
    pub fn share(&mut self) {
        let total: f64 = self.rows.iter().map(|r| r.latency.p50).sum();
        for r in &mut self.rows {
            r.share = if total > 0.0 { r.latency.p50 / total } else { 0.0 };
        }
    }
}

impl LayerRow {
    /// Observed milliseconds that forecasts count.
    fn counted(&self) -> f64 {
        match self.doubt {
            Some(Doubt::Outlier { twins_ms }) => self.latency.p50.min(twins_ms),
            Some(
                Doubt::Scatter { .. }
                | Doubt::Contention { .. }
                | Doubt::Waiting { .. }
                | Doubt::Shared { .. }
                | Doubt::Clock { .. },
            )
            | None => self.latency.p50,
        }
    }
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
    /// Loss against the targets minus the baseline's (cross-entropy: nats).
    pub d_loss: f64,
    /// Divergence of the outputs from the baseline's; of classifiers KL(baseline ‖ changed) in nats, both softened where the
    /// baseline is over-sure, see [`super::sensitivity`].
    pub kl: f64,
    /// Change of the task's metric on calibration data, in its unit, negative for worse.
    #[serde(alias = "d_top1")]
    pub d_quality: f64,
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
    /// Baseline loss and mean score (of classifiers top-1, 0 to 1) on the calibration data.
    pub base_loss: f64,
    #[serde(alias = "base_top1")]
    pub base_score: f64,
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
    /// How far another measurement is expected to lie, as a part of `ms`; 0: nobody looked.
    #[serde(default)]
    pub spread: f64,
    /// Measured several times and never the same: not to be used.
    #[serde(default)]
    pub noisy: bool,
}

/// Latency ladder of one layer: points at several widths, for forecasts between them.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ladder {
    pub layer: String,
    pub points: Vec<LadderPoint>,
    /// Precisions that the device has a kernel of their own for: where one has no usable rung nobody knows its time, and no
    /// other's stands in for it. Empty in what earlier programs stored.
    #[serde(default)]
    pub own: Vec<Precision>,
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
