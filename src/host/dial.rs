//! What may be turned while a job goes on, and whether anybody looks: set by the session's thread, read where the work is, between two of
//! its steps.
//!
//! Not here: what ends a job ([`super::engine::Stop`]). Invariant: neither side ever waits for the other.

use crate::control::Asked;
use crate::exec::Cancel;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

/// See the module's page.
#[derive(Debug, Default)]
pub struct Dial {
    /// 0: as the policy says; else a level and one.
    level: AtomicUsize,
    watched: AtomicBool,
    /// What runs may end early, with what it has.
    ends_early: AtomicBool,
    enough: Mutex<Cancel>,
}

impl Dial {
    pub fn ask(&self, asked: Asked) {
        let to = match asked {
            Asked::Auto => 0,
            Asked::Pinned(level) => level.saturating_add(1),
        };
        self.level.store(to, Ordering::Relaxed);
    }

    pub fn asked(&self) -> Asked {
        match self.level.load(Ordering::Relaxed) {
            0 => Asked::Auto,
            n => Asked::Pinned(n - 1),
        }
    }

    /// From here on the job may be told that it is enough; with the returned flag it looks whether it was.
    pub fn may_end(&self) -> Cancel {
        let flag = Cancel::default();
        *self.enough.lock().unwrap_or_else(PoisonError::into_inner) = flag.clone();
        self.ends_early.store(true, Ordering::SeqCst);
        flag
    }

    /// The job has to be carried on to its end again.
    pub fn must_end(&self) {
        self.ends_early.store(false, Ordering::SeqCst);
    }

    /// Tells the job that it is enough; `false` where it cannot end early, or was told before.
    pub fn enough(&self) -> bool {
        let told = self.ends_early.swap(false, Ordering::SeqCst);
        if told {
            self.enough.lock().unwrap_or_else(PoisonError::into_inner).cancel();
        }
        told
    }

    /// Somebody is attached, or nobody is.
    pub fn watch(&self, watched: bool) {
        self.watched.store(watched, Ordering::Relaxed);
    }

    pub fn watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }
}
