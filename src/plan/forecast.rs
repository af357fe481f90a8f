//! What decisions are expected to do, before they run: what they cost and save (`cost`), and top-1 with its range. Pure
//! tables and the graph, fast enough to be asked while a ratio is dragged.
//!
//! Invariants: an empty plan forecasts exactly nothing; every estimate has `low ≤ value ≤ high`. Not here: choosing
//! (`planner`) and measuring (`profile`).

use super::cost::{Cost, Costs, RowForecast, Slower};
use super::curve::Curve;
use super::{Action, Budget, Decision, Estimate, Forecast, Outcome, Status, Target};
use crate::graph::Graph;
use crate::profile::{Ladder, Profile, SensCurve, SensPoint, SensTarget, Sensitivity};
use crate::prune::Group;
use crate::quant::Precision;
use std::collections::HashMap;

/// How far forecasts are believed, from comparing earlier rounds' forecasts with what was measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Trust {
    /// Measured top-1 drop over the forecast's: multiplies every accuracy forecast.
    pub drop: f64,
    /// Half-width of the accuracy range as a part of the value.
    pub drop_spread: f64,
    /// Measured latency saving over the forecast's.
    pub latency: f64,
}

impl Default for Trust {
    fn default() -> Trust {
        Trust { drop: 1.0, drop_spread: 0.7, latency: 1.0 }
    }
}

/// A whole plan's forecast: changes against the original, and factors of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlanForecast {
    pub forecast: Forecast,
    pub latency: Estimate,
    pub macs: Estimate,
    pub memory: Estimate,
    pub params: Estimate,
    /// Points of top-1.
    pub d_top1: Estimate,
    /// Decisions that cannot be combined with the others, in words; they are left out of the figures.
    pub skipped: Vec<String>,
}

/// One budget item against its forecast.
#[derive(Debug, Clone, PartialEq)]
pub struct BudgetLine {
    /// `latency`, `macs`, `memory`, `params` or `drop`.
    pub name: &'static str,
    pub target: f64,
    /// Factor, or for `drop` the expected drop in points (positive: worse).
    pub forecast: Estimate,
    /// Undecided when the range straddles the target.
    pub outcome: Outcome,
}

impl PlanForecast {
    /// The forecast against each item that the budget sets.
    pub fn against(&self, budget: &Budget) -> Vec<BudgetLine> {
        let drop = Estimate { value: -self.d_top1.value, low: -self.d_top1.high, high: -self.d_top1.low };
        [
            ("latency", budget.latency, self.latency),
            ("macs", budget.macs, self.macs),
            ("memory", budget.memory, self.memory),
            ("params", budget.params, self.params),
            ("drop", budget.drop, drop),
        ]
        .into_iter()
        .filter_map(|(name, target, forecast)| {
            let target = target?;
            let outcome = if forecast.high <= target + 1e-9 {
                Outcome::Accept
            } else if forecast.low > target + 1e-9 {
                Outcome::Reject
            } else {
                Outcome::Undecided
            };
            Some(BudgetLine { name, target, forecast, outcome })
        })
        .collect()
    }
}

/// Forecasts for one model from its tables. Owns copies, so that a screen can keep it.
#[derive(Debug, Clone)]
pub struct Forecaster {
    costs: Costs,
    curves: HashMap<SensTarget, Curve>,
    /// Rise of the calibration loss.
    losses: HashMap<SensTarget, Curve>,
    trust: Trust,
}

impl Forecaster {
    pub fn new(
        graph: &Graph,
        groups: &[Group],
        profile: &Profile,
        ladders: &[Ladder],
        sensitivity: &Sensitivity,
    ) -> Forecaster {
        let curves = curves_of(sensitivity, |p| p.kl);
        let losses = curves_of(sensitivity, |p| p.d_loss);
        Forecaster { costs: Costs::new(graph, groups, profile, ladders), curves, losses, trust: Trust::default() }
    }

    /// Forecasts with what earlier rounds taught.
    pub fn with_trust(mut self, trust: Trust) -> Forecaster {
        self.trust = trust;
        self.costs.trust = trust.latency;
        self
    }

    pub fn trust(&self) -> Trust {
        self.trust
    }

    /// Forecast of one decision on its own.
    pub fn decision(&self, decision: &Decision) -> Forecast {
        self.actions(&[(decision.target.clone(), decision.action.clone())]).forecast
    }

