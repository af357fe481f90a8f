//! The attention core: gathers of windows, two products and a softmax, with everything that does not depend on the input
//! made once.

use super::dense::matmul;
use super::heads::{HeadsApart, HeadsTogether, Sees, Softmax};
use super::ops::{gathered, unit};
use super::own::apply;
use crate::graph::{Windows, op, window};
use candle_core::{DType, Device, Result, Tensor};

/// Sizes of a core.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub heads: usize,
    /// Consecutive heads that share one of keys and values.
    pub group: usize,
    pub qk: usize,
    pub v: usize,
    pub scale: f32,
    /// One input `[n, t, heads·qk + heads/group·(qk + v)]` instead of three.
    pub fused: bool,
}

/// Which tokens one sees, and what scores are capped at.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    before: usize,
    after: usize,
    cap: f32,
}

impl Limits {
    pub fn of(attention: &op::Attention) -> Limits {
        let all = usize::MAX;
        let before = attention.most.map(|most| most.saturating_sub(1)).or(attention.reach).unwrap_or(all);
        let after = if attention.causal { 0 } else { attention.reach.unwrap_or(all) };
        Limits { before, after, cap: attention.cap.map_or(0.0, |cap| cap as f32) }
    }
}

/// An attention core on one device: in its inputs' type, f32 or f16.
pub(super) struct Core {
    sizes: Sizes,
    limits: Limits,
    /// Cosine attention's factors, `[1, heads, 1, 1]`.
    factors: Option<Tensor>,
    windows: Option<Cut>,
    /// `[rows, tokens]`, rows being those of an image's windows and heads, or of the heads alone.
    bias: Option<Tensor>,
}

/// How tokens are gathered into windows.
struct Cut {
    windows: Windows,
    order: Tensor,
    /// Where each token went.
    back: Tensor,
}

impl Core {
    /// `tokens` are those that attend to each other; `factors` has one value a head, `bias` is `[heads, tokens, tokens]`.
    pub fn new(
        (sizes, limits): (Sizes, Limits),
        tokens: usize,
        windows: Option<Windows>,
        factors: Option<Vec<f32>>,
        bias: Option<Vec<f32>>,
        device: &Device,
    ) -> Result<Core> {
        let heads = sizes.heads;
        let bias = match windows {
            Some(w) if w.shift != [0, 0] => Some(masked(w, heads, bias)),
            _ => bias,
        };
        let bias = bias.map(|b| Tensor::from_vec(b.clone(), (b.len() / tokens.max(1), tokens), device)).transpose()?;
        let factors = factors.map(|f| Tensor::from_vec(f, (1, heads, 1, 1), device)).transpose()?;
        let cut = |windows: Windows| -> Result<Cut> {
            let [order, back] = gathered(&windows, device)?;
            Ok(Cut { windows, order, back })
        };
        Ok(Core { sizes, limits, factors, windows: windows.map(cut).transpose()?, bias })
    }

    /// One fused input or q, k and v, `[n, t, width]` each → `[n, t, heads·v]`.
    pub fn run(&self, inputs: &[Tensor]) -> Result<Tensor> {
        let s = self.sizes;
        let (n, t, _) = match inputs.first() {
            Some(x) => x.dims3()?,
            None => candle_core::bail!("attention without an input"),
        };
        let cut = |x: &Tensor| match &self.windows {
            Some(w) => {
                let (count, tokens) = (w.windows.count(), w.windows.tokens());
                x.contiguous()?.index_select(&w.order, 1)?.reshape((n * count, tokens, ()))
            }
            None => Ok(x.clone()),
        };
        // Half precision ends at 65504: scores are made as small as they will be.
        let half = inputs.iter().any(|x| x.dtype() != DType::F32);
        let of_scores = if half { s.scale } else { 1.0 };
        let part = |x: &Tensor, at: usize, ([heads, dim], scale): ([usize; 2], f32)| {
            apply(x, &HeadsApart { at, heads, dim, scale, dtype: x.dtype() })
        };
        let kept = s.heads / s.group.max(1);
        let [of_q, of_k, of_v] = [([s.heads, s.qk], of_scores), ([kept, s.qk], 1.0), ([kept, s.v], 1.0)];
        let [q, k, v] = match (s.fused, inputs) {
            (true, [x]) => {
                let (x, qw, kw) = (cut(x)?, s.heads * s.qk, kept * s.qk);
                [part(&x, 0, of_q)?, part(&x, qw, of_k)?, part(&x, qw + kw, of_v)?]
            }
            (false, [q, k, v]) => [part(&cut(q)?, 0, of_q)?, part(&cut(k)?, 0, of_k)?, part(&cut(v)?, 0, of_v)?],
            _ => candle_core::bail!("attention takes one fused input or three"),
        };
        let (q, k) = match &self.factors {
            Some(f) => (unit(&q)?.broadcast_mul(f)?, unit(&k)?),
            None => (q, k),
        };
        let scale = if half { 1.0 } else { s.scale };
        let (images, heads, tokens, _) = q.dims4()?;
        // Heads that share keys stand under each other: one product for all of them, and keys are not copied.
        let q = q.reshape((images, kept, s.group * tokens, s.qk))?;
        let scores = matmul(&q, &k.transpose(2, 3)?)?;
        let sees = Sees { tokens, before: self.limits.before, after: self.limits.after };
        let softmax = Softmax { scale, bias: self.bias.as_ref(), cap: self.limits.cap, sees, dtype: scores.dtype() };
        let weights = apply(&scores, &softmax)?;
        let y = matmul(&weights, &v)?.reshape((images, heads, tokens, s.v))?;
        let y = apply(&y, &HeadsTogether { dtype: y.dtype() })?;
        match &self.windows {
            Some(w) => y.reshape((n, t, s.heads * s.v))?.index_select(&w.back, 1),
            None => y.flatten_from(2),
        }
    }
}

/// The bias of every window of an image, `[windows, heads, tokens, tokens]`: pairs that only the roll made neighbours are
/// masked.
fn masked(w: Windows, heads: usize, bias: Option<Vec<f32>>) -> Vec<f32> {
    let n = w.tokens();
    let base = bias.unwrap_or_else(|| vec![0.0; heads * n * n]);
    w.parts().chunks(n.max(1)).flat_map(|parts| window::masked(&base, parts)).collect()
}
