//! What decisions are expected to do, before they run: what they cost and save (`cost`), and quality with its range. Pure
//! tables and the graph, fast enough to be asked while a ratio is dragged.
//!
//! Invariants: an empty plan forecasts exactly nothing; every estimate has `low ≤ value ≤ high`. Not here: choosing
//! (`planner`) and measuring (`profile`).

use super::cost::{Costs, weight_shape};
use super::curve::Curve;
use super::quality::{self, Basis, Harms, PastRound, Quality, QualityInput, QualityModel, kind};
use super::verdict::decide;
use super::{Action, Budget, Decision, Estimate, Forecast, Outcome, Status, Target};
use crate::graph::{Graph, NodeId};
use crate::profile::{Ladder, Profile, SensCurve, SensPoint, SensTarget, Sensitivity};
use crate::prune::Group;
use crate::quant::{Precision, WeightFormat};
use std::collections::HashMap;

/// A whole plan's forecast: changes against the original, and factors of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PlanForecast {
    pub forecast: Forecast,
    pub latency: Estimate,
    pub macs: Estimate,
    pub memory: Estimate,
    pub params: Estimate,
    pub quality: Quality,
    /// Decisions that cannot be combined with the others, in words; they are left out of the figures.
    pub skipped: Vec<String>,
}

/// One budget item against its forecast.
#[derive(Debug, Clone, PartialEq)]
pub struct BudgetLine {
    /// As in [`Budget::items`].
    pub name: &'static str,
    pub target: f64,
    /// Factor, or for `drop` the expected drop in the metric's unit (positive: worse); not a number where nothing foretells it.
    pub forecast: Estimate,
    /// Undecided when the range straddles the target.
    pub outcome: Outcome,
}

impl BudgetLine {
    /// Whether it is a factor of the original's cost.
    pub fn is_factor(&self) -> bool {
        !Budget::is_quality(self.name)
    }

    /// How far the forecast is beyond the target, in parts of it; 0 within.
    pub fn beyond(&self) -> f64 {
        (self.forecast.value / self.target - 1.0).max(0.0)
    }
}

impl PlanForecast {
    /// The forecast against each item that the budget sets.
    pub fn against(&self, budget: &Budget) -> Vec<BudgetLine> {
        let drop = Estimate { value: -self.quality.value, low: -self.quality.high, high: -self.quality.low };
        // Nothing foretells a divergence, nor what one class loses.
        let unknown = Estimate { value: f64::NAN, low: f64::NAN, high: f64::NAN };
        let forecasts = [self.latency, self.macs, self.memory, self.params, drop, unknown, unknown];
        let line = |((name, target), forecast): ((&'static str, Option<f64>), Estimate)| {
            let target = target?;
            let known = name != "drop" || self.quality.basis != Basis::Unmeasured;
            let outcome = match known {
                true => decide(target, forecast.low, forecast.high),
                // Nothing to tick where nothing was measured; what is known to be lost may be too much already.
                false if forecast.value > target + 1e-9 => Outcome::Reject,
                false => Outcome::Undecided,
            };
            Some(BudgetLine { name, target, forecast, outcome })
        };
        budget.items().into_iter().zip(forecasts).filter_map(line).collect()
    }
}

/// Forecasts for one model from its tables. Owns copies, so that a screen can keep it.
#[derive(Debug, Clone)]
pub struct Forecaster {
    pub costs: Costs,
    curves: HashMap<SensTarget, Curve>,
    /// Rise of the calibration loss.
    losses: HashMap<SensTarget, Curve>,
    quality: QualityModel,
}

impl Forecaster {
    pub fn new(
        graph: &Graph,
        groups: &[Group],
        profile: &Profile,
        ladders: &[Ladder],
        sensitivity: &Sensitivity,
    ) -> Forecaster {
        Forecaster {
            costs: Costs::new(graph, groups, profile, ladders),
            curves: curves_of(sensitivity, |p| p.kl),
            losses: curves_of(sensitivity, |p| p.d_loss),
            quality: QualityModel::default(),
        }
    }

    /// Forecasts that have learnt from plans that were tried, and from earlier rounds. Without, there are none of quality.
    pub fn with_quality(mut self, input: QualityInput) -> Forecaster {
        self.costs.believe(self.trust_after(&input.observed));
        self.quality = QualityModel::fit(input, |actions| self.harms(actions));
        self
    }

    /// Compares the latency that past rounds were forecast with what they measured; the newest counts most.
    fn trust_after(&self, past: &[PastRound]) -> f64 {
        let mut trust = 1.0;
        for p in past {
            let f = self.actions(&p.actions);
            let weight = if trust == 1.0 { 1.0 } else { 0.7 };
            let saving = 1.0 - f.latency.value;
            if saving > 0.03 && p.latency.is_finite() {
                let seen = ((1.0 - p.latency) / saving).clamp(0.25, 1.5);
                trust = trust * (1.0 - weight) + seen * weight;
            }
        }
        trust
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
        self.of(newest)
    }

