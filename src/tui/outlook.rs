//! How far from the budget: what was measured, and what the plan as it stands is expected to reach.
//!
//! Invariant: a measured figure and an expected one are different types, so that no view can mix them up.

use crate::plan::{Basis, Budget, Decision, Estimate, Forecast, Quality};
use crate::session::State;
use crate::task::Metric;
use crate::tui::num;

/// Measured against the baseline, by the newest round in force.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measured {
    pub round: u32,
    pub latency: f64,
    /// The latency is not to be decided on.
    pub doubtful: bool,
    pub macs: f64,
    pub memory: f64,
    pub params: f64,
    /// The task's metric against the baseline in its unit, negative for worse, with the paired interval when a verdict has
    /// one.
    pub d_quality: f64,
    pub interval: Option<(f64, f64)>,
    /// How many items that is over, where it is not all of them.
    pub part: Option<usize>,
    /// What the class loses that loses most, where that is asked for.
    pub class: Option<f64>,
    /// The outputs' divergence from the original's, where it was measured.
    pub kl: Option<f64>,
}

/// Expected of a plan, as factors of the original.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Expected {
    pub latency: Option<Estimate>,
    pub macs: Option<f64>,
    pub memory: Option<f64>,
    pub params: Option<f64>,
    pub quality: Option<Quality>,
}

impl Measured {
    /// `None` before the baseline is evaluated or profiled.
    pub fn of(state: &State) -> Option<Measured> {
        Measured::of_round(state, state.evaluation()?.round)
    }

    /// The same of the model of round `number`.
    pub fn of_round(state: &State, number: u32) -> Option<Measured> {
        let base = state.baseline()?;
        let e = state.round_at(number)?.evaluation.as_ref()?;
        let ratio = |a: f64, b: f64| if b > 0.0 { a / b } else { f64::NAN };
        let verdict = state.round_at(e.round).and_then(|r| r.verdict.as_ref());
        Some(Measured {
            round: e.round,
            latency: e.latency().map_or(f64::NAN, |l| l.value),
            doubtful: e.doubt.is_some(),
            macs: ratio(e.macs.conv_linear as f64, base.macs.conv_linear as f64),
            memory: ratio(e.weight_bytes as f64, base.weight_bytes as f64),
            params: ratio(e.params as f64, base.params as f64),
            d_quality: verdict.map_or(state.metric().change(base.metrics.score, e.metrics.score), |v| v.d_quality),
            interval: verdict.map(|v| (v.d_quality_low, v.d_quality_high)),
            part: e.part.map(|_| e.metrics.n),
            class: verdict.and_then(|v| v.lines.iter().find(|l| l.name == "class")).map(|l| l.measured),
            kl: e.divergence.map(|d| d.kl.value),
        })
    }
}

/// Sums the forecasts that the decisions carry; used when there is no profile to compute them from.
pub fn summed(state: &State, decisions: &[Decision]) -> Expected {
    let mut sum = Forecast::default();
    for f in decisions.iter().filter_map(|d| d.forecast) {
        add(&mut sum.d_latency_ms, f.d_latency_ms);
        add(&mut sum.d_quality, f.d_quality);
        sum.d_macs += f.d_macs;
        sum.d_params += f.d_params;
        sum.d_bytes += f.d_bytes;
    }
    let Some(p) = state.profile_of(0) else { return Expected::default() };
    let of = |d: i64, base: u64| (base > 0).then(|| ((base as f64 + d as f64) / base as f64).max(0.0));
    let (ms, change) = (p.whole.p50, sum.d_latency_ms);
    let f = |d: f64| (ms + d) / ms;
    Expected {
        latency: (ms > 0.0).then(|| Estimate { value: f(change.value), low: f(change.low), high: f(change.high) }),
        macs: of(sum.d_macs, p.macs.conv_linear),
        memory: of(sum.d_bytes, p.weight_bytes),
        params: of(sum.d_params, p.params),
        // Without tables nobody knows what they do together.
        quality: Some(Quality {
            value: sum.d_quality.value,
            low: state.metric().of_points(-100.0),
            high: 0.0,
            ..Quality::default()
        }),
    }
}

fn add(a: &mut Estimate, b: Estimate) {
    a.value += b.value;
    a.low += b.low;
    a.high += b.high;
}

/// One line of the goal: name, target, and how the figure is written.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Goal {
    /// [`QUALITY`] stands for the task's metric: [`Goal::label`] names it.
    pub name: &'static str,
    pub target: Option<f64>,
    /// Quality is a change, negative for worse, and must not fall below; the others are factors and must not exceed.
    pub points: bool,
    /// Decimals of a change, and whether less of the metric is better.
    pub digits: usize,
    pub less: bool,
}

