//! Lowering: graph, parameters and precision plan → an ordered list of CPU steps with prepacked weights.
//!
//! Fusion: batch norm folds into the convolution before it, then one residual add and one activation join its epilogue.
//! A node in `keep` ends its step, so that its output exists. Steps are ordered by their last node's id; everything a
//! step reads is produced by an earlier one.

mod chain;
mod kernel;
mod layer;
mod step;

use super::error::ExecError;
use crate::graph::{self, Graph, NodeId, Op, Precision, PrecisionPlan};
use crate::model::ParamStore;
pub use chain::{Fusion, fusions};
pub(super) use chain::{chains, check_names};
pub(super) use layer::{Builder, Folded};
use std::collections::HashSet;
pub use step::StepInfo;
use step::Value;
pub(crate) use step::{Kernel, Lowered, Step};

/// Lowers the reachable part of `graph`. What is made holds for any number of tokens, where that is free.
pub(crate) fn lower(
    graph: &Graph,
    params: &ParamStore,
    precision: &PrecisionPlan,
    keep: &[String],
) -> Result<Lowered, ExecError> {
    check_names(graph, precision, keep)?;
    let shapes = graph::shapes_at(graph, graph::least(graph)?)?;
    let free = graph.is_free();
    let keep: HashSet<&str> = keep.iter().map(String::as_str).collect();
    let mut chains = chains(graph, &keep);
    chains.sort_by_key(|c| c.last);
    let mut low = Lowered { steps: vec![], values: vec![], value_of: vec![None; graph.nodes.len()] };
    let mut packed = 0;
    for chain in chains {
        let node = graph.node(chain.lead);
        let value = |low: &Lowered, id: NodeId| {
            low.value_of.get(id.index()).copied().flatten().ok_or_else(|| {
                ExecError::unsupported(node, format!("its input `{}` is not computed before it", graph.node(id).name))
            })
        };
        match &node.op {
            Op::Input(_) => {
                low.value_of[chain.lead.index()] = Some(low.values.len());
                low.values.push(Value { node: chain.lead, step: None });
                continue;
            }
            // Channels-last images are token sequences already.
            Op::ToTokens | Op::ToImage(_) => {
                let v = value(&low, node.inputs[0])?;
                low.value_of[chain.lead.index()] = Some(v);
                if let Some(s) = low.values[v].step {
                    low.steps[s].info.fused.push(node.name.clone());
                }
                continue;
            }
            _ => {}
        }
        let skip = chain.add.map(|(_, other)| other);
        let inputs = node.inputs.iter().map(|&i| value(&low, i)).collect::<Result<Vec<_>, _>>()?;
        let residual = skip.map(|id| value(&low, id)).transpose()?;
        let range = precision.inputs.get(&node.name).copied();
        let b = Builder { graph, params, node, shapes: &shapes, free, chain: &chain, range };
        let (kernel, name, [weight_bytes, held_bytes]) = b.kernel(precision.get(&node.name))?;
        // Kernels keep their own copies, so the file's pages need not stay in memory beside them.
        for id in [Some(chain.lead), chain.bn].into_iter().flatten() {
            graph.node(id).params.iter().filter_map(|p| params.get(&p.name).ok()).for_each(|p| p.release());
        }
        packed += held_bytes;
        if packed > TRIM_EVERY {
            trim();
            packed = 0;
        }
        let fused = [chain.bn, chain.add.map(|a| a.0), chain.act.map(|a| a.0)];
        let info = StepInfo {
            name: node.name.clone(),
            node: chain.lead,
            kind: graph::describe(&node.op),
            fused: fused.into_iter().flatten().map(|id| graph.node(id).name.clone()).collect(),
            kernel: name,
            precision: if matches!(kernel, Kernel::Dense(_)) { precision.get(&node.name) } else { Precision::F32 },
            weight_bytes,
            held_bytes,
            out_shape: shapes[chain.last.index()].clone(),
        };
        let out = low.values.len();
        low.values.push(Value { node: chain.last, step: Some(low.steps.len()) });
        low.value_of[chain.last.index()] = Some(out);
        low.steps.push(Step { info, kernel, inputs, residual, out, last: chain.last });
    }
    if low.value_of.get(graph.output.index()).copied().flatten().is_none() {
        let hint = "the graph's output is not computed".into();
        return Err(ExecError::UnknownNode { name: "output".into(), hint });
    }
    Ok(low)
}

/// Packing copies a layer's weights once or twice more for a moment; what the allocator keeps of that between the packed
/// layers would add up to a third of a network's weights.
const TRIM_EVERY: u64 = 16 << 20;

/// Gives free pages back to the system.
fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: it only unmaps pages that the allocator holds free.
    unsafe {
        libc::malloc_trim(0);
    }
}