    /// Forecast of a set of actions, one a target.
    pub fn actions(&self, actions: &[(Target, Action)]) -> PlanForecast {
        self.of(actions.to_vec())
    }

    fn of(&self, mut wanted: Vec<(Target, Action)>) -> PlanForecast {
        wanted.retain(|(_, a)| *a != Action::Keep);
        let (cost, used, skipped) = self.costs.combined(wanted);
        let Some(cost) = cost else { return PlanForecast { skipped, ..PlanForecast::default() } };
        let quality = self.quality(&used);
        let unknown = self.harms(&used).unknown;
        let (d_latency_ms, latency) = self.costs.latency(&cost, !used.is_empty());
        let base = self.costs.base();
        let ratio = |new: u64, old: u64| exactly(if old > 0 { new as f64 / old as f64 } else { 1.0 });
        PlanForecast {
            forecast: Forecast {
                d_latency_ms,
                touched_ms: cost.touched_ms,
                d_macs: cost.macs as i64 - base.macs as i64,
                d_params: cost.params as i64 - base.params as i64,
                d_bytes: cost.bytes as i64 - base.bytes as i64,
                d_quality: quality.estimate(),
                d_loss: self.sum(&self.losses, &used, |rise| rise).kinds.iter().sum(),
                unmeasured: unknown as u32,
            },
            latency,
            macs: ratio(cost.macs, base.macs),
            memory: ratio(cost.bytes, base.bytes),
            params: ratio(cost.params, base.params),
            quality,
            skipped,
        }
    }

    /// What the actions' own harms add up to, as harm of cuts (what other kinds do to the whole is learnt from trials), and
    /// how many actions nobody measured. What lies in a removed block is counted once, there.
    pub fn harm(&self, actions: &[(Target, Action)]) -> (f64, usize) {
        let h = self.harms(actions);
        (h.kinds.iter().enumerate().map(|(k, h)| h * self.quality.exchange(k)).sum(), h.unknown)
    }

    /// What the actions' own divergences add up to, as divergence by cuts that harms as much, nats.
    pub fn divergence(&self, actions: &[(Target, Action)]) -> f64 {
        let sums = self.sum(&self.curves, actions, |d| d).kinds;
        sums.iter().enumerate().map(|(k, d)| d * self.quality.exchange_of_divergence(k)).sum()
    }

    /// [`Forecaster::divergence`] of one action alone; `None` when its sensitivity was not measured.
    pub fn divergence_of(&self, target: &Target, action: &Action) -> Option<f64> {
        let measured = self.ask(&self.curves, target, action)?;
        Some(measured * kind(target, action).map_or(1.0, |k| self.quality.exchange_of_divergence(k)))
    }

    /// Divergence that one action alone was measured to cause, nats.
    pub fn measured(&self, target: &Target, action: &Action) -> Option<f64> {
        self.ask(&self.curves, target, action)
    }

    /// The change of the task's metric that the plan is expected to bring, and what that rests on.
    pub fn quality(&self, actions: &[(Target, Action)]) -> Quality {
        self.quality.forecast(actions, &self.harms(actions), |other| self.between(actions, other))
    }

    /// What the plan changes of the metric by scans alone: see [`QualityModel::scanned`].
    pub fn by_scans(&self, actions: &[(Target, Action)]) -> Option<f64> {
        let wanted: Vec<(Target, Action)> = actions.iter().filter(|(_, a)| *a != Action::Keep).cloned().collect();
        if wanted.is_empty() {
            return Some(0.0);
        }
        let (cost, used, _) = self.costs.combined(wanted);
        cost.and_then(|_| self.quality.scanned(&self.harms(&used)))
    }

    /// The largest harm whose expected drop is at most `drop`, in the metric's unit, where `fixed` stand already; `None` while no plan was
    /// tried.
    pub fn harm_for(&self, drop: f64, fixed: &[(Target, Action)]) -> Option<f64> {
        self.quality.harm_for(drop, &self.harms(fixed))
    }

    /// How much harm costs `drop` by the plans that were tried with what of `fixed` nobody measured, and the harm of the harshest that was;
    /// `None` while none was.
    pub fn tried(&self, drop: f64, fixed: &[(Target, Action)]) -> Option<(f64, f64)> {
        self.quality.tried(drop, &self.harms(fixed))
    }

    fn harms(&self, actions: &[(Target, Action)]) -> Harms {
        self.sum(&self.curves, actions, quality::harm)
    }

    /// Harms of what is different in two plans, both sides of it; of two cuts of a group of which one goes on where the other
    /// stops, what it takes more.
    fn between(&self, a: &[(Target, Action)], b: &[(Target, Action)]) -> Harms {
        let mut sum = Harms::default();
        let mut add = |(t, action): &(Target, Action), less: f64| {
            sum.add(self.ask(&self.curves, t, action).map(|h| (h - less).abs()), (t, action));
        };
        let beside = |(target, action): &(Target, Action), list: &[(Target, Action)]| -> Option<f64> {
            let other = list.iter().find(|(t, other)| t == target && nested(action, other))?;
            self.ask(&self.curves, target, &other.1).map(quality::harm)
        };
        for one in a.iter().filter(|x| !b.contains(x)) {
            add(one, beside(one, b).unwrap_or_default());
        }
        for one in b.iter().filter(|x| !a.contains(x) && beside(x, a).is_none()) {
            add(one, 0.0);
        }
        sum
    }

