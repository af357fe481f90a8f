//! The reference's operations on batches of tensors: composed of candle operations with a backward pass each.

use super::fused::{LayerNorm, Softmax};
use crate::exec::unfold::{Unfold, Window};
use crate::graph::rotary::{self, Pairs};
use crate::graph::{Activation, Windows, op, window};
use candle_core::{D, DType, Device, Tensor};

pub(super) type Candle<T> = candle_core::Result<T>;

pub(super) fn conv(x: &Tensor, w: &Tensor, window: Window, groups: usize) -> Candle<Tensor> {
    let [sy, sx] = window.stride;
    if !x.device().is_cpu() && sy == sx && window.padding.iter().all(|p| *p == window.padding[0]) {
        return x.conv2d(w, window.padding[0], sy, 1, groups);
    }
    if groups == 1 {
        return conv_one(x, w, window);
    }
    let (ci, co) = (x.dim(1)? / groups, w.dim(0)? / groups);
    let parts = (0..groups)
        .map(|g| conv_one(&x.narrow(1, g * ci, ci)?, &w.narrow(0, g * co, co)?, window))
        .collect::<Candle<Vec<_>>>()?;
    Tensor::cat(&parts, 1)
}

fn conv_one(x: &Tensor, w: &Tensor, window: Window) -> Candle<Tensor> {
    let (n, _, h, wd) = x.dims4()?;
    let (out_ch, in_ch, kh, kw) = w.dims4()?;
    let (Some(oh), Some(ow)) = (window.out(0, h), window.out(1, wd)) else {
        candle_core::bail!("a {kh}x{kw} kernel does not fit {h}x{wd}")
    };
    let w = w.reshape((out_ch, in_ch * kh * kw))?;
    let cols = if x.device().is_cpu() {
        x.contiguous()?.apply_op1(Unfold(window))?
    } else {
        unfold_composed(x, window, oh, ow)?
    };
    w.matmul(&cols)?.reshape((out_ch, n, oh, ow))?.transpose(0, 1)?.contiguous()
}

/// [`Unfold`] from plain tensor operations, for devices it has no kernel for.
pub(super) fn unfold_composed(x: &Tensor, window: Window, oh: usize, ow: usize) -> Candle<Tensor> {
    let (n, c, _, _) = x.dims4()?;
    let slices = window_slices(x, window, oh, ow, 0.0)?;
    let k = slices.len();
    let cols = Tensor::stack(&slices, 2)?; // [n, c, k, oh, ow]
    cols.permute((1, 2, 0, 3, 4))?.contiguous()?.reshape((c * k, n * oh * ow))
}

/// For every kernel offset, the `[n, c, oh, ow]` input values under it; outside the image `fill`.
fn window_slices(x: &Tensor, w: Window, oh: usize, ow: usize, fill: f64) -> Candle<Vec<Tensor>> {
    let ([kh, kw], [sy, sx], [py, px, ..]) = (w.kernel, w.stride, w.padding);
    // Enough on the far side that each strided slice is a whole number of strides.
    let (hh, ww) = (oh * sy + kh - 1, ow * sx + kw - 1);
    let x = pad_axis(x, 2, py, hh, fill)?;
    let x = pad_axis(&x, 3, px, ww, fill)?;
    let (n, c, _, _) = x.dims4()?;
    let mut out = Vec::with_capacity(kh * kw);
    for ky in 0..kh {
        for kx in 0..kw {
            let mut s = x.narrow(2, ky, oh * sy)?.narrow(3, kx, ow * sx)?;
            if sy > 1 || sx > 1 {
                s = s.contiguous()?.reshape((n, c, oh, sy, ow, sx))?;
                s = s.narrow(3, 0, 1)?.narrow(5, 0, 1)?.squeeze(5)?.squeeze(3)?;
            }
            out.push(s.contiguous()?);
        }
    }
    Ok(out)
}

/// Pads `axis` with `before` fills, then pads or cuts its end to `total`.
fn pad_axis(x: &Tensor, axis: usize, before: usize, total: usize, fill: f64) -> Candle<Tensor> {
    let block = |len: usize| -> Candle<Tensor> {
        let mut dims = x.dims().to_vec();
        dims[axis] = len;
        (Tensor::zeros(dims, x.dtype(), x.device())? + fill)?.contiguous()
    };
    let mut parts = vec![];
    if before > 0 {
        parts.push(block(before)?);
    }
    parts.push(x.clone());
    let have = before + x.dim(axis)?;
    if have < total {
        parts.push(block(total - have)?);
    }
    let out = if parts.len() == 1 { x.clone() } else { Tensor::cat(&parts, axis)? };
    if out.dim(axis)? > total { out.narrow(axis, 0, total)?.contiguous() } else { Ok(out) }
}

