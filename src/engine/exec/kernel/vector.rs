//! Elementwise arithmetic on slices that the compiler makes vectors of by itself, compiled once per vector instruction set
//! and dispatched at run time. What it would do badly is in [`super::rows`].
//!
//! Invariant: every version gives the same bits (no fused multiply-add is introduced, reductions have a fixed order).

/// Defines functions whose bodies are compiled for AVX-512, AVX2 and the baseline.
macro_rules! versions {
    ($($(#[$meta:meta])* pub fn $name:ident($($arg:ident: $ty:ty),*) $(-> $ret:ty)? $body:block)*) => {$(
        $(#[$meta])*
        pub(crate) fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn body($($arg: $ty),*) $(-> $ret)? $body
            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq")]
                fn wide($($arg: $ty),*) $(-> $ret)? {
                    body($($arg),*)
                }
                #[target_feature(enable = "avx2")]
                fn middle($($arg: $ty),*) $(-> $ret)? {
                    body($($arg),*)
                }
                if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl") && is_x86_feature_detected!("avx512dq") {
                    // SAFETY: the features were detected.
                    return unsafe { wide($($arg),*) };
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the feature was detected.
                    return unsafe { middle($($arg),*) };
                }
            }
            body($($arg),*)
        }
    )*};
}

const LANES: usize = 16;

versions! {
    /// Smallest and largest value, never above and never below zero: `(min(0, x..), max(0, x..))`. NaN is ignored.
    pub fn range_with_zero(x: &[f32]) -> (f32, f32) {
        let (mut lo, mut hi) = ([0f32; LANES], [0f32; LANES]);
        let chunks = x.chunks_exact(LANES);
        let tail = chunks.remainder();
        for c in chunks {
            for i in 0..LANES {
                lo[i] = if c[i] < lo[i] { c[i] } else { lo[i] };
                hi[i] = if c[i] > hi[i] { c[i] } else { hi[i] };
            }
        }
        let lo = lo.iter().chain(tail).fold(0f32, |m, &v| if v < m { v } else { m });
        let hi = hi.iter().chain(tail).fold(0f32, |m, &v| if v > m { v } else { m });
        (lo, hi)
    }

    /// `out = clamp(round(x · inverse_scale) + zero, 0, top)`, ties to even.
    pub fn quantize(x: &[f32], inverse_scale: f32, zero: i32, top: f32, out: &mut [u8]) {
        // Adding and taking away 1.5·2^23 rounds to the nearest integer (ties to even) for |v| < 2^22.
        const MAGIC: f32 = 12_582_912.0;
        let shift = zero as f32;
        for (o, &v) in out.iter_mut().zip(x) {
            let r = (v * inverse_scale + MAGIC) - MAGIC + shift;
            let r = if r > 0.0 { r } else { 0.0 };
            let r = if r < top { r } else { top };
            // SAFETY: `r` is within 0..=255 by the two comparisons, which also turn NaN into 0.
            *o = unsafe { r.to_int_unchecked::<i32>() } as u8;
        }
    }

    /// `out = (sums - zero·weight_sums) · (scale · factors) + bias`, one row of output channels of an int8 product.
    pub fn dequantize(sums: &[i32], zero: i32, weight_sums: &[i32], scale: f32, factors: &[f32], bias: &[f32], out: &mut [f32]) {
        for (((o, &s), (&ws, &f)), &b) in out.iter_mut().zip(sums).zip(weight_sums.iter().zip(factors)).zip(bias) {
            *o = (s - zero * ws) as f32 * (scale * f) + b;
        }
    }

    /// Sum of squares.
    pub fn squares(x: &[f32]) -> f32 {
        let mut sums = [0f32; LANES];
        let chunks = x.chunks_exact(LANES);
        let tail = chunks.remainder();
        for c in chunks {
            for i in 0..LANES {
                sums[i] += c[i] * c[i];
            }
        }
        sums.iter().sum::<f32>() + tail.iter().map(|v| v * v).sum::<f32>()
    }

    /// `out = a · b`.
    pub fn multiply(a: &[f32], b: &[f32], out: &mut [f32]) {
        for ((o, &a), &b) in out.iter_mut().zip(a).zip(b) {
            *o = a * b;
        }
    }

    /// `out = x · mul + add`.
    pub fn scalar(x: &[f32], mul: f32, add: f32, out: &mut [f32]) {
        out.iter_mut().zip(x).for_each(|(o, &x)| *o = x * mul + add);
    }

    /// Turns pairs `(i, i + n)` of two halves of `n` values by the angles of those cosines and sines.
    pub fn turn_halves(x: &[f32], cos: &[f32], sin: &[f32], out: &mut [f32]) {
        let n = cos.len();
        let ((a, b), (y, z)) = (x.split_at(n), out.split_at_mut(n));
        for i in 0..n {
            y[i] = a[i] * cos[i] - b[i] * sin[i];
            z[i] = b[i] * cos[i] + a[i] * sin[i];
        }
    }

    /// Turns neighbours `(2i, 2i + 1)` by the angles of those cosines and sines.
    pub fn turn_neighbours(x: &[f32], cos: &[f32], sin: &[f32], out: &mut [f32]) {
        for (((x, out), c), s) in x.chunks_exact(2).zip(out.chunks_exact_mut(2)).zip(cos).zip(sin) {
            out[0] = x[0] * c - x[1] * s;
            out[1] = x[1] * c + x[0] * s;
        }
    }

    /// Adds `x` into `sum`.
    pub fn accumulate(sum: &mut [f32], x: &[f32]) {
        sum.iter_mut().zip(x).for_each(|(s, &v)| *s += v);
    }

    /// `m = max(m, x)`.
    pub fn maximum(m: &mut [f32], x: &[f32]) {
        m.iter_mut().zip(x).for_each(|(m, &v)| *m = if v > *m { v } else { *m });
    }

    /// `out = scale · Σ_k a[k] · b[k]`, where row `k` of `b` begins at `k · stride`.
    pub fn combine(a: &[f32], scale: f32, b: &[f32], stride: usize, out: &mut [f32]) {
        out.fill(0.0);
        for (k, &a) in a.iter().enumerate() {
            let row = &b[k * stride..][..out.len()];
            out.iter_mut().zip(row).for_each(|(o, &b)| *o += a * b);
        }
        out.iter_mut().for_each(|o| *o *= scale);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::kernel::noise;

    #[test]
    fn ranges_include_zero_and_every_tail() {
        for n in [0, 1, 15, 16, 17, 100] {
            let x = noise(n, 3);
            let want = x.iter().fold((0f32, 0f32), |(a, b), &v| (a.min(v), b.max(v)));
            assert_eq!(range_with_zero(&x), want);
        }
        assert_eq!(range_with_zero(&[3.0, 4.0]), (0.0, 4.0));
    }

    #[test]
    fn quantizing_rounds_and_clamps() {
        let x = [0.0, 1.0, 2.5, 3.5, -1.0, 1e9, -1e9, f32::NAN];
        let mut q = [0u8; 8];
        quantize(&x, 1.0, 10, 255.0, &mut q);
        assert_eq!(q[..7], [10, 11, 12, 14, 9, 255, 0]);
    }
}
