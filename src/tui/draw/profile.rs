//! View 9: the pages on what was measured, one of them at a time.
//!
//! Here: the title that all of them have, and which page is drawn. The pages: `roofline`, `memory`, `icicle`, `spread`, `vitals`.

use super::{Canvas, icicle, memory, roofline, span, spread, vitals};
use crate::config::text::width;
use crate::config::{Act, Role};
use crate::tui::app::App;
use crate::tui::profile::Page;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

pub(super) fn draw(c: &mut Canvas<'_>, area: Rect) {
    match c.app.profiled.page {
        Page::Roofline => roofline::draw(c, area),
        Page::Memory => memory::draw(c, area),
        Page::Icicle => icicle::draw(c, area),
        Page::Spread => spread::draw(c, area),
        Page::Machine => vitals::draw(c, area),
    }
}

/// The lines that the page shows, or holds besides its picture.
pub fn lines(app: &App, columns: usize) -> Vec<Line<'static>> {
    match app.profiled.page {
        Page::Roofline => roofline::lines(app, columns),
        Page::Memory => memory::lines(app, columns),
        Page::Icicle => icicle::lines(app, columns),
        Page::Spread => spread::lines(app, columns),
        Page::Machine => vitals::lines(app, columns),
    }
}

/// All pages with the current one marked, and what it shows where a pane of `columns` has room for that.
pub(super) fn title(c: &Canvas<'_>, columns: u16, about: &str) -> Vec<Span<'static>> {
    let pal = c.pal;
    let whose = whose(c.app);
    let pages: usize = Page::ALL.iter().map(|p| p.name().len() + 2).sum();
    // Whose figures they are is told in any case, in place of what the view is called where there is no room for both.
    let both = "profile ".len() + pages + width(pal.dot()) + width(&whose) + 4 <= usize::from(columns);
    let head = if both || whose.is_empty() { "profile" } else { whose.as_str() };
    let mut out = vec![span(format!("{head} "), pal.fg(Role::Title))];
    for page in Page::ALL {
        out.push(match page == c.app.profiled.page {
            true => span(format!("[{}]", page.name()), pal.bold(Role::Focus)),
            false => span(format!(" {} ", page.name()), pal.fg(Role::Dim)),
        });
    }
    let whose = if both { whose.clone() } else { String::new() };
    for words in [whose, about.to_owned()].into_iter().filter(|words| !words.is_empty()) {
        let used: usize = out.iter().map(Span::width).sum();
        let words = format!("{}{words}", pal.dot());
        if used + width(&words) + 4 <= usize::from(columns) {
            out.push(span(words, pal.fg(Role::Dim)));
        }
    }
    out
}

/// The model that the page's figures are of: the one in force, where it was profiled; of the machine none.
fn whose(app: &App) -> String {
    let in_force = app.state.base_round();
    match app.profiled.page {
        Page::Machine => String::new(),
        Page::Memory => "original".to_owned(),
        _ if in_force > 0 && app.state.profile_of(in_force).is_some() => format!("round {in_force}"),
        _ => "original".to_owned(),
    }
}

/// What every page says before there is anything to show.
pub(super) fn nothing(app: &App) -> String {
    format!("nothing is profiled yet; {} measures every layer", app.label(Act::Profile))
}

/// Text in as many lines of `columns` as it takes.
pub(super) fn say(out: &mut Vec<Line<'static>>, text: &str, columns: usize, style: ratatui::style::Style) {
    for part in crate::config::text::wrap(text, columns.saturating_sub(2).max(10)) {
        out.push(Line::from(span(format!(" {part}"), style)));
    }
}
