//! What a session holds of its own: the models of its rounds, and what their manifests say.
//!
//! Invariant: nothing here needs the original or the data, so that what was made is exported when they are gone.

use super::produce::in_order;
use crate::control::{self, Control};
use crate::files;
use crate::graph::Graph;
use crate::host::desk::Desk;
use crate::host::engine::{Engine, Exported, Job, JobError, Work};
use crate::model::export::Manifest;
use crate::model::formats::{self, FORMATS, Written};
use crate::model::{self, LoadOptions, Model};
use crate::plan::{Action, Target};
use crate::recover::{RepairStep, RepairUse, Stage};
use crate::session::{Artifacts, Controlled, Place, Recipe, SessionCard, State, as_filed};
use crate::train::Course;
use crate::words::counted;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes of a controller at most: a table of a large vocabulary is a few megabytes, what was re-fitted for levels a part of the model's.
const CONTROL: u64 = 8 << 30;

/// A session's models and what is known of them.
pub(super) struct Shelf {
    pub place: Place,
    pub artifacts: Artifacts,
    pub card: SessionCard,
    pub recipe: Recipe,
}

impl Shelf {
    /// How a model came about. Nothing in it depends on the clock, so that the same recipe makes the same file.
    pub fn manifest(
        &self,
        actions: &[(Target, Action)],
        used: &RepairUse,
        (steps, course): (&[RepairStep], Option<&Course>),
    ) -> Manifest {
        let recipe = &self.recipe;
        let repair = &recipe.repair;
        let list: Vec<_> = actions.iter().map(|(t, a)| json!({ "target": t, "action": a })).collect();
        let repaired = (used.fitted > 0).then(|| {
            let mut told = json!({
                "images": used.fitted, "check_images": used.checked, "checked_on_fitted": used.checked_on_fitted,
                "positions": repair.positions, "lambda": repair.lambda, "refit": repair.stages.has(Stage::Refit),
                "producers": repair.producers, "classifier": repair.classifier, "batch_norm": repair.stages.has(Stage::BatchNorm),
                "steps": steps.iter().map(RepairStep::for_manifest).collect::<Vec<_>>(),
            });
            // Recipes of before there was such a stage are told as they were.
            if repair.stages.has(Stage::Round) {
                told["round"] = true.into();
            }
            told
        });
        let mut told = json!({
                "actions": list,
                "importance": recipe.how.importance,
                "seed": repair.seed,
                "preprocess": recipe.preprocess,
                "repair": repaired,
                "ranges": (used.ranged > 0).then(|| json!({ "method": repair.ranges.label(), "images": used.ranged })),
                "calibration": { "data": recipe.calib, "classes": self.card.calib.classes, "used": used.hash },
                "kernels": recipe.kernels,
                "program": concat!("paring ", env!("CARGO_PKG_VERSION")),
        });
        // Recipes without it are told as they were.
        if let Some(course) = course {
            told["healing"] = json!(course);
        }
        Manifest { recipe: told, original: Some(self.card.model.hash.clone()), ..Manifest::default() }
    }

    /// The model stored under `name`.
    pub fn artifact(&self, name: &str) -> Result<Model, JobError> {
        let path = self.artifacts.path(name).ok_or_else(|| {
            JobError::Failed(format!(
                "artifact `{name}` is gone from `{}`; hint: roll the round back and run again",
                self.place.artifacts().display()
            ))
        })?;
        let mut model = model::load(&path, &LoadOptions::default()).map_err(JobError::of)?;
        // Files leave the length of text open, the session's figures are of one.
        if let (Some(_), Ok(&[tokens])) = (model.graph.vocabulary(), self.card.graph.input_shape().as_deref()) {
            let graph = Graph::clone(&model.graph);
            model.graph = Arc::new(if graph.is_language_model() { graph.bound(tokens) } else { graph.told(tokens) });
        }
        Ok(model)
    }

