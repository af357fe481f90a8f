//! Activations, sums, norms and softmax over slices: one pass where one is enough, out of place or in place.
//!
//! Invariants: every version gives the same bits ([`super::lanes`]); a sum over a row goes into [`LANES`] partial sums in one
//! fixed order, so a row's result does not depend on the rows around it.

use super::lanes::{self, LaneKernel, Lanes, Map, Same, dispatch, exp};
use crate::graph::Activation;

/// Partial sums of a row: four times sixteen, so that one addition need not wait for the one before.
const LANES: usize = 64;

/// Evaluates `$e` with `$f` bound to the map of `$act`.
macro_rules! with_map {
    ($act:expr, $f:ident => $e:expr) => {
        with_map!(@ $act, $f, $e, Relu Relu6 GeluErf GeluTanh Silu Sigmoid HardSigmoid HardSwish Tanh)
    };
    (@ $act:expr, $f:ident, $e:expr, $($name:ident)*) => {
        match $act {
            None => {
                let $f = lanes::Same;
                $e
            }
            $(Some(Activation::$name) => {
                let $f = lanes::$name;
                $e
            })*
        }
    };
}

/// `out = f(x)`; both may be the same place.
struct Each<F> {
    x: *const f32,
    out: *mut f32,
    n: usize,
    f: F,
}

impl<F: Map> LaneKernel for Each<F> {
    type Out = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Each { x, out, n, f } = self;
        let whole = n / 16 * 16;
        // SAFETY: both have `n` values, and a place is read before it is written.
        unsafe {
            for i in (0..whole).step_by(16) {
                f.of(V::load(x.add(i))).store(out.add(i));
            }
            if whole < n {
                f.of(last::<V>(x, n)).store_part(out.add(whole), n - whole);
            }
        }
    }
}

/// `out = act(x)`.
pub(crate) fn activate_into(x: &[f32], act: Activation, out: &mut [f32]) {
    let (n, x, out) = (x.len().min(out.len()), x.as_ptr(), out.as_mut_ptr());
    with_map!(Some(act), f => dispatch(Each { x, out, n, f }));
}

/// `x = act(x)`.
pub(crate) fn activate(x: &mut [f32], act: Activation) {
    let (n, out) = (x.len(), x.as_mut_ptr());
    with_map!(Some(act), f => dispatch(Each { x: out, out, n, f }));
}

/// `out = f(a + b)`; `out` may be `a`.
struct Sum<F> {
    a: *const f32,
    b: *const f32,
    out: *mut f32,
    n: usize,
    f: F,
}

impl<F: Map> LaneKernel for Sum<F> {
    type Out = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Sum { a, b, out, n, f } = self;
        let whole = n / 16 * 16;
        // SAFETY: all have `n` values, and a place is read before it is written.
        unsafe {
            for i in (0..whole).step_by(16) {
                f.of(V::load(a.add(i)).add(V::load(b.add(i)))).store(out.add(i));
            }
            if whole < n {
                f.of(last::<V>(a, n).add(last(b, n))).store_part(out.add(whole), n - whole);
            }
        }
    }
}

/// `out = act(a + b)`.
pub(crate) fn add(a: &[f32], b: &[f32], act: Option<Activation>, out: &mut [f32]) {
    let n = a.len().min(b.len()).min(out.len());
    let (a, b, out) = (a.as_ptr(), b.as_ptr(), out.as_mut_ptr());
    with_map!(act, f => dispatch(Sum { a, b, out, n, f }));
}

/// `y = act(y + x)`.
pub(crate) fn add_assign(y: &mut [f32], x: &[f32], act: Option<Activation>) {
    let (n, b, out) = (y.len().min(x.len()), x.as_ptr(), y.as_mut_ptr());
    with_map!(act, f => dispatch(Sum { a: out, b, out, n, f }));
}

/// `y = act(y + residual)`, of what there is.
pub(crate) fn finish(y: &mut [f32], residual: Option<&[f32]>, act: Option<Activation>) {
    match (residual, act) {
        (Some(r), act) => add_assign(y, r, act),
        (None, Some(act)) => activate(y, act),
        (None, None) => {}
    }
}

/// Per row of `scale.len()` values: `out = f(x · scale + shift)`.
struct Affine<'a, F> {
    x: &'a [f32],
    scale: &'a [f32],
    shift: &'a [f32],
    out: &'a mut [f32],
    f: F,
}

impl<F: Map> LaneKernel for Affine<'_, F> {
    type Out = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Affine { x, scale, shift, out, f } = self;
        let (n, whole) = (scale.len(), scale.len() / 16 * 16);
        assert_eq!(shift.len(), n);
        let (s, t) = (scale.as_ptr(), shift.as_ptr());
        for (x, out) in x.chunks_exact(n.max(1)).zip(out.chunks_exact_mut(n.max(1))) {
            let (x, out) = (x.as_ptr(), out.as_mut_ptr());
            // SAFETY: rows, scales and shifts have `n` values.
            unsafe {
                for i in (0..whole).step_by(16) {
                    let y = V::load(x.add(i)).fma(V::load(s.add(i)), V::load(t.add(i)));
                    f.of(y).store(out.add(i));
                }
                if whole < n {
                    let [x, s, t] = [last::<V>(x, n), last(s, n), last(t, n)];
                    f.of(x.fma(s, t)).store_part(out.add(whole), n - whole);
                }
            }
        }
    }
}

