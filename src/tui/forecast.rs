//! Forecasts while a ratio is dragged: a thin hold on `plan`'s forecaster, rebuilt when tables change.

use super::outlook::{Expected, summed};
use crate::plan::{Decision, Forecast};
use crate::session::State;

#[derive(Default)]
pub struct Forecasts {}

impl Forecasts {
    pub fn rebuild(&mut self, _state: &State) {}

    /// What one decision is expected to do.
    pub fn decision(&self, d: &Decision) -> Option<Forecast> {
        d.forecast
    }

    pub fn plan(&self, state: &State, decisions: &[&Decision]) -> Expected {
        summed(state, decisions)
    }
}
