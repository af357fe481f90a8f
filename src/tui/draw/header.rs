//! The header: model, data, device, totals against the budget, the round's phases, the pen; and warning lines.

use super::{Canvas, span};
use crate::config::text::{clean, fit, width};
use crate::config::{Act, Role};
use crate::session::{Phase, Standing};
use crate::tui::app::Level;
use crate::tui::layout::{Class, Layout, class};
use crate::tui::num::{mark, range};
use crate::tui::outlook::{CLASS, Goal, KL, QUALITY, goals, meets};
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
        let room = (l.banners.width as usize).saturating_sub(3);
        // The timeline has failures whole, with their way out.
        let more = format!("  {} has the rest", c.app.label(Act::View4));
        let text = match width(text) > room && *level == Level::Bad {
            true => format!("{}{more}", fit(text, room.saturating_sub(width(&more)).max(1))),
            false => text.clone(),
        };
        c.line(l.banners, i as u16, &Line::from(span(format!(" {mark} {text}"), style)));
    }
}

/// How much the header tells; what there is no room for is left out whole, never cut: half a figure is a false one.
#[derive(Debug, Clone, Copy)]
struct Detail {
    /// Parts of the left side: more is more.
    left: usize,
    /// Columns of a goal's bar.
    bar: usize,
    interval: bool,
    expected: bool,
}

/// From everything to the least, in the order in which things go when room is short.
const DETAILS: [(usize, usize, bool, bool); 12] = [
    (4, 8, true, true),
    (4, 5, true, true),
    (3, 8, true, true),
    (3, 5, true, true),
    (2, 5, true, true),
    (3, 0, true, true),
    (2, 0, true, true),
    (2, 0, false, true),
    (1, 0, false, true),
    (2, 0, false, false),
    (1, 0, false, false),
    (0, 0, false, false),
];

fn top(c: &mut Canvas<'_>, area: Rect, wide: bool) {
    let mut wanted = shown_goals(c);
    loop {
        for (left, bar, interval, expected) in DETAILS {
            let d = Detail { left, bar: if wide { bar } else { 0 }, interval: wide && interval, expected };
            let (left, mut right) = (Line::from(identity(c, wide, d.left)), Line::from(totals(c, &wanted, d)));
            // What the forecasts among them count on, in full or short; it goes last, since a forecast of who knows what is
            // none.
            let app = c.app;
            if app.expected.is_some() && app.state.phase <= Phase::Review && app.plan_differs() {
                let room =
                    (area.width as usize).saturating_sub(left.width() + right.width() + 2 * usize::from(d.left > 0));
                // Without room for them, what was measured stands alone, and says of which round it is.
                let measured = app.measured.filter(|m| m.round > 0 && !d.expected);
                let words = match measured {
                    Some(m) => [format!("round {}:  ", m.round), format!("r{}: ", m.round)],
                    None => [format!("{}:  ", app.plan_words()), format!("{}: ", app.plan_word())],
                };
                match words.into_iter().find(|w| crate::config::text::width(w) <= room) {
                    Some(w) => right.spans.insert(0, span(w, c.pal.fg(Role::Dim))),
                    None if d.expected || d.left > 0 => continue,
                    None => {}
                }
            }
            let gap = 2 * u16::from(d.left > 0);
            if left.width() as u16 + right.width() as u16 + gap <= area.width {
                let at = area.x + area.width - right.width() as u16;
                c.line(area, 0, &left);
                c.line(Rect { x: at, width: area.x + area.width - at, ..area }, 0, &right);
                return;
            }
        }
        // Accuracy is the last to go.
        let Some(i) = wanted.iter().rposition(|g| !g.points).or(wanted.len().checked_sub(1)) else { return };
        wanted.remove(i);
    }
}

