//! What arms of a trial are said to take: by the medians of the levels' own tokens, which a slow moment moves less than sums.
//!
//! Not here: running arms (`trial`, `live`). Invariant: levels are timed by tokens of the same windows as what chooses among them.

use super::trial::{Outcome, Point};
use crate::task::quantile;

/// How long levels take.
#[derive(Debug, Clone, PartialEq)]
pub struct Clock {
    /// Per level: the median, over windows, of its median token beside the whole network's.
    pub shares: Vec<f64>,
    /// Milliseconds of the whole network's token at the median.
    pub whole: f64,
}

fn median(values: &[f64]) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    quantile(&v, 0.5)
}

impl Clock {
    /// By what every level did alone, the whole network's outcome first.
    pub fn of(levels: &[&Outcome]) -> Clock {
        let medians = |o: &Outcome| -> Vec<f64> { o.runs.iter().map(|r| median(&r.ms)).collect() };
        let whole = levels.first().map(|o| medians(o)).unwrap_or_default();
        let share = |o: &&Outcome| {
            let own = medians(o);
            median(&own.iter().zip(&whole).map(|(a, b)| a / b).collect::<Vec<_>>())
        };
        Clock { shares: levels.iter().map(share).collect(), whole: median(&whole) }
    }

    /// An arm's mean time by its levels' medians, as a share of the whole network's; with what choosing took where it `chooses`.
    pub fn time(&self, arm: &Outcome, chooses: bool) -> f64 {
        let by_level: f64 = arm.shares(self.shares.len()).iter().zip(&self.shares).map(|(n, t)| n * t).sum();
        by_level + if chooses { Clock::choice(arm) / self.whole } else { 0.0 }
    }

    /// Milliseconds that a choice took.
    pub fn choice(arm: &Outcome) -> f64 {
        median(&arm.runs.iter().map(|r| median(&r.choice_ms)).collect::<Vec<_>>())
    }

    /// The same by the wall: all of its tokens beside all of the whole network's in the same windows.
    pub fn wall(arm: &Outcome, whole: &Outcome) -> f64 {
        let sum = |o: &Outcome| o.runs.iter().flat_map(|r| &r.ms).sum::<f64>();
        sum(arm) / sum(whole).max(1e-9)
    }

    /// What an arm bought for so much time.
    pub fn point(arm: &Outcome, time: f64) -> Point {
        Point { time, divergence: arm.means(|r| &r.divergence), surprise: arm.means(|r| &r.surprise) }
    }
}
