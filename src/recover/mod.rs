//! Repair without training: least-squares re-fit and batch-norm re-estimation.

mod step;

pub use step::RepairStep;
