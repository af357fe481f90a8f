//! Sessions: events, the state folded from them, commands, the journal and content-addressed artifacts.
//!
//! Plain data and storage only: no tensors, no tokio. Invariant: `State` = fold of [`Event`]s in sequence order; the
//! ephemeral [`Feed`] never changes it.

mod artifacts;
mod calibration;
mod changed;
mod command;
mod event;
mod feed;
mod fold;
mod forecast;
mod inforce;
mod journal;
pub mod ledger;
mod levels;
mod limits;
mod machine;
mod names;
pub mod place;
mod plans;
pub(crate) mod private;
mod recipe;
mod role;
mod state;
mod text;
mod tokens;
mod wal;

pub use artifacts::Artifacts;
pub use calibration::{Bin, Calibration, Reliability};
pub use changed::{Answer, Changed, Item, Leads, PAGE, Picture, Taken, Way, WhatChanged};
pub use command::*;
pub use event::*;
pub use feed::*;
pub use inforce::{Planned, Standing};
pub use journal::{Journal, JournalError, Opened, is_locked, lock_holder};
pub use ledger::{Claim, Entry, Rival, Standings};
pub use levels::{Controlled, LevelMade};
pub use limits::{Limits, Prices, Spent};
pub use machine::Machine;
pub use names::as_filed;
pub use place::Place;
pub use plans::{Difference, KeptPlan, MOST_PLANS, OtherPlan, PLAN_NAME, differences};
pub use recipe::{Images, Opening, Recipe, WINDOW};
pub use role::{
    Answers, Ask, Form, Looks, MOST_LOOKS, MOST_TURNS, OUTSIDE, PROFILING, QUESTION, ROLES, Role, Share, Table,
    USUAL_TURNS,
};
pub use state::*;
pub use text::{action as action_text, apart, describe, doubts, part, passed_over};
pub use tokens::{Guess, Token, Tokens, WhatTokens};
