//! What lowering makes: steps, the kernels that they run and the values that live between them.
//!
//! Not here: how they come about (`lower`), what a kernel computes (`exec::kernel`).

use crate::exec::arena::Life;
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
    /// Output shape without batch, as the last node's op documents it.
    pub out_shape: Vec<usize>,
}

/// A value that lives between steps, channels-last.
#[derive(Debug, Clone)]
pub(crate) struct Value {
    /// Elements for one image.
    pub numel: usize,
    /// Its first element in an arena for one image; an arena for `n` images is the same `n` times as large.
    pub at: usize,
    /// Step that writes it; `None` for the input.
    pub step: Option<usize>,
}

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
    /// Mean over `rows` from `skip` on.
    Mean {
        rows: usize,
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
        rows: usize,
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
    Attention {
        core: Attention,
        fused: bool,
        around: Option<Around>,
    },
    Select {
        rows: usize,
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
    pub shapes: Vec<Vec<usize>>,
    /// Elements of the arena for one image.
    pub arena: usize,
    /// Elements of the largest set of values alive at once, for one image.
    pub live: usize,
}

impl Lowered {
    /// When each value is alive: from the step that writes it to the last that reads it, the output to the end.
    pub fn lives(&self, output: NodeId) -> Vec<Life> {
        let of = |v: &Value| {
            let first = v.step.unwrap_or(0);
            Life { numel: v.numel, first, last: first }
        };
        let mut lives: Vec<Life> = self.values.iter().map(of).collect();
        for (i, s) in self.steps.iter().enumerate() {
            s.inputs.iter().chain(&s.residual).for_each(|&v| lives[v].last = i);
        }
        if let Some(v) = self.value_of[output.index()] {
            lives[v].last = self.steps.len();
        }
        lives
    }
}
