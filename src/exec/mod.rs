//! Compiled execution: a graph, its parameters and a precision plan become a [`Plan`] of steps over prepacked kernels.
//!
//! Not here: training (that is [`reference`], candle's differentiable operations), sampling statistics
//! (`profile`). Invariant: what a step reports as its kernel and stored bytes is what runs and is held.

mod cancel;
mod error;
pub mod reference;
mod unfold;

pub use cancel::{Cancel, Cancelled};
pub use error::ExecError;
