//! Formats of GGML's that are read and not written: one to three bits a weight by points of lattices (`IQ1_S` to `IQ3_S`), ternary weights (`TQ1_0`, `TQ2_0`) and
//! microscaling floats (`MXFP4`).
//!
//! Source: `ggml-common.h` and `ggml-quants.c` of ggml; decoded values have the bits that the `gguf` package gives them. The lattices' points are ggml's,
//! packed in `grids.bin` by `tests/conformance/make_coded.py`. Not here: names and sizes (`graph::ggml`).

use super::{SUPER, half};
use crate::graph::ggml::Coded;

/// Sixteen bits a point; see `make_coded.py`.
static GRIDS: &[u8; 9216] = include_bytes!("grids.bin");

/// A lattice: where its points begin, and what its coordinates are.
struct Grid {
    first: usize,
    values: &'static [i8],
}

const EIGHTS: &[i8] = &[8, 25, 43];
const IQ2_XXS: Grid = Grid { first: 0, values: EIGHTS };
const IQ2_XS: Grid = Grid { first: 256, values: EIGHTS };
const IQ2_S: Grid = Grid { first: 768, values: EIGHTS };
const IQ3_XXS: Grid = Grid { first: 1792, values: &[4, 12, 20, 28, 36, 44, 52, 62] };
const IQ3_S: Grid = Grid { first: 2048, values: &[1, 3, 5, 7, 9, 11, 13, 15] };
const IQ1: Grid = Grid { first: 2560, values: &[-1, 0, 1] };

/// What is added to a coordinate of `IQ1_S` and `IQ1_M`, or taken off it.
const DELTA: f32 = 0.125;

/// Twice the values of `MXFP4`'s four bits.
const FLOATS: [i8; 16] = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl Grid {
    /// The coordinates of a point: eight of three values, or four of eight.
    fn point(&self, index: usize) -> impl Iterator<Item = f32> + '_ {
        let at = 2 * (self.first + index);
        let bits = u16::from_le_bytes([GRIDS[at], GRIDS[at + 1]]);
        let (each, n) = if self.values.len() == 3 { (2, 8) } else { (3, 4) };
        // Two bits of which no point has all.
        let of =
            move |i: u16| self.values.get(usize::from(bits >> (each * i) & ((1 << each) - 1))).copied().unwrap_or(0);
        (0..n).map(move |i| f32::from(of(i)))
    }
}

/// Seven signs and an eighth, which makes the number of negative ones even.
fn signs(seven: u32) -> u8 {
    let seven = (seven & 127) as u8;
    seven | ((seven.count_ones() as u8 & 1) << 7)
}

fn signed(v: f32, signs: u8, i: usize) -> f32 {
    if signs >> i & 1 == 0 { v } else { -v }
}

fn word(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}

