//! [`Plan`]: a compiled model that can be run, observed, captured from and cut.

use super::backend::{ActivationMemory, Backend, Cut, Live};
use super::candle::Program;
use super::cpu::Cpu;
use super::device::{Kernels, Opened};
use super::error::ExecError;
use super::input;
use super::lower::StepInfo;
use crate::graph::{Binding, Graph, NodeId, PrecisionPlan, shapes_at};
use crate::model::{Model, ParamStore};
use candle_core::{Device, Tensor};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

/// How to compile.
#[derive(Debug, Clone)]
pub struct CompileOptions {
    pub device: Device,
    pub kernels: Kernels,
    /// Threads for CPU kernels; `None`: [`super::threads`].
    pub threads: Option<usize>,
    /// Nodes whose outputs must exist (for [`Plan::capture`]); they end a step, nothing fuses across them.
    pub keep: Vec<String>,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions { device: Device::Cpu, kernels: Kernels::Device, threads: None, keep: Vec::new() }
    }
}

impl CompileOptions {
    /// On the device that was opened.
    pub fn on(opened: &Opened) -> CompileOptions {
        CompileOptions { device: opened.device.clone(), kernels: opened.kernels, ..CompileOptions::default() }
    }

    /// With these nodes kept.
    pub fn keeping<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> CompileOptions {
        self.keep.extend(names.into_iter().map(Into::into));
        self
    }
}

/// Told about every step of an observed run, in order, after the run.
pub trait Observer {
    /// Step `index` of [`Plan::steps`] took `elapsed` for the batch and wrote `out_bytes`: wall time on a CPU (the mean over
    /// the threads that shared it), the time between two events of the stream on a GPU.
    fn step(&mut self, index: usize, elapsed: Duration, out_bytes: u64);
}

/// Planned bytes; see [`Plan::memory`]. Kernels' scratch (unfolded windows, quantized inputs, attention scores), which
/// each thread keeps, comes on top.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// All parameters as the kernels hold them, unpacked where they are.
    pub weights: u64,
    /// What values between steps take; `None` on a GPU, where candle allocates every node's output when it runs, and where
    /// the number of tokens is free and was not said.
    pub activations: Option<ActivationMemory>,
}

/// A graph compiled for one device, precision plan and set of parameters. Running does not change it, so a plan may be
/// shared between threads.
pub struct Plan {
    graph: Arc<Graph>,
    device: Device,
    steps: Vec<StepInfo>,
    weight_bytes: u64,
    held_bytes: u64,
    backend: Box<dyn Backend>,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("steps", &self.steps.len()).field("weight_bytes", &self.weight_bytes).finish()
    }
}

impl Plan {
    /// Compiles `graph` with `params`; `precision` is for convolutions and linears, by node name.
    ///
    /// # Errors
    /// Missing, misshapen or non-finite parameters, shapes that do not fit, a precision that the op or device has no
    /// kernel for, and names in `precision` or `keep` that are no node's.
    pub fn compile(
        graph: &Graph,
        params: &ParamStore,
        precision: &PrecisionPlan,
        options: &CompileOptions,
    ) -> Result<Plan, ExecError> {
        Plan::build(Arc::new(graph.clone()), params, precision, options)
    }

    /// Compiles a model with its own precision plan.
    ///
    /// # Errors
    /// As [`Plan::compile`].
    pub fn of(model: &Model, options: &CompileOptions) -> Result<Plan, ExecError> {
        Plan::build(model.graph.clone(), &model.params, &model.precision, options)
    }

    fn build(
        graph: Arc<Graph>,
        params: &ParamStore,
        precision: &PrecisionPlan,
        options: &CompileOptions,
    ) -> Result<Plan, ExecError> {
        let (g, keep) = (graph.clone(), &options.keep);
        let backend: Box<dyn Backend> = match (options.kernels, &options.device) {
            (Kernels::Device, Device::Cpu) => Box::new(Cpu::build(g, params, precision, keep, options.threads)?),
            (_, device) => Box::new(Program::build(g, params, precision, keep, device)?),
        };
        let steps = backend.steps();
        let weight_bytes = steps.iter().map(|s| s.weight_bytes).sum();
        let held_bytes = steps.iter().map(|s| s.held_bytes).sum();
        Ok(Plan { graph, device: options.device.clone(), steps, weight_bytes, held_bytes, backend })
    }

    /// The steps in the order they run.
    pub fn steps(&self) -> &[StepInfo] {
        &self.steps
    }

    /// Bytes of all parameters as stored.
    pub fn weight_bytes(&self) -> u64 {
        self.weight_bytes
    }

    /// Keeps values in the same memory as `other` from now on, as the layers of one plan do among themselves.
    pub(crate) fn share_arenas(&mut self, other: &Plan) {
        if let Some(arenas) = other.backend.arenas() {
            self.backend.keep_in(arenas);
        }
    }

    /// The bytes that this plan holds and needs, known before it runs.
    pub fn memory(&self) -> Memory {
        let activations = self.backend.activations(Binding::default()).unwrap_or_default();
        Memory { weights: self.held_bytes, activations }
    }

