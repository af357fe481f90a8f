//! The status line (progress of long work, else the newest message) and the keys that work here.

use super::header::level_role;
use super::{Canvas, span};
use crate::config::text::{clean, fit};
use crate::config::{Act, Role};
use crate::tui::app::{Pane, View};
use crate::tui::num::duration;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

pub(super) fn status(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    if area.height == 0 {
        return;
    }
    let mut spans: Vec<Span<'static>> = vec![Span::raw(" ")];
    let stop = app.settings.keymap.label(Act::Interrupt);
    for j in &app.jobs {
        let part = if j.total > 0 { j.done as f64 / j.total as f64 } else { 0.0 };
        spans.push(span(format!("{} ", clean(&j.job)), pal.bold(Role::Accent)));
        if j.total > 0 {
            spans.push(span(pal.bar(part, 12), pal.fg(Role::Bar)));
            spans.push(span(format!(" {}/{} ", j.done, j.total), pal.fg(Role::Fg)));
        }
        if !j.label.is_empty() {
            spans.push(span(format!("{} ", fit(&clean(&j.label), 28)), pal.fg(Role::Dim)));
        }
        if j.rate > 0.0 {
            let rate = if j.rate >= 10.0 { format!("{:.0}/s ", j.rate) } else { format!("{:.1}/s ", j.rate) };
            spans.push(span(rate, pal.fg(Role::Dim)));
        }
        if let Some(eta) = j.eta_s {
            spans.push(span(format!("~{} left ", duration(eta)), pal.fg(Role::Forecast)));
        }
        spans.push(Span::raw(" "));
    }
    if !app.jobs.is_empty() || app.speaking() {
        if app.jobs.is_empty() {
            spans.push(span("the agents are speaking ", pal.fg(Role::Accent)));
        }
        spans.push(span(format!("{stop} interrupts  "), pal.fg(Role::Dim)));
    }
    if let Some((level, text)) = &app.message {
        spans.push(span(text.clone(), pal.fg(level_role(*level))));
    } else if app.jobs.is_empty() && !app.speaking() {
        spans.push(span(next_step(c), pal.fg(Role::Dim)));
    }
    c.line(area, 0, &Line::from(spans));
}

/// What the engineer would do now, in a sentence.
fn next_step(c: &Canvas<'_>) -> String {
    let (app, s) = (c.app, &c.app.state);
    let key = |a: Act| app.settings.keymap.label(a);
    if s.card.is_none() {
        return "waiting for the host".into();
    }
    if s.profile_of(0).is_none() {
        return format!("{} measures every layer", key(Act::Profile));
    }
    if s.phase == crate::session::Phase::Verdict {
        return format!(
            "2 shows the evaluation; {} accepts the round, {} rolls it back",
            key(Act::Accept),
            key(Act::RollBack)
        );
    }
    let (open, pending, leaving) = (s.open().len(), s.pending().len(), s.leaving().len());
    match (open, pending) {
        (0, 0) if leaving > 0 => {
            format!("{leaving} in force and vetoed; {} builds without, or {} keeps it", key(Act::Run), key(Act::Reopen))
        }
        (0, 0) if s.sensitivity.curves.is_empty() => {
            format!("{} measures sensitivities, {} asks for proposals", key(Act::Sense), key(Act::Propose))
        }
        (0, 0) => format!("{} asks for proposals", key(Act::Propose)),
        (0, n) => format!("{n} approved; {} compresses and evaluates", key(Act::Run)),
        (n, _) => format!("{n} open; {} approves the row, {} all shown", key(Act::Approve), key(Act::ApproveAll)),
    }
}

/// Candidates for the footer, the most useful first.
fn wanted(view: View, pane: Pane) -> Vec<Act> {
    use Act::*;
    match (view, pane) {
        (View::Review, Pane::Agents) => {
            vec![Interrupt, Follow, Top, Bottom, Note, NextPane, Propose, Yank, Command, Help]
        }
        (View::Review, _) => vec![
            TakePen,
            Confirm,
            Cancel,
            Approve,
            Veto,
            Edit,
            RatioDown,
            Precision,
            Reopen,
            ApproveBlock,
            ApproveAll,
            Run,
            Accept,
            RollBack,
            Interrupt,
            Propose,
            Undo,
            RemoveBlock,
            Note,
            Search,
            Sort,
            NextPane,
            Command,
            Detach,
            Help,
        ],
        (View::Evaluate, _) => vec![Accept, RollBack, Export, View1, Yank, Command, Detach, Help],
        (View::Agents, _) => vec![Interrupt, Follow, PageUp, PageDown, Note, Yank, View1, Command, Help],
        (View::Timeline, _) => vec![Undo, Redo, PageUp, PageDown, Yank, View1, Command, Help],
        (View::Report, _) => vec![Export, Yank, PageUp, PageDown, View1, Command, Help],
    }
}

pub(super) fn keys(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    if area.height == 0 {
        return;
    }
    let mut parts: Vec<(String, &'static str)> = Vec::new();
    let mut room = area.width as usize;
    let all: Vec<Act> = wanted(app.view, app.pane).into_iter().filter(|a| app.can(*a)).collect();
    // The last two (command and help) always stay.
    let tail: usize = all.iter().rev().take(2).map(|a| label(c, *a).len() + a.spec().short.len() + 3).sum();
    for (i, act) in all.iter().enumerate() {
        let key = label(c, *act);
        let w = crate::config::text::width(&key) + crate::config::text::width(act.spec().short) + 3;
        let reserve = if i + 2 < all.len() { tail } else { 0 };
        if w + reserve > room {
            continue;
        }
        room -= w;
        parts.push((key, act.spec().short));
    }
    let mut spans = Vec::new();
    for (key, short) in parts {
        spans.push(span(format!(" {key} "), pal.bold(Role::Key)));
        spans.push(span(format!("{short} "), pal.fg(Role::Dim)));
    }
    c.line(area, 0, &Line::from(spans));
}

fn label(c: &Canvas<'_>, act: Act) -> String {
    let k = &c.app.settings.keymap;
    match act {
        Act::RatioDown => format!("{} {}", k.label(Act::RatioDown), k.label(Act::RatioUp)),
        _ => k.label(act),
    }
}
