//! Fork and join for one small batch: helpers spin between the steps of a forward pass, and for a moment after it, since
//! waking a sleeping thread takes as long as a small layer.
//!
//! Helpers are threads of the plan's rayon pool. The calling thread works too and never waits for a helper that has not
//! begun, so a busy machine only loses speed.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, TryLockError};
use std::time::{Duration, Instant};

/// How long helpers wait for the next pass before they go to sleep.
const LINGER: Duration = Duration::from_micros(300);

/// Who shares a kernel's work: nobody, or a team.
#[derive(Clone, Copy)]
pub(crate) struct Par<'a>(Option<&'a Team>);

impl Par<'_> {
    pub const ALONE: Par<'static> = Par(None);

    /// Threads that share the work.
    pub fn threads(self) -> usize {
        self.0.map_or(1, |t| t.threads)
    }

    /// Calls `f` once with every number below `parts`, in any order, and returns when all are done.
    pub fn run(self, parts: usize, f: impl Fn(usize) + Sync) {
        match self.0 {
            Some(team) if parts > 1 => team.run(parts, &f),
            _ => (0..parts).for_each(f),
        }
    }
}

/// A job: what to call, and with how many numbers.
#[derive(Clone, Copy)]
struct Call {
    f: *const (dyn Fn(usize) + Sync),
    parts: usize,
}

/// A pool's team. One pass has it at a time; see [`Team::with`].
pub(crate) struct Team {
    threads: usize,
    /// Written only while `open` is false and `inside` is 0; read only by threads counted in `inside` that saw `open`.
    job: UnsafeCell<Call>,
    next: AtomicUsize,
    open: AtomicBool,
    /// From before a job opens until everybody has left it.
    busy: AtomicBool,
    /// Helpers that may look at `job`.
    inside: AtomicUsize,
    /// Helpers that were called and have not left.
    helpers: AtomicUsize,
    /// Passes begun and ended; odd while one runs.
    passes: AtomicUsize,
    /// Helpers shall leave; stays so until all have.
    dismissed: AtomicBool,
    panicked: AtomicBool,
    taken: Mutex<()>,
}

// SAFETY: `job` is guarded by `open` and `inside` as its comment says; the closure that it points to is `Sync`.
unsafe impl Sync for Team {}
// SAFETY: as above; nothing here belongs to a thread.
unsafe impl Send for Team {}

impl Team {
    /// A team for the threads of a pool of that many.
    pub fn new(threads: usize) -> Arc<Team> {
        let nothing: &(dyn Fn(usize) + Sync) = &|_| ();
        Arc::new(Team {
            threads,
            job: UnsafeCell::new(Call { f: nothing, parts: 0 }),
            next: AtomicUsize::new(0),
            open: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            inside: AtomicUsize::new(0),
            helpers: AtomicUsize::new(0),
            passes: AtomicUsize::new(0),
            dismissed: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
            taken: Mutex::new(()),
        })
    }