pub(super) fn linear(x: &Tensor, w: &Tensor, b: Option<&Tensor>) -> Candle<Tensor> {
    let (out, inp) = w.dims2()?;
    let mut dims = x.dims().to_vec();
    let rows = x.elem_count() / inp.max(1);
    let y = x.contiguous()?.reshape((rows, inp))?.matmul(&w.t()?)?;
    let y = match b {
        Some(b) => y.broadcast_add(b)?,
        None => y,
    };
    if let Some(last) = dims.last_mut() {
        *last = out;
    }
    y.reshape(dims)
}

/// Whether the fused operations of the CPU apply.
pub(super) fn fusable(x: &Tensor) -> bool {
    x.device().is_cpu() && x.dtype() == DType::F32
}

pub(super) fn layer_norm(x: &Tensor, w: &Tensor, b: &Tensor, eps: f64) -> Candle<Tensor> {
    if fusable(x) {
        return x.contiguous()?.apply_op3(w, b, LayerNorm { eps });
    }
    let mean = x.mean_keepdim(D::Minus1)?;
    let x = x.broadcast_sub(&mean)?;
    let var = x.sqr()?.mean_keepdim(D::Minus1)?;
    x.broadcast_div(&(var + eps)?.sqrt()?)?.broadcast_mul(w)?.broadcast_add(b)
}

pub(super) fn activate(x: &Tensor, act: Activation) -> Candle<Tensor> {
    match act {
        Activation::Relu => x.relu(),
        Activation::GeluErf => x.gelu_erf(),
        Activation::GeluTanh => x.gelu(),
        Activation::Silu => x.silu(),
        Activation::Relu6 => x.clamp(0f32, 6f32),
        Activation::Sigmoid => sigmoid(x),
        Activation::HardSigmoid => (x + 3.0)?.clamp(0f32, 6f32)? / 6.0,
        Activation::HardSwish => x * ((x + 3.0)?.clamp(0f32, 6f32)? / 6.0)?,
        Activation::Tanh => x.tanh(),
    }
}

pub(super) fn max_pool(x: &Tensor, window: Window) -> Candle<Tensor> {
    pooled(x, window, f32::MIN as f64, |m, s| m.maximum(&s))
}

/// `f` over what lies under the offsets of a kernel, one after the other.
fn pooled(x: &Tensor, window: Window, fill: f64, f: fn(Tensor, Tensor) -> Candle<Tensor>) -> Candle<Tensor> {
    let (_, _, h, w) = x.dims4()?;
    let (Some(oh), Some(ow)) = (window.out(0, h), window.out(1, w)) else { candle_core::bail!("kernel does not fit") };
    let mut slices = window_slices(x, window, oh, ow, fill)?.into_iter();
    let Some(first) = slices.next() else { candle_core::bail!("an empty pooling kernel") };
    slices.try_fold(first, f)
}

/// The channel axis of a batch: 1 for images, else the last.
pub(super) fn channel_axis(x: &Tensor) -> usize {
    if x.rank() == 4 { 1 } else { x.rank().saturating_sub(1) }
}

/// `[c]` in a shape that broadcasts over `x`.
pub(super) fn per_channel(v: &Tensor, x: &Tensor) -> Candle<Tensor> {
    let mut shape = vec![1; x.rank()];
    shape[channel_axis(x)] = v.elem_count();
    v.reshape(shape)
}

/// Runs `f`, which works over the last axis, over the channels of `x`.
pub(super) fn over_channels(x: &Tensor, f: impl Fn(&Tensor) -> Candle<Tensor>) -> Candle<Tensor> {
    if x.rank() != 4 {
        return f(x);
    }
    f(&x.permute((0, 2, 3, 1))?.contiguous()?)?.permute((0, 3, 1, 2))?.contiguous()
}

pub(super) fn rms_norm(x: &Tensor, w: &Tensor, eps: f64) -> Candle<Tensor> {
    let square = x.sqr()?.mean_keepdim(D::Minus1)?;
    x.broadcast_div(&(square + eps)?.sqrt()?)?.broadcast_mul(w)
}

