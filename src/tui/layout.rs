//! Where everything is, from the terminal's size and how the review's panes share it: update and drawing share it, so scrolling agrees with what is seen.
//!
//! Not here: who chooses the shares (`arrange`). Invariant: whatever the shares, no pane is smaller than what decisions are made by.

use ratatui::layout::{Position, Rect};
use serde::{Deserialize, Serialize};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum View {
    #[default]
    Review,
    Evaluate,
    Agents,
    Timeline,
    Report,
    Control,
    Plans,
    Inspect,
    Profile,
}

impl View {
    pub const ALL: [View; 9] = [
        View::Review,
        View::Evaluate,
        View::Agents,
        View::Timeline,
        View::Report,
        View::Control,
        View::Plans,
        View::Inspect,
        View::Profile,
    ];
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Panes become tabs under the list; one header line.
    Small,
    Normal,
    /// History columns and the plot beside.
    Wide,
}

/// A share of all, in its unit.
pub const WHOLE: u16 = 1000;

/// How the review's panes share the screen where they stand side by side, thousandths of its width or height; `None`: as usual for its size.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shares {
    /// Of the width: agents and card.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub side: Option<u16>,
    /// Of the height.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub card: Option<u16>,
    /// Of the height, where a terminal has room for a plot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plot: Option<u16>,
}

impl Shares {
    /// Itself, if no share is more than all.
    ///
    /// # Errors
    /// In words.
    pub fn checked(self) -> Result<Shares, String> {
        let shares = [self.side, self.card, self.plot];
        match shares.into_iter().flatten().find(|s| *s > WHOLE) {
            Some(odd) => Err(format!("a share of {odd} thousandths")),
            None => Ok(self),
        }
    }
}

/// A border of the review that can be pulled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Border {
    /// Between the list and what stands beside it.
    Side,
    /// Over the card.
    Card,
    /// Over the plot.
    Plot,
}

/// The least that panes may have: names with a few figures and the plan; what is decided by; a word of the agents; a plot.
const LEAST_LIST: u16 = 52;
const LEAST_SIDE: u16 = 48;
const LEAST_CARD: u16 = 14;
const LEAST_AGENTS: u16 = 5;
const LEAST_PLOT: u16 = 8;

/// Every area; empty ones are not drawn.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Layout {
    pub header: Rect,
    pub phases: Rect,
    pub banners: Rect,
    /// The whole area between header and status line.
    pub body: Rect,
    pub list: Rect,
    pub agents: Rect,
    pub card: Rect,
    pub plot: Rect,
    /// Tab titles of agents and decision, on small screens.
    pub tabs: bool,
    pub status: Rect,
    pub footer: Rect,
}

pub fn class(width: u16, height: u16) -> Class {
    match (width, height) {
        (w, h) if w >= 180 && h >= 45 => Class::Wide,
        (w, h) if w >= 108 && h >= 28 => Class::Normal,
        _ => Class::Small,
    }
}

/// Lays `area` out for `view` with `banners` warning lines.
pub fn layout(area: Rect, view: View, banners: u16, shares: Shares) -> Layout {
    let class = class(area.width, area.height);
    let mut l = Layout::default();
    let (x, w) = (area.x, area.width);
    let mut top = area.y;
    let mut left = area.height;
    let mut take = |want: u16| {
        let h = want.min(left);
        let r = Rect { x, y: top, width: w, height: h };
        top += h;
        left -= h;
        r
    };
    l.header = take(1);
    if class != Class::Small {
        l.phases = take(1);
    }
    let bottom: u16 = if area.height >= 8 { 2 } else { u16::from(area.height >= 4) };
    l.banners = take(banners.min(area.height.saturating_sub(bottom + 6)));
    let used = l.header.height + l.phases.height + l.banners.height;
    l.body = take(area.height.saturating_sub(used + bottom));
    if bottom == 2 {
        l.status = take(1);
    }
    l.footer = take(bottom.min(1));
    if view == View::Review {
        review(&mut l, class, shares);
    } else {
        l.list = l.body;
    }
    l
}

