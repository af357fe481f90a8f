//! View 7: two plans side by side: what each is expected to come to, the rows where they differ, and what taking a row over would change.
//!
//! Invariant: a forecast carries `~` and what it rests on; a measured figure says of which round it is.

use super::{Canvas, span};
use crate::config::text::{clean, fit, fit_end, left, right, wrap};
use crate::config::{Act, Role};
use crate::plan::{Action, Basis};
use crate::session::action_text;
use crate::task::Metric;
use crate::tui::app::App;
use crate::tui::num::{range, signed};
use crate::tui::outlook::{Expected, Goal, QUALITY, goals, meets};
use crate::tui::plans::{Beside, Row, Side};
use crate::words::counted;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// Columns of an action, and of a change that a row would make.
const ACTION: usize = 14;
const CHANGE: usize = 11;
/// A row's name at least and at most.
const NAME: (usize, usize) = (18, 44);
/// A total's name.
const TOTAL: usize = 10;

pub(super) fn draw(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    let mut title = vec![span("plans", pal.bold(Role::Focus))];
    if let Some(b) = &app.plans.beside {
        let next = if b.of > 1 { format!(" ({} of {})", b.at + 1, b.of) } else { String::new() };
        title.push(span(format!(" shown beside {}{next}", clean(&b.there.name)), pal.fg(Role::Dim)));
    }
    let inner = c.pane(area, title, true);
    let Some(b) = &app.plans.beside else { return };
    let (head, width) = (head(app, b, inner.width as usize), inner.width as usize);
    for (row, line) in head.iter().enumerate() {
        c.line(inner, row as u16, line);
    }
    let top = (head.len() as u16).min(inner.height);
    let mut list = Rect { y: inner.y + top, height: inner.height - top, ..inner };
    // Why the row is as it is, where there is room.
    let why = b.rows.get(app.plans.cursor).filter(|_| list.height >= 8).map(|row| why(app, row, width));
    let why: Vec<Line<'static>> = why.unwrap_or_default();
    list.height -= why.len() as u16;
    let height = list.height as usize;
    let first = (app.plans.cursor + 1).saturating_sub(height);
    for (at, row) in b.rows.iter().enumerate().skip(first).take(height) {
        let y = (at - first) as u16;
        if at == app.plans.cursor {
            c.cursor(list, y);
        }
        let line = told(app, b, row, width, at == app.plans.cursor);
        c.line(list, y, &line);
    }
    let below = Rect { y: list.y + list.height, height: why.len() as u16, ..list };
    for (row, line) in why.iter().enumerate() {
        c.line(below, row as u16, line);
    }
}

/// The whole view as lines, for the clipboard.
pub fn lines(app: &App, width: usize) -> Vec<Line<'static>> {
    let Some(b) = &app.plans.beside else { return Vec::new() };
    let mut out = head(app, b, width);
    out.extend(b.rows.iter().map(|row| told(app, b, row, width, false)));
    out
}

/// What both come to, and the heading of the rows.
fn head(app: &App, b: &Beside, width: usize) -> Vec<Line<'static>> {
    let pal = &app.palette;
    let dim = pal.fg(Role::Dim);
    let metric = app.state.metric();
    let cell = (width.saturating_sub(TOTAL + 2) / 2).clamp(16, 48);
    let side = |s: &Side| format!("{}, {}", clean(&s.name), counted(s.decisions, "decision"));
    let names = [&b.here, &b.there].map(|s| span(left(&fit(&side(s), cell - 1), cell), pal.bold(Role::Fg)));
    let mut out = vec![Line::from(std::iter::once(span(left("", TOTAL + 1), dim)).chain(names).collect::<Vec<_>>())];
    for goal in goals(&app.state.budget, &metric).iter().filter(|g| !g.unforetold()) {
        let figures = [&b.here, &b.there].map(|s| figure(app, s, goal, &metric, cell));
        let name = span(format!(" {}", left(&fit(goal.label(&metric), TOTAL - 1), TOTAL)), dim);
        out.push(Line::from(std::iter::once(name).chain(figures).collect::<Vec<_>>()));
    }
    out.push(Line::default());
    let words = match b.rows.len() {
        0 => format!(" the two plans are the same; {} compares another", app.label(Act::NextPlan)),
        n => {
            let [row, block, all] = [Act::TakeRow, Act::TakeBlock, Act::TakeAll].map(|a| app.label(a));
            format!(
                " {}: {row} takes one, {block} its block, {all} all; right: what that changes",
                crate::words::counted_as(n, "row differs", "rows differ")
            )
        }
    };
    out.push(Line::from(span(words, pal.fg(Role::Fg))));
    if !b.rows.is_empty() {
        let name = left("row", name_room(app, width));
        let there = left(&fit(&clean(&b.there.name), ACTION - 1), ACTION);
        let mut titles = format!("  {name}{}{there}", left("shown", ACTION));
        for goal in changes(app, width) {
            // Plans may rest on unlike trials; a row's part is told by what was scanned of both.
            let label = match goal.name {
                QUALITY => format!("{} scan", fit(&metric.name, CHANGE - 6)),
                _ => goal.label(&metric).to_owned(),
            };
            titles.push_str(&right(&fit(&label, CHANGE - 1), CHANGE));
        }
        out.push(Line::from(span(titles, dim)));
    }
    out
}

