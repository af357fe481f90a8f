//! Dense steps through the AVX-512 tiles: pads or quantizes an image once, then walks panels, lines and rows.
//!
//! Compared with im2col and a general product this reads each input once into cache instead of kh·kw times, which is
//! what matters for the 16 to 64 channels of CIFAR networks.

use super::avx512::{Line, Panel, Panels, Scales, Shape, line_f32, line_u8};
use super::dense::{Code, Epilogue, Geometry};
use super::{Par, Scratch, Shared, band, room, split, vector, with_scratch};
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
    pub fn run(&self, e: &Epilogue, x: &[f32], residual: Option<&[f32]>, out: &mut [f32], par: Par<'_>) {
        assert_eq!(e.bias.len(), self.geo.out_channels);
        assert!(residual.is_none_or(|r| r.len() == out.len()));
        let images = out.len() / (self.geo.rows() * self.geo.out_channels).max(1);
        assert!(x.len() == images * self.geo.image[0] * self.geo.image[1] * self.geo.channels);
        if self.geo.in_place() { self.flat(e, x, residual, out, par) } else { self.windows(e, x, residual, out, par) }
    }

    fn panels(&self) -> &[Panel] {
        match &self.weights {
            Weights::F32(panels) => &panels.list,
            Weights::Int8 { panels, .. } => &panels.list,
        }
    }

    /// Do threads share columns rather than rows? Then every weight is fetched by one of them only, which pays where
    /// there are more weights than inputs.
    fn by_columns(&self, rows: usize, par: Par<'_>) -> bool {
        par.threads() > 1 && self.panels().len() >= 2 * par.threads() && self.geo.out_channels > rows
    }

    /// A product over rows as they lie.
    fn flat(&self, e: &Epilogue, x: &[f32], residual: Option<&[f32]>, out: &mut [f32], par: Par<'_>) {
        let (c, oc) = (self.geo.channels, self.geo.out_channels);
        let all = out.len() / oc;
        // A band of input rows stays in the second-level cache while panels pass over it.
        let most = ((1 << 17) / c.max(1)).next_multiple_of(14);
        let columns = self.by_columns(all, par);
        let rows = if columns { all } else { band(par, all, most) };
        let codes = self.image_codes(x, par);
        let shared = Shared::of(out);
        let bands = all.div_ceil(rows.max(1));
        let one = |b: usize, par: Par<'_>| {
            let (first, n) = (b * rows, rows.min(all - b * rows));
            let x = &x[first * c..][..n * c];
            let to = Target { out: shared, residual, at: first * oc, images: 1, lines: 1, rows: n };
            match &self.weights {
                Weights::F32(_) => self.product(e, Input::F32(x), &to, [c, 0], 0, par),
                Weights::Int8 { .. } => with_scratch(|Scratch { u8, codes: row_codes, .. }| {
                    let (q, row_codes) = (room(u8, n * c + 4), room(row_codes, n));
                    self.quantize_rows(x, codes.as_deref(), first, q, row_codes, par);
                    self.product(e, Input::Int8(q, row_codes, 1), &to, [c, 0], 0, par);
                }),
            }
        };
        if columns { one(0, par) } else { par.run(bands, |b| one(b, Par::ALONE)) }
    }

    /// One code an image, where a convolution's input has one scale an image.
    fn image_codes(&self, x: &[f32], par: Par<'_>) -> Option<Vec<Code>> {
        let Weights::Int8 { .. } = &self.weights else { return None };
        let len = self.geo.image[0] * self.geo.image[1] * self.geo.channels;
        (!self.geo.per_row).then(|| x.chunks_exact(len).map(|x| code_of(x, par)).collect())
    }

    /// Quantizes rows of the input, of which `first` is the first one's number, each by its own or its image's code.
    fn quantize_rows(
        &self,
        x: &[f32],
        images: Option<&[Code]>,
        first: usize,
        q: &mut [u8],
        codes: &mut [Code],
        par: Par<'_>,
    ) {
        let (c, per_image) = (self.geo.channels, self.geo.rows());
        let (n, q) = (codes.len(), Shared::of(q));
        let len = n.div_ceil(par.threads()).max(1);
        split(par, codes, len, |b, codes| {
            for (i, to) in codes.iter_mut().enumerate() {
                let r = b * len + i;
                let x = &x[r * c..][..c];
                *to = images.map_or_else(|| code(x), |codes| codes[(first + r) / per_image]);
                // SAFETY: every row has its own place.
                vector::quantize(x, to.inverse, to.zero, TOP as f32, unsafe { q.part(r * c, c) });
            }
        });
    }

    /// A product over windows of padded images.
    fn windows(&self, e: &Epilogue, x: &[f32], residual: Option<&[f32]>, out: &mut [f32], par: Par<'_>) {
        let g = &self.geo;
        let (in_len, out_len) = (g.image[0] * g.image[1] * g.channels, g.rows() * g.out_channels);
        let images = out.len() / out_len;
        let [h, width] = padded(g);
        let line = width * g.channels;
        let size = h * line;
        let strides = [g.window.stride[1] * g.channels, g.window.stride[0] * line];
        let codes = self.image_codes(x, par);
        let bare = g.window.padding == [0, 0];
        // As many images as stay in the second-level cache share every panel that is fetched.
        let block = ((1 << 20) / (size * if codes.is_some() { 1 } else { 4 }).max(1)).clamp(1, images.max(1));
        let out = Shared::of(out);
        for from in (0..images).step_by(block) {
            let n = block.min(images - from);
            let [lines, rows] = g.out_image;
            let to = Target { out, residual, at: from * out_len, images: n, lines, rows };
            let x = &x[from * in_len..][..n * in_len];
            match (&self.weights, &codes) {
                (Weights::F32(_), _) if bare => self.images(e, Input::F32(x), in_len, &to, strides, par),
                (Weights::F32(_), _) => with_scratch(|Scratch { f32, .. }| {
                    let buf = room(f32, n * size);
                    split(par, buf, line, |i, out| {
                        pad_line(g, &x[i / h * in_len..][..in_len], i % h, 0.0, out, |x, out| out.copy_from_slice(x));
                    });
                    self.images(e, Input::F32(buf), size, &to, strides, par);
                }),
                (Weights::Int8 { .. }, codes) => with_scratch(|Scratch { u8, .. }| {
                    let codes = &codes.as_deref().unwrap_or_default()[from..from + n];
                    let buf = room(u8, n * size + 4);
                    split(par, &mut buf[..n * size], line, |i, out| {
                        let code = codes[i / h];
                        pad_line(g, &x[i / h * in_len..][..in_len], i % h, code.zero as u8, out, |x, out| {
                            vector::quantize(x, code.inverse, code.zero, TOP as f32, out);
                        });
                    });
                    self.images(e, Input::Int8(buf, codes, 0), size, &to, strides, par);
                }),
            }
        }
    }

    /// The product over prepared images of `size` values each.
    fn images(&self, e: &Epilogue, x: Input<'_>, size: usize, to: &Target<'_>, strides: [usize; 2], par: Par<'_>) {
        let (n, lines, out_line) = (to.images, to.lines, to.rows * self.geo.out_channels);
        if par.threads() == 1 || self.by_columns(n * lines * to.rows, par) {
            return self.product(e, x, to, strides, size, par);
        }
        // Bands of lines; twice as many as threads where that leaves whole pairs of lines.
        let each = lines.div_ceil(2 * par.threads()).next_multiple_of(2).min(lines.div_ceil(par.threads()));
        let bands = lines.div_ceil(each);
        par.run(n * bands, |i| {
            let (image, first) = (i / bands, i % bands * each);
            let lines = each.min(lines - first);
            let at = to.at + image * to.lines * out_line + first * out_line;
            let x = x.skip(image * size + first * strides[1], image);
            self.product(e, x, &Target { at, images: 1, lines, ..*to }, strides, 0, Par::ALONE);
        });
    }

    /// All panels over the target's images, whose inputs begin `size` values apart.
    fn product(&self, e: &Epilogue, x: Input<'_>, to: &Target<'_>, strides: [usize; 2], size: usize, par: Par<'_>) {
        let (images, out_len) = (to.images, to.lines * to.rows * self.geo.out_channels);
        let panels = self.panels();
        // Panels that are in the cache already need no fetching ahead.
        let ahead = |i: usize| match (&self.weights, panels.get(i + 1)) {
            (Weights::F32(p), Some(next)) if p.bytes() > 1 << 20 => p.place(next),
            (Weights::Int8 { panels: p, .. }, Some(next)) if p.bytes() > 1 << 20 => p.place(next),
            _ => (std::ptr::null(), 0),
        };
        let parts = if par.threads() > 1 { (4 * par.threads()).min(panels.len()) } else { 1 };
        par.run(parts, |part| {
            for i in part * panels.len() / parts..(part + 1) * panels.len() / parts {
                let (panel, (place, bytes)) = (&panels[i], ahead(i));
                for image in 0..images {
                    let from = image * bytes / images;
                    let fetch = (place.wrapping_add(from), (image + 1) * bytes / images - from);
                    let at = to.at + image * out_len;
                    // SAFETY: the target's rows lie within `out`, `x` reaches every window of them (checked by `run` and by
                    // the preparation of `x`), different panels write different columns, and the processor's features
                    // were checked when packing.
                    unsafe {
                        match (&self.weights, x) {
                            (Weights::F32(p), Input::F32(x)) => {
                                let x = &x[image * size..];
                                line_f32(p.as_ptr(), panel, self.line(e, x.as_ptr(), strides, panel, to, at, fetch));
                            }
                            (Weights::Int8 { panels: p, sums, factors }, Input::Int8(x, codes, stride)) => {
                                let x = &x[image * size..];
                                let scales = scales(&codes[image..], stride, factors, sums, panel);
                                let line = self.line(e, x.as_ptr(), strides, panel, to, at, fetch);
                                line_u8(p.as_ptr(), panel, line, scales);
                            }
                            _ => unreachable!("inputs are prepared for their weights"),
                        }
                    }
                }
            }
        });
        if e.act.is_some_and(|a| a != Activation::Relu) {
            let len = (images * out_len).div_ceil(par.threads());
            par.run(par.threads(), |t| {
                let from = (t * len).min(images * out_len);
                // SAFETY: the product is done, and every part has its own place.
                finish(unsafe { to.out.part(to.at + from, len.min(images * out_len - from)) }, e);
            });
        }
    }

    #[expect(clippy::too_many_arguments, reason = "where the lines lie")]
    fn line<'a, A>(
        &'a self,
        e: &Epilogue,
        a: *const A,
        strides: [usize; 2],
        panel: &Panel,
        to: &Target<'_>,
        at: usize,
        ahead: (*const u8, usize),
    ) -> Line<'a, A> {
        let step = if size_of::<A>() == 1 { 4 } else { 1 };
        let len = to.lines * to.rows * self.geo.out_channels;
        Line {
            a: a.wrapping_add(panel.channel),
            stride: strides[0],
            line_stride: strides[1],
            taps: &self.taps,
            steps: self.len.div_ceil(step),
            rows: to.rows,
            lines: to.lines,
            out: to.out.at(at, len).wrapping_add(panel.col),
            residual: to.residual.map_or(std::ptr::null(), |r| r[at..][..len].as_ptr().wrapping_add(panel.col)),
            out_stride: self.geo.out_channels,
            bias: e.bias[panel.col..].as_ptr(),
            relu: e.act == Some(Activation::Relu),
            ahead,
        }
    }
}

