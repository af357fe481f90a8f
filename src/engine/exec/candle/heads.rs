//! Our own kernels on what goes by heads: apart and together, softmax of what a token sees, rotation. As in `kernels`, each type says
//! what it computes, defines it in plain Rust, and queues the kernel of the same name.
//!
//! Not here: what attention makes of them (`attention`).

use super::own::{Own, apply, host};
use crate::exec::kernel::rows;
use crate::graph::op;
use crate::graph::rotary::{self, Pairs};
use candle_core::{DType, Device, Result, Tensor};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

#[cfg(feature = "cuda")]
use super::kernels::label;
#[cfg(feature = "cuda")]
use crate::exec::cuda::{Arg, Arg::F32, Arg::I32, Arg::I64, Arg::Ptr, Gpu, Input};

/// Rows of `softmax_warps`, the kernels' `WARP_WIDTH` at most, and how many a block makes.
#[cfg(feature = "cuda")]
const WARP_WIDTH: usize = 512;
#[cfg(feature = "cuda")]
const WARP_ROWS: usize = 8;

/// What the last `tokens` of all see: tokens at most so far before and behind them.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sees {
    pub tokens: usize,
    pub before: usize,
    pub after: usize,
}

/// `softmax(scale · x + bias)` over the last axis, `scale · x` capped at `cap` by `cap · tanh(s / cap)` where that is above zero. Row
/// `r` of `x` adds row `r mod rows` of `bias` `[rows, width]` and is of token `r mod tokens`; what that does not see weighs nothing.
pub(super) struct Softmax<'a> {
    pub scale: f32,
    pub bias: Option<&'a Tensor>,
    pub cap: f32,
    pub sees: Sees,
    /// Of the input and the output: f32 or f16.
    pub dtype: DType,
}

impl Softmax<'_> {
    /// Where the first of the tokens stands among `width`.
    fn first(&self, width: usize) -> Result<usize> {
        match width.checked_sub(self.sees.tokens) {
            Some(first) if self.sees.tokens > 0 => Ok(first),
            _ => candle_core::bail!("{} tokens among {width}", self.sees.tokens),
        }
    }
}

impl Own for Softmax<'_> {
    const NAME: &'static str = "softmax";

    fn out(&self, dims: &[usize]) -> Result<(Vec<usize>, DType)> {
        let width = dims.last().copied().unwrap_or(1);
        match self.bias.map(|b| b.dims2()).transpose()? {
            Some((_, w)) if w != width => candle_core::bail!("a bias over {w} for rows of {width}"),
            _ => self.first(width).map(|_| (dims.to_vec(), self.dtype)),
        }
    }

    fn plain(&self, x: &[f32], dims: &[usize]) -> Result<Vec<f32>> {
        let mut y: Vec<f32> = x.iter().map(|v| v * self.scale).collect();
        if self.cap > 0.0 {
            y.iter_mut().for_each(|y| *y = self.cap * (*y / self.cap).tanh());
        }
        if let Some(b) = self.bias {
            let b = host(b)?;
            y.chunks_mut(b.len().max(1)).for_each(|y| y.iter_mut().zip(&b).for_each(|(y, b)| *y += b));
        }
        let width = dims.last().copied().unwrap_or(1);
        let (first, Sees { tokens, before, after }) = (self.first(width)?, self.sees);
        for (r, y) in y.chunks_exact_mut(width.max(1)).enumerate() {
            let place = first + r % tokens;
            let unseen = |i: &usize| place.saturating_sub(*i) > before || i.saturating_sub(place) > after;
            (0..width).filter(unseen).for_each(|i| y[i] = f32::NEG_INFINITY);
        }
        let mut out = vec![0.0; y.len()];
        rows::softmax_into(&y, width, &mut out);
        Ok(out)
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, gpu: &Gpu<'_>, x: &Input<'_>, out: u64) -> Result<()> {
        let width = x.dims.last().copied().unwrap_or(1);
        let rows = x.dims.iter().product::<usize>() / width;
        let bias_rows = self.bias.map(|b| b.dim(0)).transpose()?.unwrap_or(1);
        let far = |tokens: usize| I32(i32::try_from(tokens).unwrap_or(i32::MAX));
        let Sees { tokens, before, after } = self.sees;
        gpu.with_some([self.bias], |[bias]| {
            let args = [Ptr(x.at), bias, I32(width as i32), I64(bias_rows as i64), F32(self.scale), F32(self.cap)];
            let args = [&args[..], &[I32(tokens as i32), far(before), far(after)]].concat();
            let label = label(self.dtype);
            if width <= WARP_WIDTH {
                let (blocks, threads) = (rows.div_ceil(WARP_ROWS), 32 * WARP_ROWS as u32);
                let args = [&args[..], &[I64(rows as i64)]].concat();
                return gpu.blocks(&format!("softmax_warps_{label}"), blocks, threads, &args, out);
            }
            gpu.rows(&format!("softmax_rows_{label}"), rows, width, &args, out)
        })
    }
}

