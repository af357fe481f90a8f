//! Making and writing compressed models: always from the original, by the session's recipe.

use super::{Compute, JobError};
use crate::host::engine::{Compressed, Exported, Job};
use crate::model::export::{self, Manifest};
use crate::model::{Model, ModelError};
use crate::plan::{Action, Target};
use crate::recover::{self, RepairError, RepairOptions, RepairStep, RepairUpdate, RepairUse};
use crate::session::{Event, State};
use serde_json::json;
use std::path::{Path, PathBuf};

impl From<RepairError> for JobError {
    fn from(e: RepairError) -> JobError {
        match e {
            RepairError::Cancelled(_) => JobError::Cancelled,
            other => JobError::of(other),
        }
    }
}

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

/// What a compression did, for the manifest: nothing in it depends on the clock, so that the same recipe makes the same
/// file.
struct Done<'a> {
    used: &'a RepairUse,
    steps: &'a [RepairStep],
}

impl Compute {
    fn manifest(&self, actions: &[(Target, Action)], done: &Done<'_>) -> Manifest {
        let (recipe, used) = (&self.recipe, done.used);
        let repair = &recipe.repair;
        let list: Vec<_> = actions.iter().map(|(t, a)| json!({ "target": t, "action": a })).collect();
        let step = |s: &RepairStep| {
            json!({ "name": s.name, "samples": s.samples, "kept": s.kept, "loss_before": s.loss_before,
                "loss_after": s.loss_after })
        };
        let repaired = (used.fitted > 0).then(|| {
            json!({
                "images": used.fitted, "check_images": used.checked, "checked_on_fitted": used.checked_on_fitted,
                "positions": repair.positions, "lambda": repair.lambda, "refit": repair.refit,
                "producers": repair.producers, "classifier": repair.classifier, "batch_norm": repair.batch_norm,
                "steps": done.steps.iter().map(step).collect::<Vec<_>>(),
            })
        });
        Manifest {
            recipe: json!({
                "actions": list,
                "importance": recipe.importance,
                "seed": repair.seed,
                "preprocess": recipe.preprocess,
                "repair": repaired,
                "ranges": (used.ranged > 0).then(|| json!({ "method": repair.ranges.label(), "images": used.ranged })),
                "calibration": { "data": recipe.calib, "classes": self.card.calib.classes, "used": used.hash },
                "kernels": recipe.kernels,
                "program": concat!("paring ", env!("CARGO_PKG_VERSION")),
            }),
            original: Some(self.model.info.hash.clone()),
            ..Manifest::default()
        }
    }

    /// Compresses the original by the recipe of `round`, and stores the result: a function of that recipe, so the artifact
    /// says nothing of who decided what and when. What was built ahead of exactly this plan is taken as it is.
    pub(super) fn make_model(&self, state: &State, round: u32, job: &Job) -> Result<Compressed, JobError> {
        let actions = in_order(state.actions_of(round));
        if let Some(built) = self.built(state, &actions) {
            let steps = built.repairs.iter().map(|step| Event::Repaired { round, step: step.clone() });
            job.events(steps.collect())?;
            return Ok(Compressed {
                artifact: built.artifact.clone(),
                model_hash: built.model_hash.clone(),
                used: built.used.clone(),
            });
        }
        let (model, used, steps) = self.build(&actions, &self.recipe.repair, "compress", job, &mut |step| {
            job.event(Event::Repaired { round, step: step.clone() })
        })?;
        self.same_images(state, &used)?;
        let artifact = self.keep(&model, &actions, &used, &steps)?;
        Ok(Compressed { artifact, model_hash: model.params.hash(), used })
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
        let model =
            recover::compress(&self.model, &self.groups, actions, &self.calib, options, job.cancel(), &mut |update| {
                match update {
                    RepairUpdate::Progress { done, total, what: label } => {
                        job.progress(what, &label, done as u64, total as u64);
                    }
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
                }
            })
            .map_err(|e| failed.take().unwrap_or_else(|| e.into()))?;
        job.cancel().check()?;
        Ok((model, used, steps))
    }

    /// Stores a compressed model with its manifest; returns the artifact's name.
    pub(super) fn keep(
        &self,
        model: &Model,
        actions: &[(Target, Action)],
        used: &RepairUse,
        steps: &[RepairStep],
    ) -> Result<String, JobError> {
        let manifest = self.manifest(actions, &Done { used, steps });
        let put = |path: &Path| -> Result<(), PutError> {
            export::safetensors(path, model, &manifest)?;
            Ok(())
        };
        self.artifacts.put("safetensors", put).map_err(JobError::of)
    }

    /// The same choice of calibration images must be the same images in every round, or rounds cannot be compared. (What
    /// of a set is not read when it is opened is noticed here.)
    pub(super) fn same_images(&self, state: &State, used: &RepairUse) -> Result<(), JobError> {
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
            self.recipe.calib.spec
        )))
    }

    /// Writes a round's model for others, with what was measured of it.
    pub(super) fn write_model(
        &self,
        state: &State,
        round: u32,
        path: &str,
        format: &str,
        job: &Job,
    ) -> Result<Exported, JobError> {
        job.progress("export", path, 0, 1);
        let model = self.model_of(state, round)?;
        let path = self.export_path(path, round, format);
        let r = state.round_at(round);
        let recipe = state.recipe_of(round);
        let figures = json!({
            "round": round,
            "budget": state.budget,
            "data": self.card.data,
            "device": self.card.device,
            "batch": self.card.batch,
            "baseline": state.baseline().map(|e| json!({ "metrics": e.metrics, "latency": e.whole,
                "weight_bytes": e.weight_bytes, "params": e.params, "macs": e.macs })),
            "measured": r.and_then(|r| r.evaluation.as_ref()).map(|e| json!({ "metrics": e.metrics, "latency": e.whole,
                "baseline_ms": e.baseline_ms, "weight_bytes": e.weight_bytes, "params": e.params, "macs": e.macs })),
            "forecast": r.and_then(|r| r.forecast.as_ref()).map(|q| json!({ "quality": q })),
            "verdict": r.and_then(|r| r.verdict.as_ref()),
            "repairs": r.map(|r| &r.repairs),
            "model_hash": r.and_then(|r| r.model_hash.as_ref()),
        });
        let (none, nothing) = (RepairUse::default(), Vec::new());
        let done = Done { used: r.map_or(&none, |r| &r.used), steps: r.map_or(&nothing, |r| &r.repairs) };
        let manifest =
            Manifest { figures, decisions: json!(recipe), ..self.manifest(&in_order(state.actions_of(round)), &done) };
        let hash = export::write(&path, &model, &manifest, format).map_err(JobError::of)?;
        Ok(Exported { path: path.display().to_string(), format: format.to_owned(), hash })
    }

    /// Where an export goes: as named, into a named folder, or under the model's name where the host was started.
    fn export_path(&self, path: &str, round: u32, format: &str) -> PathBuf {
        let ending = if format == "pytorch" { String::new() } else { format!(".{format}") };
        let name = format!("{}-paring-r{round}{ending}", self.model.info.name);
        match path.trim() {
            "" => PathBuf::from(name),
            p if format == "pytorch" => PathBuf::from(p),
            p if Path::new(p).is_dir() => Path::new(p).join(name),
            p => PathBuf::from(p),
        }
    }
}
