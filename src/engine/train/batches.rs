//! Where a training's items come from.

use crate::data::DataError;
use candle_core::Tensor;

/// Gives the next so many labelled items: images `[size, channels, height, width]`, prepared, and their classes, or windows of token ids
/// `[size, tokens]` and for each token of each the one that follows; or says why they cannot be had.
pub type Batches<'a> = dyn FnMut(usize) -> Result<(Tensor, Vec<u32>), DataError> + 'a;
