//! Images between their bytes and a network: corruptions and adversaries work on pixels, before means are taken off.
//!
//! Values are `byte / 255` until they are normalised, as when a data set is read. Not here: resizing, which comes before (`data`).

use crate::model::Preprocess;
use candle_core::{Device, Result, Tensor};
use rayon::prelude::*;

/// The same preparation, but that values stay between 0 and 1.
pub(super) fn plain(prep: &Preprocess) -> Preprocess {
    Preprocess { mean: [0.0; 3], std: [1.0; 3], ..prep.clone() }
}

/// Bytes of values between 0 and 1 that were bytes.
pub(super) fn bytes(x: &Tensor) -> Result<Vec<u8>> {
    // `as` saturates.
    Ok(x.flatten_all()?.to_vec1::<f32>()?.into_iter().map(|v| (v * 255.0).round() as u8).collect())
}

/// Changes each image of `one` bytes by itself, on all cores.
pub(super) fn each(bytes: &mut [u8], one: usize, change: impl Fn(usize, &mut [u8]) + Sync) {
    bytes.par_chunks_mut(one.max(1)).enumerate().for_each(|(i, image)| change(i, image));
}

/// Values between 0 and 1, `[n, c, h, w]`, as the network takes them: `(v - mean) / std` by channel.
pub(super) fn normalised(
    values: impl Iterator<Item = f32>,
    shape: (usize, usize, usize, usize),
    prep: &Preprocess,
) -> Result<Tensor> {
    let (_, c, h, w) = shape;
    let area = (h * w).max(1);
    let of = |(i, v): (usize, f32)| {
        let channel = (i / area % c.max(1)).min(2);
        (v - prep.mean[channel]) / prep.std[channel]
    };
    Tensor::from_vec(values.enumerate().map(of).collect::<Vec<f32>>(), shape, &Device::Cpu)
}
