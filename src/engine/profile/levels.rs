//! How long a token takes at each level of a decoder, beside the first level: two tokens of each in turn, in an order by lot, so that it is known what the
//! change takes.
//!
//! Not here: which rounds count (`turns`), order statistics (`stats`).

use super::paired::{PairedOptions, pick};
use super::stats::ms;
use super::{LatencyStats, Ratio, Result};
use crate::exec::{Cancel, DecodeOptions, Decoder, KvFormat, Plan};
use crate::task::quantile;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::time::Instant;

/// What a token takes at one level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LevelTime {
    /// Milliseconds.
    pub stats: LatencyStats,
    /// Beside the first level, by rounds in which both ran.
    pub ratio: Ratio,
    /// What a token after one of another level takes more than one after a token of its own (weights that lie in no cache any more), as a share of the
    /// first level's token: the median over rounds, 0 at least.
    pub entry: f64,
}

/// Times one token at each of the levels `plans` after `context` others.
///
/// # Errors
/// As [`Decoder::over`], and what it reports; cancellation.
pub fn levels(
    plans: &[Plan],
    (context, kv): (usize, KvFormat),
    options: &PairedOptions,
    cancel: &Cancel,
) -> Result<Vec<LevelTime>> {
    let mut decoder = Decoder::over(plans, &DecodeOptions { sequences: 1, context: context + 1, kv })?;
    let vocab = plans.first().and_then(|p| p.graph().vocabulary()).unwrap_or(1).max(1) as u32;
    let id = |i: usize| (i as u32).wrapping_add(1).wrapping_mul(2_654_435_761) % vocab;
    let ids: Vec<u32> = (0..context.max(1)).map(id).collect();
    for part in ids.chunks(Decoder::AT_ONCE) {
        cancel.check()?;
        decoder.feed(0, part)?;
    }
    let mut once = |level: usize| -> Result<f64> {
        decoder.set_level(level)?;
        let start = Instant::now();
        decoder.feed(0, &[id(context)])?;
        let took = ms(start.elapsed());
        decoder.rewind(0, ids.len());
        Ok(took)
    };
    for level in (0..plans.len()).chain(0..plans.len()) {
        once(level)?;
    }
    let mut order: Vec<usize> = (0..plans.len()).collect();
    let mut rng = ChaCha8Rng::seed_from_u64(options.seed);
    // Of each level a token after one of another level, and one after that.
    let mut rounds: Vec<Vec<[f64; 2]>> = Vec::new();
    let counted = options.turns(plans[0].device(), cancel).take(|_| {
        order.shuffle(&mut rng);
        let mut took = vec![[0.0; 2]; order.len()];
        for level in &order {
            took[*level] = [once(*level)?, once(*level)?];
        }
        rounds.push(took);
        Ok(())
    })?;
    let of = |level: usize| {
        let pairs: Vec<(f64, f64)> = rounds.iter().map(|r| (r[0][1], r[level][1])).collect();
        let entered: Vec<(f64, f64)> = rounds.iter().map(|r| (r[0][1], r[level][0] - r[level][1])).collect();
        let (pairs, entered) = (pick(&pairs, &counted.rounds), pick(&entered, &counted.rounds));
        let stats = LatencyStats::of(&pairs.iter().map(|p| p.1).collect::<Vec<_>>());
        let mut more: Vec<f64> = entered.iter().map(|(whole, more)| more / whole).collect();
        more.sort_by(f64::total_cmp);
        let entry = if more.is_empty() { 0.0 } else { quantile(&more, 0.5).max(0.0) };
        LevelTime { stats, ratio: Ratio::of(&pairs), entry }
    };
    Ok((0..plans.len()).map(of).collect())
}
