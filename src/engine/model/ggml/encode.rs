//! Values in blocks, bit for bit as ggml's reference quantizers write them. Here formats of 32 values; those of 256 are in `superblocks`,
//! those whose codes are unevenly spaced in `nonlinear`, and blocks by importance in `weighted`.

use super::{Block, nonlinear, superblocks};
use Block::{IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
use rayon::prelude::*;

/// Groups of values that are no larger than this have scale 0.
pub(super) const NOTHING: f32 = 1e-15;

impl Block {
    /// The blocks of `values`, in which rows are whole blocks; values beyond the last whole one are left out. Must be finite.
    pub fn encode(self, values: &[f32]) -> Vec<u8> {
        /// Blocks that a thread takes at a time.
        const PART: usize = 1 << 8;
        let mut out = vec![0; values.len() / self.values() * self.size()];
        let parts = out.par_chunks_mut(PART * self.size()).zip(values.par_chunks(PART * self.values()));
        parts.for_each(|(b, x)| self.encode_part(x, b));
        out
    }

    fn encode_part(self, values: &[f32], out: &mut [u8]) {
        let blocks = values.chunks_exact(self.values()).zip(out.chunks_exact_mut(self.size()));
        match self {
            Q4_0 => blocks.for_each(|(x, b)| q4_0(x, b)),
            Q4_1 => blocks.for_each(|(x, b)| q4_1(x, b)),
            Q5_0 => blocks.for_each(|(x, b)| q5_0(x, b)),
            Q5_1 => blocks.for_each(|(x, b)| q5_1(x, b)),
            Q8_0 => blocks.for_each(|(x, b)| q8_0(x, b)),
            Q2_K => blocks.for_each(|(x, b)| superblocks::q2_k(x, b)),
            Q3_K => blocks.for_each(|(x, b)| superblocks::q3_k(x, b)),
            Q4_K => blocks.for_each(|(x, b)| superblocks::q4_k(x, b)),
            Q5_K => blocks.for_each(|(x, b)| superblocks::q5_k(x, b)),
            Q6_K => blocks.for_each(|(x, b)| superblocks::q6_k(x, None, b)),
            IQ4_NL => blocks.for_each(|(x, b)| nonlinear::iq4_nl(x, None, b)),
            IQ4_XS => blocks.for_each(|(x, b)| nonlinear::iq4_xs(x, None, b)),
        }
    }
}

/// Writes `v` as a half-precision number. Returns what it became.
pub(super) fn put_half(b: &mut [u8], at: usize, v: f32) -> f32 {
    let half = half::f16::from_f32(v);
    b[at..at + 2].copy_from_slice(&half.to_le_bytes());
    half.to_f32()
}

/// The first value that none after it is larger than, signs left aside; 0 where all are.
pub(super) fn extreme(x: &[f32]) -> f32 {
    let larger = |(size, v): (f32, f32), x: &f32| if size < x.abs() { (x.abs(), *x) } else { (size, v) };
    x.iter().fold((0.0, 0.0), larger).1
}

/// The smallest and the largest value.
fn range(x: &[f32]) -> (f32, f32) {
    x.iter()
        .fold((f32::MAX, f32::MIN), |(low, high), &v| (if v < low { v } else { low }, if v > high { v } else { high }))
}

/// One over `d`, or 0.
pub(super) fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The whole part, of which the lowest eight bits stay; 0 for what is no number or infinite, which the inverse of a tiny scale makes:
/// what the originals get on x86.
fn code(v: f32) -> u8 {
    if v.is_finite() { (v as i32).to_le_bytes()[0] } else { 0 }
}

/// Sixteen low nibbles, then the high ones, of 32 codes.
pub(super) fn nibbles(codes: impl Fn(usize) -> u8, out: &mut [u8]) {
    out[..16].iter_mut().enumerate().for_each(|(i, b)| *b = codes(i) & 15 | codes(i + 16) << 4);
}

/// The fifth bits of 32 codes.
pub(super) fn fifths(codes: impl Fn(usize) -> u8, out: &mut [u8]) {
    let bits = (0..32).fold(0u32, |bits, i| bits | u32::from(codes(i) >> 4 & 1) << i);
    out[..4].copy_from_slice(&bits.to_le_bytes());
}

fn q4_0(x: &[f32], b: &mut [u8]) {
    let d = extreme(x) / -8.0;
    let id = inverse(d);
    put_half(b, 0, d);
    nibbles(|i| code(x[i] * id + 8.5).min(15), &mut b[2..]);
}

fn q4_1(x: &[f32], b: &mut [u8]) {
    let (min, max) = range(x);
    let d = (max - min) / 15.0;
    let id = inverse(d);
    put_half(b, 0, d);
    put_half(b, 2, min);
    nibbles(|i| code((x[i] - min) * id + 0.5).min(15), &mut b[4..]);
}

fn q5_0(x: &[f32], b: &mut [u8]) {
    let d = extreme(x) / -16.0;
    let id = inverse(d);
    put_half(b, 0, d);
    let codes = |i: usize| code(x[i] * id + 16.5).min(31);
    fifths(codes, &mut b[2..]);
    nibbles(codes, &mut b[6..]);
}

fn q5_1(x: &[f32], b: &mut [u8]) {
    let (min, max) = range(x);
    let d = (max - min) / 31.0;
    let id = inverse(d);
    put_half(b, 0, d);
    put_half(b, 2, min);
    let codes = |i: usize| code((x[i] - min) * id + 0.5).min(31);
    fifths(codes, &mut b[4..]);
    nibbles(codes, &mut b[8..]);
}

fn q8_0(x: &[f32], b: &mut [u8]) {
    let d = extreme(x).abs() / 127.0;
    let id = inverse(d);
    put_half(b, 0, d);
    // Halves away from zero.
    b[2..].iter_mut().zip(x).for_each(|(b, x)| *b = code((x * id).round()));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes themselves are held against the originals' by `gguf/tests.rs`; here what no rounding may do.
    #[test]
    fn every_format_comes_back_near_and_what_it_wrote_is_kept() {
        let wave =
            |n: usize| (0..n).map(|i| (i as f32 * 0.37).sin() * (1.0 + (i / 32) as f32 * 0.1)).collect::<Vec<_>>();
        for block in Block::ALL {
            let x = wave(3 * block.values());
            let bytes = block.encode(&x);
            assert_eq!(bytes.len(), 3 * block.size());
            let y = block.decode(&bytes);
            let error: f32 = x.iter().zip(&y).map(|(x, y)| (x - y) * (x - y)).sum();
            let power: f32 = x.iter().map(|x| x * x).sum();
            let coarse = matches!(block, Q2_K | Q3_K);
            assert!(error / power < if coarse { 0.05 } else { 0.01 }, "{block:?}: {}", error / power);
            assert!(block.decode(&block.encode(&vec![0.0; block.values()])).iter().all(|v| *v == 0.0), "{block:?}");
        }
    }
}
