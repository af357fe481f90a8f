//! Places for connections. Where all are taken, whoever has waited longest without a question of his own gives his up, so that silent connections
//! shut nobody out.
//!
//! Not here: what is asked on a connection (`http`). Invariant: a connection whose answer is under way is never closed for another.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Instant;
use tokio::sync::Notify;

/// One connection's place.
#[derive(Debug)]
pub struct Seat {
    /// Its requests that are under way.
    busy: AtomicUsize,
    /// Milliseconds from the server's start to when it was taken, or its last answer ended.
    since: AtomicU64,
    start: Instant,
    go: Notify,
}

impl Seat {
    /// Returns once the place is wanted.
    pub async fn wanted(&self) {
        self.go.notified().await;
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_millis().try_into().unwrap_or(u64::MAX)
    }
}

/// A request that is under way, until it is dropped.
#[derive(Debug)]
pub struct Busy(Arc<Seat>);

impl Busy {
    pub fn on(seat: &Arc<Seat>) -> Busy {
        seat.busy.fetch_add(1, Relaxed);
        Busy(Arc::clone(seat))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.since.store(self.0.now(), Relaxed);
        self.0.busy.fetch_sub(1, Relaxed);
    }
}

/// All places that are taken.
#[derive(Debug)]
pub struct Seats {
    taken: Vec<Weak<Seat>>,
    start: Instant,
}

impl Seats {
    pub fn new() -> Seats {
        Seats { taken: Vec::new(), start: Instant::now() }
    }

    /// A place for a connection that has come.
    pub fn take(&mut self) -> Arc<Seat> {
        self.taken.retain(|seat| seat.strong_count() > 0);
        let seat = Seat { busy: AtomicUsize::new(0), since: AtomicU64::new(0), start: self.start, go: Notify::new() };
        seat.since.store(seat.now(), Relaxed);
        let seat = Arc::new(seat);
        self.taken.push(Arc::downgrade(&seat));
        seat
    }

    /// Asks whoever has been silent longest to leave; whether there was somebody.
    pub fn clear_one(&mut self) -> bool {
        let silent = self.taken.iter().enumerate().filter_map(|(i, seat)| Some((i, seat.upgrade()?)));
        let silent = silent.filter(|(_, seat)| seat.busy.load(Relaxed) == 0);
        let Some((i, seat)) = silent.min_by_key(|(_, seat)| seat.since.load(Relaxed)) else { return false };
        self.taken.swap_remove(i);
        seat.go.notify_one();
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_silent_longest_leaves_and_who_is_answered_stays() {
        let mut seats = Seats::new();
        let all: Vec<_> = (0..3).map(|_| seats.take()).collect();
        all.iter().zip([5, 3, 4]).for_each(|(seat, since)| seat.since.store(since, Relaxed));
        let busy = Busy::on(&all[1]);
        let left = |seat: &Arc<Seat>| {
            use std::future::Future;
            let mut wanted = std::pin::pin!(seat.wanted());
            let waker = std::task::Waker::noop();
            wanted.as_mut().poll(&mut std::task::Context::from_waker(waker)).is_ready()
        };
        assert!(seats.clear_one());
        assert_eq!(all.iter().map(left).collect::<Vec<_>>(), [false, false, true]);
        assert!(seats.clear_one());
        assert!(left(&all[0]) && !seats.clear_one());
        drop(busy);
        assert!(seats.clear_one() && left(&all[1]));
        assert!(!seats.clear_one());
    }
}
