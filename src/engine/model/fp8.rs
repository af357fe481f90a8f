//! 8-bit floats: E4M3 (4 bits of exponent, 3 of mantissa, no infinities; Micikevicius et al., "FP8 Formats for Deep
//! Learning", 2022), and the one quantizer of weights to it: one scale a row (output channel). Kernels and the exporter both
//! use it, on weights before any batch norm is folded in, so that an exported file runs bit for bit as it ran before.
//!
//! Rounding is to nearest, ties to even; what is beyond the largest number becomes that, and NaN stays NaN: CUDA's
//! `__NV_SATFINITE`.

use float8::F8E4M3;

/// The largest number.
pub const TOP: f32 = 448.0;
/// The smallest one with a full mantissa; below it numbers lie [`STEP`] apart.
const NORMAL: f32 = 1.0 / 64.0;
const STEP: f32 = 1.0 / 512.0;

/// `v` as it is stored.
pub fn code(v: f32) -> u8 {
    F8E4M3::from_f32(v).to_bits()
}

/// What is stored as `code`.
pub fn value(code: u8) -> f32 {
    F8E4M3::from_bits(code).to_f32()
}

/// [`value`] of [`code`], without making either: what a number is after it was stored.
#[inline]
pub fn rounded(v: f32) -> f32 {
    if v.is_nan() {
        return v;
    }
    let size = v.abs().min(TOP);
    let near = if size < NORMAL {
        (size / STEP).round_ties_even() * STEP
    } else {
        // Adding up to just below half of what is cut off, more by one where the last bit that stays is odd.
        let bits = size.to_bits();
        f32::from_bits((bits + 0x7_ffff + (bits >> 20 & 1)) & !0xf_ffff)
    };
    near.copysign(v)
}

/// The scale of numbers as large as `most` and its inverse: the largest becomes [`TOP`]. Where that is too small for a sound
/// inverse, both are 1 and the numbers become zeros.
pub fn scale(most: f32) -> [f32; 2] {
    let scale = most / TOP;
    if scale < 1e-30 { [1.0, 1.0] } else { [scale, 1.0 / scale] }
}

/// The largest absolute value; NaN is passed over.
pub fn most(values: &[f32]) -> f32 {
    values.iter().fold(0.0, |m, v| if v.abs() > m { v.abs() } else { m })
}

/// `x` as it is after every `each` values were stored by a scale of their own: what a layer in 8-bit floats multiplies.
pub fn stored(x: &[f32], each: usize) -> Vec<f32> {
    let mut out = Vec::with_capacity(x.len());
    for part in x.chunks(each.max(1)) {
        let [scale, inverse] = scale(most(part));
        out.extend(part.iter().map(|v| rounded(v * inverse) * scale));
    }
    out
}

/// Quantizes a row-major `[rows, len/rows]` matrix: `scale = max|w| / 448`, the code of `w / scale`. A row of zeros (or of
/// values too small for a normal scale) gets scale 0. `rows` must divide `values.len()`; a remainder is left out.
pub fn quantize_rows(values: &[f32], rows: usize) -> (Vec<u8>, Vec<f32>) {
    let cols = values.len().checked_div(rows).unwrap_or(0);
    if cols == 0 {
        return (Vec::new(), vec![0.0; rows]);
    }
    let (mut q, mut scales) = (Vec::with_capacity(rows * cols), Vec::with_capacity(rows));
    for row in values.chunks_exact(cols).take(rows) {
        let scale = most(row) / TOP;
        let sound = scale >= f32::MIN_POSITIVE && scale.is_finite();
        scales.push(if sound { scale } else { 0.0 });
        q.extend(row.iter().map(|v| if sound { code(v / scale) } else { 0 }));
    }
    (q, scales)
}

