//! The K formats: 256 values in groups of 16 or 32, whose scales (and minima) are rounded in their turn. ("k-quants", Kawrakow 2023,
//! llama.cpp #1684; `quantize_row_*_K_ref` in `ggml-quants.c`.)

use super::encode::{NOTHING, extreme, put_half};
use super::{Block, scale_min};

/// Rounded to the nearest whole number, halves to the even one, by adding what leaves no bits for a fraction: what ggml does, also
/// beyond the range where it is right.
pub(super) fn nearest(v: f32) -> i32 {
    ((v + 12_582_912.0).to_bits() & 0x007f_ffff).cast_signed() - 0x0040_0000
}

/// How a scale and a minimum are searched for: `steps` steps of `step` from `from` on, beside the `top` codes.
pub(super) struct Search {
    pub top: i32,
    pub from: f32,
    pub step: f32,
    pub steps: usize,
    /// Errors count as they are, not squared.
    pub plain: bool,
}

/// The scale, and what is taken off, with which codes 0 to `top` come nearest to `x` by `weights`; the codes go to `codes`.
/// (`make_qkx2_quants`; `make_qkx3_quants` with weights of importance.)
pub(super) fn scale_and_min(s: &Search, x: &[f32], weights: &[f32], codes: &mut [u8]) -> (f32, f32) {
    let (mut min, mut max) = (x[0], x[0]);
    let mut sum_w = weights[0];
    let mut sum_x = sum_w * x[0];
    for (&x, &w) in x.iter().zip(weights).skip(1) {
        if x < min {
            min = x;
        }
        if x > max {
            max = x;
        }
        sum_w += w;
        sum_x += w * x;
    }
    if min > 0.0 {
        min = 0.0;
    }
    if max == min {
        codes.fill(0);
        return (0.0, -min);
    }
    let top = s.top as f32;
    let code = |inverse: f32, x: f32, min: f32| nearest(inverse * (x - min)).clamp(0, s.top) as u8;
    let error = |codes: &[u8], scale: f32, min: f32| {
        x.iter().zip(weights).zip(codes).fold(0.0, |sum, ((x, w), l)| {
            let diff = scale * f32::from(*l) + min - x;
            sum + w * if s.plain { diff.abs() } else { diff * diff }
        })
    };
    let inverse = top / (max - min);
    let mut scale = 1.0 / inverse;
    codes.iter_mut().zip(x).for_each(|(l, x)| *l = code(inverse, *x, min));
    let mut best = error(codes, scale, min);
    let mut tried = [0u8; 32];
    let tried = &mut tried[..x.len()];
    for i in 0..=s.steps {
        let inverse = (s.from + s.step * i as f32 + top) / (max - min);
        let (mut sum_l, mut sum_l2, mut sum_xl) = (0.0, 0.0, 0.0);
        for ((x, w), l) in x.iter().zip(weights).zip(tried.iter_mut()) {
            *l = code(inverse, *x, min);
            let l = f32::from(*l);
            sum_l += w * l;
            sum_l2 += w * l * l;
            sum_xl += w * l * x;
        }
        let d = sum_w * sum_l2 - sum_l * sum_l;
        if d > 0.0 {
            let mut this_scale = (sum_w * sum_xl - sum_x * sum_l) / d;
            let mut this_min = (sum_l2 * sum_x - sum_l * sum_xl) / d;
            if this_min > 0.0 {
                this_min = 0.0;
                this_scale = sum_xl / sum_l2;
            }
            let this = error(tried, this_scale, this_min);
            if this < best {
                codes.copy_from_slice(tried);
                (best, scale, min) = (this, this_scale, this_min);
            }
        }
    }
    (scale, -min)
}

/// The scale with which codes from `-half` to `half - 1` come nearest to `x` by `weights`; the codes go to `codes`, beginning with 0,
/// which all are where there is nothing. (`make_qx_quants` of type 1.)
pub(super) fn symmetric(half: i32, x: &[f32], weights: &[f32], codes: &mut [i8]) -> f32 {
    let max = extreme(x);
    if max.abs() < NOTHING {
        codes.fill(0);
        return 0.0;
    }
    let code = |inverse: f32, x: f32| nearest(inverse * x).clamp(-half, half - 1);
    let sums = |inverse: f32| {
        x.iter().zip(weights).fold((0.0, 0.0), |(lx, l2), (x, w)| {
            let l = code(inverse, *x) as f32;
            (lx + w * x * l, l2 + w * l * l)
        })
    };
    let top = half as f32;
    let mut inverse = -top / max;
    let (lx, l2) = sums(inverse);
    let mut scale = if l2 == 0.0 { 0.0 } else { lx / l2 };
    let mut best = scale * lx;
    for i in (-9..=9).filter(|i| *i != 0) {
        let tried = -(top + 0.1 * i as f32) / max;
        let (lx, l2) = sums(tried);
        if l2 > 0.0 && lx * lx > best * l2 {
            scale = lx / l2;
            best = scale * lx;
            inverse = tried;
        }
    }
    codes.iter_mut().zip(x).for_each(|(l, x)| *l = (code(inverse, *x) + half) as i8);
    scale
}

