//! What can be wrong with a graph: every case names the node and what was expected.

/// A graph is malformed or its shapes do not fit.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GraphError {
    #[error("two nodes are called `{name}`; hint: node names must be unique")]
    DuplicateName { name: String },
    #[error("node `{node}` refers to node {input}, which does not come before it; hint: nodes must be in order")]
    Order { node: String, input: u32 },
    #[error("node `{node}` ({op}) has {found} inputs, expected {expected}; hint: the graph is malformed")]
    Arity { node: String, op: String, found: usize, expected: usize },
    #[error("node `{node}` ({op}) cannot take input shapes {shapes:?}: {why}; hint: dimensions do not fit together")]
    Shape { node: String, op: String, shapes: Vec<Vec<usize>>, why: String },
    #[error("the input `{node}` takes any number of tokens; hint: say for how many")]
    Unbound { node: String },
    #[error(
        "node `{node}` ({op}) {why}; hint: token ids go into an embedding of their vocabulary, and nothing else does"
    )]
    Ids { node: String, op: String, why: String },
    #[error("node `{node}` ({op}) has parameters {found:?}, expected {expected:?}; hint: the graph is malformed")]
    Params { node: String, op: String, found: Vec<String>, expected: Vec<String> },
    #[error("block `{block}` {why}; hint: the graph is malformed")]
    Block { block: String, why: String },
    #[error("the graph's output is node {output}, but it has {nodes} nodes; hint: the graph is malformed")]
    Output { output: u32, nodes: usize },
    #[error("the graph has {nodes} nodes, more than the {limit} that are accepted; hint: is this file damaged?")]
    TooLarge { nodes: usize, limit: usize },
}
