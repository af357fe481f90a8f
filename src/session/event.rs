//! Durable events: journalled before they take effect, replayable, the only thing that changes [`super::State`].

use super::{Claim, Controlled, KeptPlan, Recipe, Rival, Standings};
use crate::data::DataCard;
use crate::eval::{Correction, Margins};
use crate::graph::{Graph, Macs};
use crate::model::ModelInfo;
use crate::plan::{Action, Author, Budget, Constraint, Decision, DecisionId, Quality, Target, Trial, Verdict};
use crate::profile::{Doubt, Ladder, LatencyStats, Paired, Profile, Ratio, SensCurve};
use crate::prune::Group;
use crate::recover::{RepairStep, RepairUse};
use crate::task::{Divergence, Metric, Metrics};
use crate::train::{Course, Heal, Healing, LayerPulse};
use serde::{Deserialize, Serialize};

/// Sequence number of an event in its journal, from 1.
pub type Seq = u64;

/// Where a round stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    #[default]
    Profile,
    Reason,
    Review,
    Compress,
    Evaluate,
    /// Evaluated; waits for accept or roll back.
    Verdict,
}

/// What a session is about; fixed when it opens.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SessionCard {
    pub model: ModelInfo,
    pub graph: Graph,
    pub groups: Vec<Group>,
    pub data: DataCard,
    pub calib: DataCard,
    /// Calibration images are also evaluation images; the screen must say so.
    pub calib_is_eval: bool,
    /// Device as asked, what it is in words, and why it fell back if it did.
    pub device: String,
    pub device_note: Option<String>,
    pub threads: usize,
    pub batch: usize,
    pub seed: u64,
    /// What quality is measured by; `None` in journals from before there were tasks: top-1.
    #[serde(default)]
    pub metric: Option<Metric>,
    /// Program version that opened it.
    pub version: String,
    /// What decides results besides weights and decisions, as it is now; `None` in journals of versions that kept it
    /// in a file beside them.
    #[serde(default)]
    pub recipe: Option<Box<Recipe>>,
}

/// One round's measured result; round 0 is the baseline.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Evaluation {
    pub round: u32,
    pub metrics: Metrics,
    pub whole: LatencyStats,
    pub weight_bytes: u64,
    pub params: u64,
    pub macs: Macs,
    /// Per-layer profile of what was evaluated.
    pub profile: Option<Profile>,
    /// Latency of the baseline measured in the same minute, for ratios on a noisy machine.
    pub baseline_ms: f64,
    /// How far the right class led, of the original alone: what forecasts weigh held-back images by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margins: Option<Margins>,
    /// Hash over contents and labels of the images that were evaluated.
    #[serde(default)]
    pub data_hash: Option<String>,
    /// The two in pairs: what the factor is made of. `None` for the baseline, and in sessions of older versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub paired: Option<Paired>,
    /// Why `whole` is not to be decided on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub doubt: Option<Doubt>,
    /// How far its outputs are from the original's, where the task tells that; `None` for the baseline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub divergence: Option<Divergence>,
    /// The metrics are of a part of the evaluation data.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<Part>,
}

/// The evaluation ended before all items had been looked at, since it was clear by then whether the budget's `drop` is kept.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Items of the whole set; how many were looked at is in the metrics.
    pub of: usize,
    /// How sure the verdict's interval is, wherever one stops, 0 to 1.
    pub level: f64,
}

impl SessionCard {
    /// What quality is measured by.
    pub fn metric(&self) -> Metric {
        self.metric.clone().unwrap_or_else(|| Metric::top1(self.model.classes))
    }
}

impl Evaluation {
    /// Milliseconds a batch at the median; `None` where a device had no memory to measure that with.
    pub fn ms(&self) -> Option<f64> {
        (self.whole.n > 0 || self.whole.p50 > 0.0).then_some(self.whole.p50)
    }

    /// Latency as a factor of the original's, both measured in the same minute: the one that every view, the verdict and
    /// reports show. `None` where no original was measured beside it.
    pub fn latency(&self) -> Option<Ratio> {
        let exactly = |value: f64| Ratio { n: 0, value, low: value, high: value, coverage: 0.0 };
        match self.paired {
            _ if self.round == 0 => Some(exactly(1.0)),
            Some(p) => Some(p.ratio),
            None if self.baseline_ms > 0.0 => Some(exactly(self.whole.p50 / self.baseline_ms)),
            None => None,
        }
    }

    /// Takes a newer measurement of the same model beside the original.
    pub fn measured_again(&mut self, paired: &Paired) {
        self.whole = paired.new;
        self.baseline_ms = paired.base.p50;
        self.doubt = paired.doubt;
        self.paired = Some(*paired);
    }
}

