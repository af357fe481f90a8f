//! Forecasts while a ratio is dragged: a hold on `plan`'s forecaster, made anew when its tables change.

use super::outlook::{Expected, summed};
use super::table::shown_round;
use crate::plan::{Action, Decision, Estimate, Forecast, Forecaster, PlanForecast, RowForecast, Target};
use crate::session::State;
use std::borrow::Cow;
use std::cell::RefCell;
use std::rc::Rc;

/// Plans whose forecasts are kept: what is shown and that without the row under the cursor, of before and after a step.
const KEPT: usize = 4;

/// What a plan makes of each row of the original; `None` where that is not known.
pub type Rows = Option<Rc<[RowForecast]>>;

#[derive(Default)]
pub struct Forecasts {
    forecaster: Option<Forecaster>,
    /// What was worked out since the tables changed, the newest last: a step through the rows changes no plan, and a drag only one of two.
    plans: RefCell<Vec<(Vec<Decision>, Expected)>>,
    rows: RefCell<Option<(Vec<Decision>, Rows)>>,
}

impl Forecasts {
    /// Takes the tables of the original model: every decision is relative to it.
    pub fn rebuild(&mut self, state: &State) {
        *self = Forecasts { forecaster: state.forecaster(), ..Forecasts::default() };
    }

    /// What `decisions` are expected to do without the rest of the plan; what their author forecast when there is no
    /// profile here and it is one.
    pub fn together(&self, state: &State, decisions: &[Decision]) -> Option<Forecast> {
        match &self.forecaster {
            Some(f) => {
                let all = all_resolved(state, decisions);
                let mut forecast = planned(f, &all).forecast;
                if let Some((change, touched)) = in_the_rows_shown(f, state, &all) {
                    (forecast.d_latency_ms, forecast.touched_ms) = (change, touched);
                }
                Some(forecast)
            }
            None => decisions.first().filter(|_| decisions.len() == 1).and_then(|d| d.forecast),
        }
    }

    /// What `decisions` and nothing else would change of the original, whatever has been built since.
    pub fn alone(&self, state: &State, decisions: &[Decision]) -> Option<Forecast> {
        Some(planned(self.forecaster.as_ref()?, &all_resolved(state, decisions)).forecast)
    }

    /// What `decisions` together change of the metric by scans alone, so that two plans can be told apart by what differs in them.
    pub fn scanned(&self, state: &State, decisions: &[Decision]) -> Option<f64> {
        let all: Vec<(Target, Action)> = decisions.iter().map(|d| resolved(state, d).planned()).collect();
        self.forecaster.as_ref()?.by_scans(&all)
    }

    /// What `decisions`, as many of them as combine, make of each row of the original.
    pub fn rows(&self, state: &State, decisions: &[Decision]) -> Rows {
        let costs = &self.forecaster.as_ref()?.costs;
        let mut kept = self.rows.borrow_mut();
        if let Some((_, rows)) = kept.as_ref().filter(|(of, _)| of == decisions) {
            return rows.clone();
        }
        let all = decisions.iter().map(|d| resolved(state, d).planned());
        let all: Vec<(Target, Action)> = all.filter(|(_, a)| *a != Action::Keep).collect();
        // Most plans combine as they are.
        let rows = costs.rows(&all).or_else(|_| costs.rows(&costs.combined(all).1)).ok().map(Rc::from);
        *kept = Some((decisions.to_vec(), rows.clone()));
        rows
    }

    /// What is to be said of a cut that makes the model slower; resolved as what it costs is, so that it is worked out once.
    pub fn slower(&self, state: &State, decision: &Decision) -> Option<String> {
        let (target, action) = resolved(state, decision).planned();
        self.forecaster.as_ref()?.costs.slower(&target, &action).map(|s| s.words())
    }

    pub fn plan(&self, state: &State, decisions: &[Decision]) -> Expected {
        let Some(f) = &self.forecaster else { return summed(state, decisions) };
        let mut kept = self.plans.borrow_mut();
        if let Some(at) = kept.iter().position(|(of, _)| of == decisions) {
            let known = kept.remove(at);
            let expected = known.1;
            kept.push(known);
            return expected;
        }
        let p = planned(f, &all_resolved(state, decisions));
        let expected = Expected {
            latency: Some(p.latency),
            macs: Some(p.macs.value),
            memory: Some(p.memory.value),
            params: Some(p.params.value),
            quality: Some(p.quality),
        };
        if kept.len() == KEPT {
            kept.remove(0);
        }
        kept.push((decisions.to_vec(), expected));
        expected
    }
}

/// What `decisions` change in the latency of the rows as they are shown: those of the newest model, which earlier rounds
/// may have made faster already. With what those rows take. `None` where the newest model has them all: then it is what they changed of the original.
fn in_the_rows_shown(f: &Forecaster, state: &State, decisions: &[Cow<'_, Decision>]) -> Option<(Estimate, f64)> {
    let newest = shown_round(state);
    let of = (0..=newest).rev().find(|&r| state.profile_of(r).is_some())?;
    let applied = state.recipe_of(of);
    let from: Vec<(Target, Action)> =
        applied.iter().map(|d| resolved(state, d)).filter(|d| d.action != Action::Keep).map(|d| d.planned()).collect();
    let in_force = |d: &Cow<'_, Decision>| from.iter().any(|(t, a)| *t == d.target && *a == d.action);
    if decisions.iter().all(in_force) {
        return None;
    }
    let mut to: Vec<(Target, Action)> =
        from.iter().filter(|(t, _)| !decisions.iter().any(|d| d.target == *t)).cloned().collect();
    to.extend(decisions.iter().filter(|d| d.action != Action::Keep).map(|d| d.planned()));
    f.costs.latency_over(&from, &to, state.profile_of(of)?)
}

/// With as many kept units as the host will keep; which ones does not matter to a forecast.
fn resolved<'a>(state: &State, d: &'a Decision) -> Cow<'a, Decision> {
    let group = match (&d.action, &d.target) {
        (Action::Prune { kept, .. }, Target::Group(id)) if kept.is_empty() => {
            state.card.as_ref().and_then(|c| c.groups.iter().find(|g| g.id == *id))
        }
        _ => None,
    };
    let Some(group) = group else { return Cow::Borrowed(d) };
    let mut d = d.clone();
    if let Action::Prune { ratio, kept } = &mut d.action {
        kept.extend(0..group.kept_at(*ratio) as u32);
    }
    Cow::Owned(d)
}

fn all_resolved<'a>(state: &State, decisions: &'a [Decision]) -> Vec<Cow<'a, Decision>> {
    decisions.iter().map(|d| resolved(state, d)).collect()
}

fn planned(f: &Forecaster, decisions: &[Cow<'_, Decision>]) -> PlanForecast {
    f.plan(&decisions.iter().map(Cow::as_ref).collect::<Vec<_>>())
}
