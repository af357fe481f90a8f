//! The pure fold: how every event changes the state. No clock, no randomness, no I/O, no failure.
//!
//! Invariants: the match over events is exhaustive; an event that names something unknown changes nothing but the
//! timeline; sizes are bounded (undo, timeline, utterances, notes). Undoable are the engineer's review acts (edit,
//! approve, veto, reopen, constraint, budget, a decision of their own, going back to earlier ones), and never across a run's start.

use super::ledger::{MOST_CLAIMS, MOST_RECORDS, MOST_RIVALS};
use super::state::Begun;
use super::{
    Event, MOST_PLANS, Phase, REASON_BYTES, Record, Round, Seq, State, TimelineEntry, UndoPoint, Utterance, text,
};
use crate::plan::{Action, Author, Constraint, Decision, DecisionId, Limit, Status, Target};
use crate::profile::{Paired, Profile, SensCurve, Workload};
use std::borrow::Cow;

const TIMELINE: usize = 2000;
const UTTERANCES: usize = 200;
/// Older utterances lose their prompt and reasoning, which are the bulk; the journal keeps them.
const FULL_UTTERANCES: usize = 40;
const NOTES: usize = 200;
const EXPORTS: usize = 100;

/// The event with its reason no longer than [`REASON_BYTES`]: journals of versions that had no bound hold longer ones, and
/// a state with all of them would fit into no frame. The journal keeps them.
fn bounded(event: &Event) -> Cow<'_, Event> {
    let mut event = Cow::Borrowed(event);
    let reason = match &*event {
        Event::Vetoed { reason, .. } | Event::RolledBack { reason, .. } => reason,
        Event::ConstraintSet { constraint } => &constraint.reason,
        _ => return event,
    };
    if reason.len() <= REASON_BYTES {
        return event;
    }
    const MORE: &str = "…";
    let end = (0..=REASON_BYTES - MORE.len()).rev().find(|&i| reason.is_char_boundary(i)).unwrap_or(0);
    let short = format!("{}{MORE}", &reason[..end]);
    match event.to_mut() {
        Event::Vetoed { reason, .. } | Event::RolledBack { reason, .. } => *reason = short,
        Event::ConstraintSet { constraint } => constraint.reason = short,
        _ => {}
    }
    event
}

