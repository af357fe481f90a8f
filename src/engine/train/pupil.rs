//! The network that is healed: its weights, what must stay zero, its optimiser, and the average of its weights that is kept.

use super::error::TrainError;
use super::healing::{Healing, Optimiser};
use crate::exec::tape::{Statistics, Weights};
use crate::graph::{Graph, Op, ParamRole, WeightFormat, param_shapes};
use crate::model::{Model, Param, ParamStore};
use rayon::prelude::*;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// How fast running statistics follow those of batches.
const STATISTICS: f64 = 0.1;

/// Adam's moments and floor; momentum of plain descent.
const BETA: (f64, f64) = (0.9, 0.999);
const FLOOR: f64 = 1e-8;
const MOMENTUM: f64 = 0.9;

/// One trained tensor.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Slot {
    pub name: String,
    shape: Vec<usize>,
    pub value: Vec<f32>,
    pub average: Vec<f32>,
    /// Of the gradient, and of its square; the second is empty where it is not needed.
    pub first: Vec<f32>,
    pub second: Vec<f32>,
    decays: bool,
    /// Zeros of a mask stay zero.
    masked: Option<Vec<bool>>,
    /// What the layer's weights are stored in: the forward pass sees them rounded.
    format: WeightFormat,
    /// Which of `value` each weight is, where they share values (Han et al. 2016): those are what is trained.
    codes: Option<Arc<[u8]>>,
}

impl Slot {
    /// The weights.
    pub fn values(&self) -> Cow<'_, [f32]> {
        self.spread(&self.value)
    }

    /// The weights of which `value` are those that are trained.
    fn spread<'a>(&self, value: &'a [f32]) -> Cow<'a, [f32]> {
        match &self.codes {
            Some(codes) => codes.iter().map(|c| value[usize::from(*c)]).collect(),
            None => Cow::Borrowed(value),
        }
    }

    /// The gradient by what is trained: of a shared value the mean over the weights that are it, which is where their own gradients lead as
    /// far as they stay one; their sum would take steps as many times as large.
    fn gathered<'a>(&self, grad: &'a [f32]) -> Cow<'a, [f32]> {
        let Some(codes) = &self.codes else { return Cow::Borrowed(grad) };
        let mut sums = vec![(0f64, 0u32); self.value.len()];
        for (c, g) in codes.iter().zip(grad) {
            let (sum, n) = &mut sums[usize::from(*c)];
            (*sum, *n) = (*sum + f64::from(*g), *n + 1);
        }
        sums.into_iter().map(|(sum, n)| (sum / f64::from(n.max(1))) as f32).collect()
    }
}

/// A batch norm's running statistics.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Running {
    pub node: String,
    /// By checkpoint name.
    pub mean: String,
    pub var: String,
    /// Mean, variance, and their averages.
    pub values: [Vec<f32>; 4],
}

/// See the module's page.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Pupil {
    pub slots: Vec<Slot>,
    pub running: Vec<Running>,
    pub step: u32,
}

impl Pupil {
    /// `model` before its first step. Weights of the layers `masked` that are zero stay zero.
    ///
    /// # Errors
    /// A parameter that is missing.
    pub fn of(model: &Model, how: &Healing, masked: &BTreeSet<String>) -> Result<Pupil, TrainError> {
        let (mut slots, mut running): (Vec<Slot>, Vec<Running>) = (Vec::new(), Vec::new());
        for (_, node) in model.graph.live() {
            for (role, shape) in param_shapes(&node.op) {
                let Some(name) = node.param(role) else { continue };
                if matches!(role, ParamRole::Mean | ParamRole::Var) || slots.iter().any(|s| s.name == name) {
                    continue;
                }
                let param = model.params.get(name)?;
                let weight = role == ParamRole::Weight && node.op.is_conv_or_linear();
                let format = if weight { model.precision.get(&node.name).weights() } else { WeightFormat::F32 };
                let shared = matches!(format, WeightFormat::Codebook { .. }).then(|| param.stored_in(format));
                let shared = shared.as_ref().and_then(Param::as_codebook);
                let value = shared.map_or_else(|| param.values().into_owned(), |c| c.values.clone());
                let masked = (weight && masked.contains(&node.name)).then(|| value.iter().map(|v| *v == 0.0).collect());
                let second = if how.optimiser == Optimiser::AdamW { vec![0.0; value.len()] } else { Vec::new() };
                slots.push(Slot {
                    name: name.to_owned(),
                    shape,
                    average: value.clone(),
                    first: vec![0.0; value.len()],
                    second,
                    value,
                    decays: weight,
                    masked,
                    format,
                    codes: shared.map(|c| c.codes().into()),
                });
            }
            if let Op::BatchNorm2d(_) = node.op {
                let (Some(mean), Some(var)) = (node.param(ParamRole::Mean), node.param(ParamRole::Var)) else {
                    continue;
                };
                let of = |name| model.params.get(name).map(|p| p.values().into_owned());
                let (m, v) = (of(mean)?, of(var)?);
                let values = [m.clone(), v.clone(), m, v];
                running.push(Running { node: node.name.clone(), mean: mean.to_owned(), var: var.to_owned(), values });
            }
        }
        Ok(Pupil { slots, running, step: 0 })
    }