    /// Forecast of all `decisions` together; the newest on a target counts, vetoed and rolled-back ones do not.
    pub fn plan(&self, decisions: &[&Decision]) -> PlanForecast {
        let mut newest: Vec<(Target, Action)> = Vec::new();
        for d in decisions.iter().filter(|d| !matches!(d.status, Status::Vetoed | Status::RolledBack)) {
            match newest.iter_mut().find(|(t, _)| *t == d.target) {
                Some(slot) => slot.1 = d.action.clone(),
                None => newest.push((d.target.clone(), d.action.clone())),
            }
        }
        self.actions(&newest)
    }

    /// Forecast of a set of actions, one a target.
    pub fn actions(&self, actions: &[(Target, Action)]) -> PlanForecast {
        let wanted = actions.iter().filter(|(_, a)| *a != Action::Keep).cloned().collect();
        let (cost, used, skipped) = self.costs.combined(wanted);
        let Some(cost) = cost else { return PlanForecast { skipped, ..PlanForecast::default() } };
        let (kl, unknown) = self.harm(&used);
        let d_top1 = self.top1(kl, unknown);
        let (d_latency_ms, latency) = self.costs.latency(&cost, !used.is_empty());
        let base = self.base();
        let ratio = |new: u64, old: u64| exactly(if old > 0 { new as f64 / old as f64 } else { 1.0 });
        PlanForecast {
            forecast: Forecast {
                d_latency_ms,
                touched_ms: cost.touched_ms,
                d_macs: cost.macs as i64 - base.macs as i64,
                d_params: cost.params as i64 - base.params as i64,
                d_bytes: cost.bytes as i64 - base.bytes as i64,
                d_top1,
                d_loss: self.sum(&self.losses, &used).0 * self.trust.drop,
                unmeasured: unknown as u32,
            },
            latency,
            macs: ratio(cost.macs, base.macs),
            memory: ratio(cost.bytes, base.bytes),
            params: ratio(cost.params, base.params),
            d_top1,
            skipped,
        }
    }

    /// Whether cutting a group's units makes the model slower by the ladders (odd widths can), and which nearest width
    /// pays. `None` for what is not a cut, is no slower, or cannot be applied.
    pub fn slower(&self, target: &Target, action: &Action) -> Option<Slower> {
        self.costs.slower(target, action)
    }

    /// What the original costs.
    pub fn base(&self) -> Cost {
        self.costs.base()
    }

    /// Cost of the model after `actions`; an error in words when they cannot be applied together.
    pub fn cost(&self, actions: &[(Target, Action)]) -> Result<Cost, String> {
        self.costs.cost(actions)
    }

    /// What every row that is left is expected to take; an error in words when the actions cannot be applied together.
    pub fn rows(&self, actions: &[(Target, Action)]) -> Result<Vec<RowForecast>, String> {
        self.costs.rows(actions)
    }

    /// What changes in the latency that `shown` measured of the model made by `from` when it is made by `to` instead, and
    /// what the rows that change take there; see [`Costs::latency_over`].
    pub fn latency_over(
        &self,
        from: &[(Target, Action)],
        to: &[(Target, Action)],
        shown: &Profile,
    ) -> Option<(Estimate, f64)> {
        self.costs.latency_over(from, to, shown)
    }

    /// Sum of the curves, nats, and how many actions have no curve. What lies in a removed block is counted once, there.
    pub fn harm(&self, actions: &[(Target, Action)]) -> (f64, usize) {
        self.sum(&self.curves, actions)
    }

    /// Expected KL of one action alone, nats; `None` when its sensitivity was not measured.
    pub fn harm_of(&self, target: &Target, action: &Action) -> Option<f64> {
        self.ask(&self.curves, target, action)
    }

    fn sum(&self, curves: &HashMap<SensTarget, Curve>, actions: &[(Target, Action)]) -> (f64, usize) {
        let removed: Vec<&str> = actions
            .iter()
            .filter(|(_, a)| *a == Action::RemoveBlock)
            .filter_map(|(t, _)| if let Target::Block(b) = t { Some(b.as_str()) } else { None })
            .collect();
        let (mut sum, mut unknown) = (0.0, 0);
        for (t, a) in actions {
            if !matches!(t, Target::Block(_)) && self.block_of(t).is_some_and(|b| removed.contains(&b)) {
                continue;
            }
            match self.ask(curves, t, a) {
                Some(h) => sum += h,
                None => unknown += 1,
            }
        }
        (sum, unknown)
    }

