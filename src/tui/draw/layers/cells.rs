//! A row of the layer list: its figures with their heat, sparklines and bars.

use super::columns::{Col, Grid};
use super::{name, plan};
use crate::config::Role;
use crate::config::text::right;
use crate::tui::draw::Canvas;
use crate::tui::list::RowRef;
use crate::tui::num;
use ratatui::style::{Modifier, Style};

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
    let mut x = grid.name_w;
    for (col, most) in &grid.cols {
        let (w, at) = (col.width() as usize, x + 1);
        x += col.width() + 1;
        let figure = col.sorts().and_then(|key| key.figure(&fig, app.settings.mac_convention));
        let heat = figure.filter(|_| most[scale] > 0.0).map_or(0.0, |v| v / most[scale]);
        let text = match col {
            Col::P50 => figure.map(num::ms),
            Col::Memory | Col::Macs => figure.map(|v| num::scaled(v, 1e6)),
            Col::Params => Some(num::count(fig.params)),
            Col::Weight => figure.map(|v| num::scaled(v, 1.0)),
            // The title has the unit, so that a mark has room.
            Col::Zeros | Col::Rank => figure.map(|v| num::percent(v).trim_end_matches('%').to_owned()),
            Col::Gradient | Col::Importance => figure.map(num::fine),
            Col::Noise => figure.map(num::about),
            Col::Share => {
                if let Some(s) = fig.share.filter(|_| !gone) {
                    let bar = pal.bar(heat, 2);
                    c.put(body, row, at, &bar, pal.fg(Role::Bar).patch(ground));
                    let style = pal.fg(Role::Dim).patch(ground).add_modifier(bold);
                    c.put(body, row, at + 2, &right(&format!("{:.1}%", s * 100.0), 5), style);
                }
                continue;
            }
            Col::Sens => {
                for (k, v) in resample(spark, w).into_iter().enumerate() {
                    let x = (v / t.sens_scale).max(0.0).sqrt();
                    let glyph = pal.spark(x).to_string();
                    let role = if x > 0.7 { Role::Warn } else { Role::Dim };
                    c.put(body, row, at + k as u16, &glyph, pal.fg(role).patch(ground));
                }
                continue;
            }
            Col::Plan => {
                plan(c, body, row, at, r, ground);
                continue;
            }
            Col::History(k) => {
                if let Some(v) = history.get(*k).copied().flatten() {
                    c.put(body, row, at, &right(&num::ms(v), w), pal.fg(Role::Dim).patch(ground));
                }
                continue;
            }
        };
        let measured = matches!(col, Col::P50);
        let beats = fig.weights.live && matches!(col, Col::Weight | Col::Gradient | Col::Importance | Col::Noise);
        let stored = matches!(col, Col::Weight | Col::Zeros | Col::Rank) && !beats;
        match text {
            Some(text) if !gone => {
                let density = if pal.wants_density() { pal.density(heat).to_string() } else { " ".to_owned() };
                let mut style = pal.heat(heat).add_modifier(bold);
                if pal.wants_density() {
                    style = style.patch(ground);
                }
                // Live figures are italic until the run ends; a figure of an older model is marked.
                if (live && measured) || beats {
                    style = style.add_modifier(Modifier::ITALIC);
                }
                let mark = match (measured, fig.doubtful && !live) {
                    (true, true) => "?",
                    (true, false) if t.stale => pal.glyph("†", "'"),
                    // Looked at in part.
                    _ if stored && fig.weights.sampled && !matches!(col, Col::Rank) => "~",
                    _ if stored && t.stale => pal.glyph("†", "'"),
                    _ => "",
                };
                let body_w = w - 1 - mark.chars().count();
                c.put(body, row, at, &format!("{density}{}{mark}", right(&text, body_w)), style);
            }
            _ => c.put(body, row, at, &right(pal.none(), w), pal.fg(Role::Faint).patch(ground)),
        }
    }
}

/// `n` values that stand for all of `v`, at most one a column.
fn resample(v: &[f64], n: usize) -> Vec<f64> {
    if v.len() <= n {
        return v.to_vec();
    }
    (0..n).map(|i| v.get(i * (v.len() - 1) / (n - 1).max(1)).copied().unwrap_or(0.0)).collect()
}
