//! Sessions: events, the state folded from them, commands, the journal and content-addressed artifacts.
//!
//! Plain data and storage only: no tensors, no tokio. Invariant: `State` = fold of [`Event`]s in sequence order; the
//! ephemeral [`Feed`] never changes it.

mod command;
mod event;
mod feed;
mod fold;
mod state;
mod text;

pub use command::*;
pub use event::*;
pub use feed::*;
pub use state::*;
pub use text::{action as action_text, describe};
