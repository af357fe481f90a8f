//! Rounding errors of many rows, looked up one after the other: what `:errors` asks the host for.
//!
//! Not here: those of one row, which view 8 asks for (`inspect`). Invariant: one question is on its way at a time, and what is known is not asked again.

use super::app::{App, Effect, Level};
use super::columns::{Column, Figure};
use super::list::RowRef;
use crate::session::Command;
use crate::words::counted;

impl App {
    /// `:errors` and `:errors off`.
    pub(super) fn errors(&mut self, off: bool) {
        let left = std::mem::take(&mut self.errors_due).len();
        if off {
            let said = if left == 0 { "no errors are being looked up" } else { "no further errors are looked up" };
            return self.nothing(said);
        }
        if !self.connected {
            return self.say(Level::Bad, "no host yet");
        }
        let rows: Vec<RowRef> = self.list.shown.clone();
        let all: std::collections::BTreeSet<usize> = rows.into_iter().flat_map(|r| self.layers_of(r)).collect();
        let weighty = |i: &usize| self.table.layers.get(*i).filter(|l| l.weighty).map(|l| l.name.clone());
        let names: Vec<String> = all.iter().filter_map(weighty).collect();
        let due: Vec<String> = names.iter().filter(|n| !self.rounding.contains_key(*n)).cloned().collect();
        if !self.columns.shown().iter().any(|c| matches!(c, Column::Figure(f) if f.is_error())) {
            self.columns.show(Column::Figure(Figure::Error));
        }
        match (names.len(), due.len()) {
            (0, _) => self.nothing("no row that is shown has weights to round"),
            (n, 0) => self.nothing(format!("the errors of {} are known", counted(n, "row"))),
            (_, n) => {
                self.errors_due = due.into();
                self.next_error();
                self.nothing(format!(
                    "looking up how far the weights of {} are off; `:errors off` stops",
                    counted(n, "row")
                ));
            }
        }
    }

    /// Asks for the next row.
    pub(super) fn next_error(&mut self) {
        while let Some(layer) = self.errors_due.pop_front() {
            if !self.rounding.contains_key(&layer) {
                self.effects.push(Effect::Send(Command::Rounding { layer }));
                return;
            }
        }
    }
}
