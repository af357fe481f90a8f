//! Attention around which something happens: tokens gathered into windows, rows brought to length 1, position biases
//! and masks added. Every window is copied together, run through the core and written back to its places.

use super::attention::{Attention, Part};
use super::{Par, Shared, room, vector, with_scratch};
use crate::graph::{Windows, window};

/// What surrounds a core whose `tokens` are those of one window.
#[derive(Debug, Clone)]
pub(crate) struct Windowing {
    /// For every place, window by window, the token that stands there; empty: all tokens as they come, in one window.
    order: Vec<u32>,
    /// Windows of an image.
    count: usize,
    /// Per head, what cosine attention multiplies its scores by.
    factors: Option<Vec<f32>>,
    /// One `[heads, n, n]` after the other, and which of them each window adds.
    bias: Vec<f32>,
    kinds: Vec<usize>,
}

impl Windowing {
    /// `bias` is `[heads, n, n]`; `factors` one a head. Masks of shifted windows are added into copies of the bias, one
    /// for each of the few kinds of windows.
    pub fn new(
        core: &Attention,
        windows: Option<Windows>,
        factors: Option<Vec<f32>>,
        bias: Option<Vec<f32>>,
    ) -> Windowing {
        let Some(w) = windows else {
            let kinds = if bias.is_some() { vec![0] } else { Vec::new() };
            return Windowing { order: Vec::new(), count: 1, factors, bias: bias.unwrap_or_default(), kinds };
        };
        let n = w.tokens();
        let all = w.parts();
        let mut kinds: Vec<usize> = Vec::new();
        let mut patterns: Vec<Vec<u8>> = Vec::new();
        for parts in all.chunks(n.max(1)) {
            // Windows are of one kind when the same pairs may attend.
            let first = parts.first().copied().unwrap_or(0);
            let pattern: Vec<u8> = match parts.iter().all(|p| *p == first) {
                true => vec![0; n],
                false => parts.to_vec(),
            };
            let at = patterns.iter().position(|p| *p == pattern).unwrap_or_else(|| {
                patterns.push(pattern);
                patterns.len() - 1
            });
            kinds.push(at);
        }
        let masked = patterns.iter().any(|p| p.iter().any(|v| *v != p[0]));
        if bias.is_none() && !masked {
            return Windowing { order: w.order(), count: w.count(), factors, bias: Vec::new(), kinds: Vec::new() };
        }
        let base = bias.unwrap_or_else(|| vec![0.0; core.heads * n * n]);
        let tables = patterns.iter().flat_map(|p| window::masked(&base, p)).collect();
        Windowing { order: w.order(), count: w.count(), factors, bias: tables, kinds }
    }

    /// The bias of window `i` of an image.
    fn bias_of(&self, i: usize, len: usize) -> Option<&[f32]> {
        self.kinds.get(i).map(|&kind| &self.bias[kind * len..][..len])
    }

    /// As [`Attention::run`], for images of [`Self::count`] windows.
    pub fn run(&self, core: &Attention, [q, k, v]: [Part<'_>; 3], out: &mut [f32], par: Par<'_>) {
        let (n, width) = (core.tokens, core.heads * core.v);
        let (qk, table) = (core.heads * core.qk, core.heads * n * n);
        if self.order.is_empty() && self.factors.is_none() {
            return core.run(q, k, v, self.bias_of(0, table), out, par);
        }
        let image = n * self.count;
        let windows = out.len() / (n * width).max(1);
        let shared = Shared::of(out);
        let row = 2 * qk + width;
        par.run(windows, |i| {
            let (first, i) = (i / self.count * image, i % self.count);
            let token = |r: usize| first + self.order.get(i * n + r).map_or(r, |&t| t as usize);
            let mut buffer = with_scratch(|s| std::mem::take(&mut s.window));
            let (rows, made) = room(&mut buffer, n * (row + width)).split_at_mut(n * row);
            for (r, to) in rows.chunks_exact_mut(row).enumerate() {
                let t = token(r);
                to[..qk].copy_from_slice(q.row(t, 0, qk));
                to[qk..2 * qk].copy_from_slice(k.row(t, 0, qk));
                to[2 * qk..].copy_from_slice(v.row(t, 0, width));
                if let Some(factors) = &self.factors {
                    let (q, k) = to[..2 * qk].split_at_mut(qk);
                    q.chunks_exact_mut(core.qk).zip(factors).for_each(|(q, f)| unit(q, *f));
                    k.chunks_exact_mut(core.qk).for_each(|k| unit(k, 1.0));
                }
            }
            let part = |at| Part { data: rows, width: row, at };
            core.run(part(0), part(qk), part(2 * qk), self.bias_of(i, table), made, Par::ALONE);
            for (r, from) in made.chunks_exact(width).enumerate() {
                // SAFETY: every token stands in one place of one window.
                unsafe { shared.part(token(r) * width, width) }.copy_from_slice(from);
            }
            with_scratch(|s| s.window = buffer);
        });
    }
}

/// Brings a row to length `to`.
fn unit(x: &mut [f32], to: f32) {
    let length = vector::squares(x).sqrt().max(1e-12);
    let factor = to / length;
    x.iter_mut().for_each(|v| *v *= factor);
}
