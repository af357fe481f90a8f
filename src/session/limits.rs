//! What one proposal may take of a language model's server (tokens, seconds, money), and what it has taken.
//!
//! Not here: who counts (`agent::dialogue`), how much may be looked up (`role`).

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Characters that count as one token where a server does not tell how many a prompt had.
const A_TOKEN: u64 = 4;
/// More than any proposal takes: what is larger is a slip.
const MOST_TOKENS: u64 = 1_000_000_000;
const MOST_SECONDS: u64 = 7 * 24 * 3600;

/// What a model's tokens cost, dollars a million; 0 where nobody said.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Prices {
    /// Of prompts.
    pub input: f64,
    /// Of answers.
    pub output: f64,
}

/// What all roles of one proposal, in all its turns, may take together; 0: as much as they like.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// Of prompts and answers.
    pub tokens: u64,
    pub seconds: u64,
    /// Dollars, at `prices`.
    pub cost: f64,
    pub prices: Prices,
}

/// What answers took.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Spent {
    /// Of answers.
    pub tokens: u64,
    /// Of prompts.
    pub asked: u64,
    pub seconds: f64,
}

impl Spent {
    /// Nothing was counted.
    pub fn only(seconds: f64) -> Spent {
        Spent { seconds, ..Spent::default() }
    }

    #[must_use]
    pub fn and(self, more: Spent) -> Spent {
        Spent {
            tokens: self.tokens + more.tokens,
            asked: self.asked + more.asked,
            seconds: self.seconds + more.seconds,
        }
    }

    /// Tokens in so many characters, about.
    pub fn about(characters: usize) -> u64 {
        (characters as u64).div_ceil(A_TOKEN)
    }
}

impl Prices {
    /// Dollars.
    pub fn of(&self, spent: &Spent) -> f64 {
        (self.input * spent.asked as f64 + self.output * spent.tokens as f64) / 1e6
    }

    fn known(&self) -> bool {
        self.input > 0.0 || self.output > 0.0
    }
}

impl Limits {
    pub fn any(&self) -> bool {
        self.tokens > 0 || self.seconds > 0 || self.cost > 0.0
    }

    /// Why nothing more may be asked, with a prompt of `next` tokens.
    pub fn reached(&self, spent: &Spent, next: u64) -> Option<String> {
        let then = spent.and(Spent { asked: next, ..Spent::default() });
        let used = spent.tokens + spent.asked;
        if self.tokens > 0 && then.tokens + then.asked >= self.tokens {
            return Some(format!(
                "{} tokens a proposal ({used} are used, the next question has about {next})",
                self.tokens
            ));
        }
        if self.seconds > 0 && spent.seconds >= self.seconds as f64 {
            return Some(format!("{} s a proposal", self.seconds));
        }
        if self.cost > 0.0 && self.prices.of(&then) >= self.cost {
            return Some(format!("${} a proposal (${:.4} are spent)", self.cost, self.prices.of(spent)));
        }
        None
    }

    /// Tokens that an answer to a prompt of `next` tokens may have.
    pub fn answer(&self, spent: &Spent, next: u64) -> Option<u64> {
        let then = spent.and(Spent { asked: next, ..Spent::default() });
        let tokens = (self.tokens > 0).then(|| self.tokens.saturating_sub(then.tokens + then.asked));
        let money = (self.cost > 0.0 && self.prices.output > 0.0)
            .then(|| ((self.cost - self.prices.of(&then)).max(0.0) * 1e6 / self.prices.output) as u64);
        tokens.into_iter().chain(money).min()
    }

    /// Seconds that an answer may take.
    pub fn seconds_left(&self, spent: &Spent) -> Option<f64> {
        (self.seconds > 0).then(|| (self.seconds as f64 - spent.seconds).max(0.0))
    }

