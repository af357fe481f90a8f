//! Learning what levels cost: a contextual bandit, a policy gradient, and, for comparison, the regressions that both begin with.
//!
//! All walk through a [`Trace`] as decoding would. Every level was run on it, so that regressions of all levels' divergences are there to begin with (a warm
//! start, as of Zhang et al. 2019, arXiv 1901.00301); from then on the first two see at each token only the divergence of the level that they chose.
//! Losses are nats of divergence; time has a price that rises while tokens take longer than the target on average and falls while they take less
//! (dual ascent), and is settled at the end so that the whole trace takes the target. Everything is drawn by a seed.

use super::policy::{Policy, Wish, taken, weighed};
use super::signals::{SIGNALS, Signals, Table};
use super::trace::Trace;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// How a policy is learnt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Learner {
    /// LinUCB with a ridge regression for each level (Li et al. 2010), for losses: the least lower bound is chosen. It begins with [`Learner::Whole`].
    #[default]
    Bandit,
    /// A softmax over the levels' foretold costs, by REINFORCE with a linear baseline (Williams 1992). It begins with what a bandit learnt: from
    /// nothing it settles on a single level long before the signals tell.
    Gradient,
    /// Ridge regressions of every level's divergence, seen at each token whatever was chosen: what calibration text alone tells.
    Whole,
}

impl Learner {
    pub fn label(self) -> &'static str {
        match self {
            Learner::Bandit => "bandit",
            Learner::Gradient => "gradient",
            Learner::Whole => "whole",
        }
    }
}

impl std::str::FromStr for Learner {
    type Err = String;

    fn from_str(s: &str) -> Result<Learner, String> {
        let all = [Learner::Bandit, Learner::Gradient, Learner::Whole];
        all.into_iter().find(|l| l.label() == s).ok_or_else(|| format!("`{s}` is not `bandit` or `gradient`"))
    }
}

/// What is learnt from.
#[derive(Debug, Clone, Copy)]
pub struct Lesson<'a> {
    pub trace: &'a Trace,
    /// Made of other text than the trace.
    pub table: &'a Table,
    /// Tokens of each window that the whole network reads.
    pub prompt: usize,
    /// Each level's time as a share of the whole network's, and what it takes more after another level.
    pub times: &'a [f32],
    pub entries: &'a [f32],
    /// The mean time that tokens may take, as such a share.
    pub target: f64,
}

impl Lesson<'_> {
    /// What a token at `level` takes after one at `before`.
    fn time(&self, level: usize, before: usize) -> f32 {
        taken((self.times, self.entries), level, before)
    }

    fn policy(&self, weights: Vec<Vec<f32>>) -> Policy {
        let (times, entries, table) = (self.times.to_vec(), self.entries.to_vec(), self.table.clone());
        Policy { weights, price: 1.0, times, entries, stay: 1.0, table }
    }
}

/// A policy, and how it fared while it learnt.
#[derive(Debug, Clone, PartialEq)]
pub struct Learnt {
    pub policy: Policy,
    /// Tokens seen, and how much more the choices so far cost than the best single level would have, in nats, at the price that was settled.
    pub regret: Vec<(usize, f64)>,
}

/// Passes over the trace.
const PASSES: usize = 4;
/// What signals' squares begin with in a regression.
const RIDGE: f64 = 1.0;
/// How far below its mean a bandit believes a loss may lie, in standard errors for unit noise.
const HOPE: f64 = 0.1;
/// Of the softmax: nats that make a level e times as likely.
const WARMTH: f32 = 0.1;
/// Of the gradient, per token, and the passes that it goes on for.
const STEP: f32 = 0.003;
const FURTHER: usize = 10;
/// Of the price, per token.
const STEP_PRICE: f64 = 0.01;
/// Tokens that a change may be taken to be good for.
const STAYS: [f32; 4] = [1.0, 4.0, 16.0, 64.0];
/// Nats that a whole token's time is worth at most, and how finely the price is found.
const MOST_PRICE: f32 = 64.0;
const HALVINGS: usize = 24;
/// What a divergence counts at most for a gradient.
const MOST: f32 = 4.0;

