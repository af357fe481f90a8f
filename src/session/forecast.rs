//! The one forecaster of a session: what planner, card, header, agents, critic and headless runs ask.
//!
//! Invariant: whoever forecasts from the same state gets the same figures, with everything learnt from trials and, unless
//! the session plans blind, from earlier rounds.

use super::State;
use crate::plan::planner::PastRound;
use crate::plan::{Action, Forecaster, Observed, Quality, QualityInput, Target};
use crate::task::Metric;

/// 97.5 % point of the standard normal distribution: verdicts carry 95 % intervals.
const Z95: f64 = 1.96;

impl State {
    /// Forecasts from what the session has measured so far; `None` before the original is profiled.
    pub fn forecaster(&self) -> Option<Forecaster> {
        let card = self.card.as_ref()?;
        let plain = Forecaster::new(&card.graph, &card.groups, self.profile_of(0)?, &self.ladders, &self.sensitivity);
        Some(plain.with_quality(self.quality_input()).learning_latency(&self.past_rounds()))
    }

    /// What forecasts of quality rest on besides the sensitivities. Of the evaluation data a blind session uses the
    /// original's error alone.
    pub fn quality_input(&self) -> QualityInput {
        let card = self.card.as_ref();
        let observed = |number: u32| -> Option<Observed> {
            let v = self.round_at(number)?.verdict.as_ref()?;
            let sd = (v.d_quality_high - v.d_quality_low) / (2.0 * Z95);
            Some(Observed { actions: self.actions_of(number), d_quality: v.d_quality, sd })
        };
        let blind = self.is_blind();
        QualityInput {
            trials: self.trials.clone(),
            observed: if blind { Vec::new() } else { self.measured_rounds().filter_map(observed).collect() },
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

    /// Earlier rounds for the planner, oldest first; none in a blind session.
    pub fn past_rounds(&self) -> Vec<PastRound> {
        if self.is_blind() {
            return Vec::new();
        }
        let of = |number: u32| -> Option<PastRound> {
            let round = self.round_at(number)?;
            let (evaluation, verdict) = (round.evaluation.as_ref()?, round.verdict.as_ref()?);
            Some(PastRound {
                round: number,
                actions: self.actions_of(number),
                // What is in doubt teaches nothing.
                latency: evaluation.latency().filter(|_| evaluation.doubt.is_none()).map_or(f64::NAN, |l| l.value),
                d_quality: verdict.d_quality,
            })
        };
        self.measured_rounds().filter_map(of).collect()
    }

    fn measured_rounds(&self) -> impl Iterator<Item = u32> + '_ {
        self.rounds.iter().skip(1).filter(|r| r.verdict.is_some()).map(|r| r.number)
    }

    /// What `R` would build now, as actions.
    pub fn recipe_actions(&self) -> Vec<(Target, Action)> {
        self.recipe().into_iter().map(|d| (d.target.clone(), d.action.clone())).collect()
    }

    /// What would be built if every open proposal were approved, too.
    pub fn shown_actions(&self) -> Vec<(Target, Action)> {
        self.if_approved().into_iter().map(|d| (d.target.clone(), d.action.clone())).collect()
    }

    /// The plan to rehearse next: what is shown, then what `R` would build if that is another; `None` when both were
    /// tried, nothing would change, or units are still to be chosen.
    pub fn to_rehearse(&self) -> Option<Vec<(Target, Action)>> {
        let ready = |a: &Vec<(Target, Action)>| {
            let open = |(_, a): &(Target, Action)| matches!(a, Action::Prune { kept, .. } if kept.is_empty());
            a.iter().any(|(_, a)| *a != Action::Keep) && !a.iter().any(open) && self.trials.of(a).is_none()
        };
        [self.shown_actions(), self.recipe_actions()].into_iter().find(ready)
    }

    /// The forecast of what `R` would build now.
    pub fn run_forecast(&self) -> Option<Quality> {
        Some(self.forecaster()?.actions(&self.recipe_actions()).quality)
    }
}