    /// The model that `round`, from 1, made.
    pub fn model_of(&self, state: &State, round: u32) -> Result<Model, JobError> {
        let name = state.round_at(round).and_then(|r| r.artifact.as_deref());
        let name = name.ok_or_else(|| JobError::Failed(format!("round {round} has no model; hint: run it again")))?;
        self.artifact(name)
    }

    /// Levels and controller that were made of `model`.
    pub fn control(&self, made: &Controlled, model: &Model) -> Result<Control, JobError> {
        let name = &made.artifact;
        let gone = || {
            let folder = self.place.artifacts();
            JobError::Failed(format!(
                "artifact `{name}` is gone from `{}`; hint: `:control` with another target makes levels anew",
                folder.display()
            ))
        };
        let bytes = files::read(&self.artifacts.path(name).ok_or_else(gone)?, CONTROL).map_err(JobError::of)?;
        control::parse(&bytes, model, name).map_err(JobError::of)
    }

    /// Writes a round's model for others, with what was measured of it, and with the levels and the controller that were made of it where
    /// the format has room for them. Round 0 is the `original`.
    pub fn write_model(
        &self,
        state: &State,
        round: u32,
        path: &str,
        format: &str,
        (original, job): (Option<&Model>, &Job),
    ) -> Result<Exported, JobError> {
        job.progress("export", path, 0, 1);
        let model = match original.filter(|_| round == 0) {
            Some(original) => original.clone(),
            None if round == 0 => return Err(JobError::Failed(CLOSED.to_owned())),
            None => self.model_of(state, round)?,
        };
        let made = state.control_of(round);
        let control = made.filter(|_| format == FORMATS[0]).map(|made| self.control(made, &model)).transpose()?;
        let path = self.export_path(path, round, format);
        keep_sources(&path, &self.recipe, &self.place.dir).map_err(JobError::Failed)?;
        let r = state.round_at(round);
        let recipe = state.recipe_of(round);
        let figures = json!({
            "round": round,
            "budget": state.budget,
            "data": self.card.data,
            "device": self.card.device,
            "batch": self.card.batch,
            "baseline": state.baseline().map(|e| json!({ "metrics": e.metrics, "latency": e.ms().map(|_| e.whole),
                "weight_bytes": e.weight_bytes, "params": e.params, "macs": e.macs })),
            "measured": r.and_then(|r| r.evaluation.as_ref()).map(|e| json!({ "metrics": e.metrics,
                "latency": e.ms().map(|_| e.whole), "baseline_ms": e.ms().map(|_| e.baseline_ms),
                "weight_bytes": e.weight_bytes, "params": e.params, "macs": e.macs })),
            "forecast": r.and_then(|r| r.forecast.as_ref()).map(|q| json!({ "quality": q })),
            "verdict": r.and_then(|r| r.verdict.as_ref()),
            "repairs": r.map(|r| &r.repairs),
            "model_hash": r.and_then(|r| r.model_hash.as_ref()),
        });
        let (none, nothing) = (RepairUse::default(), Vec::new());
        let (used, steps) = (r.map_or(&none, |r| &r.used), r.map_or(&nothing, |r| &r.repairs));
        let actions = in_order(state.actions_of(round));
        let metric = self.card.metric();
        let [figures, decisions] = [figures, json!(recipe)].map(|said| as_filed(&metric, said));
        let manifest = Manifest {
            figures,
            decisions,
            ..self.manifest(&actions, used, (steps, r.and_then(|r| r.course.as_ref())))
        };
        let written = match (&control, made) {
            (Some(control), Some(made)) => {
                let hash = control::write(&path, &model, &manifest, control).map_err(JobError::of)?;
                let levels = counted(made.levels.len(), "level");
                let notes =
                    vec![format!("{levels} and their controller are in it; `paring serve` runs it, `--level` chooses")];
                Written { hash, notes, ..Written::default() }
            }
            (None, Some(_)) => {
                let mut written = formats::write(&path, &model, &manifest, format).map_err(JobError::of)?;
                written.notes.push(format!("levels and controller are left out; {} has room for them", FORMATS[0]));
                written
            }
            _ => formats::write(&path, &model, &manifest, format).map_err(JobError::of)?,
        };
        model.params.still(&model.info.hash).map_err(JobError::of)?;
        let (bytes, hash) = (written.bytes(&path), written.hash.clone());
        let notes = written.words();
        Ok(Exported { path: path.display().to_string(), format: format.to_owned(), hash, bytes, notes })
    }

