//! The screen: a pure client of a session's host.
//!
//! Data flows one way: input and host messages change [`App`] and yield [`Effect`]s; [`App::settle`] brings derived data
//! up to date; [`draw`] only reads. Compute, sockets and tensors are elsewhere. Invariant: what a file, a data set or an
//! agent wrote is made safe before it reaches a cell, and the terminal is restored on every way out.

mod app;
mod arrange;
mod banner;
mod blocks;
mod clipboard;
mod columns;
mod command_line;
mod complete;
mod constrain;
mod decide;
mod dialogs;
mod draw;
mod entered;
mod evaluate;
mod explain;
mod forecast;
mod glossary;
mod heard;
mod history;
mod icicle;
mod inspect;
mod layout;
mod list;
mod many;
mod markdown;
mod modal;
mod mouse;
mod num;
mod outlook;
mod palette;
mod picker;
pub mod picture;
mod pictures;
mod pin;
mod plans;
mod profile;
mod readings;
pub mod report;
mod roundings;
mod runtime;
mod seek;
mod select;
mod sent;
mod standing;
mod stream;
mod table;
mod term;
mod timeline;
mod tokens;
mod update;
mod vitals;
mod weights;
mod working;
mod yank;

pub use app::{App, Draft, Effect, Exit, Level, Pane, Sent, Shown, View};
pub use draw::{draw, draw_on};
pub use layout::Shares;
pub use list::RowRef;
pub use num::moment;
pub use palette::Palette;
pub use profile::Page;
pub use report::markdown;
pub use runtime::{TuiError, paint, run};
pub use update::UserInput;
