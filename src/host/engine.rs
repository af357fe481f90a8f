//! The one narrow door between the host and compute: what a session needs done, and how a job talks while doing it.
//!
//! Not here: anything about sockets, clients or the journal. Invariants: methods that take a [`Job`] run on a job's own
//! thread and check its cancel flag; the others hand out what is there.

use super::desk::Desk;
use super::dial::Dial;
pub use super::error::JobError;
use super::input::Input;
use crate::control::Figures;
use crate::exec::Cancel;
use crate::plan::{Action, Target, Verdict};
use crate::profile::{Gauges, Ladder, Paired, Profile};
use crate::quant::Precision;
use crate::session::{
    Activations, Answers, Built, Changed, Evaluation, Event, Feed, Limits, LiveRow, Looks, Progress, Proposer, Role,
    SessionCard, State, Tokens, Utterance, WhatChanged, WhatTokens,
};
use crate::train::{Course, Heal, LayerPulse};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// An exported file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exported {
    pub path: String,
    pub format: String,
    pub hash: String,
    /// Bytes of a file; 0 of a folder.
    pub bytes: u64,
    /// What is otherwise in it than was decided.
    pub notes: Vec<String>,
}

/// Where agents are reached, as set at start or by `:llm`, how much they may look up, by `:looks`, and take, by `:limits`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Llm {
    pub base_url: Option<String>,
    pub model: Option<String>,
    /// Roles that are answered by somebody else.
    pub roles: BTreeMap<String, Answers>,
    pub looks: Looks,
    pub limits: Limits,
}

impl Llm {
    /// Model and endpoint as they may be shown; `None` where neither is named and the planner proposes.
    pub fn words(&self) -> Option<String> {
        if self.base_url.is_none() && self.model.is_none() {
            return None;
        }
        let model = self.model.as_deref().unwrap_or("the endpoint's model");
        let url = self.base_url.as_deref().map_or("the endpoint from the environment".to_owned(), crate::mask::address);
        let own = |(role, by): (&String, &Answers)| match by {
            Answers::Planner => format!(", {role} by the planner"),
            Answers::Model { model, base_url: None } => format!(", {role} by {model}"),
            Answers::Model { model, base_url: Some(url) } => {
                format!(", {role} by {model} at {}", crate::mask::address(url))
            }
        };
        Some(format!("{model} at {url}{}", self.roles.iter().map(own).collect::<String>()))
    }
}

/// What every session asks of compute, also one that was opened for exports alone.
pub trait Engine: Send + Sync {
    /// What was opened, for the session's first event.
    fn card(&self) -> SessionCard;

    /// Where commands are answered, between two of them and without any of the work below.
    fn desk(&self) -> &dyn Desk;

    /// What the GPU that it computes on says of itself; `None` for a CPU, and where no gauge opens.
    fn gauges(&self) -> Option<Arc<Gauges>> {
        None
    }

    /// Writes the model of `round` to `path` (empty: a default name).
    fn export(&self, state: &State, round: u32, path: &str, format: &str, job: &Job) -> Result<Exported, JobError>;

    /// What needs the original and its data.
    ///
    /// # Errors
    /// They are not opened.
    fn work(&self) -> Result<&dyn Work, JobError>;
}

/// Everything else that a session asks of compute.
pub trait Work: Engine {
    /// Profiles the model that `round` made; 0 is the original.
    fn profile(&self, state: &State, round: u32, job: &Job) -> Result<Profile, JobError>;

    /// Profiles one token after a context of the model that `round` made; `None` where it is no language model, or the device does
    /// not go token by token.
    fn decoding(&self, _: &State, _round: u32, _: &Job) -> Result<Option<Profile>, JobError> {
        Ok(None)
    }

    /// Times the model that `round` made beside the original; `None` where the device has no memory for that.
    fn beside_original(&self, state: &State, round: u32, job: &Job) -> Result<Option<Paired>, JobError>;

    /// Evaluates the original on the evaluation data.
    fn baseline(&self, state: &State, job: &Job) -> Result<Evaluation, JobError>;

    fn ladders(&self, state: &State, job: &Job) -> Result<Vec<Ladder>, JobError>;

    /// Measures sensitivities and hands them out as `Sensed` events while it goes.
    fn sense(&self, state: &State, job: &Job) -> Result<(), JobError>;

    /// Builds and tries whole plans that forecasts of quality are fitted to, as `Tried` events.
    fn anchor(&self, state: &State, job: &Job) -> Result<(), JobError>;

    /// Builds a plan as a run would and tries it on held-back images, as `Built` and `Tried` events.
    fn rehearse(&self, state: &State, actions: &[(Target, Action)], job: &Job) -> Result<(), JobError>;

    /// Builds and tries the planner's other plans for the budget, as `Built` and `Tried` events, and says what came of it.
    fn search(&self, _: &State, _: &Job) -> Result<(), JobError> {
        Ok(())
    }

