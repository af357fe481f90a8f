//! What a plan asks of whoever executes it, and what passes between the two.
//!
//! Not here: who executes (`cpu`, `candle`), and which of them does (`plan` chooses when it compiles). Invariants:
//! nothing changes a backend, so threads may share it: a run writes to the [`State`] that it is given; inputs have been
//! checked against the graph before they come here.

use super::cache::Past;
use super::candle::Kept;
use super::decode::Wanted;
use super::error::Result;
use super::kernel::cached::KvFormat;
use super::lower::StepInfo;
use super::replay::{Launch, Replays};
use super::run::{Arenas, Times};
use super::sizes::Known;
use crate::graph::{Binding, NodeId};
use candle_core::Tensor;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Executes the steps of one compiled graph.
pub(super) trait Backend: Send + Sync {
    /// What its steps are, in the order they run.
    fn steps(&self) -> Vec<StepInfo>;

    /// Threads that share a batch.
    fn threads(&self) -> usize;

    /// What values between steps take under `binding`, where that is planned.
    fn activations(&self, binding: Binding) -> Result<Option<ActivationMemory>>;

    /// Whether a run makes the value of node `id`.
    fn makes(&self, id: NodeId) -> bool;

    /// Runs a batch and returns the values of `ids`, shaped as their ops document; all is done when it returns. With `times`
    /// it says what every step took.
    fn run(&self, state: &mut State, x: &Tensor, ids: &[NodeId], times: Times<'_>) -> Result<Vec<Tensor>>;

    /// How timed runs of a batch like `x` for the value of `id` will be given to the device; on a GPU, the first time, captures
    /// what is to be replayed.
    fn prepare_timed(&self, _: &mut State, _x: &Tensor, _id: NodeId) -> Result<Launch> {
        Ok(Launch::Host)
    }

    /// As [`Backend::run`] for one value, and what the run took by the device's clock, given to it as
    /// [`Backend::prepare_timed`] says.
    fn run_timed(&self, state: &mut State, x: &Tensor, id: NodeId) -> Result<(Tensor, Duration)> {
        let start = Instant::now();
        let out = self.run(state, x, &[id], None)?.swap_remove(0);
        Ok((out, start.elapsed()))
    }

    /// Why it does not go token by token with keys and values in `format`, if so.
    fn decodes(&self, format: KvFormat) -> Result<(), String>;

    /// Runs tokens `x`, `[sequences, tokens]`, after those of `past`, to which it adds theirs; the outputs that are wanted,
    /// `[sequences, tokens, ..]` on the CPU.
    fn decode(&self, state: &mut State, past: Past<'_>, x: &Tensor, wanted: Wanted, times: Times<'_>)
    -> Result<Tensor>;

    /// Runs a batch up to `cut` and returns the values that cross it.
    fn run_to(&self, state: &mut State, x: &Tensor, cut: &Cut) -> Result<Live>;

    /// Goes on from the values that cross a cut to a later one, and returns those that cross that.
    fn run_on(&self, state: &mut State, live: &Live, cut: &Cut) -> Result<Live>;

    /// Finishes a batch from the values that cross a cut and returns the graph's output, of the tokens of `some` where it is given; all is
    /// done when it returns.
    fn run_from(&self, state: &mut State, live: &Live, some: Option<Every>) -> Result<Tensor>;
}

/// What runs may change, kept from one run of a session to its next; each backend writes what it has use for. No result
/// depends on it.
#[derive(Debug, Default)]
pub(super) struct State {
    /// What values between a CPU's steps lie in.
    pub arenas: Arc<Arenas>,
    /// How large they are for the numbers of tokens that came along.
    pub sizes: Known,
    /// What a GPU replays.
    pub replays: Replays<Captured>,
    /// Keys and values that the tensor library keeps of a decoder's sequences.
    pub kept: Arc<Mutex<Kept>>,
}

impl State {
    /// One for another plan over the same sequences: values in the same memory, the same keys and values.
    pub fn beside(&self) -> State {
        State { arenas: self.arenas.clone(), kept: self.kept.clone(), ..State::default() }
    }
}

#[cfg(feature = "cuda")]
pub(super) use super::cuda::Captured;

/// Nothing is captured where there is no GPU.
#[cfg(not(feature = "cuda"))]
pub(super) type Captured = std::convert::Infallible;

/// The last of each `every` tokens of a sequence that may have any length. Those that are not asked for are left out from where tokens no
/// longer meet, and not before `after` was computed of all: what a layer rounds its inputs to may depend on all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Every {
    pub every: usize,
    pub after: Option<NodeId>,
}

/// A place between steps; see [`Plan::cut_before`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The node before which the cut lies: every node with a smaller id has run.
    pub node: String,
    pub(super) id: NodeId,
}

/// The values that cross a cut, for one batch. Valid for any plan whose graph has the same nodes and differs only at or
/// after the cut.
#[derive(Debug, Clone)]
pub struct Live {
    pub(super) cut: Cut,
    pub(super) images: usize,
    pub(super) bytes: u64,
    pub(super) values: LiveValues,
}

/// Values by node id, as the backend that made them keeps them.
#[derive(Debug, Clone)]
pub(super) enum LiveValues {
    /// In memory, channels-last, with the binding of their batch.
    Host(Binding, BTreeMap<NodeId, Arc<[f32]>>),
    Device(BTreeMap<NodeId, Tensor>),
}

impl Live {
    /// The values that cross `cut`, of so many images.
    pub(super) fn of(cut: &Cut, images: usize, values: LiveValues) -> Live {
        let elements: usize = match &values {
            LiveValues::Host(_, values) => values.values().map(|v| v.len()).sum(),
            LiveValues::Device(values) => values.values().map(Tensor::elem_count).sum(),
        };
        Live { cut: cut.clone(), images, bytes: 4 * elements as u64, values }
    }

    /// Bytes held.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Images in the batch.
    pub fn images(&self) -> usize {
        self.images
    }
}

/// Bytes of values between steps, for one image of a batch. As many images as run at once (a thread's chunk) each need
/// this much.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActivationMemory {
    /// The buffer that holds them, kept between the runs of a session.
    pub arena: u64,
    /// The largest set of values alive during one step, the input included: no arena can be smaller.
    pub largest_live: u64,
}
