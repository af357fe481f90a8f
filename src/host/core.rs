//! The heart of a host: one thread that owns state, journal, clients and the running job.
//!
//! Invariants: an event is durable before it is applied, and applied before anybody hears of it; nothing here waits for
//! a client or for compute; at most one job runs. What could not be made durable because the disk was full is owed and
//! written before anything else.

use super::aside::Aside;
use super::commands::{self, Then};
use super::dial::Dial;
use super::engine::{Engine, Job, JobError, Llm, Stop};
use super::input::Input;
use super::jobs::{self, JobKind};
use super::ledger::{self, Ledger};
use super::machine::Watch;
use super::outbox::Outbox;
use crate::control::Asked;
use crate::plan::plan_key;
use crate::session::{Command, Event, Feed, HostMsg, Journal, Looks, PROTOCOL, Phase, Progress, Record, Seq, State};
use crate::words::counted;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;

/// How long a plan stands still before it is rehearsed.
const STILL: Duration = Duration::from_millis(1200);
/// How long a job may take to notice that the host stops.
const GRACE: Duration = Duration::from_secs(5);

/// What goes on by itself.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Auto {
    /// A fresh session profiles, senses and proposes.
    pub on_open: bool,
    /// An accepted round that did not meet the budget proposes again.
    pub on_accept: bool,
    /// A plan that stands still is rehearsed, and others are looked for beside it.
    pub rehearse: bool,
}

struct Slot {
    name: String,
    watch: bool,
    outbox: Arc<Outbox>,
}

struct Running {
    what: &'static str,
    stop: Stop,
    /// What nobody asked for, by its plan: everything else goes before it.
    background: Option<String>,
    /// The round whose verdict is given: what still runs only comments on it.
    comments_on: Option<u32>,
    /// Newest progress and whoever speaks, for clients that attach meanwhile.
    progress: Option<Feed>,
    turn: Option<Feed>,
    /// Newest figures of a controller or a healing, likewise, and of a healing's layers.
    levels: Option<Feed>,
    pulse: Option<Feed>,
    _machine: Watch,
}

impl Running {
    /// What ends, in words, when the job is cut short.
    fn words(&self) -> String {
        match self.comments_on {
            Some(round) => format!("comment on round {round}"),
            None => self.what.to_owned(),
        }
    }

    /// A stage that has come to its result is no longer on the way.
    fn hear(&mut self, event: &Event) {
        if let Event::VerdictGiven { round, .. } = event {
            self.comments_on = Some(*round);
        }
        if event.ends_a_stage() {
            self.progress = None;
        }
    }

    /// What a client that has only the state does not see: that something runs, and how far it is.
    fn seen(&self) -> Vec<Feed> {
        let started = || Feed::Progress(Progress { job: self.words(), ..Progress::default() });
        let mut out: Vec<Feed> = self.progress.iter().chain(&self.turn).cloned().collect();
        if out.is_empty() {
            out.push(started());
        }
        out.extend(self.levels.iter().chain(&self.pulse).cloned());
        out
    }
}

/// Things that are looked up at once at most.
const MOST_ASIDES: usize = 4;

/// One less when it is dropped, also by a panic.
struct Done(Arc<AtomicUsize>);

impl Drop for Done {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

pub(super) struct Core {
    journal: Journal,
    state: Arc<State>,
    engine: Arc<dyn Engine>,
    clients: BTreeMap<u64, Slot>,
    next_client: u64,
    pen: Option<u64>,
    job: Option<Running>,
    /// What may be turned while it goes on.
    dial: Arc<Dial>,
    /// Starts when the running job has ended.
    next_job: Option<JobKind>,
    /// Events that a full disk kept from being written.
    owed: Vec<Event>,
    llm: Llm,
    auto: Auto,
    ledger: Option<Ledger>,
    stopping: Option<String>,
    /// A [`Input::Still`] is on its way.
    waiting: bool,
    /// The plan whose rehearsal failed or was cancelled: not tried again by itself.
    given_up: Option<String>,
    /// What is being looked up beside jobs.
    asides: Arc<AtomicUsize>,
    /// The plan beside which others were looked for already.
    searched: Option<String>,
    /// What opening the journal had to repair, for every client.
    recovered: Option<String>,
    tx: mpsc::Sender<Input>,
}

impl Core {
    pub fn new(
        (journal, recovered): (Journal, Option<String>),
        state: State,
        engine: Arc<dyn Engine>,
        (llm, auto, ledger): (Llm, Auto, Option<Ledger>),
        tx: mpsc::Sender<Input>,
    ) -> Core {
        Core {
            journal,
            state: Arc::new(state),
            engine,
            clients: BTreeMap::new(),
            next_client: 1,
            pen: None,
            job: None,
            dial: Arc::default(),
            next_job: None,
            owed: Vec::new(),
            llm,
            auto,
            ledger,
            asides: Arc::default(),
            searched: None,
            stopping: None,
            waiting: false,
            given_up: None,
            recovered,
            tx,
        }
    }

