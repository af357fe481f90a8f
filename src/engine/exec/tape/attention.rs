//! Attention without masks, windows and biases: the core's own kernel forwards, five products a head backwards.
//!
//! The probabilities are computed again on the way back rather than kept, which would be most of a transformer's memory (Dao et al.
//! 2022 do the same).

use crate::exec::kernel::attention::{Attention, Part};
use crate::exec::kernel::{Par, gemm, rows, slope};
use crate::graph::{PositionBias, op};

/// Sizes of one attention core.
#[derive(Debug, Clone, Copy)]
pub(super) struct Core {
    tokens: usize,
    heads: usize,
    qk: usize,
    v: usize,
    scale: f32,
    /// Queries, keys and values lie beside one another in one input.
    fused: bool,
}

impl Core {
    /// `None` for what has masks, windows, shared heads or a bias. `out` is the node's shape.
    pub fn of(attention: &op::Attention, out: &[usize]) -> Option<Core> {
        let a = attention;
        let plain = a.is_plain() && !a.cosine && a.windows.is_none() && a.bias == PositionBias::None;
        let &[tokens, _] = out else { return None };
        let core = Core { tokens, heads: a.heads, qk: a.qk_dim, v: a.v_dim, scale: a.scale as f32, fused: a.fused };
        plain.then_some(core)
    }

    /// Where queries, keys and values lie: which input, its row's width, the first column, and a head's width.
    fn places(&self) -> [(usize, usize, usize, usize); 3] {
        let (qk, v) = (self.heads * self.qk, self.heads * self.v);
        match self.fused {
            true => [(0, 2 * qk + v, 0, self.qk), (0, 2 * qk + v, qk, self.qk), (0, 2 * qk + v, 2 * qk, self.v)],
            false => [(0, qk, 0, self.qk), (1, qk, 0, self.qk), (2, v, 0, self.v)],
        }
    }

    pub fn forward(&self, inputs: &[&[f32]], out: &mut [f32]) {
        let [q, k, v] = self.places().map(|(i, width, at, _)| Part { data: inputs[i], width, at });
        let core = Attention {
            tokens: self.tokens,
            heads: self.heads,
            qk: self.qk,
            v: self.v,
            scale: self.scale,
            group: 1,
            causal: false,
            most: None,
            reach: None,
            cap: None,
        };
        core.run(q, k, v, None, out, Par::ALONE);
    }

    /// Writes the gradients of the inputs.
    pub fn backward(&self, inputs: &[&[f32]], g: &[f32], out: &mut [impl std::ops::DerefMut<Target = [f32]>]) {
        let (t, places) = (self.tokens, self.places());
        let row = self.heads * self.v;
        let mut parts = places.map(|(.., width)| vec![0f32; t * width]);
        let mut made = places.map(|(.., width)| vec![0f32; t * width]);
        let (mut p, mut dp, mut dy) = (vec![0f32; t * t], vec![0f32; t * t], vec![0f32; t * self.v]);
        let none = vec![0f32; t.max(self.qk).max(self.v)];
        for image in 0..g.len() / (t * row).max(1) {
            for head in 0..self.heads {
                for (part, (i, width, at, w)) in parts.iter_mut().zip(places) {
                    let from = inputs[i][image * t * width..].chunks(width).take(t);
                    part.chunks_exact_mut(w).zip(from).for_each(|(to, x)| to.copy_from_slice(&x[at + head * w..][..w]));
                }
                let from = g[image * t * row..].chunks(row).take(t);
                dy.chunks_exact_mut(self.v)
                    .zip(from)
                    .for_each(|(to, g)| to.copy_from_slice(&g[head * self.v..][..self.v]));
                let ([q, k, v], [dq, dk, dv]) = (&parts, &mut made);
                gemm::run_f32_rows(q, self.qk, k, &none[..t], &mut p);
                p.iter_mut().for_each(|s| *s *= self.scale);
                rows::softmax(&mut p, t);
                gemm::run_f32_columns(&p, t, &dy, self.v, dv);
                gemm::run_f32_rows(&dy, self.v, v, &none[..t], &mut dp);
                slope::softmax(&p, &mut dp, t, self.scale);
                gemm::run_f32_plain(&dp, t, k, self.qk, dq);
                gemm::run_f32_columns(&dp, t, q, self.qk, dk);
                for (part, (i, width, at, w)) in made.iter().zip(places) {
                    let to = out[i][image * t * width..].chunks_mut(width).take(t);
                    part.chunks_exact(w).zip(to).for_each(|(x, to)| to[at + head * w..][..w].copy_from_slice(x));
                }
            }
        }
    }
}