fn review(l: &mut Layout, class: Class, shares: Shares) {
    let b = l.body;
    match class {
        Class::Small => {
            let under = if b.height >= 12 { (b.height * 9 / 20).max(7) } else { 0 };
            l.list = Rect { height: b.height - under, ..b };
            let pane = Rect { y: b.y + b.height - under, height: under, ..b };
            (l.agents, l.card, l.tabs) = (pane, pane, true);
        }
        Class::Normal | Class::Wide => {
            let wide = class == Class::Wide;
            let usual = if wide { b.width * 47 / 100 } else { (b.width * 40 / 100).clamp(LEAST_SIDE, 64) };
            let right =
                shares.side.map_or(usual, |s| within(part(b.width, s), LEAST_SIDE, b.width.saturating_sub(LEAST_LIST)));
            l.list = Rect { width: b.width - right, ..b };
            let side = Rect { x: b.x + b.width - right, width: right, ..b };
            let (card, plot) = heights(b.height, wide, shares);
            let agents = side.height - card - plot;
            l.agents = Rect { height: agents, ..side };
            l.card = Rect { y: side.y + agents, height: card, ..side };
            l.plot = Rect { y: side.y + agents + card, height: plot, ..side };
        }
    }
}

/// Rows of the card and of the plot among `height`.
fn heights(height: u16, wide: bool, shares: Shares) -> (u16, u16) {
    let usual = if wide { 18 } else { 17 }.min(height * 6 / 10);
    let least = usual.min(LEAST_CARD);
    let plot = match shares.plot.filter(|_| wide) {
        None if wide => height * 3 / 10,
        None => 0,
        Some(s) => within(part(height, s), LEAST_PLOT, height.saturating_sub(least + LEAST_AGENTS)),
    };
    let card = shares.card.map_or(usual, |s| part(height, s));
    (within(card, least, height.saturating_sub(plot + LEAST_AGENTS)), plot)
}

/// `thousandths` of `all`, to the nearest.
fn part(all: u16, thousandths: u16) -> u16 {
    let whole = u32::from(WHOLE);
    ((u32::from(all) * u32::from(thousandths.min(WHOLE)) + whole / 2) / whole) as u16
}

/// `v`, at most `high`, and at least `low` in any case.
fn within(v: u16, low: u16, high: u16) -> u16 {
    v.min(high).max(low)
}

impl Layout {
    /// The share that `columns` of the body's width are, or `rows` of its height.
    pub fn width_share(&self, columns: u16) -> u16 {
        share(columns, self.body.width)
    }

    pub fn height_share(&self, rows: u16) -> u16 {
        share(rows, self.body.height)
    }

    /// The border of the review under a place.
    pub fn border_at(&self, at: Position) -> Option<Border> {
        let side = Rect { height: self.body.height, ..self.agents };
        if self.tabs || side.is_empty() || !self.body.contains(at) {
            return None;
        }
        if at.x == side.x || at.x + 1 == side.x {
            return Some(Border::Side);
        }
        let over = |r: Rect| r.height > 0 && r.contains(Position { y: r.y, ..at }) && (at.y == r.y || at.y + 1 == r.y);
        match () {
            () if over(self.card) => Some(Border::Card),
            () if over(self.plot) => Some(Border::Plot),
            () => None,
        }
    }
}

fn share(some: u16, all: u16) -> u16 {
    let all = u32::from(all.max(1));
    ((u32::from(some) * u32::from(WHOLE) + all / 2) / all).min(u32::from(WHOLE)) as u16
}

/// Inside a bordered pane.
pub fn inside(r: Rect) -> Rect {
    Rect {
        x: r.x + r.width.min(1),
        y: r.y + r.height.min(1),
        width: r.width.saturating_sub(2),
        height: r.height.saturating_sub(2),
    }
}

