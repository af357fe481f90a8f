//! What may be turned while a job goes on, and whether anybody looks: set by the session's thread, read where the work is, between two of
//! its steps.
//!
//! Not here: what ends a job ([`super::engine::Stop`]). Invariant: neither side ever waits for the other.

use crate::control::Asked;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// See the module's page.
#[derive(Debug, Default)]
pub struct Dial {
    /// 0: as the policy says; else a level and one.
    level: AtomicUsize,
    watched: AtomicBool,
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

    /// Somebody is attached, or nobody is.
    pub fn watch(&self, watched: bool) {
        self.watched.store(watched, Ordering::Relaxed);
    }

    pub fn watched(&self) -> bool {
        self.watched.load(Ordering::Relaxed)
    }
}