/// Whose session this is and where it stands, in `parts` parts at most.
fn identity(c: &Canvas<'_>, wide: bool, parts: usize) -> Vec<Span<'static>> {
    let (app, pal) = (c.app, c.pal);
    let dim = pal.fg(Role::Dim);
    let sep = pal.dot();
    let mut out: Vec<Span<'static>> = Vec::new();
    if parts >= 2 {
        out.push(span(" paring ", pal.bold(Role::Accent)));
    }
    let Some(card) = &app.state.card else {
        if parts >= 1 {
            out.push(span(" opening the session …", dim));
        }
        return out;
    };
    if parts >= 1 {
        out.push(span(format!(" {}", clean(&card.model.name)), pal.bold(Role::Fg)));
    }
    if wide && parts >= 3 {
        out.push(span(format!("{sep}{}", clean(&card.data.name)), dim));
    }
    if wide && parts >= 4 {
        out.push(span(format!("{sep}{}", clean(&card.device)), dim));
    }
    if !wide {
        let lead = if parts >= 1 { sep } else { " " };
        out.push(span(format!("{lead}r{} {}", app.state.round, app.state.phase.label()), pal.fg(Role::Accent)));
        if app.connected && !app.has_pen() {
            out.push(span(format!("{sep}watching"), pal.fg(Role::Warn)));
        }
    }
    out
}

/// The budget's figures, and accuracy in any case.
fn shown_goals(c: &Canvas<'_>) -> Vec<Goal> {
    let (budget, metric) = (&c.app.state.budget, c.app.state.metric());
    let all = goals(budget, &metric);
    let none = all.iter().all(|g| g.target.is_none());
    let wanted = |g: &Goal| g.points || g.target.is_some() || (none && ["latency", "memory"].contains(&g.name));
    all.into_iter().filter(wanted).collect()
}

/// One figure per goal: measured when a compressed round was measured, else expected; with a bar against the target.
fn totals(c: &Canvas<'_>, wanted: &[Goal], d: Detail) -> Vec<Span<'static>> {
    let (app, pal) = (c.app, c.pal);
    let measured = app.measured.filter(|m| m.round > 0 || app.expected.is_none());
    let metric = app.state.metric();
    let mut out = Vec::new();
    for g in wanted {
        let name = if g.name == "memory" { "mem" } else { g.label(&metric) };
        out.push(span(format!("{name} "), pal.fg(Role::Dim)));
        let now = measured.and_then(|m| m.get(g.name)).filter(|v| v.is_finite());
        let expected = app.expected.and_then(|e| e.get(g.name)).map(|e| e.value);
        let Some(value) = now.or(expected) else {
            if !g.is_factor() && app.expected.is_some() {
                // A plan whose loss nothing has measured is not a plan that loses nothing.
                out.push(span("~?  ", pal.fg(Role::Warn)));
                continue;
            }
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
        let tilde = if forecast { app.expected.map_or("~", |e| e.mark(g.name)) } else { "" };
        let text = g.show(value);
        let doubt = mark(g.name == "latency" && !forecast && measured.is_some_and(|m| m.doubtful));
        out.push(span(format!("{tilde}{text}{doubt}"), if forecast { pal.fg(role) } else { pal.bold(role) }));
        if g.points {
            // Beside figures of all items.
            if let Some(n) = measured.and_then(|m| m.part).filter(|_| !forecast) {
                out.push(span(format!(" of {n}"), pal.fg(Role::Warn)));
            }
            if let Some(ends) = measured.and_then(|m| m.interval).filter(|_| !forecast && d.interval) {
                out.push(span(format!(" {}", range(&metric, ends, ",")), pal.fg(Role::Dim)));
            }
        } else if g.is_factor() && d.bar > 0 {
            out.push(Span::raw(" "));
            out.extend(gauge(c, g, value, d.bar, forecast));
        }
        // A measured figure of an earlier round, next to what the plan is expected to reach.
        if let (Some(e), false, true) = (expected, forecast, d.expected)
            && app.state.phase <= Phase::Review
            && app.plan_differs()
        {
            let tilde = app.expected.map_or("~", |e| e.mark(g.name));
            out.push(span(format!(" {tilde}{}", g.show(e)), pal.fg(Role::Forecast)));
        }
        out.push(Span::raw("  "));
    }
    out.pop();
    out.push(Span::raw(" "));
    out
}

/// A bar from 0 to the original's cost, with a tick between the cells at the target: what is filled beyond it is too much.
fn gauge(c: &Canvas<'_>, goal: &Goal, value: f64, columns: usize, forecast: bool) -> Vec<Span<'static>> {
    let pal = c.pal;
    let cells = |part: f64| (part.clamp(0.0, 1.0) * columns as f64).round() as usize;
    let tick = goal.target.map(cells);
    let mut fill = cells(value);
    if let Some(t) = tick {
        // Too much is seen as such, however little it is, and what keeps to the goal stays this side of the tick.
        fill = if meets(goal, value) == Some(false) { fill.max(t + 1) } else { fill.min(t) };
    }
    let style = pal.fg(match meets(goal, value) {
        _ if forecast => Role::Forecast,
        Some(false) => Role::Bad,
        Some(true) => Role::Good,
        None => Role::Bar,
    });
    let mut out = Vec::new();
    for i in 0..=columns {
        if Some(i) == tick {
            out.push(span(pal.glyph("│", "|"), pal.bold(Role::Fg)));
        }
        if i < columns {
            let (full, empty) = (pal.glyph(if forecast { "▒" } else { "▓" }, "#"), pal.glyph("░", "."));
            out.push(if i < fill { span(full, style) } else { span(empty, pal.fg(Role::Faint)) });
        }
    }
    out
}

/// The round's course on the left, goal and pen on the right: each as long as there is room for, so that neither runs into
/// the other.
fn phases(c: &mut Canvas<'_>, area: Rect) {
    let order = [(3, 3), (3, 2), (2, 3), (2, 2), (1, 2), (3, 1), (2, 1), (1, 1), (0, 1), (1, 0), (0, 0)];
    for (left, right) in order {
        let (left, right) = (Line::from(course(c, left)), Line::from(goal_and_pen(c, right)));
        let (lw, rw) = (left.width() as u16, right.width() as u16);
        if lw + rw + 2 <= area.width {
            c.line(area, 0, &left);
            c.line(Rect { x: area.x + area.width - rw, width: rw, ..area }, 0, &right);
            return;
        }
    }
    c.line(area, 0, &Line::from(course(c, 0)));
}

/// The phases: all of them with ticks (3), without (2), from the current one on (1), or the current one alone (0).
fn course(c: &Canvas<'_>, detail: usize) -> Vec<Span<'static>> {
    let (app, pal) = (c.app, c.pal);
    let s = &app.state;
    let arrow = pal.glyph(" ❯ ", " > ");
    let round = if detail > 0 { format!(" round {}  ", s.round) } else { format!(" r{} ", s.round) };
    let mut spans = vec![span(round, pal.fg(Role::Dim))];
    let phases = [Phase::Profile, Phase::Reason, Phase::Review, Phase::Compress, Phase::Evaluate];
    let mut first = true;
    for p in phases {
        let current = p == s.phase || (p == Phase::Evaluate && s.phase == Phase::Verdict);
        let passed = p < s.phase && !current;
        if (passed && detail < 2) || (!current && detail < 1) {
            continue;
        }
        if !std::mem::take(&mut first) {
            spans.push(span(arrow, pal.fg(Role::Faint)));
        }
        let waits = p == Phase::Evaluate && s.phase == Phase::Verdict;
        let mut text = if waits { "verdict" } else { p.label() }.to_owned();
        if p == Phase::Review {
            let plan = s.plan();
            let count = |f: fn(Standing) -> bool| plan.iter().filter(|(_, p)| f(p.standing())).count();
            let all = count(|s| !matches!(s, Standing::Free | Standing::RolledBack));
            let settled = all - count(|s| matches!(s, Standing::Proposed | Standing::Edited));
            if all > 0 {
                text.push_str(&format!(" {settled}/{all}"));
            }
        }
        let style = match (current, passed) {
            (true, _) => pal.bold(Role::Accent),
            (false, true) => pal.fg(Role::Good),
            (false, false) => pal.fg(Role::Dim),
        };
        if passed && detail > 2 {
            text.push_str(pal.glyph(" ✓", " ok"));
        }
        spans.push(span(text, style));
    }
    spans
}

/// The goal and who has the pen: in full (3), without the word (2), without the other's name (1), or the pen alone (0).
fn goal_and_pen(c: &Canvas<'_>, detail: usize) -> Vec<Span<'static>> {
    let (app, pal) = (c.app, c.pal);
    let mut right: Vec<Span<'static>> = Vec::new();
    let le = pal.glyph("≤", "<=");
    let heal = app.state.heal.map(|h| format!("heal {}", h.length));
    let goal: Vec<String> = goals(&app.state.budget, &app.state.metric())
        .iter()
        .filter_map(|g| {
            let t = g.target?;
            Some(match g.name {
                QUALITY => format!("drop {le} {t:.*}", g.digits),
                KL => format!("KL {le} {t}"),
                CLASS => format!("a class {le} {t}"),
                name => format!("{name} {le} {t:.2}x"),
            })
        })
        .chain(heal)
        .chain(app.state.until_clear.then(|| "until clear".to_owned()))
        .collect();
    match (goal.is_empty(), detail) {
        (_, 0) => {}
        (true, 1 | 2) => right.push(span("no budget   ", pal.fg(Role::Dim))),
        (true, _) => {
            // A whole nat is another model.
            let language = app.state.card.as_ref().is_some_and(|c| c.graph.is_language_model());
            let usual = if language { "macs=0.8,drop=0.1" } else { "macs=0.6,drop=1" };
            right.push(span(format!("no budget: `:budget {usual}`   "), pal.fg(Role::Dim)));
        }
        (false, _) => {
            if detail > 2 {
                right.push(span("goal  ", pal.fg(Role::Dim)));
            }
            right.push(span(format!("{}   ", goal.join(pal.glyph(" · ", ", "))), pal.fg(Role::Fg)));
        }
    }
    let (words, role) = if app.has_pen() {
        (format!("{}pen ", pal.glyph("✎ ", "")), Role::Good)
    } else if app.connected && detail > 1 {
        let who = if app.pen_name.is_empty() { "another terminal" } else { &app.pen_name };
        (format!("watching ({} has the pen) ", fit(who, 24)), Role::Warn)
    } else if app.connected {
        ("watching ".to_owned(), Role::Warn)
    } else {
        ("connecting ".to_owned(), Role::Dim)
    };
    right.push(span(words, pal.fg(role)));
    right
}
