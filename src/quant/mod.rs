//! Precisions, precision plans and the quantization arithmetic shared by kernels, forecasts and checks.
//!
//! The graph stays float: a [`PrecisionPlan`] says per node what runs, and `exec` records which kernel ran.

pub use crate::graph::{Precision, PrecisionPlan};
