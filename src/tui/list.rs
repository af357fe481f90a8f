//! Which rows of the table are shown, in which order, and where the cursor is.
//!
//! Invariants: the cursor stays on its row by name, whatever is sorted, folded or measured; nothing re-sorts by itself
//! while samples arrive, [`List::resort`] is called when measuring ends or on a key.

use super::columns::Column;
use super::readings::Readings;
use super::table::{Figures, Layer, Table};
use std::collections::HashSet;

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
    /// `None`: the model's own order.
    pub sort: Option<Column>,
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
    pub fn new(sort: Option<Column>) -> List {
        List { sort, untouched: true, ..List::default() }
    }

    pub fn current(&self) -> Option<RowRef> {
        self.shown.get(self.cursor).copied()
    }

    /// Sorts anew by what the column holds and shows the result; the cursor keeps its row and its line on the screen.
    pub fn resort(&mut self, table: &Table, held: &Readings, height: usize) {
        self.order_held = false;
        let top = |(i, l): (usize, &Layer)| l.block.filter(|_| !self.flat).map_or(RowRef::Layer(i), RowRef::Block);
        let mut seen = HashSet::new();
        let mut top: Vec<RowRef> = table.layers.iter().enumerate().map(top).filter(|r| seen.insert(*r)).collect();
        let mut inner: Vec<usize> = (0..table.layers.len()).collect();
        if self.sort.is_some() {
            // What is not known comes last. A block without a figure of its own stands where the largest of its rows would.
            let rows = |b: usize| table.blocks.get(b).map_or(&[][..], |b| &b.layers).iter();
            let largest = |r: RowRef| match r {
                RowRef::Block(b) => rows(b).filter_map(|&i| held.of(RowRef::Layer(i))).max_by(f64::total_cmp),
                RowRef::Layer(_) => None,
            };
            let key = |r: RowRef| held.of(r).or_else(|| largest(r)).unwrap_or(f64::NEG_INFINITY);
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
