//! Where a training's images come from.

use crate::data::DataError;
use candle_core::Tensor;

/// Gives the next so many labelled images `[size, channels, height, width]`, prepared, and their classes; or says why they
/// cannot be had.
pub type Batches<'a> = dyn FnMut(usize) -> Result<(Tensor, Vec<u32>), DataError> + 'a;
