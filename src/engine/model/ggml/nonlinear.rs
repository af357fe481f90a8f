//! `IQ4_NL` and `IQ4_XS`: four bits that stand for sixteen unevenly spaced values. (`quantize_row_iq4_nl_impl` in `ggml-quants.c`, with the seven
//! steps to either side that `llama-quantize` searches.) With weights of importance too.

use super::encode::{NOTHING, extreme, inverse, nibbles, put_half};
use super::superblocks::nearest;
use super::weighted::weights;
use super::{CODES, SUPER};

/// Steps to either side.
const STEPS: i32 = 7;

/// The code whose value is nearest to `x`; the upper one where two are.
fn nearest_code(x: f32) -> u8 {
    CODES.windows(2).take_while(|two| x + x >= f32::from(two[0]) + f32::from(two[1])).count() as u8
}

/// From each code's value to the next: twice the place between them, and how far it is.
const UP: [(f32, f32); 15] = {
    let (mut out, mut i) = ([(0.0, 0.0); 15], 0);
    while i < 15 {
        let (low, high) = (CODES[i] as f32, CODES[i + 1] as f32);
        out[i] = (low + high, high - low);
        i += 1;
    }
    out
};

/// The values of the nearest codes, as [`nearest_code`] finds them: side by side and without branches, since a search for a scale asks a
/// dozen times for each weight. Sums of whole numbers are exact.
fn nearest_values(x: &[f32; 32], inverse: f32) -> [f32; 32] {
    let twice = x.map(|x| inverse * x + inverse * x);
    let mut values = [f32::from(CODES[0]); 32];
    for (edge, step) in UP {
        values.iter_mut().zip(&twice).for_each(|(v, x)| *v += if *x >= edge { step } else { 0.0 });
    }
    values
}

/// What each of 32 values counts: its square, or by importance and the values around it.
fn counts(x: &[f32], importance: Option<&[f32]>, sigma2: f32) -> [f32; 32] {
    match importance {
        Some(importance) => weights(x, importance, sigma2),
        None => std::array::from_fn(|i| x[i] * x[i]),
    }
}

/// Twice the mean square.
fn sigma2(x: &[f32]) -> f32 {
    x.iter().fold(0f32, |sum, x| sum + x * x) * (2.0 / x.len() as f32)
}

/// The scale of 32 values by `weights`.
fn scale(x: &[f32], weights: &[f32; 32]) -> f32 {
    let max = extreme(x);
    if max.abs() < NOTHING {
        return 0.0;
    }
    let x: &[f32; 32] = &std::array::from_fn(|i| x[i]);
    let sums = |inverse: f32| {
        let values = nearest_values(x, inverse);
        (x.iter().zip(weights).zip(values)).fold((0f32, 0f32), |(qx, q2), ((x, w), q)| (qx + w * q * x, q2 + w * q * q))
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

pub(super) fn iq4_nl(x: &[f32], importance: Option<&[f32]>, b: &mut [u8]) {
    let d = scale(x, &counts(x, importance, sigma2(x)));
    put_half(b, 0, d);
    let id = inverse(d);
    nibbles(|i| nearest_code(id * x[i]), &mut b[2..]);
}

pub(super) fn iq4_xs(x: &[f32], importance: Option<&[f32]>, b: &mut [u8]) {
    let mut scales = [0f32; SUPER / 32];
    let sigma2 = sigma2(x);
    for (j, (s, x)) in scales.iter_mut().zip(x.chunks_exact(32)).enumerate() {
        *s = scale(x, &counts(x, importance.map(|all| &all[32 * j..][..32]), sigma2));
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_side_by_side_are_those_of_the_nearest_codes() {
        let edges = UP.map(|(edge, _)| edge / 2.0);
        let odd = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-30, 127.0, -127.0, 113.5];
        let some: Vec<f32> = edges.iter().flat_map(|e| [*e, e.next_up(), e.next_down()]).chain(odd).collect();
        for inverse in [1.0, -1.0, 0.37, 0.0, f32::INFINITY] {
            for part in some.chunks(32) {
                let x: [f32; 32] = std::array::from_fn(|i| part.get(i).copied().unwrap_or(3.0));
                let want = x.map(|x| f32::from(CODES[usize::from(nearest_code(inverse * x))]));
                assert_eq!(nearest_values(&x, inverse), want, "{inverse}");
            }
        }
    }
}
