//! View 8: the row under the cursor in full: its group at every width, its precisions side by side, its place in the graph, and what was decided.
//!
//! Invariant: measured figures stand without a mark, forecasts carry `~`, a rung in doubt `?`.

use super::{Canvas, span};
use crate::config::Role;
use crate::config::text::{clean, fit, left, right, wrap};
use crate::plan::{Action, Forecast};
use crate::session::{Activations, action_text};
use crate::task::Metric;
use crate::tui::app::App;
use crate::tui::inspect::{Format, Inspected, OfGroup, Width};
use crate::tui::num::{self, bytes, signed};
use crate::words::counted;
use ratatui::layout::Rect;
use ratatui::style::Style;
use ratatui::text::{Line, Span};
use std::collections::BTreeSet;

/// A label's column, a width's, a precision's name.
const LABEL: usize = 14;
const CELL: usize = 9;
const FORMAT: usize = 13;
/// Bars of units at most.
const BARS: usize = 96;

pub(super) fn draw(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    let mut title = vec![span("row", pal.bold(Role::Focus))];
    if let Some(i) = &app.inspected {
        title.push(span(format!(" {}", clean(&i.name)), pal.bold(Role::Fg)));
        title.push(span(format!("{}{}", pal.dot(), clean(&i.kind)), pal.fg(Role::Dim)));
    }
    let inner = c.pane(area, title, true);
    for (row, line) in lines(app, inner.width as usize).iter().skip(app.scroll).enumerate() {
        c.line(inner, u16::try_from(row).unwrap_or(u16::MAX), line);
    }
}

/// All lines for a pane of `width` columns.
pub fn lines(app: &App, width: usize) -> Vec<Line<'static>> {
    let mut out = Vec::new();
    let Some(i) = &app.inspected else {
        let text = " stand on a layer in the review view (1); this view tells all that is known of it";
        return vec![Line::default(), Line::from(span(text, app.palette.fg(Role::Dim)))];
    };
    place(app, i, width, &mut out);
    if let Some(g) = &i.group {
        out.push(Line::default());
        group(app, g, width, &mut out);
    }
    if !i.precisions.is_empty() {
        out.push(Line::default());
        precisions(app, &i.precisions, width, &mut out);
    }
    out.push(Line::default());
    decided(app, i, width, &mut out);
    out
}

fn say(app: &App, label: &str, text: &str, role: Role, width: usize, out: &mut Vec<Line<'static>>) {
    let room = width.saturating_sub(LABEL + 2).max(8);
    for (n, part) in wrap(text, room).into_iter().enumerate() {
        let label = if n == 0 { label } else { "" };
        let label = span(format!(" {}", left(label, LABEL)), app.palette.fg(Role::Dim));
        out.push(Line::from(vec![label, span(part, app.palette.fg(role))]));
    }
}

/// Where it lies.
fn place(app: &App, i: &Inspected, width: usize, out: &mut Vec<Line<'static>>) {
    let arrow = app.palette.glyph(" → ", " > ");
    let list = |names: &[String]| match names {
        [] => "nothing".to_owned(),
        all => all.iter().map(|n| clean(n).into_owned()).collect::<Vec<_>>().join(", "),
    };
    let strip = format!("{}{arrow}{}{arrow}{}", list(&i.from), clean(&i.name), list(&i.to));
    say(app, "in the graph", &strip, Role::Fg, width, out);
    if let Some(block) = &i.block {
        let (gone, role) = match i.removed {
            true => (", which the plan that is shown removes", Role::Warn),
            false => ("", Role::Fg),
        };
        say(app, "block", &format!("{}{gone}", clean(block)), role, width, out);
    }
    if let Some(l) = app.table.layers.iter().find(|l| l.name == i.name) {
        let mark = num::mark(l.doubt.is_some());
        let p99 = l.p99.map_or(String::new(), |p| format!(", p99 {}", num::ms(p)));
        let time =
            l.fig.p50.map(|ms| format!("{}{mark} ms of the whole a batch, p95 {}{p99}", num::ms(ms), num::ms(l.p95)));
        let share = l.fig.share.map(|s| format!(", {} of it", num::percent(s))).unwrap_or_default();
        let macs = num::scaled(l.fig.macs.get(app.settings.mac_convention) as f64, 1e6);
        let params = num::count(l.fig.params);
        let text = format!(
            "{}{share}; {macs}M MACs, {params} parameters, {}",
            time.unwrap_or_else(|| "not measured".to_owned()),
            bytes(l.fig.bytes)
        );
        // Of the newest model, where what follows is told against the original.
        let label = match app.table.of_round {
            Some(round) if round > 0 => format!("measured r{round}"),
            _ => "measured".to_owned(),
        };
        say(app, &label, &text, Role::Fg, width, out);
        if let Some(p) = &l.parameters {
            let text = super::weights::weights(&app.palette, p, l.original.as_ref());
            say(app, "weights", &text, Role::Dim, width, out);
        }
    }
    if let Some(found) = app.flows.known.get(&i.name) {
        flow(app, found, width, out);
    } else if app.table.layers.iter().any(|l| l.name == i.name && l.weighty) {
        let why = if app.busy() { "looked at when the job has ended" } else { "being looked at" };
        say(app, "inputs", why, Role::Dim, width, out);
    }
    let whole = [super::whole::latency(app), super::whole::memory(app)];
    for (label, text) in ["whole model", ""].into_iter().zip(whole.into_iter().flatten()) {
        say(app, label, &text, Role::Dim, width, out);
    }
}