/// Something an agent or the planner said, kept once it is complete.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Utterance {
    pub round: u32,
    /// `planner`, `analysis`, `pruning`, `quantization`, `evaluation`.
    pub role: String,
    pub model: String,
    pub reasoning: String,
    pub text: String,
    /// The prompt as sent, for the transcript view; empty for the planner.
    pub prompt: String,
    pub tokens: u64,
    /// Tokens of its prompts, by the server's count; 0 where that is not told.
    #[serde(default, skip_serializing_if = "none")]
    pub asked: u64,
    /// Entries of its proposal that were refused.
    #[serde(default, skip_serializing_if = "none")]
    pub refused: u64,
    pub seconds: f64,
    pub interrupted: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "what serde asks with")]
fn none(n: &u64) -> bool {
    *n == 0
}

impl Utterance {
    /// What was said in `round`, whole, by what counts its words for tokens.
    pub fn whole(round: u32, role: &str, model: &str, text: String) -> Utterance {
        let tokens = text.split_whitespace().count() as u64;
        Utterance { round, role: role.to_owned(), model: model.to_owned(), text, tokens, ..Utterance::default() }
    }
}

/// A model that was built ahead of its run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Built {
    /// See [`crate::plan::plan_key`].
    pub key: String,
    pub artifact: String,
    pub model_hash: String,
    pub repairs: Vec<RepairStep>,
    pub used: RepairUse,
}

/// A proposal that gave way to what the engineer had settled.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PassedOver {
    pub target: Target,
    /// As proposed, without the kept units.
    pub action: Action,
    pub author: Author,
    /// What stands instead: `your edit`, `your approval`, `your veto`.
    pub stands: String,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub enum Event {
    Opened {
        card: Box<SessionCard>,
        budget: Budget,
    },
    /// The recipe is another one from here on, or is first written down.
    RecipeSet {
        recipe: Box<Recipe>,
    },
    PhaseEntered {
        round: u32,
        phase: Phase,
    },
    Profiled {
        round: u32,
        profile: Box<Profile>,
    },
    /// One row of the round's profile was measured again; with it, what was in doubt and no longer is.
    Remeasured {
        round: u32,
        layer: String,
        profile: Box<Profile>,
    },
    /// The round's model was timed again beside the original.
    Paired {
        round: u32,
        latency: Box<Paired>,
    },
    LaddersMeasured {
        ladders: Vec<Ladder>,
    },
    Sensed {
        base_loss: f64,
        #[serde(alias = "base_top1")]
        base_score: f64,
        curves: Vec<SensCurve>,
    },
    /// New decisions; an earlier open decision on the same target is superseded.
    Proposed {
        decisions: Vec<Decision>,
    },
    /// What an agent expects of the plan with what it proposes next.
    Claimed {
        claim: Claim,
    },
    /// What the planner would do for the same budget, beside what agents proposed.
    Rivalled {
        rival: Rival,
    },
    /// The engineer keeps a plan under a name; an older one of that name is gone.
    PlanKept {
        plan: KeptPlan,
    },
    /// The engineer goes back to what was decided after event `to`: these decisions stand again, those that waited or were approved there instead
    /// are gone.
    Restored {
        to: Seq,
        decisions: Vec<Decision>,
        dropped: Vec<DecisionId>,
    },
    /// What earlier sessions showed of authors.
    Recalled {
        records: Vec<Standings>,
    },
    /// Proposals that came too late or in vain: the engineer had settled these targets. Nothing changes by it.
    PassedOver {
        proposals: Vec<PassedOver>,
    },
    Edited {
        id: DecisionId,
        action: Action,
        author: Author,
    },
    /// The kept units of cuts that were decided before importance was known.
    Resolved {
        kept: Vec<(DecisionId, Vec<u32>)>,
    },
    Approved {
        ids: Vec<DecisionId>,
    },
    /// Freezes the targets. A decision that is in force stays so until the next run, which builds without it.
    Vetoed {
        ids: Vec<DecisionId>,
        reason: String,
    },
    /// Back to what it was before it was approved or vetoed (proposed, in force, rolled back); also lifts the constraint a
    /// veto set.
    Reopened {
        ids: Vec<DecisionId>,
    },
    ConstraintSet {
        constraint: Constraint,
    },
    ConstraintLifted {
        target: Target,
    },
    /// Several at once: one act of the engineer's, which one undo takes back.
    ConstraintsSet {
        constraints: Vec<Constraint>,
        /// What waited there and is refused with them.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        vetoed: Vec<DecisionId>,
    },
    ConstraintsLifted {
        targets: Vec<Target>,
    },
    /// Constraints that agents read in a note: they bind nothing before the engineer confirms them.
    Suggested {
        suggestion: Suggestion,
    },
    /// None of them waits any more.
    SuggestionsDropped,
    BudgetSet {
        budget: Budget,
    },
    /// How runs from here on heal what they made, before it is judged; `None`: not at all.
    HealingSet {
        heal: Option<Heal>,
    },
    /// Whether evaluations of rounds from here on end when it is clear whether the budget's `drop` is kept.
    PatienceSet {
        until_clear: bool,
    },
    /// Undoes or redoes the newest undoable event (edit, approve, veto, reopen, constraint, budget).
    Undone,
    Redone,
    /// The engineer's note to the agents.
    Noted {
        round: u32,
        text: String,
    },
    Said {
        utterance: Box<Utterance>,
    },
    RunStarted {
        round: u32,
        /// What it adds to the model in force.
        ids: Vec<DecisionId>,
        /// All that it builds; journals that lack it built the newest approved or applied decision of every target.
        #[serde(default)]
        recipe: Option<Vec<DecisionId>>,
        /// What was forecast of the whole plan when the run was asked for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        forecast: Option<Quality>,
    },
    /// A plan was built as a run would build it, without being applied; a run of it takes what is there.
    Built {
        built: Box<Built>,
    },
    /// A plan was tried on held-back calibration images; what such trials rest on comes with the first.
    Tried {
        trial: Box<Trial>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        correction: Option<Correction>,
    },
    Repaired {
        round: u32,
        step: RepairStep,
    },
    /// Healing begins; with the same plan, and asked for in the same words, a later run goes on where a kill left this one.
    HealingBegun {
        round: u32,
        /// What is asked for, and of which plan.
        heal: Heal,
        key: String,
        healing: Box<Healing>,
    },
    Healed {
        round: u32,
        course: Box<Course>,
        /// What the layers' weights and gradients did at its end.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        layers: Vec<LayerPulse>,
    },
    /// The compressed model exists and is durable under `artifact`.
    Applied {
        round: u32,
        ids: Vec<DecisionId>,
        artifact: String,
        model_hash: String,
        /// What repairs looked at.
        #[serde(default)]
        used: RepairUse,
    },
    Evaluated {
        evaluation: Box<Evaluation>,
    },
    VerdictGiven {
        round: u32,
        verdict: Verdict,
    },
    RoundAccepted {
        round: u32,
    },
    /// The round's decisions are no longer in force; the last accepted round is.
    RolledBack {
        round: u32,
        reason: String,
    },
    /// Levels of a model and the controller that chooses among them exist and are durable.
    Controlled {
        control: Box<Controlled>,
    },
    Exported {
        path: String,
        format: String,
        hash: String,
        /// Bytes of the file; 0 of a folder, and in older journals.
        #[serde(default)]
        bytes: u64,
        /// What is otherwise in it than was decided, and how the same is made elsewhere.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        notes: Vec<String>,
    },
    /// Long work that ended badly, in words, with a hint.
    Failed {
        what: String,
        message: String,
    },
    /// Work was cancelled by the engineer or interrupted by a restart.
    Cancelled {
        what: String,
    },
}

