//! What the bits of GGML's blocks stand for.

use super::{Block, CODES, half, scale_min};
use Block::{IQ4_NL, IQ4_XS, Q2_K, Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0};
use rayon::prelude::*;

impl Block {
    /// The values of whole blocks; bytes beyond the last whole one are not looked at.
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        /// Blocks that a thread takes at a time.
        const PART: usize = 1 << 12;
        let mut out = vec![0.0; bytes.len() / self.size() * self.values()];
        let parts = out.par_chunks_mut(PART * self.values()).zip(bytes.par_chunks(PART * self.size()));
        parts.for_each(|(y, b)| self.decode_part(b, y));
        out
    }

    fn decode_part(self, bytes: &[u8], out: &mut [f32]) {
        let blocks = bytes.chunks_exact(self.size()).zip(out.chunks_exact_mut(self.values()));
        match self {
            Q4_0 => blocks.for_each(|(b, y)| q4_0(b, y)),
            Q4_1 => blocks.for_each(|(b, y)| q4_1(b, y)),
            Q5_0 => blocks.for_each(|(b, y)| q5_0(b, y)),
            Q5_1 => blocks.for_each(|(b, y)| q5_1(b, y)),
            Q8_0 => blocks.for_each(|(b, y)| q8_0(b, y)),
            Q2_K => blocks.for_each(|(b, y)| q2_k(b, y)),
            Q3_K => blocks.for_each(|(b, y)| q3_k(b, y)),
            Q4_K => blocks.for_each(|(b, y)| q4_k(b, y)),
            Q5_K => blocks.for_each(|(b, y)| q5_k(b, y)),
            Q6_K => blocks.for_each(|(b, y)| q6_k(b, y)),
            IQ4_NL => blocks.for_each(|(b, y)| iq4_nl(b, y)),
            IQ4_XS => blocks.for_each(|(b, y)| iq4_xs(b, y)),
        }
    }
}

/// Calls `f` with the index and the four bits of each of 32 values: sixteen low nibbles, then the high ones.
fn nibbles(qs: &[u8], y: &mut [f32], f: impl Fn(usize, u8) -> f32) {
    let (low, high) = y.split_at_mut(16);
    for (i, &q) in qs[..16].iter().enumerate() {
        low[i] = f(i, q & 15);
        high[i] = f(i + 16, q >> 4);
    }
}

fn q4_0(b: &[u8], y: &mut [f32]) {
    let d = half(b, 0);
    nibbles(&b[2..], y, |_, q| d * (f32::from(q) - 8.0));
}

fn q4_1(b: &[u8], y: &mut [f32]) {
    let (d, m) = (half(b, 0), half(b, 2));
    nibbles(&b[4..], y, |_, q| d * f32::from(q) + m);
}

/// The fifth bits of 32 values.
fn fifth(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn q5_0(b: &[u8], y: &mut [f32]) {
    let (d, high) = (half(b, 0), fifth(b, 2));
    nibbles(&b[6..], y, |i, q| d * ((u32::from(q) | (high >> i & 1) << 4) as f32 - 16.0));
}

fn q5_1(b: &[u8], y: &mut [f32]) {
    let (d, m, high) = (half(b, 0), half(b, 2), fifth(b, 4));
    nibbles(&b[8..], y, |i, q| d * (u32::from(q) | (high >> i & 1) << 4) as f32 + m);
}

fn q8_0(b: &[u8], y: &mut [f32]) {
    let d = half(b, 0);
    y.iter_mut().zip(&b[2..]).for_each(|(y, &q)| *y = f32::from(q as i8) * d);
}

/// Two bits of value `i` of a super-block: four planes in every 32 bytes.
fn crumb(qs: &[u8], i: usize) -> u8 {
    qs[i / 128 * 32 + i % 32] >> (2 * (i / 32 % 4)) & 3
}

/// Four bits of value `i` of a super-block: two planes in every 32 bytes.
fn nibble(qs: &[u8], i: usize) -> u8 {
    qs[i / 64 * 32 + i % 32] >> (4 * (i / 32 % 2)) & 15
}

fn q2_k(b: &[u8], y: &mut [f32]) {
    let (scales, qs, d, dmin) = (&b[..16], &b[16..80], half(b, 80), half(b, 82));
    for (group, y) in y.chunks_exact_mut(16).enumerate() {
        let (dl, ml) = (d * f32::from(scales[group] & 15), dmin * f32::from(scales[group] >> 4));
        y.iter_mut().enumerate().for_each(|(i, y)| *y = dl * f32::from(crumb(qs, group * 16 + i)) - ml);
    }
}

fn q3_k(b: &[u8], y: &mut [f32]) {
    let (mask, qs, scales, d) = (&b[..32], &b[32..96], &b[96..108], half(b, 108));
    for (group, y) in y.chunks_exact_mut(16).enumerate() {
        // Six bits: four here, two there.
        let low = scales[group % 8] >> (4 * (group / 8)) & 15;
        let high = scales[8 + group % 4] >> (2 * (group / 4)) & 3;
        let dl = d * (f32::from(low | high << 4) - 32.0);
        for (i, y) in y.iter_mut().enumerate() {
            let at = group * 16 + i;
            // Where the third bit is missing, four is taken off.
            let off = if mask[at % 32] >> (at / 32) & 1 == 1 { 0.0 } else { 4.0 };
            *y = dl * (f32::from(crumb(qs, at)) - off);
        }
    }
}

fn q4_k(b: &[u8], y: &mut [f32]) {
    let (d, dmin, scales, qs) = (half(b, 0), half(b, 2), &b[4..16], &b[16..144]);
    for (group, y) in y.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(scales, group);
        let (dl, ml) = (d * scale, dmin * min);
        y.iter_mut().enumerate().for_each(|(i, y)| *y = dl * f32::from(nibble(qs, group * 32 + i)) - ml);
    }
}

