//! Decisions, constraints, budgets, forecasts, what activations take over a run, and the built-in planner.
//!
//! The data types are plain and shared with sessions, agents and screens; [`Forecaster`] is a pure function of tables,
//! so that a screen may call it while a ratio is dragged. No tensor is touched here.

mod bisect;
mod bits;
mod bounds;
mod budget;
mod check;
mod choices;
mod cost;
mod curve;
mod cuts;
mod decision;
mod forecast;
mod liveness;
pub mod planner;
mod quality;
#[cfg(test)]
pub(crate) mod testing;
mod trial;
mod verdict;

pub use bisect::{Bisect, Found, Step};
pub use bits::{Chosen, Weight, allocate};
pub use bounds::{common, follows, strength, tied, ties, unmet};
pub use budget::*;
pub use check::{PlanError, check, keeps_f32, least_ratio, max_ratio, refusal};
pub use cost::{Cost, Costs, RowForecast, Slower};
pub use curve::Curve;
pub use cuts::{Cuts, by_influence, joint, most};
pub use decision::*;
pub use forecast::{BudgetLine, Forecaster, PlanForecast};
pub use liveness::{Held, Liveness};
pub use quality::{Basis, COVERAGE, MEASURED_Z, PastRound, Quality, QualityInput};
pub use trial::{Trial, Trials, plan_key, same_plan};
pub use verdict::{Measured, verdict};
