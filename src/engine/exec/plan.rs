//! [`Plan`]: a compiled model that can be run, observed, captured from and cut.

use super::device::{self, Kernels, Opened, Pool};
use super::error::ExecError;
use super::kernel::simple;
use super::lower::{Lowered, StepInfo, lower};
use super::program::{Clock, Program};
use super::run::{Arenas, Feed, Job, run};
use crate::graph::{Graph, NodeId, PrecisionPlan};
use crate::model::{Model, ParamStore};
use candle_core::{DType, Device, Tensor};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

/// How to compile.
#[derive(Debug, Clone)]
pub struct CompileOptions {
    pub device: Device,
    pub kernels: Kernels,
    /// Threads for CPU kernels; `None`: [`device::threads`].
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

/// A place between steps; see [`Plan::cut_before`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The node before which the cut lies: every node with a smaller id has run.
    pub node: String,
    id: NodeId,
}

/// The values that cross a cut, for one batch. Valid for any plan whose graph has the same nodes and differs only at or
/// after the cut.
#[derive(Debug, Clone)]
pub struct Live {
    cut: Cut,
    images: usize,
    /// By node id; the CPU's are channels-last.
    values: BTreeMap<u32, LiveValue>,
}

#[derive(Debug, Clone)]
enum LiveValue {
    Cpu(Arc<[f32]>),
    Device(Tensor),
}

impl Live {
    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        let one = |v: &LiveValue| match v {
            LiveValue::Cpu(v) => v.len() * 4,
            LiveValue::Device(t) => t.elem_count() * 4,
        };
        self.values.values().map(|v| one(v) as u64).sum()
    }

    /// Images in the batch.
    pub fn images(&self) -> usize {
        self.images
    }
}

/// Planned bytes; see [`Plan::memory`]. Kernels' scratch (unfolded windows, quantized inputs, attention scores), which
/// each thread keeps, comes on top.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// All parameters as the kernels hold them, unpacked where they are.
    pub weights: u64,
    /// What values between steps take; `None` on a GPU, where candle allocates every node's output when it runs.
    pub activations: Option<ActivationMemory>,
}

/// Bytes of values between steps, for one image of a batch. As many images as run at once (a thread's chunk) each need
/// this much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActivationMemory {
    /// The buffer that holds them, kept between runs.
    pub arena: u64,
    /// The largest set of values alive during one step, the input included: no arena can be smaller.
    pub largest_live: u64,
}

/// A graph compiled for one device, precision plan and set of parameters. Running does not change it, so a plan may be
/// shared between threads.
pub struct Plan {
    graph: Arc<Graph>,
    device: Device,
    steps: Vec<StepInfo>,
    weight_bytes: u64,
    held_bytes: u64,
    backend: Backend,
}

