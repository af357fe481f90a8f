//! Adversaries: images changed by little, so that a network that is known in full answers wrongly.
//!
//! One step is the fast gradient sign method (Goodfellow et al. 2015, arXiv:1412.6572), several are projected gradient descent (Madry et al. 2018,
//! arXiv:1706.06083), both bounded in the largest change of any value (L∞) and to what bytes can hold, from 0 to 255, though values between
//! bytes are allowed. Steps go up the cross-entropy of the right class. An image counts as answered rightly only where it is as it
//! stands and after every step: a network that is robust is so in the whole bound, not at one end of it.
//!
//! Gradients are those of the model's weights in f32, through our own kernels (`exec/tape`); answers are the plan's as it runs. Of a network whose
//! activations are rounded, too, the gradients stand in for gradients that are zero almost everywhere, and its accuracy reads rather high.
//! Invariants: a batch is cut into parts of [`PART`] images whatever the threads; the same inputs give the same points.

use super::corruption::{stream, uniform};
use super::{Said, pixels};
use crate::eval::{EvalError, Result};
use crate::exec::Cancel;
use crate::exec::candle::Mode;
use crate::exec::tape::{self, Ready, Tape, Weights};
use crate::graph::NodeId;
use crate::model::{Model, Preprocess};
use candle_core::Tensor;
use rayon::prelude::*;

/// Images whose gradients a thread takes at once.
const PART: usize = 32;

/// How an adversary goes about it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Attack {
    /// The largest change of any value, in levels of 255.
    pub epsilon: f64,
    /// 1: the fast gradient sign method.
    pub steps: u32,
    /// Begin anywhere within the bound instead of at the image.
    pub random_start: bool,
}

impl Attack {
    /// The fast gradient sign method.
    pub fn fgsm(epsilon: f64) -> Attack {
        Attack { epsilon, steps: 1, random_start: false }
    }

    /// Projected gradient descent from the image itself.
    pub fn pgd(epsilon: f64, steps: u32) -> Attack {
        Attack { epsilon, steps, random_start: false }
    }

    /// How far one step goes, in levels of 255: all the way, or so that all of them could go two and a half times as far.
    pub fn step(&self) -> f64 {
        if self.steps == 1 { self.epsilon } else { 2.5 * self.epsilon / f64::from(self.steps.max(1)) }
    }
}

impl std::fmt::Display for Attack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.steps {
            1 => write!(f, "fgsm {}/255", self.epsilon),
            n => write!(f, "pgd-{n} {}/255", self.epsilon),
        }
    }
}

/// What knows a network in full.
#[derive(Debug)]
pub struct Adversary<'a> {
    tape: Tape,
    weights: Weights,
    output: NodeId,
    prep: &'a Preprocess,
}

impl<'a> Adversary<'a> {
    /// Of a classifier of images.
    ///
    /// # Errors
    /// Parameters that are missing or no numbers; a graph whose shapes do not fit.
    pub fn of(model: &'a Model) -> Result<Adversary<'a>> {
        let (tape, weights) = (Tape::of(&model.graph)?, tape::weights(model)?);
        Ok(Adversary { tape, weights, output: model.graph.output, prep: &model.info.preprocess })
    }

    /// With packed weights.
    ///
    /// # Errors
    /// Parameters of another size.
    pub fn ready(&self) -> Result<Prepared<'_>> {
        Ok(Prepared { of: self, ready: self.tape.ready(&self.weights)? })
    }
}

/// See [`Adversary::ready`].
pub struct Prepared<'a> {
    of: &'a Adversary<'a>,
    ready: Ready<'a>,
}

/// Images on their way: those that are still answered rightly.
struct Way {
    /// Their places in the batch.
    left: Vec<usize>,
    /// Values between 0 and 1, where they are and where they began.
    at: Vec<f32>,
    from: Vec<f32>,
}

impl Way {
    /// Goes on with those alone that `stay`.
    fn keep(&mut self, stay: &[bool], one: usize) {
        let part = |values: &[f32]| -> Vec<f32> {
            values.chunks_exact(one).zip(stay).filter(|(_, s)| **s).flat_map(|(v, _)| v).copied().collect()
        };
        (self.at, self.from) = (part(&self.at), part(&self.from));
        let left = self.left.iter().zip(stay).filter(|(_, s)| **s);
        self.left = left.map(|(i, _)| *i).collect();
    }
}

