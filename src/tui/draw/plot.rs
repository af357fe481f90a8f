//! Accuracy against latency: one point a round, the Pareto line through those that none beats, and the plan that is not built yet as a hollow
//! point with its range. In view 2 the selected round is marked, and its figures stand under the plot.

use super::{Canvas, span};
use crate::config::Role;
use crate::config::text::{fit, width};
use crate::graph::MacConvention;
use crate::session::{Evaluation, State};
use crate::tui::app::{App, View};
use ratatui::layout::Rect;

/// What a round costs, as a factor of the original.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cost {
    Latency,
    Macs(MacConvention),
}

/// A round's place in the plot.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    pub round: u32,
    /// Factor of the baseline, and its interval: the factor itself where it has none.
    pub cost: f64,
    pub ends: (f64, f64),
    /// The cost is not to be decided on.
    pub doubtful: bool,
    /// Mean score: better the higher.
    pub score: f64,
    pub low: f64,
    pub high: f64,
    pub rolled_back: bool,
    pub pareto: bool,
    /// Items that the score is over, where those are not all.
    pub part: Option<usize>,
}

pub fn points(state: &State, cost: Cost) -> Vec<Point> {
    let base = state.baseline();
    let of = |e: &Evaluation| match cost {
        Cost::Latency => e.latency().map_or((f64::NAN, f64::NAN, f64::NAN), |l| (l.value, l.low, l.high)),
        Cost::Macs(convention) => {
            let whole = base.map_or(0, |b| b.macs.get(convention));
            let factor = if whole > 0 { e.macs.get(convention) as f64 / whole as f64 } else { f64::NAN };
            (factor, factor, factor)
        }
    };
    let mut out: Vec<Point> = state
        .rounds
        .iter()
        .filter_map(|r| {
            let e = r.evaluation.as_ref()?;
            let (cost_value, from, to) = of(e);
            let (low, high) = e.metrics.interval();
            let p = Point {
                round: r.number,
                cost: cost_value,
                ends: (from, to),
                doubtful: cost == Cost::Latency && e.doubt.is_some() && r.number > 0,
                score: e.metrics.score,
                low,
                high,
                rolled_back: r.rolled_back.is_some(),
                pareto: false,
                part: e.part.map(|_| e.metrics.n),
            };
            (cost_value.is_finite() && e.metrics.score.is_finite()).then_some(p)
        })
        .collect();
    let all: Vec<(f64, f64)> = out.iter().map(|p| (p.cost, p.score)).collect();
    for p in &mut out {
        p.pareto = !all.iter().any(|&(l, s)| l <= p.cost && s >= p.score && (l < p.cost || s > p.score));
    }
    out
}

/// Where the plan that would run now is expected to lie; `None` where nothing of it waits to be built, or an axis is unknown.
fn forecast(app: &App, base: f64) -> Option<Point> {
    let expected = app.expected.as_ref().filter(|_| app.plan_differs())?;
    let (latency, quality) = (expected.latency?, expected.quality?);
    let score = |change: f64| base + change / app.state.metric().scale.abs();
    let p = Point {
        round: 0,
        cost: latency.value,
        ends: (latency.low, latency.high),
        doubtful: false,
        score: score(quality.value),
        low: score(quality.low),
        high: score(quality.high),
        rolled_back: false,
        pareto: false,
        part: None,
    };
    // A range without bounds says nothing, and would leave nothing of the rest.
    let told = [p.cost, p.score, p.low, p.high].iter().all(|v| v.is_finite()) && quality.high - quality.low < 50.0;
    told.then_some(p)
}

pub(super) fn pane(c: &mut Canvas<'_>, area: Rect) {
    let pal = c.pal;
    if area.height < 5 || area.width < 20 {
        return;
    }
    let metric = c.app.state.metric();
    let title = if metric.name == "top-1" { "accuracy" } else { &metric.name };
    let inner = c.pane(area, vec![span(format!("{title} / latency"), pal.fg(Role::Title))], false);
    draw(c, inner);
}

