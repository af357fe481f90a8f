//! Samples of a layer's input and of its target at seeded random places, as matrices.
//!
//! Invariant: the same seed, layer and images give the same places, whatever the chunking of the rest.

use crate::graph::{Op, op};
use candle_core::{Device, Tensor};
use rand::seq::index;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

/// Where a layer's output is looked at.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Places {
    /// Positions or tokens per image at most; all of them when there are no more.
    pub per_image: usize,
    /// Only this token, if no other matters.
    pub token: Option<usize>,
}

/// Output places of one image: positions of a convolution (row-major) or tokens.
pub(crate) fn draw(places: Places, total: usize, rng: &mut ChaCha8Rng) -> Vec<usize> {
    if let Some(t) = places.token.filter(|t| *t < total) {
        return vec![t];
    }
    if total <= places.per_image {
        return (0..total).collect();
    }
    let mut at = index::sample(rng, total, places.per_image).into_vec();
    at.sort_unstable();
    at
}

/// Output places per image of a value `[C, H, W]`, `[T, D]` or `[D]`, and how many of them make a row.
pub(crate) fn places_of(shape: &[usize]) -> (usize, usize) {
    match *shape {
        [_, h, w] => (h * w, w),
        [t, _] => (t, 1),
        _ => (1, 1),
    }
}

/// The layer's input rows `[samples, fan-in]` (in its weight's column order) that feed the places `at[n]` of image `n`.
pub(crate) fn inputs(op: &Op, x: &Tensor, out_width: usize, at: &[Vec<usize>]) -> candle_core::Result<Tensor> {
    let x = x.to_device(&Device::Cpu)?.contiguous()?;
    match (op, x.dims()) {
        (Op::Conv2d(op::Conv2d { kernel, stride, padding, .. }), &[_, c, h, w]) => {
            let values = x.flatten_all()?.to_vec1::<f32>()?;
            let (kh, kw) = (kernel[0], kernel[1]);
            let width = c * kh * kw;
            let samples: usize = at.iter().map(Vec::len).sum();
            let mut out = vec![0f32; samples * width];
            let list: Vec<(usize, usize)> =
                at.iter().enumerate().flat_map(|(n, a)| a.iter().map(move |&p| (n, p))).collect();
            out.par_chunks_mut(width.max(1)).zip(list.par_iter()).for_each(|(row, &(n, p))| {
                let (top, left) = ((p / out_width * stride[0]) as isize, (p % out_width * stride[1]) as isize);
                let (top, left) = (top - padding[0] as isize, left - padding[1] as isize);
                for ch in 0..c {
                    let plane = &values[(n * c + ch) * h * w..][..h * w];
                    for ky in 0..kh {
                        let y = top + ky as isize;
                        if y < 0 || y >= h as isize {
                            continue;
                        }
                        for kx in 0..kw {
                            let xx = left + kx as isize;
                            if xx >= 0 && xx < w as isize {
                                row[(ch * kh + ky) * kw + kx] = plane[y as usize * w + xx as usize];
                            }
                        }
                    }
                }
            });
            Tensor::from_vec(out, (samples, width), &Device::Cpu)
        }
        _ => values(&x, at),
    }
}

/// The rows `[samples, channels]` of a value at the places `at[n]` of image `n`.
pub(super) fn values(v: &Tensor, at: &[Vec<usize>]) -> candle_core::Result<Tensor> {
    let v = v.to_device(&Device::Cpu)?;
    let v = match v.dims() {
        // Channels last, so that a place is a row.
        [n, c, h, w] => v.reshape((*n, *c, h * w))?.transpose(1, 2)?,
        [_, _, _] => v,
        _ => v.unsqueeze(1)?,
    };
    let v = v.contiguous()?;
    let (_, places, channels) = v.dims3()?;
    let flat = v.reshape(((), channels))?;
    let rows: Vec<u32> =
        at.iter().enumerate().flat_map(|(n, a)| a.iter().map(move |&p| (n * places + p) as u32)).collect();
    let rows = Tensor::new(rows, &Device::Cpu)?;
    flat.index_select(&rows, 0)
}

/// A target's values at sampled places of one chunk of images.
pub(super) struct Target {
    /// Per image, the places.
    pub at: Vec<Vec<usize>>,
    /// `[samples, channels]`.
    pub values: Tensor,
}

impl Target {
    /// Samples `value`; only the channels in `rows`, if given.
    pub fn of(
        value: &Tensor,
        places: Places,
        rows: Option<&[u32]>,
        rng: &mut ChaCha8Rng,
    ) -> candle_core::Result<Target> {
        let (&images, shape) = value.dims().split_first().unwrap_or((&0, &[]));
        let (total, _) = places_of(shape);
        let at: Vec<Vec<usize>> = (0..images).map(|_| draw(places, total, rng)).collect();
        let mut values = values(value, &at)?;
        if let Some(rows) = rows {
            values = values.index_select(&Tensor::new(rows, &Device::Cpu)?, 1)?;
        }
        Ok(Target { at, values })
    }
}
