//! What is known before a token is computed, as the numbers that a policy reads.
//!
//! Of the distribution that the token was drawn from its entropy, its margin and how likely the token was, whichever level made it; of the
//! text so far a moving mean of entropies, its length and the level before; of the token itself what followed it in calibration text.
//! Not here: weights (`policy`). Invariants: nothing comes from later tokens or from the whole network's answer for this one; every
//! signal is a number within fixed bounds, whatever logits hold.

use crate::exec::Spread;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How many numbers a policy reads.
pub const SIGNALS: usize = 14;

/// One token's.
pub type Signals = [f32; SIGNALS];

/// The share of the past in the moving mean of entropies, per token.
const KEEP: f32 = 0.8;
/// Beyond that nats are all the same: very much.
const MOST: f32 = 12.0;
/// What nats are divided by to lie near one.
const UNIT: f32 = 4.0;
/// Tokens that stand by every other with the mean of all: what few occurrences say counts for less.
const SHRINK: f64 = 4.0;
/// Steps of a statistic in a table, of `MOST` nats.
const STEPS: f32 = 255.0;

/// What followed each token in calibration text: the whole network's mean entropy, and the mean divergence of the ladder's last level.
/// Tokens that did not occur have the mean of all.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// Means of all tokens.
    mean: [u8; 2],
    /// Of each token that is unlike the mean, in 255ths of [`MOST`] nats: `id, entropy, divergence`, ids ascending.
    rows: Vec<(u32, u8, u8)>,
}

fn step(nats: f64) -> u8 {
    // Small divergences need finer steps than large ones: square roots are stored.
    let share = (nats.clamp(0.0, f64::from(MOST)) / f64::from(MOST)).sqrt();
    (share * f64::from(STEPS)).round() as u8
}

fn nats(step: u8) -> f32 {
    (f32::from(step) / STEPS).powi(2) * MOST
}

impl Table {
    /// Of `(id, entropy, divergence)` of every token of a text.
    pub fn of(seen: impl IntoIterator<Item = (u32, f64, f64)>) -> Table {
        let mut sums: BTreeMap<u32, (f64, [f64; 2])> = BTreeMap::new();
        let (mut n, mut all) = (0.0, [0.0; 2]);
        for (id, entropy, divergence) in seen {
            let one = sums.entry(id).or_default();
            one.0 += 1.0;
            n += 1.0;
            for (at, v) in [entropy, divergence].into_iter().enumerate() {
                one.1[at] += v;
                all[at] += v;
            }
        }
        let mean = all.map(|v| v / f64::max(n, 1.0));
        let shrunk = |(count, sum): (f64, [f64; 2])| {
            let of = |at: usize| step((sum[at] + SHRINK * mean[at]) / (count + SHRINK));
            (of(0), of(1))
        };
        let rows = sums.into_iter().map(|(id, s)| (id, shrunk(s).0, shrunk(s).1)).collect();
        Table { mean: mean.map(step), rows }
    }

    /// Mean entropy and divergence after `id`, in nats.
    pub fn of_token(&self, id: u32) -> [f32; 2] {
        let at = self.rows.binary_search_by_key(&id, |r| r.0);
        let [entropy, divergence] = at.map_or(self.mean, |at| [self.rows[at].1, self.rows[at].2]);
        [nats(entropy), nats(divergence)]
    }

    /// How many tokens it tells of.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Whether its ids ascend and are below `vocabulary`.
    pub(super) fn is_sound(&self, vocabulary: usize) -> bool {
        self.rows.windows(2).all(|w| w[0].0 < w[1].0) && self.rows.last().is_none_or(|r| (r.0 as usize) < vocabulary)
    }
}

/// What is known of a text so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Known {
    /// Of the distribution after the last token.
    spread: Spread,
    /// Moving mean of entropies.
    calm: f32,
    /// Tokens so far.
    tokens: usize,
    /// The level that made it, as a share of the last level.
    level: f32,
}

