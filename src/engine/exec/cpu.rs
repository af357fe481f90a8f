//! A CPU as a backend: brings tensors to the kernels' channels-last values and back, and picks what runs of a plan.
//!
//! Not here: how a graph becomes steps (`lower`), how steps run on threads (`run`). Invariant: no value outlives a run in the
//! arenas of its session.

use super::backend::{ActivationMemory, Backend, Cut, Every, Live, LiveValues, State};
use super::cache::Past;
use super::decode::{Wanted, after_meeting, fewer_from, rows};
use super::device::{self, Workers};
use super::error::{ExecError, Result};
use super::input;
use super::kernel::cached::KvFormat;
use super::kernel::simple;
use super::lower::{Lowered, StepInfo, lower};
use super::plan::CompileOptions;
use super::run::{Arenas, Feed, PartialRun, Times, run};
use super::sizes::{Known, Sizes};
use crate::graph::{Binding, Graph, NodeId, Precisions, least};
use crate::model::ParamStore;
use candle_core::{DType, Device, Tensor};
use std::ops::Range;
use std::sync::Arc;

/// Lowered steps and the threads that run them.
pub(super) struct Cpu {
    graph: Arc<Graph>,
    low: Lowered,
    /// The sizes for the least that the graph takes; the only ones of a graph that leaves nothing free.
    least: (Binding, Arc<Sizes>),
    /// Bytes of all parameters in memory.
    held_bytes: u64,
    pool: Arc<Workers>,
}

impl Cpu {
    /// Lowers `graph` for as many threads as `options` say; `None`: [`device::threads`].
    ///
    /// # Errors
    /// Those of [`lower`], and threads that cannot be had.
    pub fn build(
        graph: Arc<Graph>,
        params: &ParamStore,
        precision: &Precisions,
        options: &CompileOptions,
    ) -> Result<Cpu> {
        let low = lower(&graph, params, precision, options)?;
        let pool = device::pool(options.threads.unwrap_or_else(device::threads).max(1))?;
        let held_bytes = low.steps.iter().map(|s| s.info.held_bytes).sum();
        let binding = least(&graph)?;
        let least = (binding, Arc::new(Sizes::of(&graph, &low, binding)?));
        Ok(Cpu { graph, low, least, held_bytes, pool })
    }

    /// The sizes under `binding`; those of other bindings than the least are kept in `known`.
    fn sizes(&self, known: &mut Known, binding: Binding) -> Result<Arc<Sizes>> {
        match &self.least {
            (least, sizes) if *least == binding => Ok(sizes.clone()),
            _ => Ok(known.at(&self.graph, &self.low, binding)?),
        }
    }

    fn job(&self, arenas: &Arenas, job: &PartialRun<'_>, times: Times<'_>) -> Vec<Vec<f32>> {
        run(&self.low, self.held_bytes, arenas, job, times, &self.pool)
    }

