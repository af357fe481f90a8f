//! Convolutions and linears with prepacked weights, f32 and dynamic int8, with bias, residual and activation fused.
//!
//! A linear over `t` tokens is a 1x1 convolution over a `t x 1` image. Activations are channels-last, so window
//! elements are ordered (ky, kx, channel) and a 1x1 convolution reads its input in place.
//!
//! int8: activations become `q = round(x / s) + z` in u8 with one `(s, z)` an image (convolution) or a row (linear);
//! `y = (Σ q·w - z·Σ w) · s · factor + bias`, exact in integers up to the last step. Padding is `q = z`.

use super::depthwise::Depthwise;
use super::geometry::{Code, Epilogue, Geometry, Level, Whole};
use super::{Par, Scratch, band, gemm, room, rows, split, vector, with_scratch};
#[cfg(target_arch = "x86_64")]
use super::{grouped::Grouped, tiles::With, wide::Wide};
use crate::model::Param;
use rten_gemm::PackedBMatrix;

/// Weights as PyTorch orders them, `[out, in/groups, kh, kw]`, and what scales each output channel.
pub(crate) enum Source<'a> {
    /// `factors`: folded batch norm.
    F32 { w: &'a [f32], factors: Option<&'a [f32]> },
    /// `factors`: weight scale times folded batch norm.
    Int8 { q: &'a [i8], factors: &'a [f32] },
}

/// A prepacked dense step.
pub(crate) struct Dense {
    geo: Geometry,
    weights: Weights,
    epilogue: Epilogue,
}

enum Weights {
    F32(Vec<PackedBMatrix<f32>>),
    Int8(Quantized),
    /// Packed by a kernel that does the whole step.
    Own(Box<dyn Whole>),
}

struct Quantized {
    packed: Vec<PackedBMatrix<i8>>,
    sums: Vec<i32>,
    factors: Vec<f32>,
}

/// `[out, in, kh, kw]` → `[out, kh, kw, in]`.
fn channels_last<T: Copy>(w: &[T], geo: &Geometry) -> Vec<T> {
    let [kh, kw] = geo.window.kernel;
    let (c, taps) = (geo.channels / geo.groups, kh * kw);
    let mut out = Vec::with_capacity(w.len());
    for row in w.chunks_exact((c * taps).max(1)) {
        (0..taps).for_each(|t| out.extend((0..c).map(|ch| row[ch * taps + t])));
    }
    out
}

impl Dense {
    /// Packs for the best kernel that this processor has and `PARING_KERNELS` allows.
    pub fn new(geo: Geometry, source: Source<'_>, epilogue: Epilogue) -> Dense {
        Dense::with(geo, source, epilogue, Level::allowed())
    }

    /// As [`Dense::new`], for kernels up to `level`.
    pub fn with(geo: Geometry, source: Source<'_>, epilogue: Epilogue, level: Level) -> Dense {
        let (k, n) = (geo.k(), geo.out_channels / geo.groups);
        let weights = match source {
            Source::F32 { w, factors } => {
                let mut rows = channels_last(w, &geo);
                if let Some(f) = factors {
                    for (row, f) in rows.chunks_exact_mut(k.max(1)).zip(f) {
                        row.iter_mut().for_each(|v| *v *= f);
                    }
                }
                match own_f32(geo, &rows, level) {
                    Some(w) => Weights::Own(w),
                    None => Weights::F32(rows.chunks_exact(n * k).map(|g| gemm::pack_f32(g, n, k)).collect()),
                }
            }
            Source::Int8 { q, factors } => {
                let rows = channels_last(q, &geo);
                let sums: Vec<i32> = rows.chunks_exact(k.max(1)).map(|r| r.iter().map(|&v| v as i32).sum()).collect();
                match own_int8(geo, &rows, &sums, factors, level) {
                    Some(w) => Weights::Own(w),
                    None => {
                        let packed = rows.chunks_exact(n * k).map(|g| gemm::pack_i8(g, n, k)).collect();
                        Weights::Int8(Quantized { packed, sums, factors: factors.to_vec() })
                    }
                }
            }
        };
        Dense { geo, weights, epilogue }
    }

    /// Multiplies a linear's `weight` as it is stored; `None` where nothing here can.
    pub fn stored(geo: Geometry, weight: &Param, epilogue: &Epilogue) -> Option<Dense> {
        if !geo.in_place() || Level::allowed() < Level::Vector {
            return None;
        }
        #[cfg(target_arch = "x86_64")]
        return super::blocks::Blocks::of(weight).map(|blocks| Dense {
            geo,
            weights: Weights::Own(Box::new(blocks)),
            epilogue: epilogue.clone(),
        });
        #[cfg(not(target_arch = "x86_64"))]
        None
    }

