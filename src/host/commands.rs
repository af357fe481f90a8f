//! Judges commands: against the session's state, the phase, the constraints and the model. Pure but for the desk's
//! answers, which are ready: a command becomes events and what follows them, or words that say why not.

use super::aside::Aside;
use super::desk::Desk;
use super::jobs::{CONTROLLER, JobKind};
use crate::config::Policy;
use crate::control::Asked;
use crate::plan::{Action, Author, Budget, Decision, DecisionId, Status, Target, bare, same_cut};
use crate::session::{
    Answers, Command, Event, Feed, Limits, Looks, MOST_TURNS, NOTE_BYTES, PassedOver, Phase, Planned, REASON_BYTES,
    Role, Seq, SessionCard, State, Tokens,
};

mod bounds;
mod many;
mod outside;
mod plans;
mod restore;

pub use outside::rehearsable;
pub use restore::restore;

/// What happens once the events are durable.
#[derive(Debug, Clone, PartialEq)]
pub enum Then {
    Nothing,
    Start(JobKind),
    /// The next round begins; proposals are made if the host does that by itself.
    NextRound,
    Cancel,
    Llm {
        base_url: Option<String>,
        model: Option<String>,
    },
    Role {
        role: &'static str,
        by: Option<Answers>,
    },
    Looks(Looks),
    Limits(Limits),
    /// How often agents are asked.
    Turns(usize),
    /// For whoever watches: a question that waits, or a line in passing.
    Say {
        waits: bool,
        text: String,
    },
    /// Going back to the decisions after this event, see [`restore`].
    Restore(Seq),
    /// Looking something up beside whatever runs, for whoever watches.
    Aside(Aside),
    /// For whoever watches, and kept nowhere.
    Tell(Feed),
    /// What the controller's job decodes at.
    Level(Asked),
    TakePen,
    Stop,
}

#[derive(Debug)]
pub struct Effect {
    pub events: Vec<Event>,
    pub then: Then,
}

impl Effect {
    fn events(events: impl IntoIterator<Item = Event>) -> Effect {
        Effect { events: events.into_iter().collect(), then: Then::Nothing }
    }
}

