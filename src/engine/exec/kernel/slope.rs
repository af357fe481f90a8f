//! Gradients of activations, layer norm and softmax over slices.
//!
//! As `rows`: one pass, sixteen lanes, the same bits on every processor.

use super::lanes::{LaneKernel, Lanes, Map, Sigmoid, dispatch, exp, normal_part};
use crate::graph::Activation;

/// The derivatives of activations that have one here, at `x`.
macro_rules! slopes {
    ($($(#[$doc:meta])* $name:ident($x:ident: $v:ident) -> V $body:block)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy)]
        struct $name;

        impl Map for $name {
            #[inline(always)]
            fn of<$v: Lanes>(self, $x: $v) -> $v $body
        }
    )*};
}

slopes! {
    Relu(x: V) -> V {
        V::splat(1.0).where_at_least(x, V::splat(f32::MIN_POSITIVE))
    }

    /// `Φ(x) + x·φ(x)`.
    GeluErf(x: V) -> V {
        let bell = exp(x.mul(x).mul(V::splat(-0.5))).mul(V::splat(0.398_942_3));
        x.fma(bell, normal_part(x).add(V::splat(0.5)))
    }

    /// `σ + x·σ·(1 - σ)`.
    Silu(x: V) -> V {
        let s = Sigmoid.of(V::splat(88.0).min(V::splat(-88.0).max(x)));
        s.fma(x.mul(V::splat(1.0).sub(s)), s)
    }

    /// Of `x·σ(u)` with `u = 2√(2/π)·(x + 0.044715·x³)`.
    GeluTanh(x: V) -> V {
        const A: f32 = 1.595_769;
        let x = V::splat(30.0).min(V::splat(-30.0).max(x));
        let square = x.mul(x);
        let s = Sigmoid.of(x.mul(square.fma(V::splat(0.044_715 * A), V::splat(A))));
        let inner = square.fma(V::splat(3.0 * 0.044_715 * A), V::splat(A));
        s.fma(x.mul(V::splat(1.0).sub(s)).mul(inner), s)
    }
}

/// `out = g · slope(x)`.
struct Times<'a, F> {
    g: &'a [f32],
    x: &'a [f32],
    out: &'a mut [f32],
    slope: F,
}

impl<F: Map> LaneKernel for Times<'_, F> {
    type Out = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Times { g, x, out, slope } = self;
        let n = out.len();
        assert!(g.len() == n && x.len() == n);
        let whole = n / 16 * 16;
        // SAFETY: all have `n` values.
        unsafe {
            for i in (0..whole).step_by(16) {
                let s = slope.of(V::load(x.as_ptr().add(i)));
                V::load(g.as_ptr().add(i)).mul(s).store(out.as_mut_ptr().add(i));
            }
            if whole < n {
                let last = |p: *const f32| V::load_part(p.add(whole), n - whole, 0.0);
                last(g.as_ptr()).mul(slope.of(last(x.as_ptr()))).store_part(out.as_mut_ptr().add(whole), n - whole);
            }
        }
    }
}

/// Whether [`activation`] takes it.
pub(crate) fn has(act: Activation) -> bool {
    matches!(act, Activation::Relu | Activation::GeluErf | Activation::GeluTanh | Activation::Silu)
}

/// The gradient before an activation of `x`; one of those that [`has`] knows.
pub(crate) fn activation(g: &[f32], x: &[f32], act: Activation, out: &mut [f32]) {
    match act {
        Activation::Relu => dispatch(Times { g, x, out, slope: Relu }),
        Activation::GeluErf => dispatch(Times { g, x, out, slope: GeluErf }),
        Activation::GeluTanh => dispatch(Times { g, x, out, slope: GeluTanh }),
        Activation::Silu => dispatch(Times { g, x, out, slope: Silu }),
        other => unreachable!("{other:?} has no slope here"),
    }
}

/// Rows of a layer norm, and what their gradients give.
struct Norm<'a> {
    g: &'a [f32],
    x: &'a [f32],
    weight: &'a [f32],
    eps: f64,
    out: &'a mut [f32],
    /// By channel, of weight and bias.
    sums: (&'a mut [f32], &'a mut [f32]),
}