    /// What will run, for people: `conv-f32/x86_64-f32-avx512`.
    pub fn kernel(&self) -> String {
        let what = if self.geo.in_place() { "gemm" } else { "im2col+gemm" };
        match &self.weights {
            Weights::F32(_) => format!("{what}-f32/{}", gemm::float_name()),
            Weights::Int8(_) => format!("{what}-u8i8/{}", gemm::int8_name()),
            Weights::Own(w) => w.kernel(),
        }
    }

    /// `x` `[images, h, w, c]` → `out` `[images, oh, ow, oc]`; `residual` has the shape of `out`.
    pub fn run(&self, x: &[f32], residual: Option<&[f32]>, out: &mut [f32], par: Par<'_>) {
        match &self.weights {
            Weights::Own(w) => w.run(&self.epilogue, x, residual, out, par),
            _ if self.geo.in_place() => self.run_flat(x, residual, out, par),
            _ => self.run_windows(x, residual, out, par),
        }
    }

    /// Rows of the input are rows of the product; images do not matter.
    fn run_flat(&self, x: &[f32], residual: Option<&[f32]>, out: &mut [f32], par: Par<'_>) {
        let (c, oc) = (self.geo.channels, self.geo.out_channels);
        let rows = out.len() / oc;
        let res = |i: usize, rows: usize, len: usize| residual.map(|r| &r[i * rows * oc..][..len]);
        match &self.weights {
            Weights::F32(packed) => {
                let rows = band(par, rows, 1 << 20);
                split(par, out, rows * oc, |i, out| {
                    let a = &x[i * rows * c..][..out.len() / oc * c];
                    gemm::run_f32(a, c, &packed[0], &self.epilogue.bias, out);
                    rows::finish(out, res(i, rows, out.len()), self.epilogue.act);
                });
            }
            Weights::Int8(Quantized { packed, sums, factors }) => {
                let top = gemm::top_code();
                let per_image = self.geo.rows();
                let codes: Vec<Code> =
                    x.chunks_exact(per_image * c).filter_map(|img| self.geo.image_code(img, top)).collect();
                let rows = band(par, rows, 128);
                split(par, out, rows * oc, |i, out| {
                    let n = out.len() / oc;
                    let a = &x[i * rows * c..][..n * c];
                    with_scratch(|Scratch { u8, i32, .. }| {
                        let (q, acc) = (room(u8, n * c), room(i32, n * oc));
                        let mut code = vec![Code::default(); n];
                        for (r, (a, q)) in a.chunks_exact(c).zip(q.chunks_exact_mut(c)).enumerate() {
                            let by_image = codes.get((i * rows + r) / per_image);
                            code[r] = by_image.copied().unwrap_or_else(|| Code::of(a, top));
                            vector::quantize(a, code[r].inverse, code[r].zero, top as f32, q);
                        }
                        gemm::run_u8(q, c, &packed[0], acc);
                        for ((acc, out), code) in acc.chunks_exact(oc).zip(out.chunks_exact_mut(oc)).zip(&code) {
                            let bias = &self.epilogue.bias;
                            vector::dequantize(acc, code.zero, sums, code.scale, factors, bias, out);
                        }
                    });
                    rows::finish(out, res(i, rows, out.len()), self.epilogue.act);
                });
            }
            Weights::Own(_) => {}
        }
    }

    fn run_windows(&self, x: &[f32], residual: Option<&[f32]>, out: &mut [f32], par: Par<'_>) {
        let g = &self.geo;
        let (in_len, out_len) = (g.image[0] * g.image[1] * g.channels, g.rows() * g.out_channels);
        let line = g.out_image[1] * g.out_channels;
        let lines = band(par, g.out_image[0], (1 << 15) / (g.k() * g.out_image[1]).max(1));
        for (img, out) in out.chunks_mut(out_len.max(1)).enumerate() {
            let x = &x[img * in_len..][..in_len];
            let residual = residual.map(|r| &r[img * out_len..][..out_len]);
            match &self.weights {
                Weights::F32(packed) => split(par, out, lines * line, |b, out| {
                    with_scratch(|Scratch { f32, .. }| {
                        self.float_band(x, packed, b * lines, out, f32);
                    });
                    rows::finish(out, residual.map(|r| &r[b * lines * line..][..out.len()]), self.epilogue.act);
                }),
                Weights::Int8(weights) => with_scratch(|Scratch { u8, .. }| {
                    let top = gemm::top_code();
                    let code = self.geo.image_code(x, top).unwrap_or_else(|| Code::of(x, top));
                    let q = room(u8, in_len);
                    vector::quantize(x, code.inverse, code.zero, top as f32, q);
                    let q = &*q;
                    split(par, out, lines * line, |b, out| {
                        with_scratch(|s| self.int8_band(q, code, weights, b * lines, out, s));
                        rows::finish(out, residual.map(|r| &r[b * lines * line..][..out.len()]), self.epilogue.act);
                    });
                }),
                Weights::Own(_) => {}
            }
        }
    }

