//! View 2: the items that a round's model answers otherwise than the original: a gallery of images, or a list of texts.

use super::evaluate::class_name;
use super::{Canvas, span, tokens};
use crate::config::text::{clean, fit, left, width, wrap};
use crate::config::{Act, Role};
use crate::session::{Answer, Changed, Item, PAGE, Way};
use crate::tui::app::App;
use crate::tui::evaluate::Part;
use crate::tui::num;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};

/// Lines under a picture.
const WORDS: u16 = 2;
/// Rows of a picture at least and at most.
const ROWS: (u16, u16) = (4, 12);

pub(super) fn pane(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    let focused = app.looking.part == Part::Changed;
    let mut title = vec![c.title("changed", focused)];
    let Some(round) = app.page().map(|p| p.round) else {
        let inner = c.pane(area, title, focused);
        c.put(inner, 0, 1, "what a round answers otherwise than the original is shown here", pal.fg(Role::Dim));
        return;
    };
    let changed = app.what_changed();
    if let Some(changed) = changed.filter(|c| c.why.is_none()) {
        title.extend(counted(c, changed));
    }
    let inner = c.pane(area, title, focused);
    let Some(changed) = changed else {
        c.put(inner, 0, 1, &format!("what round {round} changed is being read"), pal.fg(Role::Dim));
        return;
    };
    if let Some(why) = &changed.why {
        c.put(inner, 0, 1, &clean(why), pal.fg(Role::Warn));
        return;
    }
    let here = (changed.asked.way, changed.asked.from) == (app.looking.way, app.looking.item / PAGE * PAGE);
    if app.changed_items() == 0 {
        let (what, which) = match (app.looking.way, app.looking.way.other()) {
            (Way::Lost, _) => ("lost", "gained"),
            (Way::Gained, _) => ("gained", "lost"),
        };
        let key = app.label(Act::OtherWay);
        c.put(inner, 0, 1, &format!("no item was {what}; {key} shows those that were {which}"), pal.fg(Role::Dim));
        return;
    }
    if !here {
        c.put(inner, 0, 1, "the page is being read", pal.fg(Role::Dim));
        return;
    }
    let at = app.looking.item - changed.asked.from;
    let Some(item) = changed.items.get(at) else { return };
    if let Some(what) = app.read_by_token() {
        return tokens::page(c, area, inner, what);
    }
    if app.looking.large {
        return large(c, inner, item);
    }
    match changed.items.iter().any(|i| app.looking.pictures.has(i.index)) && inner.height > ROWS.0 + WORDS {
        true => gallery(c, inner, changed, at),
        false => list(c, inner, changed, at),
    }
    let (n, all) = (app.looking.item + 1, app.changed_items());
    let (enter, other) = (app.label(Act::Confirm), app.label(Act::OtherWay));
    c.legend(
        area,
        vec![span(format!("{n} of {all}, most first  {enter} larger  {other} the other way"), pal.fg(Role::Dim))],
    );
}

