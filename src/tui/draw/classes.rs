//! View 2: what the selected round changes class by class, which classes are taken for others, and how far right ones lead.

use super::evaluate::class_name;
use super::{Canvas, span};
use crate::config::Role;
use crate::config::text::{fit, left, width};
use crate::session::{Changed, Evaluation, Taken};
use crate::task::from_counts;
use crate::tui::app::App;
use crate::tui::evaluate::Part;
use crate::tui::num;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// A round's change of one class.
#[derive(Debug, Clone, PartialEq)]
pub struct Mover {
    pub class: usize,
    /// Shares of right answers, 0 to 1.
    pub base: f64,
    pub now: f64,
    /// Items of the class.
    pub items: usize,
    /// Of the change, in points; where it is known which items changed.
    pub interval: Option<(f64, f64)>,
}

/// Classes by how much they moved, the worst first.
pub fn movers(base: &Evaluation, now: &Evaluation, changed: Option<&Changed>) -> Vec<Mover> {
    let rate = |(c, n): (usize, usize)| if n > 0 { c as f64 / n as f64 } else { f64::NAN };
    // Counted of the same items, or not told.
    let paired = |class: usize, (right, n): (usize, usize), now: usize| {
        let [items, lost, gained] = changed?.classes.get(class)?.map(|v| v as usize);
        let both = right.checked_sub(lost).filter(|both| items == n && both + gained == now)?;
        let p = from_counts(both, lost, gained, n.checked_sub(right + gained)?);
        Some((p.low, p.high))
    };
    let mut out: Vec<Mover> = base
        .metrics
        .per_class()
        .iter()
        .zip(now.metrics.per_class())
        .enumerate()
        .map(|(class, (a, b))| Mover {
            class,
            base: rate(*a),
            now: rate(*b),
            items: a.1,
            interval: paired(class, *a, b.0),
        })
        .filter(|m| m.base.is_finite() && m.now.is_finite())
        .collect();
    out.sort_by(|a, b| (a.now - a.base).total_cmp(&(b.now - b.base)));
    out
}

/// What changed, where that is of all of the data.
fn changed<'a>(app: &'a App, now: &Evaluation) -> Option<&'a Changed> {
    app.what_changed().filter(|_| now.part.is_none())
}

/// From here on there is room for a class's items and interval.
const ROOMY: u16 = 62;

pub(super) fn pane(c: &mut Canvas<'_>, area: Rect, (base, now): (&Evaluation, &Evaluation)) {
    let (app, pal) = (c.app, c.pal);
    let focused = app.looking.part == Part::Classes;
    let title = match now.round {
        0 => "classes, baseline".to_owned(),
        round => format!("classes, round {round} against baseline"),
    };
    let changed = changed(app, now);
    let roomy = area.width >= ROOMY && changed.is_some();
    let mut spans = vec![c.title(&title, focused)];
    if roomy {
        spans.push(span(", 95 % each", pal.fg(Role::Dim)));
    }
    let inner = c.pane(area, spans, focused);
    if now.part.is_some() {
        // Its items are others than the baseline's.
        c.put(inner, 0, 1, "not told of a part of the data", pal.fg(Role::Dim));
        return;
    }
    let all = movers(base, now, changed);
    let worst = all.iter().map(|m| (m.now - m.base).abs()).fold(0.0, f64::max).max(0.01);
    // Names differ at their ends: bars give way to them.
    let longest = all.iter().map(|m| width(&class_name(&app.state, m.class))).max().unwrap_or(0);
    // An arrow of two letters, where there is none of one.
    let figures = if now.round > 0 { 23 + width(pal.glyph("→", "->")) } else { 8 } + if roomy { 24 } else { 0 };
    let name_w = longest.clamp(8, 24).min((inner.width as usize).saturating_sub(figures)).max(4);
    let bar_w = (inner.width as usize).saturating_sub(figures + name_w).min(8);
    for (row, m) in all.iter().skip(app.scroll).take(inner.height as usize).enumerate() {
        let d = (m.now - m.base) * 100.0;
        let role = match d {
            d if d < -0.05 => Role::Bad,
            d if d > 0.05 => Role::Good,
            _ => Role::Dim,
        };
        let mut spans =
            vec![span(format!(" {}", left(&fit(&class_name(&app.state, m.class), name_w), name_w)), pal.fg(Role::Fg))];
        if roomy {
            spans.push(span(format!(" {:>6}", m.items), pal.fg(Role::Dim)));
        }
        spans.push(span(format!(" {:>6.1}", m.base * 100.0), pal.fg(Role::Dim)));
        if now.round > 0 {
            spans.push(span(format!(" {} {:>5.1}", pal.glyph("→", "->"), m.now * 100.0), pal.fg(Role::Fg)));
            spans.push(span(format!(" {:>6} ", num::signed(d, 1)), pal.fg(role)));
            if roomy {
                let text = m.interval.map_or(String::new(), |(low, high)| {
                    format!("[{}, {}]", num::signed(low, 1), num::signed(high, 1))
                });
                spans.push(span(left(&text, 16), pal.fg(Role::Dim)));
            }
            spans.push(span(pal.bar(d.abs() / 100.0 / worst, bar_w), pal.fg(role)));
        }
        c.line(inner, row as u16, &Line::from(spans));
    }
}