/// `1 / (1 + exp(-x))`.
fn sigmoid(x: &Tensor) -> Candle<Tensor> {
    (x.neg()?.exp()? + 1.0)?.recip()
}

/// Elementwise; a `[n, c]` second factor goes over everything but the channels.
pub(super) fn multiply(a: &Tensor, b: &Tensor) -> Candle<Tensor> {
    if a.dims() == b.dims() {
        return a * b;
    }
    let (n, c) = b.dims2()?;
    let mut shape = vec![1; a.rank()];
    shape[0] = n;
    shape[channel_axis(a)] = c;
    a.broadcast_mul(&b.reshape(shape)?)
}

pub(super) fn avg_pool(x: &Tensor, window: Window, count_padding: bool) -> Candle<Tensor> {
    let (_, _, h, w) = x.dims4()?;
    let sum = pooled(x, window, 0.0, |m, s| m + s)?;
    let (_, _, oh, ow) = sum.dims4()?;
    let seen = |i: usize, o: usize, len: usize| {
        let (from, k) = (o * window.stride[i], window.kernel[i]);
        let inside = |p: usize| p >= window.padding[i] && p < window.padding[i] + len;
        if count_padding { k } else { (from..from + k).filter(|&p| inside(p)).count() }
    };
    let factors: Vec<f32> = (0..oh * ow).map(|i| 1.0 / (seen(0, i / ow, h) * seen(1, i % ow, w)) as f32).collect();
    sum.broadcast_mul(&Tensor::from_vec(factors, (1, 1, oh, ow), x.device())?)
}

/// As a product with one averaging matrix a side, which has a backward pass.
pub(super) fn adaptive_avg_pool(x: &Tensor, [oh, ow]: [usize; 2]) -> Candle<Tensor> {
    let (n, c, h, w) = x.dims4()?;
    let matrix = |len: usize, out: usize| {
        let mut m = vec![0f32; len * out];
        for o in 0..out {
            let (from, to) = (o * len / out, ((o + 1) * len).div_ceil(out));
            (from..to).for_each(|i| m[i * out + o] = 1.0 / (to - from) as f32);
        }
        Tensor::from_vec(m, (len, out), x.device())
    };
    let y = x.contiguous()?.reshape((n * c * h, w))?.matmul(&matrix(w, ow)?)?.reshape((n * c, h, ow))?;
    let y = y.transpose(1, 2)?.contiguous()?.reshape((n * c * ow, h))?.matmul(&matrix(h, oh)?)?;
    y.reshape((n, c, ow, oh))?.transpose(2, 3)?.contiguous()
}

pub(super) fn patch_merge(x: &Tensor, [h, w]: [usize; 2]) -> Candle<Tensor> {
    let (n, _, d) = x.dims3()?;
    // [n, h/2, row, w/2, column, d] → [n, h/2, w/2, column, row, d]
    let x = x.contiguous()?.reshape(&[n, h / 2, 2, w / 2, 2, d][..])?;
    x.permute(vec![0, 1, 3, 4, 2, 5])?.contiguous()?.reshape((n, h / 2 * (w / 2), 4 * d))
}

pub(super) fn channel_pad(x: &Tensor, stride: usize, map: &[Option<u32>]) -> Candle<Tensor> {
    let axis = channel_axis(x);
    let c = x.dim(axis)?;
    let x = if stride > 1 {
        let (_, _, h, w) = x.dims4()?;
        let one = Window { kernel: [1, 1], stride: [stride, stride], padding: [0; 4] };
        window_slices(x, one, h.div_ceil(stride), w.div_ceil(stride), 0.0)?.swap_remove(0)
    } else {
        x.clone()
    };
    // A zero channel at the end stands for the padding.
    let mut one = x.dims().to_vec();
    one[axis] = 1;
    let x = Tensor::cat(&[&x, &Tensor::zeros(one, x.dtype(), x.device())?], axis)?;
    let index: Vec<u32> = map.iter().map(|m| m.unwrap_or(c as u32)).collect();
    x.contiguous()?.index_select(&Tensor::new(index, x.device())?, axis)
}

/// `softmax(scale · x)` over the last axis.
pub(super) fn softmax(x: &Tensor, scale: f64) -> Candle<Tensor> {
    if fusable(x) {
        return x.contiguous()?.apply_op1(Softmax { scale });
    }
    // The shift by the maximum is for range only and carries no gradient.
    let x = (x * scale)?;
    let e = x.broadcast_sub(&x.detach().max_keepdim(D::Minus1)?)?.exp()?;
    e.broadcast_div(&e.sum_keepdim(D::Minus1)?)
}

