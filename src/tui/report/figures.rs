//! What a report shows in pictures: rounds by cost and quality, classes, healings, sensitivities, latency by width.
//!
//! Data only; drawing is `svg`. Invariants: a filled point was measured and is not in doubt, a hollow one is expected or in doubt; nothing is
//! interpolated but by the straight line between two measured points.

use super::document::{Axis, Bars, Dot, Guide, Line, Look, Picture, Plot, Section, Series, Table};
use crate::plan::{Basis, Quality};
use crate::profile::{BROKEN, Ladder, LadderPoint, SensCurve, SensTarget};
use crate::quant::Precision;
use crate::session::{Round, State};
use crate::task::Metric;
use crate::tui::app::App;
use crate::tui::draw::classes::Mover;
use crate::tui::draw::evaluate::class_name;
use crate::tui::draw::plot::{Cost, Point, points};
use crate::tui::num;
use crate::words::counted;

/// What is to be said of [`rounds`].
pub const ROUNDS: &str = "Up is better, left is cheaper. Bars are 95 % intervals of what was measured, and the ranges of forecasts. Hollow: a forecast, or a latency in doubt.";

/// Small pictures of one kind at most; the table has them all.
const MOST: usize = 36;
/// Colours of the page.
const TONES: usize = 8;
/// Divergences below this are drawn as this: nats.
const FOOT: f64 = 1e-4;

/// Quality against latency, and against MACs.
pub fn rounds(app: &App) -> Vec<Picture> {
    [Cost::Latency, Cost::Macs(app.settings.mac_convention)].into_iter().filter_map(|c| by_cost(app, c)).collect()
}

fn by_cost(app: &App, cost: Cost) -> Option<Picture> {
    let s = &app.state;
    let metric = s.metric();
    let all = points(s, cost);
    // One point is no comparison; where nothing was timed its MACs say as much.
    let (base, any) = (all.first().filter(|p| p.round == 0)?, all.iter().any(|p| p.round > 0));
    let y = |score: f64| metric.value(score);
    let dot = |p: &Point, look: Look| {
        let (low, high) = (y(p.low), y(p.high));
        Dot {
            x: p.cost,
            y: y(p.score),
            x_ends: (p.ends.0 < p.ends.1).then_some(p.ends),
            y_ends: (low != high).then(|| (low.min(high), low.max(high))),
            label: if p.round == 0 { "original".to_owned() } else { format!("round {}", p.round) },
            look,
        }
    };
    let look = |p: &Point| if p.doubtful { Look::Hollow } else { Look::Filled };
    let of =
        |rolled: bool| all.iter().filter(move |p| p.rolled_back == rolled).map(|p| dot(p, look(p))).collect::<Vec<_>>();
    let mut front: Vec<&Point> = all.iter().filter(|p| p.pareto && !p.rolled_back).collect();
    front.sort_by(|a, b| a.cost.total_cmp(&b.cost));
    let front: Vec<Dot> =
        front.into_iter().map(|p| dot(&Point { low: 0.0, high: 0.0, ..p.clone() }, Look::None)).collect();
    let before = expected(s, &all, base, &metric);
    let planned = planned(app, cost, base, &metric);
    if !any && planned.is_none() {
        return None;
    }
    let mut series = vec![
        Series {
            name: "Pareto line: nothing measured is better in both".into(),
            line: Line::Steps,
            dots: front,
            tone: 1,
        },
        Series {
            name: "forecast before the round ran, at the cost that was measured".into(),
            dots: before,
            tone: 2,
            ..Series::default()
        },
        Series { name: "measured".into(), dots: of(false), tone: 0, ..Series::default() },
        Series { name: "rolled back".into(), dots: of(true), tone: 3, ..Series::default() },
        Series {
            name: "forecast of the plan that is shown".into(),
            dots: planned.into_iter().collect(),
            tone: 4,
            ..Series::default()
        },
    ];
    series.retain(|s| !s.dots.is_empty());
    series.retain(|s| s.line != Line::Steps || s.dots.len() > 1);
    let (title, target, what) = match cost {
        Cost::Latency => ("latency", s.budget.latency, "latency, of the original's (×)"),
        Cost::Macs(_) => ("MACs", s.budget.macs, "MACs, of the original's (×)"),
    };
    let floor = s.budget.drop.map(|d| y(base.score) - metric.shown(d));
    let guide = |at: f64, upright: bool| Guide { at, upright, label: "budget".to_owned() };
    Some(Picture::Plot(Plot {
        title: format!("{} against {title}", metric.name),
        x: Axis { title: what.to_owned(), ..Axis::default() },
        y: Axis { title: format!("{}, 95 % intervals", metric.title()), ..Axis::default() },
        series,
        guides: target.map(|t| guide(t, true)).into_iter().chain(floor.map(|f| guide(f, false))).collect(),
        small: false,
    }))
}

