//! View 2: how sure the selected round is against how often it is right, beside the original: a reliability diagram, items by confidence, the
//! expected calibration error.

use super::{Canvas, span};
use crate::config::Role;
use crate::config::text::{left, right};
use crate::eval::robust::BINS;
use crate::session::{Bin, Calibration, Reliability};
use crate::tui::evaluate::Part;
use crate::tui::num;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// Columns left of the diagram: its axis, and whose a row is.
const AXIS: u16 = 10;
/// Columns of the figures, and the width from which they stand beside the diagram.
const FIGURES: u16 = 54;
const BESIDE: u16 = 100;
/// Lines of the figures: under a diagram, and beside it. Under a diagram its axis and a row of counts for each.
const LINES: (u16, u16) = (5, 7);
const FEET: u16 = 3;

/// A model's name, figures and place in the diagram.
struct Series<'a> {
    name: String,
    of: &'a Reliability,
    role: Role,
    glyph: &'static str,
}

pub(super) fn pane(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    let focused = app.looking.part == Part::Calibration;
    let mut title = vec![c.title("calibration", focused)];
    let told = app.page().zip(app.calibration()).map(|(page, of)| (page.round, of));
    if let Some((_, of)) = told
        && let Some(any) = of.now.as_ref().or(of.before.as_ref())
    {
        let n = app.state.metric().items(any.items() as usize);
        title.push(span(format!(" of {n}, {BINS} bins of equal width"), pal.fg(Role::Dim)));
    }
    let inner = c.pane(area, title, focused);
    let (room, dim) = (Rect { x: inner.x + 1, width: inner.width.saturating_sub(2), ..inner }, pal.fg(Role::Dim));
    let Some((round, of)) = told else {
        for (row, text) in untold(c).iter().enumerate() {
            c.put(room, row as u16, 0, text, dim);
        }
        return;
    };
    let all = series(c, round, of);
    if all.is_empty() {
        return lacking(c, room, round, of);
    }
    let beside = room.width >= BESIDE;
    let (diagram, figured) = match beside {
        true => (
            Rect { width: room.width - FIGURES - 2, ..room },
            Rect { x: room.x + room.width - FIGURES, width: FIGURES, ..room },
        ),
        false => {
            let below = LINES.0.min(room.height);
            (
                Rect { height: room.height - below, ..room },
                Rect { y: room.y + room.height - below, height: below, ..room },
            )
        }
    };
    if diagram.height > FEET + 2 && diagram.width > AXIS + BINS as u16 {
        draw(c, diagram, &all);
    }
    figures(c, figured, &all);
    // Where one of them is lacking, so is its line.
    let used = if beside { LINES.1 + 1 } else { LINES.0 - 1 };
    let below = Rect { y: figured.y + used, height: figured.height.saturating_sub(used), ..figured };
    lacking(c, below, round, of);
    let mut legend: Vec<Span<'static>> = Vec::new();
    for s in &all {
        legend.push(span(format!("{} {}  ", s.glyph, s.name), pal.fg(s.role)));
    }
    legend.push(span(format!("{} as sure as right", pal.glyph("·", ".")), dim));
    legend.push(span("; below: surer than right", dim));
    c.legend(area, legend);
}

/// The models of which confidences were kept, the original first.
fn series<'a>(c: &Canvas<'_>, round: u32, of: &'a Calibration) -> Vec<Series<'a>> {
    let pal = c.pal;
    let both = [
        ("original".to_owned(), &of.before, Role::Dim, pal.glyph("○", "o")),
        (format!("round {round}"), &of.now, Role::Accent, pal.glyph("●", "@")),
    ];
    let known = both.into_iter().filter_map(|(name, of, role, glyph)| {
        let of = of.as_ref().filter(|r| r.bins.len() == BINS && r.items() > 0)?;
        Some(Series { name, of, role, glyph })
    });
    known.collect()
}

/// Why there is nothing, and what there is instead.
fn untold(c: &Canvas<'_>) -> Vec<String> {
    let app = c.app;
    if app.page().is_none() {
        return vec!["how sure a round's model is, beside the original, is shown here: select a round".to_owned()];
    }
    let Some(changed) = app.what_changed() else { return vec!["it is being read".to_owned()] };
    if let Some(why) = &changed.why {
        return vec![crate::config::text::clean(why).into_owned()];
    }
    let mut why = vec!["what is evaluated here has no classes, so no confidence in one".to_owned()];
    if changed.by_token {
        why.push("the loss of a language model, in nats a token, is how sure it was of what came:".to_owned());
        why.push("an evaluation keeps that for every text, and a text shows it for every token".to_owned());
    }
    why
}

