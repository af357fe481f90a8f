//! View 2: the baseline against every round, per metric and per class, with intervals and the plot.

use super::{Canvas, plot, span};
use crate::config::Role;
use crate::config::text::{clean, fit, left, right, width};
use crate::plan::Outcome;
use crate::session::{Evaluation, State};
use crate::tui::app::App;
use crate::tui::num;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

/// A round's change of one class in points.
#[derive(Debug, Clone, PartialEq)]
pub struct Mover {
    pub class: usize,
    pub base: f64,
    pub now: f64,
}

/// Classes by how much they moved, the worst first.
pub fn movers(base: &Evaluation, now: &Evaluation) -> Vec<Mover> {
    let rate = |(c, n): (usize, usize)| if n > 0 { c as f64 / n as f64 } else { f64::NAN };
    let mut out: Vec<Mover> = base
        .metrics
        .per_class()
        .iter()
        .zip(now.metrics.per_class())
        .enumerate()
        .map(|(class, (a, b))| Mover { class, base: rate(*a), now: rate(*b) })
        .filter(|m| m.base.is_finite() && m.now.is_finite())
        .collect();
    out.sort_by(|a, b| (a.now - a.base).total_cmp(&(b.now - b.base)));
    out
}

pub fn class_name(state: &State, class: usize) -> String {
    let named = state.card.as_ref().and_then(|c| {
        c.data.class_names.get(class).or_else(|| c.model.class_names.as_ref().and_then(|n| n.get(class)))
    });
    named.map_or_else(|| format!("class {class}"), |n| clean(n).into_owned())
}

/// Lines that scroll: the class table.
pub fn lines(app: &App) -> usize {
    app.state.baseline().map_or(0, |b| b.metrics.per_class().len())
}

pub(super) fn draw(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    let evals: Vec<&Evaluation> = app.state.rounds.iter().filter_map(|r| r.evaluation.as_ref()).collect();
    if evals.is_empty() {
        let inner = c.pane(area, vec![span("evaluate", pal.bold(Role::Focus))], true);
        let p = app.settings.keymap.label(crate::config::Act::Profile);
        c.put(inner, 1, 2, "no evaluation yet: the baseline is evaluated when the session opens,", pal.fg(Role::Dim));
        c.put(
            inner,
            2,
            2,
            &format!("every round after its run. {p} profiles; 1 goes back to the layers."),
            pal.fg(Role::Dim),
        );
        return;
    }
    let table_h = (evals.len() as u16 + 5).clamp(7, area.height.saturating_sub(4).max(7)).min(area.height);
    let top = Rect { height: table_h, ..area };
    table(c, top, &evals);
    let rest = Rect { y: area.y + table_h, height: area.height - table_h, ..area };
    if rest.height < 3 {
        return;
    }
    let side = if rest.width >= 70 { rest.width / 2 } else { rest.width };
    classes(c, Rect { width: side, ..rest }, &evals);
    if side < rest.width {
        let area = Rect { x: rest.x + side, width: rest.width - side, ..rest };
        plot::pane(c, area);
    }
}

