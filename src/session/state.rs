//! What a session is at a moment: a pure fold of its events.

use super::{Evaluation, Phase, Seq, SessionCard, Utterance};
use crate::plan::{Budget, Constraint, Decision, Verdict};
use crate::profile::{Ladder, Profile, Sensitivity};
use crate::recover::RepairStep;
use serde::{Deserialize, Serialize};

/// One round's course.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    pub number: u32,
    pub profile: Option<Profile>,
    pub repairs: Vec<RepairStep>,
    pub evaluation: Option<Evaluation>,
    pub verdict: Option<Verdict>,
    /// Name of the compressed model's artifact, once durable.
    pub artifact: Option<String>,
    pub model_hash: Option<String>,
    pub accepted: bool,
    pub rolled_back: Option<String>,
}

/// One line of the timeline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimelineEntry {
    pub seq: Seq,
    pub at_ms: i64,
    pub text: String,
    /// Was undone later.
    pub undone: bool,
}

/// The whole session. Decisions of all rounds are kept; the newest per target counts.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub seq: Seq,
    pub card: Option<SessionCard>,
    pub budget: Budget,
    /// Current round, from 1; 0 before the first.
    pub round: u32,
    pub phase: Phase,
    /// Round 0 is the baseline (its evaluation and profile of the original model).
    pub rounds: Vec<Round>,
    pub ladders: Vec<Ladder>,
    pub sensitivity: Sensitivity,
    pub decisions: Vec<Decision>,
    pub constraints: Vec<Constraint>,
    pub notes: Vec<(u32, String)>,
    pub utterances: Vec<Utterance>,
    pub timeline: Vec<TimelineEntry>,
    /// Newest failure in words, until the next job starts.
    pub failure: Option<String>,
    pub exports: Vec<String>,
    /// Snapshots for undo and redo of review actions (decisions, constraints, budget).
    pub undo: Vec<UndoPoint>,
    pub redo: Vec<UndoPoint>,
}

/// What an undoable event changed, as it was before.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct UndoPoint {
    pub seq: Seq,
    pub decisions: Vec<Decision>,
    pub constraints: Vec<Constraint>,
    pub budget: Budget,
}
