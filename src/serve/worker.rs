//! The one thread that computes: it owns the decoder, reads prompts piece by piece, and takes all sequences that are written forward together,
//! a token at a time.
//!
//! Not here: HTTP, JSON. Invariants: nobody's prompt keeps the others waiting for longer than [`PIECE`] tokens of it; a client that went away costs
//! no further token; what a request writes depends on its prompt, its parameters and its seed, but for the rounding of sums over other numbers of rows.

use super::metrics::Metrics;
use super::stops::Stops;
use crate::control::{Asked, Pilot, Policy, Wish};
use crate::eval::{Sampler, Sampling};
use crate::exec::{Cancel, Decoder};
use crate::headless::out::tell;
use crate::model::{Model, ModelError, Tokenizer, Voice};
use crate::plain;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::OwnedSemaphorePermit;
use tokio::sync::mpsc::{Receiver, Sender, error::TryRecvError};

/// Tokens of a prompt that are read before the others go on.
const PIECE: usize = 128;

/// Why an answer ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// By itself, or at a stop word.
    Stop,
    /// At as many tokens as were asked for.
    Length,
}

/// An answer that is complete.
#[derive(Debug, Clone, Copy)]
pub struct Done {
    pub finish: Finish,
    /// Tokens of the prompt, and written.
    pub prompt: usize,
    pub written: usize,
}

/// What becomes of a request.
#[derive(Debug)]
pub enum Event {
    Text(String),
    Done(Done),
    /// In words that the client may read; the server is ending, or it failed.
    Failed {
        why: String,
        ending: bool,
    },
}

/// What is to be answered.
#[derive(Debug)]
pub struct Job {
    /// One token at least; with `most` no more than the context.
    pub prompt: Vec<u32>,
    pub most: usize,
    pub ends: Vec<u32>,
    pub how: Sampling,
    pub stops: Vec<String>,
    /// With room for every event that there may be: `most` and two.
    pub events: Sender<Event>,
    pub arrived: Instant,
    /// Its place in the queue; given back before its end is told, so that who asks again at once finds it free.
    pub place: OwnedSemaphorePermit,
}

/// A sequence at work.
struct Running {
    job: Job,
    /// Tokens of the prompt that were read.
    read: usize,
    /// The token that is fed next.
    next: u32,
    written: usize,
    sampler: Sampler,
    voice: Voice,
    stops: Stops,
    began: Instant,
    /// When its first and its latest token came.
    first: Option<Instant>,
    latest: Instant,
    /// What a controller knows of it, and what it asks for the next token.
    pilot: Option<Pilot>,
    wish: Option<Wish>,
}

/// The decoder and who uses it.
pub struct Worker {
    decoder: Decoder,
    /// Who chooses among the decoder's levels, where it has several.
    control: Option<(Policy, Asked)>,
    model: Model,
    tokenizer: Arc<Tokenizer>,
    metrics: Arc<Metrics>,
    cancel: Cancel,
    running: Vec<Option<Running>>,
    waiting: VecDeque<Job>,
    /// Whose prompt is read next.
    turn: usize,
}

impl Worker {
    pub fn new(
        (decoder, control): (Decoder, Option<(Policy, Asked)>),
        model: Model,
        tokenizer: Arc<Tokenizer>,
        metrics: Arc<Metrics>,
        cancel: Cancel,
        parallel: usize,
    ) -> Worker {
        let running = (0..parallel).map(|_| None).collect();
        Worker { decoder, control, model, tokenizer, metrics, cancel, running, waiting: VecDeque::new(), turn: 0 }
    }

    /// Works until nobody can ask any more.
    pub fn run(mut self, mut jobs: Receiver<Job>) {
        while self.take(&mut jobs) {
            self.admit();
            self.tell_gauges();
            self.read();
            self.write();
        }
    }

    /// Takes what has come in; waits where there is nothing to do. `false` when nothing will come.
    fn take(&mut self, jobs: &mut Receiver<Job>) -> bool {
        if self.cancel.is_cancelled() {
            let ending = || Event::Failed { why: "the server is ending".into(), ending: true };
            self.waiting.drain(..).for_each(|job| drop(job.events.try_send(ending())));
            for i in 0..self.running.len() {
                if let Some(r) = self.free(i) {
                    drop(r.job.events.try_send(ending()));
                }
            }
        }
        let idle = self.waiting.is_empty() && self.running.iter().all(Option::is_none);
        if idle {
            self.tell_gauges();
            match jobs.blocking_recv() {
                Some(job) => self.waiting.push_back(job),
                None => return false,
            }
        }
        loop {
            match jobs.try_recv() {
                Ok(job) => self.waiting.push_back(job),
                Err(TryRecvError::Empty) => return true,
                // What is under way goes on.
                Err(TryRecvError::Disconnected) => {
                    return !self.waiting.is_empty() || self.running.iter().any(Option::is_some);
                }
            }
        }
    }