    fn ask(&self, curves: &HashMap<SensTarget, Curve>, target: &Target, action: &Action) -> Option<f64> {
        match (target, action) {
            (_, Action::Keep) | (_, Action::Precision { precision: Precision::F32 }) => Some(0.0),
            (Target::Group(g), Action::Prune { ratio, kept }) => {
                let group = self.costs.groups.iter().find(|x| &x.id == g)?;
                let keep = if kept.is_empty() { group.kept_at(*ratio) } else { kept.len() };
                Some(curves.get(&SensTarget::Group(g.clone()))?.at(group.ratio_of(keep)))
            }
            (Target::Layer(l), Action::Precision { precision }) => {
                let of = |p: Precision| curves.get(&SensTarget::Layer(l.clone(), p));
                Some(of(*precision).or_else(|| of(precision.bounded_by()?))?.at(0.0))
            }
            (Target::Block(b), Action::RemoveBlock) => Some(curves.get(&SensTarget::Block(b.clone()))?.at(0.0)),
            // Nobody measured what zeros cost.
            (Target::Group(_) | Target::Layer(_) | Target::Block(_) | Target::Weights(_), _) => None,
        }
    }

    /// The largest ratio at which a group was measured; `None` when it was not.
    pub fn measured_to(&self, group: &str) -> Option<f64> {
        self.curves.get(&SensTarget::Group(group.to_owned()))?.end()
    }

    fn block_of<'a>(&'a self, target: &'a Target) -> Option<&'a str> {
        match target {
            Target::Group(g) => self.costs.groups.iter().find(|x| &x.id == g)?.block.as_deref(),
            Target::Layer(l) | Target::Weights(l) => {
                let id = *self.costs.index.get(l)?;
                self.costs
                    .graph
                    .blocks
                    .iter()
                    .find(|b| b.nodes.iter().any(|n| n.index() == id))
                    .map(|b| b.name.as_str())
            }
            Target::Block(b) => Some(b),
        }
    }

    /// Expected top-1 change for a total KL.
    pub fn top1(&self, kl: f64, unknown: usize) -> Estimate {
        let points = points_of(kl * self.trust.drop);
        let s = self.trust.drop_spread;
        let unmeasured = unknown as f64;
        Estimate {
            value: -points,
            low: -(points * (1.0 + s) + if kl > 0.0 { 0.05 } else { 0.0 } + unmeasured),
            high: -(points * (1.0 - s)).max(0.0) + if kl > 0.0 { 0.05 } else { 0.0 },
        }
    }

    /// The largest total KL whose expected drop is at most `points`.
    pub fn harm_for(&self, points: f64) -> f64 {
        let (mut lo, mut hi) = (0.0, 50.0);
        for _ in 0..60 {
            let mid = 0.5 * (lo + hi);
            if -self.top1(mid, 0).value <= points { lo = mid } else { hi = mid }
        }
        lo
    }
}

fn curves_of(sensitivity: &Sensitivity, value: impl Fn(&SensPoint) -> f64) -> HashMap<SensTarget, Curve> {
    let one = |c: &SensCurve| match &c.target {
        SensTarget::Group(_) => Curve::of_harm(c.points.iter().map(|p| (p.ratio, value(p)))),
        // A layer's precision and a block's removal are all or nothing.
        SensTarget::Layer(..) | SensTarget::Block(_) => {
            Curve::rising(c.points.last().map(|p| (0.0, value(p).max(0.0))))
        }
    };
    sensitivity.curves.iter().map(|c| (c.target.clone(), one(c))).collect()
}

/// Points of top-1 that a KL of the output against the original costs, as measured on held-out data with CIFAR-10
/// ResNets and a small ViT (see `tests/budget_real.rs`): about proportional at first, then saturating.
fn points_of(kl: f64) -> f64 {
    90.0 * (1.0 - (-0.3 * kl.max(0.0)).exp())
}

fn exactly(value: f64) -> Estimate {
    Estimate { value, low: value, high: value }
}

#[cfg(test)]
mod tests;