/// What `command` amounts to now; `running` names the job in progress.
pub fn judge(
    state: &State,
    desk: &dyn Desk,
    running: Option<&'static str>,
    command: Command,
) -> Result<Effect, String> {
    // Whether it waits for what runs, and whether it needs decisions that may be worked on.
    let (waits, reviews) = match &command {
        Command::Profile | Command::Measure { .. } | Command::Sense | Command::Propose { .. } => (true, true),
        Command::Run | Command::Rehearse | Command::Search | Command::Bisect | Command::Try { .. } => (true, true),
        Command::AskRole { .. } => (true, true),
        Command::Units { .. } | Command::Changed { .. } | Command::Rounding { .. } => (false, false),
        // It would be in the way of what a job measures.
        Command::Activations { .. } => (true, false),
        Command::Tokens { .. } => (false, false),
        Command::Offer { .. } => (false, true),
        Command::Ask { .. } | Command::Looked { .. } => (false, false),
        Command::Control { target } => (target.is_some(), target.is_some()),
        Command::Export { .. } => (true, false),
        Command::Edit { .. } | Command::Decide { .. } | Command::Approve { .. } | Command::Veto { .. } => (false, true),
        Command::Take { .. } | Command::DecideAll { .. } | Command::VetoAll { .. } => (false, true),
        Command::Fork { .. } => (false, false),
        Command::Reopen { .. } | Command::Undo | Command::Redo | Command::Restore { .. } => (false, true),
        Command::Heal { .. } => (false, true),
        Command::UntilClear { .. } => (false, false),
        Command::EvaluateAll => (true, false),
        Command::Note { .. } | Command::SetBudget { .. } | Command::SetLlm { .. } | Command::SetLooks { .. } => {
            (false, false)
        }
        Command::SetTurns { .. } | Command::SetRole { .. } | Command::SetLimits { .. } => (false, false),
        Command::Constrain { .. } | Command::Unconstrain { .. } => (false, false),
        Command::Bind { .. } | Command::Lift { .. } | Command::Confirm { .. } => (false, false),
        Command::Accept | Command::RollBack { .. } => (false, false),
        Command::Level { .. } | Command::Cancel | Command::TakePen | Command::Stop => (false, false),
    };
    if let Some(what) = running.filter(|_| waits) {
        return Err(busy(what));
    }
    if reviews {
        reviewable(state)?;
    }
    let then = |events: Vec<Event>, then| Ok(Effect { events, then });
    let phase = |phase| vec![Event::PhaseEntered { round: state.round, phase }];
    match command {
        Command::Profile => then(phase(Phase::Profile), Then::Start(JobKind::Profile)),
        Command::Measure { layer } => {
            let Some(profile) = state.profile() else {
                return Err("nothing is measured yet; hint: profile first".to_owned());
            };
            if !profile.rows.iter().any(|r| r.name == layer) {
                return Err(format!(
                    "`{layer}` is no row of the model in force; hint: names are those of the layer list"
                ));
            }
            then(phase(Phase::Profile), Then::Start(JobKind::Measure { layer }))
        }
        Command::Sense => then(phase(Phase::Profile), Then::Start(JobKind::Sense)),
        Command::Propose { by } => then(phase(Phase::Reason), Then::Start(JobKind::Propose(by))),
        Command::Edit { id, action } => {
            let event = edit(state, desk, id, &action)?;
            let tied = bounds::alike(state, desk, &find(state, id)?.target, &action)?;
            Ok(Effect::events([tied.unwrap_or(event)]))
        }
        Command::Decide { target, action } => decide(state, desk, target, action),
        Command::DecideAll { actions } => many::decide(state, desk, actions),
        Command::VetoAll { targets, reason } => many::veto(state, targets, &reason),
        Command::Take { actions, from } => plans::take(state, desk, actions, &from),
        Command::Fork { name } => plans::fork(state, &name),
        Command::Approve { ids } => approve(state, &ids),
        Command::Veto { ids, reason } => veto(state, &ids, &reason),
        Command::Reopen { ids } => reopen(state, &ids),
        Command::Note { text } => Ok(Effect::events([noted(state, &text)?])),
        Command::AskRole { role, note } => {
            let role = Role::called(&role)?;
            let note = (!note.trim().is_empty()).then(|| noted(state, &note)).transpose()?;
            then(note.into_iter().chain(phase(Phase::Reason)).collect(), Then::Start(JobKind::Ask(role)))
        }
        Command::SetBudget { budget } => {
            in_range(&budget)?;
            let takes_text = state.card.as_ref().is_none_or(|c| c.graph.vocabulary().is_some());
            if let Some(why) = budget.unfit(takes_text) {
                return Err(why);
            }
            Ok(Effect::events([Event::BudgetSet { budget }]))
        }
        Command::Heal { heal } => {
            if heal.is_some() {
                desk.heals()?;
            }
            match heal == state.heal {
                true => Ok(Effect::events([])),
                false => Ok(Effect::events([Event::HealingSet { heal }])),
            }
        }
        Command::UntilClear { on } if on == state.until_clear => Ok(Effect::events([])),
        Command::UntilClear { on } => {
            let language = state.card.as_ref().is_some_and(|c| c.graph.is_language_model());
            if on && (language || state.baseline().is_some_and(|b| b.metrics.classes.is_none())) {
                return Err(
                    "only of classifiers, whose answers are right or wrong, it can be clear early; hint: leave it off"
                        .to_owned(),
                );
            }
            Ok(Effect::events([Event::PatienceSet { until_clear: on }]))
        }
        Command::EvaluateAll => {
            let part = state.round_at(state.round).and_then(|r| r.evaluation.as_ref()?.part);
            if state.phase != Phase::Verdict || part.is_none() {
                return Err("no round waits that was evaluated in part; hint: `:until-clear on`, then run".to_owned());
            }
            then(Vec::new(), Then::Start(JobKind::EvaluateAll))
        }
        Command::Constrain { constraint } => bounds::constrain(state, constraint),
        Command::Unconstrain { target } => bounds::unconstrain(state, target),
        Command::Bind { constraints } => bounds::bind(state, constraints),
        Command::Lift { targets } => bounds::lift(state, targets),
        Command::Confirm { take } => bounds::confirm(state, take),
        Command::Units { group } => {
            known(state, &Target::Group(group.clone()))?;
            let scores = desk.importance(&group).map(|s| steepest(&s)).unwrap_or_default();
            then(Vec::new(), Then::Tell(Feed::Units { group, scores }))
        }
        Command::Rounding { layer } => {
            known(state, &Target::Layer(layer.clone()))?;
            then(Vec::new(), Then::Aside(Aside::Rounding(layer)))
        }
        Command::Activations { layer } => {
            known(state, &Target::Layer(layer.clone()))?;
            then(Vec::new(), Then::Aside(Aside::Activations(layer)))
        }
        Command::Changed { what } => then(Vec::new(), Then::Aside(Aside::Changed(what))),
        // Two models run: beside a measurement they would be measured with it.
        Command::Tokens { what } => match running {
            Some(job) => then(Vec::new(), Then::Tell(Feed::Tokens(Box::new(Tokens::untold(what, busy(job)))))),
            None => then(Vec::new(), Then::Aside(Aside::Tokens(what))),
        },
        Command::Undo if state.undo.is_empty() => {
            Err("nothing to undo; hint: what a run has applied is rolled back, not undone".to_owned())
        }
        Command::Undo => Ok(Effect::events([Event::Undone])),
        Command::Redo if state.redo.is_empty() => {
            Err("nothing to redo; hint: a new act after an undo forgets what was undone".to_owned())
        }
        Command::Redo => Ok(Effect::events([Event::Redone])),
        Command::Restore { seq } if !(1..=state.seq).contains(&seq) => {
            Err(format!("there is no event {seq}; hint: the timeline has their numbers, up to {}", state.seq))
        }
        Command::Restore { seq } => then(Vec::new(), Then::Restore(seq)),
        Command::Run => run(state, desk),
        Command::Rehearse => rehearse(state, desk),
        Command::Search => search(state, desk),
        Command::Bisect => bisect(state, desk),
        Command::Offer { offer } => outside::offer(state, desk, offer),
        Command::Try { actions, by } => outside::tries(state, desk, actions, &by),
        Command::Ask { question, by } => outside::ask(state, &question, &by),
        Command::Looked { at, by } => outside::looked(&at, &by),
        Command::Control { target } => controls(state, desk, running, target),
        Command::Level { asked } => level(state, running, asked),
        Command::Accept => {
            settled(state, running)?;
            if state.phase != Phase::Verdict {
                return Err("there is no verdict to accept; hint: run first".to_owned());
            }
            let met = state
                .round_at(state.round)
                .and_then(|r| r.verdict.as_ref())
                .is_some_and(|v| v.outcome == crate::plan::Outcome::Accept);
            let next = if met { Then::Nothing } else { Then::NextRound };
            then(vec![Event::RoundAccepted { round: state.round }], next)
        }
        Command::RollBack { reason } => {
            settled(state, running)?;
            let round = if state.phase == Phase::Verdict { state.round } else { state.base_round() };
            if round == 0 {
                return Err("no round to roll back; hint: the original model is in force".to_owned());
            }
            Ok(Effect::events([Event::RolledBack { round, reason: bounded(&reason)? }]))
        }
        Command::Export { path, format } => {
            let round = if state.phase == Phase::Verdict { state.round } else { state.base_round() };
            if round == 0 && state.control_of(0).is_none() {
                return Err("no compressed model yet; hint: approve decisions, run, accept, then export".to_owned());
            }
            let format = crate::model::formats::format(&format, &path)?.to_owned();
            if round == 0 && format != WITH_LEVELS {
                return Err(format!(
                    "the original's levels and controller go into {WITH_LEVELS}, not into {format}; hint: `:export FILE.{WITH_LEVELS}`"
                ));
            }
            then(Vec::new(), Then::Start(JobKind::Export { round, path, format }))
        }
        Command::Cancel => match running {
            Some(_) => then(Vec::new(), Then::Cancel),
            None => Err("nothing is running; hint: there is nothing to cancel".to_owned()),
        },
        Command::SetLlm { base_url, model } => {
            let set = |s: Option<String>| s.map(|s| s.trim().to_owned()).filter(|s| !s.is_empty());
            then(Vec::new(), Then::Llm { base_url: set(base_url), model: set(model) })
        }
        Command::SetRole { role, by } => then(Vec::new(), Then::Role { role: Role::called(&role)?.name, by }),
        Command::SetLooks { looks } => then(Vec::new(), Then::Looks(looks)),
        Command::SetLimits { limits } => {
            limits.check()?;
            then(Vec::new(), Then::Limits(limits))
        }
        Command::SetTurns { turns } if !(1..=MOST_TURNS).contains(&turns) => {
            Err(format!("{turns} turns are none; hint: 1 to propose once, {MOST_TURNS} at most"))
        }
        Command::SetTurns { turns } => then(Vec::new(), Then::Turns(turns)),
        Command::TakePen => then(Vec::new(), Then::TakePen),
        Command::Stop => then(Vec::new(), Then::Stop),
    }
}

