//! The header: model, data, device, totals against the budget, the round's phases, the pen; and warning lines.

use super::{Canvas, span};
use crate::config::Role;
use crate::config::text::clean;
use crate::session::{Phase, Standing};
use crate::tui::app::Level;
use crate::tui::layout::{Class, Layout, class};
use crate::tui::num::{factor, signed};
use crate::tui::outlook::{Goal, goals, meets};
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

pub(super) fn level_role(level: Level) -> Role {
    match level {
        Level::Info => Role::Dim,
        Level::Good => Role::Good,
        Level::Warn => Role::Warn,
        Level::Bad => Role::Bad,
    }
}

pub(super) fn draw(c: &mut Canvas<'_>, l: &Layout, banners: &[(Level, String)]) {
    let wide = class(l.header.width, l.footer.y + l.footer.height) != Class::Small;
    top(c, l.header, wide);
    if l.phases.height > 0 {
        phases(c, l.phases);
    }
    for (i, (level, text)) in banners.iter().enumerate() {
        let mark = c.pal.glyph("▲", "!");
        let style = c.pal.bold(level_role(*level));
        c.line(l.banners, i as u16, &Line::from(span(format!(" {mark} {text}"), style)));
    }
}

fn top(c: &mut Canvas<'_>, area: Rect, wide: bool) {
    let (app, pal) = (c.app, c.pal);
    let mut left: Vec<Span<'static>> = vec![span(" paring ", pal.bold(Role::Accent))];
    let dim = pal.fg(Role::Dim);
    let sep = pal.glyph(" · ", " | ");
    match &app.state.card {
        Some(card) => {
            left.push(span(format!(" {}", clean(&card.model.name)), pal.bold(Role::Fg)));
            if wide {
                left.push(span(format!("{sep}{}{sep}{}", clean(&card.data.name), clean(&card.device)), dim));
            }
        }
        None => left.push(span(" opening the session …", dim)),
    }
    if !wide {
        left.push(span(format!("{sep}r{} {}", app.state.round, app.state.phase.label()), pal.fg(Role::Accent)));
        if app.connected && !app.has_pen() {
            left.push(span(format!("{sep}watching"), pal.fg(Role::Warn)));
        }
    }
    let left = Line::from(left);
    let lw = (left.width() as u16).min(area.width);
    let mut right = Line::from(totals(c, if wide { 8 } else { 0 }));
    // What the forecasts among them count on, where there is room; the card says it always.
    let forecast = app.expected.is_some() && app.state.phase <= Phase::Review && app.plan_differs();
    let words = span(format!("{}:  ", app.plan_words()), dim);
    if forecast && right.width() + words.width() + lw as usize + 2 <= area.width as usize {
        right.spans.insert(0, words);
    }
    let room = area.width.saturating_sub(lw + 2);
    let rw = (right.width() as u16).min(room);
    c.line(Rect { width: area.width.saturating_sub(rw).min(area.width), ..area }, 0, &left);
    if rw > 4 {
        c.line(Rect { x: area.x + area.width - rw, width: rw, ..area }, 0, &right);
    }
}