/// Classes that are taken for others, those first where that changed most; with how far right classes lead below them.
pub(super) fn taken(c: &mut Canvas<'_>, area: Rect) {
    let pal = c.pal;
    let Some(changed) = c.app.what_changed().filter(|c| !c.classes.is_empty()) else {
        let inner = c.pane(area, vec![span("taken for another class", pal.fg(Role::Title))], false);
        let why = match c.app.has_classes() {
            true => "told of a round once it is evaluated",
            false => "what is evaluated here has no classes",
        };
        c.put(inner, 0, 1, why, pal.fg(Role::Dim));
        return;
    };
    let leads = if area.height >= 11 && changed.leads.is_some() { 5 } else { 0 };
    let top = Rect { height: area.height - leads, ..area };
    let title = vec![
        span("taken for another class", pal.fg(Role::Title)),
        span(format!(", before {} now", pal.glyph("→", "->")), pal.fg(Role::Dim)),
    ];
    let inner = c.pane(top, title, false);
    let lines: Vec<Line<'static>> = changed.taken.iter().map(|t| line(c, t, inner.width as usize)).collect();
    for (row, line) in lines.iter().take(inner.height as usize).enumerate() {
        c.line(inner, row as u16, line);
    }
    if leads > 0 {
        histogram(c, Rect { y: area.y + top.height, height: leads, ..area }, changed);
    }
}

fn line(c: &Canvas<'_>, t: &Taken, room: usize) -> Line<'static> {
    let (app, pal) = (c.app, c.pal);
    let name = |class: usize, w: usize| left(&fit(&class_name(&app.state, class), w), w);
    let arrow = pal.glyph("→", "->");
    let figures =
        format!("{:>5} {arrow} {:>4} {:>5}", t.before, t.now, num::signed(f64::from(t.now) - f64::from(t.before), 0));
    let each = (room.saturating_sub(width(&figures) + 7) / 2).clamp(3, 20);
    let grew = t.now.cmp(&t.before);
    let role = match grew {
        std::cmp::Ordering::Greater => Role::Bad,
        std::cmp::Ordering::Less => Role::Good,
        std::cmp::Ordering::Equal => Role::Dim,
    };
    Line::from(vec![
        span(format!(" {}", name(t.label as usize, each)), pal.fg(Role::Fg)),
        span(format!(" as {}", name(usize::from(t.class), each)), pal.fg(Role::Fg)),
        span(figures, pal.fg(role)),
    ])
}

/// How far the right class leads, of the original and of the round.
fn histogram(c: &mut Canvas<'_>, area: Rect, changed: &Changed) {
    let pal = c.pal;
    let Some(leads) = &changed.leads else { return };
    let title =
        vec![span("lead of the right class", pal.fg(Role::Title)), span(", logits; <0 wrong", pal.fg(Role::Dim))];
    let inner = c.pane(area, title, false);
    let most = leads.before.iter().chain(&leads.now).copied().max().unwrap_or(0).max(1);
    let rows = [("original", &leads.before, Role::Dim), ("round", &leads.now, Role::Accent)];
    let name_w = 10;
    for (row, (name, counts, role)) in rows.into_iter().enumerate() {
        let bars: String =
            counts.iter().map(|n| if *n == 0 { ' ' } else { pal.spark(f64::from(*n) / f64::from(most)) }).collect();
        c.line(
            inner,
            row as u16,
            &Line::from(vec![
                span(format!(" {}", left(name, name_w - 1)), pal.fg(Role::Dim)),
                span(bars, pal.fg(role)),
            ]),
        );
    }
    // The axis: its ends, and where nothing leads.
    let bins = leads.before.len();
    let zero = ((-leads.low / (leads.high - leads.low)) * bins as f32) as usize;
    let mut axis = vec![Span::raw(" ".repeat(name_w))];
    let (low, high) = (format!("{:.1}", leads.low), format!("{:.1}", leads.high));
    let gap = zero.saturating_sub(width(&low));
    if gap > 0 {
        axis.push(span(format!("{low}{}0", " ".repeat(gap)), pal.fg(Role::Dim)));
    } else {
        axis.push(span(format!("{}0", " ".repeat(zero)), pal.fg(Role::Dim)));
    }
    let used: usize = axis.iter().map(Span::width).sum();
    let pad = (name_w + bins).saturating_sub(used + width(&high));
    axis.push(span(format!("{}{high}", " ".repeat(pad)), pal.fg(Role::Dim)));
    c.line(inner, 2, &Line::from(axis));
}

/// The selected round's decisions beside what each alone changes by scans.
pub(super) fn decisions(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    let metric = app.state.metric();
    let [each, short] = [", each alone by scans:", ", by scans:"].map(|words| format!("{words} {}", metric.name));
    let title = vec![
        span("decisions of the round", pal.fg(Role::Title)),
        span(if width(&each) + 26 <= area.width.into() { each } else { short }, pal.fg(Role::Dim)),
    ];
    let inner = c.pane(area, title, false);
    if app.looking.decisions.is_empty() {
        c.put(inner, 0, 1, "the original, as it was", pal.fg(Role::Dim));
        return;
    }
    for (row, (d, change)) in app.looking.decisions.iter().take(inner.height as usize).enumerate() {
        let figure = match change {
            Some(v) => format!("{}{}", pal.glyph("~", "~"), num::signed(metric.shown(*v), metric.digits)),
            None => pal.none().to_owned(),
        };
        let what = crate::session::action_text(&d.action);
        let each = (inner.width as usize).saturating_sub(width(&figure) + 4);
        let (name_w, what_w) = (each * 3 / 5, each - each * 3 / 5);
        let more = app.looking.decisions.len() - row - 1;
        if row + 1 == inner.height as usize && more > 0 {
            c.put(inner, row as u16, 1, &format!("and {} more", more + 1), pal.fg(Role::Dim));
            return;
        }
        c.line(
            inner,
            row as u16,
            &Line::from(vec![
                span(format!(" {} ", left(&fit(d.target.name(), name_w), name_w)), pal.fg(Role::Fg)),
                span(format!("{} ", left(&fit(&what, what_w), what_w)), pal.fg(Role::Dim)),
                span(figure, pal.fg(Role::Forecast)),
            ]),
        );
    }
}
