//! Answers about plans: what is decided, what decisions would do, what is known of those that were tried.

use super::Asked;
use crate::agent::validate::{self, Draft, SearchSpace, Validated};
use crate::agent::{clean, critic};
use crate::plan::planner::trial_of;
use crate::plan::{Action, Basis, Estimate, Limit, PlanForecast, Target, bare, same_cut};
use crate::session::{OUTSIDE, Round, Standing, State};
use crate::task::Metric;
use serde_json::{Map, Value, json};

/// Lines of one answer at most, of each kind.
const MOST: usize = 400;
/// Decisions of one plan that was tried.
const MOST_TOLD: usize = 64;
/// Utterances and notes that history tells.
const MOST_SAID: usize = 20;

/// A plan that a program speaks of.
#[derive(Debug, Clone, Default)]
pub struct Wanted {
    /// Its own decisions.
    pub drafts: Vec<Draft>,
    /// All that it would build, what it is laid over included.
    pub actions: Vec<(Target, Action)>,
    /// What of it is no decision that could stand.
    pub errors: Vec<String>,
    /// What stands otherwise than it was asked for.
    pub remarks: Vec<String>,
}

impl Wanted {
    /// What became of the decisions that were asked for, for whoever asked.
    fn told(&self) -> Value {
        let read = self.drafts.iter().map(|d| json!({ "target": d.target.name(), "action": d.action }));
        json!({ "decisions": read.collect::<Vec<_>>(), "refused": self.errors, "changed": self.remarks })
    }
}

/// The decisions in `list`, checked as those of agents are, over what `on` names.
///
/// # Errors
/// In words: no open session.
pub fn wanted(list: &[Value], on: &str, state: &State) -> Result<Wanted, String> {
    let card = state.card.as_ref().ok_or("no session is open")?;
    // What a device refuses, its host says.
    let space = SearchSpace { graph: &card.graph, groups: &card.groups, constraints: &state.constraints, refused: &[] };
    let proposal = Map::from_iter([("decisions".to_owned(), Value::Array(list.to_vec()))]);
    let Validated { drafts, errors, remarks, .. } = validate::validate(&proposal, &OUTSIDE, space);
    let mut actions = of_words(on, state);
    for d in &drafts {
        actions.retain(|(t, _)| *t != d.target);
        actions.push((d.target.clone(), units(&d.target, &d.action, state)));
    }
    Ok(Wanted { drafts, actions: as_tried(actions, state), errors, remarks })
}

/// A cut with the units that stay, where the session has chosen them for the same cut before: they belong to what a plan is known by.
fn units(target: &Target, action: &Action, state: &State) -> Action {
    let chosen = |(t, a): &(Target, Action)| {
        let same =
            t == target && matches!(a, Action::Prune { kept, .. } if !kept.is_empty()) && same_cut(a, action, 1e-3);
        same.then(|| a.clone())
    };
    let decided = state.decisions.iter().rev().find_map(|d| chosen(&d.planned()));
    let tried = || state.trials.list.iter().rev().flat_map(|t| &t.actions).find_map(chosen);
    match action {
        Action::Prune { .. } => decided.or_else(tried).unwrap_or_else(|| action.clone()),
        other => other.clone(),
    }
}

/// The plan as it was tried, if it was, whichever units its cuts keep.
fn as_tried(actions: Vec<(Target, Action)>, state: &State) -> Vec<(Target, Action)> {
    match trial_of(&state.trials, &actions) {
        Some(t) => t.actions.clone(),
        None => actions,
    }
}

/// The plan that a word stands for; everything else is the original.
fn of_words(word: &str, state: &State) -> Vec<(Target, Action)> {
    match word {
        "in_force" => state.actions_of(state.model_round()),
        "approved" => state.recipe_actions(),
        "shown" => state.shown_actions(),
        _ => Vec::new(),
    }
}