/// Values `at` to `at + heads · dim` of every token of `[n, tokens, width]`, times `scale`, as `[n, heads, tokens, dim]`.
pub(super) struct HeadsApart {
    pub at: usize,
    pub heads: usize,
    pub dim: usize,
    pub scale: f32,
    /// Of the input and the output: f32 or f16.
    pub dtype: DType,
}

/// Four where rows and heads are whole fours, which is what a kernel then moves at once; else one.
#[cfg(feature = "cuda")]
fn moved_at_once(x: &Input<'_>, dtype: DType, sizes: &[usize]) -> Arg {
    let whole = sizes.iter().all(|v| v % 4 == 0) && x.at.is_multiple_of(4 * dtype.size_in_bytes() as u64);
    I32(if whole { 4 } else { 1 })
}

impl Own for HeadsApart {
    const NAME: &'static str = "heads apart";

    fn out(&self, dims: &[usize]) -> Result<(Vec<usize>, DType)> {
        match *dims {
            [n, tokens, width] if self.at + self.heads * self.dim <= width => {
                Ok((vec![n, self.heads, tokens, self.dim], self.dtype))
            }
            _ => candle_core::bail!("{} heads of {} from {} on of {dims:?}", self.heads, self.dim, self.at),
        }
    }

    fn plain(&self, x: &[f32], dims: &[usize]) -> Result<Vec<f32>> {
        let [n, tokens, width] = [dims[0], dims[1], dims[2]];
        let mut out = Vec::with_capacity(n * tokens * self.heads * self.dim);
        for (image, head) in (0..n).flat_map(|i| (0..self.heads).map(move |h| (i, h))) {
            for token in 0..tokens {
                let from = &x[(image * tokens + token) * width + self.at + head * self.dim..][..self.dim];
                out.extend(from.iter().map(|v| v * self.scale));
            }
        }
        Ok(out)
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, gpu: &Gpu<'_>, x: &Input<'_>, out: u64) -> Result<()> {
        let n = x.dims[0] * x.dims[1] * self.heads * self.dim;
        let sizes = [x.dims[1], x.dims[2], self.at, self.heads, self.dim];
        let each = moved_at_once(x, self.dtype, &[x.dims[2], self.at, self.dim]);
        let args = [&[Ptr(x.at)], &sizes.map(|v| I32(v as i32))[..], &[each, F32(self.scale)]].concat();
        gpu.each(&format!("heads_apart_{}", label(self.dtype)), n, &args, out)
    }
}

/// `[n, heads, tokens, dim]` → `[n, tokens, heads · dim]`.
pub(super) struct HeadsTogether {
    /// f32 or f16.
    pub dtype: DType,
}

impl Own for HeadsTogether {
    const NAME: &'static str = "heads together";

    fn out(&self, dims: &[usize]) -> Result<(Vec<usize>, DType)> {
        let &[n, heads, tokens, dim] = dims else { candle_core::bail!("{dims:?} are no heads") };
        Ok((vec![n, tokens, heads * dim], self.dtype))
    }

    fn plain(&self, x: &[f32], dims: &[usize]) -> Result<Vec<f32>> {
        let [n, heads, tokens, dim] = [dims[0], dims[1], dims[2], dims[3]];
        let mut out = Vec::with_capacity(x.len());
        for (image, token) in (0..n).flat_map(|i| (0..tokens).map(move |t| (i, t))) {
            let head = |h: usize| &x[((image * heads + h) * tokens + token) * dim..][..dim];
            (0..heads).for_each(|h| out.extend_from_slice(head(h)));
        }
        Ok(out)
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, gpu: &Gpu<'_>, x: &Input<'_>, out: u64) -> Result<()> {
        let [heads, tokens, dim] = [x.dims[1], x.dims[2], x.dims[3]];
        let each = moved_at_once(x, self.dtype, &[dim]);
        let args = [&[Ptr(x.at)], &[tokens, heads, dim].map(|v| I32(v as i32))[..], &[each]].concat();
        gpu.each(&format!("heads_together_{}", label(self.dtype)), x.dims.iter().product(), &args, out)
    }
}

/// Cosines and sines of some tokens' angles on a device, `[tokens, turned / 2]` each.
pub(super) struct Angles {
    cosines: Tensor,
    sines: Tensor,
}

impl Angles {
    /// Those of the tokens at `places`, which are the last of a text.
    pub fn of(rope: &op::Rope, places: Range<usize>, device: &Device) -> Result<Angles> {
        let n = places.len();
        let (cosines, sines) = rotary::turns(places.clone(), &rope.frequencies(places.end), rope.factor());
        let table = |v: Vec<f32>| Tensor::from_vec(v, (n, rope.turned / 2), device);
        Ok(Angles { cosines: table(cosines)?, sines: table(sines)? })
    }

    pub fn tokens(&self) -> usize {
        self.cosines.dims()[0]
    }
}

/// Angles of the first tokens of texts, made once: none is let go as long as this is there, since a captured pass reads them where they
/// lay when it was captured.
#[derive(Default)]
pub(super) struct KeptAngles(Mutex<Vec<Angles>>);