/// Where quality was expected to be, over the cost of what came of it.
fn expected(s: &State, all: &[Point], base: &Point, metric: &Metric) -> Vec<Dot> {
    let of = |p: &Point| {
        let q = s.round_at(p.round)?.forecast.filter(|q| q.basis != Basis::Unmeasured && p.round > 0)?;
        let (y, ends) = foretold(&q, base, metric);
        Some(Dot { x: p.cost, y, y_ends: Some(ends), look: Look::Hollow, ..Dot::default() })
    };
    all.iter().filter_map(of).collect()
}

fn foretold(q: &Quality, base: &Point, metric: &Metric) -> (f64, (f64, f64)) {
    let (low, high) = metric.shown_range(q.low, q.high);
    let at = metric.value(base.score);
    (at + metric.shown(q.value), (at + low, at + high))
}

/// What the plan that is shown is expected to reach, where that is another than was measured.
fn planned(app: &App, cost: Cost, base: &Point, metric: &Metric) -> Option<Dot> {
    let e = app.expected.filter(|_| app.plan_differs())?;
    let q = e.quality.filter(|q| [Basis::Rehearsed, Basis::Neighbour, Basis::Scanned].contains(&q.basis))?;
    let (x, x_ends) = match cost {
        Cost::Latency => e.latency.map(|l| (l.value, Some((l.low, l.high))))?,
        Cost::Macs(_) => (e.macs?, None),
    };
    let (y, ends) = foretold(&q, base, metric);
    Some(Dot { x, y, x_ends, y_ends: Some(ends), label: "plan".to_owned(), look: Look::Hollow })
}

pub fn classes(s: &State, movers: &[&Mover]) -> Picture {
    let bar = |m: &&Mover| {
        let change = 100.0 * (m.now - m.base);
        (class_name(s, m.class), change, num::signed(change, 1))
    };
    Picture::Bars(Bars {
        title: "change by class".to_owned(),
        unit: "points of right answers".to_owned(),
        bars: movers.iter().map(bar).collect(),
    })
}

pub fn healing(r: &Round) -> Vec<Picture> {
    let Some(course) = r.course.as_ref().filter(|c| c.looks.len() > 1) else { return Vec::new() };
    let dot = |l: &crate::train::Look| Dot {
        x: f64::from(l.step),
        y: l.loss,
        label: if l.step == course.best.step { "kept".to_owned() } else { String::new() },
        ..Dot::default()
    };
    vec![Picture::Plot(Plot {
        title: format!("healing of round {}", r.number),
        x: Axis { title: "step".to_owned(), ..Axis::default() },
        y: Axis {
            title: format!("{} on {}", course.healing.objective.loss(), counted(course.held_back, "held-back image")),
            from_zero: true,
            ..Axis::default()
        },
        series: vec![Series {
            line: Line::Straight,
            dots: course.looks.iter().map(dot).collect(),
            ..Series::default()
        }],
        ..Plot::default()
    })]
}

fn of_target(t: &SensTarget) -> (String, String) {
    match t {
        SensTarget::Group(id) => (format!("group {id}"), "part removed".to_owned()),
        SensTarget::Layer(name, precision) => (format!("layer {name}"), precision.label().to_owned()),
        SensTarget::Block(name) => (format!("block {name}"), "removed".to_owned()),
    }
}

/// What each change alone does to the output.
pub fn sensitivity(app: &App) -> Option<Section> {
    let s = &app.state;
    let metric = s.metric();
    let curves = &s.sensitivity.curves;
    let change = format!("{} change, {}", metric.name, metric.change_unit);
    let mut t = Table::new(
        ["target", "what", "removed %", "KL, nats", &change, "items"]
            .map(|c| c.trim_end_matches([',', ' ']).to_owned()),
    );
    for c in curves {
        let (target, what) = of_target(&c.target);
        for p in &c.points {
            let cut = matches!(c.target, SensTarget::Group(_));
            t.row([
                target.clone(),
                what.clone(),
                if cut { format!("{:.1}", 100.0 * p.ratio) } else { String::new() },
                if p.kl < BROKEN { num::fine(p.kl.max(0.0)) } else { "output broken".to_owned() },
                num::signed(metric.shown(p.d_quality), metric.digits),
                c.images.to_string(),
            ]);
        }
    }
    let mut cuts: Vec<&SensCurve> =
        curves.iter().filter(|c| matches!(c.target, SensTarget::Group(_)) && c.points.len() > 1).collect();
    let worst = |c: &SensCurve| c.points.iter().map(|p| p.kl).fold(0.0, f64::max);
    let left = cuts.len().saturating_sub(MOST);
    if left > 0 {
        cuts.sort_by(|a, b| worst(b).total_cmp(&worst(a)));
        cuts.truncate(MOST);
    }
    let finite = curves.iter().flat_map(|c| &c.points).map(|p| p.kl).filter(|kl| *kl < BROKEN);
    let upto = finite.fold(FOOT * 10.0, f64::max);
    let plot = |c: &SensCurve| {
        let dot = |p: &crate::profile::SensPoint| {
            let broken = p.kl >= BROKEN;
            Dot {
                x: 100.0 * p.ratio,
                y: if broken { upto } else { p.kl },
                label: if broken { "broken".to_owned() } else { String::new() },
                look: if broken { Look::Hollow } else { Look::Filled },
                ..Dot::default()
            }
        };
        Picture::Plot(Plot {
            title: of_target(&c.target).0,
            x: Axis { title: "removed, %".to_owned(), from_zero: true, upto: Some(100.0), ..Axis::default() },
            y: Axis { title: "KL, nats".to_owned(), decades_from: Some(FOOT), upto: Some(upto), ..Axis::default() },
            series: vec![Series {
                line: Line::Straight,
                dots: c.points.iter().map(dot).collect(),
                ..Series::default()
            }],
            small: true,
            ..Plot::default()
        })
    };
    let more = match left {
        0 => String::new(),
        n => format!(" The {MOST} that reach highest are drawn, {n} more are in the table."),
    };
    let said = format!(
        "Each group cut alone; divergence of the output from the original's in nats, on one scale in decades, from {FOOT} on.{more}"
    );
    let section = Section::new("Sensitivities").pictures(cuts.into_iter().map(plot), said);
    let section = section.folded(counted(t.rows.len(), "measured point"), t);
    (!curves.is_empty()).then_some(section)
}

