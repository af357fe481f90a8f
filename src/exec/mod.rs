//! Compiled execution: a graph, its parameters and a precision plan become a [`Plan`] of steps over prepacked kernels.
//!
//! Not here: training (that is `exec::reference`, candle's differentiable operations), sampling statistics
//! (`profile`). Invariant: what a step reports as its kernel and stored bytes is what runs and is held.

mod cancel;
pub mod reference;

pub use cancel::{Cancel, Cancelled};
