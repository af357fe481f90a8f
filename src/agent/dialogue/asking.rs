//! How a role is asked: with which form, within which limits, and what that took; and what one that is asked alone is told of the others.
//!
//! Not here: what it may look up (`looks`). Invariant: nothing is asked beyond what a proposal may take.

use super::{CARRIED, Dialogue, Effect, LlmError, Message, Role, Stage, Turn, clean, context};
use crate::agent::tools;
use crate::graph::Graph;
use crate::plan::{Author, Decision, TargetKind};
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
        let (limits, spent, next) = (&self.input.limits, &self.outcome.spent, length(&messages));
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

    /// Keeps account of what was taken; what a server does not count is estimated.
    pub(super) fn take(&mut self, messages: &[Message], answer: usize, spent: Spent) {
        let asked = if spent.asked > 0 { spent.asked } else { length(messages) };
        let tokens = if spent.tokens > 0 { spent.tokens } else { Spent::about(answer) };
        self.outcome.spent = self.outcome.spent.and(Spent { tokens, asked, ..spent });
    }
}

/// Tokens of a prompt, about.
fn length(messages: &[Message]) -> u64 {
    let calls = |m: &Message| m.calls.iter().map(|c| c.name.len() + c.arguments.len()).sum::<usize>();
    Spent::about(messages.iter().map(|m| m.content.chars().count() + calls(m)).sum())
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
