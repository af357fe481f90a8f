//! What a parameter tensor is to its node.

use serde::{Deserialize, Serialize};

/// What a parameter tensor is to its node; shapes are PyTorch's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParamRole {
    /// Conv `[out, in/groups, kh, kw]`, linear `[out, in]`, norm scale `[c]`.
    Weight,
    /// `[out]` or `[c]`.
    Bias,
    /// Batch-norm running mean `[c]`.
    Mean,
    /// Batch-norm running variance `[c]`.
    Var,
    /// Learned tokens `[1, count, dim]` or learned positions `[1, tokens, dim]`.
    Embedding,
    /// An attention core's position bias: a table `[(2h-1)·(2w-1), heads]` over relative positions, or `[heads, n, n]`.
    PositionBias,
    /// Cosine attention's logarithmic factor per head, `[heads, 1, 1]`.
    LogitScale,
    /// First layer of the network that makes a continuous position bias, `[hidden, 2]`, and its bias `[hidden]`.
    PositionMlp1,
    PositionMlp1Bias,
    /// Its second layer, `[heads, hidden]`.
    PositionMlp2,
}