    /// As [`Plan::memory`], with the free dimensions as long as `binding` says.
    ///
    /// # Errors
    /// A number of tokens that some op does not take; a free dimension without a length.
    pub fn memory_at(&self, binding: Binding) -> Result<Memory, ExecError> {
        Ok(Memory { weights: self.held_bytes, activations: self.backend.activations(binding)? })
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Threads that share a batch (1 on a GPU).
    pub fn threads(&self) -> usize {
        self.backend.threads()
    }

    /// Runs a batch `[N, C, H, W]` (or whatever else the graph's input takes, the batch axis first: `[N, tokens, width]`,
    /// whole-number ids `[N, tokens]`) and returns `[N, classes]`. The result is complete when this returns, on a GPU too (the
    /// device is waited for), so a clock around it tells what the run took.
    ///
    /// # Errors
    /// An input of another shape; a number of tokens that some op does not take; ids beyond the vocabulary; what the tensor
    /// library reports.
    pub fn run(&self, x: &Tensor) -> Result<Tensor, ExecError> {
        Ok(self.run_fetch(x, &[self.graph.output], None)?.swap_remove(0))
    }

    /// As [`Plan::run`], and tells `observer` what every step took.
    ///
    /// # Errors
    /// As [`Plan::run`].
    pub fn run_observed(&self, x: &Tensor, observer: &mut dyn Observer) -> Result<Tensor, ExecError> {
        let mut times = vec![Duration::ZERO; self.steps.len()];
        let out = self.run_fetch(x, &[self.graph.output], Some(&mut times))?.swap_remove(0);
        let images = x.dims().first().copied().unwrap_or(0) as u64;
        let free = self.free(x)?;
        for (i, (step, t)) in self.steps.iter().zip(times).enumerate() {
            // A step makes the value of its last node.
            let last = || self.graph.by_name(step.fused.last().unwrap_or(&step.name));
            let shape = free.as_ref().and_then(|shapes| shapes.get(last()?.index())).unwrap_or(&step.out_shape);
            observer.step(i, t, 4 * images * shape.iter().product::<usize>() as u64);
        }
        Ok(out)
    }

    /// The shapes for the batch `x`, where they are not those of every batch.
    fn free(&self, x: &Tensor) -> Result<Option<Vec<Vec<usize>>>, ExecError> {
        match input::binding(&self.graph, x)? {
            Binding { tokens: None } => Ok(None),
            binding => Ok(Some(shapes_at(&self.graph, binding)?)),
        }
    }

    /// Runs a batch and also returns the outputs of the named nodes, shaped as their ops document (batch axis first).
    ///
    /// # Errors
    /// As [`Plan::run`]; a name that is no node's or that was fused away because it is not in `keep`.
    pub fn capture(&self, x: &Tensor, names: &[&str]) -> Result<(Tensor, HashMap<String, Tensor>), ExecError> {
        let mut ids = names.iter().map(|n| self.id(n)).collect::<Result<Vec<_>, _>>()?;
        ids.push(self.graph.output);
        let mut out = self.run_fetch(x, &ids, None)?;
        let logits = out.swap_remove(ids.len() - 1);
        Ok((logits, names.iter().map(|n| (*n).to_owned()).zip(out).collect()))
    }

    /// The cut before `node`: [`Plan::run_to`] it computes every node that comes before `node` in the graph's order and
    /// is needed later. `None` for an unknown or unreachable node.
    pub fn cut_before(&self, node: &str) -> Option<Cut> {
        let id = self.graph.by_name(node)?;
        self.graph.reachable()[id.index()].then(|| Cut { node: node.to_owned(), id })
    }

    /// Runs a batch up to `cut` and returns the values that cross it.
    ///
    /// # Errors
    /// As [`Plan::run`].
    pub fn run_to(&self, x: &Tensor, cut: &Cut) -> Result<Live, ExecError> {
        self.check_input(x)?;
        self.backend.run_to(x, cut)
    }

    /// Finishes a batch from what [`Plan::run_to`] of this or another plan returned.
    ///
    /// # Errors
    /// A live value is missing or of another size: the plans differ before the cut.
    pub fn run_from(&self, live: &Live) -> Result<Tensor, ExecError> {
        self.backend.run_from(live)
    }

    fn id(&self, name: &str) -> Result<NodeId, ExecError> {
        let unknown = |hint: &str| ExecError::UnknownNode { name: name.to_owned(), hint: hint.into() };
        let id = self.graph.by_name(name).ok_or_else(|| unknown("captures take node names"))?;
        if !self.backend.makes(id) {
            return Err(unknown("its output was fused away or is not computed; compile with it in `keep`"));
        }
        Ok(id)
    }

    fn check_input(&self, x: &Tensor) -> Result<(), ExecError> {
        match self.graph.input() {
            Some((node, taken)) => input::check(node, taken, x).map(drop),
            None => Err(ExecError::UnknownNode { name: "input".into(), hint: "the graph has no input".into() }),
        }
    }

    fn run_fetch(&self, x: &Tensor, ids: &[NodeId], times: Option<&mut [Duration]>) -> Result<Vec<Tensor>, ExecError> {
        self.check_input(x)?;
        self.backend.run(x, ids, times)
    }
}

#[cfg(test)]
mod tests;
