//! Why profiling stopped.

use crate::data::DataError;
use crate::exec::{Cancelled, ExecError, OutOfMemory};
use crate::graph::GraphError;
use crate::prune::PruneError;
use crate::task::TaskError;
use crate::words::TensorError;

/// What this room gives, or its own error.
pub type Result<T, E = ProfileError> = std::result::Result<T, E>;

/// Errors of this room. Cancellation is one, so that callers can tell it apart.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error(transparent)]
    Exec(#[from] ExecError),
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error(transparent)]
    Prune(#[from] PruneError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Task(#[from] TaskError),
    #[error(transparent)]
    Param(#[from] crate::model::ParamError),
    #[error("tensor library: {0}")]
    Tensor(TensorError),
    #[error("the ceiling of {what} cannot be measured: {why}")]
    Ceiling { what: String, why: Box<ProfileError> },
    #[error("no calibration images; hint: give `--calib` a data set with at least one image")]
    NoImages,
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl From<candle_core::Error> for ProfileError {
    fn from(e: candle_core::Error) -> ProfileError {
        ProfileError::Tensor(e.into())
    }
}

impl OutOfMemory for ProfileError {
    fn is_out_of_memory(&self) -> bool {
        match self {
            ProfileError::Exec(e) => e.is_out_of_memory(),
            ProfileError::Tensor(e) => e.inner().is_out_of_memory(),
            ProfileError::Ceiling { why, .. } => why.is_out_of_memory(),
            ProfileError::Task(_)
            | ProfileError::Graph(_)
            | ProfileError::Prune(_)
            | ProfileError::Data(_)
            | ProfileError::Param(_)
            | ProfileError::NoImages
            | ProfileError::Cancelled(_) => false,
        }
    }
}
