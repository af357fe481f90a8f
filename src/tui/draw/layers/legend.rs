//! The foot of the layer list: scales of heat, what figures are of, and where the cursor is.

use super::columns::{Grid, Scale};
use crate::config::text::width;
use crate::config::{Act, Role};
use crate::profile::Workload;
use crate::tui::app::App;
use crate::tui::columns::{Column, Figure, Set};
use crate::tui::draw::{Canvas, span, whole};
use crate::tui::list::RowRef;
use crate::tui::num;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Span;

/// Columns at the list's foot for where the cursor is.
const FOOT: u16 = 9;
/// Corners and spaces about a legend.
const MARGIN: usize = 6;

pub(super) fn draw(c: &mut Canvas<'_>, area: Rect, grid: &Grid) {
    let room = area.width.saturating_sub(FOOT);
    let spans = match c.app.columns.set {
        Set::Costs => costs(c, room),
        Set::Parameters => crate::tui::draw::weights::legend(c),
        Set::Speed | Set::Picked => chosen(c, grid),
    };
    foot(c, area, spans);
}

/// Steps of a scale from `from` to 1.
fn ramp(c: &Canvas<'_>, from: f64, style: impl Fn(f64) -> Style) -> Vec<Span<'static>> {
    let step = |i: i32| {
        let x = from + (1.0 - from) * f64::from(i) / 4.0;
        let glyph = if c.pal.wants_density() { c.pal.density(x.abs()).to_string() } else { " ".into() };
        span(format!("{glyph} "), style(x))
    };
    (0..=4).map(step).collect()
}

/// The scale of the rows that are listed, and where layers and blocks are that of the blocks.
fn scales(app: &App, p50: [f64; 2]) -> (String, Option<String>) {
    let listed = |block: bool| app.list.shown.iter().any(|r| matches!(r, RowRef::Block(_)) == block);
    match p50.map(num::ms) {
        _ if p50[1] <= 0.0 => (" not measured".to_owned(), None),
        [blocks, _] if !listed(false) && listed(true) => (format!(" {blocks} ms a block"), None),
        [blocks, layers] => (format!(" {layers} ms"), listed(true).then(|| format!("blocks {blocks}"))),
    }
}

/// In `room` columns.
fn costs(c: &Canvas<'_>, room: u16) -> Vec<Span<'static>> {
    let (app, pal) = (c.app, c.pal);
    let dim = pal.fg(Role::Dim);
    let readings = app.readings(Column::Figure(Figure::P50));
    let p50 = [readings.blocks, readings.layers].map(|rows| rows.into_iter().flatten().fold(0.0, f64::max));
    let (scale, blocks) = scales(app, p50);
    let blocks = blocks.map(|blocks| format!("{}{blocks}", pal.dot()));
    let mut spans = vec![span("p50 0 ", dim)];
    spans.extend(ramp(c, 0.0, |x| pal.heat(x)));
    spans.push(span(scale, dim));
    // The scale of blocks is told rather than the batch, which the card has as well.
    let told = blocks.as_deref().map_or(0, width);
    measured(c, &mut spans, usize::from(room).saturating_sub(told + MARGIN));
    spans.extend(blocks.map(|blocks| span(blocks, dim)));
    if app.table.live_runs == 0 {
        spans.push(span(format!("{}{}", pal.dot(), app.palette.theme.heat_name), dim));
    }
    spans
}

/// Of columns that have scales of their own.
fn chosen(c: &Canvas<'_>, grid: &Grid) -> Vec<Span<'static>> {
    let (app, pal) = (c.app, c.pal);
    let (dim, dot) = (pal.fg(Role::Dim), pal.dot());
    let mut spans = vec![span("0 ", dim)];
    spans.extend(ramp(c, 0.0, |x| pal.heat(x)));
    spans.push(span(" most", dim));
    let held = |figure: Figure| grid.cols.iter().find(|h| h.col.column() == Some(Column::Figure(figure)));
    if let Some(held) = held(Figure::Change) {
        change(c, held.scales[1], &mut spans);
    }
    let errors = grid.cols.iter().filter(|h| matches!(h.col.column(), Some(Column::Figure(f)) if f.is_error()));
    let due = app.errors_due.len();
    if errors.clone().next().is_some() && due > 0 {
        spans.push(span(format!("{dot}errors of {} to come", crate::words::counted(due, "row")), pal.fg(Role::Accent)));
    } else if errors.into_iter().any(|h| app.unknown_errors(&h.readings)) {
        spans.push(span(format!("{dot}:errors looks up errors"), dim));
    }
    measured(c, &mut spans, usize::MAX);
    spans
}

/// What changes are held against, and how far they go among layers.
fn change(c: &Canvas<'_>, scale: Scale, spans: &mut Vec<Span<'static>>) {
    let (app, pal) = (c.app, c.pal);
    let (dim, dot) = (pal.fg(Role::Dim), pal.dot());
    let most = scale.high.max(-scale.low);
    match app.pinned_words() {
        None => spans.push(span(format!("{dot}:pin pins what rows are held against"), dim)),
        Some(_) if app.baseline().is_none() || most <= 0.0 => {}
        Some(_) => {
            let far = format!("{:.0}%", (100.0 * most).max(1.0));
            spans.push(span(format!("{dot}faster {}{far} ", pal.glyph("−", "-")), dim));
            spans.extend(ramp(c, -1.0, |x| pal.diverging(x)));
            spans.push(span(format!(" +{far} slower"), dim));
        }
    }
}

/// What times are of, how far they are to be believed, and what they add up to; without the batch where that is what makes it wider than `room`.
fn measured(c: &Canvas<'_>, spans: &mut Vec<Span<'static>>, room: usize) {
    let (app, pal) = (c.app, c.pal);
    let (t, dim, dot) = (&app.table, pal.fg(Role::Dim), pal.dot());
    if t.live_runs > 0 {
        let text = format!("{dot}live {}", crate::words::counted(t.live_runs, "run"));
        spans.push(span(text, pal.fg(Role::Accent)));
    }
    let noisy = t.layers.iter().filter(|l| l.fig.doubtful && !l.gone).count();
    if noisy > 0 && t.live_runs == 0 {
        let text = format!("{dot}? {noisy} noisy, {} measures again", app.label(Act::Measure));
        spans.push(span(text, pal.fg(Role::Warn)));
    }
    if let Some((ms, batch, doubtful, replayed)) = t.whole.filter(|_| t.live_runs == 0) {
        let mark = num::mark(doubtful);
        let how = if replayed { ", replayed" } else { "" };
        let text = match t.workload {
            Workload::Pass => {
                let what = if whole::rows_differ(app) { "rows add up to" } else { "whole" };
                let (whole, batch) = (format!("{dot}{what} {}{mark} ms", num::ms(ms)), format!(", batch {batch}{how}"));
                let told: usize = spans.iter().map(Span::width).sum::<usize>() + width(&whole);
                if told <= room && told + width(&batch) > room { whole } else { whole + &batch }
            }
            Workload::Decode { .. } => {
                format!("{dot}a token {}{mark} ms, {:.1}/s", num::ms(ms), 1e3 / ms.max(1e-9))
            }
        };
        spans.push(span(text, if doubtful { pal.fg(Role::Warn) } else { dim }));
    }
    if app.list.order_held {
        spans.push(span(format!("{dot}order held"), pal.fg(Role::Warn)));
    }
    if t.stale {
        let round = t.of_round.unwrap_or(0);
        spans.push(span(format!(" {} measured on round {round}", pal.glyph("†", "'")), pal.fg(Role::Warn)));
    }
}

/// The legend at the list's foot, and which row of how many the cursor is on.
fn foot(c: &mut Canvas<'_>, area: Rect, spans: Vec<Span<'static>>) {
    let at = Rect { width: area.width.saturating_sub(FOOT), ..area };
    c.legend(at, spans);
    let n = c.app.list.shown.len();
    if n > 0 && area.width > 60 {
        let text = format!(" {}/{n} ", c.app.list.cursor + 1);
        let x = area.width.saturating_sub(text.len() as u16 + 2);
        c.put(area, area.height.saturating_sub(1), x, &text, c.pal.fg(Role::Dim));
    }
}
