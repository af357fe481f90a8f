//! Where everything is, from the terminal's size alone: update and drawing share it, so scrolling agrees with what is seen.

use ratatui::layout::Rect;

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
pub fn layout(area: Rect, view: View, banners: u16) -> Layout {
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
        review(&mut l, class);
    } else {
        l.list = l.body;
    }
    l
}

fn review(l: &mut Layout, class: Class) {
    let b = l.body;
    match class {
        Class::Small => {
            let under = if b.height >= 12 { (b.height * 9 / 20).max(7) } else { 0 };
            l.list = Rect { height: b.height - under, ..b };
            let pane = Rect { y: b.y + b.height - under, height: under, ..b };
            (l.agents, l.card, l.tabs) = (pane, pane, true);
        }
        Class::Normal | Class::Wide => {
            let right = if class == Class::Wide { b.width * 47 / 100 } else { (b.width * 40 / 100).clamp(46, 64) };
            l.list = Rect { width: b.width - right, ..b };
            let side = Rect { x: b.x + b.width - right, width: right, ..b };
            let card = if class == Class::Wide { 18 } else { 17 }.min(b.height * 6 / 10);
            let plot = if class == Class::Wide { b.height * 3 / 10 } else { 0 };
            let agents = side.height - card - plot;
            l.agents = Rect { height: agents, ..side };
            l.card = Rect { y: side.y + agents, height: card, ..side };
            l.plot = Rect { y: side.y + agents + card, height: plot, ..side };
        }
    }
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

    #[test]
    fn areas_stay_inside_and_do_not_overlap_at_any_size() {
        for w in 1..=260u16 {
            for h in 1..=100u16 {
                let area = Rect::new(0, 0, w, h);
                for view in View::ALL {
                    for banners in 0..3 {
                        let l = layout(area, view, banners);
                        for r in [
                            l.header, l.phases, l.banners, l.body, l.list, l.agents, l.card, l.plot, l.status, l.footer,
                        ] {
                            assert_eq!(r.intersection(area), r, "{r:?} leaves {area:?}");
                        }
                        let rows = l.header.height + l.phases.height + l.banners.height + l.body.height;
                        assert!(rows + l.status.height + l.footer.height <= h);
                        if view == View::Review && !l.tabs {
                            assert!(
                                !l.list.intersects(l.card)
                                    && !l.agents.intersects(l.card)
                                    && !l.plot.intersects(l.card)
                            );
                        }
                    }
                }
            }
        }
    }
}
