//! Why training stopped.

use crate::data::DataError;
use crate::exec::{Cancelled, ExecError};
use crate::graph::GraphError;
use crate::model::ModelError;
use crate::task::TaskError;
use crate::words::TensorError;

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
    #[error(transparent)]
    Task(#[from] TaskError),
    #[error("tensor library: {0}")]
    Tensor(TensorError),
    #[error("the loss of step {step} is not finite; hint: lower the learning rate")]
    Diverged { step: usize },
    #[error("{0}")]
    Unfit(String),
    #[error("cannot keep where the healing stands in `{}`: {why}; hint: is there space left?", .path.display())]
    Checkpoint { path: std::path::PathBuf, why: String },
    #[error(transparent)]
    Param(#[from] crate::model::ParamError),
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl From<candle_core::Error> for TrainError {
    fn from(e: candle_core::Error) -> TrainError {
        TrainError::Tensor(e.into())
    }
}
