//! Trials for the host: anchors after the sensitivity scan, and rehearsals of the plan on the screen.
//!
//! Invariants: what is rehearsed is built exactly as a run builds it, and a run of the same plan takes what was built;
//! held-back images serve trials and nothing else.

use super::produce::in_order;
use super::propose::proposal_now;
use super::{Compute, JobError, lock};
use crate::eval::{EvalError, Margins, TrialOptions, TrialOutcome, Trials};
use crate::exec::Plan;
use crate::host::desk::Desk;
use crate::host::engine::Job;
use crate::plan::planner;
use crate::plan::{Action, BudgetLine, Target, Trial, plan_key};
use crate::recover::RepairOptions;
use crate::session::{Built, Evaluation, Event, State};
use crate::words::counted;
use std::sync::Arc;

/// MACs that fitting one anchor may take about: large networks are repaired on fewer images for it.
const ANCHOR_WORK: f64 = 3e12;
/// Fewest images an anchor is repaired on.
const ANCHOR_IMAGES: usize = 256;
/// Factors that are this near are one.
const NEAR: f64 = 1e-3;

impl Compute {
    /// The held-back images with the views on which the original errs as on new ones; found once, and found again after
    /// a restart from what the session recorded.
    fn trials(&self, state: &State, job: &Job) -> Result<Option<Arc<Trials>>, JobError> {
        if self.held.is_empty() {
            return Ok(None);
        }
        // Sessions of older versions know the error alone.
        let known = |e: &Evaluation| e.metrics.correct().map(|_| Margins::unknown(1.0 - e.metrics.score));
        let new = state.baseline().and_then(|e| e.margins.clone().or_else(|| known(e)));
        let error = new.as_ref().map(|m| m.error);
        let mut known = lock(&self.trials);
        if let Some(t) = known.as_ref().filter(|t| t.correction().new_error == error) {
            return Ok(Some(t.clone()));
        }
        let mut session = self.compile(&self.model)?.session();
        let prep = &self.model.info.preprocess;
        let mut run = |x: &candle_core::Tensor| -> Result<_, EvalError> { Ok(session.run(x)?) };
        let options = TrialOptions {
            new: new.as_ref(),
            known: state.trials.correction.as_ref(),
            batch: self.working_batch(),
            seed: self.shelf.recipe.seed(),
        };
        let what = format!("views of held-back {}s", self.item());
        let meter = &mut job.meter("trials", &what);
        let made = Trials::prepare(&mut run, &self.held, prep, &options, job.cancel(), meter)?;
        let made = Arc::new(made);
        self.unchanged()?;
        *known = Some(made.clone());
        Ok(Some(made))
    }

    fn try_model(&self, trials: &Trials, plan: &Plan, what: &str, job: &Job) -> Result<TrialOutcome, JobError> {
        let mut session = plan.session();
        let mut run = |x: &candle_core::Tensor| -> Result<_, EvalError> { Ok(session.run(x)?) };
        Ok(trials.run(&mut run, job.cancel(), &mut job.meter(what, &format!("held-back {}s", self.item())))?)
    }

    /// Builds and tries the plans that forecasts are fitted to, those that the session has not.
    pub(super) fn try_anchors(&self, state: &State, job: &Job) -> Result<(), JobError> {
        let Some(trials) = self.trials(state, job)? else {
            let words = format!(
                "{} calibration {}s are too few to hold some back: what a plan costs in accuracy is not forecast",
                self.calib.len(),
                self.item()
            );
            job.say(crate::session::Feed::warn(words));
            return Ok(());
        };
        let (Some(card), Some(profile)) = (state.card.as_ref(), state.profile_of(0)) else { return Ok(()) };
        let anchors = planner::anchors(&card.graph, &card.groups, profile, &state.sensitivity);
        let macs = crate::graph::macs(&self.model.graph).map_err(JobError::of)?;
        let each: f64 = macs.iter().map(|m| (m.conv_linear + m.attention) as f64).sum();
        let usual = self.shelf.recipe.repair.clone();
        let images = usual.images.min(((ANCHOR_WORK / each.max(1.0)) as usize).max(ANCHOR_IMAGES));
        let options = RepairOptions { images, check_images: usual.check_images.min(images / 4), ..usual };
        let total = anchors.len();
        for (done, actions) in anchors.into_iter().enumerate() {
            job.cancel().check()?;
            job.progress("trials", "plans to learn from", done, total);
            let actions = self.with_units(actions);
            // Of precisions a device refuses nothing can be learnt on it.
            if actions.iter().any(|(_, a)| self.desk.refuses(a).is_some()) || job.state()?.trials.of(&actions).is_some()
            {
                continue;
            }
            let (small, _, _) = self.build(&actions, &options, "trials", job, &mut |_| Ok(()))?;
            let outcome = self.try_model(&trials, &self.compile(&small)?, "trials", job)?;
            let trial = Box::new(Trial { key: plan_key(&actions), actions, outcome, anchor: true });
            job.event(Event::Tried { trial, correction: Some(trials.correction().clone()) })?;
        }
        job.progress("trials", "plans to learn from", total, total);
        Ok(())
    }

