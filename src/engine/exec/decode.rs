//! [`Decoder`]: a language model's runs token by token, over a cache of what earlier tokens left. It may have several plans, levels of one
//! network that leave the same keys and values, and change from one to another at any token.
//!
//! Not here: the cache (`cache`), how steps run over it (`cpu`), which token is next and at which level (whoever decodes). Invariants: what comes out for a
//! token is, but for rounding to the cache's format, what one run over all tokens gives; a change of level moves and computes nothing.

use super::backend::{Every, State};
use super::cache::{self, Cache, Past};
use super::error::{ExecError, Result};
use super::input;
use super::kernel::cached::KvFormat;
use super::lower::StepInfo;
use super::plan::Plan;
use super::session::Observer;
use crate::graph::{Graph, Op, experts};
use candle_core::{Device, Tensor};
use std::time::Duration;

/// What a [`Decoder`] has room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeOptions {
    /// Sequences that run side by side.
    pub sequences: usize,
    /// Tokens of each at most.
    pub context: usize,
    /// What keys and values are kept in, where the model does not say.
    pub kv: KvFormat,
}

/// Which outputs are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// Every token's.
    All,
    /// Those of the last token of each sequence; what makes only the others' is left out.
    Last,
}

/// The first of `steps` after the last one in which tokens meet: from there on each goes on its own.
pub(super) fn after_meeting<'a>(
    graph: &Graph,
    steps: impl DoubleEndedIterator<Item = &'a StepInfo> + ExactSizeIterator,
) -> usize {
    let mut steps = steps;
    steps.rposition(|s| !goes_alone(&graph.node(s.node).op)).map_or(0, |i| i + 1)
}

/// The first of `steps` from which on it is enough to compute the tokens of `some`.
pub(super) fn fewer_from<'a>(
    graph: &Graph,
    some: Every,
    steps: impl DoubleEndedIterator<Item = &'a StepInfo> + ExactSizeIterator + Clone,
) -> usize {
    let computed = some.after.and_then(|node| steps.clone().rposition(|s| s.node <= node));
    after_meeting(graph, steps).max(computed.map_or(0, |i| i + 1))
}

/// Of `[N, tokens, …]` the last of each `every` tokens.
///
/// # Errors
/// Items that have no tokens.
pub fn rows(t: &Tensor, every: usize) -> candle_core::Result<Tensor> {
    let picks: Vec<u32> = (1..=t.dim(1)? / every).map(|i| (i * every - 1) as u32).collect();
    t.index_select(&Tensor::new(picks, t.device())?, 1)
}

/// Whether no token meets another in `op`, in a graph whose ops are all causal: factors are of each token's own there.
pub(crate) fn goes_alone(op: &Op) -> bool {
    matches!(op, Op::Mul) || op.traits().per_token
}

impl Plan {
    /// What decodes with this plan.
    ///
    /// # Errors
    /// A graph that does not go token by token; an input of a fixed number of tokens; a device that has no cache yet.
    pub fn decoder(&self, options: &DecodeOptions) -> Result<Decoder> {
        Decoder::over(std::slice::from_ref(self), options)
    }

    /// Whether it goes token by token with keys and values in `kv`.
    fn check_decodes(&self, kv: KvFormat) -> Result<()> {
        let (node, taken) = input::of(self.graph())?;
        if !taken.is_free() || taken.dims.len() != 1 {
            return Err(ExecError::unsupported(node, "does not take any number of token ids"));
        }
        self.backend.decodes(kv).map_err(|why| ExecError::unsupported(node, why))
    }
}

impl Plan {
    /// Bytes of parameters that one token reads: of an embedding one row, of experts as many as it is sent to, of everything else all.
    pub fn bytes_per_token(&self) -> u64 {
        let places = experts::places(self.graph());
        let of = |s: &StepInfo| match (&self.graph().node(s.node).op, places[s.node.index()]) {
            (Op::Embedding(op), _) => s.held_bytes / op.vocab.max(1) as u64,
            (_, Some(place)) => place.share(s.held_bytes),
            (_, None) => s.held_bytes,
        };
        self.steps().iter().map(of).sum()
    }
}

/// Runs a plan token by token; every sequence remembers what it was fed.
#[derive(Debug)]
pub struct Decoder {
    /// Its levels, one at least, each with what its runs write; which of them runs.
    levels: Vec<(Plan, State)>,
    level: usize,
    cache: Cache,
}

impl Decoder {
    /// Tokens of a prompt that are fed at once by whoever lets a longer one be interrupted: what is between layers takes memory by them, and
    /// weights are read again for each part.
    pub const AT_ONCE: usize = 128;

    /// What decodes with any of `plans`, which share one cache; it begins with the first.
    ///
    /// # Errors
    /// As [`Plan::decoder`]; plans that leave other keys and values than the first, or say other tokens; no plan.
    pub fn over(plans: &[Plan], options: &DecodeOptions) -> Result<Decoder> {
        let Some(first) = plans.first() else {
            return Err(ExecError::UnknownNode {
                name: "level 0".into(),
                hint: "a decoder has one plan at least".into(),
            });
        };
        let DecodeOptions { sequences, context, kv } = *options;
        for plan in plans {
            plan.kv().values().copied().chain([kv]).try_for_each(|kv| plan.check_decodes(kv))?;
            if let Some(why) = cache::unlike(first.graph(), plan.graph()) {
                return Err(why);
            }
            let said = |p: &Plan| p.steps().last().and_then(|s| s.out_shape.last().copied());
            if plan.graph().vocabulary() != first.graph().vocabulary() || said(plan) != said(first) {
                let node = plan.graph().node(plan.graph().output);
                return Err(ExecError::unsupported(node, "its vocabulary is not the other level's"));
            }
        }
        let cache = Cache::new((first.graph(), first.kv()), sequences.max(1), context.max(1), kv)?;
        let state = State::default();
        let levels = plans.iter().map(|plan| (plan.clone(), state.beside())).collect();
        Ok(Decoder { levels, level: 0, cache })
    }

