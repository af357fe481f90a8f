//! Plain results of an evaluation.

use serde::{Deserialize, Serialize};

/// Metrics over `n` images.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    pub n: usize,
    pub correct: usize,
    /// `correct / n`, 0 to 1.
    pub top1: f64,
    /// Share of images whose class is among the five largest logits (fewer classes: among all of them), 0 to 1.
    pub top5: f64,
    /// Mean cross-entropy in nats.
    pub loss: f64,
    /// Correct and total per class.
    pub per_class: Vec<(usize, usize)>,
}

/// The difference in accuracy of two models on the same images.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Paired {
    /// Images that both were evaluated on.
    pub n: usize,
    /// Wrong before, right now.
    pub gained: usize,
    /// Right before, wrong now.
    pub lost: usize,
    /// New minus base accuracy in points (negative: worse).
    pub diff: f64,
    /// 95 % interval of `diff` in points.
    pub low: f64,
    pub high: f64,
    /// Two-sided exact McNemar p-value of "no difference".
    pub p: f64,
}
