//! Classification: one class an item, right or wrong. Numerically stable, and strict about values that are not numbers.

use super::error::TaskError;
use super::metrics::{Metric, Metrics};
use super::{Change, Scored, Scorer, Targets, Task, paired};
use crate::model::ModelInfo;
use candle_core::{DType, Device, Tensor};

/// Logits `[N, classes]` against one class an item; a score is 1 for a right answer and 0 for a wrong one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Classify;

impl Task for Classify {
    fn metric(&self, model: &ModelInfo) -> Metric {
        Metric::top1(model.classes)
    }

    fn scale(&self) -> f64 {
        100.0
    }

    fn scorer(&self, least: usize) -> Box<dyn Scorer> {
        Box::new(Answers::new(least))
    }

    fn broken(&self) -> f32 {
        0.0
    }

    /// Cross-entropy.
    fn loss(&self, outputs: &Tensor, targets: &Targets, temperature: f64) -> candle_core::Result<Tensor> {
        let labels = Tensor::new(targets.classes(), outputs.device())?;
        candle_nn::loss::cross_entropy(&(outputs / temperature)?, &labels)
    }

    /// KL divergence in nats.
    fn divergence(&self, base: &Tensor, new: &Tensor, temperature: f64) -> Result<f64, TaskError> {
        kl(&(base / temperature)?, &(new / temperature)?)
    }

    fn temperature(&self, outputs: &Tensor) -> Result<f64, TaskError> {
        Ok(softening(rows(outputs)?.iter().map(Vec::as_slice)))
    }

    /// Newcombe's interval for paired proportions.
    fn compare(&self, base: &[f32], new: &[f32]) -> Change {
        let right = |scores: &[f32]| scores.iter().map(|s| *s > 0.5).collect::<Vec<bool>>();
        let p = paired(&right(base), &right(new));
        Change { value: p.diff, low: p.low, high: p.high }
    }
}

/// Temperature at which the mean margin between the best two classes is two, at least 1: networks are so sure of images that
/// they were trained on that their plain loss says little.
fn softening<'a>(logits: impl IntoIterator<Item = &'a [f32]>) -> f64 {
    let (mut sum, mut n) = (0.0, 0usize);
    for row in logits {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for &v in row {
            if v > first {
                (first, second) = (v, first);
            } else if v > second {
                second = v;
            }
        }
        let margin = f64::from(first - second);
        if margin.is_finite() {
            sum += margin;
            n += 1;
        }
    }
    (sum / n.max(1) as f64 / 2.0).max(1.0)
}

/// Collects answers batch by batch.
#[derive(Debug, Default)]
struct Answers {
    classes: usize,
    top5: usize,
    loss: f64,
    per_class: Vec<(usize, usize)>,
    /// What is known of each item; its metrics are reckoned when they are asked for.
    items: Scored,
}

impl Answers {
    fn new(classes: usize) -> Answers {
        Answers { classes, per_class: vec![(0, 0); classes], ..Answers::default() }
    }

    /// Adds logits `[N, classes]` with their labels in order; labels out of range are errors, as is any logit that is NaN or
    /// infinite.
    fn answers(&mut self, logits: &Tensor, labels: &[u32]) -> Result<(), TaskError> {
        let rows = rows(logits)?;
        let classes = logits.dims().get(1).copied().unwrap_or(0);
        if rows.len() != labels.len() || classes < self.classes || classes == 0 {
            return Err(TaskError::Shape {
                found: logits.dims().to_vec(),
                images: labels.len(),
                classes: self.classes,
            });
        }
        all_finite(rows.iter().map(|r| finite(r)), self.items.scores.len())?;
        for (row, &label) in rows.iter().zip(labels) {
            let class = label as usize;
            let Some(&own) = row.get(class) else {
                return Err(TaskError::Label { label, classes });
            };
            if self.per_class.len() <= class {
                self.per_class.resize(class + 1, (0, 0));
            }
            let best = argmax(row);
            // Rank with ties broken by the lower index, as a stable descending sort does.
            let ahead = row.iter().enumerate().filter(|&(j, &v)| v > own || (v == own && j < class)).count();
            self.loss += log_sum_exp(row) - f64::from(own);
            self.top5 += usize::from(ahead < 5);
            if let Some((hit, total)) = self.per_class.get_mut(class) {
                *hit += usize::from(best == class);
                *total += 1;
            }
            self.items.predictions.push(u16::try_from(best).unwrap_or(u16::MAX));
            self.items.scores.push(f32::from(u8::from(best == class)));
            // Logit of the right class less the best other one.
            let other = row.iter().enumerate().filter(|(j, _)| *j != class).map(|(_, v)| *v);
            self.items.margins.push(own - other.fold(f32::NEG_INFINITY, f32::max));
        }
        Ok(())
    }

