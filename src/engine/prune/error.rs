//! Why groups, importance or a set of actions were refused; every message names the culprit and a way out.

use crate::graph::GraphError;
use crate::model::ParamError;

/// What this room gives, or its own error.
pub type Result<T, E = PruneError> = std::result::Result<T, E>;

/// Why pruning was refused. Nothing has been changed when one of these is returned.
#[derive(Debug, thiserror::Error)]
pub enum PruneError {
    #[error("unknown {kind} `{name}`; hint: {hint}")]
    Unknown { kind: &'static str, name: String, hint: String },
    #[error("group `{group}` is protected: {reason}; hint: leave it as it is")]
    Protected { group: String, reason: String },
    #[error("ratio {ratio} for group `{group}` is not a number in [0, 1); hint: 0.25 removes a quarter")]
    Ratio { group: String, ratio: f64 },
    #[error("this would remove all {size} units of group `{group}`; hint: keep at least one, or remove its block")]
    Empty { group: String, size: usize },
    #[error("group `{group}` has no kept units yet; hint: resolve the ratio by importance before applying it")]
    Unresolved { group: String },
    #[error("kept unit {unit} of group `{group}` does not exist; hint: units are 0 to {last}")]
    KeptRange { group: String, unit: u32, last: usize },
    #[error("kept units of group `{group}` are not strictly ascending at {unit}; hint: sort them, each once")]
    KeptOrder { group: String, unit: u32 },
    #[error("block `{block}` cannot be removed: {reason}; hint: prune its inner channels instead")]
    NotRemovable { block: String, reason: String },
    #[error("`{node}` ({op}) has no precision to choose; hint: name a convolution or a linear layer")]
    NotQuantizable { node: String, op: String },
    #[error("{target} cannot take the action `{action}`; hint: {hint}")]
    Mismatch { target: String, action: &'static str, hint: &'static str },
    #[error(
        "group `{group}` does not fit this model: `{node}` has no axis {axis} of that length; hint: find groups on the graph they are applied to"
    )]
    Foreign { group: String, node: String, axis: usize },
    #[error("`{node}`: {why}")]
    Rank { node: String, why: String },
    #[error(
        "no low-rank factors of `{node}` were found; hint: are its weights numbers, and is none called like its halves?"
    )]
    NoFactors { node: String },
    #[error("no gradients were given for `{node}`; hint: this importance needs calibration images")]
    NoGradients { node: String },
    #[error(transparent)]
    Graph(#[from] GraphError),
    #[error(transparent)]
    Param(#[from] ParamError),
    #[error("gradients on calibration data: {0}")]
    Exec(String),
    #[error(transparent)]
    Cancelled(#[from] crate::exec::Cancelled),
}

/// `did you mean` help from the known names.
pub(super) fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let best = known.map(|k| (strsim::jaro_winkler(name, k), k)).max_by(|a, b| a.0.total_cmp(&b.0));
    match best {
        Some((score, k)) if score > 0.6 => format!("did you mean `{k}`?"),
        Some((_, k)) => format!("there is for example `{k}`"),
        None => "this model has none".to_owned(),
    }
}
