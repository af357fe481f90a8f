//! Why a compression was not carried through; the original model is never touched.

use crate::data::DataError;
use crate::exec::{Cancelled, ExecError};
use crate::graph::GraphError;
use crate::model::{ModelError, ParamError};
use crate::prune::PruneError;
use crate::words::TensorError;

/// Why compressing failed.
#[derive(Debug, thiserror::Error)]
pub enum RepairError {
    #[error(transparent)]
    Prune(#[from] PruneError),
    #[error(transparent)]
    Exec(#[from] ExecError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error(transparent)]
    Param(#[from] ParamError),
    #[error("calibration set `{0}` has no images; hint: repair needs a few hundred, or turn it off")]
    NoImages(String),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("tensor library: {0}")]
    Tensor(TensorError),
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl From<candle_core::Error> for RepairError {
    fn from(e: candle_core::Error) -> RepairError {
        RepairError::Tensor(e.into())
    }
}
