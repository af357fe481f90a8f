//! Repair without training: least-squares re-fit and batch-norm re-estimation.

mod batchnorm;
mod compress;
mod error;
mod rebuild;
mod refit;
mod ridge;
mod runner;
mod sample;
mod segment;
mod step;

pub use compress::{RepairOptions, RepairUpdate, compress};
pub use error::RepairError;
pub use rebuild::{Rebuild, rebuild};
pub use step::{RepairStep, RepairUse};
