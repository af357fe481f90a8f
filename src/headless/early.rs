//! `paring eval --until-clear`: what is told of a comparison that went on until its verdict was clear.
//!
//! Not here: the test (`task::sequential`), what is drawn and run (`eval::early`), the figures beside (`against`).

use super::out::say;
use crate::eval::Until;
use crate::task::{ALPHA, Clear, Sequential};
use crate::words::counted;
use anyhow::Result;
use serde_json::{Value, json};

/// What images are drawn by: the same comparison stops at the same image.
const SEED: u64 = 0;

/// What is asked where so many points may be lost.
pub fn until(allowed: f64) -> Until {
    Until { allowed, alpha: ALPHA, seed: SEED }
}

/// A comparison that came to a verdict.
pub struct Stopped {
    pub test: Sequential,
    pub verdict: Clear,
}

impl Stopped {
    /// Whether there are items that were not looked at.
    pub fn is_part(&self) -> bool {
        self.test.seen() < self.test.total()
    }

    /// How many were, of how many.
    pub fn items(&self, item: &str) -> String {
        format!("{} of {}", self.test.seen(), counted(self.test.total(), item))
    }

    /// Its part of `--json`.
    pub fn told(&self) -> Value {
        let (test, (low, high)) = (&self.test, self.test.range());
        json!({
            "drop_points": test.allowed(),
            "verdict": match self.verdict {
                Clear::Held => "held",
                Clear::Missed => "missed",
            },
            // What was counted is certain.
            "level": (!test.counted()).then(|| test.level()),
            "stopped_after": test.seen(),
            "of": test.total(),
            "seed": SEED,
            "top1_change_points_of_all": { "low": low, "high": high, "level": test.level() },
        })
    }

    /// Says the verdict, before the figures.
    pub fn tell(&self, item: &str) -> Result<()> {
        say!("verdict   {}", self.words(item))?;
        if self.is_part() {
            let (low, high) = self.test.range();
            let (total, level) = (counted(self.test.total(), item), self.level());
            say!("of all    between {low:+.2} and {high:+.2} points for the {total} ({level}, wherever one stops)")?;
        }
        Ok(())
    }

    /// Says what the figures are of, after them.
    pub fn tell_part(&self, item: &str) -> Result<()> {
        if self.is_part() {
            let seen = counted(self.test.seen(), item);
            say!(
                "part      the other figures are of {seen}; their intervals do not allow for stopping when it was clear"
            )?;
        }
        Ok(())
    }

    fn words(&self, item: &str) -> String {
        let points = counted(self.test.allowed(), "point");
        let loses = match self.verdict {
            Clear::Held => format!("it loses no more than {points}"),
            Clear::Missed => format!("it loses more than {points}"),
        };
        match (self.is_part(), self.test.counted()) {
            (false, _) => format!("{loses}, by all of the {}", counted(self.test.total(), item)),
            (true, true) => format!("clear after {}: {loses}, whatever the others are", self.items(item)),
            (true, false) => format!("clear after {}: {loses} ({})", self.items(item), self.level()),
        }
    }

    fn level(&self) -> String {
        format!("{:.1} %", 100.0 * self.test.level())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is told of so many images of a set, in all of which nothing is lost and nothing gained.
    fn stopped(total: usize, allowed: f64, seen: usize) -> Stopped {
        let mut test = Sequential::new(total, allowed, ALPHA);
        (0..seen).for_each(|i| {
            test.push(i % 2 == 0, i % 2 == 0);
        });
        let verdict = test.clear().expect("clear");
        Stopped { test, verdict }
    }

    #[test]
    fn a_verdict_is_told_with_what_it_rests_on() {
        let early = stopped(10_000, 5.0, 1500);
        assert_eq!(early.words("image"), "clear after 1500 of 10000 images: it loses no more than 5 points (99.5 %)");
        assert_eq!(early.told()["level"].as_f64(), Some(0.995));
        // The one that is left cannot lose two.
        let counted = stopped(4, 25.0, 3);
        assert_eq!(
            counted.words("text"),
            "clear after 3 of 4 texts: it loses no more than 25 points, whatever the others are"
        );
        assert!(counted.told()["level"].is_null());
        let all = stopped(3, 1.0, 3);
        assert_eq!(all.words("image"), "it loses no more than 1 point, by all of the 3 images");
        assert_eq!((all.told()["of"].as_u64(), all.told()["stopped_after"].as_u64()), (Some(3), Some(3)));
    }
}
