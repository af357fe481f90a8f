//! Values in blocks where columns of the row are of unlike importance, bit for bit as ggml's quantizers write them with weights
//! (`quantize_row_*_impl` in `ggml-quants.c`, "imatrix" in llama.cpp). Not here: blocks without (`encode`, `superblocks`), those whose
//! codes are unevenly spaced (`nonlinear`), and where importance comes from (`model::imatrix`).

use super::Block::{self, IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
use super::encode::{NOTHING, fifths, nibbles, put_half};
use super::superblocks::{self, Search, nearest, scale_and_min, symmetric};
use super::{SUPER, nonlinear};
use rayon::prelude::*;

impl Block {
    /// As [`Block::encode`] for rows of `importance.len()` values, whose columns count by `importance` (finite, not negative), as ggml
    /// takes it: for most formats times the root of the value's own square and the mean square around it. `Q8_0` has no use for it.
    /// Rows that are no whole blocks, or none at all, give nothing.
    pub fn encode_weighted(self, values: &[f32], importance: &[f32]) -> Vec<u8> {
        let cols = importance.len();
        if cols == 0 || !cols.is_multiple_of(self.values()) {
            return Vec::new();
        }
        if self == Q8_0 {
            return self.encode(values);
        }
        let mut out = vec![0; values.len() / cols * (cols / self.values()) * self.size()];
        let rows = out.par_chunks_mut(cols / self.values() * self.size()).zip(values.par_chunks(cols));
        rows.for_each(|(b, x)| self.encode_row(x, importance, b));
        out
    }

    fn encode_row(self, row: &[f32], importance: &[f32], out: &mut [u8]) {
        // The mean square of the row, for formats whose blocks are too short for one of their own.
        let sigma2 = squares(row) / row.len() as f32;
        let n = self.values();
        let blocks = row.chunks_exact(n).zip(importance.chunks_exact(n)).zip(out.chunks_exact_mut(self.size()));
        blocks.for_each(|((x, w), b)| match self {
            Q4_0 => four_zero(x, &weights(x, w, sigma2), b),
            Q4_1 => four_one(x, &weights(x, w, sigma2), b),
            Q5_0 => five_zero(x, &weights(x, w, sigma2), b),
            Q5_1 => five_one(x, &weights(x, w, sigma2), b),
            Q8_0 => {}
            Q2_K => q2_k(x, w, b),
            Q3_K => q3_k(x, w, b),
            Q4_K => {
                let codes = eight_groups(15, x, w, b);
                self.place(&codes, b);
            }
            Q5_K => {
                let codes = eight_groups(31, x, w, b);
                self.place(&codes, b);
            }
            // By importance alone.
            Q6_K => superblocks::q6_k(x, Some(w), b),
            IQ4_NL => nonlinear::iq4_nl(x, Some(w), b),
            IQ4_XS => nonlinear::iq4_xs(x, Some(w), b),
        });
    }
}

/// The sum of squares, in order.
fn squares(x: &[f32]) -> f32 {
    x.iter().fold(0f32, |sum, x| sum + x * x)
}

/// What each of `N` values counts.
pub(super) fn weights<const N: usize>(x: &[f32], importance: &[f32], sigma2: f32) -> [f32; N] {
    std::array::from_fn(|i| importance[i] * (sigma2 + x[i] * x[i]).sqrt())
}

/// How finely scales and minima are searched for.
fn search(top: i32) -> Search {
    Search { top, from: -0.9, step: 0.05, steps: 36, plain: false }
}

fn four_zero(x: &[f32], weights: &[f32; 32], b: &mut [u8]) {
    let mut codes = [0i8; 32];
    put_half(b, 0, symmetric(8, x, weights, &mut codes));
    nibbles(|i| codes[i].cast_unsigned(), &mut b[2..]);
}

fn five_zero(x: &[f32], weights: &[f32; 32], b: &mut [u8]) {
    let mut codes = [0i8; 32];
    put_half(b, 0, symmetric(16, x, weights, &mut codes));
    fifths(|i| codes[i].cast_unsigned(), &mut b[2..]);
    nibbles(|i| codes[i].cast_unsigned(), &mut b[6..]);
}

fn four_one(x: &[f32], weights: &[f32; 32], b: &mut [u8]) {
    let mut codes = [0u8; 32];
    let (d, min) = scale_and_min(&search(15), x, weights, &mut codes);
    put_half(b, 0, d);
    put_half(b, 2, -min);
    nibbles(|i| codes[i], &mut b[4..]);
}

fn five_one(x: &[f32], weights: &[f32; 32], b: &mut [u8]) {
    let mut codes = [0u8; 32];
    let (d, min) = scale_and_min(&search(31), x, weights, &mut codes);
    put_half(b, 0, d);
    put_half(b, 2, -min);
    fifths(|i| codes[i], &mut b[4..]);
    nibbles(|i| codes[i], &mut b[8..]);
}

/// The scale with which codes from 0 to `top` come nearest to `x`, none of which is negative but by rounding, by `weights`; codes are
/// moved one by one as long as that helps. (`make_qp_quants`, whose codes are bytes: what is below 0 wraps.)
fn positive(top: i32, x: &[f32], weights: &[f32], codes: &mut [u8]) -> f32 {
    let byte = |l: i32| l.to_le_bytes()[0];
    let max = x.iter().fold(0f32, |m, v| if m > *v { m } else { *v });
    if max < NOTHING {
        codes.fill(0);
        return 0.0;
    }
    let top_f = top as f32;
    let error = |inverse: f32, code: &dyn Fn(f32) -> f32| {
        let scale = 1.0 / inverse;
        x.iter().zip(weights).fold(0f32, |sum, (x, w)| {
            let diff = x - scale * code(inverse * x);
            sum + w * diff * diff
        })
    };
    let mut inverse = top_f / max;
    let mut best = error(inverse, &|v| f32::from(byte(nearest(v))));
    for i in (-4..=4).filter(|i| *i != 0) {
        let tried = (0.1 * i as f32 + top_f) / max;
        let this = error(tried, &|v| nearest(v).min(top) as f32);
        if this < best {
            (best, inverse) = (this, tried);
        }
    }
    let (mut sum_lx, mut sum_l2) = (0f32, 0f32);
    for ((x, w), code) in x.iter().zip(weights).zip(codes.iter_mut()) {
        let l = nearest(inverse * x).min(top);
        *code = byte(l);
        let l = l as f32;
        sum_lx += w * x * l;
        sum_l2 += w * l * l;
    }
    for _ in 0..5 {
        let mut changed = false;
        for ((x, w), code) in x.iter().zip(weights).zip(codes.iter_mut()) {
            let old = f32::from(*code);
            let (mut lx, mut l2) = (sum_lx - w * x * old, sum_l2 - w * old * old);
            if lx > 0.0 && l2 > 0.0 {
                let new = nearest(x * l2 / lx).min(top);
                if new != i32::from(*code) {
                    let l = new as f32;
                    lx += w * x * l;
                    l2 += w * l * l;
                    if lx * lx * sum_l2 > sum_lx * sum_lx * l2 {
                        *code = byte(new);
                        (sum_lx, sum_l2) = (lx, l2);
                        changed = true;
                    }
                }
            }
        }
        if !changed {
            break;
        }
    }
    if sum_l2 > 0.0 { sum_lx / sum_l2 } else { 0.0 }
}

fn q2_k(x: &[f32], importance: &[f32], b: &mut [u8]) {
    let mut codes = [0u8; SUPER];
    let (mut scales, mut mins, mut sums) = ([0f32; 16], [0f32; 16], [0f32; 16]);
    let sigma2 = squares(x) / SUPER as f32;
    let groups = x.chunks_exact(16).zip(importance.chunks_exact(16)).zip(codes.chunks_exact_mut(16));
    for (j, ((x, w), codes)) in groups.enumerate() {
        let weights: [f32; 16] = weights(x, w, sigma2);
        sums[j] = sum(&weights);
        (scales[j], mins[j]) = scale_and_min(&search(3), x, &weights, codes);
    }
    let (mut ls, mut lm) = ([0u8; 16], [0u8; 16]);
    let d = positive(15, &scales, &sums, &mut ls);
    let min = positive(15, &mins, &sums, &mut lm);
    (0..16).for_each(|j| b[j] = ls[j] | lm[j] << 4);
    superblocks::q2_k_codes(x, (d, min), codes, b);
}

fn q3_k(x: &[f32], importance: &[f32], b: &mut [u8]) {
    let mut codes = [0i8; SUPER];
    let (mut scales, mut sums) = ([0f32; 16], [0f32; 16]);
    let sigma2 = 2.0 * squares(x) / SUPER as f32;
    let groups = x.chunks_exact(16).zip(importance.chunks_exact(16)).zip(codes.chunks_exact_mut(16));
    for (j, ((x, w), codes)) in groups.enumerate() {
        let weights: [f32; 16] = weights(x, w, sigma2);
        sums[j] = sum(&weights);
        scales[j] = symmetric(4, x, &weights, codes);
    }
    let mut rounded = [0i8; 16];
    let d = symmetric(32, &scales, &sums, &mut rounded);
    superblocks::q3_k_codes(x, d, &rounded.map(i8::cast_unsigned), codes, b);
}

/// Codes up to `top` of 256 values in groups of 32, with scales and minima of six bits at `b[4..16]`.
fn eight_groups(top: i32, x: &[f32], importance: &[f32], b: &mut [u8]) -> [u8; SUPER] {
    let mut codes = [0u8; SUPER];
    let (mut scales, mut mins, mut sums) = ([0f32; 8], [0f32; 8], [0f32; 8]);
    let sigma2 = 2.0 * squares(x) / SUPER as f32;
    let groups = x.chunks_exact(32).zip(importance.chunks_exact(32)).zip(codes.chunks_exact_mut(32));
    for (j, ((x, w), codes)) in groups.enumerate() {
        let weights: [f32; 32] = weights(x, w, sigma2);
        sums[j] = sum(&weights);
        (scales[j], mins[j]) = scale_and_min(&search(top), x, &weights, codes);
    }
    let (mut ls, mut lm) = ([0u8; 8], [0u8; 8]);
    let d = positive(63, &scales, &sums, &mut ls);
    let min = positive(63, &mins, &sums, &mut lm);
    superblocks::eight_codes(top, x, (d, min), (&ls, &lm), codes, b)
}

/// In order.
fn sum(x: &[f32]) -> f32 {
    x.iter().fold(0f32, |sum, x| sum + x)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes themselves are held against the originals' by `gguf/tests.rs`; here what importance is for.
    #[test]
    fn what_counts_more_comes_back_nearer() {
        // Of each 16 columns four count a hundred times as much as the others.
        let importance: Vec<f32> = (0..512).map(|i| if i % 16 < 4 { 100.0 } else { 1.0 }).collect();
        let x: Vec<f32> = (0..4 * 512).map(|i| ((i * 7919 % 1009) as f32 / 504.5 - 1.0).powi(3)).collect();
        let error = |y: &[f32]| {
            let each = x.iter().zip(y).zip(importance.iter().cycle());
            each.map(|((x, y), w)| f64::from(w * (x - y) * (x - y))).sum::<f64>()
        };
        for block in Block::ALL {
            let (plain, with) = (block.encode(&x), block.encode_weighted(&x, &importance));
            assert_eq!(plain.len(), with.len());
            let (plain, with) = (error(&block.decode(&plain)), error(&block.decode(&with)));
            assert!(if block == Q8_0 { with == plain } else { with < plain }, "{block:?}: {with} {plain}");
            assert!(
                block.encode_weighted(&x[..31], &[1.0; 31]).is_empty() && block.encode_weighted(&[], &[]).is_empty()
            );
        }
    }
}