impl State {
    /// The state after all of `records`.
    pub fn fold<'a>(records: impl IntoIterator<Item = &'a Record>) -> State {
        let mut state = State::default();
        records.into_iter().for_each(|r| state.apply(r));
        state
    }

    /// Applies one event. Records at or before the current sequence number are ignored.
    pub fn apply(&mut self, record: &Record) {
        if record.seq <= self.seq {
            return;
        }
        self.seq = record.seq;
        let event = &*bounded(&record.event);
        let text = text::describe(self, event);
        let before = self.before(record.seq, event, &text);
        self.change(event);
        if let Some(point) = before {
            self.redo.clear();
            self.undo.push(point);
            trim(&mut self.undo, State::UNDO_DEPTH);
        }
        if let Some(text) = text {
            self.timeline.push(TimelineEntry { seq: record.seq, at_ms: record.at_ms, text, undone: false });
            trim(&mut self.timeline, TIMELINE);
        }
    }

    /// What an undoable event is about to change; `None` for events that cannot be undone.
    fn before(&self, seq: Seq, event: &Event, text: &Option<String>) -> Option<UndoPoint> {
        let mut point = UndoPoint { seq, text: text.clone().unwrap_or_default(), ..UndoPoint::default() };
        let touched = |ids: &[DecisionId]| -> Vec<(DecisionId, Option<Decision>)> {
            ids.iter().filter_map(|&id| self.decision(id).map(|d| (id, Some(d.clone())))).collect()
        };
        match event {
            Event::Edited { id, .. } => point.decisions = touched(&[*id]),
            Event::Approved { ids } => point.decisions = touched(ids),
            Event::Vetoed { ids, .. } | Event::Reopened { ids } => {
                point.decisions = touched(ids);
                point.constraints = Some(self.constraints.clone());
            }
            Event::Proposed { decisions } => {
                if decisions.is_empty() || decisions.iter().any(|d| d.author != Author::Human) {
                    return None;
                }
                for new in decisions {
                    point
                        .decisions
                        .extend(self.decisions.iter().filter(|d| superseded(d, new)).map(|d| (d.id, Some(d.clone()))));
                    point.decisions.push((new.id, None));
                }
            }
            Event::Restored { decisions, dropped, .. } => {
                point.decisions = touched(dropped);
                point.decisions.extend(decisions.iter().map(|d| (d.id, None)));
            }
            Event::ConstraintsSet { vetoed, .. } => {
                point.decisions = touched(vetoed);
                point.constraints = Some(self.constraints.clone());
            }
            Event::ConstraintSet { .. } | Event::ConstraintLifted { .. } | Event::ConstraintsLifted { .. } => {
                point.constraints = Some(self.constraints.clone());
            }
            Event::BudgetSet { .. } => point.budget = Some(self.budget),
            Event::HealingSet { .. } => point.heal = Some(self.heal),
            Event::Opened { .. }
            | Event::RecipeSet { .. }
            | Event::Resolved { .. }
            | Event::PhaseEntered { .. }
            | Event::Profiled { .. }
            | Event::Remeasured { .. }
            | Event::Paired { .. }
            | Event::LaddersMeasured { .. }
            | Event::Sensed { .. }
            | Event::PassedOver { .. }
            | Event::Claimed { .. }
            | Event::Rivalled { .. }
            | Event::PlanKept { .. }
            | Event::Suggested { .. }
            | Event::SuggestionsDropped
            | Event::Recalled { .. }
            | Event::Undone
            | Event::Redone
            | Event::Noted { .. }
            | Event::Said { .. }
            | Event::RunStarted { .. }
            | Event::Built { .. }
            | Event::Tried { .. }
            | Event::Repaired { .. }
            | Event::PatienceSet { .. }
            | Event::HealingBegun { .. }
            | Event::Healed { .. }
            | Event::Applied { .. }
            | Event::Evaluated { .. }
            | Event::VerdictGiven { .. }
            | Event::RoundAccepted { .. }
            | Event::RolledBack { .. }
            | Event::Controlled { .. }
            | Event::Exported { .. }
            | Event::Failed { .. }
            | Event::Cancelled { .. } => return None,
        }
        Some(point)
    }

    fn change(&mut self, event: &Event) {
        // A failure is news until anything else happens.
        self.failure = None;
        match event {
            Event::Opened { card, budget } => {
                self.card = Some((**card).clone());
                self.budget = *budget;
                self.enter(1, Phase::Profile);
            }
            Event::RecipeSet { recipe } => {
                if let Some(card) = &mut self.card {
                    card.recipe = Some(recipe.clone());
                }
            }
            Event::PhaseEntered { round, phase } => self.enter(*round, *phase),
            Event::Profiled { round, profile } if profile.workload != Workload::Pass => {
                self.on_round(*round, |r| r.decoding = Some((**profile).clone()));
            }
            Event::Profiled { round, profile } => {
                self.on_round(*round, |r| r.profile = Some((**profile).clone()));
                self.baseline_from_profile(*round);
            }
            Event::Remeasured { round, layer, profile } => self.remeasured(*round, layer, profile),
            Event::Paired { round, latency } => {
                if let Some(e) = self.rounds.get_mut(*round as usize).and_then(|r| r.evaluation.as_mut()) {
                    e.measured_again(latency);
                }
                self.baseline_beside(latency);
            }
            Event::LaddersMeasured { ladders } => self.ladders.clone_from(ladders),
            Event::Sensed { base_loss, base_score, curves } => {
                (self.sensitivity.base_loss, self.sensitivity.base_score) = (*base_loss, *base_score);
                self.sensed(curves);
            }
            Event::Proposed { decisions } => decisions.iter().for_each(|d| self.insert(d.clone())),
            Event::PassedOver { .. } => {}
            Event::Claimed { claim } => {
                self.claims.retain(|c| c.round != claim.round || c.author != claim.author);
                self.claims.push(claim.clone());
                trim(&mut self.claims, MOST_CLAIMS);
            }
            Event::Rivalled { rival } => {
                self.rivals.retain(|r| r.round != rival.round);
                self.rivals.push(rival.clone());
                trim(&mut self.rivals, MOST_RIVALS);
            }
            Event::PlanKept { plan } => {
                plan.clone().keep(&mut self.plans);
                trim(&mut self.plans, MOST_PLANS);
            }
            Event::Restored { decisions, dropped, .. } => {
                self.decisions.retain(|d| !dropped.contains(&d.id));
                decisions.iter().for_each(|d| self.insert(d.clone()));
            }
            Event::Recalled { records } => {
                self.records.clone_from(records);
                self.records.truncate(MOST_RECORDS);
            }
            Event::Edited { id, action, author } => self.each(&[*id], |d, _| {
                let old = std::mem::replace(&mut d.action, action.clone());
                d.edited_from.get_or_insert(old);
                d.author = author.clone();
                d.status = Status::Edited;
                d.forecast = None;
            }),
            Event::Resolved { kept } => self.resolved(kept),
            Event::Approved { ids } => self.each(ids, |d, round| {
                d.status = Status::Approved;
                d.round = round;
            }),
            Event::Vetoed { ids, reason } => self.vetoed(ids, reason),
            Event::Reopened { ids } => self.reopened(ids),
            Event::ConstraintSet { constraint } => self.constrain(constraint.clone()),
            Event::ConstraintLifted { target } => self.constraints.retain(|c| &c.target != target),
            Event::ConstraintsSet { constraints, vetoed } => {
                self.each(vetoed, |d, _| {
                    d.status = Status::Vetoed;
                    let why = constraints.iter().find(|c| c.target == d.target);
                    d.veto_reason = Some(why.map(|c| c.reason.clone()).unwrap_or_default());
                });
                constraints.iter().for_each(|c| self.constrain(c.clone()));
            }
            Event::ConstraintsLifted { targets } => self.constraints.retain(|c| !targets.contains(&c.target)),
            Event::Suggested { suggestion } => {
                // A newer offer of the same author stands for its older one.
                self.suggested.retain(|s| s.by != suggestion.by);
                self.suggested.push(suggestion.clone());
                trim(&mut self.suggested, State::SUGGESTIONS);
            }
            Event::SuggestionsDropped => self.suggested.clear(),
            Event::BudgetSet { budget } => self.budget = *budget,
            Event::HealingSet { heal } => self.heal = *heal,
            Event::PatienceSet { until_clear } => self.until_clear = *until_clear,
            Event::Undone => {
                if let Some(point) = self.undo.pop() {
                    let back = self.restore(point, true);
                    self.redo.push(back);
                }
            }
            Event::Redone => {
                if let Some(point) = self.redo.pop() {
                    let back = self.restore(point, false);
                    self.undo.push(back);
                }
            }
            Event::Noted { round, text } => {
                self.notes.push((*round, text.clone()));
                trim(&mut self.notes, NOTES);
            }
            Event::Said { utterance } => self.said((**utterance).clone()),
            Event::RunStarted { round, ids, recipe, forecast } => {
                let recipe = recipe.clone().unwrap_or_else(|| self.newest_approved_or_applied());
                self.undo.clear();
                self.redo.clear();
                self.enter(*round, Phase::Compress);
                let heal = self.heal;
                let started =
                    Round { number: *round, ids: ids.clone(), recipe, forecast: *forecast, heal, ..Round::default() };
                self.on_round(*round, |r| *r = started);
            }
            Event::Built { built } => {
                self.built.retain(|b| b.key != built.key);
                self.built.push((**built).clone());
                trim(&mut self.built, State::BUILT);
            }
            Event::Tried { trial, correction } => {
                if correction.is_some() {
                    self.trials.correction.clone_from(correction);
                }
                self.trials.add((**trial).clone());
            }
            Event::HealingBegun { heal, key, healing, .. } => {
                self.healing = Some(Begun { heal: *heal, key: key.clone(), healing: (**healing).clone() });
            }
            Event::Healed { round, course, layers } => {
                self.healing = None;
                self.on_round(*round, |r| (r.course, r.pulse) = (Some((**course).clone()), layers.clone()));
            }
            Event::Repaired { round, step } => self.on_round(*round, |r| r.repairs.push(step.clone())),
            Event::Applied { round, ids, artifact, model_hash, used } => {
                self.each(ids, |d, _| d.status = Status::Applied);
                self.on_round(*round, |r| {
                    r.ids.clone_from(ids);
                    r.artifact = Some(artifact.clone());
                    r.model_hash = Some(model_hash.clone());
                    r.used = used.clone();
                });
                self.enter(*round, Phase::Evaluate);
            }
            Event::Evaluated { evaluation } => {
                self.on_round(evaluation.round, |r| r.evaluation = Some((**evaluation).clone()));
                if let Some(paired) = &evaluation.paired {
                    self.baseline_beside(paired);
                }
            }
            Event::VerdictGiven { round, verdict } => {
                self.on_round(*round, |r| r.verdict = Some(verdict.clone()));
                self.enter(*round, Phase::Verdict);
            }
            Event::RoundAccepted { round } => {
                self.on_round(*round, |r| r.accepted = true);
                self.enter(round.saturating_add(1), Phase::Review);
            }
            Event::RolledBack { round, reason } => self.rolled_back(*round, reason),
            Event::Controlled { control } => self.control = Some(control.clone()),
            Event::Exported { path, .. } => {
                self.exports.push(path.clone());
                trim(&mut self.exports, EXPORTS);
            }
            Event::Failed { what, message } => {
                self.abort();
                self.failure = Some(format!("{what}: {message}"));
            }
            Event::Cancelled { .. } => self.abort(),
        }
    }

    fn remeasured(&mut self, round: u32, layer: &str, profile: &Profile) {
        if let Some(r) = self.rounds.get_mut(round as usize) {
            let known = match &mut r.profile {
                Some(p) => Some(p),
                None => r.evaluation.as_mut().and_then(|e| e.profile.as_mut()),
            };
            if let Some(p) = known {
                p.renew(layer, profile);
            }
        }
        self.baseline_from_profile(round);
    }

    fn sensed(&mut self, curves: &[SensCurve]) {
        for curve in curves {
            match self.sensitivity.curves.iter_mut().find(|c| c.target == curve.target) {
                Some(old) => *old = curve.clone(),
                None => self.sensitivity.curves.push(curve.clone()),
            }
        }
    }

    fn resolved(&mut self, resolved: &[(DecisionId, Vec<u32>)]) {
        for d in &mut self.decisions {
            if let Action::Prune { kept, .. } = &mut d.action
                && kept.is_empty()
                && let Some((_, units)) = resolved.iter().find(|(id, _)| *id == d.id)
            {
                kept.clone_from(units);
            }
        }
    }

    fn vetoed(&mut self, ids: &[DecisionId], reason: &str) {
        self.each(ids, |d, _| {
            d.status = Status::Vetoed;
            d.veto_reason = Some(reason.to_owned());
        });
        for target in self.targets(ids) {
            self.constrain(Constraint { target, limit: Limit::Freeze, reason: reason.to_owned() });
        }
    }

    fn reopened(&mut self, ids: &[DecisionId]) {
        let in_force: Vec<DecisionId> = self.in_force().iter().map(|d| d.id).collect();
        let ran: Vec<DecisionId> = ids.iter().copied().filter(|id| self.has_run(*id)).collect();
        self.each(ids, |d, round| {
            d.veto_reason = None;
            d.status = match d.status {
                Status::Vetoed if in_force.contains(&d.id) => Status::Applied,
                Status::Vetoed if ran.contains(&d.id) => Status::RolledBack,
                _ => {
                    d.round = round;
                    if d.edited_from.is_some() { Status::Edited } else { Status::Proposed }
                }
            };
        });
        let targets = self.targets(ids);
        self.constraints.retain(|c| c.limit != Limit::Freeze || !targets.contains(&c.target));
    }

    fn said(&mut self, utterance: Utterance) {
        self.utterances.push(utterance);
        trim(&mut self.utterances, UTTERANCES);
        let full = self.utterances.len().saturating_sub(FULL_UTTERANCES);
        for old in &mut self.utterances[..full] {
            old.prompt = String::new();
            old.reasoning = String::new();
        }
    }

    fn rolled_back(&mut self, round: u32, reason: &str) {
        let ids = self.round_at(round).map(|r| r.ids.clone()).unwrap_or_default();
        // A veto on what goes with the round stays a veto; an undo must not put back what is gone.
        let gone = |d: &mut Decision| {
            if d.status == Status::Applied {
                d.status = Status::RolledBack;
            }
        };
        self.each(&ids, |d, _| gone(d));
        let points = self.undo.iter_mut().chain(&mut self.redo);
        let saved = points.flat_map(|p| &mut p.decisions).filter(|(id, _)| ids.contains(id));
        saved.filter_map(|(_, d)| d.as_mut()).for_each(gone);
        self.on_round(round, |r| (r.accepted, r.rolled_back) = (false, Some(reason.to_owned())));
        // An earlier round than the newest may go back; numbers never do, so that each names one model.
        self.enter(round.saturating_add(1).max(self.round), Phase::Review);
        // What an earlier round had and a later one left out is in force again.
        let back: Vec<DecisionId> = self.in_force().iter().map(|d| d.id).collect();
        self.each(&back, |d, _| {
            if d.status == Status::RolledBack {
                d.status = Status::Applied;
            }
        });
    }

    /// The original's evaluation says what its profile says of latency.
    fn baseline_from_profile(&mut self, round: u32) {
        let Some(r) = self.rounds.get_mut(round as usize).filter(|_| round == 0) else { return };
        if let (Some(p), Some(e)) = (&r.profile, &mut r.evaluation) {
            (e.whole, e.baseline_ms, e.doubt) = (p.whole, p.whole.p50, p.doubt);
        }
    }

    /// The original was timed beside another model: unless that is in doubt and what was known is not, or rests on more
    /// runs, it is what the original takes from now on. Rows follow, since they are parts of it.
    fn baseline_beside(&mut self, paired: &Paired) {
        let Some(r) = self.rounds.first_mut() else { return };
        let (stained, runs) = match (&r.profile, &r.evaluation) {
            (Some(p), _) => (p.doubt.is_some(), p.whole.n),
            (None, Some(e)) => (e.doubt.is_some(), e.whole.n),
            (None, None) => return,
        };
        if paired.doubt.is_some() && (!stained || paired.base.n < runs) {
            return;
        }
        if let Some(p) = &mut r.profile {
            (p.whole, p.doubt) = (paired.base, paired.doubt);
        }
        if let Some(e) = &mut r.evaluation {
            (e.whole, e.baseline_ms, e.doubt) = (paired.base, paired.base.p50, paired.doubt);
        }
    }

    /// Work ended before its end: the session is idle, and what a run had applied is merely approved again.
    fn abort(&mut self) {
        match self.phase {
            Phase::Profile | Phase::Reason => self.phase = Phase::Review,
            Phase::Compress | Phase::Evaluate => {
                let ids = self.round_at(self.round).map(|r| r.ids.clone()).unwrap_or_default();
                self.each(&ids, |d, _| {
                    if d.status == Status::Applied {
                        d.status = Status::Approved;
                    }
                });
                let number = self.round;
                self.on_round(number, |r| *r = Round { number, ..Round::default() });
                self.phase = Phase::Review;
            }
            Phase::Review | Phase::Verdict => {}
        }
    }

    /// What journals meant by a run before its recipe was written down.
    fn newest_approved_or_applied(&self) -> Vec<DecisionId> {
        let mut seen = std::collections::HashSet::new();
        let counts = |d: &&Decision| matches!(d.status, Status::Approved | Status::Applied);
        let mut out: Vec<DecisionId> =
            self.decisions.iter().rev().filter(counts).filter(|d| seen.insert(&d.target)).map(|d| d.id).collect();
        out.reverse();
        out
    }

    /// Adds a decision in id order; an open one on the same target gives way to it.
    fn insert(&mut self, decision: Decision) {
        self.next_decision = self.next_decision.max(decision.id.0.saturating_add(1));
        self.decisions.retain(|d| d.id != decision.id && !superseded(d, &decision));
        let at = self.decisions.partition_point(|d| d.id < decision.id);
        self.decisions.insert(at, decision);
    }

    fn constrain(&mut self, constraint: Constraint) {
        let same = |c: &Constraint| {
            c.target == constraint.target
                && std::mem::discriminant(&c.limit) == std::mem::discriminant(&constraint.limit)
        };
        self.constraints.retain(|c| !same(c));
        self.constraints.push(constraint);
    }

    /// Puts `point` back and returns what was there, for the way forth.
    fn restore(&mut self, point: UndoPoint, undone: bool) -> UndoPoint {
        let mut back = UndoPoint {
            seq: point.seq,
            text: point.text,
            decisions: point.decisions.iter().map(|(id, _)| (*id, self.decision(*id).cloned())).collect(),
            ..UndoPoint::default()
        };
        let gone = |d: &Decision| point.decisions.iter().any(|(id, old)| *id == d.id && old.is_none());
        self.decisions.retain(|d| !gone(d));
        for old in point.decisions.into_iter().filter_map(|(_, old)| old) {
            let at = self.decisions.partition_point(|d| d.id < old.id);
            if let Some(d) = self.decisions.get_mut(at).filter(|d| d.id == old.id) {
                *d = old;
            } else if !self.decisions.iter().any(|d| d.target == old.target && d.id > old.id) {
                self.decisions.insert(at, old);
            }
            // Else it gave way to a newer decision since, which stands.
        }
        if let Some(constraints) = point.constraints {
            back.constraints = Some(std::mem::replace(&mut self.constraints, constraints));
        }
        if let Some(heal) = point.heal {
            back.heal = Some(std::mem::replace(&mut self.heal, heal));
        }
        if let Some(budget) = point.budget {
            back.budget = Some(std::mem::replace(&mut self.budget, budget));
        }
        if let Some(entry) = self.timeline.iter_mut().rev().find(|e| e.seq == point.seq) {
            entry.undone = undone;
        }
        back
    }

    fn enter(&mut self, round: u32, phase: Phase) {
        if self.round_mut(round).is_some() {
            self.round = round;
            self.phase = phase;
        }
    }

    fn on_round(&mut self, number: u32, change: impl FnOnce(&mut Round)) {
        if let Some(round) = self.round_mut(number) {
            change(round);
        }
    }

    /// The round of that number, made if it is at most one past the newest; rounds never leave gaps.
    fn round_mut(&mut self, number: u32) -> Option<&mut Round> {
        let limit = (self.rounds.len() as u32).max(1);
        if number > limit {
            return None;
        }
        while self.rounds.len() <= number as usize {
            let number = self.rounds.len() as u32;
            self.rounds.push(Round { number, ..Round::default() });
        }
        self.rounds.get_mut(number as usize)
    }

    fn each(&mut self, ids: &[DecisionId], mut f: impl FnMut(&mut Decision, u32)) {
        let round = self.round;
        self.decisions.iter_mut().filter(|d| ids.contains(&d.id)).for_each(|d| f(d, round));
    }

    fn targets(&self, ids: &[DecisionId]) -> Vec<Target> {
        self.decisions.iter().filter(|d| ids.contains(&d.id)).map(|d| d.target.clone()).collect()
    }
}

/// Whether `new` takes the place of `old` in the list: same target, and `old` was still open; or it was approved, and the engineer decides anew.
fn superseded(old: &Decision, new: &Decision) -> bool {
    let gives_way = match old.status {
        Status::Proposed | Status::Edited => true,
        Status::Approved => new.author == Author::Human,
        Status::Vetoed | Status::Applied | Status::RolledBack => false,
    };
    old.target == new.target && old.id < new.id && gives_way
}

fn trim<T>(list: &mut Vec<T>, most: usize) {
    let extra = list.len().saturating_sub(most);
    list.drain(..extra);
}

#[cfg(test)]
#[path = "fold_tests.rs"]
mod tests;
