//! [`Policy`]: which level a token is computed at, by its signals; [`Pilot`]: one text's way through it.
//!
//! What a level costs is foretold as a linear function of the signals; the one with the least sum of that and `price` times its milliseconds is
//! taken. Plain arithmetic, the same for every learner (`learn`). Invariant: the same signals choose the same level.

use super::signals::{Known, SIGNALS, Signals, Table};
use crate::eval::Levels;
use crate::exec::Spread;
use serde::{Deserialize, Serialize};

/// What was learnt.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Policy {
    /// Per level, what each signal adds to what the level costs, in nats.
    pub weights: Vec<Vec<f32>>,
    /// What a whole token's time is worth, in nats.
    pub price: f32,
    /// Each level's time as a share of the whole network's.
    pub times: Vec<f32>,
    /// What a token takes more where the one before was of another level, as such a share; none: nothing.
    #[serde(default)]
    pub entries: Vec<f32>,
    /// Tokens that a change is taken to be good for: what it takes is weighed against the token at hand by so small a part of it.
    #[serde(default = "one")]
    pub stay: f32,
    pub table: Table,
}

/// Policies of before a change was weighed so.
fn one() -> f32 {
    1.0
}

/// Which levels may be chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    /// As the policy says.
    #[default]
    Auto,
    /// Always this one.
    Pinned(usize),
}

impl std::str::FromStr for Asked {
    type Err = String;

    fn from_str(s: &str) -> Result<Asked, String> {
        match s {
            "auto" => Ok(Asked::Auto),
            "dense" => Ok(Asked::Pinned(0)),
            n => n.parse().map(Asked::Pinned).map_err(|_| format!("`{n}` is not `auto`, `dense` or a level's number")),
        }
    }
}

impl Policy {
    pub fn levels(&self) -> usize {
        self.weights.len()
    }

    /// What a token at `level` takes after one at `before`, as a share of the whole network's.
    pub fn time(&self, level: usize, before: usize) -> f32 {
        taken((&self.times, &self.entries), level, before)
    }

    /// What each level is foretold to cost a token, its time's worth included.
    pub fn costs(&self, wish: &Wish) -> impl Iterator<Item = f32> + '_ {
        let Wish { signals, pressure, before } = *wish;
        self.weights.iter().enumerate().map(move |(level, weights)| {
            let loss: f32 = weights.iter().zip(&signals).map(|(w, s)| w * s).sum();
            loss + self.price * pressure * weighed((&self.times, &self.entries), self.stay, level, before)
        })
    }

    /// The level for tokens that are computed together: the one that costs them the least in all; the earlier of equals.
    pub fn choose(&self, together: &[Wish]) -> usize {
        let mut sums = vec![0f32; self.levels()];
        for wish in together {
            sums.iter_mut().zip(self.costs(wish)).for_each(|(s, c)| *s += c);
        }
        (0..sums.len()).min_by(|a, b| sums[*a].total_cmp(&sums[*b]).then(a.cmp(b))).unwrap_or(0)
    }

    /// Why it cannot run `levels` levels over a vocabulary of `vocabulary`, in words.
    ///
    /// # Errors
    /// Numbers that are none, or as many as there should not be.
    pub fn check(&self, levels: usize, vocabulary: usize) -> Result<(), String> {
        if self.weights.len() != levels || self.times.len() != levels {
            return Err(format!("it chooses among {} levels of {levels}", self.weights.len()));
        }
        if self.weights.iter().any(|w| w.len() != SIGNALS) {
            return Err(format!("it does not read {SIGNALS} signals"));
        }
        let sound = |v: &f32| v.is_finite() && v.abs() < 1e6;
        if !self.entries.is_empty() && self.entries.len() != levels {
            return Err(format!("it tells what {} levels of {levels} take to change to", self.entries.len()));
        }
        let priced = sound(&self.price) && self.price >= 0.0 && self.times.iter().all(|t| sound(t) && *t > 0.0);
        let priced =
            priced && self.entries.iter().all(|e| sound(e) && *e >= 0.0) && self.stay >= 1.0 && sound(&self.stay);
        if !priced || !self.weights.iter().flatten().all(sound) {
            return Err("it has numbers that are none".into());
        }
        match self.table.is_sound(vocabulary) {
            true => Ok(()),
            false => Err("its table names tokens that the vocabulary has not".into()),
        }
    }
}

/// What a token at `level` takes after one at `before`, where levels take `times` and `entries` more after another.
pub(super) fn taken((times, entries): (&[f32], &[f32]), level: usize, before: usize) -> f32 {
    let entry = entries.get(level).filter(|_| level != before).copied().unwrap_or_default();
    times.get(level).copied().unwrap_or(1.0) + entry
}

/// What a token at `level` after one at `before` is weighed by: what it takes alone, and of a change's time the part of one of `stay` tokens.
pub(super) fn weighed(times: (&[f32], &[f32]), stay: f32, level: usize, before: usize) -> f32 {
    let alone = taken(times, level, level);
    alone + (taken(times, level, before) - alone) / stay
}

/// What one text asks for its next token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Wish {
    pub signals: Signals,
    /// How much more than usual time is worth: 1 is as learnt.
    pub pressure: f32,
    /// The level that made the token before.
    pub before: usize,
}

/// One text's way: what is known of it so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pilot {
    known: Known,
    before: usize,
}

impl Pilot {
    /// After a prompt of `tokens` tokens with these last logits, read by the whole network.
    pub fn begin(tokens: usize, logits: &[f32], levels: usize) -> Pilot {
        let mut known = Known::default();
        known.prompted(tokens);
        known.after(Spread::of(logits), 0, levels);
        Pilot { known, before: 0 }
    }