    /// What a pass computes with: weights rounded as they will be stored. Gradients pass the rounding as if it were not there (Bengio et al.
    /// 2013).
    ///
    /// # Errors
    /// Weights that are no numbers any more.
    pub fn weights(&self, average: bool) -> Result<Weights, TrainError> {
        let one = |slot: &Slot| {
            let value = if average { &slot.average } else { &slot.value };
            if slot.format == WeightFormat::F32 || slot.codes.is_some() {
                return Some((slot.name.clone(), slot.spread(value).into_owned()));
            }
            let rounded = Param::owned(slot.shape.clone(), value.clone())?.stored_in(slot.format).values().into_owned();
            Some((slot.name.clone(), rounded))
        };
        let made: Option<Weights> = self.slots.par_iter().map(one).collect::<Vec<_>>().into_iter().collect();
        let mut weights = made.ok_or(TrainError::Diverged { step: self.step as usize })?;
        if weights.values().any(|w| w.iter().any(|v| !v.is_finite())) {
            return Err(TrainError::Diverged { step: self.step as usize });
        }
        for r in &self.running {
            let at = if average { 2 } else { 0 };
            weights.insert(r.mean.clone(), r.values[at].clone());
            weights.insert(r.var.clone(), r.values[at + 1].clone());
        }
        Ok(weights)
    }

    /// One step against `grads`, which are shortened to the longest that is allowed; the length that they had.
    pub fn update(&mut self, grads: &HashMap<String, Vec<f32>>, how: &Healing) -> f64 {
        let length = |g: &Vec<f32>| g.iter().map(|g| f64::from(*g).powi(2)).sum::<f64>();
        // In the slots' order: sums of hash maps have none.
        let length = self.slots.iter().filter_map(|s| grads.get(&s.name)).map(length).sum::<f64>().sqrt();
        let shorten = if length > how.clip { how.clip / length } else { 1.0 };
        let (rate, t) = (how.rate_at(self.step), self.step + 1);
        let keep = how.average.min(f64::from(1 + t) / f64::from(10 + t));
        let (c1, c2) = (1.0 - BETA.0.powi(t as i32), 1.0 - BETA.1.powi(t as i32));
        self.slots.par_iter_mut().for_each(|slot| {
            let Some(grad) = grads.get(&slot.name) else { return };
            let grad = slot.gathered(grad);
            let decay = if slot.decays { how.decay } else { 0.0 };
            for k in 0..slot.value.len() {
                let (g, w) = (f64::from(grad[k]) * shorten, f64::from(slot.value[k]));
                let moved = match how.optimiser {
                    Optimiser::Sgd => {
                        let g = g + decay * w;
                        let m = MOMENTUM * f64::from(slot.first[k]) + g;
                        slot.first[k] = m as f32;
                        w - rate * (g + MOMENTUM * m)
                    }
                    Optimiser::AdamW => {
                        let m = BETA.0 * f64::from(slot.first[k]) + (1.0 - BETA.0) * g;
                        let v = BETA.1 * f64::from(slot.second[k]) + (1.0 - BETA.1) * g * g;
                        (slot.first[k], slot.second[k]) = (m as f32, v as f32);
                        w * (1.0 - rate * decay) - rate * (m / c1) / ((v / c2).sqrt() + FLOOR)
                    }
                };
                let moved = if slot.masked.as_ref().is_some_and(|m| m[k]) { 0.0 } else { moved };
                slot.value[k] = moved as f32;
                slot.average[k] = (keep * f64::from(slot.average[k]) + (1.0 - keep) * moved) as f32;
            }
        });
        self.step += 1;
        length
    }

    /// Lets running statistics follow those of a step's parts.
    pub fn see(&mut self, parts: &[BTreeMap<String, Statistics>], how: &Healing) {
        let keep = how.average.min(f64::from(1 + self.step) / f64::from(10 + self.step));
        for r in &mut self.running {
            let seen: Vec<&Statistics> = parts.iter().filter_map(|p| p.get(&r.node)).collect();
            let [mean, var, mean_average, var_average] = &mut r.values;
            for (k, (value, average)) in mean.iter_mut().zip(mean_average).enumerate() {
                follow(value, average, seen.iter().map(|s| s.mean[k]), keep);
            }
            for (k, (value, average)) in var.iter_mut().zip(var_average).enumerate() {
                follow(value, average, seen.iter().map(|s| s.var[k]), keep);
            }
        }
    }

    /// `params` with the weights that are kept.
    ///
    /// # Errors
    /// A parameter that is missing or has another size.
    pub fn kept(&self, params: &ParamStore) -> Result<ParamStore, TrainError> {
        let mut out = params.clone();
        for slot in &self.slots {
            out.set(&slot.name, slot.spread(&slot.average).into_owned())?;
        }
        for r in &self.running {
            out.set(&r.mean, r.values[2].clone())?;
            out.set(&r.var, r.values[3].clone())?;
        }
        Ok(out)
    }
}

/// `value` follows the mean of what was seen, and its average follows it.
fn follow(value: &mut f32, average: &mut f32, seen: impl Iterator<Item = f64>, keep: f64) {
    let (sum, n) = seen.fold((0.0, 0usize), |(sum, n), v| (sum + v, n + 1));
    if n == 0 {
        return;
    }
    let new = (1.0 - STATISTICS) * f64::from(*value) + STATISTICS * sum / n as f64;
    *value = new as f32;
    *average = (keep * f64::from(*average) + (1.0 - keep) * new) as f32;
}

/// Whether a network has batch norms.
pub(super) fn is_convolutional(graph: &Graph) -> bool {
    graph.live().any(|(_, n)| matches!(n.op, Op::BatchNorm2d(_)))
}
