//! Supervised training of a small network on the synthetic set: how the bundled demo models are made.
//!
//! Not for users' models, and not fine-tuning after compression (`recover`). Every step draws fresh images, so there are
//! no epochs, no augmentation and no over-fitting. Invariant: a function of (spec, recipe, seed) for a given number of
//! threads; weights are initialised, images drawn and steps taken in one fixed order.

use super::{DataError, prepare, synthetic};
use crate::exec::reference::{self, Capture, Mode, TensorMap};
use crate::exec::{Cancel, Cancelled, ExecError};
use crate::graph::{Graph, GraphError, Op, ParamRole, param_shapes};
use crate::model::{FamilySpec, ModelError, Param, ParamStore, Preprocess};
use candle_core::{D, DType, Device, Tensor, Var};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use rayon::prelude::*;
use std::collections::HashMap;

/// Why training stopped.
#[derive(Debug, thiserror::Error)]
pub enum TrainError {
    #[error("the network does not fit together: {0}")]
    Graph(#[from] GraphError),
    #[error(transparent)]
    Exec(#[from] ExecError),
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Model(#[from] ModelError),
    #[error("tensor operation failed: {0}; hint: use a smaller batch")]
    Tensor(#[from] candle_core::Error),
    #[error("the loss of step {step} is not finite; hint: lower the learning rate")]
    Diverged { step: usize },
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// How to train: one or more cycles, each with a schedule and a fresh optimiser (warm restarts).
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    pub cycles: Vec<Cycle>,
    /// Images per step.
    pub batch: usize,
    /// Decoupled weight decay (Loshchilov and Hutter 2019), on conv and linear weights only.
    pub decay: f64,
    /// Share of the target spread evenly over all classes.
    pub smoothing: f64,
}

/// One fall of the learning rate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cycle {
    pub steps: usize,
    /// Peak learning rate, reached after `warmup` steps, then falling to zero as a half cosine.
    pub rate: f64,
    pub warmup: usize,
}

/// Finished cycles of an earlier run: training goes on after them as if it had never stopped.
#[derive(Debug, Clone)]
pub struct Resume {
    pub cycles: usize,
    pub params: ParamStore,
}

/// Where training stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    pub step: usize,
    pub steps: usize,
    /// Of this step's batch, before its update.
    pub loss: f64,
    pub top1: f64,
}

/// Parts of a batch that run in parallel, each with its own batch-norm statistics; fixed, so that the number of threads
/// changes nothing.
const SHARDS: usize = 2;
/// Batches for the final batch-norm statistics.
const STATISTICS_BATCHES: usize = 16;
/// Adam's moments and floor (Kingma and Ba 2015).
const BETA: (f64, f64) = (0.9, 0.999);
const FLOOR: f64 = 1e-8;

/// Trains `spec` from random weights on the synthetic set's training images, on the CPU.
///
/// # Errors
/// A spec that does not build, a diverging loss, cancellation (checked before each step).
pub fn train(
    spec: &FamilySpec,
    prep: &Preprocess,
    recipe: &Recipe,
    seed: u64,
    resume: Option<&Resume>,
    cancel: &Cancel,
    progress: &mut dyn FnMut(Progress),
) -> Result<ParamStore, TrainError> {
    let graph = spec.build()?;
    let mut net = Net::new(&graph, seed)?;
    let done = resume.map_or(0, |r| r.cycles);
    if let Some(r) = resume {
        net.restore(&r.params)?;
    }
    let mut step = recipe.cycles.iter().take(done).map(|c| c.steps).sum::<usize>();
    let steps = recipe.cycles.iter().map(|c| c.steps).sum();
    let mut next = (step * recipe.batch) as u64;
    let mut batch = |size: usize| {
        let at = next;
        next += size as u64;
        draw(at, size, prep)
    };
    for cycle in recipe.cycles.iter().skip(done) {
        net.forget();
        for at in 0..cycle.steps {
            cancel.check()?;
            let (x, labels) = batch(recipe.batch)?;
            let share = recipe.batch.div_ceil(SHARDS);
            // Shards are summed in their order, whichever thread ran them.
            let parts = (0..recipe.batch.div_ceil(share.max(1)))
                .into_par_iter()
                .map(|i| {
                    let (from, to) = (i * share, ((i + 1) * share).min(recipe.batch));
                    let weight = (to - from) as f64 / recipe.batch as f64;
                    let labels = labels.get(from..to).unwrap_or_default();
                    net.gradients(&graph, &x.narrow(0, from, to - from)?, labels, weight, recipe.smoothing)
                })
                .collect::<Result<Vec<Part>, TrainError>>()?;
            let loss: f64 = parts.iter().map(|p| p.loss).sum();
            let top1: f64 = parts.iter().map(|p| p.top1).sum();
            if !loss.is_finite() {
                return Err(TrainError::Diverged { step });
            }
            net.update(&parts, at, cycle, recipe.decay)?;
            step += 1;
            progress(Progress { step, steps, loss, top1 });
        }
    }
    net.settle_statistics(&graph, &mut || batch(recipe.batch), cancel)?;
    net.into_store(&graph)
}

fn log_softmax(x: &Tensor) -> candle_core::Result<Tensor> {
    let shifted = x.broadcast_sub(&x.detach().max_keepdim(D::Minus1)?)?;
    let norm = shifted.exp()?.sum_keepdim(D::Minus1)?.log()?;
    shifted.broadcast_sub(&norm)
}

/// Training images `at..at + size`.
fn draw(at: u64, size: usize, prep: &Preprocess) -> Result<(Tensor, Vec<u32>), DataError> {
    let ready = prepare::Ready::new(prep)?;
    let pixels = super::cifar::PIXELS;
    let [h, w] = prep.size;
    let shape = super::raw::Shape { width: super::cifar::SIDE, height: super::cifar::SIDE, channels: 3 };
    let mut x = vec![0f32; size * 3 * h * w];
    let labels = x
        .par_chunks_mut(3 * h * w)
        .enumerate()
        .map(|(i, out)| {
            let mut bytes = vec![0u8; pixels];
            let class = synthetic::draw(synthetic::Split::Train, at + i as u64, &mut bytes);
            ready.planes(&bytes, shape, out)?;
            Ok(u32::from(class))
        })
        .collect::<Result<Vec<u32>, DataError>>()?;
    Ok((Tensor::from_vec(x, (size, 3, h, w), &Device::Cpu)?, labels))
}

/// What one shard of a batch contributes, already weighted by its share of the batch.
struct Part {
    loss: f64,
    top1: f64,
    /// One gradient per slot; empty where none reached it.
    grads: Vec<Vec<f32>>,
}

/// A trained tensor with its optimiser state.
struct Slot {
    name: String,
    var: Var,
    value: Vec<f32>,
    moments: Vec<(f32, f32)>,
    decays: bool,
}

struct Net {
    /// What `reference::forward` reads: the variables, and batch norms' statistics.
    tensors: TensorMap,
    slots: Vec<Slot>,
}

impl Net {
    fn new(graph: &Graph, seed: u64) -> Result<Net, TrainError> {
        let mut normal = Normal { rng: ChaCha8Rng::seed_from_u64(seed) };
        let (mut tensors, mut slots) = (TensorMap::new(), Vec::new());
        for node in &graph.nodes {
            for (p, (role, shape)) in node.params.iter().zip(param_shapes(&node.op)) {
                let count: usize = shape.iter().product();
                let weight = role == ParamRole::Weight && shape.len() > 1;
                let value: Vec<f32> = match (role, &node.op) {
                    // He et al. 2015: ReLU networks keep their scale.
                    (ParamRole::Weight, Op::Conv2d { .. }) => {
                        let fan_in: usize = shape.iter().skip(1).product();
                        normal.take(count, (2.0 / fan_in.max(1) as f64).sqrt())
                    }
                    (ParamRole::Weight, Op::Linear { in_features, out_features, .. }) => {
                        normal.take(count, (2.0 / (in_features + out_features).max(1) as f64).sqrt())
                    }
                    (ParamRole::Embedding | ParamRole::PositionBias, _) => normal.take(count, 0.02),
                    (ParamRole::PositionMlp1 | ParamRole::PositionMlp2, _) => normal.take(count, 0.2),
                    // Swin v2 begins with a factor of 10.
                    (ParamRole::LogitScale, _) => vec![10f32.ln(); count],
                    (ParamRole::Weight | ParamRole::Var, _) => vec![1.0; count],
                    (ParamRole::Bias | ParamRole::Mean | ParamRole::PositionMlp1Bias, _) => vec![0.0; count],
                };
                let tensor = Tensor::from_slice(&value, shape.as_slice(), &Device::Cpu)?;
                if matches!(role, ParamRole::Mean | ParamRole::Var) {
                    tensors.insert(p.name.clone(), tensor);
                    continue;
                }
                let var = Var::from_tensor(&tensor)?;
                tensors.insert(p.name.clone(), var.as_tensor().clone());
                let moments = vec![(0.0, 0.0); count];
                slots.push(Slot { name: p.name.clone(), var, value, moments, decays: weight });
            }
        }
        Ok(Net { tensors, slots })
    }

    /// Loss, accuracy and gradients of some images, times `weight`.
    fn gradients(
        &self,
        graph: &Graph,
        x: &Tensor,
        labels: &[u32],
        weight: f64,
        smoothing: f64,
    ) -> Result<Part, TrainError> {
        let logits = reference::forward(graph, &self.tensors, x, Mode::Batch, &mut Capture::none())?;
        let target = Tensor::new(labels, &Device::Cpu)?;
        let log_p = log_softmax(&logits)?;
        let nll = log_p.gather(&target.unsqueeze(1)?, 1)?.mean_all()?.neg()?;
        let loss = (((nll * (1.0 - smoothing))? - (log_p.mean_all()? * smoothing)?)? * weight)?;
        let hits = logits.argmax(D::Minus1)?.eq(&target)?.to_dtype(DType::F32)?.mean_all()?.to_scalar::<f32>()?;
        let store = loss.backward()?;
        let flat = |slot: &Slot| match store.get(slot.var.as_tensor()) {
            Some(g) => g.flatten_all()?.to_vec1::<f32>(),
            None => Ok(Vec::new()),
        };
        let grads = self.slots.iter().map(flat).collect::<Result<_, _>>()?;
        Ok(Part { loss: f64::from(loss.to_scalar::<f32>()?), top1: f64::from(hits) * weight, grads })
    }

    /// Takes over trained values; statistics are settled again at the end.
    fn restore(&mut self, params: &ParamStore) -> Result<(), TrainError> {
        for slot in &mut self.slots {
            let shape = slot.var.dims().to_vec();
            slot.value = params.expect(&slot.name, &shape).map_err(ModelError::from)?.into_owned();
            slot.var.set(&Tensor::from_slice(&slot.value, shape, &Device::Cpu)?)?;
            self.tensors.insert(slot.name.clone(), slot.var.as_tensor().clone());
        }
        Ok(())
    }

    /// Starts the optimiser afresh.
    fn forget(&mut self) {
        self.slots.iter_mut().flat_map(|s| &mut s.moments).for_each(|m| *m = (0.0, 0.0));
    }

    /// One step of AdamW at the schedule's rate.
    fn update(&mut self, parts: &[Part], step: usize, cycle: &Cycle, decay: f64) -> Result<(), TrainError> {
        let rate = cycle.rate * schedule(step, cycle);
        let t = step as i32 + 1;
        let (b1, b2) = BETA;
        let (c1, c2) = (1.0 - b1.powi(t), 1.0 - b2.powi(t));
        for (k, slot) in self.slots.iter_mut().enumerate() {
            let mut grad = vec![0f64; slot.value.len()];
            for part in parts {
                let shard = part.grads.get(k).map(Vec::as_slice).unwrap_or_default();
                grad.iter_mut().zip(shard).for_each(|(sum, &g)| *sum += f64::from(g));
            }
            let shrink = if slot.decays { 1.0 - rate * decay } else { 1.0 };
            for ((w, (m, v)), g) in slot.value.iter_mut().zip(&mut slot.moments).zip(grad) {
                *m = (b1 * f64::from(*m) + (1.0 - b1) * g) as f32;
                *v = (b2 * f64::from(*v) + (1.0 - b2) * g * g) as f32;
                let step = rate * (f64::from(*m) / c1) / ((f64::from(*v) / c2).sqrt() + FLOOR);
                *w = (f64::from(*w) * shrink - step) as f32;
            }
            slot.var.set(&Tensor::from_slice(&slot.value, slot.var.dims(), &Device::Cpu)?)?;
            self.tensors.insert(slot.name.clone(), slot.var.as_tensor().clone());
        }
        Ok(())
    }

    /// Sets every batch norm's running statistics to their mean over some batches of the finished network.
    fn settle_statistics(
        &mut self,
        graph: &Graph,
        batch: &mut dyn FnMut() -> Result<(Tensor, Vec<u32>), DataError>,
        cancel: &Cancel,
    ) -> Result<(), TrainError> {
        if !graph.nodes.iter().any(|n| matches!(n.op, Op::BatchNorm2d { .. })) {
            return Ok(());
        }
        // Without gradients: the variables' values alone.
        let fixed: TensorMap = self.tensors.iter().map(|(k, v)| (k.clone(), v.detach())).collect();
        let mut sums: HashMap<(String, ParamRole), Tensor> = HashMap::new();
        for _ in 0..STATISTICS_BATCHES {
            cancel.check()?;
            let mut capture = Capture::none();
            reference::forward(graph, &fixed, &batch()?.0, Mode::Batch, &mut capture)?;
            for (node, s) in capture.stats {
                for (role, value) in [(ParamRole::Mean, s.mean), (ParamRole::Var, s.var)] {
                    let share = (value / STATISTICS_BATCHES as f64)?;
                    let sum = match sums.remove(&(node.clone(), role)) {
                        Some(sum) => (sum + share)?,
                        None => share,
                    };
                    sums.insert((node.clone(), role), sum);
                }
            }
        }
        for node in &graph.nodes {
            for p in &node.params {
                if let Some(value) = sums.remove(&(node.name.clone(), p.role)) {
                    self.tensors.insert(p.name.clone(), value);
                }
            }
        }
        Ok(())
    }

    fn into_store(self, graph: &Graph) -> Result<ParamStore, TrainError> {
        let mut store = ParamStore::default();
        for p in graph.nodes.iter().flat_map(|n| &n.params) {
            let Some(t) = self.tensors.get(&p.name) else { continue };
            let values = t.flatten_all()?.to_vec1::<f32>()?;
            if let Some(param) = Param::owned(t.dims().to_vec(), values) {
                store.insert(p.name.clone(), param);
            }
        }
        Ok(store)
    }
}

/// Share of the peak rate at `step`: linear warm-up, then half a cosine to zero (Loshchilov and Hutter 2017).
fn schedule(step: usize, r: &Cycle) -> f64 {
    if step < r.warmup {
        return (step + 1) as f64 / r.warmup as f64;
    }
    let t = (step - r.warmup) as f64 / r.steps.saturating_sub(r.warmup).max(1) as f64;
    0.5 * (1.0 + (std::f64::consts::PI * t).cos())
}

/// Normal numbers, cut at two standard deviations (as `trunc_normal_` does for ViTs).
struct Normal {
    rng: ChaCha8Rng,
}

impl Normal {
    fn take(&mut self, count: usize, std: f64) -> Vec<f32> {
        (0..count).map(|_| (self.one() * std) as f32).collect()
    }

    fn one(&mut self) -> f64 {
        loop {
            // Twelve uniforms less six: mean 0, variance 1, near enough to normal for an initial weight, and exact.
            let sum: f64 = (0..12).map(|_| f64::from(self.rng.next_u32()) / 4_294_967_296.0).sum();
            if (sum - 6.0).abs() <= 2.0 {
                return sum - 6.0;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::families::CifarResnetSpec;

    fn recipe(cycles: &[usize]) -> Recipe {
        let cycles = cycles.iter().map(|&steps| Cycle { steps, rate: 3e-3, warmup: 2 }).collect();
        Recipe { cycles, batch: 20, decay: 1e-2, smoothing: 0.05 }
    }

    fn spec() -> FamilySpec {
        FamilySpec::CifarResnet(CifarResnetSpec { blocks: 1, widths: [4, 8, 8], classes: 10, image: 32 })
    }

    #[test]
    fn schedule_rises_then_falls_to_zero() {
        let c = Cycle { steps: 104, rate: 1.0, warmup: 4 };
        let at = |s| schedule(s, &c);
        assert_eq!((at(0), at(3), at(4)), (0.25, 1.0, 1.0));
        assert!((at(54) - 0.5).abs() < 1e-12 && at(103) < 1e-3);
        assert!((4..103).all(|s| at(s + 1) < at(s)));
    }

    #[test]
    fn a_few_steps_lower_the_loss_repeat_exactly_and_resume() {
        let prep = super::super::demo::preprocess();
        let run = |cycles: &[usize], seed, resume: Option<&Resume>| {
            let mut losses = Vec::new();
            let mut each = |p: Progress| losses.push(p.loss);
            let store = train(&spec(), &prep, &recipe(cycles), seed, resume, &Cancel::default(), &mut each).unwrap();
            (store, losses)
        };
        let (whole, losses) = run(&[12, 3], 1, None);
        assert_eq!(losses.len(), 15);
        assert!(losses[9..12].iter().sum::<f64>() < losses[..3].iter().sum::<f64>(), "{losses:?}");
        let (first, _) = run(&[12], 1, None);
        let (resumed, rest) = run(&[12, 3], 1, Some(&Resume { cycles: 1, params: first }));
        assert_eq!((whole.hash(), &losses[12..]), (resumed.hash(), &rest[..]));
        assert_ne!(whole.hash(), run(&[12, 3], 2, None).0.hash());
        // Running statistics were measured.
        let var = whole.get("bn1.running_var").unwrap();
        assert!(var.values().iter().all(|v| *v > 0.0 && *v != 1.0));
    }

    #[test]
    fn cancelling_stops_it() {
        let cancel = Cancel::default();
        let stop = cancel.clone();
        let mut seen = 0;
        let run = train(&spec(), &super::super::demo::preprocess(), &recipe(&[50]), 1, None, &cancel, &mut |_| {
            seen += 1;
            stop.cancel();
        });
        assert!(matches!(run, Err(TrainError::Cancelled(_))) && seen == 1);
    }
}
