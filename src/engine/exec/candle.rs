//! Execution through candle: what every op computes, and what a GPU runs of it.
//!
//! There is one walk over steps (`walk`) and one definition of every op (`definition`, of the operations in `ops`), which
//! gradients go through. A differentiable pass (`pass`) walks a graph node by node with parameters that are given when it
//! runs; a compiled program (`program`, lowered by `build`) walks chains of nodes, and chooses for each a kernel with packed
//! parameters where there is one (`build`), else the definition. Images are `[n, c, h, w]`, tokens `[n, t, d]`.
//! Not here: CPU kernels (`kernel`), what is CUDA's own (`cuda`).

mod attention;
mod build;
mod cached;
mod clock;
mod definition;
mod dense;
mod dtypes;
mod experts;
mod fp8;
mod fused;
pub(super) mod geometry;
mod heads;
mod int8;
mod kernels;
mod ops;
mod own;
mod packed;
mod pass;
mod program;
#[cfg(feature = "cuda")]
mod replay;
mod rounding;
mod site;
mod walk;

pub(super) use build::has_kernel;
pub(super) use cached::Kept;
pub(crate) use clock::timed_on;
pub(super) use pass::define;
pub use pass::{Capture, forward, tensors};
pub(super) use program::Program;
pub use site::{BatchStats, Mode, Pass, TensorMap};

#[cfg(test)]
mod tests;