fn table(c: &mut Canvas<'_>, area: Rect, evals: &[&Evaluation]) {
    let (app, pal) = (c.app, c.pal);
    let n = evals.first().map_or(0, |e| e.metrics.n);
    let data = app.state.card.as_ref().map(|c| clean(&c.data.name).into_owned()).unwrap_or_default();
    let mut title = vec![
        span("rounds", pal.bold(Role::Focus)),
        span(format!(" {} of {data}, 95 % intervals", crate::words::counted(n, "image")), pal.fg(Role::Dim)),
    ];
    if app.state.card.as_ref().is_some_and(|c| c.model.preprocess.assumed()) {
        title.push(span(", preprocessing assumed", pal.fg(Role::Warn)));
    }
    let inner = c.pane(area, title, true);
    // Columns go whole: half an interval would be a false one.
    let (intervals, roomy, wide) = (inner.width >= 72, inner.width >= 92, inner.width >= 104);
    let interval = |text: &str, w: usize| if intervals { left(text, w) } else { String::new() };
    let metric = app.state.metric();
    // The first of the further metrics has a column.
    let other = evals.iter().find_map(|e| e.metrics.others.first()).map(|r| format!("{} {}", r.name, r.unit));
    let mut head = format!(" {}{}{}", left("round", 9), right(&metric.title(), 8), interval("", 16));
    head.push_str(&format!("{}{}", right("change", 7), interval("  paired", 18)));
    if roomy {
        head.push_str(&right(other.as_deref().unwrap_or_default(), 8));
    }
    if wide {
        head.push_str(&format!("{}{}{}{}", right("ms", 8), right("of orig.", 9), right("MB", 8), right("MACs M", 9)));
    }
    head.push_str("  verdict");
    c.put(inner, 0, 0, &head, pal.fg(Role::Dim));
    let base = evals.first().copied();
    let skip = evals.len().saturating_sub(inner.height.saturating_sub(1) as usize);
    for (row, e) in evals.iter().enumerate().skip(skip).map(|(i, e)| (i - skip, e)) {
        let round = app.state.round_at(e.round);
        let (low, high) = e.metrics.interval();
        let (low, high) = metric.shown_range(metric.scale.abs() * low, metric.scale.abs() * high);
        let digits = metric.digits;
        let name = if e.round == 0 { "baseline".to_owned() } else { format!("round {}", e.round) };
        let verdict = round.and_then(|r| r.verdict.as_ref());
        let rolled = round.is_some_and(|r| r.rolled_back.is_some());
        let fg = if rolled { pal.fg(Role::Faint) } else { pal.fg(Role::Fg) };
        let dim = pal.fg(Role::Dim);
        let mut spans: Vec<Span<'static>> = vec![
            span(format!(" {}", left(&name, 9)), fg),
            span(
                right(&format!("{:.*}", digits, metric.value(e.metrics.score)), 8),
                if rolled { fg } else { pal.bold(Role::Fg) },
            ),
            span(interval(&format!("  [{low:.digits$}, {high:.digits$}]"), 16), dim),
        ];
        let change = base
            .filter(|_| e.round > 0)
            .map(|b| verdict.map_or(metric.change(b.metrics.score, e.metrics.score), |v| v.d_quality));
        let change = change.map_or(String::new(), |d| num::signed(metric.shown(d), digits));
        spans.push(span(right(&change, 7), fg));
        let paired = verdict.map(|v| {
            let (low, high) = metric.shown_range(v.d_quality_low, v.d_quality_high);
            format!("  [{}, {}]", num::signed(low, digits), num::signed(high, digits))
        });
        spans.push(span(interval(&paired.unwrap_or_default(), 18), dim));
        if roomy {
            let further = e.metrics.others.first().map(|r| format!("{:.2}", r.score * r.scale));
            spans.push(span(right(&further.unwrap_or_default(), 8), fg));
        }
        if wide {
            let mark = if e.doubt.is_some() { "?" } else { "" };
            let style = if e.doubt.is_some() && !rolled { pal.fg(Role::Warn) } else { fg };
            spans.push(span(right(&format!("{}{mark}", num::ms(e.whole.p50)), 8), style));
            let factor = e.latency().filter(|_| e.round > 0);
            let factor = factor.map(|f| format!("{}{mark}", num::factor(f.value)));
            spans.push(span(right(&factor.unwrap_or_default(), 9), style));
            spans.push(span(right(&num::scaled(e.weight_bytes as f64, 1e6), 8), fg));
            let macs = e.macs.get(app.settings.mac_convention) as f64;
            spans.push(span(right(&num::scaled(macs, 1e6), 9), fg));
        }
        spans.push(Span::raw("  "));
        let (glyph, word, role) = match verdict.map(|v| v.outcome) {
            _ if rolled => (pal.glyph("↺ ", ""), "rolled back", Role::RolledBack),
            Some(o @ Outcome::Accept) => (pal.glyph("✓ ", ""), o.label(), Role::Good),
            Some(o @ Outcome::Reject) => (pal.glyph("✗ ", ""), o.label(), Role::Bad),
            Some(o @ Outcome::Undecided) => ("? ", o.label(), Role::Warn),
            None => ("", "", Role::Dim),
        };
        let accepted = round.is_some_and(|r| r.accepted);
        // Where both words do not fit, what was decided stands for itself, and the mark for the verdict.
        let word = if accepted && !roomy { "accepted" } else { word };
        spans.push(span(format!("{glyph}{word}"), pal.fg(role)));
        if accepted && roomy {
            spans.push(span(", accepted", pal.fg(Role::Good)));
        }
        c.line(inner, row as u16 + 1, &Line::from(spans));
    }
    // What the newest verdict rests on.
    let mut lines = evals.len().saturating_sub(skip) as u16 + 1;
    if let Some(text) = evals.last().and_then(|e| beside(e)) {
        let doubtful = evals.last().is_some_and(|e| e.doubt.is_some());
        let style = if doubtful { pal.fg(Role::Warn) } else { pal.fg(Role::Fg) };
        c.line(inner, lines, &Line::from(vec![span(" latency ", pal.fg(Role::Dim)), span(text, style)]));
        lines += 1;
    }
    if let Some(v) = app.state.rounds.iter().rev().find_map(|r| r.verdict.as_ref()) {
        let mut spans = vec![span(" budget  ", pal.fg(Role::Dim))];
        for l in &v.lines {
            let role = match l.outcome {
                Outcome::Accept => Role::Good,
                Outcome::Reject => Role::Bad,
                Outcome::Undecided => Role::Warn,
            };
            let le = pal.glyph("≤", "<=");
            let mark = match l.outcome {
                Outcome::Accept => pal.glyph("✓", "ok"),
                Outcome::Reject => pal.glyph("✗", "no"),
                Outcome::Undecided => "?",
            };
            let text = match l.name.as_str() {
                "drop" => format!("drop {:.2} ({le} {:.2})", l.measured, l.target),
                name => {
                    let name = if name == "macs" { "MACs".into() } else { clean(name) };
                    format!("{name} {} ({le} {})", num::factor_over(l.measured, l.target), num::factor(l.target))
                }
            };
            let next = span(format!("{text} {mark}   "), pal.fg(role));
            if spans.iter().map(Span::width).sum::<usize>() + next.content.trim_end().len() > inner.width as usize {
                break;
            }
            spans.push(next);
        }
        if !v.lines.is_empty() {
            c.line(inner, lines, &Line::from(spans));
        }
    }
}