pub(super) fn draw(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    let pts = points(&app.state, Cost::Latency);
    if pts.is_empty() || area.height < 4 || area.width < 24 {
        c.put(area, 0, 1, "no evaluation yet", pal.fg(Role::Dim));
        return;
    }
    let (budget, metric) = (app.state.budget, app.state.metric());
    let base = pts[0].score;
    let floor = budget.drop.map(|d| base - d / metric.scale.abs());
    let fold = |f: fn(f64, f64) -> f64, v: &mut dyn Iterator<Item = f64>| v.reduce(f).unwrap_or(0.0);
    let plan = forecast(app, base);
    let all = || pts.iter().chain(&plan);
    let mut x0 = fold(f64::min, &mut all().map(|p| p.cost).chain(budget.latency)) - 0.05;
    let mut x1 = fold(f64::max, &mut all().map(|p| p.cost)) + 0.05;
    let mut y0 = fold(f64::min, &mut all().map(|p| p.low).chain(floor));
    let mut y1 = fold(f64::max, &mut all().map(|p| p.high));
    if x1 - x0 < 0.1 {
        (x0, x1) = (x0 - 0.05, x1 + 0.05);
    }
    let pad = ((y1 - y0) * 0.08).max(metric.of_points(0.1) / metric.scale.abs());
    (y0, y1) = (y0 - pad, y1 + pad);
    let axis = 6u16;
    let selected = (app.view == View::Evaluate).then(|| app.looked_at().map(|e| e.round)).flatten();
    let read = selected.and_then(|round| pts.iter().find(|p| p.round == round)).filter(|_| area.height > 8);
    let feet = 1 + u16::from(read.is_some());
    let plot = Rect { x: area.x + axis, y: area.y, width: area.width - axis, height: area.height - feet };
    let cell = |part: f64, cells: u16| (part * (cells - 1) as f64).round().clamp(0.0, (cells - 1) as f64) as u16;
    let col = |x: f64| cell((x - x0) / (x1 - x0), plot.width);
    let row = |y: f64| cell((y1 - y) / (y1 - y0), plot.height);

    let faint = pal.fg(Role::Faint);
    for r in 0..plot.height {
        c.put(plot, r, 0, pal.glyph("│", "|"), faint);
    }
    for (i, y) in [y1, (y0 + y1) / 2.0, y0].into_iter().enumerate() {
        let r = [0, (plot.height - 1) / 2, plot.height - 1][i];
        c.put(area, r, 0, &format!("{:>5.*}", metric.digits.saturating_sub(1), metric.value(y)), pal.fg(Role::Dim));
    }
    if let Some(x) = budget.latency.filter(|x| (x0..=x1).contains(x)) {
        for r in 0..plot.height {
            c.put(plot, r, col(x), pal.glyph("┆", ":"), pal.fg(Role::Good));
        }
    }
    if let Some(y) = floor.filter(|y| (y0..=y1).contains(y)) {
        for x in 1..plot.width {
            c.put(plot, row(y), x, pal.glyph("┄", "-"), pal.fg(Role::Good));
        }
    }
    // The Pareto line, as steps: at a latency, the best accuracy so far.
    let mut front: Vec<&Point> = pts.iter().filter(|p| p.pareto && !p.rolled_back).collect();
    front.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    for w in front.windows(2) {
        let (a, b) = (w[0], w[1]);
        let (ca, cb, ra, rb) = (col(a.cost), col(b.cost), row(a.score), row(b.score));
        for x in ca + 1..cb {
            c.put(plot, ra, x, pal.glyph("╌", "."), pal.fg(Role::Bar));
        }
        for r in rb.min(ra) + 1..ra.max(rb) {
            c.put(plot, r, cb, pal.glyph("╎", "."), pal.fg(Role::Bar));
        }
    }
    if let Some(p) = &plan {
        let (x, style) = (col(p.cost), pal.fg(Role::Forecast));
        for r in row(p.high)..=row(p.low) {
            c.put(plot, r, x, pal.glyph("┊", ":"), style);
        }
        c.put(plot, row(p.score), x, pal.glyph("○", "~"), style);
        let label = "~plan";
        let lx = if x as usize + 2 + label.len() > plot.width as usize { x.saturating_sub(6) } else { x + 2 };
        c.put(plot, row(p.score), lx, label, style);
    }
    for p in &pts {
        let (x, y) = (col(p.cost), row(p.score));
        let role = match (p.rolled_back, p.pareto) {
            (true, _) => Role::RolledBack,
            (_, true) => Role::Accent,
            _ => Role::Dim,
        };
        for r in row(p.high)..=row(p.low) {
            if r != y {
                c.put(plot, r, x, pal.glyph("╎", ":"), pal.fg(role));
            }
        }
        // The mean stands out on its interval.
        let glyph = match p.rolled_back {
            true => pal.glyph("↺", "<"),
            false if selected == Some(p.round) => pal.glyph("◉", "@"),
            false => pal.glyph("●", "o"),
        };
        c.put(plot, y, x, glyph, pal.bold(role));
        let part = p.part.map_or(String::new(), |n| format!(" of {n}"));
        let label = if p.round == 0 { "base".to_owned() } else { format!("r{}{part}", p.round) };
        let lx = if x as usize + 2 + width(&label) > plot.width as usize {
            x.saturating_sub(width(&label) as u16 + 1)
        } else {
            x + 2
        };
        c.put(plot, y, lx, &label, pal.fg(role));
    }
    let (foot, dim, right) = (plot.height, pal.fg(Role::Dim), format!("{x1:.2}x"));
    let name = if plot.width >= 44 { "latency, times the original's" } else { "latency" };
    c.put(area, foot, axis, &format!("{x0:.2}x"), dim);
    c.put(plot, foot, plot.width.saturating_sub(width(name) as u16) / 2, name, dim);
    c.put(area, foot, area.width.saturating_sub(width(&right) as u16), &right, dim);
    if let Some(p) = read {
        let part = p.part.map_or(String::new(), |n| format!(" of {n}"));
        let whose = if p.round == 0 { "baseline".to_owned() } else { format!("round {}{part}", p.round) };
        let (low, high) = metric.shown_range(metric.scale.abs() * p.low, metric.scale.abs() * p.high);
        let (d, at) = (metric.digits, p.cost);
        let value = metric.value(p.score);
        // Whole, or less of it: half an interval would be a false one.
        let texts = [
            format!("{whose}: {} {value:.d$} [{low:.d$}, {high:.d$}] at {at:.2}x", metric.name),
            format!("{whose}: {value:.d$} [{low:.d$}, {high:.d$}] at {at:.2}x"),
            format!("{value:.d$} at {at:.2}x"),
        ];
        let text = texts.iter().find(|t| width(t) <= plot.width as usize).map_or("", String::as_str);
        c.put(area, foot + 1, axis, text, pal.fg(Role::Fg));
    }
    c.put(area, foot, 0, &fit(&metric.name, usize::from(axis)), dim);
}
