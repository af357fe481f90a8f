//! Which rows of the table are shown, in which order, and where the cursor is.
//!
//! Invariants: the cursor stays on its row by name, whatever is sorted, folded or measured; nothing re-sorts by itself
//! while samples arrive, [`List::resort`] is called when measuring ends or on a key.

use super::table::{Figures, Table, macs_of};
use crate::graph::MacConvention;
use std::collections::HashSet;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SortKey {
    Order,
    P50,
    Share,
    Memory,
    Macs,
    Params,
    Sensitivity,
}

impl SortKey {
    pub const ALL: [SortKey; 7] = [
        SortKey::Order,
        SortKey::P50,
        SortKey::Share,
        SortKey::Memory,
        SortKey::Macs,
        SortKey::Params,
        SortKey::Sensitivity,
    ];

    pub fn label(self) -> &'static str {
        match self {
            SortKey::Order => "model order",
            SortKey::P50 => "latency",
            SortKey::Share => "share",
            SortKey::Memory => "memory",
            SortKey::Macs => "MACs",
            SortKey::Params => "params",
            SortKey::Sensitivity => "sensitivity",
        }
    }

    /// From the setting's word.
    pub fn parse(word: &str) -> Option<SortKey> {
        let i = crate::config::SORTS.iter().position(|s| *s == word)?;
        SortKey::ALL.get(i).copied()
    }

    pub fn next(self) -> SortKey {
        let i = SortKey::ALL.iter().position(|k| *k == self).unwrap_or(0);
        SortKey::ALL[(i + 1) % SortKey::ALL.len()]
    }
}

/// A shown row, by index into the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowRef {
    Block(usize),
    Layer(usize),
}

#[derive(Debug, Clone)]
pub struct List {
    pub sort: SortKey,
    pub reverse: bool,
    pub flat: bool,
    pub filter: String,
    /// Names of folded blocks.
    pub folded: HashSet<String>,
    pub shown: Vec<RowRef>,
    pub cursor: usize,
    pub offset: usize,
    /// Nobody has pressed a key yet: the cursor stays at the top while rows find their places.
    pub untouched: bool,
    /// Samples changed figures since the last sort.
    pub order_held: bool,
    /// Order of top-level rows and of layers within blocks, as of the last sort.
    order: Vec<RowRef>,
    inner: Vec<usize>,
    started: bool,
}

impl List {
    pub fn new(sort: SortKey) -> List {
        List {
            sort,
            reverse: false,
            flat: false,
            filter: String::new(),
            folded: HashSet::new(),
            shown: Vec::new(),
            cursor: 0,
            offset: 0,
            untouched: true,
            order_held: false,
            order: Vec::new(),
            inner: Vec::new(),
            started: false,
        }
    }

    pub fn current(&self) -> Option<RowRef> {
        self.shown.get(self.cursor).copied()
    }

    fn key(&self, f: &Figures, conv: MacConvention) -> f64 {
        match self.sort {
            SortKey::Order => 0.0,
            SortKey::P50 => f.p50.unwrap_or(-1.0),
            SortKey::Share => f.share.unwrap_or(-1.0),
            SortKey::Memory => f.bytes as f64,
            SortKey::Macs => macs_of(f, conv) as f64,
            SortKey::Params => f.params as f64,
            SortKey::Sensitivity => f.sens.unwrap_or(f64::NEG_INFINITY),
        }
    }

    /// Sorts anew by the column and shows the result; the cursor keeps its row and its line on the screen.
    pub fn resort(&mut self, table: &Table, conv: MacConvention, height: usize) {
        self.order_held = false;
        let mut top: Vec<RowRef> = Vec::new();
        let mut seen = vec![false; table.blocks.len()];
        for (i, l) in table.layers.iter().enumerate() {
            match l.block.filter(|_| !self.flat) {
                None => top.push(RowRef::Layer(i)),
                Some(b) => {
                    if let Some(s) = seen.get_mut(b).filter(|s| !**s) {
                        *s = true;
                        top.push(RowRef::Block(b));
                    }
                }
            }
        }
        let mut inner: Vec<usize> = (0..table.layers.len()).collect();
        if self.sort != SortKey::Order {
            let by = |a: &Figures, b: &Figures| self.key(b, conv).total_cmp(&self.key(a, conv));
            let fig = |r: &RowRef| match r {
                RowRef::Block(i) => table.blocks.get(*i).map(|b| b.fig).unwrap_or_default(),
                RowRef::Layer(i) => table.layers.get(*i).map(|l| l.fig).unwrap_or_default(),
            };
            top.sort_by(|a, b| by(&fig(a), &fig(b)));
            inner.sort_by(|a, b| by(&fig(&RowRef::Layer(*a)), &fig(&RowRef::Layer(*b))));
        }
        if self.reverse {
            top.reverse();
            inner.reverse();
        }
        self.order = top;
        self.inner = inner;
        self.show(table, height);
    }

