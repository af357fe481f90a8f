//! The real engine: the rooms of compute behind the host's one door.
//!
//! Invariants: the original model is never changed, every compressed one is made from it and the session's decisions, and
//! work on it comes to nothing when its file changed under it;
//! what is measured on the evaluation data reaches verdicts only, and planning never when the session is blind.

mod activations;
mod answers;
mod changed;
mod control;
mod heal;
mod iterate;
mod judge;
pub mod measure;
mod produce;
mod propose;
mod recipe;
mod rounding;
mod shelf;
mod subject;
#[cfg(test)]
mod tests;
mod tokens;
mod trial;

pub use propose::plan_now;
pub use shelf::archive;
pub use subject::{
    Subject, bind, classifies_text, load_model, longest, open_data, takes_text, tell, tokenizer_of, usual_batch,
    vocabulary, working_batch,
};

use super::desk::{Desk, Ranks, Table};
use super::engine::{Engine, Exported, Job, JobError, Llm, Work};
use super::spec::OpenSpec;
use crate::data::{Dataset, Split};
use crate::eval::Trials;
use crate::exec::{self, CompileOptions, Plan, device::Opened};
use crate::graph::{Macs, macs};
use crate::model::Model;
use crate::plan::{Action, Target, Verdict};
use crate::profile::{Ceilings, Gauges, Ladder, Paired, Profile};
use crate::prune::{self, Evidence, Group};
use crate::quant::Precision;
use crate::session::{
    Activations, Artifacts, Built, Changed, Evaluation, Opening, Place, Proposer, Role, SessionCard, State, Tokens,
    Utterance, WhatChanged, WhatTokens, private,
};
use crate::train::{self, Heal};
use shelf::Shelf;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Model, data and device of one session.
pub struct Compute {
    /// See [`OpenSpec::patience`].
    patience: f64,
    /// The session's own, with its recipe and card.
    shelf: Shelf,
    model: Model,
    desk: Table,
    data: Dataset,
    /// Calibration images that work is fitted on.
    calib: Dataset,
    /// Calibration images that trials alone touch.
    held: Dataset,
    /// Both together: what healing trains on, whose results no forecast was made for.
    images: Dataset,
    device: Opened,
    /// What a GPU says of itself.
    gauges: Option<Arc<Gauges>>,
    /// Measurements that other sessions share; `None` when no such folder can be made.
    cache: Option<PathBuf>,
    evidence: Mutex<Option<Arc<Evidence>>>,
    /// What the original scores on each evaluation image.
    baseline: Mutex<Option<Arc<Vec<f32>>>>,
    ceilings: Mutex<Option<Ceilings>>,
    trials: Mutex<Option<Arc<Trials>>>,
}

/// Calibration images whose evidence is gathered at a time.
const EVIDENCE_BATCH: usize = 16;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// MACs and parameters of a model as it stands.
pub fn counts(model: &Model) -> Result<(Macs, u64), String> {
    let all = macs(&model.graph).map_err(|e| e.to_string())?;
    let params = model.graph.live().map(|(_, n)| model.graph.params_of(n)).sum();
    Ok((all.into_iter().sum(), params))
}

/// Opens the session's engine: by the journal's recipe, or for a new session by `spec`.
///
/// # Errors
/// What cannot be opened, and what is no longer what the session was opened with, by name.
pub fn open(place: &Place, spec: Option<OpenSpec>, card: Option<&SessionCard>) -> Result<Arc<dyn Engine>, String> {
    open_subject(place, spec, card, Subject::load)
}

