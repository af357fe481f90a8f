//! What can go wrong when a graph is compiled or run: every message names the node, its op and the shapes.

use crate::graph::op::Dim;
use crate::graph::{GraphError, Node, ParamRole};
use crate::model::ParamError;

/// What this room gives, or its own error.
pub type Result<T, E = ExecError> = std::result::Result<T, E>;

/// A failure of compilation or execution.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    #[error("node `{node}` ({op}): {source}")]
    Param { node: String, op: &'static str, source: ParamError },
    #[error("node `{node}` ({op}) has no {role} parameter; hint: the graph and the checkpoint disagree")]
    NoParam { node: String, op: &'static str, role: &'static str },
    #[error("node `{node}` ({op}) got {found}, expected {expected}")]
    Shape { node: String, op: &'static str, found: String, expected: String },
    #[error("node `{node}`: tensor `{param}` holds NaN or infinite values; hint: the checkpoint is damaged")]
    NonFinite { node: String, param: String },
    #[error("node `{node}` ({op}): {what}")]
    Unsupported { node: String, op: &'static str, what: String },
    #[error("the graph has no node `{name}`; hint: {hint}")]
    UnknownNode { name: String, hint: String },
    #[error("the input has shape {found:?}, expected [N, {}]; hint: check the preprocessing size", join(.expected))]
    Input { found: Vec<usize>, expected: Vec<Dim> },
    #[error(
        "the input `{node}` has the token id {id} (token {} of sequence {}), but its vocabulary has {vocab}; hint: is this \
         the model's own tokenizer?",
        .place[1], .place[0]
    )]
    Id { node: String, id: i64, place: [usize; 2], vocab: usize },
    #[error("device `{spec}`: {why}; hint: use `cpu`, `cuda:0` or `auto`")]
    Device { spec: String, why: String },
    #[error("node `{node}` ({op}): {}", said(source))]
    Candle { node: String, op: &'static str, source: candle_core::Error },
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error("tensor library: {}", said(.0))]
    Tensor(#[from] candle_core::Error),
}

impl ExecError {
    /// A shape complaint about `node`.
    pub(crate) fn shape(node: &Node, found: impl std::fmt::Debug, expected: impl Into<String>) -> ExecError {
        ExecError::Shape {
            node: node.name.clone(),
            op: node.op.traits().name,
            found: format!("{found:?}"),
            expected: expected.into(),
        }
    }

    pub(crate) fn param(node: &Node, source: ParamError) -> ExecError {
        ExecError::Param { node: node.name.clone(), op: node.op.traits().name, source }
    }

    /// What the tensor library reports of `node`.
    pub(crate) fn candle(node: &Node, source: candle_core::Error) -> ExecError {
        ExecError::Candle { node: node.name.clone(), op: node.op.traits().name, source }
    }

    pub(crate) fn no_param(node: &Node, role: ParamRole) -> ExecError {
        ExecError::NoParam { node: node.name.clone(), op: node.op.traits().name, role: role_name(role) }
    }

    pub(crate) fn unsupported(node: &Node, what: impl Into<String>) -> ExecError {
        ExecError::Unsupported { node: node.name.clone(), op: node.op.traits().name, what: what.into() }
    }
}

fn role_name(role: ParamRole) -> &'static str {
    match role {
        ParamRole::Weight => "weight",
        ParamRole::Bias => "bias",
        ParamRole::Mean => "running mean",
        ParamRole::Var => "running variance",
        ParamRole::Embedding => "embedding",
        ParamRole::PositionBias => "position bias",
        ParamRole::LogitScale => "logit scale",
        ParamRole::PositionMlp1 => "first position weight",
        ParamRole::PositionMlp1Bias => "first position bias",
        ParamRole::PositionMlp2 => "second position weight",
    }
}

/// What the tensor library says, in one line (it may append a backtrace), and the way out where a GPU has failed.
fn said(error: &candle_core::Error) -> String {
    // After any of these every call of the process is answered alike (CUDA driver API, "CUresult").
    const LOST: [&str; 9] = [
        "CUDA_ERROR_ILLEGAL_ADDRESS",
        "CUDA_ERROR_MISALIGNED_ADDRESS",
        "CUDA_ERROR_ILLEGAL_INSTRUCTION",
        "CUDA_ERROR_LAUNCH_FAILED",
        "CUDA_ERROR_LAUNCH_TIMEOUT",
        "CUDA_ERROR_HARDWARE_STACK_ERROR",
        "CUDA_ERROR_ECC_UNCORRECTABLE",
        "CUDA_ERROR_UNKNOWN",
        "STATUS_EXECUTION_FAILED",
    ];
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default();
    let hint = if LOST.iter().any(|l| line.contains(l)) {
        "; hint: the GPU is lost to this process; `paring stop` the session and open it again, what was approved is kept \
         (`nvidia-smi` and `dmesg` tell more of the GPU)"
    } else if line.contains("CUDA_ERROR_OUT_OF_MEMORY") {
        "; hint: `nvidia-smi` tells who else holds the GPU's memory; a smaller --batch needs less"
    } else {
        ""
    };
    format!("{line}{hint}")
}

fn join(dims: &[Dim]) -> String {
    dims.iter().map(Dim::to_string).collect::<Vec<_>>().join(", ")
}
