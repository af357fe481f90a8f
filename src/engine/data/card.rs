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

impl DataCard {
    /// Of all images of a set, by the names of its classes.
    pub(super) fn of(name: String, spec: &str, images: usize, class_names: Vec<String>) -> DataCard {
        DataCard { name, images, classes: class_names.len(), class_names, source: spec.to_owned(), limit: 0 }
    }
}
