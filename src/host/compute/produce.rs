//! Making compressed models: always from the original, by the session's recipe.

use super::{Compute, JobError};
use crate::host::engine::Job;
use crate::model::export;
use crate::model::{Model, ModelError};
use crate::plan::{Action, Target, plan_key};
use crate::recover::{self, RepairOptions, RepairStep, RepairUpdate, RepairUse};
use crate::session::{Built, Event, Feed, State};
use crate::train::Course;
use std::path::Path;

/// An artifact could not be made.
#[derive(Debug, thiserror::Error)]
enum PutError {
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("cannot write the compressed model: {0}; hint: is there space left? the session is unchanged")]
    Io(#[from] std::io::Error),
}

/// Actions as the manifest keeps them, and as they are applied: in the targets' order, whoever decided when, so that
/// equal plans give equal files.
pub(super) fn in_order(mut actions: Vec<(Target, Action)>) -> Vec<(Target, Action)> {
    actions.retain(|(_, a)| *a != Action::Keep);
    actions.sort_by(|a, b| a.0.cmp(&b.0));
    actions
}

impl Compute {
    /// Compresses the original by the recipe of `round`, and stores the result: a function of that recipe, so the artifact
    /// says nothing of who decided what and when. What was built ahead of exactly this plan is taken as it is.
    pub(super) fn make_model(&self, state: &State, round: u32, job: &Job) -> Result<Built, JobError> {
        let actions = in_order(state.actions_of(round));
        if let Some(built) = self.built(state, &actions) {
            let steps = built.repairs.iter().map(|step| Event::Repaired { round, step: step.clone() });
            job.events(steps.collect())?;
            return Ok(built.clone());
        }
        if let Some(path) = self.model.params.outdated() {
            let text = format!(
                "`{}` is no longer the file that this session was opened with; what was read of it then is used. To open \
                 the session again, the old file is needed",
                path.display()
            );
            job.say(Feed::warn(text));
        }
        let mut step = |step: &RepairStep| job.event(Event::Repaired { round, step: step.clone() });
        Ok(self.build_to_keep(state, &actions, "compress", job, &mut step)?.1)
    }

    /// The model after `actions`, and how it is stored.
    pub(super) fn build_to_keep(
        &self,
        state: &State,
        actions: &[(Target, Action)],
        what: &str,
        job: &Job,
        step: &mut dyn FnMut(&RepairStep) -> Result<(), JobError>,
    ) -> Result<(Model, Built), JobError> {
        let (small, used, repairs) = self.build(actions, &self.shelf.recipe.repair, what, job, step)?;
        self.same_images(state, &used)?;
        let artifact = self.keep(&small, actions, &used, (&repairs, None))?;
        let built = Built { key: plan_key(actions), artifact, model_hash: small.params.hash(), repairs, used };
        Ok((small, built))
    }

    /// The original after `actions`, repaired, with what that used and its judged steps; progress goes out as `what`,
    /// steps to `step` as they are judged.
    pub(super) fn build(
        &self,
        actions: &[(Target, Action)],
        options: &RepairOptions,
        what: &str,
        job: &Job,
        step: &mut dyn FnMut(&RepairStep) -> Result<(), JobError>,
    ) -> Result<(Model, RepairUse, Vec<RepairStep>), JobError> {
        let (mut used, mut steps) = (RepairUse::default(), Vec::new());
        let mut failed = None;
        let model = recover::compress(
            &self.model,
            &self.desk.groups,
            actions,
            &self.calib,
            options,
            job.cancel(),
            &mut |update| match update {
                RepairUpdate::Progress { done, total, what: label } => job.progress(what, &label, done, total),
                RepairUpdate::Step(judged) => {
                    if failed.is_none()
                        && let Err(e) = step(&judged)
                    {
                        failed = Some(e);
                        job.cancel().cancel();
                    }
                    steps.push(judged);
                }
                RepairUpdate::Used(u) => used = u,
            },
        )
        .map_err(|e| failed.take().unwrap_or_else(|| e.into()))?;
        job.cancel().check()?;
        if let Some(words) = recover::stayed_whole(&model.graph, actions) {
            job.say(Feed::warn(&words));
        }
        // What was cut out of other weights must not be tried, kept or shown.
        self.model.params.still(&self.model.info.hash).map_err(JobError::of)?;
        Ok((model, used, steps))
    }

    /// Stores a compressed model with its manifest; returns the artifact's name.
    pub(super) fn keep(
        &self,
        model: &Model,
        actions: &[(Target, Action)],
        used: &RepairUse,
        (steps, course): (&[RepairStep], Option<&Course>),
    ) -> Result<String, JobError> {
        let manifest = self.shelf.manifest(actions, used, (steps, course));
        let put = |path: &Path| export::safetensors(path, model, &manifest).map(drop).map_err(PutError::from);
        self.shelf.artifacts.put("safetensors", put).map_err(JobError::of)
    }

    /// The same choice of calibration images must be the same images in every round, or rounds cannot be compared. (What
    /// of a set is not read when it is opened is noticed here.)
    fn same_images(&self, state: &State, used: &RepairUse) -> Result<(), JobError> {
        let alike = |old: &RepairUse| {
            (old.fitted, old.checked, old.ranged) == (used.fitted, used.checked, used.ranged) && old.hash.is_some()
        };
        let old = state.rounds.iter().map(|r| &r.used).find(|old| alike(old));
        if old.is_none_or(|old| used.hash.is_none() || old.hash == used.hash) {
            return Ok(());
        }
        Err(JobError::Failed(format!(
            "the images of calibration data `{}` changed since an earlier round; hint: put the old data back, or open a \
             new session with `--name`",
            self.shelf.recipe.calib.spec
        )))
    }
}
