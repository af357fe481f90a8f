//! How a role is asked: with which form, within which limits, and what that took; and what one that is asked alone is told of the others.
//!
//! Not here: what it may look up (`looks`). Invariant: nothing is asked beyond what a proposal may take.

use super::{CARRIED, Dialogue, Effect, LlmError, Message, Role, Stage, Turn, clean, context};
use crate::agent::tools;
use crate::agent::validate::{Draft, Validated};
use crate::graph::Graph;
use crate::plan::{self, Action, Author, Decision, Target, TargetKind};
use crate::prune::Group;
use crate::session::{Form, ROLES, Spent, State};
use serde_json::Value;
use std::collections::BTreeMap;

/// What one answer may take.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Within {
    pub tokens: Option<u64>,
    pub seconds: Option<f64>,
}

impl Dialogue {
    /// Asks what the turn has come to.
    pub(super) fn put(&mut self, turn: Turn) {
        let (messages, form) = (turn.messages.clone(), self.form(&turn));
        // A server holds an answer to a form, or lets it call.
        let tools = if form.is_some() { Vec::new() } else { self.offered(&turn) };
        let size = length(&messages) + weight(&tools, form.as_ref());
        // As the server counted before, where it does.
        let next = (size as f64 * self.per_estimate) as u64;
        self.estimated = size;
        let (limits, spent) = (&self.input.limits, &self.outcome.spent);
        if let Some(what) = limits.reached(spent, next) {
            return self.failed(turn, LlmError::Limit { what }, 0.0);
        }
        let within = Within { tokens: limits.answer(spent, next), seconds: limits.seconds_left(spent) };
        self.out.push(Effect::Ask { role: turn.role.name, messages, tools, form, within });
        self.step = Stage::Asking(turn);
    }

    /// The schema that the turn's answer shall have, where it is asked for one.
    fn form(&self, turn: &Turn) -> Option<Value> {
        let wanted = match self.input.looks.form {
            Form::Never => false,
            // What proposed by a call is corrected by one.
            Form::Repair => turn.repairing.is_some() && turn.messages.last().is_some_and(|m| m.role == "user"),
            Form::Always => true,
        };
        let card = self.input.state.card.as_ref().filter(|_| wanted && turn.role.proposes())?;
        Some(tools::form(&proposable(&card.graph, &card.groups, turn.role)))
    }

    /// What is kept together, decided alike: of what the role gave them the mildest counts for all.
    pub(super) fn together(&self, role: &Role, mut checked: Validated) -> Validated {
        let state = &self.input.state;
        let Some(card) = &state.card else { return checked };
        let drafts: Vec<(Target, Action)> =
            checked.drafts.iter().map(|d| (d.target.clone(), d.action.clone())).collect();
        for (target, action) in plan::follows(&drafts, &[], &card.graph, &card.groups, &state.constraints) {
            if !role.may(target.kind()) {
                continue;
            }
            match checked.drafts.iter_mut().find(|d| d.target == target) {
                Some(draft) => draft.action = action,
                None => {
                    let why = plan::WITH_OTHERS.to_owned();
                    checked.drafts.push(Draft { target, action, why });
                }
            }
        }
        checked
    }

    /// Keeps account of what was taken; what a server does not count is estimated.
    pub(super) fn take(&mut self, answer: usize, counted: bool, spent: Spent) {
        if spent.asked > 0 && self.estimated > 0 {
            self.per_estimate = (spent.asked as f64 / self.estimated as f64).clamp(0.25, 4.0);
        }
        let about = (self.estimated as f64 * self.per_estimate) as u64;
        let asked = if spent.asked > 0 { spent.asked } else { about };
        let tokens = if counted { spent.tokens } else { spent.tokens.max(Spent::about(answer)) };
        self.outcome.spent = self.outcome.spent.and(Spent { tokens, asked, ..spent });
    }
}

/// Tokens of a prompt, about.
fn length(messages: &[Message]) -> u64 {
    let calls = |m: &Message| m.calls.iter().map(|c| c.name.len() + c.arguments.len()).sum::<usize>();
    Spent::about(messages.iter().map(|m| m.content.chars().count() + calls(m)).sum())
}

/// Tokens of what goes with the messages, about.
fn weight(tools: &[&'static str], form: Option<&Value>) -> u64 {
    let of = |name: &&str| {
        tools::find(name).map_or(0, |t| t.what.len() + serde_json::Value::Object(t.schema()).to_string().len())
    };
    Spent::about(tools.iter().map(of).sum::<usize>() + form.map_or(0, |f| f.to_string().len()))
}

/// Names in a form at most: servers turn them into grammars.
const MOST_NAMED: usize = 400;

/// What `role` may name in a proposal; nothing where that is too much to list.
fn proposable<'a>(graph: &'a Graph, groups: &'a [Group], role: &Role) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    if role.may(TargetKind::Group) {
        names.extend(groups.iter().filter(|g| g.protected.is_none()).map(|g| g.id.as_str()));
    }
    if role.may(TargetKind::Block) {
        names.extend(graph.blocks.iter().filter(|b| !b.residual.is_empty()).map(|b| b.name.as_str()));
    }
    if role.may(TargetKind::Layer) {
        names.extend(graph.nodes.iter().filter(|n| n.op.has_precision()).map(|n| n.name.as_str()));
    }
    names.sort_unstable();
    names.dedup();
    if names.len() > MOST_NAMED { Vec::new() } else { names }
}

/// What the others said or have open, for one role that is asked alone.
pub(super) fn said_before(state: &State, role: &Role) -> BTreeMap<&'static str, String> {
    let of = |r: &'static Role| {
        let theirs = |d: &&&Decision| matches!(&d.author, Author::Agent { role, .. } if role == r.name);
        let open: String =
            state.open().iter().filter(theirs).map(|d| context::action_line(&d.target, &d.action) + "\n").collect();
        let words = match r.proposes() {
            true => open,
            false => {
                let newest = state.utterances.iter().rev().find(|u| u.role == r.name && u.round == state.round);
                newest.map(|u| u.text.clone()).unwrap_or_default()
            }
        };
        (r.name, clean::cut(words.trim_end(), CARRIED))
    };
    ROLES.iter().filter(|r| r.name != role.name).map(of).collect()
}
