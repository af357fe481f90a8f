//! Plain description of a data set.

use serde::{Deserialize, Serialize};

/// A data set as the session uses it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataCard {
    pub name: String,
    pub images: usize,
    pub classes: usize,
    pub class_names: Vec<String>,
    /// Path or `synthetic:SEED`, for re-opening.
    pub source: String,
    /// At most this many images are used (0: all).
    pub limit: usize,
}
