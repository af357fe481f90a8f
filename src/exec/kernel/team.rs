//! Fork and join for one small batch: helpers spin between the steps of a forward pass, since waking a sleeping thread
//! takes as long as a small layer.
//!
//! Helpers are threads of the plan's rayon pool and are held for one pass ([`Team::with`]); the calling thread works too and
//! never waits for a helper that has not begun, so a busy machine only loses speed.

use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

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
struct Job {
    f: *const (dyn Fn(usize) + Sync),
    parts: usize,
}

pub(crate) struct Team {
    threads: usize,
    /// Written only while `open` is false and `inside` is 0; read only by threads counted in `inside` that saw `open`.
    job: UnsafeCell<Job>,
    next: AtomicUsize,
    open: AtomicBool,
    /// From before a job opens until everybody has left it.
    busy: AtomicBool,
    /// Helpers that may look at `job`.
    inside: AtomicUsize,
    over: AtomicBool,
    panicked: AtomicBool,
}

// SAFETY: `job` is guarded by `open` and `inside` as its comment says; the closure that it points to is `Sync`.
unsafe impl Sync for Team {}

impl Team {
    /// Calls `f` on this thread with a team of it and the other threads of `pool`.
    pub fn with<R>(pool: &rayon::ThreadPool, f: impl FnOnce(Par<'_>) -> R) -> R {
        let threads = pool.current_num_threads();
        if threads < 2 {
            return f(Par::ALONE);
        }
        let nothing: &(dyn Fn(usize) + Sync) = &|_| ();
        let team = Team {
            threads,
            job: UnsafeCell::new(Job { f: nothing, parts: 0 }),
            next: AtomicUsize::new(0),
            open: AtomicBool::new(false),
            busy: AtomicBool::new(false),
            inside: AtomicUsize::new(0),
            over: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        };
        let team = &team;
        pool.in_place_scope(|scope| {
            // A broadcast, since a thread that waits within a kernel (libraries use rayon too) could otherwise take a
            // second helper's task and never come back to its first. This thread stands for the pool's first one.
            scope.spawn_broadcast(move |_, thread| {
                if thread.index() > 0 {
                    team.help();
                }
            });
            // Also when `f` panics: a scope waits for its helpers.
            let _end = Defer(|| team.over.store(true, SeqCst));
            f(Par(Some(team)))
        })
    }

    fn help(&self) {
        let mut idle = 0u32;
        while !self.over.load(SeqCst) {
            if !self.open.load(SeqCst) {
                pause(&mut idle);
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

    fn work(&self, job: Job) {
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
        let job = Job { f, parts };
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

    fn pool(n: usize) -> rayon::ThreadPool {
        rayon::ThreadPoolBuilder::new().num_threads(n).build().expect("a pool")
    }

    #[test]
    fn every_part_runs_once_in_every_job() {
        for threads in [1, 2, 5] {
            let counts: Vec<AtomicUsize> = (0..37).map(|_| AtomicUsize::new(0)).collect();
            Team::with(&pool(threads), |par| {
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
        let pool = pool(4);
        for _ in 0..50 {
            let total = AtomicUsize::new(0);
            Team::with(&pool, |par| {
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
        let pool = pool(3);
        let caught = catch_unwind(AssertUnwindSafe(|| {
            Team::with(&pool, |par| par.run(64, |i| assert!(i != 40, "part forty")));
        }));
        assert!(caught.is_err());
        assert_eq!(Team::with(&pool, |par| par.threads()), 3);
    }
}
