//! The agents' roles: who speaks in a session, what each is told and what it may decide. A role is one row of [`ROLES`]
//! and one file in `prompts/`.
//!
//! Not here: what a table holds (`agent::context`), how a proposal is read (`agent::validate`).

use crate::plan::TargetKind;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What agents are asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Proposals for the round to come.
    Propose,
    /// What to make of the round that was just measured.
    Evaluate,
}

/// A table of facts about the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    Layers,
    Groups,
    Blocks,
    Precisions,
}

/// How much of the room for a role's tables one of them gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Share {
    /// One part of so many.
    Part(usize),
    /// All of it, at most so many characters.
    Most(usize),
    /// What the others leave.
    Rest,
}

/// A part of the pipeline.
#[derive(Debug)]
pub struct Role {
    pub name: &'static str,
    /// Where there is little room for the name.
    pub short: &'static str,
    /// When it speaks.
    pub task: Ask,
    /// What it is asked; `{{context}}` stands for what it reads, `{{critique}}` for forecast against measurement, and the
    /// name of a role that spoke before it for what that one said or proposed.
    pub prompt: &'static str,
    /// The tables that it is told, in order.
    pub reads: &'static [(Table, Share)],
    /// What it may decide on. Its answer must hold a proposal, unless that is nothing.
    pub writes: &'static [TargetKind],
}

/// How much agents may look up while they are asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Looks {
    /// Calls of a role in one turn; none: what they know is what the prompt tells them.
    pub calls: usize,
    /// Plans that all roles of a proposal together may have built and tried.
    pub rehearsals: usize,
    /// How often they are asked, each time with what came of the plan before: 1 is to propose once.
    #[serde(default = "once")]
    pub turns: usize,
    /// What they may have measured; with none, the role that asks for measurements is not asked unless it is named.
    #[serde(default)]
    pub measurements: usize,
    #[serde(default)]
    pub form: Form,
}

/// When a server is asked for an answer in the proposal's own form, by its JSON schema, in the place of words with a fenced block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Form {
    Never,
    /// When a first proposal was broken.
    #[default]
    Repair,
    /// Nothing can be looked up then: servers hold an answer to a form or let it call.
    Always,
}

impl Form {
    pub const WORDS: &'static [&'static str] = &["never", "repair", "always"];

    pub fn parse(word: &str) -> Option<Form> {
        let at = Form::WORDS.iter().position(|w| *w == word)?;
        [Form::Never, Form::Repair, Form::Always].get(at).copied()
    }
}

fn once() -> usize {
    1
}

/// Turns of agents that go on by themselves, unless told otherwise, and at most.
pub const USUAL_TURNS: usize = 4;
pub const MOST_TURNS: usize = 20;

/// The most of either.
pub const MOST_LOOKS: usize = 200;

impl Default for Looks {
    fn default() -> Looks {
        Looks { calls: 12, rehearsals: 2, turns: 1, measurements: 0, form: Form::default() }
    }
}

/// Whom one role is answered by, where not by whom the others are.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answers {
    /// The built-in planner.
    Planner,
    /// A model, where the others are or elsewhere.
    Model { model: String, base_url: Option<String> },
}

impl Role {
    /// The role called `name`.
    ///
    /// # Errors
    /// In words.
    pub fn called(name: &str) -> Result<&'static Role, String> {
        let names = || ROLES.iter().map(|r| r.name).collect::<Vec<_>>().join(", ");
        ROLES.iter().find(|r| r.name == name).ok_or_else(|| format!("no role `{name}`; hint: {}", names()))
    }
}

/// The role that asks for measurements.
pub const PROFILING: &str = "profiling";

/// In the order in which they speak.
pub static ROLES: [Role; 5] = [
    Role {
        name: PROFILING,
        short: "profile",
        task: Ask::Propose,
        prompt: include_str!("../../prompts/profiling.md"),
        reads: &[(Table::Layers, Share::Part(2)), (Table::Groups, Share::Part(3))],
        writes: &[],
    },
    Role {
        name: "analysis",
        short: "analysis",
        task: Ask::Propose,
        prompt: include_str!("../../prompts/analysis.md"),
        reads: &[(Table::Layers, Share::Part(2)), (Table::Groups, Share::Part(2))],
        writes: &[],
    },
    Role {
        name: "pruning",
        short: "pruning",
        task: Ask::Propose,
        prompt: include_str!("../../prompts/pruning.md"),
        reads: &[(Table::Groups, Share::Rest), (Table::Blocks, Share::Part(4))],
        writes: &[TargetKind::Group, TargetKind::Block, TargetKind::Weights],
    },
    Role {
        name: "quantization",
        short: "quant",
        task: Ask::Propose,
        prompt: include_str!("../../prompts/quantization.md"),
        reads: &[(Table::Precisions, Share::Rest)],
        writes: &[TargetKind::Layer],
    },
    Role {
        name: "evaluation",
        short: "eval",
        task: Ask::Evaluate,
        prompt: include_str!("../../prompts/evaluation.md"),
        reads: &[(Table::Layers, Share::Most(6_000))],
        writes: &[],
    },
];

/// Who puts a question to the engineer, in the transcript.
pub const QUESTION: &str = "question";

/// A program that looks at the session from outside and may propose on everything; it is asked for nothing.
pub static OUTSIDE: Role = Role {
    name: "outside",
    short: "outside",
    task: Ask::Propose,
    prompt: "",
    reads: &[],
    writes: &[TargetKind::Group, TargetKind::Block, TargetKind::Weights, TargetKind::Layer],
};

impl PartialEq for Role {
    fn eq(&self, other: &Role) -> bool {
        self.name == other.name
    }
}

impl Role {
    /// Whether its answer must hold a proposal.
    pub fn proposes(&self) -> bool {
        !self.writes.is_empty()
    }

    pub fn may(&self, kind: TargetKind) -> bool {
        self.writes.contains(&kind)
    }

    /// Whether it may have something measured.
    pub fn measures(&self) -> bool {
        self.name == PROFILING
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}
