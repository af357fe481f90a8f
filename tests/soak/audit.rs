//! What is held against the program: what was heard is kept, what ran was approved, what is applied is there, what is
//! shown steers nothing. Judged from the journal's records and from messages, not by asking the program.

use crate::rig::KEY;
use paring::model::LoadOptions;
use paring::plan::{Action, DecisionId, Status, Target};
use paring::session::{Command, Event, HostMsg, Record, State};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// What clients heard, over all hosts of a session.
#[derive(Default)]
pub struct Heard {
    /// Events by number, as JSON.
    events: BTreeMap<u64, String>,
    notes: BTreeSet<String>,
    approved: BTreeSet<DecisionId>,
    vetoed: BTreeSet<DecisionId>,
    /// Text that steers or tells, with where it came from.
    pub hostile: Vec<String>,
    /// Artifacts that were opened and found to be what their round says.
    pub loaded: BTreeSet<String>,
}

/// The judgement of this test alone: what the crate itself calls hostile is not asked.
pub fn steers(c: char) -> bool {
    (c.is_control() && c != '\n' && c != '\t')
        || matches!(c, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}')
        || ('\u{e0000}'..='\u{e007f}').contains(&c)
}

/// Every text in `value`, names included.
fn texts(value: &Value, found: &mut impl FnMut(&str)) {
    match value {
        Value::String(s) => found(s),
        Value::Array(a) => a.iter().for_each(|v| texts(v, found)),
        Value::Object(o) => o.iter().for_each(|(k, v)| {
            found(k);
            texts(v, found);
        }),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

impl Heard {
    pub fn listen(&mut self, message: &HostMsg) {
        let value = serde_json::to_value(message).expect("JSON");
        texts(&value, &mut |text| {
            if text.contains(KEY) || text.chars().any(steers) {
                let text: String = text.chars().take(2_000).collect();
                self.hostile.push(text.escape_debug().to_string());
            }
        });
        if let HostMsg::Event { record } = message {
            self.events.insert(record.seq, serde_json::to_string(record).expect("JSON"));
        }
    }

    pub fn acknowledged(&mut self, command: &Command) {
        match command {
            Command::Note { text } => drop(self.notes.insert(text.clone())),
            Command::Approve { ids } => self.approved.extend(ids),
            Command::Veto { ids, .. } => self.vetoed.extend(ids),
            _ => {}
        }
    }

    /// The journal was cut to its first `kept` events by the test itself: nothing else may be missing.
    pub fn forget_after(&mut self, kept: &[Record]) {
        let last = kept.last().map_or(0, |r| r.seq);
        self.events.retain(|seq, _| *seq <= last);
        let (notes, approved, vetoed) = said(kept);
        self.notes.retain(|n| notes.contains(n.as_str()));
        self.approved.retain(|id| approved.contains(id));
        self.vetoed.retain(|id| vetoed.contains(id));
    }

    pub fn len(&self) -> usize {
        self.events.len()
    }

    /// Everything heard and acknowledged is in `records`.
    pub fn check(&self, records: &[Record]) -> Result<(), String> {
        if let Some(text) = self.hostile.first() {
            return Err(format!("{} texts steer or tell, such as {text}", self.hostile.len()));
        }
        for (i, r) in records.iter().enumerate() {
            if r.seq != i as u64 + 1 {
                return Err(format!("event {} is numbered {}", i + 1, r.seq));
            }
        }
        for (seq, heard) in &self.events {
            let Some(kept) = records.get(*seq as usize - 1) else {
                return Err(format!(
                    "event {seq} was heard and is lost: {}",
                    heard.chars().take(300).collect::<String>()
                ));
            };
            if *heard != serde_json::to_string(kept).expect("JSON") {
                return Err(format!(
                    "event {seq} is not what was heard: {}",
                    heard.chars().take(300).collect::<String>()
                ));
            }
        }
        let (notes, approved, vetoed) = said(records);
        if let Some(note) = self.notes.iter().find(|n| !notes.contains(n.as_str())) {
            return Err(format!("acknowledged and lost: note `{note}`"));
        }
        if let Some(id) = self.approved.iter().find(|id| !approved.contains(id)) {
            return Err(format!("acknowledged and lost: approval of {id:?}"));
        }
        match self.vetoed.iter().find(|id| !vetoed.contains(id)) {
            Some(id) => Err(format!("acknowledged and lost: veto of {id:?}")),
            None => Ok(()),
        }
    }
}

/// What people said, by these records.
fn said(records: &[Record]) -> (BTreeSet<&str>, BTreeSet<DecisionId>, BTreeSet<DecisionId>) {
    let (mut notes, mut approved, mut vetoed) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for r in records {
        match &r.event {
            Event::Noted { text, .. } => drop(notes.insert(text.as_str())),
            Event::Approved { ids } => approved.extend(ids),
            Event::Vetoed { ids, .. } => vetoed.extend(ids),
            _ => {}
        }
    }
    (notes, approved, vetoed)
}

/// Nothing ran that was not approved, and what is applied is in `artifacts` as its recipe says. Returns the folded state.
pub fn audit(records: &[Record], artifacts: &Path, loaded: &mut BTreeSet<String>) -> Result<State, String> {
    let mut state = State::default();
    let mut approved: BTreeSet<DecisionId> = BTreeSet::new();
    let mut started: BTreeMap<u32, BTreeSet<DecisionId>> = BTreeMap::new();
    for r in records {
        match &r.event {
            Event::Approved { ids } => approved.extend(ids),
            Event::RunStarted { round, ids, recipe, .. } => {
                for id in ids.iter().chain(recipe.iter().flatten()) {
                    let status = state.decision(*id).map(|d| d.status);
                    let fit = matches!(status, Some(Status::Approved | Status::Applied | Status::RolledBack));
                    if !approved.contains(id) || !fit || (ids.contains(id) && status != Some(Status::Approved)) {
                        return Err(format!("round {round} ran {id:?}, which was {status:?}"));
                    }
                }
                started.insert(*round, ids.iter().copied().collect());
            }
            Event::Applied { round, ids, artifact, model_hash, .. } => {
                if started.get(round).is_none_or(|s| !ids.iter().all(|id| s.contains(id))) {
                    return Err(format!("round {round} applied {ids:?}, which it did not start with"));
                }
                if loaded.insert(artifact.clone()) {
                    let mut actions = state.actions_of(*round);
                    actions.retain(|(_, a)| *a != Action::Keep);
                    whole(&artifacts.join(artifact), model_hash, actions)?;
                }
            }
            _ => {}
        }
        state.apply(r);
    }
    Ok(state)
}

/// The artifact opens, is the model that the journal names, and was made by these actions.
fn whole(path: &Path, hash: &str, mut actions: Vec<(Target, Action)>) -> Result<(), String> {
    let opened =
        paring::model::load(path, &LoadOptions::default()).map_err(|e| format!("applied and not there: {e}"))?;
    if opened.info.hash != hash {
        return Err(format!("`{}` is not the model that was applied", path.display()));
    }
    actions.sort_by(|a, b| a.0.cmp(&b.0));
    let wanted: Vec<Value> = actions.iter().map(|(t, a)| json!({ "target": t, "action": a })).collect();
    let manifest = crate::manifest::manifest(path)?;
    match manifest.recipe["actions"] == json!(wanted) {
        true => Ok(()),
        false => {
            Err(format!("`{}` was made by {}, approved was {wanted:?}", path.display(), manifest.recipe["actions"]))
        }
    }
}