    /// Metrics of what was added so far.
    fn metrics(&self) -> Metrics {
        let (all, correct) = (self.items.scores.len(), self.per_class.iter().map(|c| c.0).sum());
        let n = all.max(1) as f64;
        let of = Metrics::of_classes(all, correct, self.top5 as f64 / n, self.loss / n, self.per_class.clone());
        // Among the first five of five are all.
        if self.per_class.len() > 5 { of } else { Metrics { others: Vec::new(), ..of } }
    }
}

impl Scorer for Answers {
    fn add(&mut self, outputs: &Tensor, targets: &Targets) -> Result<(), TaskError> {
        match targets {
            Targets::Classes(labels) => self.answers(outputs, labels),
            Targets::Values(_) => Err(TaskError::Targets),
        }
    }

    fn scored(&self) -> Scored {
        Scored { metrics: self.metrics(), ..self.items.clone() }
    }
}

/// Index of the largest value, the first of equals.
fn argmax(row: &[f32]) -> usize {
    let mut best = 0;
    for (i, v) in row.iter().enumerate() {
        if *v > row[best] {
            best = i;
        }
    }
    best
}

/// `ln Σ exp(v)` in f64, shifted by the maximum.
fn log_sum_exp(row: &[f32]) -> f64 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|&v| (f64::from(v) - f64::from(max)).exp()).sum();
    f64::from(max) + sum.ln()
}

fn finite(row: &[f32]) -> bool {
    row.iter().all(|v| v.is_finite())
}

/// The rows of logits `[N, classes]`, of which the first is of item `from`.
///
/// # Errors
/// Another shape; logits that are no numbers.
pub(crate) fn finite_rows(logits: &Tensor, from: usize) -> Result<Vec<Vec<f32>>, TaskError> {
    let rows = rows(logits)?;
    all_finite(rows.iter().map(|r| finite(r)), from)?;
    Ok(rows)
}

/// Refuses a batch, whose first item is number `from`, unless all its items are `finite`.
fn all_finite(finite: impl ExactSizeIterator<Item = bool>, from: usize) -> Result<(), TaskError> {
    let batch = finite.len();
    let bad: Vec<usize> = finite.enumerate().filter(|(_, fine)| !fine).map(|(i, _)| from + i).collect();
    bad.first().map_or(Ok(()), |&first| Err(TaskError::NonFinite { images: bad.len(), batch, first }))
}

fn rows(logits: &Tensor) -> Result<Vec<Vec<f32>>, TaskError> {
    if logits.rank() != 2 {
        return Err(TaskError::Shape { found: logits.dims().to_vec(), images: 0, classes: 0 });
    }
    Ok(logits.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.to_vec2::<f32>()?)
}

/// Mean over images of the Kullback-Leibler divergence KL(softmax(base) ‖ softmax(new)) in nats; both `[N, classes]`.
///
/// # Errors
/// Different shapes, no images, or non-finite logits.
pub fn kl(base: &Tensor, new: &Tensor) -> Result<f64, TaskError> {
    if base.dims() != new.dims() || base.elem_count() == 0 {
        let classes = base.dims().get(1).copied().unwrap_or(0);
        let images = base.dims().first().copied().unwrap_or(0);
        return Err(TaskError::Shape { found: new.dims().to_vec(), images, classes });
    }
    let (p, q) = (rows(base)?, rows(new)?);
    all_finite(p.iter().zip(&q).map(|(p, q)| finite(p) && finite(q)), 0)?;
    let one = |p: &[f32], q: &[f32]| -> f64 {
        let (zp, zq) = (log_sum_exp(p), log_sum_exp(q));
        p.iter()
            .zip(q)
            .map(|(&a, &b)| {
                let (lp, lq) = (f64::from(a) - zp, f64::from(b) - zq);
                lp.exp() * (lp - lq)
            })
            .sum()
    };
    let total: f64 = p.iter().zip(&q).map(|(p, q)| one(p, q)).sum();
    // Rounding may leave a tiny negative sum for equal logits.
    Ok((total / p.len() as f64).max(0.0))
}

