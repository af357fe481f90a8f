//! The built-in planner: meets a budget from sensitivities and measured ladders, needs no network, and says why.
//!
//! Invariants: whatever it proposes passes [`check`](super::check) with the constraints given; it never proposes on a
//! target that the human decided; the same input gives the same plan. Harm is what sensitivity measured, the KL of the
//! output against the original, taken as additive and corrected by what earlier rounds measured.

mod alike;
mod anchors;
mod explain;
mod rivals;
mod solve;

use super::{
    Action, Author, Budget, Constraint, Decision, DecisionId, Forecaster, Limit, PlanError, PlanForecast, QualityInput,
    Status, Target, check, max_ratio, same_cut,
};
use crate::graph::ggml::Block;
use crate::graph::{Graph, Node};
use crate::profile::{Ladder, Profile, Sensitivity};
use crate::prune::Group;
use crate::quant::{Precision, stored_bytes};
use crate::task::Metric;
pub use anchors::anchors;
pub use rivals::{beats, same_plan, trial_of};
use solve::{Candidate, LimitKind, Need, Problem, Solution, Stop};
use std::cmp::Ordering;

/// Everything the planner looks at.
#[derive(Debug, Clone, Copy)]
pub struct PlannerInput<'a> {
    pub graph: &'a Graph,
    pub groups: &'a [Group],
    /// Of the original model.
    pub profile: &'a Profile,
    pub ladders: &'a [Ladder],
    pub sensitivity: &'a Sensitivity,
    pub budget: &'a Budget,
    pub constraints: &'a [Constraint],
    pub round: u32,
    /// Decisions get ids from here on.
    pub first_id: u64,
    /// What the next run would build, and over it the human's own open decisions. Those that the human made, edited or
    /// approved stand; the planner may replace the others, by a [`Action::Keep`] where it no longer wants them.
    pub in_force: &'a [Decision],
    /// What forecasts rest on besides the tables: trials and earlier rounds.
    pub quality: &'a QualityInput,
}

/// Why nothing can be proposed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlannerError {
    #[error("no sensitivity has been measured; hint: run the sensitivity scan first")]
    NoSensitivity,
    #[error("a decision that stands cannot be applied: {0}; hint: edit or veto it")]
    Standing(String),
    #[error(transparent)]
    Plan(#[from] PlanError),
}

/// What the planner settled on, beside the decisions themselves.
#[derive(Debug, Clone, PartialEq)]
pub struct Proposal {
    pub decisions: Vec<Decision>,
    /// Forecast of the proposals with the standing decisions.
    pub forecast: PlanForecast,
    /// Whether the forecast meets every factor of the budget.
    pub met: bool,
    /// The whole plan, what the human decided first.
    pub actions: Vec<(Target, Action)>,
    /// Other whole plans that meet it, as far as can be forecast; units of cuts are still to be chosen.
    pub rivals: Vec<Vec<(Target, Action)>>,
}