/// The plan in argument `name`.
fn plan_in(asked: &Asked<'_>, name: &str, state: &State) -> Result<Wanted, String> {
    match asked.value(name) {
        Some(Value::String(word)) => Ok(Wanted { actions: of_words(word, state), ..Wanted::default() }),
        Some(Value::Array(list)) => {
            let plan = wanted(list, asked.text("on").unwrap_or("approved"), state)?;
            match plan.errors.first() {
                // Nothing of it is left: a forecast would be of something else.
                Some(error) if plan.drafts.is_empty() => Err(error.clone()),
                _ => Ok(plan),
            }
        }
        _ => Err(format!("`{name}` is missing")),
    }
}

/// A change of the metric in its own direction, as everything else in the program shows it.
pub fn change(metric: &Metric, value: f64, low: f64, high: f64) -> Value {
    let (low, high) = metric.shown_range(low, high);
    json!({ "value": metric.shown(value), "low": low, "high": high })
}

/// Which way a metric gets worse.
pub fn worse(metric: &Metric) -> &'static str {
    if metric.scale < 0.0 { "higher" } else { "lower" }
}

fn range(e: Estimate) -> Value {
    json!({ "value": e.value, "low": e.low, "high": e.high })
}

/// A forecast as it is told: factors of the original, quality in the metric's unit, each line of the budget.
fn foretold(f: &PlanForecast, state: &State) -> Value {
    let metric = state.metric();
    let known = f.quality.basis != Basis::Unmeasured;
    let lines = f.against(&state.budget);
    let line = |l: &crate::plan::BudgetLine| json!({ "name": l.name, "target": l.target, "forecast": range(l.forecast), "outcome": l.outcome });
    json!({
        "latency": range(f.latency), "macs": f.macs.value, "memory": f.memory.value, "params": f.params.value,
        "quality": {
            "metric": metric.name, "unit": metric.change_unit, "worse_is": worse(&metric),
            "change": known.then(|| change(&metric, f.quality.value, f.quality.low, f.quality.high)),
            "range_holds_in": f.quality.coverage, "rests_on": f.quality.basis.label(),
        },
        "actions_nobody_measured": f.forecast.unmeasured,
        "cannot_be_combined": f.skipped,
        "budget": lines.iter().map(line).collect::<Vec<_>>(),
    })
}

fn forecasts(state: &State, actions: &[(Target, Action)]) -> Result<Value, String> {
    let forecaster = state.forecaster().ok_or("nothing is profiled yet; hint: the engineer profiles first (`P`)")?;
    Ok(foretold(&forecaster.actions(actions), state))
}

pub fn forecast(state: &State, asked: &Asked<'_>) -> Result<Value, String> {
    let plan = plan_in(asked, "decisions", state)?;
    let mut told = plan.told();
    told["forecast"] = forecasts(state, &plan.actions)?;
    Ok(told)
}

pub fn compare(state: &State, asked: &Asked<'_>) -> Result<Value, String> {
    let (a, b) = (plan_in(asked, "a", state)?, plan_in(asked, "b", state)?);
    let of = |plan: &Wanted, target: &Target| {
        plan.actions.iter().find(|(t, _)| t == target).map_or(Action::Keep, |(_, action)| action.clone())
    };
    let mut targets: Vec<&Target> = Vec::new();
    for (t, _) in a.actions.iter().chain(&b.actions) {
        if !targets.contains(&t) {
            targets.push(t);
        }
    }
    let differ = |t: &&&Target| !same_cut(&of(&a, t), &of(&b, t), 1e-9);
    let rows: Vec<Value> = (targets.iter().filter(differ).take(MOST))
        .map(|t| json!({ "target": t.to_string(), "a": bare(of(&a, t)), "b": bare(of(&b, t)) }))
        .collect();
    Ok(json!({
        "differ": rows,
        "a": { "read": a.told(), "forecast": forecasts(state, &a.actions)? },
        "b": { "read": b.told(), "forecast": forecasts(state, &b.actions)? },
    }))
}

