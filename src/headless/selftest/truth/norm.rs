//! Norms and softmax, over the last axis.

use super::site::{Expected, Site, U};
use crate::graph::{ParamRole, op};
use anyhow::Result;

/// A norm of an image: `norm` of its pixels, as tokens.
pub(super) fn over_pixels(at: &Site<'_>, norm: impl FnOnce(&Site<'_>) -> Result<Expected>) -> Result<Expected> {
    let [c, h, w] = at.image()?;
    let pixels = [h * w, c];
    let rows = norm(&Site { x: &at.turned(at.x, c, h * w), shape: &pixels, out: &pixels, ..*at })?;
    Ok(at.turned(&rows, h * w, c))
}

pub(super) fn batch_norm(at: &Site<'_>, norm: &op::BatchNorm2d) -> Result<Expected> {
    let (w, b) = (at.param(ParamRole::Weight)?, at.param(ParamRole::Bias)?);
    let (mean, var) = (at.param(ParamRole::Mean)?, at.param(ParamRole::Var)?);
    Ok(at.each(|i, x, t| {
        let c = i % norm.channels;
        let scale = w[c] / (var[c] + norm.eps).sqrt();
        let size = (scale * x).abs() + b[c].abs() + (mean[c] * scale).abs();
        ((x - mean[c]) * scale + b[c], scale.abs() * t + 8.0 * U * size)
    }))
}

pub(super) fn layer_norm(at: &Site<'_>, norm: &op::LayerNorm) -> Result<Expected> {
    let (w, b) = (at.param(ParamRole::Weight)?, at.param(ParamRole::Bias)?);
    let (n, mut v) = (at.last() as f64, Vec::new());
    for (row, tolerance) in at.rows() {
        let mean = row.iter().sum::<f64>() / n;
        let inverse = 1.0 / (row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n + norm.eps).sqrt();
        let size = row.iter().map(|v| v.abs()).sum::<f64>() / n;
        let off = most(tolerance);
        v.extend(row.iter().enumerate().map(|(i, x)| {
            let y = (x - mean) * inverse;
            let rounding = (n.sqrt() + 8.0) * U * ((size + x.abs()) * inverse + y.abs());
            let spread = off * inverse * (2.0 + y.abs());
            (y * w[i] + b[i], w[i].abs() * (rounding + spread) + U * b[i].abs())
        }));
    }
    Ok(v.into_iter().collect())
}

pub(super) fn rms_norm(at: &Site<'_>, norm: &op::RmsNorm) -> Result<Expected> {
    let w = at.param(ParamRole::Weight)?;
    let (n, mut v) = (at.last() as f64, Vec::new());
    for (row, tolerance) in at.rows() {
        let inverse = 1.0 / (row.iter().map(|v| v * v).sum::<f64>() / n + norm.eps).sqrt();
        let off = most(tolerance);
        v.extend(row.iter().enumerate().map(|(i, x)| {
            let y = x * inverse;
            let spread = off * inverse * (1.0 + y.abs());
            (y * w[i], w[i].abs() * ((n.sqrt() + 8.0) * U * y.abs() + spread))
        }));
    }
    Ok(v.into_iter().collect())
}

pub(super) fn softmax(at: &Site<'_>) -> Expected {
    let mut v = Vec::new();
    for (row, tolerance) in at.rows() {
        let top = row.iter().fold(f64::NEG_INFINITY, |m, s| m.max(*s));
        let low = row.iter().fold(f64::INFINITY, |m, s| m.min(*s));
        let total: f64 = row.iter().map(|s| (s - top).exp()).sum();
        let relative = 2.0 * (most(tolerance) + 2.0 * U * (top - low)) + ((at.last() as f64).sqrt() + 40.0) * U;
        v.extend(row.iter().map(|s| (s - top).exp() / total).map(|p| (p, relative * p)));
    }
    v.into_iter().collect()
}

fn most(tolerance: &[f64]) -> f64 {
    tolerance.iter().fold(0.0, |m: f64, t| m.max(*t))
}
