//! GGML's block formats as GGUF files store them: runs of values that share scales, decoded to `f32` (`decode`; those that are only read: `coded`) and made of them (`encode`,
//! `superblocks`, `nonlinear`; by importance of columns: `weighted`; by other codes for the same scales: `lattice`).
//!
//! Source: `ggml-common.h` and `ggml-quants.c` of ggml (<https://github.com/ggml-org/ggml>). Decoded values have the bits that the `gguf` Python
//! package gives them, and encoded blocks those that ggml's reference quantizers write: products and sums of f32 are in their order.
//! Not here: files (`gguf`), names and sizes (`graph::ggml`), formats of our own (`int8`, `int4`).

mod coded;
mod decode;
mod encode;
mod lattice;
mod nonlinear;
mod superblocks;
mod weighted;

pub use crate::graph::ggml::{Block, Coded};
pub use lattice::Lattice;

/// The values of a super-block.
const SUPER: usize = 256;

/// What the four bits of `IQ4_NL` and `IQ4_XS` stand for.
const CODES: [i8; 16] = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// The half-precision number at `at`.
fn half(b: &[u8], at: usize) -> f32 {
    half::f16::from_le_bytes([b[at], b[at + 1]]).to_f32()
}

/// Scale and minimum, six bits each, of group `j` of 8.
fn scale_min(s: &[u8], j: usize) -> (f32, f32) {
    let (scale, min) = match j {
        0..4 => (s[j] & 63, s[j + 4] & 63),
        _ => {
            let (d, m, both) = (s[j - 4], s[j], s[j + 4]);
            (both & 15 | d >> 2 & 0x30, both >> 4 | m >> 2 & 0x30)
        }
    };
    (f32::from(scale), f32::from(min))
}
