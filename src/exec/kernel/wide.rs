//! Dense steps through the AVX-512 tiles: pads or quantizes an image once, then walks panels, lines and rows.
//!
//! Compared with im2col and a general product this reads each input once into cache instead of kh·kw times, which is
//! what matters for the 16 to 64 channels of CIFAR networks.

use super::avx512::{Line, Panel, Panels, Scales, Shape, line_f32, line_u8};
use super::dense::{Code, Epilogue, Geometry};
use super::{Scratch, band, room, split, vector, with_scratch};
use crate::graph::Activation;
use std::arch::x86_64::{__m512, __m512i};

/// A dense step packed for AVX-512 (and VNNI for int8).
pub(crate) struct Wide {
    geo: Geometry,
    /// Offsets of contiguous input runs from a window's first element, in the padded image.
    taps: Vec<usize>,
    /// Values of a run.
    len: usize,
    weights: Weights,
}

enum Weights {
    F32(Panels<__m512>),
    Int8 { panels: Panels<__m512i>, sums: Vec<i32>, factors: Vec<f32> },
}

/// Largest u8 code; the dot products cannot saturate.
const TOP: u8 = 255;

fn code(x: &[f32]) -> Code {
    // SAFETY: the features were checked when packing.
    let (lo, hi) = unsafe { super::avx512::range_with_zero(x) };
    Code::covering(lo, hi, TOP)
}

/// A pointer into `out` (or residual) that several panels write through; columns of different panels never overlap.
struct Target {
    out: *mut f32,
    residual: *const f32,
}

impl Wide {
    pub fn f32(geo: Geometry, rows: &[f32]) -> Wide {
        let (taps, len) = taps(&geo);
        Wide { weights: Weights::F32(Panels::f32(rows, shape(&geo, taps.len(), len))), geo, taps, len }
    }

    pub fn int8(geo: Geometry, rows: &[i8], sums: &[i32], factors: &[f32]) -> Wide {
        let (taps, len) = taps(&geo);
        let panels = Panels::i8(rows, shape(&geo, taps.len(), len));
        Wide { weights: Weights::Int8 { panels, sums: sums.to_vec(), factors: factors.to_vec() }, geo, taps, len }
    }

