//! Which batches a session replays from a captured graph, and why others are launched kernel by kernel.
//!
//! Not here: capturing and replaying (`candle/replay`, `cuda/graph`). Invariants: what is kept is bounded; a graph is
//! replayed only for batches of the shape and by the thread that it was captured for.

use crate::graph::NodeId;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::thread::ThreadId;

/// How timed runs of a batch are given to their device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Launch {
    /// On a CPU, which computes when it is called.
    Host,
    /// On a GPU, at once: a graph that was captured from the stream is replayed, and what launching its kernels takes the host
    /// is no part of what a run takes.
    Replayed,
    /// On a GPU, kernel by kernel; and why not at once.
    Eager(Arc<str>),
}

impl Launch {
    pub fn is_replayed(&self) -> bool {
        *self == Launch::Replayed
    }

    /// What did not go as it should, for people.
    pub fn complaint(&self) -> Option<String> {
        match self {
            Launch::Host | Launch::Replayed => None,
            Launch::Eager(why) => Some(format!(
                "whole runs were launched kernel by kernel and not replayed from a CUDA graph, so what the host takes to launch \
                 may be part of their latency: {why}"
            )),
        }
    }
}

/// Graphs of this many batches are kept; each holds the memory of its values.
const KEPT: usize = 2;

/// What decides a captured pass.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Key {
    /// Shape of the batch.
    pub dims: Vec<usize>,
    /// Whose value it makes.
    pub out: NodeId,
    /// Who captured it: small constants that a step makes are kept by the tensor library for as long as this thread lives.
    pub thread: ThreadId,
}

/// What is known of batches that were to be timed: the graph that replays one, or why there is none. The latest last.
#[derive(Debug)]
pub(super) struct Replays<G> {
    known: Vec<(Key, Result<G, Arc<str>>)>,
    never: Option<Arc<str>>,
}

impl<G> Default for Replays<G> {
    fn default() -> Replays<G> {
        Replays { known: Vec::new(), never: None }
    }
}

#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "read where graphs are captured"))]
impl<G> Replays<G> {
    /// Nothing is replayed any more, and `why`; what was captured is let go.
    pub fn never(&mut self, why: Arc<str>) {
        self.known.clear();
        self.never = Some(why);
    }

    /// What is known of `key`, as the latest from now on.
    pub fn get(&mut self, key: &Key) -> Option<Result<&mut G, Arc<str>>> {
        if let Some(why) = &self.never {
            return Some(Err(why.clone()));
        }
        let at = self.known.iter().position(|(k, _)| k == key)?;
        self.known[at..].rotate_left(1);
        let (_, known) = self.known.last_mut()?;
        Some(known.as_mut().map_err(|why| why.clone()))
    }

    /// Makes room for one more: what it takes away is let go before the new one is captured.
    pub fn make_room(&mut self) {
        let over = (self.known.len() + 1).saturating_sub(KEPT);
        self.known.drain(..over);
    }

    pub fn keep(&mut self, key: Key, known: Result<G, Arc<str>>) {
        self.forget(&key);
        self.make_room();
        self.known.push((key, known));
    }

    pub fn forget(&mut self, key: &Key) {
        self.known.retain(|(k, _)| k != key);
    }
}

/// All work goes to a device's one stream, and a stream that is captured records the work of every thread: while one
/// captures, no other runs steps. Uploads and frees of other threads are not held back, since one thread at a time works with a
/// GPU (a host runs one job at a time); one that came nevertheless would spoil the capture, which is told, or fail its check.
static STREAM: RwLock<()> = RwLock::new(());

/// Held while steps are queued.
pub(super) fn queueing() -> RwLockReadGuard<'static, ()> {
    STREAM.read().unwrap_or_else(PoisonError::into_inner)
}

/// Held while a stream is captured.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "held where graphs are captured"))]
pub(super) fn capturing() -> RwLockWriteGuard<'static, ()> {
    STREAM.write().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(batch: usize) -> Key {
        Key { dims: vec![batch, 3], out: NodeId(7), thread: std::thread::current().id() }
    }

    #[test]
    fn the_latest_batches_are_kept_and_found_by_their_shape() {
        let mut r = Replays::default();
        r.keep(key(1), Ok(1));
        r.keep(key(2), Err("no".into()));
        assert_eq!(r.get(&key(2)).map(|k| k.copied_err()), Some(Err("no".to_owned())));
        assert_eq!(r.get(&key(1)).map(|k| k.copied_err()), Some(Ok(1)));
        // The second was asked for longer ago.
        r.keep(key(3), Ok(3));
        assert!(r.get(&key(2)).is_none() && r.known.len() == KEPT);
        assert_eq!(r.get(&key(1)).map(|k| k.copied_err()), Some(Ok(1)));
        // Another thread's, or another value's, is another.
        let elsewhere = std::thread::spawn(|| std::thread::current().id()).join().unwrap();
        assert!(r.get(&Key { thread: elsewhere, ..key(1) }).is_none());
        assert!(r.get(&Key { out: NodeId(8), ..key(1) }).is_none());
        r.forget(&key(1));
        assert!(r.get(&key(1)).is_none() && r.get(&key(3)).is_some());
    }

    #[test]
    fn never_is_for_every_batch() {
        let mut r = Replays::default();
        r.keep(key(1), Ok(1));
        r.never("the other model cannot".into());
        assert!(r.known.is_empty());
        for batch in [1, 9] {
            assert_eq!(r.get(&key(batch)).map(|k| k.copied_err()), Some(Err("the other model cannot".to_owned())));
        }
    }

    trait CopiedErr {
        fn copied_err(self) -> Result<i32, String>;
    }

    impl CopiedErr for Result<&mut i32, Arc<str>> {
        fn copied_err(self) -> Result<i32, String> {
            self.map(|g| *g).map_err(|why| why.to_string())
        }
    }
}