    /// Writes what opening has to say: a fresh session's first event, or a recipe that is another one. Then starts its
    /// first job, or lands what a dead host left half done.
    pub fn begin(&mut self, first: Vec<Event>) -> Result<(), String> {
        let fresh = matches!(first.first(), Some(Event::Opened { .. }));
        self.commit(first)?;
        if let Some(records) = self.ledger.as_ref().map(Ledger::recall).filter(|r| *r != self.state.records) {
            self.commit(vec![Event::Recalled { records }])?;
        }
        if fresh {
            if self.auto.on_open {
                self.start(JobKind::Open);
            }
            return Ok(());
        }
        match self.state.phase {
            Phase::Profile | Phase::Reason | Phase::Compress | Phase::Evaluate => {
                let what = format!("{} (interrupted by a restart)", self.state.phase.label());
                self.commit(vec![Event::Cancelled { what }])
            }
            Phase::Review | Phase::Verdict => Ok(()),
        }
    }

    /// Serves until stopped.
    pub fn run(mut self, mut rx: mpsc::Receiver<Input>) {
        while let Some(input) = rx.blocking_recv() {
            self.handle(input);
            if self.stopping.is_some() && self.job.is_none() {
                break;
            }
        }
        let reason = self.stopping.take().unwrap_or_else(|| "the host ends".to_owned());
        tracing::info!(reason, "host ends");
        for slot in self.clients.values() {
            slot.outbox.push(HostMsg::Bye { reason: reason.clone() });
            slot.outbox.close();
        }
    }

    fn handle(&mut self, input: Input) {
        match input {
            Input::Attach { name, watch, outbox, reply } => {
                let client = self.next_client;
                self.next_client += 1;
                tracing::info!(client, name, watch, "attached");
                if self.pen.is_none() && !watch {
                    self.pen = Some(client);
                }
                self.greet(client, &outbox);
                self.clients.insert(client, Slot { name, watch, outbox });
                self.dial.watch(true);
                self.tell_pen();
                let _ = reply.send(client);
            }
            Input::Detach { client } => {
                self.clients.remove(&client);
                self.dial.watch(!self.clients.is_empty());
                tracing::info!(client, "detached");
                if self.pen == Some(client) {
                    self.pen = self.clients.iter().find(|(_, s)| !s.watch).map(|(&id, _)| id);
                    self.tell_pen();
                }
            }
            Input::Resync { client } => {
                tracing::warn!(client, "too slow for its events, sending the state anew");
                if let Some(slot) = self.clients.get(&client) {
                    self.greet(client, &slot.outbox);
                }
            }
            Input::Command { client, id, command } => {
                let result = self.command(client, command);
                if let Err(words) = &result {
                    tracing::info!(client, words, "refused");
                }
                if let Some(slot) = self.clients.get(&client) {
                    slot.outbox.push(HostMsg::Reply { id, result });
                }
            }
            Input::Commit { events, reply } => {
                let events = events.into_iter().flat_map(|e| self.admit(e)).collect();
                drop(reply.send(self.commit(events)));
            }
            Input::Snapshot { reply } => drop(reply.send(self.state.clone())),
            Input::Feed(feed) => self.feed(feed),
            Input::JobDone { result } => self.job_done(result),
            Input::Still { seq } => self.still(seq),
            Input::Stop { reason } => self.stop(reason),
            #[cfg(test)]
            Input::Room { pages } => self.journal.limit_pages(pages),
            Input::GraceOver => {
                if self.stopping.is_some()
                    && let Some(job) = self.job.take()
                {
                    tracing::warn!(job = job.what, "did not end in time");
                    self.settle(Event::Cancelled { what: job.words() });
                }
            }
        }
    }

