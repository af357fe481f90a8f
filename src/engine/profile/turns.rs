//! Rounds of runs that are compared with each other: taken in turns, and counted where the machine was quiet.
//!
//! What disturbs a machine comes and goes. Runs in which a thread waited for a processor are set aside, and measuring goes
//! on until there are enough others or time is up; only when too few are left do all of them count, and the figures are
//! marked. Not here: what a figure is made of (`stats`) and what is seen of the machine (`load`).

use super::Result;
use super::load::{Load, Meter, Watch};
use crate::exec::Cancel;
use std::time::{Duration, Instant};

/// Fewest rounds of which a figure is made.
pub(super) const LEAST: usize = 5;
/// The machine is asked about this much time at once: asking takes some hundredth of it.
const STRETCH: Duration = Duration::from_millis(5);

/// What times a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Clock {
    /// The host's: a run in which its threads waited for a processor took as much longer.
    Host,
    /// A GPU's, by events between its kernels: what the host waits for is no part of a run, or no more than the samples' scatter
    /// tells.
    Device,
}

impl Clock {
    pub fn of(device: &candle_core::Device) -> Clock {
        if device.is_cpu() { Clock::Host } else { Clock::Device }
    }
}

/// How many rounds to take.
#[derive(Debug)]
pub(super) struct Turns<'a> {
    pub wanted: usize,
    /// Rounds at least, whatever the time limit.
    pub least: usize,
    pub time_limit: Duration,
    /// Threads that a run keeps busy.
    pub threads: usize,
    pub watch: &'a Watch,
    pub cancel: &'a Cancel,
    pub clock: Clock,
}

/// Which rounds count, and what the machine did during those.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Counted {
    pub rounds: Vec<usize>,
    pub load: Load,
}

impl Turns<'_> {
    /// Calls `round` with 0, 1, … and tells which of them count.
    ///
    /// # Errors
    /// What `round` reports, and cancellation.
    pub fn take(&self, mut round: impl FnMut(usize) -> Result<()>) -> Result<Counted> {
        let start = Instant::now();
        let mut meter = Meter::start(self.watch, self.threads);
        let (mut quiet, mut done): (Vec<usize>, usize) = (Vec::new(), 0);
        // Waited in rounds that count, weighted by time, and in all.
        let (mut waited, mut waited_all) = ((0.0, 0.0), (0.0, 0.0));
        let (mut mark, mut from) = (meter.mark(), 0);
        let late = |done: usize| done >= self.least && start.elapsed() >= self.time_limit;
        while quiet.len() < self.wanted && !late(done) {
            self.cancel.check()?;
            round(done)?;
            done += 1;
            let enough = quiet.len() + (done - from) >= self.wanted || late(done);
            if !mark.long(STRETCH) && !enough {
                continue;
            }
            let load = meter.since(&mark);
            meter.clock();
            let add = |sum: &mut (f64, f64)| *sum = (sum.0 + load.waited * load.seconds, sum.1 + load.seconds);
            add(&mut waited_all);
            if load.quiet() || self.clock == Clock::Device {
                add(&mut waited);
                quiet.extend(from..done);
            }
            (mark, from) = (meter.mark(), done);
        }
        let mut load = meter.end();
        let few = quiet.len() < self.least.min(self.wanted);
        let (sum, time) = if few { waited_all } else { waited };
        load.waited = if time > 0.0 { sum / time } else { 0.0 };
        let rounds = if few { (0..done).collect() } else { quiet };
        load.on_device = self.clock == Clock::Device;
        load.set_aside = 1.0 - rounds.len() as f64 / done.max(1) as f64;
        Ok(Counted { rounds, load })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns<'a>(wanted: usize, limit_ms: u64, watch: &'a Watch, cancel: &'a Cancel) -> Turns<'a> {
        let time_limit = Duration::from_millis(limit_ms);
        Turns { wanted, least: LEAST, time_limit, threads: 1, watch, cancel, clock: Clock::Host }
    }

    fn take(wanted: usize, limit_ms: u64, watch: &Watch) -> Counted {
        let mut next = 0;
        let round = |i: usize| {
            assert_eq!(i, next);
            next += 1;
            std::thread::sleep(STRETCH);
            Ok(())
        };
        turns(wanted, limit_ms, watch, &Cancel::default()).take(round).expect("counted")
    }

    #[test]
    fn on_a_quiet_machine_every_round_counts() {
        let c = take(7, 60_000, &Watch::Quiet);
        assert_eq!((c.rounds, c.load.set_aside), ((0..7).collect(), 0.0));
        assert_eq!(c.load.contention(), None);
    }

    #[test]
    fn disturbed_rounds_are_set_aside_and_made_up_for() {
        // Every other stretch is disturbed: twice as many rounds, half of them counted, and nothing to complain of.
        let c = take(6, 60_000, &Watch::Script(&[0.5, 0.0]));
        assert_eq!(c.rounds, [1, 3, 5, 7, 9, 11]);
        assert!((c.load.set_aside - 0.5).abs() < 1e-9 && c.load.contention().is_none(), "{:?}", c.load);
    }

    #[test]
    fn where_it_never_gets_quiet_all_count_and_it_is_said() {
        let c = take(1000, 60, &Watch::Script(&[0.4]));
        assert!(c.rounds.len() >= LEAST, "{:?}", c.rounds);
        assert!(c.load.contention().is_some_and(|p| (p - 0.4).abs() < 1e-9), "{:?}", c.load);
        assert_eq!(c.load.set_aside, 0.0);
    }

    #[test]
    fn what_a_device_times_counts_whatever_its_host_does() {
        let (watch, cancel) = (Watch::Script(&[0.5, 0.0]), Cancel::default());
        let on_device = Turns { clock: Clock::Device, ..turns(6, 60_000, &watch, &cancel) };
        let c = on_device
            .take(|_| {
                std::thread::sleep(STRETCH);
                Ok(())
            })
            .expect("counted");
        assert_eq!((c.rounds, c.load.set_aside, c.load.on_device), ((0..6).collect(), 0.0, true));
    }

    #[test]
    fn it_ends_when_it_is_cancelled() {
        let cancel = Cancel::default();
        let end = |i| {
            if i == 2 {
                cancel.cancel();
            }
            Ok(())
        };
        assert!(
            turns(100, 60_000, &Watch::Quiet, &cancel)
                .take(end)
                .is_err_and(|e| matches!(e, crate::profile::ProfileError::Cancelled(_)))
        );
    }
}