    /// Calls `f` on this thread with a team of it and the other threads of `pool`; alone when the team has another pass.
    pub fn with<R>(self: &Arc<Team>, pool: &rayon::ThreadPool, f: impl FnOnce(Par<'_>) -> R) -> R {
        let _taken = match self.taken.try_lock() {
            Ok(taken) => taken,
            Err(TryLockError::Poisoned(p)) => p.into_inner(),
            Err(TryLockError::WouldBlock) => return f(Par::ALONE),
        };
        if self.threads < 2 {
            return f(Par::ALONE);
        }
        self.panicked.store(false, SeqCst);
        self.passes.fetch_add(1, SeqCst);
        let _end = Defer(|| {
            self.passes.fetch_add(1, SeqCst);
        });
        if self.helpers.load(SeqCst) == 0 {
            self.dismissed.store(false, SeqCst);
            self.helpers.store(self.threads - 1, SeqCst);
            let team = self.clone();
            // A broadcast, since a thread that waits within a kernel (libraries use rayon too) could otherwise take a
            // second helper's task and never come back to its first. This thread stands for the pool's first one.
            pool.spawn_broadcast(move |thread| {
                if thread.index() > 0 {
                    team.help();
                    team.helpers.fetch_sub(1, SeqCst);
                }
            });
        }
        f(Par(Some(self)))
    }

    /// Sends lingering helpers back to their pool, which has other work for them.
    pub fn dismiss(&self) {
        self.dismissed.store(true, SeqCst);
    }

    /// Works on jobs until no pass has run for [`LINGER`]. Helpers leave together, so that the next pass can call them all.
    fn help(&self) {
        let (mut idle, mut since, mut seen) = (0u32, Instant::now(), 0);
        loop {
            if !self.open.load(SeqCst) {
                if self.dismissed.load(SeqCst) {
                    return;
                }
                pause(&mut idle);
                if idle.is_multiple_of(64) {
                    let passes = self.passes.load(SeqCst);
                    if passes % 2 == 1 || passes != seen {
                        (since, seen) = (Instant::now(), passes);
                    } else if since.elapsed() > LINGER {
                        self.dismiss();
                    }
                }
                continue;
            }
            self.inside.fetch_add(1, SeqCst);
            // Seen open after being counted: the owner waits for us before it touches the job again.
            if self.open.load(SeqCst) {
                idle = 0;
                // SAFETY: see `job`.
                let job = unsafe { *self.job.get() };
                if catch_unwind(AssertUnwindSafe(|| self.work(job))).is_err() {
                    self.panicked.store(true, SeqCst);
                }
            }
            self.inside.fetch_sub(1, SeqCst);
        }
    }

    fn work(&self, job: Call) {
        // SAFETY: the closure lives until the owner has closed the job and seen everybody leave.
        let f = unsafe { &*job.f };
        loop {
            let i = self.next.fetch_add(1, SeqCst);
            if i >= job.parts {
                return;
            }
            f(i);
        }
    }

    fn run<'a>(&self, parts: usize, f: &'a (dyn Fn(usize) + Sync + 'a)) {
        // A kernel inside a part works alone.
        if self.busy.swap(true, SeqCst) {
            return (0..parts).for_each(f);
        }
        // SAFETY: only the lifetime changes; `closed` below keeps the job from being called after this function.
        let f: *const (dyn Fn(usize) + Sync + 'static) =
            unsafe { std::mem::transmute(f as *const (dyn Fn(usize) + Sync + 'a)) };
        let job = Call { f, parts };
        // SAFETY: closed and nobody inside.
        unsafe { *self.job.get() = job };
        self.next.store(0, SeqCst);
        {
            let _closed = Defer(|| {
                self.next.store(parts, SeqCst);
                self.open.store(false, SeqCst);
                let mut idle = 0;
                while self.inside.load(SeqCst) != 0 {
                    pause(&mut idle);
                }
                self.busy.store(false, SeqCst);
            });
            self.open.store(true, SeqCst);
            self.work(job);
        }
        assert!(!self.panicked.load(SeqCst), "a kernel panicked on another thread");
    }
}

/// Runs at the end of a scope, panicking or not.
struct Defer<F: FnMut()>(F);

impl<F: FnMut()> Drop for Defer<F> {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Spins a while, then lets others have the core between looks.
fn pause(idle: &mut u32) {
    *idle = idle.saturating_add(1);
    if *idle < 4096 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(n: usize) -> (rayon::ThreadPool, Arc<Team>) {
        (rayon::ThreadPoolBuilder::new().num_threads(n).build().expect("a pool"), Team::new(n))
    }

    #[test]
    fn every_part_runs_once_in_every_job() {
        for threads in [1, 2, 5] {
            let counts: Vec<AtomicUsize> = (0..37).map(|_| AtomicUsize::new(0)).collect();
            let (pool, team) = pool(threads);
            team.with(&pool, |par| {
                assert_eq!(par.threads(), threads);
                for job in 0..2000 {
                    let parts = 1 + job % counts.len();
                    par.run(parts, |i| {
                        counts[i].fetch_add(1, SeqCst);
                        // A job in a part runs at once and on its own.
                        par.run(2, |_| ());
                    });
                }
            });
            for (i, c) in counts.iter().enumerate() {
                let want = (0..2000).filter(|job| i < 1 + job % counts.len()).count();
                assert_eq!(c.load(SeqCst), want, "part {i} of {threads} threads");
            }
        }
    }

    #[test]
    fn kernels_may_use_rayon_themselves() {
        use rayon::prelude::*;
        let (pool, team) = pool(4);
        for _ in 0..50 {
            let total = AtomicUsize::new(0);
            team.with(&pool, |par| {
                par.run(16, |i| {
                    let sum: usize = (0..1000usize).into_par_iter().map(|v| v * i).sum();
                    total.fetch_add(sum, SeqCst);
                });
            });
            assert_eq!(total.load(SeqCst), 499_500 * 120);
        }
    }

    #[test]
    fn a_panic_reaches_the_caller_and_ends_the_team() {
        let (pool, team) = pool(3);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            team.with(&pool, |par| par.run(64, |i| assert!(i != 40, "part forty")));
        }));
        assert!(caught.is_err());
        assert_eq!(team.with(&pool, |par| par.threads()), 3);
        // Helpers that linger give way: the pool's threads are there for other work at once.
        team.dismiss();
        assert_eq!(pool.broadcast(|_| 1).len(), 3);
    }
}
