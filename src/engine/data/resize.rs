//! Resampling of 8-bit RGB images exactly as Pillow does it: `Image.resize` with antialiasing, bit for bit.
//!
//! Two passes, across and then down, with a byte image between them; weights are normalised in f64 and rounded to 22
//! fractional bits; sums in i32 start at one half and are shifted and clipped. Source: Pillow, `src/libImaging/
//! Resample.c` (`precompute_coeffs`, `normalize_coeffs_8bpc`, `ImagingResampleHorizontal_8bpc`). Our own because
//! `fast_image_resize` follows Pillow-SIMD, which rounds weights to 16 bits.
//! Pillow 13 goes down first where that is cheaper; the two orders differ by at most one grey level, and this one is that of
//! every Pillow up to 12.
//! Every output pixel depends on the source alone, so a window of the result costs no more than its own pixels.

use crate::model::Interpolation;
use image::RgbImage;

/// Fractional bits of the weights: 32 less 8 for the pixel less 2 for what overshoots.
const BITS: u32 = 32 - 8 - 2;

/// Part of the resized image that is wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Window {
    pub x: usize,
    pub y: usize,
    pub w: usize,
    pub h: usize,
}

/// Half-width of a filter's kernel at scale 1, in pixels.
fn support(filter: Interpolation) -> f64 {
    match filter {
        Interpolation::Box => 0.5,
        Interpolation::Bilinear | Interpolation::Hamming => 1.0,
        Interpolation::Bicubic => 2.0,
        Interpolation::Lanczos => 3.0,
    }
}

/// A filter's weight at distance `x`.
fn weight(filter: Interpolation, x: f64) -> f64 {
    let sinc = |x: f64| {
        let x = x * std::f64::consts::PI;
        if x == 0.0 { 1.0 } else { x.sin() / x }
    };
    match filter {
        Interpolation::Box => f64::from(u8::from(x > -0.5 && x <= 0.5)),
        Interpolation::Bilinear => (1.0 - x.abs()).max(0.0),
        Interpolation::Hamming => match x.abs() {
            0.0 => 1.0,
            x if x >= 1.0 => 0.0,
            x => {
                let x = x * std::f64::consts::PI;
                x.sin() / x * (0.54 + 0.46 * x.cos())
            }
        },
        // Keys 1981 with a = -0.5.
        Interpolation::Bicubic => {
            const A: f64 = -0.5;
            match x.abs() {
                x if x < 1.0 => ((A + 2.0) * x - (A + 3.0)) * x * x + 1.0,
                x if x < 2.0 => (((x - 5.0) * x + 8.0) * x - 4.0) * A,
                _ => 0.0,
            }
        }
        Interpolation::Lanczos => {
            if (-3.0..3.0).contains(&x) {
                sinc(x) * sinc(x / 3.0)
            } else {
                0.0
            }
        }
    }
}

/// Weights of one output pixel: the first input pixel, and a weight for each from there on.
struct Taps {
    first: usize,
    weights: Vec<i32>,
}

/// Taps of output pixels `from..from + count` when `input` pixels become `output`.
fn taps(input: usize, output: usize, from: usize, count: usize, filter: Interpolation) -> Vec<Taps> {
    let scale = input as f64 / output as f64;
    let wide = scale.max(1.0);
    let reach = support(filter) * wide;
    let shrink = 1.0 / wide;
    let one = |at: usize| {
        let center = (at as f64 + 0.5) * scale;
        // Casts truncate and saturate, as the C code's do with its own bounds checks.
        let first = (center - reach + 0.5) as usize;
        let end = ((center + reach + 0.5) as usize).min(input);
        let raw: Vec<f64> = (first..end).map(|x| weight(filter, (x as f64 - center + 0.5) * shrink)).collect();
        let total: f64 = raw.iter().sum();
        let fixed = |w: &f64| {
            let w = (if total == 0.0 { *w } else { w / total }) * f64::from(1u32 << BITS);
            (w + if w < 0.0 { -0.5 } else { 0.5 }) as i32
        };
        Taps { first, weights: raw.iter().map(fixed).collect() }
    };
    (from..from + count).map(one).collect()
}

fn clip(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

const HALF: i32 = 1 << (BITS - 1);

/// `window` of `image` resized to `full` (width, height); equals cutting the window out of the whole result.
///
/// The window lies within `full`, which has no zero side.
pub(super) fn resize(image: &RgbImage, full: (usize, usize), window: Window, filter: Interpolation) -> RgbImage {
    let (iw, ih) = (image.width() as usize, image.height() as usize);
    let rows = if full.1 == ih { None } else { Some(taps(ih, full.1, window.y, window.h, filter)) };
    // Only the lines that the second pass reads.
    let (top, bottom) = match &rows {
        None => (window.y, window.y + window.h),
        Some(rows) => (
            rows.iter().map(|t| t.first).min().unwrap_or(0),
            rows.iter().map(|t| t.first + t.weights.len()).max().unwrap_or(0),
        ),
    };
    let line = |y: usize| image.as_raw().get(y * iw * 3..(y + 1) * iw * 3).unwrap_or_default();
    let width = window.w * 3;
    let mut across = vec![0u8; width * bottom.saturating_sub(top)];
    let columns = if full.0 == iw { None } else { Some(taps(iw, full.0, window.x, window.w, filter)) };
    for (y, out) in (top..bottom).zip(across.chunks_exact_mut(width.max(1))) {
        let line = line(y);
        let Some(columns) = &columns else {
            if let Some(part) = line.get(window.x * 3..window.x * 3 + width) {
                out.copy_from_slice(part);
            }
            continue;
        };
        for (taps, px) in columns.iter().zip(out.chunks_exact_mut(3)) {
            let mut sum = [HALF; 3];
            let pixels = line.get(taps.first * 3..).unwrap_or_default().chunks_exact(3);
            for (&w, p) in taps.weights.iter().zip(pixels) {
                for (s, &b) in sum.iter_mut().zip(p) {
                    *s = s.wrapping_add(w.wrapping_mul(i32::from(b)));
                }
            }
            for (o, s) in px.iter_mut().zip(sum) {
                *o = clip(s);
            }
        }
    }
    let pixels = match rows {
        None => across,
        Some(rows) => {
            let mut out = vec![0u8; width * window.h];
            let mut sums = vec![HALF; width];
            for (taps, out) in rows.iter().zip(out.chunks_exact_mut(width.max(1))) {
                sums.fill(HALF);
                let from = across.get((taps.first - top) * width..).unwrap_or_default();
                for (&w, line) in taps.weights.iter().zip(from.chunks_exact(width.max(1))) {
                    for (s, &b) in sums.iter_mut().zip(line) {
                        *s = s.wrapping_add(w.wrapping_mul(i32::from(b)));
                    }
                }
                for (o, &s) in out.iter_mut().zip(&sums) {
                    *o = clip(s);
                }
            }
            out
        }
    };
    RgbImage::from_raw(window.w as u32, window.h as u32, pixels).unwrap_or_default()
}
