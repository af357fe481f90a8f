//! The attention core in f64, one query row and head at a time, with windows, masks, biases and cosine factors.

use super::site::{Expected, Site, U};
use crate::graph::{ParamRole, PositionBias, op, window};
use anyhow::{Result, bail};

pub(super) fn attention(at: &Site<'_>, attention: &op::Attention) -> Result<Expected> {
    let op::Attention { heads: h, qk_dim: qk, v_dim: vd, fused, scale, group, causal, most, reach, cap, .. } =
        *attention;
    let (x, last, kv) = (at.x, at.last(), h / group.max(1));
    let parts = match (fused, at.rest) {
        (true, []) => [(x, last, 0), (x, last, h * qk), (x, last, (h + kv) * qk)],
        (false, [(k, _), (vs, _)]) => [(x, h * qk, 0), (*k, kv * qk, 0), (*vs, kv * vd, 0)],
        _ => bail!("node `{}` needs one fused input or three", at.node.name),
    };
    let parts = parts.map(|(value, width, at)| Part { value, width, at });
    let (around, tokens, mut v) = (WindowTruth::of(at, attention)?, at.tokens(), Vec::new());
    for row in 0..at.run.images * tokens {
        let first = row / tokens * tokens;
        for head in 0..h {
            let mut keys = around.keys(row - first, head, first);
            keys.retain(|(key, _)| !causal || (*key <= row && row - key < most.unwrap_or(usize::MAX)));
            keys.retain(|(key, _)| reach.is_none_or(|reach| key.abs_diff(row) <= reach));
            attend(parts, row, &keys, [head, head / group.max(1), qk, vd], (scale, around.factor(head), cap), &mut v);
        }
    }
    Ok(v.into_iter().collect())
}

/// Queries, keys or values: `width` numbers a row, heads from column `at` on.
#[derive(Clone, Copy)]
struct Part<'a> {
    value: &'a Expected,
    width: usize,
    at: usize,
}

impl Part<'_> {
    fn get(&self, row: usize, column: usize) -> (f64, f64) {
        let i = row * self.width + self.at + column;
        self.value.get(i)
    }

    /// Length of columns `from..from + n` of a row.
    fn length(&self, row: usize, from: usize, n: usize) -> f64 {
        (from..from + n).map(|c| self.get(row, c).0.powi(2)).sum::<f64>().sqrt().max(1e-12)
    }
}

/// Which keys a query sees, and what is added to its scores.
struct WindowTruth {
    /// Tokens of each window; the place of every token as (window, index in it).
    windows: Vec<Vec<usize>>,
    place: Vec<(usize, usize)>,
    /// The part of the grid every token comes from.
    part: Vec<u8>,
    /// `[heads, n, n]`, or empty.
    bias: Vec<f64>,
    factors: Vec<f64>,
}

impl WindowTruth {
    fn of(at: &Site<'_>, attention: &op::Attention) -> Result<WindowTruth> {
        let op::Attention { heads, cosine, windows, bias, .. } = *attention;
        let tokens = at.tokens();
        let (order, parts, n) = match windows {
            Some(w) => (w.order(), w.parts(), w.tokens()),
            None => ((0..tokens as u32).collect(), vec![0; tokens], tokens),
        };
        let mut around = WindowTruth {
            windows: order.chunks(n.max(1)).map(|w| w.iter().map(|&t| t as usize).collect()).collect(),
            place: vec![(0, 0); tokens],
            part: vec![0; tokens],
            bias: Vec::new(),
            factors: Vec::new(),
        };
        for (i, (&t, &part)) in order.iter().zip(&parts).enumerate() {
            (around.place[t as usize], around.part[t as usize]) = ((i / n, i % n), part);
        }
        if cosine {
            around.factors = at.param(ParamRole::LogitScale)?.iter().map(|f| f.min(100f64.ln()).exp()).collect();
        }
        let table = match (bias, windows.map(|w| w.size)) {
            (PositionBias::None, _) => return Ok(around),
            (PositionBias::Full { .. }, _) => {
                around.bias = at.param(ParamRole::PositionBias)?;
                return Ok(around);
            }
            (PositionBias::Table, Some(_)) => at.param(ParamRole::PositionBias)?,
            (PositionBias::Continuous { hidden, trained }, Some(size)) => {
                let (w1, b1) = (at.param(ParamRole::PositionMlp1)?, at.param(ParamRole::PositionMlp1Bias)?);
                let w2 = at.param(ParamRole::PositionMlp2)?;
                let mut table = Vec::new();
                for [y, x] in window::log_coordinates(size, trained) {
                    let (y, x) = (f64::from(y), f64::from(x));
                    let units: Vec<f64> =
                        (0..hidden).map(|i| (y * w1[2 * i] + x * w1[2 * i + 1] + b1[i]).max(0.0)).collect();
                    for w in w2.chunks_exact(hidden) {
                        let sum: f64 = w.iter().zip(&units).map(|(w, u)| w * u).sum();
                        table.push(16.0 / (1.0 + (-sum).exp()));
                    }
                }
                table
            }
            (_, None) => bail!("node `{}` has a relative bias without windows", at.node.name),
        };
        let size = windows.map_or([1, 1], |w| w.size);
        let index = window::relative_index(size);
        around.bias = (0..heads)
            .flat_map(|h| index.iter().map(move |&i| (h, i as usize)))
            .map(|(h, i)| table[i * heads + h])
            .collect();
        Ok(around)
    }