/// Plans decisions that meet the budget, streaming the reasoning sentence by sentence through `say`.
pub fn plan(input: &PlannerInput, say: &mut dyn FnMut(&str)) -> Result<Proposal, PlannerError> {
    if input.sensitivity.curves.is_empty() {
        return Err(PlannerError::NoSensitivity);
    }
    let forecaster = Forecaster::new(input.graph, input.groups, input.profile, input.ladders, input.sensitivity)
        .with_quality(input.quality.clone());
    let goal = Goal::of(input.budget, &input.quality.metric);
    explain::opening(input, &goal, forecaster.costs.trust, say);

    let fixed = standing(input);
    forecaster.costs.cost(&fixed).map_err(PlannerError::Standing)?;
    let candidates = candidates(input, &forecaster, &goal, &fixed);
    explain::landscape(input, &candidates, say);

    let mut problem = Problem {
        forecaster: &forecaster,
        fixed,
        candidates,
        needs: goal.needs(&forecaster),
        harm_limit: f64::INFINITY,
    };
    let fresh = input.quality.observed.is_empty();
    let (mut milder, mut cap) = (None, f64::INFINITY);
    let solved = |problem: &mut Problem, cap: f64| {
        let first = solve_under(problem, &goal, fresh, cap);
        alike::together(first, problem, input, &mut |problem| solve_under(problem, &goal, fresh, cap))
    };
    let mut first = solved(&mut problem, cap);
    // What was measured to lose more than is allowed is not proposed once more.
    for _ in 0..MILDER {
        let Some(round) = lost_too_much(input, &goal, &first.actions) else { break };
        cap = STEP_BACK * forecaster.harm(&first.actions).0;
        let next = solved(&mut problem, cap);
        if next.actions == first.actions {
            break;
        }
        (first, milder) = (next, Some(round));
    }
    let farther = goal.open_ended && first.stop == Stop::Floor && problem.floor_for(&goal) > Some(problem.harm_limit);
    let (solution, gained) = rivals::by_trial(first, &input.quality.trials);
    let forecast = forecaster.actions(&solution.actions);
    let decisions = decisions(input, &forecaster, &problem, &solution)?;
    explain::choices(input, &decisions, solution.stop, say);
    explain::left_alone(input, &problem.candidates, &solution.actions, say);
    explain::outcome(input, &goal, &forecast, solution.stop, say);
    if let Some(round) = milder {
        explain::milder(input, &goal, round, say);
    }
    if farther {
        explain::farther(input, say);
    }
    if let Some(gained) = gained {
        explain::swapped(input, gained, say);
    }
    let met = solution.stop == Stop::Met && !goal.open_ended;
    Ok(Proposal { decisions, forecast, met, actions: solution.actions, rivals: solution.others })
}

/// What may be lost of the task's metric, in its unit, as the planner takes it: what the budget says, or where it says nothing at all, what is
/// assumed.
pub fn floor(budget: &Budget, metric: &Metric) -> Option<f64> {
    Goal::of(budget, metric).budget.drop
}

/// The budget as the planner pursues it.
#[derive(Debug, Clone)]
pub(super) struct Goal {
    budget: Budget,
    /// No factor was set: go as far as the floor allows.
    open_ended: bool,
    /// The floor was not set by the engineer.
    assumed_floor: bool,
    quantize: bool,
}

/// Floor assumed when neither factors nor a floor are set, points.
const ASSUMED_DROP: f64 = 0.5;

/// How much farther than the harshest plan that was tried one goes where only a floor says how far. Trying that moves it.
const BEYOND: f64 = 1.25;

/// What layers are offered: those whose harm every scan measures. Besides them those of GGML's formats that a language model's scan says something of.
const PRECISIONS: [Precision; 3] = [Precision::Int8, Precision::W4g32, Precision::W4];

impl Goal {
    fn of(budget: &Budget, metric: &Metric) -> Goal {
        let mut budget = *budget;
        let open_ended = budget.factors().next().is_none();
        let assumed_floor = open_ended && budget.drop.is_none();
        if assumed_floor {
            budget.drop = Some(metric.of_points(ASSUMED_DROP));
        }
        let quantize = open_ended || budget.latency.is_some() || budget.memory.is_some();
        Goal { budget, open_ended, assumed_floor, quantize }
    }

    fn needs(&self, forecaster: &Forecaster) -> Vec<Need> {
        let base = forecaster.costs.base();
        if self.open_ended {
            // Unreachable on purpose: only the floor ends it.
            let to = |v: f64| 0.02 * v;
            return vec![
                Need { kind: LimitKind::Latency, limit: to(base.latency_ms) },
                Need { kind: LimitKind::Memory, limit: to(base.bytes as f64) },
            ];
        }
        [
            (LimitKind::Latency, self.budget.latency, base.latency_ms),
            (LimitKind::Macs, self.budget.macs, base.macs as f64),
            (LimitKind::Memory, self.budget.memory, base.bytes as f64),
            (LimitKind::Params, self.budget.params, base.params as f64),
        ]
        .into_iter()
        .filter_map(|(kind, factor, base)| Some(Need { kind, limit: factor? * base }))
        .collect()
    }
}

