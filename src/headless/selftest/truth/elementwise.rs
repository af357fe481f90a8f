//! Ops on one element at a time, of one input or of two.

use super::site::{Expected, Site, U};
use crate::graph::{Activation, ParamRole, op};
use anyhow::Result;

pub(super) fn add(at: &Site<'_>) -> Result<Expected> {
    let (other, _) = at.other()?;
    Ok(at.x.pairs().zip(other.pairs()).map(|((a, s), (b, t))| (a + b, s + t + 2.0 * U * (a + b).abs())).collect())
}

pub(super) fn multiply(at: &Site<'_>) -> Result<Expected> {
    let (other, factor) = at.other()?;
    let (shape, last) = (at.shape, at.last());
    let each = shape.iter().product::<usize>();
    Ok(at.each(|i, a, s| {
        let j = match factor == shape {
            true => i,
            // A factor per channel of an image, or per column of tokens.
            false if shape.len() == 3 => i / each * shape[0] + i % each / (shape[1] * shape[2]),
            false => i / each * last + i % last,
        };
        let (b, t) = other.get(j);
        (a * b, s * b.abs() + t * a.abs() + s * t + 2.0 * U * (a * b).abs())
    }))
}

pub(super) fn scale(at: &Site<'_>, scale: &op::Scale) -> Result<Expected> {
    let w = at.param(ParamRole::Weight)?;
    Ok(at.each(|i, x, t| {
        let w = w[i % scale.channels];
        (x * w, w.abs() * t + 2.0 * U * (x * w).abs())
    }))
}

pub(super) fn scalar(at: &Site<'_>, op::Scalar { mul, add }: &op::Scalar) -> Expected {
    at.each(|_, x, t| (x * mul + add, mul.abs() * t + 4.0 * U * ((x * mul).abs() + add.abs())))
}

pub(super) fn add_positions(at: &Site<'_>) -> Result<Expected> {
    let mut positions = at.param(ParamRole::Embedding)?;
    positions.truncate(at.tokens() * at.last());
    Ok(at.each(|i, x, t| {
        let y = x + positions[i % positions.len()];
        (y, t + 2.0 * U * y.abs())
    }))
}

pub(super) fn activate(at: &Site<'_>, act: Activation) -> Expected {
    // Slopes stay below 1.13, hard swish's reaches 1.5; kernels may approximate the smooth ones to 32 units.
    at.each(|_, x, t| match act {
        Activation::Relu => (x.max(0.0), t),
        Activation::HardSwish => (smooth(act, x), 1.5 * t + 32.0 * U * (1.0 + x.abs())),
        _ => (smooth(act, x), 1.13 * t + 32.0 * U * (1.0 + x.abs())),
    })
}

fn smooth(act: Activation, x: f64) -> f64 {
    match act {
        Activation::Relu => x.max(0.0),
        Activation::GeluErf => 0.5 * x * (1.0 + candle_core::cpu::erf::erf_f64(x / std::f64::consts::SQRT_2)),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
        }
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Relu6 => x.clamp(0.0, 6.0),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::HardSigmoid => (x + 3.0).clamp(0.0, 6.0) / 6.0,
        Activation::HardSwish => x * (x + 3.0).clamp(0.0, 6.0) / 6.0,
        Activation::Tanh => x.tanh(),
    }
}
