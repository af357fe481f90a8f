//! Order statistics of latency samples.

use super::LatencyStats;
use std::time::Duration;

impl LatencyStats {
    /// Statistics of samples in milliseconds; samples that are no numbers are left out. All zero for none.
    pub fn of(samples: &[f64]) -> LatencyStats {
        let mut s: Vec<f64> = samples.iter().copied().filter(|v| v.is_finite()).collect();
        s.sort_by(f64::total_cmp);
        if s.is_empty() {
            return LatencyStats::default();
        }
        LatencyStats {
            n: s.len(),
            p50: quantile(&s, 0.5),
            p95: quantile(&s, 0.95),
            p99: quantile(&s, 0.99),
            mean: s.iter().sum::<f64>() / s.len() as f64,
            min: s[0],
        }
    }

    /// Half the distance from the median to the 95th percentile, as a part of the median: how far to trust a ratio of
    /// two medians.
    pub fn spread(&self) -> f64 {
        if self.p50 > 0.0 { (0.5 * (self.p95 - self.p50) / self.p50).max(0.0) } else { 0.0 }
    }
}

/// Linear interpolation between closest ranks (numpy's default) in sorted samples.
fn quantile(sorted: &[f64], q: f64) -> f64 {
    let at = q * (sorted.len() - 1) as f64;
    let (lo, hi) = (at.floor() as usize, at.ceil() as usize);
    sorted[lo] + (sorted[hi] - sorted[lo]) * (at - lo as f64)
}

pub(super) fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_equal_numpy() {
        let s = LatencyStats::of(&[4.0, 1.0, 3.0, 2.0, f64::NAN]);
        // np.percentile([1, 2, 3, 4], [50, 95, 99])
        assert_eq!((s.n, s.p50, s.min, s.mean), (4, 2.5, 1.0, 2.5));
        assert!((s.p95 - 3.85).abs() < 1e-12 && (s.p99 - 3.97).abs() < 1e-12);
        assert_eq!(LatencyStats::of(&[7.0]).p99, 7.0);
        assert_eq!(LatencyStats::of(&[]), LatencyStats::default());
    }

    #[test]
    fn one_stray_sample_moves_no_median() {
        let mut samples = vec![10.0; 49];
        samples.push(900.0);
        let s = LatencyStats::of(&samples);
        assert_eq!((s.p50, s.p95), (10.0, 10.0));
        assert_eq!(s.spread(), 0.0);
    }
}
