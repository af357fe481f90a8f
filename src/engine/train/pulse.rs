//! What the weights and gradients of every layer do while a network is healed: norms, how far weights went, what removing them would cost,
//! how much of a gradient is noise.
//!
//! All of it is read off the gradients that a step works out anyway, before they are shortened. Invariants: nothing here changes what is
//! trained; it is in no checkpoint, so that a healing that goes on begins to average anew; figures that are no numbers are not told.

use super::pupil::Pupil;
use crate::graph::ParamRole;
use crate::model::Model;
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Averages are exponential, over about so many steps.
const STEPS: f64 = 20.0;

/// Told no oftener than this.
const EVERY: Duration = Duration::from_millis(250);

/// Values that are added up in single precision before they go into a sum in double.
const RUN: usize = 4096;

/// The weight of one layer (scale of a norm) at a step of a healing; averages are over about the last twenty steps. Gradients are of the loss
/// that is trained on: the mean over a batch's images.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LayerPulse {
    /// The node's name.
    pub name: String,
    pub values: u64,
    /// Root of the sum of squares of the weights that are trained, now.
    pub weight: f32,
    /// How far they are from where the healing began, as a part of their norm there.
    pub moved: f32,
    /// Root of the mean square of the gradient's norm.
    pub gradient: f32,
    /// `Σ |g·w|`: by how much the loss would change, to first order and by magnitude, with the weights removed one by one (Molchanov et al.
    /// 2019, "Importance estimation for neural network pruning", equation 8, without the square).
    pub importance: f32,
    /// Of the gradient by one image: the square of its mean's norm, and its variance summed over all weights. `None` where batches have one
    /// part.
    pub spread: Option<Spread>,
}

/// What parts of a batch say of the gradient by one image (McCandlish et al. 2018, "An empirical model of large-batch training", appendix A.1),
/// as if parts were drawn independently. Images that are laid over others of the batch are not quite: the variance is then told too small.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// An unbiased estimate of `|G|²`, which may be below zero where noise is much larger.
    pub signal: f32,
    /// Of `tr Σ`.
    pub variance: f32,
}

impl Spread {
    /// `variance / signal`, of one layer or summed over several; `None` where either is not above zero.
    pub fn scale(signal: f64, variance: f64) -> Option<f64> {
        (signal > 0.0 && variance > 0.0).then(|| variance / signal)
    }
}

impl LayerPulse {
    /// The simple noise scale `tr Σ / |G|²`, images: batches that are much smaller have mostly noise for a gradient. `None` where it is not
    /// known, and where noise hides the gradient altogether.
    pub fn noise(&self) -> Option<f64> {
        let Spread { signal, variance } = self.spread?;
        Spread::scale(signal.into(), variance.into())
    }

    /// The mean square of one weight's gradient by one image: the empirical Fisher information's diagonal, averaged over the layer, where the
    /// loss is of labels.
    pub fn fisher(&self) -> Option<f64> {
        let Spread { signal, variance } = self.spread?;
        Some((f64::from(signal) + f64::from(variance)).max(0.0) / self.values.max(1) as f64)
    }

    fn is_sound(&self) -> bool {
        let spread = self.spread.iter().flat_map(|s| [s.signal, s.variance]);
        [self.weight, self.moved, self.gradient, self.importance].into_iter().chain(spread).all(f32::is_finite)
    }
}

/// Sums of one layer.
#[derive(Debug, Clone)]
struct Layer {
    name: String,
    /// Which of the pupil's tensors.
    slot: usize,
    start: Vec<f32>,
    /// Squares of the weights that it began with, and now; and of the way between.
    from: f64,
    now: f64,
    way: f64,
    /// Squared norm of the gradient's parts in the step that is under way, on average.
    parts: f64,
    /// Averages, to be divided by [`Pulse::seen`]: squared gradient, `|g·w|`, signal, variance.
    means: [f64; 4],
    /// A gradient came to it.
    reached: bool,
}

/// All layers of a network that is healed.
#[derive(Debug, Clone)]
pub(super) struct Pulse {
    layers: Vec<Layer>,
    /// What one image's variance is multiplied by to be that of a part's mean, averaged over the step's images; and that of all their mean. And how
    /// many parts there are.
    inverse: (f64, f64),
    count: usize,
    /// How much of the averages' weights is there yet, 0 to 1; of those of the spread too.
    seen: (f64, f64),
    told: Option<Instant>,
}

impl Pulse {
    /// Of `model`, before `pupil`'s first step.
    pub fn of(model: &Model, pupil: &Pupil) -> Pulse {
        let slot = |name: &str| pupil.slots.iter().position(|s| s.name == name);
        let mut taken = vec![false; pupil.slots.len()];
        let mut layers = Vec::new();
        for (_, node) in model.graph.live() {
            let Some(at) = node.param(ParamRole::Weight).and_then(slot) else { continue };
            if std::mem::replace(&mut taken[at], true) {
                continue;
            }
            let start = pupil.slots[at].values().into_owned();
            let from = squares(&start);
            let name = node.name.clone();
            layers.push(Layer {
                name,
                slot: at,
                start,
                from,
                now: from,
                way: 0.0,
                parts: 0.0,
                means: [0.0; 4],
                reached: false,
            });
        }
        Pulse { layers, inverse: (0.0, 0.0), count: 0, seen: (0.0, 0.0), told: None }
    }

