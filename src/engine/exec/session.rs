//! [`Session`]: the runs of a plan, and what changes while they run.
//!
//! Not here: what was compiled (`plan`), how steps run (`cpu`, `candle`). The word is the field's (ONNX Runtime's session,
//! TensorRT's execution context); what a program calls a session, work that is kept in a journal, is unknown to the engine.
//! Invariant: a plan's results do not depend on the session that runs it.

use super::backend::{Cut, Every, Live, State};
use super::error::{ExecError, Result};
use super::input;
use super::plan::Plan;
use super::replay::Launch;
use super::run::Times;
use crate::graph::{Binding, NodeId, shapes_at};
use candle_core::Tensor;
use std::collections::HashMap;
use std::time::Duration;

/// Told about every step of an observed run, in order, after the run.
pub trait Observer {
    /// Step `index` of [`Plan::steps`] took `elapsed` for the batch and wrote `out_bytes`: wall time on a CPU (the mean over
    /// the threads that shared it), the time between two events of the stream on a GPU.
    fn step(&mut self, index: usize, elapsed: Duration, out_bytes: u64);
}

impl Plan {
    /// What runs this plan: keep one to run it more than once.
    pub fn session(&self) -> Session {
        Session { plan: self.clone(), state: State::default() }
    }

    /// One batch through a session of its own.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run(&self, x: &Tensor) -> Result<Tensor> {
        self.session().run(x)
    }
}

/// Runs one plan, one batch after the other, and keeps the memory that their values lie in from run to run. Whoever runs a
/// plan more than once keeps one; those of one plan may run at the same time.
#[derive(Debug)]
pub struct Session {
    plan: Plan,
    state: State,
}

impl Session {
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Keeps values in the same memory as `other` from now on, as the layers of one plan do among themselves.
    pub(crate) fn share_arenas(&mut self, other: &Session) {
        self.state.arenas = other.state.arenas.clone();
    }

    /// Runs a batch `[N, C, H, W]` (or whatever else the graph's input takes, the batch axis first: `[N, tokens, width]`,
    /// whole-number ids `[N, tokens]`) and returns `[N, classes]`. The result is complete when this returns, on a GPU too (the
    /// device is waited for), so a clock around it tells what the run took.
    ///
    /// # Errors
    /// An input of another shape; a number of tokens that some op does not take; ids beyond the vocabulary; what the tensor
    /// library reports.
    pub fn run(&mut self, x: &Tensor) -> Result<Tensor> {
        Ok(self.run_fetch(x, &[self.plan.graph().output], None)?.swap_remove(0))
    }

    /// How [`Session::run_timed`] will run batches like `x`. On a GPU, the first time for a batch of this shape, it captures the
    /// whole forward pass from the stream into a CUDA graph; what cannot be captured, or computes other bits when it is replayed,
    /// will be launched kernel by kernel, and the answer says why. No more than a few graphs are kept.
    ///
    /// # Errors
    /// As [`Session::run`]: what has failed is the run itself. A capture that fails is no error.
    pub fn prepare_timed(&mut self, x: &Tensor) -> Result<Launch> {
        self.check_input(x)?;
        self.plan.backend.prepare_timed(&mut self.state, x, self.plan.graph().output)
    }

    /// Timed runs on a GPU are launched kernel by kernel from now on, and `why`: as those of another plan that they are
    /// compared with.
    pub fn launch_eagerly(&mut self, why: &str) {
        self.state.replays.never(why.into());
    }

