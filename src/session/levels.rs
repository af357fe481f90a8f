//! Levels of a language model with the controller that chooses among them, as a session made them: what its event says.
//!
//! Not here: the levels and the policy themselves (an artifact), how it goes while they run (the feed).

use super::State;
use crate::control::Learner;
use crate::profile::Ratio;
use serde::{Deserialize, Serialize};

/// What was made, and where it lies.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Controlled {
    /// The round whose model they are levels of; 0 is the original.
    pub round: u32,
    /// That model's artifact; `None` of the original.
    pub of: Option<String>,
    /// The levels and the policy as a document of `control`, by its content's BLAKE3.
    pub artifact: String,
    /// The mean time a token that it was made for, as a share of the whole network's.
    pub target: f64,
    pub learner: Learner,
    pub seed: u64,
    /// Tokens of each window that the whole network reads.
    pub prompt: u64,
    /// The whole network first.
    pub levels: Vec<LevelMade>,
    /// Bytes of weights that levels hold beside the whole network's.
    pub own_bytes: u64,
    /// Tokens that it learnt from, and those that its table tells of.
    pub taught: u64,
    pub table: u64,
    /// What it did on the text that it learnt from: divergence in nats a token, and time as a share of the whole network's.
    pub promised: (f64, f64),
    /// While it learnt: how many nats a token its choices cost more than the best single level's, time at its price included.
    pub regret: Option<f64>,
    /// What levels were timed on.
    pub device: String,
}

/// One level.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LevelMade {
    /// Bytes that a token reads, and the same as a share of the whole network's.
    pub bytes: u64,
    pub share: f64,
    /// Its token's time beside the whole network's.
    pub time: Ratio,
    /// From the whole network's, in nats a token of the text that was learnt from.
    pub divergence: f64,
    /// MLPs that are whole, narrowed and gone.
    pub mlps: [usize; 3],
}

impl Controlled {
    /// Whether every figure is a number: JSON has no others, and a journal no room for them.
    pub fn is_sound(&self) -> bool {
        let level = |l: &LevelMade| [l.share, l.time.value, l.time.low, l.time.high, l.divergence];
        let own = [self.target, self.promised.0, self.promised.1, self.regret.unwrap_or_default()];
        self.levels.iter().flat_map(level).chain(own).all(f64::is_finite)
    }

    /// What they are levels of, in words.
    pub fn whose(&self) -> String {
        if self.round == 0 { "the original".to_owned() } else { format!("round {}'s model", self.round) }
    }
}

impl State {
    /// The controller of `round`'s model as it is, where there is one.
    pub fn control_of(&self, round: u32) -> Option<&Controlled> {
        let now = self.round_at(round).filter(|_| round > 0).and_then(|r| r.artifact.as_deref());
        self.control.as_deref().filter(|c| c.round == round && c.of.as_deref() == now)
    }
}
