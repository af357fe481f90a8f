//! The heatmap: one row a layer, folded by block; figures with heat, sensitivity as a sparkline, the plan with glyphs.

use super::{Canvas, span};
use crate::config::text::{fit_end, left, right, width};
use crate::config::{Act, Role};
use crate::graph::MacConvention;
use crate::plan::{Action, Target};
use crate::profile::Workload;
use crate::session::Standing;
use crate::tui::app::{App, Pane, Shown};
use crate::tui::blocks;
use crate::tui::list::{Columns, RowRef, SortKey};
use crate::tui::num;
use crate::tui::table::{Figures, Table};
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Span;
use std::collections::BTreeSet;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Col {
    P50,
    Share,
    Memory,
    Macs,
    Params,
    Sens,
    Weight,
    Zeros,
    Rank,
    Gradient,
    Importance,
    Noise,
    Plan,
    /// p50 of a round.
    History(usize),
}

impl Col {
    fn width(self) -> u16 {
        match self {
            Col::P50 | Col::Share | Col::Memory | Col::Macs | Col::Params => 7,
            Col::Gradient | Col::Importance => 7,
            Col::Weight | Col::Zeros | Col::Rank | Col::Noise => 6,
            Col::Sens => 5,
            Col::Plan => 11,
            Col::History(_) => 6,
        }
    }

    fn title(self) -> String {
        match (self.figure(), self) {
            (Some((title, _)), _) => title.into(),
            (None, Col::History(0)) => "base".into(),
            (None, Col::History(r)) => format!("r{r}"),
            (None, _) => "plan".into(),
        }
    }

    fn sorts(self) -> Option<SortKey> {
        self.figure().map(|(_, key)| key)
    }

    /// The title and the order of a column of the newest figures.
    fn figure(self) -> Option<(&'static str, SortKey)> {
        Some(match self {
            Col::P50 => ("p50 ms", SortKey::P50),
            Col::Share => ("share", SortKey::Share),
            Col::Memory => ("mem MB", SortKey::Memory),
            Col::Macs => ("MACs M", SortKey::Macs),
            Col::Params => ("params", SortKey::Params),
            Col::Sens => ("sens", SortKey::Sensitivity),
            Col::Weight => ("|w|", SortKey::Weight),
            Col::Zeros => ("zeros%", SortKey::Zeros),
            Col::Rank => ("rank %", SortKey::Rank),
            Col::Gradient => ("|g|", SortKey::Gradient),
            Col::Importance => ("|gw|", SortKey::Importance),
            Col::Noise => ("noise", SortKey::Noise),
            Col::Plan | Col::History(_) => return None,
        })
    }
}

/// The heading of the column that rows are sorted by; none of the model's own order.
pub fn heading(sort: SortKey) -> Option<&'static str> {
    let all = Columns::WORDS.into_iter().flat_map(|(_, figures)| columns(figures, u16::MAX, 0, 0));
    all.filter_map(Col::figure).find(|(_, key)| *key == sort).map(|(title, _)| title)
}

/// Every heading that there can be, those of rounds included.
#[cfg(test)]
pub fn headings() -> Vec<String> {
    let all = Columns::WORDS.into_iter().flat_map(|(_, figures)| columns(figures, u16::MAX, 0, 3));
    all.map(Col::title).collect()
}

/// The columns of `figures` that fit, the least important left out first, so that names keep `name` columns.
fn columns(figures: Columns, room: u16, name: u16, rounds: usize) -> Vec<Col> {
    use Col::*;
    let (mut cols, drops) = match figures {
        Columns::Costs => {
            (vec![P50, Share, Memory, Macs, Params, Sens, Plan], vec![Params, Share, Memory, Macs, Sens, P50])
        }
        Columns::Parameters => (
            vec![P50, Weight, Zeros, Rank, Gradient, Importance, Noise, Plan],
            vec![P50, Zeros, Rank, Noise, Weight, Importance, Gradient],
        ),
    };
    let total = |cols: &[Col]| cols.iter().map(|c| c.width() + 1).sum::<u16>();
    for drop in drops {
        if total(&cols) + name > room {
            cols.retain(|c| *c != drop);
        }
    }
    if total(&cols) + 10 > room {
        cols.clear();
    }
    // What is left over shows earlier rounds.
    let at = cols.len().saturating_sub(1);
    for r in (0..rounds).rev().take(6) {
        if figures == Columns::Costs
            && cols.len() >= 7
            && total(&cols) + Col::History(r).width() + 1 + name.max(28) <= room
        {
            cols.insert(at, Col::History(r));
        }
    }
    cols
}

