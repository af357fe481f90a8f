//! Which columns the layer list has at a width, and where they go.
//!
//! Not here: what stands in them (`cells`), the plan column's words (`layers`).

use crate::config::text::width;
use crate::graph::MacConvention;
use crate::tui::app::App;
use crate::tui::list::{Columns, SortKey};
use crate::tui::table::Figures;
use ratatui::layout::Rect;
use std::collections::BTreeSet;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Col {
    P50,
    Share,
    Memory,
    Macs,
    Params,
    Sens,
    Weight,
    Zeros,
    Rank,
    Gradient,
    Importance,
    Noise,
    Plan,
    /// p50 of a round.
    History(usize),
}

impl Col {
    pub(super) fn width(self) -> u16 {
        match self {
            Col::P50 | Col::Share | Col::Memory | Col::Macs | Col::Params => 7,
            Col::Gradient | Col::Importance => 7,
            Col::Weight | Col::Zeros | Col::Rank | Col::Noise => 6,
            Col::Sens => 5,
            Col::Plan => 11,
            Col::History(_) => 6,
        }
    }

    pub(super) fn title(self) -> String {
        match (self.figure(), self) {
            (Some((title, _)), _) => title.into(),
            (None, Col::History(0)) => "base".into(),
            (None, Col::History(r)) => format!("r{r}"),
            (None, _) => "plan".into(),
        }
    }

    pub(super) fn sorts(self) -> Option<SortKey> {
        self.figure().map(|(_, key)| key)
    }

    /// The title and the order of a column of the newest figures.
    fn figure(self) -> Option<(&'static str, SortKey)> {
        Some(match self {
            Col::P50 => ("p50 ms", SortKey::P50),
            Col::Share => ("share", SortKey::Share),
            Col::Memory => ("mem MB", SortKey::Memory),
            Col::Macs => ("MACs M", SortKey::Macs),
            Col::Params => ("params", SortKey::Params),
            Col::Sens => ("sens", SortKey::Sensitivity),
            Col::Weight => ("|w|", SortKey::Weight),
            Col::Zeros => ("zeros%", SortKey::Zeros),
            Col::Rank => ("rank %", SortKey::Rank),
            Col::Gradient => ("|g|", SortKey::Gradient),
            Col::Importance => ("|gw|", SortKey::Importance),
            Col::Noise => ("noise", SortKey::Noise),
            Col::Plan | Col::History(_) => return None,
        })
    }
}

/// The heading of the column that rows are sorted by; none of the model's own order.
pub fn heading(sort: SortKey) -> Option<&'static str> {
    let all = Columns::WORDS.into_iter().flat_map(|(_, figures)| columns(figures, u16::MAX, 0, 0));
    all.filter_map(Col::figure).find(|(_, key)| *key == sort).map(|(title, _)| title)
}

/// Every heading that there can be, those of rounds included.
#[cfg(test)]
pub fn headings() -> Vec<String> {
    let all = Columns::WORDS.into_iter().flat_map(|(_, figures)| columns(figures, u16::MAX, 0, 3));
    all.map(Col::title).collect()
}

/// The columns of `figures` that fit, the least important left out first, so that names keep `name` columns.
fn columns(figures: Columns, room: u16, name: u16, rounds: usize) -> Vec<Col> {
    use Col::*;
    let (mut cols, drops) = match figures {
        Columns::Costs => {
            (vec![P50, Share, Memory, Macs, Params, Sens, Plan], vec![Params, Share, Memory, Macs, Sens, P50])
        }
        Columns::Parameters => (
            vec![P50, Weight, Zeros, Rank, Gradient, Importance, Noise, Plan],
            vec![P50, Zeros, Rank, Noise, Weight, Importance, Gradient],
        ),
    };
    let total = |cols: &[Col]| cols.iter().map(|c| c.width() + 1).sum::<u16>();
    for drop in drops {
        if total(&cols) + name > room {
            cols.retain(|c| *c != drop);
        }
    }
    if total(&cols) + 10 > room {
        cols.clear();
    }
    // What is left over shows earlier rounds.
    let at = cols.len().saturating_sub(1);
    for r in (0..rounds).rev().take(6) {
        if figures == Columns::Costs
            && cols.len() >= 7
            && total(&cols) + Col::History(r).width() + 1 + name.max(28) <= room
        {
            cols.insert(at, Col::History(r));
        }
    }
    cols
}

/// The largest of `rows` in a column: its heat's scale.
pub(super) fn most(rows: &[&Figures], key: SortKey, conv: MacConvention) -> f64 {
    rows.iter().filter_map(|f| key.figure(f, conv)).fold(0.0, f64::max)
}

/// Where rows go, with the columns beside their names and the scale of each among blocks and among layers.
pub(super) struct Grid {
    pub(super) body: Rect,
    pub(super) name_w: u16,
    pub(super) cols: Vec<(Col, [f64; 2])>,
    /// Layers that are selected.
    pub(super) picked: BTreeSet<usize>,
}

/// Lays the list out inside its border.
pub(super) fn grid(app: &App, inner: Rect) -> Grid {
    let t = &app.table;
    let conv = app.settings.mac_convention;
    let blocks: Vec<&Figures> = t.blocks.iter().map(|b| &b.fig).collect();
    let layers: Vec<&Figures> = t.layers.iter().map(|l| &l.fig).collect();
    let longest = t.layers.iter().map(|l| width(&l.label) + 4).max().unwrap_or(0);
    let longest = longest.max(t.blocks.iter().map(|b| width(&b.label) + 7).max().unwrap_or(0)).max(12);
    // Six figures and the plan leave names fourteen columns where a terminal has 120.
    let least = longest.min(if app.columns == Columns::Costs { 18 } else { 14 }) as u16;
    let rounds = if t.layers.iter().any(|l| l.history.len() > 1) { app.state.rounds.len() } else { 0 };
    let cols = columns(app.columns, inner.width, least, rounds);
    let used: u16 = cols.iter().map(|c| c.width() + 1).sum();
    // Names take what they need, not more: figures stay close to them.
    let flat = t.layers.iter().map(|l| width(&l.name) + 4).max().unwrap_or(0);
    let wanted = if app.list.flat { flat } else { longest }.max(24) as u16;
    let name_w = inner.width.saturating_sub(used).min(wanted);
    let body = Rect { y: inner.y + 1, height: inner.height.saturating_sub(1), ..inner };
    let scale = |col: Col| [&blocks, &layers].map(|rows| col.sorts().map_or(0.0, |key| most(rows, key, conv)));
    Grid { body, name_w, cols: cols.into_iter().map(|col| (col, scale(col))).collect(), picked: app.selected() }
}
