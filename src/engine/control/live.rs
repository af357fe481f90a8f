//! A controller at work beside every fixed level, token by token through one decoder: each keeps keys and values of its own, all are given the
//! same text, and in an order by lot each computes the token before any of them is given the next.
//!
//! The text is given (teacher-forced); the first tokens of a window are a prompt that the whole network reads, as in `trial`, whose figures
//! these are. Which level is computed may be asked for at any token: nothing is computed anew for it, and figures begin anew. Invariants:
//! what chooses is told nothing of what comes, and nothing of what the whole network says; figures are of the newest tokens, so that memory
//! is bounded however long it goes on.

use super::clock::Clock;
use super::error::{ControlError, Result};
use super::policy::{Asked, Pilot, Policy};
use super::trial::{Outcome, Point, Run, against_fixed};
use crate::eval::EvalError;
use crate::exec::{DecodeOptions, Decoder, KvFormat, Plan};
use crate::task::{Estimate, quantile, row_divergence, surprise};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Tokens that figures are made of at most, in whole windows.
const KEPT: usize = 4096;
/// Levels chosen that are told, newest last.
const RECENT: usize = 256;

/// What one of them did, a token.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// By its levels' medians, choosing included, as a share of the whole network's.
    pub time: f64,
    /// The same by all of its tokens' time beside all of the whole network's.
    pub wall: f64,
    /// Milliseconds.
    pub p50: f64,
    pub p95: f64,
    /// A second of its own tokens' time; what runs beside it does not count.
    pub rate: f64,
    /// From the whole network's, in nats.
    pub divergence: f64,
    pub perplexity: f64,
}

/// What runs beside the best that fixed levels do in as much time, the mixture of two included (a straight line between them).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Regret {
    /// The levels mixed, and the share of the first.
    pub levels: [usize; 2],
    pub share: f64,
    /// What the mixture diverges, in nats a token.
    pub divergence: f64,
    /// What runs diverges more, by windows: below 0 where it does better.
    pub by: Estimate,
}

/// How it goes, over the newest tokens since a level was last asked for.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    pub asked: Asked,
    /// Tokens since then, and those that figures are made of, in so many windows.
    pub tokens: u64,
    pub counted: u64,
    pub windows: u64,
    /// Levels of the newest tokens, newest last.
    pub recent: Vec<u8>,
    /// What part of the tokens each level made.
    pub shares: Vec<f64>,
    pub own: Side,
    /// Every level alone on the same tokens.
    pub levels: Vec<Side>,
    /// The fixed level that diverges least of those that take no longer.
    pub best: Option<usize>,
    /// `None` where it is faster than every fixed level.
    pub regret: Option<Regret>,
}

impl Figures {
    /// Whether all of it can be shown, and told in JSON, which has no infinities.
    pub fn is_sound(&self) -> bool {
        let side = |s: &Side| [s.time, s.wall, s.p50, s.p95, s.rate, s.divergence, s.perplexity];
        let sides = self.levels.iter().chain([&self.own]).flat_map(side);
        let regret = self.regret.iter().flat_map(|r| {
            let (low, high) = r.by.range.unwrap_or_default();
            [r.share, r.divergence, r.by.value, low, high]
        });
        sides.chain(regret).chain(self.shares.iter().copied()).all(f64::is_finite)
    }
}

/// See the module's page.
pub struct Live<'a> {
    decoder: Decoder,
    policy: &'a Policy,
    prompt: usize,
    asked: Asked,
    pilot: Pilot,
    ids: Vec<u32>,
    at: usize,
    /// What was said last by what runs.
    last: Vec<f32>,
    /// The levels', then that of what runs.
    outcomes: Vec<Outcome>,
    /// The next token begins a run in each outcome.
    begins: bool,
    tokens: u64,
    recent: VecDeque<u8>,
    rng: ChaCha8Rng,
}

