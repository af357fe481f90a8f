//! The real engine: the rooms of compute behind the host's one door.
//!
//! Invariants: the original model is never changed, every compressed one is made from it and the session's decisions;
//! what is measured on the evaluation data reaches verdicts only, and planning never when the session is blind.

pub mod measure;
mod produce;
mod propose;
mod trial;

pub use propose::plan_now;

use super::engine::{Compressed, Engine, Exported, Job, JobError, Llm};
use super::spec::OpenSpec;
use crate::data::{self, Dataset, Split};
use crate::eval::Trials;
use crate::exec::{self, Cancel, CompileOptions, Plan, device::Opened};
use crate::graph::{Macs, macs};
use crate::model::{self, LoadOptions, Model};
use crate::plan::{self, Action, Target, Verdict};
use crate::profile::{Ceilings, Ladder, Profile};
use crate::prune::{self, Evidence, Group};
use crate::session::{Artifacts, Evaluation, Place, Proposer, SessionCard, State};
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Model, data and device of one session.
pub struct Compute {
    spec: OpenSpec,
    model: Model,
    groups: Vec<Group>,
    data: Dataset,
    /// Calibration images that work is fitted on.
    calib: Dataset,
    /// Calibration images that trials alone touch.
    held: Dataset,
    device: Opened,
    batch: usize,
    place: Place,
    artifacts: Artifacts,
    /// Measurements that other sessions share; `None` when no such folder can be made.
    cache: Option<PathBuf>,
    card: SessionCard,
    scores: Mutex<HashMap<String, Arc<Vec<f32>>>>,
    evidence: Mutex<Option<Arc<Evidence>>>,
    /// Which evaluation images the original gets right.
    baseline: Mutex<Option<Arc<Vec<bool>>>>,
    ceilings: Mutex<Option<Ceilings>>,
    trials: Mutex<Option<Arc<Trials>>>,
}

/// Calibration images that importance looks at, and how many at a time.
const EVIDENCE_IMAGES: usize = 256;
const EVIDENCE_BATCH: usize = 16;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Loads a checkpoint, or a bundled demo model (`demo:vit`, `demo:cnn`); `mean` and `std` correct its preprocessing.
pub fn load_model(
    name: &str,
    options: &LoadOptions,
    mean: Option<[f32; 3]>,
    std: Option<[f32; 3]>,
) -> Result<Model, String> {
    let mut model = match name.strip_prefix("demo:") {
        Some("vit") => data::demo::vit().map_err(|e| e.to_string())?,
        Some("cnn") => data::demo::cnn().map_err(|e| e.to_string())?,
        Some(other) => return Err(format!("no bundled model `{other}`; hint: demo:vit or demo:cnn")),
        None => model::load(Path::new(name), options).map_err(|e| e.to_string())?,
    };
    if std.is_some_and(|s| s.iter().any(|v| *v <= 0.0)) {
        return Err(
            "the standard deviation has a number that is not positive; hint: such as 0.229,0.224,0.225".to_owned()
        );
    }
    let prep = &mut model.info.preprocess;
    if mean.is_some() || std.is_some() {
        prep.mean = mean.unwrap_or(prep.mean);
        prep.std = std.unwrap_or(prep.std);
        prep.origin = "flags".to_owned();
    }
    Ok(model)
}

/// Images a batch when the user named no number: latency of small networks is only steady over many.
pub fn usual_batch(model: &Model) -> usize {
    let [h, w] = model.info.preprocess.size;
    if h * w <= 64 * 64 { 64 } else { 8 }
}

/// Images a batch for work whose latency does not count.
pub fn working_batch(model: &Model) -> usize {
    let [h, w] = model.info.preprocess.size;
    if h * w <= 64 * 64 { 128 } else { 16 }
}

/// MACs and parameters of a model as it stands.
pub fn counts(model: &Model) -> Result<(Macs, u64), String> {
    let all = macs(&model.graph).map_err(|e| e.to_string())?;
    let reachable = model.graph.reachable();
    let params = model
        .graph
        .nodes
        .iter()
        .zip(&reachable)
        .filter(|(_, r)| **r)
        .map(|(n, _)| crate::graph::node_params(&n.op))
        .sum();
    Ok((all.into_iter().sum(), params))
}

