//! A graph lowered to operations of the tensor library and a few kernels of our own: what a GPU runs, and what any device
//! can run.
//!
//! Steps, their names and what fuses into them are those of the CPU's lowering (`lower::chains`): batch norm and layer scale
//! go into the layer before them, a residual add and an activation into its epilogue. Images are `[n, c, h, w]`, tokens
//! `[n, t, d]`. Not here: CPU kernels (`kernel`), what is CUDA's own (`cuda`). Invariants: values are f32 wherever they can
//! be seen from outside; on the CPU every step computes by the same definitions as on a GPU.

mod attention;
mod build;
mod clock;
mod dense;
mod dtypes;
pub(super) mod geometry;
mod int8;
mod kernels;
mod own;

use super::backend::{ActivationMemory, Backend, Cut, Live, LiveValues};
use super::error::ExecError;
use super::input;
use super::lower::StepInfo;
use super::reference::{self, TensorMap};
use crate::graph::{Activation, Binding, Graph, NodeId, Precision, shapes_at};
use candle_core::{DType, Device, Tensor};
use clock::Clock;
use kernels::{Epilogue, Norm, Pool, Softmax};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Whether a GPU has a kernel for convolutions and linears of this precision.
pub fn gpu_runs(precision: Precision) -> bool {
    match precision {
        Precision::F32 | Precision::F16 | Precision::Bf16 | Precision::Int8 | Precision::Int8Static => true,
        Precision::W8 | Precision::W4 | Precision::W4g128 | Precision::W4g64 | Precision::W4g32 => false,
    }
}

/// Lowered steps with their parameters on one device.
pub(super) struct Program {
    graph: Arc<Graph>,
    steps: Vec<Step>,
    device: Device,
    /// Parameters of steps that the interpreter runs.
    params: TensorMap,
    input: NodeId,
}

/// One step.
struct Step {
    info: StepInfo,
    kernel: Kernel,
    inputs: Vec<NodeId>,
    residual: Option<NodeId>,
    /// The node whose value it makes; steps ascend in it.
    out: NodeId,
    /// What its inputs are brought to.
    compute: DType,
    /// What its value is kept in.
    store: DType,
}

impl Step {
    fn reads(&self) -> impl Iterator<Item = NodeId> {
        self.inputs.iter().chain(&self.residual).copied()
    }
}

// A program has one of these a step, made once: boxing the largest would save nothing.
#[allow(clippy::large_enum_variant)]
enum Kernel {
    Dense(dense::Dense),
    /// Standalone batch norm or layer scale.
    Affine {
        scale: Tensor,
        shift: Option<Tensor>,
        act: Option<Activation>,
    },
    Add {
        act: Option<Activation>,
    },
    Activation(Activation),
    Pool(Pool),
    Norm(Norm),
    Softmax,
    Attention(attention::Core),
    /// Moves and small sums, as the interpreter has them.
    Plain,
}

impl Program {
    /// The first step at or after `cut`, and the nodes whose values cross it.
    fn before(&self, cut: &Cut) -> (usize, Vec<NodeId>) {
        let first = self.steps.partition_point(|s| s.out < cut.id);
        let made = |v: &NodeId| self.steps[first..].iter().any(|s| s.out == *v);
        let mut crossing: Vec<NodeId> = self.steps[first..].iter().flat_map(Step::reads).filter(|v| !made(v)).collect();
        crossing.sort_unstable();
        crossing.dedup();
        (first, crossing)
    }

    /// Runs `steps` on the values `feeds` and hands back those of `fetch`, f32 on the device. The device may not be done when
    /// this returns. `clock` is told when each step ends.
    ///
    /// # Errors
    /// What the tensor library reports, with the step's node; a value that neither `feeds` nor `steps` make.
    fn execute(
        &self,
        steps: Range<usize>,
        feeds: BTreeMap<NodeId, Tensor>,
        fetch: &[NodeId],
        mut clock: Option<&mut Clock>,
    ) -> Result<Vec<Tensor>, ExecError> {
        let graph = &self.graph;
        let mut values = feeds;
        let mut last = BTreeMap::new();
        for i in steps.clone() {
            last.extend(self.steps[i].reads().map(|v| (v, i)));
        }
        for i in steps {
            let step = &self.steps[i];
            let node = graph.node(step.info.node);
            let candle =
                |source| ExecError::Candle { node: node.name.clone(), op: node.op.facts().traits().name, source };
            let get = |id: &NodeId| {
                let why = || format!("its input `{}` was not computed", graph.node(*id).name);
                values.get(id).ok_or_else(|| ExecError::unsupported(node, why()))
            };
            let inputs: Vec<Tensor> = step
                .inputs
                .iter()
                .map(|id| get(id)?.to_dtype(step.compute).map_err(candle))
                .collect::<Result<_, ExecError>>()?;
            let residual = step.residual.as_ref().map(get).transpose()?;
            let out = match &step.kernel {
                Kernel::Plain => reference::one(node, &self.params, &inputs)?,
                kernel => run(kernel, &inputs, residual, step.store).map_err(candle)?,
            };
            values.insert(step.out, out.to_dtype(step.store).map_err(candle)?);
            for id in step.reads() {
                if last.get(&id) == Some(&i) && !fetch.contains(&id) {
                    values.remove(&id);
                }
            }
            if let Some(clock) = clock.as_deref_mut() {
                clock.mark()?;
            }
        }
        let get = |id: &NodeId| {
            let name = || graph.node(*id).name.clone();
            let missing = || ExecError::UnknownNode { name: name(), hint: "it was not computed".into() };
            Ok(values.get(id).ok_or_else(missing)?.to_dtype(DType::F32)?)
        };
        fetch.iter().map(get).collect()
    }

