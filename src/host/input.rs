//! What reaches a host's heart, from clients, jobs and signals.

use super::error::JobError;
use super::outbox::Outbox;
use crate::session::{Command, Event, Feed, Seq, State};
use std::sync::Arc;
use tokio::sync::oneshot;

/// One of them; the heart takes one after the other.
#[derive(Debug)]
pub enum Input {
    Attach {
        name: String,
        watch: bool,
        outbox: Arc<Outbox>,
        reply: oneshot::Sender<u64>,
    },
    Detach {
        client: u64,
    },
    Resync {
        client: u64,
    },
    Command {
        client: u64,
        id: u64,
        command: Command,
    },
    Commit {
        events: Vec<Event>,
        reply: oneshot::Sender<Result<(), String>>,
    },
    Snapshot {
        reply: oneshot::Sender<Arc<State>>,
    },
    Feed(Feed),
    JobDone {
        result: Result<(), JobError>,
    },
    /// Some time has passed since the session was at `seq`.
    Still {
        seq: Seq,
    },
    Stop {
        reason: String,
    },
    GraceOver,
    /// The journal may have this many pages.
    #[cfg(test)]
    Room {
        pages: u32,
    },
}