    fn float_band(&self, x: &[f32], packed: &[PackedBMatrix<f32>], y0: usize, out: &mut [f32], buf: &mut Vec<f32>) {
        let g = &self.geo;
        let (k, oc, n) = (g.k(), g.out_channels, g.out_channels / g.groups);
        let rows = out.len() / oc;
        let buf = room(buf, rows * k + if g.groups > 1 { rows * n } else { 0 });
        let (cols, part) = buf.split_at_mut(rows * k);
        for (group, b) in packed.iter().enumerate() {
            windows(g, group, x, 0.0, y0, cols);
            let bias = &self.epilogue.bias[group * n..][..n];
            if g.groups == 1 {
                gemm::run_f32(cols, k, b, bias, out);
            } else {
                gemm::run_f32(cols, k, b, bias, part);
                for (out, part) in out.chunks_exact_mut(oc).zip(part.chunks_exact(n)) {
                    out[group * n..][..n].copy_from_slice(part);
                }
            }
        }
    }

    fn int8_band(&self, q: &[u8], code: Code, w: &Quantized, y0: usize, out: &mut [f32], s: &mut Scratch) {
        let g = &self.geo;
        let (k, oc, n) = (g.k(), g.out_channels, g.out_channels / g.groups);
        let rows = out.len() / oc;
        let (cols, acc) = (room(&mut s.cols, rows * k), room(&mut s.i32, rows * n));
        for (group, b) in w.packed.iter().enumerate() {
            let at = group * n..(group + 1) * n;
            windows(g, group, q, code.zero as u8, y0, cols);
            gemm::run_u8(cols, k, b, acc);
            for (out, acc) in out.chunks_exact_mut(oc).zip(acc.chunks_exact(n)) {
                let (sums, factors) = (&w.sums[at.clone()], &w.factors[at.clone()]);
                let bias = &self.epilogue.bias[at.clone()];
                vector::dequantize(acc, code.zero, sums, code.scale, factors, bias, &mut out[at.clone()]);
            }
        }
    }
}

/// What takes these weights whole, if anything does.
fn own_f32(geo: Geometry, rows: &[f32], level: Level) -> Option<Box<dyn Whole>> {
    if Depthwise::fits(&geo) {
        return Some(Box::new(Depthwise::new(geo, rows)));
    }
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Vector
        && let Some(with) = With::best()
    {
        match (with, Grouped::fits(&geo)) {
            (With::Wide, true) => return Some(Box::new(Grouped::new(geo, rows))),
            // Few columns a group are few lanes of a vector.
            (With::Pair, true) => {}
            (_, false) => return Some(Box::new(Wide::f32(geo, rows, with))),
        }
    }
    let _ = level;
    None
}

fn own_int8(geo: Geometry, rows: &[i8], sums: &[i32], factors: &[f32], level: Level) -> Option<Box<dyn Whole>> {
    #[cfg(target_arch = "x86_64")]
    if level >= Level::Vector && super::avx512::dots() {
        return Some(Box::new(Wide::int8(geo, rows, sums, factors, level)));
    }
    let _ = (geo, rows, sums, factors, level);
    None
}

/// Writes the windows of output lines from `y0` on, `[rows, (ky, kx, channel)]`, for one group's channels.
pub(super) fn windows<T: Copy>(g: &Geometry, group: usize, x: &[T], fill: T, y0: usize, cols: &mut [T]) {
    let ([h, w], [kh, kw], c) = (g.image, g.window.kernel, g.channels / g.groups);
    let ow = g.out_image[1];
    for (row, cols) in cols.chunks_exact_mut(g.k()).enumerate() {
        let (oy, ox) = (y0 + row / ow, row % ow);
        let mut taps = cols.chunks_exact_mut(c);
        for ky in 0..kh {
            let iy = (oy * g.window.stride[0] + ky).checked_sub(g.window.padding[0]).filter(|&v| v < h);
            for kx in 0..kw {
                let ix = (ox * g.window.stride[1] + kx).checked_sub(g.window.padding[1]).filter(|&v| v < w);
                let Some(tap) = taps.next() else { return };
                match (iy, ix) {
                    (Some(iy), Some(ix)) => {
                        tap.copy_from_slice(&x[(iy * w + ix) * g.channels + group * c..][..c]);
                    }
                    _ => tap.fill(fill),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
