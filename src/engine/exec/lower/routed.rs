//! The layers of an expert on the rows of tokens that are sent to it alone.
//!
//! Invariant: rows of other tokens are never read, since nothing but the expert and its sum reads them, and the sum leaves out what
//! has no weight; where a value is asked for, they are the zeros that they are by definition.

use super::chain::Chain;
use super::step::{Call, Kernel};
use crate::exec::kernel::experts;
use crate::graph::experts::{Place, places};
use crate::graph::{Graph, NodeId, Op};
use std::collections::HashSet;

/// Which nodes lie in experts, and which values are asked for.
pub(super) struct Sent {
    places: Vec<Option<Place>>,
    kept: HashSet<usize>,
    /// Values that somebody reads besides the layers of their expert.
    whole: HashSet<usize>,
}

impl Sent {
    pub fn of(graph: &Graph, keep: &[String]) -> Sent {
        let places = places(graph);
        let kept = keep.iter().filter_map(|name| graph.by_name(name)).map(NodeId::index).collect();
        let inside = |id: &NodeId| places[id.index()].is_some();
        let consumers = graph.consumers();
        let whole = |id: &NodeId| !consumers[id.index()].iter().all(inside);
        let dispatches = graph.iter().filter(|(_, n)| matches!(n.op, Op::Dispatch(_))).map(|(id, _)| id);
        let whole = dispatches.filter(whole).map(NodeId::index).collect();
        Sent { places, kept, whole }
    }

    /// Whether a dispatch's value need not be made: its readers pick their rows themselves.
    pub fn passes(&self, id: NodeId) -> bool {
        let i = id.index();
        self.places[i].is_some() && !self.kept.contains(&i) && !self.whole.contains(&i)
    }

    /// Where a chain lies that may leave out rows.
    pub fn place(&self, chain: &Chain) -> Option<Place> {
        let place = self.places[chain.lead.index()]?;
        let ends = self.places[chain.last.index()] == Some(place);
        (ends && chain.bn.is_none() && chain.add.is_none()).then_some(place)
    }

    pub fn is_kept(&self, id: NodeId) -> bool {
        self.kept.contains(&id.index())
    }
}

/// `inner` for the rows that are sent to the expert; the step's last input is the router's weights.
pub(super) fn only_sent(inner: Kernel, place: Place, kept: bool) -> Kernel {
    let Place { experts: n, expert, .. } = place;
    Box::new(move |call: &Call<'_, '_>, out: &mut [f32]| {
        let Some((&weights, inputs)) = call.step.inputs.split_last() else { return };
        let weights = (call.get)(weights);
        let total = weights.len() / n.max(1);
        let rows: Vec<usize> = (0..total).filter(|r| weights[r * n + expert] != 0.0).collect();
        if rows.len() == total {
            return inner(call, out);
        }
        if kept {
            out.fill(0.0);
        }
        if rows.is_empty() {
            return;
        }
        let gathered: Vec<Vec<f32>> = inputs.iter().map(|&v| experts::gather((call.get)(v), total, &rows)).collect();
        let get = |v: usize| match inputs.iter().position(|&own| own == v) {
            Some(i) => gathered[i].as_slice(),
            None => weights,
        };
        let mut made = vec![0f32; out.len() / total * rows.len()];
        let of = Call { step: call.step, get: &get, images: 1, past: None, par: call.par };
        inner(&of, &mut made);
        experts::scatter(&made, total, &rows, out);
    })
}
