//! Levels of the model in force and the controller that chooses among them: made on calibration text, then at work beside every fixed level
//! on the windows that are held back.
//!
//! Not here: how either is done (`control`), who may ask for it (`host/commands`). Invariants: what is made is durable before it runs; no
//! token that it learnt from is shown as its work, and none of the evaluation data; nothing is computed while nobody looks.

use super::{Compute, takes_text};
use crate::control::{
    Control, ControlError, FEWEST_WINDOWS, Learner, Live, Making, Origin, Policy, Stage, branches, learn, make,
};
use crate::data::Dataset;
use crate::exec::{KvFormat, Plan};
use crate::files;
use crate::graph::Graph;
use crate::host::engine::{Job, JobError};
use crate::model::{Model, Preprocess};
use crate::prune::{self, Group};
use crate::session::{Controlled, Event, LevelMade, State};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Levels, the whole network among them: each runs beside the controller.
const LEVELS: usize = 4;
/// Tokens of a window that the whole network reads, or a quarter of a short one.
const PROMPT: usize = 16;
/// Calibration windows that are looked at, and tokens of all of them, unless that were too few windows.
const MOST: (usize, usize) = (80, 20 << 10);
/// Figures are told this often.
const EVERY: Duration = Duration::from_millis(250);
/// How often it is looked whether somebody looks.
const NOBODY: Duration = Duration::from_millis(100);

impl From<ControlError> for JobError {
    fn from(e: ControlError) -> JobError {
        if e.is_cancelled() { JobError::Cancelled } else { JobError::of(e) }
    }
}

/// Whether levels can be made of `model` with `work`, and shown on `held`.
///
/// # Errors
/// Why not, in words.
pub(super) fn can(model: &Model, groups: &[Group], work: &Dataset, held: &Dataset) -> Result<(), String> {
    let name = &model.info.name;
    if !takes_text(model) {
        return Err(format!(
            "`{name}` is no language model; hint: only those compute a token at one of several levels"
        ));
    }
    if branches(model, groups).is_empty() {
        return Err(ControlError::NoBranches { model: name.clone() }.to_string());
    }
    if work.len() < FEWEST_WINDOWS || held.is_empty() {
        return Err(format!(
            "{} calibration windows and {} held back are too few: {FEWEST_WINDOWS} and 1 are needed; hint: a longer text \
             for `--calib`, or a smaller `--window`",
            work.len(),
            held.len()
        ));
    }
    Ok(())
}

/// The windows of `data` that `picks` name, as token ids.
fn windows(data: &Dataset, picks: impl IntoIterator<Item = usize>) -> Result<Vec<Vec<u32>>, JobError> {
    let one = |i: usize| -> Result<Vec<u32>, JobError> {
        let (ids, _) = data.batch([i], &Preprocess::none()).map_err(JobError::of)?;
        ids.flatten_all().and_then(|ids| ids.to_vec1::<u32>()).map_err(JobError::of)
    };
    picks.into_iter().map(one).collect()
}

/// What runs.
struct Ready {
    plans: Vec<Plan>,
    policy: Policy,
    prompt: usize,
}

impl Compute {
    /// Makes levels and a controller of the model in force unless the session has them, and runs them until it is stopped.
    pub(super) fn run_controller(&self, state: &State, target: f64, job: &Job) -> Result<(), JobError> {
        let round = state.base_round();
        let model = self.model_of(state, round)?;
        // One token at a time, after as many as there are.
        let model = Model { graph: Arc::new(Graph::clone(&model.graph).freed()), ..model };
        let there = state.control_of(round).filter(|c| (c.target - target).abs() < 1e-9);
        let ready = match there {
            Some(made) => self.taken(made, &model)?,
            None => self.made(state, round, target, &model, job)?,
        };
        let held = windows(&self.held, 0..self.held.len())?;
        let long: Vec<Vec<u32>> = held.into_iter().filter(|w| w.len() >= ready.prompt + 2).collect();
        if long.is_empty() {
            return Err(
                ControlError::Short { what: "tokens of held-back windows", found: 0, least: ready.prompt + 2 }.into()
            );
        }
        self.shown(&ready, &long, job)
    }

    /// What was made before.
    fn taken(&self, made: &Controlled, model: &Model) -> Result<Ready, JobError> {
        let control = self.shelf.control(made, model)?;
        let plans = control.plans(model, &self.compiles())?;
        Ok(Ready { plans, policy: control.policy, prompt: made.prompt as usize })
    }