/// Scores of units that are told at most.
const UNITS: usize = 256;

/// Scores as parts of the greatest, that one first; of many, some at even distances.
fn steepest(scores: &[f32]) -> Vec<f32> {
    let mut sorted: Vec<f32> = scores.iter().map(|s| if s.is_finite() { s.max(0.0) } else { 0.0 }).collect();
    sorted.sort_by(|a, b| b.total_cmp(a));
    let (n, most) = (sorted.len(), sorted.first().copied().unwrap_or(0.0).max(f32::MIN_POSITIVE));
    let at = |i: usize| sorted[if n <= UNITS { i } else { i * (n - 1) / (UNITS - 1) }] / most;
    (0..n.min(UNITS)).map(at).collect()
}

fn noted(state: &State, text: &str) -> Result<Event, String> {
    let text = text.trim();
    if text.is_empty() || text.len() > NOTE_BYTES {
        return Err(format!("a note has 1 to {NOTE_BYTES} bytes, this one {}; hint: shorten it", text.len()));
    }
    Ok(Event::Noted { round: state.round, text: text.to_owned() })
}

/// What rules make of a session that begins with `card`.
///
/// # Errors
/// In words: a pattern that matches nothing, rules against each other.
pub fn bound_by(rules: &Policy, card: SessionCard) -> Result<Vec<Event>, String> {
    let constraints = rules.bind(&card)?;
    let state = State { card: Some(card), ..State::default() };
    Ok(bounds::bind(&state, constraints)?.events)
}

