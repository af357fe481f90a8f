//! Plain records of what a repair did, and what is said while it does.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// A repair step as it was run, with what it gained on calibration data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RepairStep {
    /// `refit layer1.0.conv2`, `re-estimate batch norm`.
    pub name: String,
    /// Calibration loss before and after: softened divergence from the original network's answers on held-out
    /// calibration images, of the network compressed up to this place (of all of it for batch norm).
    pub loss_before: f64,
    pub loss_after: f64,
    /// What it was fitted on: samples (images times places) of a re-fit, images of batch-norm statistics.
    #[serde(default)]
    pub samples: u64,
    /// Kept or reverted because the calibration loss said so.
    pub kept: bool,
    pub seconds: f64,
}

impl RepairStep {
    /// As manifests keep it: nothing of it depends on the clock.
    pub fn for_manifest(&self) -> Value {
        json!({ "name": self.name, "samples": self.samples, "kept": self.kept, "loss_before": self.loss_before,
            "loss_after": self.loss_after })
    }
}

/// What a compression really looked at, which may be less than its options allow.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RepairUse {
    /// Calibration images that repairs were fitted on, and others that said whether they stay.
    pub fitted: u64,
    pub checked: u64,
    /// There were too few images to check on others than those that were fitted.
    pub checked_on_fitted: bool,
    /// Images that gave static int8 layers their ranges.
    pub ranged: u64,
    /// The hash over contents and labels of all of these, in that order.
    pub hash: Option<String>,
}

/// What a running compression reports.
#[derive(Debug, Clone, PartialEq)]
pub enum RepairUpdate {
    /// `done` of `total` repairs; `what` is being worked on.
    Progress { done: usize, total: usize, what: String },
    /// A repair that has been judged.
    Step(RepairStep),
    /// What was looked at; once, when all is done.
    Used(RepairUse),
}
