//! What else runs on the machine while something is measured: threads of ours that waited for a processor, what other
//! processes and the hypervisor took, and the clock.
//!
//! From Linux's `/proc/self/task/*/schedstat` (time on a processor and time waiting for one, nanoseconds), `/proc/stat`
//! (ticks of 10 ms) and `cpufreq`. What a system does not tell counts as quiet, and the samples' scatter has to tell it.

use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// How to watch.
#[derive(Debug, Clone, Default)]
pub enum Watch {
    /// By what the system tells.
    #[default]
    System,
    /// Everything counts as quiet: for tests that must not depend on the machine.
    Quiet,
    /// Every reading in turn says what part of its threads' time was waited, and then starts again: a machine made up.
    Script(&'static [f64]),
}

/// What a stretch of time was like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Seconds.
    pub seconds: f64,
    /// Part of the time of the threads that measured in which they were ready and had no processor, 0 to 1.
    pub waited: f64,
    /// Part of all processors' time that other processes took, 0 to 1.
    pub others: f64,
    /// Part of it that the hypervisor gave to somebody else.
    pub steal: f64,
    /// Lowest clock seen over the highest, 1 where the system does not tell.
    pub clock: f64,
    /// Part of the runs that was left out because of it; `waited` is about the others.
    pub set_aside: f64,
    /// Waiting was told, so that disturbed runs could be set aside.
    #[serde(default)]
    pub told: bool,
    /// Samples are times of a GPU's own clock: the processors are in its way only where they scatter.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub on_device: bool,
    /// Part of the time in which the GPU ran what others gave it, where its driver tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpu_others: Option<f64>,
}

/// A run in which threads waited for more than this part of their time is not counted.
const WAITED: f64 = 0.03;
/// As that, over a whole measurement, for what others or the hypervisor took of processors that were needed.
const TAKEN: f64 = 0.10;
/// A clock that fell by more than this part is no clock to compare figures by.
const CLOCK: f64 = 0.10;
/// Fewer runs than this part left out is the everyday.
const SET_ASIDE: f64 = 0.20;

impl Load {
    /// Fit to be counted.
    pub fn quiet(&self) -> bool {
        self.waited <= WAITED
    }

    /// The part of the processors that somebody else had, as far as that was in the way of what was counted.
    pub fn contention(&self) -> Option<f64> {
        let taken = self.steal > TAKEN || (self.others > TAKEN && !self.told);
        let part = self.waited.max(self.others).max(self.steal).min(1.0);
        (self.waited > WAITED || taken).then_some(part)
    }

    /// The part of the processors that others are known to have had, where that is much.
    pub fn taken(&self) -> Option<f64> {
        Some(self.others.max(self.steal).min(1.0)).filter(|had| *had > TAKEN)
    }

    /// The part of the time that others had of a GPU whose clock timed the samples, where that is much.
    pub fn shared(&self) -> Option<f64> {
        self.gpu_others.filter(|&part| self.on_device && part > TAKEN)
    }

    /// What there is to say of runs that were left out.
    pub fn words(&self) -> Option<String> {
        let (aside, others) = (100.0 * self.set_aside, 100.0 * self.others.max(self.steal));
        let text = || {
            let had =
                if others < 0.5 { String::new() } else { format!("; others had {others:.0} % of the processors") };
            format!("{aside:.0} % of the runs were set aside and repeated, since threads waited for a processor{had}")
        };
        (self.set_aside > SET_ASIDE).then(text)
    }

    /// Part by which the clock fell, if it did.
    pub fn slowed(&self) -> Option<f64> {
        let fell = 1.0 - self.clock;
        (self.clock > 0.0 && fell > CLOCK).then_some(fell)
    }
}

/// A moment, for [`Meter::since`].
#[derive(Debug, Clone)]
pub(super) struct Mark {
    at: Instant,
    own: Own,
}

impl Mark {
    fn now(watch: &Watch) -> Mark {
        let own = if matches!(watch, Watch::System) { Own::read() } else { Own::default() };
        Mark { at: Instant::now(), own }
    }

    /// Longer ago than that.
    pub fn long(&self, time: Duration) -> bool {
        self.at.elapsed() >= time
    }
}

/// Watches one measurement from its start.
#[derive(Debug)]
pub(super) struct Meter {
    watch: Watch,
    threads: usize,
    start: Mark,
    machine: Option<Machine>,
    clocks: Option<(f64, f64)>,
    read: usize,
}

impl Meter {
    /// For `threads` threads that measure from now on.
    pub fn start(watch: &Watch, threads: usize) -> Meter {
        let machine = if matches!(watch, Watch::System) { Machine::read() } else { None };
        let (watch, threads, start) = (watch.clone(), threads.max(1), Mark::now(watch));
        Meter { watch, threads, start, machine, clocks: None, read: 0 }
    }

