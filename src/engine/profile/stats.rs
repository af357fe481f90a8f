//! Order statistics of latency samples: medians with their intervals, ratios of pairs, and rows that stand out.
//!
//! Medians, because one stray sample moves no median. Their intervals need no shape of the distribution: the number of
//! samples below the true median is binomial, so two order statistics bracket it with a known probability (David and
//! Nagaraja, *Order Statistics*, 3rd ed. 2003, section 7.1; Le Boudec, *Performance Evaluation of Computer and
//! Communication Systems*, 2010, theorem 2.1).

use super::{Doubt, LatencyStats, LayerRow, Load, Ratio};
use crate::task::quantile;
use std::collections::HashMap;
use std::time::Duration;

/// The probability that a stated interval holds the median.
const LEVEL: f64 = 0.95;
/// A median that is known no better than to this part of it is not to be decided on.
const SCATTER: f64 = 0.10;
/// As that, for a ratio of pairs.
const RATIO_SCATTER: f64 = 0.05;
/// Where the machine was contended: samples whose middle half lies within this part of the median were not touched by it.
const TOUCHED: f64 = 0.05;
/// A row stands out among rows of its shape when it is away from their median by more than this part of it.
const STANDS_OUT: f64 = 0.25;

impl LatencyStats {
    /// Fewest samples of which a 99th percentile says anything.
    pub const TAIL: usize = 100;

    /// Statistics of samples in milliseconds, in the order in which they were taken; samples that are no numbers are left
    /// out. All zero for none.
    pub fn of(samples: &[f64]) -> LatencyStats {
        let taken: Vec<f64> = samples.iter().copied().filter(|v| v.is_finite()).collect();
        if taken.is_empty() {
            return LatencyStats::default();
        }
        let s = sorted(&taken);
        let p50 = quantile(&s, 0.5);
        let part = |ms: f64| if p50 > 0.0 { ms / p50 } else { 0.0 };
        let (low, high, _) = median_interval(&s, LEVEL);
        // What drifts slowly looks steady from sample to sample: the halves of the measurement tell.
        let (first, second) = taken.split_at(taken.len() / 2);
        let drift = if first.len() >= 5 { (median(first) - median(second)).abs() / 2.0 } else { 0.0 };
        LatencyStats {
            n: s.len(),
            p50,
            p95: quantile(&s, 0.95),
            p99: (s.len() >= LatencyStats::TAIL).then(|| quantile(&s, 0.99)),
            mean: s.iter().sum::<f64>() / s.len() as f64,
            min: s[0],
            spread: Some(part(0.5 * (high - low)).max(part(drift))),
            middle: part(quantile(&s, 0.75) - quantile(&s, 0.25)),
            replayed: false,
        }
    }

    /// How far the median is known, as a part of it: half the 95 % interval. From the tail, for figures of older versions.
    pub fn spread(&self) -> f64 {
        match self.spread {
            Some(s) => s,
            None if self.p50 > 0.0 => (0.5 * (self.p95 - self.p50) / self.p50).max(0.0),
            None => 0.0,
        }
    }

    /// The 99th percentile, if there are samples enough for one.
    pub fn p99(&self) -> Option<f64> {
        self.p99.filter(|_| self.n >= LatencyStats::TAIL)
    }

    /// Widened to what two measurements of the same differ by, `repeat` as a part of the median and `floor_ms`.
    pub(super) fn at_least(mut self, repeat: f64, floor_ms: f64) -> LatencyStats {
        if let Some(s) = &mut self.spread
            && self.p50 > 0.0
        {
            *s = s.hypot(repeat).max(floor_ms / self.p50);
        }
        self
    }

    /// Why this is not to be decided on, measured while the machine was as `load` says.
    pub(super) fn doubt(&self, load: &Load) -> Option<Doubt> {
        if load.on_device {
            let touched = self.middle > TOUCHED || self.spread() > SCATTER;
            return on_device(load, touched && !self.replayed, (self.spread() > SCATTER).then_some(self.spread()));
        }
        match (load.contention(), load.slowed()) {
            (Some(part), _) if self.middle > TOUCHED || part > 0.25 => crowded(load),
            (_, Some(by)) => Some(Doubt::Clock { by }),
            _ if self.spread() > SCATTER => Some(Doubt::Scatter { spread: self.spread() }),
            _ => None,
        }
    }
}

impl Ratio {
    /// Of pairs `(base, new)` that were measured together: the median of `new / base` with its 95 % interval.
    pub fn of(pairs: &[(f64, f64)]) -> Ratio {
        let ratios = pairs.iter().filter(|(a, b)| *a > 0.0 && b.is_finite()).map(|(a, b)| b / a);
        let s = sorted(&ratios.filter(|r| r.is_finite()).collect::<Vec<_>>());
        if s.is_empty() {
            return Ratio::UNKNOWN;
        }
        let (low, high, coverage) = median_interval(&s, LEVEL);
        Ratio { n: s.len(), value: quantile(&s, 0.5), low, high, coverage }
    }