impl Event {
    /// A stage of long work has come to its result with this: its progress is history.
    pub fn ends_a_stage(&self) -> bool {
        match self {
            Event::PhaseEntered { .. }
            | Event::Profiled { .. }
            | Event::LaddersMeasured { .. }
            | Event::Proposed { .. }
            | Event::RunStarted { .. }
            | Event::Applied { .. }
            | Event::Healed { .. }
            | Event::Evaluated { .. }
            | Event::VerdictGiven { .. }
            | Event::Controlled { .. }
            | Event::Exported { .. }
            | Event::Failed { .. }
            | Event::Cancelled { .. } => true,
            Event::Opened { .. }
            | Event::RecipeSet { .. }
            | Event::Resolved { .. }
            | Event::PassedOver { .. }
            | Event::Claimed { .. }
            | Event::Rivalled { .. }
            | Event::PlanKept { .. }
            | Event::Restored { .. }
            | Event::Recalled { .. }
            | Event::Remeasured { .. }
            | Event::Paired { .. }
            | Event::Built { .. }
            | Event::Tried { .. }
            | Event::Sensed { .. }
            | Event::Edited { .. }
            | Event::Approved { .. }
            | Event::Vetoed { .. }
            | Event::Reopened { .. }
            | Event::ConstraintSet { .. }
            | Event::ConstraintLifted { .. }
            | Event::ConstraintsSet { .. }
            | Event::ConstraintsLifted { .. }
            | Event::Suggested { .. }
            | Event::SuggestionsDropped
            | Event::BudgetSet { .. }
            | Event::HealingSet { .. }
            | Event::PatienceSet { .. }
            | Event::HealingBegun { .. }
            | Event::Undone
            | Event::Redone
            | Event::Noted { .. }
            | Event::Said { .. }
            | Event::Repaired { .. }
            | Event::RoundAccepted { .. }
            | Event::RolledBack { .. } => false,
        }
    }
}

/// What agents would have bind later proposals, since a note asks for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Suggestion {
    pub by: Author,
    pub constraints: Vec<Constraint>,
    /// The rules in words.
    pub words: String,
}

/// An event with its place in the journal and its time (milliseconds since the Unix epoch).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub seq: Seq,
    pub at_ms: i64,
    pub event: Event,
}
