//! What a model is for: how one item of data is scored, what the score is called, and when two models differ by more than
//! chance.
//!
//! A [`Task`] is known to the data it is about ([`crate::data::Dataset::task`]): whoever evaluates, tries, scans or repairs
//! asks it and nothing else. Scores are of single items and better the higher; the mean over a set, in the words and unit of
//! a [`Metric`], is what budgets limit, forecasts foretell and verdicts measure. Here: the definition, classification ([`Classify`]) and next
//! tokens ([`NextToken`]), paired statistics, verdicts from a part of a set ([`Sequential`]), distances between two models' outputs ([`Divergence`]). Not here: batches (`data`), passes over a set (`eval`).

mod answers;
mod bootstrap;
mod classify;
mod divergence;
mod error;
mod language;
mod metrics;
mod paired;
mod sequential;
mod targets;

pub use answers::{Counts, Worth};
pub use bootstrap::{Estimate, FEWEST, RESAMPLES, quantile};
pub(crate) use classify::finite_rows;
pub use classify::{Classify, cross_entropy, kl};
pub use divergence::{Divergence, Divergences, row as row_divergence};
pub use error::TaskError;
pub use language::{NEXT_TOKEN, NextToken, PERPLEXITY, surprise};
pub use metrics::{Classes, Metric, Metrics, Paired, Reading, WorstClass, wilson};
pub use paired::{from_counts, paired, worst_class};
pub use sequential::{ALPHA, Clear, Sequential};
pub use targets::Targets;

use crate::model::ModelInfo;
use candle_core::Tensor;
use std::fmt::Debug;

/// See the module's page.
pub trait Task: Debug + Send + Sync {
    /// The metric that limits, forecasts and verdicts speak of, for this model.
    fn metric(&self, model: &ModelInfo) -> Metric;

    /// What a score of one is in the metric's unit, without its sign: see [`Metric::scale`].
    fn scale(&self) -> f64;

    /// Fewest items that tell one small change from another, where a scan has to choose how many it looks at.
    fn fewest(&self) -> usize {
        32
    }

    /// Of an item's rows (a window's tokens), one in so many tells a scan enough.
    fn every(&self) -> usize {
        1
    }

    /// Scores outputs; each item of them must hold `least` values (0: any number).
    fn scorer(&self, least: usize) -> Box<dyn Scorer>;

    /// Whether an evaluation of what was made of a model also tells how far its outputs are from the original's, as softmax has them
    /// ([`Divergence`]): the original runs once more then.
    fn beside(&self) -> bool {
        false
    }

    /// The score of an item whose output is no number: a change can break a network.
    fn broken(&self) -> f32;

    /// Mean loss of outputs divided by `temperature`, a scalar with its history.
    ///
    /// # Errors
    /// What the tensor library reports of outputs and targets that do not fit.
    fn loss(&self, outputs: &Tensor, targets: &Targets, temperature: f64) -> candle_core::Result<Tensor>;

    /// What outputs are divided by when repairs are judged: calibration images are usually training images, of which a network is so sure
    /// that plain cross-entropy barely sees damage that costs points elsewhere; at this temperature it does.
    fn softening(&self) -> f64 {
        4.0
    }

    /// How far the outputs `new` have moved from `base`, both divided by `temperature`: the mean over items, at least 0, and
    /// 0 where they are equal.
    ///
    /// # Errors
    /// Other shapes, no items, outputs that are no numbers.
    fn divergence(&self, base: &Tensor, new: &Tensor, temperature: f64) -> Result<f64, TaskError>;

    /// The temperature at which a network's outputs `[N, …]` leave it unsure enough for loss and divergence to tell, at
    /// least 1.
    ///
    /// # Errors
    /// What the tensor library reports.
    fn temperature(&self, _outputs: &Tensor) -> Result<f64, TaskError> {
        Ok(1.0)
    }

    /// The change of the mean score in the metric's unit, negative for worse, with its 95 % interval; item `i` of both is the
    /// same item. By default the normal interval of the mean of paired differences.
    fn compare(&self, base: &[f32], new: &[f32]) -> Change {
        Change::of_means(base, new, self.scale())
    }
}

/// Scores a set batch by batch.
pub trait Scorer {
    /// Adds a batch of outputs `[N, …]` with the targets of the same items.
    ///
    /// # Errors
    /// Outputs that do not fit the targets, or are no numbers ([`TaskError::NonFinite`] counts the items and names the first).
    fn add(&mut self, outputs: &Tensor, targets: &Targets) -> Result<(), TaskError>;

    /// What was added so far, by item and on the whole.
    fn scored(&self) -> Scored;
}

/// What a pass over a set found; lists have one value an item, in the set's order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Scored {
    pub metrics: Metrics,
    /// See [`Metric`]; better the higher.
    pub scores: Vec<f32>,
    /// How far each item is from being scored otherwise, negative where it is wrong; empty for tasks without such a boundary.
    pub margins: Vec<f32>,
    /// The class each was taken for; empty for tasks without classes.
    pub predictions: Vec<u16>,
    /// What did not go as asked, for people.
    pub notes: Vec<String>,
}

impl Scored {
    /// The same with its lists in the set's order, where they are in that of `order`: value `j` is of item `order[j]`.
    pub fn placed(mut self, order: &[usize]) -> Scored {
        fn place<T: Copy + Default>(list: &mut Vec<T>, order: &[usize]) {
            if list.len() == order.len() {
                let mut placed = vec![T::default(); list.len()];
                order.iter().zip(list.iter()).for_each(|(&at, v)| placed[at] = *v);
                *list = placed;
            }
        }
        place(&mut self.scores, order);
        place(&mut self.margins, order);
        place(&mut self.predictions, order);
        self
    }

    /// Which items a classifier gets right.
    pub fn correct(&self) -> Vec<bool> {
        self.scores.iter().map(|s| *s > 0.5).collect()
    }
}

/// A paired change in the metric's unit, negative for worse, with its 95 % interval.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Change {
    pub value: f64,
    pub low: f64,
    pub high: f64,
}

impl Change {
    /// Mean of differences of pairs times `scale`, and the normal approximation's interval of it.
    pub fn of_means(base: &[f32], new: &[f32], scale: f64) -> Change {
        let diffs: Vec<f64> = base.iter().zip(new).map(|(b, n)| f64::from(*n) - f64::from(*b)).collect();
        let n = diffs.len() as f64;
        if n == 0.0 {
            return Change::default();
        }
        let mean = diffs.iter().sum::<f64>() / n;
        let var = diffs.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        let half = metrics::Z * (var / n).sqrt();
        Change { value: scale * mean, low: scale * (mean - half), high: scale * (mean + half) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_of_pairs_has_the_normal_interval() {
        // Differences 1, 2, 3, 6: mean 3, standard deviation 2.16.
        let c = Change::of_means(&[0.0; 4], &[1.0, 2.0, 3.0, 6.0], 10.0);
        let half = 1.959_964 * (14.0f64 / 3.0).sqrt() / 2.0;
        assert!((c.value - 30.0).abs() < 1e-9 && (c.high - 10.0 * (3.0 + half)).abs() < 1e-4, "{c:?}");
        assert!((c.low + c.high - 60.0).abs() < 1e-9);
        assert_eq!(Change::of_means(&[], &[], 1.0), Change::default());
    }
}
