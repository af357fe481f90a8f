//! Agents: dialogue, prompt context, proposal parsing and validation, OpenAI-compatible transport.
//!
//! Not here: the built-in planner (`plan::planner`), who there is (`session::ROLES`), deciding when
//! agents run and journalling what they say (`host`).
//! Invariants: nothing that a model writes leaves this room as a decision without having been parsed, checked against
//! the groups and constraints, and clamped; nothing it writes leaves as text without control characters neutralised;
//! the endpoint's key never appears in an event, an error or a log, also where a server echoes it (`wire`, `answer`); no
//! server can make this room hold more than a bounded amount.

mod answer;
mod blind;
mod calls;
mod circles;
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
pub mod suggest;
mod table;
pub mod tools;
mod transport;
pub mod validate;
mod wire;

pub use answer::{Cut, Reply};
pub use blind::blinded;
pub use calls::Call;
pub use endpoint::Endpoint;
pub use error::{ApiKind, LlmError};
pub use prompts::Prompts;
pub use run::run;
pub use transport::{Chat, Message, Question, Timeouts};

use crate::plan::Decision;
use crate::quant::Precision;
use crate::session::{Ask, Event, Feed, Limits, Looks, Role, Spent, State};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::sync::Arc;
use tools::Tool;

/// The planner's proposal with its explanation, asked for only when a role's own did not come to anything. Called on a
/// blocking thread. An error is shown as it is.
pub type StandIn = Arc<dyn Fn() -> Result<(Vec<Decision>, String), String> + Send + Sync>;

/// Everything that a run of the pipeline sees. The state must have a card (an opened session); where the evaluation data
/// must not choose, it is [`blinded`].
#[derive(Clone)]
pub struct AgentInput {
    pub task: Ask,
    pub state: Arc<State>,
    pub stand_in: StandIn,
    pub prompts: Prompts,
    /// Precisions that the session's device refuses, each with why and what to do.
    pub refused: Vec<(Precision, String)>,
    /// Characters of context a prompt may have; halved when a server finds it too long.
    pub room: usize,
    /// How much roles may look up.
    pub looks: Looks,
    /// What all of it may take.
    pub limits: Limits,
    /// What of that is taken already, by turns before.
    pub spent: Spent,
    /// The one role that is asked, where not all are.
    pub only: Option<&'static Role>,
    /// Whether somebody is there who may answer a question.
    pub asks: bool,
    /// What is told besides the facts: what came of the plan before.
    pub news: String,
    /// Roles that are asked elsewhere than the others; one whose address is none is asked where they are.
    pub others: BTreeMap<&'static str, Endpoint>,
    /// Roles that the planner answers for.
    pub planned: Vec<&'static str>,
}

impl AgentInput {
    /// With the built-in prompts and the default room.
    pub fn new(task: Ask, state: Arc<State>, stand_in: StandIn) -> AgentInput {
        let (prompts, refused) = (Prompts::default(), Vec::new());
        let (room, looks) = (context::DEFAULT_ROOM, Looks::default());
        let (asks, news, others, planned) = (false, String::new(), BTreeMap::new(), Vec::new());
        let (limits, spent, only) = (Limits::default(), Spent::default(), None);
        AgentInput {
            task,
            state,
            stand_in,
            prompts,
            refused,
            room,
            looks,
            limits,
            spent,
            only,
            asks,
            news,
            others,
            planned,
        }
    }
}

/// Who hears a run, in order. Whoever takes long is waited for, and the server with it.
pub trait Listener {
    /// What is said, as it is said: turns, tokens, and lines for people (a retry, what was left out and why).
    fn feed(&mut self, feed: Feed) -> impl Future<Output = ()>;

    /// What is to last: what was said in a turn, complete or interrupted, and validated decisions. Their ids are 0: the host
    /// assigns them, resolves kept units by importance and adds forecasts. Authors are `Agent{role, model}`, or `Planner`
    /// where it stands in.
    fn event(&mut self, event: Event) -> impl Future<Output = ()>;

    /// What a role wants to know: a tool that looks, rehearses, measures or asks the engineer, with arguments that are not checked yet.
    fn call(&mut self, tool: &'static Tool, asked: Map<String, Value>) -> impl Future<Output = Result<Value, String>>;

    /// The session as it is after a measurement, for the roles that speak next.
    fn state(&mut self) -> impl Future<Output = Option<Arc<State>>> {
        std::future::ready(None)
    }
}

/// Who speaks before any role does.
const AGENTS: &str = "agents";

/// A line for people.
fn notice(role: &str, text: &str) -> Feed {
    Feed::Log { level: "info".to_owned(), text: format!("{role}: {}", clean::line(text, 1_000)) }
}

/// How a run ended.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Outcome {
    /// Decisions proposed in all, by agents.
    pub by_agents: usize,
    /// Decisions proposed by the planner standing in.
    pub by_planner: usize,
    /// Roles for which the planner stood in (or tried to).
    pub stood_in: usize,
    pub cancelled: bool,
    /// By this run and those before it that it was told of.
    pub spent: Spent,
}
