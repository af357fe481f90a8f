//! The pure intermediate representation: what a network is, without a single tensor.
//!
//! Invariants: nodes are stored in topological order; names are unique and stable (the checkpoint's own
//! module paths); structured pruning changes dimensions inside [`Op`]s but never node ids or order;
//! removing a block rewires inputs and leaves unreachable nodes behind, which [`Graph::reachable`] skips.
//! Facts, profiles, costs, sensitivities and precisions live in side tables keyed by node name.

mod axes;
mod binding;
mod build;
mod calibration;
mod check;
mod cost;
mod error;
pub mod experts;
mod factors;
pub mod ggml;
mod links;
mod macs;
pub mod op;
mod precision;
mod role;
pub mod rotary;
mod shapes;
pub mod window;

pub use axes::{AxisRef, Link, NodeLinks, Protected, Site, Span};
pub use binding::Binding;
pub use build::{Builder, Conv};
pub use calibration::{Calibration, Range};
pub use cost::{macs, macs_at, macs_of, node_macs, node_params, param_shapes};
pub use error::GraphError;
pub use factors::inner_name;
pub use links::{links, node_links};
pub use macs::{MacConvention, Macs};
pub use op::{Activation, Facts, Op, Traits, channel_axis, describe};
pub use precision::{Precision, Precisions, Runs, WeightFormat};
pub use role::ParamRole;
pub use shapes::{least, node_shape, shapes, shapes_at};
pub use window::{PositionBias, Windows};

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

/// A directed acyclic graph from one input (an image, tokens or token ids) to one logits output.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Graph {
    pub nodes: Vec<Node>,
    pub output: NodeId,
    pub blocks: Vec<Block>,
}

impl Graph {
    /// The node called `name`.
    pub fn by_name(&self, name: &str) -> Option<NodeId> {
        self.nodes.iter().position(|n| n.name == name).map(|i| NodeId(i as u32))
    }

    /// The node with id `id`. Ids come from this graph, so an id out of range is a programming error and panics.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// Every id with its node, in topological order (unreachable ones too).
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = (NodeId, &Node)> {
        self.nodes.iter().enumerate().map(|(i, n)| (NodeId(i as u32), n))
    }

    /// Per node: does the output depend on it? Removing a block leaves nodes behind for which this is false.
    pub fn reachable(&self) -> Vec<bool> {
        let mut seen = vec![false; self.nodes.len()];
        if let Some(s) = seen.get_mut(self.output.index()) {
            *s = true;
        }
        for i in (0..self.nodes.len()).rev().filter(|&i| i <= self.output.index()) {
            if seen[i] {
                for input in &self.nodes[i].inputs {
                    if let Some(s) = seen.get_mut(input.index()) {
                        *s = true;
                    }
                }
            }
        }
        seen
    }

    /// As [`Graph::iter`], the reachable nodes alone.
    pub fn live(&self) -> impl Iterator<Item = (NodeId, &Node)> {
        let reachable = self.reachable();
        self.iter().filter(move |(id, _)| reachable[id.index()])
    }

    /// Per node: the reachable nodes that read it, ascending; one entry per use.
    pub fn consumers(&self) -> Vec<Vec<NodeId>> {
        let mut out = vec![Vec::new(); self.nodes.len()];
        for (id, node) in self.live() {
            for input in &node.inputs {
                if let Some(users) = out.get_mut(input.index()) {
                    users.push(id);
                }
            }
        }
        out
    }

    /// The first input node and what it takes.
    pub fn input(&self) -> Option<(&Node, &op::Input)> {
        self.nodes.iter().find_map(|n| match &n.op {
            Op::Input(input) => Some((n, input)),
            _ => None,
        })
    }

    /// Whether its input leaves the number of tokens free: sizes then need a [`Binding`].
    pub fn is_free(&self) -> bool {
        self.input().is_some_and(|(_, input)| input.is_free())
    }

    /// Whether sequences may be of any length, be it that sizes are told of a usual one.
    pub fn is_open(&self) -> bool {
        self.input().is_some_and(|(_, input)| input.is_open())
    }

    /// The shape that the first input node takes, `[c, h, w]` of an image; empty for a graph without one.
    ///
    /// # Errors
    /// [`GraphError::Unbound`] when the number of tokens is free.
    pub fn input_shape(&self) -> Result<Vec<usize>, GraphError> {
        let Some((node, input)) = self.input() else { return Ok(Vec::new()) };
        input.bound(Binding::default()).ok_or_else(|| GraphError::Unbound { node: node.name.clone() })
    }

    /// The graph for sequences of `tokens` tokens alone, where it leaves their number free: what has to know every size can
    /// then be asked of it. [`Graph::freed`] is the way back.
    pub fn bound(mut self, tokens: usize) -> Graph {
        self.each_input(|input| input.bind(tokens));
        self
    }

    /// The graph for any number of tokens whose sizes are told of sequences of `tokens`, where it leaves their number free.
    pub fn told(mut self, tokens: usize) -> Graph {
        self.each_input(|input| input.tell(tokens));
        self
    }

    /// The graph for any number of tokens, where it takes token ids.
    pub fn freed(mut self) -> Graph {
        self.each_input(op::Input::free);
        self
    }

    fn each_input(&mut self, mut change: impl FnMut(&mut op::Input)) {
        for node in &mut self.nodes {
            if let Op::Input(input) = &mut node.op {
                change(input);
            }
        }
    }

    /// The size of the vocabulary whose ids it takes; `None` for images and other floats.
    pub fn vocabulary(&self) -> Option<usize> {
        match self.input()?.1.dtype {
            op::InputType::Ids { vocab } => Some(vocab),
            op::InputType::F32 => None,
        }
    }

    /// A language model: it takes token ids and says something of every token. What says one thing of them all classifies.
    pub fn is_language_model(&self) -> bool {
        let pools = |op: &Op| matches!(op, Op::SelectToken(_) | Op::MeanTokens(_));
        self.vocabulary().is_some() && !self.live().any(|(_, n)| pools(&n.op))
    }

    /// Another reachable node with the same weight, if there is one: a language model's embedding may be its last layer's weight.
    pub fn sharing(&self, node: &Node) -> Option<&Node> {
        let weight = node.param(ParamRole::Weight)?;
        let other = |n: &&Node| n.name != node.name && n.param(ParamRole::Weight) == Some(weight);
        self.live().map(|(_, n)| n).find(other)
    }

    /// Learned parameters that `node` brings: an embedding that is a layer's weight as well is counted with the layer.
    pub fn params_of(&self, node: &Node) -> u64 {
        let counted = matches!(node.op, Op::Embedding(_)) && self.sharing(node).is_some();
        if counted { 0 } else { node_params(&node.op) }
    }

    /// The block that `id` lies in.
    pub fn block_of(&self, id: NodeId) -> Option<&Block> {
        self.blocks.iter().find(|b| b.nodes.contains(&id))
    }

    /// The block called `name`.
    pub fn block(&self, name: &str) -> Option<&Block> {
        self.blocks.iter().find(|b| b.name == name)
    }
}

impl Node {
    /// The checkpoint's tensor name for `role`, if this node has such a parameter.
    pub fn param(&self, role: ParamRole) -> Option<&str> {
        self.params.iter().find(|p| p.role == role).map(|p| p.name.as_str())
    }
}