/// How many were lost and gained, the way that is shown marked.
fn counted(c: &Canvas<'_>, changed: &Changed) -> Vec<Span<'static>> {
    let (app, pal) = (c.app, c.pal);
    let style = |way: Way, role: Role| if app.looking.way == way { pal.bold(role) } else { pal.fg(Role::Dim) };
    let mark = |way: Way| if app.looking.way == way { pal.glyph("▸", ">") } else { "" };
    let seen = app.state.metric().items(changed.seen);
    vec![
        span(format!(", round {}: ", changed.asked.round), pal.fg(Role::Dim)),
        span(format!("{}{} lost", mark(Way::Lost), changed.lost), style(Way::Lost, Role::Bad)),
        span(pal.dot(), pal.fg(Role::Dim)),
        span(format!("{}{} gained", mark(Way::Gained), changed.gained), style(Way::Gained, Role::Good)),
        span(format!(" of {seen}"), pal.fg(Role::Dim)),
    ]
}

/// What an answer is, in a word: the class, or the score in the task's metric.
fn said(app: &App, a: &Answer) -> String {
    match a.class {
        Some(class) => class_name(&app.state, usize::from(class)),
        None => {
            let metric = app.state.metric();
            format!("{:.*}", metric.digits, metric.value(f64::from(a.score)))
        }
    }
}

/// Which figure moved from what to what: leads of the right class, else nothing beyond what is [`said`].
fn leads(c: &Canvas<'_>, item: &Item) -> Option<String> {
    let (b, a) = (item.before.lead?, item.after.lead?);
    let arrow = c.pal.glyph("→", "->");
    Some(format!("{} {arrow} {}", num::signed(f64::from(b), 1), num::signed(f64::from(a), 1)))
}

fn answers(c: &Canvas<'_>, item: &Item, room: usize) -> String {
    let arrow = c.pal.glyph(" → ", " -> ");
    let (before, after) = (said(c.app, &item.before), said(c.app, &item.after));
    let each = room.saturating_sub(width(arrow)) / 2;
    // Where both do not fit, the longer one gives way first.
    let spare = each.saturating_sub(width(&before));
    format!("{}{arrow}{}", fit(&before, each.max(1)), fit(&after, (each + spare).max(1)))
}

fn gallery(c: &mut Canvas<'_>, area: Rect, changed: &Changed, at: usize) {
    let pal = c.pal;
    // As many rows of pictures as leave each readable.
    let lines = (area.height / (ROWS.0 * 2 + WORDS + 1)).max(1);
    let rows = (area.height / lines).saturating_sub(WORDS).clamp(ROWS.0, ROWS.1);
    let (cell_w, cell_h) = (rows * 2 + 2, rows + WORDS);
    let across = (area.width / cell_w).max(1) as usize;
    let shown = across * lines as usize;
    let first = at / shown * shown;
    for (k, item) in changed.items.iter().enumerate().skip(first).take(shown) {
        let (x, y) = (((k - first) % across) as u16 * cell_w, ((k - first) / across) as u16 * cell_h);
        let cell = Rect { x: area.x + x, y: area.y + y, width: cell_w.min(area.width - x), height: cell_h };
        let cell = cell.intersection(area);
        let picture = Rect {
            x: cell.x + 1,
            width: (rows * 2).min(cell.width.saturating_sub(1)),
            height: rows.min(cell.height),
            ..cell
        };
        c.pictures.push((item.index, picture));
        let words = Rect { y: cell.y + rows, height: cell.height.saturating_sub(rows), ..cell };
        let selected = k == at;
        let mark = if selected { pal.glyph("▸", ">") } else { " " };
        let style = if selected { pal.bold(Role::Focus) } else { pal.fg(Role::Fg) };
        let room = (cell.width as usize).saturating_sub(2);
        c.put(words, 0, 0, &format!("{mark}{}", answers(c, item, room)), style);
        let under = leads(c, item).unwrap_or_else(|| format!("item {}", item.index));
        c.put(words, 1, 1, &fit(&under, room), pal.fg(Role::Dim));
    }
}

/// One line an item, for texts and where there is no room for pictures.
fn list(c: &mut Canvas<'_>, area: Rect, changed: &Changed, at: usize) {
    let (app, pal) = (c.app, c.pal);
    let rows = area.height.max(1) as usize;
    let first = (at + 1).saturating_sub(rows).min(changed.items.len().saturating_sub(rows));
    for (row, (k, item)) in changed.items.iter().enumerate().skip(first).take(rows).enumerate() {
        if k == at {
            c.cursor(area, row as u16);
        }
        let number = format!(" {:>7} ", item.index);
        let words = answers(c, item, 34);
        let tail = match (&item.label, leads(c, item)) {
            (Some(label), leads) => {
                let leads = leads.map(|l| format!("  {l}")).unwrap_or_default();
                format!("is {}{leads}", class_name(&app.state, *label as usize))
            }
            (None, _) => String::new(),
        };
        let shown = item.text.as_deref().or(item.name.as_deref()).unwrap_or_default();
        let shown = clean(shown).replace('\n', " ");
        c.line(
            area,
            row as u16,
            &Line::from(vec![
                span(number, pal.fg(Role::Dim)),
                span(left(&words, 36), pal.fg(Role::Fg)),
                span(format!("{tail}  "), pal.fg(Role::Dim)),
                span(shown, Style::new()),
            ]),
        );
    }
}

/// One item with all that is known of it.
fn large(c: &mut Canvas<'_>, area: Rect, item: &Item) {
    let (app, pal) = (c.app, c.pal);
    let has = app.looking.pictures.has(item.index);
    let side = if has { (area.height * 2).min(area.width / 2) } else { 0 };
    if has {
        c.pictures.push((item.index, Rect { x: area.x + 1, width: side.saturating_sub(1), ..area }));
    }
    let words = Rect { x: area.x + side + 1, width: area.width.saturating_sub(side + 2), ..area };
    let answer = |a: &Answer| {
        let lead = a.lead.map(|l| format!(", the right class leads by {}", num::signed(f64::from(l), 2)));
        format!("{}{}", said(app, a), lead.unwrap_or_default())
    };
    let mut rows = vec![("item", item.index.to_string())];
    rows.extend(item.name.as_deref().map(|n| ("file", clean(n).into_owned())));
    rows.extend(item.label.map(|l| ("is", class_name(&app.state, l as usize))));
    rows.push(("original", answer(&item.before)));
    rows.push(("round", answer(&item.after)));
    if let (Some(b), Some(n)) = (item.before.confidence, item.after.confidence) {
        let arrow = pal.glyph("→", "->");
        rows.push(("sure", format!("{:.1} % {arrow} {:.1} %", b * 100.0, n * 100.0)));
    }
    for (row, (name, text)) in rows.iter().enumerate() {
        let line = vec![span(left(name, 10), pal.fg(Role::Dim)), span(text.clone(), pal.fg(Role::Fg))];
        c.line(words, row as u16, &Line::from(line));
    }
    let Some(text) = &item.text else { return };
    for (row, line) in (rows.len() as u16 + 1..).zip(wrap(&clean(text), words.width as usize)) {
        c.put(words, row, 0, &line, Style::new());
    }
}