/// The goal that the task's metric has.
pub const QUALITY: &str = "quality";
/// The goal of a language model's divergence: nats, which nothing foretells.
pub const KL: &str = "KL";
/// The goal that no class loses more than so many points: measured, and nothing foretells it.
pub const CLASS: &str = "class";

impl Goal {
    /// Is it a factor of the original's cost?
    pub fn is_factor(&self) -> bool {
        !self.points && !self.unforetold()
    }

    /// Nothing foretells it.
    pub fn unforetold(&self) -> bool {
        [KL, CLASS].contains(&self.name)
    }

    /// The target as it is shown beside figures.
    pub fn asked(&self, target: f64) -> String {
        match self.name {
            KL | CLASS => target.to_string(),
            QUALITY => self.show(-target),
            _ => num::factor(target),
        }
    }

    /// As people call it.
    pub fn label<'a>(&self, metric: &'a Metric) -> &'a str {
        if self.points { &metric.name } else { self.name }
    }

    /// A figure of this goal: points with a sign, or a factor that is not rounded into its target.
    pub fn show(&self, value: f64) -> String {
        match (self.points, self.target) {
            _ if self.name == KL => format!("{value:.4}"),
            _ if self.name == CLASS => format!("{value:.1}"),
            (true, _) => num::signed(if self.less { -value } else { value }, self.digits),
            (false, Some(t)) => num::factor_over(value, t),
            (false, None) => num::factor(value),
        }
    }
}

/// The budget's items in screen order, those without a target too but for what is told only where it is asked for.
pub fn goals(budget: &Budget, metric: &Metric) -> Vec<Goal> {
    let items = [
        ("latency", budget.latency),
        ("memory", budget.memory),
        ("MACs", budget.macs),
        ("params", budget.params),
        (QUALITY, budget.drop),
    ];
    let class = budget.class.map(|target| (CLASS, Some(target)));
    let kl = budget.kl.map(|target| (KL, Some(target)));
    items
        .into_iter()
        .chain(class)
        .chain(kl)
        .map(|(name, target)| Goal {
            name,
            target,
            points: name == QUALITY,
            digits: metric.digits,
            less: metric.scale < 0.0,
        })
        .collect()
}

/// Whether a figure keeps to its goal; `None` without a target.
pub fn meets(goal: &Goal, value: f64) -> Option<bool> {
    let target = goal.target?;
    Some(if goal.points { value >= -target - 1e-9 } else { value <= target + 1e-9 })
}

impl Expected {
    pub fn get(&self, name: &str) -> Option<Estimate> {
        let exact = |v: f64| Estimate { value: v, low: v, high: v };
        match name {
            "latency" => self.latency,
            "memory" => self.memory.map(exact),
            "MACs" => self.macs.map(exact),
            "params" => self.params.map(exact),
            QUALITY => self.quality.filter(|q| q.basis != Basis::Unmeasured).map(|q| q.estimate()),
            _ => None,
        }
    }

    /// What stands before a figure of it: nothing where a round of this very plan was measured. Its latency is forecast again all the same.
    pub fn mark(&self, name: &str) -> &'static str {
        let measured = name != "latency" && self.quality.is_some_and(|q| q.basis == Basis::Measured);
        if measured { "" } else { "~" }
    }
}

impl Measured {
    pub fn get(&self, name: &str) -> Option<f64> {
        match name {
            "latency" => Some(self.latency),
            "memory" => Some(self.memory),
            "MACs" => Some(self.macs),
            "params" => Some(self.params),
            QUALITY => Some(self.d_quality),
            CLASS => self.class,
            KL => self.kl,
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_divergence_is_a_goal_where_it_is_asked_and_nothing_foretells_it() {
        let metric = Metric::top1(10);
        let budget = "macs=0.5,drop=1,kl=0.05".parse().expect("a budget");
        let all = goals(&budget, &metric);
        let kl = all.iter().find(|g| g.name == KL).expect("a goal");
        assert_eq!((kl.show(0.01234), kl.asked(0.05), kl.is_factor()), ("0.0123".into(), "0.05".into(), false));
        assert_eq!((meets(kl, 0.05), meets(kl, 0.051)), (Some(true), Some(false)));
        assert_eq!(Expected { macs: Some(0.4), ..Expected::default() }.get(KL), None);
        assert_eq!(
            (Measured::default().get(KL), Measured { kl: Some(0.2), ..Measured::default() }.get(KL)),
            (None, Some(0.2))
        );
        assert!(goals(&Budget::default(), &metric).iter().all(|g| g.name != KL));
        // The others are shown as they were.
        let of = |name| all.iter().find(|g| g.name == name).expect("a goal");
        assert_eq!((of("MACs").asked(0.5), of(QUALITY).asked(1.0)), ("0.50x".into(), "−1.00".into()));
    }
}