    fn made(&self, state: &State, round: u32, target: f64, model: &Model, job: &Job) -> Result<Ready, JobError> {
        let tokens = model_window(&self.calib)?;
        let most = (MOST.1 / tokens.max(1)).clamp(FEWEST_WINDOWS, MOST.0).min(self.calib.len());
        let seed = self.shelf.recipe.seed();
        let text = windows(&self.calib, prune::spread(self.calib.len(), most, seed))?;
        let prompt = PROMPT.min(tokens / 4).max(1);
        let how = Making {
            levels: LEVELS,
            target,
            least: None,
            kv: KvFormat::default(),
            time_limit: self.patient(Duration::from_secs(30)),
        };
        let mut told = |stage: Stage| match stage {
            Stage::Branches(t) => {
                job.progress("levels", "MLPs that cost least", t.done + (t.rung - 1) * t.of, t.rungs * t.of);
            }
            Stage::Fits(done, of) => job.progress("repair", "what reads the neurons that are left", done, of),
            Stage::Times => job.progress("level times", "a token of each in turn", 0, 0),
            Stage::Tokens(done, of) => job.progress("tokens", "what follows each token", done, of),
            Stage::Levels(done, of) => job.progress("lessons", "what each level says", done, of),
        };
        let made = make(model, &text, None, (&how, &self.compiles()), job.cancel(), &mut told)?;
        let lesson = made.lesson(prompt, target);
        job.progress("controller", "learning", 0, 0);
        let learner = Learner::Bandit;
        let learnt = learn::learn(learner, &lesson, seed);
        let promised = learn::replay(&learnt.policy, &lesson);
        job.cancel().check()?;
        let (text, device) = (self.shelf.card.calib.name.clone(), self.device.words.clone());
        let origin = Origin { learner, seed, target, text, device: device.clone() };
        let control = Control::new(model, (made.ladder.clone(), made.fits.clone()), learnt.policy.clone(), origin);
        let bytes = control.to_bytes()?;
        self.unchanged()?;
        let artifact = self.shelf.artifacts.put("json", |path| files::write(path, &bytes)).map_err(JobError::of)?;
        let all: Vec<u64> = made.plans.iter().map(Plan::bytes_per_token).collect();
        let means = made.lessons.means(prompt);
        let level = |i: usize| LevelMade {
            bytes: all[i],
            share: all[i] as f64 / all[0].max(1) as f64,
            time: made.times[i].ratio,
            divergence: means[i],
            mlps: made.ladder.mlps(&made.ladder.levels[i]),
        };
        let controlled = Controlled {
            round,
            of: state.round_at(round).filter(|_| round > 0).and_then(|r| r.artifact.clone()),
            artifact,
            target,
            learner,
            seed,
            prompt: prompt as u64,
            levels: (0..all.len()).map(level).collect(),
            own_bytes: made.beside,
            taught: made.lessons.tokens() as u64,
            table: made.table.len() as u64,
            promised,
            regret: learnt.regret.last().map(|(tokens, nats)| nats / (*tokens).max(1) as f64),
            device,
        };
        if !controlled.is_sound() {
            let why = "levels or times came out as no numbers; hint: a longer calibration text, a quieter machine";
            return Err(JobError::Failed(why.to_owned()));
        }
        job.event(Event::Controlled { control: Box::new(controlled) })?;
        Ok(Ready { plans: made.plans, policy: learnt.policy, prompt })
    }

    /// Goes through the windows again and again until it is stopped, which is how it ends.
    fn shown(&self, ready: &Ready, windows: &[Vec<u32>], job: &Job) -> Result<(), JobError> {
        let context = windows.iter().map(Vec::len).max().unwrap_or(1);
        let seed = self.shelf.recipe.seed();
        let mut live = Live::over(&ready.plans, &ready.policy, (ready.prompt, context, KvFormat::default()), seed)?;
        let mut told: Option<Instant> = None;
        for window in windows.iter().cycle() {
            live.begin(window)?;
            loop {
                while !job.dial().watched() && job.cancel().check().is_ok() {
                    std::thread::sleep(NOBODY);
                }
                if job.cancel().check().is_err() {
                    return Ok(());
                }
                live.ask(job.dial().asked());
                if !live.step()? {
                    break;
                }
                if told.is_none_or(|t| t.elapsed() >= EVERY) {
                    told = Some(Instant::now());
                    if let Some(figures) = live.figures() {
                        job.levels(figures);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Tokens of a window.
fn model_window(data: &Dataset) -> Result<usize, JobError> {
    Ok(windows(data, [0])?.first().map_or(1, Vec::len))
}