/// One figure per goal: measured when a compressed round was measured, else expected; with a bar against the target.
fn totals(c: &Canvas<'_>, bar: usize) -> Vec<Span<'static>> {
    let (app, pal) = (c.app, c.pal);
    let mut wanted = goals(&app.state.budget, false);
    if wanted.is_empty() {
        wanted = goals(&app.state.budget, true)
            .into_iter()
            .filter(|g| ["latency", "memory", "top-1"].contains(&g.name))
            .collect();
    }
    if !wanted.iter().any(|g| g.points) {
        wanted.push(Goal { name: "top-1", target: None, points: true });
    }
    wanted.truncate(if bar == 0 { 3 } else { 4 });
    let measured = app.measured.filter(|m| m.round > 0 || app.expected.is_none());
    let mut out = Vec::new();
    for g in &wanted {
        let name = if g.name == "memory" { "mem" } else { g.name };
        out.push(span(format!("{name} "), pal.fg(Role::Dim)));
        let now = measured.and_then(|m| m.get(g.name)).filter(|v| v.is_finite());
        let expected = app.expected.and_then(|e| e.get(g.name)).map(|e| e.value);
        let Some(value) = now.or(expected) else {
            out.push(span(pal.glyph("—  ", "-  "), pal.fg(Role::Faint)));
            continue;
        };
        let forecast = now.is_none();
        let role = match meets(g, value) {
            _ if forecast => Role::Forecast,
            Some(true) => Role::Good,
            Some(false) => Role::Bad,
            None => Role::Fg,
        };
        let tilde = if forecast { "~" } else { "" };
        let text = if g.points { signed(value, 2) } else { factor(value) };
        out.push(span(format!("{tilde}{text}"), if forecast { pal.fg(role) } else { pal.bold(role) }));
        if g.points {
            if let Some((low, high)) = measured.and_then(|m| m.interval).filter(|_| !forecast && bar > 0) {
                out.push(span(format!(" [{},{}]", signed(low, 2), signed(high, 2)), pal.fg(Role::Dim)));
            }
        } else if bar > 0 {
            out.push(Span::raw(" "));
            out.extend(gauge(c, g, value, bar, forecast));
        }
        // A measured figure of an earlier round, next to what the plan is expected to reach.
        if let (Some(e), false) = (expected, forecast)
            && app.state.phase <= Phase::Review
            && app.plan_differs()
        {
            let e = if g.points { signed(e, 2) } else { factor(e) };
            out.push(span(format!(" ~{e}"), pal.fg(Role::Forecast)));
        }
        out.push(Span::raw("  "));
    }
    out.pop();
    out.push(Span::raw(" "));
    out
}

/// A bar from 0 to the original's cost, with a tick at the target.
fn gauge(c: &Canvas<'_>, goal: &Goal, value: f64, columns: usize, forecast: bool) -> Vec<Span<'static>> {
    let pal = c.pal;
    let fill = ((value.clamp(0.0, 1.0)) * columns as f64).round() as usize;
    let tick = goal.target.map(|t| ((t * columns as f64).round() as usize).min(columns.saturating_sub(1)));
    let role = match meets(goal, value) {
        Some(false) => Role::Bad,
        Some(true) => Role::Good,
        None => Role::Bar,
    };
    let style = if forecast { pal.fg(Role::Forecast) } else { pal.fg(role) };
    (0..columns)
        .map(|i| {
            if Some(i) == tick {
                span(pal.glyph("│", "|"), pal.bold(Role::Fg))
            } else if i < fill {
                span(pal.glyph(if forecast { "▒" } else { "▓" }, "#"), style)
            } else {
                span(pal.glyph("░", "."), pal.fg(Role::Faint))
            }
        })
        .collect()
}

fn phases(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    let s = &app.state;
    let arrow = pal.glyph(" ❯ ", " > ");
    let mut spans = vec![span(format!(" round {}  ", s.round), pal.fg(Role::Dim))];
    let phases = [Phase::Profile, Phase::Reason, Phase::Review, Phase::Compress, Phase::Evaluate];
    for (i, p) in phases.into_iter().enumerate() {
        if i > 0 {
            spans.push(span(arrow, pal.fg(Role::Faint)));
        }
        let current = p == s.phase || (p == Phase::Evaluate && s.phase == Phase::Verdict);
        let waits = p == Phase::Evaluate && s.phase == Phase::Verdict;
        let mut text = if waits { "verdict" } else { p.label() }.to_owned();
        if p == Phase::Review {
            let plan = s.plan();
            let standings: Vec<Standing> = plan.iter().map(|(_, p)| p.standing()).collect();
            let counts = |s: &&Standing| !matches!(s, Standing::Free | Standing::RolledBack);
            let open = |s: &&Standing| matches!(s, Standing::Proposed | Standing::Edited);
            let all = standings.iter().filter(counts).count();
            let settled = all - standings.iter().filter(open).count();
            if all > 0 {
                text.push_str(&format!(" {settled}/{all}"));
            }
        }
        let style = match (current, p < s.phase) {
            (true, _) => pal.bold(Role::Accent),
            (false, true) => pal.fg(Role::Good),
            (false, false) => pal.fg(Role::Dim),
        };
        if p < s.phase && !current {
            text.push_str(pal.glyph(" ✓", " ok"));
        }
        spans.push(span(text, style));
    }
    let left = Line::from(spans);
    let mut right: Vec<Span<'static>> = Vec::new();
    let le = pal.glyph("≤", "<=");
    let goal: Vec<String> = goals(&s.budget, false)
        .iter()
        .filter_map(|g| {
            let t = g.target?;
            Some(if g.points { format!("drop {le} {t:.2}") } else { format!("{} {le} {t:.2}x", g.name) })
        })
        .collect();
    if goal.is_empty() {
        right.push(span("no budget: `:budget macs=0.6,drop=1`   ", pal.fg(Role::Dim)));
    } else {
        right.push(span("goal  ", pal.fg(Role::Dim)));
        right.push(span(format!("{}   ", goal.join(pal.glyph(" · ", ", "))), pal.fg(Role::Fg)));
    }
    let pen = pal.glyph("✎ ", "");
    if app.has_pen() {
        right.push(span(format!("{pen}pen "), pal.fg(Role::Good)));
    } else if app.connected {
        let who = if app.pen_name.is_empty() { "another terminal" } else { &app.pen_name };
        right.push(span(format!("watching ({who} has the pen) "), pal.fg(Role::Warn)));
    } else {
        right.push(span("connecting ", pal.fg(Role::Dim)));
    }
    let right = Line::from(right);
    let rw = (right.width() as u16).min(area.width * 2 / 3);
    c.line(Rect { width: area.width - rw, ..area }, 0, &left);
    c.line(Rect { x: area.x + area.width - rw, width: rw, ..area }, 0, &right);
}
