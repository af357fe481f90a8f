//! What is decided, by whom, why, and where it stands.

pub use crate::prune::{Action, Target, TargetKind};

use crate::quant::Precision;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Identifies a decision within a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DecisionId(pub u64);

/// Who proposed or last edited.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "by")]
pub enum Author {
    Planner,
    Agent {
        role: String,
        model: String,
    },
    Human,
    /// A rule file in a headless run.
    Rule {
        file: String,
    },
}

impl fmt::Display for Author {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Author::Planner => write!(f, "planner"),
            Author::Agent { role, model } => write!(f, "{role}/{model}"),
            Author::Human => write!(f, "you"),
            Author::Rule { file } => write!(f, "rule {file}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Proposed,
    Edited,
    Approved,
    Vetoed,
    Applied,
    RolledBack,
}

/// An estimate with its range; always shown with `~`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

/// What we expect a decision or a whole plan to do, before it runs. Changes are against the original model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Forecast {
    /// Milliseconds of the whole model's latency (negative: saved).
    pub d_latency_ms: Estimate,
    /// What the rows that it changes or removes take of the original's latency, milliseconds: no more can be saved.
    #[serde(default)]
    pub touched_ms: f64,
    pub d_macs: i64,
    pub d_params: i64,
    /// Stored weight bytes.
    pub d_bytes: i64,
    /// Change of the task's metric in its unit, negative for worse.
    #[serde(alias = "d_top1")]
    pub d_quality: Estimate,
    /// Expected rise of calibration loss, nats.
    pub d_loss: f64,
    /// How many of the actions no sensitivity was measured for: `d_quality` counts nothing for each, and allows a point.
    #[serde(default)]
    pub unmeasured: u32,
}

/// One layer's, group's or block's target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    pub id: DecisionId,
    pub round: u32,
    pub target: Target,
    pub action: Action,
    pub author: Author,
    pub rationale: String,
    pub forecast: Option<Forecast>,
    pub status: Status,
    /// What the author proposed before a human edited it.
    pub edited_from: Option<Action>,
    pub veto_reason: Option<String>,
}

impl Decision {
    /// Proposed by `author`, without a word; its id and round are the host's to give.
    pub fn new(target: Target, action: Action, author: Author) -> Decision {
        Decision {
            id: DecisionId(0),
            round: 0,
            target,
            action,
            author,
            rationale: String::new(),
            forecast: None,
            status: Status::Proposed,
            edited_from: None,
            veto_reason: None,
        }
    }

    /// What it does, and to what.
    pub fn planned(&self) -> (Target, Action) {
        (self.target.clone(), self.action.clone())
    }

    /// A person made or edited it, or wrote the rule that did.
    pub fn by_person(&self) -> bool {
        matches!(self.author, Author::Human | Author::Rule { .. }) || self.edited_from.is_some()
    }
}

/// The action without which units are kept: those are long, and picked by the host.
pub fn bare(action: Action) -> Action {
    match action {
        Action::Prune { ratio, .. } => Action::Prune { ratio, kept: Vec::new() },
        other => other,
    }
}

/// The same but for exactly which units are kept: of two cuts only the ratios count, and may be so far `apart`.
pub fn same_cut(a: &Action, b: &Action, apart: f64) -> bool {
    match (a, b) {
        (Action::Prune { ratio: x, .. }, Action::Prune { ratio: y, .. }) => (x - y).abs() < apart,
        _ => a == b,
    }
}

/// Said of what follows from a decision on another of a set that is kept together.
pub const WITH_OTHERS: &str = "Kept together with others, as you asked.";

/// Said of what an author takes back by leaving it out of a new plan.
pub const GIVEN_UP: &str = "An earlier proposal had it; this plan does without.";

/// A veto or a limit that the human set; binds every later proposal, in code.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Constraint {
    pub target: Target,
    pub limit: Limit,
    pub reason: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "limit")]
pub enum Limit {
    /// Do nothing new to the target: its channels, its precision, its zeros or its removal, as the target names. What is in
    /// force on it stays.
    Freeze,
    /// Remove at most this part.
    MaxRatio { ratio: f64 },
    /// Remove at least this part.
    MinRatio { ratio: f64 },
    /// Keep f32.
    KeepF32,
    /// Decided alike with everything of its kind that is in the set of this name.
    Together { set: String },
    /// Binds nothing: what the planner weighs, and agents are told.
    Prefer { wish: Wish },
}

/// What the engineer would rather have, other things being equal.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "wish")]
pub enum Wish {
    /// Rather cut here than elsewhere.
    Cut,
    /// Rather cut elsewhere.
    Spare,
    /// Rather this than another.
    Precision { precision: Precision },
}

/// How much less harm counts where it is wished for, and more where it is to be spared. A wish turns what is near, not what is far.
const WISHED: f64 = 0.5;

impl Wish {
    /// `cut`, `spare` or a precision.
    pub fn parse(word: &str) -> Option<Wish> {
        match word {
            "cut" => Some(Wish::Cut),
            "spare" => Some(Wish::Spare),
            other => Some(Wish::Precision { precision: Precision::parse(other)? }),
        }
    }

    /// What an action's harm counts, in parts of what it is.
    pub fn weight(self, action: &Action) -> f64 {
        match (self, action) {
            (_, Action::Keep) => 1.0,
            (Wish::Cut, _) => WISHED,
            (Wish::Spare, _) => 1.0 / WISHED,
            (Wish::Precision { precision: a }, Action::Precision { precision: b }) if a == *b => WISHED,
            (Wish::Precision { .. }, _) => 1.0,
        }
    }
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wish::Cut => f.write_str("rather cut here"),
            Wish::Spare => f.write_str("rather spared"),
            Wish::Precision { precision } => write!(f, "rather {}", precision.label()),
        }
    }
}
