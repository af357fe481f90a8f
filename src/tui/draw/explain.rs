//! The dialog of words: what is on the screen first, then the others, or those that what was typed picks.

use super::{Canvas, span};
use crate::config::Role;
use crate::config::text::{clean, fit, wrap};
use crate::tui::explain::Explain;
use crate::tui::palette::Palette;
use crate::words::counted;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// Columns before what a word says, and the least that is left for that.
const TERM: usize = 18;
const LEAST: usize = 24;

fn entry(out: &mut Vec<Line<'static>>, pal: &Palette, term: &str, says: &str, columns: usize) {
    let beside = columns >= TERM + LEAST;
    let indent = if beside { TERM } else { 2 };
    let mut head: Vec<Span<'static>> = vec![span(format!("  {term} "), pal.bold(Role::Key))];
    let mut lines = wrap(says, columns.saturating_sub(indent + 1).max(8)).into_iter();
    // A long term has a line of its own.
    if beside && head[0].width() <= TERM {
        head.push(Span::raw(" ".repeat(TERM - head[0].width())));
        head.extend(lines.next().map(|l| span(l, pal.fg(Role::Fg))));
    }
    out.push(Line::from(head));
    out.extend(lines.map(|l| Line::from(span(format!("{}{l}", " ".repeat(indent)), pal.fg(Role::Fg)))));
}

/// All lines for a pane of `columns`.
pub fn lines(pal: &Palette, e: &Explain, columns: usize) -> Vec<Line<'static>> {
    let mut out = Vec::new();
    let heading = |out: &mut Vec<Line<'static>>, text: &str| {
        if !out.is_empty() {
            out.push(Line::default());
        }
        out.push(Line::from(span(format!(" {text}"), pal.bold(Role::Title))));
    };
    if e.filter.is_empty() && !e.about.is_empty() {
        heading(&mut out, "here");
        e.about.iter().for_each(|(term, says)| entry(&mut out, pal, term, says, columns));
    }
    let sections = e.sections();
    for s in &sections {
        heading(&mut out, s.title);
        s.words.iter().for_each(|w| entry(&mut out, pal, shown(pal, w.term), w.says, columns));
    }
    if sections.is_empty() {
        let text = format!(" no word like `{}`; backspace takes letters back", clean(&e.filter));
        out.push(Line::from(span(fit(&text, columns).into_owned(), pal.fg(Role::Dim))));
    }
    out
}

/// A mark as this screen shows it.
fn shown<'a>(pal: &Palette, term: &'a str) -> &'a str {
    match term {
        "†" => pal.glyph("†", "'"),
        "┊" => pal.glyph("┊", ":"),
        "—" => pal.glyph("—", "-"),
        "±" => pal.glyph("±", "+-"),
        _ => term,
    }
}

pub(super) fn draw(c: &mut Canvas<'_>, body: Rect, e: &Explain) {
    let pal = c.pal;
    c.clear(body);
    let mut title = vec![span("words", pal.bold(Role::Focus))];
    if !e.filter.is_empty() {
        title.push(span(format!(" / {}", fit(&clean(&e.filter), 40)), pal.bold(Role::Accent)));
    }
    let inner = c.pane(body, title, true);
    let all = lines(pal, e, usize::from(inner.width));
    for (row, line) in all.iter().skip(e.scroll).take(usize::from(inner.height)).enumerate() {
        c.line(inner, row as u16, line);
    }
    let more = all.len().saturating_sub(e.scroll + usize::from(inner.height));
    let below = if more > 0 { format!("{} below; ", counted(more, "more line")) } else { String::new() };
    c.legend(body, vec![span(format!("{below}typing filters, esc closes"), Style::new().patch(pal.fg(Role::Dim)))]);
}
