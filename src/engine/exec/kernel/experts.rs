//! Mixtures of experts: a router's choice, what of the tokens an expert sees, and the weighted sum of what experts made.
//!
//! Not here: which rows an expert's layers compute (`lower::routed`). Source: `graph::op::{Route, Dispatch, Combine}`.

use super::rows;
use crate::graph::op;
use std::cmp::Ordering;

/// Rows of `route.experts` logits → weights, 0 for all but the largest `route.top` of each row.
pub(crate) fn route(route: &op::Route, logits: &[f32], out: &mut [f32]) {
    rows::softmax_into(logits, route.experts, out);
    let mut order: Vec<usize> = (0..route.experts).collect();
    for row in out.chunks_exact_mut(route.experts.max(1)) {
        // What is no number comes first, so that it is seen.
        let larger = |a: &usize, b: &usize| match row[*b].partial_cmp(&row[*a]) {
            Some(Ordering::Equal) => a.cmp(b),
            Some(other) => other,
            None => row[*b].is_nan().cmp(&row[*a].is_nan()).then(a.cmp(b)),
        };
        order.sort_unstable_by(larger);
        let (chosen, others) = order.split_at(route.top.min(order.len()));
        others.iter().for_each(|&i| row[i] = 0.0);
        if route.normalised {
            let sum: f32 = chosen.iter().map(|&i| row[i]).sum();
            chosen.iter().for_each(|&i| row[i] /= sum);
        }
    }
}

/// Rows of `width` values where the row of `weights` is not 0 at `expert`, zeros elsewhere.
pub(crate) fn dispatch(x: &[f32], weights: &[f32], [experts, expert, width]: [usize; 3], out: &mut [f32]) {
    let rows = x.chunks_exact(width.max(1)).zip(out.chunks_exact_mut(width.max(1)));
    for ((x, out), weights) in rows.zip(weights.chunks_exact(experts.max(1))) {
        if weights[expert] != 0.0 {
            out.copy_from_slice(x);
        } else {
            out.fill(0.0);
        }
    }
}

/// The sum of `made`, weighted; `weights` begin with the row that is the first of `out`, `made` has `first` rows before it. What
/// has weight 0 is not read.
pub(crate) fn combine(weights: &[f32], made: &[&[f32]], first: usize, width: usize, out: &mut [f32]) {
    let rows = out.chunks_exact_mut(width.max(1)).zip(weights.chunks_exact(made.len().max(1)));
    for (r, (out, weights)) in rows.enumerate() {
        out.fill(0.0);
        for (made, &w) in made.iter().zip(weights).filter(|(_, w)| **w != 0.0) {
            let row = &made[(first + r) * width..][..width];
            out.iter_mut().zip(row).for_each(|(sum, v)| *sum += w * v);
        }
    }
}

/// The rows of `x`, which are `rows` of all `total`, one after the other.
pub(crate) fn gather(x: &[f32], total: usize, rows: &[usize]) -> Vec<f32> {
    let width = x.len() / total.max(1);
    rows.iter().flat_map(|r| &x[r * width..(r + 1) * width]).copied().collect()
}

/// Puts them back where they come from.
pub(crate) fn scatter(made: &[f32], total: usize, rows: &[usize], out: &mut [f32]) {
    let width = out.len() / total.max(1);
    for (made, r) in made.chunks_exact(width.max(1)).zip(rows) {
        out[r * width..(r + 1) * width].copy_from_slice(made);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn routed(top: usize, normalised: bool, logits: &[f32]) -> Vec<f32> {
        let mut out = vec![9.0; logits.len()];
        route(&op::Route { experts: 4, top, normalised }, logits, &mut out);
        out
    }

    #[test]
    fn the_largest_stay_and_the_first_of_equals() {
        let logits = [0.0, 3f32.ln(), 2f32.ln(), 2f32.ln(), 1.0, 1.0, 1.0, 1.0];
        let close = |a: Vec<f32>, b: [f32; 8]| assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-6), "{a:?}");
        close(routed(2, false, &logits), [0.0, 0.375, 0.25, 0.0, 0.25, 0.25, 0.0, 0.0]);
        close(routed(2, true, &logits), [0.0, 0.6, 0.4, 0.0, 0.5, 0.5, 0.0, 0.0]);
        assert!(routed(1, true, &[f32::NAN, 1.0, 2.0, 3.0]).iter().any(|v| v.is_nan()));
    }

    #[test]
    fn what_has_no_weight_is_not_read() {
        let mut out = [7.0; 4];
        let (first, second) = ([1.0, 2.0, 3.0, 4.0], [f32::NAN, f32::NAN, 10.0, 20.0]);
        combine(&[0.5, 0.0, 0.25, 0.75], &[&first, &second], 0, 2, &mut out);
        assert_eq!(out, [0.5, 1.0, 8.25, 16.0]);
        let mut one = [0.0; 2];
        combine(&[0.25, 0.75], &[&first, &second], 1, 2, &mut one);
        assert_eq!(one, [8.25, 16.0]);
        dispatch(&first, &[0.5, 0.0, 0.0, 1.0], [2, 1, 2], &mut out);
        assert_eq!(out, [0.0, 0.0, 3.0, 4.0]);
        let mut back = [0.0; 4];
        scatter(&gather(&first, 2, &[1]), 2, &[1], &mut back);
        assert_eq!(back, [0.0, 0.0, 3.0, 4.0]);
    }
}