impl<'a> Live<'a> {
    /// Over the levels `plans` of `policy`, for windows of `context` tokens at most of which the whole network reads `prompt`.
    ///
    /// # Errors
    /// As [`Decoder::over`]; a policy of other levels.
    pub fn over(
        plans: &[Plan],
        policy: &'a Policy,
        (prompt, context, kv): (usize, usize, KvFormat),
        seed: u64,
    ) -> Result<Live<'a>> {
        let levels = plans.len();
        if policy.levels() != levels {
            return Err(ControlError::Bad(format!("a policy of {} levels for {levels}", policy.levels())));
        }
        let decoder = Decoder::over(plans, &DecodeOptions { sequences: levels + 1, context, kv })?;
        Ok(Live {
            decoder,
            policy,
            prompt: prompt.max(1),
            asked: Asked::Auto,
            pilot: Pilot::default(),
            ids: Vec::new(),
            at: 0,
            last: Vec::new(),
            outcomes: vec![Outcome::default(); levels + 1],
            begins: true,
            tokens: 0,
            recent: VecDeque::new(),
            rng: ChaCha8Rng::seed_from_u64(seed),
        })
    }

    /// Begins another window.
    ///
    /// # Errors
    /// One that is no longer than a prompt; what the decoder reports.
    pub fn begin(&mut self, ids: &[u32]) -> Result<()> {
        let least = self.prompt + 2;
        if ids.len() < least {
            return Err(ControlError::Short { what: "tokens in a window", found: ids.len(), least });
        }
        self.decoder.set_level(0)?;
        for sequence in 0..self.outcomes.len() {
            self.decoder.rewind(sequence, 0);
            self.last = self.decoder.feed(sequence, &ids[..self.prompt])?;
        }
        self.pilot = Pilot::begin(self.prompt, &self.last, self.policy.levels());
        self.ids = ids.to_vec();
        (self.at, self.begins) = (self.prompt, true);
        Ok(())
    }

    /// From the next token on that level is computed, or what the policy says. One that there is not is the last.
    pub fn ask(&mut self, asked: Asked) {
        let asked = match asked {
            Asked::Pinned(level) => Asked::Pinned(level.min(self.policy.levels() - 1)),
            Asked::Auto => Asked::Auto,
        };
        if asked != self.asked {
            self.asked = asked;
            self.outcomes.iter_mut().for_each(|o| o.runs.clear());
            (self.begins, self.tokens) = (true, 0);
        }
    }

    /// One token. `false`: the window is at its end.
    ///
    /// # Errors
    /// What the decoder reports; logits that are no numbers.
    pub fn step(&mut self) -> Result<bool> {
        let t = self.at;
        let (Some(&id), Some(&next)) = (self.ids.get(t), self.ids.get(t + 1)) else { return Ok(false) };
        let own = self.policy.levels();
        let mut order: Vec<usize> = (0..=own).collect();
        order.shuffle(&mut self.rng);
        let mut said = vec![Vec::new(); own + 1];
        let mut took = vec![(Duration::ZERO, Duration::ZERO); own + 1];
        let mut made = own;
        for arm in order {
            let clock = Instant::now();
            let level = match self.asked {
                _ if arm < own => arm,
                Asked::Pinned(level) => level,
                Asked::Auto => self.policy.choose(&[self.pilot.wish(self.policy, id, &self.last, 1.0)]),
            };
            let chosen = clock.elapsed();
            self.decoder.set_level(level)?;
            let logits = self.decoder.feed(arm, &[id])?;
            let fed = clock.elapsed();
            if arm == own {
                made = level;
                if self.asked == Asked::Auto {
                    self.pilot.after(&logits, level, own);
                }
            }
            let all = clock.elapsed();
            took[arm] = (all, chosen + (all - fed));
            said[arm] = logits;
        }
        if self.asked != Asked::Auto {
            // It goes on from here when it is asked again.
            self.pilot.after(&said[own], made, own);
        }
        if std::mem::take(&mut self.begins) {
            self.outcomes.iter_mut().for_each(|o| o.runs.push(Run::default()));
            self.trim();
        }
        for (arm, (logits, (all, chose))) in said.iter().zip(&took).enumerate() {
            let apart = row_divergence(&said[0], logits).ok_or(EvalError::NotFinite { at: t })?.0;
            let follows = surprise(logits, next).ok_or(EvalError::NotFinite { at: t })?.0;
            let Some(run) = self.outcomes[arm].runs.last_mut() else { continue };
            run.divergence.push(apart);
            run.surprise.push(follows);
            run.ms.push(all.as_secs_f64() * 1e3);
            run.choice_ms.push(chose.as_secs_f64() * 1e3);
            run.level.push(if arm < own { arm } else { made });
        }
        self.recent.push_back(made as u8);
        let extra = self.recent.len().saturating_sub(RECENT);
        self.recent.drain(..extra);
        self.last = said.swap_remove(own);
        self.at += 1;
        self.tokens += 1;
        Ok(true)
    }

    /// Lets go of the oldest windows.
    fn trim(&mut self) {
        let kept = |o: &Outcome| o.runs.iter().map(|r| r.ms.len()).sum::<usize>();
        while self.outcomes[0].runs.len() > 2 && kept(&self.outcomes[0]) > KEPT {
            self.outcomes.iter_mut().for_each(|o| drop(o.runs.remove(0)));
        }
    }

    /// How it goes; nothing before the first token.
    pub fn figures(&self) -> Option<Figures> {
        let own = self.outcomes.last().filter(|o| !o.runs.is_empty())?;
        let levels = &self.outcomes[..self.outcomes.len() - 1];
        let clock = Clock::of(&levels.iter().collect::<Vec<_>>(), &[own]);
        let side = |o: &Outcome, time: f64| {
            let ms = o.ms();
            Side {
                time,
                wall: Clock::wall(o, &levels[0]),
                p50: quantile(&ms, 0.5),
                p95: quantile(&ms, 0.95),
                rate: 1e3 * ms.len() as f64 / ms.iter().sum::<f64>().max(1e-9),
                divergence: o.mean(|r| &r.divergence),
                perplexity: o.mean(|r| &r.surprise).exp(),
            }
        };
        let sides: Vec<Side> = levels.iter().map(|o| side(o, clock.time(o, false))).collect();
        let time = clock.time(own, self.asked == Asked::Auto);
        let fixed: Vec<Point> = levels.iter().zip(&sides).map(|(o, s)| Clock::point(o, s.time)).collect();
        let versus = against_fixed(&[Clock::point(own, time)], &fixed);
        let no_longer = (0..sides.len()).filter(|l| sides[*l].time <= time);
        Some(Figures {
            asked: self.asked,
            tokens: self.tokens,
            counted: own.runs.iter().map(|r| r.ms.len() as u64).sum(),
            windows: own.runs.len() as u64,
            recent: self.recent.iter().copied().collect(),
            shares: own.shares(levels.len()),
            own: side(own, time),
            best: no_longer.min_by(|a, b| sides[*a].divergence.total_cmp(&sides[*b].divergence)),
            levels: sides,
            regret: versus.map(|v| Regret {
                levels: v.mix.0,
                share: v.mix.1,
                divergence: v.divergence,
                by: v.divergence_by,
            }),
        })
    }
}
