//! How a compressed model is made beyond what was decided: the stages and their figures, as a recipe keeps them.

use super::stage::Stages;
use crate::prune::Masks;
use crate::quant::Calibration;
use serde::{Deserialize, Serialize};

/// How repairs are made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RepairOptions {
    /// Chooses images and positions.
    pub seed: u64,
    /// What is done, in its order. Recipes of before there were stages say it in other words and mean the same.
    #[serde(flatten)]
    pub stages: Stages,
    /// Calibration images to fit on, at most (fewer when `memory` does not hold them).
    pub images: usize,
    /// Further calibration images, at most, that say whether a repair stays.
    pub check_images: usize,
    /// Output positions or tokens looked at per image.
    pub positions: usize,
    /// Ridge term as a part of the Gram matrix's mean diagonal.
    pub lambda: f64,
    /// Also re-fit what computes the remaining units, so that it makes up for earlier errors in its input.
    pub producers: bool,
    /// Also re-fit the classifier.
    pub classifier: bool,
    /// Bytes for running activations.
    pub memory: usize,
    /// How the input ranges of static int8 layers are chosen, and from how many calibration images.
    pub ranges: Calibration,
    pub range_images: usize,
    /// How zeros among the weights of a language model are chosen.
    #[serde(default = "magnitude")]
    pub masks: Masks,
}

/// Recipes of before there was a choice.
fn magnitude() -> Masks {
    Masks::Magnitude
}

impl Default for RepairOptions {
    fn default() -> Self {
        RepairOptions {
            seed: 0,
            stages: Stages::default(),
            images: 4000,
            check_images: 500,
            positions: 48,
            lambda: 1e-3,
            producers: false,
            classifier: true,
            memory: 1 << 30,
            ranges: Calibration::Mse,
            range_images: 512,
            masks: Masks::default(),
        }
    }
}
