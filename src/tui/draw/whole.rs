//! The whole model on the decision card, where the row leaves room: latency with its tail, throughput, peak memory, what the row's group holds, and
//! what a network is given.
//!
//! Invariants: every line is whole or absent; figures are those of the profile that the list shows, and the round that they are of is named.

use super::{Canvas, span};
use crate::config::Role;
use crate::config::text::{clean, wrap};
use crate::plan::Target;
use crate::profile::Profile;
use crate::prune::MemberRole;
use crate::session::Evaluation;
use crate::tui::app::App;
use crate::tui::decide::unit;
use crate::tui::num;
use crate::tui::table::shown_round;
use ratatui::text::Line;

/// As many lines as `room` holds, the most asked for first.
pub(super) fn told(c: &Canvas<'_>, columns: u16, room: usize) -> Vec<Line<'static>> {
    let columns = columns.saturating_sub(2) as usize;
    let mut lines: Vec<Line<'static>> = Vec::new();
    let app = c.app;
    for text in [latency(app), memory(app), group(app), input(app)].into_iter().flatten() {
        let more = wrap(&text, columns);
        if lines.len() + more.len() + usize::from(lines.is_empty()) > room {
            continue;
        }
        if lines.is_empty() {
            lines.push(Line::default());
        }
        lines.extend(more.into_iter().map(|l| Line::from(span(format!(" {l}"), c.pal.fg(Role::Dim)))));
    }
    lines
}

/// The profile that the list shows, and the words for what it is of.
fn shown(app: &App) -> Option<(&Profile, String, u32)> {
    let state = &app.state;
    let newest = shown_round(state);
    let round = (0..=newest).rev().find(|&r| state.profile_of(r).is_some())?;
    let whose = if round == 0 { "original".to_owned() } else { format!("round {round}") };
    Some((state.profile_of(round)?, whose, round))
}

/// Whether what the newest model took beside the original, which other panes tell, reads otherwise than what its rows add up to.
pub(super) fn rows_differ(app: &App) -> bool {
    let Some((p, _, round)) = shown(app) else { return false };
    beside(app, round).is_some_and(|e| num::ms(e.whole.p50) != num::ms(p.whole.p50))
}

/// The evaluation that timed a round's model beside the original.
fn beside(app: &App, round: u32) -> Option<&Evaluation> {
    app.state.round_at(round).and_then(|r| r.evaluation.as_ref()).filter(|e| e.whole.n > 0)
}

/// Median, tail and throughput of a batch.
pub(super) fn latency(app: &App) -> Option<String> {
    let (p, whose, round) = shown(app)?;
    // Of a round that was evaluated what it took beside the original, as view 2 has it.
    let evaluated = beside(app, round);
    let (w, doubt) = evaluated.map_or((&p.whole, p.doubt), |e| (&e.whole, e.doubt));
    if w.p50 <= 0.0 {
        return None;
    }
    let mark = num::mark(doubt.is_some());
    let (p99, unknown) = match w.p99 {
        Some(p99) => (format!(" p99 {}{mark}", num::ms(p99)), String::new()),
        None => (String::new(), format!(", p99 not told by {}", crate::words::counted(w.n, "run"))),
    };
    let item = &app.state.metric().item;
    let rate = p.batch as f64 * 1000.0 / w.p50;
    // Two measurements, of which the rows add up to one.
    let [told, rows] = [w.p50, p.whole.p50].map(num::ms);
    let rows = match evaluated.is_some() && told != rows {
        true => format!("; profiled at {rows}{}, which its rows add up to", num::mark(p.doubt.is_some())),
        false => String::new(),
    };
    Some(format!(
        "{whose}: p50 {}{mark} p95 {}{mark}{p99} ms a batch of {}{unknown}{}{}{mark} {item}s/s{rows}",
        num::ms(w.p50),
        num::ms(w.p95),
        p.batch,
        app.palette.dot(),
        num::scaled(rate, 1.0)
    ))
}

/// Weights, and activations where most of them live.
pub(super) fn memory(app: &App) -> Option<String> {
    let (p, ..) = shown(app)?;
    let all = p.weight_bytes + p.peak_activation_bytes;
    (p.peak_activation_bytes > 0).then(|| {
        format!(
            "peak memory {}: weights {}, activations {} at the most",
            num::bytes(all),
            num::bytes(p.weight_bytes),
            num::bytes(p.peak_activation_bytes)
        )
    })
}

/// Who makes and who reads the units of the row's group.
fn group(app: &App) -> Option<String> {
    let Some(Target::Group(id)) = app.focused().map(|f| f.target) else { return None };
    let group = app.group(&id)?;
    let of = |role: MemberRole| -> Vec<String> {
        let names = group.members.iter().filter(|m| m.role == role).map(|m| clean(&m.node).into_owned());
        let mut names: Vec<String> = names.collect();
        names.dedup();
        names
    };
    let listed = |names: Vec<String>| match names.len() {
        0..=3 => names.join(", "),
        n => format!("{} and {} more", names[..2].join(", "), n - 2),
    };
    let (made, read) = (of(MemberRole::Producer), of(MemberRole::Consumer));
    (!made.is_empty())
        .then(|| format!("group {} {}: made by {}, read by {}", group.size, unit(group), listed(made), listed(read)))
}

fn input(app: &App) -> Option<String> {
    let card = app.state.card.as_ref()?;
    // Of images; a text's length is in the header.
    if !matches!(card.graph.input_shape().as_deref(), Ok(&[_, _, _])) {
        return None;
    }
    let p = &card.model.preprocess;
    let list =
        |v: &[f32; 3]| v[..p.channels.clamp(1, 3)].iter().map(|x| format!("{x:.3}")).collect::<Vec<_>>().join(" ");
    Some(format!(
        "input {}x{}x{}, {}, mean {} std {} ({})",
        p.size[0],
        p.size[1],
        p.channels,
        p.interpolation.label(),
        list(&p.mean),
        list(&p.std),
        clean(&p.origin)
    ))
}
