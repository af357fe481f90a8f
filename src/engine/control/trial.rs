//! Policies held against fixed levels on text that neither was made with: token by token through the decoder, each over the keys and values
//! that its own earlier tokens left, all of a window one after the other in an order by lot.
//!
//! The text is given (teacher-forced), so that all arms say what follows the same words; the first tokens of a window are a prompt that the whole
//! network reads. Not here: learning. Invariant: an arm is told nothing of what comes, and nothing of what the whole network says.

use super::error::{ControlError, Result};
use super::policy::{Asked, Controller, Policy};
use crate::eval::{EvalError, Levels};
use crate::exec::{Cancel, Decoder};
use crate::task::{Estimate, row_divergence, surprise};
use candle_core::Tensor;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::time::Instant;

/// What chooses levels.
#[derive(Debug, Clone, Copy)]
pub enum Arm<'a> {
    Fixed(usize),
    Policy(&'a Policy),
    /// By lot: `0` for so large a share of the tokens, else the other.
    Lot {
        levels: [usize; 2],
        share: f64,
        seed: u64,
    },
}

/// One arm's way through one window, token by token after the prompt.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Run {
    /// From the whole network's, in nats.
    pub divergence: Vec<f64>,
    /// Of the token that followed, in nats.
    pub surprise: Vec<f64>,
    /// From the token to its logits, what chooses included.
    pub ms: Vec<f64>,
    /// How much of that the choice took, what it reads off the logits included.
    pub choice_ms: Vec<f64>,
    pub level: Vec<usize>,
}

/// One arm's.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outcome {
    /// In the order of the windows.
    pub runs: Vec<Run>,
}

impl Outcome {
    /// The mean of each window.
    pub fn means(&self, of: impl Fn(&Run) -> &[f64]) -> Vec<f64> {
        self.runs.iter().map(|r| of(r).iter().sum::<f64>() / of(r).len().max(1) as f64).collect()
    }

    pub fn mean(&self, of: impl Fn(&Run) -> &[f64]) -> f64 {
        mean(&self.means(of))
    }

    /// All tokens' milliseconds, ascending.
    pub fn ms(&self) -> Vec<f64> {
        let mut all: Vec<f64> = self.runs.iter().flat_map(|r| &r.ms).copied().collect();
        all.sort_by(f64::total_cmp);
        all
    }

    /// What part of the tokens each of `levels` levels made.
    pub fn shares(&self, levels: usize) -> Vec<f64> {
        let mut counts = vec![0usize; levels];
        self.runs.iter().flat_map(|r| &r.level).for_each(|l| counts[*l] += 1);
        let n: usize = counts.iter().sum();
        counts.iter().map(|c| *c as f64 / n.max(1) as f64).collect()
    }
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

/// Runs every arm over every window of token ids, of which `prompt` are read first. The order of the arms in each window is drawn by `seed`.
///
/// # Errors
/// What the decoder reports; windows that are no longer than a prompt; cancellation.
pub fn trial(
    decoder: &mut Decoder,
    windows: &[Vec<u32>],
    (prompt, seed): (usize, u64),
    arms: &[Arm],
    cancel: &Cancel,
    told: &mut dyn FnMut(usize, usize, usize),
) -> Result<Vec<Outcome>> {
    let mut out = vec![Outcome::default(); arms.len()];
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let prompt = prompt.max(1);
    for (at, ids) in windows.iter().enumerate() {
        if ids.len() < prompt + 2 {
            return Err(ControlError::Short { what: "tokens in a window", found: ids.len(), least: prompt + 2 });
        }
        let fed = &ids[..ids.len() - 1];
        decoder.rewind(0, 0);
        decoder.set_level(0)?;
        let whole = rows(&decoder.feed_all(0, fed)?)?;
        let mut order: Vec<usize> = (0..arms.len()).collect();
        order.shuffle(&mut rng);
        let mut runs = vec![Run::default(); arms.len()];
        for (done, i) in order.into_iter().enumerate() {
            told(at, done, i);
            runs[i] = run(decoder, ids, prompt, (&arms[i], at), &whole, cancel)?;
        }
        out.iter_mut().zip(runs).for_each(|(o, r)| o.runs.push(r));
    }
    Ok(out)
}

/// Logits `[tokens, vocabulary]`, row by row.
fn rows(logits: &Tensor) -> Result<Vec<Vec<f32>>> {
    Ok(logits.to_vec2::<f32>()?)
}

fn run(
    decoder: &mut Decoder,
    ids: &[u32],
    prompt: usize,
    (arm, window): (&Arm, usize),
    whole: &[Vec<f32>],
    cancel: &Cancel,
) -> Result<Run> {
    let mut out = Run::default();
    let mut lot = match arm {
        Arm::Lot { seed, .. } => ChaCha8Rng::seed_from_u64(seed ^ ((window as u64) << 32)),
        _ => ChaCha8Rng::seed_from_u64(0),
    };
    let mut controller = match arm {
        Arm::Policy(policy) => Some(Controller::new(policy, Asked::Auto)),
        _ => None,
    };
    decoder.rewind(0, 0);
    decoder.set_level(0)?;
    let mut logits = decoder.feed(0, &ids[..prompt])?;
    for t in prompt..ids.len() - 1 {
        cancel.check()?;
        let (id, clock) = (ids[t], Instant::now());
        let level = match (arm, &mut controller) {
            (_, Some(c)) => c.next(prompt, &logits, id),
            (Arm::Fixed(level), _) => *level,
            (Arm::Lot { levels, share, .. }, _) => levels[usize::from(lot.random_range(0.0..1.0) >= *share)],
            (Arm::Policy(_), None) => 0,
        };
        let chosen = clock.elapsed();
        decoder.set_level(level)?;
        logits = decoder.feed(0, &[id])?;
        let fed = clock.elapsed();
        if let Some(c) = &mut controller {
            c.said(&logits, level);
        }
        let all = clock.elapsed();
        let ms = |d: std::time::Duration| d.as_secs_f64() * 1e3;
        let apart = row_divergence(&whole[t], &logits).ok_or(EvalError::NotFinite { at: t })?.0;
        let next = surprise(&logits, ids[t + 1]).ok_or(EvalError::NotFinite { at: t })?.0;
        out.divergence.push(apart);
        out.surprise.push(next);
        out.ms.push(ms(all));
        out.choice_ms.push(ms(chosen + (all - fed)));
        out.level.push(level);
    }
    Ok(out)
}

/// A policy beside the best that fixed levels do in as much time.
#[derive(Debug, Clone, PartialEq)]
pub struct Versus {
    /// The outcomes whose mixture is the best, and the share of the windows' tokens that the first of them takes.
    pub mix: ([usize; 2], f64),
    /// What that mixture does.
    pub divergence: f64,
    pub surprise: f64,
    /// The policy's less the mixture's, window by window: below 0 where the policy is better.
    pub divergence_by: Estimate,
    pub surprise_by: Estimate,
}

/// A mean time and what it buys, window by window.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    pub time: f64,
    pub divergence: Vec<f64>,
    pub surprise: Vec<f64>,
}

