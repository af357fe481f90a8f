//! What can be done to a target: the plain data that pruning applies and decisions carry.

use super::sparsity::Sparsity;
use crate::quant::Precision;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What a decision is about.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind", content = "name")]
pub enum Target {
    /// A pruning group by id.
    Group(String),
    /// A conv or linear node by name (for precision).
    Layer(String),
    /// A removable residual block by name.
    Block(String),
    /// The weights of a conv or linear node by name (for masks and low-rank factors).
    Weights(String),
}

/// What of a network a target is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TargetKind {
    Group,
    Layer,
    Block,
    Weights,
}

impl Target {
    pub fn kind(&self) -> TargetKind {
        match self {
            Target::Group(_) => TargetKind::Group,
            Target::Layer(_) => TargetKind::Layer,
            Target::Block(_) => TargetKind::Block,
            Target::Weights(_) => TargetKind::Weights,
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Target::Group(n) | Target::Layer(n) | Target::Block(n) | Target::Weights(n) => n,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Group(n) => write!(f, "group {n}"),
            Target::Layer(n) => write!(f, "layer {n}"),
            Target::Block(n) => write!(f, "block {n}"),
            Target::Weights(n) => write!(f, "weights {n}"),
        }
    }
}

/// What is to be done. Ratios and kept indices are always relative to the *original* model, in every round, so that a
/// compressed model is a pure function of the original weights and the approved decisions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "action")]
pub enum Action {
    Keep,
    /// Remove `ratio` of the group's units. `kept` are the exact units after rounding, ascending; empty only before
    /// the host has resolved them by importance.
    Prune {
        ratio: f64,
        kept: Vec<u32>,
    },
    Precision {
        precision: Precision,
    },
    RemoveBlock,
    /// Set weights to zero by magnitude, after everything else that changes them.
    Sparsify {
        sparsity: Sparsity,
    },
    /// Replace weights by two factors of `rank`, after what was cut was re-fitted; a layer that was cut until they would be
    /// no smaller stays whole.
    Factorise {
        rank: u32,
    },
}
