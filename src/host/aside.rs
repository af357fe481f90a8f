//! What is looked up beside whatever runs, without a job: which that is, and the feed that answers it, whether a host is asked or a picture is
//! drawn.
//!
//! Not here: threads and how many (`core`), what is worked out (`compute`). Invariant: what cannot be told is answered too, with why.

use super::engine::{JobError, Work};
use crate::session::{Activations, Changed, Command, Feed, State, Tokens, WhatChanged, WhatTokens};

/// See the file's head.
#[derive(Debug, Clone, PartialEq)]
pub enum Aside {
    /// What a round's model answers otherwise than the original.
    Changed(WhatChanged),
    /// What the original and a round's model make of each token of a text.
    Tokens(WhatTokens),
    /// What each precision does to a layer's weights.
    Rounding(String),
    /// What flows into a layer, and what each precision makes of its output.
    Activations(String),
}

impl Aside {
    /// What `command` asks for; `None` where it asks for something else.
    pub fn of(command: &Command) -> Option<Aside> {
        match command {
            Command::Changed { what } => Some(Aside::Changed(*what)),
            Command::Tokens { what } => Some(Aside::Tokens(*what)),
            Command::Rounding { layer } => Some(Aside::Rounding(layer.clone())),
            Command::Activations { layer } => Some(Aside::Activations(layer.clone())),
            _ => None,
        }
    }

    /// Looks it up.
    pub fn told(self, work: Result<&dyn Work, JobError>, state: &State) -> Feed {
        match self {
            Aside::Changed(what) => {
                let found = work.and_then(|work| work.changed(state, what));
                Feed::Changed(Box::new(found.unwrap_or_else(|e| Changed::untold(what, e.to_string()))))
            }
            Aside::Tokens(what) => {
                let found = work.and_then(|work| work.tokens(state, what));
                Feed::Tokens(Box::new(found.unwrap_or_else(|e| Tokens::untold(what, e.to_string()))))
            }
            Aside::Rounding(layer) => match work.and_then(|work| work.rounding(&layer)) {
                Ok(errors) => Feed::Rounding { layer, errors },
                Err(e) => Feed::warn(e.to_string()),
            },
            Aside::Activations(layer) => {
                let found = work.and_then(|work| work.activations(&layer));
                Feed::Activations { layer, found: Box::new(Activations::of(found)) }
            }
        }
    }
}
