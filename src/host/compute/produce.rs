//! Making and writing compressed models: always from the original, by the session's recipe.

use super::{Compute, JobError};
use crate::host::engine::{Compressed, Exported, Job};
use crate::model::export::{self, Manifest};
use crate::model::{Model, ModelError};
use crate::plan::{Action, Decision, Target};
use crate::recover::{self, RepairError, RepairOptions, RepairStep, RepairUpdate};
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

/// Decisions as the manifest keeps them, and as they are applied.
fn actions(recipe: &[&Decision]) -> Vec<(Target, Action)> {
    recipe.iter().map(|d| (d.target.clone(), d.action.clone())).collect()
}

impl Compute {
    pub(super) fn repair_options(&self) -> RepairOptions {
        RepairOptions { seed: self.spec.seed, ranges: self.spec.calibration, ..RepairOptions::default() }
    }

    fn manifest(&self, recipe: &[&Decision]) -> Manifest {
        let options = self.repair_options();
        let list: Vec<_> = recipe.iter().map(|d| json!({ "target": d.target, "action": d.action })).collect();
        Manifest {
            recipe: json!({
                "actions": list,
                "seed": options.seed,
                "repair": {
                    "images": options.images, "check_images": options.check_images, "positions": options.positions,
                    "lambda": options.lambda, "refit": options.refit, "batch_norm": options.batch_norm,
                },
                "ranges": { "method": options.ranges.label(), "images": options.range_images },
                "calibration": self.card.calib,
                "program": concat!("paring ", env!("CARGO_PKG_VERSION")),
            }),
            decisions: json!(recipe),
            figures: serde_json::Value::Null,
            original: Some(self.model.info.hash.clone()),
        }
    }

    /// Compresses the original by everything approved and applied, and stores the result; what was built ahead of exactly
    /// this plan is taken as it is.
    pub(super) fn make_model(&self, state: &State, round: u32, job: &Job) -> Result<Compressed, JobError> {
        let recipe = state.recipe();
        let actions = actions(&recipe);
        if let Some(built) = self.built(state, &actions) {
            let steps = built.repairs.iter().map(|step| Event::Repaired { round, step: step.clone() });
            job.events(steps.collect())?;
            return Ok(Compressed { artifact: built.artifact.clone(), model_hash: built.model_hash.clone() });
        }
        let model = self.build(&actions, &self.repair_options(), "compress", job, &mut |step| {
            job.event(Event::Repaired { round, step })
        })?;
        let artifact = self.keep(&model, &recipe)?;
        Ok(Compressed { artifact, model_hash: model.params.hash() })
    }

    /// The original after `actions`, repaired; progress goes out as `what`, judged repairs to `step`.
    pub(super) fn build(
        &self,
        actions: &[(Target, Action)],
        options: &RepairOptions,
        what: &str,
        job: &Job,
        step: &mut dyn FnMut(RepairStep) -> Result<(), JobError>,
    ) -> Result<Model, JobError> {
        let mut failed = None;
        let model =
            recover::compress(&self.model, &self.groups, actions, &self.calib, options, job.cancel(), &mut |update| {
                match update {
                    RepairUpdate::Progress { done, total, what: label } => {
                        job.progress(what, &label, done as u64, total as u64);
                    }
                    RepairUpdate::Step(judged) => {
                        if failed.is_none()
                            && let Err(e) = step(judged)
                        {
                            failed = Some(e);
                            job.cancel().cancel();
                        }
                    }
                }
            })
            .map_err(|e| failed.take().unwrap_or_else(|| e.into()))?;
        job.cancel().check()?;
        Ok(model)
    }

    /// Stores a compressed model with its manifest; returns the artifact's name.
    pub(super) fn keep(&self, model: &Model, recipe: &[&Decision]) -> Result<String, JobError> {
        let manifest = self.manifest(recipe);
        let put = |path: &Path| -> Result<(), PutError> {
            export::safetensors(path, model, &manifest)?;
            Ok(())
        };
        self.artifacts.put("safetensors", put).map_err(JobError::of)
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
        let recipe = if state.phase == crate::session::Phase::Verdict { state.recipe() } else { state.applied() };
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
            "verdict": r.and_then(|r| r.verdict.as_ref()),
            "repairs": r.map(|r| &r.repairs),
            "model_hash": r.and_then(|r| r.model_hash.as_ref()),
        });
        let manifest = Manifest { figures, ..self.manifest(&recipe) };
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
