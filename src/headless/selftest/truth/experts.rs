//! Mixtures of experts: a router's choice in f64, what is sent to an expert, the weighted sum.

use super::norm;
use super::site::{Expected, Site, U};
use crate::graph::op;
use anyhow::{Result, bail};

/// A choice that rounding decides has no truth: such inputs are refused.
pub(super) fn route(at: &Site<'_>, route: &op::Route) -> Result<Expected> {
    let (all, mut v) = (norm::softmax(at), Vec::new());
    for (p, t) in all.y.chunks(route.experts).zip(all.tolerance.chunks(route.experts)) {
        let mut order: Vec<usize> = (0..p.len()).collect();
        order.sort_by(|a, b| p[*b].total_cmp(&p[*a]));
        let (chosen, others) = order.split_at(route.top);
        if let (Some(&a), Some(&b)) = (chosen.last(), others.first())
            && p[a] - p[b] <= t[a] + t[b]
        {
            bail!("node `{}`: which expert is chosen is within rounding", at.node.name);
        }
        let sum: f64 = if route.normalised { chosen.iter().map(|&i| p[i]).sum() } else { 1.0 };
        let off: f64 = if route.normalised { chosen.iter().map(|&i| t[i]).sum() } else { 0.0 };
        v.extend((0..p.len()).map(|i| match chosen.contains(&i) {
            true => (p[i] / sum, t[i] / sum + p[i] / sum * (off / sum + 4.0 * U)),
            false => (0.0, 0.0),
        }));
    }
    Ok(v.into_iter().collect())
}

pub(super) fn dispatch(at: &Site<'_>, dispatch: &op::Dispatch) -> Result<Expected> {
    let ((weights, _), last) = (at.other()?, at.last());
    Ok(at.each(|i, x, t| match weights.y[i / last * dispatch.experts + dispatch.expert] {
        0.0 => (0.0, 0.0),
        _ => (x, t),
    }))
}

pub(super) fn combine(at: &Site<'_>, combine: &op::Combine) -> Expected {
    let width = at.out.last().copied().unwrap_or(1).max(1);
    let values = at.x.y.len() / combine.experts.max(1) * width;
    let one = |i: usize| {
        let (mut y, mut size, mut carried) = (0.0, 0.0, 0.0);
        for (e, (made, _)) in at.rest.iter().enumerate() {
            let ((w, s), (m, t)) = (at.x.get(i / width * combine.experts + e), made.get(i));
            y += w * m;
            size += (w * m).abs();
            carried += w.abs() * t + s * m.abs() + s * t;
        }
        (y, carried + ((combine.experts as f64).sqrt() + 8.0) * U * size)
    };
    (0..values).map(one).collect()
}