/// What the codes stand for, by their row's scale.
pub fn dequantize_rows(q: &[u8], scales: &[f32]) -> Vec<f32> {
    let cols = q.len().checked_div(scales.len()).unwrap_or(0).max(1);
    q.chunks(cols).zip(scales).flat_map(|(row, &s)| row.iter().map(move |&c| value(c) * s)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the format's definition: sign, exponent with a bias of 7, mantissa.
    fn defined(code: u8) -> f64 {
        let (exponent, mantissa) = (i32::from(code >> 3 & 15), f64::from(code & 7));
        let size = match exponent {
            0 => mantissa / 8.0 * 2f64.powi(-6),
            15 if mantissa == 7.0 => f64::NAN,
            e => (1.0 + mantissa / 8.0) * 2f64.powi(e - 7),
        };
        if code & 0x80 == 0 { size } else { -size }
    }

    #[test]
    fn every_code_is_its_value_and_comes_back() {
        for c in 0..=u8::MAX {
            let (v, want) = (value(c), defined(c));
            assert!(f64::from(v) == want || (v.is_nan() && want.is_nan()), "{c:#x}: {v} for {want}");
            if v.is_nan() {
                assert!(code(v) & 0x7f == 0x7f && rounded(v).is_nan());
            } else {
                assert_eq!((code(v), rounded(v).to_bits()), (c, v.to_bits()), "{c:#x}");
            }
        }
    }

    /// Between any two neighbours: halfway goes to the even code, everything else to the nearer one.
    #[test]
    fn ties_go_to_even_and_the_rest_to_the_nearest() {
        for c in 0..0x7eu8 {
            let (low, high) = (value(c), value(c + 1));
            let half = (low + high) / 2.0;
            assert_eq!(f64::from(half), (defined(c) + defined(c + 1)) / 2.0, "a half is an f32");
            let even = if c % 2 == 0 { c } else { c + 1 };
            let below = f32::from_bits(half.to_bits() - 1);
            for (v, want) in [(half, even), (below, c), (f32::from_bits(half.to_bits() + 1), c + 1)] {
                for (v, want) in [(v, want), (-v, want | 0x80)] {
                    assert_eq!((code(v), rounded(v)), (want, value(want)), "{v:e}");
                }
            }
        }
        // Beyond the largest there is nothing but it.
        for v in [448.0f32, 463.9, 464.0, 464.1, 480.0, 1e30, f32::INFINITY] {
            assert_eq!((code(v), code(-v), rounded(v), rounded(-v)), (0x7e, 0xfe, TOP, -TOP), "{v}");
        }
        assert_eq!((code(-0.0), rounded(-0.0).to_bits()), (0x80, (-0.0f32).to_bits()));
    }

    /// Two ways to the same number: every exponent of f32, with mantissas all over.
    #[test]
    fn both_ways_of_rounding_agree() {
        for exponent in 0..=255u32 {
            for mantissa in (0..1 << 23).step_by(4099).chain([1, (1 << 23) - 1, 1 << 19, 1 << 20, 3 << 19]) {
                for sign in [0, 1 << 31] {
                    let v = f32::from_bits(sign | exponent << 23 | mantissa);
                    let (a, b) = (value(code(v)), rounded(v));
                    assert!(a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan()), "{v:e}: {a} and {b}");
                }
            }
        }
    }

    #[test]
    fn rows_keep_their_extremes_and_err_by_a_sixteenth_at_most() {
        let values: Vec<f32> = (0..64).map(|i| ((i * 37 % 64) as f32 - 31.0) * 0.013).collect();
        let (q, scales) = quantize_rows(&values, 4);
        let back = dequantize_rows(&q, &scales);
        for (r, row) in values.chunks(16).enumerate() {
            let top = most(row);
            assert_eq!(scales[r], top / TOP);
            for (v, b) in row.iter().zip(&back[r * 16..]) {
                assert!((v - b).abs() <= (v.abs() / 16.0).max(scales[r] * STEP) * 1.0001, "{v} {b}");
            }
            assert!(q[r * 16..][..16].iter().any(|c| c & 0x7f == 0x7e));
        }
        assert_eq!(quantize_rows(&[0.0, 0.0, 1.0, -2.0], 2).1, [0.0, 2.0 / TOP]);
        assert_eq!(quantize_rows(&[], 0), (vec![], vec![]));
        assert_eq!(quantize_rows(&[1e-42, 0.0], 1), (vec![0, 0], vec![0.0]));
        assert_eq!((scale(0.0), scale(TOP)), ([1.0, 1.0], [1.0, 1.0]));
        // Each part by its own largest value: what the first part's scale would lose stays.
        assert_eq!(
            stored(&[448.0, 7.9e-4, 7e-4, 6.1e-4], 2),
            [448.0, 0.0, 7e-4, rounded(6.1e-4 * scale(7e-4)[1]) * scale(7e-4)[0]]
        );
    }
}