/// The distribution of what flows in.
fn flow(app: &App, a: &Activations, width: usize, out: &mut Vec<Line<'static>>) {
    if let Some(why) = &a.why {
        return say(app, "inputs", &clean(why), Role::Warn, width, out);
    }
    let most = a.bars.iter().copied().max().unwrap_or(0).max(1);
    let bars: String = a.bars.iter().map(|n| app.palette.spark(*n as f64 / most as f64)).collect();
    let what = if app.state.card.as_ref().is_some_and(|c| c.graph.is_language_model()) { "window" } else { "item" };
    let text = format!(
        "{} to {}, {} zeros; {} values of {} of calibration {bars}",
        num::signed(a.lo.into(), 2),
        num::signed(a.hi.into(), 2),
        num::percent(a.zeros.into()),
        num::count(a.values),
        counted(a.items as usize, what),
    );
    say(app, "inputs", &text, Role::Dim, width, out);
}

/// Bars of units, the most important first: those that stay by the plan that is shown, then those that go; below them where that cut is, and
/// the knee.
fn importance(app: &App, g: &OfGroup, width: usize, out: &mut Vec<Line<'static>>) {
    let (n, pal) = (g.scores.len(), &app.palette);
    let bars = n.min(width.saturating_sub(LABEL + 3)).min(BARS);
    if bars < 2 {
        return;
    }
    let at = |i: usize| g.scores[i * (n - 1) / (bars - 1)];
    let stays = |i: usize| (i as f64 + 0.5) / bars as f64 * (g.size as f64) < g.kept as f64;
    let mut spans = vec![span(format!(" {}", left("importance", LABEL)), pal.fg(Role::Dim)), Span::raw(" ")];
    for i in 0..bars {
        let role = if stays(i) { Role::Bar } else { Role::Warn };
        spans.push(span(pal.spark(f64::from(at(i))).to_string(), pal.fg(role)));
    }
    out.push(Line::from(spans));
    let bar = |unit: usize| (unit.saturating_sub(1) * (bars - 1)).div_ceil((g.size.max(2) - 1).max(1)).min(bars - 1);
    let cut = (g.kept < g.size).then(|| (0..bars).rev().find(|i| stays(*i)).unwrap_or(0));
    let mut marks = vec![' '; bars];
    if let Some(i) = cut {
        marks[i] = if pal.ascii { '<' } else { '◂' };
    }
    if let Some(at) = g.knee.map(bar) {
        // Where both are one bar the cut's mark stays.
        marks[at] = if marks[at] == ' ' { 'k' } else { marks[at] };
    }
    let told = [
        cut.map(|_| format!("{} cut at {}", pal.glyph("◂", "<"), g.kept)),
        g.knee.map(|knee| format!("k knee at {knee}")),
    ];
    let told: Vec<String> = told.into_iter().flatten().collect();
    if !told.is_empty() {
        let marks: String = marks.into_iter().collect();
        let lead = span(format!(" {} ", left("", LABEL)), pal.fg(Role::Dim));
        out.push(Line::from(vec![lead, span(marks.trim_end().to_owned(), pal.bold(Role::Accent))]));
        say(app, "", &told.join(", "), Role::Fg, width, out);
    }
    let last = (g.kept * n).div_ceil(g.size.max(1)).clamp(1, n) - 1;
    let text = format!(
        "of {} by what cuts rank them, the most important first; of the {} that stay the last has {:.2} of the first's",
        g.unit, g.kept, g.scores[last]
    );
    say(app, "", &text, Role::Dim, width, out);
}

