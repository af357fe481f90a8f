//! What happens to every head on its own: rotary positions, norms of heads.

use super::norm;
use super::site::{Expected, Site, U};
use crate::graph::op;
use crate::graph::rotary::Pairs;
use anyhow::Result;

pub(super) fn rope(at: &Site<'_>, rope: &op::Rope) -> Expected {
    let (width, d, n) = (at.last(), rope.head_dim, rope.turned);
    at.each(|i, x, t| {
        let (place, position) = (i % width % d, (i / width % at.tokens()) as f64);
        if place >= n {
            return (x, t);
        }
        let (pair, first) = match rope.pairs {
            Pairs::Neighbours => (place / 2, place % 2 == 0),
            Pairs::Halves => (place % (n / 2), place < n / 2),
        };
        let apart = if rope.pairs == Pairs::Halves { n / 2 } else { 1 };
        let (other, sign) = if first { (i + apart, -1.0) } else { (i - apart, 1.0) };
        let (y, ty) = at.x.get(other);
        let angle = position * rope.theta.powf(-2.0 * pair as f64 / n as f64);
        // Frequency and angle are rounded to f32 each; so are cosine, sine, products and sum.
        let off = 3.0 * U * angle + 4.0 * U;
        (x * angle.cos() + sign * y * angle.sin(), t + ty + off * (x.abs() + y.abs()))
    })
}

pub(super) fn norm(at: &Site<'_>, heads: &op::HeadNorm) -> Result<Expected> {
    // Heads are rows of their own.
    let rows = [at.tokens() * at.last() / heads.head_dim.max(1), heads.head_dim];
    norm::rms_norm(&Site { shape: &rows, ..*at }, &op::RmsNorm { dim: heads.head_dim, eps: heads.eps })
}
