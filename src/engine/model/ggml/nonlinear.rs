//! `IQ4_NL` and `IQ4_XS`: four bits that stand for sixteen unevenly spaced values. (`quantize_row_iq4_nl_impl` in `ggml-quants.c`, with the seven
//! steps to either side that `llama-quantize` searches.)

use super::encode::{NOTHING, extreme, inverse, nibbles, put_half};
use super::superblocks::nearest;
use super::{CODES, SUPER};

/// Steps to either side.
const STEPS: i32 = 7;

/// The code whose value is nearest to `x`; the upper one where two are.
fn nearest_code(x: f32) -> u8 {
    CODES.windows(2).take_while(|two| x + x >= f32::from(two[0]) + f32::from(two[1])).count() as u8
}

/// The scale of 32 values, large ones counting more.
fn scale(x: &[f32]) -> f32 {
    let max = extreme(x);
    if max.abs() < NOTHING {
        return 0.0;
    }
    let sums = |inverse: f32| {
        x.iter().fold((0f32, 0f32), |(qx, q2), x| {
            let (w, q) = (x * x, f32::from(CODES[usize::from(nearest_code(inverse * x))]));
            (qx + w * q * x, q2 + w * q * q)
        })
    };
    let first = f32::from(CODES[0]);
    let (qx, q2) = sums(1.0 / (-max / first));
    let mut d = if q2 > 0.0 { qx / q2 } else { 0.0 };
    let mut best = d * qx;
    for i in -STEPS..=STEPS {
        let (qx, q2) = sums((i as f32 + first) / max);
        if q2 > 0.0 && qx * qx > best * q2 {
            d = qx / q2;
            best = d * qx;
        }
    }
    d
}

pub(super) fn iq4_nl(x: &[f32], b: &mut [u8]) {
    let d = scale(x);
    put_half(b, 0, d);
    let id = inverse(d);
    nibbles(|i| nearest_code(id * x[i]), &mut b[2..]);
}

pub(super) fn iq4_xs(x: &[f32], b: &mut [u8]) {
    let mut scales = [0f32; SUPER / 32];
    scales.iter_mut().zip(x.chunks_exact(32)).for_each(|(s, x)| *s = scale(x));
    let d = -extreme(&scales) / 32.0;
    put_half(b, 0, d);
    let id = inverse(d);
    b[2..8].fill(0);
    let mut high = 0u16;
    for (j, (x, s)) in x.chunks_exact(32).zip(scales).enumerate() {
        let l = nearest(id * s).clamp(-32, 31);
        let idl = inverse(d * l as f32);
        nibbles(|i| nearest_code(idl * x[i]), &mut b[8 + 16 * j..]);
        let l = (l + 32) as u8;
        b[4 + j / 2] |= (l & 15) << (4 * (j % 2));
        high |= u16::from(l >> 4) << (2 * j);
    }
    b[2..4].copy_from_slice(&high.to_le_bytes());
}
