//! What a graph costs: parameters and MACs per node, in every counting convention.
//!
//! Not here: bytes (they depend on what ran, see `exec`) and time (`profile`). Counts are for one image.

use super::binding::Binding;
use super::experts;
use super::macs::Macs;
use super::op::product;
use super::shapes::{over_shapes, shapes_at};
use super::{Graph, GraphError, Op, ParamRole};

/// MACs of one node for one image; `in_shapes` and `out` leave out the batch axis.
pub fn node_macs(op: &Op, in_shapes: &[&[usize]], out: &[usize]) -> Macs {
    op.facts().macs(in_shapes, out)
}

/// MACs per node for one image; zero for unreachable nodes. Of an expert's layers it is the share of tokens that is sent to it
/// when a router sends as many to each: `top` of `experts`.
///
/// # Errors
/// Shapes that do not fit; [`GraphError::Unbound`] for a graph that leaves its number of tokens free.
pub fn macs(graph: &Graph) -> Result<Vec<Macs>, GraphError> {
    macs_at(graph, Binding::default())
}

/// As [`macs`], with the free dimensions as long as `binding` says: for one sequence of that many tokens.
///
/// # Errors
/// As [`super::shapes_at`].
pub fn macs_at(graph: &Graph, binding: Binding) -> Result<Vec<Macs>, GraphError> {
    Ok(macs_of(graph, &shapes_at(graph, binding)?))
}

/// As [`macs`], where the shapes are known already, as [`shapes_at`] gives them.
pub fn macs_of(graph: &Graph, shapes: &[Vec<usize>]) -> Vec<Macs> {
    let mut all = over_shapes(graph, shapes, |_, node, ins, out| node_macs(&node.op, ins, out));
    for (macs, place) in all.iter_mut().zip(experts::places(graph)) {
        if let Some(place) = place {
            *macs = place.share_of(*macs);
        }
    }
    all
}

/// The parameters an op needs with their shapes, in PyTorch's layout and order.
pub fn param_shapes(op: &Op) -> Vec<(ParamRole, Vec<usize>)> {
    op.facts().params()
}

/// Learned parameters of one node. Batch-norm running statistics are not counted, as everywhere in the literature.
pub fn node_params(op: &Op) -> u64 {
    param_shapes(op)
        .iter()
        .filter(|(role, _)| !matches!(role, ParamRole::Mean | ParamRole::Var))
        .fold(0, |n, (_, shape)| n.saturating_add(product(shape)))
}
