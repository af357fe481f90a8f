//! How far a mean would move with other items of the same kind: the percentile bootstrap, for figures whose distribution nobody knows, and
//! Student's t where there are too few items for it.
//!
//! Not here: intervals of shares and of paired answers (`metrics`, `paired`), which have formulas of their own.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

/// Resamples that an interval is made of.
pub const RESAMPLES: usize = 2000;

/// What they are drawn by: the same values always have the same interval.
const SEED: u64 = 0x5eed;

/// Fewer values are not resampled: their resamples reach no further than they do themselves.
pub const FEWEST: usize = 20;

/// 97.5th percentiles of Student's t with 1, 2, … degrees of freedom (R: `qt(0.975, 1:18)`).
const STUDENT: [f64; FEWEST - 2] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101,
];

/// A mean with its 95 % interval.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    pub value: f64,
    /// `None` where one item does not tell how far others are from it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<(f64, f64)>,
}

impl Estimate {
    /// The mean of `values` (0 of none), and from the 2.5th to the 97.5th percentile of the means of [`RESAMPLES`] samples of as many,
    /// drawn from them with replacement (B. Efron, *The Annals of Statistics* 7:1-26, 1979). Of fewer than [`FEWEST`] values, whose
    /// percentiles are far too narrow (those of two hold the true mean 4 times in 10), Student's t interval.
    pub fn of(values: &[f64]) -> Estimate {
        let n = values.len();
        let value = values.iter().sum::<f64>() / n.max(1) as f64;
        if n < 2 {
            return Estimate { value, range: None };
        }
        if let Some(t) = STUDENT.get(n - 2) {
            let var = values.iter().map(|v| (v - value).powi(2)).sum::<f64>() / (n - 1) as f64;
            let half = t * (var / n as f64).sqrt();
            return Estimate { value, range: Some((value - half, value + half)) };
        }
        let mean = |rng: &mut ChaCha8Rng| (0..n).map(|_| values[draw(rng, n)]).sum::<f64>() / n as f64;
        Estimate { value, range: Some(percentiles(mean)) }
    }

    /// A figure that is no mean of values, of sets of `sizes` items: `figure` gets how often each item of each set counts, which is once for the
    /// value, and as often as it was drawn for the percentile interval of [`RESAMPLES`] samples. Sets are drawn from by themselves. No interval
    /// where a set has fewer than [`FEWEST`] items.
    pub fn resampled(sizes: &[usize], figure: impl Fn(&[Vec<u32>]) -> f64 + Sync) -> Estimate {
        let value = figure(&sizes.iter().map(|n| vec![1; *n]).collect::<Vec<_>>());
        if sizes.iter().any(|n| *n < FEWEST) {
            return Estimate { value, range: None };
        }
        let of_drawn = |rng: &mut ChaCha8Rng| {
            let counts = sizes.iter().map(|&n| {
                let mut counts = vec![0u32; n];
                (0..n).for_each(|_| counts[draw(rng, n)] += 1);
                counts
            });
            figure(&counts.collect::<Vec<_>>())
        };
        Estimate { value, range: Some(percentiles(of_drawn)) }
    }

    /// For what lies from `low` to `high` by its nature.
    pub fn within(self, low: f64, high: f64) -> Estimate {
        Estimate { range: self.range.map(|(a, b)| (a.clamp(low, high), b.clamp(low, high))), ..self }
    }

    /// After `f`, which rises everywhere.
    pub fn map(self, f: impl Fn(f64) -> f64) -> Estimate {
        Estimate { value: f(self.value), range: self.range.map(|(low, high)| (f(low), f(high))) }
    }
}

/// From the 2.5th to the 97.5th percentile of [`RESAMPLES`] values of `resampled`, each with draws of its own.
fn percentiles(resampled: impl Fn(&mut ChaCha8Rng) -> f64 + Sync) -> (f64, f64) {
    let base = ChaCha8Rng::seed_from_u64(SEED);
    let one = |stream: usize| {
        let mut rng = base.clone();
        rng.set_stream(stream as u64);
        resampled(&mut rng)
    };
    let mut found: Vec<f64> = (0..RESAMPLES).into_par_iter().map(one).collect();
    found.sort_by(f64::total_cmp);
    (quantile(&found, 0.025), quantile(&found, 0.975))
}

