//! View 9's state: its pages, the row that its cursor is on, and the memory that activations take over a run.
//!
//! Not here: drawing (`draw/roofline`, `draw/memory`, `draw/icicle`, `draw/spread`, `draw/vitals`), what is alive when (`plan/liveness`). Invariant:
//! the list of layers keeps its own cursor; only the key that opens the row there moves it.

use super::app::{App, Level, Pane, View};
use super::layout::list_rows;
use super::table::Layer;
use super::vitals::Vitals;
use crate::plan::{Decision, Liveness};
use crate::profile::{LatencyStats, LayerRow, Profile};

/// A page of the view.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Page {
    #[default]
    Roofline,
    Memory,
    Icicle,
    Spread,
    Machine,
}

impl Page {
    pub const ALL: [Page; 5] = [Page::Roofline, Page::Memory, Page::Icicle, Page::Spread, Page::Machine];

    pub fn name(self) -> &'static str {
        match self {
            Page::Roofline => "roofline",
            Page::Memory => "memory",
            Page::Icicle => "icicle",
            Page::Spread => "spread",
            Page::Machine => "machine",
        }
    }

    fn beside(self, forward: bool) -> Page {
        let at = Page::ALL.iter().position(|p| *p == self).unwrap_or(0);
        let n = Page::ALL.len();
        Page::ALL[(at + if forward { 1 } else { n - 1 }) % n]
    }
}

/// What activations take over a run.
#[derive(Debug, Clone)]
pub struct Memory {
    pub live: Liveness,
    /// Bytes by step.
    pub course: Vec<u64>,
}

impl Memory {
    fn of(live: Liveness) -> Memory {
        Memory { course: live.course(), live }
    }
}

/// What view 9 holds.
#[derive(Debug, Default)]
pub struct Profiled {
    pub page: Page,
    /// The row that its cursor is on, by name.
    pub at: Option<String>,
    /// Of the original, as it was profiled; an error in words. `None` before the first profile, and while another page is shown.
    pub original: Option<Result<Memory, String>>,
    /// Of the plan that is shown, where it would change something.
    pub plan: Option<Result<Memory, String>>,
    pub vitals: Vitals,
}

impl App {
    /// Opens view 9 at its first page, or goes to its next one.
    pub(super) fn show_profile(&mut self) {
        if self.view == View::Profile {
            return self.turn_page(true);
        }
        self.profiled.page = Page::Roofline;
        self.profiled.at = self.row_layer().map(|l| l.name.clone());
        self.show(View::Profile);
    }

    pub(super) fn turn_page(&mut self, forward: bool) {
        self.profiled.page = self.profiled.page.beside(forward);
        (self.scroll, self.outlook_stale) = (0, true);
    }

    /// The layer that a key on one row is about: in view 9 its own cursor's.
    pub fn pointed(&self) -> Option<&Layer> {
        match (self.view, &self.profiled.at) {
            (View::Profile, Some(name)) => self.table.layer(name),
            _ => self.row_layer(),
        }
    }

    /// Works out what the memory page shows.
    pub(super) fn remember(&mut self) {
        (self.profiled.original, self.profiled.plan) = (None, None);
        let (Some(card), Some(profile)) = (&self.state.card, self.state.profile_of(0)) else { return };
        let actions: Vec<_> = self.plan(&[]).iter().map(Decision::planned).collect();
        let before = Liveness::of(&card.graph, profile).map(Memory::of).map_err(|e| e.to_string());
        let after = (!actions.is_empty())
            .then(|| Liveness::after(&card.graph, &card.groups, profile, &actions).map(Memory::of));
        (self.profiled.original, self.profiled.plan) = (Some(before), after);
    }

    /// Names of the rows in the order in which the page's cursor goes through them; empty where the page scrolls.
    fn page_rows(&self) -> Vec<String> {
        let Some(profile) = self.state.profile() else { return Vec::new() };
        match self.profiled.page {
            Page::Memory => match &self.profiled.original {
                Some(Ok(memory)) => memory.live.steps.clone(),
                _ => Vec::new(),
            },
            Page::Icicle => super::icicle::order(profile),
            Page::Spread => by_spread(profile).into_iter().map(|r| r.name.clone()).collect(),
            Page::Roofline | Page::Machine => Vec::new(),
        }
    }

    /// Moves the page's cursor by so many rows, `page` by a page of them; whether there is one that this moves.
    pub(super) fn step_page(&mut self, by: isize, page: bool) -> bool {
        // Pages of text beside a picture scroll.
        if page && self.profiled.page != Page::Spread {
            return false;
        }
        let rows = self.page_rows();
        let Some(last) = rows.len().checked_sub(1) else { return false };
        let at = self.profiled.at.as_ref().and_then(|name| rows.iter().position(|r| r == name));
        // Without a cursor the first key puts one where it goes from.
        let to = at.map_or(if by > 0 { 0 } else { last }, |at| at.saturating_add_signed(by).min(last));
        self.profiled.at = rows.into_iter().nth(to);
        true
    }

    /// Goes to the page's row in the list of layers.
    pub(super) fn open_row(&mut self) {
        let Some(name) = self.profiled.at.clone() else {
            let (down, up) = (self.label(crate::config::Act::Down), self.label(crate::config::Act::Up));
            return self.nothing(format!(
                "no row is marked; {down} and {up} mark one on the pages between the first and the last"
            ));
        };
        let Some(layer) = self.table.layers.iter().position(|l| l.name == name) else {
            return self.say(Level::Warn, format!("`{name}` is no row of the list of layers"));
        };
        self.commit();
        self.show(View::Review);
        let rows = list_rows(&self.layout());
        if !self.list.go_to(&self.table, layer, rows) {
            self.list.filter.clear();
            self.list.go_to(&self.table, layer, rows);
            self.say(Level::Info, "the filter hid the row and was dropped");
        }
        (self.card, self.pane) = (0, Pane::Layers);
    }
}

/// Rows by how little is known of their median, as a part of it.
pub fn by_spread(profile: &Profile) -> Vec<&LayerRow> {
    let mut rows: Vec<&LayerRow> = profile.rows.iter().filter(|r| r.latency.n > 0).collect();
    rows.sort_by(|a, b| b.latency.spread().total_cmp(&a.latency.spread()));
    rows
}

/// The ends of what is known of samples, as parts of their median: the least of them, the 95th and the 99th percentile.
pub fn ends(s: &LatencyStats) -> Option<(f64, f64, Option<f64>)> {
    let part = |ms: f64| ms / s.p50;
    let all = (part(s.min), part(s.p95), s.p99().map(part));
    (s.p50 > 0.0 && all.0.is_finite() && all.1.is_finite()).then_some(all)
}
