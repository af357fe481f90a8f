//! A lowered graph as a backend: what a GPU runs, and what any device can run.
//!
//! Not here: how a graph is lowered (`build`), how steps run (`walk`), what is captured and replayed (`replay`). Invariants: values are f32 wherever they can be seen
//! from outside; on the CPU every step computes by the same definitions as on a GPU.

use super::cached::{Turn, kept_in};
use super::clock::Clock;
use super::site::{Pass, TensorMap};
use super::walk::{Step, Walk};
use crate::exec::backend::{ActivationMemory, Backend, Cut, Every, Live, LiveValues, State};
use crate::exec::cache::Past;
use crate::exec::decode::{Wanted, after_meeting, fewer_from, rows};
use crate::exec::error::{ExecError, Result};
use crate::exec::input;
use crate::exec::kernel::cached::KvFormat;
use crate::exec::lower::StepInfo;
#[cfg(feature = "cuda")]
use crate::exec::replay::Launch;
use crate::exec::replay::queueing;
use crate::exec::run::Times;
use crate::graph::{Binding, Graph, NodeId, shapes_at};
use candle_core::{DType, Device, Tensor};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Lowered steps with their parameters on one device.
pub(in crate::exec) struct Program {
    pub(super) graph: Arc<Graph>,
    /// Ascending in the node whose value they make.
    pub(super) steps: Vec<Step>,
    /// One a step.
    pub(super) infos: Vec<StepInfo>,
    pub(super) device: Device,
    /// Parameters of steps that run their op's definition.
    pub(super) params: TensorMap,
    pub(super) input: NodeId,
}

impl Program {
    /// The first step at or after `cut`, and the nodes whose values cross it.
    fn before(&self, cut: &Cut) -> (usize, Vec<NodeId>) {
        let first = self.steps.partition_point(|s| s.out < cut.id);
        (first, self.crossing(first))
    }

    /// The nodes whose values the steps from `first` on read of earlier ones.
    fn crossing(&self, first: usize) -> Vec<NodeId> {
        let made = |v: &NodeId| self.steps[first..].iter().any(|s| s.out == *v);
        let mut crossing: Vec<NodeId> = self.steps[first..].iter().flat_map(Step::reads).filter(|v| !made(v)).collect();
        crossing.sort_unstable();
        crossing.dedup();
        crossing
    }

    /// Runs `steps` on the values `feeds` and hands back those of `fetch`, f32 on the device. The device may not be done when
    /// this returns. `clock` is told when each step ends.
    ///
    /// # Errors
    /// What the tensor library reports, with the step's node; a value that neither `feeds` nor `steps` make.
    pub(super) fn execute(
        &self,
        steps: Range<usize>,
        feeds: BTreeMap<NodeId, Tensor>,
        fetch: &[NodeId],
        clock: Option<&mut Clock>,
    ) -> Result<Vec<Tensor>> {
        self.walk(steps, feeds, fetch, (clock, Pass::default()))
    }

    /// As [`Program::execute`], after what `pass` says of earlier tokens.
    fn walk(
        &self,
        steps: Range<usize>,
        feeds: BTreeMap<NodeId, Tensor>,
        fetch: &[NodeId],
        (mut clock, pass): (Option<&mut Clock>, Pass<'_>),
    ) -> Result<Vec<Tensor>> {
        let mark = || clock.as_deref_mut().map_or(Ok(()), Clock::mark);
        let graph = &self.graph;
        let values = Walk::new(graph, &self.params, pass).run(&self.steps[steps], feeds, fetch, mark)?;
        let get = |id: &NodeId| {
            let name = || graph.node(*id).name.clone();
            let missing = || ExecError::UnknownNode { name: name(), hint: "it was not computed".into() };
            Ok(values.get(id).ok_or_else(missing)?.to_dtype(DType::F32)?)
        };
        fetch.iter().map(get).collect()
    }

    /// Runs the steps before `to` on what crossed a cut, and hands back the values of `fetch`.
    fn resume(&self, live: &Live, to: usize, fetch: &[NodeId]) -> Result<Vec<Tensor>> {
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
        self.execute(first..to.max(first), feeds, fetch, None)
    }

    /// The values that a run of a batch begins with.
    pub(super) fn feeds(&self, x: &Tensor) -> Result<BTreeMap<NodeId, Tensor>> {
        if let binding @ Binding { tokens: Some(_) } = input::binding(&self.graph, x)? {
            // Steps go by what they get: that it fits is known from here.
            shapes_at(&self.graph, binding)?;
        }
        Ok(BTreeMap::from([(self.input, x.to_device(&self.device)?.to_dtype(DType::F32)?.contiguous()?)]))
    }
}

impl Backend for Program {
    fn steps(&self) -> Vec<StepInfo> {
        self.infos.clone()
    }

    fn threads(&self) -> usize {
        1
    }

    /// The tensor library allocates every node's output when it runs.
    fn activations(&self, _: Binding) -> Result<Option<ActivationMemory>> {
        Ok(None)
    }

    /// The input and the last node of every step.
    fn makes(&self, id: NodeId) -> bool {
        id == self.input || self.steps.iter().any(|s| s.out == id)
    }