/// Calls `f(place, values there)` for a row of `n` values, sixteen at a time.
#[inline(always)]
fn along(n: usize, mut f: impl FnMut(usize, usize)) {
    for at in (0..n).step_by(16) {
        f(at, (n - at).min(16));
    }
}

/// Sixteen values, or those that are left before zeros.
///
/// # Safety
/// `n` values from `p` on can be read.
#[inline(always)]
unsafe fn some<V: Lanes>(p: *const f32, n: usize) -> V {
    // SAFETY: as the caller vouches.
    unsafe { if n == 16 { V::load(p) } else { V::load_part(p, n, 0.0) } }
}

/// # Safety
/// `n` values from `p` on can be written.
#[inline(always)]
unsafe fn put<V: Lanes>(v: V, p: *mut f32, n: usize) {
    // SAFETY: as the caller vouches.
    unsafe { if n == 16 { v.store(p) } else { v.store_part(p, n) } }
}

impl LaneKernel for Norm<'_> {
    type Out = ();

    /// With `h = g·weight` and `x̂` the normalised row: `dx = (h - mean(h) - x̂·mean(h·x̂)) / deviation`.
    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Norm { g, x, weight, eps, out, sums: (gw, gb) } = self;
        let d = weight.len();
        let zero = V::splat(0.0);
        for ((g, x), out) in g.chunks_exact(d).zip(x.chunks_exact(d)).zip(out.chunks_exact_mut(d)) {
            let (g, x, out, w) = (g.as_ptr(), x.as_ptr(), out.as_mut_ptr(), weight.as_ptr());
            let (gw, gb) = (gw.as_mut_ptr(), gb.as_mut_ptr());
            // SAFETY: all rows have `d` values.
            unsafe {
                let mut sum = zero;
                along(d, |i, n| sum = sum.add(some(x.add(i), n)));
                let mean = sum.sum() / d as f32;
                let centre = V::splat(mean);
                let mut square = 0f32;
                let mut squares = zero;
                along(d, |i, n| {
                    let v = some::<V>(x.add(i), n).sub(centre);
                    if n == 16 {
                        squares = v.fma(v, squares);
                    } else {
                        (0..n).for_each(|j| square += (*x.add(i + j) - mean).powi(2));
                    }
                });
                let var = f64::from(squares.sum() + square) / d as f64;
                let inv = (1.0 / (var + eps).sqrt()) as f32;
                let (scale, shift) = (V::splat(inv), V::splat(-mean * inv));
                let (mut all, mut dot) = (zero, zero);
                along(d, |i, n| {
                    let (g, unit) = (some::<V>(g.add(i), n), some::<V>(x.add(i), n).fma(scale, shift));
                    let h = g.mul(some(w.add(i), n));
                    all = all.add(h);
                    dot = h.fma(unit, dot);
                    put(some::<V>(gb.add(i), n).add(g), gb.add(i), n);
                    put(g.fma(unit, some(gw.add(i), n)), gw.add(i), n);
                });
                let (all, dot) = (V::splat(all.sum() / d as f32), zero.sub(V::splat(dot.sum() / d as f32)));
                along(d, |i, n| {
                    let unit = some::<V>(x.add(i), n).fma(scale, shift);
                    let h = some::<V>(g.add(i), n).mul(some(w.add(i), n));
                    put(unit.fma(dot, h.sub(all)).mul(scale), out.add(i), n);
                });
            }
        }
    }
}

