//! Budgets (`latency=0.6,macs=0.5,memory=0.3,params=0.5,drop=1.0`, of classifiers `class=3`, of language models `kl=0.05`) and verdicts.

use serde::{Deserialize, Serialize};
use std::str::FromStr;

/// Targets as factors of the original, and how much quality may be lost, in the unit of the task's metric (points of top-1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Budget {
    /// Whole-model latency at most this factor of the original's.
    pub latency: Option<f64>,
    pub macs: Option<f64>,
    /// Stored weight bytes.
    pub memory: Option<f64>,
    pub params: Option<f64>,
    /// The metric may get worse by at most this much.
    pub drop: Option<f64>,
    /// No class may lose more than so many points of its accuracy; of classifiers alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<f64>,
    /// The outputs' divergence from the original's at most, in nats a token; of language models alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kl: Option<f64>,
}

/// Why a budget was not understood.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BudgetError {
    #[error("budget item `{0}` is not `name=number`; hint: for example `macs=0.6,drop=1.0`")]
    Syntax(String),
    #[error(
        "unknown budget name `{0}`; hint: latency, macs, memory, params (factors up to 1), drop and class (points) or kl (nats a token)"
    )]
    Unknown(String),
    #[error("budget names `{0}` twice; hint: one target each")]
    Twice(String),
    #[error("budget `{name}={value}` is out of range; hint: {}", Budget::range(.name))]
    Range { name: String, value: f64 },
}

impl FromStr for Budget {
    type Err = BudgetError;

    fn from_str(s: &str) -> Result<Budget, BudgetError> {
        let mut b = Budget::default();
        for item in s.split(',').map(str::trim).filter(|i| !i.is_empty()) {
            let syntax = || BudgetError::Syntax(item.to_owned());
            let (name, value) = item.split_once('=').ok_or_else(syntax)?;
            let value: f64 = value.trim().parse().map_err(|_| syntax())?;
            let name = name.trim();
            let slot = match name {
                "latency" => &mut b.latency,
                "macs" => &mut b.macs,
                "memory" => &mut b.memory,
                "params" => &mut b.params,
                "drop" => &mut b.drop,
                "class" => &mut b.class,
                "kl" => &mut b.kl,
                _ => return Err(BudgetError::Unknown(name.to_owned())),
            };
            if !Budget::allows(name, value) {
                return Err(BudgetError::Range { name: name.to_owned(), value });
            }
            if slot.replace(value).is_some() {
                return Err(BudgetError::Twice(name.to_owned()));
            }
        }
        Ok(b)
    }
}

impl Budget {
    /// Every factor of the original's cost that is asked for.
    pub fn factors(&self) -> impl Iterator<Item = f64> {
        [self.latency, self.macs, self.memory, self.params].into_iter().flatten()
    }

    /// Every item by its name, in the order in which they are shown.
    pub fn items(&self) -> [(&'static str, Option<f64>); 7] {
        let Budget { latency, macs, memory, params, drop, class, kl } = *self;
        let factors = [("latency", latency), ("macs", macs), ("memory", memory), ("params", params)];
        let [a, b, c, d] = factors;
        [a, b, c, d, ("drop", drop), ("class", class), ("kl", kl)]
    }

    /// Whether an item is about what a model is worth; the others are factors of the original's cost.
    pub fn is_quality(name: &str) -> bool {
        ["drop", "class", "kl"].contains(&name)
    }

    /// Why a model of another task cannot have this budget: divergence is told of language models, classes only classifiers have.
    pub fn unfit(&self, takes_text: bool) -> Option<String> {
        if let Some(class) = self.class.filter(|_| takes_text) {
            return Some(format!(
                "budget `class={class}` is for classifiers; hint: `kl` or `drop` for what a language model may lose"
            ));
        }
        let kl = self.kl.filter(|_| !takes_text)?;
        Some(format!(
            "budget `kl={kl}` is for language models; hint: leave it out, or `drop` for what a classifier may lose"
        ))
    }

    /// Whether the item may be asked to be so.
    pub fn allows(name: &str, value: f64) -> bool {
        match name {
            "drop" | "class" => (0.0..=100.0).contains(&value),
            "kl" => value > 0.0 && value <= 100.0,
            _ => value > 0.0 && value <= 1.0,
        }
    }

    /// What the item may be asked to be, in words.
    pub fn range(name: &str) -> &'static str {
        match name {
            "drop" | "class" => "drop and class lie in [0, 100] points",
            "kl" => "kl lies in (0, 100] nats a token",
            _ => "factors lie in (0, 1]",
        }
    }
}

