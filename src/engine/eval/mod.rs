//! Evaluation: passes over a data set, texts that a model writes, and trials on images that were held back. What is counted is the task's (`task`).
//!
//! Not here: latency (`profile`). Invariants: every image of the set is counted exactly once, in order (where a pass may stop early, at most
//! once: `early`); an output that is not a number is an error, never a wrong class.

mod against;
mod answers;
mod choices;
mod early;
mod error;
mod generate;
mod margin;
pub mod robust;
mod run;
mod trial;
mod views;

pub use against::{Against, against};
pub use answers::{Bounds, Said, answers};
pub use choices::{Weighed, choices};
pub use early::{Drawn, Early, Until, drawn_until_clear, until_clear};
pub use error::{EvalError, Result};
pub use generate::{At, Levels, Sampler, Sampling, Written, generate, generate_at};
pub use margin::Margins;
pub use run::{evaluate, logits, score_with};
pub use trial::{Correction, Model as TrialModel, Outcome as TrialOutcome, TrialOptions, Trials, ViewFacts};
pub use views::Disturbance;

pub use crate::task::{
    Divergence, Estimate, Metric, Metrics, Paired, Scored, cross_entropy, from_counts, kl, paired, wilson,
};

use run::for_batches;
