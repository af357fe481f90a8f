//! What a session is at a moment: plain data and read-only views of it. How events change it is in `fold.rs`, what of it
//! would run in `inforce.rs`.

use super::{
    Built, Claim, Controlled, Evaluation, KeptPlan, Phase, Rival, Seq, SessionCard, Standings, Suggestion, Utterance,
};
use crate::plan::{Basis, Budget, Constraint, Decision, DecisionId, Quality, Target, Trials, Verdict};
use crate::profile::{Ladder, Profile, Sensitivity};
use crate::recover::{RepairStep, RepairUse};
use crate::train::{Course, Heal, Healing, LayerPulse};
use serde::{Deserialize, Serialize};

/// One round's course.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Round {
    pub number: u32,
    /// Profile of the model that this round made (round 0: the original).
    pub profile: Option<Profile>,
    /// The same of one token after a context, where that is a language model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decoding: Option<Profile>,
    /// Decisions that this round's run newly applies.
    pub ids: Vec<DecisionId>,
    /// All decisions that its model consists of, those of earlier rounds included.
    #[serde(default)]
    pub recipe: Vec<DecisionId>,
    /// What was forecast of the whole plan when the run was asked for.
    #[serde(default)]
    pub forecast: Option<Quality>,
    pub repairs: Vec<RepairStep>,
    /// What those looked at, once the model exists.
    #[serde(default)]
    pub used: RepairUse,
    pub evaluation: Option<Evaluation>,
    pub verdict: Option<Verdict>,
    /// Name of the compressed model's artifact, once durable.
    pub artifact: Option<String>,
    pub model_hash: Option<String>,
    pub accepted: bool,
    pub rolled_back: Option<String>,
    /// How its model was to be healed, and how that went.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heal: Option<Heal>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub course: Option<Course>,
    /// What its layers' weights and gradients did at the healing's end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pulse: Vec<LayerPulse>,
}

impl Round {
    /// What was foretold of its quality when it was asked for; `None` where nothing was, or where the plan had been measured before: that comes
    /// as it came.
    pub fn expected(&self) -> Option<Quality> {
        self.forecast.filter(|q| !matches!(q.basis, Basis::Unmeasured | Basis::Measured))
    }
}

/// A healing that has begun and not ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Begun {
    pub heal: Heal,
    /// See [`crate::plan::plan_key`].
    pub key: String,
    pub healing: Healing,
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

/// The whole session. Decisions of all rounds are kept, ascending by id (superseded open ones are dropped); which of them
/// count is in `inforce.rs`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    pub seq: Seq,
    pub card: Option<SessionCard>,
    pub budget: Budget,
    /// How runs heal what they made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heal: Option<Heal>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub healing: Option<Begun>,
    /// Evaluations of rounds end when it is clear whether the budget's `drop` is kept.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub until_clear: bool,
    /// Current round, from 1; 0 before the first.
    pub round: u32,
    pub phase: Phase,
    /// Indexed by round number; round 0 is the baseline (its evaluation and profile of the original model).
    pub rounds: Vec<Round>,
    pub ladders: Vec<Ladder>,
    pub sensitivity: Sensitivity,
    /// Whole plans that were tried on held-back images.
    #[serde(default)]
    pub trials: Trials,
    /// Models built ahead of a run, newest last; at most [`State::BUILT`].
    #[serde(default)]
    pub built: Vec<Built>,
    pub decisions: Vec<Decision>,
    /// The id that the next decision gets; ids are never used twice, not even after an undo.
    pub next_decision: u64,
    pub constraints: Vec<Constraint>,
    /// What agents expected of their proposals, newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub claims: Vec<Claim>,
    /// What the planner would have done instead, newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rivals: Vec<Rival>,
    /// Plans that were kept under names, newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub plans: Vec<KeptPlan>,
    /// Constraints that wait for the engineer, newest last.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub suggested: Vec<Suggestion>,
    /// What earlier sessions showed of authors.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub records: Vec<Standings>,
    pub notes: Vec<(u32, String)>,
    pub utterances: Vec<Utterance>,
    pub timeline: Vec<TimelineEntry>,
    /// The newest failure in words, until anything else happens.
    pub failure: Option<String>,
    pub exports: Vec<String>,
    /// The newest levels of a language model with their controller.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<Box<Controlled>>,
    /// What the newest review actions changed, newest last; at most [`State::UNDO_DEPTH`].
    pub undo: Vec<UndoPoint>,
    pub redo: Vec<UndoPoint>,
}

/// What an undoable event changed, as it was before: a difference, so that a deep history stays small.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct UndoPoint {
    /// The event that this undoes (or redoes).
    pub seq: Seq,
    /// What it did, in words.
    pub text: String,
    /// Touched decisions as they were; `None`: there was none.
    pub decisions: Vec<(DecisionId, Option<Decision>)>,
    /// All constraints as they were, if the event changed them.
    pub constraints: Option<Vec<Constraint>>,
    pub budget: Option<Budget>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub heal: Option<Option<Heal>>,
}

impl State {
    /// Review actions that can be undone.
    pub const UNDO_DEPTH: usize = 64;
    /// Suggestions of agents that wait at most.
    pub const SUGGESTIONS: usize = 8;
    /// Models built ahead that are kept.
    pub const BUILT: usize = 4;

    pub fn decision(&self, id: DecisionId) -> Option<&Decision> {
        self.decisions.iter().find(|d| d.id == id)
    }

    /// The newest decision on `target`, whatever its status.
    pub fn current(&self, target: &Target) -> Option<&Decision> {
        self.decisions.iter().rev().find(|d| &d.target == target)
    }

    /// The round whose model is in force: the last accepted one, or 0 (the original).
    pub fn base_round(&self) -> u32 {
        self.rounds.iter().rev().find(|r| r.accepted).map_or(0, |r| r.number)
    }

    pub fn round_at(&self, number: u32) -> Option<&Round> {
        self.rounds.get(number as usize)
    }

    /// The original's evaluation, once measured.
    pub fn baseline(&self) -> Option<&Evaluation> {
        self.round_at(0)?.evaluation.as_ref()
    }

    /// The newest evaluation that is not rolled back.
    pub fn evaluation(&self) -> Option<&Evaluation> {
        self.rounds.iter().rev().filter(|r| r.rolled_back.is_none()).find_map(|r| r.evaluation.as_ref())
    }

    /// Per-layer profile of the model of round `number`.
    pub fn profile_of(&self, number: u32) -> Option<&Profile> {
        let round = self.round_at(number)?;
        round.profile.as_ref().or_else(|| round.evaluation.as_ref()?.profile.as_ref())
    }

    /// As [`State::profile_of`], of one token after a context.
    pub fn decoding_of(&self, number: u32) -> Option<&Profile> {
        self.round_at(number)?.decoding.as_ref()
    }

    /// Per-layer profile of the model in force.
    pub fn profile(&self) -> Option<&Profile> {
        self.profile_of(self.base_round()).or_else(|| self.profile_of(0))
    }

    /// Constraints on `target`.
    pub fn constraints_on<'a>(&'a self, target: &'a Target) -> impl Iterator<Item = &'a Constraint> {
        self.constraints.iter().filter(move |c| &c.target == target)
    }
}