impl KeptAngles {
    /// [`rotated`] by the angles of the first tokens. Tables are of powers of two tokens, so that they are few; where angles depend on how
    /// long a text is, they are made anew.
    pub fn rotated(&self, x: &Tensor, rope: &op::Rope) -> Result<Tensor> {
        let (tokens, device) = (x.dim(1)?, x.device());
        let (room, frequencies) = (tokens.next_power_of_two(), rope.frequencies(tokens));
        if rope.frequencies(room) != frequencies {
            return rotated(x, rope, &Angles::of(rope, 0..tokens, device)?);
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let at = match kept.iter().position(|a| a.tokens() == room) {
            Some(at) => at,
            None => {
                kept.push(Angles::of(rope, 0..room, device)?);
                kept.len() - 1
            }
        };
        rotated(x, rope, &kept[at])
    }
}

/// Every head of `x`, `[n, tokens, heads · head_dim]`, turned by its token's angles, the first of those that there are.
pub(super) fn rotated(x: &Tensor, rope: &op::Rope, angles: &Angles) -> Result<Tensor> {
    apply(x, &Rotate { angles, dim: rope.head_dim, turned: rope.turned, pairs: rope.pairs })
}

/// The first `turned` values of every head of `[n, tokens, heads · dim]`, turned by the angles of their token; f32.
struct Rotate<'a> {
    angles: &'a Angles,
    dim: usize,
    turned: usize,
    pairs: Pairs,
}

impl Own for Rotate<'_> {
    const NAME: &'static str = "rotate";

    fn out(&self, dims: &[usize]) -> Result<(Vec<usize>, DType)> {
        let tokens = self.angles.tokens();
        match dims {
            [_, t, width] if *t <= tokens && width.is_multiple_of(self.dim.max(1)) => Ok((dims.to_vec(), DType::F32)),
            _ => candle_core::bail!("{dims:?} turned by the angles of {tokens} tokens, heads of {}", self.dim),
        }
    }

    fn plain(&self, x: &[f32], dims: &[usize]) -> Result<Vec<f32>> {
        let (cosines, sines, half) = (host(&self.angles.cosines)?, host(&self.angles.sines)?, self.turned / 2);
        let (mut y, heads) = (x.to_vec(), dims[2] / self.dim.max(1));
        for (head, y) in y.chunks_exact_mut(self.dim.max(1)).enumerate() {
            let token = head / heads % dims[1];
            for pair in 0..half {
                let (i, j) = match self.pairs {
                    Pairs::Halves => (pair, pair + half),
                    Pairs::Neighbours => (2 * pair, 2 * pair + 1),
                };
                let (c, s, a, b) = (cosines[token * half + pair], sines[token * half + pair], y[i], y[j]);
                (y[i], y[j]) = (a * c - b * s, b * c + a * s);
            }
        }
        Ok(y)
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, gpu: &Gpu<'_>, x: &Input<'_>, out: u64) -> Result<()> {
        let n = x.dims.iter().product::<usize>();
        let neighbours = I32(i32::from(self.pairs == Pairs::Neighbours));
        let [width, dim, turned, tokens] = [x.dims[2], self.dim, self.turned, x.dims[1]].map(|v| I32(v as i32));
        gpu.with_some([Some(&self.angles.cosines), Some(&self.angles.sines)], |[cosines, sines]| {
            gpu.each("rotate", n, &[Ptr(x.at), cosines, sines, width, dim, turned, neighbours, tokens], out)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::ops;
    use super::*;
    use crate::exec::kernel::noise;
    use crate::graph::op::{Beyond, Longer, Rope, Scaling};

    /// By its definition, whatever lengths came before; tables stay where they are.
    #[test]
    fn kept_angles_are_those_of_every_length() {
        let stretched = Beyond { tokens: 6, how: Longer::Stretched(2.0) };
        let scaling = Scaling { divisors: vec![], factor: 1.0, beyond: Some(stretched) };
        for (pairs, scaling) in [(Pairs::Halves, None), (Pairs::Neighbours, Some(Box::new(scaling)))] {
            let rope = Rope { head_dim: 8, turned: 6, theta: 100.0, pairs, scaling };
            let kept = KeptAngles::default();
            let mut places = Vec::new();
            for tokens in [3, 5, 4, 8, 5, 9] {
                let x = Tensor::from_vec(noise(2 * tokens * 16, 5), (2, tokens, 16), &Device::Cpu).unwrap();
                let values = |t: Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
                let got = values(kept.rotated(&x, &rope).unwrap());
                let want = values(ops::rope(&x, &rope, &[0]).unwrap());
                let far = got.iter().zip(&want).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
                assert!(far < 1e-6, "{tokens} tokens, {pairs:?}: {far}");
                let all = kept.0.lock().unwrap();
                let ids: Vec<_> = all.iter().map(|a| a.cosines.id()).collect();
                assert!(ids.starts_with(&places), "a table was let go");
                places = ids;
            }
        }
    }
}