/// The gradient before a layer norm over the last axis of `x`, and by channel those of its weight and bias.
pub(crate) fn layer_norm(g: &[f32], x: &[f32], weight: &[f32], eps: f64, out: &mut [f32]) -> (Vec<f32>, Vec<f32>) {
    let d = weight.len();
    let (mut gw, mut gb) = (vec![0f64; d], vec![0f64; d]);
    let (mut pw, mut pb) = (vec![0f32; d], vec![0f32; d]);
    // Sums of many rows are f64.
    let part = 256 * d.max(1);
    for ((g, x), out) in g.chunks(part).zip(x.chunks(part)).zip(out.chunks_mut(part)) {
        pw.fill(0.0);
        pb.fill(0.0);
        dispatch(Norm { g, x, weight, eps, out, sums: (&mut pw, &mut pb) });
        gw.iter_mut().zip(&pw).for_each(|(s, p)| *s += f64::from(*p));
        gb.iter_mut().zip(&pb).for_each(|(s, p)| *s += f64::from(*p));
    }
    let narrow = |v: Vec<f64>| v.into_iter().map(|v| v as f32).collect();
    (narrow(gw), narrow(gb))
}

/// Rows of a softmax: `g = p·(g - Σ g·p)·scale`, in place.
struct Soft<'a> {
    p: &'a [f32],
    g: &'a mut [f32],
    n: usize,
    scale: f32,
}

impl LaneKernel for Soft<'_> {
    type Out = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Soft { p, g, n: width, scale } = self;
        for (p, g) in p.chunks_exact(width).zip(g.chunks_exact_mut(width)) {
            let (p, g) = (p.as_ptr(), g.as_mut_ptr());
            // SAFETY: both rows have `width` values.
            unsafe {
                let mut dot = V::splat(0.0);
                along(width, |i, n| dot = some::<V>(p.add(i), n).fma(some(g.add(i), n), dot));
                let (dot, scale) = (V::splat(dot.sum()), V::splat(scale));
                along(width, |i, n| {
                    let v = some::<V>(g.add(i), n).sub(dot).mul(some(p.add(i), n)).mul(scale);
                    put(v, g.add(i), n);
                });
            }
        }
    }
}

/// Turns gradients of rows of `n` probabilities `p` into those of what they were a softmax of, times `scale`.
pub(crate) fn softmax(p: &[f32], g: &mut [f32], n: usize, scale: f32) {
    dispatch(Soft { p, g, n, scale });
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::kernel::{noise, rows};

    #[test]
    fn slopes_are_differences_of_their_activations() {
        let x: Vec<f32> = (-160..160).map(|i| i as f32 / 20.0 + 0.013).collect();
        let ones = vec![1.0; x.len()];
        for act in [Activation::Relu, Activation::GeluErf, Activation::GeluTanh, Activation::Silu] {
            let mut slope = vec![0.0; x.len()];
            activation(&ones, &x, act, &mut slope);
            let at = |by: f32| {
                let moved: Vec<f32> = x.iter().map(|x| x + by).collect();
                let mut y = vec![0.0; x.len()];
                rows::activate_into(&moved, act, &mut y);
                y
            };
            let (low, high) = (at(-5e-3), at(5e-3));
            for (i, s) in slope.iter().enumerate() {
                let by = ((x[i] + 5e-3) - (x[i] - 5e-3)).max(1e-3);
                assert!(
                    (s - (high[i] - low[i]) / by).abs() < 6e-4,
                    "{act:?} at {}: {s} {}",
                    x[i],
                    (high[i] - low[i]) / by
                );
            }
        }
    }

    #[test]
    fn softmax_takes_away_what_moves_all_alike() {
        let (n, rows) = (21, 3);
        let mut p: Vec<f32> = noise(n * rows, 1).iter().map(|v| v.exp()).collect();
        for p in p.chunks_mut(n) {
            let sum: f32 = p.iter().sum();
            p.iter_mut().for_each(|v| *v /= sum);
        }
        let g = noise(n * rows, 2);
        let mut out = g.clone();
        softmax(&p, &mut out, n, 0.5);
        for r in 0..rows {
            let row = r * n..(r + 1) * n;
            let dot: f32 = p[row.clone()].iter().zip(&g[row.clone()]).map(|(p, g)| p * g).sum();
            for i in row {
                assert!((out[i] - 0.5 * p[i] * (g[i] - dot)).abs() < 1e-6);
            }
        }
    }
}