impl Prepared<'_> {
    /// Which of a batch of images `[N, C, H, W]`, values between 0 and 1, with their labels, `ask` answers rightly at every point that the
    /// adversary tries; `ask` gets normalised images. The first is image `place.0` of its set, which with the seed `place.1` decides random
    /// starts.
    ///
    /// # Errors
    /// What `ask` reports; outputs or gradients that are no numbers; cancellation, before each step.
    pub fn withstood(
        &self,
        attack: &Attack,
        (x, labels): (&Tensor, &[u32]),
        place: (u64, u64),
        ask: &mut dyn FnMut(&Tensor) -> Result<Tensor>,
        cancel: &Cancel,
    ) -> Result<Vec<bool>> {
        let (n, c, h, w) = x.dims4()?;
        let one = (c * h * w).max(1);
        let from = x.flatten_all()?.to_vec1::<f32>()?;
        let mut way = Way { left: (0..n).collect(), at: from.clone(), from };
        let (epsilon, step) = ((attack.epsilon / 255.0) as f32, (attack.step() / 255.0) as f32);
        for k in 0..=attack.steps {
            cancel.check()?;
            let shape = (way.left.len(), c, h, w);
            let seen = pixels::normalised(way.at.iter().copied(), shape, self.of.prep)?;
            let said = Said::all(&ask(&seen)?, place.0 as usize)?;
            let stay: Vec<bool> = said.iter().zip(&way.left).map(|(s, i)| s.class == labels[*i]).collect();
            way.keep(&stay, one);
            if way.left.is_empty() || k == attack.steps {
                break;
            }
            if k == 0 && attack.random_start {
                for (i, (at, from)) in way.left.iter().zip(way.at.chunks_exact_mut(one).zip(way.from.chunks_exact(one)))
                {
                    let mut rng = stream(place.1, place.0 + *i as u64);
                    for (a, f) in at.iter_mut().zip(from) {
                        let by = epsilon * (2.0 * uniform(&mut rng) - 1.0) as f32;
                        *a = (f + by).clamp(0.0, 1.0);
                    }
                }
            }
            let labels: Vec<u32> = way.left.iter().map(|i| labels[*i]).collect();
            let seen = pixels::normalised(way.at.iter().copied(), (labels.len(), c, h, w), self.of.prep)?;
            let slopes = self.slopes(&seen, &labels)?;
            for ((a, from), g) in way.at.iter_mut().zip(&way.from).zip(&slopes) {
                let sign = f32::from(i8::from(*g > 0.0) - i8::from(*g < 0.0));
                *a = (*a + step * sign).clamp(from - epsilon, from + epsilon).clamp(0.0, 1.0);
            }
        }
        let mut right = vec![false; n];
        way.left.iter().for_each(|i| right[*i] = true);
        Ok(right)
    }

    /// Gradients of each image's cross-entropy by the normalised image, whose signs are those by its pixels.
    fn slopes(&self, x: &Tensor, labels: &[u32]) -> Result<Vec<f32>> {
        let part = |at: usize| -> Result<Vec<f32>> {
            let m = PART.min(labels.len() - at);
            let trace = self.ready.forward(&x.narrow(0, at, m)?, Mode::Eval)?;
            let y = trace.output(&self.of.tape);
            let classes = y.len() / m;
            let seed = y.chunks_exact(classes.max(1)).zip(&labels[at..at + m]);
            let seed = seed.flat_map(|(row, label)| cross_entropy_gradient(row, *label)).collect();
            let slopes = self.ready.input_gradient(trace, vec![(self.of.output, seed)])?;
            match slopes.iter().position(|g| !g.is_finite()) {
                Some(at) => Err(EvalError::NotFinite { at }),
                None => Ok(slopes),
            }
        };
        let starts: Vec<usize> = (0..labels.len()).step_by(PART).collect();
        Ok(starts.into_par_iter().map(part).collect::<Result<Vec<_>>>()?.concat())
    }
}

/// Of `-ln softmax(row)[label]` by the row, `softmax(row) - target`, divided by the chance that is left for other classes: -1 at the label, and at the
/// others their shares of that chance. Only signs count in the end, and where a network is sure the plain gradient is lost in rounding, which would
/// pass for robustness (Carlini and Wagner 2017, arXiv:1608.04644, section V).
fn cross_entropy_gradient(row: &[f32], label: u32) -> Vec<f32> {
    let label = label as usize;
    let others = || row.iter().enumerate().filter(|(k, _)| *k != label).map(|(_, v)| f64::from(*v));
    let top = others().fold(f64::NEG_INFINITY, f64::max);
    let sum: f64 = others().map(|v| (v - top).exp()).sum();
    let of = |(k, v): (usize, &f32)| if k == label { -1.0 } else { ((f64::from(*v) - top).exp() / sum) as f32 };
    row.iter().enumerate().map(of).collect()
}