/// A table over relative positions `[positions, heads]` → `[heads, n, n]` for the pairs of a window's tokens.
pub(super) fn relative_bias(table: &Tensor, size: [usize; 2]) -> Candle<Tensor> {
    let n = size[0] * size[1];
    let index = Tensor::new(window::relative_index(size), table.device())?;
    let heads = table.dim(1)?;
    table.contiguous()?.index_select(&index, 0)?.reshape((n, n, heads))?.permute((2, 0, 1))?.contiguous()
}

/// Swin v2's continuous bias: `[w1 [hidden, 2], b1 [hidden], w2 [heads, hidden]]` → `[heads, n, n]`.
pub(super) fn continuous_bias(net: [&Tensor; 3], size: [usize; 2], trained: [usize; 2]) -> Candle<Tensor> {
    let at: Vec<f32> = window::log_coordinates(size, trained).into_iter().flatten().collect();
    let at = Tensor::from_vec(at, (window::relative_positions(size), 2), net[0].device())?;
    let hidden = linear(&at, net[0], Some(net[1]))?.relu()?;
    let table = (sigmoid(&linear(&hidden, net[2], None)?)? * 16.0)?;
    relative_bias(&table, size)
}

/// Attention with what goes beyond the products.
pub(super) struct Attention {
    pub heads: usize,
    /// Consecutive heads that share one of keys and values.
    pub group: usize,
    /// A token sees itself and those before it.
    pub causal: bool,
    /// At most so many.
    pub most: Option<usize>,
    /// A token sees those at most so far away, before and after it.
    pub reach: Option<usize>,
    /// What a score is capped at, by `cap · tanh(s / cap)`.
    pub cap: Option<f64>,
    /// `[heads, 1, 1]` logarithms of the factors of cosine attention.
    pub factors: Option<Tensor>,
    pub windows: Option<Windows>,
    /// `[heads, n, n]`.
    pub bias: Option<Tensor>,
}

impl Attention {
    /// `q`, `k`, `v` are `[n, tokens, heads·width]`, with fewer heads of keys and values where they are shared. There may be more tokens
    /// of `k` and `v`, which begin before those of `q` and end with them.
    pub fn run(&self, q: &Tensor, k: &Tensor, v: &Tensor, scale: f64) -> Candle<Tensor> {
        let Some(w) = &self.windows else {
            return attention(q, k, v, self, scale, None);
        };
        let (n, t, _) = q.dims3()?;
        let [order, back] = gathered(w, q.device())?;
        let cut = |x: &Tensor| x.contiguous()?.index_select(&order, 1)?.reshape((n * w.count(), w.tokens(), ()));
        let mask = match w.shift {
            [0, 0] => None,
            _ => {
                let (parts, none) = (w.parts(), vec![0.0; w.tokens() * w.tokens()]);
                let mask: Vec<f32> = parts.chunks(w.tokens()).flat_map(|p| window::masked(&none, p)).collect();
                Some(Tensor::from_vec(mask, (w.count(), 1, w.tokens(), w.tokens()), q.device())?)
            }
        };
        let y = attention(&cut(q)?, &cut(k)?, &cut(v)?, self, scale, mask)?;
        y.reshape((n, t, ()))?.index_select(&back, 1)
    }
}

/// Every head of `x`, `[n, tokens, heads·head_dim]`, turned by its token's place, the first at `starts`: of each image, or one for all.
pub(super) fn rope(x: &Tensor, rope: &op::Rope, starts: &[usize]) -> Candle<Tensor> {
    let (n, t, width) = x.dims3()?;
    let (d, turned) = (rope.head_dim, rope.turned);
    let turns = |start: &usize| rotary::turns(*start..start + t, &rope.frequencies(start + t), rope.factor());
    let (cos, sin): (Vec<_>, Vec<_>) = starts.iter().map(turns).unzip();
    let table = |v: Vec<Vec<f32>>| Tensor::from_vec(v.concat(), (starts.len(), t, 1, turned / 2), x.device());
    let (cos, sin) = (table(cos)?, table(sin)?);
    let heads = x.contiguous()?.reshape((n, t, width / d.max(1), d))?;
    let part = heads.narrow(D::Minus1, 0, turned)?;
    let (a, b, axis) = match rope.pairs {
        Pairs::Halves => (part.narrow(D::Minus1, 0, turned / 2)?, part.narrow(D::Minus1, turned / 2, turned / 2)?, 3),
        Pairs::Neighbours => {
            let pairs = part.contiguous()?.reshape((n, t, width / d.max(1), turned / 2, 2))?;
            (pairs.narrow(D::Minus1, 0, 1)?.squeeze(4)?, pairs.narrow(D::Minus1, 1, 1)?.squeeze(4)?, 4)
        }
    };
    let y = (a.broadcast_mul(&cos)? - b.broadcast_mul(&sin)?)?;
    let z = (b.broadcast_mul(&cos)? + a.broadcast_mul(&sin)?)?;
    let made = match axis {
        3 => Tensor::cat(&[y, z], 3)?,
        _ => Tensor::stack(&[y, z], 4)?.flatten_from(3)?,
    };
    let made = if turned < d { Tensor::cat(&[made, heads.narrow(D::Minus1, turned, d - turned)?], 3)? } else { made };
    made.reshape((n, t, width))
}