/// Policies `own`, one a seed and all of the same windows, taken together window by window, beside `fixed`: the best of the single ones that take no
/// longer, and of all mixtures of two that take as long (of whole texts, so that it is a straight line between the two).
pub fn against_fixed(own: &[Point], fixed: &[Point]) -> Option<Versus> {
    let n = own.len().max(1) as f64;
    let time = own.iter().map(|p| p.time).sum::<f64>() / n;
    let windows = own.first()?.divergence.len();
    let pooled = |of: fn(&Point) -> &Vec<f64>| -> Vec<f64> {
        (0..windows).map(|w| own.iter().map(|p| of(p)[w]).sum::<f64>() / n).collect()
    };
    let mut best: Option<(f64, [usize; 2], f64)> = None;
    for a in 0..fixed.len() {
        for b in 0..fixed.len() {
            let (slow, fast) = (fixed[a].time, fixed[b].time);
            let share = match fast <= time {
                true if slow <= time => 1.0,
                true => (time - fast) / (slow - fast),
                false => continue,
            };
            let value = share * mean(&fixed[a].divergence) + (1.0 - share) * mean(&fixed[b].divergence);
            if best.is_none_or(|(v, ..)| value < v) {
                best = Some((value, [a, b], share));
            }
        }
    }
    let (divergence, mix, share) = best?;
    let mixed =
        |of: fn(&Point) -> &Vec<f64>, w: usize| share * of(&fixed[mix[0]])[w] + (1.0 - share) * of(&fixed[mix[1]])[w];
    let by = |of: fn(&Point) -> &Vec<f64>| {
        let less: Vec<f64> = pooled(of).iter().enumerate().map(|(w, v)| v - mixed(of, w)).collect();
        Estimate::of(&less)
    };
    let surprise = (0..windows).map(|w| mixed(|p| &p.surprise, w)).sum::<f64>() / windows.max(1) as f64;
    Some(Versus {
        mix: (mix, share),
        divergence,
        surprise,
        divergence_by: by(|p| &p.divergence),
        surprise_by: by(|p| &p.surprise),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(time: f64, divergence: &[f64]) -> Point {
        Point { time, divergence: divergence.to_vec(), surprise: divergence.iter().map(|d| d + 1.0).collect() }
    }

    #[test]
    fn the_best_fixed_is_on_the_line_or_below_it() {
        let fixed = [point(1.0, &[0.0, 0.0]), point(0.8, &[0.4, 0.2]), point(0.5, &[0.4, 0.6])];
        // Between the ends: 0.3 at 0.7 by a line from the first to the last, better than from the second on.
        let found = against_fixed(&[point(0.7, &[0.1, 0.2])], &fixed).unwrap();
        assert_eq!(found.mix.0, [0, 2]);
        assert!((found.mix.1 - 0.4).abs() < 1e-9 && (found.divergence - 0.3).abs() < 1e-9, "{found:?}");
        assert!((found.divergence_by.value + 0.15).abs() < 1e-9 && (found.surprise - 1.3).abs() < 1e-9);
        // As slow as the whole network: that one.
        let found = against_fixed(&[point(1.2, &[0.1, 0.2])], &fixed).unwrap();
        assert!(found.divergence == 0.0 && found.divergence_by.value > 0.0);
        // Faster than all: nothing to compare with.
        assert_eq!(against_fixed(&[point(0.4, &[0.1, 0.2])], &fixed), None);
        // Seeds are taken together.
        let two = against_fixed(&[point(0.6, &[0.1, 0.2]), point(0.8, &[0.1, 0.2])], &fixed).unwrap();
        assert!((two.divergence - 0.3).abs() < 1e-9);
    }
}
