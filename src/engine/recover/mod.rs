//! Repair without training: least-squares re-fit and batch-norm re-estimation; and the ranges of static int8 inputs, which
//! too are found by running images.

mod batchnorm;
mod compress;
mod error;
mod ranges;
mod rebuild;
mod refit;
mod ridge;
mod runner;
mod sample;
mod segment;
mod step;

pub use compress::{RepairOptions, RepairUpdate, compress};
pub use error::RepairError;
pub use ranges::{calibrate, input_ranges};
pub use rebuild::{Rebuild, rebuild};
pub use step::{RepairStep, RepairUse};
