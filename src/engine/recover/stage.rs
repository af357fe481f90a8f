//! The stages of a recipe, as plain data: which there are, and in which order a model is made by them. What each does is
//! said where it runs (`compress`).

use serde::{Deserialize, Serialize};

/// One stage between the original and a compressed model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The actions: what is cut, removed, masked, and the precisions.
    Apply,
    /// Layers that read pruned units re-fitted by least squares, each kept if that lowers the calibration loss.
    Refit,
    /// Batch-norm statistics of the compressed network's own activations, kept on the same condition.
    BatchNorm,
    /// Weights rounded with the layer's inputs in mind, each kept on the same condition.
    Round,
    /// The ranges of static int8 inputs.
    Ranges,
}

/// A recipe's stages in the order in which they run.
///
/// Invariant: the first is [`Stage::Apply`], none comes twice, and weights are not re-fitted once they are rounded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Written")]
pub struct Stages {
    stages: Vec<Stage>,
}

/// Why a list of stages is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the stages {0:?} are no recipe; hint: `apply` comes first, none comes twice, and `refit` not after `round`")]
pub struct BadStages(pub Vec<Stage>);

/// Stages as recipes hold them, of this version and of those before there were stages, which said of two repairs whether
/// they are made.
#[derive(Deserialize)]
struct Written {
    stages: Option<Vec<Stage>>,
    #[serde(default = "yes")]
    refit: bool,
    #[serde(default = "yes")]
    batch_norm: bool,
}

fn yes() -> bool {
    true
}

impl Default for Stages {
    fn default() -> Stages {
        Stages { stages: vec![Stage::Apply, Stage::Refit, Stage::BatchNorm, Stage::Round, Stage::Ranges] }
    }
}

impl Stages {
    /// These stages, in this order.
    ///
    /// # Errors
    /// [`BadStages`] where the invariant does not hold.
    pub fn new(stages: Vec<Stage>) -> Result<Stages, BadStages> {
        let twice = stages.iter().enumerate().any(|(i, s)| stages[..i].contains(s));
        let at = |stage| stages.iter().position(|s| *s == stage);
        let late = at(Stage::Round).is_some_and(|round| at(Stage::Refit).is_some_and(|refit| refit > round));
        let sound = !twice && !late && stages.first() == Some(&Stage::Apply);
        if sound { Ok(Stages { stages }) } else { Err(BadStages(stages)) }
    }

    /// The same without `stage`; a recipe without [`Stage::Apply`] is none, so that one stays.
    #[must_use]
    pub fn without(mut self, stage: Stage) -> Stages {
        self.stages.retain(|s| *s != stage || *s == Stage::Apply);
        self
    }

    pub fn has(&self, stage: Stage) -> bool {
        self.stages.contains(&stage)
    }

    pub fn iter(&self) -> impl Iterator<Item = Stage> {
        self.stages.iter().copied()
    }
}

impl TryFrom<Written> for Stages {
    type Error = BadStages;

    fn try_from(written: Written) -> Result<Stages, BadStages> {
        if let Some(stages) = written.stages {
            return Stages::new(stages);
        }
        // Those knew no other rounding than to the nearest.
        let mut stages = Stages::default().without(Stage::Round);
        for (stage, wanted) in [(Stage::Refit, written.refit), (Stage::BatchNorm, written.batch_norm)] {
            stages = if wanted { stages } else { stages.without(stage) };
        }
        Ok(stages)
    }
}