/// Rows of the layer list: inside its border, under the heading.
pub fn list_rows(l: &Layout) -> usize {
    inside(l.list).height.saturating_sub(1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shares at and between their bounds.
    fn shares() -> Vec<Shares> {
        let some = [None, Some(0), Some(300), Some(WHOLE), Some(u16::MAX)];
        let with = |card| some.map(|side| Shares { side, card, plot: card });
        let mut all: Vec<Shares> = some.into_iter().flat_map(with).collect();
        all.extend([(Some(WHOLE), None), (None, Some(WHOLE)), (Some(WHOLE), Some(0))].map(|(card, plot)| Shares {
            side: None,
            card,
            plot,
        }));
        all
    }

    #[test]
    fn areas_stay_inside_and_do_not_overlap_at_any_size() {
        let shares = shares();
        for (w, h) in (1..=260u16).flat_map(|w| (1..=100u16).map(move |h| (w, h))) {
            let area = Rect::new(0, 0, w, h);
            for view in View::ALL {
                for banners in 0..3 {
                    // Only the review is shared.
                    let some = if view == View::Review { &shares[..] } else { &shares[..1] };
                    some.iter().for_each(|s| sound(area, view, banners, *s));
                }
            }
        }
    }

    fn sound(area: Rect, view: View, banners: u16, shares: Shares) {
        let l = layout(area, view, banners, shares);
        for r in [l.header, l.phases, l.banners, l.body, l.list, l.agents, l.card, l.plot, l.status, l.footer] {
            assert_eq!(r.intersection(area), r, "{r:?} leaves {area:?} with {shares:?}");
        }
        let rows = l.header.height + l.phases.height + l.banners.height + l.body.height;
        assert!(rows + l.status.height + l.footer.height <= area.height);
        if view == View::Review && !l.tabs {
            let panes = [l.list, l.agents, l.card, l.plot];
            let cells: u32 = panes.iter().map(|r| r.area()).sum();
            assert_eq!(cells, l.body.area(), "the body is shared out: {panes:?} of {area:?} with {shares:?}");
            for (i, a) in panes.iter().enumerate() {
                assert!(panes[i + 1..].iter().all(|b| !a.intersects(*b)), "{panes:?} of {area:?} with {shares:?}");
            }
            // What is decided by is never cut.
            let usual = layout(area, view, banners, Shares::default());
            assert!(l.list.width >= LEAST_LIST && l.card.width >= LEAST_SIDE, "{shares:?} {area:?}");
            assert!(l.card.height >= usual.card.height.min(LEAST_CARD) && l.agents.height >= 3, "{shares:?} {area:?}");
            assert!(usual.plot.height == 0 || l.plot.height >= LEAST_PLOT.min(usual.plot.height));
        }
    }

    #[test]
    fn a_border_goes_where_it_is_put() {
        for (w, h) in [(108, 28), (120, 40), (200, 60), (1000, 500)] {
            let area = Rect::new(0, 0, w, h);
            let usual = layout(area, View::Review, 0, Shares::default());
            for columns in [LEAST_SIDE, 54, 56] {
                let s = Shares { side: Some(usual.width_share(columns)), ..Shares::default() };
                assert_eq!(layout(area, View::Review, 0, s).agents.width, columns, "{w}");
            }
            for rows in LEAST_CARD..=16 {
                let s = Shares { card: Some(usual.height_share(rows)), ..Shares::default() };
                assert_eq!(layout(area, View::Review, 0, s).card.height, rows, "{w}");
            }
            let (card, side) = (usual.card, usual.agents);
            let at = |x, y| usual.border_at(Position { x, y });
            assert_eq!((at(side.x, side.y + 2), at(side.x - 1, side.y + 2)), (Some(Border::Side), Some(Border::Side)));
            assert_eq!((at(card.x + 9, card.y), at(card.x + 9, card.y - 1)), (Some(Border::Card), Some(Border::Card)));
            assert_eq!((at(card.x + 9, card.y + 2), at(3, 5)), (None, None));
        }
        let small = layout(Rect::new(0, 0, 80, 24), View::Review, 0, Shares::default());
        assert!((0..80).all(|x| (0..24).all(|y| small.border_at(Position { x, y }).is_none())));
    }
}
