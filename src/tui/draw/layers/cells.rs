//! A row of the layer list: its figures with their heat, sparklines and bars.

use super::columns::{Col, Grid, Held};
use super::{name, plan};
use crate::config::Role;
use crate::config::text::right;
use crate::tui::columns::{Column, Figure};
use crate::tui::draw::Canvas;
use crate::tui::list::RowRef;
use crate::tui::num;
use crate::tui::table::Figures;
use ratatui::style::{Modifier, Style};

/// Figures that come from a row's latency, by their names in expressions.
const TIMED: [&str; 3] = ["p50", "p95", "share"];

/// What the cells of a row have in common.
struct Row<'a> {
    at: RowRef,
    line: u16,
    fig: Figures,
    spark: &'a [f64],
    /// Which of a column's scales is its own.
    scale: usize,
    gone: bool,
    live: bool,
    ground: Style,
    bold: Modifier,
}

pub(super) fn line(c: &mut Canvas<'_>, grid: &Grid, row: u16, r: RowRef, cursor: bool) {
    let (app, pal, body) = (c.app, c.pal, grid.body);
    let t = &app.table;
    let ground = if cursor { pal.cursor() } else { Style::new() };
    let bold = if cursor { Modifier::BOLD } else { Modifier::empty() };
    if cursor {
        c.cursor(body, row);
    }
    let (fig, spark, history, scale, gone, live) = match r {
        RowRef::Block(i) => match t.blocks.get(i) {
            Some(b) => (b.fig, &b.spark, &b.history, 0, false, false),
            None => return,
        },
        RowRef::Layer(i) => match t.layers.get(i) {
            Some(l) => (l.fig, &l.spark, &l.history, 1, l.gone, l.live.is_some()),
            None => return,
        },
    };
    name(c, body, row, r, cursor, grid.name_w);
    // A block's mark is faint where only some of its rows are selected.
    let rows = app.layers_of(r);
    let some = rows.iter().filter(|i| grid.picked.contains(i)).count();
    if some > 0 {
        let role = if some == rows.len() { Role::Edited } else { Role::Faint };
        c.put(body, row, 2, pal.glyph("▌", "|"), pal.bold(role).patch(ground));
    }
    let of = Row { at: r, line: row, fig, spark, scale, gone, live, ground, bold };
    let mut x = grid.name_w;
    for held in &grid.cols {
        let (w, at) = (held.col.width(&app.columns), x + 1);
        x += w + 1;
        match held.col {
            Col::Plan => plan(c, body, row, at, r, ground),
            Col::History(k) => {
                if let Some(past) = history.get(k).copied().flatten() {
                    let text = format!("{}{}", num::ms(past.ms), if past.doubtful { "?" } else { "" });
                    c.put(body, row, at, &right(&text, w as usize), pal.fg(Role::Dim).patch(ground));
                }
            }
            Col::Of(Column::Figure(Figure::Share)) => share(c, grid, &of, held, at),
            Col::Of(Column::Figure(Figure::Sens)) => sens(c, grid, &of, w as usize, at),
            Col::Of(column) => figure(c, grid, &of, (column, held), (at, w as usize)),
        }
    }
}

fn share(c: &mut Canvas<'_>, grid: &Grid, row: &Row<'_>, held: &Held, at: u16) {
    let pal = c.pal;
    let Some(s) = row.fig.share.filter(|_| !row.gone) else { return };
    let bar = pal.bar(held.scales[row.scale].heat(s), 2);
    c.put(grid.body, row.line, at, &bar, pal.fg(Role::Bar).patch(row.ground));
    let style = pal.fg(Role::Dim).patch(row.ground).add_modifier(row.bold);
    c.put(grid.body, row.line, at + 2, &right(&format!("{:.1}%", s * 100.0), 5), style);
}

fn sens(c: &mut Canvas<'_>, grid: &Grid, row: &Row<'_>, w: usize, at: u16) {
    let pal = c.pal;
    for (k, v) in resample(row.spark, w).into_iter().enumerate() {
        let x = (v / c.app.table.sens_scale).max(0.0).sqrt();
        let glyph = pal.spark(x).to_string();
        let role = if x > 0.7 { Role::Warn } else { Role::Dim };
        c.put(grid.body, row.line, at + k as u16, &glyph, pal.fg(role).patch(row.ground));
    }
}

fn figure(c: &mut Canvas<'_>, grid: &Grid, row: &Row<'_>, (column, held): (Column, &Held), (at, w): (u16, usize)) {
    let (app, pal) = (c.app, c.pal);
    let (t, body) = (&app.table, grid.body);
    let Some(v) = held.readings.of(row.at) else {
        return c.put(body, row.line, at, &right(pal.none(), w), pal.fg(Role::Faint).patch(row.ground));
    };
    let of = match column {
        Column::Figure(figure) => Some(figure),
        Column::Own(_) => None,
    };
    let change = of == Some(Figure::Change);
    let changed = if change { app.change(row.at) } else { None };
    let scale = held.scales[row.scale];
    let heat = if change { scale.aside(v) } else { scale.heat(v) };
    let mut style = match change {
        // Both medians' ranges meet: no change is shown.
        true if changed.is_some_and(|c| c.within) => pal.fg(Role::Faint).patch(row.ground),
        true => pal.diverging(heat),
        false => pal.heat(heat),
    };
    style = style.add_modifier(row.bold);
    let density = if pal.wants_density() { pal.density(heat.abs()) } else { ' ' };
    if pal.wants_density() {
        style = style.patch(row.ground);
    }
    let timed = |i: usize| {
        app.columns.own().get(i).is_some_and(|own| own.expression.needs().iter().any(|n| TIMED.contains(&n.as_str())))
    };
    let measured = match column {
        Column::Figure(figure) => matches!(figure, Figure::P50 | Figure::P95 | Figure::Change),
        Column::Own(i) => timed(i),
    };
    let pulse = matches!(of, Some(Figure::Weight | Figure::Gradient | Figure::Importance | Figure::Noise));
    let beats = row.fig.weights.live && pulse;
    let stored = matches!(of, Some(Figure::Weight | Figure::Zeros | Figure::Rank)) && !beats;
    // Live figures are italic until the run ends; a figure of an older model is marked.
    if (row.live && measured) || beats {
        style = style.add_modifier(Modifier::ITALIC);
    }
    let pinned = changed.is_some_and(|c| c.doubtful);
    let mark = match (measured, (row.fig.doubtful && !row.live) || pinned) {
        (true, true) => "?",
        (true, false) if t.stale && !row.live => pal.glyph("†", "'"),
        // Looked at in part.
        _ if stored && row.fig.weights.sampled && of != Some(Figure::Rank) => "~",
        _ if stored && t.stale => pal.glyph("†", "'"),
        _ => "",
    };
    let room = w - 1 - mark.chars().count();
    let text = app.told(column, v);
    c.put(body, row.line, at, &format!("{density}{}{mark}", right(&text, room)), style);
}

/// `n` values that stand for all of `v`, at most one a column.
fn resample(v: &[f64], n: usize) -> Vec<f64> {
    if v.len() <= n {
        return v.to_vec();
    }
    (0..n).map(|i| v.get(i * (v.len() - 1) / (n - 1).max(1)).copied().unwrap_or(0.0)).collect()
}
