//! Compares what was forecast with what was measured, in code: the evaluation role argues from it, and without an
//! endpoint it speaks for itself. Pure.

use super::table::short;
use crate::plan::{Basis, Estimate};
use crate::profile::Doubt;
use crate::session::{Round, State, Utterance};
use crate::words::counted;
use std::fmt;

/// One figure of a round: forecast with its range, and measured.
#[derive(Debug, Clone, PartialEq)]
pub struct CritiqueLine {
    /// `latency`, `macs`, `memory`, `params` (factors of the original) or `top-1` (points).
    pub name: &'static str,
    pub forecast: Estimate,
    pub measured: f64,
    /// Why the measurement is not to be decided on.
    pub doubt: Option<Doubt>,
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
    /// What the repair steps did; `None` without any.
    pub repairs: Option<Repairs>,
}

/// Repair steps, summed up. Each is judged by a loss at its own place in the network, so that losses of different steps
/// cannot be set beside each other; what each takes off its own can.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Repairs {
    pub kept: usize,
    pub reverted: usize,
    /// Part of the loss that the middle one of the kept steps took off, 0 to 1.
    pub median_gain: Option<f64>,
}

impl Repairs {
    /// `None` without steps.
    pub fn of(round: &Round) -> Option<Repairs> {
        let steps = &round.repairs;
        if steps.is_empty() {
            return None;
        }
        let kept = steps.iter().filter(|s| s.kept);
        let mut gains: Vec<f64> =
            kept.clone().filter(|s| s.loss_before > 0.0).map(|s| 1.0 - s.loss_after / s.loss_before).collect();
        gains.sort_by(f64::total_cmp);
        let kept = kept.count();
        Some(Repairs { kept, reverted: steps.len() - kept, median_gain: gains.get(gains.len() / 2).copied() })
    }
}

/// The comparison for a measured round after the baseline; `None` while something is missing.
pub fn compare(state: &State, round: u32) -> Option<Critique> {
    let this = state.round_at(round).filter(|_| round > 0)?;
    let (e, base) = (this.evaluation.as_ref()?, state.baseline()?);
    let recipe = state.actions_of(round);
    let f = state.forecaster()?.actions(&recipe);
    let over = |a: u64, b: u64| if b > 0 { a as f64 / b as f64 } else { 1.0 };
    let line = |name, forecast, measured| CritiqueLine { name, forecast, measured, doubt: None };
    let mut lines = vec![
        line("macs", f.macs, over(e.macs.conv_linear, base.macs.conv_linear)),
        line("memory", f.memory, over(e.weight_bytes, base.weight_bytes)),
        line("params", f.params, over(e.params, base.params)),
    ];
    if let Some(latency) = e.latency() {
        lines.insert(0, CritiqueLine { doubt: e.doubt, ..line("latency", f.latency, latency.value) });
    }
    let d_top1 = this.verdict.as_ref().map_or(100.0 * (e.metrics.top1 - base.metrics.top1), |v| v.d_top1);
    // What was shown when the run was asked for; forecasts have learnt from the round since.
    let shown = this.forecast.filter(|q| q.basis != Basis::Unmeasured).map(|q| q.estimate());
    if let Some(forecast) = shown {
        lines.push(line("top-1", forecast, d_top1));
    }
    Some(Critique { round, lines, repairs: Repairs::of(this) })
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
            let word = match (l.doubt, l.held(), l.measured > l.forecast.value, l.name == "top-1") {
                (Some(why), ..) => format!("in doubt, nothing to conclude from: {why}"),
                (None, true, _, _) => "within the forecast's range".to_owned(),
                (None, false, true, true) | (None, false, false, false) => "better than forecast".to_owned(),
                (None, false, false, true) | (None, false, true, false) => "worse than forecast".to_owned(),
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
            Some(Repairs { kept, reverted, median_gain }) => {
                write!(f, "repair: {} kept, {reverted} reverted", counted(kept, "step"))?;
                match median_gain {
                    Some(gain) => write!(
                        f,
                        "; at its place in the network a kept step took {:.0} % off the calibration loss (median)",
                        100.0 * gain
                    ),
                    None => Ok(()),
                }
            }
            None => write!(f, "repair: none was run"),
        }
    }
}
