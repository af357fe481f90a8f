//! Batch norm in training: moments of a batch's channels, the normalised values, and their gradients (Ioffe and Szegedy 2015).
//!
//! Channels are last, so the same factors come again every `c` values; they are laid out for as many rows as make whole vectors.
//! Sums are made in f32 for [`PART`] rows and in f64 over those, in one fixed order. Not here: batch norm at inference, which is folded.

use super::lanes::{LaneKernel, Lanes, dispatch};

/// Rows whose sums are f32.
const PART: usize = 512;

/// What a channel's values are, over a batch.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Moments {
    pub mean: f64,
    /// Divided by their number, as training normalises.
    pub var: f64,
}

/// Values after which factors repeat, in whole vectors.
fn period(c: usize) -> usize {
    let (mut a, mut b) = (c, 16);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    c / a.max(1) * 16
}

/// `f(channel)` for every value of a period.
fn laid(c: usize, f: impl Fn(usize) -> f32) -> Vec<f32> {
    (0..period(c)).map(|j| f(j % c)).collect()
}

/// Sums over rows of up to two functions of `x` and `g`, by channel.
struct Sums<'a, F> {
    x: &'a [f32],
    g: &'a [f32],
    c: usize,
    f: F,
}

/// Two terms of a value and its gradient, given the value's place within a period.
trait Terms: Copy {
    fn of<V: Lanes>(self, x: V, g: V, at: usize) -> (V, V);
}

impl<F: Terms> LaneKernel for Sums<'_, F> {
    type Out = Vec<(f64, f64)>;

    #[inline(always)]
    fn run<V: Lanes>(self) -> Vec<(f64, f64)> {
        let Sums { x, g, c, f } = self;
        let p = period(c);
        let mut out = vec![(0f64, 0f64); c];
        let (mut first, mut second) = (vec![0f32; p], vec![0f32; p]);
        let part = (PART * c).div_ceil(p) * p;
        for (x, g) in x.chunks(part).zip(g.chunks(part)) {
            first.fill(0.0);
            second.fill(0.0);
            for (x, g) in x.chunks(p).zip(g.chunks(p)) {
                for at in (0..x.len()).step_by(16) {
                    let n = (x.len() - at).min(16);
                    // SAFETY: `n` values are left in both, and the sums have a whole period, which is whole vectors.
                    unsafe {
                        let (xs, gs) = match n {
                            16 => (V::load(x.as_ptr().add(at)), V::load(g.as_ptr().add(at))),
                            n => (V::load_part(x.as_ptr().add(at), n, 0.0), V::load_part(g.as_ptr().add(at), n, 0.0)),
                        };
                        let (a, b) = f.of(xs, gs, at);
                        let (one, two) = (first.as_mut_ptr().add(at), second.as_mut_ptr().add(at));
                        if n == 16 {
                            V::load(one).add(a).store(one);
                            V::load(two).add(b).store(two);
                        } else {
                            V::load(one).add(a).store_part(one, n);
                            V::load(two).add(b).store_part(two, n);
                        }
                    }
                }
            }
            for (j, (a, b)) in first.iter().zip(&second).enumerate() {
                let sum = &mut out[j % c];
                sum.0 += f64::from(*a);
                sum.1 += f64::from(*b);
            }
        }
        out
    }
}

/// The value, and nothing.
#[derive(Clone, Copy)]
struct Plain;

impl Terms for Plain {
    #[inline(always)]
    fn of<V: Lanes>(self, x: V, _: V, _: usize) -> (V, V) {
        (x, V::splat(0.0))
    }
}

/// Distance from the mean, and its square.
#[derive(Clone, Copy)]
struct Centred<'a>(&'a [f32]);

impl Terms for Centred<'_> {
    #[inline(always)]
    fn of<V: Lanes>(self, x: V, _: V, at: usize) -> (V, V) {
        // SAFETY: a period of means, of whole vectors.
        let d = x.sub(unsafe { V::load(self.0.as_ptr().add(at)) });
        (d, d.mul(d))
    }
}

