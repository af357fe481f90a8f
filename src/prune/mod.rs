//! Structured pruning: groups of coupled axes (pure), importance, and applying kept indices to a model.
//!
//! Invariant: a model with a group's pruned units zeroed (and their followers ignored) equals the pruned model.

mod action;
mod group;

pub use action::{Action, Target};
pub use group::*;
