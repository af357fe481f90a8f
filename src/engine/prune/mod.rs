//! Structured pruning: groups of coupled axes (pure), importance, and applying kept indices to a model.
//!
//! Invariant: a model with a group's pruned units zeroed (and their followers ignored) equals the pruned model; of experts, one whose router
//! never chooses them.

mod action;
mod apply;
mod edit;
mod error;
mod experts;
mod gradients;
mod group;
mod groups;
mod importance;
mod lowrank;
mod masks;
mod normal;
mod sparsity;
mod surgeon;

pub use action::{Action, Target, TargetKind};
pub use apply::{apply, hold_zeros, kept_indices, shrink, sparsify, widen};
pub use error::{PruneError, Result};
pub use experts::{added, of_group, weights as expert_weights};
pub use gradients::{evidence, spread};
pub use group::*;
pub use groups::groups;
pub use importance::{Evidence, Method, importance, resolve};
pub use lowrank::{Factors, Rank, factorable, factored, fits, flatten, ranks, split};
pub use masks::{Masks, learnt, sparsegpt, wanda};
pub use normal::Normal;
pub use sparsity::Sparsity;
pub use surgeon::{Gone, order as without};