    pub fn mark(&self) -> Mark {
        Mark::now(&self.watch)
    }

    /// Whether threads waited since `mark`; only that is fine enough for a few milliseconds.
    pub fn since(&mut self, mark: &Mark) -> Load {
        let wall = mark.at.elapsed();
        let waited = match &self.watch {
            Watch::System => self.waited(mark, wall, &Own::read()),
            Watch::Quiet => 0.0,
            Watch::Script(all) => all.get(self.read % all.len().max(1)).copied().unwrap_or_default(),
        };
        self.read += 1;
        Load { seconds: wall.as_secs_f64(), waited, clock: 1.0, ..Load::default() }
    }

    fn waited(&self, mark: &Mark, wall: Duration, now: &Own) -> f64 {
        let had = wall.as_secs_f64() * self.threads as f64;
        if had > 0.0 { now.since(&mark.own).waited_s / had } else { 0.0 }
    }

    /// The whole measurement.
    pub fn end(&mut self) -> Load {
        let wall = self.start.at.elapsed();
        let mut load = Load { seconds: wall.as_secs_f64(), clock: 1.0, ..Load::default() };
        if !matches!(self.watch, Watch::System) {
            return load;
        }
        let own = Own::read();
        load.waited = self.waited(&self.start, wall, &own);
        load.told = !own.threads.is_empty();
        if let (Some(a), Some(b)) = (self.machine, Machine::read()) {
            let ours = own.since(&self.start.own).ran_s * TICKS;
            let all = b.all - a.all;
            // Below a few ticks nothing can be said.
            if all >= 20.0 {
                load.others = ((b.busy - a.busy - ours) / all).clamp(0.0, 1.0);
                load.steal = ((b.steal - a.steal) / all).clamp(0.0, 1.0);
            }
            // Processors that nobody needed are nobody's loss.
            let spare = 1.0 - self.threads as f64 / b.processors.max(1) as f64;
            load.others = (load.others - spare.max(0.0)).max(0.0);
        }
        if let Some((low, high)) = self.clocks {
            load.clock = if high > 0.0 { low / high } else { 1.0 };
        }
        load
    }

    /// Takes note of the clock; between runs, since before the first one it may rest.
    pub fn clock(&mut self) {
        if !matches!(self.watch, Watch::System) {
            return;
        }
        if let Some(now) = clock() {
            let (low, high) = self.clocks.unwrap_or((now, now));
            self.clocks = Some((low.min(now), high.max(now)));
        }
    }
}

/// Ticks a second in `/proc/stat`: `USER_HZ`, 100 on every Linux that Rust runs on.
const TICKS: f64 = 100.0;

/// What each of this process's threads got and waited for so far, by its number, ascending.
#[derive(Debug, Clone, Default)]
struct Own {
    threads: Vec<(u32, Got)>,
}

/// Seconds.
#[derive(Debug, Clone, Copy, Default)]
struct Got {
    ran_s: f64,
    waited_s: f64,
}

impl Own {
    fn read() -> Own {
        let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return Own::default() };
        let one = |task: std::fs::DirEntry| -> Option<(u32, Got)> {
            let number = task.file_name().to_str()?.parse().ok()?;
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            let mut ns = text.split_ascii_whitespace().map_while(|w| w.parse::<f64>().ok());
            Some((number, Got { ran_s: ns.next()? * 1e-9, waited_s: ns.next()? * 1e-9 }))
        };
        let mut threads: Vec<(u32, Got)> = tasks.flatten().filter_map(one).collect();
        threads.sort_unstable_by_key(|t| t.0);
        Own { threads }
    }

    /// What was got since `before` by the threads that are there: those that have ended since are not told any more, and
    /// those that began since began with nothing.
    fn since(&self, before: &Own) -> Got {
        let mut sum = Got::default();
        for (number, now) in &self.threads {
            let known = before.threads.binary_search_by_key(number, |t| t.0).ok().and_then(|i| before.threads.get(i));
            let then = known.map(|t| t.1).unwrap_or_default();
            sum.ran_s += (now.ran_s - then.ran_s).max(0.0);
            sum.waited_s += (now.waited_s - then.waited_s).max(0.0);
        }
        sum
    }
}

/// `/proc/stat`'s first line, in ticks.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Machine {
    all: f64,
    busy: f64,
    steal: f64,
    processors: usize,
}

impl Machine {
    fn read() -> Option<Machine> {
        Machine::parse(&std::fs::read_to_string("/proc/stat").ok()?)
    }

