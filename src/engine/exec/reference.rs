//! Differentiable reference execution through candle operations; also the truth that kernels are checked against.
//!
//! Every op is built from operations that have a backward pass, so gradients reach parameters, the input and captured
//! nodes. Values have the shapes of [`Op`]'s documentation with the batch axis first. Slow by design: measuring is
//! `exec::Plan`'s business.

mod node;
mod ops;

use super::error::ExecError;
use crate::graph::{Graph, Node, Op};
use crate::model::ParamStore;
use candle_core::{Device, Tensor};
use node::Env;
pub(super) use node::role_name;
pub use node::{BatchStats, Mode, TensorMap};
pub(super) use ops::over_channels;
use std::collections::{HashMap, HashSet};

/// What a forward pass should leave behind besides its result.
#[derive(Debug, Clone, Default)]
pub struct Capture {
    want: HashSet<String>,
    all: bool,
    /// Outputs of the wanted nodes by node name.
    pub values: HashMap<String, Tensor>,
    /// In [`Mode::Batch`], the statistics of every batch norm by node name.
    pub stats: HashMap<String, BatchStats>,
}

impl Capture {
    /// Keeps nothing (statistics excepted).
    pub fn none() -> Capture {
        Capture::default()
    }

    /// Keeps the outputs of these nodes.
    pub fn of<S: AsRef<str>>(names: impl IntoIterator<Item = S>) -> Capture {
        Capture { want: names.into_iter().map(|s| s.as_ref().to_owned()).collect(), ..Capture::default() }
    }

    /// Keeps every node's output.
    pub fn all() -> Capture {
        Capture { all: true, ..Capture::default() }
    }
}

/// All parameters as tensors on `device`, `f32`.
pub fn tensors(params: &ParamStore, device: &Device) -> Result<TensorMap, ExecError> {
    params.iter().map(|(name, p)| Ok((name.to_owned(), Tensor::from_slice(&p.values(), p.shape(), device)?))).collect()
}

/// Runs `graph` on `x` `[N, C, H, W]` and returns the output node's value (`[N, classes]`).
///
/// # Errors
/// A missing or misshapen parameter, an input of another shape, and whatever the tensor library reports; all name the node.
pub fn forward(
    graph: &Graph,
    params: &TensorMap,
    x: &Tensor,
    mode: Mode,
    capture: &mut Capture,
) -> Result<Tensor, ExecError> {
    let needed = needed(graph, &capture.want, capture.all)?;
    let mut uses = vec![0usize; graph.nodes.len()];
    for ((_, node), _) in graph.iter().zip(&needed).filter(|(_, n)| **n) {
        node.inputs.iter().for_each(|i| uses[i.index()] += 1);
    }
    let mut values: Vec<Option<Tensor>> = vec![None; graph.nodes.len()];
    for (id, node) in graph.iter().filter(|(id, _)| needed[id.index()]) {
        let mut inputs = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            match values.get(input.index()).and_then(Option::as_ref) {
                Some(t) => inputs.push(t.clone()),
                None => return Err(ExecError::unsupported(node, "an input is computed after it or not at all")),
            }
        }
        if let Op::Input(_) = node.op {
            inputs.push(x.clone());
        }
        let out = Env { node, params, mode }.run(&inputs, &mut capture.stats)?;
        if capture.all || capture.want.contains(&node.name) {
            capture.values.insert(node.name.clone(), out.clone());
        }
        values[id.index()] = Some(out);
        for input in &node.inputs {
            uses[input.index()] -= 1;
            if uses[input.index()] == 0 && *input != graph.output {
                values[input.index()] = None;
            }
        }
    }
    values
        .get_mut(graph.output.index())
        .and_then(Option::take)
        .ok_or_else(|| ExecError::UnknownNode { name: "output".into(), hint: "the graph's output is missing".into() })
}

/// Runs one node that is no batch norm and no input on the values of its inputs.
pub(super) fn one(node: &Node, params: &TensorMap, inputs: &[Tensor]) -> Result<Tensor, ExecError> {
    Env { node, params, mode: Mode::Eval }.run(inputs, &mut HashMap::new())
}

/// Which nodes the output or a wanted node depends on.
fn needed(graph: &Graph, want: &HashSet<String>, all: bool) -> Result<Vec<bool>, ExecError> {
    for name in want {
        if graph.by_name(name).is_none() {
            let hint = "captures take node names".into();
            return Err(ExecError::UnknownNode { name: name.clone(), hint });
        }
    }
    let mut needed = if all { graph.reachable() } else { vec![false; graph.nodes.len()] };
    for (id, node) in graph.iter().rev() {
        if needed[id.index()] || id == graph.output || want.contains(&node.name) {
            needed[id.index()] = true;
            node.inputs.iter().for_each(|i| needed[i.index()] = true);
        }
    }
    Ok(needed)
}

#[cfg(test)]
mod tests;
