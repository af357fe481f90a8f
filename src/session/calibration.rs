//! How sure a classifier is against how often it is right, of a round and of the original on the same items: plain data, and its two figures.
//!
//! Not here: what is kept of confidences (`host/compute/answers`). Invariant: bins and figure are those of [`Figure::CalibrationError`], which
//! `eval` has.
//!
//! [`Figure::CalibrationError`]: crate::eval::robust::Figure::CalibrationError

use crate::eval::robust::BINS;
use serde::{Deserialize, Serialize};

/// Answers of which the confidence lies in one bin.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Bin {
    pub items: u32,
    pub right: u32,
    /// The sum of their confidences.
    pub confidence: f64,
}

impl Bin {
    /// Their mean confidence, 0 to 1; `None` where there are none.
    pub fn sure(&self) -> Option<f64> {
        (self.items > 0).then(|| self.confidence / f64::from(self.items))
    }

    /// Their share of right answers.
    pub fn accuracy(&self) -> Option<f64> {
        (self.items > 0).then(|| f64::from(self.right) / f64::from(self.items))
    }

    /// Accuracy less confidence: negative for a model that is surer than it is right.
    pub fn gap(&self) -> Option<f64> {
        Some(self.accuracy()? - self.sure()?)
    }
}

/// One model's answers over bins `(low, high]` of equal width, the least sure first.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Reliability {
    pub bins: Vec<Bin>,
}

impl Reliability {
    /// Of answers by their confidence and whether they are right.
    pub fn of(answers: impl Iterator<Item = (f64, bool)>) -> Reliability {
        let mut bins = vec![Bin::default(); BINS];
        for (confidence, right) in answers {
            let bin = &mut bins[((confidence * BINS as f64).ceil() as usize).clamp(1, BINS) - 1];
            bin.items += 1;
            bin.right += u32::from(right);
            bin.confidence += confidence;
        }
        Reliability { bins }
    }

    pub fn items(&self) -> u32 {
        self.bins.iter().map(|b| b.items).sum()
    }

    /// The expected calibration error (Guo et al. 2017, arXiv:1706.04599), 0 to 1: how far confidence and accuracy of a bin are apart, weighted by
    /// its items. `None` of no items.
    pub fn error(&self) -> Option<f64> {
        let apart = |b: &Bin| (f64::from(b.right) - b.confidence).abs();
        (self.items() > 0).then(|| self.bins.iter().map(apart).sum::<f64>() / f64::from(self.items()))
    }

    /// The bin where the two are furthest apart, the first of equals.
    pub fn widest(&self) -> Option<usize> {
        let apart = |k: usize| self.bins[k].gap().map(f64::abs);
        (0..self.bins.len()).filter(|k| apart(*k).is_some()).reduce(|a, b| if apart(b) > apart(a) { b } else { a })
    }

    /// The bin that the error comes from most, the first of equals.
    pub fn heaviest(&self) -> Option<usize> {
        let share = |k: usize| self.bins[k].gap().map(|g| g.abs() * f64::from(self.bins[k].items));
        (0..self.bins.len()).filter(|k| share(*k).is_some()).reduce(|a, b| if share(b) > share(a) { b } else { a })
    }

    /// All of them as one bin.
    pub fn whole(&self) -> Bin {
        self.bins.iter().fold(Bin::default(), |a, b| Bin {
            items: a.items + b.items,
            right: a.right + b.right,
            confidence: a.confidence + b.confidence,
        })
    }
}

/// Of the original and of the round, on the items that both answered; `None` of one that was kept without confidence.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    #[serde(default)]
    pub before: Option<Reliability>,
    #[serde(default)]
    pub now: Option<Reliability>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_are_open_below_and_figures_are_those_worked_out_by_hand() {
        // Bins of a fifteenth: 0.6 is the upper end of the ninth.
        let of = [(0.55, true), (0.6, false), (0.65, true), (0.95, true), (1.0, false), (1.0, true)];
        let r = Reliability::of(of.into_iter());
        let items: Vec<(usize, u32, u32)> =
            r.bins.iter().enumerate().filter(|(_, b)| b.items > 0).map(|(k, b)| (k, b.items, b.right)).collect();
        assert_eq!(items, [(8, 2, 1), (9, 1, 1), (14, 3, 2)]);
        // |1 − 1.15| + |1 − 0.65| + |2 − 2.95| over six.
        assert!((r.error().expect("some") - (0.15 + 0.35 + 0.95) / 6.0).abs() < 1e-12);
        assert_eq!((r.widest(), r.heaviest()), (Some(9), Some(14)));
        assert!((r.bins[14].gap().expect("some") + 0.95 / 3.0).abs() < 1e-12);
        assert!((r.whole().sure().expect("some") - 4.75 / 6.0).abs() < 1e-12);
        assert_eq!((r.items(), r.whole().accuracy()), (6, Some(4.0 / 6.0)));
        let none = Reliability::of(std::iter::empty());
        assert_eq!((none.error(), none.widest().or(none.heaviest()), none.bins[3].gap()), (None, None, None));
    }
}