impl Known {
    /// After another token, whose logits at `level` of `levels` are spread like `spread`.
    pub fn after(&mut self, spread: Spread, level: usize, levels: usize) {
        let entropy = bounded(spread.entropy);
        self.calm = if self.tokens == 0 { entropy } else { KEEP * self.calm + (1.0 - KEEP) * entropy };
        self.spread = spread;
        self.level = level as f32 / levels.saturating_sub(1).max(1) as f32;
        self.tokens += 1;
    }

    /// After a prompt of `tokens` tokens, of which only the last one's logits were looked at.
    pub fn prompted(&mut self, tokens: usize) {
        self.tokens = self.tokens.max(tokens);
    }

    /// What is known of token `id`, which had the logit `logit` there.
    pub fn signals(&self, id: u32, logit: f32, table: &Table) -> Signals {
        let [after, cost] = table.of_token(id);
        let entropy = bounded(self.spread.entropy) / UNIT;
        let margin = bounded(self.spread.margin) / UNIT;
        let surprise = bounded(self.spread.surprise(logit)) / UNIT;
        let (calm, after, cost) = (self.calm / UNIT, after / UNIT, cost);
        let long = (self.tokens as f32 + 1.0).ln() / 8.0;
        [
            1.0,
            entropy,
            margin,
            surprise,
            calm,
            after,
            cost,
            long,
            self.level,
            entropy * cost,
            surprise * cost,
            after * cost,
            cost.sqrt(),
            surprise.min(0.25),
        ]
    }
}

/// Nats within bounds; what is no number counts as very unsure.
fn bounded(nats: f32) -> f32 {
    if nats.is_nan() { MOST } else { nats.clamp(0.0, MOST) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_holds_shrunken_means_and_the_mean_for_strangers() {
        let seen = (0..100).map(|i| if i < 96 { (7, 2.0, 0.5) } else { (9, 6.0, 4.5) });
        let table = Table::of(seen);
        let (mean, near) = ([2.16, 0.66], |got: [f32; 2], want: [f64; 2]| {
            got.iter().zip(want).all(|(g, w)| (f64::from(*g) - w).abs() < 0.03 * (1.0 + w))
        });
        assert!(near(table.of_token(3), mean), "{:?}", table.of_token(3));
        assert!(near(table.of_token(7), [(192.0 + 4.0 * 2.16) / 100.0, (48.0 + 4.0 * 0.66) / 100.0]));
        // Four occurrences count half.
        assert!(near(table.of_token(9), [(6.0 + 2.16) / 2.0, (4.5 + 0.66) / 2.0]), "{:?}", table.of_token(9));
        assert!(table.is_sound(10) && !table.is_sound(9) && table.len() == 2);
        let text = serde_json::to_string(&table).unwrap();
        assert_eq!(serde_json::from_str::<Table>(&text).unwrap(), table);
    }

    #[test]
    fn signals_are_bounded_whatever_logits_hold() {
        let mut known = Known::default();
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            known.after(Spread { top: bad, margin: bad, log_sum: bad, entropy: bad }, 1, 3);
            let signals = known.signals(0, bad, &Table::default());
            assert!(signals.iter().all(|v| v.is_finite() && v.abs() < 40.0), "{signals:?}");
        }
    }

    /// The same token after the same text has the same signals, whatever follows: there is no way in for what follows.
    #[test]
    fn signals_tell_sure_from_unsure() {
        let of = |logits: &[f32], id: usize| {
            let mut known = Known::default();
            known.after(Spread::of(logits), 0, 3);
            known.signals(id as u32, logits[id], &Table::default())
        };
        let (sure, unsure) = (of(&[9.0, 0.0, 0.0], 0), of(&[1.0, 0.9, 1.1], 0));
        assert!(sure[1] < 0.1 && unsure[1] > 0.2 && sure[2] > 2.0 && unsure[2] < 0.1, "{sure:?} {unsure:?}");
        assert!(of(&[9.0, 0.0, 0.0], 1)[3] > 2.0);
    }
}
