//! How sure a row of logits is: its largest values and the entropy of its softmax, in two passes.
//!
//! Invariant: every version gives the same bits ([`super::lanes`]).

use super::lanes::{LaneKernel, Lanes, dispatch, exp};

/// What is known of one row of logits.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spread {
    /// The largest logit.
    pub top: f32,
    /// How far the second largest lies below it, in nats; 0 where two are largest.
    pub margin: f32,
    /// `ln Σ e^x`: what a logit is to be lessened by to be a logarithm of a probability.
    pub log_sum: f32,
    /// Of the softmax, in nats.
    pub entropy: f32,
}

impl Spread {
    /// Of `logits`; all zero of none. Logits that are no numbers make it one that is none.
    pub fn of(logits: &[f32]) -> Spread {
        if logits.is_empty() { Spread::default() } else { dispatch(Row(logits)) }
    }

    /// `-ln p` in nats of a token with the logit `x`.
    pub fn surprise(&self, x: f32) -> f32 {
        self.log_sum - x
    }
}

struct Row<'a>(&'a [f32]);

impl LaneKernel for Row<'_> {
    type Out = Spread;

    #[inline(always)]
    fn run<V: Lanes>(self) -> Spread {
        let (x, n) = (self.0.as_ptr(), self.0.len());
        let whole = n / 16 * 16;
        // SAFETY: the row has `n` values.
        let part = |i: usize| unsafe {
            if i < whole { V::load(x.add(i)) } else { V::load_part(x.add(whole), n - whole, f32::NEG_INFINITY) }
        };
        let (mut first, mut second) = (V::splat(f32::NEG_INFINITY), V::splat(f32::NEG_INFINITY));
        for i in (0..n).step_by(16) {
            let v = part(i);
            second = first.min(v).max(second);
            first = first.max(v);
        }
        let mut tops = [f32::NEG_INFINITY; 32];
        // SAFETY: there is room for both.
        unsafe {
            first.store(tops.as_mut_ptr());
            second.store(tops.as_mut_ptr().add(16));
        }
        tops.sort_unstable_by(|a, b| b.total_cmp(a));
        let top = tops[0];
        // Below that an exponential is zero, and so is its product with what it is of.
        let (most, least) = (V::splat(top), V::splat(-100.0));
        let (mut sum, mut product) = (V::splat(0.0), V::splat(0.0));
        for i in (0..n).step_by(16) {
            let d = least.max(part(i).sub(most));
            let e = exp(d);
            sum = sum.add(e);
            product = e.fma(d, product);
        }
        let (sum, product) = (sum.sum(), product.sum());
        let log = sum.ln();
        // Rounding may leave a little less than nothing; what is no number stays none.
        let entropy = match log - product / sum {
            below if below < 0.0 => 0.0,
            other => other,
        };
        Spread { top, margin: top - tops[1], log_sum: top + log, entropy }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::kernel::noise;

    /// By the definition, in f64.
    fn slow(x: &[f32]) -> [f64; 4] {
        let mut sorted: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
        sorted.sort_by(|a, b| b.total_cmp(a));
        let sum: f64 = sorted.iter().map(|v| (v - sorted[0]).exp()).sum();
        let log_sum = sorted[0] + sum.ln();
        let entropy: f64 = sorted.iter().filter(|v| v.is_finite()).map(|v| (v - log_sum).exp() * (log_sum - v)).sum();
        [sorted[0], sorted.get(1).map_or(f64::INFINITY, |v| sorted[0] - v), log_sum, entropy]
    }

    #[test]
    fn it_is_its_definition_for_every_length() {
        for n in (1..70).chain([49152]) {
            for (seed, factor) in [(1, 1.0), (2, 20.0)] {
                let x: Vec<f32> = noise(n, seed + n as u64).iter().map(|v| v * factor).collect();
                let (got, want) = (Spread::of(&x), slow(&x));
                let got = [got.top, got.margin, got.log_sum, got.entropy].map(f64::from);
                for (g, w) in got.iter().zip(want) {
                    assert!(*g == w || (g - w).abs() < 2e-4 * (1.0 + w.abs()), "{n}: {got:?}, not {want:?}");
                }
            }
        }
    }

    #[test]
    fn ties_and_what_is_impossible_are_told() {
        let two = Spread::of(&[1.0, 3.0, 3.0, f32::NEG_INFINITY]);
        assert!(two.margin == 0.0 && (two.entropy - slow(&[1.0, 3.0, 3.0])[3] as f32).abs() < 1e-5, "{two:?}");
        assert!((two.surprise(3.0) - (2.0 + (-2f32).exp()).ln()).abs() < 1e-6);
        assert!(Spread::of(&[0.0, f32::NAN]).entropy.is_nan());
        assert_eq!(Spread::of(&[]), Spread::default());
    }
}