    /// Lets go of those whose clients went away, and gives free sequences to those that wait.
    fn admit(&mut self) {
        let before = self.waiting.len();
        self.waiting.retain(|job| !job.events.is_closed());
        self.metrics.left.inc_by((before - self.waiting.len()) as u64);
        for i in 0..self.running.len() {
            if self.running[i].as_ref().is_some_and(|r| r.job.events.is_closed()) {
                let r = self.free(i);
                self.metrics.left.inc();
                tell!("paring: a client went away after {} tokens", r.map_or(0, |r| r.written));
            }
            if self.running[i].is_some() {
                continue;
            }
            let Some(job) = self.waiting.pop_front() else { continue };
            if let Err(e) = self.model.params.unchanged() {
                self.fail(job, &e.to_string());
                continue;
            }
            let now = Instant::now();
            self.running[i] = Some(Running {
                read: 0,
                next: 0,
                written: 0,
                sampler: Sampler::new(job.how),
                voice: Voice::default(),
                stops: Stops::new(job.stops.clone()),
                began: now,
                first: None,
                latest: now,
                pilot: None,
                wish: None,
                job,
            });
        }
    }

    fn fail(&self, job: Job, why: &str) {
        tell!("paring: an answer failed: {}", plain::line(why));
        drop(job.place);
        drop(job.events.try_send(Event::Failed { why: why.to_owned(), ending: false }));
    }

    /// Ends sequence `i`; its place in the cache is another's from now on.
    fn free(&mut self, i: usize) -> Option<Running> {
        self.decoder.rewind(i, 0);
        self.running[i].take()
    }

    fn tell_gauges(&self) {
        let running = self.running.iter().flatten().count();
        let tokens: usize = (0..self.running.len()).map(|i| self.decoder.tokens(i)).sum();
        self.metrics.waiting.set(self.waiting.len() as i64);
        self.metrics.running.set(running as i64);
        self.metrics.kv_bytes.set((self.decoder.token_bytes() * tokens as u64) as i64);
    }

    /// Reads a piece of one prompt.
    fn read(&mut self) {
        let n = self.running.len();
        let reading = |r: &Option<Running>| r.as_ref().is_some_and(|r| r.read < r.job.prompt.len());
        let Some(i) = (0..n).map(|k| (self.turn + k) % n).find(|i| reading(&self.running[*i])) else { return };
        self.turn = (i + 1) % n;
        let Some(r) = &mut self.running[i] else { return };
        let piece = r.read..r.job.prompt.len().min(r.read + PIECE);
        // Prompts are read by the whole network.
        let logits = self.decoder.set_level(0).and_then(|()| self.decoder.feed(i, &r.job.prompt[piece.clone()]));
        r.read = piece.end;
        self.metrics.prompt.inc_by(piece.len() as u64);
        match logits {
            Err(e) => self.failed(&[i], &e.to_string()),
            Ok(logits) if r.read == r.job.prompt.len() => self.said(i, &logits),
            Ok(_) => {}
        }
    }

    /// Takes every sequence that is written one token further.
    fn write(&mut self) {
        let writing = |(i, r): (usize, &Option<Running>)| {
            let r = r.as_ref().filter(|r| r.first.is_some())?;
            Some((i, r.next))
        };
        let (of, ids): (Vec<usize>, Vec<u32>) = self.running.iter().enumerate().filter_map(writing).unzip();
        if of.is_empty() {
            return;
        }
        let level = self.level(&of);
        let stepped = self.decoder.set_level(level).and_then(|()| self.decoder.step(&of, &ids));
        let logits = stepped.and_then(|t| Ok(t.to_vec2::<f32>()?));
        if let (Some((policy, _)), Ok(rows)) = (&self.control, &logits) {
            self.metrics.made(level, of.len() as u64);
            for (i, row) in of.iter().zip(rows) {
                let pilot = self.running[*i].as_mut().and_then(|r| r.pilot.as_mut());
                pilot.into_iter().for_each(|p| p.after(row, level, policy.levels()));
            }
        }
        match logits {
            Err(e) => self.failed(&of, &e.to_string()),
            Ok(rows) => of.iter().zip(rows).for_each(|(i, row)| self.said(*i, &row)),
        }
    }