/// Says of which model no confidences were kept, and what keeps them.
fn lacking(c: &mut Canvas<'_>, area: Rect, round: u32, of: &Calibration) {
    let style = c.pal.fg(Role::Warn);
    let part = c.app.looked_at().is_some_and(|e| e.part.is_some());
    let mut said: Vec<String> = Vec::new();
    let stops = if c.app.state.until_clear { " after `:until-clear off`" } else { "" };
    match of.now {
        None if part => said.push(format!(
            "round {round} was evaluated until it was clear, which keeps no confidence: `:evaluate-all` keeps it"
        )),
        None => {
            said.push(format!("round {round} was kept without confidence: the next round has it{stops}"));
        }
        Some(_) => {}
    }
    if of.before.is_none() {
        said.push("the original was kept without confidence: a new session has it".to_owned());
    }
    let lines = said.iter().flat_map(|text| crate::config::text::wrap(text, area.width as usize));
    for (row, line) in lines.enumerate() {
        c.put(area, row as u16, 0, &line, style);
    }
}

/// Accuracy over confidence, bin by bin; the diagonal is where a model is as sure as it is right.
fn draw(c: &mut Canvas<'_>, area: Rect, all: &[Series<'_>]) {
    let (app, pal) = (c.app, c.pal);
    let (dim, faint) = (pal.fg(Role::Dim), pal.fg(Role::Faint));
    let each = (area.width - AXIS) / BINS as u16;
    let plot = Rect { x: area.x + AXIS, width: each * BINS as u16, height: area.height - FEET, ..area };
    let cell = |part: f64, cells: u16| ((part * f64::from(cells)) as u16).min(cells - 1);
    let row = |share: f64| cell(1.0 - share, plot.height);
    for (share, label) in [(1.0, "100 %"), (0.5, "50 %"), (0.0, "0 %")] {
        c.put(area, row(share), 0, &right(label, 7), dim);
    }
    c.put(area, plot.height / 4, 0, "accuracy", dim);
    if let Some(bin) = app.shown_bin() {
        let marked = Rect { x: plot.x + each * bin as u16, width: each, height: plot.height + FEET, ..plot };
        for row in 0..marked.height.min(plot.height) {
            c.cursor(marked, row);
        }
    }
    for x in 0..plot.width {
        c.put(plot, row((f64::from(x) + 0.5) / f64::from(plot.width)), x, pal.glyph("·", "."), faint);
    }
    for r in 0..plot.height {
        c.put(area, r, AXIS - 1, pal.glyph("│", "|"), faint);
    }
    for s in all {
        for (sure, accuracy) in s.of.bins.iter().filter_map(|b| Some((b.sure()?, b.accuracy()?))) {
            let (x, y) = (cell(sure, plot.width), row(accuracy));
            // How far from the diagonal.
            let ideal = row(sure);
            for r in y.min(ideal)..=y.max(ideal) {
                if r != y {
                    c.put(plot, r, x, pal.glyph("╎", ":"), pal.fg(s.role));
                }
            }
        }
    }
    // Points lie over lines, the round's over the original's.
    for s in all {
        for (sure, accuracy) in s.of.bins.iter().filter_map(|b| Some((b.sure()?, b.accuracy()?))) {
            c.put(plot, row(accuracy), cell(sure, plot.width), s.glyph, pal.bold(s.role));
        }
    }
    let axis = Rect { y: plot.y + plot.height, height: FEET, ..area };
    c.put(axis, 0, AXIS, "0 %", dim);
    c.put(axis, 0, AXIS + (plot.width / 2).saturating_sub(4), "confidence", dim);
    c.put(axis, 0, (AXIS + plot.width).saturating_sub(5), "100 %", dim);
    let most = all.iter().flat_map(|s| &s.of.bins).map(|b| b.items).max().unwrap_or(0);
    for (k, s) in all.iter().enumerate() {
        counts(c, Rect { y: axis.y + 1 + k as u16, height: 1, ..axis }, s, (each, most));
    }
}

