//! Healing for the host: what a run made is trained towards the original's answers before it is judged.
//!
//! Invariants: evaluation and held-back images have no part in it; what a kill leaves is gone on with by the next run of the same plan.

use super::produce::in_order;
use super::{Compute, JobError};
use crate::host::engine::Job;
use crate::plan::{Action, plan_key};
use crate::recover;
use crate::session::{Built, Event, Feed, State};
use crate::train::{self, Course, Heal, HealUpdate, Keep, Patient, TrainError};
use std::collections::BTreeSet;

/// The checkpoint's name in the session's folder.
const CHECKPOINT: &str = "healing.safetensors";

impl Compute {
    /// See [`crate::host::engine::Work::heal`].
    pub(super) fn heal_built(
        &self,
        state: &State,
        round: u32,
        heal: Heal,
        made: &Built,
        job: &Job,
    ) -> Result<Built, JobError> {
        let actions = in_order(state.actions_of(round));
        let key = plan_key(&actions);
        let student = self.shelf.artifact(&made.artifact)?;
        let masked: BTreeSet<String> = actions
            .iter()
            .filter(|(_, action)| matches!(action, Action::Sparsify { .. }))
            .map(|(target, _)| target.name().to_owned())
            .collect();
        // Those that judged repairs were not fitted on: before any step they are as new as after the last.
        let judges = self.calib.pick(&recover::judging(self.calib.len(), &self.shelf.recipe.repair));
        let images = self.images.without(&judges);
        let held_back: Vec<usize> = (0..judges.len()).collect();
        let fit: Vec<usize> = (0..images.len()).collect();
        let patient = Patient {
            student: &student,
            teacher: &self.model,
            masked: &masked,
            images: &images,
            fit: &fit,
            judges: &judges,
            held_back: &held_back,
        };
        let begun = state.healing.as_ref().filter(|b| b.key == key && b.heal == heal);
        let healing = match begun {
            Some(begun) => begun.healing.clone(),
            None => {
                job.progress("healing", "steps that fit", 0, 1);
                let mut how = train::usual(&student, 1, self.shelf.recipe.seed());
                how.objective = heal.objective;
                let steps = train::steps(patient, &how, heal.length, job.cancel()).map_err(of)?;
                how.lasting(steps)
            }
        };
        // Before anybody is told that it began: who then says that it is enough means this healing.
        let enough = job.dial().may_end();
        if begun.is_none() {
            job.event(Event::HealingBegun { round, heal, key: key.clone(), healing: Box::new(healing.clone()) })?;
        }
        let checkpoint = self.shelf.place.dir.join(CHECKPOINT);
        let (mut last, mut looks, mut pulse) = ((0, 0.0), Vec::new(), None);
        let (images, back) = (fit.len() as u64, held_back.len() as u64);
        let mut say = |update| match update {
            HealUpdate::Step { step, steps, loss, .. } => {
                last = (step, loss);
                job.progress("healing", &format!("steps, loss {loss:.3}"), step as usize, steps as usize);
            }
            HealUpdate::Layers { step, layers } => {
                job.pulse(step, layers.clone());
                pulse = Some(layers);
            }
            HealUpdate::Warned(words) => job.say(Feed::warn(words)),
            HealUpdate::Resumed { step, looks: seen } => {
                looks = seen;
                job.say(Feed::Log { level: "info".to_owned(), text: format!("healing goes on after step {step}") });
            }
            HealUpdate::Judged(look) => {
                looks.push(look);
                let best = looks.iter().copied().reduce(|a, b| if b.loss < a.loss { b } else { a }).unwrap_or(look);
                let (healing, looks) = (healing.clone(), looks.clone());
                job.healing(last.0, last.1, Course { healing, images, held_back: back, looks, best });
            }
        };
        let keep = Some(Keep::at(&checkpoint));
        let healed = train::heal(patient, &healing, keep, &enough, job.cancel(), &mut say);
        job.dial().must_end();
        let healed = healed.map_err(of)?;
        self.model.params.still(&self.model.info.hash).map_err(JobError::of)?;
        let artifact = self.keep(&healed.model, &actions, &made.used, (&made.repairs, Some(&healed.course)))?;
        let layers = pulse.map_or_else(Vec::new, |layers| layers.to_vec());
        job.event(Event::Healed { round, course: Box::new(healed.course), layers })?;
        drop(std::fs::remove_file(checkpoint));
        Ok(Built { artifact, model_hash: healed.model.params.hash(), ..made.clone() })
    }
}

fn of(e: TrainError) -> JobError {
    match e {
        TrainError::Cancelled(_) => JobError::Cancelled,
        e => JobError::of(e),
    }
}