    /// Runs `steps`, which begin with the first, on a batch `x` of these sizes that follows `past`.
    fn on_input(
        &self,
        arenas: &Arenas,
        (x, past): (&Tensor, Option<Past<'_>>),
        sizes: &Sizes,
        steps: Range<usize>,
        fetch: &[usize],
        times: Times<'_>,
    ) -> Result<Vec<Vec<f32>>> {
        let x = x.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.contiguous()?;
        let (storage, layout) = x.storage_and_layout();
        let candle_core::Storage::Cpu(cpu) = &*storage else {
            return Err(candle_core::Error::Msg("the input is not on the CPU".into()).into());
        };
        let data = cpu.as_slice::<f32>()?;
        let data = &data[layout.start_offset()..layout.start_offset() + x.elem_count()];
        let input = self.low.values.iter().position(|v| v.step.is_none());
        let value = input.ok_or_else(|| ExecError::UnknownNode { name: "input".into(), hint: "no input".into() })?;
        let turn = match sizes.shapes[self.low.values[value].node.index()][..] {
            [c, h, w] => Some([c, h * w]),
            _ => None,
        };
        let feeds = &[Feed { value, data, turn }];
        Ok(self.job(arenas, &PartialRun { steps, feeds, fetch, sizes, images: x.dim(0)?, past }, times))
    }

    /// The first step at or after `cut`, and the nodes whose values cross it, each with its value.
    fn before(&self, cut: &Cut) -> (usize, Vec<(NodeId, usize)>) {
        let low = &self.low;
        let first = low.steps.partition_point(|s| s.last < cut.id);
        // A value may go by two node names (an image and its tokens); the first is the one that computes it.
        let name = |v: usize| low.value_of.iter().position(|x| *x == Some(v)).map(|i| (NodeId(i as u32), v));
        (first, self.crossing(first).into_iter().filter_map(name).collect())
    }

    /// The values that steps from `first` on read of those before, ascending.
    fn crossing(&self, first: usize) -> Vec<usize> {
        let low = &self.low;
        let mut crossing: Vec<usize> = low.steps[first..]
            .iter()
            .flat_map(|s| s.inputs.iter().chain(&s.residual).copied())
            .filter(|&v| low.values[v].step.is_none_or(|s| s < first))
            .collect();
        crossing.sort_unstable();
        crossing.dedup();
        crossing
    }

    /// Runs the steps before `to` on what crossed a cut, and hands back the values `fetch`, with the sizes that they have.
    fn resume(
        &self,
        state: &mut State,
        live: &Live,
        to: usize,
        fetch: &[usize],
    ) -> Result<(Binding, Arc<Sizes>, Vec<Vec<f32>>)> {
        let (first, crossing) = self.before(&live.cut);
        let bad = |id: NodeId, what: &str| ExecError::unsupported(self.graph.node(id), what.to_owned());
        let LiveValues::Host(binding, values) = &live.values else {
            return Err(bad(self.graph.output, "the cached values are not those of the CPU's own kernels"));
        };
        let sizes = self.sizes(&mut state.sizes, *binding)?;
        let mut feeds = Vec::with_capacity(crossing.len());
        for (id, value) in crossing {
            match values.get(&id) {
                Some(data) if data.len() == sizes.places[value].numel * live.images => {
                    feeds.push(Feed { value, data, turn: None });
                }
                Some(_) => return Err(bad(id, "the cached value before the cut has another size")),
                None => return Err(bad(id, "its value was not cached: the plans differ before the cut")),
            }
        }
        let steps = first..to.max(first);
        let job = PartialRun { steps, feeds: &feeds, fetch, sizes: &sizes, images: live.images, past: None };
        Ok((*binding, sizes.clone(), self.job(&state.arenas, &job, None)))
    }

    /// Runs the steps from `first` on, in which no token meets another, for the last of each `every` tokens alone; `values` are those that
    /// cross there, of all tokens and with `sizes`.
    fn apart(
        &self,
        state: &mut State,
        (first, values): (usize, Vec<Vec<f32>>),
        sizes: &Sizes,
        (images, binding, every): (usize, Binding, usize),
        (past, times): (Option<Past<'_>>, Times<'_>),
    ) -> Result<Tensor> {
        let output = self.graph.output;
        let rows = binding.tokens.map_or(0, |t| t / every);
        if rows == 0 {
            let why = format!("one in {every} tokens is asked of sequences of a fixed length, or of fewer");
            return Err(ExecError::unsupported(self.graph.node(output), why));
        }
        let (crossing, tokens) = (self.crossing(first), binding.tokens.unwrap_or(1));
        let thin = |(all, v): (&Vec<f32>, &usize)| -> Vec<f32> {
            let each = sizes.places[*v].numel.max(1);
            let row = each / tokens;
            let picked = |image: &[f32]| -> Vec<f32> {
                (1..=rows).flat_map(|i| &image[(i * every - 1) * row..][..row]).copied().collect()
            };
            all.chunks_exact(each).flat_map(picked).collect()
        };
        let thinned: Vec<Vec<f32>> = values.iter().zip(&crossing).map(thin).collect();
        let fewer = self.sizes(&mut state.sizes, Binding::tokens(rows))?;
        let feed = |(&value, data)| Feed { value, data, turn: None };
        let feeds: Vec<Feed<'_>> = crossing.iter().zip(thinned.iter().map(Vec::as_slice)).map(feed).collect();
        let fetch: Vec<usize> = self.low.value_of[output.index()].into_iter().collect();
        let steps = first..self.low.steps.len();
        let job = PartialRun { steps, feeds: &feeds, fetch: &fetch, sizes: &fewer, images, past };
        let outs = self.job(&state.arenas, &job, times);
        self.tensor(output, &fewer, outs.into_iter().next().unwrap_or_default(), images)
    }

    /// A channels-last batch as a tensor of the shape that the node's op documents.
    fn tensor(&self, id: NodeId, sizes: &Sizes, data: Vec<f32>, images: usize) -> Result<Tensor> {
        let shape = &sizes.shapes[id.index()];
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

impl Backend for Cpu {
    fn steps(&self) -> Vec<StepInfo> {
        self.low.steps.iter().map(|s| s.info.clone()).collect()
    }

    fn threads(&self) -> usize {
        self.pool.rayon.current_num_threads()
    }

    fn activations(&self, binding: Binding) -> Result<Option<ActivationMemory>> {
        let sizes = self.sizes(&mut Known::default(), binding)?;
        Ok(Some(ActivationMemory { arena: 4 * sizes.arena as u64, largest_live: 4 * sizes.live as u64 }))
    }

    fn makes(&self, id: NodeId) -> bool {
        self.low.value_of[id.index()].is_some()
    }

    fn run(&self, state: &mut State, x: &Tensor, ids: &[NodeId], times: Times<'_>) -> Result<Vec<Tensor>> {
        let fetch: Vec<usize> = ids.iter().filter_map(|id| self.low.value_of[id.index()]).collect();
        let sizes = self.sizes(&mut state.sizes, input::binding(&self.graph, x)?)?;
        let outs = self.on_input(&state.arenas, (x, None), &sizes, 0..self.low.steps.len(), &fetch, times)?;
        let images = x.dim(0)?;
        ids.iter().zip(outs).map(|(id, out)| self.tensor(*id, &sizes, out, images)).collect()
    }

    fn decodes(&self, _: KvFormat) -> Result<(), String> {
        Ok(())
    }

    fn decode(
        &self,
        state: &mut State,
        past: Past<'_>,
        x: &Tensor,
        wanted: Wanted,
        mut times: Times<'_>,
    ) -> Result<Tensor> {
        let (output, steps, images) = (self.graph.output, self.low.steps.len(), x.dim(0)?);
        let binding = input::binding(&self.graph, x)?;
        let sizes = self.sizes(&mut state.sizes, binding)?;
        let fetch: Vec<usize> = self.low.value_of[output.index()].into_iter().collect();
        let first = after_meeting(&self.graph, self.low.steps.iter().map(|s| &s.info));
        if wanted == Wanted::All || binding.tokens == Some(1) || first == steps {
            let outs = self.on_input(&state.arenas, (x, Some(past)), &sizes, 0..steps, &fetch, times)?;
            return self.tensor(output, &sizes, outs.into_iter().next().unwrap_or_default(), images);
        }
        // After the last step in which tokens meet, the others' values are not asked for.
        let crossing = self.crossing(first);
        let outs = self.on_input(&state.arenas, (x, Some(past)), &sizes, 0..first, &crossing, times.as_deref_mut())?;
        let every = binding.tokens.unwrap_or(1).max(1);
        self.apart(state, (first, outs), &sizes, (images, binding, every), (Some(past), times))
    }

    fn run_to(&self, state: &mut State, x: &Tensor, cut: &Cut) -> Result<Live> {
        let (first, crossing) = self.before(cut);
        let fetch: Vec<usize> = crossing.iter().map(|(_, v)| *v).collect();
        let binding = input::binding(&self.graph, x)?;
        let sizes = self.sizes(&mut state.sizes, binding)?;
        let outs = self.on_input(&state.arenas, (x, None), &sizes, 0..first, &fetch, None)?;
        let values = crossing.iter().zip(outs).map(|((id, _), v)| (*id, v.into())).collect();
        Ok(Live::of(cut, x.dim(0)?, LiveValues::Host(binding, values)))
    }

    fn run_on(&self, state: &mut State, live: &Live, cut: &Cut) -> Result<Live> {
        let (to, crossing) = self.before(cut);
        let fetch: Vec<usize> = crossing.iter().map(|(_, v)| *v).collect();
        let (binding, _, outs) = self.resume(state, live, to, &fetch)?;
        let values = crossing.iter().zip(outs).map(|((id, _), v)| (*id, v.into())).collect();
        Ok(Live::of(cut, live.images, LiveValues::Host(binding, values)))
    }

    fn run_from(&self, state: &mut State, live: &Live, some: Option<Every>) -> Result<Tensor> {
        let (output, steps) = (self.graph.output, self.low.steps.len());
        let to = some.map_or(steps, |some| {
            fewer_from(&self.graph, some, self.low.steps.iter().map(|s| &s.info)).max(self.before(&live.cut).0)
        });
        if let (Some(Every { every, .. }), true) = (some, to < steps) {
            let (binding, sizes, outs) = self.resume(state, live, to, &self.crossing(to))?;
            return self.apart(state, (to, outs), &sizes, (live.images, binding, every), (None, None));
        }
        let fetch: Vec<usize> = self.low.value_of[output.index()].into_iter().collect();
        let (_, sizes, outs) = self.resume(state, live, steps, &fetch)?;
        let whole = self.tensor(output, &sizes, outs.into_iter().next().unwrap_or_default(), live.images)?;
        Ok(match some {
            Some(Every { every, .. }) => rows(&whole, every)?,
            None => whole,
        })
    }
}