/// What the engineer sets on a target that may have a decision already.
fn decide(state: &State, desk: &dyn Desk, target: Target, action: Action) -> Result<Effect, String> {
    let here = state.planned(&target);
    if here.frozen.is_none()
        && let Some(tied) = bounds::alike(state, desk, &target, &action)?
    {
        return Ok(Effect::events([tied]));
    }
    if let Some(d) = here.open.or(here.approved) {
        return Ok(Effect::events([edit(state, desk, d.id, &action)?]));
    }
    let action = desk.resolve(state, &target, &action)?;
    if here.frozen.is_some() {
        // Not even to keep it: that would wait beside the veto.
        return Err(format!("`{target}` is vetoed or frozen; hint: reopen it, or lift the constraint"));
    }
    Ok(Effect::events([Event::Proposed { decisions: vec![own(state, target, action)] }]))
}

fn veto(state: &State, ids: &[DecisionId], reason: &str) -> Result<Effect, String> {
    // A veto of what is in force takes it back with the next run; what an earlier round had is history.
    let newest = |d: &Decision| state.planned(&d.target).newest.is_some_and(|n| n.id == d.id);
    let fit = |d: &Decision| match d.status {
        Status::Proposed | Status::Edited | Status::Approved => true,
        Status::Applied => in_force(state, d.id),
        Status::RolledBack => in_force(state, d.id) || newest(d),
        Status::Vetoed => false,
    };
    let ids = pick(state, ids, "vetoed", fit)?;
    for id in &ids {
        bounds::refusable(state, &find(state, *id)?.target)?;
    }
    Ok(Effect::events([Event::Vetoed { ids, reason: bounded(reason)? }]))
}