/// The largest of `rows` in a column: its heat's scale.
fn most(rows: &[&Figures], key: SortKey, conv: MacConvention) -> f64 {
    rows.iter().filter_map(|f| key.figure(f, conv)).fold(0.0, f64::max)
}

/// Where rows go, with the columns beside their names and the scale of each among blocks and among layers.
struct Grid {
    body: Rect,
    name_w: u16,
    cols: Vec<(Col, [f64; 2])>,
    /// Layers that are selected.
    picked: BTreeSet<usize>,
}

/// Lays the list out inside its border.
fn grid(app: &App, inner: Rect) -> Grid {
    let t = &app.table;
    let conv = app.settings.mac_convention;
    let blocks: Vec<&Figures> = t.blocks.iter().map(|b| &b.fig).collect();
    let layers: Vec<&Figures> = t.layers.iter().map(|l| &l.fig).collect();
    let longest = t.layers.iter().map(|l| width(&l.label) + 4).max().unwrap_or(0);
    let longest = longest.max(t.blocks.iter().map(|b| width(&b.label) + 7).max().unwrap_or(0)).max(12);
    // Six figures and the plan leave names fourteen columns where a terminal has 120.
    let least = longest.min(if app.columns == Columns::Costs { 18 } else { 14 }) as u16;
    let rounds = if t.layers.iter().any(|l| l.history.len() > 1) { app.state.rounds.len() } else { 0 };
    let cols = columns(app.columns, inner.width, least, rounds);
    let used: u16 = cols.iter().map(|c| c.width() + 1).sum();
    // Names take what they need, not more: figures stay close to them.
    let flat = t.layers.iter().map(|l| width(&l.name) + 4).max().unwrap_or(0);
    let wanted = if app.list.flat { flat } else { longest }.max(24) as u16;
    let name_w = inner.width.saturating_sub(used).min(wanted);
    let body = Rect { y: inner.y + 1, height: inner.height.saturating_sub(1), ..inner };
    let scale = |col: Col| [&blocks, &layers].map(|rows| col.sorts().map_or(0.0, |key| most(rows, key, conv)));
    Grid { body, name_w, cols: cols.into_iter().map(|col| (col, scale(col))).collect(), picked: app.selected() }
}

/// Whether a column of the screen is one of the plan's, in a list with this inside.
pub fn is_plan(app: &App, inner: Rect, x: u16) -> bool {
    let grid = grid(app, inner);
    let mut at = inner.x + grid.name_w + 1;
    for (col, _) in &grid.cols {
        if *col == Col::Plan {
            return (at..at + col.width()).contains(&x);
        }
        at += col.width() + 1;
    }
    false
}

