//! The walk over steps: each makes one value of earlier ones, by its op's definition or by the kernel chosen for it.
//!
//! Not here: which steps there are (`pass` makes one a node, `build` one a chain of nodes). Invariant: a value is let go
//! after its last reader, unless it is asked for.

use super::site::{Pass, Site, Stats, TensorMap};
use crate::exec::error::{ExecError, Result};
use crate::graph::{Graph, Node, NodeId, Op};
use candle_core::{DType, Tensor};
use std::collections::BTreeMap;

/// What a step may run instead of its op's definition, with what fuses into it: the value, in the type, for these inputs and
/// this residual. On the CPU each computes by the same definition as on a GPU.
pub(super) type Special = Box<dyn Fn(&[Tensor], Option<&Tensor>, DType) -> candle_core::Result<Tensor> + Send + Sync>;

/// What makes one value.
pub(super) struct Step {
    /// The node that it is named after.
    pub lead: NodeId,
    /// The kernel that it runs; `None`: its lead's definition, with parameters given when it runs.
    pub special: Option<Special>,
    pub inputs: Vec<NodeId>,
    pub residual: Option<NodeId>,
    /// The node whose value it makes.
    pub out: NodeId,
    /// What its inputs are brought to.
    pub compute: DType,
    /// What its value is kept in.
    pub store: DType,
}

impl Step {
    /// One node by its definition.
    pub fn defined(id: NodeId, node: &Node) -> Step {
        let (compute, store) = (DType::F32, DType::F32);
        Step { lead: id, special: None, inputs: node.inputs.clone(), residual: None, out: id, compute, store }
    }

    pub fn reads(&self) -> impl Iterator<Item = NodeId> {
        self.inputs.iter().chain(&self.residual).copied()
    }
}

/// What a walk goes by.
pub(super) struct Walk<'a> {
    pub graph: &'a Graph,
    /// What definitions read.
    pub params: &'a TensorMap,
    pub pass: Pass<'a>,
    /// Those of the batch norms that were passed, in [`super::Mode::Batch`].
    pub stats: Stats,
}

impl<'a> Walk<'a> {
    pub fn new(graph: &'a Graph, params: &'a TensorMap, pass: Pass<'a>) -> Walk<'a> {
        Walk { graph, params, pass, stats: Stats::new() }
    }

    /// The value of a node for these inputs, by its definition.
    pub fn define(&mut self, node: &Node, inputs: &[Tensor]) -> Result<Tensor> {
        Site { node, params: self.params, pass: self.pass }.define(inputs, &mut self.stats)
    }

    /// Runs `steps` in their order on `values` and hands back those that nothing read last, and all of `keep`. A GPU may not
    /// be done when this returns. `done` is called after each step.
    ///
    /// # Errors
    /// Whatever a step reports, with its node; a value that is read before it is made.
    pub fn run(
        &mut self,
        steps: &[Step],
        mut values: BTreeMap<NodeId, Tensor>,
        keep: &[NodeId],
        mut done: impl FnMut() -> Result<()>,
    ) -> Result<BTreeMap<NodeId, Tensor>> {
        let graph = self.graph;
        let last: BTreeMap<NodeId, usize> =
            steps.iter().enumerate().flat_map(|(i, s)| s.reads().map(move |v| (v, i))).collect();
        for (i, step) in steps.iter().enumerate() {
            let node = graph.node(step.lead);
            let candle = |e| ExecError::candle(node, e);
            let get = |id: &NodeId| {
                let why = || format!("its input `{}` was not computed", graph.node(*id).name);
                values.get(id).ok_or_else(|| ExecError::unsupported(node, why()))
            };
            let inputs = step.inputs.iter().map(|id| get(id)?.to_dtype(step.compute).map_err(candle));
            let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
            // What goes by a token's place has a past here, which kernels know nothing of.
            let placed = self.pass.turn.is_some() && matches!(node.op, Op::Attention(_) | Op::Rope(_));
            let out = match step.special.as_ref().filter(|_| !placed) {
                Some(special) => {
                    let residual = step.residual.as_ref().map(get).transpose()?;
                    special(&inputs, residual, step.store).map_err(candle)?
                }
                None => self.define(node, &inputs)?,
            };
            values.insert(step.out, out.to_dtype(step.store).map_err(candle)?);
            for id in step.reads() {
                if last.get(&id) == Some(&i) && !keep.contains(&id) {
                    values.remove(&id);
                }
            }
            done()?;
        }
        Ok(values)
    }
}