/// How long each layer takes at other widths and precisions.
pub fn ladders(app: &App) -> Option<Section> {
    // Layers of one shape share their measurement.
    let mut shapes: Vec<(&Ladder, usize)> = Vec::new();
    for l in app.state.ladders.iter().filter(|l| !l.points.is_empty()) {
        match shapes.iter_mut().find(|(first, _)| first.points == l.points) {
            Some((_, more)) => *more += 1,
            None => shapes.push((l, 0)),
        }
    }
    let mut t = Table::new(["layer", "precision", "inputs", "outputs", "ms", "±, ms"]);
    for (l, _) in &shapes {
        for p in &l.points {
            let cells = [p.in_width, p.out_width].map(|w| w.to_string());
            let [inputs, outputs] = cells;
            let off = if p.spread > 0.0 { format!("{:.4}", p.spread * p.ms) } else { String::new() };
            let ms = format!("{:.4}{}", p.ms, num::mark(p.noisy));
            t.row([l.layer.clone(), p.precision.label().to_owned(), inputs, outputs, ms, off]);
        }
    }
    let share = |l: &Ladder| app.table.layer(&l.layer).and_then(|l| l.fig.p50).unwrap_or(0.0);
    let left = shapes.len().saturating_sub(MOST);
    if left > 0 {
        shapes.sort_by(|(a, _), (b, _)| share(b).total_cmp(&share(a)));
        shapes.truncate(MOST);
    }
    let more = match left {
        0 => String::new(),
        n => format!(" The {MOST} that take longest are drawn, {n} more are in the table."),
    };
    let said = format!("A layer alone, by how many of its outputs are left, with all inputs; hollow: in doubt.{more}");
    let pictures = shapes.iter().filter_map(|(l, more)| ladder(l, *more));
    let section = Section::new("Latency by width").pictures(pictures, said);
    let section = section.folded(counted(t.rows.len(), "measured point"), t);
    (!app.state.ladders.is_empty()).then_some(section)
}

fn ladder(l: &Ladder, more: usize) -> Option<Picture> {
    let whole = l.points.iter().map(|p| p.in_width).max()?;
    let mut precisions: Vec<Precision> = Vec::new();
    for p in &l.points {
        if !precisions.contains(&p.precision) {
            precisions.push(p.precision);
        }
    }
    let dot = |p: &LadderPoint| {
        let off = p.spread * p.ms;
        Dot {
            x: p.out_width as f64,
            y: p.ms,
            y_ends: (off > 0.0).then_some((p.ms - off, p.ms + off)),
            look: if p.noisy { Look::Hollow } else { Look::Filled },
            ..Dot::default()
        }
    };
    let series = |(tone, precision): (usize, &Precision)| {
        let mut rungs: Vec<&LadderPoint> =
            l.points.iter().filter(|p| p.precision == *precision && p.in_width == whole).collect();
        rungs.sort_by_key(|p| p.out_width);
        let dots: Vec<Dot> = rungs.into_iter().map(dot).collect();
        Series { name: precision.label().to_owned(), line: Line::Straight, dots, tone: tone % TONES }
    };
    let series: Vec<Series> = precisions.iter().enumerate().map(series).filter(|s| !s.dots.is_empty()).collect();
    let alike = if more > 0 { format!(" and {more} of its shape") } else { String::new() };
    series.iter().any(|s| s.dots.len() > 1).then(|| {
        Picture::Plot(Plot {
            title: format!("{}{alike}", l.layer),
            x: Axis { title: "outputs".to_owned(), from_zero: true, ..Axis::default() },
            y: Axis { title: "ms".to_owned(), from_zero: true, ..Axis::default() },
            series,
            small: true,
            ..Plot::default()
        })
    })
}