    /// The whole session as it is, and what runs in it.
    fn greet(&self, you: u64, outbox: &Outbox) {
        let state = Box::new((*self.state).clone());
        outbox.push(HostMsg::Welcome { protocol: PROTOCOL, state, you, pen: self.pen });
        if let Some(text) = self.recovered.clone() {
            outbox.push(HostMsg::Feed { feed: Feed::warn(text) });
        }
        if self.llm.words().is_some() {
            outbox.push(HostMsg::Feed { feed: self.agents() });
        }
        for feed in self.job.iter().flat_map(Running::seen) {
            outbox.push(HostMsg::Feed { feed });
        }
    }

    /// Whom agents are, and what they may.
    fn agents(&self) -> Feed {
        Feed::Agents { at: self.llm.words(), turns: self.llm.looks.turns, limits: self.llm.limits.to_string() }
    }

    fn tell_agents(&mut self) {
        let feed = self.agents();
        self.feed(feed);
    }

    fn tell_pen(&self) {
        let holder_name = self.pen.and_then(|p| self.clients.get(&p)).map(|s| s.name.clone()).unwrap_or_default();
        self.broadcast(&HostMsg::Pen { holder: self.pen, holder_name });
    }

    fn broadcast(&self, message: &HostMsg) {
        self.clients.values().for_each(|s| s.outbox.push(message.clone()));
    }

    fn command(&mut self, client: u64, command: Command) -> Result<(), String> {
        let command = command.signed(self.clients.get(&client).map_or("", |s| s.name.as_str()));
        if command.needs_pen() && self.pen != Some(client) {
            let holder = self.pen.and_then(|p| self.clients.get(&p)).map_or("nobody", |s| s.name.as_str());
            return Err(format!("the pen is with `{holder}`; hint: take the pen first"));
        }
        let outside = |j: &Running| j.background.as_ref().is_some_and(|key| key.starts_with(jobs::OUTSIDE));
        if matches!(command, Command::Try { .. }) && self.job.as_ref().is_some_and(outside) {
            return Err("another plan is being tried for a program; hint: ask again when that is done".to_owned());
        }
        // How a job ended may still be owed, and the state without it refuses what was meant to follow: then the disk is the
        // reason, not the state.
        let owed = self.commit(Vec::new());
        // A rehearsal in the background is in nobody's way, but can be interrupted.
        let shown = |j: &&Running| j.background.is_none() || command == Command::Cancel;
        let running = self.job.as_ref().filter(shown).map(|j| j.what);
        let effect = commands::judge(&self.state, self.engine.desk(), running, command)
            .map_err(|words| owed.err().unwrap_or(words))?;
        if !effect.events.is_empty() {
            self.commit(effect.events)?;
        }
        match effect.then {
            Then::Nothing => {}
            Then::Start(kind) => self.start(kind),
            Then::NextRound if self.auto.on_accept => {
                let round = self.state.round;
                self.commit(vec![Event::PhaseEntered { round, phase: Phase::Reason }])?;
                self.start(JobKind::Propose(jobs::usual_proposer(&self.llm)));
            }
            Then::NextRound => {}
            Then::Cancel => {
                if self.job.is_some() && self.dial.enough() {
                    let text = "it ends with what it has; again: it is given up".to_owned();
                    self.feed(Feed::Log { level: "info".to_owned(), text });
                } else if let Some(job) = &self.job {
                    self.given_up.clone_from(&job.background);
                    job.stop.cancel();
                }
            }
            Then::Say { waits, text } => {
                let level = if waits { "warn" } else { "info" };
                self.feed(Feed::Log { level: level.to_owned(), text });
            }
            Then::Looks(looks) => {
                self.llm.looks = Looks { turns: self.llm.looks.turns, form: self.llm.looks.form, ..looks };
                let measured = match looks.measurements {
                    0 => String::new(),
                    n => format!(", {}", counted(n, "measurement")),
                };
                let text = match looks.calls {
                    0 => "agents look nothing up".to_owned(),
                    n => format!(
                        "agents may look things up: {} a role, {}{measured} a proposal",
                        counted(n, "call"),
                        counted(looks.rehearsals, "rehearsal")
                    ),
                };
                self.feed(Feed::Log { level: "info".to_owned(), text });
            }
            Then::Limits(limits) => {
                self.llm.limits = limits;
                let text = match limits.any() {
                    false => "a proposal of agents may take what it likes".to_owned(),
                    true => format!("a proposal of agents may take {limits}; beyond that the planner stands in"),
                };
                self.feed(Feed::Log { level: "info".to_owned(), text });
                self.tell_agents();
            }
            Then::Role { role, by } => {
                match by {
                    Some(by) => drop(self.llm.roles.insert(role.to_owned(), by)),
                    None => drop(self.llm.roles.remove(role)),
                }
                let at = self.llm.words();
                let words =
                    at.as_ref().map_or("the built-in planner proposes: `:llm` names an endpoint".to_owned(), |at| {
                        format!("agents: {at}")
                    });
                self.feed(Feed::Log { level: "info".to_owned(), text: words });
                self.tell_agents();
            }
            Then::Turns(turns) => {
                self.llm.looks.turns = turns;
                let text = match turns {
                    1 => "agents propose once, and wait for you".to_owned(),
                    n => format!(
                        "agents go on by themselves, up to {n} turns, until they have a question; nothing is approved"
                    ),
                };
                self.feed(Feed::Log { level: "info".to_owned(), text });
                self.tell_agents();
            }
            Then::Llm { base_url, model } => {
                let (roles, looks, limits) = (std::mem::take(&mut self.llm.roles), self.llm.looks, self.llm.limits);
                self.llm = Llm { base_url, model, roles, looks, limits };
                let at = self.llm.words();
                let words =
                    at.as_ref().map_or("the built-in planner proposes".to_owned(), |at| format!("agents: {at}"));
                self.feed(Feed::Log { level: "info".to_owned(), text: words });
                self.tell_agents();
            }
            Then::Restore(seq) => {
                let past = self.past(seq)?;
                let effect = commands::restore(&self.state, self.engine.desk(), &past)?;
                self.commit(effect.events)?;
                if let Then::Say { text, .. } = effect.then {
                    self.feed(Feed::Log { level: "warn".to_owned(), text });
                }
            }
            Then::Tell(feed) => self.feed(feed),
            Then::Aside(what) => self.aside(what)?,
            Then::Level(asked) => self.dial.ask(asked),
            Then::TakePen => {
                self.pen = Some(client);
                self.tell_pen();
            }
            Then::Stop => self.stop("stopped by a command".to_owned()),
        }
        Ok(())
    }

