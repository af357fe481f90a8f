//! What happens to every head on its own: rotary positions, norms of heads.

use super::norm;
use super::site::{Expected, Site, U};
use crate::graph::op;
use crate::graph::rotary::Pairs;
use anyhow::Result;

pub(super) fn rope(at: &Site<'_>, rope: &op::Rope) -> Expected {
    let (width, d, n) = (at.last(), rope.head_dim, rope.turned);
    // By the table of what longer sequences have, if this is one.
    let scaling = rope.scaling.as_deref();
    let (mut divisors, mut theta) = (scaling.map(|s| s.divisors.clone()).unwrap_or_default(), rope.theta);
    match scaling.and_then(|s| s.beyond.as_ref()).filter(|b| at.tokens() > b.tokens) {
        None => {}
        Some(op::Beyond { how: op::Longer::Divided(others), .. }) => divisors = others.clone(),
        Some(op::Beyond { tokens, how: op::Longer::Stretched(f) }) => {
            let (times, n) = (at.tokens() as f64 / *tokens as f64, n as f64);
            theta *= (f * times - f + 1.0).powf(n / (n - 2.0));
        }
    }
    let factor = scaling.map_or(1.0, |s| s.factor);
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
        let angle = position * theta.powf(-2.0 * pair as f64 / n as f64) / divisors.get(pair).unwrap_or(&1.0);
        // Frequency and angle are rounded to f32 each; so are cosine, sine, products and sum.
        let off = 3.0 * U * angle + 4.0 * U;
        let turned = x * angle.cos() + sign * y * angle.sin();
        (factor * turned, factor * (t + ty + off * (x.abs() + y.abs())))
    })
}

pub(super) fn norm(at: &Site<'_>, heads: &op::HeadNorm) -> Result<Expected> {
    // Heads are rows of their own.
    let rows = [at.tokens() * at.last() / heads.head_dim.max(1), heads.head_dim];
    norm::rms_norm(&Site { shape: &rows, ..*at }, &op::RmsNorm { dim: heads.head_dim, eps: heads.eps })
}