/// A draw below n by its high bits (Lemire 2019, without rejection): off by n / 2^64.
fn draw(rng: &mut ChaCha8Rng, n: usize) -> usize {
    ((u128::from(rng.next_u64()) * n as u128) >> 64) as usize
}

/// Linear interpolation between closest ranks (numpy's default) in sorted values; not a number for none.
pub fn quantile(sorted: &[f64], q: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let at = q * last as f64;
    let (lo, hi) = (at.floor() as usize, at.ceil() as usize);
    sorted[lo] + (sorted[hi] - sorted[lo]) * (at - lo as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_those_of_the_known_distribution() {
        // Two values half a unit from their mean: 12.706 times that, cut off where a share ends.
        let Estimate { value, range: Some((low, high)) } = Estimate::of(&[0.0, 1.0]) else { panic!("an interval") };
        assert!(value == 0.5 && (high - 6.853).abs() < 1e-9 && (low + 5.853).abs() < 1e-9, "{low} {high}");
        assert_eq!(Estimate::of(&[0.0, 1.0]).within(0.0, 1.0).range, Some((0.0, 1.0)));
        // Of 1 to 19: the deviation √(19·20/12), 2.101 / √19 times.
        let some: Vec<f64> = (1..20).map(f64::from).collect();
        let half = 2.101 * (380.0f64 / 12.0).sqrt() / 19.0f64.sqrt();
        assert!(
            Estimate::of(&some)
                .range
                .is_some_and(|(l, h)| (l - 10.0 + half).abs() < 1e-9 && (h - 10.0 - half).abs() < 1e-9)
        );
        // Of a hundred values, 30 of them 1, it is Bin(100, 0.3) / 100: from 0.21 to 0.39.
        let shares: Vec<f64> = (0..100).map(|i| f64::from(u8::from(i % 10 < 3))).collect();
        let Estimate { value, range: Some((low, high)) } = Estimate::of(&shares) else { panic!("an interval") };
        assert!((value - 0.3).abs() < 1e-12 && (low - 0.21).abs() < 0.0101 && (high - 0.39).abs() < 0.0101);
        // Of 400 values it is nearly normal: their deviation divided by 20, 1.96 times.
        let many: Vec<f64> = (0..400).map(|i| f64::from(i * 7919 % 400) / 400.0).collect();
        let half = 1.96 * (1.0f64 / 12.0).sqrt() / 20.0;
        let (low, high) = Estimate::of(&many).range.unwrap();
        assert!((high - low - 2.0 * half).abs() < 0.06 * half, "{low} {high} {half}");
    }

    #[test]
    fn the_same_values_have_the_same_interval_and_one_has_none() {
        let values: Vec<f64> = (0..33).map(|i| f64::from(i * i)).collect();
        assert_eq!(Estimate::of(&values), Estimate::of(&values));
        assert_eq!(Estimate::of(&[3.0]), Estimate { value: 3.0, range: None });
        assert_eq!(Estimate::of(&[]), Estimate::default());
        assert_eq!(Estimate::of(&[2.0; 9]).range, Some((2.0, 2.0)));
        // A mean is a figure like any other.
        let values: Vec<f64> = (0..40).map(|i| f64::from(i * 7919 % 40)).collect();
        let mean = |counts: &[Vec<u32>]| {
            counts[0].iter().zip(&values).map(|(n, v)| f64::from(*n) * v).sum::<f64>() / values.len() as f64
        };
        assert_eq!(Estimate::resampled(&[40], mean), Estimate::of(&values));
        assert_eq!(Estimate::resampled(&[40, 3], |c| c[1].len() as f64), Estimate { value: 3.0, range: None });
        let ratio = Estimate { value: 0.0, range: Some((-1.0, 1.0)) }.map(f64::exp);
        assert_eq!((ratio.value, ratio.range), (1.0, Some(((-1f64).exp(), 1f64.exp()))));
    }
}