fn q5_k(b: &[u8], y: &mut [f32]) {
    let (d, dmin, scales, high, qs) = (half(b, 0), half(b, 2), &b[4..16], &b[16..48], &b[48..176]);
    for (group, y) in y.chunks_exact_mut(32).enumerate() {
        let (scale, min) = scale_min(scales, group);
        let (dl, ml) = (d * scale, dmin * min);
        for (i, y) in y.iter_mut().enumerate() {
            *y = dl * f32::from(nibble(qs, group * 32 + i) | (high[i] >> group & 1) << 4) - ml;
        }
    }
}

fn q6_k(b: &[u8], y: &mut [f32]) {
    let (low, high, scales, d) = (&b[..128], &b[128..192], &b[192..208], half(b, 208));
    for (group, y) in y.chunks_exact_mut(16).enumerate() {
        let dl = d * f32::from(scales[group] as i8);
        for (i, y) in y.iter_mut().enumerate() {
            let at = group * 16 + i;
            let four = low[at / 128 * 64 + at % 64] >> (4 * (at / 64 % 2)) & 15;
            *y = dl * (f32::from(four | crumb(high, at) << 4) - 32.0);
        }
    }
}

fn iq4_nl(b: &[u8], y: &mut [f32]) {
    let d = half(b, 0);
    nibbles(&b[2..], y, |_, q| d * f32::from(CODES[usize::from(q)]));
}

fn iq4_xs(b: &[u8], y: &mut [f32]) {
    let (d, high) = (half(b, 0), u16::from_le_bytes([b[2], b[3]]));
    for (group, y) in y.chunks_exact_mut(32).enumerate() {
        let low = b[4 + group / 2] >> (4 * (group % 2)) & 15;
        let dl = d * (f32::from(low | ((high >> (2 * group) & 3) as u8) << 4) - 32.0);
        nibbles(&b[8 + 16 * group..], y, |_, q| dl * f32::from(CODES[usize::from(q)]));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bits of every value are held against the Python package by `gguf/tests.rs`; here the shapes of blocks.
    #[test]
    fn blocks_have_their_sizes() {
        for block in Block::ALL {
            let decoded = block.decode(&vec![0x12; 3 * block.size() + 1]);
            assert_eq!(decoded.len(), 3 * block.values(), "{}", block.label());
            assert!(decoded.iter().any(|v| *v != 0.0) && decoded.iter().all(|v| v.is_finite()));
        }
    }

    #[test]
    fn a_block_by_hand() {
        // d = 0.5, m = -1; value 0 is the low nibble of the first byte, value 16 its high one.
        let mut b = vec![0; 20];
        b[..2].copy_from_slice(&half::f16::from_f32(0.5).to_le_bytes());
        b[2..4].copy_from_slice(&half::f16::from_f32(-1.0).to_le_bytes());
        b[4] = 0x7f;
        let y = Q4_1.decode(&b);
        assert_eq!((y[0], y[16], y[1]), (6.5, 2.5, -1.0));
    }
}