    /// The session as it was after event `seq`.
    fn past(&self, seq: Seq) -> Result<State, String> {
        let folder = self.journal.path().parent().unwrap_or(Path::new(""));
        let records = Journal::read(folder).map_err(|e| e.to_string())?;
        Ok(State::fold(records.iter().take_while(|r| r.seq <= seq)))
    }

    /// Makes `events` durable, applies and broadcasts them.
    fn commit(&mut self, events: Vec<Event>) -> Result<(), String> {
        let owed = self.owed.len();
        let all: Vec<Event> = self.owed.iter().cloned().chain(events).collect();
        if all.is_empty() {
            return Ok(());
        }
        let at_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as i64);
        let records = self.journal.append(all, at_ms).map_err(|e| {
            tracing::error!(error = %e, owed, "journal");
            e.to_string()
        })?;
        self.owed.clear();
        for record in records {
            self.publish(record);
        }
        self.watch_plan();
        Ok(())
    }

    /// Lets go of a rehearsal whose plan is no longer the one to rehearse, and waits for the plan to stand still.
    fn watch_plan(&mut self) {
        if !self.auto.rehearse || self.stopping.is_some() {
            return;
        }
        let wanted = self.wanted();
        if let Some(Running { background: Some(key), stop, .. }) = &self.job
            && !key.starts_with(jobs::OUTSIDE)
            && wanted.as_ref().and_then(JobKind::background).as_ref() != Some(key)
        {
            stop.cancel();
        }
        if wanted.is_some() && !self.waiting && self.job.is_none() {
            self.waiting = true;
            let (seq, tx) = (self.state.seq, self.tx.clone());
            std::thread::spawn(move || {
                std::thread::sleep(STILL);
                drop(tx.blocking_send(Input::Still { seq }));
            });
        }
    }