    /// The range in which single pairs lie: what is left to say of a median that cannot be trusted.
    pub(super) fn of_single(pairs: &[(f64, f64)]) -> (f64, f64) {
        let s = sorted(&pairs.iter().filter(|(a, _)| *a > 0.0).map(|(a, b)| b / a).collect::<Vec<_>>());
        if s.is_empty() { (f64::NAN, f64::NAN) } else { (quantile(&s, 0.025), quantile(&s, 0.975)) }
    }

    pub(super) fn doubt(&self, load: &Load, replayed: bool) -> Option<Doubt> {
        let spread = 0.5 * (self.high - self.low) / self.value.max(1e-9);
        if load.on_device {
            let scatter = (spread > RATIO_SCATTER).then_some(spread);
            return on_device(load, scatter.is_some() && !replayed, scatter);
        }
        match (load.contention(), load.slowed()) {
            (Some(_), _) => crowded(load),
            // A clock that falls slows both of a pair.
            _ if spread > RATIO_SCATTER => Some(Doubt::Scatter { spread }),
            _ => None,
        }
    }
}

/// What was in the way of what was counted: what others had, or, where they had little, how long threads waited, whoever was in their way.
fn crowded(load: &Load) -> Option<Doubt> {
    load.contention()?;
    let waiting = Doubt::Waiting { part: load.waited.min(1.0) };
    Some(load.taken().map_or(waiting, |others| Doubt::Contention { others }))
}

/// Why a figure of a GPU's clock is not to be decided on: others that the GPU tells of, or its samples' scatter. What the
/// processors did is the reason only where it can have made them scatter (`touched`): in what is launched kernel by kernel. How the
/// host's clock went says nothing.
fn on_device(load: &Load, touched: bool, scatter: Option<f64>) -> Option<Doubt> {
    match (load.shared(), load.contention()) {
        (Some(others), _) => Some(Doubt::Shared { others }),
        (None, Some(_)) if touched => crowded(load),
        (None, _) => scatter.map(|spread| Doubt::Scatter { spread }),
    }
}

pub(super) fn sorted(values: &[f64]) -> Vec<f64> {
    let mut s = values.to_vec();
    s.sort_by(f64::total_cmp);
    s
}

/// The median of values in any order; not a number for none.
pub(super) fn median(values: &[f64]) -> f64 {
    let s = sorted(values);
    if s.is_empty() { f64::NAN } else { quantile(&s, 0.5) }
}

/// The narrowest pair of symmetric order statistics `(x(k), x(n+1−k))` that holds the median with at least `level`, and the
/// probability that it does: `1 − 2·P(Bin(n, ½) < k)`. The whole range where there are too few samples for that.
pub(super) fn median_interval(sorted: &[f64], level: f64) -> (f64, f64, f64) {
    let n = sorted.len();
    if n == 0 {
        return (f64::NAN, f64::NAN, 0.0);
    }
    // P(Bin(n, ½) = i) by logarithms: 2^-n leaves the range of numbers at n = 1075.
    let (mut log, mut below, mut k, mut missed) = (-(n as f64) * std::f64::consts::LN_2, 0.0, 1, f64::NAN);
    for i in 0..n.div_ceil(2) {
        below += f64::exp(log);
        log += f64::ln((n - i) as f64 / (i + 1) as f64);
        if i == 0 || 2.0 * below <= 1.0 - level {
            (k, missed) = (i + 1, 2.0 * below);
        } else {
            break;
        }
    }
    (sorted[k - 1], sorted[n - k], (1.0 - missed).max(0.0))
}

/// Marks rows that stand out among rows of the same shape and kernel, which must take about the same time. At least three
/// make a shape's norm: their median, and away from it is what exceeds [`STANDS_OUT`], four of their median absolute
/// deviations (1.4826 of which are a standard deviation) and the row's own spread.
pub(super) fn outliers(rows: &mut [LayerRow]) {
    type Shape = (String, String, Vec<usize>, u64, u64, usize);
    let mut by_shape: HashMap<Shape, Vec<usize>> = HashMap::new();
    for (i, r) in rows.iter().enumerate() {
        let kernel = format!("{} {:?}", r.kernel, r.precision);
        let macs = r.macs.conv_linear + r.macs.attention;
        let shape = (r.kind.clone(), kernel, r.out_shape.clone(), macs, r.params, r.fused.len());
        by_shape.entry(shape).or_default().push(i);
    }
    for twins in by_shape.into_values().filter(|t| t.len() >= 3) {
        let all: Vec<f64> = twins.iter().map(|&i| rows[i].latency.p50).collect();
        let norm = median(&all);
        let away: Vec<f64> = all.iter().map(|v| (v - norm).abs()).collect();
        let usual = 4.0 * 1.4826 * median(&away);
        for &i in &twins {
            let row = &mut rows[i];
            let own = row.latency.spread() * row.latency.p50;
            let away = (row.latency.p50 - norm).abs();
            if away > (STANDS_OUT * norm).max(usual).max(own) {
                row.doubt = Some(Doubt::Outlier { twins_ms: norm });
            }
        }
    }
}

pub(super) fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

#[cfg(test)]
#[path = "stats_tests.rs"]
mod tests;
