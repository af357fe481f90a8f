//! The attention core: gathers of windows, two products and a softmax, with everything that does not depend on the input
//! made once.

use super::dense::matmul;
use super::kernels::Softmax;
use super::ops::{gathered, unit};
use super::own::apply;
use crate::graph::{Windows, window};
use candle_core::{D, Device, Result, Tensor};

/// Sizes of a core.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sizes {
    pub heads: usize,
    pub qk: usize,
    pub v: usize,
    pub scale: f32,
    /// One input `[n, t, heads·(2·qk + v)]` instead of three.
    pub fused: bool,
}

/// An attention core on one device, f32.
pub(super) struct Core {
    sizes: Sizes,
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
        sizes: Sizes,
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
        Ok(Core { sizes, factors, windows: windows.map(cut).transpose()?, bias })
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
        let part = |x: &Tensor, at: usize, d: usize| {
            let (n, t, _) = x.dims3()?;
            let x = x.narrow(D::Minus1, at, s.heads * d)?.contiguous()?;
            x.reshape((n, t, s.heads, d))?.transpose(1, 2)?.contiguous()
        };
        let [q, k, v] = match (s.fused, inputs) {
            (true, [x]) => {
                let x = cut(x)?;
                let qk = s.heads * s.qk;
                [part(&x, 0, s.qk)?, part(&x, qk, s.qk)?, part(&x, 2 * qk, s.v)?]
            }
            (false, [q, k, v]) => [part(&cut(q)?, 0, s.qk)?, part(&cut(k)?, 0, s.qk)?, part(&cut(v)?, 0, s.v)?],
            _ => candle_core::bail!("attention takes one fused input or three"),
        };
        let (q, k) = match &self.factors {
            Some(f) => (unit(&q)?.broadcast_mul(f)?, unit(&k)?),
            None => (q, k),
        };
        let scores = matmul(&q, &k.transpose(2, 3)?)?;
        let weights = apply(&scores, &Softmax { scale: s.scale, bias: self.bias.as_ref() })?;
        let y = matmul(&weights, &v)?.transpose(1, 2)?.contiguous()?;
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
