//! What a classifier answered, image by image, and what that comes to: accuracy by class, F1, cross-entropy, calibration.
//!
//! Every figure is one of counts, how often each image is taken: once for its value, as often as it was drawn for its interval. Not here:
//! intervals themselves (`task`), how two sets are told apart (`separation`).

use super::EvalError;
use crate::task::{Estimate, TaskError, finite_rows};
use candle_core::Tensor;

/// Bins of confidence of equal width that calibration errors are reckoned over, as Guo et al. 2017 have them.
pub const BINS: usize = 15;

/// One answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Said {
    /// The class with the largest logit, the first of equals.
    pub class: u32,
    /// Its softmax, 0 to 1 (Hendrycks and Gimpel 2017, arXiv:1610.02136).
    pub confidence: f64,
    /// `ln Σ exp(logit)`, the negative free energy at temperature 1 (Liu et al. 2020, arXiv:2010.03759): larger for what the network knows.
    pub energy: f64,
}

impl Said {
    /// Of logits `[N, classes]`; the first is of image `first`.
    ///
    /// # Errors
    /// Another shape, logits that are no numbers.
    pub fn all(logits: &Tensor, first: usize) -> Result<Vec<Said>, EvalError> {
        Ok(finite_rows(logits, first)?.iter().map(|row| Said::of(row)).collect())
    }

    fn of(row: &[f32]) -> Said {
        let best = (0..row.len()).fold(0, |m, i| if row[i] > row[m] { i } else { m });
        let top = row.get(best).map_or(0.0, |v| f64::from(*v));
        let sum: f64 = row.iter().map(|v| (f64::from(*v) - top).exp()).sum();
        Said { class: best as u32, confidence: 1.0 / sum, energy: top + sum.ln() }
    }
}

/// A figure of answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Figure {
    /// Share of right answers.
    Top1,
    /// Mean of `-ln p` of the right class, in nats.
    CrossEntropy,
    /// Expected calibration error (Guo et al. 2017, arXiv:1706.04599): over [`BINS`] bins `(low, high]` of confidence, how far mean confidence
    /// is from the share of right answers, weighted by the images in the bin; 0 to 1.
    CalibrationError,
    /// Mean over classes of `2·TP / (2·TP + FP + FN)`, of those that are some image's label or answer.
    MacroF1,
    /// Share of right answers of the class that has the smallest.
    WorstClass,
}

impl Figure {
    pub const ALL: [Figure; 5] =
        [Figure::Top1, Figure::WorstClass, Figure::MacroF1, Figure::CrossEntropy, Figure::CalibrationError];
}

/// Answers to a set of images with their labels, in the set's order.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Answers {
    classes: usize,
    labels: Vec<u32>,
    said: Vec<Said>,
    /// `-ln p` of the right class.
    losses: Vec<f64>,
}

impl Answers {
    /// None yet, of so many classes.
    pub fn new(classes: usize) -> Answers {
        Answers { classes, ..Answers::default() }
    }

    /// Adds logits `[N, classes]` with the labels of the same images.
    ///
    /// # Errors
    /// Logits of another shape, or that are no numbers; a label that is no class.
    pub fn add(&mut self, logits: &Tensor, labels: &[u32]) -> Result<(), EvalError> {
        let rows = finite_rows(logits, self.len())?;
        if rows.len() != labels.len() || rows.iter().any(|r| r.len() != self.classes) {
            let found = logits.dims().to_vec();
            return Err(TaskError::Shape { found, images: labels.len(), classes: self.classes }.into());
        }
        for (row, &label) in rows.iter().zip(labels) {
            let said = Said::of(row);
            let Some(own) = row.get(label as usize) else {
                return Err(TaskError::Label { label, classes: self.classes }.into());
            };
            self.losses.push(said.energy - f64::from(*own));
            self.labels.push(label);
            self.said.push(said);
        }
        Ok(())
    }

    pub fn len(&self) -> usize {
        self.labels.len()
    }

    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    pub fn said(&self) -> &[Said] {
        &self.said
    }

    /// `-ln p` of the right class, by image.
    pub fn losses(&self) -> &[f64] {
        &self.losses
    }

    /// Which images are answered rightly.
    pub fn right(&self) -> Vec<bool> {
        self.said.iter().zip(&self.labels).map(|(s, l)| s.class == *l).collect()
    }

    /// Right answers and images by class.
    pub fn per_class(&self) -> Vec<(usize, usize)> {
        let mut of = vec![(0, 0); self.classes];
        for (said, label) in self.said.iter().zip(&self.labels) {
            let class = &mut of[*label as usize];
            *class = (class.0 + usize::from(said.class == *label), class.1 + 1);
        }
        of
    }

    /// A figure of all of them.
    pub fn figure(&self, which: Figure) -> f64 {
        self.counted(which, &vec![1; self.len()])
    }

    /// A figure with image `i` taken `counts[i]` times; 0 of none.
    pub fn counted(&self, which: Figure, counts: &[u32]) -> f64 {
        let all = self.said.iter().zip(&self.labels).zip(counts).map(|((s, l), n)| (s, *l, f64::from(*n)));
        let total = counts.iter().map(|n| f64::from(*n)).sum::<f64>().max(1.0);
        match which {
            Figure::Top1 => all.map(|(s, l, n)| if s.class == l { n } else { 0.0 }).sum::<f64>() / total,
            Figure::CrossEntropy => {
                self.losses.iter().zip(counts).map(|(loss, n)| loss * f64::from(*n)).sum::<f64>() / total
            }
            Figure::CalibrationError => {
                // By bin: right answers less confidence.
                let mut gaps = [0f64; BINS];
                for (s, l, n) in all {
                    let bin = (s.confidence * BINS as f64).ceil() as usize;
                    gaps[bin.clamp(1, BINS) - 1] += n * (f64::from(u8::from(s.class == l)) - s.confidence);
                }
                gaps.iter().map(|g| g.abs()).sum::<f64>() / total
            }
            Figure::MacroF1 => {
                // By class: right answers; answers and labels.
                let mut of = vec![(0f64, 0f64); self.classes];
                for (s, l, n) in all {
                    of[s.class as usize].1 += n;
                    of[l as usize].1 += n;
                    of[l as usize].0 += if s.class == l { n } else { 0.0 };
                }
                let (sum, classes) = of
                    .iter()
                    .filter(|(_, there)| *there > 0.0)
                    .fold((0.0, 0), |(sum, k), (hit, there)| (sum + 2.0 * hit / there, k + 1));
                sum / f64::from(classes.max(1))
            }
            Figure::WorstClass => {
                let mut of = vec![(0f64, 0f64); self.classes];
                for (s, l, n) in all {
                    let class = &mut of[l as usize];
                    *class = (class.0 + if s.class == l { n } else { 0.0 }, class.1 + n);
                }
                let shares = of.iter().filter(|(_, there)| *there > 0.0).map(|(hit, there)| hit / there);
                shares.reduce(f64::min).unwrap_or(0.0)
            }
        }
    }

    /// By how much a figure is larger than of `base`'s answers to the same images, with its paired interval.
    pub fn beyond(&self, base: &Answers, which: Figure) -> Estimate {
        let of = |counts: &[Vec<u32>]| self.counted(which, &counts[0]) - base.counted(which, &counts[0]);
        Estimate::resampled(&[self.len().min(base.len())], of)
    }
}
