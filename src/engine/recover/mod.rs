//! Repair without training: least-squares re-fit, low-rank factors, batch-norm re-estimation and rounding that knows the activations; and the ranges of static int8 inputs, which
//! too are found by running images. These are the stages of a recipe: `stage` names them, `compress` runs them. And the importances
//! of weights' columns, which are no stage (`importance`).

mod batchnorm;
mod blocks;
mod compress;
mod cuts;
mod error;
mod factors;
mod importance;
mod language;
mod loss;
mod nested;
mod options;
mod ranges;
mod refit;
mod ridge;
mod rounding;
mod runner;
mod sample;
mod segment;
mod smooth;
mod stage;
mod state;
mod step;
#[cfg(test)]
mod tests;
mod walk;

pub use compress::compress;
pub use cuts::{Ask, Curve, Cut, curves};
pub use error::RepairError;
pub use factors::stayed_whole;
pub use importance::importance;
pub use nested::within;
pub use options::RepairOptions;
pub use ranges::calibrate;
pub(crate) use ridge::add_to;
pub(crate) use sample::{Places, draw, inputs, places_of};
pub use stage::{BadStages, Stage, Stages};
pub use state::judging;
pub use step::{RepairStep, RepairUpdate, RepairUse};
