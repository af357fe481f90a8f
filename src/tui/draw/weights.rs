//! What weights and gradients are: the legend of their columns, and what the decision card says of a row's.
//!
//! Not here: the columns themselves (`layers`). Invariants: every figure has its unit or its name; what was looked at in part has a tilde and
//! how far it may be off; gradients say which step of a healing they are of, and where none was measured there is no figure.

use super::{Canvas, span};
use crate::config::Role;
use crate::profile::LayerParameters;
use crate::train::LayerPulse;
use crate::tui::num;
use crate::tui::palette::Palette;
use crate::tui::table::Layer;
use ratatui::text::Span;

pub(super) fn legend(c: &Canvas<'_>) -> Vec<Span<'static>> {
    let (app, pal) = (c.app, c.pal);
    let (dim, dot) = (pal.fg(Role::Dim), pal.dot());
    let mut spans = vec![span("0 ", dim)];
    for i in 0..=4 {
        let x = i as f64 / 4.0;
        let glyph = if pal.wants_density() { pal.density(x).to_string() } else { " ".into() };
        spans.push(span(format!("{glyph} "), pal.heat(x)));
    }
    spans.push(span(" most", dim));
    let gradients = app.table.layers.iter().any(|l| l.pulse.is_some());
    match &app.pulse {
        Some((step, _)) => spans.push(span(format!("{dot}live, step {step}"), pal.fg(Role::Accent))),
        None if gradients => spans.push(span(format!("{dot}gradients as healing ended"), dim)),
        None => spans.push(span(format!("{dot}gradients come with :heal"), dim)),
    }
    if app.table.stale {
        let round = app.table.of_round.unwrap_or(0);
        spans.push(span(format!(" {} measured on round {round}", pal.glyph("†", "'")), pal.fg(Role::Warn)));
    }
    spans
}

/// What is known of a row's gradients, weights and norms, a paragraph each.
pub(super) fn told(c: &Canvas<'_>, l: &Layer) -> Vec<String> {
    let mut out: Vec<String> = l.pulse.iter().map(|p| gradient(c, p)).collect();
    out.extend(l.parameters.as_ref().map(|p| weights(c.pal, p, l.original.as_ref())));
    out.extend(l.norms.iter().filter_map(scales));
    out
}

/// Norm, range, zeros, rank and histogram; beside them what they were in the original, where that is another model.
pub(super) fn weights(pal: &Palette, p: &LayerParameters, original: Option<&LayerParameters>) -> String {
    let was = |now: &str, of: fn(&LayerParameters) -> Option<String>| match original.and_then(of) {
        Some(then) if then != now => format!(" (original {then})"),
        _ => String::new(),
    };
    let norm = num::fine(f64::from(p.l2));
    let mut text = match p.sampled {
        Some(s) => {
            let (looked, all) = (num::count(s.values), num::count(p.values));
            format!("~|w| {norm} ±{:.1} %, {looked} of {all} values looked at", 100.0 * s.l2)
        }
        None => format!("|w| {norm}{}", was(&norm, |p| Some(num::fine(f64::from(p.l2))))),
    };
    let range = format!("{} to {}", num::signed(p.min.into(), 2), num::signed(p.max.into(), 2));
    text.push_str(&format!(", rms {}, {range}", num::fine(f64::from(p.rms()))));
    let zeros = num::percent(p.zeros.into());
    let (tilde, off) = match p.sampled {
        Some(s) => ("~", format!(" ±{}", num::percent(s.zeros.into()))),
        None => ("", String::new()),
    };
    text.push_str(&format!(", {tilde}{zeros}{off} zeros{}", was(&zeros, |p| Some(num::percent(p.zeros.into())))));
    if let Some(r) = p.rank {
        let rank = |r: crate::profile::Rank| format!("{:.1} of {}", r.effective, r.full);
        let then = was(&rank(r), |p| p.rank.map(|r| format!("{:.1} of {}", r.effective, r.full)));
        text.push_str(&format!(", effective rank {}{then}", rank(r)));
    }
    if p.dead > 0 {
        text.push_str(&format!(", {} of {} units all zero", p.dead, p.units));
    }
    let most = p.histogram.iter().copied().max().unwrap_or(0).max(1);
    let bars: String = p.histogram.iter().map(|n| pal.spark(f64::from(*n) / f64::from(most))).collect();
    format!("{text} {bars}")
}

fn scales(p: &LayerParameters) -> Option<String> {
    let s = p.scales?;
    let (mean, least) = (num::fine(s.mean.into()), num::fine(s.least.into()));
    let dead = if p.dead > 0 { format!(", {} of {} channels multiplied away", p.dead, p.units) } else { String::new() };
    Some(format!("norm scales {mean} on average, least {least}{dead}"))
}

fn gradient(c: &Canvas<'_>, p: &LayerPulse) -> String {
    let when = match &c.app.pulse {
        Some((step, _)) => format!("step {step}"),
        None => "as healing ended".to_owned(),
    };
    let noise = match (p.noise(), p.spread) {
        (Some(noise), _) => format!(", noise {} images", num::about(noise)),
        (None, Some(_)) => ", all noise".to_owned(),
        (None, None) => String::new(),
    };
    let fisher = p.fisher().map_or_else(String::new, |f| format!(", Fisher {}", num::fine(f)));
    let (gradient, importance) = (num::fine(p.gradient.into()), num::fine(p.importance.into()));
    let moved = num::percent(p.moved.into());
    format!("|g| {gradient}, |gw| {importance}{noise}{fisher}, moved {moved}, {when}")
}
