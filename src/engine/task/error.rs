//! Why outputs cannot be scored.

use crate::words::TensorError;

/// Outputs that do not fit what they are scored against. Counts are of items: images, for classifiers.
#[derive(Debug, thiserror::Error)]
pub enum TaskError {
    #[error(
        "the logits of {images} of {batch} images are not finite (first: image `{first}`); hint: the weights or the last \
         change of the model are broken: evaluate the original, then roll back"
    )]
    NonFinite { images: usize, batch: usize, first: usize },
    #[error(
        "logits of shape {found:?} for {images} images of {classes} classes; hint: the model was trained for other data"
    )]
    Shape { found: Vec<usize>, images: usize, classes: usize },
    #[error(
        "outputs of shape {found:?} beside an original's of {original:?}; hint: an original with the same vocabulary, or the \
         same classes"
    )]
    Unlike { original: Vec<usize>, found: Vec<usize> },
    #[error("label `{label}` for a model of {classes} classes; hint: the model was trained for other data")]
    Label { label: u32, classes: usize },
    #[error("the data has no targets that this task scores against; hint: give data made for the model's task")]
    Targets,
    #[error("tensor library: {0}")]
    Tensor(TensorError),
}

impl From<candle_core::Error> for TaskError {
    fn from(e: candle_core::Error) -> TaskError {
        TaskError::Tensor(e.into())
    }
}
