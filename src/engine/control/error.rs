//! Why there is no ladder or no policy, or why one is refused.

use crate::data::DataError;
use crate::eval::EvalError;
use crate::exec::{Cancelled, ExecError};
use crate::model::{ModelError, ParamError};
use crate::profile::ProfileError;
use crate::prune::PruneError;
use crate::recover::RepairError;
use crate::task::TaskError;
use crate::words::TensorError;

/// What this room gives, or its own error.
pub type Result<T, E = ControlError> = std::result::Result<T, E>;

/// A controller that cannot be made, or must not be run.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error(
        "`{model}` has no MLP that a level could leave out; hint: a language model whose layers add an MLP each (experts of mixtures are not cut)"
    )]
    NoBranches { model: String },
    #[error("{what} of text are too few: {found}, and {least} are needed; hint: a longer text, or fewer windows")]
    Short { what: &'static str, found: usize, least: usize },
    #[error("the controller in `{file}` is damaged: {why}; hint: make it again with `paring control`")]
    Damaged { file: String, why: String },
    #[error(
        "the controller in `{file}` is for other weights than those beside it; hint: make it again with `paring control`"
    )]
    Foreign { file: String },
    #[error(
        "the controller in `{file}` has format {format}, this program knows {known}; hint: open it with the newer `paring` that wrote it"
    )]
    Newer { file: String, format: u32, known: u32 },
    #[error("{0}")]
    Bad(String),
    #[error(transparent)]
    Prune(#[from] PruneError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Repair(#[from] RepairError),
    #[error(transparent)]
    Exec(#[from] ExecError),
    #[error(transparent)]
    Eval(#[from] EvalError),
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error(transparent)]
    Task(#[from] TaskError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error(transparent)]
    Param(#[from] ParamError),
    #[error("tensor library: {0}")]
    Tensor(TensorError),
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl ControlError {
    /// Whether it was asked to end.
    pub fn is_cancelled(&self) -> bool {
        matches!(
            self,
            ControlError::Cancelled(_)
                | ControlError::Profile(ProfileError::Cancelled(_))
                | ControlError::Eval(EvalError::Cancelled(_))
                | ControlError::Repair(RepairError::Cancelled(_))
        )
    }
}

impl From<candle_core::Error> for ControlError {
    fn from(e: candle_core::Error) -> ControlError {
        ControlError::Tensor(e.into())
    }
}

impl From<crate::graph::GraphError> for ControlError {
    fn from(e: crate::graph::GraphError) -> ControlError {
        ControlError::Prune(e.into())
    }
}