/// What goes together, and what every width would do.
fn group(app: &App, g: &OfGroup, width: usize, out: &mut Vec<Line<'static>>) {
    // As on the decision card: what multiplies.
    let at = app.groups().iter().position(|x| x.id == g.id);
    let layers = at.and_then(|i| app.table.coupled.get(i)).copied().unwrap_or(0);
    let all: BTreeSet<&String> = g.makes.iter().chain(&g.carries).chain(&g.reads).collect();
    let others = match all.len().saturating_sub(layers) {
        0 => String::new(),
        n => format!(" and {n} that pass them on"),
    };
    let step = if g.granule > 1 { format!(", in steps of {}", g.granule) } else { String::new() };
    let text =
        format!("{} {} of {}{step}, a group of {}{others}", g.size, g.unit, clean(&g.id), counted(layers, "layer"));
    say(app, "group", &text, Role::Fg, width, out);
    for (label, names) in [("  made by", &g.makes), ("  carried by", &g.carries), ("  read by", &g.reads)] {
        if !names.is_empty() {
            let names = names.iter().map(|n| clean(n).into_owned()).collect::<Vec<_>>().join(", ");
            say(app, label, &names, Role::Dim, width, out);
        }
    }
    if let Some(why) = &g.protected {
        return say(app, "  not cut", &clean(why), Role::Warn, width, out);
    }
    importance(app, g, width, out);
    let metric = app.state.metric();
    let all = &g.widths[..g.widths.len().min(width.saturating_sub(LABEL + 2) / CELL)];
    let mut row = |label: &str, role: Role, cell: &dyn Fn(&Width) -> String| {
        let pal = &app.palette;
        let mut spans = vec![span(format!(" {}", left(label, LABEL)), pal.fg(Role::Dim))];
        for w in all {
            let style = if w.kept == g.kept { pal.bold(Role::Accent) } else { pal.fg(role) };
            spans.push(span(right(&fit(&cell(w), CELL - 1), CELL), style));
        }
        out.push(Line::from(spans));
    };
    let none = app.palette.none().to_owned();
    let mark = app.palette.glyph("◂", "<");
    row("keep", Role::Fg, &|w| format!("{}{}", w.kept, if w.kept == g.kept { mark } else { "" }));
    row("this row ms", Role::Fg, &|w| rung(w.rung, &none));
    row("KL alone", Role::Fg, &|w| w.kl.map_or(none.clone(), num::fine));
    let of = |w: &Width, f: &dyn Fn(&Forecast) -> String| match (&w.forecast, w.kept == g.size) {
        (Some(forecast), _) => f(forecast),
        (None, true) => "0".to_owned(),
        (None, false) => none.clone(),
    };
    let name = format!("{} scan", fit(&metric.name, LABEL - 6));
    row(&name, Role::Forecast, &|w| if w.kept == g.size { "0".to_owned() } else { quality(w.quality, &metric, &none) });
    row("whole ms", Role::Forecast, &|w| of(w, &|f| format!("~{}", signed(f.d_latency_ms.value, 2))));
    row("MACs M", Role::Forecast, &|w| of(w, &|f| format!("~{}", signed(f.d_macs as f64 / 1e6, 1))));
    row("kB", Role::Forecast, &|w| of(w, &|f| format!("~{}", signed(f.d_bytes as f64 / 1e3, 0))));
    let text = format!(
        "{mark} as shown; ms of this row from its ladder (? noisy: M measures again), KL measured of this cut alone, ~ what it alone would change of the original, of quality by scans"
    );
    say(app, "", &text, Role::Dim, width, out);
}

fn rung(rung: Option<(f64, bool)>, none: &str) -> String {
    rung.map_or(none.to_owned(), |(ms, noisy)| format!("{}{}", num::ms(ms), num::mark(noisy)))
}

/// By scans alone, so that one width can be held against another whatever was tried.
fn quality(change: Option<f64>, metric: &Metric, none: &str) -> String {
    match change {
        Some(0.0) => "0".to_owned(),
        Some(d) => format!("~{}", signed(metric.shown(d), metric.digits)),
        None => none.to_owned(),
    }
}

/// The columns of a table of precisions that there is room for beside their names.
pub(super) struct Formats(Vec<(String, usize)>);