    /// The level for the next token of sequences `of`, which go together; the more wait, the more time is worth.
    fn level(&self, of: &[usize]) -> usize {
        match &self.control {
            None => 0,
            Some((_, Asked::Pinned(level))) => *level,
            Some((policy, Asked::Auto)) => {
                let pressure = 1.0 + self.waiting.len() as f32 / self.running.len().max(1) as f32;
                let wishes = of.iter().filter_map(|i| self.running[*i].as_ref()?.wish);
                policy.choose(&wishes.map(|w| Wish { pressure, ..w }).collect::<Vec<_>>())
            }
        }
    }

    fn failed(&mut self, of: &[usize], why: &str) {
        for i in of {
            if let Some(r) = self.free(*i) {
                self.fail(r.job, why);
            }
        }
    }

    /// What follows from the logits after sequence `i`'s latest token.
    fn said(&mut self, i: usize, logits: &[f32]) {
        let Some(mut r) = self.running[i].take() else { return };
        match self.token(&mut r, logits) {
            Ok(None) => self.running[i] = Some(r),
            Ok(Some(finish)) => {
                self.decoder.rewind(i, 0);
                self.done(r, finish);
            }
            Err(e) => {
                self.decoder.rewind(i, 0);
                self.fail(r.job, &e);
            }
        }
    }

    /// Chooses the next token and hands on what it says; tells how the answer ends where it does.
    fn token(&self, r: &mut Running, logits: &[f32]) -> Result<Option<Finish>, String> {
        let id = r.sampler.next(logits).map_err(|e| e.to_string())?;
        let now = Instant::now();
        match r.first {
            None => self.metrics.first.observe((now - r.job.arrived).as_secs_f64()),
            Some(_) => self.metrics.token.observe((now - r.latest).as_secs_f64()),
        }
        r.first = r.first.or(Some(now));
        (r.next, r.latest) = (id, now);
        if let Some((policy, Asked::Auto)) = &self.control {
            let pilot = r.pilot.get_or_insert_with(|| Pilot::begin(r.job.prompt.len(), logits, policy.levels()));
            r.wish = Some(pilot.wish(policy, id, logits, 1.0));
        }
        r.written += 1;
        self.metrics.written.inc();
        let failed = |e: ModelError| e.to_string();
        let ends = r.job.ends.contains(&id);
        let text = match ends || self.tokenizer.is_special(id) {
            // What is no text ends nothing that is held back.
            true => String::new(),
            false => r.voice.say(&*self.tokenizer, id).map_err(failed)?,
        };
        let (mut text, stopped) = r.stops.push(&text);
        let mut finish = match r.written >= r.job.most {
            _ if ends || stopped => Some(Finish::Stop),
            true => Some(Finish::Length),
            false => None,
        };
        if finish.is_some() && !stopped {
            let (rest, stopped) = r.stops.push(&r.voice.rest(&*self.tokenizer).map_err(failed)?);
            text.push_str(&rest);
            if stopped {
                finish = Some(Finish::Stop);
            } else {
                text.push_str(&r.stops.rest());
            }
        }
        if !text.is_empty() {
            // There is room; a client that went away is noticed before the next token.
            drop(r.job.events.try_send(Event::Text(text)));
        }
        Ok(finish)
    }

    fn done(&self, r: Running, finish: Finish) {
        let (prompt, written) = (r.job.prompt.len(), r.written);
        // Who has the answer finds it done, and its place free.
        self.tell_gauges();
        drop(r.job.place);
        drop(r.job.events.try_send(Event::Done(Done { finish, prompt, written })));
        let first = r.first.unwrap_or(r.latest);
        let (waited, wrote) = (r.began - r.job.arrived, (r.latest - first).as_secs_f64());
        let rate = if written > 1 && wrote > 0.0 { (written - 1) as f64 / wrote } else { 0.0 };
        tell!(
            "paring: {prompt} + {written} tokens, the first after {:.3} s ({:.3} s waiting), {rate:.1} tokens/s",
            (first - r.job.arrived).as_secs_f64(),
            waited.as_secs_f64()
        );
    }
}
