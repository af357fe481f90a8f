//! Whole passes that a GPU replays: captured once a batch's shape from the device's stream, held against a pass that was
//! launched kernel by kernel, and replayed by one launch.
//!
//! Memory: the input and the result lie in tensors that were made before the capture, so their addresses stay; what lies
//! between is allocated and freed by nodes of the graph. Shapes and strides that the tensor library copies to the device
//! for some of its kernels are kept there from the run before (`enable_cuda_graph_htod_cache`): a graph that reads the host's
//! memory when it is replayed reads what is no longer there, and is refused.
//!
//! Not here: the driver's calls (`cuda/graph`), which batches are kept (`exec/replay`).

use super::clock::Clock;
use super::program::Program;
use crate::exec::backend::State;
use crate::exec::cuda::{self, Captured, Recorded};
use crate::exec::error::{ExecError, Result};
use crate::exec::memory::OutOfMemory;
use crate::exec::replay::{Key, Launch, capturing, queueing};
use crate::graph::NodeId;
use crate::words::unwound;
use candle_core::{CudaDevice, Device, Tensor};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// A graph, or why a pass cannot be replayed.
type Known = std::result::Result<Captured, Arc<str>>;

fn key(x: &Tensor, out: NodeId) -> Key {
    Key { dims: x.dims().to_vec(), out, thread: std::thread::current().id() }
}

impl Program {
    /// See [`crate::exec::Session::prepare_timed`].
    pub(super) fn prepare_replay(&self, state: &mut State, x: &Tensor, id: NodeId) -> Result<Launch> {
        let Device::Cuda(device) = &self.device else { return Ok(Launch::Host) };
        let key = key(x, id);
        if state.replays.get(&key).is_none() {
            state.replays.make_room();
            let known = self.capture(device, x, id)?;
            state.replays.keep(key.clone(), known);
        }
        Ok(match state.replays.get(&key) {
            Some(Err(why)) => Launch::Eager(why),
            Some(Ok(_)) | None => Launch::Replayed,
        })
    }

    /// One replay and what it took, from the launch's begin to the last kernel's end; `None` where there is nothing to replay.
    ///
    /// # Errors
    /// What the device reports, of the replay or of the run before a capture.
    pub(super) fn replay(&self, state: &mut State, x: &Tensor, id: NodeId) -> Result<Option<(Tensor, Duration)>> {
        if !self.prepare_replay(state, x, id)?.is_replayed() {
            return Ok(None);
        }
        let key = key(x, id);
        let Some(Ok(graph)) = state.replays.get(&key) else { return Ok(None) };
        let done = self.launch(graph, x);
        if done.is_err() {
            state.replays.forget(&key);
        }
        done.map(Some)
    }

    fn launch(&self, graph: &mut Captured, x: &Tensor) -> Result<(Tensor, Duration)> {
        let _queueing = queueing();
        let x = self.fed(x)?;
        cuda::copy(&x, &graph.input)?;
        let mut clock = Clock::start(&self.device)?;
        graph.launch()?;
        clock.mark()?;
        // The next replay writes over it.
        let out = graph.output.copy()?;
        Ok((out, clock.stop()?.into_iter().sum()))
    }

    /// The value that steps begin with, for this batch.
    fn fed(&self, x: &Tensor) -> Result<Tensor> {
        let missing = || ExecError::UnknownNode { name: "input".into(), hint: "nothing was fed".into() };
        self.feeds(x)?.remove(&self.input).ok_or_else(missing)
    }

    /// Captures the pass of a batch like `x`.
    ///
    /// # Errors
    /// Of the run before it, which is launched kernel by kernel.
    fn capture(&self, device: &CudaDevice, x: &Tensor, id: NodeId) -> Result<Known> {
        let _alone = capturing();
        // Not by way of what is kept: a batch is not the same bytes twice.
        let fed = self.fed(x)?;
        let _params_stay = device.enable_cuda_graph_htod_cache();
        // Loads modules, plans products, and leaves shapes and strides on the device. The tensor library panics where it has no
        // room for a copy of those.
        let first = || self.execute(0..self.steps.len(), BTreeMap::from([(self.input, fed.clone())]), &[id], None);
        let wanted = match unwound(first) {
            Ok(values) => values?.swap_remove(0).contiguous()?,
            Err(panicked) => return Err(candle_core::Error::Cuda(panicked.into()).into()),
        };
        // What a run does not need: that there is no room for it takes nothing from the run.
        let (input, output) = match fed.copy().and_then(|input| Ok((input, wanted.zeros_like()?))) {
            Err(e) if e.is_out_of_memory() => {
                return Ok(Err("the device has no memory for a second input and result".into()));
            }
            made => made?,
        };
        let feeds = || BTreeMap::from([(self.input, input.clone())]);
        self.device.synchronize()?;
        let pass = || -> Result<()> {
            let out = self.execute(0..self.steps.len(), feeds(), &[id], None)?.swap_remove(0).contiguous()?;
            Ok(cuda::copy(&out, &output)?)
        };
        let recorded = match cuda::record(device, pass) {
            Ok(recorded) => recorded,
            Err(why) => return Ok(Err(format!("it cannot be captured: {}", first_line(&why)).into())),
        };
        if let Some(what) = recorded.refusal() {
            let step = self.first_refused(device, &input);
            return Ok(Err(format!("it cannot be replayed: {step}{what}").into()));
        }
        let mut captured = recorded.with(input, output);
        Ok(match self.same_bits(&mut captured, &wanted) {
            Ok(true) => Ok(captured),
            Ok(false) => Err("its replay does not give the bits of a run that is launched kernel by kernel".into()),
            Err(why) => Err(format!("its replay failed: {}", first_line(&why)).into()),
        })
    }

    /// Whether two replays in a row (the second finds the first's memory freed) both write `wanted`.
    fn same_bits(&self, captured: &mut Captured, wanted: &Tensor) -> Result<bool> {
        let bits = |t: &Tensor| -> Result<Vec<u32>> {
            Ok(t.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
        };
        let nothing = Tensor::full(f32::NAN, wanted.shape(), wanted.device())?;
        let wanted = bits(wanted)?;
        for _ in 0..2 {
            // What was there before would pass for what should be written.
            cuda::copy(&nothing, &captured.output)?;
            captured.launch()?;
            self.device.synchronize()?;
            if bits(&captured.output)? != wanted {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The first step that makes a pass one that must not be replayed, in words: what its prefix holds decides, so halves are
    /// captured until it is found.
    fn first_refused(&self, device: &CudaDevice, input: &Tensor) -> String {
        let refused = |steps: usize| {
            let pass = || self.execute(0..steps, BTreeMap::from([(self.input, input.clone())]), &[], None).map(drop);
            cuda::record(device, pass).ok().as_ref().and_then(Recorded::refusal).is_some()
        };
        let (mut fine, mut bad) = (0, self.steps.len());
        while bad - fine > 1 {
            let middle = fine + (bad - fine) / 2;
            if refused(middle) { bad = middle } else { fine = middle }
        }
        match self.steps.get(fine) {
            Some(step) => format!("step `{}` ", self.graph.node(step.lead).name),
            None => "it ".to_owned(),
        }
    }
}

/// The tensor library may append a backtrace, and hints are for errors that end a run.
fn first_line(error: &ExecError) -> String {
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    line.split("; hint:").next().unwrap_or(line).to_owned()
}