pub fn plan(state: &State) -> Result<Value, String> {
    let card = state.card.as_ref().ok_or("no session is open")?;
    let metric = state.metric();
    let row = |(target, here): &(&Target, crate::session::Planned<'_>)| {
        let d = here.shown()?;
        let (standing, since) = match here.standing() {
            Standing::InForce { since } => ("in_force", Some(since)),
            Standing::Leaving { since } => ("leaving", Some(since)),
            Standing::Free => ("free", None),
            Standing::Proposed => ("proposed", None),
            Standing::Edited => ("edited", None),
            Standing::Approved => ("approved", None),
            Standing::Vetoed => ("vetoed", None),
            Standing::RolledBack => ("rolled_back", None),
        };
        let forecast = d.forecast.map(|f| {
            json!({ "latency_ms": range(f.d_latency_ms), "macs": f.d_macs, "params": f.d_params, "bytes": f.d_bytes, "quality": change(&metric, f.d_quality.value, f.d_quality.low, f.d_quality.high) })
        });
        Some(json!({
            "id": d.id.0, "target": target.to_string(), "action": bare(d.action.clone()), "standing": standing,
            "since_round": since, "author": d.author.to_string(), "why": clean::line(&d.rationale, 280), "forecast_alone": forecast,
            "frozen": here.frozen.map(|c| clean::line(&c.reason, 160)),
        }))
    };
    let all = state.plan();
    let rows: Vec<Value> = all.iter().filter_map(row).take(MOST).collect();
    let left_out = all.len().saturating_sub(rows.len());
    let forecaster = state.forecaster();
    let whole = |actions: Vec<(Target, Action)>| forecaster.as_ref().map(|f| foretold(&f.actions(&actions), state));
    Ok(json!({
        "model": clean::line(&card.model.name, 80), "family": format!("{:?}", card.model.family), "device": clean::line(&card.device, 80),
        "evaluated_on": clean::line(&card.data.name, 80), "calibrated_on": clean::line(&card.calib.name, 80), "batch": card.batch,
        "metric": metric.name, "worse_is": worse(&metric), "original": state.baseline().map(|e| metric.value(e.metrics.score)),
        "budget": state.budget.to_string(), "round": state.round, "phase": state.phase,
        "decisions": rows, "left_out": left_out,
        "if_all_open_were_approved": whole(state.shown_actions()),
        "what_the_next_run_builds": whole(state.recipe_actions()),
    }))
}

/// A measured round, as factors of the original.
fn round(r: &Round, state: &State, metric: &Metric) -> Option<Value> {
    let (e, base) = (r.evaluation.as_ref()?, state.baseline()?);
    let over = |a: u64, b: u64| (b > 0).then(|| a as f64 / b as f64);
    let change = r.verdict.as_ref().map(|v| change(metric, v.d_quality, v.d_quality_low, v.d_quality_high));
    Some(json!({
        "round": r.number, "metric": metric.name, "score": metric.value(e.metrics.score), "change": change,
        "latency": e.latency().map(|l| json!({ "value": l.value, "low": l.low, "high": l.high })),
        "latency_in_doubt": e.doubt.map(|d| d.to_string()),
        "macs": over(e.macs.conv_linear, base.macs.conv_linear), "memory": over(e.weight_bytes, base.weight_bytes),
        "params": over(e.params, base.params),
        "outcome": r.verdict.as_ref().map(|v| v.outcome), "accepted": r.accepted,
        "rolled_back": r.rolled_back.as_ref().map(|why| clean::line(why, 160)),
    }))
}

pub fn frontier(state: &State) -> Result<Value, String> {
    let metric = state.metric();
    let rounds: Vec<Value> = state.rounds.iter().filter_map(|r| round(r, state, &metric)).collect();
    let forecaster = state.forecaster();
    let trial = |t: &crate::plan::Trial| {
        let f = forecaster.as_ref()?.actions(&t.actions);
        let changes: Vec<_> = t.actions.iter().filter(|(_, a)| *a != Action::Keep).collect();
        let told: Vec<Value> = (changes.iter().take(MOST_TOLD))
            .map(|(target, action)| json!({ "target": target.to_string(), "action": bare(action.clone()) }))
            .collect();
        let o = &t.outcome;
        Some(json!({
            "changes": changes.len(), "decisions": told, "left_out": changes.len().saturating_sub(MOST_TOLD), "made_to_learn_from": t.anchor,
            "seen_on_held_back_data": { "items": o.images, "change": metric.shown(o.d_quality) },
            "forecast": foretold(&f, state),
        }))
    };
    let tried: Vec<Value> = state.trials.list.iter().filter_map(trial).collect();
    Ok(
        json!({ "measured_rounds": rounds, "tried_on_held_back_data": tried, "shown": forecasts(state, &state.shown_actions()).ok() }),
    )
}

