//! What a language model writes: the token that follows, chosen from its logits, and a text token by token with the time of each.
//!
//! Not here: keys and values (`exec::Decoder`), words (`model::Tokenizer`). Invariant: the same seed and logits give the same tokens.

use super::{EvalError, Result};
use crate::exec::{Cancel, Decoder};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::{Duration, Instant};

/// How the next token is chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// What logits are divided by; 0 takes the largest, the first of equals.
    pub temperature: f64,
    /// Of the largest so many; 0 takes all.
    pub top_k: usize,
    /// Of the fewest largest whose probabilities add up to this (nucleus; Holtzman et al. 2020), 1 takes all.
    pub top_p: f64,
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Sampling {
        Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, seed: 0 }
    }
}

/// Chooses tokens.
#[derive(Debug)]
pub struct Sampler {
    how: Sampling,
    rng: ChaCha8Rng,
}

impl Sampler {
    pub fn new(how: Sampling) -> Sampler {
        Sampler { how, rng: ChaCha8Rng::seed_from_u64(how.seed) }
    }

    /// The next token.
    ///
    /// # Errors
    /// Logits that are no numbers; none.
    pub fn next(&mut self, logits: &[f32]) -> Result<u32> {
        let bad = logits.iter().position(|v| !v.is_finite());
        if let Some(at) = bad.or(logits.is_empty().then_some(0)) {
            return Err(EvalError::NotFinite { at });
        }
        let Sampling { temperature, top_k, top_p, .. } = self.how;
        let first = |a: &usize, b: &usize| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b));
        if temperature <= 0.0 {
            return Ok((0..logits.len()).min_by(first).unwrap_or(0) as u32);
        }
        let mut order: Vec<usize> = (0..logits.len()).collect();
        let k = if top_k == 0 { order.len() } else { top_k.min(order.len()) };
        if k < order.len() {
            order.select_nth_unstable_by(k - 1, first);
            order.truncate(k);
        }
        order.sort_unstable_by(first);
        let top = f64::from(logits[order[0]]);
        let mut weights: Vec<f64> = order.iter().map(|i| ((f64::from(logits[*i]) - top) / temperature).exp()).collect();
        let all: f64 = weights.iter().sum();
        let mut sum = 0.0;
        let enough = weights.iter().position(|w| {
            sum += w;
            sum >= top_p * all
        });
        weights.truncate(enough.map_or(weights.len(), |n| n + 1));
        let total: f64 = weights.iter().sum();
        let mut left = self.rng.random_range(0.0..1.0) * total;
        let chosen = weights.iter().position(|w| {
            left -= w;
            left < 0.0
        });
        Ok(order[chosen.unwrap_or(weights.len() - 1)] as u32)
    }
}

/// A text as it was written.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Written {
    /// Without the prompt.
    pub ids: Vec<u32>,
    /// From the prompt to the logits of the first token.
    pub prompt: Duration,
    /// Of each further token: from its predecessor to its logits.
    pub tokens: Vec<Duration>,
    /// It ended by itself: the last id is one of those that end a text.
    pub ended: bool,
}

/// Chooses at which of a decoder's levels each token is computed.
pub trait Levels {
    /// The level for token `id`, which was drawn from `logits` after `tokens` tokens.
    fn next(&mut self, tokens: usize, logits: &[f32], id: u32) -> usize;

    /// What came out of it at `level`.
    fn said(&mut self, logits: &[f32], level: usize);

    /// A part of the prompt was read.
    fn read(&mut self) {}
}

/// The same level all the time.
#[derive(Debug, Clone, Copy, Default)]
pub struct At(pub usize);

impl Levels for At {
    fn next(&mut self, _: usize, _: &[f32], _: u32) -> usize {
        self.0
    }

    fn said(&mut self, _: &[f32], _: usize) {}
}

/// As [`generate_at`], at the level that the decoder is at.
///
/// # Errors
/// As [`generate_at`].
pub fn generate(
    decoder: &mut Decoder,
    prompt: &[u32],
    how_long: (usize, &[u32]),
    how: Sampling,
    cancel: &Cancel,
    said: &mut dyn FnMut(u32),
) -> Result<Written> {
    let mut level = At(decoder.level());
    generate_at(decoder, prompt, how_long, how, &mut level, cancel, said)
}

/// Lets sequence 0 of `decoder`, which is empty, go on after `prompt`, which is read at the level that it is at, for at most `tokens` tokens, or to one of `ends`; calls `said` with
/// each. Every further token is computed at the level that `levels` says.
///
/// # Errors
/// What the decoder reports; logits that are no numbers; cancellation.
pub fn generate_at(
    decoder: &mut Decoder,
    prompt: &[u32],
    (tokens, ends): (usize, &[u32]),
    how: Sampling,
    levels: &mut dyn Levels,
    cancel: &Cancel,
    said: &mut dyn FnMut(u32),
) -> Result<Written> {
    let (mut sampler, mut out, mut clock) = (Sampler::new(how), Written::default(), Instant::now());
    let mut logits = Vec::new();
    for part in prompt.chunks(Decoder::AT_ONCE) {
        cancel.check()?;
        logits = decoder.feed(0, part)?;
        levels.read();
    }
    out.prompt = clock.elapsed();
    while out.ids.len() < tokens {
        cancel.check()?;
        let id = sampler.next(&logits)?;
        out.ids.push(id);
        said(id);
        out.ended = ends.contains(&id);
        if out.ended || out.ids.len() == tokens {
            break;
        }
        clock = Instant::now();
        let level = levels.next(decoder.tokens(0), &logits, id);
        decoder.set_level(level)?;
        logits = decoder.feed(0, &[id])?;
        levels.said(&logits, level);
        out.tokens.push(clock.elapsed());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greedy_takes_the_first_of_the_largest_and_seeds_repeat_themselves() {
        let logits = [0.0, 2.0, 2.0, -1.0];
        assert_eq!(Sampler::new(Sampling::default()).next(&logits).unwrap(), 1);
        let how = Sampling { temperature: 1.0, seed: 3, ..Sampling::default() };
        let drawn = |how| {
            let mut s = Sampler::new(how);
            (0..2000).map(|_| s.next(&logits).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(drawn(how), drawn(how));
        assert_ne!(drawn(how), drawn(Sampling { seed: 4, ..how }));
        // As often as their probabilities say: e^0, e^2, e^2, e^-1.
        let (sum, of) = (1.0 + 2.0 * 2f64.exp() + (-1f64).exp(), drawn(how));
        for (id, p) in [(0, 1.0 / sum), (1, 2f64.exp() / sum), (3, (-1f64).exp() / sum)] {
            let part = of.iter().filter(|x| **x == id).count() as f64 / 2000.0;
            assert!((part - p).abs() < 0.04, "{id}: {part}, not {p}");
        }
        assert!(drawn(Sampling { top_k: 2, ..how }).iter().all(|id| [1, 2].contains(id)));
        // Either of the two largest is less than half of all, both are more.
        assert!(drawn(Sampling { top_p: 0.8, ..how }).iter().all(|id| [1, 2].contains(id)));
        assert!(drawn(Sampling { top_p: 0.3, ..how }).iter().all(|id| *id == 1));
    }

    #[test]
    fn logits_that_are_no_numbers_choose_nothing() {
        assert!(Sampler::new(Sampling::default()).next(&[0.0, f32::NAN]).is_err());
        assert!(Sampler::new(Sampling::default()).next(&[]).is_err());
    }
}
