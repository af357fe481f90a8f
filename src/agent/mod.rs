//! Agents: roles, dialogue, prompt context, proposal parsing and validation, OpenAI-compatible transport.
//!
//! Not here: the built-in planner (`plan::planner`), deciding when agents run and journalling what they say (`host`).
//! Invariants: nothing that a model writes leaves this room as a decision without having been parsed, checked against
//! the groups and constraints, and clamped; nothing it writes leaves as text without control characters neutralised;
//! the endpoint's key never appears in an event, an error or a log, also where a server echoes it (`wire`, `answer`); no
//! server can make this room hold more than a bounded amount.

mod answer;
mod blind;
pub mod clean;
pub mod context;
pub mod critic;
mod delta;
pub mod dialogue;
mod endpoint;
mod error;
mod incoming;
mod prompts;
pub mod proposal;
mod run;
mod table;
mod transport;
pub mod validate;
mod wire;

pub use answer::{Piece, Reply};
pub use blind::blinded;
pub use endpoint::Endpoint;
pub use error::{ApiKind, LlmError};
pub use prompts::Prompts;
pub use run::{run, run_with};
pub use transport::{Chat, Message, Timeouts};

use crate::plan::Decision;
use crate::session::{Channel, State, Utterance};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// The parts of the pipeline, in the order in which they speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads the profile and says where the cost and the slack are.
    Analysis,
    /// Proposes prune ratios and removed blocks.
    Pruning,
    /// Proposes precisions.
    Quantization,
    /// After a round: compares forecast with measurement and says what to do next.
    Evaluation,
}

impl Role {
    pub const ALL: [Role; 4] = [Role::Analysis, Role::Pruning, Role::Quantization, Role::Evaluation];

    pub fn name(self) -> &'static str {
        match self {
            Role::Analysis => "analysis",
            Role::Pruning => "pruning",
            Role::Quantization => "quantization",
            Role::Evaluation => "evaluation",
        }
    }

    /// Whether this role's reply must contain a proposal.
    pub fn proposes(self) -> bool {
        matches!(self, Role::Pruning | Role::Quantization)
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What the pipeline is asked to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Job {
    /// Analysis, pruning, quantization: ends in proposals.
    Propose,
    /// Evaluation of the round that was just measured: text only.
    Evaluate,
}

/// The planner's proposal with its explanation, asked for only when a role's own did not come to anything. Called on a
/// blocking thread. An error is shown as it is.
pub type StandIn = Arc<dyn Fn() -> Result<(Vec<Decision>, String), String> + Send + Sync>;

/// Everything that a run of the pipeline sees. The state must have a card (an opened session); where the evaluation data
/// must not choose, it is [`blinded`].
#[derive(Clone)]
pub struct AgentInput {
    pub job: Job,
    pub state: Arc<State>,
    pub stand_in: StandIn,
    pub prompts: Prompts,
    /// Characters of context a prompt may have; halved when a server finds it too long.
    pub room: usize,
}

impl AgentInput {
    /// With the built-in prompts and the default room.
    pub fn new(job: Job, state: Arc<State>, stand_in: StandIn) -> AgentInput {
        AgentInput { job, state, stand_in, prompts: Prompts::default(), room: context::DEFAULT_ROOM }
    }
}

/// What a run tells the host, in order.
#[derive(Debug, Clone, PartialEq)]
pub enum AgentEvent {
    /// A role begins to speak; maps to `Feed::Turn`.
    Turn { role: String, model: String },
    /// Text as it arrives, control characters already neutralised; maps to `Feed::Token`.
    Token { role: String, channel: Channel, text: String },
    /// The role fell silent; maps to `Feed::TurnEnd`.
    TurnEnd { role: String },
    /// What was said, complete (or interrupted); to be journalled as `Event::Said`.
    Said(Box<Utterance>),
    /// Validated decisions. Their ids are 0: the host assigns them, resolves kept units by importance and adds forecasts.
    /// Authors are `Agent{role, model}`, or `Planner` where it stands in.
    Proposed { role: String, decisions: Vec<Decision> },
    /// A line for people: which model was chosen, what was left out of a proposal and why, a retry, a fallback.
    Notice { role: String, text: String },
}

/// How a run ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Decisions proposed in all, by agents.
    pub by_agents: usize,
    /// Decisions proposed by the planner standing in.
    pub by_planner: usize,
    /// Roles for which the planner stood in (or tried to).
    pub stood_in: usize,
    pub cancelled: bool,
}