    /// What may be done unasked now: the plan is rehearsed, then others are looked for beside it.
    fn wanted(&self) -> Option<JobKind> {
        // Asked at every commit: what is cheap to know comes first.
        if self.state.phase != Phase::Review || !self.engine.desk().rehearses() {
            return None;
        }
        let wanted = match self.state.to_rehearse() {
            Some(actions) => JobKind::Rehearse { actions, asked: false },
            None => {
                let shown = self.state.shown_actions();
                if !self.state.may_search() || self.state.trials.of(&shown).is_none() {
                    return None;
                }
                let beside = format!("beside {} for {}", plan_key(&shown), self.state.budget);
                JobKind::Search { unasked: Some(beside) }
            }
        };
        let key = wanted.background();
        (self.given_up != key && self.searched != key).then_some(wanted)
    }

    fn still(&mut self, seq: Seq) {
        self.waiting = false;
        if self.state.seq != seq {
            self.watch_plan();
        } else if let (None, None, Some(wanted)) = (&self.job, &self.stopping, self.wanted()) {
            self.start(wanted);
        }
    }

    fn publish(&mut self, record: Record) {
        if let Some(text) = crate::session::describe(&self.state, &record.event) {
            tracing::info!(seq = record.seq, "{text}");
        }
        Arc::make_mut(&mut self.state).apply(&record);
        if let Some(job) = &mut self.job {
            job.hear(&record.event);
        }
        self.note_down(&record);
        self.broadcast(&HostMsg::Event { record: Box::new(record) });
    }

    /// What came of a round goes into the ledger, again when its fate is decided.
    fn note_down(&mut self, record: &Record) {
        let (Some(ledger), Some(round)) = (&self.ledger, ledger::judged(&record.event)) else { return };
        if let Err(e) = ledger.keep(&crate::session::ledger::entries(&self.state, round), record.at_ms) {
            tracing::warn!(error = %e, "ledger");
            let text = format!("{e}; what came of round {round} is known to this session alone");
            self.feed(Feed::warn(text));
        }
    }

    /// Commits the end of a job, now or as soon as the disk has room.
    fn settle(&mut self, event: Event) {
        if let Err(words) = self.commit(vec![event.clone()]) {
            self.owed.push(event);
            self.feed(Feed::Log { level: "error".to_owned(), text: words });
        }
    }

    /// What a job may add to the session as it is *now*: proposals get their ids and must still be welcome.
    fn admit(&self, event: Event) -> Vec<Event> {
        match event {
            Event::Proposed { decisions } => commands::admit(&self.state, self.engine.desk(), decisions),
            other => vec![other],
        }
    }

    fn feed(&mut self, mut feed: Feed) {
        match (&mut feed, &mut self.job) {
            // JSON has no infinities.
            (Feed::Progress(p), job) => {
                if !p.rate.is_finite() {
                    p.rate = 0.0;
                }
                p.eta_s = p.eta_s.filter(|e| e.is_finite());
                job.iter_mut().for_each(|job| job.progress = Some(feed.clone()));
            }
            (Feed::Live { rows, .. }, _) => rows.retain(|r| r.p50_ms.is_finite() && r.p95_ms.is_finite()),
            // Told a moment before the job ended.
            (Feed::Levels(_), None) => return,
            (Feed::Levels(figures), Some(_)) if !figures.is_sound() => return,
            (Feed::Levels(_), Some(job)) => job.levels = Some(feed.clone()),
            (Feed::Healing { .. }, None) => return,
            (Feed::Healing { loss, .. }, Some(job)) => {
                if !loss.is_finite() {
                    *loss = 0.0;
                }
                job.levels = Some(feed.clone());
            }
            (Feed::Pulse { .. }, None) => return,
            (Feed::Pulse { .. }, Some(job)) => job.pulse = Some(feed.clone()),
            (Feed::Turn { .. }, Some(job)) => (job.progress, job.turn) = (None, Some(feed.clone())),
            (Feed::TurnEnd { .. }, Some(job)) => job.turn = None,
            (Feed::Turn { .. } | Feed::TurnEnd { .. }, None) => {}
            // Read a moment before the job ended.
            (Feed::Machine(_), None) => return,
            (Feed::Machine(_), Some(_)) => {}
            (
                Feed::Token { .. } | Feed::JobEnd { .. } | Feed::Agents { .. } | Feed::Units { .. } | Feed::Log { .. },
                _,
            )
            | (Feed::Changed(_) | Feed::Tokens(_) | Feed::Rounding { .. } | Feed::Activations { .. }, _) => {}
        }
        self.broadcast(&HostMsg::Feed { feed });
    }