/// Mean cross-entropy in nats of `[N, classes]` logits.
///
/// # Errors
/// Another shape, a label out of range, logits that are no numbers.
pub fn cross_entropy(logits: &Tensor, labels: &[u32]) -> Result<f64, TaskError> {
    let mut answers = Answers::new(0);
    answers.answers(logits, labels)?;
    Ok(answers.metrics().loss)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(rows: &[&[f32]]) -> Tensor {
        let flat: Vec<f32> = rows.iter().flat_map(|r| r.iter().copied()).collect();
        Tensor::from_vec(flat, (rows.len(), rows[0].len()), &Device::Cpu).unwrap()
    }

    #[test]
    fn counts_ranks_and_losses() {
        let mut s = Answers::new(6);
        let logits = tensor(&[&[5.0, 0.0, 0.0, 0.0, 0.0, 0.0], &[5.0, 4.0, 3.0, 2.0, 1.0, 0.0], &[0.0; 6]]);
        s.answers(&logits, &[0, 5, 4]).unwrap();
        let m = s.metrics();
        assert_eq!((m.n, m.correct()), (3, Some(1)));
        // Image 0 first, image 1 sixth, image 2 fifth among ties.
        assert!((m.other("top-5").unwrap() - 2.0 / 3.0).abs() < 1e-12);
        let ce0 = (1.0 + 5.0 * (-5f64).exp()).ln();
        let ce1 = (0..6).map(|i| f64::from(i).exp()).sum::<f64>().ln();
        assert!((m.loss - (ce0 + ce1 + 6f64.ln()) / 3.0).abs() < 1e-9);
        assert_eq!(m.per_class(), [(1, 1), (0, 0), (0, 0), (0, 0), (0, 1), (0, 1)]);
        assert_eq!((s.items.correct(), s.items.predictions), (vec![true, false, false], vec![0, 0, 0]));
    }

    #[test]
    fn huge_logits_do_not_overflow() {
        let ce = cross_entropy(&tensor(&[&[3.0e38, -3.0e38], &[1000.0, 999.0]]), &[0, 1]).unwrap();
        assert!((ce - (1.0 + (1f64 + (-1f64).exp()).ln()) / 2.0).abs() < 1e-9, "{ce}");
    }

    #[test]
    fn not_a_number_is_an_error_with_its_place() {
        let mut s = Answers::new(2);
        s.answers(&tensor(&[&[0.0, 1.0]]), &[1]).unwrap();
        let bad = tensor(&[&[0.0, 1.0], &[f32::NAN, 1.0], &[f32::INFINITY, 0.0]]);
        match s.answers(&bad, &[0, 1, 1]) {
            Err(TaskError::NonFinite { images: 2, batch: 3, first: 2 }) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(s.metrics().n, 1);
    }

    #[test]
    fn wrong_shapes_and_labels_are_errors() {
        let mut s = Answers::new(3);
        assert!(matches!(s.answers(&tensor(&[&[0.0, 1.0]]), &[1]), Err(TaskError::Shape { .. })));
        assert!(matches!(s.answers(&tensor(&[&[0.0, 1.0, 2.0]]), &[1, 2]), Err(TaskError::Shape { .. })));
        assert!(matches!(s.answers(&tensor(&[&[0.0, 1.0, 2.0]]), &[3]), Err(TaskError::Label { .. })));
    }

    #[test]
    fn kl_matches_its_formula() {
        let (a, b) = (tensor(&[&[0.0, 0.0]]), tensor(&[&[3f32.ln(), 0.0]]));
        // p = (1/2, 1/2), q = (3/4, 1/4).
        let want = 0.5 * (0.5f64 / 0.75).ln() + 0.5 * (0.5f64 / 0.25).ln();
        assert!((kl(&a, &b).unwrap() - want).abs() < 1e-7);
        assert_eq!(kl(&a, &a).unwrap(), 0.0);
        // A shift of all logits changes nothing.
        let shifted = (&b + 100.0).unwrap();
        assert!((kl(&a, &shifted).unwrap() - want).abs() < 1e-5);
        assert!(kl(&a, &tensor(&[&[0.0, 0.0, 0.0]])).is_err());
        assert!(kl(&a, &tensor(&[&[0.0, f32::NAN]])).is_err());
    }

    #[test]
    fn the_temperature_brings_the_mean_margin_to_two() {
        let rows: [&[f32]; 2] = [&[9.0, 1.0, 0.0], &[-1.0, 3.0, -1.0]];
        assert_eq!(softening(rows), 3.0);
        assert_eq!(softening([&[0.5f32, 0.0][..]]), 1.0);
        assert_eq!(softening([]), 1.0);
    }
}
