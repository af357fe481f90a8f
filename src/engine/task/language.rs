//! Next tokens: every position of a window predicts the token after it.

use super::divergence::Divergences;
use super::error::TaskError;
use super::metrics::{Metric, Metrics, Reading};
use super::{Scored, Scorer, Targets, Task};
use crate::model::ModelInfo;
use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;

/// Logits `[N, tokens, vocabulary]` against the token that follows each; an item is a window, its score the negative mean of its
/// tokens' surprise in nats.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NextToken;

/// Further readings of a set.
pub const PERPLEXITY: &str = "perplexity";
pub const NEXT_TOKEN: &str = "next-token accuracy";

impl Task for NextToken {
    fn metric(&self, model: &ModelInfo) -> Metric {
        // What knows nothing of a vocabulary gives each token the same chance.
        let blind = (model.classes.max(2) as f64).ln();
        Metric {
            name: "nats/token".to_owned(),
            item: "window".to_owned(),
            unit: String::new(),
            change_unit: "nats".to_owned(),
            scale: -1.0,
            whole: blind,
            digits: 4,
            chance: Some(-blind),
            worst: None,
            best: Some(0.0),
        }
    }

    fn scale(&self) -> f64 {
        1.0
    }

    /// A language model is sure of few tokens, and divergence in nats a token is what people compare.
    fn softening(&self) -> f64 {
        1.0
    }

    /// Every token of a window is asked.
    fn fewest(&self) -> usize {
        4
    }

    /// A row of a large vocabulary costs as much as a third of the network, and neighbours say much the same.
    fn every(&self) -> usize {
        4
    }

    fn scorer(&self, _least: usize) -> Box<dyn Scorer> {
        Box::new(Surprise::default())
    }

    fn beside(&self) -> bool {
        true
    }

    /// Far worse than a blind guess among any vocabulary.
    fn broken(&self) -> f32 {
        -100.0
    }

    /// Mean cross-entropy of all tokens.
    fn loss(&self, outputs: &Tensor, targets: &Targets, temperature: f64) -> candle_core::Result<Tensor> {
        let Targets::Values(next) = targets else { candle_core::bail!("one class an item is no text") };
        let (n, t, vocab) = outputs.dims3()?;
        let next = next.to_device(outputs.device())?.flatten_all()?;
        candle_nn::loss::cross_entropy(&(outputs.reshape((n * t, vocab))? / temperature)?, &next)
    }

    /// KL divergence in nats a token.
    fn divergence(&self, base: &Tensor, new: &Tensor, temperature: f64) -> Result<f64, TaskError> {
        let mut all = Divergences::default();
        match temperature == 1.0 {
            true => all.add(base, new)?,
            false => all.add(&(base / temperature)?, &(new / temperature)?)?,
        }
        Ok(all.mean())
    }
}

/// Collects windows batch by batch.
#[derive(Debug, Default)]
struct Surprise {
    /// Of each window: the mean of its tokens in nats.
    nats: Vec<f64>,
    tokens: usize,
    correct: usize,
}

/// A token's surprise in nats, and whether it has the largest logit (the first of equals); `None` for logits that are no numbers.
pub fn surprise(logits: &[f32], next: u32) -> Option<(f64, bool)> {
    let own = *logits.get(next as usize)?;
    let top = logits.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
    // In f32 but for the sum: exponentials of differences are right to half an ulp, and a vocabulary has tens of thousands.
    let sum: f64 = logits.chunks(64).map(|part| f64::from(part.iter().map(|v| (v - top).exp()).sum::<f32>())).sum();
    let nats = f64::from(top) + sum.ln() - f64::from(own);
    let first = || logits.iter().position(|v| *v == top) == Some(next as usize);
    nats.is_finite().then(|| (nats, own == top && first()))
}

impl Scorer for Surprise {
    fn add(&mut self, outputs: &Tensor, targets: &Targets) -> Result<(), TaskError> {
        let Targets::Values(next) = targets else { return Err(TaskError::Targets) };
        let fits = matches!((outputs.dims(), next.dims()), (&[n, t, v], &[m, s]) if n == m && t == s && t > 0 && v > 0);
        let vocab = outputs.dims().last().copied().unwrap_or(0);
        if !fits || next.dtype() != DType::U32 {
            return Err(TaskError::Shape { found: outputs.dims().to_vec(), images: targets.len(), classes: vocab });
        }
        let windows = next.to_vec2::<u32>()?;
        for (i, next) in windows.iter().enumerate() {
            if let Some(&label) = next.iter().find(|id| **id as usize >= vocab) {
                return Err(TaskError::Label { label, classes: vocab });
            }
            // A window at a time: one of a large vocabulary has a hundred megabytes.
            let logits =
                outputs.get(i)?.to_dtype(DType::F32)?.to_device(&Device::Cpu)?.flatten_all()?.to_vec1::<f32>()?;
            let all: Option<Vec<(f64, bool)>> =
                logits.par_chunks(vocab).zip(next).map(|(row, id)| surprise(row, *id)).collect();
            let Some(all) = all else {
                return Err(TaskError::NonFinite { images: 1, batch: windows.len(), first: self.nats.len() });
            };
            self.nats.push(all.iter().map(|(nats, _)| nats).sum::<f64>() / all.len() as f64);
            self.tokens += all.len();
            self.correct += all.iter().filter(|(_, right)| *right).count();
        }
        Ok(())
    }