/// A prepared input: f32, or codes with how they were made and how many of those there are to a row (0: one an image).
#[derive(Clone, Copy)]
enum Input<'a> {
    F32(&'a [f32]),
    Int8(&'a [u8], &'a [Code], usize),
}

impl Input<'_> {
    /// From value `n` on, which is in image `image`.
    fn skip(&self, n: usize, image: usize) -> Self {
        match *self {
            Input::F32(x) => Input::F32(&x[n..]),
            Input::Int8(x, codes, stride) => Input::Int8(&x[n..], &codes[image..], stride),
        }
    }
}

/// Where a product goes: from element `at` on, `lines` lines of `rows` rows of every image.
#[derive(Clone, Copy)]
struct Target<'a> {
    out: Shared<f32>,
    residual: Option<&'a [f32]>,
    at: usize,
    images: usize,
    lines: usize,
    rows: usize,
}

/// Codes as the tiles read them: fields of an array of [`Code`].
fn scales(codes: &[Code], stride: usize, factors: &[f32], sums: &[i32], panel: &Panel) -> Scales {
    let (factors, sums) = (factors[panel.col..].as_ptr(), sums[panel.col..].as_ptr());
    let first = &codes[0];
    const WORDS: usize = size_of::<Code>() / 4;
    Scales { scale: &raw const first.scale, zero: &raw const first.zero, stride: stride * WORDS, factors, sums }
}