/// A ridge regression that learns sample by sample (Sherman and Morrison's update of the inverse).
#[derive(Debug, Clone)]
struct Ridge {
    inverse: Vec<[f64; SIGNALS]>,
    sums: [f64; SIGNALS],
    mean: [f64; SIGNALS],
}

impl Ridge {
    fn new() -> Ridge {
        let row = |i: usize| std::array::from_fn(|j| if i == j { 1.0 / RIDGE } else { 0.0 });
        Ridge { inverse: (0..SIGNALS).map(row).collect(), sums: [0.0; SIGNALS], mean: [0.0; SIGNALS] }
    }

    fn times(&self, x: &[f64; SIGNALS]) -> [f64; SIGNALS] {
        std::array::from_fn(|i| self.inverse[i].iter().zip(x).map(|(a, b)| a * b).sum())
    }

    fn learn(&mut self, x: &[f64; SIGNALS], y: f64) {
        let ax = self.times(x);
        let down = 1.0 + x.iter().zip(&ax).map(|(a, b)| a * b).sum::<f64>();
        for (row, a) in self.inverse.iter_mut().zip(ax) {
            row.iter_mut().zip(&ax).for_each(|(v, b)| *v -= a * b / down);
        }
        self.sums.iter_mut().zip(x).for_each(|(s, v)| *s += y * v);
        self.mean = self.times(&self.sums.clone());
    }

    /// The mean, and the standard error for unit noise.
    fn foretell(&self, x: &[f64; SIGNALS]) -> (f64, f64) {
        let mean = self.mean.iter().zip(x).map(|(a, b)| a * b).sum();
        let var: f64 = self.times(x).iter().zip(x).map(|(a, b)| a * b).sum();
        (mean, var.max(0.0).sqrt())
    }

    fn weights(&self) -> Vec<f32> {
        self.mean.iter().map(|v| *v as f32).collect()
    }
}

fn wide(x: &Signals) -> [f64; SIGNALS] {
    x.map(f64::from)
}

/// Learns a policy.
pub fn learn(learner: Learner, lesson: &Lesson, seed: u64) -> Learnt {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut walked = Walked::new(lesson);
    let weights = match learner {
        Learner::Bandit => begun(lesson, &mut rng, &mut walked),
        Learner::Gradient => gradient(lesson, &mut rng, &mut walked),
        Learner::Whole => seen(lesson, &mut rng).iter().map(Ridge::weights).collect(),
    };
    let mut policy = lesson.policy(weights);
    settle(&mut policy, lesson);
    let regret = walked.regret(policy.price);
    Learnt { policy, regret }
}

/// What was chosen while learning.
struct Walked<'a> {
    lesson: &'a Lesson<'a>,
    /// Divergences of all levels, the level chosen and the time that it took, token by token: for the regret alone.
    seen: Vec<(Vec<f32>, usize, f32)>,
    price: f64,
    /// [`Policy::stay`].
    stay: f32,
}

impl<'a> Walked<'a> {
    fn new(lesson: &'a Lesson<'a>) -> Walked<'a> {
        Walked { lesson, seen: Vec::new(), price: 0.0, stay: 1.0 }
    }

    fn weighed(&self, level: usize, before: usize) -> f32 {
        weighed((self.lesson.times, self.lesson.entries), self.stay, level, before)
    }

    /// A token was computed at `level` after one at `before`: the price for the next.
    fn chose(&mut self, divergence: &[f32], level: usize, before: usize) {
        let time = self.lesson.time(level, before);
        self.price = (self.price + STEP_PRICE * (f64::from(time) - self.lesson.target)).max(0.0);
        self.seen.push((divergence.to_vec(), level, time));
    }

    fn regret(&self, price: f32) -> Vec<(usize, f64)> {
        const POINTS: usize = 10;
        let cost = |d: &[f32], l: usize, time: f32| f64::from(d[l] + price * time);
        let alone = |d: &[f32], l: usize| cost(d, l, self.lesson.times[l]);
        let levels = 0..self.lesson.trace.levels;
        let total = |l: usize| self.seen.iter().map(|(d, ..)| alone(d, l)).sum::<f64>();
        let Some(best) = levels.min_by(|a, b| total(*a).total_cmp(&total(*b))) else { return Vec::new() };
        let (mut out, mut sum) = (Vec::new(), 0.0);
        for (n, (d, level, time)) in self.seen.iter().enumerate() {
            sum += cost(d, *level, *time) - alone(d, best);
            if (n + 1) * POINTS / self.seen.len() > n * POINTS / self.seen.len() {
                out.push((n + 1, sum));
            }
        }
        out
    }
}