    /// Makes levels of the model in force and a controller for `target` of its time a token unless the state has them, as a `Controlled`
    /// event, and decodes with them until the job is stopped, telling how it goes. Stopped there it has come to its end.
    fn control(&self, _: &State, _target: f64, _: &Job) -> Result<(), JobError> {
        Err(JobError::Failed("nothing here has levels; hint: a session on a language model has".to_owned()))
    }

    /// Proposes decisions as `Proposed` events (ids, rounds and status are the host's); what is said goes out as feed
    /// and `Said` events.
    fn propose(&self, state: &State, by: Proposer, llm: &Llm, job: &Job) -> Result<(), JobError>;

    /// One role of the agents speaks, as it would in a proposal.
    fn ask(&self, _: &State, _: &'static Role, _: &Llm, _: &Job) -> Result<(), JobError> {
        Err(JobError::Failed("nothing here has agents".to_owned()))
    }

    /// What a round's forecasts and expectations came to, with the state as its verdict leaves it: told with the verdict, so that no
    /// haste can cut it off.
    fn critique(&self, _: &State, _round: u32) -> Option<Utterance> {
        None
    }

    /// After a verdict: says what else to make of it.
    fn reflect(&self, state: &State, round: u32, llm: &Llm, job: &Job) -> Result<(), JobError>;

    /// Works out how units rank where the desk does not know it yet.
    fn rank(&self, job: &Job) -> Result<(), JobError>;

    /// Compresses the original by the state's recipe and stores the result.
    fn compress(&self, state: &State, round: u32, job: &Job) -> Result<Built, JobError>;

    /// Heals what `made` holds as `heal` says, for `round`, and stores the result; what came of it is a `Healed` event. Told that it is enough it
    /// keeps what is best so far.
    fn heal(&self, _: &State, _round: u32, _: Heal, _made: &Built, _: &Job) -> Result<Built, JobError> {
        Err(JobError::Failed("nothing here is trained".to_owned()))
    }

    /// What a round's model answers otherwise than the original, from what was kept of both: reads items, computes nothing.
    ///
    /// # Errors
    /// Nothing was kept of such a round.
    fn changed(&self, _: &State, _: WhatChanged) -> Result<Changed, JobError> {
        Err(JobError::Failed("nothing here keeps what models answer".to_owned()))
    }

    /// What the original and a round's model make of each token of one text: runs both on it.
    ///
    /// # Errors
    /// No such round or item, items that are no text foretold token by token, a model that cannot run.
    fn tokens(&self, _: &State, _: WhatTokens) -> Result<Tokens, JobError> {
        Err(JobError::Failed("nothing here foretells tokens".to_owned()))
    }

    /// How far the weights of the original's `layer` are off in each precision that it can have: see [`Feed::Rounding`].
    ///
    /// # Errors
    /// No such layer, a file that is gone.
    fn rounding(&self, _layer: &str) -> Result<Vec<(Precision, f32)>, JobError> {
        Ok(Vec::new())
    }

    /// What flows into the original's `layer`, and how far its output is off in each precision that it can have: see [`Activations`]. Takes some
    /// seconds of all processors.
    ///
    /// # Errors
    /// No such layer, none that takes a precision, data or a file that is gone.
    fn activations(&self, _layer: &str) -> Result<Activations, JobError> {
        Err(JobError::Failed("nothing here runs layers".to_owned()))
    }

    /// Evaluates a compressed model against the baseline in `state`; `until_clear`: where the task allows it no longer than until it is clear
    /// whether the budget's `drop` is kept.
    fn evaluate(
        &self,
        state: &State,
        round: u32,
        artifact: &str,
        until_clear: bool,
        job: &Job,
    ) -> Result<(Evaluation, Verdict), JobError>;
}

/// What stops a job: compute looks at the flag between batches, whoever waits is woken.
#[derive(Debug, Clone, Default)]
pub struct Stop {
    flag: Cancel,
    token: CancellationToken,
}

impl Stop {
    pub fn cancel(&self) {
        self.flag.cancel();
        self.token.cancel();
    }
}

/// A running job's line to the host.
#[derive(Debug)]
pub struct Job {
    stop: Stop,
    dial: Arc<Dial>,
    inputs: mpsc::Sender<Input>,
    pace: Mutex<Pace>,
}

/// Feed messages of one job go out at most this often; the newest is never lost for long, as it is sent with the next.
const EVERY: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
struct Pace {
    jobs: BTreeMap<String, Meter>,
    live: Option<Instant>,
    rows: BTreeMap<String, LiveRow>,
}

#[derive(Debug)]
struct Meter {
    started: Instant,
    from: u64,
    sent: Option<Instant>,
}

impl Job {
    pub(super) fn new(stop: Stop, dial: Arc<Dial>, inputs: mpsc::Sender<Input>) -> Job {
        Job { stop, dial, inputs, pace: Mutex::default() }
    }

    /// What may be turned while it goes on.
    pub fn dial(&self) -> &Dial {
        &self.dial
    }

    pub fn cancel(&self) -> &Cancel {
        &self.stop.flag
    }

