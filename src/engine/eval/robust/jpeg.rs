//! What baseline JPEG (ITU-T T.81) loses of an image, as libjpeg does it with its usual settings: colours turned (JFIF), chroma halved both
//! ways, blocks transformed and quantized by the example tables of annex K, and the way back, with chroma interpolated.
//!
//! Codes are left out, since they lose nothing. The transform is exact where libjpeg's is of whole numbers, so that single values may differ by a
//! level; `tests/robust.rs` holds it against Pillow. Invariants: sides of any length, one plane or three.

use super::corruption::Image;
use std::f64::consts::{FRAC_1_SQRT_2, PI};
use std::sync::LazyLock;

/// Quantization steps at quality 50 (T.81, tables K.1 and K.2), by rows of frequencies.
const LUMA: [u16; 64] = [
    16, 11, 10, 16, 24, 40, 51, 61, 12, 12, 14, 19, 26, 58, 60, 55, 14, 13, 16, 24, 40, 57, 69, 56, 14, 17, 22, 29, 51,
    87, 80, 62, 18, 22, 37, 56, 68, 109, 103, 77, 24, 35, 55, 64, 81, 104, 113, 92, 49, 64, 78, 87, 103, 121, 120, 101,
    72, 92, 95, 98, 112, 100, 103, 99,
];
const CHROMA: [u16; 64] = [
    17, 18, 24, 47, 99, 99, 99, 99, 18, 21, 26, 66, 99, 99, 99, 99, 24, 26, 56, 99, 99, 99, 99, 99, 47, 66, 99, 99, 99,
    99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99, 99,
    99, 99, 99, 99, 99, 99,
];

/// Steps at a quality of 1 to 100, as libjpeg scales them.
fn steps(table: &[u16; 64], quality: u32) -> [f64; 64] {
    let quality = quality.clamp(1, 100);
    let scale = if quality < 50 { 5000 / quality } else { 200 - 2 * quality };
    table.map(|t| f64::from(((u32::from(t) * scale + 50) / 100).clamp(1, 255)))
}

/// The cosine transform's matrix, orthonormal: frequencies by places.
static COSINES: LazyLock<[[f64; 8]; 8]> = LazyLock::new(|| {
    let norm = |u: usize| if u == 0 { FRAC_1_SQRT_2 / 2.0 } else { 0.5 };
    std::array::from_fn(|u| std::array::from_fn(|x| norm(u) * ((2 * x + 1) as f64 * u as f64 * PI / 16.0).cos()))
});

/// One plane of bytes.
struct Plane {
    values: Vec<u8>,
    width: usize,
    height: usize,
}

impl Plane {
    fn at(&self, y: usize, x: usize) -> u8 {
        self.values[y.min(self.height - 1) * self.width + x.min(self.width - 1)]
    }

    /// After quantization by `steps`; what lies past the edges repeats them.
    fn quantized(&self, steps: &[f64; 64]) -> Plane {
        let mut values = vec![0u8; self.values.len()];
        let cosines = &*COSINES;
        for (top, left) in (0..self.height).step_by(8).flat_map(|y| (0..self.width).step_by(8).map(move |x| (y, x))) {
            let block: [[f64; 8]; 8] =
                std::array::from_fn(|y| std::array::from_fn(|x| f64::from(self.at(top + y, left + x)) - 128.0));
            let mut found = product(cosines, &transposed(&product(&block, cosines)));
            // Half a step away from zero.
            found.iter_mut().flatten().zip(steps).for_each(|(v, q)| *v = (*v / q).round() * q);
            let turned = transposed(cosines);
            let back = product(&turned, &transposed(&product(&found, &turned)));
            for (y, row) in back.iter().enumerate().take(self.height - top) {
                for (x, v) in row.iter().enumerate().take(self.width - left) {
                    // `as` saturates.
                    values[(top + y) * self.width + left + x] = (v + 128.0).round() as u8;
                }
            }
        }
        Plane { values, ..*self }
    }

    /// A quarter of the values: means of four, rounded down and up by turns along a row. Rows go on to the end of a block, with means of what the
    /// last value of a row is repeated to; columns end where they end.
    fn halved(&self) -> Plane {
        let (width, height) = (self.width.div_ceil(16) * 8, self.height.div_ceil(2));
        let mean = |i: usize| {
            let (y, x) = (2 * (i / width), 2 * (i % width));
            let four = [(y, x), (y, x + 1), (y + 1, x), (y + 1, x + 1)];
            let sum: u16 = four.iter().map(|(y, x)| u16::from(self.at(*y, *x))).sum();
            ((sum + 1 + (i % width % 2) as u16) >> 2) as u8
        };
        Plane { values: (0..width * height).map(mean).collect(), width, height }
    }

