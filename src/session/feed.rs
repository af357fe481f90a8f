//! The ephemeral feed: bounded, coalesced, latest value wins, never journalled.

use super::changed::Changed;
use super::machine::Machine;
use super::tokens::Tokens;
use crate::control::Figures;
use crate::quant::Precision;
use crate::train::{Course, LayerPulse};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Channel {
    Reasoning,
    Text,
}

/// What [`Progress::job`] says while levels and their controller are made.
pub const MAKING_LEVELS: [&str; 5] = ["levels", "level times", "tokens", "lessons", "controller"];

/// How far long work is.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// `profile`, `sensitivity`, `ladders`, `compress`, `evaluate`, `agents`, `load`.
    pub job: String,
    /// What is being worked on now, e.g. a layer's name.
    pub label: String,
    pub done: u64,
    pub total: u64,
    /// Items a second.
    pub rate: f64,
    pub eta_s: Option<f64>,
}

/// Live figures of one heatmap row while profiling.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LiveRow {
    pub name: String,
    pub p50_ms: f64,
    pub p95_ms: f64,
    pub n: u64,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "feed")]
pub enum Feed {
    /// An agent began to speak.
    Turn {
        role: String,
        model: String,
    },
    /// Text as it arrives; consecutive deltas of one role and channel may be merged.
    Token {
        role: String,
        channel: Channel,
        text: String,
    },
    /// The turn ended (its `Said` event follows or preceded).
    TurnEnd {
        role: String,
    },
    Progress(Progress),
    /// The job is no longer running.
    JobEnd {
        job: String,
    },
    Live {
        runs: u64,
        rows: Vec<LiveRow>,
    },
    /// What the machine does while a job runs.
    Machine(Machine),
    /// How a healing goes: after which step, the loss of that, and the looks so far.
    Healing {
        step: u32,
        loss: f64,
        course: Box<Course>,
    },
    /// What the layers' weights and gradients do in a healing, after which step.
    Pulse {
        step: u32,
        layers: Arc<[LayerPulse]>,
    },
    /// How a controller does beside every fixed level.
    Levels(Box<Figures>),
    /// Whom the session asks to propose: a model and where it is, in words, or the built-in planner.
    Agents {
        at: Option<String>,
        /// How often agents are asked by themselves.
        turns: usize,
        /// What a proposal may take, in words; empty: what it likes.
        #[serde(default)]
        limits: String,
    },
    /// How much the units of a group matter: parts of the most important one's, that one first, thinned where there are many. Empty while it is not
    /// known.
    Units {
        group: String,
        scores: Vec<f32>,
    },
    /// What a round's model answers otherwise than the original, as it was asked.
    Changed(Box<Changed>),
    /// What two models make of each token of a text, as it was asked.
    Tokens(Box<Tokens>),
    /// How far a layer's weights are off in each precision that it can have, rounded to nearest: the root of the squared error as a part of the
    /// weights' own squares. Empty where it has none.
    Rounding {
        layer: String,
        errors: Vec<(Precision, f32)>,
    },
    /// What flows into a layer, as it was asked.
    Activations {
        layer: String,
        found: Box<Activations>,
    },
    /// A line for the log pane.
    Log {
        level: String,
        text: String,
    },
}

impl Feed {
    pub fn warn(text: impl Into<String>) -> Feed {
        Feed::Log { level: "warn".to_owned(), text: text.into() }
    }
}

/// What flows into a layer of the original on calibration items, and how far its output is off where it alone is in a precision.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Activations {
    /// Items that were run, and values that they gave the layer.
    pub items: u64,
    pub values: u64,
    pub lo: f32,
    pub hi: f32,
    /// Part of the values that are exactly zero.
    pub zeros: f32,
    /// Counts between `lo` and `hi`, all equally wide.
    pub bars: Vec<u64>,
    /// √(Σ(y − ŷ)² / Σy²) over the layer's outputs, its weights rounded to nearest and its inputs as the kernel rounds them.
    pub off: Vec<(Precision, f32)>,
    /// Why nothing is known.
    pub why: Option<String>,
}

impl Activations {
    pub fn of(found: Result<Activations, impl std::fmt::Display>) -> Activations {
        found.unwrap_or_else(|e| Activations { why: Some(e.to_string()), ..Activations::default() })
    }
}