    /// Cuts with the units that stay, by the session's importance.
    fn with_units(&self, actions: Vec<(Target, Action)>) -> Vec<(Target, Action)> {
        let one = |(target, action): (Target, Action)| match action {
            Action::Prune { ratio, kept } if kept.is_empty() => {
                let kept = self.desk.kept(target.name(), ratio).unwrap_or_default();
                (target, Action::Prune { ratio, kept })
            }
            action => (target, action),
        };
        actions.into_iter().map(one).collect()
    }

    /// Builds a plan as a run would and tries it on the held-back images.
    pub(super) fn rehearse_plan(&self, state: &State, actions: &[(Target, Action)], job: &Job) -> Result<(), JobError> {
        let Some(trials) = self.trials(state, job)? else { return Ok(()) };
        let actions = &in_order(actions.to_vec())[..];
        let small = match self.built(state, actions) {
            Some(built) => self.shelf.artifact(&built.artifact)?,
            None => {
                let (small, built) = self.build_to_keep(state, actions, "rehearsal", job, &mut |_| Ok(()))?;
                self.forget_built(state);
                job.event(Event::Built { built: Box::new(built) })?;
                small
            }
        };
        let outcome = self.try_model(&trials, &self.compile(&small)?, "rehearsal", job)?;
        let trial = Trial { key: plan_key(actions), actions: actions.to_vec(), outcome, anchor: false };
        job.event(Event::Tried { trial: Box::new(trial), correction: Some(trials.correction().clone()) })
    }

    /// Builds and tries the planner's other plans for the budget, and says in its name where one did better than what is shown.
    pub(super) fn search_plans(&self, state: &State, job: &Job) -> Result<(), JobError> {
        let proposal = proposal_now(state, &mut |_| {}).map_err(JobError::Failed)?;
        let shown = state.shown_actions();
        let plans = std::iter::once(proposal.actions).chain(proposal.rivals).map(|plan| self.with_units(plan));
        // What is farther from the budget than what is shown answers another question.
        let forecaster = state.forecaster();
        let short = |plan: &[(Target, Action)]| -> f64 {
            let Some(f) = &forecaster else { return 0.0 };
            f.actions(plan).against(&state.budget).iter().filter(|l| l.is_factor()).map(BudgetLine::beyond).sum()
        };
        let most = short(&shown) + NEAR;
        let plans = plans.filter(|plan| !planner::same_plan(plan, &shown) && short(plan) <= most);
        let plans: Vec<Vec<(Target, Action)>> = plans.collect();
        let new: Vec<_> = plans.iter().filter(|plan| state.trials.of(plan).is_none()).collect();
        if state.trials.of(&shown).is_none() {
            self.rehearse_plan(state, &shown, job)?;
        }
        for (done, plan) in new.iter().enumerate() {
            job.cancel().check()?;
            job.progress("search", "other plans", done, new.len());
            self.rehearse_plan(&*job.state()?, plan, job)?;
        }
        let state = job.state()?;
        let Some(now) = state.trials.of(&shown) else { return Ok(()) };
        let tried = plans.iter().filter_map(|plan| state.trials.of(plan));
        let better = tried.filter_map(|t| planner::beats(&t.outcome, &now.outcome)).reduce(f64::max);
        let metric = state.metric();
        let words = match better {
            // Said again of what was known would be noise.
            _ if new.is_empty() => {
                let words = format!("every other plan that I have for {} was tried before", state.budget);
                job.say(crate::session::Feed::Log { level: "info".to_owned(), text: words });
                return Ok(());
            }
            Some(gained) => format!(
                "I built and tried {} for {} on held-back {}s meanwhile. One does better than what is shown: {}. Ask me again (`L`) and I \
                 propose it.",
                counted(new.len(), "other plan"),
                state.budget,
                metric.item,
                metric.change_words(gained)
            ),
            None => format!(
                "I built and tried {} for {} on held-back {}s meanwhile: none does better than what is shown.",
                counted(new.len(), "other plan"),
                state.budget,
                metric.item
            ),
        };
        let ((), said) = self.planner_says(&state, job, |say| say(&words));
        job.event(said)
    }

    /// What was built ahead of exactly these actions, if it is still there.
    pub(super) fn built<'a>(&self, state: &'a State, actions: &[(Target, Action)]) -> Option<&'a Built> {
        let key = plan_key(actions);
        state.built.iter().rev().find(|b| b.key == key && self.shelf.artifacts.path(&b.artifact).is_some())
    }

    /// Removes the oldest model that was built ahead and that no round took.
    fn forget_built(&self, state: &State) {
        if state.built.len() < State::BUILT {
            return;
        }
        let taken = |b: &&Built| state.rounds.iter().any(|r| r.artifact.as_ref() == Some(&b.artifact));
        if let Some(path) =
            state.built.first().filter(|b| !taken(b)).and_then(|b| self.shelf.artifacts.path(&b.artifact))
        {
            drop(std::fs::remove_file(path));
        }
    }
}