    /// # Errors
    /// In words with a hint: a limit that nothing can be held against.
    pub fn check(&self) -> Result<(), String> {
        let sound = |v: f64| v.is_finite() && (0.0..=1e6).contains(&v);
        if !sound(self.cost) || !sound(self.prices.input) || !sound(self.prices.output) {
            return Err("a cost is dollars, a price dollars a million tokens; hint: `cost=0.05,in=0.15,out=0.6`".into());
        }
        if self.tokens > MOST_TOKENS || self.seconds > MOST_SECONDS {
            return Err(format!("at most {MOST_TOKENS} tokens and {MOST_SECONDS} s; hint: 0 is no limit"));
        }
        if self.cost > 0.0 && !self.prices.known() {
            return Err(
                "a cost needs the model's prices, dollars a million tokens; hint: `cost=0.05,in=0.15,out=0.6`".into()
            );
        }
        Ok(())
    }
}

impl FromStr for Limits {
    type Err = String;

    /// `tokens=20000,seconds=300,cost=0.05,in=0.15,out=0.6`; `off` is none.
    fn from_str(s: &str) -> Result<Limits, String> {
        let mut limits = Limits::default();
        if s.trim() == "off" {
            return Ok(limits);
        }
        for part in s.split([',', ' ']).map(str::trim).filter(|p| !p.is_empty()) {
            let wrong =
                || format!("`{part}` is no limit; hint: tokens=20000, seconds=300, cost=0.05, in=0.15, out=0.6");
            let (key, value) = part.split_once('=').ok_or_else(wrong)?;
            let whole = || value.parse::<u64>().map_err(|_| wrong());
            let number = || value.trim_start_matches('$').parse::<f64>().map_err(|_| wrong());
            match key {
                "tokens" => limits.tokens = whole()?,
                "seconds" => limits.seconds = whole()?,
                "cost" => limits.cost = number()?,
                "in" => limits.prices.input = number()?,
                "out" => limits.prices.output = number()?,
                _ => return Err(wrong()),
            }
        }
        limits.check()?;
        Ok(limits)
    }
}

impl fmt::Display for Limits {
    /// In words; empty where there is none.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tokens = (self.tokens > 0).then(|| format!("{} tokens", self.tokens));
        let seconds = (self.seconds > 0).then(|| format!("{} s", self.seconds));
        let cost = (self.cost > 0.0).then(|| format!("${}", self.cost));
        let all: Vec<String> = tokens.into_iter().chain(seconds).chain(cost).collect();
        f.write_str(&all.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_and_held_against_what_is_spent() {
        let l: Limits = "tokens=1000,seconds=30".parse().expect("limits");
        assert_eq!((l.tokens, l.seconds, l.to_string().as_str()), (1000, 30, "1000 tokens, 30 s"));
        let spent = Spent { tokens: 300, asked: 500, seconds: 10.0 };
        assert_eq!(l.reached(&spent, 100), None);
        assert_eq!((l.answer(&spent, 100), l.seconds_left(&spent)), (Some(100), Some(20.0)));
        assert!(l.reached(&spent, 200).is_some_and(|w| w.contains("1000 tokens")));
        assert!(l.reached(&Spent { tokens: 0, asked: 0, seconds: 30.0 }, 0).is_some_and(|w| w.contains("30 s")));
        let none: Limits = "off".parse().expect("off");
        assert_eq!((none.reached(&spent, 1 << 40), none.answer(&spent, 1), none.any()), (None, None, false));
    }

    #[test]
    fn money_needs_prices() {
        for bad in ["cost=0.05", "tokens=-1", "money=3", "tokens", "cost=NaN,in=1", "in=-1", "cost=inf,in=1"] {
            assert!(bad.parse::<Limits>().is_err(), "{bad}");
        }
        let l: Limits = "cost=$0.01,in=1,out=10".parse().expect("limits");
        // A cent buys ten thousand tokens of prompts or a thousand of answers.
        assert!(l.reached(&Spent { tokens: 0, asked: 9_000, seconds: 0.0 }, 999).is_none());
        assert!(l.reached(&Spent { tokens: 0, asked: 9_000, seconds: 0.0 }, 1_001).is_some());
        assert_eq!(l.answer(&Spent { tokens: 500, asked: 2_000, seconds: 0.0 }, 1_000), Some(200));
    }
}