fn short(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

/// Four bits, the low ones of a byte first.
fn nibble(b: &[u8], i: usize) -> f32 {
    f32::from(b[i / 2] >> (4 * (i % 2)) & 15)
}

impl Coded {
    /// The values of whole blocks.
    pub fn decode(self, bytes: &[u8]) -> Vec<f32> {
        let mut out = Vec::with_capacity(bytes.len() / self.size() * self.values());
        for block in bytes.chunks_exact(self.size()) {
            match self {
                Coded::IQ2_XXS => iq2_xxs(block, &mut out),
                Coded::IQ2_XS => iq2_xs(block, &mut out),
                Coded::IQ2_S => iq2_s(block, &mut out),
                Coded::IQ3_XXS => iq3_xxs(block, &mut out),
                Coded::IQ3_S => iq3_s(block, &mut out),
                Coded::IQ1_S => iq1_s(block, &mut out),
                Coded::IQ1_M => iq1_m(block, &mut out),
                Coded::TQ1_0 => tq1_0(block, &mut out),
                Coded::TQ2_0 => tq2_0(block, &mut out),
                Coded::MXFP4 => mxfp4(block, &mut out),
            }
        }
        out
    }
}

fn iq2_xxs(b: &[u8], out: &mut Vec<f32>) {
    let d = half(b, 0);
    for pair in b[2..].chunks_exact(8) {
        let more = word(pair, 4);
        let db = d * (0.5 + (more >> 28) as f32) * 0.25;
        for (l, index) in pair[..4].iter().enumerate() {
            let signs = signs(more >> (7 * l));
            let point = IQ2_XXS.point(usize::from(*index));
            out.extend(point.enumerate().map(|(i, v)| signed(db * v, signs, i)));
        }
    }
}

fn iq2_xs(b: &[u8], out: &mut Vec<f32>) {
    let (d, scales) = (half(b, 0), &b[66..]);
    for j in 0..SUPER / 8 {
        let q = short(b, 2 + 2 * j);
        let (db, signs) = (d * (0.5 + nibble(scales, j / 2)) * 0.25, signs(u32::from(q >> 9)));
        let point = IQ2_XS.point(usize::from(q & 511));
        out.extend(point.enumerate().map(|(i, v)| signed(db * v, signs, i)));
    }
}

fn iq2_s(b: &[u8], out: &mut Vec<f32>) {
    let (d, qs, signs, high, scales) = (half(b, 0), &b[2..34], &b[34..66], &b[66..74], &b[74..]);
    for j in 0..SUPER / 8 {
        let db = d * (0.5 + nibble(scales, j / 2)) * 0.25;
        let index = usize::from(qs[j]) | usize::from(high[j / 4] >> (2 * (j % 4)) & 3) << 8;
        out.extend(IQ2_S.point(index).enumerate().map(|(i, v)| signed(db * v, signs[j], i)));
    }
}

fn iq3_xxs(b: &[u8], out: &mut Vec<f32>) {
    let (d, qs, scales) = (half(b, 0), &b[2..66], &b[66..]);
    for k in 0..SUPER / 32 {
        let more = word(scales, 4 * k);
        let db = d * (0.5 + (more >> 28) as f32) * 0.5;
        for l in 0..8 {
            let signs = signs(more >> (7 * (l / 2)));
            let point = IQ3_XXS.point(usize::from(qs[8 * k + l]));
            out.extend(point.enumerate().map(|(i, v)| signed(db * v, signs, 4 * (l % 2) + i)));
        }
    }
}

fn iq3_s(b: &[u8], out: &mut Vec<f32>) {
    let (d, qs, high, signs, scales) = (half(b, 0), &b[2..66], &b[66..74], &b[74..106], &b[106..]);
    for j in 0..SUPER / 4 {
        let db = d * (1.0 + 2.0 * nibble(scales, j / 8));
        let index = usize::from(qs[j]) | usize::from(high[j / 8] >> (j % 8) & 1) << 8;
        out.extend(IQ3_S.point(index).enumerate().map(|(i, v)| signed(db * v, signs[j / 2], 4 * (j % 2) + i)));
    }
}

fn iq1_s(b: &[u8], out: &mut Vec<f32>) {
    let (d, qs) = (half(b, 0), &b[2..34]);
    for (j, low) in qs.iter().enumerate() {
        let high = short(b, 34 + 2 * (j / 4));
        let dl = d * f32::from(2 * (high >> 12 & 7) + 1);
        let delta = if high & 0x8000 == 0 { DELTA } else { -DELTA };
        let index = usize::from(*low) | usize::from(high >> (3 * (j % 4)) & 7) << 8;
        out.extend(IQ1.point(index).map(|v| dl * (v + delta)));
    }
}

fn iq1_m(b: &[u8], out: &mut Vec<f32>) {
    let (qs, high, scales) = (&b[..32], &b[32..48], &b[48..]);
    let d = (0..4).fold(0u16, |d, i| d | (short(scales, 2 * i) >> 12) << (4 * i));
    let d = half::f16::from_bits(d).to_f32();
    for j in 0..SUPER / 8 {
        let group = j / 2;
        let scale = short(scales, 2 * (group / 4)) >> (3 * (group % 4)) & 7;
        let dl = d * f32::from(2 * scale + 1);
        let more = high[j / 2] >> (4 * (j % 2));
        let delta = if more & 8 == 0 { DELTA } else { -DELTA };
        let index = usize::from(qs[j]) | usize::from(more & 7) << 8;
        out.extend(IQ1.point(index).map(|v| dl * (v + delta)));
    }
}

fn tq1_0(b: &[u8], out: &mut Vec<f32>) {
    let d = half(b, 52);
    // Five or four digits to three a byte, the first the highest part of it.
    for (bytes, digits) in [(&b[..32], 5), (&b[32..48], 5), (&b[48..52], 4)] {
        for n in 0..digits {
            let power = [1u8, 3, 9, 27, 81][n];
            let digit = |q: &u8| ((u16::from(q.wrapping_mul(power)) * 3) >> 8) as i8 - 1;
            out.extend(bytes.iter().map(|q| d * f32::from(digit(q))));
        }
    }
}

fn tq2_0(b: &[u8], out: &mut Vec<f32>) {
    let d = half(b, 64);
    for bytes in b[..64].chunks_exact(32) {
        for shift in [0, 2, 4, 6] {
            out.extend(bytes.iter().map(|q| d * f32::from((q >> shift & 3) as i8 - 1)));
        }
    }
}

fn mxfp4(b: &[u8], out: &mut Vec<f32>) {
    // Half of the power of two that eight bits of exponent are, since twice the values are in the table.
    let bits = if b[0] < 2 { 0x0020_0000 << b[0] } else { u32::from(b[0] - 1) << 23 };
    let d = f32::from_bits(bits);
    for shift in [0, 4] {
        out.extend(b[1..].iter().map(|q| d * f32::from(FLOATS[usize::from(q >> shift & 15)])));
    }
}