    /// Looks something up beside whatever runs: little is computed, and few at a time.
    fn aside(&mut self, what: Aside) -> Result<(), String> {
        if self.asides.fetch_add(1, Ordering::SeqCst) >= MOST_ASIDES {
            self.asides.fetch_sub(1, Ordering::SeqCst);
            return Err("too much is being looked up already; hint: ask again in a moment".to_owned());
        }
        let (engine, state, tx) = (self.engine.clone(), self.state.clone(), self.tx.clone());
        let done = Done(self.asides.clone());
        let body = move || {
            let feed = what.told(engine.work(), &state);
            drop(done);
            drop(tx.blocking_send(Input::Feed(feed)));
        };
        let started = std::thread::Builder::new().name("aside".to_owned()).spawn(body);
        started.map(drop).map_err(|e| format!("no thread to look it up with: {e}; hint: try again"))
    }

    fn start(&mut self, kind: JobKind) {
        if let Some(job) = &self.job {
            // Only comments on a verdict that has been answered and rehearsals get here; they are cut short.
            job.stop.cancel();
            self.next_job = Some(kind);
            return;
        }
        let stop = Stop::default();
        let what = kind.label();
        let background = kind.background();
        let (engine, llm, tx) = (self.engine.clone(), self.llm.clone(), self.tx.clone());
        self.dial.ask(Asked::Auto);
        let job = Job::new(stop.clone(), self.dial.clone(), tx.clone());
        let body = move || {
            let work = std::panic::AssertUnwindSafe(|| jobs::run(kind, &*engine, &llm, &job));
            let result = std::panic::catch_unwind(work).unwrap_or_else(|panic| {
                let words = crate::words::of_panic(&*panic).unwrap_or_default();
                Err(JobError::Failed(format!("internal error: {words}; hint: the log file has more, please report it")))
            });
            drop(tx.blocking_send(Input::JobDone { result }));
        };
        match std::thread::Builder::new().name(what.to_owned()).stack_size(16 << 20).spawn(body) {
            Ok(_) => {
                let _machine = Watch::start(self.engine.gauges(), self.tx.clone());
                let (comments_on, progress, turn, levels, pulse) = (None, None, None, None, None);
                self.job =
                    Some(Running { what, stop, background, comments_on, progress, turn, levels, pulse, _machine });
            }
            Err(e) => self.settle(Event::Failed { what: what.to_owned(), message: e.to_string() }),
        }
    }

    fn job_done(&mut self, result: Result<(), JobError>) {
        let Some(job) = self.job.take() else { return };
        let what = job.words();
        if let Some(next) = self.next_job.take().filter(|_| self.stopping.is_none()) {
            self.feed(Feed::JobEnd { job: what });
            self.start(next);
            return;
        }
        if let Some(key) = job.background {
            match result {
                Ok(()) if job.what == (JobKind::Search { unasked: None }).label() => self.searched = Some(key),
                Err(JobError::Failed(text)) => {
                    self.given_up = Some(key);
                    self.feed(Feed::warn(format!("{}: {text}", job.what)));
                }
                Ok(()) | Err(JobError::Cancelled) => {}
            }
            self.feed(Feed::JobEnd { job: what });
            self.watch_plan();
            return;
        }
        let idle = Event::PhaseEntered { round: self.state.round, phase: Phase::Review };
        match (result, self.state.phase) {
            (Ok(()), Phase::Profile | Phase::Reason) => self.settle(idle),
            (Ok(()), Phase::Review | Phase::Compress | Phase::Evaluate | Phase::Verdict) => {}
            (Err(JobError::Cancelled), _) => self.settle(Event::Cancelled { what: what.clone() }),
            (Err(JobError::Failed(message)), _) => self.settle(Event::Failed { what: what.clone(), message }),
        }
        self.feed(Feed::JobEnd { job: what });
        self.watch_plan();
    }

    fn stop(&mut self, reason: String) {
        if self.stopping.is_none() {
            self.stopping = Some(reason);
        }
        if let Some(job) = &self.job {
            job.stop.cancel();
            let tx = self.tx.clone();
            std::thread::spawn(move || {
                std::thread::sleep(GRACE);
                drop(tx.blocking_send(Input::GraceOver));
            });
        }
    }
}