pub(super) fn draw(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    let focused = app.pane == Pane::Layers;
    let mut title = vec![c.title("layers", focused)];
    let arrow = if app.list.reverse { pal.glyph("↑", "^") } else { pal.glyph("↓", "v") };
    title.push(span(format!(" {} {arrow}", app.list.sort.label()), pal.fg(Role::Accent)));
    if let Workload::Decode { context, .. } = app.table.workload {
        title.push(span(format!(" a token after {context}"), pal.bold(Role::Accent)));
    }
    let picked = app.selected().len();
    if picked > 0 {
        title.push(span(format!(" {picked} selected"), pal.bold(Role::Edited)));
    }
    if app.list.flat {
        title.push(span(" flat", pal.fg(Role::Dim)));
    }
    if !app.list.filter.is_empty() {
        let n = app.list.shown.iter().filter(|r| matches!(r, RowRef::Layer(_))).count();
        let words = crate::config::text::fit(&app.list.filter, 24).into_owned();
        title.push(span(format!(" / {words} ({n})"), pal.bold(Role::Accent)));
    }
    let inner = c.pane(area, title, focused);
    if inner.width < 4 || inner.height == 0 {
        return;
    }
    if app.table.layers.is_empty() {
        return empty(c, inner);
    }
    let grid = grid(app, inner);
    head(c, inner, &grid);
    let body = grid.body;
    for (row, (i, r)) in app.list.shown.iter().enumerate().skip(app.list.offset).take(body.height as usize).enumerate()
    {
        line(c, &grid, row as u16, *r, i == app.list.cursor);
    }
    if app.list.shown.is_empty() {
        let text = format!("no layer matches `{}`; {} drops the filter", app.list.filter, app.label(Act::Cancel));
        c.put(body, 1, 2, &text, pal.fg(Role::Dim));
    }
    match app.columns {
        Columns::Costs => {
            let layers: Vec<&Figures> = app.table.layers.iter().map(|l| &l.fig).collect();
            let blocks: Vec<&Figures> = app.table.blocks.iter().map(|b| &b.fig).collect();
            let of = |rows: &[&Figures]| most(rows, SortKey::P50, app.settings.mac_convention);
            legend(c, area, [of(&blocks), of(&layers)], &app.table)
        }
        Columns::Parameters => {
            let spans = super::weights::legend(c);
            foot(c, area, spans);
        }
    }
}

fn empty(c: &mut Canvas<'_>, inner: Rect) {
    let pal = c.pal;
    let text = if c.app.state.card.is_none() {
        ["the host is loading the model …", "this list fills by itself"]
    } else {
        ["no layers to show", "the model's graph holds no convolution, linear, norm or attention"]
    };
    for (i, t) in text.iter().enumerate() {
        c.put(inner, 1 + i as u16, 2, t, pal.fg(Role::Dim));
    }
}

fn head(c: &mut Canvas<'_>, inner: Rect, grid: &Grid) {
    let pal = c.pal;
    c.put(inner, 0, 4, "layer", pal.fg(Role::Dim));
    let mut x = grid.name_w;
    for (col, _) in &grid.cols {
        let style = if col.sorts() == Some(c.app.list.sort) { pal.bold(Role::Accent) } else { pal.fg(Role::Dim) };
        let w = col.width() as usize;
        let text = match col {
            Col::Plan | Col::Sens => left(&col.title(), w),
            _ => right(&col.title(), w),
        };
        c.put(inner, 0, x + 1, &text, style);
        x += col.width() + 1;
    }
}

