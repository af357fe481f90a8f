//! The pure intermediate representation: what a network is, without a single tensor.
//!
//! Invariants: nodes are stored in topological order; names are unique and stable (the checkpoint's own
//! module paths); structured pruning changes dimensions inside [`Op`]s but never node ids or order;
//! removing a block rewires inputs and leaves unreachable nodes behind, which [`Graph::reachable`] skips.
//! Facts, profiles, costs, sensitivities and precisions live in side tables keyed by node name.

mod cost;
mod op;
mod precision;

pub use cost::{MacConvention, Macs};
pub use op::{Activation, Op, ParamRole};
pub use precision::{Precision, PrecisionPlan};

use serde::{Deserialize, Serialize};

/// Index of a node in [`Graph::nodes`]; stable across structured pruning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NodeId(pub u32);

impl NodeId {
    /// The index into [`Graph::nodes`].
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// A parameter of a node: which role it plays and the checkpoint's tensor name.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ParamRef {
    pub role: ParamRole,
    pub name: String,
}

/// One operation with a stable, unique name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Node {
    pub name: String,
    pub op: Op,
    pub inputs: Vec<NodeId>,
    pub params: Vec<ParamRef>,
}

/// A run of nodes that an engineer names together (`layer1.0`, `blocks.3`): the heatmap folds by it, and a
/// removable one is a residual block whose shapes allow dropping the whole branch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Block {
    pub name: String,
    pub nodes: Vec<NodeId>,
    /// The residual branches of this block: for each, the `Add` node and which of its inputs is the identity
    /// (skip) side. Removing the block replaces each listed `Add` by its skip input. Empty: not removable.
    pub residual: Vec<ResidualAdd>,
}

/// A residual addition: `add` joins a computed branch with the identity `skip`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidualAdd {
    pub add: NodeId,
    pub skip: NodeId,
}

/// A directed acyclic graph from one image input to one logits output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    pub nodes: Vec<Node>,
    pub output: NodeId,
    pub blocks: Vec<Block>,
}