    /// Looks at the gradients of a step's parts, of `size` images each and the last of what is left of `n`: each is the part's share in the
    /// gradient of a mean over `n` images.
    pub fn parts(&mut self, pupil: &Pupil, parts: &[&HashMap<String, Vec<f32>>], (size, n): (usize, usize)) {
        let images: Vec<f64> = (0..parts.len()).map(|k| size.min(n - k * size) as f64).collect();
        let all: f64 = images.iter().sum::<f64>().max(1.0);
        self.count = parts.len();
        self.inverse = (parts.len() as f64 / all, 1.0 / all);
        self.layers.par_iter_mut().for_each(|layer| {
            let name = &pupil.slots[layer.slot].name;
            // Of a part's mean, n/m times its share, counting as its images do: no parts, however unlike in size, make less than their mean.
            let square = |(part, m): (&&HashMap<String, Vec<f32>>, &f64)| {
                part.get(name).map_or(0.0, |g| squares(g) * (n as f64 / m).powi(2) * m / all)
            };
            layer.parts = parts.iter().zip(&images).map(square).sum();
        });
    }

    /// Looks at the gradient of a step's mean over `n` images, of which the parts were seen before, and at the weights that it was worked out
    /// with.
    pub fn step(&mut self, pupil: &Pupil, grads: &HashMap<String, Vec<f32>>, n: usize) {
        let (each, all) = self.inverse;
        let spreads = self.count > 1;
        let whole = (n as f64 * all).powi(2);
        self.layers.par_iter_mut().for_each(|layer| {
            let slot = &pupil.slots[layer.slot];
            let Some(grad) = grads.get(&slot.name) else { return };
            let [gradient, product, now, way] = sums(grad, &slot.values(), &layer.start);
            (layer.now, layer.way, layer.reached) = (now, way, true);
            // Two equations: what parts have is |G|² + trΣ·each, what all together have |G|² + trΣ·all.
            let big = gradient * whole;
            let variance = (layer.parts - big) / (each - all);
            let fresh = [gradient, product, big - variance * all, variance];
            for (mean, fresh) in layer.means.iter_mut().zip(fresh).take(if spreads { 4 } else { 2 }) {
                *mean += (fresh - *mean) / STEPS;
            }
        });
        self.seen.0 += (1.0 - self.seen.0) / STEPS;
        if spreads {
            self.seen.1 += (1.0 - self.seen.1) / STEPS;
        }
    }

    /// What there is to tell, where that was not done just now; nothing before the first step.
    pub fn due(&mut self) -> Option<Arc<[LayerPulse]>> {
        if self.told.is_some_and(|t| t.elapsed() < EVERY) {
            return None;
        }
        self.now()
    }

    /// The same whenever it was last told.
    pub fn now(&mut self) -> Option<Arc<[LayerPulse]>> {
        if self.seen.0 == 0.0 {
            return None;
        }
        self.told = Some(Instant::now());
        let (seen, spread) = self.seen;
        let one = |layer: &Layer| LayerPulse {
            name: layer.name.clone(),
            values: layer.start.len() as u64,
            weight: layer.now.sqrt() as f32,
            moved: if layer.from > 0.0 { (layer.way / layer.from).sqrt() as f32 } else { 0.0 },
            gradient: (layer.means[0] / seen).sqrt() as f32,
            importance: (layer.means[1] / seen) as f32,
            spread: (spread > 0.0).then(|| Spread {
                signal: (layer.means[2] / spread) as f32,
                variance: (layer.means[3] / spread) as f32,
            }),
        };
        Some(self.layers.iter().filter(|l| l.reached).map(one).filter(LayerPulse::is_sound).collect())
    }
}

/// Adds `of` every place up, in lanes that a processor takes at once.
fn added<const N: usize>(len: usize, of: impl Fn(usize) -> [f32; N]) -> [f64; N] {
    const LANES: usize = 16;
    let mut out = [0f64; N];
    let mut at = 0;
    while at < len {
        let end = (at + RUN).min(len);
        let mut lanes = [[0f32; LANES]; N];
        let even = at + (end - at) / LANES * LANES;
        for k in (at..even).step_by(LANES) {
            (0..LANES).for_each(|lane| {
                for (sums, v) in lanes.iter_mut().zip(of(k + lane)) {
                    sums[lane] += v;
                }
            });
        }
        for k in even..end {
            for (sums, v) in lanes.iter_mut().zip(of(k)) {
                sums[0] += v;
            }
        }
        for (out, lanes) in out.iter_mut().zip(&lanes) {
            *out += lanes.iter().map(|v| f64::from(*v)).sum::<f64>();
        }
        at = end;
    }
    out
}

fn squares(v: &[f32]) -> f64 {
    added(v.len(), |k| [v[k] * v[k]])[0]
}

/// `Σ g²`, `Σ |g·w|`, `Σ w²` and `Σ (w - start)²`.
fn sums(g: &[f32], w: &[f32], start: &[f32]) -> [f64; 4] {
    let n = g.len().min(w.len()).min(start.len());
    let (g, w, start) = (&g[..n], &w[..n], &start[..n]);
    added(n, |k| {
        let (g, w, way) = (g[k], w[k], w[k] - start[k]);
        [g * g, (g * w).abs(), w * w, way * way]
    })
}

#[cfg(test)]
#[path = "pulse_tests.rs"]
mod tests;