enum Backend {
    Cpu { low: Lowered, arenas: Arc<Arenas>, pool: Arc<Pool> },
    Program(Program),
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
        let (steps, backend) = if options.device.is_cpu() && options.kernels == Kernels::Device {
            let low = lower(&graph, params, precision, &options.keep)?;
            let pool = device::pool(options.threads.unwrap_or_else(device::threads).max(1))?;
            let steps = low.steps.iter().map(|s| s.info.clone()).collect();
            (steps, Backend::Cpu { low, arenas: Arc::default(), pool })
        } else {
            let program = Program::build(&graph, params, precision, &options.keep, &options.device)?;
            (program.steps.iter().map(|s| s.info.clone()).collect::<Vec<_>>(), Backend::Program(program))
        };
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
        if let (Backend::Cpu { arenas, .. }, Backend::Cpu { arenas: shared, .. }) = (&mut self.backend, &other.backend)
        {
            *arenas = shared.clone();
        }
    }

    /// The bytes that this plan holds and needs, known before it runs.
    pub fn memory(&self) -> Memory {
        let activations = match &self.backend {
            Backend::Cpu { low, .. } => {
                Some(ActivationMemory { arena: 4 * low.arena as u64, largest_live: 4 * low.live as u64 })
            }
            Backend::Program(_) => None,
        };
        Memory { weights: self.held_bytes, activations }
    }

    pub fn device(&self) -> &Device {
        &self.device
    }

    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Threads that share a batch (1 on a GPU).
    pub fn threads(&self) -> usize {
        match &self.backend {
            Backend::Cpu { pool, .. } => pool.rayon.current_num_threads(),
            Backend::Program(_) => 1,
        }
    }

    /// Runs a batch `[N, C, H, W]` and returns `[N, classes]`. The result is complete when this returns, on a GPU too (the
    /// device is waited for), so a clock around it tells what the run took.
    ///
    /// # Errors
    /// An input of another shape; what the tensor library reports.
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
        for (i, (step, t)) in self.steps.iter().zip(times).enumerate() {
            observer.step(i, t, 4 * images * step.out_shape.iter().product::<usize>() as u64);
        }
        Ok(out)
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
        let images = self.check_input(x)?;
        let mut values = BTreeMap::new();
        match &self.backend {
            Backend::Cpu { low, arenas, pool } => {
                let (steps, ids) = low.before(cut.id);
                let fetch: Vec<usize> = ids.iter().filter_map(|id| low.value_of[id.index()]).collect();
                let got = self.with_input(x, low, |feed| {
                    let job = Job { steps: 0..steps, feeds: &[feed], fetch: &fetch, images };
                    run(low, self.held_bytes, arenas, &job, None, pool)
                })?;
                for (id, v) in ids.iter().zip(got) {
                    values.insert(id.0, LiveValue::Cpu(v.into()));
                }
            }
            Backend::Program(program) => {
                let (first, ids) = program.before(cut.id);
                let feeds = BTreeMap::from([(program.input(), program.own(x)?)]);
                let got = program.run(&self.graph, 0..first, feeds, &ids, None)?;
                values.extend(ids.iter().map(|id| id.0).zip(got.into_iter().map(LiveValue::Device)));
            }
        }
        Ok(Live { cut: cut.clone(), images, values })
    }

    /// Finishes a batch from what [`Plan::run_to`] of this or another plan returned.
    ///
    /// # Errors
    /// A live value is missing or of another size: the plans differ before the cut.
    pub fn run_from(&self, live: &Live) -> Result<Tensor, ExecError> {
        let bad = |id: NodeId, what: &str| ExecError::unsupported(self.graph.node(id), what.to_owned());
        match &self.backend {
            Backend::Cpu { low, arenas, pool } => {
                let (first, ids) = low.before(live.cut.id);
                let mut feeds = Vec::with_capacity(ids.len());
                for id in ids {
                    let Some(value) = low.value_of[id.index()] else { continue };
                    match live.values.get(&id.0) {
                        Some(LiveValue::Cpu(data)) if data.len() == low.values[value].numel * live.images => {
                            feeds.push(Feed { value, data, turn: None });
                        }
                        Some(_) => return Err(bad(id, "the cached value before the cut has another size")),
                        None => return Err(bad(id, "its value was not cached: the plans differ before the cut")),
                    }
                }
                let value = low.value_of[self.graph.output.index()];
                let fetch: Vec<usize> = value.into_iter().collect();
                let job = Job { steps: first..low.steps.len(), feeds: &feeds, fetch: &fetch, images: live.images };
                let out = run(low, self.held_bytes, arenas, &job, None, pool);
                let out = out.into_iter().next().unwrap_or_default();
                self.tensor(self.graph.output, out, live.images)
            }
            Backend::Program(program) => {
                let (first, ids) = program.before(live.cut.id);
                let mut feeds = BTreeMap::new();
                for id in ids {
                    match live.values.get(&id.0) {
                        Some(LiveValue::Device(t)) => feeds.insert(id, t.clone()),
                        Some(LiveValue::Cpu(_)) => return Err(bad(id, "the cached value is on the CPU")),
                        None => return Err(bad(id, "its value was not cached: the plans differ before the cut")),
                    };
                }
                let steps = first..program.steps.len();
                let out = program.run(&self.graph, steps, feeds, &[self.graph.output], None)?;
                self.device.synchronize()?;
                let missing = || bad(self.graph.output, "was not computed");
                out.into_iter().next().ok_or_else(missing)
            }
        }
    }

    fn id(&self, name: &str) -> Result<NodeId, ExecError> {
        let unknown = |hint: &str| ExecError::UnknownNode { name: name.to_owned(), hint: hint.into() };
        let id = self.graph.by_name(name).ok_or_else(|| unknown("captures take node names"))?;
        let made = match &self.backend {
            Backend::Cpu { low, .. } => low.value_of[id.index()].is_some(),
            Backend::Program(program) => program.makes(id),
        };
        if !made {
            return Err(unknown("its output was fused away or is not computed; compile with it in `keep`"));
        }
        Ok(id)
    }

    fn check_input(&self, x: &Tensor) -> Result<usize, ExecError> {
        let expected = self.graph.input_shape();
        match x.dims() {
            [n, rest @ ..] if rest == expected => Ok(*n),
            dims => Err(ExecError::Input { found: dims.to_vec(), expected: expected.to_vec() }),
        }
    }

    fn own(&self, x: &Tensor) -> Result<Tensor, ExecError> {
        Ok(x.to_device(&self.device)?.to_dtype(DType::F32)?)
    }

    /// Calls `f` with the input's feed.
    fn with_input<R>(&self, x: &Tensor, low: &Lowered, f: impl FnOnce(Feed<'_>) -> R) -> Result<R, ExecError> {
        let x = self.own(x)?.contiguous()?;
        let (storage, layout) = x.storage_and_layout();
        let candle_core::Storage::Cpu(cpu) = &*storage else {
            return Err(ExecError::Tensor(candle_core::Error::Msg("the input is not on the CPU".into())));
        };
        let data = cpu.as_slice::<f32>()?;
        let data = &data[layout.start_offset()..layout.start_offset() + x.elem_count()];
        let input = low.values.iter().position(|v| v.step.is_none());
        let value = input.ok_or_else(|| ExecError::UnknownNode { name: "input".into(), hint: "no input".into() })?;
        let turn = match self.graph.input_shape() {
            [c, h, w] => Some([*c, h * w]),
            _ => None,
        };
        Ok(f(Feed { value, data, turn }))
    }

    fn run_fetch(&self, x: &Tensor, ids: &[NodeId], times: Option<&mut [Duration]>) -> Result<Vec<Tensor>, ExecError> {
        let images = self.check_input(x)?;
        match &self.backend {
            Backend::Cpu { low, arenas, pool } => {
                // A name may be asked for twice; each value is fetched once.
                let mut fetch: Vec<usize> = ids.iter().filter_map(|id| low.value_of[id.index()]).collect();
                let wanted = fetch.clone();
                fetch.sort_unstable();
                fetch.dedup();
                let outs = self.with_input(x, low, |feed| {
                    let job = Job { steps: 0..low.steps.len(), feeds: &[feed], fetch: &fetch, images };
                    run(low, self.held_bytes, arenas, &job, times, pool)
                })?;
                let mut outs: HashMap<usize, Vec<f32>> = fetch.into_iter().zip(outs).collect();
                let mut uses = wanted.iter().fold(HashMap::new(), |mut m: HashMap<usize, usize>, v| {
                    *m.entry(*v).or_default() += 1;
                    m
                });
                let mut take = |v: usize| {
                    let left = uses.entry(v).or_default();
                    *left = left.saturating_sub(1);
                    if *left == 0 { outs.remove(&v) } else { outs.get(&v).cloned() }
                };
                ids.iter().zip(wanted).map(|(id, v)| self.tensor(*id, take(v).unwrap_or_default(), images)).collect()
            }
            Backend::Program(program) => {
                let feeds = BTreeMap::from([(program.input(), program.own(x)?)]);
                let steps = 0..program.steps.len();
                let mut clock = times.as_ref().map(|_| Clock::start(&self.device)).transpose()?;
                let out = program.run(&self.graph, steps, feeds, ids, clock.as_mut())?;
                self.device.synchronize()?;
                if let (Some(times), Some(clock)) = (times, clock) {
                    times.iter_mut().zip(clock.stop()?).for_each(|(t, took)| *t = took);
                }
                Ok(out)
            }
        }
    }

    /// A channels-last batch as a tensor of the shape that the node's op documents.
    fn tensor(&self, id: NodeId, data: Vec<f32>, images: usize) -> Result<Tensor, ExecError> {
        let Backend::Cpu { low, .. } = &self.backend else {
            return Err(ExecError::Tensor(candle_core::Error::Msg("not on the CPU".into())));
        };
        let shape = &low.shapes[id.index()];
        let dims: Vec<usize> = std::iter::once(images).chain(shape.iter().copied()).collect();
        let data = match shape[..] {
            [c, h, w] => {
                let mut turned = vec![0f32; data.len()];
                simple::to_channels_first(c, h * w, &data, &mut turned);
                turned
            }
            _ => data,
        };
        Ok(Tensor::from_vec(data, dims, &Device::Cpu)?)
    }
}

impl Lowered {
    /// The first step at or after the cut before node `id`, and the nodes whose values cross the cut.
    fn before(&self, id: NodeId) -> (usize, Vec<NodeId>) {
        let first = self.steps.partition_point(|s| s.last < id);
        let mut crossing: Vec<usize> = self.steps[first..]
            .iter()
            .flat_map(|s| s.inputs.iter().chain(&s.residual).copied())
            .filter(|&v| self.values[v].step.is_none_or(|s| s < first))
            .collect();
        crossing.sort_unstable();
        crossing.dedup();
        // A value may go by two node names (an image and its tokens); the first is the one that computes it.
        let name = |v: &usize| self.value_of.iter().position(|x| *x == Some(*v)).map(|i| NodeId(i as u32));
        (first, crossing.iter().filter_map(name).collect())
    }
}

#[cfg(test)]
mod tests;
