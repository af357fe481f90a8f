//! Forecasts while a ratio is dragged: a hold on `plan`'s forecaster, made anew when its tables change.

use super::outlook::{Expected, summed};
use crate::plan::{Action, Decision, Forecast, Forecaster, Target};
use crate::session::State;

#[derive(Default)]
pub struct Forecasts {
    forecaster: Option<Forecaster>,
}

impl Forecasts {
    /// Takes the tables of the original model: every decision is relative to it.
    pub fn rebuild(&mut self, state: &State) {
        self.forecaster = state.forecaster();
    }

    /// What `decisions` are expected to do without the rest of the plan; what their author forecast when there is no
    /// profile here and it is one.
    pub fn together(&self, state: &State, decisions: &[&Decision]) -> Option<Forecast> {
        match &self.forecaster {
            Some(f) => {
                let all: Vec<Decision> = decisions.iter().map(|d| resolved(state, d)).collect();
                Some(f.plan(&all.iter().collect::<Vec<_>>()).forecast)
            }
            None => decisions.first().filter(|_| decisions.len() == 1).and_then(|d| d.forecast),
        }
    }

    /// What is to be said of a cut that makes the model slower.
    pub fn slower(&self, target: &Target, action: &Action) -> Option<String> {
        self.forecaster.as_ref()?.slower(target, action).map(|s| s.words())
    }

    pub fn plan(&self, state: &State, decisions: &[&Decision]) -> Expected {
        let Some(f) = &self.forecaster else { return summed(state, decisions) };
        let all: Vec<Decision> = decisions.iter().map(|d| resolved(state, d)).collect();
        let p = f.plan(&all.iter().collect::<Vec<_>>());
        Expected {
            latency: Some(p.latency),
            macs: Some(p.macs.value),
            memory: Some(p.memory.value),
            params: Some(p.params.value),
            quality: Some(p.quality),
        }
    }
}

/// With as many kept units as the host will keep; which ones does not matter to a forecast.
fn resolved(state: &State, d: &Decision) -> Decision {
    let mut d = d.clone();
    if let (Action::Prune { ratio, kept }, Target::Group(id)) = (&mut d.action, &d.target)
        && kept.is_empty()
        && let Some(g) = state.card.as_ref().and_then(|c| c.groups.iter().find(|g| g.id == *id))
    {
        kept.extend(0..g.kept_at(*ratio) as u32);
    }
    d
}