    /// The plan of the level that runs.
    pub fn plan(&self) -> &Plan {
        &self.levels[self.level].0
    }

    /// How many levels there are.
    pub fn levels(&self) -> usize {
        self.levels.len()
    }

    /// The level that runs.
    pub fn level(&self) -> usize {
        self.level
    }

    /// What is fed from now on runs at `level`.
    ///
    /// # Errors
    /// A level that there is not.
    pub fn set_level(&mut self, level: usize) -> Result<()> {
        if level >= self.levels.len() {
            let node = self.plan().graph().node(self.plan().graph().output);
            let why = format!("there is no level {level}; hint: 0 to {}", self.levels.len() - 1);
            return Err(ExecError::unsupported(node, why));
        }
        self.level = level;
        Ok(())
    }

    /// Tokens that sequence `i` was fed.
    pub fn tokens(&self, i: usize) -> usize {
        self.cache.lengths().get(i).copied().unwrap_or(0)
    }

    /// Sequence `i` goes on after its first `tokens` tokens; no more than there are.
    pub fn rewind(&mut self, i: usize, tokens: usize) {
        if tokens < self.tokens(i) {
            self.cache.set_length(i, tokens);
        }
    }

    /// What keys and values are kept in, in words.
    pub fn kept_in(&self) -> String {
        self.cache.label()
    }

    /// Bytes of keys and values of one token.
    pub fn token_bytes(&self) -> u64 {
        self.cache.token_bytes()
    }

    /// Adds `ids` to sequence `i` and returns the logits `[vocabulary]` that follow the last of them.
    ///
    /// # Errors
    /// Ids beyond the vocabulary; no ids; more tokens than there is room for.
    pub fn feed(&mut self, i: usize, ids: &[u32]) -> Result<Vec<f32>> {
        let x = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?;
        Ok(self.run(&[i], &x, Wanted::Last, None)?.flatten_all()?.to_vec1()?)
    }

    /// As [`Decoder::feed`], with the logits after every one of `ids`, `[ids, vocabulary]`.
    ///
    /// # Errors
    /// As [`Decoder::feed`].
    pub fn feed_all(&mut self, i: usize, ids: &[u32]) -> Result<Tensor> {
        let x = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?;
        Ok(self.run(&[i], &x, Wanted::All, None)?.squeeze(0)?)
    }

    /// As [`Decoder::feed`], and tells `observer` what every step took.
    ///
    /// # Errors
    /// As [`Decoder::feed`].
    pub fn feed_observed(&mut self, i: usize, ids: &[u32], observer: &mut dyn Observer) -> Result<Vec<f32>> {
        let x = Tensor::new(ids, &Device::Cpu)?.unsqueeze(0)?;
        let mut times = vec![Duration::ZERO; self.plan().steps().len()];
        let out = self.run(&[i], &x, Wanted::Last, Some(&mut times))?.flatten_all()?.to_vec1()?;
        for (index, (step, t)) in self.plan().steps().iter().zip(times).enumerate() {
            // Of what has one row a token, the least that a graph takes is one token.
            observer.step(index, t, 4 * (ids.len() * step.out_shape.last().copied().unwrap_or(0)) as u64);
        }
        Ok(out)
    }

    /// Adds one token to each of `sequences`, which may be of different lengths, and returns the logits that follow,
    /// `[sequences, vocabulary]`.
    ///
    /// # Errors
    /// As [`Decoder::feed`]; a sequence that there is not, or that is named twice; another number of ids.
    pub fn step(&mut self, sequences: &[usize], ids: &[u32]) -> Result<Tensor> {
        let x = Tensor::new(ids, &Device::Cpu)?.unsqueeze(1)?;
        Ok(self.run(sequences, &x, Wanted::All, None)?.squeeze(1)?)
    }

    fn run(&mut self, of: &[usize], x: &Tensor, wanted: Wanted, times: super::run::Times<'_>) -> Result<Tensor> {
        let (plan, state) = &mut self.levels[self.level];
        let (node, taken) = input::of(plan.graph())?;
        let bad = |why: String| ExecError::unsupported(node, why);
        let new = x.dims().last().copied().unwrap_or(0);
        if new == 0 {
            return Err(bad("no tokens were given".into()));
        }
        if x.dims().first() != Some(&of.len()) {
            return Err(bad(format!("{:?} ids are not for {} sequences", x.dims(), of.len())));
        }
        let (lengths, context) = (self.cache.lengths(), self.cache.context());
        for (at, i) in of.iter().enumerate() {
            match lengths.get(*i) {
                _ if of[..at].contains(i) => return Err(bad(format!("sequence {i} is named twice"))),
                None => return Err(bad(format!("there is no sequence {i}"))),
                Some(have) if have + new > context => {
                    return Err(bad(format!("{new} tokens more than {have} do not fit a context of {context}")));
                }
                Some(_) => {}
            }
        }
        input::check(node, taken, x)?;
        let past = Past { cache: &self.cache, sequences: of };
        let out = plan.backend.decode(state, past, x, wanted, times)?;
        for i in of {
            self.cache.set_length(*i, self.cache.lengths()[*i] + new);
        }
        Ok(out)
    }
}