    fn run(&self, _: &mut State, x: &Tensor, ids: &[NodeId], times: Times<'_>) -> Result<Vec<Tensor>> {
        let _queueing = queueing();
        let feeds = self.feeds(x)?;
        let mut clock = times.as_ref().map(|_| Clock::start(&self.device)).transpose()?;
        let out = self.execute(0..self.steps.len(), feeds, ids, clock.as_mut())?;
        self.device.synchronize()?;
        if let (Some(times), Some(clock)) = (times, clock) {
            times.iter_mut().zip(clock.stop()?).for_each(|(t, took)| *t = took);
        }
        Ok(out)
    }

    #[cfg(feature = "cuda")]
    fn prepare_timed(&self, state: &mut State, x: &Tensor, id: NodeId) -> Result<Launch> {
        self.prepare_replay(state, x, id)
    }

    fn run_timed(&self, _state: &mut State, x: &Tensor, id: NodeId) -> Result<(Tensor, Duration)> {
        #[cfg(feature = "cuda")]
        if let Some(timed) = self.replay(_state, x, id)? {
            return Ok(timed);
        }
        let _queueing = queueing();
        let mut clock = Clock::start(&self.device)?;
        let feeds = self.feeds(x)?;
        let out = self.execute(0..self.steps.len(), feeds, &[id], None)?.swap_remove(0);
        clock.mark()?;
        Ok((out, clock.stop()?.into_iter().sum()))
    }

    fn decodes(&self, format: KvFormat) -> Result<(), String> {
        let why =
            || format!("keeps keys and values in {} on a CPU's own kernels only; hint: f16 or f32", format.label());
        kept_in(format).map(drop).ok_or_else(why)
    }

    fn decode(
        &self,
        state: &mut State,
        past: Past<'_>,
        x: &Tensor,
        wanted: Wanted,
        times: Times<'_>,
    ) -> Result<Tensor> {
        let _queueing = queueing();
        let (all, output) = (self.steps.len(), [self.graph.output]);
        let mut clock = times.as_ref().map(|_| Clock::start(&self.device)).transpose()?;
        let pass = Pass { turn: Some(Turn { past, kept: &state.kept }), ..Pass::default() };
        let first = match wanted {
            Wanted::All => all,
            Wanted::Last => after_meeting(&self.graph, self.infos.iter()),
        };
        let mut out = if first == all {
            self.walk(0..all, self.feeds(x)?, &output, (clock.as_mut(), pass))?
        } else {
            // What the other tokens would make of it is not asked for.
            let crossing = self.crossing(first);
            let values = self.walk(0..first, self.feeds(x)?, &crossing, (clock.as_mut(), pass))?;
            let last = |t: Tensor| t.narrow(1, t.dim(1)? - 1, 1)?.contiguous();
            let values = values.into_iter().map(last).collect::<candle_core::Result<Vec<_>>>()?;
            self.walk(first..all, crossing.into_iter().zip(values).collect(), &output, (clock.as_mut(), pass))?
        };
        let out = out.swap_remove(0).to_device(&Device::Cpu)?;
        if let (Some(times), Some(clock)) = (times, clock) {
            times.iter_mut().zip(clock.stop()?).for_each(|(t, took)| *t = took);
        }
        Ok(out)
    }

    fn run_to(&self, _: &mut State, x: &Tensor, cut: &Cut) -> Result<Live> {
        let _queueing = queueing();
        let (first, ids) = self.before(cut);
        let got = self.execute(0..first, self.feeds(x)?, &ids, None)?;
        Ok(Live::of(cut, x.dim(0)?, LiveValues::Device(ids.into_iter().zip(got).collect())))
    }

    fn run_on(&self, _: &mut State, live: &Live, cut: &Cut) -> Result<Live> {
        let _queueing = queueing();
        let (to, ids) = self.before(cut);
        let got = self.resume(live, to, &ids)?;
        Ok(Live::of(cut, live.images, LiveValues::Device(ids.into_iter().zip(got).collect())))
    }

    fn run_from(&self, _: &mut State, live: &Live, some: Option<Every>) -> Result<Tensor> {
        let _queueing = queueing();
        let (steps, output) = (self.steps.len(), [self.graph.output]);
        let to =
            some.map_or(steps, |some| fewer_from(&self.graph, some, self.infos.iter()).max(self.before(&live.cut).0));
        let thin = |t: Tensor| match some {
            Some(Every { every, .. }) if t.dim(1)? < every => {
                candle_core::bail!("one in {every} tokens is asked of fewer")
            }
            Some(Every { every, .. }) => rows(&t, every),
            None => Ok(t),
        };
        let out = if to < steps {
            let crossing = self.crossing(to);
            let values = self.resume(live, to, &crossing)?.into_iter().map(thin);
            let values = values.collect::<candle_core::Result<Vec<_>>>()?;
            self.execute(to..steps, crossing.into_iter().zip(values).collect(), &output, None)?.swap_remove(0)
        } else {
            thin(self.resume(live, steps, &output)?.swap_remove(0))?
        };
        self.device.synchronize()?;
        Ok(out)
    }
}