/// The windows in an order by lot.
fn shuffled(lesson: &Lesson, rng: &mut ChaCha8Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..lesson.trace.windows.len()).collect();
    order.shuffle(rng);
    order
}

/// A bandit that begins with regressions of all levels, at the price that they come to.
fn begun(lesson: &Lesson, rng: &mut ChaCha8Rng, walked: &mut Walked) -> Vec<Vec<f32>> {
    let arms = seen(lesson, rng);
    let mut start = lesson.policy(arms.iter().map(Ridge::weights).collect());
    settle(&mut start, lesson);
    (walked.price, walked.stay) = (f64::from(start.price), start.stay);
    bandit(lesson, arms, rng, walked)
}

fn bandit(lesson: &Lesson, mut arms: Vec<Ridge>, rng: &mut ChaCha8Rng, walked: &mut Walked) -> Vec<Vec<f32>> {
    for _ in 0..PASSES {
        for at in shuffled(lesson, rng) {
            let mut before = 0;
            lesson.trace.walk(at, (lesson.prompt, lesson.table), |signals, divergence| {
                let x = wide(signals);
                let bound = |l: usize| {
                    let (mean, error) = arms[l].foretell(&x);
                    mean + walked.price * f64::from(walked.weighed(l, before)) - HOPE * error
                };
                let bounds: Vec<f64> = (0..arms.len()).map(bound).collect();
                let level = (0..bounds.len()).min_by(|a, b| bounds[*a].total_cmp(&bounds[*b])).unwrap_or_default();
                arms[level].learn(&x, f64::from(divergence[level]));
                walked.chose(divergence, level, before);
                before = level;
                level
            });
        }
    }
    arms.iter().map(Ridge::weights).collect()
}

/// Every level's divergence by the signals, on a way by lot.
fn seen(lesson: &Lesson, rng: &mut ChaCha8Rng) -> Vec<Ridge> {
    let mut arms = vec![Ridge::new(); lesson.trace.levels];
    for at in shuffled(lesson, rng) {
        lesson.trace.walk(at, (lesson.prompt, lesson.table), |signals, divergence| {
            let x = wide(signals);
            arms.iter_mut().zip(divergence).for_each(|(arm, d)| arm.learn(&x, f64::from(*d)));
            rng.random_range(0..divergence.len())
        });
    }
    arms
}

fn gradient(lesson: &Lesson, rng: &mut ChaCha8Rng, walked: &mut Walked) -> Vec<Vec<f32>> {
    let levels = lesson.trace.levels;
    let weights = begun(lesson, rng, walked);
    let mut start = lesson.policy(weights);
    settle(&mut start, lesson);
    let mut weights: Vec<[f32; SIGNALS]> = start.weights.iter().map(|w| std::array::from_fn(|i| w[i])).collect();
    let mut base = Ridge::new();
    (walked.price, walked.stay) = (f64::from(start.price), start.stay);
    for pass in 0..FURTHER {
        // Smaller steps towards the end.
        let step = STEP * (1.0 - pass as f32 / FURTHER as f32);
        for at in shuffled(lesson, rng) {
            let mut before = 0;
            lesson.trace.walk(at, (lesson.prompt, lesson.table), |signals, divergence| {
                let price = walked.price as f32;
                let dot = |w: &[f32; SIGNALS]| w.iter().zip(signals).map(|(a, b)| a * b).sum::<f32>();
                let costs: Vec<f32> =
                    (0..levels).map(|l| dot(&weights[l]) + price * walked.weighed(l, before)).collect();
                let least = costs.iter().copied().fold(f32::INFINITY, f32::min);
                let mut chances: Vec<f32> = costs.iter().map(|c| (-(c - least) / WARMTH).exp()).collect();
                let sum: f32 = chances.iter().sum();
                chances.iter_mut().for_each(|c| *c /= sum);
                let mut left = rng.random_range(0.0..1.0f32);
                let drawn = chances.iter().position(|c| {
                    left -= c;
                    left < 0.0
                });
                let level = drawn.unwrap_or(levels - 1);
                let loss = divergence[level].min(MOST) + price * lesson.time(level, before);
                let x = wide(signals);
                let over = loss - base.foretell(&x).0 as f32;
                base.learn(&x, f64::from(loss));
                let norm: f32 = signals.iter().map(|s| s * s).sum();
                for (l, w) in weights.iter_mut().enumerate() {
                    // Of -ln of the chance of `level`, by what level `l` is foretold to cost.
                    let slope = if l == level { 1.0 } else { 0.0 } - chances[l];
                    w.iter_mut().zip(signals).for_each(|(w, s)| *w += step * over * slope * s / norm);
                }
                walked.chose(divergence, level, before);
                before = level;
                level
            });
        }
    }
    weights.iter().map(|w| w.to_vec()).collect()
}