    /// Where an export goes: as named, into a named folder, or under the model's name where the host was started.
    fn export_path(&self, path: &str, round: u32, format: &str) -> PathBuf {
        let ending = if formats::FOLDERS.contains(&format) { String::new() } else { format!(".{format}") };
        let name = format!("{}-paring-r{round}{ending}", self.card.model.name);
        match path.trim() {
            "" => PathBuf::from(name),
            p if formats::FOLDERS.contains(&format) => PathBuf::from(p),
            p if Path::new(p).is_dir() => Path::new(p).join(name),
            p => PathBuf::from(p),
        }
    }
}

/// Nothing that a session was opened on, and nothing of its own, gives way to an export of it.
fn keep_sources(path: &Path, recipe: &Recipe, session: &Path) -> Result<(), String> {
    let data = [&recipe.data.spec, &recipe.calib.spec];
    let data = data.into_iter().flat_map(|spec| spec.split(',').map(|part| ("data is read from", Path::new(part))));
    let mut all = [("model was read from", Path::new(&recipe.how.model)), ("session is kept in", session)]
        .into_iter()
        .chain(data);
    match all.find(|(_, source)| files::overwrites(path, source)) {
        Some((what, source)) => Err(format!(
            "`{}` is not replaced: the {what} `{}`; hint: give the export another path",
            path.display(),
            source.display()
        )),
        None => Ok(()),
    }
}

/// Opens a session for exports alone, without its original and data.
///
/// # Errors
/// In words: it was never opened, is older than recipes in journals, or its folder cannot be used.
pub fn archive(place: &Place, card: Option<&SessionCard>) -> Result<Arc<dyn Engine>, String> {
    let unknown =
        || format!("session `{}` does not say how its models were made; hint: `paring attach {0}`", place.name);
    let card = card.ok_or_else(unknown)?.clone();
    let recipe = card.recipe.as_deref().ok_or_else(unknown)?.clone();
    let artifacts = Artifacts::open(&place.artifacts()).map_err(|e| e.to_string())?;
    Ok(Arc::new(Shelf { place: place.clone(), artifacts, card, recipe }))
}

const CLOSED: &str =
    "the session is opened for an export alone; hint: `paring attach` opens it with its model and data";

impl Engine for Shelf {
    fn card(&self) -> SessionCard {
        self.card.clone()
    }

    fn desk(&self) -> &dyn Desk {
        self
    }

    fn export(&self, state: &State, round: u32, path: &str, format: &str, job: &Job) -> Result<Exported, JobError> {
        self.write_model(state, round, path, format, (None, job))
    }

    fn work(&self) -> Result<&dyn Work, JobError> {
        Err(JobError::Failed(CLOSED.to_owned()))
    }
}

impl Desk for Shelf {
    fn resolve(&self, _: &State, _: &Target, _: &Action) -> Result<Action, String> {
        Err(CLOSED.to_owned())
    }

    fn kept(&self, _: &str, _: f64) -> Option<Vec<u32>> {
        None
    }

    fn refuses(&self, _: &Action) -> Option<String> {
        None
    }

    fn rehearses(&self) -> bool {
        false
    }

    fn controls(&self) -> Result<(), String> {
        Err(CLOSED.to_owned())
    }

    fn heals(&self) -> Result<(), String> {
        Err(CLOSED.to_owned())
    }
}