/// One total of one plan: what was measured of its round, else what is expected.
fn figure(app: &App, s: &Side, goal: &Goal, metric: &Metric, room: usize) -> Span<'static> {
    let pal = &app.palette;
    let role = |value: f64, plain| match meets(goal, value) {
        Some(true) => Role::Good,
        Some(false) => Role::Bad,
        None => plain,
    };
    let cut = |text: String| left(&fit(&text, room - 1), room);
    if let Some(m) = &s.measured
        && let Some(value) = m.get(goal.name).filter(|v| v.is_finite())
    {
        let part = m.part.filter(|_| goal.points).map_or(String::new(), |n| format!(" on {n}"));
        let doubt = if goal.name == "latency" && m.doubtful { "?" } else { "" };
        let text = format!("{}{doubt} measured{part} in round {}", goal.show(value), m.round);
        return span(cut(text), pal.fg(role(value, Role::Fg)));
    }
    // The original is no forecast of itself.
    let expected = s.expected.get(goal.name).filter(|_| s.decisions > 0);
    let Some(e) = expected else {
        let text = if s.decisions == 0 { "as it is".to_owned() } else { pal.none().to_owned() };
        return span(cut(text), pal.fg(Role::Dim));
    };
    let quality = s.expected.quality.filter(|q| goal.name == QUALITY && q.basis != Basis::Unchanged);
    let more = match quality {
        Some(q) => format!(" {} {}", range(metric, (q.low, q.high), ","), q.basis.label()),
        None if goal.name == "latency" && e.low < e.high => {
            format!(" [{}, {}]", goal.show(e.low), goal.show(e.high))
        }
        None => String::new(),
    };
    // What a trial showed is a forecast of new data; what a round showed is none.
    let mark = s.expected.mark(goal.name);
    span(cut(format!("{mark}{}{more}", goal.show(e.value))), pal.fg(role(e.value, Role::Forecast)))
}

/// The goals whose changes a row of `width` columns tells: those that are asked for first.
fn changes(app: &App, width: usize) -> Vec<Goal> {
    let mut all: Vec<Goal> = goals(&app.state.budget, &app.state.metric());
    all.retain(|g| !g.unforetold());
    // Quality is always told: no row is taken for its price alone.
    all.sort_by_key(|g| (g.name != QUALITY, g.target.is_none()));
    let room = width.saturating_sub(2 + NAME.0 + 2 * ACTION);
    all.truncate((room / CHANGE).clamp(1, 5));
    all
}

fn name_room(app: &App, width: usize) -> usize {
    let used = 2 + 2 * ACTION + CHANGE * changes(app, width).len();
    width.saturating_sub(used).clamp(NAME.0, NAME.1)
}

fn told(app: &App, b: &Beside, row: &Row, width: usize, marked: bool) -> Line<'static> {
    let pal = &app.palette;
    let name = name_room(app, width);
    let mark = if marked { pal.glyph("▸ ", "> ") } else { "  " };
    let text = |action: &Action| match action {
        Action::Keep => pal.none().to_owned(),
        other => action_text(other),
    };
    let mut spans = vec![
        span(mark, pal.fg(Role::Accent)),
        span(left(&fit_end(&clean(row.what.target.name()), name - 1), name), pal.fg(Role::Fg)),
        span(left(&fit(&text(&row.what.here), ACTION - 1), ACTION), pal.fg(Role::Proposed)),
        span(left(&fit(&text(&row.what.there), ACTION - 1), ACTION), pal.bold(Role::Fg)),
    ];
    for goal in changes(app, width) {
        let change = match goal.name {
            QUALITY => row.quality.map(|d| rounded(&goal, d)),
            _ => row.taken.as_ref().and_then(|taken| change(&goal, taken, &b.here.expected)),
        };
        let (text, role) = match change {
            Some(0.0) => ("0".to_owned(), Role::Dim),
            Some(d) => {
                let good = if goal.points { d > 0.0 } else { d < 0.0 };
                let shown = if goal.points && goal.less { -d } else { d };
                let digits = if goal.points { goal.digits } else { 3 };
                (format!("~{}", signed(shown, digits)), if good { Role::Good } else { Role::Warn })
            }
            None => (pal.none().to_owned(), Role::Dim),
        };
        spans.push(span(right(&text, CHANGE), pal.fg(role)));
    }
    Line::from(spans)
}

/// What taking a row over changes of a goal; `None` where either is not known.
fn change(goal: &Goal, taken: &Expected, here: &Expected) -> Option<f64> {
    let of = |e: &Expected| e.get(goal.name).map(|e| e.value);
    Some(rounded(goal, of(taken)? - of(here)?))
}

/// A change as it is shown: nothing where its digits would be noughts.
fn rounded(goal: &Goal, d: f64) -> f64 {
    let least = if goal.points { 0.5 * 10f64.powi(-(goal.digits as i32)) } else { 5e-4 };
    if d.abs() < least { 0.0 } else { d }
}

/// Who decided what is shown in the row, and why.
fn why(app: &App, row: &Row, width: usize) -> Vec<Line<'static>> {
    let pal = &app.palette;
    let text = match app.state.planned(&row.what.target).shown() {
        Some(d) if d.rationale.is_empty() => format!("shown: by {}", d.author),
        Some(d) if d.edited_from.is_some() => {
            format!("shown: edited by {}; why it was first proposed: {}", d.author, d.rationale)
        }
        Some(d) => format!("shown: by {}: {}", d.author, d.rationale),
        None => "shown: nothing is decided here".to_owned(),
    };
    let lines = wrap(&clean(&text), width.saturating_sub(2).max(8)).into_iter().take(2);
    std::iter::once(Line::default())
        .chain(lines.map(|l| Line::from(span(format!(" {l}"), pal.fg(Role::Dim)))))
        .collect()
}