/// Which token goes where when an image's tokens are gathered into windows, and back.
pub(super) fn gathered(w: &Windows, device: &Device) -> Candle<[Tensor; 2]> {
    let order = w.order();
    let mut back = vec![0u32; order.len()];
    (0u32..).zip(&order).for_each(|(i, &o)| back[o as usize] = i);
    Ok([Tensor::new(order, device)?, Tensor::new(back, device)?])
}

/// Rows of length 1.
pub(super) fn unit(x: &Tensor) -> Candle<Tensor> {
    let length = x.sqr()?.sum_keepdim(D::Minus1)?.sqrt()?.maximum(1e-12)?;
    x.broadcast_div(&length)
}

/// `mask` is `[windows, 1, n, n]`, added to the scores of every image's windows.
fn attention(q: &Tensor, k: &Tensor, v: &Tensor, a: &Attention, scale: f64, mask: Option<Tensor>) -> Candle<Tensor> {
    let (n, t, _) = q.dims3()?;
    let (heads, all) = (a.heads, k.dim(1)?);
    let split = |x: &Tensor, group: usize| {
        let t = x.dim(1)?;
        let x = x.contiguous()?.reshape((n, t, heads / group, ()))?.transpose(1, 2)?.contiguous()?;
        if group == 1 {
            return Ok(x);
        }
        let width = x.dim(3)?;
        x.unsqueeze(2)?.broadcast_as((n, heads / group, group, t, width))?.contiguous()?.reshape((n, heads, t, width))
    };
    let (mut q, mut k, v) = (split(q, 1)?, split(k, a.group)?, split(v, a.group)?);
    if let Some(f) = &a.factors {
        let f = f.minimum(100f64.ln())?.exp()?;
        q = unit(&q)?.broadcast_mul(&f.unsqueeze(0)?)?;
        k = unit(&k)?;
    }
    let mut scores = q.matmul(&k.transpose(2, 3)?.contiguous()?)?;
    let mut scale = scale;
    if a.bias.is_some() || a.causal || a.reach.is_some() || a.cap.is_some() || mask.is_some() {
        scores = (scores * scale)?;
        scale = 1.0;
    }
    if let Some(cap) = a.cap {
        scores = ((scores / cap)?.tanh()? * cap)?;
    }
    if let Some(b) = &a.bias {
        scores = scores.broadcast_add(&b.unsqueeze(0)?)?;
    }
    let most = a.most.unwrap_or(all);
    // The last token alone may see everything.
    let local = a.reach.filter(|reach| all > reach.saturating_add(1));
    if a.causal && (t > 1 || most < all) || local.is_some() {
        let seen = |row: usize, j: usize| match local {
            Some(reach) => row.abs_diff(j) <= reach,
            None => j <= row && row - j < most,
        };
        let of = |i: usize| if seen(all - t + i / all, i % all) { 0.0 } else { f32::NEG_INFINITY };
        let unseen: Vec<f32> = (0..t * all).map(of).collect();
        scores = scores.broadcast_add(&Tensor::from_vec(unseen, (1, 1, t, all), q.device())?)?;
    }
    if let Some(m) = mask {
        let windows = m.dim(0)?;
        scores = scores.reshape((n / windows, windows, heads, t * t))?;
        scores = scores.broadcast_add(&m.reshape((1, windows, 1, t * t))?)?.reshape((n, heads, t, t))?;
    }
    softmax(&scores, scale)?.matmul(&v)?.transpose(1, 2)?.contiguous()?.flatten_from(2)
}