/// Per row of `scale.len()` values: `out = act(x · scale + shift)`.
pub(crate) fn affine(x: &[f32], scale: &[f32], shift: &[f32], act: Option<Activation>, out: &mut [f32]) {
    with_map!(act, f => dispatch(Affine { x, scale, shift, out, f }));
}

/// The values of `p[..n]` beyond the last whole sixteen, zeros behind them.
///
/// # Safety
/// `n` values from `p` on can be read.
#[inline(always)]
unsafe fn last<V: Lanes>(p: *const f32, n: usize) -> V {
    // SAFETY: as the caller vouches.
    unsafe { V::load_part(p.add(n / 16 * 16), n % 16, 0.0) }
}

/// `Σ f(x)` over a row of `n` values in [`LANES`] partial sums.
///
/// # Safety
/// `n` values from `x` on can be read.
#[inline(always)]
unsafe fn row_sum<V: Lanes, F: Map>(x: *const f32, n: usize, f: F) -> f32 {
    let mut sums = [V::splat(0.0); LANES / 16];
    let (blocks, whole) = (n / LANES * LANES, n / 16 * 16);
    // SAFETY: within the row.
    unsafe {
        for i in (0..blocks).step_by(LANES) {
            sums[0] = sums[0].add(f.of(V::load(x.add(i))));
            sums[1] = sums[1].add(f.of(V::load(x.add(i + 16))));
            sums[2] = sums[2].add(f.of(V::load(x.add(i + 32))));
            sums[3] = sums[3].add(f.of(V::load(x.add(i + 48))));
        }
        let mut rest = V::splat(0.0);
        for i in (blocks..whole).step_by(16) {
            rest = rest.add(f.of(V::load(x.add(i))));
        }
        let mut sum = sums[0].add(sums[1]).add(sums[2].add(sums[3])).add(rest).sum();
        if whole < n {
            // One by one, since `f(0)` need not be zero.
            let mut last = [0f32; 16];
            f.of(V::load_part(x.add(whole), n - whole, 0.0)).store(last.as_mut_ptr());
            sum += last[..n - whole].iter().sum::<f32>();
        }
        sum
    }
}

/// `(x - mean)²`.
#[derive(Clone, Copy)]
struct Deviation(f32);

impl Map for Deviation {
    #[inline(always)]
    fn of<V: Lanes>(self, x: V) -> V {
        let d = x.sub(V::splat(self.0));
        d.mul(d)
    }
}

/// Per row of `w.len()` values: `out = (x - mean) / sqrt(var + eps) · w + b`, without mean where not `CENTRED`.
struct Norm<'a, const CENTRED: bool> {
    x: &'a [f32],
    w: &'a [f32],
    b: &'a [f32],
    eps: f32,
    out: &'a mut [f32],
}

impl<const CENTRED: bool> LaneKernel for Norm<'_, CENTRED> {
    type Out = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Norm { x, w, b, eps, out } = self;
        let (n, whole) = (w.len(), w.len() / 16 * 16);
        assert!(!CENTRED || b.len() == n);
        let (w, b) = (w.as_ptr(), b.as_ptr());
        for (x, out) in x.chunks_exact(n.max(1)).zip(out.chunks_exact_mut(n.max(1))) {
            let (x, out) = (x.as_ptr(), out.as_mut_ptr());
            // SAFETY: rows and weights have `n` values, and biases where they are read.
            unsafe {
                let mean = if CENTRED { row_sum::<V, _>(x, n, Same) / n as f32 } else { 0.0 };
                let var = row_sum::<V, _>(x, n, Deviation(mean)) / n as f32;
                let (mean, inv) = (V::splat(mean), V::splat(1.0 / (var + eps).sqrt()));
                for i in (0..whole).step_by(16) {
                    let y = V::load(x.add(i)).sub(mean).mul(inv);
                    let w = V::load(w.add(i));
                    if CENTRED { y.fma(w, V::load(b.add(i))) } else { y.mul(w) }.store(out.add(i));
                }
                if whole < n {
                    let y = last::<V>(x, n).sub(mean).mul(inv);
                    let y = if CENTRED { y.fma(last(w, n), last(b, n)) } else { y.mul(last(w, n)) };
                    y.store_part(out.add(whole), n - whole);
                }
            }
        }
    }
}

/// Layer norm per row of `w.len()` values: `out = (x - mean) / sqrt(var + eps) · w + b`, biased variance, two passes
/// (Ba et al. 2016).
pub(crate) fn layer_norm(x: &[f32], w: &[f32], b: &[f32], eps: f32, out: &mut [f32]) {
    dispatch(Norm::<true> { x, w, b, eps, out });
}

/// `out = x / sqrt(mean(x²) + eps) · w` per row of `w.len()` values (Zhang and Sennrich 2019).
pub(crate) fn rms_norm(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    dispatch(Norm::<false> { x, w, b: &[], eps, out });
}

