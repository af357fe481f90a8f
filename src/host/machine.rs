//! Reads what the machine does while a job runs, once a second, and tells the host's clients.
//!
//! Not here: what a measurement says of its own disturbances (`profile/load`). Invariants: nobody waits for it; it ends with
//! its job, so that an idle session sends nothing; it reads, and touches no device's settings.

use super::input::Input;
use crate::profile::Gauges;
use crate::session::{Feed, Machine};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::Duration;
use sysinfo::{CpuRefreshKind, MemoryRefreshKind, Pid, ProcessRefreshKind, ProcessesToUpdate, System};
use tokio::sync::mpsc;

/// How often: often enough to see what comes and goes, seldom enough to be in no measurement's way.
const EVERY: Duration = Duration::from_secs(1);

/// Reads until it is dropped.
#[derive(Debug)]
pub(super) struct Watch {
    _alive: Sender<()>,
}

impl Watch {
    /// Begins to read, `gauges` too where the session computes on a GPU; without a thread to do it nothing is read.
    pub fn start(gauges: Option<Arc<Gauges>>, to: mpsc::Sender<Input>) -> Watch {
        let (alive, dropped) = channel();
        let read = move || {
            let mut machine = Reader::new(gauges);
            while let Err(RecvTimeoutError::Timeout) = dropped.recv_timeout(EVERY) {
                // A figure that finds no room is superseded soon.
                drop(to.try_send(Input::Feed(Feed::Machine(machine.read()))));
            }
        };
        if let Err(error) = std::thread::Builder::new().name("machine".to_owned()).spawn(read) {
            tracing::warn!(%error, "the machine is not watched");
        }
        Watch { _alive: alive }
    }
}

struct Reader {
    system: System,
    own: Option<Pid>,
    gauges: Option<Arc<Gauges>>,
}

impl Reader {
    fn new(gauges: Option<Arc<Gauges>>) -> Reader {
        let own = sysinfo::get_current_pid().ok();
        let mut reader = Reader { system: System::new(), own, gauges };
        // Parts of time are told from one reading to the next.
        reader.refresh();
        reader
    }

    fn refresh(&mut self) {
        self.system.refresh_cpu_specifics(CpuRefreshKind::nothing().with_cpu_usage().with_frequency());
        self.system.refresh_memory_specifics(MemoryRefreshKind::nothing().with_ram());
        if let Some(pid) = self.own {
            let own = ProcessesToUpdate::Some(&[pid]);
            self.system.refresh_processes_specifics(
                own,
                false,
                ProcessRefreshKind::nothing().with_cpu().without_tasks(),
            );
        }
    }

    fn read(&mut self) -> Machine {
        self.refresh();
        let cpus = self.system.cpus();
        let percent = |part: f32| part.clamp(0.0, 100.0).round() as u8;
        let all: f32 = cpus.iter().map(sysinfo::Cpu::cpu_usage).sum();
        let own = self.own.and_then(|pid| self.system.process(pid)).map(sysinfo::Process::cpu_usage);
        let whole = (self.system.used_memory(), self.system.total_memory());
        let bounded =
            self.system.cgroup_limits().map(|c| (c.total_memory.saturating_sub(c.free_memory), c.total_memory));
        Machine {
            processors: cpus.iter().map(|c| percent(c.cpu_usage())).collect(),
            others: own.filter(|_| !cpus.is_empty()).map(|own| percent((all - own) / cpus.len() as f32)),
            memory: Some(bounded.filter(|b| b.1 < whole.1).unwrap_or(whole)).filter(|m| m.1 > 0),
            mhz: cpus.iter().map(sysinfo::Cpu::frequency).max().filter(|f| *f > 0).and_then(|f| u32::try_from(f).ok()),
            gpu: self.gauges.as_ref().map(|g| g.read()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// Seconds of processor time that this process has had.
    fn own_seconds() -> f64 {
        let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `t` is a valid place for the answer.
        unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut t) };
        t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
    }

    /// A processor that this process keeps busy is seen, and nobody else is blamed for it.
    #[test]
    fn own_work_is_seen_as_own() {
        let spin = |ms| {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(ms) {
                std::hint::spin_loop();
            }
        };
        // Of a process without a tick of its own yet nothing is told.
        spin(60);
        let mut reader = Reader::new(None);
        let (start, had) = (Instant::now(), own_seconds());
        spin(600);
        let now = reader.read();
        let own = 100.0 * (own_seconds() - had) / start.elapsed().as_secs_f64();
        let (used, total) = now.memory.expect("memory");
        assert!(used > 0 && used <= total, "{now:?}");
        assert!(now.gpu.is_none() && !now.processors.is_empty(), "{now:?}");
        let n = now.processors.len() as f64;
        let busy: f64 = now.processors.iter().map(|p| f64::from(*p)).sum();
        let others = f64::from(now.others.expect("others")) * n;
        // Ticks of a hundredth of a second, and rounding.
        assert!(busy >= own - 15.0 * n && (others - (busy - own).max(0.0)).abs() <= 15.0 * n, "{own} of {now:?}");
    }

    #[test]
    fn it_ends_with_its_job() {
        let (to, mut from) = mpsc::channel(4);
        let watch = Watch::start(None, to);
        let Some(Input::Feed(Feed::Machine(first))) = from.blocking_recv() else { panic!("nothing was read") };
        assert!(first.busy().is_some());
        drop(watch);
        // At most the reading that was under way.
        while let Some(input) = from.blocking_recv() {
            assert!(matches!(input, Input::Feed(Feed::Machine(_))));
        }
    }
}
