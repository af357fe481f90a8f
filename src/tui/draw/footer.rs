//! The status line (progress of long work, else the newest message) and the keys that work here.

use super::header::level_role;
use super::{Canvas, span};
use crate::config::text::{clean, fit, width};
use crate::config::{Act, Role};
use crate::session::Phase;
use crate::tui::app::{App, Level, Pane, View};
use crate::tui::num::duration;
use ratatui::layout::{Position, Rect};
use ratatui::text::{Line, Span};

/// How far the work is, then the newest message or what to do next. Where there is not room for all of both the work keeps its bar and the
/// message is cut, unless that is a failure or asks for a verdict: neither may be pushed off by a bar.
pub(super) fn status(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    if area.height == 0 {
        return;
    }
    let message = match &app.message {
        Some((level, text)) => Some(span(text.clone(), pal.fg(level_role(*level)))),
        None if app.busy() => None,
        None => Some(span(next_step(c), pal.fg(Role::Dim))),
    };
    let wide = |spans: &[Span<'_>]| spans.iter().map(Span::width).sum::<usize>();
    let room = (area.width as usize).saturating_sub(1);
    let said = message.as_ref().map_or(0, Span::width);
    let mut spans: Vec<Span<'static>> = vec![Span::raw(" ")];
    if app.busy() {
        let level = |most: usize, beside: usize| {
            (0..=most).rev().map(|detail| work(c, detail)).find(|w| wide(w) + beside <= room)
        };
        let first = app.state.phase == Phase::Verdict || matches!(&app.message, Some((Level::Bad, _)));
        let beside = level(WORK_DETAILS, said).or_else(|| level(WITH_BAR, LEAST_SAID).filter(|_| !first));
        spans.extend(beside.unwrap_or_default());
    }
    let left = room.saturating_sub(wide(&spans) - 1);
    spans.extend(message.map(|m| span(fit(&m.content, left).into_owned(), m.style)));
    c.line(area, 0, &Line::from(spans));
}

const WORK_DETAILS: usize = 5;
/// The bar and how long it takes.
const WITH_BAR: usize = 2;
/// Columns of a message that is cut.
const LEAST_SAID: usize = 24;

/// What is under way: with everything (5), without what was last measured (4), without what it is at (3), without the rate (2), without the bar (1), and as its
/// name alone (0).
fn work(c: &Canvas<'_>, detail: usize) -> Vec<Span<'static>> {
    let (app, pal) = (c.app, c.pal);
    let mut spans: Vec<Span<'static>> = Vec::new();
    for j in &app.jobs {
        let part = if j.total > 0 { j.done as f64 / j.total as f64 } else { 0.0 };
        spans.push(span(format!("{} ", clean(&j.job)), pal.bold(Role::Accent)));
        if j.total > 0 && detail >= 1 {
            if detail >= 2 {
                let bar = pal.bar(part, 12);
                let done = bar.trim_end();
                let track = pal.glyph("░", ".").repeat(12 - done.chars().count().min(12));
                spans.push(span(done.to_owned(), pal.fg(Role::Bar)));
                spans.push(span(format!("{track} "), pal.fg(Role::Faint)));
            }
            spans.push(span(format!("{}/{} ", j.done, j.total), pal.fg(Role::Fg)));
        }
        if !j.label.is_empty() && detail >= 4 {
            spans.push(span(format!("{} ", fit(&clean(&j.label), 28)), pal.fg(Role::Dim)));
        }
        if j.rate > 0.0 && detail >= 3 {
            let rate = if j.rate >= 10.0 { format!("{:.0}/s ", j.rate) } else { format!("{:.1}/s ", j.rate) };
            spans.push(span(rate, pal.fg(Role::Dim)));
        }
        if let Some(eta) = j.eta_s.filter(|_| detail >= 1) {
            spans.push(span(format!("~{} left ", duration(eta)), pal.fg(Role::Forecast)));
        }
        if let Some(last) = app.working.last.as_ref().filter(|_| detail >= 5) {
            spans.push(span(format!("· {} ", fit(last, 60)), pal.fg(Role::Dim)));
        }
        spans.push(Span::raw(" "));
    }
    if app.jobs.is_empty() {
        let what = match app.state.phase {
            _ if app.speaking() => "the agents are speaking ",
            _ if app.decoding => "decoding at its levels ",
            Phase::Compress => "compressing ",
            Phase::Evaluate => "evaluating ",
            Phase::Profile | Phase::Reason | Phase::Review | Phase::Verdict => "working ",
        };
        spans.push(span(what, pal.fg(Role::Accent)));
    }
    let stop = app.label(Act::Interrupt);
    spans.push(span(format!("{stop} interrupts  "), pal.fg(Role::Dim)));
    spans
}

/// What the engineer would do now, in a sentence.
fn next_step(c: &Canvas<'_>) -> String {
    let (app, s) = (c.app, &c.app.state);
    let key = |a: Act| app.label(a);
    if let Some(words) = app.selected_words().filter(|_| app.view == View::Review) {
        let [approve, veto, less, more, precision, drop] =
            [Act::Approve, Act::Veto, Act::RatioDown, Act::RatioUp, Act::Precision, Act::Cancel].map(key);
        return format!(
            "{words} selected: {approve} approves, {veto} vetoes, {less} {more} cut, {precision} sets the precision; {drop} drops it"
        );
    }
    if s.card.is_none() {
        return "waiting for the host".into();
    }
    if s.profile_of(0).is_none() {
        return format!("{} measures every layer", key(Act::Profile));
    }
    if s.phase == Phase::Verdict {
        let answer = format!("{} accepts the round, {} rolls it back", key(Act::Accept), key(Act::RollBack));
        return match app.view {
            View::Evaluate => answer,
            View::Review
            | View::Agents
            | View::Timeline
            | View::Report
            | View::Control
            | View::Plans
            | View::Inspect
            | View::Profile => {
                format!("{} shows the evaluation; {answer}", key(Act::View2))
            }
        };
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
        (n, _) if app.view != View::Review => format!("{n} open; {} goes to them", key(Act::View1)),
        (n, _) => format!("{n} open; {} approves the row, {} all shown", key(Act::Approve), key(Act::ApproveAll)),
    }
}

/// Candidates for the footer, the most useful first.
fn wanted(view: View, pane: Pane) -> Vec<Act> {
    use Act::*;
    match (view, pane) {
        (View::Review, Pane::Agents) => {
            vec![
                Interrupt, Follow, NextName, NextMatch, Search, Top, Bottom, Note, NextPane, Propose, Yank, Command,
                Help,
            ]
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
            Select,
            Precisions,
            RemoveBlock,
            Note,
            Search,
            Sort,
            NextPane,
            Command,
            Detach,
            Help,
        ],
        (View::Evaluate, _) => vec![Accept, RollBack, OtherWay, NextPane, Export, View1, Yank, Command, Detach, Help],
        (View::Agents, _) => {
            vec![Interrupt, Follow, NextName, NextMatch, Search, PageUp, PageDown, Note, Yank, View1, Command, Help]
        }
        (View::Timeline, _) => {
            vec![Confirm, Undo, Redo, NextMatch, Search, PageUp, PageDown, Yank, View1, Command, Help]
        }
        (View::Control, _) => vec![TakePen, NextLevel, Interrupt, Export, View1, Yank, Command, Detach, Help],
        (View::Plans, _) => {
            vec![TakePen, TakeRow, TakeBlock, TakeAll, NextPlan, Fork, Undo, Run, View1, Yank, Command, Detach, Help]
        }
        (View::Profile, _) => {
            vec![NextPane, Confirm, Measure, Interrupt, PageUp, PageDown, View1, Yank, Explain, Command, Detach, Help]
        }
        (View::Inspect, _) => vec![Measure, PageUp, PageDown, View1, Yank, Command, Detach, Help],
        (View::Report, _) => vec![Export, NextMatch, Search, Yank, PageUp, PageDown, View1, Command, Help],
    }
}

/// The keys that there is room for in `room` columns, each with its label and the column that it begins at.
fn shown(app: &App, room: usize) -> Vec<(u16, Act, String)> {
    let all: Vec<Act> = wanted(app.view, app.pane).into_iter().filter(|a| app.can(*a)).collect();
    // The last two (command and help) always stay.
    let tail: usize = all.iter().rev().take(2).map(|a| label(app, *a).len() + short(app, *a).len() + 3).sum();
    let (mut out, mut at) = (Vec::new(), 0);
    for (i, act) in all.iter().enumerate() {
        let key = label(app, *act);
        let w = width(&key) + width(short(app, *act)) + 3;
        let reserve = if i + 2 < all.len() { tail } else { 0 };
        if at + w + reserve <= room {
            out.push((at as u16, *act, key));
            at += w;
        }
    }
    out
}

pub(super) fn keys(c: &mut Canvas<'_>, area: Rect) {
    let (app, pal) = (c.app, c.pal);
    if area.height == 0 {
        return;
    }
    let mut spans = Vec::new();
    for (_, act, key) in shown(app, area.width as usize) {
        spans.push(span(format!(" {key} "), pal.bold(Role::Key)));
        spans.push(span(format!("{} ", short(app, act)), pal.fg(Role::Dim)));
    }
    c.line(area, 0, &Line::from(spans));
}

/// The key under a place of the footer.
pub fn act_at(app: &App, area: Rect, at: Position) -> Option<Act> {
    let x = at.x.checked_sub(area.x).filter(|_| area.contains(at))?;
    let all = shown(app, area.width as usize);
    let ends = |(begin, act, key): &(u16, Act, String)| begin + (width(key) + width(short(app, *act)) + 3) as u16;
    all.iter().find(|k| (k.0..ends(k)).contains(&x)).map(|(_, act, _)| *act)
}

fn label(app: &App, act: Act) -> String {
    match act {
        Act::RatioDown => format!("{} {}", app.label(Act::RatioDown), app.label(Act::RatioUp)),
        _ => app.label(act),
    }
}

/// What the key does here.
fn short(app: &App, act: Act) -> &'static str {
    match (app.view, act) {
        (View::Profile, Act::NextPane) => "next page",
        (View::Profile, Act::Confirm) => "to the row",
        (View::Timeline, Act::Confirm) => "restore",
        _ => act.spec().short,
    }
}
