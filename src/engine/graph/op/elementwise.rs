//! Value by value: activations, sums, products, factors.

use super::activation::Activation;
use super::facts::{Facts, Traits, channels, traits, width};
use super::numbers::exact;
use crate::graph::role::ParamRole::{self, Weight};
use serde::{Deserialize, Serialize};

/// Elementwise sum of two equal shapes.
pub(super) struct Add;

/// Elementwise product of two equal shapes, or of an image or tokens with a vector `[channels]` as second input.
pub(super) struct Mul;

/// A learned factor per channel (layer scale; Touvron et al. 2021).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Scale {
    pub channels: usize,
}

/// `x · mul + add`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scalar {
    #[serde(with = "exact")]
    pub mul: f64,
    #[serde(with = "exact")]
    pub add: f64,
}

impl Facts for Activation {
    fn traits(&self) -> Traits {
        let (kind, word) = self.words();
        Traits { kind, per_token: true, per_channel: true, half: true, ..Traits::of("activation", word) }
    }
}

impl Facts for Add {
    traits!("add", "add", per_token, per_channel, half);

    fn arity(&self) -> usize {
        2
    }

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        if ins[0] == ins[1] { Ok(ins[0].to_vec()) } else { Err("both sides must have one shape".into()) }
    }
}

impl Facts for Mul {
    // Not token by token: the second factor may be one row for all of them.
    traits!("multiply", "mul", per_channel, half);

    fn arity(&self) -> usize {
        2
    }

    fn shape(&self, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        if ins[0] == ins[1] || *ins[1] == [channels(ins[0])] {
            Ok(ins[0].to_vec())
        } else {
            Err("both sides must have one shape, or the second be a factor per channel".into())
        }
    }

    /// One row for all tokens is made by something that sees them all, which says so itself.
    fn causal(&self) -> bool {
        true
    }
}

impl Facts for Scale {
    traits!("layer scale", "scale", per_token, per_channel);

    fn params(&self) -> Vec<(ParamRole, Vec<usize>)> {
        vec![(Weight, vec![self.channels])]
    }

    width!(0: channels);
}

impl Facts for Scalar {
    traits!("scalar", "scalar", per_token, per_channel);
}
