//! The bundled language model: its dimensions, its vocabulary, the windows of stories that it is trained on, and what its loss is to be
//! held against.

use crate::data::stories::{self, Story};
use crate::data::synthetic::Split;
use crate::data::{self, Counted, DataError, Dataset, TextOptions};
use crate::exec::{Cancel, CompileOptions, Plan};
use crate::model::families::{DecoderSpec, LlamaDims};
use crate::model::{self, FamilySpec, Model, ModelError, Origin, Tokenizer};
use crate::task::Metrics;
use crate::train::TrainError;
use candle_core::{Device, Tensor};
use std::collections::HashMap;
use std::path::Path;

/// Tokens that it is made for at most, and of a window.
pub const CONTEXT: usize = 256;

const DIMS: LlamaDims = LlamaDims { vocab: 512, dim: 96, layers: 4, heads: 4, kv_heads: 2, head_dim: 32, hidden: 160 };

/// Stands before each story.
const END: &str = "<|endoftext|>";

/// Stories that the vocabulary, and the yardsticks' counts, are learnt from.
const LEARNT_FROM: usize = 2_000;

pub(super) fn spec() -> FamilySpec {
    FamilySpec::Llama(DecoderSpec::llama(DIMS))
}

/// What the file says besides its weights: its vocabulary is learnt from the first training stories.
pub(super) fn origin(name: &str) -> Result<Origin, ModelError> {
    let texts = stories::first(Split::Train, LEARNT_FROM).map(|s| s.text);
    Origin::own(name, &DIMS, CONTEXT, &model::learn(texts, DIMS.vocab, END)?, END)
}

/// The vocabulary in `origin`.
pub(super) fn tokenizer(origin: &Origin, name: &str) -> Result<Tokenizer, ModelError> {
    let none = || ModelError::Config { path: name.into(), why: "it has no vocabulary".to_owned() };
    origin.tokenizer(Path::new(name))?.ok_or_else(none)
}

/// The ids of a story, after the token that stands before each.
fn ids(story: &Story, tokenizer: &Tokenizer) -> Result<Vec<u32>, ModelError> {
    let mut ids: Vec<u32> = tokenizer.begin().into_iter().collect();
    ids.extend(tokenizer.encode(&story.text)?);
    Ok(ids)
}

/// Windows of training stories, one after the other, with the token that follows each of theirs; every step draws fresh ones.
pub(super) fn drawn(
    tokenizer: &Tokenizer,
    window: usize,
) -> impl FnMut(usize) -> Result<(Tensor, Vec<u32>), DataError> {
    let (mut next, mut held) = (0, Vec::new());
    move |size| {
        let (mut x, mut y) = (Vec::with_capacity(size * window), Vec::with_capacity(size * window));
        for _ in 0..size {
            while held.len() <= window {
                let story = stories::tell(Split::Train, next);
                held.extend(ids(&story, tokenizer).map_err(|e| data::unfit(Path::new("synthetic:train"), &e))?);
                next += 1;
            }
            x.extend_from_slice(&held[..window]);
            y.extend_from_slice(&held[1..=window]);
            held.drain(..window);
        }
        Ok((Tensor::from_vec(x, (size, window), &Device::Cpu)?, y))
    }
}

/// The evaluation split in windows as sessions take it.
fn eval(tokenizer: &Tokenizer) -> Result<Dataset, DataError> {
    let options = TextOptions { window: CONTEXT, counted: Counted::Inside, limit: 0 };
    data::text("synthetic:eval", Some(tokenizer), &options)
}

/// How good a language model is, in nats a token of the evaluation split.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fluency {
    pub nats: f64,
    pub tokens: usize,
    pub yardsticks: Yardsticks,
}

/// What a loss may be held against, in nats a token of the evaluation split.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Yardsticks {
    /// How often each token is there in training stories.
    pub single: f64,
    /// How often each token follows the one before it.
    pub pairs: f64,
    /// The stories' own choices, from their beginnings: no model can know more, and one that sees them in windows knows less.
    pub choices: f64,
}

/// Added to each pair's count, spread as tokens are.
const UNSEEN: f64 = 1.0;

