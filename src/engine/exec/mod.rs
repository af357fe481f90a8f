//! Compiled execution: a graph, its parameters and a precision plan become a [`Plan`] of steps over prepacked kernels,
//! which a [`Session`] runs.
//!
//! [`candle`] defines what every op computes, differentiably: training runs that, a GPU what is lowered from it, and CPU
//! kernels are held against it. Not here: trainers (`train`), sampling statistics (`profile`). Invariant: what a step
//! reports as its kernel and stored bytes is what runs and is held.

mod arena;
mod backend;
mod cache;
mod cancel;
pub mod candle;
mod capability;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod decode;
pub mod device;
mod error;
mod input;
mod kernel;
mod lower;
mod memory;
mod plan;
mod replay;
mod run;
mod session;
mod sizes;
pub mod tape;
mod unfold;
mod version;

pub use backend::{ActivationMemory, Cut, Every, Live};
pub use cache::most_in_turn;
pub use cancel::{Cancel, Cancelled};
pub(crate) use candle::timed_on;
pub use capability::{Capabilities, Support, Timing};
pub(crate) use decode::goes_alone;
pub use decode::{DecodeOptions, Decoder, rows};
pub use device::Kernels;
pub use device::{set_threads, threads};
pub use error::{ExecError, Result};
pub use kernel::cached::KvFormat;
pub(crate) use kernel::peak::best;
pub use kernel::peak::{Peak, peak};
pub use kernel::spread::Spread;
pub use lower::{Fusion, StepInfo, fusions};
pub use memory::{OutOfMemory, PeakMemory, PeakWatch, halving, smaller_batch};
pub use plan::{CompileOptions, Memory, Plan};
pub use replay::Launch;
pub use session::{Observer, Session};
pub use version::KERNELS;
