//! How a compressed network is healed, as plain data.

use serde::{Deserialize, Serialize};

/// What healing makes small.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Objective {
    /// The divergence from the original's answers at a temperature (Hinton et al. 2015); needs no labels.
    #[default]
    Distill,
    /// Cross-entropy against the labels.
    Labels,
    /// Both, half and half.
    Both,
}

/// How steps are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Optimiser {
    /// Stochastic gradient descent with Nesterov's momentum of 0.9.
    Sgd,
    /// Adam with decoupled weight decay.
    AdamW,
}

/// All that healing is a function of, beside the two networks and the images.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Healing {
    pub steps: u32,
    /// Ended after so many of them, where somebody stopped it: the schedule is still that of `steps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stopped: Option<u32>,
    pub objective: Objective,
    pub optimiser: Optimiser,
    /// Images a step.
    pub batch: usize,
    /// Peak learning rate; rises over `warmup` steps, then falls to zero as half a cosine.
    pub rate: f64,
    pub warmup: u32,
    /// Of weights of convolutions and linears.
    pub decay: f64,
    /// Answers are divided by it before they are compared.
    pub temperature: f64,
    /// Beside answers the values that the last layer reads are drawn to the original's: what their mean squared difference counts, in units of their
    /// variance; 0: nothing.
    #[serde(default)]
    pub features: f64,
    /// Longest gradient; longer ones are shortened to it.
    pub clip: f64,
    /// How slowly the weights that are kept follow those that are trained (an exponential moving average).
    pub average: f64,
    /// Images are moved by up to an eighth of their side and mirrored.
    pub augment: bool,
    /// Two images of a batch are laid over one another (Zhang et al. 2018), with weights drawn evenly.
    pub mixup: bool,
    /// Epochs in a row that show the same views: the original, whose answers are a third of a step, is asked about each once.
    #[serde(default = "once")]
    pub repeats: u32,
    /// Batch norms go by their stored statistics, as they will when the network is used, rather than by a batch's.
    pub stored_norms: bool,
    pub seed: u64,
}

fn once() -> u32 {
    1
}

impl Healing {
    /// Sensible values for a network with batch norms (`convolutional`) or without, for so many steps.
    pub fn usual(steps: u32, convolutional: bool, seed: u64) -> Healing {
        let how = Healing {
            steps,
            stopped: None,
            objective: Objective::Distill,
            optimiser: Optimiser::Sgd,
            batch: 128,
            rate: 0.0,
            warmup: (steps / 20).min(200),
            decay: 0.0,
            temperature: 4.0,
            features: 100.0,
            clip: 0.0,
            average: 0.998,
            augment: true,
            mixup: true,
            repeats: 3,
            stored_norms: true,
            seed,
        };
        how.with(if convolutional { Optimiser::Sgd } else { Optimiser::AdamW })
    }

    /// The same for so many steps.
    #[must_use]
    pub fn lasting(self, steps: u32) -> Healing {
        Healing { steps, warmup: (steps / 20).min(200), ..self }
    }

    /// The same by `optimiser`, with the rate, decay and longest gradient that suit it.
    #[must_use]
    pub fn with(self, optimiser: Optimiser) -> Healing {
        let (rate, decay, clip) = match optimiser {
            Optimiser::Sgd => (0.01, 1e-4, 5.0),
            Optimiser::AdamW => (5e-4, 0.02, 1.0),
        };
        Healing { optimiser, rate, decay, clip, ..self }
    }

    /// The learning rate of a step, counted from 0: linear warm-up, then half a cosine (Loshchilov and Hutter 2017).
    pub fn rate_at(&self, step: u32) -> f64 {
        let cycle = super::Cycle { steps: self.steps as usize, rate: self.rate, warmup: self.warmup as usize };
        self.rate * super::schedule::schedule(step as usize, &cycle)
    }
}

/// A healing as it is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Heal {
    pub length: Length,
    #[serde(default)]
    pub objective: Objective,
}

impl std::str::FromStr for Heal {
    type Err = String;

