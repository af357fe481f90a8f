//! Which rows a running job works on now, and what was last measured on one: jobs tell a label, rows have names.

use super::app::App;
use super::list::RowRef;
use crate::config::text::clean;
use crate::profile::{BROKEN, SensCurve, SensTarget};
use crate::recover::RepairStep;
use std::collections::BTreeSet;

/// The rows, by index into the table, and the newest loss in words; nothing where no job runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Working {
    pub layers: BTreeSet<usize>,
    /// The last row's, with its name: what a curve of sensitivity came to, or what a repair did to the loss.
    pub last: Option<String>,
}

impl App {
    /// Takes what a job says it is at: the name of a layer, a group or a block, alone or in a few words (`refit layer1.0.conv2`).
    pub(super) fn works_at(&mut self, label: &str) {
        let words = std::iter::once(label).chain(label.split_whitespace());
        self.working.layers = words.map(|w| self.rows_named(w)).find(|rows| !rows.is_empty()).unwrap_or_default();
    }

    /// A curve of sensitivity is done.
    pub(super) fn sensed(&mut self, curve: &SensCurve) {
        let (name, what) = match &curve.target {
            SensTarget::Group(id) => (id, String::new()),
            SensTarget::Layer(layer, precision) => (layer, format!(" {}", precision.label())),
            SensTarget::Block(block) => (block, " removed".to_owned()),
        };
        let Some(point) = curve.points.last() else { return };
        let part = if what.is_empty() { format!(" −{:.0} %", point.ratio * 100.0) } else { what };
        let kl = if point.kl < BROKEN {
            format!("KL {}", super::num::fine(point.kl))
        } else {
            "no finite output".to_owned()
        };
        self.working.last = Some(format!("{}{part}: {kl}", clean(name)));
    }

    /// A repair was judged.
    pub(super) fn repaired(&mut self, step: &RepairStep) {
        let kept = if step.kept { "kept" } else { "taken back" };
        let text = format!("{}: loss {:.4} → {:.4}, {kept}", clean(&step.name), step.loss_before, step.loss_after);
        self.working.last = Some(text);
    }

    /// Whether a job works on a row, or on one that is folded into it.
    pub fn works_on(&self, row: RowRef) -> bool {
        let stands = match row {
            RowRef::Layer(_) => true,
            RowRef::Block(b) => self.table.blocks.get(b).is_some_and(|b| self.list.folded.contains(&b.name)),
        };
        stands && self.layers_of(row).iter().any(|i| self.working.layers.contains(i))
    }

    fn rows_named(&self, name: &str) -> BTreeSet<usize> {
        if let Some(i) = self.table.index_of(name) {
            return BTreeSet::from([i]);
        }
        if let Some(group) = self.group(name) {
            return group.members.iter().filter_map(|m| self.table.index_of(&m.node)).collect();
        }
        let block = self.table.blocks.iter().find(|b| b.name == name);
        block.map(|b| b.layers.iter().copied().collect()).unwrap_or_default()
    }
}
