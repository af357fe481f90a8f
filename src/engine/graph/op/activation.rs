//! The elementwise activations by name.

use serde::{Deserialize, Serialize};

/// Elementwise activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// Exact GELU, `x/2 (1 + erf(x/√2))`.
    GeluErf,
    /// The tanh approximation of GELU.
    GeluTanh,
    /// `x · sigmoid(x)`, also called swish.
    Silu,
    Sigmoid,
    /// `relu6(x + 3) / 6`.
    HardSigmoid,
    /// `x · relu6(x + 3) / 6` (Howard et al. 2019).
    HardSwish,
    Tanh,
}

impl Activation {
    pub const ALL: [Activation; 9] = [
        Activation::Relu,
        Activation::Relu6,
        Activation::GeluErf,
        Activation::GeluTanh,
        Activation::Silu,
        Activation::Sigmoid,
        Activation::HardSigmoid,
        Activation::HardSwish,
        Activation::Tanh,
    ];

    pub fn label(self) -> &'static str {
        self.words().0
    }

    /// Its label, and the word that a node's name is made of.
    pub(super) fn words(self) -> (&'static str, &'static str) {
        match self {
            Activation::Relu => ("relu", "relu"),
            Activation::Relu6 => ("relu6", "relu6"),
            Activation::GeluErf => ("gelu", "gelu"),
            Activation::GeluTanh => ("gelu tanh", "gelu"),
            Activation::Silu => ("silu", "silu"),
            Activation::Sigmoid => ("sigmoid", "sigmoid"),
            Activation::HardSigmoid => ("hard sigmoid", "hardsigmoid"),
            Activation::HardSwish => ("hard swish", "hardswish"),
            Activation::Tanh => ("tanh", "tanh"),
        }
    }
}
