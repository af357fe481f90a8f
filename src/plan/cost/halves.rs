//! What a layer costs once two low-rank factors stand for its weights. Counts are exact; its time is that of the layer at the widths that the two
//! have, where those were timed.

use super::{Costs, RowTable, Totals, weight_shape};
use crate::graph::{Graph, Op, node_params};
use crate::plan::{Action, Target};
use crate::prune;
use crate::quant::Precision;
use std::collections::HashMap;

/// How far off the sum of the two may be, as a part of the change: neither was timed as it is.
const DOUBT: f64 = 0.3;

/// Layers that become two, by node index.
pub(super) type Halves = HashMap<usize, [Op; 2]>;

/// Those that `actions` leave in `graph`, which they were otherwise applied to.
pub(super) fn halves(graph: &Graph, actions: &[(Target, Action)]) -> Halves {
    let some = actions.iter().any(|(_, a)| matches!(a, Action::Factorise { .. }));
    let ranks = if some { prune::ranks(graph, actions) } else { Default::default() };
    let of = |(name, rank): (String, u32)| {
        let id = graph.by_name(&name)?;
        Some((id.index(), prune::factored(&graph.node(id).op, rank)?))
    };
    ranks.into_iter().filter_map(of).collect()
}

impl Totals {
    /// Counts layers that become two as two.
    pub(super) fn split(&mut self, graph: &Graph, halves: Halves) {
        for (&at, [first, second]) in &halves {
            let op = &graph.nodes[at].op;
            self.params = self.params - node_params(op) + node_params(first) + node_params(second);
            if let Some(macs) = self.macs.get_mut(at) {
                // Every output place of both takes its weights once.
                let weights = |op: &Op| weight_shape(op).map_or(0, |(rows, columns)| (rows * columns) as u64);
                let places = macs.conv_linear / weights(op).max(1);
                let new = places * (weights(first) + weights(second));
                self.total.conv_linear = self.total.conv_linear - macs.conv_linear + new;
                macs.conv_linear = new;
            }
        }
        self.halves = halves;
    }
}

impl Costs {
    /// Time of a row that becomes two over what it takes now, and the doubt in that.
    pub(super) fn factor_of_halves(
        &self,
        row: &RowTable,
        [first, second]: &[Op; 2],
        p: Precision,
        new: &Totals,
    ) -> (f64, f64) {
        let timed = || {
            let steps = row.steps.as_ref()?;
            let (i, rank) = first.facts().widths()?;
            let (_, o) = second.facts().widths()?;
            let one = steps.factor(i, rank, p.instead(first))?;
            let base = self.own_factor(row)?;
            let two = match second {
                Op::Linear(_) => steps.factor(rank, o, p.instead(second))?,
                // A window of one place is another kernel: by its share of the work.
                _ => {
                    let size = |op: &Op| weight_shape(op).map_or(0.0, |(rows, columns)| (rows * columns) as f64);
                    let old = self.graph.nodes.get(row.node).map_or(0.0, |n| size(&n.op));
                    steps.factor(i, o, p.instead(second))? * (0.1 + 0.9 * size(second) / old.max(1.0))
                }
            };
            Some((one + two) / base.max(1e-9))
        };
        match timed() {
            Some(factor) => (factor, DOUBT),
            None => {
                let (factor, doubt) = self.factor_by_work(row, p, new);
                (factor, doubt.max(DOUBT))
            }
        }
    }
}

/// Stored bytes of a row that held `held` with its weights whole.
pub(super) fn stored(held: u64, old: &Op, old_p: Precision, [first, second]: &[Op; 2], p: Precision) -> u64 {
    let bytes = |op: &Op, p: Precision| weight_shape(op).map_or(0, |(rows, columns)| p.weights().bytes(rows, columns));
    let beside = held.saturating_sub(bytes(old, old_p)) as f64;
    let rows = |op: &Op| weight_shape(op).map_or(1.0, |(rows, _)| rows.max(1) as f64);
    let beside = (beside * rows(second) / rows(old)).round() as u64;
    bytes(first, p.instead(first)) + bytes(second, p.instead(second)) + beside
}