    /// A length, and behind it the objective where it is not to be distillation: `10m`, `3 epochs labels`.
    fn from_str(text: &str) -> Result<Heal, String> {
        let text = text.trim();
        let objective = |word: &str| match word {
            "distill" => Some(Objective::Distill),
            "labels" => Some(Objective::Labels),
            "both" => Some(Objective::Both),
            _ => None,
        };
        let (length, objective) = match text.rsplit_once(char::is_whitespace) {
            Some((length, word)) if objective(word).is_some() => (length, objective(word)),
            _ => (text, None),
        };
        Ok(Heal { length: length.parse()?, objective: objective.unwrap_or_default() })
    }
}

impl Objective {
    /// What the original's answers count, and the labels.
    pub fn shares(self) -> (f64, f64) {
        match self {
            Objective::Distill => (1.0, 0.0),
            Objective::Labels => (0.0, 1.0),
            Objective::Both => (0.5, 0.5),
        }
    }

    /// What the loss of held-back images is called.
    pub fn loss(self) -> &'static str {
        match self {
            Objective::Distill => "divergence",
            Objective::Labels => "cross-entropy",
            Objective::Both => "loss",
        }
    }
}

impl std::fmt::Display for Heal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let by = match self.objective {
            Objective::Distill => "by the original's answers",
            Objective::Labels => "by labels",
            Objective::Both => "by the original's answers and labels",
        };
        write!(f, "{} {by}", self.length)
    }
}

/// How long a network is healed, as people say it.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Length {
    Seconds(f64),
    /// Times through the images that are trained on.
    Epochs(f64),
    Steps(u32),
}

impl std::str::FromStr for Length {
    type Err = String;

    /// `10m`, `90s`, `1h30m`, `3 epochs`, `200 steps`.
    fn from_str(text: &str) -> Result<Length, String> {
        let wrong = || {
            format!("`{}` is no length of a healing; hint: 10m, 90s, 3 epochs or 500 steps", crate::plain::name(text))
        };
        let text = text.trim();
        let split = text.find(|c: char| c.is_alphabetic()).ok_or_else(wrong)?;
        let (number, unit) = (text[..split].trim(), text[split..].trim());
        match unit {
            "epoch" | "epochs" => number.parse().ok().filter(|n: &f64| *n > 0.0 && n.is_finite()).map(Length::Epochs),
            "step" | "steps" => number.parse().ok().filter(|n| *n > 0).map(Length::Steps),
            _ => text
                .parse::<humantime::Duration>()
                .ok()
                .map(|d| d.as_secs_f64())
                .filter(|s| *s > 0.0)
                .map(Length::Seconds),
        }
        .ok_or_else(wrong)
    }
}

impl std::fmt::Display for Length {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Length::Seconds(s) => {
                let whole = std::time::Duration::from_secs(s.round().max(1.0) as u64);
                write!(f, "{}", humantime::format_duration(whole))
            }
            Length::Epochs(n) => write!(f, "{n} epochs"),
            Length::Steps(n) => write!(f, "{n} steps"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_read_as_people_write_them() {
        let of = |t: &str| t.parse::<Length>();
        assert_eq!(of("10m"), Ok(Length::Seconds(600.0)));
        assert_eq!(of(" 1h30m "), Ok(Length::Seconds(5400.0)));
        assert_eq!(of("3 epochs"), Ok(Length::Epochs(3.0)));
        assert_eq!(of("200steps"), Ok(Length::Steps(200)));
        assert_eq!("3 epochs labels".parse(), Ok(Heal { length: Length::Epochs(3.0), objective: Objective::Labels }));
        assert_eq!("90s".parse::<Heal>().map(|h| h.objective), Ok(Objective::Distill));
        assert!("labels".parse::<Heal>().is_err());
        for bad in ["", "m", "0s", "-3 epochs", "10", "0 steps", "3 apples", "inf epochs"] {
            assert!(of(bad).is_err(), "{bad}");
        }
        assert_eq!(Length::Seconds(600.0).to_string(), "10m");
    }
}
