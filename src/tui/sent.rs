//! Edits on their way: from the moment that they are sent until they are durable or refused, and the approvals that follow them.
//!
//! Invariant: what one command carried is settled together, and only the reply to that command settles it.

use super::app::{App, Effect, Level, Sent};
use crate::plan::{Action, DecisionId, Target, same_cut};
use crate::session::Command;

impl App {
    /// `command` went out and will be answered under `reply`, or could not be sent.
    pub fn posted(&mut self, command: &Command, reply: Option<u64>) {
        if matches!(command, Command::Take { .. }) {
            self.takes(reply);
        }
        let targets: Vec<&Target> = match command {
            Command::Decide { target, .. } => vec![target],
            Command::DecideAll { actions } => actions.iter().map(|(target, _)| target).collect(),
            _ => return,
        };
        for target in targets {
            match reply {
                Some(_) => {
                    let waits = |s: &&mut Sent| s.reply.is_none() && s.draft.target == *target;
                    if let Some(sent) = self.sent.iter_mut().find(waits) {
                        sent.reply = reply;
                    }
                }
                None => {
                    self.sent.retain(|s| s.reply.is_some() || s.draft.target != *target);
                    self.approve_next.retain(|t| t != target);
                }
            }
        }
    }

    /// What is durable came as events before this; an edit that was refused is dropped, with the approval that was to
    /// follow it. Other edits are not touched.
    pub(super) fn reply(&mut self, id: u64, result: Result<(), String>) {
        while let Some(at) = self.sent.iter().position(|s| s.reply == Some(id)) {
            let target = self.sent.remove(at).draft.target;
            self.approve_next.retain(|t| *t != target);
            self.outlook_stale = true;
        }
        match result {
            Ok(()) => self.took(id),
            Err(e) => {
                self.level_asked = None;
                self.say(Level::Bad, e);
            }
        }
    }

    /// The approvals that were to follow edits, in one act.
    pub(super) fn approve_landed(&mut self, ids: Vec<DecisionId>) {
        if !ids.is_empty() {
            self.effects.push(Effect::Send(Command::Approve { ids }));
        }
    }

    /// An edit of ours is durable: its draft is done. The decision that is to be approved then, if it is.
    pub(super) fn landed(&mut self, target: &Target, action: &Action) -> Option<DecisionId> {
        let mine = |s: &Sent| s.draft.target == *target && same_cut(&s.draft.action, action, 1e-9);
        // A host that rounds or clamps still answers the oldest one.
        let at = self.sent.iter().position(mine).or_else(|| self.sent.iter().position(|s| s.draft.target == *target));
        self.sent.remove(at?);
        if self.sent.iter().any(|s| s.draft.target == *target) {
            return None;
        }
        let i = self.approve_next.iter().position(|t| t == target)?;
        self.approve_next.swap_remove(i);
        self.state.planned(target).open.map(|d| d.id)
    }
}