/// How many items a bin has: heat by their logarithm, and the number, or where those would run into one another the part of all in percent.
fn counts(c: &mut Canvas<'_>, area: Rect, s: &Series<'_>, (each, most): (u16, u32)) {
    let (pal, room) = (c.pal, usize::from(each));
    let exact = |bin: &Bin| bin.items.to_string();
    let total: f64 = s.of.bins.iter().map(|b| f64::from(b.items)).sum();
    let part = |bin: &Bin| match 100.0 * f64::from(bin.items) / total {
        p if p < 1.0 => "<1".to_owned(),
        p => format!("{p:.0}"),
    };
    let all = s.of.bins.iter().all(|b| exact(b).len() < room);
    let name = if all { s.name.clone() } else { format!("{} %", s.name) };
    let mut spans = vec![span(left(&name, usize::from(AXIS)), pal.fg(s.role))];
    for bin in &s.of.bins {
        let t = f64::from(bin.items).ln_1p() / f64::from(most).ln_1p();
        let number = if all { exact(bin) } else { part(bin) };
        let text = match (number.len() < room, pal.wants_density()) {
            (true, false) => right(&number, room),
            // Room for one of the two: the number says more.
            (true, true) if number.len() + 2 > room => right(&number, room),
            (true, true) => format!(" {}{}", pal.density(t), right(&number, room - 2)),
            (false, false) => " ".repeat(room),
            (false, true) => pal.density(t).to_string().repeat(room),
        };
        let style = if bin.items == 0 { pal.fg(Role::Faint) } else { pal.heat(t) };
        spans.push(span(if bin.items == 0 { " ".repeat(room) } else { text }, style));
    }
    c.line(area, 0, &Line::from(spans));
}

/// The figures of both, and the selected bin.
fn figures(c: &mut Canvas<'_>, area: Rect, all: &[Series<'_>]) {
    let pal = c.pal;
    let mut columns: Vec<(String, Role)> = all.iter().map(|s| (s.name.clone(), Role::Dim)).collect();
    if all.len() == 2 {
        columns.push(("change".to_owned(), Role::Dim));
    }
    let line = |c: &mut Canvas<'_>, row: u16, name: &str, cells: &[(String, Role)]| {
        let mut spans = vec![span(left(name, 18), pal.fg(Role::Dim))];
        spans.extend(cells.iter().map(|(text, role)| span(right(text, 12), pal.fg(*role))));
        c.line(area, row, &Line::from(spans));
    };
    line(c, 0, "", &columns);
    let percent = |v: f64| (format!("{:.2} %", v * 100.0), Role::Fg);
    let mut errors: Vec<(String, Role)> = all.iter().filter_map(|s| s.of.error()).map(percent).collect();
    if let [before, now] = all
        && let (Some(b), Some(n)) = (before.of.error(), now.of.error())
    {
        let role = if n > b { Role::Bad } else { Role::Good };
        errors.push((num::signed((n - b) * 100.0, 2), role));
    }
    line(c, 1, "calibration error", &errors);
    let points = |bin: &Bin| Some(num::signed(bin.gap()? * 100.0, 1));
    let widest = |s: &Series<'_>| {
        let bin = s.of.bins.get(s.of.widest()?)?;
        Some((format!("{}, {}", points(bin)?, bin.items), Role::Fg))
    };
    line(c, 2, "widest gap pt, n", &all.iter().filter_map(widest).collect::<Vec<_>>());
    let mut row = 3;
    if area.height >= LINES.1 {
        let mean = |s: &Series<'_>| Some((points(&s.of.whole())?, Role::Fg));
        line(c, row, "mean gap pt", &all.iter().filter_map(mean).collect::<Vec<_>>());
        row += 1;
    }
    let Some(at) = c.app.shown_bin() else { return };
    let ends = |k: usize| format!("{:.0}", 100.0 * k as f64 / BINS as f64);
    let bin = format!("bin {}{}{} %", ends(at), pal.glyph("–", "-"), ends(at + 1));
    // Where there are lines enough it has one of its own.
    let (own, each) = if area.height >= LINES.1 { (true, 2) } else { (false, 13) };
    if own {
        c.put(area, row, 0, &bin, pal.fg(Role::Dim));
        row += 1;
    }
    for (k, s) in all.iter().enumerate() {
        let Some(of) = s.of.bins.get(at) else { continue };
        let name = if k == 0 && !own { bin.as_str() } else { "" };
        let text = format!("{} {}", left(&s.name, 9), exactly(of));
        let line = vec![span(left(name, each), pal.fg(Role::Dim)), span(text, pal.fg(Role::Fg))];
        c.line(area, row + k as u16, &Line::from(line));
    }
}

/// Items of a bin, mean confidence, accuracy.
fn exactly(bin: &Bin) -> String {
    match (bin.sure(), bin.accuracy()) {
        (Some(sure), Some(accuracy)) => {
            format!("{} items, {:.1} % sure, {:.1} % right", bin.items, sure * 100.0, accuracy * 100.0)
        }
        _ => "no items".to_owned(),
    }
}