    /// Cancelled as soon as the job is.
    pub fn token(&self) -> CancellationToken {
        self.stop.token.child_token()
    }

    /// Makes `event` durable and applies it; returns once both have happened.
    pub fn event(&self, event: Event) -> Result<(), JobError> {
        self.events(vec![event])
    }

    /// As [`Job::event`], all or none.
    pub fn events(&self, events: Vec<Event>) -> Result<(), JobError> {
        let (reply, done) = oneshot::channel();
        self.send(Input::Commit { events, reply })?;
        done.blocking_recv().map_err(|_| JobError::Cancelled)?.map_err(JobError::Failed)
    }

    /// As [`Job::event`], on a runtime.
    pub async fn event_async(&self, event: Event) -> Result<(), JobError> {
        let (reply, done) = oneshot::channel();
        let input = Input::Commit { events: vec![event], reply };
        self.inputs.send(input).await.map_err(|_| JobError::Cancelled)?;
        done.await.map_err(|_| JobError::Cancelled)?.map_err(JobError::Failed)
    }

    /// The session's state now.
    pub fn state(&self) -> Result<Arc<State>, JobError> {
        let (reply, state) = oneshot::channel();
        self.send(Input::Snapshot { reply })?;
        state.blocking_recv().map_err(|_| JobError::Cancelled)
    }

    /// As [`Job::state`], on a runtime.
    pub async fn state_async(&self) -> Result<Arc<State>, JobError> {
        let (reply, state) = oneshot::channel();
        self.inputs.send(Input::Snapshot { reply }).await.map_err(|_| JobError::Cancelled)?;
        state.await.map_err(|_| JobError::Cancelled)
    }

    fn send(&self, input: Input) -> Result<(), JobError> {
        self.inputs.blocking_send(input).map_err(|_| JobError::Cancelled)
    }

    /// Words from an agent, or a line for the log: nothing is lost, so this may wait for the host.
    pub fn say(&self, feed: Feed) {
        drop(self.send(Input::Feed(feed)));
    }

    /// As [`Job::say`], on a runtime.
    pub async fn say_async(&self, feed: Feed) {
        drop(self.inputs.send(Input::Feed(feed)).await);
    }

    /// How far `job` is. Sent now and then; rate and time left are worked out here.
    pub fn progress(&self, job: &str, label: &str, done: usize, total: usize) {
        let (done, total) = (done as u64, total as u64);
        let now = Instant::now();
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        let meter = pace.jobs.entry(job.to_owned()).or_insert(Meter { started: now, from: done, sent: None });
        if done < meter.from {
            *meter = Meter { started: now, from: done, sent: None };
        }
        if done < total && meter.sent.is_some_and(|t| now.duration_since(t) < EVERY) {
            return;
        }
        meter.sent = Some(now);
        let seconds = now.duration_since(meter.started).as_secs_f64();
        let rate = if seconds > 0.0 { (done - meter.from) as f64 / seconds } else { 0.0 };
        let eta_s = (rate > 0.0).then(|| total.saturating_sub(done) as f64 / rate);
        drop(pace);
        let progress = Progress { job: job.to_owned(), label: label.to_owned(), done, total, rate, eta_s };
        // Never waits: a figure that finds no room is superseded soon.
        drop(self.inputs.try_send(Input::Feed(Feed::Progress(progress))));
    }

    /// As [`Job::progress`], for work that tells how many of how many are done.
    pub fn meter(&self, job: &str, label: &str) -> impl FnMut(usize, usize) {
        move |done, total| self.progress(job, label, done, total)
    }

    /// How a controller does. Never waits, as figures that find no room are superseded soon.
    pub fn levels(&self, figures: Figures) {
        drop(self.inputs.try_send(Input::Feed(Feed::Levels(Box::new(figures)))));
    }

    /// How a healing goes. As [`Job::levels`].
    pub fn healing(&self, step: u32, loss: f64, course: Course) {
        drop(self.inputs.try_send(Input::Feed(Feed::Healing { step, loss, course: Box::new(course) })));
    }

    /// What a healing's layers do. As [`Job::levels`].
    pub fn pulse(&self, step: u32, layers: Arc<[LayerPulse]>) {
        drop(self.inputs.try_send(Input::Feed(Feed::Pulse { step, layers })));
    }

    /// Live figures of heatmap rows. Sent now and then, the newest of each row.
    pub fn live(&self, runs: u64, rows: impl IntoIterator<Item = LiveRow>) {
        let now = Instant::now();
        let mut pace = self.pace.lock().unwrap_or_else(PoisonError::into_inner);
        pace.rows.extend(rows.into_iter().map(|r| (r.name.clone(), r)));
        if pace.live.is_some_and(|t| now.duration_since(t) < EVERY) {
            return;
        }
        pace.live = Some(now);
        let rows = std::mem::take(&mut pace.rows).into_values().collect();
        drop(pace);
        drop(self.inputs.try_send(Input::Feed(Feed::Live { runs, rows })));
    }
}