impl Yardsticks {
    /// Of text that is cut into `tokenizer`'s tokens.
    ///
    /// # Errors
    /// Text that the vocabulary has no tokens for.
    pub fn of(tokenizer: &Tokenizer) -> Result<Yardsticks, ModelError> {
        let (mut one, mut two, mut all) = (HashMap::<u32, f64>::new(), HashMap::<(u32, u32), f64>::new(), 0.0);
        for story in stories::first(Split::Train, LEARNT_FROM) {
            let ids = ids(&story, tokenizer)?;
            ids.windows(2).for_each(|w| *two.entry((w[0], w[1])).or_default() += 1.0);
            ids.iter().for_each(|id| *one.entry(*id).or_default() += 1.0);
            all += ids.len() as f64;
        }
        let count = |id: u32| one.get(&id).copied().unwrap_or(0.0);
        // A token that was never there counts as one that was there once.
        let single = |id: u32| count(id).max(1.0) / all;
        let pair = |a: u32, b: u32| {
            let both = two.get(&(a, b)).copied().unwrap_or(0.0);
            (both + UNSEEN * single(b)) / (count(a) + UNSEEN)
        };
        let (mut nats, mut tokens) = ([0.0; 3], 0.0);
        for story in stories::first(Split::Eval, Split::Eval.stories()) {
            let ids = ids(&story, tokenizer)?;
            nats[0] -= ids.iter().map(|id| single(*id).ln()).sum::<f64>();
            nats[1] -= ids.windows(2).map(|w| pair(w[0], w[1]).ln()).sum::<f64>();
            nats[2] += story.nats;
            tokens += ids.len() as f64;
        }
        let [single, pairs, choices] = nats.map(|n| n / tokens);
        Ok(Yardsticks { single, pairs, choices })
    }
}

/// Scores `model`, whose vocabulary is `tokenizer`, on the evaluation split.
pub(super) fn measured(model: &Model, tokenizer: &Tokenizer, cancel: &Cancel) -> Result<Fluency, TrainError> {
    let data = eval(tokenizer)?;
    let mut session = Plan::of(model, &CompileOptions::default())?.session();
    let mut scorer = data.task().scorer(0);
    for from in (0..data.len()).step_by(8) {
        cancel.check()?;
        let (x, next) = data.batch(from..(from + 8).min(data.len()), &model.info.preprocess)?;
        scorer.add(&session.run(&x)?, &next)?;
    }
    let Metrics { loss, .. } = scorer.scored().metrics;
    Ok(Fluency { nats: loss, tokens: data.len() * (CONTEXT - 1), yardsticks: Yardsticks::of(tokenizer)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::train::{Cycle, Progress, Recipe, train};

    /// A smaller one of its kind.
    fn small() -> FamilySpec {
        FamilySpec::Llama(DecoderSpec::llama(LlamaDims { dim: 32, layers: 1, head_dim: 8, hidden: 32, ..DIMS }))
    }

    #[test]
    fn a_few_steps_on_stories_lower_the_loss_and_repeat_exactly() {
        let origin = origin("small").unwrap();
        let tokenizer = tokenizer(&origin, "small").unwrap();
        let recipe =
            Recipe { cycles: vec![Cycle { steps: 12, rate: 1e-2, warmup: 2 }], batch: 3, decay: 0.01, smoothing: 0.0 };
        let run = |seed| {
            let mut losses = Vec::new();
            let mut each = |p: Progress| losses.push(p.loss);
            let windows = &mut drawn(&tokenizer, 32);
            let store = train(&small(), &recipe, seed, windows, &Cancel::default(), &mut each).unwrap();
            (store, losses)
        };
        let (whole, losses) = run(1);
        // At first all tokens are as likely.
        assert!((losses[0] - 512f64.ln()).abs() < 0.2 && losses[11] < losses[0] - 0.5, "{losses:?}");
        let (again, same) = run(1);
        assert_eq!((whole.hash(), losses), (again.hash(), same));
        assert_ne!(whole.hash(), run(2).0.hash());
        // The embedding is there once, as the last layer's weight.
        assert_eq!(whole.iter().filter(|(name, _)| name.contains("embd") || name.contains("output.")).count(), 2);
    }

    #[test]
    fn windows_follow_one_another_and_targets_are_the_next_tokens() {
        let origin = origin("small").unwrap();
        let tokenizer = tokenizer(&origin, "small").unwrap();
        let (mut whole, mut parts) = (drawn(&tokenizer, 40), drawn(&tokenizer, 10));
        let (x, y) = whole(1).unwrap();
        let x = x.flatten_all().unwrap().to_vec1::<u32>().unwrap();
        assert_eq!((x[0], &x[1..]), (tokenizer.begin().unwrap(), &y[..39]));
        let (parts, next) = parts(4).unwrap();
        assert_eq!((parts.dims(), parts.flatten_all().unwrap().to_vec1::<u32>().unwrap()), (&[4, 10][..], x));
        assert_eq!(next, y);
    }
}
