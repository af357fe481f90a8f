//! The one forecaster of a session: what planner, card, header, agents, critic and headless runs ask.
//!
//! Invariant: whoever forecasts from the same state gets the same figures, with everything learnt from trials and, unless
//! the session plans blind, from earlier rounds.

use super::{Round, State};
use crate::plan::{Action, Decision, Forecaster, MEASURED_Z, PastRound, Quality, QualityInput, Target};
use crate::task::Metric;

impl State {
    /// Forecasts from what the session has measured so far; `None` before the original is profiled.
    pub fn forecaster(&self) -> Option<Forecaster> {
        let card = self.card.as_ref()?;
        let plain = Forecaster::new(&card.graph, &card.groups, self.profile_of(0)?, &self.ladders, &self.sensitivity);
        Some(plain.with_quality(self.quality_input()))
    }

    /// What forecasts rest on besides the tables. Of the evaluation data a blind session uses the
    /// original's error alone.
    pub fn quality_input(&self) -> QualityInput {
        let card = self.card.as_ref();
        let judged = |r: &Round| -> Option<PastRound> {
            let (round, v) = (r.number, r.verdict.as_ref()?);
            // What was trained says nothing of what is only cut and re-fitted.
            if r.course.as_ref().is_some_and(|c| c.best.step > 0) {
                return None;
            }
            // What is in doubt teaches nothing.
            let latency = r.evaluation.as_ref().filter(|e| e.doubt.is_none()).and_then(|e| e.latency());
            let latency = latency.map_or(f64::NAN, |l| l.value);
            let sd = (v.d_quality_high - v.d_quality_low) / (2.0 * MEASURED_Z);
            let interval = (v.d_quality_low, v.d_quality_high);
            Some(PastRound { round, actions: self.actions_of(round), latency, d_quality: v.d_quality, sd, interval })
        };
        let blind = self.is_blind();
        QualityInput {
            trials: self.trials.clone(),
            observed: if blind { Vec::new() } else { self.rounds.iter().skip(1).filter_map(judged).collect() },
            metric: self.metric(),
            base: self.baseline().map(|e| e.metrics.score),
            images: card.map_or(0, |c| c.data.images),
        }
    }

    /// What quality is measured by in this session.
    pub fn metric(&self) -> Metric {
        self.card.as_ref().map(|c| c.metric()).unwrap_or_default()
    }

    /// Planning must not look at what was measured on the evaluation data, but for the original's error.
    pub fn is_blind(&self) -> bool {
        self.card.as_ref().and_then(|c| c.recipe.as_ref()).is_some_and(|r| r.how.blind)
    }

    /// What `R` would build now, as actions.
    pub fn recipe_actions(&self) -> Vec<(Target, Action)> {
        self.recipe().into_iter().map(Decision::planned).collect()
    }

    /// What would be built if every open proposal were approved, too.
    pub fn shown_actions(&self) -> Vec<(Target, Action)> {
        self.if_approved().into_iter().map(Decision::planned).collect()
    }

    /// The plan to rehearse next: what is shown, then what `R` would build if that is another; `None` when both were
    /// tried, nothing would change, or units are still to be chosen.
    pub fn to_rehearse(&self) -> Option<Vec<(Target, Action)>> {
        let ready = |a: &Vec<(Target, Action)>| {
            let open = |(_, a): &(Target, Action)| matches!(a, Action::Prune { kept, .. } if kept.is_empty());
            a.iter().any(|(_, a)| *a != Action::Keep) && !a.iter().any(open) && self.trials.of(a).is_none()
        };
        // Last what the planner would do instead, so that both have been seen on the same data.
        let rival = self.rivals.iter().rev().find(|r| r.round == self.round).map(|r| r.actions.clone());
        [self.shown_actions(), self.recipe_actions()].into_iter().chain(rival).find(ready)
    }

    /// Whether other plans for the same budget may be looked for: one is shown, and a factor is asked for.
    pub fn may_search(&self) -> bool {
        self.budget.factors().next().is_some()
            && !self.sensitivity.curves.is_empty()
            && self.shown_actions().iter().any(|(_, action)| *action != Action::Keep)
    }

    /// The forecast of what `R` would build now.
    pub fn run_forecast(&self) -> Option<Quality> {
        Some(self.forecaster()?.actions(&self.recipe_actions()).quality)
    }
}
