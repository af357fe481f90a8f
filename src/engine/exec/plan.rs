//! [`Plan`]: a compiled model, which sessions run, observe, capture from and cut.
//!
//! Not here: running it (`session`).

use super::backend::{ActivationMemory, Backend, Cut};
use super::candle::Program;
use super::cpu::Cpu;
use super::device::{Kernels, Opened};
use super::error::{ExecError, Result};
use super::kernel::cached::KvFormat;
use super::lower::StepInfo;
use crate::graph::{Binding, Graph, NodeId, Precisions};
use crate::model::{Model, ParamStore, export};
use candle_core::Device;
use std::collections::HashMap;
use std::sync::Arc;

/// How to compile.
#[derive(Debug, Clone)]
pub struct CompileOptions {
    pub device: Device,
    pub kernels: Kernels,
    /// Threads for CPU kernels; `None`: [`super::threads`].
    pub threads: Option<usize>,
    /// Nodes whose outputs must exist (for [`super::Session::capture`]); they end a step, nothing fuses across them.
    pub keep: Vec<String>,
    /// On a CPU, multiply the weights of linears that stay in f32 as a file stores them (half precision, GGML's blocks), instead of
    /// unpacking them when the plan is made: a fraction of the memory, and of what a token reads. What comes out differs by rounding.
    pub as_stored: bool,
    /// Besides, round what such weights are multiplied with as llama.cpp does on a CPU (8 bits in blocks, half precision): what a file will answer
    /// there. Refused for weights that llama.cpp has no format for.
    pub as_llama_cpp: bool,
}

impl Default for CompileOptions {
    fn default() -> Self {
        CompileOptions {
            device: Device::Cpu,
            kernels: Kernels::Device,
            threads: None,
            keep: Vec::new(),
            as_stored: false,
            as_llama_cpp: false,
        }
    }
}

impl CompileOptions {
    /// On the device that was opened.
    pub fn on(opened: &Opened) -> CompileOptions {
        CompileOptions { device: opened.device.clone(), kernels: opened.kernels, ..CompileOptions::default() }
    }

    /// With weights multiplied as they are stored.
    pub fn as_stored(self) -> CompileOptions {
        CompileOptions { as_stored: true, ..self }
    }

    /// With these nodes kept.
    pub fn keeping<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> CompileOptions {
        self.keep.extend(names.into_iter().map(Into::into));
        self
    }
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

/// A graph compiled for one device, precision plan and set of parameters. Nothing changes it: what its runs write belongs
/// to a [`super::Session`], and copies are the same plan, which threads may share.
#[derive(Clone)]
pub struct Plan {
    graph: Arc<Graph>,
    device: Device,
    steps: Arc<[StepInfo]>,
    /// What attention cores keep keys and values in, where that was decided.
    kv: Arc<HashMap<NodeId, KvFormat>>,
    pub(super) backend: Arc<dyn Backend>,
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plan").field("steps", &self.steps.len()).field("weight_bytes", &self.weight_bytes()).finish()
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
        precision: &Precisions,
        options: &CompileOptions,
    ) -> Result<Plan> {
        Plan::build(Arc::new(graph.clone()), params, precision, options)
    }

    /// Compiles a model with its own precision plan.
    ///
    /// # Errors
    /// As [`Plan::compile`].
    pub fn of(model: &Model, options: &CompileOptions) -> Result<Plan> {
        Plan::build(model.graph.clone(), &model.params, &model.precision, options)
    }

    fn build(graph: Arc<Graph>, params: &ParamStore, precision: &Precisions, options: &CompileOptions) -> Result<Plan> {
        let (g, keep) = (graph.clone(), &options.keep);
        let params = &*export::settled(&graph, params, precision);
        let kv = KvFormat::decided(&graph, precision);
        let own = options.kernels == Kernels::Device && options.device.is_cpu();
        if let Some((id, format)) = kv.iter().find(|(_, f)| **f != KvFormat::F32 && !own) {
            let why =
                format!("keeps keys and values in {}, which only a CPU's kernels do; hint: --kv f32", format.label());
            return Err(ExecError::unsupported(graph.node(*id), why));
        }
        let backend: Arc<dyn Backend> = match (options.kernels, &options.device) {
            (Kernels::Device, Device::Cpu) => Arc::new(Cpu::build(g, params, precision, options)?),
            (_, device) => Arc::new(Program::build(g, params, precision, keep, device)?),
        };
        let steps: Arc<[StepInfo]> = backend.steps().into();
        Ok(Plan { graph, device: options.device.clone(), steps, kv: Arc::new(kv), backend })
    }

    /// What attention cores keep keys and values in, where that was decided.
    pub fn kv(&self) -> &HashMap<NodeId, KvFormat> {
        &self.kv
    }

    /// The steps in the order they run.
    pub fn steps(&self) -> &[StepInfo] {
        &self.steps
    }

    /// Bytes of all parameters as stored.
    pub fn weight_bytes(&self) -> u64 {
        self.steps.iter().map(|s| s.weight_bytes).sum()
    }

    fn held_bytes(&self) -> u64 {
        self.steps.iter().map(|s| s.held_bytes).sum()
    }

    /// The bytes that this plan holds and needs, known before it runs.
    pub fn memory(&self) -> Memory {
        let activations = self.backend.activations(Binding::default()).unwrap_or_default();
        Memory { weights: self.held_bytes(), activations }
    }

    /// As [`Plan::memory`], with the free dimensions as long as `binding` says.
    ///
    /// # Errors
    /// A number of tokens that some op does not take; a free dimension without a length.
    pub fn memory_at(&self, binding: Binding) -> Result<Memory> {
        Ok(Memory { weights: self.held_bytes(), activations: self.backend.activations(binding)? })
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

    /// The cut before `node`: [`super::Session::run_to`] it computes every node that comes before `node` in the graph's order and
    /// is needed later. `None` for an unknown or unreachable node.
    pub fn cut_before(&self, node: &str) -> Option<Cut> {
        let id = self.graph.by_name(node)?;
        self.graph.reachable()[id.index()].then(|| Cut { node: node.to_owned(), id })
    }
}

#[cfg(test)]
mod tests;