impl std::fmt::Display for Budget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text: Vec<String> = self.items().iter().filter_map(|(n, v)| v.map(|v| format!("{n}={v}"))).collect();
        write!(f, "{}", text.join(","))
    }
}

/// The evaluation's outcome against the budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    Accept,
    Reject,
    /// The interval straddles the floor.
    Undecided,
}

impl Outcome {
    /// In words. Of a whole round: [`Verdict::label`].
    pub fn label(self) -> &'static str {
        match self {
            Outcome::Accept => "within budget",
            Outcome::Reject => "over budget",
            Outcome::Undecided => "undecided",
        }
    }
}

/// One budget item measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct VerdictLine {
    /// As in [`Budget::items`].
    pub name: String,
    /// The class that loses most, where it is about that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<usize>,
    pub target: f64,
    /// Not a number where it was not measured.
    #[serde(deserialize_with = "or_nan")]
    pub measured: f64,
    /// The interval that the outcome rests on, where the figure has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range: Option<(f64, f64)>,
    pub outcome: Outcome,
}

/// JSON has no NaN: it is written as null.
fn or_nan<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Ok(Option::deserialize(from)?.unwrap_or(f64::NAN))
}

/// Outcome with its reasons.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    pub outcome: Outcome,
    pub lines: Vec<VerdictLine>,
    /// Change of the task's metric against the baseline in its unit, negative for worse, with its 95 % paired interval.
    #[serde(alias = "d_top1")]
    pub d_quality: f64,
    #[serde(alias = "d_top1_low")]
    pub d_quality_low: f64,
    #[serde(alias = "d_top1_high")]
    pub d_quality_high: f64,
}

impl Verdict {
    /// Nothing was asked of the round.
    pub fn unbounded(&self) -> bool {
        self.lines.is_empty() && self.outcome == Outcome::Accept
    }

    /// The outcome in the words of every screen, log and report.
    pub fn label(&self) -> &'static str {
        match self.unbounded() {
            true => "measured, without a budget",
            false => self.outcome.label(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_is_named_twice_is_none() {
        let twice = "macs=0.5,drop=1,macs=0.7".parse::<Budget>();
        assert_eq!(twice, Err(BudgetError::Twice("macs".into())));
        let once: Budget = "macs=0.5,drop=1".parse().unwrap();
        assert_eq!(once.to_string(), "macs=0.5,drop=1");
    }

    #[test]
    fn a_divergence_is_asked_of_language_models_alone() {
        let b: Budget = "memory=0.5,kl=0.05".parse().unwrap();
        assert_eq!((b.kl, b.to_string().as_str(), b.unfit(true)), (Some(0.05), "memory=0.5,kl=0.05", None));
        assert!(b.unfit(false).is_some_and(|w| w.contains("`kl=0.05`") && w.contains("hint: ")));
        assert_eq!("drop=1".parse::<Budget>().unwrap().unfit(false), None);
        for bad in ["kl=0", "kl=-1", "kl=101", "kl=nan"] {
            assert!(bad.parse::<Budget>().unwrap_err().to_string().contains("nats a token"), "{bad}");
        }
        // As it was stored before there was one.
        let old: Budget =
            serde_json::from_str(r#"{"latency":null,"macs":0.5,"memory":null,"params":null,"drop":1.0}"#).unwrap();
        assert_eq!(old, "macs=0.5,drop=1".parse().unwrap());
        assert!(!serde_json::to_string(&old).unwrap().contains("kl"));
    }
}
