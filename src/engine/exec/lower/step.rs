//! What lowering makes: steps, the kernels that they run and the values that live between them.
//!
//! Not here: how they come about (`lower`), what a kernel computes (`exec::kernel`).

use crate::exec::cache::Past;
use crate::exec::kernel::{Par, split};
use crate::graph::{NodeId, Precision};

/// What a step is and what it holds; see the plan's documentation.
#[derive(Debug, Clone, PartialEq)]
pub struct StepInfo {
    /// The leading node's name.
    pub name: String,
    /// The leading node.
    pub node: NodeId,
    /// Short kind for people: `conv 3x3/2`, `linear`.
    pub kind: String,
    /// Names of the nodes that run inside this step besides the leading one, in order; the last one's value is the
    /// step's output.
    pub fused: Vec<String>,
    /// The kernel that runs, e.g. `conv-f32/avx512`, `gemm-u8i8/vnni`; `gemm-f32/avx512 (w4 unpacked)` where weights are
    /// stored in fewer bits than are multiplied.
    pub kernel: String,
    pub precision: Precision,
    /// Bytes of this step's parameters as stored: weights, scales, biases (batch norms folded).
    pub weight_bytes: u64,
    /// Bytes of this step's parameters in memory when it runs: more than `weight_bytes` where they were unpacked.
    pub held_bytes: u64,
    /// Output shape without batch, as the last node's op documents it; where the number of tokens is free, for the fewest
    /// that the graph takes.
    pub out_shape: Vec<usize>,
}

/// A value that lives between steps, channels-last. How large it is and where it lies: `exec::sizes`.
#[derive(Debug, Clone)]
pub(crate) struct Value {
    /// The node that it was made for; others may go by the same value.
    pub node: NodeId,
    /// Step that writes it; `None` for the input.
    pub step: Option<usize>,
}

/// Computes a step's output for one chunk of images.
pub(crate) type Kernel = Box<dyn Fn(&Call<'_, '_>, &mut [f32]) + Send + Sync>;

/// What a kernel is called with.
pub(crate) struct Call<'c, 'a> {
    pub step: &'c Step,
    /// Values of the chunk, by their number.
    pub get: &'c dyn Fn(usize) -> &'a [f32],
    pub images: usize,
    /// What went before the tokens of each image, when they come one after the other.
    pub past: Option<Past<'c>>,
    pub par: Par<'c>,
}

impl<'a> Call<'_, 'a> {
    /// The step's input `i`; a step has one at least.
    pub fn input(&self, i: usize) -> &'a [f32] {
        (self.get)(self.step.inputs[i])
    }

    pub fn residual(&self) -> Option<&'a [f32]> {
        self.step.residual.map(self.get)
    }

    /// Rows of an image of the first input: pixels or tokens, however many there are. No kernel knows their number before.
    pub fn rows(&self, width: usize) -> usize {
        self.input(0).len() / (self.images * width).max(1)
    }

    /// Values of a band of whole rows, when one chunk has all threads.
    pub fn band(&self, width: usize, len: usize) -> usize {
        width * (len / width.max(1)).div_ceil(self.par.threads()).max(1)
    }

    /// Calls `f` for bands of rows of `width` values of the first input, and where they go.
    pub fn by_rows(&self, width: usize, out: &mut [f32], f: impl Fn(&[f32], &mut [f32]) + Sync) {
        let (x, len) = (self.input(0), self.band(width, out.len()));
        split(self.par, out, len, |i, out| f(&x[i * len..][..out.len()], out));
    }

    /// Calls `f` for bands of both inputs, value by value.
    pub fn by_values(&self, out: &mut [f32], f: impl Fn(&[f32], &[f32], &mut [f32]) + Sync) {
        let (x, y, len) = (self.input(0), self.input(1), self.band(1, out.len()));
        split(self.par, out, len, |i, out| f(&x[i * len..][..out.len()], &y[i * len..][..out.len()], out));
    }
}

pub(crate) struct Step {
    pub info: StepInfo,
    pub kernel: Kernel,
    pub inputs: Vec<usize>,
    pub residual: Option<usize>,
    pub out: usize,
    /// The last node fused in; steps ascend in it.
    pub last: NodeId,
}

pub(crate) struct Lowered {
    pub steps: Vec<Step>,
    pub values: Vec<Value>,
    /// Per node: its value, when its output exists between steps.
    pub value_of: Vec<Option<usize>>,
}
