//! Why an evaluation stopped.

use crate::data::DataError;
use crate::exec::{Cancelled, ExecError, OutOfMemory};
use crate::task::TaskError;
use crate::words::TensorError;

/// What this room gives, or its own error.
pub type Result<T, E = EvalError> = std::result::Result<T, E>;

/// An evaluation without a result.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    #[error(transparent)]
    Task(#[from] TaskError),
    #[error("data set `{data}` holds no images; hint: raise the limit")]
    Empty { data: String },
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Exec(#[from] ExecError),
    #[error("tensor library: {0}")]
    Tensor(TensorError),
    #[error("logit {at} is no number; hint: the weights are damaged, or a precision overflows")]
    NotFinite { at: usize },
    #[error("question {n} cannot be asked: {reason}; hint: check the data and the tokenizer")]
    Question { n: usize, reason: String },
    #[error("{0}")]
    Unfit(String),
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl From<candle_core::Error> for EvalError {
    fn from(e: candle_core::Error) -> EvalError {
        EvalError::Tensor(e.into())
    }
}

impl OutOfMemory for EvalError {
    fn is_out_of_memory(&self) -> bool {
        match self {
            EvalError::Exec(e) => e.is_out_of_memory(),
            EvalError::Tensor(e) => e.inner().is_out_of_memory(),
            EvalError::Task(TaskError::Tensor(e)) => e.inner().is_out_of_memory(),
            EvalError::Task(_)
            | EvalError::Empty { .. }
            | EvalError::Data(_)
            | EvalError::NotFinite { .. }
            | EvalError::Question { .. }
            | EvalError::Unfit(_)
            | EvalError::Cancelled(_) => false,
        }
    }
}
