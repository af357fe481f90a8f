//! Where a training's images come from.

use crate::data::DataError;
use candle_core::Tensor;

/// Labelled images, batch by batch.
pub trait Batches {
    /// The next `size` images `[size, channels, height, width]`, prepared, and their classes.
    ///
    /// # Errors
    /// Images that cannot be had.
    fn next(&mut self, size: usize) -> Result<(Tensor, Vec<u32>), DataError>;

    /// Passes over the next `count` images.
    fn skip(&mut self, count: usize);
}
