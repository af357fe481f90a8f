//! Views that are text: the timeline and the report.

use super::{Canvas, span};
use crate::config::text::{clean, wrap};
use crate::config::{Act, Role};
use crate::session::TimelineEntry;
use crate::tui::app::App;
use crate::tui::layout::inside;
use crate::tui::num::clock;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::{Line, Span};

pub(super) fn timeline(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    let t = &app.state.timeline;
    let title = vec![
        span("timeline", pal.bold(Role::Focus)),
        span(format!(" {}, newest first, UTC", crate::words::counted(t.len(), "event")), pal.fg(Role::Dim)),
    ];
    let inner = c.pane(area, title, true);
    if t.is_empty() {
        c.put(inner, 1, 2, "nothing has happened yet", pal.fg(Role::Dim));
        return;
    }
    let (at, top) = app.past_places();
    let mut row = 0;
    for (i, e) in t.iter().rev().enumerate().skip(top) {
        if row >= inner.height {
            break;
        }
        for line in event_lines(app, e, inner.width) {
            if row < inner.height {
                c.line(inner, row, &line);
                if i == at {
                    c.cursor(inner, row);
                }
            }
            row = row.saturating_add(1);
        }
        if i == at {
            let first = row.saturating_sub(event_lines(app, e, inner.width).len() as u16);
            c.put(inner, first, 0, pal.glyph("❯", ">"), pal.bold(Role::Focus).patch(pal.cursor()));
        }
    }
    super::marks::sought(c, inner);
    if let Some(e) = app.past_event().filter(|_| app.reviewable()) {
        let text = format!("{} goes back to what was decided after event {}", app.label(Act::Confirm), e.seq);
        c.legend(area, vec![span(text, pal.fg(Role::Dim))]);
    }
}

/// An event's lines in a pane of `width` columns.
pub fn event_lines(app: &App, e: &TimelineEntry, width: u16) -> Vec<Line<'static>> {
    let pal = &app.palette;
    let undo = app.state.undo.last().map(|u| u.seq);
    let mut style = pal.fg(Role::Fg);
    let mut after = Vec::new();
    if e.undone {
        style = pal.fg(Role::Faint).add_modifier(Modifier::CROSSED_OUT);
        after.push(span("  undone", pal.fg(Role::Warn)));
    }
    if Some(e.seq) == undo {
        let u = app.label(Act::Undo);
        after.push(span(format!("  {} {u} undoes this", pal.glyph("◂", "<")), pal.fg(Role::Accent)));
    }
    let mut spans = vec![
        span(format!(" {:>5} ", e.seq), pal.fg(Role::Faint)),
        span(format!("{}  ", clock(e.at_ms)), pal.fg(Role::Dim)),
    ];
    let beside: usize = spans.iter().map(Span::width).sum();
    let used = beside + after.iter().map(Span::width).sum::<usize>();
    let mut out = Vec::new();
    // Whole, since the way out of a failure stands at its end.
    for (i, part) in wrap(&clean(&e.text), usize::from(width).saturating_sub(used).max(8)).into_iter().enumerate() {
        if i > 0 {
            spans.push(span(" ".repeat(beside), style));
        }
        spans.push(span(part, style));
        spans.append(&mut after);
        out.push(Line::from(std::mem::take(&mut spans)));
    }
    out
}

/// The report's lines wrapped to `width` columns, with how each looks.
fn wrapped(app: &App, width: usize) -> Vec<(Role, bool, String)> {
    let mut out = Vec::new();
    for l in crate::tui::report::markdown(app).lines() {
        let (role, bold) = match l {
            l if l.starts_with('#') => (Role::Title, true),
            l if l.starts_with("|--") || l.starts_with("| --") => (Role::Faint, false),
            l if l.starts_with('>') => (Role::Warn, false),
            _ => (Role::Fg, false),
        };
        for (i, part) in wrap(l, width.saturating_sub(2).max(8)).into_iter().enumerate() {
            out.push((role, bold, if i == 0 { part } else { format!("  {part}") }));
        }
    }
    out
}

/// The lines that the report takes in a body of that width.
pub(super) fn report_lines(app: &App, body: Rect) -> Vec<String> {
    wrapped(app, inside(body).width as usize).into_iter().map(|(_, _, line)| line).collect()
}

pub(super) fn report(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    let title = vec![
        span("report", pal.bold(Role::Focus)),
        span(" `:report` writes it as Markdown and as a page of HTML", pal.fg(Role::Dim)),
    ];
    let inner = c.pane(area, title, true);
    let lines = wrapped(app, inner.width as usize);
    for (row, (role, bold, l)) in lines.iter().skip(app.scroll).take(inner.height as usize).enumerate() {
        c.put(inner, row as u16, 1, l, if *bold { pal.bold(*role) } else { pal.fg(*role) });
    }
    super::marks::sought(c, inner);
}
