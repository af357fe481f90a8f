//! Views that are text: the timeline and the report.

use super::{Canvas, span};
use crate::config::Role;
use crate::config::text::clean;
use crate::tui::num::clock;
use ratatui::layout::Rect;
use ratatui::style::Modifier;
use ratatui::text::Line;

pub(super) fn timeline(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    let t = &app.state.timeline;
    let title = vec![
        span("timeline", pal.bold(Role::Focus)),
        span(format!(" {} events, newest first, UTC", t.len()), pal.fg(Role::Dim)),
    ];
    let inner = c.pane(area, title, true);
    if t.is_empty() {
        c.put(inner, 1, 2, "nothing has happened yet", pal.fg(Role::Dim));
        return;
    }
    let undo = app.state.undo.last().map(|u| u.seq);
    for (row, e) in t.iter().rev().skip(app.scroll).take(inner.height as usize).enumerate() {
        let mut style = pal.fg(Role::Fg);
        if e.undone {
            style = pal.fg(Role::Faint).add_modifier(Modifier::CROSSED_OUT);
        }
        let mut spans = vec![
            span(format!(" {:>5} ", e.seq), pal.fg(Role::Faint)),
            span(format!("{}  ", clock(e.at_ms)), pal.fg(Role::Dim)),
            span(clean(&e.text).into_owned(), style),
        ];
        if e.undone {
            spans.push(span("  undone", pal.fg(Role::Warn)));
        }
        if Some(e.seq) == undo {
            let u = app.settings.keymap.label(crate::config::Act::Undo);
            spans.push(span(format!("  {} {u} undoes this", pal.glyph("◂", "<")), pal.fg(Role::Accent)));
        }
        c.line(inner, row as u16, &Line::from(spans));
    }
}

pub(super) fn report(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    let text = crate::tui::report::markdown(app);
    let title =
        vec![span("report", pal.bold(Role::Focus)), span(" Markdown; `:report PATH` writes it", pal.fg(Role::Dim))];
    let inner = c.pane(area, title, true);
    for (row, l) in text.lines().skip(app.scroll).take(inner.height as usize).enumerate() {
        let style = match l {
            l if l.starts_with('#') => pal.bold(Role::Title),
            l if l.starts_with("|--") || l.starts_with("| --") => pal.fg(Role::Faint),
            l if l.starts_with('|') => pal.fg(Role::Fg),
            l if l.starts_with('>') => pal.fg(Role::Warn),
            _ => pal.fg(Role::Fg),
        };
        c.put(inner, row as u16, 1, l, style);
    }
}
