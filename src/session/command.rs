//! Commands a client sends and the frames that travel on the socket.

use super::changed::WhatChanged;
use super::{Answers, Feed, Limits, Looks, Record, Seq, State, WhatTokens};
use crate::control::Asked;
use crate::plan::{Action, Budget, Constraint, DecisionId, Target};
use crate::train::Heal;
use serde::{Deserialize, Serialize};

/// Version of the frames; a host refuses a client of another one, naming both.
pub const PROTOCOL: u32 = 15;

/// Longest note to the agents, bytes: it goes into the next prompt.
pub const NOTE_BYTES: usize = 8 << 10;
/// Longest reason of a veto, a constraint or a roll-back, bytes: a paragraph. The state that every client gets holds each
/// several times (decision, constraint, what can be undone, timeline), and must stay far below a frame.
pub const REASON_BYTES: usize = 1 << 10;

/// Who shall propose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Proposer {
    Planner,
    /// The LLM pipeline; falls back to the planner when no endpoint answers.
    Agents,
}

/// What a client asks for. Every command is answered by one [`HostMsg::Reply`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "command")]
pub enum Command {
    /// Measures every layer of the model in force again, and the original beside it.
    Profile,
    /// Measures one layer's row again.
    Measure {
        layer: String,
    },
    Sense,
    Propose {
        by: Proposer,
    },
    /// Asks one role alone; its note, where there is one, goes to all of them.
    AskRole {
        role: String,
        note: String,
    },
    /// Replaces a decision's action (a ratio is rounded and its kept units resolved by the host).
    Edit {
        id: DecisionId,
        action: Action,
    },
    /// Decides on a target: edits what waits there, or proposes it as the engineer's own.
    Decide {
        target: Target,
        action: Action,
    },
    /// As [`Command::Decide`], on several targets in one act. What cannot stand is left out, and told.
    DecideAll {
        actions: Vec<(Target, Action)>,
    },
    /// Takes what another plan has for these targets, as the engineer's own decisions, for them to approve.
    Take {
        actions: Vec<(Target, Action)>,
        /// Whose plan that is, in words.
        from: String,
    },
    /// Keeps the plan that is shown under a name, to hold others against it.
    Fork {
        name: String,
    },
    Approve {
        ids: Vec<DecisionId>,
    },
    Veto {
        ids: Vec<DecisionId>,
        reason: String,
    },
    /// Vetoes targets in one act, whether anything is decided there or not: what waits is refused, else what is in force, and nothing new may
    /// come.
    VetoAll {
        targets: Vec<Target>,
        reason: String,
    },
    Reopen {
        ids: Vec<DecisionId>,
    },
    /// A note to the agents; goes into the next prompt and, while one streams, interrupts nothing.
    Note {
        text: String,
    },
    SetBudget {
        budget: Budget,
    },
    /// Binds every later proposal and edit on the target, in code.
    Constrain {
        constraint: Constraint,
    },
    /// Lifts all constraints on the target.
    Unconstrain {
        target: Target,
    },
    /// As [`Command::Constrain`], several in one act.
    Bind {
        constraints: Vec<Constraint>,
    },
    /// As [`Command::Unconstrain`], several in one act.
    Lift {
        targets: Vec<Target>,
    },
    /// How much the units of a group matter, as a `Units` on the feed.
    Units {
        group: String,
    },
    /// What a round's model answers otherwise than the original, as a `Changed` on the feed.
    Changed {
        what: WhatChanged,
    },
    /// What the original and a round's model make of each token of a text, as `Tokens` on the feed.
    Tokens {
        what: WhatTokens,
    },
    /// What rounding to each precision does to a layer's weights, as a `Rounding` on the feed.
    Rounding {
        layer: String,
    },
    /// What flows into a layer, and what each precision makes of its output, as an `Activations` on the feed. Runs the model: not beside a job.
    Activations {
        layer: String,
    },
    /// Makes what agents read in a note the engineer's own constraints, or lets it go.
    Confirm {
        take: bool,
    },
    Undo,
    Redo,
    /// Brings back what was decided, proposed and in force after event `seq` of the journal, in one act; what gives way is kept as a plan.
    Restore {
        seq: Seq,
    },
    /// Build what a run would build and try it on held-back calibration images; where that was tried, or nothing is approved, what is shown.
    Rehearse,
    /// Build other plans for the same budget and try them on held-back calibration images.
    Search,
    /// Find the decision of the approved plan, else of what is shown, that costs most: by trying it without parts of it.
    Bisect,
    /// A program outside proposes; what it says is checked as what agents say, and waits for the engineer.
    Offer {
        offer: Offer,
    },
    /// A program outside has `actions` built and tried on held-back calibration images; where that was done before, nothing happens.
    Try {
        actions: Vec<(Target, Action)>,
        by: String,
    },
    /// A program outside asks the engineer, who answers with a note.
    Ask {
        question: String,
        by: String,
    },
    /// A program outside looked at something, in words: told to whoever watches, and kept nowhere.
    Looked {
        at: String,
        by: String,
    },
    /// Makes levels of the model in force and a controller for `target` of its time a token, where there are none yet, and decodes with
    /// them until it is stopped. `None` stops it.
    Control {
        target: Option<f64>,
    },
    /// What that decodes at from the next token on.
    Level {
        asked: Asked,
    },
    /// How runs from here on heal what they made; `None`: not at all.
    Heal {
        heal: Option<Heal>,
    },
    /// Whether evaluations of rounds from here on end when it is clear whether the budget's `drop` is kept.
    UntilClear {
        on: bool,
    },
    /// Compress with all approved decisions, then evaluate.
    Run,
    /// Evaluate the round that waits for its verdict on all of the data, where that was ended before.
    EvaluateAll,
    Accept,
    RollBack {
        reason: String,
    },
    /// Writes the model of the last accepted (or else last applied) round. `path` empty: a default name.
    Export {
        path: String,
        format: String,
    },
    /// Interrupts the running agent, profile, sensitivity or compress job.
    Cancel,
    SetLlm {
        base_url: Option<String>,
        model: Option<String>,
    },
    /// Whom a role is answered by; `None`: whom the others are.
    SetRole {
        role: String,
        by: Option<Answers>,
    },
    /// How much agents may look up while they are asked.
    SetLooks {
        looks: Looks,
    },
    /// What agents may take of a server in one proposal.
    SetLimits {
        limits: Limits,
    },
    /// How often agents are asked by themselves, each time with what came of their plan: 1 is to propose once.
    SetTurns {
        turns: usize,
    },
    TakePen,
    /// Ends the host.
    Stop,
}

