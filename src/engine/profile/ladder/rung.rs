//! One rung of a ladder: timing it, and what several times of it amount to. Pure but for the timing.

use crate::exec::{ExecError, Observer, Session};
use crate::profile::stats::{ms, sorted};
use crate::quant::Precision;
use candle_core::Tensor;
use std::time::Duration;

pub struct Rung {
    pub session: Session,
    pub x: Tensor,
    pub timer: Timer,
}

impl Rung {
    /// Milliseconds that the layer's step takes once.
    pub fn time(&mut self) -> Result<f64, ExecError> {
        self.timer.ms = 0.0;
        self.session.run_observed(&self.x, &mut self.timer)?;
        Ok(self.timer.ms)
    }
}

/// Listens for one step.
pub struct Timer {
    pub step: Option<usize>,
    pub ms: f64,
}

impl Observer for Timer {
    fn step(&mut self, index: usize, elapsed: Duration, _out_bytes: u64) {
        if Some(index) == self.step {
            self.ms = ms(elapsed);
        }
    }
}

/// Two times of a rung that differ by no more than this part of it, or by so many milliseconds, are the same.
const SAME: f64 = 0.10;
const SAME_MS: f64 = 0.003;

/// Between the fastest sample and the median: few samples on a shared machine, where the lower part says more.
pub fn lower_quartile(samples: &[f64]) -> Option<f64> {
    let s = sorted(samples);
    s.get(s.len().saturating_sub(1) / 4).copied()
}

/// What the passes' times amount to: milliseconds, how far they lie from each other as a part of it, and whether no two
/// agree. What disturbs a run makes it slower and never faster, so the two fastest passes are what counts; a time that was
/// seen once only is no time.
pub fn estimate(passes: &[f64]) -> (f64, f64, bool) {
    match sorted(passes).as_slice() {
        [] => (0.0, 1.0, true),
        [one] => (*one, 1.0, true),
        [a, b, ..] => {
            let ms = 0.5 * (a + b);
            (ms, 0.5 * (b - a) / ms.max(1e-9), b - a > (SAME * a).max(SAME_MS))
        }
    }
}

/// Rungs that seem slower than one that is no narrower on either side, in the same precision: kernels do have such widths,
/// and noise looks just like them.
pub fn spikes(widths: &[(usize, usize, Precision)], now: &[(f64, f64, bool)]) -> Vec<bool> {
    let wider = |a: &(usize, usize, Precision), b: &(usize, usize, Precision)| {
        a.2 == b.2 && b.0 >= a.0 && b.1 >= a.1 && (a.0, a.1) != (b.0, b.1)
    };
    let slower = |i: usize, j: usize| wider(&widths[i], &widths[j]) && now[i].0 > now[j].0 * (1.0 + SAME) + SAME_MS;
    (0..widths.len()).map(|i| (0..widths.len()).any(|j| slower(i, j))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_counts_when_it_was_seen_twice() {
        assert_eq!(estimate(&[2.0, 2.0]), (2.0, 0.0, false));
        let (ms, spread, noisy) = estimate(&[2.1, 2.0]);
        assert!((ms - 2.05).abs() < 1e-12 && (spread - 0.05 / 2.05).abs() < 1e-12 && !noisy);
        // One disturbed pass of three is outvoted; three different ones are no measurement.
        assert_eq!(estimate(&[6.7, 2.0, 2.0]), (2.0, 0.0, false));
        assert!(estimate(&[6.7, 2.0, 3.1]).2 && estimate(&[2.0]).2 && estimate(&[]).2);
        // What lies below the clock's grain agrees.
        assert!(!estimate(&[0.002, 0.004]).2);
    }

    #[test]
    fn a_narrower_rung_that_is_slower_is_looked_at_again() {
        let f = Precision::F32;
        let widths = [(16, 32, f), (8, 32, f), (16, 16, f), (8, 32, Precision::Int8), (8, 16, f)];
        let now = |ms: [f64; 5]| ms.map(|ms| (ms, 0.0, false));
        assert_eq!(spikes(&widths, &now([4.0, 2.0, 2.0, 9.0, 1.0])), [false; 5]);
        assert_eq!(spikes(&widths, &now([4.0, 6.0, 2.0, 1.0, 1.0])), [false, true, false, false, false]);
        assert_eq!(spikes(&widths, &now([4.0, 2.0, 2.0, 1.0, 3.0])), [false, false, false, false, true]);
        // Another precision is no neighbour, and a few per cent are nothing.
        assert_eq!(spikes(&widths, &now([4.0, 4.2, 2.0, 99.0, 1.0])), [false; 5]);
    }
}
