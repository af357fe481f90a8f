//! Controllers: levels of one language model that share its weights and its keys and values, and a policy that chooses one of them for every
//! token from what is known before the token is computed.
//!
//! `ladder` is what levels are, `search` measures which MLPs they lose, `fits` makes up for it in what reads them, `trace` what each level does on text, `signals` what a choice is made
//! from, `policy` the choice, `make` what one is learnt from, `learn` how, `trial` how it is held against fixed levels on whole texts, `live` token by
//! token, `clock` what both say of time, `document` how all of it is kept.
//! Not here: decoding at several levels (`exec::Decoder`), timing levels (`profile::levels`). Invariants: level 0 is the whole network; what a level leaves
//! out, every later one leaves out, and what is left is as the model's file has it but for the layers that read it; attention is in all of them as it is, so that a change of level computes nothing anew; nothing is chosen
//! by what comes later in the text, or by what the whole network would have said.

mod clock;
mod document;
mod error;
mod fits;
mod ladder;
pub mod learn;
mod live;
mod make;
mod policy;
mod search;
mod signals;
mod trace;
mod trial;

pub use clock::Clock;
pub use document::{CONTROL, Control, Origin, parse, read, write};
pub use error::{ControlError, Result};
pub use fits::Fits;
pub use ladder::{Branch, Ladder, Level, branches, level_model, level_models};
pub use learn::Learner;
pub use live::{Figures, Live, Regret, Side};
pub use make::{FEWEST_WINDOWS, Made, Making, Stage, make};
pub use policy::{Asked, Controller, Pilot, Policy, Wish};
pub use search::{SearchOptions, Tried, search};
pub use signals::{Known, SIGNALS, Signals, Table};
pub use trace::{Row, Trace, trace};
pub use trial::{Arm, Outcome, Point, Run, Versus, against_fixed, trial};
