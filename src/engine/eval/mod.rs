//! Evaluation: metrics over a data set, paired statistics between two models.
//!
//! Not here: latency (`profile`). Invariants: every image of the set is counted exactly once, in order; a logit that is
//! not a number is an error, never a wrong class.

mod error;
mod margin;
mod metrics;
mod paired;
mod run;
mod score;
mod trial;
mod views;

pub use error::EvalError;
pub use margin::Margins;
pub use metrics::*;
pub use paired::{from_counts, paired};
pub use run::{EvalRun, collect_logits, evaluate, logits, score_with};
pub use score::{Scorer, cross_entropy, kl};
pub use trial::{Correction, Model as TrialModel, Outcome as TrialOutcome, TrialOptions, Trials, ViewFacts};
pub use views::Disturbance;

use run::for_batches;