/// Decisions outlive the device that they were made for.
fn carried_out(actions: &[(Target, Action)], desk: &dyn Desk) -> Result<(), String> {
    match actions.iter().find_map(|(target, action)| Some((target, desk.refuses(action)?))) {
        Some((target, why)) => Err(format!("`{target}` was decided for another device, on this one {why}; or veto it")),
        None => Ok(()),
    }
}

fn run(state: &State, desk: &dyn Desk) -> Result<Effect, String> {
    let pending = state.pending();
    if pending.is_empty() && state.leaving().is_empty() {
        return Err("nothing is approved; hint: approve at least one decision, then run".to_owned());
    }
    // A constraint may have come after the approval.
    if let Some((d, words)) = pending.iter().find_map(|d| Some((d, state.forbids(d)?))) {
        return Err(format!("`{}` is approved against your constraint: {words}", d.target));
    }
    bounds::kept(state)?;
    carried_out(&state.recipe_actions(), desk)?;
    let ids: Vec<DecisionId> = pending.iter().map(|d| d.id).collect();
    let recipe = Some(state.recipe().iter().map(|d| d.id).collect());
    // What training brings is not forecast, and what was forecast without it is no forecast of what will be judged.
    let forecast = state.run_forecast().filter(|_| state.heal.is_none());
    let started = Event::RunStarted { round: state.round, ids, recipe, forecast };
    Ok(Effect { events: vec![started], then: Then::Start(JobKind::Run) })
}

/// There is something to try plans on.
fn held_back(desk: &dyn Desk) -> Result<(), String> {
    match desk.rehearses() {
        true => Ok(()),
        false => Err("no calibration image is held back; hint: give more than a handful".to_owned()),
    }
}

fn rehearse(state: &State, desk: &dyn Desk) -> Result<Effect, String> {
    held_back(desk)?;
    let changes = |actions: &Vec<(Target, Action)>| actions.iter().any(|(_, a)| *a != Action::Keep);
    let plans: Vec<_> = [state.recipe_actions(), state.shown_actions()].into_iter().filter(changes).collect();
    if plans.is_empty() {
        return Err("nothing is decided; hint: ask for a plan or decide something, then rehearse".to_owned());
    }
    let then = match plans.into_iter().find(|actions| state.trials.of(actions).is_none()) {
        None => Then::Nothing,
        Some(actions) => {
            carried_out(&actions, desk)?;
            Then::Start(JobKind::Rehearse { actions, asked: true })
        }
    };
    Ok(Effect { events: Vec::new(), then })
}

fn bisect(state: &State, desk: &dyn Desk) -> Result<Effect, String> {
    held_back(desk)?;
    let changes = |actions: &[(Target, Action)]| actions.iter().filter(|(_, a)| *a != Action::Keep).count();
    let plan = [state.recipe_actions(), state.shown_actions()].into_iter().find(|actions| changes(actions) > 1);
    let Some(actions) = plan else {
        return Err(
            "there are no two decisions to choose among; hint: ask for a plan or decide something first".to_owned()
        );
    };
    carried_out(&actions, desk)?;
    Ok(Effect { events: Vec::new(), then: Then::Start(JobKind::Bisect { actions }) })
}

fn search(state: &State, desk: &dyn Desk) -> Result<Effect, String> {
    held_back(desk)?;
    if !state.may_search() {
        return Err("there is no plan for a budget to look beside; hint: `:budget`, then propose".to_owned());
    }
    Ok(Effect { events: Vec::new(), then: Then::Start(JobKind::Search { unasked: None }) })
}