/// The gradient, and the gradient times the distance from the mean.
#[derive(Clone, Copy)]
struct Against<'a>(&'a [f32]);

impl Terms for Against<'_> {
    #[inline(always)]
    fn of<V: Lanes>(self, x: V, g: V, at: usize) -> (V, V) {
        // SAFETY: as above.
        let d = x.sub(unsafe { V::load(self.0.as_ptr().add(at)) });
        (g, g.mul(d))
    }
}

/// Moments of every channel of `x` `[.., c]`.
pub(crate) fn moments(x: &[f32], c: usize) -> Vec<Moments> {
    let n = (x.len() / c.max(1)).max(1) as f64;
    let means: Vec<f64> = dispatch(Sums { x, g: x, c, f: Plain }).iter().map(|s| s.0 / n).collect();
    let laid = laid(c, |ch| means[ch] as f32);
    // Of the rounded mean; what rounding moved is put right.
    let sums = dispatch(Sums { x, g: x, c, f: Centred(&laid) });
    let of = |(i, s): (usize, &(f64, f64))| {
        let off = s.0 / n;
        Moments { mean: f64::from(laid[i]) + off, var: (s.1 / n - off * off).max(0.0) }
    };
    sums.iter().enumerate().map(of).collect()
}

/// By channel: the sums of `g`, and of `g` times the distance of `x` from `mean`.
pub(crate) fn against(x: &[f32], g: &[f32], mean: &[f32]) -> Vec<(f64, f64)> {
    let c = mean.len();
    let laid = laid(c, |ch| mean[ch]);
    dispatch(Sums { x, g, c, f: Against(&laid) })
}

/// `out = a·g + b·x + d` by channel; with `relu` nothing below zero.
struct Affine<'a> {
    g: Option<&'a [f32]>,
    x: &'a [f32],
    factors: [&'a [f32]; 3],
    relu: bool,
    out: &'a mut [f32],
}

impl LaneKernel for Affine<'_> {
    type Out = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Affine { g, x, factors: [a, b, d], relu, out } = self;
        let (p, zero) = (b.len(), V::splat(0.0));
        for (i, (x, out)) in x.chunks(p).zip(out.chunks_mut(p)).enumerate() {
            let g = g.map(|g| &g[i * p..][..x.len()]);
            for at in (0..x.len()).step_by(16) {
                let n = (x.len() - at).min(16);
                // SAFETY: `n` values are left in each; factors are whole vectors.
                unsafe {
                    let load = |p: *const f32| if n == 16 { V::load(p) } else { V::load_part(p, n, 0.0) };
                    let mut y = load(x.as_ptr().add(at)).fma(V::load(b.as_ptr().add(at)), V::load(d.as_ptr().add(at)));
                    if let Some(g) = g {
                        y = load(g.as_ptr().add(at)).fma(V::load(a.as_ptr().add(at)), y);
                    }
                    if relu {
                        y = zero.max(y);
                    }
                    match n {
                        16 => y.store(out.as_mut_ptr().add(at)),
                        n => y.store_part(out.as_mut_ptr().add(at), n),
                    }
                }
            }
        }
    }
}

/// `out = x·scale + shift` by channel, `[.., c]`; with `relu` nothing below zero.
pub(crate) fn affine(x: &[f32], scale: &[f32], shift: &[f32], relu: bool, out: &mut [f32]) {
    let c = scale.len();
    let (b, d) = (laid(c, |ch| scale[ch]), laid(c, |ch| shift[ch]));
    dispatch(Affine { g: None, x, factors: [&b, &b, &d], relu, out });
}

/// `out = a·g + b·x + d` by channel, `[.., c]`.
pub(crate) fn combined(g: &[f32], x: &[f32], factors: [&[f32]; 3], out: &mut [f32]) {
    let c = factors[0].len();
    let [a, b, d] = factors.map(|f| laid(c, |ch| f[ch]));
    dispatch(Affine { g: Some(g), x, factors: [&a, &b, &d], relu: false, out });
}

