//! Whether a batch is what a graph's input takes, and how long it makes what the graph leaves free.

use super::error::{ExecError, Result};
use crate::graph::op::{self, InputType};
use crate::graph::{Binding, Graph, Node};
use candle_core::{DType, Tensor};

/// The graph's input.
///
/// # Errors
/// A graph without one.
pub(super) fn of(graph: &Graph) -> Result<(&Node, &op::Input)> {
    let missing = || ExecError::UnknownNode { name: "input".into(), hint: "the graph has no input".into() };
    graph.input().ok_or_else(missing)
}

/// The binding of the batch `x`.
///
/// # Errors
/// A shape that the graph's input does not take; a graph without an input.
pub(super) fn binding(graph: &Graph, x: &Tensor) -> Result<Binding> {
    fits(of(graph)?.1, x)
}

/// As [`binding`] for one input node; ids are looked at as well.
///
/// # Errors
/// Another shape, ids that are no whole numbers or beyond the vocabulary.
pub(super) fn check(node: &Node, input: &op::Input, x: &Tensor) -> Result<Binding> {
    let binding = fits(input, x)?;
    let InputType::Ids { vocab } = input.dtype else { return Ok(binding) };
    if !matches!(x.dtype(), DType::U8 | DType::U32 | DType::I64) {
        let what = format!("takes token ids, not values of type {}", x.dtype().as_str());
        return Err(ExecError::unsupported(node, what));
    }
    let ids = x.flatten_all()?.to_dtype(DType::I64)?.to_vec1::<i64>()?;
    match ids.iter().position(|id| usize::try_from(*id).map_or(true, |id| id >= vocab)) {
        Some(at) => {
            let tokens = x.dims().last().copied().unwrap_or(1).max(1);
            let (node, place) = (node.name.clone(), [at / tokens, at % tokens]);
            Err(ExecError::Id { node, id: ids[at], place, vocab })
        }
        None => Ok(binding),
    }
}

fn fits(input: &op::Input, x: &Tensor) -> Result<Binding> {
    let known = x.dims().split_first().and_then(|(_, rest)| input.binding(rest));
    known.ok_or_else(|| ExecError::Input { found: x.dims().to_vec(), expected: input.dims.clone() })
}