    fn scored(&self) -> Scored {
        let n = self.nats.len() as f64;
        let mean = self.nats.iter().sum::<f64>() / n.max(1.0);
        let var = self.nats.iter().map(|w| (w - mean).powi(2)).sum::<f64>() / (n - 1.0).max(1.0);
        let reading =
            |name: &str, score, scale, unit: &str| Reading { name: name.into(), score, scale, unit: unit.into() };
        let right = self.correct as f64 / self.tokens.max(1) as f64;
        // Beyond some 700 nats no number holds it.
        let perplexity = Some(mean.exp()).filter(|p| p.is_finite()).map(|p| reading(PERPLEXITY, p, 1.0, ""));
        let metrics = Metrics {
            n: self.nats.len(),
            score: -mean,
            loss: mean,
            // One window does not tell how far others are from it.
            standard_error: (n > 1.0).then(|| (var / n).sqrt()),
            others: perplexity.into_iter().chain([reading(NEXT_TOKEN, right, 100.0, "%")]).collect(),
            classes: None,
        };
        Scored { metrics, scores: self.nats.iter().map(|w| -*w as f32).collect(), ..Scored::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outputs() -> Tensor {
        // Two windows of two tokens over three words.
        let v: Vec<f32> = vec![2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 3.0, 1.0, -1.0, 5.0, 5.0];
        Tensor::from_vec(v, (2, 2, 3), &Device::Cpu).unwrap()
    }

    fn next(ids: [u32; 4]) -> Targets {
        Targets::Values(Tensor::new(&ids, &Device::Cpu).unwrap().reshape((2, 2)).unwrap())
    }

    #[test]
    fn surprise_is_the_negative_logarithm_of_the_right_tokens_chance() {
        let mut s = Surprise::default();
        s.add(&outputs(), &next([0, 2, 1, 2])).unwrap();
        let scored = s.scored();
        let (a, b) = ((2.0 + 1f64.exp().powi(2)).ln() - 2.0, 3f64.ln());
        let c = (2.0 * 1f64.exp() + 3f64.exp()).ln() - 3.0;
        let d = ((-1f64).exp() + 2.0 * 5f64.exp()).ln() - 5.0;
        let m = &scored.metrics;
        assert!((m.loss - (a + b + c + d) / 4.0).abs() < 1e-6 && (m.score + m.loss).abs() < 1e-12);
        assert!((f64::from(scored.scores[0]) + (a + b) / 2.0).abs() < 1e-6);
        assert!((m.other(PERPLEXITY).unwrap() - m.loss.exp()).abs() < 1e-9);
        // Of equals the first counts: tokens 2 of the second and of the fourth row are not the first.
        assert_eq!(m.other(NEXT_TOKEN), Some(0.5));
        // The loss that training sees is the same number.
        let loss = NextToken.loss(&outputs(), &next([0, 2, 1, 2]), 1.0).unwrap().to_scalar::<f32>().unwrap();
        assert!((f64::from(loss) - m.loss).abs() < 1e-6);
    }

    #[test]
    fn one_window_has_no_standard_error() {
        let mut s = Surprise::default();
        let one = Targets::Values(Tensor::new(&[[0u32, 2]], &Device::Cpu).unwrap());
        s.add(&outputs().narrow(0, 0, 1).unwrap(), &one).unwrap();
        assert_eq!(s.scored().metrics.standard_error, None);
        s.add(&outputs(), &next([0, 2, 1, 2])).unwrap();
        assert!(s.scored().metrics.standard_error.is_some_and(|e| e > 0.0));
    }

    #[test]
    fn a_perplexity_that_no_number_holds_is_left_out() {
        let mut s = Surprise::default();
        s.add(&(outputs() * 1e4).unwrap(), &next([1, 0, 0, 0])).unwrap();
        let m = s.scored().metrics;
        assert!(m.loss > 1e3 && m.other(PERPLEXITY).is_none() && m.other(NEXT_TOKEN).is_some());
    }

    #[test]
    fn what_does_not_fit_or_is_no_number_is_refused() {
        let mut s = Surprise::default();
        let refused = |r: Result<(), TaskError>, words: &str| assert!(r.unwrap_err().to_string().contains(words));
        refused(s.add(&outputs(), &next([0, 3, 0, 0])), "label `3`");
        refused(s.add(&outputs(), &Targets::Classes(vec![0, 1])), "no targets");
        refused(s.add(&outputs().narrow(1, 0, 1).unwrap(), &next([0; 4])), "shape");
        for bad in [f32::NAN, f32::INFINITY] {
            let broken = (outputs() + 0.0).unwrap();
            let one = Tensor::from_vec(vec![bad; 3], (1, 1, 3), &Device::Cpu).unwrap();
            let broken = broken.slice_assign(&[0..1, 1..2, 0..3], &one).unwrap();
            refused(s.add(&broken, &next([0; 4])), "not finite");
        }
        assert_eq!(s.scored().metrics.n, 0);
    }

    #[test]
    fn a_moved_network_diverges_and_the_same_does_not() {
        let moved = (outputs() * 0.5).unwrap();
        assert_eq!(NextToken.divergence(&outputs(), &outputs(), 1.0).unwrap(), 0.0);
        assert!(NextToken.divergence(&outputs(), &moved, 1.0).unwrap() > 0.01);
    }
}
