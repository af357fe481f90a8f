//! A network that is being trained: its variables, their gradients, its batch norms' statistics.

use super::adamw::AdamW;
use super::batches::Batches;
use super::error::TrainError;
use super::initial::Normal;
use super::objective::CrossEntropy;
use super::schedule::{Cycle, schedule};
use crate::exec::Cancel;
use crate::exec::candle::{self, Capture, Mode, TensorMap};
use crate::graph::{Graph, Op, ParamRole, param_shapes};
use crate::model::{Param, ParamStore};
use candle_core::{Device, Tensor, Var};
use std::collections::HashMap;

/// Batches for the final batch-norm statistics.
const STATISTICS_BATCHES: usize = 16;

/// What one shard of a batch contributes, already weighted by its share of the batch.
pub(super) struct Part {
    pub loss: f64,
    pub right: f64,
    /// One gradient per slot; empty where none reached it.
    grads: Vec<Vec<f32>>,
}

/// A trained tensor with its optimiser.
struct Slot {
    name: String,
    var: Var,
    state: AdamW,
}

pub(super) struct Net {
    /// What `candle::forward` reads: the variables, and batch norms' statistics.
    tensors: TensorMap,
    slots: Vec<Slot>,
}

impl Net {
    /// Random weights, drawn node by node.
    pub fn new(graph: &Graph, seed: u64) -> Result<Net, TrainError> {
        let mut normal = Normal::seeded(seed);
        let (mut tensors, mut slots) = (TensorMap::new(), Vec::new());
        for node in &graph.nodes {
            for (p, (role, shape)) in node.params.iter().zip(param_shapes(&node.op)) {
                // Layers may share a tensor: a language model's embedding is its last layer's weight.
                if tensors.contains_key(&p.name) {
                    continue;
                }
                let decays = role == ParamRole::Weight && shape.len() > 1;
                let value = normal.values(&node.op, role, &shape);
                let tensor = Tensor::from_slice(&value, shape.as_slice(), &Device::Cpu)?;
                if matches!(role, ParamRole::Mean | ParamRole::Var) {
                    tensors.insert(p.name.clone(), tensor);
                    continue;
                }
                let var = Var::from_tensor(&tensor)?;
                tensors.insert(p.name.clone(), var.as_tensor().clone());
                slots.push(Slot { name: p.name.clone(), var, state: AdamW::new(value, decays) });
            }
        }
        Ok(Net { tensors, slots })
    }

    /// Loss, accuracy and gradients of some items, times `weight`.
    pub fn gradients(
        &self,
        graph: &Graph,
        x: &Tensor,
        labels: &[u32],
        weight: f64,
        objective: CrossEntropy,
    ) -> Result<Part, TrainError> {
        let logits = candle::forward(graph, &self.tensors, x, Mode::Batch, &mut Capture::none())?;
        let (loss, hits) = objective.of(&logits, labels)?;
        let loss = (loss * weight)?;
        let store = loss.backward()?;
        let flat = |slot: &Slot| match store.get(slot.var.as_tensor()) {
            Some(g) => g.flatten_all()?.to_vec1::<f32>(),
            None => Ok(Vec::new()),
        };
        let grads = self.slots.iter().map(flat).collect::<Result<_, _>>()?;
        Ok(Part { loss: f64::from(loss.to_scalar::<f32>()?), right: f64::from(hits) * weight, grads })
    }

    /// Starts the optimiser afresh.
    pub fn forget(&mut self) {
        self.slots.iter_mut().for_each(|s| s.state.forget());
    }

    /// One step at the schedule's rate. Shards are summed in their order, whichever thread ran them.
    pub fn update(&mut self, parts: &[Part], step: usize, cycle: &Cycle, decay: f64) -> Result<(), TrainError> {
        let rate = cycle.rate * schedule(step, cycle);
        for (k, slot) in self.slots.iter_mut().enumerate() {
            let mut grad = vec![0f64; slot.state.value.len()];
            for part in parts {
                let shard = part.grads.get(k).map(Vec::as_slice).unwrap_or_default();
                grad.iter_mut().zip(shard).for_each(|(sum, &g)| *sum += f64::from(g));
            }
            slot.state.step(step, rate, decay, &grad);
            slot.var.set(&Tensor::from_slice(&slot.state.value, slot.var.dims(), &Device::Cpu)?)?;
            self.tensors.insert(slot.name.clone(), slot.var.as_tensor().clone());
        }
        Ok(())
    }

    /// Sets every batch norm's running statistics to their mean over some batches of the finished network.
    pub fn settle_statistics(
        &mut self,
        graph: &Graph,
        batches: &mut Batches<'_>,
        size: usize,
        cancel: &Cancel,
    ) -> Result<(), TrainError> {
        if !graph.nodes.iter().any(|n| matches!(n.op, Op::BatchNorm2d(_))) {
            return Ok(());
        }
        // Without gradients: the variables' values alone.
        let fixed: TensorMap = self.tensors.iter().map(|(k, v)| (k.clone(), v.detach())).collect();
        let mut sums: HashMap<(String, ParamRole), Tensor> = HashMap::new();
        for _ in 0..STATISTICS_BATCHES {
            cancel.check()?;
            let mut capture = Capture::none();
            candle::forward(graph, &fixed, &batches(size)?.0, Mode::Batch, &mut capture)?;
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

    pub fn into_store(self, graph: &Graph) -> Result<ParamStore, TrainError> {
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