/// The format whose files have room for levels and their controller.
const WITH_LEVELS: &str = crate::model::formats::FORMATS[0];

/// Starts a controller, or stops the one that runs.
fn controls(
    state: &State,
    desk: &dyn Desk,
    running: Option<&'static str>,
    target: Option<f64>,
) -> Result<Effect, String> {
    let then = |then| Ok(Effect { events: Vec::new(), then });
    let Some(target) = target else {
        return match running {
            Some(CONTROLLER) => then(Then::Cancel),
            _ => Err("no controller runs; hint: `:control` makes one and runs it".to_owned()),
        };
    };
    if !(target > 0.0 && target < 1.0) {
        return Err(format!(
            "{target} is no share of the whole network's time; hint: above 0 and below 1, such as 0.8"
        ));
    }
    desk.controls()?;
    if state.card.is_none() {
        return Err("no model is open; hint: `paring open MODEL --data TEXT`".to_owned());
    }
    then(Then::Start(JobKind::Control { target }))
}

/// Another level, while a controller runs.
fn level(state: &State, running: Option<&'static str>, asked: Asked) -> Result<Effect, String> {
    if running != Some(CONTROLLER) {
        return Err("no controller runs; hint: `:control` makes one and runs it".to_owned());
    }
    let levels = state.control_of(state.base_round()).map_or(0, |c| c.levels.len());
    match asked {
        Asked::Pinned(level) if level >= levels => Err(match levels {
            0 => "there are no levels yet; hint: wait until they are made".to_owned(),
            n => format!("there is no level {level}; hint: 0 to {}, or auto", n - 1),
        }),
        _ => Ok(Effect { events: Vec::new(), then: Then::Level(asked) }),
    }
}

/// A reason, trimmed, that is no longer than a state can hold many of.
fn bounded(reason: &str) -> Result<String, String> {
    let reason = reason.trim();
    if reason.len() > REASON_BYTES {
        return Err(format!("a reason has at most {REASON_BYTES} bytes, this one {}; hint: shorten it", reason.len()));
    }
    Ok(reason.to_owned())
}

/// Decisions may be worked on unless a run is under way or waits for its verdict.
fn reviewable(state: &State) -> Result<(), String> {
    match state.phase {
        Phase::Profile | Phase::Reason | Phase::Review => Ok(()),
        Phase::Compress | Phase::Evaluate => {
            Err(format!("round {} is being compressed and evaluated; hint: wait for it or cancel it", state.round))
        }
        Phase::Verdict => Err(format!("round {} waits for its verdict; hint: accept it or roll it back", state.round)),
    }
}

/// What must end before what was asked for.
fn busy(what: &str) -> String {
    match what {
        // It ends when somebody ends it.
        CONTROLLER => format!("`{what}` is running; hint: `:control off` ends it, and what it made stays"),
        _ => format!("`{what}` is running; hint: wait for it or cancel it"),
    }
}

/// A verdict may be answered while somebody still comments on it; nothing else may be under way.
fn settled(state: &State, running: Option<&'static str>) -> Result<(), String> {
    match running {
        Some(what) if state.phase != Phase::Verdict || what != JobKind::Run.label() => Err(busy(what)),
        _ => Ok(()),
    }
}

fn find(state: &State, id: DecisionId) -> Result<&Decision, String> {
    state.decision(id).ok_or_else(|| format!("no decision `{}`; hint: it gave way to a newer one", id.0))
}

