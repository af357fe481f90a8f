//! Plain record of a repair step.

use serde::{Deserialize, Serialize};

/// A repair step as it was run, with what it gained on calibration data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RepairStep {
    /// `refit layer1.0.conv2`, `re-estimate batch norm`.
    pub name: String,
    /// Calibration loss before and after: softened divergence from the original network's answers on held-out
    /// calibration images, of the network compressed up to this place (of all of it for batch norm).
    pub loss_before: f64,
    pub loss_after: f64,
    /// Kept or reverted because the calibration loss said so.
    pub kept: bool,
    pub seconds: f64,
}