/// Mean divergence and time of a policy on the lesson's trace.
pub fn replay(policy: &Policy, lesson: &Lesson) -> (f64, f64) {
    let (mut sums, mut n) = ((0.0, 0.0), 0usize);
    for at in 0..lesson.trace.windows.len() {
        let mut before = 0;
        lesson.trace.walk(at, (lesson.prompt, &policy.table), |signals, divergence| {
            let level = policy.choose(&[Wish { signals: *signals, pressure: 1.0, before }]);
            sums.0 += f64::from(divergence[level]);
            sums.1 += f64::from(policy.time(level, before));
            n += 1;
            before = level;
            level
        });
    }
    (sums.0 / n.max(1) as f64, sums.1 / n.max(1) as f64)
}

/// Finds the price at which the trace takes the target, from below, and how many tokens a change had best be taken to be good for: where it takes more
/// than a token saves, none would ever be made for the token at hand alone. Where the target is out of reach, what takes least.
pub fn settle(policy: &mut Policy, lesson: &Lesson) {
    let one = |stay: f32| {
        let mut own = Policy { stay, ..policy.clone() };
        let (mut low, mut high) = (0f32, MOST_PRICE);
        for _ in 0..HALVINGS {
            own.price = 0.5 * (low + high);
            if replay(&own, lesson).1 > lesson.target { low = own.price } else { high = own.price }
        }
        own.price = high;
        let (divergence, time) = replay(&own, lesson);
        let reached = time <= lesson.target;
        (!reached, if reached { divergence } else { time }, own)
    };
    // Of equals the first.
    let all = STAYS.map(one).into_iter();
    let best = all.min_by(|a, b| a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)));
    if let Some((.., best)) = best {
        *policy = best;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Row;
    use crate::exec::Spread;

    /// Two levels; the second costs nothing after tokens below 8, and a nat after others.
    fn toy() -> (Trace, Table) {
        let row = |i: u32| {
            let id = (i.wrapping_mul(2_654_435_761) >> 16) % 16;
            let cost = if id < 8 { 0.0 } else { 1.0 };
            Row { id, spread: vec![Spread::default(); 2], logit: vec![0.0; 2], divergence: vec![0.0, cost] }
        };
        let windows = (0..20).map(|w| (0..60).map(|t| row(60 * w + t)).collect()).collect();
        let trace = Trace { levels: 2, windows };
        let table = trace.table();
        (trace, table)
    }

    #[test]
    fn every_learner_finds_what_tokens_are_cheap_and_repeats_itself() {
        let (trace, table) = toy();
        let lesson = Lesson { trace: &trace, table: &table, prompt: 4, times: &[1.0, 0.5], entries: &[], target: 0.78 };
        for learner in [Learner::Bandit, Learner::Gradient, Learner::Whole] {
            let learnt = learn(learner, &lesson, 1);
            let (divergence, time) = replay(&learnt.policy, &lesson);
            // Half of the time the short way: by lot that would be half a nat every other time.
            assert!(divergence < 0.05 && (0.70..=0.78).contains(&time), "{learner:?}: {divergence} {time}");
            assert_eq!(learn(learner, &lesson, 1), learnt);
            if learner != Learner::Whole {
                assert_ne!(learn(learner, &lesson, 2).policy.weights, learnt.policy.weights);
                assert_eq!(learnt.regret.len(), 10);
                // By lot it would be a quarter of a nat a token, whatever time is worth.
                let (tokens, lost) = learnt.regret[9];
                assert!(lost < 0.02 * tokens as f64, "{:?}", learnt.regret);
            }
        }
    }

    #[test]
    fn changes_that_take_long_are_made_seldom_and_the_target_holds() {
        let (trace, table) = toy();
        let changes = |entries: &[f32]| {
            let lesson = Lesson { trace: &trace, table: &table, prompt: 4, times: &[1.0, 0.5], entries, target: 0.78 };
            let learnt = learn(Learner::Bandit, &lesson, 1);
            let (_, time) = replay(&learnt.policy, &lesson);
            assert!(time <= 0.78, "{entries:?}: {time}");
            let mut n = 0;
            for at in 0..trace.windows.len() {
                let mut before = 0;
                trace.walk(at, (4, &table), |signals, _| {
                    let level = learnt.policy.choose(&[Wish { signals: *signals, pressure: 1.0, before }]);
                    n += usize::from(level != before);
                    before = level;
                    level
                });
            }
            n
        };
        let (free, dear) = (changes(&[0.0, 0.0]), changes(&[0.3, 0.3]));
        assert!(3 * dear < 2 * free, "{dear} of {free}");
    }

    /// A change that takes more than a token saves is made all the same where the level is worth it, and the target is met.
    #[test]
    fn changes_that_take_more_than_a_token_saves_are_no_dead_end() {
        let (mut trace, table) = toy();
        let times = [1.0, 0.7];
        let lesson =
            Lesson { trace: &trace, table: &table, prompt: 4, times: &times, entries: &[0.5, 0.5], target: 0.8 };
        for learner in [Learner::Bandit, Learner::Gradient, Learner::Whole] {
            let learnt = learn(learner, &lesson, 1);
            let (_, time) = replay(&learnt.policy, &lesson);
            assert!(time <= 0.8 && learnt.policy.stay > 1.0, "{learner:?}: {time} {}", learnt.policy.stay);
        }
        // A level that costs nothing is stayed at.
        trace.windows.iter_mut().flatten().for_each(|r| r.divergence[1] = 0.0);
        let lesson =
            Lesson { trace: &trace, table: &table, prompt: 4, times: &times, entries: &[0.5, 0.5], target: 0.8 };
        let (divergence, time) = replay(&learn(Learner::Bandit, &lesson, 1).policy, &lesson);
        assert!(divergence < 1e-6 && time < 0.72, "{divergence} {time}");
        // None is as fast as that: the fastest.
        let lesson = Lesson { target: 0.5, ..lesson };
        let (_, time) = replay(&learn(Learner::Bandit, &lesson, 1).policy, &lesson);
        assert!(time < 0.72, "{time}");
    }

    #[test]
    fn a_bandit_is_told_nothing_of_what_it_did_not_choose() {
        let (mut trace, table) = toy();
        let times = [1.0, 0.5];
        // One that nobody can afford to leave: time has no end of a price.
        let lesson = Lesson { trace: &trace, table: &table, prompt: 4, times: &times, entries: &[], target: 0.5 };
        let mut walked = Walked { price: 1e6, ..Walked::new(&lesson) };
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        let one = bandit(&lesson, vec![Ridge::new(); 2], &mut rng, &mut walked);
        trace.windows.iter_mut().flatten().for_each(|r| r.divergence[0] = 77.0);
        let lesson = Lesson { trace: &trace, table: &table, prompt: 4, times: &times, entries: &[], target: 0.5 };
        let mut walked = Walked { price: 1e6, ..Walked::new(&lesson) };
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        assert_eq!(bandit(&lesson, vec![Ridge::new(); 2], &mut rng, &mut walked), one);
    }
}
