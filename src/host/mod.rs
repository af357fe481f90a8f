//! The host: one process per session that owns the model, the device, the agents and the journal.
//!
//! Invariants: a command is validated, its event made durable, then applied and broadcast, in that order, by one thread;
//! compute runs on its own threads, never the async runtime's; a slow client never blocks anything; what a restart finds
//! half done is cancelled, not resumed.

pub mod client;
mod outbox;
mod wire;