    /// The values that a run of a batch begins with.
    fn feeds(&self, x: &Tensor) -> Result<BTreeMap<NodeId, Tensor>, ExecError> {
        if let binding @ Binding { tokens: Some(_) } = input::binding(&self.graph, x)? {
            // Steps go by what they get: that it fits is known from here.
            shapes_at(&self.graph, binding)?;
        }
        Ok(BTreeMap::from([(self.input, x.to_device(&self.device)?.to_dtype(DType::F32)?.contiguous()?)]))
    }
}

impl Backend for Program {
    fn steps(&self) -> Vec<StepInfo> {
        self.steps.iter().map(|s| s.info.clone()).collect()
    }

    fn threads(&self) -> usize {
        1
    }

    /// The tensor library allocates every node's output when it runs.
    fn activations(&self, _: Binding) -> Result<Option<ActivationMemory>, ExecError> {
        Ok(None)
    }

    /// The input and the last node of every step.
    fn makes(&self, id: NodeId) -> bool {
        id == self.input || self.steps.iter().any(|s| s.out == id)
    }

    fn run(&self, x: &Tensor, ids: &[NodeId], times: Option<&mut [Duration]>) -> Result<Vec<Tensor>, ExecError> {
        let feeds = self.feeds(x)?;
        let mut clock = times.as_ref().map(|_| Clock::start(&self.device)).transpose()?;
        let out = self.execute(0..self.steps.len(), feeds, ids, clock.as_mut())?;
        self.device.synchronize()?;
        if let (Some(times), Some(clock)) = (times, clock) {
            times.iter_mut().zip(clock.stop()?).for_each(|(t, took)| *t = took);
        }
        Ok(out)
    }

    fn run_to(&self, x: &Tensor, cut: &Cut) -> Result<Live, ExecError> {
        let (first, ids) = self.before(cut);
        let got = self.execute(0..first, self.feeds(x)?, &ids, None)?;
        let bytes = got.iter().map(|t| 4 * t.elem_count() as u64).sum();
        let values = LiveValues::Device(ids.into_iter().zip(got).collect());
        Ok(Live { cut: cut.clone(), images: x.dim(0)?, bytes, values })
    }

    fn run_from(&self, live: &Live) -> Result<Tensor, ExecError> {
        let (first, ids) = self.before(&live.cut);
        let bad = |id: NodeId, what: &str| ExecError::unsupported(self.graph.node(id), what.to_owned());
        let LiveValues::Device(values) = &live.values else {
            return Err(bad(self.graph.output, "the cached values are on the CPU, those of its own kernels"));
        };
        let mut feeds = BTreeMap::new();
        for id in ids {
            let value = values.get(&id).cloned();
            let missing = || bad(id, "its value was not cached: the plans differ before the cut");
            feeds.insert(id, value.ok_or_else(missing)?);
        }
        let mut out = self.execute(first..self.steps.len(), feeds, &[self.graph.output], None)?;
        self.device.synchronize()?;
        Ok(out.swap_remove(0))
    }
}

/// Every kernel but the interpreter's. `inputs` has as many tensors as the lowering gave the step.
fn run(kernel: &Kernel, inputs: &[Tensor], residual: Option<&Tensor>, store: DType) -> candle_core::Result<Tensor> {
    let Some(x) = inputs.first() else { candle_core::bail!("a step without an input") };
    let plain = Epilogue { scale: None, bias: None, residual: None, act: None, dtype: store };
    match kernel {
        Kernel::Dense(d) => d.run(x, residual, store),
        Kernel::Affine { scale, shift, act } => {
            Epilogue { scale: Some(scale), bias: shift.as_ref(), act: *act, ..plain }.on(x)
        }
        Kernel::Add { act } => Epilogue { residual: Some(inputs.get(1).unwrap_or(x)), act: *act, ..plain }.on(x),
        Kernel::Activation(act) => Epilogue { act: Some(*act), ..plain }.on(x),
        Kernel::Pool(p) => own::apply(x, p),
        Kernel::Norm(n) => reference::over_channels(x, |x| own::apply(x, n)),
        Kernel::Softmax => reference::over_channels(x, |x| own::apply(x, &Softmax { scale: 1.0, bias: None })),
        Kernel::Attention(core) => core.run(inputs),
        Kernel::Plain => candle_core::bail!("this step is the interpreter's"),
    }
}