    pub fn kernel(&self) -> &'static str {
        match (&self.weights, self.geo.in_place()) {
            (Weights::F32(_), true) => "gemm-f32/avx512",
            (Weights::F32(_), false) => "conv-f32/avx512",
            (Weights::Int8 { .. }, true) => "gemm-u8i8/vnni",
            (Weights::Int8 { .. }, false) => "conv-u8i8/vnni",
        }
    }

    /// As `Dense::run`.
    pub fn run(&self, e: &Epilogue, x: &[f32], residual: Option<&[f32]>, out: &mut [f32], par: bool) {
        assert_eq!(e.bias.len(), self.geo.out_channels);
        assert!(residual.is_none_or(|r| r.len() == out.len()));
        if self.geo.in_place() { self.flat(e, x, residual, out, par) } else { self.windows(e, x, residual, out, par) }
    }

    fn flat(&self, e: &Epilogue, x: &[f32], residual: Option<&[f32]>, out: &mut [f32], par: bool) {
        let (c, oc) = (self.geo.channels, self.geo.out_channels);
        let all = out.len() / oc;
        assert_eq!(x.len(), all * c);
        // A band of input rows stays in the second-level cache while panels pass over it.
        let rows = band(par, all, ((1 << 17) / c.max(1)).next_multiple_of(16));
        let per_image = self.geo.rows();
        let codes: Vec<Code> = match &self.weights {
            Weights::Int8 { .. } if !self.geo.per_row => x.chunks_exact(per_image * c).map(code).collect(),
            _ => vec![],
        };
        split(par, out, rows * oc, |b, out| {
            let (first, n) = (b * rows, out.len() / oc);
            let x = &x[first * c..][..n * c];
            let to = target(out, residual, first * oc);
            match &self.weights {
                Weights::F32(panels) => {
                    for panel in &panels.list {
                        // SAFETY: `n` rows of `c` values and `oc` columns; features were checked when packing.
                        unsafe { line_f32(panels.as_ptr(), panel, self.line(e, x.as_ptr(), c, n, panel, &to, 0)) };
                    }
                }
                Weights::Int8 { panels, sums, factors } => with_scratch(|s| {
                    let q = room(&mut s.u8, n * c + 4);
                    let scales = room(&mut s.f32, n);
                    let zeros = room(&mut s.i32, n);
                    for (r, (x, q)) in x.chunks_exact(c).zip(q.chunks_exact_mut(c)).enumerate() {
                        let by_image = codes.get((first + r) / per_image).copied();
                        let code = by_image.unwrap_or_else(|| code(x));
                        vector::quantize(x, code.inverse, code.zero, TOP as f32, q);
                        (scales[r], zeros[r]) = (code.scale, code.zero);
                    }
                    for panel in &panels.list {
                        let scales = self.scales(scales, zeros, 1, factors, sums, panel);
                        // SAFETY: as above; `q` has four spare bytes.
                        unsafe {
                            line_u8(panels.as_ptr(), panel, self.line(e, q.as_ptr(), c, n, panel, &to, 0), scales)
                        };
                    }
                }),
            }
            finish(out, e);
        });
    }

    fn windows(&self, e: &Epilogue, x: &[f32], residual: Option<&[f32]>, out: &mut [f32], par: bool) {
        let g = &self.geo;
        let (in_len, out_len) = (g.image[0] * g.image[1] * g.channels, g.rows() * g.out_channels);
        let line = g.out_image[1] * g.out_channels;
        assert!(out.len().is_multiple_of(out_len) && x.len() == out.len() / out_len * in_len);
        let lines = band(par, g.out_image[0], g.out_image[0]);
        let [h, width] = padded(g);
        let (size, step) = (h * width * g.channels, g.window.stride[0] * width * g.channels);
        let stride = g.window.stride[1] * g.channels;
        split(par, out, out_len, |img, out| {
            let x = &x[img * in_len..][..in_len];
            let at = |b: usize| img * out_len + b * lines * line;
            match &self.weights {
                Weights::F32(panels) => with_scratch(|Scratch { f32, .. }| {
                    let image = if g.window.padding == [0, 0] {
                        x
                    } else {
                        let buf = room(f32, size);
                        pad(g, x, 0.0, buf, |x, out| out.copy_from_slice(x));
                        &*buf
                    };
                    split(par, out, lines * line, |b, out| {
                        let to = target(out, residual, at(b));
                        for panel in &panels.list {
                            for y in 0..out.len() / line {
                                let a = &image[(b * lines + y) * step..];
                                let l = self.line(e, a.as_ptr(), stride, g.out_image[1], panel, &to, y * line);
                                // SAFETY: the window of every output of the line lies in the padded image.
                                unsafe { line_f32(panels.as_ptr(), panel, l) };
                            }
                        }
                        finish(out, e);
                    });
                }),
                Weights::Int8 { panels, sums, factors } => with_scratch(|Scratch { u8, .. }| {
                    let code = code(x);
                    let buf = room(u8, size + 4);
                    let quantize =
                        |x: &[f32], out: &mut [u8]| vector::quantize(x, code.inverse, code.zero, TOP as f32, out);
                    if g.window.padding == [0, 0] {
                        quantize(x, &mut buf[..in_len]);
                    } else {
                        pad(g, x, code.zero as u8, &mut buf[..size], quantize);
                    }
                    let image = &*buf;
                    split(par, out, lines * line, |b, out| {
                        let to = target(out, residual, at(b));
                        // Outlive the pointers to them.
                        let (scale, zero) = ([code.scale], [code.zero]);
                        for panel in &panels.list {
                            let scales = self.scales(&scale, &zero, 0, factors, sums, panel);
                            for y in 0..out.len() / line {
                                let a = &image[(b * lines + y) * step..];
                                let l = self.line(e, a.as_ptr(), stride, g.out_image[1], panel, &to, y * line);
                                // SAFETY: as above; `buf` has four spare bytes.
                                unsafe { line_u8(panels.as_ptr(), panel, l, scales) };
                            }
                        }
                        finish(out, e);
                    });
                }),
            }
        });
    }

    #[expect(clippy::too_many_arguments, reason = "where one line lies")]
    fn line<'a, A>(
        &'a self,
        e: &Epilogue,
        a: *const A,
        stride: usize,
        rows: usize,
        panel: &Panel,
        to: &Target,
        at: usize,
    ) -> Line<'a, A> {
        let step = if size_of::<A>() == 1 { 4 } else { 1 };
        let residual = if to.residual.is_null() { to.residual } else { to.residual.wrapping_add(at + panel.col) };
        Line {
            a: a.wrapping_add(panel.channel),
            stride,
            taps: &self.taps,
            steps: self.len.div_ceil(step),
            rows,
            out: to.out.wrapping_add(at + panel.col),
            residual,
            out_stride: self.geo.out_channels,
            bias: e.bias[panel.col..].as_ptr(),
            relu: e.act == Some(Activation::Relu),
        }
    }

    fn scales(&self, s: &[f32], z: &[i32], stride: usize, factors: &[f32], sums: &[i32], panel: &Panel) -> Scales {
        let (factors, sums) = (factors[panel.col..].as_ptr(), sums[panel.col..].as_ptr());
        Scales { scale: s.as_ptr(), zero: z.as_ptr(), stride, factors, sums }
    }
}

