//! Compares what was forecast with what was measured, in code: the evaluation role argues from it, and without an
//! endpoint it speaks for itself. Pure.

use super::table::short;
use crate::plan::{Estimate, Forecaster};
use crate::session::{State, Utterance};
use std::fmt;

/// One figure of a round: forecast with its range, and measured.
#[derive(Debug, Clone, PartialEq)]
pub struct CritiqueLine {
    /// `latency`, `macs`, `memory`, `params` (factors of the original) or `top-1` (points).
    pub name: &'static str,
    pub forecast: Estimate,
    pub measured: f64,
}

impl CritiqueLine {
    /// Whether the measurement lies in the forecast's range, give or take what rounding hides.
    pub fn held(&self) -> bool {
        let slack = if self.name == "top-1" { 0.05 } else { 0.005 };
        (self.forecast.low - slack..=self.forecast.high + slack).contains(&self.measured)
    }
}

/// A round's forecasts against its measurements.
#[derive(Debug, Clone, PartialEq)]
pub struct Critique {
    pub round: u32,
    pub lines: Vec<CritiqueLine>,
    /// Repair steps kept and reverted, and the calibration loss before the first and after the last.
    pub repairs: Option<(usize, usize, f64, f64)>,
}

/// The comparison for a measured round after the baseline; `None` while something is missing.
pub fn compare(state: &State, round: u32) -> Option<Critique> {
    let card = state.card.as_ref()?;
    let this = state.round_at(round).filter(|_| round > 0)?;
    let (e, base) = (this.evaluation.as_ref()?, state.baseline()?);
    let profile = state.rounds.first()?.profile.as_ref()?;
    let recipe = state.actions_of(round);
    let forecaster = Forecaster::new(&card.graph, &card.groups, profile, &state.ladders, &state.sensitivity);
    let f = forecaster.actions(&recipe);
    let over = |a: u64, b: u64| if b > 0 { a as f64 / b as f64 } else { 1.0 };
    let mut lines = vec![
        CritiqueLine { name: "macs", forecast: f.macs, measured: over(e.macs.conv_linear, base.macs.conv_linear) },
        CritiqueLine { name: "memory", forecast: f.memory, measured: over(e.weight_bytes, base.weight_bytes) },
        CritiqueLine { name: "params", forecast: f.params, measured: over(e.params, base.params) },
    ];
    if e.baseline_ms > 0.0 {
        lines.insert(0, CritiqueLine { name: "latency", forecast: f.latency, measured: e.whole.p50 / e.baseline_ms });
    }
    let d_top1 = this.verdict.as_ref().map_or(100.0 * (e.metrics.top1 - base.metrics.top1), |v| v.d_top1);
    lines.push(CritiqueLine { name: "top-1", forecast: f.d_top1, measured: d_top1 });
    let kept = this.repairs.iter().filter(|r| r.kept).count();
    let repairs = match (this.repairs.first(), this.repairs.last()) {
        (Some(a), Some(b)) => {
            let after = if b.kept { b.loss_after } else { b.loss_before };
            Some((kept, this.repairs.len() - kept, a.loss_before, after))
        }
        _ => None,
    };
    Some(Critique { round, lines, repairs })
}

/// The comparison as an utterance of the built-in critic, for sessions without an endpoint.
pub fn utterance(state: &State, round: u32) -> Option<Utterance> {
    let critique = compare(state, round)?;
    Some(Utterance {
        round,
        role: "critic".into(),
        model: "built-in".into(),
        reasoning: String::new(),
        text: critique.to_string(),
        prompt: String::new(),
        tokens: 0,
        seconds: 0.0,
        interrupted: false,
    })
}

impl fmt::Display for Critique {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for l in &self.lines {
            let unit = if l.name == "top-1" { " points" } else { "x" };
            let (low, high) = (short(l.forecast.low), short(l.forecast.high));
            let word = match (l.held(), l.measured > l.forecast.value, l.name == "top-1") {
                (true, _, _) => "as forecast",
                (false, true, true) | (false, false, false) => "better than forecast",
                (false, false, true) | (false, true, false) => "worse than forecast",
            };
            let value = short(l.forecast.value);
            writeln!(
                f,
                "{}: forecast ~{value}{unit} [{low}, {high}], measured {}{unit}: {word}",
                l.name,
                short(l.measured)
            )?;
        }
        match self.repairs {
            Some((kept, reverted, before, after)) => write!(
                f,
                "repair: {kept} steps kept, {reverted} reverted; calibration loss {} -> {}",
                short(before),
                short(after)
            ),
            None => write!(f, "repair: none was run"),
        }
    }
}
