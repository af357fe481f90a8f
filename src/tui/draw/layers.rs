//! The heatmap: one row a layer, folded by block; figures with heat, sensitivity as a sparkline, the plan with glyphs.

mod cells;
mod columns;
mod legend;

use super::{Canvas, span};
use crate::config::text::{fit_end, left, right, width};
use crate::config::{Act, Role};
use crate::plan::{Action, Target};
use crate::profile::Workload;
use crate::session::Standing;
use crate::tui::app::{App, Pane, Shown};
use crate::tui::blocks;
use crate::tui::columns::{Column, Figure};
use crate::tui::list::RowRef;
use columns::{Col, Grid, PLAN, grid, left_out, placed};
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::Span;

#[cfg(test)]
pub use columns::headings;

/// Whether a column of the screen is one of the plan's, in a list with this inside.
pub fn is_plan(app: &App, inner: Rect, x: u16) -> bool {
    let (name_w, cols) = placed(app, inner);
    let mut at = inner.x + name_w + 1;
    for col in cols {
        let w = col.width(&app.columns);
        if col == Col::Plan {
            return (at..at + w).contains(&x);
        }
        at += w + 1;
    }
    false
}

pub(super) fn draw(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    let focused = app.pane == Pane::Layers;
    let mut title = vec![c.title("layers", focused)];
    let arrow = if app.list.reverse { pal.glyph("↑", "^") } else { pal.glyph("↓", "v") };
    title.push(span(format!(" {} {arrow}", app.columns.label(app.list.sort)), pal.fg(Role::Accent)));
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
    let (_, cols) = placed(app, super::inside(area));
    match left_out(app, &cols) {
        0 => {}
        n => title.push(span(format!(" {n} more need room"), pal.fg(Role::Warn))),
    }
    let change = app.columns.shown().contains(&Column::Figure(Figure::Change));
    if let Some(words) = app.pinned_words().filter(|_| change) {
        title.push(span(format!(" against {words}"), pal.bold(Role::Accent)));
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
        cells::line(c, &grid, row as u16, *r, i == app.list.cursor);
    }
    if app.list.shown.is_empty() {
        let text = format!("no layer matches `{}`; {} drops the filter", app.list.filter, app.label(Act::Cancel));
        c.put(body, 1, 2, &text, pal.fg(Role::Dim));
    }
    legend::draw(c, area, &grid);
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
    let app = c.app;
    for held in &grid.cols {
        let (column, w) = (held.col.column(), held.col.width(&app.columns));
        let sorted = column.is_some() && column == app.list.sort;
        let style = if sorted { pal.bold(Role::Accent) } else { pal.fg(Role::Dim) };
        let title = held.col.title(&app.columns, &app.table.rounds);
        let text = match held.col {
            Col::Plan | Col::Of(Column::Figure(Figure::Sens)) => left(&title, w as usize),
            Col::Of(_) | Col::History(_) => right(&title, w as usize),
        };
        c.put(inner, 0, x + 1, &text, style);
        x += w + 1;
    }
}

fn name(c: &mut Canvas<'_>, body: Rect, row: u16, r: RowRef, cursor: bool, name_w: u16) {
    let (app, pal) = (c.app, c.pal);
    let t = &app.table;
    let ground = if cursor { pal.cursor() } else { Style::new() };
    let mark = if cursor { pal.glyph("❯", ">") } else { " " };
    let marked = if app.pane == Pane::Layers { Role::Focus } else { Role::Dim };
    c.put(body, row, 0, mark, pal.bold(marked).patch(ground));
    // A row that a job works on; where it is selected as well, its selection is marked instead.
    if app.works_on(r) {
        c.put(body, row, 2, pal.glyph("»", "*"), pal.bold(Role::Accent).patch(ground));
    }
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
    let end = at + PLAN;
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
    let w = |parts: &[Span<'_>]| parts.iter().map(|s| width(&s.content)).sum::<usize>();
    // That there are two says more than since when.
    if parts.len() > 1 && w(&parts) > PLAN as usize {
        for s in &mut parts {
            if let Some((what, _)) = s.content.rsplit_once(" r").filter(|(_, r)| r.parse::<u32>().is_ok()) {
                s.content = what.to_owned().into();
            }
        }
    }
    if w(&parts) > PLAN as usize {
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
