//! Distributions of activations, and which range of them 8 bits should span.
//!
//! Pure arithmetic: what is observed and when is in `calibrate`.

use crate::graph::{Calibration, Range};

/// Bins between the smallest and the largest value.
const BINS: usize = 2048;
/// Steps of an 8-bit code.
const STEPS: f64 = 255.0;
/// Candidates for each end of a range.
const GRID: usize = 128;

/// Counts of values between the smallest and the largest, which are found first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Histogram {
    range: Range,
    counts: Vec<u64>,
    /// Exact zeros, which every code represents exactly.
    zeros: u64,
}

impl Histogram {
    /// Widens the ends to hold `values`; to be done with all of them before any is counted.
    pub fn stretch(&mut self, values: &[f32]) {
        self.range = self.range.join(Range::of(values));
    }

    fn width(&self) -> f64 {
        (self.range.hi as f64 - self.range.lo as f64) / BINS as f64
    }

    fn middle(&self, bin: usize) -> f64 {
        self.range.lo as f64 + (bin as f64 + 0.5) * self.width()
    }

    /// Counts `values`; those beyond the ends count as the nearest, what is not finite is left out.
    pub fn add(&mut self, values: &[f32]) {
        let (lo, width) = (self.range.lo, self.width());
        if width <= 0.0 {
            return;
        }
        self.counts.resize(BINS, 0);
        let scale = (1.0 / width) as f32;
        for &v in values.iter().filter(|v| v.is_finite()) {
            if v == 0.0 {
                self.zeros += 1;
            } else {
                self.counts[(((v - lo) * scale) as usize).min(BINS - 1)] += 1;
            }
        }
    }

    /// The range that 8 bits should span; it holds zero and lies within what was seen.
    pub fn choose(&self, method: Calibration) -> Range {
        if self.counts.iter().all(|n| *n == 0) {
            return self.range;
        }
        match method {
            Calibration::MinMax => self.range,
            Calibration::Percentile(p) => self.percentile(p),
            Calibration::Entropy => self.entropy(),
            Calibration::Mse => self.least_error(),
        }
    }

    fn percentile(&self, percent: f64) -> Range {
        let total = (self.counts.iter().sum::<u64>() + self.zeros) as f64;
        let cut = total * (1.0 - percent / 100.0).max(0.0) / 2.0;
        // The outer edge of the first bin, from an end, up to which more than `cut` values lie.
        let edge = |nth: fn(usize) -> usize| {
            let mut seen = 0.0;
            (0..BINS).map(nth).find(|&b| {
                seen += self.counts[b] as f64;
                seen > cut
            })
        };
        let lo = edge(|b| b).map_or(0.0, |b| self.range.lo as f64 + b as f64 * self.width());
        let hi = edge(|b| BINS - 1 - b).map_or(0.0, |b| self.range.lo as f64 + (b + 1) as f64 * self.width());
        Range::covering(lo as f32, hi as f32).within(self.range)
    }

    /// Counts over magnitude, `BINS` bins up to the largest.
    fn magnitudes(&self) -> (Vec<f64>, f64) {
        let top = (self.range.hi as f64).max(-self.range.lo as f64);
        let mut bins = vec![0.0; BINS];
        for (b, &n) in self.counts.iter().enumerate() {
            let at = (self.middle(b).abs() / top * BINS as f64) as usize;
            bins[at.min(BINS - 1)] += n as f64;
        }
        (bins, top)
    }

    fn entropy(&self) -> Range {
        let (bins, top) = self.magnitudes();
        // Codes on the longer side of zero.
        let span = self.range.hi as f64 - self.range.lo as f64;
        let levels = (STEPS * top / span).round().max(16.0) as usize;
        let best = (levels..=BINS)
            .step_by(8)
            .map(|cut| (divergence(&bins, cut, levels), cut))
            .min_by(|a, b| a.0.total_cmp(&b.0))
            .map_or(BINS, |b| b.1);
        let cut = (top * best as f64 / BINS as f64) as f32;
        Range::covering(-cut, cut).within(self.range)
    }

    fn least_error(&self) -> Range {
        // Sums of counts, values and squares up to each bin make every candidate's error a handful of operations.
        let mut sums = vec![[0.0f64; 3]; BINS + 1];
        for (b, &n) in self.counts.iter().enumerate() {
            let (n, x) = (n as f64, self.middle(b));
            let [s0, s1, s2] = sums[b];
            sums[b + 1] = [s0 + n, s1 + n * x, s2 + n * x * x];
        }
        let (lo, hi, width) = (self.range.lo as f64, self.range.hi as f64, self.width());
        let bin = |x: f64| (((x - lo) / width).round().max(0.0) as usize).min(BINS);
        // Σ n (x - end)² over bins `from..to`.
        let beyond = |from: usize, to: usize, end: f64| {
            let [n, s, q] = [0, 1, 2].map(|i| sums[to][i] - sums[from][i]);
            q - 2.0 * end * s + end * end * n
        };
        let ends = |end: f64| (1..=GRID).map(move |k| end * k as f64 / GRID as f64);
        let lows: Vec<f64> = if lo < 0.0 { ends(lo).collect() } else { vec![0.0] };
        let highs: Vec<f64> = if hi > 0.0 { ends(hi).collect() } else { vec![0.0] };
        let mut best = (f64::INFINITY, lo, hi);
        for &a in &lows {
            let from = bin(a);
            let below = beyond(0, from, a);
            for &b in &highs {
                let to = bin(b).max(from);
                let step = (b - a) / STEPS;
                let error = below + beyond(to, BINS, b) + (sums[to][0] - sums[from][0]) * step * step / 12.0;
                if error < best.0 {
                    best = (error, a, b);
                }
            }
        }
        Range::covering(best.1 as f32, best.2 as f32).within(self.range)
    }
}

