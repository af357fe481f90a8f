//! Why profiling stopped.

use crate::data::DataError;
use crate::eval::EvalError;
use crate::exec::{Cancelled, ExecError};
use crate::graph::GraphError;
use crate::prune::PruneError;

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
    Eval(#[from] EvalError),
    #[error(transparent)]
    Param(#[from] crate::model::ParamError),
    #[error("tensor operation failed: {0}; hint: use a smaller batch")]
    Tensor(#[from] candle_core::Error),
    #[error("no calibration images; hint: give `--calib` a data set with at least one image")]
    NoImages,
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl ProfileError {
    /// Whether the work ended because it was cancelled.
    pub fn is_cancelled(&self) -> bool {
        matches!(self, ProfileError::Cancelled(_) | ProfileError::Eval(EvalError::Cancelled(_)))
    }
}