pub fn history(state: &State) -> Result<Value, String> {
    let metric = state.metric();
    let told = |r: &Round| {
        let mut out = round(r, state, &metric)?;
        out["forecast_against_measurement"] =
            json!(critic::compare(state, r.number).map(|c| clean::cut(&c.to_string(), 2_000)));
        Some(out)
    };
    let rounds: Vec<Value> = state.rounds.iter().filter_map(told).collect();
    let vetoed = state.decisions.iter().filter_map(|d| Some((d, d.veto_reason.as_ref()?)));
    let vetoes: Vec<Value> = vetoed
        .rev()
        .take(MOST)
        .map(|(d, why)| json!({ "target": d.target.to_string(), "action": bare(d.action.clone()), "author": d.author.to_string(), "reason": clean::line(why, 160) }))
        .collect();
    let notes: Vec<Value> = state
        .notes
        .iter()
        .rev()
        .take(MOST_SAID)
        .map(|(r, t)| json!({ "round": r, "note": clean::line(t, 1_000) }))
        .collect();
    let said: Vec<Value> = (state.utterances.iter().rev().take(MOST_SAID))
        .map(|u| json!({ "round": u.round, "role": u.role, "model": clean::line(&u.model, 80), "text": clean::cut(&clean::text(&u.text), 1_500) }))
        .collect();
    Ok(
        json!({ "rounds": rounds, "vetoes_newest_first": vetoes, "notes_newest_first": notes, "said_newest_first": said }),
    )
}

/// What a trial showed: the forecast that rests on it now. `remarks`: what of the plan stands otherwise than asked.
///
/// # Errors
/// In words: the plan was not tried, or is not kept any more.
pub fn tried(state: &State, actions: &[(Target, Action)], remarks: &[String]) -> Result<Value, String> {
    let tried = trial_of(&state.trials, actions).ok_or("it was tried, and is not kept any more; hint: try again")?;
    let f = state.forecaster().ok_or("nothing is profiled yet")?.actions(&tried.actions);
    let metric = state.metric();
    Ok(json!({
        "rehearsed": true, "changed": remarks,
        "quality": {
            "metric": metric.name, "unit": metric.change_unit, "worse_is": worse(&metric),
            "change": change(&metric, f.quality.value, f.quality.low, f.quality.high), "rests_on": f.quality.basis.label(),
        },
        "seen_on_held_back_data": { "items": tried.outcome.images, "change": metric.shown(tried.outcome.d_quality) },
        "latency": { "value": f.latency.value, "low": f.latency.low, "high": f.latency.high },
        "macs": f.macs.value, "memory": f.memory.value, "params": f.params.value,
    }))
}

pub fn constraints(state: &State) -> Result<Value, String> {
    let row = |c: &crate::plan::Constraint| {
        let limit = match c.limit {
            Limit::Freeze => json!("nothing new here"),
            Limit::MaxRatio { ratio } => json!({ "remove_at_most": ratio }),
            Limit::MinRatio { ratio } => json!({ "remove_at_least": ratio }),
            Limit::KeepF32 => json!("keep f32"),
            Limit::Together { ref set } => json!({ "decide_alike_with": clean::line(set, 80) }),
            Limit::Prefer { wish } => json!({ "wish": wish.to_string() }),
        };
        json!({ "target": c.target.to_string(), "limit": limit, "reason": clean::line(&c.reason, 160) })
    };
    let budget: Map<String, Value> =
        state.budget.items().into_iter().filter_map(|(name, v)| Some((name.to_owned(), json!(v?)))).collect();
    Ok(json!({
        "budget": budget,
        "budget_means": "latency, macs, memory and params: at most this factor of the original; drop: the metric may get worse by this; class: no class may lose more points of its accuracy; kl: nats a token",
        "constraints": state.constraints.iter().rev().take(MOST).map(row).collect::<Vec<_>>(),
    }))
}
