//! Evaluation: metrics over a data set, paired statistics between two models.

mod metrics;

pub use metrics::*;