/// A round's latency, the original's of the same minute, and what that makes: nothing for the baseline.
pub fn beside(e: &Evaluation) -> Option<String> {
    let ratio = e.latency().filter(|_| e.round > 0)?;
    let mut text = format!(
        "round {}: {} ms beside the original's {} of that minute, {}",
        e.round,
        num::ms(e.whole.p50),
        num::ms(e.baseline_ms),
        num::factor(ratio.value)
    );
    if ratio.n > 0 {
        text.push_str(&format!(" [{}, {}], {} pairs", num::factor(ratio.low), num::factor(ratio.high), ratio.n));
    }
    if let Some(why) = e.doubt {
        text.push_str(&format!("; in doubt: {why}"));
    }
    Some(text)
}

fn classes(c: &mut Canvas<'_>, area: Rect, evals: &[&Evaluation]) {
    let (app, pal) = (c.app, c.pal);
    let (Some(base), Some(now)) = (evals.first(), evals.last()) else { return };
    let title = if now.round == 0 {
        "classes, baseline".to_owned()
    } else {
        format!("classes, round {} against baseline", now.round)
    };
    let inner = c.pane(area, vec![span(title, pal.fg(Role::Title))], false);
    let all = movers(base, now);
    let worst = all.iter().map(|m| (m.now - m.base).abs()).fold(0.0, f64::max).max(0.01);
    // Names differ at their ends: bars give way to them.
    let longest = all.iter().map(|m| width(&class_name(&app.state, m.class))).max().unwrap_or(0);
    let figures = if now.round > 0 { 24 } else { 8 };
    let name_w = longest.clamp(8, 24).min((inner.width as usize).saturating_sub(figures)).max(4);
    let bar_w = (inner.width as usize).saturating_sub(figures + name_w).min(8);
    for (row, m) in all.iter().skip(app.scroll).take(inner.height as usize).enumerate() {
        let d = (m.now - m.base) * 100.0;
        let role = match d {
            d if d < -0.05 => Role::Bad,
            d if d > 0.05 => Role::Good,
            _ => Role::Dim,
        };
        let mut spans = vec![
            span(format!(" {}", left(&fit(&class_name(&app.state, m.class), name_w), name_w)), pal.fg(Role::Fg)),
            span(format!(" {:>6.1}", m.base * 100.0), pal.fg(Role::Dim)),
        ];
        if now.round > 0 {
            spans.push(span(format!(" {} {:>5.1}", pal.glyph("→", "->"), m.now * 100.0), pal.fg(Role::Fg)));
            spans.push(span(format!(" {:>6} ", num::signed(d, 1)), pal.fg(role)));
            spans.push(span(pal.bar(d.abs() / 100.0 / worst, bar_w), pal.fg(role)));
        }
        c.line(inner, row as u16, &Line::from(spans));
    }
}