impl Formats {
    /// Of `room` columns.
    pub fn within(app: &App, room: usize) -> Formats {
        let scan = format!("{} scan", fit(&app.state.metric().name, 7));
        let titles = [
            ("this row ms", 12),
            ("KL alone", 9),
            (&*scan, 13),
            ("whole ms", 9),
            ("output off", 11),
            ("kB", 9),
            ("kernel", 8),
            ("weights off", 12),
        ];
        let mut left = room.saturating_sub(FORMAT);
        let fits = |(_, w): &(&str, usize)| {
            let fits = *w <= left;
            left = left.saturating_sub(*w);
            fits
        };
        Formats(titles.into_iter().take_while(fits).map(|(t, w)| (t.to_owned(), w)).collect())
    }

    pub fn head(&self) -> String {
        let titles: String = self.0.iter().map(|(t, w)| right(&fit(t, w - 1), *w)).collect();
        format!("{}{titles}", left("", FORMAT))
    }

    /// The name of a precision and its figures, all in `style` where it is given.
    pub fn row(&self, app: &App, p: &Format, style: Option<Style>) -> Vec<Span<'static>> {
        let (pal, metric) = (&app.palette, app.state.metric());
        let none = pal.none();
        let f = |of: &dyn Fn(&Forecast) -> String| p.forecast.as_ref().map_or(none.to_owned(), of);
        let cells = [
            (rung(p.rung, none), Role::Fg),
            (p.kl.map_or(none.to_owned(), num::fine), Role::Fg),
            (quality(p.quality, &metric, none), Role::Forecast),
            (f(&|f| format!("~{}", signed(f.d_latency_ms.value, 2))), Role::Forecast),
            (p.output.map_or(none.to_owned(), off), Role::Fg),
            (f(&|f| format!("~{}", signed(f.d_bytes as f64 / 1e3, 0))), Role::Forecast),
            (kernel(p.kernel, none), Role::Dim),
            (p.error.map_or(none.to_owned(), off), Role::Fg),
        ];
        let mark = if p.shown { pal.glyph("◂", "<") } else { "" };
        let name = left(&format!("{}{mark}", p.precision.label()), FORMAT);
        let mut spans = vec![span(name, style.unwrap_or(pal.fg(Role::Fg)))];
        for ((text, role), (_, w)) in cells.into_iter().zip(&self.0) {
            spans.push(span(right(&fit(&text, w - 1), *w), style.unwrap_or(pal.fg(role))));
        }
        spans
    }
}

/// A part of a norm; what is no number is not shown as one.
fn off(part: f32) -> String {
    if part.is_finite() { num::percent(part.into()) } else { "broken".to_owned() }
}

fn kernel(own: Option<bool>, none: &str) -> String {
    own.map_or(none, |own| if own { "real" } else { "as f32" }).to_owned()
}

fn precisions(app: &App, all: &[Format], width: usize, out: &mut Vec<Line<'static>>) {
    let pal = &app.palette;
    let columns = Formats::within(app, width.saturating_sub(LABEL + 2));
    let dim = pal.fg(Role::Dim);
    out.push(Line::from(span(format!(" {}{}", left("precisions", LABEL), columns.head()), dim)));
    for p in all {
        let mut spans = vec![span(format!(" {}", left("", LABEL)), dim)];
        spans.extend(columns.row(app, p, p.shown.then(|| pal.bold(Role::Accent))));
        out.push(Line::from(spans));
    }
}

/// Decisions and constraints.
fn decided(app: &App, i: &Inspected, width: usize, out: &mut Vec<Line<'static>>) {
    for (n, text) in i.constraints.iter().enumerate() {
        say(app, if n == 0 { "bound" } else { "" }, &clean(text), Role::Warn, width, out);
    }
    if i.decisions.is_empty() {
        say(app, "decided", "nothing yet", Role::Dim, width, out);
    }
    for (n, d) in i.decisions.iter().enumerate() {
        let what = match &d.action {
            Action::Keep => "keep".to_owned(),
            action => action_text(action),
        };
        let status = format!("{:?}", d.status).to_lowercase();
        let why = d.veto_reason.as_deref().filter(|r| !r.is_empty()).unwrap_or(&d.rationale);
        let why = if why.is_empty() { String::new() } else { format!(": {why}") };
        let text = format!("round {}, {} by {}: {what}, {status}{why}", d.round, d.target, d.author);
        say(app, if n == 0 { "decided" } else { "" }, &clean(&text), Role::Fg, width, out);
    }
}