    /// As [`Session::run`], and what it took by the device's clock: the host's on a CPU, two events on a GPU, around one launch of
    /// the graph or around all that was queued, as [`Session::prepare_timed`] says (and does, where nobody asked before). What a
    /// host takes to notice the end is no part of it. The result has the same bits either way.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run_timed(&mut self, x: &Tensor) -> Result<(Tensor, Duration)> {
        self.check_input(x)?;
        self.plan.backend.run_timed(&mut self.state, x, self.plan.graph().output)
    }

    /// As [`Session::run`], and tells `observer` what every step took.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run_observed(&mut self, x: &Tensor, observer: &mut dyn Observer) -> Result<Tensor> {
        let mut times = vec![Duration::ZERO; self.plan.steps().len()];
        let out = self.run_fetch(x, &[self.plan.graph().output], Some(&mut times))?.swap_remove(0);
        let graph = self.plan.graph();
        let images = x.dims().first().copied().unwrap_or(0) as u64;
        // The shapes for this batch, where they are not those of every batch.
        let free = match input::binding(graph, x)? {
            Binding { tokens: None } => None,
            binding => Some(shapes_at(graph, binding)?),
        };
        for (i, (step, t)) in self.plan.steps().iter().zip(times).enumerate() {
            // A step makes the value of its last node.
            let last = || graph.by_name(step.fused.last().unwrap_or(&step.name));
            let shape = free.as_ref().and_then(|shapes| shapes.get(last()?.index())).unwrap_or(&step.out_shape);
            observer.step(i, t, 4 * images * shape.iter().product::<usize>() as u64);
        }
        Ok(out)
    }

    /// Runs a batch and also returns the outputs of the named nodes, shaped as their ops document (batch axis first).
    ///
    /// # Errors
    /// As [`Session::run`]; a name that is no node's or that was fused away because it is not in `keep`.
    pub fn capture(&mut self, x: &Tensor, names: &[&str]) -> Result<(Tensor, HashMap<String, Tensor>)> {
        let mut ids = names.iter().map(|n| self.id(n)).collect::<Result<Vec<_>, _>>()?;
        ids.push(self.plan.graph().output);
        let mut out = self.run_fetch(x, &ids, None)?;
        let logits = out.swap_remove(ids.len() - 1);
        Ok((logits, names.iter().map(|n| (*n).to_owned()).zip(out).collect()))
    }

    /// Runs a batch up to `cut` and returns the values that cross it.
    ///
    /// # Errors
    /// As [`Session::run`].
    pub fn run_to(&mut self, x: &Tensor, cut: &Cut) -> Result<Live> {
        self.check_input(x)?;
        self.plan.backend.run_to(&mut self.state, x, cut)
    }

    /// Goes on from what [`Session::run_to`] returned to a later cut, and returns the values that cross that.
    ///
    /// # Errors
    /// As [`Session::run_from`].
    pub fn run_on(&mut self, live: &Live, cut: &Cut) -> Result<Live> {
        self.plan.backend.run_on(&mut self.state, live, cut)
    }

    /// Finishes a batch from what [`Session::run_to`] of this or another plan returned.
    ///
    /// # Errors
    /// A live value is missing or of another size: the plans differ before the cut.
    pub fn run_from(&mut self, live: &Live) -> Result<Tensor> {
        self.plan.backend.run_from(&mut self.state, live, None)
    }

    /// As [`Session::run_from`], for some tokens of every sequence: `[N, tokens / every, …]`, the rows that the whole output has for them.
    ///
    /// # Errors
    /// As [`Session::run_from`]; sequences of a fixed length, or shorter than `every`.
    pub fn run_from_every(&mut self, live: &Live, some: Every) -> Result<Tensor> {
        let some = Some(some).filter(|s| s.every > 1);
        self.plan.backend.run_from(&mut self.state, live, some)
    }

    fn id(&self, name: &str) -> Result<NodeId> {
        let unknown = |hint: &str| ExecError::UnknownNode { name: name.to_owned(), hint: hint.into() };
        let id = self.plan.graph().by_name(name).ok_or_else(|| unknown("captures take node names"))?;
        if !self.plan.backend.makes(id) {
            return Err(unknown("its output was fused away or is not computed; compile with it in `keep`"));
        }
        Ok(id)
    }

    fn check_input(&self, x: &Tensor) -> Result<()> {
        let (node, taken) = input::of(self.plan.graph())?;
        input::check(node, taken, x).map(drop)
    }

    fn run_fetch(&mut self, x: &Tensor, ids: &[NodeId], times: Times<'_>) -> Result<Vec<Tensor>> {
        self.check_input(x)?;
        self.plan.backend.run(&mut self.state, x, ids, times)
    }
}
