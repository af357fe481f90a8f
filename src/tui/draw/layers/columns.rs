//! Which columns the layer list has at a width, and where they go.
//!
//! Not here: which there are (`tui/columns`), what stands in them (`cells`), the plan column's words (`layers`).

use crate::config::text::width;
use crate::tui::app::App;
use crate::tui::columns::{Column, Columns, Set};
use crate::tui::readings::Readings;
use ratatui::layout::Rect;
use std::collections::BTreeSet;

/// A column as it is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Col {
    Of(Column),
    Plan,
    /// p50 of the round at this place among those that were measured.
    History(usize),
}

impl Col {
    pub(super) fn width(self, columns: &Columns) -> u16 {
        match self {
            Col::Of(column) => columns.width(column),
            Col::Plan => PLAN,
            Col::History(_) => 6,
        }
    }

    /// Its heading, with `rounds` the numbers of those that were measured.
    pub(super) fn title(self, columns: &Columns, rounds: &[u32]) -> String {
        match self {
            Col::Of(column) => columns.heading(column).to_owned(),
            Col::Plan => "plan".into(),
            Col::History(at) => match rounds.get(at) {
                None | Some(0) => "base".into(),
                Some(r) => format!("r{r}"),
            },
        }
    }

    pub(super) fn column(self) -> Option<Column> {
        match self {
            Col::Of(column) => Some(column),
            Col::Plan | Col::History(_) => None,
        }
    }
}

/// Columns of the plan.
pub(super) const PLAN: u16 = 11;

/// Every heading that there can be, those of rounds included.
#[cfg(test)]
pub fn headings() -> Vec<String> {
    use crate::tui::columns::Figure;
    let figures = Figure::ALL.map(|f| f.heading().to_owned());
    let columns = Columns::default();
    let others = [Col::Plan, Col::History(0), Col::History(1)].map(|c| c.title(&columns, &[0, 3]));
    figures.into_iter().chain(others).collect()
}

/// The columns that fit, the least important left out first, so that names keep `name` columns.
fn fitting(all: &Columns, room: u16, name: u16, rounds: usize) -> Vec<Col> {
    let mut cols: Vec<Col> = all.shown().into_iter().map(Col::Of).chain([Col::Plan]).collect();
    let total = |cols: &[Col]| cols.iter().map(|c| c.width(all) + 1).sum::<u16>();
    for drop in all.drops() {
        if total(&cols) + name > room {
            cols.retain(|c| *c != Col::Of(drop));
        }
    }
    if total(&cols) + 10 > room {
        cols.clear();
    }
    // What is left over shows earlier rounds.
    let at = cols.len().saturating_sub(1);
    for r in (0..rounds).rev().take(6) {
        let one = Col::History(r).width(all) + 1;
        if all.set == Set::Costs && cols.len() >= 7 && total(&cols) + one + name.max(28) <= room {
            cols.insert(at, Col::History(r));
        }
    }
    cols
}

/// From the least to the most of a column, zero included: its heat's scale.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Scale {
    pub(super) low: f64,
    pub(super) high: f64,
}

impl Scale {
    fn of(values: &[Option<f64>]) -> Scale {
        let widen = |s: Scale, v: &f64| Scale { low: s.low.min(*v), high: s.high.max(*v) };
        values.iter().flatten().fold(Scale::default(), widen)
    }

    /// Where `v` lies, 0 to 1.
    pub(super) fn heat(self, v: f64) -> f64 {
        let span = self.high - self.low;
        if span > 0.0 { (v - self.low) / span } else { 0.0 }
    }

    /// The same to both sides of zero, -1 to 1; of changes, the largest is whole.
    pub(super) fn aside(self, v: f64) -> f64 {
        let most = self.high.max(-self.low);
        if most > 0.0 { v / most } else { 0.0 }
    }
}

/// A column with what it holds, and its scales among blocks and among layers.
pub(super) struct Held {
    pub(super) col: Col,
    pub(super) readings: Readings,
    pub(super) scales: [Scale; 2],
}

/// Where rows go, with the columns beside their names.
pub(super) struct Grid {
    pub(super) body: Rect,
    pub(super) name_w: u16,
    pub(super) cols: Vec<Held>,
    /// Layers that are selected.
    pub(super) picked: BTreeSet<usize>,
}

/// How wide names are, and the columns beside them, in a list with this inside.
pub(super) fn placed(app: &App, inner: Rect) -> (u16, Vec<Col>) {
    let t = &app.table;
    let longest = t.layers.iter().map(|l| width(&l.label) + 4).max().unwrap_or(0);
    let longest = longest.max(t.blocks.iter().map(|b| width(&b.label) + 7).max().unwrap_or(0)).max(12);
    // Six figures and the plan leave names fourteen columns where a terminal has 120.
    let least = longest.min(if app.columns.set == Set::Costs { 18 } else { 14 }) as u16;
    let rounds = if t.rounds.len() > 1 { t.rounds.len() } else { 0 };
    let cols = fitting(&app.columns, inner.width, least, rounds);
    let used: u16 = cols.iter().map(|c| c.width(&app.columns) + 1).sum();
    // Names take what they need, not more: figures stay close to them.
    let flat = t.layers.iter().map(|l| width(&l.name) + 4).max().unwrap_or(0);
    let wanted = if app.list.flat { flat } else { longest }.max(24) as u16;
    (inner.width.saturating_sub(used).min(wanted), cols)
}

/// Lays the list out inside its border.
pub(super) fn grid(app: &App, inner: Rect) -> Grid {
    let (name_w, cols) = placed(app, inner);
    let held = |col: Col| {
        let readings = col.column().map(|c| app.readings(c)).unwrap_or_default();
        let scales = [Scale::of(&readings.blocks), Scale::of(&readings.layers)];
        Held { col, readings, scales }
    };
    let body = Rect { y: inner.y + 1, height: inner.height.saturating_sub(1), ..inner };
    Grid { body, name_w, cols: cols.into_iter().map(held).collect(), picked: app.selected() }
}

/// How many of the columns that the user picked there is no room for.
pub(super) fn left_out(app: &App, cols: &[Col]) -> usize {
    match app.columns.set {
        Set::Picked => app.columns.shown().into_iter().filter(|c| !cols.contains(&Col::Of(*c))).count(),
        Set::Costs | Set::Parameters | Set::Speed => 0,
    }
}
