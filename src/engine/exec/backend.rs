//! What a plan asks of whoever executes it, and what passes between the two.
//!
//! Not here: who executes (`cpu`, `candle`), and which of them does (`plan` chooses when it compiles). Invariants: a run
//! changes nothing that a later run's results depend on, so a backend may be shared between threads; inputs have been
//! checked against the graph before they come here.

use super::error::ExecError;
use super::lower::StepInfo;
use super::run::Arenas;
use crate::graph::{Binding, NodeId};
use candle_core::Tensor;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Executes the steps of one compiled graph.
pub(super) trait Backend: Send + Sync {
    /// What its steps are, in the order they run.
    fn steps(&self) -> Vec<StepInfo>;

    /// Threads that share a batch.
    fn threads(&self) -> usize;

    /// What values between steps take under `binding`, where that is planned.
    fn activations(&self, binding: Binding) -> Result<Option<ActivationMemory>, ExecError>;

    /// Whether a run makes the value of node `id`.
    fn makes(&self, id: NodeId) -> bool;

    /// Runs a batch and returns the values of `ids`, shaped as their ops document; all is done when it returns. With `times`
    /// (one a step), says what every step took.
    fn run(&self, x: &Tensor, ids: &[NodeId], times: Option<&mut [Duration]>) -> Result<Vec<Tensor>, ExecError>;

    /// Runs a batch up to `cut` and returns the values that cross it.
    fn run_to(&self, x: &Tensor, cut: &Cut) -> Result<Live, ExecError>;

    /// Finishes a batch from the values that cross a cut and returns the graph's output; all is done when it returns.
    fn run_from(&self, live: &Live) -> Result<Tensor, ExecError>;

    /// The memory that values are kept in between runs, where runs share some.
    fn arenas(&self) -> Option<Arc<Arenas>> {
        None
    }

    /// Keeps values in `arenas` from now on, where runs share memory.
    fn keep_in(&mut self, _arenas: Arc<Arenas>) {}
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
    /// The buffer that holds them, kept between runs.
    pub arena: u64,
    /// The largest set of values alive during one step, the input included: no arena can be smaller.
    pub largest_live: u64,
}