    /// What cosine attention multiplies a head's scores by.
    fn factor(&self, head: usize) -> Option<f64> {
        self.factors.get(head).copied()
    }

    /// The rows that token `t` of the image beginning at row `first` attends to, with what is added to their scores.
    fn keys(&self, t: usize, head: usize, first: usize) -> Vec<(usize, f64)> {
        let (window, q) = self.place[t];
        let tokens = &self.windows[window];
        let n = tokens.len();
        let add = |k: usize, token: usize| {
            let bias = self.bias.get((head * n + q) * n + k).copied().unwrap_or(0.0);
            if self.part[token] == self.part[t] { bias } else { bias + f64::from(window::MASKED) }
        };
        tokens.iter().enumerate().map(|(k, &token)| (first + token, add(k, token))).collect()
    }
}

/// One head of one query row over its keys.
fn attend(
    [q, k, values]: [Part<'_>; 3],
    row: usize,
    keys: &[(usize, f64)],
    [head, kv, qk, vd]: [usize; 4],
    (scale, factor, cap): (f64, Option<f64>, Option<f64>),
    v: &mut Vec<(f64, f64)>,
) {
    let mut off = 0.0f64;
    let mut scores: Vec<f64> = Vec::with_capacity(keys.len());
    // Where keys and values are shared, their columns are those of the group.
    let (from, of_key) = (head * qk, kv * qk);
    let long = factor.map_or(1.0, |_| q.length(row, from, qk));
    for &(j, add) in keys {
        let (mut s, mut size, mut carried) = (0.0, 0.0, 0.0);
        let lengths = long * factor.map_or(1.0, |_| k.length(j, of_key, qk));
        for d in 0..qk {
            let ((a, ta), (b, tb)) = (q.get(row, from + d), k.get(j, of_key + d));
            s += a * b;
            size += (a * b).abs();
            carried += ta * b.abs() + tb * a.abs() + ta * tb;
        }
        let scale = scale * factor.unwrap_or(1.0) / lengths;
        // Lengths are off by what their terms are: as much again, twice.
        let more = if factor.is_some() { 3.0 } else { 1.0 };
        let rounding = more * (carried + ((qk as f64).sqrt() + 8.0) * U * size);
        off = off.max(scale.abs() * rounding + U * add.abs());
        scores.push(cap.map_or(scale * s, |cap| cap * (scale * s / cap).tanh()) + add);
    }
    // A hyperbolic tangent makes no error greater; it is itself off by a few units of its last place.
    off += cap.map_or(0.0, |cap| 8.0 * U * cap);
    let top = scores.iter().fold(f64::NEG_INFINITY, |m, s| m.max(*s));
    let low = scores.iter().fold(f64::INFINITY, |m, s| m.min(*s));
    scores.iter_mut().for_each(|s| *s = (*s - top).exp());
    let total: f64 = scores.iter().sum();
    // A score that is off by `e` moves every weight by at most the factor `exp(2e)`; exponentials may be approximated.
    let n = (keys.len() as f64).sqrt();
    let relative = 2.0 * (off + 2.0 * U * (top - low)) + (2.0 * n + 40.0) * U;
    for d in kv * vd..(kv + 1) * vd {
        let (mut y, mut size, mut carried) = (0.0, 0.0, 0.0);
        for (p, (j, _)) in scores.iter().map(|s| s / total).zip(keys) {
            let (x, t) = values.get(*j, d);
            y += p * x;
            size += p * x.abs();
            carried += p * t;
        }
        v.push((y, carried + relative * size));
    }
}