    /// `user nice system idle iowait irq softirq steal …`; guests are counted in user and nice already.
    fn parse(text: &str) -> Option<Machine> {
        let mut lines = text.lines();
        let v: Vec<f64> = lines.next()?.strip_prefix("cpu ")?.split_ascii_whitespace().flat_map(str::parse).collect();
        let [user, nice, system, idle, iowait, irq, softirq, rest @ ..] = v.as_slice() else { return None };
        let steal = rest.first().copied().unwrap_or(0.0);
        let busy = user + nice + system + irq + softirq;
        let processors = lines.take_while(|l| l.starts_with("cpu")).count();
        Some(Machine { all: busy + idle + iowait + steal, busy, steal, processors })
    }
}

/// The fastest processor's clock, kHz: those that rest are not the ones that work.
fn clock() -> Option<f64> {
    let dir = std::fs::read_dir("/sys/devices/system/cpu").ok()?;
    let khz = |e: std::fs::DirEntry| -> Option<f64> {
        std::fs::read_to_string(e.path().join("cpufreq/scaling_cur_freq")).ok()?.trim().parse().ok()
    };
    dir.flatten().filter_map(khz).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_stat_is_read_by_its_fields() {
        let text = "cpu  100 10 20 800 30 1 2 37 5 0\ncpu0 1 2 3 4 5 6 7 8 9 0\ncpu1 1 2 3 4 5 6 7 8 9 0\nintr 5\n";
        let m = Machine::parse(text).expect("parses");
        assert_eq!(m, Machine { all: 1000.0, busy: 133.0, steal: 37.0, processors: 2 });
        // Kernels before 2.6.11 have no steal; what is no such line is nothing.
        assert_eq!(Machine::parse("cpu 1 1 1 1 1 1 1\n").map(|m| (m.all, m.steal)), Some((7.0, 0.0)));
        assert_eq!(Machine::parse("cpu 1 2 3\n"), None);
        assert_eq!(Machine::parse(""), None);
    }

    #[test]
    fn contention_is_what_was_in_the_way() {
        let load = |waited, others, steal| Load { waited, others, steal, clock: 1.0, ..Load::default() };
        assert_eq!(load(0.0, 0.05, 0.01).contention(), None);
        assert_eq!(load(0.01, 0.48, 0.0).contention(), Some(0.48));
        // Set aside run by run: what others did was not in the way of what counts.
        assert_eq!(Load { told: true, ..load(0.01, 0.48, 0.0) }.contention(), None);
        assert_eq!(Load { told: true, ..load(0.2, 0.48, 0.0) }.contention(), Some(0.48));
        assert_eq!(load(0.0, 0.0, 0.2).contention(), Some(0.2));
        assert_eq!(load(0.3, 0.0, 0.0).contention(), Some(0.3));
        assert!(!load(0.3, 0.0, 0.0).quiet() && load(0.01, 0.5, 0.0).quiet());
        assert_eq!(Load { clock: 0.95, ..Load::default() }.slowed(), None);
        assert_eq!(Load { clock: 0.75, ..Load::default() }.slowed(), Some(0.25));
    }

    #[test]
    fn threads_that_want_more_than_there_is_are_seen_waiting() {
        // Twice as many busy threads as processors: half of what they wanted was waited for, whatever else runs.
        let n = std::thread::available_parallelism().map_or(1, |n| n.get());
        if Own::read().threads.is_empty() {
            return; // no schedstat here
        }
        let mut meter = Meter::start(&Watch::System, n);
        let mark = meter.mark();
        let end = Instant::now() + Duration::from_millis(120);
        let (stop, done) = (std::sync::Barrier::new(2 * n + 1), std::sync::Barrier::new(2 * n + 1));
        let load = std::thread::scope(|s| {
            for _ in 0..2 * n {
                s.spawn(|| {
                    while Instant::now() < end {
                        std::hint::spin_loop();
                    }
                    stop.wait();
                    done.wait();
                });
            }
            // Threads that have ended are no longer counted.
            stop.wait();
            let load = meter.since(&mark);
            done.wait();
            load
        });
        assert!(!load.quiet() && load.waited > 0.2, "{load:?}");
    }

    #[test]
    fn threads_that_end_take_nothing_away() {
        let got = |ran_s, waited_s| Got { ran_s, waited_s };
        let before = Own { threads: vec![(3, got(9.0, 5.0)), (7, got(1.0, 0.5))] };
        let now = Own { threads: vec![(7, got(1.5, 0.75)), (8, got(0.25, 0.125))] };
        let d = now.since(&before);
        assert_eq!((d.ran_s, d.waited_s), (0.75, 0.375));
    }

    #[test]
    fn a_script_is_read_in_turn() {
        let mut meter = Meter::start(&Watch::Script(&[0.0, 0.5]), 2);
        let mark = meter.mark();
        let quiet: Vec<bool> = (0..4).map(|_| meter.since(&mark).quiet()).collect();
        assert_eq!(quiet, [true, false, true, false]);
        assert_eq!(meter.end().contention(), None);
    }
}
