//! Why an evaluation stopped.

use crate::data::DataError;
use crate::exec::{Cancelled, ExecError, OutOfMemory};

/// An evaluation without a result.
#[derive(Debug, thiserror::Error)]
pub enum EvalError {
    #[error(
        "the logits of {images} of {batch} images are not finite (first: image `{first}`); hint: the weights or the last \
         change of the model are broken: evaluate the original, then roll back"
    )]
    NonFinite { images: usize, batch: usize, first: usize },
    #[error(
        "logits of shape {found:?} for {images} images of {classes} classes; hint: the model was trained for other data"
    )]
    Shape { found: Vec<usize>, images: usize, classes: usize },
    #[error("label `{label}` for a model of {classes} classes; hint: the model was trained for other data")]
    Label { label: u32, classes: usize },
    #[error("data set `{data}` holds no images; hint: raise the limit")]
    Empty { data: String },
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Exec(#[from] ExecError),
    #[error("tensor operation failed: {0}; hint: use a smaller batch")]
    Tensor(#[from] candle_core::Error),
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl OutOfMemory for EvalError {
    fn is_out_of_memory(&self) -> bool {
        match self {
            EvalError::Exec(e) => e.is_out_of_memory(),
            EvalError::Tensor(e) => e.is_out_of_memory(),
            EvalError::NonFinite { .. }
            | EvalError::Shape { .. }
            | EvalError::Label { .. }
            | EvalError::Empty { .. }
            | EvalError::Data(_)
            | EvalError::Cancelled(_) => false,
        }
    }
}
