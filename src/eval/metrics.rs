//! Plain results of an evaluation.

use serde::{Deserialize, Serialize};

/// Metrics over `n` images.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    pub n: usize,
    pub correct: usize,
    /// `correct / n`, 0 to 1.
    pub top1: f64,
    pub top5: f64,
    /// Mean cross-entropy in nats.
    pub loss: f64,
    /// Correct and total per class.
    pub per_class: Vec<(usize, usize)>,
}