/// [`open`] of what `load` makes of a spec.
///
/// # Errors
/// As [`open`], and what `load` says.
pub fn open_subject(
    place: &Place,
    spec: Option<OpenSpec>,
    card: Option<&SessionCard>,
    load: impl FnOnce(&OpenSpec) -> Result<Subject, String>,
) -> Result<Arc<dyn Engine>, String> {
    let recipe = card.and_then(|c| c.recipe.as_deref());
    let spec = match (recipe, spec, card) {
        (Some(recipe), aside, _) => OpenSpec::of_recipe(recipe, aside),
        (None, Some(spec), _) => spec,
        (None, None, Some(card)) => from_card(card),
        (None, None, None) => {
            return Err(format!("session `{}` was never opened; hint: `paring open MODEL --data D`", place.name));
        }
    };
    if spec.how.threads > 0 {
        exec::set_threads(spec.how.threads);
    }
    let Subject { mut model, data, calib, calib_is_eval } = load(&spec)?;
    if let Some(recipe) = recipe {
        model.info.preprocess = recipe.preprocess.clone();
    }
    if let Some(card) = card
        && card.model.hash != model.info.hash
    {
        return Err(format!(
            "model `{}` changed since the session opened (hash {:.12}, was {:.12}); hint: put the old file back, or open \
             a new session with `--name`",
            spec.how.model, model.info.hash, card.model.hash
        ));
    }
    if let Some(why) = spec.budget.unfit(takes_text(&model)) {
        return Err(why);
    }
    for set in [&data, &calib] {
        set.check_fits(&model.info).map_err(|e| e.to_string())?;
        if set.is_empty() {
            return Err(format!("data set `{}` holds no images; hint: raise the limit", set.card().name));
        }
    }
    let mut device = exec::device::open(&spec.how.device).map_err(|e| e.to_string())?;
    if spec.how.tf32 {
        exec::device::allow_tf32(&mut device);
    }
    let batch = if spec.how.batch == 0 { usual_batch(&model) } else { spec.how.batch };
    let recipe = recipe::now(&spec, &model, &data, &calib, batch, recipe)?;
    let artifacts = Artifacts::open(&place.artifacts())
        .map_err(|e| format!("cannot write in `{}`: {e}; hint: check permissions", place.dir.display()))?;
    let cache = crate::session::place::cache().ok().filter(|dir| private::make_dir(dir).is_ok() || dir.is_dir());
    let (groups, sets) = (prune::groups(&model.graph), calib.split(recipe.seed(), recipe.held));
    let desk = Table {
        controls: control::can(&model, &groups, &sets.work, &sets.held),
        heals: train::can_heal(&model),
        graph: model.graph.clone(),
        groups,
        ranks: Ranks::default(),
        refused: exec::Capabilities::of(&device.device, device.kernels).refused(),
        rehearses: recipe.held > 0 && calib.len() > recipe.held,
    };
    let mut card = match card {
        Some(card) => card.clone(),
        None => SessionCard {
            model: model.info.clone(),
            graph: (*model.graph).clone(),
            groups: desk.groups.clone(),
            data: data.card(),
            calib: calib.card(),
            calib_is_eval,
            device: device.words.clone(),
            device_note: device.note.clone(),
            threads: exec::threads(),
            batch,
            seed: spec.seed,
            metric: Some(data.task().metric(&model.info)),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            recipe: None,
        },
    };
    card.recipe = Some(Box::new(recipe.clone()));
    let Split { work, held } = sets;
    let compute = Compute {
        patience: spec.patience,
        shelf: Shelf { place: place.clone(), artifacts, card, recipe },
        model,
        desk,
        data,
        calib: work,
        held,
        images: calib,
        gauges: Gauges::of(&device.device).and_then(Result::ok).map(Arc::new),
        device,
        cache,
        evidence: Mutex::default(),
        baseline: Mutex::default(),
        ceilings: Mutex::default(),
        trials: Mutex::default(),
    };
    // One look at the weights, as hashing them just was; what takes longer is a job's.
    if compute.shelf.recipe.how.importance.is_quick() {
        compute.rank_groups(&mut |_, _| Ok(())).map_err(|e| e.to_string())?;
    }
    Ok(Arc::new(compute))
}

/// A spec for a session whose journal is older than recipes and whose folder lost its file: what the card tells, and
/// else what such a session has unless it is told otherwise.
fn from_card(card: &SessionCard) -> OpenSpec {
    let usual = OpenSpec::demo("vit");
    OpenSpec {
        how: Opening {
            model: card.model.source.display().to_string(),
            arch: Some(card.model.family),
            calib_is_eval: card.calib_is_eval,
            threads: card.threads,
            batch: card.batch,
            ..usual.how
        },
        mean: Some(card.model.preprocess.mean),
        std: Some(card.model.preprocess.std),
        data: card.data.source.clone(),
        limit: card.data.limit,
        calib: Some(card.calib.source.clone()),
        calib_limit: card.calib.limit,
        seed: card.seed,
        ..usual
    }
}