/// The ids among `ids` of decisions that are fit; an error in words when there are none.
fn pick(
    state: &State,
    ids: &[DecisionId],
    what: &str,
    fit: impl Fn(&Decision) -> bool,
) -> Result<Vec<DecisionId>, String> {
    let mut out = Vec::new();
    let mut why = format!("nothing there to be {what}; hint: pick a decision first");
    for &id in ids {
        let d = find(state, id)?;
        if out.contains(&id) {
            continue;
        }
        if fit(d) {
            out.push(id);
        } else {
            why = match d.status {
                Status::Applied if in_force(state, id) => {
                    format!("`{}` is in force already; hint: veto it, roll the round back, or decide anew", d.target)
                }
                Status::Applied => {
                    format!("`{}` is no longer in force; hint: decide on it anew", d.target)
                }
                Status::Approved => format!("`{}` is approved already; hint: reopen it to change that", d.target),
                Status::Proposed | Status::Edited => {
                    format!("`{}` is open already; hint: approve or veto it", d.target)
                }
                Status::RolledBack | Status::Vetoed if what == "reopened" => {
                    format!("`{}` has a newer decision that waits; hint: edit or approve that one", d.target)
                }
                Status::Vetoed => format!("`{}` is vetoed; hint: reopen it first", d.target),
                Status::RolledBack => format!("`{}` was rolled back; hint: reopen it first", d.target),
            };
        }
    }
    if out.is_empty() { Err(why) } else { Ok(out) }
}

/// No decision on `target` is open or approved.
fn nothing_waits(state: &State, target: &Target) -> bool {
    let here = state.planned(target);
    here.open.is_none() && here.approved.is_none()
}

fn in_force(state: &State, id: DecisionId) -> bool {
    state.in_force().iter().any(|d| d.id == id)
}

/// What of `ids` can be taken back to what it was, so that on no target two decisions come to wait; newest first.
fn reopenable(state: &State, ids: &[DecisionId]) -> Vec<DecisionId> {
    let mut of: Vec<&Decision> = ids.iter().filter_map(|id| state.decision(*id)).collect();
    of.sort_by_key(|d| std::cmp::Reverse(d.id));
    of.dedup_by_key(|d| d.id);
    let mut opened: Vec<&Target> = Vec::new();
    let mut out = Vec::new();
    for d in of {
        let stands = in_force(state, d.id);
        let free = nothing_waits(state, &d.target);
        let alone = free && !opened.contains(&&d.target);
        let (fits, opens) = match d.status {
            Status::Approved => (true, true),
            // Back in force, or back to history: nothing waits for it.
            Status::Vetoed if stands => (true, false),
            Status::Vetoed if state.has_run(d.id) => (free, false),
            Status::Vetoed => (alone, true),
            Status::RolledBack => (!stands && alone, true),
            Status::Proposed | Status::Edited | Status::Applied => (false, false),
        };
        if fits {
            out.push(d.id);
            if opens {
                opened.push(&d.target);
            }
        }
    }
    out
}

/// Takes back approvals and vetoes. What was rolled back is history, which stays as it ran: it is proposed again, as the
/// engineer's own.
fn reopen(state: &State, ids: &[DecisionId]) -> Result<Effect, String> {
    let fit = reopenable(state, ids);
    let of = |id: &DecisionId| state.decision(*id);
    let is_history = |id: &DecisionId| of(id).is_some_and(|d| d.status == Status::RolledBack);
    let (history, closed): (Vec<DecisionId>, Vec<DecisionId>) =
        pick(state, ids, "reopened", |d| fit.contains(&d.id))?.into_iter().partition(is_history);
    let anew =
        |d: &Decision| Decision { rationale: d.rationale.clone(), ..own(state, d.target.clone(), d.action.clone()) };
    let mut again: Vec<Decision> = history.iter().filter_map(of).map(anew).collect();
    if let Some(words) = again.iter().find_map(|d| state.forbids(d)) {
        return Err(words);
    }
    for (d, id) in again.iter_mut().zip(state.next_decision..) {
        d.id = DecisionId(id);
    }
    let closed = (!closed.is_empty()).then_some(Event::Reopened { ids: closed });
    let again = (!again.is_empty()).then_some(Event::Proposed { decisions: again });
    Ok(Effect::events(closed.into_iter().chain(again)))
}

