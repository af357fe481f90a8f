//! What can go wrong when a graph is compiled or run: every message names the node, its op and the shapes.

use crate::graph::op::Dim;
use crate::graph::{GraphError, Node, ParamRole};
use crate::model::ParamError;
use crate::words::TensorError;

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
    #[error(
        "node `{node}`: {precision} cannot hold the values of `{param}`, which go up to {largest:e}; hint: bf16 or f32 can"
    )]
    Overflow { node: String, param: String, precision: &'static str, largest: f32 },
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
    #[error("device `{spec}`: {why}")]
    Device { spec: String, why: String },
    #[error("node `{node}` ({op}): {said}")]
    Candle { node: String, op: &'static str, said: TensorError },
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error("tensor library: {0}")]
    Tensor(TensorError),
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
    pub(crate) fn candle(node: &Node, error: candle_core::Error) -> ExecError {
        ExecError::at(node, explained(error))
    }

    /// What was reported of `node`.
    pub(crate) fn at(node: &Node, said: TensorError) -> ExecError {
        ExecError::Candle { node: node.name.clone(), op: node.op.traits().name, said }
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

/// What the tensor library says. A library on a GPU does not tell what befell it: the driver does, as long as the process lives.
fn explained(error: candle_core::Error) -> TensorError {
    #[cfg(feature = "cuda")]
    {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        if let Some(why) = line.contains("STATUS_").then(super::cuda::befallen).flatten() {
            return candle_core::Error::Cuda(format!("{line}, of which the driver says: {why}").into()).into();
        }
    }
    error.into()
}

impl From<candle_core::Error> for ExecError {
    fn from(e: candle_core::Error) -> ExecError {
        ExecError::Tensor(explained(e))
    }
}

fn join(dims: &[Dim]) -> String {
    dims.iter().map(Dim::to_string).collect::<Vec<_>>().join(", ")
}