/// KL divergence of the first `cut` bins, with all beyond added to the last of them, from what `levels` codes make of
/// those bins.
fn divergence(bins: &[f64], cut: usize, levels: usize) -> f64 {
    let total: f64 = bins.iter().sum();
    let kept: f64 = bins[..cut].iter().sum();
    if kept <= 0.0 {
        return f64::INFINITY;
    }
    let outside = total - kept;
    let mut sum = 0.0;
    for level in 0..levels {
        let part = level * cut / levels..(level + 1) * cut / levels;
        let filled = bins[part.clone()].iter().filter(|n| **n > 0.0).count();
        let q = bins[part.clone()].iter().sum::<f64>() / filled.max(1) as f64 / kept;
        for i in part {
            let p = (bins[i] + if i + 1 == cut { outside } else { 0.0 }) / total;
            if p > 0.0 {
                // A bin that only holds what was cut off has no code of its own.
                let q = if bins[i] > 0.0 { q } else { 1e-12 };
                sum += p * (p / q).ln();
            }
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    fn histogram(values: &[f32]) -> Histogram {
        let mut h = Histogram::default();
        h.stretch(values);
        h.add(values);
        h
    }

    /// Box and Muller.
    fn normal(n: usize) -> Vec<f32> {
        let mut rng = ChaCha8Rng::seed_from_u64(3);
        let mut one = || {
            let (u, v): (f64, f64) = (rng.random_range(1e-12..1.0), rng.random());
            ((-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()) as f32
        };
        (0..n).map(|_| one()).collect()
    }

    /// The mean squared error of rounding `values` to 256 codes over `r`.
    fn error(values: &[f32], r: Range) -> f64 {
        let step = (r.hi - r.lo) as f64 / STEPS;
        let zero = (-r.lo as f64 / step).round();
        let one = |v: &f32| {
            let q = ((*v as f64 / step).round() + zero).clamp(0.0, STEPS);
            ((q - zero) * step - *v as f64).powi(2)
        };
        values.iter().map(one).sum::<f64>() / values.len() as f64
    }

    #[test]
    fn uniform_values_need_their_whole_range() {
        let values: Vec<f32> = (0..100_000).map(|i| i as f32 / 99_999.0 * 3.0).collect();
        let h = histogram(&values);
        for m in [Calibration::MinMax, Calibration::Entropy, Calibration::Mse, Calibration::Percentile(100.0)] {
            let r = h.choose(m);
            assert!(r.lo == 0.0 && (2.94..=3.0).contains(&r.hi), "{m:?} {r:?}");
        }
        let r = h.choose(Calibration::Percentile(99.0));
        assert!((r.hi - 0.995 * 3.0).abs() < 0.005, "half a percent is cut off above: {r:?}");
    }

    #[test]
    fn least_error_of_the_normal_distribution_is_the_published_cut() {
        // Banner et al. 2019: 3.92 standard deviations at 8 bits.
        let values = normal(400_000);
        let r = histogram(&values).choose(Calibration::Mse);
        assert!((r.hi - 3.92).abs() < 0.2 && (r.lo + 3.92).abs() < 0.2, "{r:?}");
        assert!(error(&values, r) < error(&values, Range::of(&values)));
        let p = histogram(&values).choose(Calibration::Percentile(99.0));
        assert!((p.hi - 2.576).abs() < 0.03 && (p.lo + 2.576).abs() < 0.03, "{p:?}");
    }

    #[test]
    fn one_far_value_does_not_decide() {
        let mut values: Vec<f32> = normal(100_000).iter().map(|v| v.max(0.0)).collect();
        values.push(100.0);
        let h = histogram(&values);
        assert_eq!(h.choose(Calibration::MinMax), Range { lo: 0.0, hi: 100.0 });
        for m in [Calibration::Percentile(99.9), Calibration::Entropy] {
            let r = h.choose(m);
            assert!(r.hi < 20.0 && r.hi > 2.0 && r.lo == 0.0, "{m:?} {r:?}");
            let rest = &values[..100_000];
            assert!(error(rest, r) < 0.1 * error(rest, h.choose(Calibration::MinMax)));
        }
        let r = h.choose(Calibration::Mse);
        assert!(error(&values, r) <= error(&values, Range::of(&values)), "{r:?}");
    }

    #[test]
    fn nothing_and_zeros_and_what_is_not_finite() {
        for m in Calibration::ALL {
            assert_eq!(histogram(&[]).choose(m), Range::default());
            assert_eq!(histogram(&[0.0; 9]).choose(m), Range::default());
            let r = histogram(&[f32::NAN, f32::INFINITY, -2.0, -1.0]).choose(m);
            assert!(r.hi == 0.0 && r.lo <= -0.9 && r.lo >= -2.0, "{m:?} {r:?}");
        }
    }
}
