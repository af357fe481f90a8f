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
    /// Per level: what its token takes more where the one before was of another level, as such a share; 0 at least.
    pub entries: Vec<f64>,
    /// Milliseconds of the whole network's token at the median.
    pub whole: f64,
}

fn median(values: &[f64]) -> f64 {
    let mut v = values.to_vec();
    v.sort_by(f64::total_cmp);
    quantile(&v, 0.5)
}

/// The places of tokens whose level is another than that of the one before, with it. What comes first is no change: all begin after a prompt that
/// the whole network read.
fn changes(levels: &[usize]) -> impl Iterator<Item = (usize, usize)> + '_ {
    levels.windows(2).enumerate().filter(|(_, two)| two[0] != two[1]).map(|(i, two)| (i + 1, two[1]))
}

/// What a change to `level` takes more than staying there: medians of windows, and of those.
fn entry(level: usize, alone: &Outcome, whole: &[f64], mixing: &[&Outcome]) -> f64 {
    let mut more = Vec::new();
    for (w, run) in alone.runs.iter().enumerate() {
        let runs = mixing.iter().filter_map(|o| o.runs.get(w));
        let entered: Vec<f64> = runs
            .flat_map(|r| changes(&r.level).filter(|c| c.1 == level).map(|(t, _)| r.ms[t] - r.choice_ms[t]))
            .collect();
        if !entered.is_empty() && whole.get(w).is_some_and(|ms| *ms > 0.0) {
            more.push((median(&entered) - median(&run.ms)) / whole[w]);
        }
    }
    if more.is_empty() { 0.0 } else { median(&more).max(0.0) }
}

impl Clock {
    /// By what every level did alone, the whole network's outcome first; what a change takes by those that change (`mixing`), beside the level alone in the
    /// same windows.
    pub fn of(levels: &[&Outcome], mixing: &[&Outcome]) -> Clock {
        let medians = |o: &Outcome| -> Vec<f64> { o.runs.iter().map(|r| median(&r.ms)).collect() };
        let whole = levels.first().map(|o| medians(o)).unwrap_or_default();
        let share = |o: &&Outcome| {
            let own = medians(o);
            median(&own.iter().zip(&whole).map(|(a, b)| a / b).collect::<Vec<_>>())
        };
        let shares = levels.iter().map(share).collect();
        let entries = levels.iter().enumerate().map(|(level, alone)| entry(level, alone, &whole, mixing)).collect();
        Clock { shares, entries, whole: median(&whole) }
    }

    /// An arm's mean time by its levels' medians, as a share of the whole network's; with what choosing took where it `chooses`.
    pub fn time(&self, arm: &Outcome, chooses: bool) -> f64 {
        let by_level: f64 = arm.shares(self.shares.len()).iter().zip(&self.shares).map(|(n, t)| n * t).sum();
        let entered: f64 = arm.runs.iter().flat_map(|r| changes(&r.level)).map(|(_, level)| self.entries[level]).sum();
        let tokens = arm.runs.iter().map(|r| r.level.len()).sum::<usize>().max(1);
        by_level + entered / tokens as f64 + if chooses { Clock::choice(arm) / self.whole } else { 0.0 }
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
