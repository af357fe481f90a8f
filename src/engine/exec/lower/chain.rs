//! Which nodes run as one step, the same for every backend.
//!
//! Invariant: a node in `keep` and the graph's output end their step.

use crate::exec::error::{ExecError, Result};
use crate::graph::{Activation, Graph, NodeId, Op, Precision, Precisions};
use std::collections::HashSet;

/// Nodes that run as one step.
pub(in crate::exec) struct Chain {
    pub lead: NodeId,
    /// A batch norm or layer scale, folded.
    pub bn: Option<NodeId>,
    /// A residual addition and its other input.
    pub add: Option<(NodeId, NodeId)>,
    pub act: Option<(NodeId, Activation)>,
    pub last: NodeId,
}

pub(in crate::exec) fn check_names(graph: &Graph, precision: &Precisions, keep: &[String]) -> Result<()> {
    let unknown = |name: &str, hint: &str| ExecError::UnknownNode { name: name.to_owned(), hint: hint.into() };
    for name in keep {
        graph.by_name(name).ok_or_else(|| unknown(name, "`keep` takes node names of this graph"))?;
    }
    for (name, p) in &precision.nodes {
        let id = graph.by_name(name).ok_or_else(|| unknown(name, "precisions are set by node name"))?;
        match (p, &graph.node(id).op) {
            (Precision::F32, _) | (_, Op::Conv2d(_) | Op::Linear(_)) => {}
            // What it keeps keys and values in.
            (p, op) if op.caches() && p.unfit(op).is_none() => {}
            _ => {
                let what = format!("{} is for convolutions and linears only", p.label());
                return Err(ExecError::unsupported(graph.node(id), what));
            }
        }
    }
    Ok(())
}

/// What runs in the step that a layer leads, besides a batch norm.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fusion {
    pub lead: NodeId,
    /// A residual is added.
    pub residual: bool,
    pub act: Option<Activation>,
}

/// What fuses into which layer when `graph` is compiled with nothing kept.
pub fn fusions(graph: &Graph) -> Vec<Fusion> {
    let one = |c: Chain| Fusion { lead: c.lead, residual: c.add.is_some(), act: c.act.map(|a| a.1) };
    chains(graph, &[]).into_iter().map(one).collect()
}

/// Groups reachable nodes into steps, in the order that they can run.
pub(in crate::exec) fn chains(graph: &Graph, keep: &[String]) -> Vec<Chain> {
    let keep: HashSet<&str> = keep.iter().map(String::as_str).collect();
    let (reachable, consumers) = (graph.reachable(), graph.consumers());
    let mut taken = vec![false; graph.nodes.len()];
    let mut chains = Vec::new();
    for (id, node) in graph.iter() {
        if !reachable[id.index()] || taken[id.index()] {
            continue;
        }
        let mut c = Chain { lead: id, bn: None, add: None, act: None, last: id };
        let dense = node.op.is_conv_or_linear();
        let joins = matches!(node.op, Op::BatchNorm2d(_) | Op::Add);
        if !(dense || joins) {
            chains.push(c);
            continue;
        }
        loop {
            let last = graph.node(c.last);
            let [next] = consumers[c.last.index()][..] else { break };
            if keep.contains(last.name.as_str()) || c.last == graph.output || taken[next.index()] || c.act.is_some() {
                break;
            }
            match &graph.node(next).op {
                Op::BatchNorm2d(_) | Op::Scale(_) if c.last == id && dense => c.bn = Some(next),
                Op::Add if dense && c.add.is_none() => match graph.node(next).inputs[..] {
                    [a, b] => c.add = Some((next, if a == c.last { b } else { a })),
                    _ => break,
                },
                Op::Activation { act } => c.act = Some((next, *act)),
                _ => break,
            }
            taken[next.index()] = true;
            c.last = next;
        }
        chains.push(c);
    }
    chains.sort_by_key(|c| c.last);
    chains
}
