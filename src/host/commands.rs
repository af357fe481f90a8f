//! Judges commands: against the session's state, the phase, the constraints and the model. Pure but for the desk's
//! answers, which are ready: a command becomes events and what follows them, or words that say why not.

use super::desk::Desk;
use super::engine::Llm;
use super::jobs::Kind;
use crate::plan::{Action, Author, Budget, Constraint, Decision, DecisionId, Limit, Status, Target};
use crate::session::{Command, Event, Phase, State};

/// What happens once the events are durable.
#[derive(Debug, Clone, PartialEq)]
pub enum Then {
    Nothing,
    Start(Kind),
    /// The next round begins; proposals are made if the host does that by itself.
    NextRound,
    Cancel,
    Llm(Llm),
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

const NOTE_BYTES: usize = 8 << 10;

/// What `command` amounts to now; `running` names the job in progress.
pub fn judge(
    state: &State,
    desk: &dyn Desk,
    running: Option<&'static str>,
    command: Command,
) -> Result<Effect, String> {
    let idle = || match running {
        Some(what) => Err(format!("`{what}` is running; hint: wait for it or cancel it")),
        None => Ok(()),
    };
    let then = |events: Vec<Event>, then| Ok(Effect { events, then });
    let phase = |phase| vec![Event::PhaseEntered { round: state.round, phase }];
    match command {
        Command::Profile => {
            idle()?;
            reviewable(state)?;
            then(phase(Phase::Profile), Then::Start(Kind::Profile))
        }
        Command::Measure { layer } => {
            idle()?;
            reviewable(state)?;
            let Some(profile) = state.profile() else {
                return Err("nothing is measured yet; hint: profile first".to_owned());
            };
            if !profile.rows.iter().any(|r| r.name == layer) {
                return Err(format!(
                    "`{layer}` is no row of the model in force; hint: names are those of the layer list"
                ));
            }
            then(phase(Phase::Profile), Then::Start(Kind::Measure { layer }))
        }
        Command::Sense => {
            idle()?;
            reviewable(state)?;
            then(phase(Phase::Profile), Then::Start(Kind::Sense))
        }
        Command::Propose { by } => {
            idle()?;
            reviewable(state)?;
            then(phase(Phase::Reason), Then::Start(Kind::Propose(by)))
        }
        Command::Edit { id, action } => {
            reviewable(state)?;
            Ok(Effect::events([edit(state, desk, id, &action)?]))
        }
        Command::Decide { target, action } => {
            reviewable(state)?;
            match state.current(&target) {
                Some(d) if matches!(d.status, Status::Proposed | Status::Edited | Status::Approved) => {
                    Ok(Effect::events([edit(state, desk, d.id, &action)?]))
                }
                _ => {
                    let action = desk.resolve(state, &target, &action)?;
                    Ok(Effect::events([Event::Proposed { decisions: vec![own(state, target, action)] }]))
                }
            }
        }
        Command::Approve { ids } => {
            reviewable(state)?;
            approve(state, desk, &ids)
        }
        Command::Veto { ids, reason } => {
            reviewable(state)?;
            let ids = pick(state, &ids, "vetoed", |s| s != Status::Applied && s != Status::Vetoed)?;
            Ok(Effect::events([Event::Vetoed { ids, reason: reason.trim().to_owned() }]))
        }
        Command::Reopen { ids } => {
            reviewable(state)?;
            let ids =
                pick(state, &ids, "reopened", |s| matches!(s, Status::Approved | Status::Vetoed | Status::RolledBack))?;
            Ok(Effect::events([Event::Reopened { ids }]))
        }
        Command::Note { text } => {
            let text = text.trim();
            if text.is_empty() || text.len() > NOTE_BYTES {
                return Err(format!("a note has 1 to {NOTE_BYTES} bytes, this one {}; hint: shorten it", text.len()));
            }
            Ok(Effect::events([Event::Noted { round: state.round, text: text.to_owned() }]))
        }
        Command::SetBudget { budget } => {
            in_range(&budget)?;
            Ok(Effect::events([Event::BudgetSet { budget }]))
        }
        Command::Constrain { constraint } => {
            known(state, &constraint.target)?;
            if let Limit::MaxRatio { ratio } = constraint.limit
                && !(0.0..=1.0).contains(&ratio)
            {
                return Err(format!("limit `{ratio}` is out of range; hint: a ratio lies between 0 and 1"));
            }
            Ok(Effect::events([Event::ConstraintSet { constraint }]))
        }
        Command::Unconstrain { target } => {
            if state.constraints_on(&target).next().is_none() {
                return Err(format!("`{target}` has no constraint; hint: the decision card lists those that bind"));
            }
            Ok(Effect::events([Event::ConstraintLifted { target }]))
        }
        Command::Undo => {
            reviewable(state)?;
            if state.undo.is_empty() {
                return Err("nothing to undo; hint: what a run has applied is rolled back, not undone".to_owned());
            }
            Ok(Effect::events([Event::Undone]))
        }
        Command::Redo => {
            reviewable(state)?;
            if state.redo.is_empty() {
                return Err("nothing to redo; hint: a new act after an undo forgets what was undone".to_owned());
            }
            Ok(Effect::events([Event::Redone]))
        }
        Command::Run => {
            idle()?;
            reviewable(state)?;
            let ids: Vec<DecisionId> = state.pending().iter().map(|d| d.id).collect();
            if ids.is_empty() {
                return Err("nothing is approved; hint: approve at least one decision, then run".to_owned());
            }
            let forecast = state.run_forecast();
            then(vec![Event::RunStarted { round: state.round, ids, forecast }], Then::Start(Kind::Run))
        }
        Command::Rehearse => {
            idle()?;
            reviewable(state)?;
            if !desk.rehearses() {
                return Err("no calibration image is held back; hint: give more than a handful".to_owned());
            }
            let actions = state.recipe_actions();
            if actions.iter().all(|(_, a)| *a == Action::Keep) {
                return Err("nothing is approved; hint: approve at least one decision, then rehearse".to_owned());
            }
            if state.trials.of(&actions).is_some() {
                return then(Vec::new(), Then::Nothing);
            }
            then(Vec::new(), Then::Start(Kind::Rehearse { actions, asked: true }))
        }
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
            Ok(Effect::events([Event::RolledBack { round, reason: reason.trim().to_owned() }]))
        }
        Command::Export { path, format } => {
            idle()?;
            let round = if state.phase == Phase::Verdict { state.round } else { state.base_round() };
            if round == 0 {
                return Err("no compressed model yet; hint: approve decisions, run, accept, then export".to_owned());
            }
            let format = crate::model::export::format(&format, &path)?.to_owned();
            then(Vec::new(), Then::Start(Kind::Export { round, path, format }))
        }
        Command::Cancel => match running {
            Some(_) => then(Vec::new(), Then::Cancel),
            None => Err("nothing is running; hint: there is nothing to cancel".to_owned()),
        },
        Command::SetLlm { base_url, model } => {
            let set = |s: Option<String>| s.map(|s| s.trim().to_owned()).filter(|s| !s.is_empty());
            then(Vec::new(), Then::Llm(Llm { base_url: set(base_url), model: set(model) }))
        }
        Command::TakePen => then(Vec::new(), Then::TakePen),
        Command::Stop => then(Vec::new(), Then::Stop),
    }
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

/// A verdict may be answered while somebody still comments on it; nothing else may be under way.
fn settled(state: &State, running: Option<&'static str>) -> Result<(), String> {
    match running {
        Some(what) if state.phase != Phase::Verdict || what != Kind::Run.label() => {
            Err(format!("`{what}` is running; hint: wait for it or cancel it"))
        }
        _ => Ok(()),
    }
}

fn find(state: &State, id: DecisionId) -> Result<&Decision, String> {
    state.decision(id).ok_or_else(|| format!("no decision `{}`; hint: it gave way to a newer one", id.0))
}

/// The ids among `ids` whose status is fit; an error in words when there are none.
fn pick(
    state: &State,
    ids: &[DecisionId],
    what: &str,
    fit: impl Fn(Status) -> bool,
) -> Result<Vec<DecisionId>, String> {
    let mut out = Vec::new();
    let mut why = format!("nothing there to be {what}; hint: pick a decision first");
    for &id in ids {
        let d = find(state, id)?;
        if fit(d.status) {
            out.push(id);
        } else {
            why = match d.status {
                Status::Applied => {
                    format!("`{}` is applied already; hint: roll the round back, or decide on it anew", d.target)
                }
                Status::Vetoed => format!("`{}` is vetoed; hint: reopen it first", d.target),
                Status::Approved => format!("`{}` is approved already; hint: reopen it to change that", d.target),
                Status::Proposed | Status::Edited => {
                    format!("`{}` is open already; hint: approve or veto it", d.target)
                }
                Status::RolledBack => format!("`{}` was rolled back; hint: reopen it first", d.target),
            };
        }
    }
    if out.is_empty() { Err(why) } else { Ok(out) }
}

fn edit(state: &State, desk: &dyn Desk, id: DecisionId, action: &Action) -> Result<Event, String> {
    pick(state, &[id], "edited", |s| matches!(s, Status::Proposed | Status::Edited | Status::Approved))?;
    let d = find(state, id)?;
    let action = desk.resolve(state, &d.target, action)?;
    Ok(Event::Edited { id, action, author: Author::Human })
}

fn own(state: &State, target: Target, action: Action) -> Decision {
    Decision {
        id: DecisionId(state.next_decision),
        round: state.round,
        target,
        action,
        author: Author::Human,
        rationale: String::new(),
        forecast: None,
        status: Status::Proposed,
        edited_from: None,
        veto_reason: None,
    }
}

fn approve(state: &State, desk: &dyn Desk, ids: &[DecisionId]) -> Result<Effect, String> {
    let fit = pick(state, ids, "approved", |s| matches!(s, Status::Proposed | Status::Edited))?;
    let mut out = Vec::with_capacity(fit.len());
    let mut why = None;
    for id in fit {
        let d = find(state, id)?;
        // A constraint may have come after the proposal.
        match bound(state, desk, d) {
            Some(words) => why = Some(words),
            None => out.push(id),
        }
    }
    match why {
        Some(words) if out.is_empty() => Err(words),
        _ => Ok(Effect::events([Event::Approved { ids: out }])),
    }
}

/// Why the constraints forbid `decision` as it stands, if they do.
fn bound(state: &State, desk: &dyn Desk, d: &Decision) -> Option<String> {
    if state.constraints.is_empty() {
        return None;
    }
    match desk.resolve(state, &d.target, &d.action) {
        Ok(action) if same(&action, &d.action) => None,
        Ok(_) => Some(format!("your limit on `{}` forbids this ratio; hint: edit it, or lift the limit", d.target)),
        Err(words) => Some(words),
    }
}

/// Whether two actions do the same; a cut whose units are not picked yet is told by its ratio.
fn same(a: &Action, b: &Action) -> bool {
    match (a, b) {
        (Action::Prune { ratio: x, kept: k }, Action::Prune { ratio: y, kept: l }) if k.is_empty() || l.is_empty() => {
            x == y
        }
        _ => a == b,
    }
}

/// Proposals that are still welcome: not on targets the engineer has decided meanwhile, not against a constraint, and
/// numbered.
pub fn admit(state: &State, desk: &dyn Desk, decisions: Vec<Decision>) -> Vec<Decision> {
    let taken =
        |target: &Target| state.current(target).is_some_and(|d| matches!(d.status, Status::Approved | Status::Vetoed));
    let mut next = state.next_decision;
    let mut out: Vec<Decision> = Vec::with_capacity(decisions.len());
    for mut d in decisions {
        if taken(&d.target) || out.iter().any(|o| o.target == d.target) {
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
    out
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
    let factors = [("latency", b.latency), ("macs", b.macs), ("memory", b.memory), ("params", b.params)];
    for (name, value) in factors {
        if value.is_some_and(|v| !(v > 0.0 && v <= 1.0)) {
            return Err(format!(
                "budget `{name}={}` is out of range; hint: factors lie in (0, 1]",
                value.unwrap_or(0.0)
            ));
        }
    }
    match b.drop {
        Some(v) if !(0.0..=100.0).contains(&v) => {
            Err(format!("budget `drop={v}` is out of range; hint: points lie in [0, 100]"))
        }
        _ => Ok(()),
    }
}

/// Freezes a target; what a rule file's `veto` amounts to before anything was proposed.
pub fn freeze(target: Target, reason: &str) -> Constraint {
    Constraint { target, limit: Limit::Freeze, reason: reason.to_owned() }
}
