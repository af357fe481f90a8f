//! What lowering makes: steps, the kernels that they run and the values that live between them.
//!
//! Not here: how they come about (`lower`), what a kernel computes (`exec::kernel`).

use crate::exec::kernel::attention::Attention;
use crate::exec::kernel::dense::Dense;
use crate::exec::kernel::simple::Pool;
use crate::exec::kernel::window::Around;
use crate::graph::{Activation, NodeId, Precision};

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

// What a kernel can count in its input (tokens of a sequence) is not in here: a batch may have any number.
//
// A plan has one of these a step, made once: boxing the largest would save nothing.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Kernel {
    Dense(Dense),
    Affine {
        scale: Vec<f32>,
        shift: Vec<f32>,
        act: Option<Activation>,
    },
    LayerNorm {
        w: Vec<f32>,
        b: Vec<f32>,
        eps: f32,
    },
    Activation(Activation),
    Add {
        act: Option<Activation>,
    },
    MaxPool(Pool),
    /// Mean over an image's rows from `skip` on.
    Mean {
        skip: usize,
        channels: usize,
    },
    ChannelPad {
        pool: Pool,
        map: Vec<Option<u32>>,
    },
    RmsNorm {
        w: Vec<f32>,
        eps: f32,
    },
    Softmax {
        width: usize,
    },
    Mul,
    /// The second input has one row of factors an image.
    MulRows {
        channels: usize,
    },
    Scalar {
        mul: f32,
        add: f32,
    },
    AvgPool {
        pool: Pool,
        count_padding: bool,
    },
    AdaptivePool(Pool),
    Concat {
        widths: Vec<usize>,
    },
    Flatten {
        channels: usize,
        positions: usize,
    },
    PatchMerge {
        grid: [usize; 2],
        width: usize,
    },
    /// Puts learned tokens before value `at` of an image.
    Insert {
        tokens: Vec<f32>,
        at: usize,
    },
    Positions(Vec<f32>),
    /// Without `windowed` over all tokens that there are, whatever `core` says.
    Attention {
        core: Attention,
        fused: bool,
        windowed: bool,
        around: Option<Around>,
    },
    /// Rows of a table of `dim` columns, by their numbers.
    Gather {
        table: Vec<f32>,
        dim: usize,
    },
    Select {
        index: usize,
        channels: usize,
    },
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
