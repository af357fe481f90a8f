//! Why a job ended before its end.

use crate::exec::Cancelled;

/// How a job ended that did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    #[error("cancelled")]
    Cancelled,
    /// In words for the engineer, hint included.
    #[error("{0}")]
    Failed(String),
}

impl From<Cancelled> for JobError {
    fn from(_: Cancelled) -> JobError {
        JobError::Cancelled
    }
}

impl JobError {
    /// Wraps a room's error.
    pub fn of(error: impl std::fmt::Display) -> JobError {
        JobError::Failed(error.to_string())
    }
}