impl Compute {
    /// What the data is made of, in a word.
    fn item(&self) -> String {
        self.shelf.card.metric().item
    }

    fn compile(&self, model: &Model) -> Result<Plan, JobError> {
        Plan::of(model, &self.compiles()).map_err(JobError::of)
    }

    /// How the session's models run. A language model's weights are multiplied as they are stored, as they are where it is used.
    fn compiles(&self) -> CompileOptions {
        let options = CompileOptions { threads: self.threads(), ..CompileOptions::on(&self.device) };
        CompileOptions { as_stored: self.as_stored(), ..options }
    }

    fn as_stored(&self) -> bool {
        self.model.graph.is_language_model()
    }

    /// The model that a round made; round 0 is the original.
    fn model_of(&self, state: &State, round: u32) -> Result<Model, JobError> {
        if round == 0 {
            return Ok(self.model.clone());
        }
        self.shelf.model_of(state, round)
    }

    /// Asked before anything is kept that was worked out from the original, in memory or on disk.
    fn unchanged(&self) -> Result<(), JobError> {
        self.model.params.unchanged().map_err(JobError::of)
    }

    /// Does `work`, which uses the original. Nothing comes of it when the original's file is not what was read, before or
    /// after; an error of its own gives way then, being most likely what other weights led to.
    fn on_original<T>(&self, work: impl FnOnce() -> Result<T, JobError>) -> Result<T, JobError> {
        let params = &self.model.params;
        params.confirm(&self.model.info.hash).map_err(JobError::of)?;
        match work() {
            Err(JobError::Cancelled) => Err(JobError::Cancelled),
            done => self.unchanged().and(done),
        }
    }

    /// What the session's way to rank units needs of the calibration images, if anything; worked out once. Needs a job:
    /// it takes as long as hundreds of forward and backward passes.
    fn evidence(&self, job: &Job) -> Result<Option<Arc<Evidence>>, JobError> {
        let method = self.shelf.recipe.how.importance;
        if !method.needs_evidence() {
            return Ok(None);
        }
        let mut known = lock(&self.evidence);
        if let Some(e) = &*known {
            return Ok(Some(e.clone()));
        }
        let picks = prune::spread(self.calib.len(), self.shelf.recipe.evidence_images, self.shelf.recipe.seed());
        let mut unread = None;
        let parts = self.calib.parts(&picks, EVIDENCE_BATCH);
        let batches = parts.iter().map_while(|picks| {
            let read = self.calib.batch(picks, &self.model.info.preprocess);
            read.map_err(|e| unread = Some(e)).ok()
        });
        let what = format!("{} of calibration images", method.label());
        let mut say = |done| job.progress("importance", &what, done, picks.len());
        say(0);
        let made = prune::evidence(&self.model, self.calib.task(), method, batches, job.cancel(), &mut say);
        if let Some(e) = unread {
            return Err(JobError::of(e));
        }
        let made = Arc::new(made?);
        self.unchanged()?;
        *known = Some(made.clone());
        Ok(Some(made))
    }

    /// Ranks the units of every group that is not ranked yet.
    fn rank_groups(&self, before: &mut dyn FnMut(usize, usize) -> Result<(), JobError>) -> Result<(), JobError> {
        let evidence = lock(&self.evidence).clone();
        let open: Vec<&Group> =
            self.desk.groups.iter().filter(|g| g.protected.is_none() && self.desk.ranks.of(&g.id).is_none()).collect();
        for (i, group) in open.iter().enumerate() {
            before(i, open.len())?;
            let scores = prune::importance(&self.model, group, self.shelf.recipe.how.importance, evidence.as_deref())?;
            self.unchanged()?;
            self.desk.ranks.set(&group.id, scores);
        }
        Ok(())
    }
}

impl Engine for Compute {
    fn card(&self) -> SessionCard {
        self.shelf.card.clone()
    }

    fn desk(&self) -> &dyn Desk {
        &self.desk
    }

    fn gauges(&self) -> Option<Arc<Gauges>> {
        self.gauges.clone()
    }

    fn export(&self, state: &State, round: u32, path: &str, format: &str, job: &Job) -> Result<Exported, JobError> {
        self.shelf.write_model(state, round, path, format, (Some(&self.model), job))
    }