/// Decisions of a program outside.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Offer {
    /// Targets, actions and the reason of each.
    pub decisions: Vec<(Target, Action, String)>,
    pub summary: String,
    /// What is expected of the whole plan: change of the metric as it is shown.
    #[serde(default)]
    pub expects: Option<f64>,
    /// Whose they are. The host writes the name that the client greeted with.
    #[serde(default)]
    pub by: String,
}

impl Command {
    /// Whether it is only for the client with the pen. What a program outside may do changes nothing that the engineer decided.
    pub fn needs_pen(&self) -> bool {
        !matches!(
            self,
            Command::TakePen
                | Command::Units { .. }
                | Command::Changed { .. }
                | Command::Tokens { .. }
                | Command::Rounding { .. }
                | Command::Activations { .. }
                | Command::Offer { .. }
                | Command::Try { .. }
                | Command::Ask { .. }
                | Command::Looked { .. }
        )
    }

    /// The same under the name of the client that sends it.
    pub fn signed(mut self, name: &str) -> Command {
        match &mut self {
            Command::Offer { offer: Offer { by, .. } }
            | Command::Try { by, .. }
            | Command::Ask { by, .. }
            | Command::Looked { by, .. } => name.clone_into(by),
            _ => {}
        }
        self
    }
}

/// Client → host.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "msg")]
pub enum ClientMsg {
    /// First message. A watcher (`watch`) never gets the pen by itself.
    Hello {
        protocol: u32,
        client: String,
        watch: bool,
    },
    Command {
        id: u64,
        command: Command,
    },
}

/// Host → client. `Welcome` first; then events in order without gaps; feed messages may be dropped or merged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "msg")]
pub enum HostMsg {
    Welcome { protocol: u32, state: Box<State>, you: u64, pen: Option<u64> },
    Refused { message: String },
    Event { record: Box<Record> },
    Feed { feed: Feed },
    Reply { id: u64, result: Result<(), String> },
    Pen { holder: Option<u64>, holder_name: String },
    Bye { reason: String },
}
