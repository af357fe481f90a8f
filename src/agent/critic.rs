//! Compares what was forecast with what was measured, in code: the evaluation role argues from it, and without an
//! endpoint it speaks for itself. Pure.

use super::clean;
use super::table::short;
use crate::plan::{Author, Estimate};
use crate::profile::Doubt;
use crate::session::{Entry, Round, State, Utterance, ledger};
use crate::task::Metric;
use crate::words::counted;
use std::fmt;

/// One figure of a round: forecast with its range, and measured.
#[derive(Debug, Clone, PartialEq)]
pub struct CritiqueLine {
    /// `latency`, `macs`, `memory`, `params` (factors of the original) or the task's metric (in its unit).
    pub name: String,
    /// It is the metric.
    pub quality: bool,
    pub forecast: Estimate,
    pub measured: f64,
    /// Why the measurement is not to be decided on.
    pub doubt: Option<Doubt>,
    /// What rounding hides of the metric.
    slack: f64,
}

impl CritiqueLine {
    /// Whether the measurement lies in the forecast's range, give or take what rounding hides.
    pub fn held(&self) -> bool {
        let slack = if self.quality { self.slack } else { 0.005 };
        (self.forecast.low - slack..=self.forecast.high + slack).contains(&self.measured)
    }
}

/// A round's forecasts against its measurements.
#[derive(Debug, Clone, PartialEq)]
pub struct Critique {
    pub round: u32,
    pub metric: Metric,
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
    let metric = state.metric();
    let slack = metric.of_points(0.05);
    let line = |name: &str, forecast, measured| {
        let quality = name == metric.name;
        CritiqueLine { name: name.to_owned(), quality, forecast, measured, doubt: None, slack }
    };
    let latency = e.latency().map(|l| CritiqueLine { doubt: e.doubt, ..line("latency", f.latency, l.value) });
    let counts = [
        line("macs", f.macs, over(e.macs.conv_linear, base.macs.conv_linear)),
        line("memory", f.memory, over(e.weight_bytes, base.weight_bytes)),
        line("params", f.params, over(e.params, base.params)),
    ];
    let change = metric.change(base.metrics.score, e.metrics.score);
    let d_quality = this.verdict.as_ref().map_or(change, |v| v.d_quality);
    // What was shown when the run was asked for; forecasts have learnt from the round since.
    let quality = this.expected().map(|q| line(&metric.name, q.estimate(), d_quality));
    let lines = latency.into_iter().chain(counts).chain(quality).collect();
    Some(Critique { round, metric, lines, repairs: Repairs::of(this) })
}

/// The comparison as an utterance of the built-in critic, for sessions without an endpoint.
pub fn utterance(state: &State, round: u32) -> Option<Utterance> {
    let critique = compare(state, round)?;
    Some(Utterance {
        round,
        role: "critic".into(),
        model: "built-in".into(),
        text: format!("{critique}{}", standings(state, round)),
        ..Utterance::default()
    })
}

/// Who had expected what of the round, and what their records are now.
fn standings(state: &State, round: u32) -> String {
    let metric = state.metric();
    let line = |e: Entry| {
        // The planner's is the forecast above.
        let told = e.expected.filter(|_| e.who != ledger::who(&Author::Planner));
        let expected = told.map_or(String::new(), |x| {
            let came = if e.held == Some(true) { "which the measured interval holds" } else { "which did not come" };
            format!(" expected {}, {came};", metric.change_words(x))
        });
        let whose = state.decisions.iter().find(|d| ledger::who(&d.author) == e.who)?;
        let so_far = state.standing_words(&whose.author)?;
        Some(format!("\n{}:{expected} so far: {so_far}", clean::line(&e.who, 80)))
    };
    ledger::entries(state, round).into_iter().filter_map(line).collect()
}

impl fmt::Display for Critique {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for l in &self.lines {
            let quality = l.quality;
            let unit = if quality { format!(" {}", self.metric.change_unit) } else { "x".to_owned() };
            // Nats have more decimals than points.
            let show = |v: f64| match quality {
                true => format!("{:+.*}", self.metric.digits, v + 0.0),
                false => short(v),
            };
            let of = |v: f64| show(if quality { self.metric.shown(v) } else { v });
            let ends = (l.forecast.low, l.forecast.high);
            let (low, high) = if quality { self.metric.shown_range(ends.0, ends.1) } else { ends };
            let (low, high) = (show(low), show(high));
            let word = match (l.doubt, l.held(), l.measured > l.forecast.value, quality) {
                (Some(why), ..) => format!("in doubt, nothing to conclude from: {why}"),
                (None, true, _, _) => "within the forecast's range".to_owned(),
                (None, false, true, true) | (None, false, false, false) => "better than forecast".to_owned(),
                (None, false, false, true) | (None, false, true, false) => "worse than forecast".to_owned(),
            };
            let value = of(l.forecast.value);
            writeln!(
                f,
                "{}: forecast ~{value}{unit} [{low}, {high}], measured {}{unit}: {word}",
                l.name,
                of(l.measured)
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