    /// What is known of `id`, drawn from `logits`, the last ones.
    pub fn wish(&self, policy: &Policy, id: u32, logits: &[f32], pressure: f32) -> Wish {
        let logit = logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
        Wish { signals: self.known.signals(id, logit, &policy.table), pressure, before: self.before }
    }

    /// After that token's logits, made at `level`.
    pub fn after(&mut self, logits: &[f32], level: usize, levels: usize) {
        self.known.after(Spread::of(logits), level, levels);
        self.before = level;
    }
}

/// Chooses levels for one text, as it was asked to.
#[derive(Debug)]
pub struct Controller<'a> {
    policy: &'a Policy,
    asked: Asked,
    pilot: Option<Pilot>,
    /// Tokens that each level made.
    pub made: Vec<usize>,
}

impl<'a> Controller<'a> {
    pub fn new(policy: &'a Policy, asked: Asked) -> Controller<'a> {
        Controller { policy, asked, pilot: None, made: vec![0; policy.levels()] }
    }
}

impl Levels for Controller<'_> {
    /// The logits are those after the prompt where it is the first.
    fn next(&mut self, tokens: usize, logits: &[f32], id: u32) -> usize {
        let level = match self.asked {
            Asked::Pinned(level) => level,
            Asked::Auto => {
                let levels = self.policy.levels();
                let pilot = self.pilot.get_or_insert_with(|| Pilot::begin(tokens, logits, levels));
                self.policy.choose(&[pilot.wish(self.policy, id, logits, 1.0)])
            }
        };
        if let Some(n) = self.made.get_mut(level) {
            *n += 1;
        }
        level
    }

    fn said(&mut self, logits: &[f32], level: usize) {
        if let Some(pilot) = &mut self.pilot {
            pilot.after(logits, level, self.policy.levels());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The whole network costs nothing but its time, the other as much as the last distribution's entropy.
    fn policy(price: f32) -> Policy {
        let mut weights = vec![vec![0.0; SIGNALS]; 2];
        weights[1][1] = 1.0;
        Policy { weights, price, times: vec![1.0, 0.5], entries: Vec::new(), stay: 1.0, table: Table::default() }
    }

    #[test]
    fn what_is_sure_goes_where_it_is_cheap_and_prices_decide() {
        let chosen = |logits: &[f32], price: f32| {
            let p = policy(price);
            Controller::new(&p, Asked::Auto).next(3, logits, 0)
        };
        let (sure, unsure) = ([30.0, 0.0, 0.0, 0.0], [0.0; 4]);
        assert_eq!((chosen(&sure, 0.2), chosen(&unsure, 0.2)), (1, 0));
        assert_eq!((chosen(&sure, 0.0), chosen(&unsure, 2.0)), (0, 1));
        let p = policy(0.2);
        let mut pinned = Controller::new(&p, Asked::Pinned(1));
        assert_eq!(pinned.next(3, &unsure, 0), 1);
        assert_eq!(pinned.made, [0, 1]);
    }

    #[test]
    fn those_together_get_what_costs_them_least_in_all() {
        let p = policy(0.2);
        let wish = |logits: &[f32], pressure| Pilot::begin(1, logits, 2).wish(&p, 0, logits, pressure);
        let (sure, unsure) = (wish(&[30.0, 0.0, 0.0, 0.0], 1.0), wish(&[0.0; 4], 1.0));
        assert_eq!(p.choose(&[sure]), 1);
        assert_eq!(p.choose(&[sure, unsure]), 0);
        assert_eq!(p.choose(&[sure, sure, sure, sure, unsure]), 1);
        // A queue makes time worth more.
        assert_eq!(p.choose(&[wish(&[0.0; 4], 9.0)]), 1);
    }

    #[test]
    fn what_a_change_takes_is_weighed_against_what_it_brings() {
        let mut p = policy(0.2);
        p.entries = vec![0.0, 0.6];
        let sure = [30.0, 0.0, 0.0, 0.0];
        let mut pilot = Pilot::begin(1, &sure, 2);
        // Half of a token's time saved, and more than that for changing.
        assert_eq!(p.choose(&[pilot.wish(&p, 0, &sure, 1.0)]), 0);
        pilot.after(&sure, 1, 2);
        assert_eq!(p.choose(&[pilot.wish(&p, 0, &sure, 1.0)]), 1);
        assert_eq!((p.time(1, 1), p.time(1, 0), p.time(0, 1)), (0.5, 1.1, 1.0));
        // It is worth it where it is good for a few more tokens.
        p.stay = 4.0;
        let pilot = Pilot::begin(1, &sure, 2);
        assert_eq!(p.choose(&[pilot.wish(&p, 0, &sure, 1.0)]), 1);
        p.stay = 0.5;
        assert!(p.check(2, 4).unwrap_err().contains("none"));
        p.stay = 1.0;
        p.entries.pop();
        assert!(p.check(2, 4).unwrap_err().contains("take to change to"));
    }

    #[test]
    fn policies_that_cannot_be_are_told() {
        let ok = policy(1.0);
        assert_eq!(ok.check(2, 4), Ok(()));
        assert!(ok.check(3, 4).unwrap_err().contains("2 levels of 3"));
        let mut bad = ok.clone();
        bad.weights[0][3] = f32::NAN;
        assert!(bad.check(2, 4).unwrap_err().contains("none"));
        bad = ok.clone();
        bad.weights[0].pop();
        assert!(bad.check(2, 4).unwrap_err().contains("signals"));
        for words in ["auto", "dense", "3"] {
            assert!(words.parse::<Asked>().is_ok());
        }
        assert!("-1".parse::<Asked>().unwrap_err().contains("`-1`"));
    }
}