/// One code for all of `x`.
fn code_of(x: &[f32], par: Par<'_>) -> Code {
    if par.threads() == 1 {
        return code(x);
    }
    let len = x.len().div_ceil(par.threads()).max(1);
    let mut ranges = vec![(0f32, 0f32); x.len().div_ceil(len)];
    split(par, &mut ranges, 1, |i, out| {
        // SAFETY: the features were checked when packing.
        out[0] = unsafe { super::avx512::range_with_zero(&x[i * len..(i * len + len).min(x.len())]) };
    });
    let (lo, hi) = ranges.iter().fold((0f32, 0f32), |(a, b), &(lo, hi)| (a.min(lo), b.max(hi)));
    Code::covering(lo, hi, TOP)
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

/// Writes line `y` of the padded image into `out`, borders of `fill`, the rest through `put`.
fn pad_line<T: Copy>(g: &Geometry, x: &[f32], y: usize, fill: T, out: &mut [T], put: impl Fn(&[f32], &mut [T])) {
    let ([py, px], c) = (g.window.padding, g.channels);
    let (inner, side) = (g.image[1] * c, px * c);
    match y.checked_sub(py).filter(|&y| y < g.image[0]) {
        None => out.fill(fill),
        Some(y) => {
            out[..side].fill(fill);
            put(&x[y * inner..][..inner], &mut out[side..side + inner]);
            out[side + inner..].fill(fill);
        }
    }
}