/// As [`symmetric`] with codes from -4 to 3, which are moved one by one as long as that helps. (`make_q3_quants`.)
fn improved(x: &[f32], codes: &mut [i8]) -> f32 {
    const HALF: i32 = 4;
    let max = extreme(x);
    if max.abs() < NOTHING {
        codes.fill(0);
        return 0.0;
    }
    let inverse = -(HALF as f32) / max;
    let (mut sum_lx, mut sum_l2) = (0.0f32, 0.0f32);
    for (x, code) in x.iter().zip(codes.iter_mut()) {
        let l = nearest(inverse * x).clamp(-HALF, HALF - 1);
        *code = l as i8;
        let (w, l) = (x * x, l as f32);
        sum_lx += w * x * l;
        sum_l2 += w * l * l;
    }
    for _ in 0..5 {
        let mut changed = false;
        for (x, code) in x.iter().zip(codes.iter_mut()) {
            let (w, old) = (x * x, f32::from(*code));
            let mut lx = sum_lx - w * x * old;
            if lx > 0.0 {
                let mut l2 = sum_l2 - w * old * old;
                let new = nearest(x * l2 / lx).clamp(-HALF, HALF - 1);
                if new != i32::from(*code) {
                    let l = new as f32;
                    lx += w * x * l;
                    l2 += w * l * l;
                    if l2 > 0.0 && lx * lx * sum_l2 > sum_lx * sum_lx * l2 {
                        *code = new as i8;
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
    codes.iter_mut().for_each(|l| *l += HALF as i8);
    if sum_l2 > 0.0 { sum_lx / sum_l2 } else { 0.0 }
}

pub(super) fn q2_k(x: &[f32], b: &mut [u8]) {
    const SEARCH: Search = Search { top: 3, from: -0.5, step: 0.1, steps: 15, plain: true };
    let mut codes = [0u8; 256];
    let (mut scales, mut mins) = ([0f32; 16], [0f32; 16]);
    for (j, (x, codes)) in x.chunks_exact(16).zip(codes.chunks_exact_mut(16)).enumerate() {
        let mut weights = [0f32; 16];
        weights.iter_mut().zip(x).for_each(|(w, x)| *w = x.abs());
        (scales[j], mins[j]) = scale_and_min(&SEARCH, x, &weights, codes);
    }
    let [max_scale, max_min] = [&scales, &mins].map(|all| all.iter().fold(0f32, |m, v| if *v > m { *v } else { m }));
    let rounded = |all: &[f32; 16], max: f32| {
        let inverse = 15.0 / max;
        all.map(|v| if max > 0.0 { nearest(inverse * v) as u8 } else { 0 })
    };
    let (ls, lm) = (rounded(&scales, max_scale), rounded(&mins, max_min));
    (0..16).for_each(|j| b[j] = ls[j] | lm[j] << 4);
    let d = if max_scale > 0.0 { max_scale / 15.0 } else { 0.0 };
    q2_k_codes(x, (d, if max_min > 0.0 { max_min / 15.0 } else { 0.0 }), codes, b);
}

/// What follows the sixteen scales and minima of a block of `Q2_K`: its own two, and the codes that fit all of these.
pub(super) fn q2_k_codes(x: &[f32], (d, min): (f32, f32), mut codes: [u8; 256], b: &mut [u8]) {
    let (d, min) = (put_half(b, 80, d), put_half(b, 82, min));
    for (j, (x, codes)) in x.chunks_exact(16).zip(codes.chunks_exact_mut(16)).enumerate() {
        let (d, m) = (d * f32::from(b[j] & 15), min * f32::from(b[j] >> 4));
        if d != 0.0 {
            codes.iter_mut().zip(x).for_each(|(l, x)| *l = nearest((x + m) / d).clamp(0, 3) as u8);
        }
    }
    Block::Q2_K.place(&codes, b);
}

pub(super) fn q3_k(x: &[f32], b: &mut [u8]) {
    let mut codes = [0i8; 256];
    let mut scales = [0f32; 16];
    for (j, (x, codes)) in x.chunks_exact(16).zip(codes.chunks_exact_mut(16)).enumerate() {
        scales[j] = improved(x, codes);
    }
    let max = extreme(&scales);
    // Without a scale no bit of one is set.
    let (mut d, mut rounded) = (0.0, [0u8; 16]);
    if max != 0.0 {
        let inverse = -32.0 / max;
        rounded = scales.map(|scale| (nearest(inverse * scale).clamp(-32, 31) + 32) as u8);
        d = 1.0 / inverse;
    }
    q3_k_codes(x, d, &rounded, codes, b);
}

/// A block of `Q3_K` with the scale `d` and sixteen of six bits; its codes fit these.
pub(super) fn q3_k_codes(x: &[f32], d: f32, rounded: &[u8; 16], mut codes: [i8; 256], b: &mut [u8]) {
    b[96..108].fill(0);
    for (j, l) in rounded.iter().enumerate() {
        b[96 + j % 8] |= (l & 15) << (4 * (j / 8));
        b[104 + j % 4] |= (l >> 4) << (2 * (j / 4));
    }
    let d = put_half(b, 108, d);
    for (j, (x, codes)) in x.chunks_exact(16).zip(codes.chunks_exact_mut(16)).enumerate() {
        let d = d * (f32::from(rounded[j]) - 32.0);
        if d != 0.0 {
            codes.iter_mut().zip(x).for_each(|(l, x)| *l = (nearest(x / d).clamp(-4, 3) + 4) as i8);
        }
    }
    Block::Q3_K.place(&codes.map(i8::cast_unsigned), b);
}

/// Codes of 256 values in groups of 32, with scales and minima of six bits at `b[4..16]`.
fn eight_groups(s: &Search, x: &[f32], b: &mut [u8]) -> [u8; 256] {
    let mut codes = [0u8; 256];
    let (mut scales, mut mins) = ([0f32; 8], [0f32; 8]);
    for (j, (x, codes)) in x.chunks_exact(32).zip(codes.chunks_exact_mut(32)).enumerate() {
        let sum = x.iter().fold(0f32, |sum, x| sum + x * x);
        let mean = (sum / 32.0).sqrt();
        let mut weights = [0f32; 32];
        weights.iter_mut().zip(x).for_each(|(w, x)| *w = mean + x.abs());
        (scales[j], mins[j]) = scale_and_min(s, x, &weights, codes);
    }
    let [max_scale, max_min] = [&scales, &mins].map(|all| all.iter().fold(0f32, |m, v| if *v > m { *v } else { m }));
    let rounded = |all: [f32; 8], max: f32| {
        let inverse = if max > 0.0 { 63.0 / max } else { 0.0 };
        all.map(|v| (nearest(inverse * v) as u8).min(63))
    };
    let (ls, lm) = (rounded(scales, max_scale), rounded(mins, max_min));
    eight_codes(s.top, x, (max_scale / 63.0, max_min / 63.0), (&ls, &lm), codes, b)
}

/// Writes a block's own scale and minimum and its eight of six bits; the codes up to `top` that fit all of these.
pub(super) fn eight_codes(
    top: i32,
    x: &[f32],
    (d, min): (f32, f32),
    (scales, mins): (&[u8; 8], &[u8; 8]),
    mut codes: [u8; 256],
    b: &mut [u8],
) -> [u8; 256] {
    b[4..16].fill(0);
    for (j, (&ls, &lm)) in scales.iter().zip(mins).enumerate() {
        let s = &mut b[4..16];
        if j < 4 {
            (s[j], s[j + 4]) = (ls, lm);
        } else {
            s[j + 4] = ls & 15 | (lm & 15) << 4;
            s[j - 4] |= ls >> 4 << 6;
            s[j] |= lm >> 4 << 6;
        }
    }
    let (d, block_min) = (put_half(b, 0, d), put_half(b, 2, min));
    for (j, (x, codes)) in x.chunks_exact(32).zip(codes.chunks_exact_mut(32)).enumerate() {
        let (scale, min) = scale_min(&b[4..16], j);
        let (d, m) = (d * scale, block_min * min);
        if d != 0.0 {
            codes.iter_mut().zip(x).for_each(|(l, x)| *l = nearest((x + m) / d).clamp(0, top) as u8);
        }
    }
    codes
}

pub(super) fn q4_k(x: &[f32], b: &mut [u8]) {
    let search = Search { top: 15, from: -1.0, step: 0.1, steps: 20, plain: false };
    let codes = eight_groups(&search, x, b);
    Block::Q4_K.place(&codes, b);
}

pub(super) fn q5_k(x: &[f32], b: &mut [u8]) {
    let search = Search { top: 31, from: -0.5, step: 0.1, steps: 15, plain: false };
    let codes = eight_groups(&search, x, b);
    Block::Q5_K.place(&codes, b);
}

/// By `weights`; by their squares without.
pub(super) fn q6_k(x: &[f32], weights: Option<&[f32]>, b: &mut [u8]) {
    let mut codes = [0i8; 256];
    let mut scales = [0f32; 16];
    for (j, (x, codes)) in x.chunks_exact(16).zip(codes.chunks_exact_mut(16)).enumerate() {
        let squares: [f32; 16] = std::array::from_fn(|i| x[i] * x[i]);
        scales[j] = symmetric(32, x, weights.map_or(&squares[..], |w| &w[16 * j..][..16]), codes);
    }
    let max = extreme(&scales);
    if max.abs() < NOTHING {
        b.fill(0);
        return;
    }
    let inverse = -128.0 / max;
    let d = put_half(b, 208, 1.0 / inverse);
    for (j, (x, codes)) in x.chunks_exact(16).zip(codes.chunks_exact_mut(16)).enumerate() {
        let scale = nearest(inverse * scales[j]).min(127) as i8;
        b[192 + j] = scale.cast_unsigned();
        let d = d * f32::from(scale);
        if d != 0.0 {
            codes.iter_mut().zip(x).for_each(|(l, x)| *l = (nearest(x / d).clamp(-32, 31) + 32) as i8);
        }
    }
    Block::Q6_K.place(&codes.map(i8::cast_unsigned), b);
}
