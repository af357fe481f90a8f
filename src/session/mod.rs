//! Sessions: events, the state folded from them, commands, the journal and content-addressed artifacts.
//!
//! Plain data and storage only: no tensors, no tokio. Invariant: `State` = fold of [`Event`]s in sequence order; the
//! ephemeral [`Feed`] never changes it.

mod command;
mod event;
mod feed;
mod state;

pub use command::*;
pub use event::*;
pub use feed::*;
pub use state::*;