    fn work(&self) -> Result<&dyn Work, JobError> {
        Ok(self)
    }
}

impl Work for Compute {
    fn profile(&self, state: &State, round: u32, job: &Job) -> Result<Profile, JobError> {
        self.on_original(|| self.profile_round(state, round, job))
    }

    fn decoding(&self, state: &State, round: u32, job: &Job) -> Result<Option<Profile>, JobError> {
        self.on_original(|| self.profile_decoding(&self.model_of(state, round)?, job))
    }

    fn beside_original(&self, state: &State, round: u32, job: &Job) -> Result<Option<Paired>, JobError> {
        self.on_original(|| self.time_beside(state, &self.model_of(state, round)?, job))
    }

    fn changed(&self, state: &State, what: WhatChanged) -> Result<Changed, JobError> {
        self.what_changed(state, what)
    }

    fn tokens(&self, state: &State, what: WhatTokens) -> Result<Tokens, JobError> {
        self.on_original(|| self.tokens_of(state, what))
    }

    fn rounding(&self, layer: &str) -> Result<Vec<(Precision, f32)>, JobError> {
        self.on_original(|| self.rounding_of(layer))
    }

    fn activations(&self, layer: &str) -> Result<Activations, JobError> {
        self.on_original(|| self.activations_of(layer))
    }

    fn baseline(&self, state: &State, job: &Job) -> Result<Evaluation, JobError> {
        self.on_original(|| self.evaluate_original(state, job))
    }

    fn ladders(&self, state: &State, job: &Job) -> Result<Vec<Ladder>, JobError> {
        self.on_original(|| self.measure_ladders(state, job))
    }

    fn sense(&self, _: &State, job: &Job) -> Result<(), JobError> {
        self.on_original(|| self.measure_sensitivity(job))
    }

    fn anchor(&self, state: &State, job: &Job) -> Result<(), JobError> {
        self.on_original(|| self.try_anchors(state, job))
    }

    fn rehearse(&self, state: &State, actions: &[(Target, Action)], job: &Job) -> Result<(), JobError> {
        self.on_original(|| self.rehearse_plan(state, actions, job))
    }

    fn search(&self, state: &State, job: &Job) -> Result<(), JobError> {
        self.on_original(|| self.search_plans(state, job))
    }

    fn control(&self, state: &State, target: f64, job: &Job) -> Result<(), JobError> {
        self.on_original(|| self.run_controller(state, target, job))
    }

    fn propose(&self, state: &State, by: Proposer, llm: &Llm, job: &Job) -> Result<(), JobError> {
        match by {
            Proposer::Planner => self.ask_planner(state, job),
            Proposer::Agents => self.ask_agents(state, llm, job),
        }
    }

    fn ask(&self, state: &State, role: &'static Role, llm: &Llm, job: &Job) -> Result<(), JobError> {
        self.ask_role(state, role, llm, job)
    }

    fn critique(&self, state: &State, round: u32) -> Option<Utterance> {
        crate::agent::critic::utterance(state, round)
    }

    fn reflect(&self, state: &State, _: u32, llm: &Llm, job: &Job) -> Result<(), JobError> {
        self.argue(state, llm, job)
    }

    fn rank(&self, job: &Job) -> Result<(), JobError> {
        if self.desk.groups.iter().all(|g| g.protected.is_some() || self.desk.ranks.of(&g.id).is_some()) {
            return Ok(());
        }
        self.on_original(|| {
            self.evidence(job)?;
            self.rank_groups(&mut |done, all| {
                job.cancel().check()?;
                job.progress("importance", self.shelf.recipe.how.importance.label(), done, all);
                Ok(())
            })
        })
    }

    fn compress(&self, state: &State, round: u32, job: &Job) -> Result<Built, JobError> {
        self.on_original(|| self.make_model(state, round, job))
    }

    fn heal(&self, state: &State, round: u32, heal: Heal, made: &Built, job: &Job) -> Result<Built, JobError> {
        self.on_original(|| self.heal_built(state, round, heal, made, job))
    }

    fn evaluate(
        &self,
        state: &State,
        round: u32,
        artifact: &str,
        until_clear: bool,
        job: &Job,
    ) -> Result<(Evaluation, Verdict), JobError> {
        self.on_original(|| self.judge_model(state, (round, artifact), until_clear, job))
    }
}