    /// Brought back to `width` by `height`: each value is three parts of the nearest and one of the next along both axes, rounded down and up by
    /// turns; what is as narrow as two values is repeated.
    fn doubled(&self, width: usize, height: usize) -> Plane {
        // What goes on to the end of a block is no part of the image.
        let columns = width.div_ceil(2);
        let at = |y: usize, x: usize| self.at(y, x.min(columns - 1));
        let value = |i: usize| {
            let (y, x) = (i / width, i % width);
            if columns <= 2 {
                return at(y / 2, x / 2);
            }
            // The row before for an upper one, else the row after.
            let near = if y % 2 == 0 { (y / 2).saturating_sub(1) } else { y / 2 + 1 };
            let column = |x: usize| 3 * u16::from(at(y / 2, x)) + u16::from(at(near, x));
            let (beside, round) = if x % 2 == 0 { ((x / 2).saturating_sub(1), 8) } else { (x / 2 + 1, 7) };
            ((3 * column(x / 2) + column(beside) + round) >> 4) as u8
        };
        Plane { values: (0..width * height).map(value).collect(), width, height }
    }
}

fn transposed(m: &[[f64; 8]; 8]) -> [[f64; 8]; 8] {
    std::array::from_fn(|i| std::array::from_fn(|j| m[j][i]))
}

/// `a · bᵀ`: rows with rows.
fn product(a: &[[f64; 8]; 8], b: &[[f64; 8]; 8]) -> [[f64; 8]; 8] {
    std::array::from_fn(|i| std::array::from_fn(|j| a[i].iter().zip(&b[j]).map(|(a, b)| a * b).sum()))
}

/// A fraction of 65536, as libjpeg's tables have them.
const HALF: i32 = 1 << 15;

fn turned([r, g, b]: [u8; 3]) -> [u8; 3] {
    let [r, g, b] = [r, g, b].map(i32::from);
    let y = (19595 * r + 38470 * g + 7471 * b + HALF) >> 16;
    let cb = (-11059 * r - 21709 * g + HALF * b + (128 << 16) + HALF - 1) >> 16;
    let cr = (HALF * r - 27439 * g - 5329 * b + (128 << 16) + HALF - 1) >> 16;
    [y, cb, cr].map(|v| v.clamp(0, 255) as u8)
}

fn turned_back([y, cb, cr]: [u8; 3]) -> [u8; 3] {
    let (y, cb, cr) = (i32::from(y), i32::from(cb) - 128, i32::from(cr) - 128);
    let r = y + ((91881 * cr + HALF) >> 16);
    let g = y + ((-22554 * cb - 46802 * cr + HALF) >> 16);
    let b = y + ((116_130 * cb + HALF) >> 16);
    [r, g, b].map(|v| v.clamp(0, 255) as u8)
}

/// Puts in the place of `image` what is left of it after JPEG of this quality, 1 to 100.
pub(super) fn lossy(image: &mut Image<'_>, quality: u32) {
    let (width, height) = (image.width, image.height);
    let area = width * height;
    if area == 0 {
        return;
    }
    let plane = |values: Vec<u8>| Plane { values, width, height };
    let (luma, chroma) = (steps(&LUMA, quality), steps(&CHROMA, quality));
    if image.channels != 3 {
        for one in image.bytes.chunks_exact_mut(area) {
            one.copy_from_slice(&plane(one.to_vec()).quantized(&luma).values);
        }
        return;
    }
    let pixel = |bytes: &[u8], i: usize| [bytes[i], bytes[area + i], bytes[2 * area + i]];
    let colours: Vec<[u8; 3]> = (0..area).map(|i| turned(pixel(image.bytes, i))).collect();
    let of = |k: usize| plane(colours.iter().map(|p| p[k]).collect());
    let y = of(0).quantized(&luma);
    let [cb, cr] = [1, 2].map(|k| of(k).halved().quantized(&chroma).doubled(width, height));
    for i in 0..area {
        let [r, g, b] = turned_back([y.values[i], cb.values[i], cr.values[i]]);
        (image.bytes[i], image.bytes[area + i], image.bytes[2 * area + i]) = (r, g, b);
    }
}