/// Opens calibration data beside evaluation data, and says in words when the two may not be used together.
pub fn open_data(spec: &OpenSpec) -> Result<(Dataset, Dataset, bool), String> {
    let data = data::open(&spec.data, spec.limit).map_err(|e| e.to_string())?;
    let Some(calib) = &spec.calib else {
        if !spec.calib_is_eval {
            return Err(format!(
                "no calibration data; hint: give `--calib` images that are not in `{}`, or `--calib-is-eval` to use those",
                spec.data
            ));
        }
        let most = if spec.calib_limit == 0 { 5000 } else { spec.calib_limit };
        return Ok((data.clone(), data.take(most), true));
    };
    let calib = data::open(calib, spec.calib_limit).map_err(|e| e.to_string())?;
    let shared = calib.overlaps(&data);
    if shared > 0 && !spec.calib_is_eval {
        return Err(format!(
            "{shared} of {} calibration images of `{}` are also evaluation images of `{}`; hint: other images, or \
             `--calib-is-eval` if you mean it",
            calib.len(),
            calib.card().name,
            data.card().name
        ));
    }
    Ok((data, calib, shared > 0))
}

/// Opens the session's engine: from `spec`, or from what the session's card says when no spec was kept.
pub fn open(place: &Place, spec: Option<OpenSpec>, card: Option<&SessionCard>) -> Result<Arc<dyn Engine>, String> {
    let spec = spec
        .or_else(|| card.map(from_card))
        .ok_or_else(|| format!("session `{}` was never opened; hint: `paring open MODEL --data D`", place.name))?;
    if spec.threads > 0 {
        exec::set_threads(spec.threads);
    }
    let options = LoadOptions { arch: spec.arch, image: spec.image, heads: spec.heads };
    let model = load_model(&spec.model, &options, spec.mean, spec.std)?;
    if let Some(card) = card
        && card.model.hash != model.info.hash
    {
        return Err(format!(
            "model `{}` changed since the session opened (hash {:.12}, was {:.12}); hint: put the old file back, or open \
             a new session with `--name`",
            spec.model, model.info.hash, card.model.hash
        ));
    }
    let (data, calib, calib_is_eval) = open_data(&spec)?;
    for set in [&data, &calib] {
        set.check_classes(&model.info.name, model.info.classes).map_err(|e| e.to_string())?;
        if set.is_empty() {
            return Err(format!("data set `{}` holds no images; hint: raise the limit", set.card().name));
        }
    }
    let mut device = exec::device::open(&spec.device).map_err(|e| e.to_string())?;
    if spec.tf32 {
        exec::device::allow_tf32(&mut device);
    }
    let batch = if spec.batch == 0 { usual_batch(&model) } else { spec.batch };
    let artifacts = Artifacts::open(&place.artifacts())
        .map_err(|e| format!("cannot write in `{}`: {e}; hint: check permissions", place.dir.display()))?;
    let cache = crate::session::place::cache().ok().filter(|dir| std::fs::create_dir_all(dir).is_ok());
    let groups = prune::groups(&model.graph);
    let card = match card {
        Some(card) => card.clone(),
        None => SessionCard {
            model: model.info.clone(),
            graph: (*model.graph).clone(),
            groups: groups.clone(),
            data: data.card(),
            calib: calib.card(),
            calib_is_eval,
            device: device.words.clone(),
            device_note: device.note.clone(),
            threads: exec::threads(),
            batch,
            seed: spec.seed,
            blind: spec.blind,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        },
    };
    let Split { work, held } = calib.split(spec.seed);
    Ok(Arc::new(Compute {
        spec,
        model,
        groups,
        data,
        calib: work,
        held,
        device,
        batch,
        place: place.clone(),
        artifacts,
        cache,
        card,
        scores: Mutex::default(),
        evidence: Mutex::default(),
        baseline: Mutex::default(),
        ceilings: Mutex::default(),
        trials: Mutex::default(),
    }))
}

/// A spec for a session whose folder lost its own.
fn from_card(card: &SessionCard) -> OpenSpec {
    OpenSpec {
        model: card.model.source.display().to_string(),
        arch: Some(card.model.family),
        data: card.data.source.clone(),
        limit: card.data.limit,
        calib: Some(card.calib.source.clone()),
        calib_limit: card.calib.limit,
        calib_is_eval: card.calib_is_eval,
        threads: card.threads,
        batch: card.batch,
        seed: card.seed,
        ..OpenSpec::demo("vit")
    }
}

impl Compute {
    fn compile(&self, model: &Model) -> Result<Plan, JobError> {
        let threads = (self.spec.threads > 0).then_some(self.spec.threads);
        let options = CompileOptions { threads, ..CompileOptions::on(&self.device) };
        Plan::of(model, &options).map_err(JobError::of)
    }

    /// The model that a round made; round 0 is the original.
    fn model_of(&self, state: &State, round: u32) -> Result<Model, JobError> {
        if round == 0 {
            return Ok(self.model.clone());
        }
        let name = state.round_at(round).and_then(|r| r.artifact.as_deref());
        let name = name.ok_or_else(|| JobError::Failed(format!("round {round} has no model; hint: run it again")))?;
        self.artifact(name)
    }

