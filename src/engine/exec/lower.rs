//! Lowering: graph, parameters and precision plan → an ordered list of CPU steps with prepacked weights.
//!
//! Fusion: batch norm folds into the convolution before it, then one residual add and one activation join its epilogue.
//! A node in `keep` ends its step, so that its output exists. Steps are ordered by their last node's id; everything a
//! step reads is produced by an earlier one.

mod chain;
mod kernel;
mod layer;
mod routed;
mod step;

use super::error::{ExecError, Result};
use super::plan::CompileOptions;
use crate::graph::{self, Graph, NodeId, Op, Precisions};
use crate::model::ParamStore;
pub(super) use chain::{Chain, chains, check_names};
pub use chain::{Fusion, fusions};
pub(super) use layer::Builder;
pub use step::StepInfo;
use step::Value;
pub(crate) use step::{Call, Lowered, Step};

/// Lowers the reachable part of `graph`. What is made holds for any number of tokens, where that is free.
pub(crate) fn lower(
    graph: &Graph,
    params: &ParamStore,
    precision: &Precisions,
    options: &CompileOptions,
) -> Result<Lowered> {
    let (keep, as_stored, as_llama_cpp) = (&options.keep, options.as_stored, options.as_llama_cpp);
    check_names(graph, precision, keep)?;
    let shapes = graph::shapes_at(graph, graph::least(graph)?)?;
    let mut low = Lowered { steps: vec![], values: vec![], value_of: vec![None; graph.nodes.len()] };
    let mut packed = 0;
    let sent = routed::Sent::of(graph, keep);
    for chain in chains(graph, keep) {
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
            // Its expert computes the rows that are sent to it, and reads them where they are.
            Op::Dispatch(_) if sent.passes(chain.lead) => {
                low.value_of[chain.lead.index()] = Some(value(&low, node.inputs[0])?);
                continue;
            }
            _ => {}
        }
        let skip = chain.add.map(|(_, other)| other);
        let mut inputs = node.inputs.iter().map(|&i| value(&low, i)).collect::<Result<Vec<_>, _>>()?;
        let residual = skip.map(|id| value(&low, id)).transpose()?;
        let routed = sent.place(&chain);
        let one_row = routed.is_some();
        let b = Builder {
            graph,
            params,
            precision,
            shapes: &shapes,
            chain: &chain,
            node,
            as_stored,
            as_llama_cpp,
            one_row,
        };
        let (mut kernel, name, bytes) = b.kernel()?;
        if let Some(place) = routed {
            inputs.push(value(&low, place.route)?);
            kernel = routed::only_sent(kernel, place, sent.is_kept(chain.last));
        }
        // What is multiplied as it is stored stays where it is.
        if !as_stored {
            b.release();
        }
        packed += bytes[1];
        if packed > TRIM_EVERY {
            trim();
            packed = 0;
        }
        let info = b.info(name, bytes);
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
