//! Compiled execution: a graph, its parameters and a precision plan become a [`Plan`] of steps over prepacked kernels.
//!
//! Not here: training (that is [`reference`], candle's differentiable operations), sampling statistics
//! (`profile`). Invariant: what a step reports as its kernel and stored bytes is what runs and is held.

mod arena;
mod backend;
mod cancel;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
pub mod device;
mod error;
mod fused;
mod input;
mod kernel;
mod lower;
mod memory;
mod plan;
mod program;
pub mod reference;
mod run;
mod sizes;
mod unfold;
mod version;

pub use backend::{ActivationMemory, Cut, Live};
pub use cancel::{Cancel, Cancelled};
pub use device::Kernels;
pub use device::{set_threads, threads};
pub use error::ExecError;
pub(crate) use kernel::peak::best;
pub use kernel::peak::{Peak, peak};
pub use lower::{Fusion, StepInfo, fusions};
pub use memory::{OutOfMemory, PeakMemory, PeakWatch, halving, smaller_batch};
pub use plan::{CompileOptions, Memory, Observer, Plan};
pub use program::gpu_runs;
pub use version::KERNELS;