    fn artifact(&self, name: &str) -> Result<Model, JobError> {
        let path = self.artifacts.path(name).ok_or_else(|| {
            JobError::Failed(format!(
                "artifact `{name}` is gone from `{}`; hint: roll the round back and run again",
                self.place.artifacts().display()
            ))
        })?;
        model::load(&path, &LoadOptions::default()).map_err(JobError::of)
    }

    /// What the session's way to rank units needs of the calibration images, if anything; worked out once. The sensitivity
    /// scan does it first, so that an edit on the screen finds it ready.
    fn evidence(&self, cancel: &Cancel) -> Result<Option<Arc<Evidence>>, JobError> {
        if !self.spec.importance.needs_evidence() {
            return Ok(None);
        }
        let mut known = lock(&self.evidence);
        if let Some(e) = &*known {
            return Ok(Some(e.clone()));
        }
        // Few images do: scores are sums over rows. Small batches, so that a mean of gradients is not all noise removed.
        let (images, batch) = (self.calib.len().min(EVIDENCE_IMAGES), EVIDENCE_BATCH);
        let starts = (0..images).step_by(batch);
        let mut unread = None;
        let batches = starts.map_while(|i| {
            let read = self.calib.batch(i..(i + batch).min(images), &self.model.info.preprocess);
            read.map_err(|e| unread = Some(e)).ok()
        });
        let made = prune::evidence(&self.model, batches, cancel);
        if let Some(e) = unread {
            return Err(JobError::of(e));
        }
        let made = Arc::new(made?);
        *known = Some(made.clone());
        Ok(Some(made))
    }

    /// How much each unit of a group matters; worked out once.
    fn scores(&self, group: &Group) -> Result<Arc<Vec<f32>>, String> {
        if let Some(known) = lock(&self.scores).get(&group.id) {
            return Ok(known.clone());
        }
        let method = self.spec.importance;
        let evidence = self.evidence(&Cancel::default()).map_err(|e| e.to_string())?;
        let scores = prune::importance(&self.model, group, method, evidence.as_deref()).map_err(|e| e.to_string())?;
        let scores = Arc::new(scores);
        lock(&self.scores).insert(group.id.clone(), scores.clone());
        Ok(scores)
    }
}

impl Engine for Compute {
    fn card(&self) -> SessionCard {
        self.card.clone()
    }

    fn profile(&self, state: &State, job: &Job) -> Result<Profile, JobError> {
        let model = self.model_of(state, state.base_round())?;
        self.profile_model(&model, job)
    }

    fn baseline(&self, state: &State, job: &Job) -> Result<Evaluation, JobError> {
        self.evaluate_original(state, job)
    }

    fn ladders(&self, _: &State, job: &Job) -> Result<Vec<Ladder>, JobError> {
        self.measure_ladders(job)
    }

    fn sense(&self, _: &State, job: &Job) -> Result<(), JobError> {
        self.measure_sensitivity(job)
    }

    fn anchor(&self, state: &State, job: &Job) -> Result<(), JobError> {
        self.try_anchors(state, job)
    }

    fn rehearses(&self) -> bool {
        !self.held.is_empty()
    }

    fn rehearse(&self, state: &State, actions: &[(Target, Action)], job: &Job) -> Result<(), JobError> {
        self.rehearse_plan(state, actions, job)
    }

    fn propose(&self, state: &State, by: Proposer, llm: &Llm, job: &Job) -> Result<(), JobError> {
        match by {
            Proposer::Planner => self.ask_planner(state, job),
            Proposer::Agents => self.ask_agents(state, llm, job),
        }
    }

    fn reflect(&self, state: &State, round: u32, llm: &Llm, job: &Job) -> Result<(), JobError> {
        self.compare_with_forecast(state, round, llm, job)
    }

    fn resolve(&self, state: &State, target: &Target, action: &Action) -> Result<Action, String> {
        let checked = plan::check(action, target, &self.groups, &self.model.graph, &state.constraints)
            .map_err(|e| e.to_string())?;
        match checked {
            Action::Prune { ratio, kept } if kept.is_empty() => {
                let group = self.groups.iter().find(|g| g.id == target.name());
                let group = group.ok_or_else(|| format!("no `{target}`; hint: see the layer list"))?;
                let kept = prune::resolve(group, &self.scores(group)?, ratio);
                Ok(Action::Prune { ratio, kept })
            }
            other => Ok(other),
        }
    }

    fn compress(&self, state: &State, round: u32, job: &Job) -> Result<Compressed, JobError> {
        self.make_model(state, round, job)
    }

    fn evaluate(
        &self,
        state: &State,
        round: u32,
        artifact: &str,
        job: &Job,
    ) -> Result<(Evaluation, Verdict), JobError> {
        self.judge_model(state, round, artifact, job)
    }

    fn export(&self, state: &State, round: u32, path: &str, format: &str, job: &Job) -> Result<Exported, JobError> {
        self.write_model(state, round, path, format, job)
    }
}
