//! How a session is opened ([`Opening`]), and the recipe: what, besides the original weights and the approved decisions,
//! decides what a run makes and how it is judged. It lies in the journal; the file beside it only says how a session was
//! first asked to open.
//!
//! Invariant: with the same checkpoint and data the recipe rebuilds the same compressed models, byte for byte, on a machine
//! whose kernels have the same name; what of it is missing or has become another is said, not assumed.

use crate::data::{Counted, DataMark, TextOptions};
use crate::graph::Calibration;
use crate::model::{Family, Preprocess};
use crate::prune::Method;
use crate::recover::RepairOptions;
use serde::{Deserialize, Serialize};

/// What a session is asked to be, in the same words when it is first opened and ever after: files and journals have these
/// fields among those of what holds them. Paths are absolute.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Opening {
    /// A checkpoint file or folder as it was named, or a bundled one such as `demo:vit`; what it held is in the card (`model.hash`).
    pub model: String,
    /// What its names and shapes do not tell.
    pub arch: Option<Family>,
    /// Image side, for families whose weights do not tell.
    pub image: Option<usize>,
    /// Attention heads, for families whose weights do not tell.
    #[serde(default)]
    pub heads: Option<usize>,
    /// Tokens a window of a language model's text, where another number than [`WINDOW`] is wanted, and which of them count; tokens that
    /// texts to classify are cut at.
    #[serde(default)]
    pub window: Option<usize>,
    #[serde(default)]
    pub targets: Counted,
    /// What the tokenizer is read from, where the model comes without one.
    #[serde(default)]
    pub tokenizer: Option<String>,
    /// The engineer knows that calibration images are evaluation images.
    pub calib_is_eval: bool,
    /// How units of a group are ranked.
    #[serde(default)]
    pub importance: Method,
    /// `auto`, `cpu`, `cuda:0`.
    pub device: String,
    /// Let f32 products on a GPU round to TF32.
    #[serde(default)]
    pub tf32: bool,
    /// 0: all cores. It decides latencies, not weights.
    pub threads: usize,
    /// Images a batch in latency measurements; asked as 0: chosen by model. A recipe has what was chosen.
    pub batch: usize,
    /// Planning must not look at what was measured on the evaluation data.
    pub blind: bool,
}

/// Tokens a window unless something else is said; as many as the model was made for, where those are fewer.
pub const WINDOW: usize = 512;

impl Opening {
    /// How text becomes items for a model that was made for `context` tokens.
    pub fn windows(&self, context: Option<usize>) -> TextOptions {
        let usual = context.map_or(WINDOW, |most| most.min(WINDOW));
        TextOptions { window: self.window.unwrap_or(usual), counted: self.targets, limit: 0 }
    }
}

/// See the module's page. Paths are absolute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Recipe {
    #[serde(flatten)]
    pub how: Opening,
    /// As it was used, wherever it came from.
    pub preprocess: Preprocess,
    pub data: Images,
    pub calib: Images,
    /// `calib` is a part of `data`, which was opened once.
    pub calib_from_data: bool,
    /// The images that say how units are ranked, where images do.
    pub evidence_images: usize,
    /// Calibration images held back for trials: the rest alone is fitted on.
    #[serde(default)]
    pub held: usize,
    /// Items that are run at once at most, where somebody said how many; 0: as suits the model. Repairs go by their own measure: they
    /// run on the host, within [`RepairOptions::memory`].
    #[serde(default)]
    pub most_at_once: usize,
    /// How models are repaired and static ranges are found; its seed is the session's.
    pub repair: RepairOptions,
    /// The instruction set whose kernels compute repairs, since sums are rounded in their order.
    pub kernels: String,
    /// Version of the program.
    pub program: String,
}

/// A data set as it was opened, and what it held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Images {
    /// As `data::open` takes it.
    pub spec: String,
    /// At most this many images of it (0: all).
    pub limit: usize,
    pub mark: DataMark,
}

impl Recipe {
    pub fn seed(&self) -> u64 {
        self.repair.seed
    }

    pub fn ranges(&self) -> Calibration {
        self.repair.ranges
    }

    /// What `new` has otherwise, in words; empty when both give the same results.
    pub fn differences(&self, new: &Recipe) -> Vec<String> {
        let mut out = Vec::new();
        let mut say = |what: &str, old: &dyn std::fmt::Debug, now: &dyn std::fmt::Debug| {
            let (old, now) = (format!("{old:?}"), format!("{now:?}"));
            if old != now {
                out.push(format!("{what} {old} → {now}"));
            }
        };
        say("preprocessing", &self.preprocess, &new.preprocess);
        say("importance", &self.how.importance, &new.how.importance);
        say("repair", &self.repair, &new.repair);
        say("held-back images", &self.held, &new.held);
        say("data", &self.data, &new.data);
        say("calibration", &self.calib, &new.calib);
        say("kernels", &self.kernels, &new.kernels);
        say("program", &self.program, &new.program);
        let on = |r: &Recipe| (r.how.device.clone(), r.how.tf32, r.how.batch);
        say("device", &on(self), &on(new));
        say("items at once", &self.most_at_once, &new.most_at_once);
        out
    }
}