/// Softmax per row of `n` values, in place or not.
struct Softmax {
    x: *const f32,
    out: *mut f32,
    rows: usize,
    n: usize,
}

impl LaneKernel for Softmax {
    type Out = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        for r in 0..self.rows {
            // SAFETY: both have `rows · n` values, and a place is read before it is written.
            unsafe { softmax_row::<V>(self.x.add(r * self.n), self.out.add(r * self.n), self.n) };
        }
    }
}

/// # Safety
/// `n` values from `x` on can be read and as many from `out` on written; if they overlap they are the same.
#[inline(always)]
unsafe fn softmax_row<V: Lanes>(x: *const f32, out: *mut f32, n: usize) {
    let (blocks, whole) = (n / LANES * LANES, n / 16 * 16);
    let mut most = [V::splat(f32::NEG_INFINITY); LANES / 16];
    // SAFETY: within the row.
    unsafe {
        for i in (0..blocks).step_by(LANES) {
            most[0] = most[0].max(V::load(x.add(i)));
            most[1] = most[1].max(V::load(x.add(i + 16)));
            most[2] = most[2].max(V::load(x.add(i + 32)));
            most[3] = most[3].max(V::load(x.add(i + 48)));
        }
        for i in (blocks..whole).step_by(16) {
            most[0] = most[0].max(V::load(x.add(i)));
        }
        if whole < n {
            most[1] = most[1].max(V::load_part(x.add(whole), n - whole, f32::NEG_INFINITY));
        }
        let top = V::splat(most[0].max(most[1]).max(most[2].max(most[3])).top());
        let mut sums = [V::splat(0.0); LANES / 16];
        for i in (0..blocks).step_by(LANES) {
            for (k, sum) in sums.iter_mut().enumerate() {
                let e = exp(V::load(x.add(i + 16 * k)).sub(top));
                e.store(out.add(i + 16 * k));
                *sum = sum.add(e);
            }
        }
        for i in (blocks..whole).step_by(16) {
            let e = exp(V::load(x.add(i)).sub(top));
            e.store(out.add(i));
            sums[0] = sums[0].add(e);
        }
        if whole < n {
            // Lanes beyond the row are e^-inf: nothing.
            let e = exp(V::load_part(x.add(whole), n - whole, f32::NEG_INFINITY).sub(top));
            e.store_part(out.add(whole), n - whole);
            sums[1] = sums[1].add(e);
        }
        let scale = V::splat(1.0 / sums[0].add(sums[1]).add(sums[2].add(sums[3])).sum());
        for i in (0..whole).step_by(16) {
            V::load(out.add(i)).mul(scale).store(out.add(i));
        }
        if whole < n {
            let e = V::load_part(out.add(whole), n - whole, 0.0);
            e.mul(scale).store_part(out.add(whole), n - whole);
        }
    }
}

/// [`softmax_in_order`]: rows of whole vectors.
struct InOrder<'a> {
    x: &'a mut [f32],
    stride: usize,
    n: usize,
}

impl LaneKernel for InOrder<'_> {
    type Out = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let whole = self.n.next_multiple_of(16);
        for row in self.x.chunks_exact_mut(self.stride) {
            row[self.n..whole].fill(f32::NEG_INFINITY);
            row[whole..].fill(0.0);
            let p = row.as_mut_ptr();
            // SAFETY: whole vectors of the row.
            unsafe {
                let mut most = V::splat(f32::NEG_INFINITY);
                (0..whole).step_by(16).for_each(|i| most = most.max(V::load(p.add(i))));
                let top = V::splat(most.top());
                let mut sum = V::splat(0.0);
                for i in (0..whole).step_by(16) {
                    let e = exp(V::load(p.add(i)).sub(top));
                    e.store(p.add(i));
                    sum = sum.add(e);
                }
                let scale = V::splat(1.0 / sum.sum());
                (0..whole).step_by(16).for_each(|i| V::load(p.add(i)).mul(scale).store(p.add(i)));
            }
        }
    }
}

/// Softmax of every `stride`-long row over its first `n` values in place, zero beyond. Vectors are summed one after the other, so
/// that whole vectors of `-inf` at either end of a row change no bit of the rest. `stride` is a multiple of 16.
pub(crate) fn softmax_in_order(x: &mut [f32], stride: usize, n: usize) {
    assert!(stride.is_multiple_of(16) && (1..=stride).contains(&n));
    dispatch(InOrder { x, stride, n });
}

/// Softmax of every row of `n` values in place.
pub(crate) fn softmax(x: &mut [f32], n: usize) {
    let (rows, out) = (x.len() / n.max(1), x.as_mut_ptr());
    dispatch(Softmax { x: out, out, rows, n });
}

/// Softmax of every row of `n` values of `x`.
pub(crate) fn softmax_into(x: &[f32], n: usize, out: &mut [f32]) {
    let (rows, x, out) = (x.len().min(out.len()) / n.max(1), x.as_ptr(), out.as_mut_ptr());
    dispatch(Softmax { x, out, rows, n });
}

#[cfg(test)]
mod tests;
