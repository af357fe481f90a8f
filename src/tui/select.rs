//! Which rows the engineer picked to decide about together: a range that follows the cursor, rows picked one by one, and what a pattern names.
//!
//! Not here: what is done with them (`many`). Invariant: rows are kept by name, so that neither sorting nor a profile measured anew picks others.

use super::app::{App, Level};
use super::list::RowRef;
use crate::config::Act;
use crate::config::text::glob;
use crate::words::counted;
use std::collections::BTreeSet;

/// Picked rows.
#[derive(Debug, Clone, Default)]
pub struct Selection {
    /// Names of layers.
    names: BTreeSet<String>,
    /// The row at which a range began that ends at the cursor.
    anchor: Option<String>,
}

impl Selection {
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.anchor.is_none()
    }

    /// A range follows the cursor.
    pub fn grows(&self) -> bool {
        self.anchor.is_some()
    }
}

impl App {
    fn row_name(&self, row: RowRef) -> Option<&str> {
        match row {
            RowRef::Layer(i) => self.table.layers.get(i).map(|l| l.name.as_str()),
            RowRef::Block(b) => self.table.blocks.get(b).map(|b| b.name.as_str()),
        }
    }

    /// Layers that a row stands for: itself, or all of its block.
    pub(super) fn layers_of(&self, row: RowRef) -> Vec<usize> {
        match row {
            RowRef::Layer(i) => vec![i],
            RowRef::Block(b) => self.table.blocks.get(b).map(|b| b.layers.clone()).unwrap_or_default(),
        }
    }

    /// Layers between the range's beginning and the cursor. A block's row stands for its layers where those are folded, or where it is alone.
    fn range(&self) -> Vec<usize> {
        let Some(from) = self.selection.anchor.as_deref() else { return Vec::new() };
        let cursor = self.list.cursor;
        let at = self.list.shown.iter().position(|r| self.row_name(*r) == Some(from)).unwrap_or(cursor);
        let rows = self.list.shown.get(at.min(cursor)..=at.max(cursor)).unwrap_or_default();
        let whole = |row: &RowRef| match *row {
            RowRef::Layer(_) => true,
            RowRef::Block(b) => {
                let folded = self.table.blocks.get(b).is_some_and(|b| self.list.folded.contains(&b.name));
                rows.len() == 1 || (folded && self.list.filter.is_empty())
            }
        };
        rows.iter().filter(|row| whole(row)).flat_map(|row| self.layers_of(*row)).collect()
    }

    /// The picked layers, in the model's order.
    pub fn selected(&self) -> BTreeSet<usize> {
        if self.selection.is_empty() {
            return BTreeSet::new();
        }
        let named = self.table.layers.iter().enumerate().filter(|(_, l)| self.selection.names.contains(&l.name));
        named.map(|(i, _)| i).chain(self.range()).collect()
    }

    /// `6 layers, 4 groups`: what is picked, while anything is.
    pub fn selected_words(&self) -> Option<String> {
        let rows = self.selected();
        if rows.is_empty() {
            return None;
        }
        let groups = match self.groups_of(&rows) {
            all if all.is_empty() => String::new(),
            all => format!(", {}", counted(all.len(), "group")),
        };
        Some(format!("{}{groups}", counted(rows.len(), "layer")))
    }

    /// Begins a range at the cursor, or ends the one that follows it: its rows stay picked.
    pub(super) fn select_range(&mut self) {
        if !self.in_the_list() {
            return;
        }
        let rows = self.range();
        if self.selection.anchor.take().is_some() {
            self.pick(&rows);
        } else {
            self.selection.anchor = self.list.current().and_then(|r| self.row_name(r)).map(str::to_owned);
        }
        self.tell_selected();
    }

    /// Picks the row under the cursor, or lets it go.
    pub(super) fn mark(&mut self) {
        if !self.in_the_list() {
            return;
        }
        let Some(row) = self.list.current() else { return };
        let rows = self.layers_of(row);
        let picked = self.selected();
        match rows.iter().all(|i| picked.contains(i)) {
            false => self.pick(&rows),
            true => {
                // A range that holds the row ends with it.
                let range = self.range();
                self.selection.anchor = None;
                self.pick(&range);
                for i in rows {
                    let name = self.table.layers.get(i).map(|l| l.name.clone()).unwrap_or_default();
                    self.selection.names.remove(&name);
                }
            }
        }
        self.tell_selected();
    }

    /// Picks all layers that `pattern` names, and those of blocks that it names; `none` lets all go.
    pub(super) fn select(&mut self, pattern: &str) {
        if pattern == "none" {
            self.selection = Selection::default();
            return self.tell_selected();
        }
        let layers = (self.table.layers.iter().enumerate()).filter(|(_, l)| glob(pattern, &l.name, None));
        let blocks = self.table.blocks.iter().filter(|b| glob(pattern, &b.name, None));
        let rows: Vec<usize> = layers.map(|(i, _)| i).chain(blocks.flat_map(|b| b.layers.clone())).collect();
        if rows.is_empty() {
            return self
                .say(Level::Warn, format!("no layer is called `{pattern}`; hint: `:select *.conv1`, or `none`"));
        }
        self.pick(&rows);
        self.tell_selected();
    }

    /// Lets all rows go; whether there were any.
    pub(super) fn unselect(&mut self) -> bool {
        let any = !self.selection.is_empty();
        self.selection = Selection::default();
        self.outlook_stale |= any;
        any
    }

    fn pick(&mut self, rows: &[usize]) {
        self.commit();
        let names = rows.iter().filter_map(|i| self.table.layers.get(*i)).map(|l| l.name.clone());
        self.selection.names.extend(names);
    }

    fn tell_selected(&mut self) {
        self.outlook_stale = true;
        let (select, drop) = (self.label(Act::Select), self.label(Act::Cancel));
        let words = match (self.selected_words(), self.selection.grows()) {
            (None, _) => "nothing is selected".to_owned(),
            (Some(words), true) => {
                format!("{words} selected; moving extends it, {select} ends the range, {drop} drops it")
            }
            (Some(words), false) => format!("{words} selected: what you decide is for all of them; {drop} drops it"),
        };
        self.nothing(words);
    }

    fn in_the_list(&mut self) -> bool {
        let here = self.view == super::app::View::Review && !self.table.layers.is_empty();
        if !here {
            let key = self.label(Act::View1);
            self.nothing(format!("rows are selected in the list of layers ({key})"));
        }
        here
    }
}
