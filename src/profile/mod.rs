//! Profiling: per-layer samples, whole-model latency, roofline, ladders and sensitivity.

mod table;

pub use table::*;
