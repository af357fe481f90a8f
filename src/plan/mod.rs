//! Decisions, constraints, budgets, forecasts and the built-in planner.
//!
//! The data types are plain and shared with sessions, agents and screens; `forecast` is a pure function of tables, so
//! that a screen may call it while a ratio is dragged.

mod budget;
mod decision;

pub use budget::*;
pub use decision::*;
