//! Why training stopped.

use crate::data::DataError;
use crate::exec::{Cancelled, ExecError};
use crate::graph::GraphError;
use crate::model::ModelError;

/// Why training stopped.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error("the network does not fit together: {0}")]
    Graph(#[from] GraphError),
    #[error(transparent)]
    Exec(#[from] ExecError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("tensor operation failed: {0}; hint: use a smaller batch")]
    Tensor(#[from] candle_core::Error),
    #[error("the loss of step {step} is not finite; hint: lower the learning rate")]
    Diverged { step: usize },
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}