    /// Lists the rows again in the held order, after folding or filtering.
    pub fn show(&mut self, table: &Table, height: usize) {
        if (!self.started || self.untouched) && !table.layers.is_empty() {
            self.started = true;
            if table.layers.len() + table.blocks.len() > height.max(4) {
                let blocks = self.order.iter().filter_map(|r| match r {
                    RowRef::Block(b) => table.blocks.get(*b),
                    RowRef::Layer(_) => None,
                });
                self.folded = blocks.skip(1).map(|b| b.name.clone()).collect();
            }
        }
        let on = self.current();
        let line = self.cursor.saturating_sub(self.offset);
        let words: Vec<String> = self.filter.split_whitespace().map(str::to_lowercase).collect();
        let hit = |i: usize| {
            table.layers.get(i).is_some_and(|l| {
                let text = format!("{} {}", l.name, l.kind).to_lowercase();
                words.iter().all(|w| text.contains(w.as_str()))
            })
        };
        let mut shown = Vec::new();
        for r in &self.order {
            match *r {
                RowRef::Layer(i) if hit(i) => shown.push(*r),
                RowRef::Layer(_) => {}
                RowRef::Block(b) => {
                    let Some(block) = table.blocks.get(b) else { continue };
                    if !block.layers.iter().any(|&i| hit(i)) {
                        continue;
                    }
                    shown.push(*r);
                    // A filter looks into folded blocks.
                    if words.is_empty() && self.folded.contains(&block.name) {
                        continue;
                    }
                    let of = |i: &&usize| table.layers.get(**i).is_some_and(|l| l.block == Some(b)) && hit(**i);
                    shown.extend(self.inner.iter().filter(of).map(|&i| RowRef::Layer(i)));
                }
            }
        }
        self.shown = shown;
        let home = on.and_then(|r| {
            self.shown.iter().position(|s| *s == r).or_else(|| match r {
                // Its block was folded over it.
                RowRef::Layer(i) => {
                    let b = table.layers.get(i)?.block?;
                    self.shown.iter().position(|s| *s == RowRef::Block(b))
                }
                RowRef::Block(b) => {
                    let first = *table.blocks.get(b)?.layers.first()?;
                    self.shown.iter().position(|s| *s == RowRef::Layer(first))
                }
            })
        });
        if self.untouched {
            (self.cursor, self.offset) = (0, 0);
            return self.clamp(height);
        }
        self.cursor = home.unwrap_or_else(|| self.cursor.min(self.shown.len().saturating_sub(1)));
        self.offset = self.cursor.saturating_sub(line);
        self.clamp(height);
    }

    /// Keeps the cursor inside and the window around it.
    pub fn clamp(&mut self, height: usize) {
        let height = height.max(1);
        self.cursor = self.cursor.min(self.shown.len().saturating_sub(1));
        if self.cursor < self.offset {
            self.offset = self.cursor;
        }
        if self.cursor >= self.offset + height {
            self.offset = self.cursor + 1 - height;
        }
        self.offset = self.offset.min(self.shown.len().saturating_sub(height));
    }

    pub fn step(&mut self, by: isize, height: usize) {
        self.cursor = self.cursor.saturating_add_signed(by);
        self.clamp(height);
    }

    /// Moves to the next row whose name has all of `words`, wrapping round.
    pub fn find(&mut self, table: &Table, words: &str, forward: bool, height: usize) -> bool {
        let words: Vec<String> = words.split_whitespace().map(str::to_lowercase).collect();
        let n = self.shown.len();
        if n == 0 || words.is_empty() {
            return false;
        }
        for k in 1..=n {
            let i = if forward { (self.cursor + k) % n } else { (self.cursor + n - k) % n };
            let name = match self.shown.get(i) {
                Some(RowRef::Layer(l)) => table.layers.get(*l).map(|l| format!("{} {}", l.name, l.kind)),
                _ => None,
            };
            if name.is_some_and(|t| words.iter().all(|w| t.to_lowercase().contains(w.as_str()))) {
                self.cursor = i;
                self.clamp(height);
                return true;
            }
        }
        false
    }

    /// Puts the cursor on a row if it is shown.
    pub fn go_to(&mut self, row: RowRef, height: usize) {
        if let Some(i) = self.shown.iter().position(|r| *r == row) {
            self.cursor = i;
            self.clamp(height);
        }
    }
}