/// `g` where `y` is above zero.
struct Masked<'a> {
    g: &'a [f32],
    y: &'a [f32],
    out: &'a mut [f32],
}

impl LaneKernel for Masked<'_> {
    type Out = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let Masked { g, y, out } = self;
        let (n, least) = (out.len(), V::splat(f32::MIN_POSITIVE));
        assert!(g.len() == n && y.len() == n);
        let whole = n / 16 * 16;
        // SAFETY: all have `n` values.
        unsafe {
            for i in (0..whole).step_by(16) {
                V::load(g.as_ptr().add(i))
                    .where_at_least(V::load(y.as_ptr().add(i)), least)
                    .store(out.as_mut_ptr().add(i));
            }
            if whole < n {
                let last = |p: *const f32| V::load_part(p.add(whole), n - whole, 0.0);
                let v = last(g.as_ptr()).where_at_least(last(y.as_ptr()), least);
                v.store_part(out.as_mut_ptr().add(whole), n - whole);
            }
        }
    }
}

/// The gradient before a ReLU with the values `y`.
pub(crate) fn masked(g: &[f32], y: &[f32], out: &mut [f32]) {
    dispatch(Masked { g, y, out });
}

/// The sums of every channel of `g` `[.., c]`: the gradient of a bias.
pub(crate) fn columns(g: &[f32], c: usize) -> Vec<f64> {
    dispatch(Sums { x: g, g, c, f: Plain }).into_iter().map(|s| s.0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::kernel::noise;

    #[test]
    fn sums_and_factors_are_those_of_their_channels() {
        for (rows, c) in [(1100, 16), (77, 13), (5, 3), (530, 40), (3, 1)] {
            let (x, g) = (noise(rows * c, 1), noise(rows * c, 2));
            let col = |v: &[f32], ch: usize| v.iter().skip(ch).step_by(c).map(|v| f64::from(*v)).collect::<Vec<_>>();
            let of = moments(&x, c);
            let means: Vec<f32> = of.iter().map(|m| m.mean as f32).collect();
            let pairs = against(&x, &g, &means);
            let bias = columns(&g, c);
            let scale: Vec<f32> = (0..c).map(|ch| 0.5 + ch as f32).collect();
            let (mut y, mut dx) = (vec![0.0; x.len()], vec![0.0; x.len()]);
            affine(&x, &scale, &means, true, &mut y);
            combined(&g, &x, [&scale, &means, &scale], &mut dx);
            let mut cut = vec![0.0; x.len()];
            masked(&g, &y, &mut cut);
            for ch in 0..c {
                let (xs, gs) = (col(&x, ch), col(&g, ch));
                let mean = xs.iter().sum::<f64>() / rows as f64;
                let var = xs.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / rows as f64;
                assert!((of[ch].mean - mean).abs() < 1e-6 && (of[ch].var - var).abs() < 1e-5, "{rows}x{c}");
                let dot: f64 = xs.iter().zip(&gs).map(|(x, g)| (x - f64::from(means[ch])) * g).sum();
                let sum: f64 = gs.iter().sum();
                assert!(
                    (pairs[ch].0 - sum).abs() < 1e-3
                        && (pairs[ch].1 - dot).abs() < 1e-3
                        && (bias[ch] - sum).abs() < 1e-3
                );
                for (i, x) in xs.iter().enumerate() {
                    let at = i * c + ch;
                    let expected = (x * f64::from(scale[ch]) + f64::from(means[ch])).max(0.0);
                    assert!((f64::from(y[at]) - expected).abs() < 1e-4);
                    let expected = gs[i] * f64::from(scale[ch]) + x * f64::from(means[ch]) + f64::from(scale[ch]);
                    assert!((f64::from(dx[at]) - expected).abs() < 1e-3);
                    assert_eq!(cut[at], if y[at] > 0.0 { g[at] } else { 0.0 });
                }
            }
        }
    }
}