fn edit(state: &State, desk: &dyn Desk, id: DecisionId, action: &Action) -> Result<Event, String> {
    let fit = |d: &Decision| matches!(d.status, Status::Proposed | Status::Edited | Status::Approved);
    pick(state, &[id], "edited", fit)?;
    let d = find(state, id)?;
    let action = desk.resolve(state, &d.target, action)?;
    Ok(Event::Edited { id, action, author: Author::Human })
}

fn own(state: &State, target: Target, action: Action) -> Decision {
    let id = DecisionId(state.next_decision);
    Decision { id, round: state.round, ..Decision::new(target, action, Author::Human) }
}

fn approve(state: &State, ids: &[DecisionId]) -> Result<Effect, String> {
    let fit = pick(state, ids, "approved", |d| matches!(d.status, Status::Proposed | Status::Edited))?;
    let mut out = Vec::with_capacity(fit.len());
    let mut why = None;
    for id in fit {
        // A constraint may have come after the proposal.
        match state.forbids(find(state, id)?) {
            Some(words) => why = Some(words),
            None => out.push(id),
        }
    }
    match why {
        Some(words) if out.is_empty() => Err(words),
        _ => Ok(Effect::events([Event::Approved { ids: out }])),
    }
}

/// Proposals that are still welcome, numbered, and those that gave way: on targets that the engineer has settled
/// meanwhile, or against a constraint.
pub fn admit(state: &State, desk: &dyn Desk, decisions: Vec<Decision>) -> Vec<Event> {
    let decisions = bounds::completed(state, desk, decisions);
    let mut next = state.next_decision;
    let mut out: Vec<Decision> = Vec::with_capacity(decisions.len());
    let mut passed: Vec<PassedOver> = Vec::new();
    for mut d in decisions {
        if out.iter().any(|o| o.target == d.target) {
            continue;
        }
        let here = state.planned(&d.target);
        let stands = match here.settled() {
            Some(s) if same_cut(&s.action, &d.action, 1e-3) => continue,
            Some(s) if s.status == Status::Approved => Some("what you approved"),
            Some(s) if s.edited_from.is_some() => Some("your edit"),
            Some(_) => Some("your decision"),
            None if measured_now(state, &here) => Some("what is being measured"),
            None => here.frozen.map(|_| "your veto"),
        };
        if let Some(stands) = stands {
            passed.push(PassedOver {
                target: d.target,
                action: bare(d.action),
                author: d.author,
                stands: stands.to_owned(),
            });
            continue;
        }
        match desk.resolve(state, &d.target, &d.action) {
            Ok(action) => d.action = action,
            Err(words) => {
                tracing::info!(target = %d.target, words, "proposal dropped");
                continue;
            }
        }
        d.id = DecisionId(next);
        d.round = state.round;
        d.status = Status::Proposed;
        next += 1;
        out.push(d);
    }
    let mut events = vec![Event::Proposed { decisions: out }];
    if !passed.is_empty() {
        events.push(Event::PassedOver { proposals: passed });
    }
    events
}

/// The run under way has built a decision here: should it fail, that is approved as before, and nothing may be in its way.
fn measured_now(state: &State, here: &Planned<'_>) -> bool {
    state.phase == Phase::Evaluate && here.in_force.is_some_and(|(_, since)| since == state.round)
}

fn known(state: &State, target: &Target) -> Result<(), String> {
    let Some(card) = &state.card else { return Ok(()) };
    let there = match target {
        Target::Group(n) => card.groups.iter().any(|g| &g.id == n),
        Target::Layer(n) | Target::Weights(n) => card.graph.nodes.iter().any(|node| &node.name == n),
        Target::Block(n) => card.graph.blocks.iter().any(|b| &b.name == n),
    };
    if there { Ok(()) } else { Err(format!("no `{target}` in this model; hint: names are those of the layer list")) }
}

fn in_range(b: &Budget) -> Result<(), String> {
    let set = b.items().into_iter().filter_map(|(name, value)| Some((name, value?)));
    let Some((name, value)) = { set }.find(|(name, value)| !Budget::allows(name, *value)) else { return Ok(()) };
    Err(format!("budget `{name}={value}` is out of range; hint: {}", Budget::range(name)))
}
