//! The machine over the last minutes: what the host told of it each second while jobs ran, kept by the screen in a bounded ring.
//!
//! Not here: who reads the figures (`host/machine`), drawing (`draw/vitals`). Invariants: what was not told is no zero; times are the screen's own, so
//! that pauses between jobs stay pauses; no more than [`KEPT`] moments are kept.

use crate::session::{Machine, Progress};
use std::collections::VecDeque;

/// Moments that are kept: ten minutes at one a second.
pub const KEPT: usize = 600;
/// From here on other programs are in the way of measurements, per cent of all processors.
pub const OTHERS: u8 = 10;

/// One reading.
#[derive(Debug, Clone)]
pub struct Moment {
    pub at_ms: i64,
    pub machine: Machine,
    /// Latency was being measured.
    pub timing: bool,
}

impl Moment {
    /// Latency was measured while other programs were in the way.
    pub fn disturbed(&self) -> bool {
        self.timing && self.machine.others.is_some_and(|o| o >= OTHERS)
    }
}

#[derive(Debug, Clone, Default)]
pub struct Vitals(VecDeque<Moment>);

/// A figure over the moments.
#[derive(Debug, Clone)]
pub struct Series {
    pub name: String,
    pub unit: Unit,
    /// Where its scale ends: what there is in all, where that is known, or the most that was seen.
    pub top: f64,
    /// By moment; `None` where it was not told.
    pub values: Vec<Option<f64>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Percent,
    Bytes,
    Megahertz,
    Watts,
    Celsius,
}

/// Whether a stage of a job measures latency.
fn times(p: &Progress) -> bool {
    matches!(p.job.as_str(), "profile" | "ladders" | "level times")
        || p.label.starts_with("latency")
        || p.label == "layers"
}

impl Vitals {
    pub fn push(&mut self, at_ms: i64, machine: Machine, jobs: &[Progress]) {
        if self.0.len() >= KEPT {
            self.0.pop_front();
        }
        self.0.push_back(Moment { at_ms, machine, timing: jobs.iter().any(times) });
    }

    pub fn moments(&self) -> impl DoubleEndedIterator<Item = &Moment> + ExactSizeIterator {
        self.0.iter()
    }

    /// When the first and the last were read.
    pub fn span(&self) -> Option<(i64, i64)> {
        Some((self.0.front()?.at_ms, self.0.back()?.at_ms))
    }

    /// All figures that were told at any moment; each processor by itself where `each` asks for it.
    pub fn series(&self, each: bool) -> Vec<Series> {
        let mut out = Vec::new();
        let mut tell = |name: String, unit: Unit, top: Option<f64>, of: &dyn Fn(&Machine) -> Option<f64>| {
            let values: Vec<Option<f64>> = self.0.iter().map(|m| of(&m.machine).filter(|v| v.is_finite())).collect();
            let most = values.iter().flatten().copied().fold(0.0, f64::max);
            if values.iter().any(Option::is_some) {
                out.push(Series { name, unit, top: top.unwrap_or(most).max(most).max(f64::MIN_POSITIVE), values });
            }
        };
        let total =
            |of: &dyn Fn(&Machine) -> Option<u64>| self.0.iter().filter_map(|m| of(&m.machine)).max().map(|t| t as f64);
        let hundred = Some(100.0);
        tell("cpu".to_owned(), Unit::Percent, hundred, &|m| m.busy().map(f64::from));
        tell("others".to_owned(), Unit::Percent, hundred, &|m| m.others.map(f64::from));
        let ram = total(&|m| m.memory.map(|(_, all)| all));
        tell("ram".to_owned(), Unit::Bytes, ram, &|m| m.memory.map(|(used, _)| used as f64));
        tell("clock".to_owned(), Unit::Megahertz, None, &|m| m.mhz.map(f64::from));
        tell("gpu".to_owned(), Unit::Percent, hundred, &|m| m.gpu.as_ref()?.busy_percent.map(f64::from));
        let held = total(&|m| m.gpu.as_ref()?.memory_total);
        tell("gpu memory".to_owned(), Unit::Bytes, held, &|m| m.gpu.as_ref()?.memory_used.map(|b| b as f64));
        tell("gpu power".to_owned(), Unit::Watts, None, &|m| m.gpu.as_ref()?.power_w);
        tell("gpu clock".to_owned(), Unit::Megahertz, None, &|m| m.gpu.as_ref()?.sm_mhz.map(f64::from));
        tell("gpu heat".to_owned(), Unit::Celsius, None, &|m| m.gpu.as_ref()?.celsius.map(f64::from));
        let processors = self.0.iter().map(|m| m.machine.processors.len()).max().unwrap_or(0);
        for i in (0..processors).filter(|_| each) {
            tell(format!("cpu {i}"), Unit::Percent, hundred, &|m| m.processors.get(i).map(|p| f64::from(*p)));
        }
        out
    }
}

impl Series {
    /// The least, the mean and the most of what was told.
    pub fn range(&self) -> Option<(f64, f64, f64)> {
        let told: Vec<f64> = self.values.iter().flatten().copied().collect();
        let least = told.iter().copied().reduce(f64::min)?;
        let most = told.iter().copied().reduce(f64::max)?;
        Some((least, told.iter().sum::<f64>() / told.len() as f64, most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(job: &str, label: &str) -> Vec<Progress> {
        vec![Progress { job: job.into(), label: label.into(), ..Progress::default() }]
    }

    #[test]
    fn a_bounded_number_of_moments_is_kept_and_gaps_stay() {
        let mut v = Vitals::default();
        for i in 0..KEPT as i64 + 40 {
            let mhz = (i % 2 == 0).then_some(2000 + u32::try_from(i).unwrap());
            v.push(i * 1000, Machine { processors: vec![10, 30], mhz, ..Machine::default() }, &[]);
        }
        assert_eq!((v.moments().len(), v.span()), (KEPT, Some((40_000, 639_000))));
        let names: Vec<String> = v.series(false).into_iter().map(|s| s.name).collect();
        assert_eq!(names, ["cpu", "clock"], "what was never told has no line");
        assert_eq!(v.series(true).len(), 4);
        let clock = &v.series(false)[1];
        assert_eq!(clock.values.iter().flatten().count(), KEPT / 2);
        assert_eq!(clock.range(), Some((2040.0, 2339.0, 2638.0)));
        assert_eq!(v.series(false)[0].range(), Some((20.0, 20.0, 20.0)));
    }

    #[test]
    fn only_what_is_timed_can_be_disturbed() {
        let mut v = Vitals::default();
        let busy = Machine { processors: vec![90], others: Some(OTHERS), ..Machine::default() };
        for jobs in [at("profile", "layers"), at("evaluate", "latency against the original"), at("compress", "re-fit")]
        {
            v.push(0, busy.clone(), &jobs);
        }
        v.push(0, Machine { others: Some(OTHERS - 1), ..busy }, &at("ladders", "conv1"));
        assert_eq!(v.moments().map(Moment::disturbed).collect::<Vec<_>>(), [true, true, false, false]);
    }
}
