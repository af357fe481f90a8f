//! Which precision each node computes in. The graph itself stays float.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What a conv or linear node computes in. Only precisions with a real kernel are listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Precision {
    #[default]
    F32,
    /// Dynamic int8: activations quantized at run time with one scale a row (linear) or image (convolution), weights
    /// symmetric per output channel, i32 accumulation.
    Int8,
}

impl Precision {
    pub const ALL: [Precision; 2] = [Precision::F32, Precision::Int8];

    pub fn label(self) -> &'static str {
        match self {
            Precision::F32 => "f32",
            Precision::Int8 => "int8",
        }
    }
}

/// Per-node precision by node name; absent means f32.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct PrecisionPlan {
    pub nodes: BTreeMap<String, Precision>,
}

impl PrecisionPlan {
    pub fn get(&self, node: &str) -> Precision {
        self.nodes.get(node).copied().unwrap_or_default()
    }

    pub fn set(&mut self, node: impl Into<String>, precision: Precision) {
        self.nodes.insert(node.into(), precision);
    }
}