fn target(out: &mut [f32], residual: Option<&[f32]>, at: usize) -> Target {
    let residual = residual.map_or(std::ptr::null(), |r| r[at..][..out.len()].as_ptr());
    Target { out: out.as_mut_ptr(), residual }
}

/// Activations that the tiles do not do themselves.
fn finish(out: &mut [f32], e: &Epilogue) {
    if let Some(act) = e.act.filter(|a| *a != Activation::Relu) {
        vector::activate(out, act);
    }
}

/// Sides of the padded image.
fn padded(g: &Geometry) -> [usize; 2] {
    [g.image[0] + 2 * g.window.padding[0], g.image[1] + 2 * g.window.padding[1]]
}

/// Runs of contiguous input in a window of the padded image: a whole kernel line, or one pixel's channels with groups.
fn taps(g: &Geometry) -> (Vec<usize>, usize) {
    let [kh, kw] = g.window.kernel;
    let line = padded(g)[1] * g.channels;
    if g.groups == 1 {
        ((0..kh).map(|ky| ky * line).collect(), kw * g.channels)
    } else {
        let taps = (0..kh * kw).map(|i| i / kw * line + i % kw * g.channels).collect();
        (taps, g.channels / g.groups)
    }
}

fn shape(g: &Geometry, taps: usize, len: usize) -> Shape {
    Shape { groups: g.groups, cols: g.out_channels / g.groups, taps, len, channels: g.channels / g.groups }
}

/// Writes the image into `out` with borders of `fill`, one line at a time through `put`.
fn pad<T: Copy>(g: &Geometry, x: &[f32], fill: T, out: &mut [T], put: impl Fn(&[f32], &mut [T])) {
    let ([py, px], c) = (g.window.padding, g.channels);
    let width = padded(g)[1] * c;
    let (inner, side) = (g.image[1] * c, px * c);
    out[..py * width].fill(fill);
    let end = out.len() - py * width;
    out[end..].fill(fill);
    for (x, out) in x.chunks_exact(inner).zip(out[py * width..end].chunks_exact_mut(width)) {
        out[..side].fill(fill);
        put(x, &mut out[side..side + inner]);
        out[side + inner..].fill(fill);
    }
}