/// Without evidence from earlier rounds the factors come first, unless even the hopeful end of the forecast breaks the
/// floor: forecasts of accuracy are too wide to give up a target for. With evidence the floor binds.
/// No plan does more harm than `cap`.
fn solve_under(problem: &mut Problem, goal: &Goal, first: bool, cap: f64) -> Solution {
    let floor = problem.floor_for(goal);
    if goal.open_ended {
        // How far a floor allows to go nobody knows before plans were tried, nor far beyond those that were.
        let tried = goal.budget.drop.and_then(|d| problem.forecaster.tried(d, &problem.fixed));
        let (between, reach) = tried.unwrap_or_default();
        problem.harm_limit = floor.unwrap_or(0.0).min(between).min(BEYOND * reach).min(cap);
        return problem.solve();
    }
    problem.harm_limit = cap;
    let free = problem.solve();
    let (Some(floor), Some(drop)) = (floor, goal.budget.drop) else { return free };
    let (harm, _) = problem.forecaster.harm(&free.actions);
    let hopeful = -problem.forecaster.quality(&free.actions).high;
    if harm <= floor || (first && hopeful <= drop) {
        return free;
    }
    problem.harm_limit = floor.min(cap);
    problem.solve()
}

/// Plans that are given up one after the other because a round measured them to lose too much.
const MILDER: usize = 8;
/// What part of such a plan's harm the next may do.
const STEP_BACK: f64 = 0.95;

/// The round that built this plan and measured it to lose more than the goal allows.
fn lost_too_much(input: &PlannerInput, goal: &Goal, plan: &[(Target, Action)]) -> Option<u32> {
    let drop = goal.budget.drop?;
    let round = input.quality.observed.iter().rev().find(|o| super::same_plan(&o.actions, plan))?;
    (-round.d_quality > drop).then_some(round.round)
}

impl Problem<'_> {
    /// The harm at which the floor lies; `None` without one, or while no plan was tried.
    fn floor_for(&self, goal: &Goal) -> Option<f64> {
        self.forecaster.harm_for(goal.budget.drop?, &self.fixed)
    }
}

/// What the human decided, and what stands because of it.
fn standing(input: &PlannerInput) -> Vec<(Target, Action)> {
    input.in_force.iter().filter(|d| by_human(d)).map(Decision::planned).collect()
}

/// The human made, edited or approved it: no proposal of ours would take its place.
fn by_human(d: &Decision) -> bool {
    d.by_person() || d.status == Status::Approved
}

fn candidates(
    input: &PlannerInput,
    forecaster: &Forecaster,
    goal: &Goal,
    fixed: &[(Target, Action)],
) -> Vec<Candidate> {
    let mut out = Vec::new();
    let taken = |t: &Target| fixed.iter().any(|(f, _)| f == t);
    let mut push = |target: Target, actions: Vec<Action>, block: Option<String>| {
        if taken(&target) {
            return;
        }
        let Ok(least) = check(&Action::Keep, &target, input.groups, input.graph, input.constraints) else { return };
        let must = least != Action::Keep;
        let none = if must { forecaster.divergence_of(&target, &least).unwrap_or(0.0) } else { 0.0 };
        let (mut levels, mut divergence) = (vec![least], vec![none]);
        for a in actions {
            let Ok(a) = check(&a, &target, input.groups, input.graph, input.constraints) else { continue };
            let Some(d) = forecaster.divergence_of(&target, &a) else { continue };
            if a != Action::Keep && levels.last() != Some(&a) {
                levels.push(a);
                divergence.push(d);
            }
        }
        if levels.len() > 1 || must {
            let weighed = levels.iter().zip(&divergence).map(|(a, d)| d * wished(input, &target, a)).collect();
            out.push(Candidate { target, levels, divergence, weighed, must, block });
        }
    };
    for g in input.groups {
        // No further than was measured: past the last point a curve is a guess.
        let measured = forecaster.measured_to(&g.id).unwrap_or(0.0);
        let most = max_ratio(g, input.constraints).min(measured);
        let granule = g.granule.max(1);
        let steps = (g.size / granule).max(1);
        let stride = steps.div_ceil(32);
        let actions = (1..=steps / stride)
            .map(|k| g.ratio_of(g.size.saturating_sub(k * stride * granule)))
            .filter(|r| *r > 0.0 && *r < 1.0 && *r <= most + 1e-9)
            .map(|ratio| Action::Prune { ratio, kept: Vec::new() })
            .collect();
        push(Target::Group(g.id.clone()), actions, g.block.clone());
    }
    for b in input.graph.blocks.iter().filter(|b| !b.residual.is_empty()) {
        push(Target::Block(b.name.clone()), vec![Action::RemoveBlock], Some(b.name.clone()));
    }
    if goal.quantize {
        for n in input.graph.nodes.iter().filter(|n| n.op.is_conv_or_linear()) {
            let target = Target::Layer(n.name.clone());
            let block = forecaster.block_of(&target).map(str::to_owned);
            let own = |p: Precision| input.ladders.iter().any(|l| l.layer == n.name && l.own.contains(&p));
            // What a device only stores saves bytes and no time.
            let useful = |p: &Precision| *p == Precision::Int8 || goal.budget.memory.is_some() || own(*p);
            let mut precisions: Vec<Precision> = PRECISIONS.into_iter().filter(useful).collect();
            if goal.budget.memory.is_some() || goal.open_ended {
                let own = input.profile.rows.iter().find(|r| r.name == n.name).map_or(Precision::F32, |r| r.precision);
                precisions.extend(formats(forecaster, n, own));
            }
            precisions.sort_by_key(|p| std::cmp::Reverse(stored_bytes(&n.op, *p)));
            push(target, precisions.into_iter().map(|precision| Action::Precision { precision }).collect(), block);
        }
    }
    out
}

