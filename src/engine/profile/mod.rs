//! Profiling: per-layer samples, whole-model latency, roofline, ladders and sensitivity.
//!
//! Not here: what to do about it (`plan`). Invariants: whole-model latency is measured without observers; everything
//! long is cancellable and tells its progress; results are plain data that outlive the device.

mod ceilings;
mod error;
mod gauges;
mod halves;
mod ladder;
mod levels;
mod load;
mod measure;
mod paired;
mod parameters;
mod rounding;
mod sample;
mod sensitivity;
mod stats;
mod table;
mod turns;
mod workload;

pub use ceilings::{bandwidth, busy_side, ceilings, device_bandwidth, device_ceilings};
pub use error::{ProfileError, Result};
pub use gauges::{Gauges, Reading};
pub use ladder::{LadderOptions, LadderProgress, ladders};
pub use levels::{LevelTime, levels};
pub use load::{Load, Watch};
pub use measure::{ProfileOptions, ProfileUpdate, noise, profile};
pub use paired::{PairedOptions, paired_latency, whole_latency};
pub use parameters::{BARS, Drawn, LayerParameters, Rank, Scales, parameters};
pub use rounding::{LOOKED_AT, Rounding, Roundings, roundings, sizes};
pub use sample::sampled;
pub use sensitivity::{BROKEN, SensOptions, SensUpdate, sensitivity};
pub use table::*;
pub use workload::Workload;