fn line(c: &mut Canvas<'_>, grid: &Grid, row: u16, r: RowRef, cursor: bool) {
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

fn name(c: &mut Canvas<'_>, body: Rect, row: u16, r: RowRef, cursor: bool, name_w: u16) {
    let (app, pal) = (c.app, c.pal);
    let t = &app.table;
    let ground = if cursor { pal.cursor() } else { Style::new() };
    let mark = if cursor { pal.glyph("❯", ">") } else { " " };
    let marked = if app.pane == Pane::Layers { Role::Focus } else { Role::Dim };
    c.put(body, row, 0, mark, pal.bold(marked).patch(ground));
    let room = name_w.saturating_sub(1) as usize;
    match r {
        RowRef::Block(i) => {
            let Some(b) = t.blocks.get(i) else { return };
            let folded = app.list.folded.contains(&b.name) && app.list.filter.is_empty();
            let fold = if folded { pal.glyph("▸", "+") } else { pal.glyph("▾", "-") };
            let count = if folded { format!(" ({})", b.layers.len()) } else { String::new() };
            let text = fit_end(&b.label, room.saturating_sub(2 + count.len())).into_owned();
            let style = pal.bold(Role::Fg).patch(ground);
            c.put(body, row, 1, fold, pal.fg(Role::Dim).patch(ground));
            c.put(body, row, 3, &text, style);
            c.put(body, row, 3 + width(&text) as u16, &count, pal.fg(Role::Dim).patch(ground));
        }
        RowRef::Layer(i) => {
            let Some(l) = t.layers.get(i) else { return };
            let nested = l.block.is_some() && !app.list.flat;
            let (indent, text) =
                if nested { (4, l.label.clone()) } else { (3, crate::config::text::clean(&l.name).into_owned()) };
            let text = fit_end(&text, (name_w as usize).saturating_sub(indent as usize)).into_owned();
            let hit = !app.list.filter.is_empty();
            let style = match (l.gone, hit, cursor) {
                (true, _, _) => pal.fg(Role::Faint),
                (_, _, true) => pal.bold(Role::Fg),
                (_, true, _) => pal.fg(Role::Accent),
                _ => pal.fg(Role::Fg),
            };
            c.put(body, row, indent, &text, style.patch(ground));
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

/// An action in the plan column: `−38%`, `int8`, `drop`.
pub(super) fn brief(action: &Action, ascii: bool) -> String {
    match action {
        Action::Keep => "keep".into(),
        Action::Prune { ratio, .. } => format!("{}{:.0}%", if ascii { "-" } else { "−" }, ratio * 100.0),
        Action::Precision { precision } => precision.label().into(),
        Action::RemoveBlock => "drop".into(),
        Action::Sparsify { sparsity } => sparsity.to_string(),
        Action::Factorise { rank } => format!("rank {rank}"),
    }
}

fn plan(c: &mut Canvas<'_>, body: Rect, row: u16, at: u16, r: RowRef, ground: Style) {
    let spans = match r {
        RowRef::Block(b) => block_plan(c, b),
        RowRef::Layer(i) => layer_plan(c, i),
    };
    let mut x = at;
    let end = at + Col::Plan.width();
    for s in spans {
        let w = width(&s.content) as u16;
        if x + w > end + 1 {
            break;
        }
        c.put(body, row, x, &s.content, s.style.patch(ground));
        x += w;
    }
}

fn one(c: &Canvas<'_>, s: &Shown, follower: bool) -> Span<'static> {
    let pal = c.pal;
    let text = brief(&s.action, pal.ascii);
    let glyph = |own: &'static str| if follower { pal.glyph("┊", ":") } else { own };
    if s.drafting {
        return span(format!("{} ~{text}", glyph(pal.glyph("✎", "e"))), pal.bold(Role::Edited));
    }
    // What would run here, and where it is from: a round's cut, or the original.
    let text = match s.standing {
        Standing::Free | Standing::Proposed | Standing::Edited | Standing::Approved => text,
        Standing::InForce { since } => format!("{text} r{since}"),
        Standing::Leaving { since } => format!("orig r{since}"),
        Standing::Vetoed => "veto".to_owned(),
        Standing::RolledBack => "orig".to_owned(),
    };
    let role = if follower { Role::Dim } else { pal.standing_role(s.standing) };
    span(format!("{} {text}", glyph(pal.standing_glyph(s.standing))), pal.fg(role))
}

fn layer_plan(c: &Canvas<'_>, i: usize) -> Vec<Span<'static>> {
    let (app, pal) = (c.app, c.pal);
    let Some(l) = app.table.layers.get(i) else { return Vec::new() };
    let block = l.block.and_then(|b| app.table.blocks.get(b)).map(|b| app.shown(&Target::Block(b.name.clone())));
    if let Some(s) = block.filter(|s| s.action == Action::RemoveBlock) {
        return vec![one(c, &s, true)];
    }
    // Zeros and factors have no row of their own.
    let weights = l.weighty.then(|| Target::Weights(l.name.clone()));
    let targets = app.table.targets(l, app.groups()).into_iter().chain(weights);
    let shown = targets.map(|t| app.shown(&t)).filter(Shown::decided);
    let mut parts: Vec<Span<'static>> =
        shown.map(|s| one(c, &s, matches!(s.target, Target::Group(_)) && !l.leads)).collect();
    if parts.is_empty() {
        return if l.weighty || (l.leads && l.group.is_some()) {
            vec![span(pal.standing_glyph(Standing::Free), pal.fg(Role::Faint))]
        } else if l.group.is_some() {
            vec![span(pal.glyph("┊", ":"), pal.fg(Role::Faint))]
        } else {
            Vec::new()
        };
    }
    // Two decisions on one row: the second without its blank, and where there is no room the others too.
    for p in parts.iter_mut().skip(1) {
        p.content = format!(" {}", p.content.replacen(' ', "", 1)).into();
    }
    let w: usize = parts.iter().map(|s| width(&s.content)).sum();
    if w > Col::Plan.width() as usize {
        for s in &mut parts {
            s.content = s.content.replacen(' ', "", 1).into();
        }
    }
    parts
}

/// How far a block's decisions are: the least settled status, and settled of all.
fn block_plan(c: &Canvas<'_>, b: usize) -> Vec<Span<'static>> {
    let (app, pal) = (c.app, c.pal);
    let all: Vec<Shown> = app.targets_in_block(b).iter().map(|t| app.shown(t)).filter(Shown::decided).collect();
    if let Some(s) = all.iter().find(|s| matches!(s.target, Target::Block(_))) {
        return vec![one(c, s, false)];
    }
    if all.is_empty() {
        return vec![span(pal.standing_glyph(Standing::Free), pal.fg(Role::Faint))];
    }
    let rank = |s: &Shown| match s.standing {
        Standing::Free | Standing::Proposed | Standing::Edited => 0,
        Standing::Vetoed => 1,
        Standing::Approved => 2,
        Standing::Leaving { .. } => 3,
        Standing::InForce { .. } => 4,
        Standing::RolledBack => 5,
    };
    let settled = all.iter().filter(|s| rank(s) > 0).count();
    let worst = all.iter().min_by_key(|s| rank(s)).map_or(Standing::Free, |s| s.standing);
    let style = pal.fg(pal.standing_role(worst));
    let sum = app.block_sums.get(b).copied().flatten().map(|part| blocks::words(part, pal.ascii));
    let counted = format!("{} {settled}/{}", pal.standing_glyph(worst), all.len());
    vec![span(counted, style), span(sum.map_or(String::new(), |sum| format!(" {sum}")), pal.fg(Role::Fg))]
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

fn legend(c: &mut Canvas<'_>, area: Rect, p50: [f64; 2], t: &Table) {
    let (app, pal) = (c.app, c.pal);
    let (dim, dot) = (pal.fg(Role::Dim), pal.dot());
    let mut spans = vec![span("p50 0 ", dim)];
    for i in 0..=4 {
        let x = i as f64 / 4.0;
        let glyph = if pal.wants_density() { pal.density(x).to_string() } else { " ".into() };
        spans.push(span(format!("{glyph} "), pal.heat(x)));
    }
    let (scale, blocks) = scales(app, p50);
    let blocks = blocks.map(|blocks| format!("{dot}{blocks}"));
    spans.push(span(scale, dim));
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
                let (whole, batch) = (format!("{dot}whole {}{mark} ms", num::ms(ms)), format!(", batch {batch}{how}"));
                // The scale of blocks is told rather than the batch, which the card has as well.
                let told: usize =
                    spans.iter().map(Span::width).chain([whole.as_str(), batch.as_str()].map(width)).sum();
                let scale = blocks.as_deref().map_or(0, width);
                let fits = |w: usize| w + 6 <= usize::from(area.width.saturating_sub(FOOT));
                match fits(told + scale) || !fits(told - width(&batch) + scale) {
                    true => format!("{whole}{batch}"),
                    false => whole,
                }
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
    spans.extend(blocks.map(|blocks| span(blocks, dim)));
    if t.live_runs == 0 {
        spans.push(span(format!("{dot}{}", app.palette.theme.heat_name), dim));
    }
    foot(c, area, spans);
}

/// Columns at the list's foot for where the cursor is.
const FOOT: u16 = 9;

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
