//! The plain data of a group: all parameter axes that must be pruned together.

use crate::graph::{ParamRole, Span};
use serde::{Deserialize, Serialize};

/// What the units of a group are, for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupKind {
    /// Inner channels of a block or a plain chain.
    Channels,
    /// Channels shared by a residual stream.
    Residual,
    /// MLP hidden neurons.
    Neurons,
    /// Attention heads.
    Heads,
    /// Embedding width.
    Width,
    /// Whole experts of a mixture.
    Experts,
}

/// Which side of the coupling a member axis is on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemberRole {
    /// Computes the units (conv rows, linear rows): its importance counts.
    Producer,
    /// Carries them along (norms).
    Follower,
    /// Reads them (input columns of the next layers).
    Consumer,
}

/// One parameter axis of one node. Unit `u` of the group owns, on this axis, the index ranges of its [`Span`]
/// (a fused qkv has three blocks; a plain channel has `width = 1, blocks = 1`).
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Member {
    pub node: String,
    /// The parameter roles cut along `axis` of this node (a conv's rows: weight and bias on axis 0).
    pub roles: Vec<ParamRole>,
    pub axis: usize,
    pub role: MemberRole,
    #[serde(flatten)]
    pub span: Span,
}

impl Member {
    /// The axis indices that unit `u` owns, ascending.
    pub fn indices(&self, u: usize) -> impl Iterator<Item = usize> + use<> {
        self.span.indices(u)
    }
}

/// The unit of structured pruning.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// Stable id: the first producer's node name.
    pub id: String,
    pub kind: GroupKind,
    /// Number of units (channels, neurons, heads).
    pub size: usize,
    /// Kept units are a multiple of this.
    pub granule: usize,
    pub members: Vec<Member>,
    /// Why this group must not be pruned, if so.
    pub protected: Option<String>,
    /// The block it lies in, if in one.
    pub block: Option<String>,
}

impl Group {
    /// Units kept at `ratio` removed: a multiple of the granule, at least one granule, at most all.
    pub fn kept_at(&self, ratio: f64) -> usize {
        let ratio = if ratio.is_finite() { ratio.clamp(0.0, 1.0) } else { 0.0 };
        let g = self.granule.max(1).min(self.size.max(1));
        let want = self.size as f64 * (1.0 - ratio);
        (((want / g as f64).round() as usize) * g).clamp(g, self.size)
    }

    /// The ratio that `kept` units amount to.
    pub fn ratio_of(&self, kept: usize) -> f64 {
        1.0 - kept as f64 / self.size.max(1) as f64
    }
}