    fn sum(&self, curves: &HashMap<SensTarget, Curve>, actions: &[(Target, Action)], of: impl Fn(f64) -> f64) -> Harms {
        let removed: Vec<&str> = actions
            .iter()
            .filter(|(_, a)| *a == Action::RemoveBlock)
            .filter_map(|(t, _)| if let Target::Block(b) = t { Some(b.as_str()) } else { None })
            .collect();
        let mut sum = Harms::default();
        for (t, a) in actions {
            if !matches!(t, Target::Block(_)) && self.block_of(t).is_some_and(|b| removed.contains(&b)) {
                // Told all the same, as beside plans that leave the block.
                if self.ask(curves, t, a).is_none() {
                    sum.told((t, a));
                }
                continue;
            }
            sum.add(self.ask(curves, t, a).map(&of), (t, a));
        }
        sum
    }

    fn ask(&self, curves: &HashMap<SensTarget, Curve>, target: &Target, action: &Action) -> Option<f64> {
        match (target, action) {
            (_, Action::Keep) | (_, Action::Precision { precision: Precision::F32 }) => Some(0.0),
            (Target::Group(g), Action::Prune { ratio, kept }) => {
                let group = self.costs.groups.iter().find(|x| &x.id == g)?;
                let keep = if kept.is_empty() { group.kept_at(*ratio) } else { kept.len() };
                Some(curves.get(&SensTarget::Group(g.clone()))?.at(group.ratio_of(keep)))
            }
            (Target::Layer(l), Action::Precision { precision }) => self.rounding(curves, l, *precision),
            (Target::Block(b), Action::RemoveBlock) => Some(curves.get(&SensTarget::Block(b.clone()))?.at(0.0)),
            // Nobody measured what zeros or a rank cost.
            (Target::Group(_) | Target::Layer(_) | Target::Block(_) | Target::Weights(_), _) => None,
        }
    }

    /// The largest ratio at which a group was measured; `None` when it was not.
    pub fn measured_to(&self, group: &str) -> Option<f64> {
        self.curves.get(&SensTarget::Group(group.to_owned()))?.end()
    }

    pub(super) fn block_of<'a>(&'a self, target: &'a Target) -> Option<&'a str> {
        match target {
            Target::Group(g) => self.costs.groups.iter().find(|x| &x.id == g)?.block.as_deref(),
            Target::Layer(l) | Target::Weights(l) => {
                let id = NodeId(*self.costs.index.get(l)? as u32);
                self.costs.graph.block_of(id).map(|b| b.name.as_str())
            }
            Target::Block(b) => Some(b),
        }
    }

    /// Harm of rounding a layer's weights: as scanned; between formats of different groups, by the group's length; else of
    /// the coarser format that bounds it.
    fn rounding(&self, curves: &HashMap<SensTarget, Curve>, layer: &str, precision: Precision) -> Option<f64> {
        let of = |p: Precision| Some(curves.get(&SensTarget::Layer(layer.to_owned(), p))?.at(0.0));
        if let Some(harm) = of(precision) {
            return Some(harm);
        }
        if let WeightFormat::Int4 { group: Some(g) } = precision.weights()
            && let (Some(coarse), Some(fine)) = (of(Precision::W4), of(Precision::W4g32))
        {
            let (row, fine_g) = (self.row_of(layer)? as f64, 32.0);
            if row <= g as f64 {
                return Some(coarse);
            }
            let part = ((g as f64 / fine_g).ln() / (row / fine_g).ln()).clamp(0.0, 1.0);
            let (a, b) = (fine.max(1e-9), coarse.max(1e-9));
            return Some(a * (b / a).powf(part));
        }
        of(precision.bounded_by()?)
    }

    /// Divergence that a layer's precision was scanned to cause, in nats.
    pub(super) fn scanned(&self, layer: &str, precision: Precision) -> Option<f64> {
        Some(self.curves.get(&SensTarget::Layer(layer.to_owned(), precision))?.at(0.0))
    }

    /// Weights in a row (an output's inputs) of a layer.
    fn row_of(&self, layer: &str) -> Option<usize> {
        Some(weight_shape(&self.costs.graph.nodes.get(*self.costs.index.get(layer)?)?.op)?.1)
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

fn exactly(value: f64) -> Estimate {
    Estimate { value, low: value, high: value }
}

/// Whether both are cuts and the units that the harsher one keeps are kept by the other too.
fn nested(a: &Action, b: &Action) -> bool {
    let (Action::Prune { kept: a, .. }, Action::Prune { kept: b, .. }) = (a, b) else { return false };
    let (few, many) = if a.len() < b.len() { (a, b) } else { (b, a) };
    !few.is_empty() && few.iter().all(|u| many.contains(u))
}

#[cfg(test)]
mod tests;
