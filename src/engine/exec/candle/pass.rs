//! A differentiable pass: every node by its definition, parameters given when it runs; also the truth that kernels are
//! checked against.
//!
//! Gradients reach parameters, the input and captured nodes. Slow by design: measuring is `exec::Plan`'s business.

use super::site::{BatchStats, Mode, Pass, Site, Stats, TensorMap};
use super::walk::{Step, Walk};
use crate::exec::error::{ExecError, Result};
use crate::exec::lower::check_names;
use crate::graph::{Graph, Node, NodeId, Op};
use crate::model::ParamStore;
use candle_core::{Device, Tensor};
use std::collections::{BTreeMap, HashMap, HashSet};

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
pub fn tensors(params: &ParamStore, device: &Device) -> Result<TensorMap> {
    params.iter().map(|(name, p)| Ok((name.to_owned(), Tensor::from_slice(&p.values(), p.shape(), device)?))).collect()
}

/// Runs `graph` on `x` `[N, C, H, W]` and returns the output node's value (`[N, classes]`). `pass` may be a [`Mode`]
/// alone.
///
/// # Errors
/// A missing or misshapen parameter, an input of another shape, a precision for what is no convolution or linear, and
/// whatever the tensor library reports; all name the node.
pub fn forward<'a>(
    graph: &'a Graph,
    params: &'a TensorMap,
    x: &Tensor,
    pass: impl Into<Pass<'a>>,
    capture: &mut Capture,
) -> Result<Tensor> {
    let pass = pass.into();
    if let Some(plan) = pass.precision {
        check_names(graph, plan, &[])?;
    }
    let needed = needed(graph, &capture.want, capture.all)?;
    let mut walk = Walk::new(graph, params, pass);
    let (mut steps, mut feeds, mut keep) = (Vec::new(), BTreeMap::new(), vec![graph.output]);
    for (id, node) in graph.iter().filter(|(id, _)| needed[id.index()]) {
        match node.op {
            Op::Input(_) => drop(feeds.insert(id, walk.define(node, std::slice::from_ref(x))?)),
            _ => steps.push(Step::defined(id, node)),
        }
        if capture.all || capture.want.contains(&node.name) {
            keep.push(id);
        }
    }
    let values = walk.run(&steps, feeds, &keep, || Ok(()))?;
    capture.stats.extend(walk.stats);
    let kept = |id: &NodeId| Some((graph.node(*id).name.clone(), values.get(id)?.clone()));
    capture.values.extend(keep[1..].iter().filter_map(kept));
    let missing = || ExecError::UnknownNode { name: "output".into(), hint: "the graph's output is missing".into() };
    values.get(&graph.output).cloned().ok_or_else(missing)
}

/// The value of one node for these inputs, by its definition.
///
/// # Errors
/// As [`forward`].
pub(in crate::exec) fn define(node: &Node, params: &TensorMap, mode: Mode, inputs: &[Tensor]) -> Result<Tensor> {
    Site { node, params, pass: mode.into() }.define(inputs, &mut Stats::new())
}

/// Which nodes the output or a wanted node depends on.
fn needed(graph: &Graph, want: &HashSet<String>, all: bool) -> Result<Vec<bool>> {
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