/// What the harm of `action` counts, by the engineer's wishes.
fn wished(input: &PlannerInput, target: &Target, action: &Action) -> f64 {
    let wish = |c: &Constraint| match c.limit {
        Limit::Prefer { wish } if c.target == *target => Some(wish.weight(action)),
        _ => None,
    };
    input.constraints.iter().filter_map(wish).product()
}

/// GGML's formats for a layer that make it smaller than it is and than all that do it less harm.
fn formats(forecaster: &Forecaster, node: &Node, own: Precision) -> Vec<Precision> {
    let mut found: Vec<(u64, f64, Precision)> = Block::ALL
        .into_iter()
        .map(Precision::Block)
        .filter_map(|p| Some((stored_bytes(&node.op, p), forecaster.scanned(&node.name, p)?, p)))
        .collect();
    found.sort_by(|a, b| (a.1, a.0).partial_cmp(&(b.1, b.0)).unwrap_or(Ordering::Equal));
    let mut least = stored_bytes(&node.op, own);
    found.retain(|(bytes, ..)| {
        let smaller = *bytes < least;
        least = least.min(*bytes);
        smaller
    });
    found.into_iter().map(|(.., p)| p).collect()
}

fn decisions(
    input: &PlannerInput,
    forecaster: &Forecaster,
    problem: &Problem,
    solution: &Solution,
) -> Result<Vec<Decision>, PlannerError> {
    let mut out = Vec::new();
    let mut push = |target: &Target, action: Action, rationale: String, forecast| {
        let id = DecisionId(input.first_id + out.len() as u64);
        let decision = Decision::new(target.clone(), action, Author::Planner);
        out.push(Decision { id, round: input.round, rationale, forecast: Some(forecast), ..decision });
    };
    let proposed = solution.actions.iter().filter(|(t, _)| !problem.fixed.iter().any(|(f, _)| f == t));
    for (target, action) in proposed {
        // Already so, and approved: nothing to ask again.
        if input.in_force.iter().any(|d| &d.target == target && same_cut(&d.action, action, 1e-9)) {
            continue;
        }
        let action = check(action, target, input.groups, input.graph, input.constraints)?;
        let forecast = forecaster.actions(&[(target.clone(), action.clone())]).forecast;
        let why = explain::rationale(input, &problem.candidates, forecaster, target, &action, &forecast);
        push(target, action, why, forecast);
    }
    for d in input.in_force.iter().filter(|d| !by_human(d) && d.action != Action::Keep) {
        if solution.actions.iter().any(|(t, _)| *t == d.target) {
            continue;
        }
        let why = format!("Round {} had it; this plan meets the goal better without.", d.round);
        push(&d.target, Action::Keep, why, Default::default());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::PastRound;
    use crate::plan::testing::{chain, curves, freeze, ladders, profile_of, trial, tried};
    use crate::profile::{SensCurve, SensPoint, SensTarget};

    struct World {
        graph: Graph,
        groups: Vec<Group>,
        profile: Profile,
        ladders: Vec<Ladder>,
        sensitivity: Sensitivity,
        budget: Budget,
        constraints: Vec<Constraint>,
        in_force: Vec<Decision>,
        quality: QualityInput,
    }

    impl World {
        fn new(budget: &str) -> World {
            let (graph, groups) = chain(&[16, 32, 32, 48], 16);
            let profile = profile_of(&graph, 1.0);
            let layers = ["conv1", "conv2", "conv3", "conv4", "fc"];
            let mut world = World {
                ladders: ladders(&graph, &profile, 0.4),
                sensitivity: curves(&groups, &[0.5, 0.1, 0.2, 0.1], &layers, 0.0005),
                graph,
                groups,
                profile,
                budget: budget.parse().expect("budget"),
                constraints: Vec::new(),
                in_force: Vec::new(),
                quality: QualityInput::default(),
            };
            world.quality = tried(&world.forecaster(), &world.groups, &layers);
            world
        }

        fn forecaster(&self) -> Forecaster {
            Forecaster::new(&self.graph, &self.groups, &self.profile, &self.ladders, &self.sensitivity)
        }

        fn plan(&self) -> (Proposal, String) {
            let mut said = String::new();
            let p = self.try_plan(&mut said).expect("a plan");
            (p, said)
        }

        fn try_plan(&self, said: &mut String) -> Result<Proposal, PlannerError> {
            let input = PlannerInput {
                graph: &self.graph,
                groups: &self.groups,
                profile: &self.profile,
                ladders: &self.ladders,
                sensitivity: &self.sensitivity,
                budget: &self.budget,
                constraints: &self.constraints,
                round: 1,
                first_id: 7,
                in_force: &self.in_force,
                quality: &self.quality,
            };
            plan(&input, &mut |s| said.push_str(s))
        }
    }

    fn ratio(p: &Proposal, id: &str) -> f64 {
        let found = p.decisions.iter().find(|d| d.target == Target::Group(id.into()));
        match found.map(|d| &d.action) {
            Some(Action::Prune { ratio, .. }) => *ratio,
            _ => 0.0,
        }
    }

    #[test]
    fn formats_that_were_scanned_are_chosen_among_where_they_pay() {
        let mut w = World::new("memory=0.2");
        let block = |b| Precision::Block(b);
        // Worse than a smaller one; finer than what is left to choose; what rows of 144 do not take.
        let harms = [(Block::Q5_0, 3e-4), (Block::Q4_0, 2e-4), (Block::Q8_0, 1e-6), (Block::Q4_1, 2e-4)];
        for (layer, (format, kl)) in ["conv2", "conv3", "conv4"].into_iter().flat_map(|l| harms.map(|h| (l, h))) {
            let point = SensPoint { ratio: 0.0, d_loss: kl, kl, d_quality: 0.0 };
            let target = SensTarget::Layer(layer.into(), block(format));
            w.sensitivity.curves.push(SensCurve { target, points: vec![point], images: 64 });
        }
        let offered = |name: &str, own| {
            formats(&w.forecaster(), w.graph.nodes.iter().find(|n| n.name == name).expect("a layer"), own)
        };
        assert_eq!(offered("conv3", Precision::F32), [block(Block::Q8_0), block(Block::Q4_0)]);
        assert_eq!(offered("conv3", block(Block::Q5_0)), [block(Block::Q4_0)]);
        assert!(offered("conv1", Precision::F32).is_empty());
        let chosen = w.plan().0.decisions;
        let of = |name: &str| {
            let found = chosen.iter().find(|d| d.target == Target::Layer(name.into()))?;
            if let Action::Precision { precision } = found.action { Some(precision) } else { None }
        };
        assert!(["conv3", "conv4"].into_iter().all(|l| matches!(of(l), Some(Precision::Block(_)))), "{chosen:?}");
        assert!(!matches!(of("conv2"), Some(Precision::Block(_))), "{chosen:?}");
    }

    #[test]
    fn meets_a_macs_budget_without_touching_precision() {
        let (p, said) = World::new("macs=0.6").plan();
        assert!(p.met && p.forecast.macs.value <= 0.6, "{:?}", p.forecast.macs);
        assert!(p.forecast.macs.value > 0.55, "overshoots: {:?}", p.forecast.macs);
        assert!(p.decisions.iter().all(|d| matches!(d.action, Action::Prune { .. })));
        assert!(said.contains("macs=0.6") && said.contains("precision stays"), "{said}");
        let d = &p.decisions[0];
        assert_eq!((d.id, d.author.clone(), d.status), (DecisionId(7), Author::Planner, Status::Proposed));
        assert!(d.rationale.contains("nats") && d.forecast.is_some());
    }

    #[test]
    fn spares_the_sensitive_and_follows_the_budget() {
        let mut w = World::new("macs=0.6");
        let (p, _) = w.plan();
        w.sensitivity = curves(&w.groups, &[0.5, 20.0, 0.2, 0.1], &[], 0.0);
        let (q, _) = w.plan();
        assert!(ratio(&q, "conv2") < ratio(&p, "conv2"), "{} {}", ratio(&q, "conv2"), ratio(&p, "conv2"));
        let harm = |b: &str| {
            let (p, _) = World::new(b).plan();
            -p.forecast.quality.value
        };
        let drops: Vec<f64> = ["macs=0.9", "macs=0.7", "macs=0.5", "macs=0.3"].into_iter().map(harm).collect();
        assert!(drops.windows(2).all(|w| w[0] < w[1]), "{drops:?}");
    }

    #[test]
    fn memory_and_latency_ask_for_int8_where_ladders_speak_for_it() {
        let (p, _) = World::new("memory=0.3").plan();
        assert!(p.met && p.forecast.memory.value <= 0.3);
        assert!(p.decisions.iter().any(|d| matches!(d.action, Action::Precision { .. })));
        let (p, _) = World::new("latency=0.5").plan();
        assert!(p.met && p.forecast.latency.value <= 0.5);
        let mut slow = World::new("latency=0.8");
        slow.ladders = ladders(&slow.graph, &slow.profile, 1.5);
        let (p, _) = slow.plan();
        assert!(p.decisions.iter().all(|d| !matches!(d.action, Action::Precision { .. })), "int8 is slower here");
    }

    #[test]
    fn bytes_may_go_to_few_bits_where_that_is_all_they_need_and_time_may_not() {
        let precisions = |p: &Proposal| -> Vec<Precision> {
            let of = |d: &Decision| if let Action::Precision { precision } = d.action { Some(precision) } else { None };
            p.decisions.iter().filter_map(of).collect()
        };
        let mut w = World::new("memory=0.16");
        let int8_alone = w.plan().0;
        assert!(int8_alone.decisions.iter().any(|d| matches!(d.action, Action::Prune { .. })), "int8 is a quarter");
        for l in ["conv1", "conv2", "conv3", "conv4", "fc"] {
            let target = SensTarget::Layer(l.into(), Precision::W4);
            w.sensitivity.curves.push(SensCurve { target, ..w.sensitivity.curves.last().unwrap().clone() });
        }
        // As harmless as int8, and an eighth of the bytes.
        let (p, _) = w.plan();
        assert!(p.met && int8_alone.forecast.macs.value < 0.9 && p.forecast.macs.value > 0.95, "{:?}", p.decisions);
        assert!(
            precisions(&p).contains(&Precision::W4) && p.forecast.quality.value > int8_alone.forecast.quality.value
        );
        // No kernel here multiplies four bits.
        w.budget = "latency=0.5".parse().unwrap();
        assert!(!precisions(&w.plan().0).contains(&Precision::W4));
    }

    #[test]
    fn several_items_are_met_at_once() {
        let (p, _) = World::new("macs=0.7,memory=0.2,latency=0.35,params=0.8").plan();
        assert!(p.met);
        let f = p.forecast;
        assert!(f.macs.value <= 0.7 && f.memory.value <= 0.2 && f.latency.value <= 0.35 && f.params.value <= 0.8);
    }

    #[test]
    fn constraints_bind_and_are_named() {
        let mut w = World::new("macs=0.6");
        w.constraints = freeze(Target::Group("conv3".into()));
        w.constraints.push(Constraint {
            target: Target::Group("conv2".into()),
            limit: Limit::MaxRatio { ratio: 0.2 },
            reason: "edge detector".into(),
        });
        let (p, said) = w.plan();
        assert_eq!(ratio(&p, "conv3"), 0.0);
        assert!(ratio(&p, "conv2") <= 0.2);
        assert!(p.met && said.contains("edge detector"), "{said}");
        w.constraints = w.groups.iter().flat_map(|g| freeze(Target::Group(g.id.clone()))).collect();
        let (p, said) = w.plan();
        assert!(!p.met && p.decisions.is_empty());
        assert!(said.contains("cannot be met") && said.contains("macs at 1.000x"), "{said}");
    }

    #[test]
    fn says_how_near_an_impossible_budget_came() {
        let (p, said) = World::new("macs=0.001").plan();
        assert!(!p.met && said.contains("cannot be met") && said.contains("0.001x asked"), "{said}");
        assert!(p.forecast.macs.value < 0.2);
    }

    #[test]
    fn the_floor_binds_when_it_is_surely_broken_and_after_evidence() {
        let (p, said) = World::new("macs=0.15,drop=0.02").plan();
        assert!(!p.met && p.forecast.quality.high >= -0.02 - 1e-6, "surely broken: {:?}", p.forecast.quality);
        assert!(said.contains("stops at the floor"), "{said}");
        // Round 1 met the factor at a forecast drop; twice that was measured, so round 2 backs off.
        let mut w = World::new("macs=0.5");
        let (first, _) = w.plan();
        let expected = -first.forecast.quality.value;
        w.budget.drop = Some(expected * 1.2);
        let actions: Vec<_> = first.decisions.iter().map(Decision::planned).collect();
        let seen = |k: f64| {
            let (d_quality, sd) = (-k * expected, 0.01 * expected);
            let interval = (d_quality - 2.0 * sd, d_quality + 2.0 * sd);
            PastRound { round: 1, actions: actions.clone(), latency: 0.5, d_quality, sd, interval }
        };
        // As sure of the trials as of the round: what was measured differs by more than both errors.
        w.quality.trials.add(trial(&w.forecaster(), actions.clone(), 27.0));
        w.quality.observed = vec![seen(2.0)];
        let (second, said) = w.plan();
        assert!(second.forecast.macs.value > first.forecast.macs.value + 0.01, "{said}");
        // With less than was feared, the factor stands.
        w.quality.observed = vec![seen(0.5)];
        let (third, _) = w.plan();
        assert!(third.met && (third.forecast.macs.value - first.forecast.macs.value).abs() < 1e-9);
    }

    /// Whatever little a round teaches the forecasts, its own plan is known.
    #[test]
    fn a_plan_that_was_measured_is_told_by_that_and_not_proposed_again_where_it_lost_too_much() {
        let mut w = World::new("macs=0.5");
        let (first, _) = w.plan();
        let expected = -first.forecast.quality.value;
        w.budget.drop = Some(expected * 1.2);
        // As built, with its units; and so rough a measurement that little can be learnt.
        let built = |(t, a): &(Target, Action)| match a {
            Action::Prune { ratio, .. } => (t.clone(), Action::Prune { ratio: *ratio, kept: vec![0, 1] }),
            _ => (t.clone(), a.clone()),
        };
        let actions: Vec<_> = first.actions.iter().map(built).collect();
        let seen = |k: f64| {
            let (d_quality, sd) = (-k * expected, 20.0 * expected);
            let interval = (d_quality - 2.0 * sd, d_quality + 2.0 * sd);
            PastRound { round: 1, actions: actions.clone(), latency: 0.5, d_quality, sd, interval }
        };
        w.quality.observed = vec![seen(1.1)];
        let (again, said) = w.plan();
        assert!(again.actions == first.actions && said.contains("as a round of these decisions measured"), "{said}");
        assert_eq!(again.forecast.quality.basis, crate::plan::Basis::Measured);
        w.quality.observed = vec![seen(1.3)];
        let (next, said) = w.plan();
        assert_ne!(next.actions, first.actions, "{said}");
        assert!(next.forecast.macs.value > first.forecast.macs.value && !next.met, "{said}");
        assert!(said.contains("I would have proposed round 1's plan") && said.contains("goes less far"), "{said}");
    }

    #[test]
    fn only_a_floor_or_nothing_at_all_still_gives_a_plan() {
        for budget in ["drop=1", ""] {
            let (p, _) = World::new(budget).plan();
            let allowed = if budget.is_empty() { ASSUMED_DROP } else { 1.0 };
            assert!(!p.decisions.is_empty());
            assert!(-p.forecast.quality.value <= allowed + 1e-6 && p.forecast.memory.value < 0.5);
        }
    }

    /// Sums of harms say little of plans far harsher than any that was tried.
    #[test]
    fn where_only_a_floor_says_how_far_it_is_no_farther_than_was_tried() {
        let mut w = World::new("drop=60");
        let (first, said) = w.plan();
        let harm = |w: &World, p: &Proposal| w.forecaster().with_quality(w.quality.clone()).harm(&p.actions).0;
        let (_, reach) = w.forecaster().with_quality(w.quality.clone()).tried(60.0, &[]).expect("plans were tried");
        assert!(
            harm(&w, &first) <= BEYOND * reach * (1.0 + 1e-9) && said.contains("go on from what that shows"),
            "{said}"
        );
        // Tried, and not as bad: farther.
        let actions: Vec<_> = first.decisions.iter().map(Decision::planned).collect();
        w.quality.trials.add(trial(&w.forecaster(), actions, 27.0));
        let (second, _) = w.plan();
        assert!(harm(&w, &second) > 1.05 * harm(&w, &first), "{} {}", harm(&w, &second), harm(&w, &first));
    }

    #[test]
    fn human_decisions_stand_and_stale_ones_are_withdrawn() {
        let mut w = World::new("macs=0.6");
        let (first, _) = w.plan();
        let as_ = |status: Status| first.decisions.iter().map(|d| Decision { status, ..d.clone() }).collect();
        // An approval stands as an edit does, even where the plan would rather do without.
        (w.in_force, w.budget) = (as_(Status::Approved), "macs=1".parse().expect("budget"));
        let (approved, _) = w.plan();
        assert!(approved.decisions.is_empty(), "{:?}", approved.decisions);
        (w.in_force, w.budget) = (as_(Status::Applied), "macs=0.6".parse().expect("budget"));
        let (again, said) = w.plan();
        assert!(again.decisions.is_empty() && said.contains("Nothing new"), "{:?}", again.decisions);
        // The human cuts conv4 harder than planned: it stands, and others may give back.
        let i = w.in_force.iter().position(|d| d.target.name() == "conv4").expect("conv4 is in the plan");
        w.in_force[i].author = Author::Human;
        w.in_force[i].action = Action::Prune { ratio: 0.75, kept: Vec::new() };
        let (q, _) = w.plan();
        assert!(q.decisions.iter().all(|d| d.target.name() != "conv4"));
        assert!(q.met);
        // Without a need for it, what the planner had proposed is withdrawn by name.
        w.budget = "macs=1".parse().expect("budget");
        w.in_force.remove(i);
        let (r, _) = w.plan();
        assert_eq!(r.decisions.len(), w.in_force.len());
        assert!(r.decisions.iter().all(|d| d.action == Action::Keep));
    }

    #[test]
    fn unmeasured_and_empty_input_is_told() {
        let mut w = World::new("macs=0.6");
        w.sensitivity.curves.remove(1);
        let (p, said) = w.plan();
        assert!(said.contains("no sensitivity yet") && ratio(&p, "conv2") == 0.0);
        w.sensitivity = Sensitivity::default();
        assert_eq!(w.try_plan(&mut String::new()), Err(PlannerError::NoSensitivity));
    }
}
