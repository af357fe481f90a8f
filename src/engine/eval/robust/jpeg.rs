//! What baseline JPEG (ITU-T T.81) loses of an image, as libjpeg does it with its usual settings: colours turned (JFIF), chroma halved both
//! ways, blocks transformed and quantized by the example tables of annex K, and the way back, with chroma interpolated.
//!
//! Codes are left out, since they lose nothing. Everything is of whole numbers and rounded as libjpeg rounds it (`jfdctint.c`, `jidctint.c`,
//! `jcsample.c`, `jdsample.c`), so that Pillow's images come out to the bit: `tests/robust.rs`. Invariants: sides of any length, one plane or three.

use super::corruption::Image;

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
fn steps(table: &[u16; 64], quality: u32) -> [i32; 64] {
    let quality = quality.clamp(1, 100);
    let scale = if quality < 50 { 5000 / quality } else { 200 - 2 * quality };
    table.map(|t| ((u32::from(t) * scale + 50) / 100).clamp(1, 255) as i32)
}

/// Fractions of 8192 in the cosine transform of Loeffler, Ligtenberg and Moschytz (1989), as libjpeg's exact variant has them.
const BITS: u32 = 13;

/// The odd half of both directions: sums for frequencies 7, 5, 3, 1, or for places 3 to 0 and 4 to 7.
fn odd([a, b, c, d]: [i32; 4]) -> [i32; 4] {
    let z5 = (a + c + b + d) * 9633;
    let (z1, z2) = ((a + d) * -7373, (b + c) * -20995);
    let (z3, z4) = ((a + c) * -16069 + z5, (b + d) * -3196 + z5);
    [a * 2446 + z1 + z3, b * 16819 + z2 + z4, c * 25172 + z2 + z3, d * 12299 + z1 + z4]
}

/// Divided by a power of two, to the nearest.
fn scaled(v: i32, shift: u32) -> i32 {
    (v + (1 << (shift - 1))) >> shift
}

/// Frequencies of eight values.
fn forward(d: [i32; 8], shift: u32) -> [i32; 8] {
    let [t0, t1, t2, t3] = [0, 1, 2, 3].map(|i| d[i] + d[7 - i]);
    let (sums, (t12, t13)) = ((t0 + t3, t1 + t2), (t1 - t2, t0 - t3));
    let z = (t12 + t13) * 4433;
    let [o7, o5, o3, o1] = odd([3, 2, 1, 0].map(|i| d[i] - d[7 - i]));
    let (o0, o4) = ((sums.0 + sums.1) << BITS, (sums.0 - sums.1) << BITS);
    [o0, o1, z + t13 * 6270, o3, o4, o5, z - t12 * 15137, o7].map(|v| scaled(v, shift))
}

/// Eight values of frequencies.
fn inverse(d: [i32; 8], shift: u32) -> [i32; 8] {
    let z = (d[2] + d[6]) * 4433;
    let (t2, t3) = (z - d[6] * 15137, z + d[2] * 6270);
    let (t0, t1) = ((d[0] + d[4]) << BITS, (d[0] - d[4]) << BITS);
    let even = [t0 + t3, t1 + t2, t1 - t2, t0 - t3];
    let [o3, o2, o1, o0] = odd([d[7], d[5], d[3], d[1]]);
    let odd = [o0, o1, o2, o3];
    std::array::from_fn(|i| scaled(if i < 4 { even[i] + odd[i] } else { even[7 - i] - odd[7 - i] }, shift))
}

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
    fn quantized(&self, steps: &[i32; 64]) -> Plane {
        let mut values = vec![0u8; self.values.len()];
        for (top, left) in (0..self.height).step_by(8).flat_map(|y| (0..self.width).step_by(8).map(move |x| (y, x))) {
            let block: Block =
                std::array::from_fn(|y| std::array::from_fn(|x| i32::from(self.at(top + y, left + x)) - 128));
            // Along rows with two bits more than a whole, then along columns: frequencies times eight, by columns.
            let mut found =
                transposed(&block.map(|row| forward(row, BITS - 2))).map(|column| forward(column, BITS + 2));
            for (u, column) in found.iter_mut().enumerate() {
                for (v, value) in column.iter_mut().enumerate() {
                    let step = steps[8 * v + u];
                    *value = value.signum() * ((value.abs() + 4 * step) / (8 * step)) * step;
                }
            }
            let columns = found.map(|column| inverse(column, BITS - 2));
            let back = transposed(&columns).map(|row| inverse(row, BITS + 5));
            for (y, row) in back.iter().enumerate().take(self.height - top) {
                for (x, v) in row.iter().enumerate().take(self.width - left) {
                    values[(top + y) * self.width + left + x] = (v + 128).clamp(0, 255) as u8;
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

/// Eight rows of eight.
type Block = [[i32; 8]; 8];

fn transposed(m: &Block) -> Block {
    std::array::from_fn(|i| std::array::from_fn(|j| m[j][i]))
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
