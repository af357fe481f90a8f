//! Which rows of the table are shown, in which order, and where the cursor is.
//!
//! Invariants: the cursor stays on its row by name, whatever is sorted, folded or measured; nothing re-sorts by itself
//! while samples arrive, [`List::resort`] is called when measuring ends or on a key.

use super::table::{Figures, Layer, Table};
use crate::graph::MacConvention;
use std::collections::HashSet;

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum SortKey {
    Order,
    #[default]
    P50,
    Share,
    Memory,
    Macs,
    Params,
    Sensitivity,
    Weight,
    Zeros,
    Rank,
    Gradient,
    Importance,
    Noise,
}

/// Which figures the list has columns of.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Columns {
    #[default]
    Costs,
    /// Of weights and gradients.
    Parameters,
}

impl Columns {
    /// The words of `:columns`.
    pub const WORDS: [(&str, Columns); 2] = [("costs", Columns::Costs), ("parameters", Columns::Parameters)];

    pub fn other(self) -> Columns {
        match self {
            Columns::Costs => Columns::Parameters,
            Columns::Parameters => Columns::Costs,
        }
    }

    /// What it can be sorted by.
    pub fn keys(self) -> &'static [SortKey] {
        use SortKey::*;
        match self {
            Columns::Costs => &[Order, P50, Share, Memory, Macs, Params, Sensitivity],
            Columns::Parameters => &[Order, P50, Weight, Zeros, Rank, Gradient, Importance, Noise],
        }
    }
}

impl SortKey {
    pub const ALL: [SortKey; 13] = [
        SortKey::Order,
        SortKey::P50,
        SortKey::Share,
        SortKey::Memory,
        SortKey::Macs,
        SortKey::Params,
        SortKey::Sensitivity,
        SortKey::Weight,
        SortKey::Zeros,
        SortKey::Rank,
        SortKey::Gradient,
        SortKey::Importance,
        SortKey::Noise,
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
            SortKey::Weight => "weight norm",
            SortKey::Zeros => "zeros",
            SortKey::Rank => "rank",
            SortKey::Gradient => "gradient norm",
            SortKey::Importance => "importance",
            SortKey::Noise => "gradient noise",
        }
    }

    /// From the setting's word.
    pub fn parse(word: &str) -> Option<SortKey> {
        let i = crate::config::SORTS.iter().position(|s| *s == word)?;
        SortKey::ALL.get(i).copied()
    }

    /// The next of `columns`.
    pub fn next(self, columns: Columns) -> SortKey {
        let keys = columns.keys();
        let at = keys.iter().position(|k| *k == self);
        keys[at.map_or(0, |at| (at + 1) % keys.len())]
    }

    /// What this column holds of `f`, where it is known.
    pub fn figure(self, f: &Figures, conv: MacConvention) -> Option<f64> {
        match self {
            SortKey::Order => None,
            SortKey::P50 => f.p50,
            SortKey::Share => f.share,
            SortKey::Memory => Some(f.bytes as f64),
            SortKey::Macs => Some(f.macs.get(conv) as f64),
            SortKey::Params => Some(f.params as f64),
            SortKey::Sensitivity => f.sens,
            SortKey::Weight => f.weights.norm(),
            SortKey::Zeros => f.weights.zeros(),
            SortKey::Rank => f.weights.rank(),
            SortKey::Gradient => f.weights.gradient(),
            SortKey::Importance => f.weights.importance(),
            SortKey::Noise => f.weights.noise(),
        }
    }
}

/// A shown row, by index into the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RowRef {
    Block(usize),
    Layer(usize),
}

impl RowRef {
    pub fn figures(self, table: &Table) -> Option<Figures> {
        match self {
            RowRef::Block(i) => table.blocks.get(i).map(|b| b.fig),
            RowRef::Layer(i) => table.layers.get(i).map(|l| l.fig),
        }
    }
}

/// Words to look for, any case.
fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_lowercase).collect()
}

/// Whether name and kind of `layer` have all of `words`.
fn hit(layer: &Layer, words: &[String]) -> bool {
    let text = format!("{} {}", layer.name, layer.kind).to_lowercase();
    words.iter().all(|w| text.contains(w.as_str()))
}

#[derive(Debug, Clone, Default)]
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
        List { sort, untouched: true, ..List::default() }
    }

    pub fn current(&self) -> Option<RowRef> {
        self.shown.get(self.cursor).copied()
    }

    /// Sorts anew by the column and shows the result; the cursor keeps its row and its line on the screen.
    pub fn resort(&mut self, table: &Table, conv: MacConvention, height: usize) {
        self.order_held = false;
        let top = |(i, l): (usize, &Layer)| l.block.filter(|_| !self.flat).map_or(RowRef::Layer(i), RowRef::Block);
        let mut seen = HashSet::new();
        let mut top: Vec<RowRef> = table.layers.iter().enumerate().map(top).filter(|r| seen.insert(*r)).collect();
        let mut inner: Vec<usize> = (0..table.layers.len()).collect();
        if self.sort != SortKey::Order {
            // What is not known comes last.
            let figure = |r: RowRef| r.figures(table).and_then(|f| self.sort.figure(&f, conv));
            let key = |r: RowRef| figure(r).unwrap_or(f64::NEG_INFINITY);
            top.sort_by(|a, b| key(*b).total_cmp(&key(*a)));
            inner.sort_by(|a, b| key(RowRef::Layer(*b)).total_cmp(&key(RowRef::Layer(*a))));
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
        let words = words(&self.filter);
        let hit = |i: usize| table.layers.get(i).is_some_and(|l| hit(l, &words));
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

    /// Goes to layer `i`, whose block is unfolded; whether it is among the rows that the filter leaves.
    pub fn go_to(&mut self, table: &Table, i: usize, height: usize) -> bool {
        self.untouched = false;
        if let Some(block) = table.layers.get(i).and_then(|l| table.blocks.get(l.block?)) {
            self.folded.remove(&block.name);
        }
        self.show(table, height);
        let Some(at) = self.shown.iter().position(|r| *r == RowRef::Layer(i)) else { return false };
        self.cursor = at;
        self.clamp(height);
        true
    }

    /// Moves to the next row whose name has all of `words`, wrapping round.
    pub fn find(&mut self, table: &Table, words: &str, forward: bool, height: usize) -> bool {
        let words = self::words(words);
        let n = self.shown.len();
        if n == 0 || words.is_empty() {
            return false;
        }
        let hits = |r: RowRef| matches!(r, RowRef::Layer(l) if table.layers.get(l).is_some_and(|l| hit(l, &words)));
        let mut rows = (1..=n).map(|k| if forward { (self.cursor + k) % n } else { (self.cursor + n - k) % n });
        let Some(next) = rows.find(|&i| hits(self.shown[i])) else { return false };
        self.cursor = next;
        self.clamp(height);
        true
    }
}
