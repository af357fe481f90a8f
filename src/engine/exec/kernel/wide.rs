//! Dense steps through the tiles of AVX-512, AMX and (f32 only) AVX2: prepares inputs once, then walks panels, lines and rows.
//!
//! Compared with im2col and a general product this reads each input once into cache instead of kh·kw times, which is
//! what matters for the 16 to 64 channels of CIFAR networks.

use super::amx::{self, Tiles};
use super::avx512::{Ahead, Line, Panel, Panels, Scales, Shape, WIDEST, line_u8};
use super::geometry::{Code, Codes, Epilogue, Geometry, Level, Whole};
use super::layout::{Layout, Prepare};
use super::tiles::With;
use super::{Par, Scratch, Shared, band, room, rows, split, vector, with_scratch};
use crate::graph::Activation;
use std::arch::x86_64::{__m512, __m512i};

/// A dense step packed for AVX-512 (and VNNI or AMX for int8), or for AVX2.
pub(crate) struct Wide {
    geo: Geometry,
    layout: Layout,
    /// Values of a run in the panels, zeros beyond its real length.
    padded: usize,
    /// Values that the tiles take at a time: one in f32, four with VNNI, up to 64 with AMX.
    step: usize,
    weights: Weights,
}

enum Weights {
    F32(Panels<__m512>, With),
    Int8 { panels: Panels<__m512i>, sums: Vec<i32>, factors: Vec<f32>, matrix: bool },
}

/// Bytes that tiles may read past a prepared input: weights there are zero.
const SLACK: usize = 64;

/// Most vectors of a panel that are walked at a time, so that they stay in the second-level cache beside their input.
const BLOCK: usize = 4096;

/// Largest u8 code; the dot products cannot saturate.
const TOP: u8 = 255;

fn code(x: &[f32]) -> Code {
    // SAFETY: the features were checked when packing.
    let (lo, hi) = unsafe { super::avx512::range_with_zero(x) };
    Code::covering(lo, hi, TOP)
}

impl Whole for Wide {
    fn kernel(&self) -> String {
        let by = match &self.weights {
            Weights::F32(_, with) => format!("f32/{}", with.name()),
            Weights::Int8 { matrix: false, .. } => "u8i8/vnni".to_owned(),
            Weights::Int8 { matrix: true, .. } => "u8i8/amx".to_owned(),
        };
        format!("{}-{by}", if self.geo.in_place() { "gemm" } else { "conv" })
    }

    fn run(&self, e: &Epilogue, x: &[f32], residual: Option<&[f32]>, out: &mut [f32], par: Par<'_>) {
        assert_eq!(e.bias.len(), self.geo.out_channels);
        assert!(residual.is_none_or(|r| r.len() == out.len()));
        let images = out.len() / (self.geo.rows() * self.geo.out_channels).max(1);
        assert!(x.len() == images * self.geo.image[0] * self.geo.image[1] * self.geo.channels);
        match self.layout.prepare {
            Prepare::Rows => self.rows(e, x, residual, out, par),
            Prepare::Gather | Prepare::Border => self.windows(e, x, residual, out, par),
        }
    }
}

impl Wide {
    /// For registers that this processor has.
    pub fn f32(geo: Geometry, rows: &[f32], with: With) -> Wide {
        let layout = Layout::of(&geo, 4, false);
        let panels = Panels::f32(rows, Shape { widest: with.widest(), ..shape(&geo, &layout, layout.len) });
        Wide { weights: Weights::F32(panels, with), padded: layout.len, step: 1, geo, layout }
    }

    pub fn int8(geo: Geometry, rows: &[i8], sums: &[i32], factors: &[f32], level: Level) -> Wide {
        let layout = Layout::of(&geo, 1, true);
        let matrix = level == Level::Matrix && amx::available();
        let (n, step) = if matrix { amx::steps(layout.len) } else { (layout.len.div_ceil(4), 4) };
        let panels = Panels::i8(rows, shape(&geo, &layout, n * step));
        let weights = Weights::Int8 { panels, sums: sums.to_vec(), factors: factors.to_vec(), matrix };
        Wide { weights, padded: n * step, step, geo, layout }
    }

    fn panels(&self) -> &[Panel] {
        match &self.weights {
            Weights::F32(panels, _) => &panels.list,
            Weights::Int8 { panels, .. } => &panels.list,
        }
    }

    /// Do threads share columns rather than rows? Then every weight is fetched by one of them only, which pays where
    /// there are more weights than inputs.
    fn by_columns(&self, rows: usize, par: Par<'_>) -> bool {
        par.threads() > 1 && self.panels().len() >= 2 * par.threads() && self.geo.out_channels > rows
    }

    /// A product over rows as they lie.
    fn rows(&self, e: &Epilogue, x: &[f32], residual: Option<&[f32]>, out: &mut [f32], par: Par<'_>) {
        let (c, oc, pitch) = (self.geo.channels, self.geo.out_channels, self.layout.pitch);
        let all = out.len() / oc;
        // A band of input rows stays in the second-level cache while panels pass over it; where the weights are small,
        // its outputs do too.
        let small = c * oc <= 1 << 17;
        let most = if small { (1 << 18) / (c + 2 * oc) } else { (1 << 17) / c.max(1) };
        let columns = self.by_columns(all, par);
        let rows = if columns { all } else { band(par, all, most.next_multiple_of(112)) };
        let codes = self.image_codes(x, par);
        let shared = Shared::of(out);
        let one = |b: usize, par: Par<'_>| {
            let (first, n) = (b * rows, rows.min(all - b * rows));
            let x = &x[first * c..][..n * c];
            let to = Target { out: shared, residual, at: first * oc, images: 1, lines: 1, rows: n };
            match &self.weights {
                Weights::F32(..) if self.layout.direct => self.product(e, Rows::F32(x), &to, par),
                Weights::F32(..) => with_scratch(|Scratch { f32, .. }| {
                    let buf = room(f32, n * pitch);
                    split(par, buf, pitch, |r, out| out[..c].copy_from_slice(&x[r * c..][..c]));
                    self.product(e, Rows::F32(buf), &to, par);
                }),
                Weights::Int8 { .. } => with_scratch(|Scratch { u8, codes: row_codes, .. }| {
                    let (q, row_codes) = (room(u8, n * pitch + SLACK), room(row_codes, n));
                    self.quantize_rows(x, codes.as_deref(), first, q, row_codes, par);
                    self.product(e, Rows::Int8(q, row_codes, 1), &to, par);
                }),
            }
        };
        if columns { one(0, par) } else { par.run(all.div_ceil(rows.max(1)), |b| one(b, Par::ALONE)) }
    }

    /// One code an image, unless rows have their own.
    fn image_codes(&self, x: &[f32], par: Par<'_>) -> Option<Vec<Code>> {
        let Weights::Int8 { .. } = &self.weights else { return None };
        let len = self.geo.image[0] * self.geo.image[1] * self.geo.channels;
        match self.geo.codes {
            Codes::Row => None,
            Codes::Image => Some(x.chunks_exact(len).map(|x| code_of(x, par)).collect()),
            Codes::Fixed(r) => Some(vec![Code::covering(r.lo, r.hi, TOP); x.len() / len.max(1)]),
        }
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
        let (c, pitch, per_image) = (self.geo.channels, self.layout.pitch, self.geo.rows());
        let (n, q) = (codes.len(), Shared::of(q));
        let len = n.div_ceil(par.threads()).max(1);
        split(par, codes, len, |b, codes| {
            for (i, to) in codes.iter_mut().enumerate() {
                let r = b * len + i;
                let x = &x[r * c..][..c];
                *to = images.map_or_else(|| code(x), |codes| codes[(first + r) / per_image]);
                // SAFETY: every row has its own place.
                vector::quantize(x, to.inverse, to.zero, TOP as f32, unsafe { q.part(r * pitch, c) });
            }
        });
    }

    /// A product over windows of prepared images.
    fn windows(&self, e: &Epilogue, x: &[f32], residual: Option<&[f32]>, out: &mut [f32], par: Par<'_>) {
        let (g, l) = (&self.geo, &self.layout);
        let (in_len, out_len) = (g.image[0] * g.image[1] * g.channels, g.rows() * g.out_channels);
        let (images, size) = (out.len() / out_len, l.size());
        let codes = self.image_codes(x, par);
        // As many images as stay in the second-level cache share every panel that is fetched.
        let block = ((1 << 20) / (size * if codes.is_some() { 1 } else { 4 }).max(1)).clamp(1, images.max(1));
        let out = Shared::of(out);
        let [lines, rows] = l.walk(g);
        let all = Target { out, residual, at: 0, images, lines, rows };
        if par.threads() > 1 && lines > 1 && !l.direct && !self.by_columns(images * g.rows(), par) {
            return self.bands(e, x, codes.as_deref(), &all, par);
        }
        for from in (0..images).step_by(block) {
            let n = block.min(images - from);
            let to = Target { at: from * out_len, images: n, ..all };
            let x = &x[from * in_len..][..n * in_len];
            let image = |i: usize| &x[i / l.lines * in_len..][..in_len];
            match (&self.weights, &codes) {
                (Weights::F32(..), _) if l.direct => self.images(e, Rows::F32(x), &to, par),
                (Weights::F32(..), _) => with_scratch(|Scratch { f32, .. }| {
                    let buf = room(f32, n * size);
                    split(par, buf, l.line(), |i, out| {
                        l.write(g, image(i), i % l.lines, 0.0, out, |x, out| out.copy_from_slice(x));
                    });
                    self.images(e, Rows::F32(buf), &to, par);
                }),
                (Weights::Int8 { .. }, codes) => with_scratch(|Scratch { u8, .. }| {
                    let codes = &codes.as_deref().unwrap_or_default()[from..from + n];
                    let buf = room(u8, n * size + SLACK);
                    split(par, &mut buf[..n * size], l.line(), |i, out| {
                        let code = codes[i / l.lines];
                        l.write(g, image(i), i % l.lines, code.zero as u8, out, |x, out| {
                            vector::quantize(x, code.inverse, code.zero, TOP as f32, out);
                        });
                    });
                    self.images(e, Rows::Int8(buf, codes, 0), &to, par);
                }),
            }
        }
    }

    /// As [`Wide::windows`] for a team: every part prepares the lines that its own output lines look at, so that nobody waits
    /// for others before the product.
    fn bands(&self, e: &Epilogue, x: &[f32], codes: Option<&[Code]>, all: &Target<'_>, par: Par<'_>) {
        let (g, l) = (&self.geo, &self.layout);
        let (in_len, out_line) = (g.image[0] * g.image[1] * g.channels, g.out_image[1] * g.out_channels);
        let each = self.band_of(g.out_image[0], par);
        let bands = g.out_image[0].div_ceil(each);
        par.run(all.images * bands, |i| {
            let (image, first) = (i / bands, i % bands * each);
            let lines = each.min(g.out_image[0] - first);
            let top = first * g.window.stride[0];
            let n = (lines - 1) * g.window.stride[0] + g.window.kernel[0];
            let x = &x[image * in_len..][..in_len];
            let at = image * g.rows() * g.out_channels + first * out_line;
            let to = Target { at, images: 1, lines, rows: g.out_image[1], ..*all };
            with_scratch(|Scratch { f32, u8, .. }| match codes {
                None => {
                    let buf = room(f32, n * l.line());
                    for (y, out) in buf.chunks_exact_mut(l.line()).enumerate() {
                        l.write(g, x, top + y, 0.0, out, |x, out| out.copy_from_slice(x));
                    }
                    self.product(e, Rows::F32(buf), &to, Par::ALONE);
                }
                Some(codes) => {
                    let (code, buf) = (codes[image], room(u8, n * l.line() + SLACK));
                    for (y, out) in buf.chunks_exact_mut(l.line()).take(n).enumerate() {
                        l.write(g, x, top + y, code.zero as u8, out, |x, out| {
                            vector::quantize(x, code.inverse, code.zero, TOP as f32, out);
                        });
                    }
                    self.product(e, Rows::Int8(buf, &codes[image..], 0), &to, Par::ALONE);
                }
            });
        });
    }

    /// Lines of a band: twice as many bands as threads where that leaves whole pairs of lines.
    fn band_of(&self, lines: usize, par: Par<'_>) -> usize {
        lines.div_ceil(2 * par.threads()).next_multiple_of(2).min(lines.div_ceil(par.threads())).max(1)
    }

    /// The product over prepared images.
    fn images(&self, e: &Epilogue, x: Rows<'_>, to: &Target<'_>, par: Par<'_>) {
        let (n, lines, out_line) = (to.images, to.lines, to.rows * self.geo.out_channels);
        if par.threads() == 1 || self.by_columns(n * lines * to.rows, par) {
            return self.product(e, x, to, par);
        }
        // Bands of lines, or of rows where there is one line.
        let [units, len, skip] = match lines {
            1 => [to.rows, self.geo.out_channels, self.layout.strides[0]],
            _ => [lines, out_line, self.layout.strides[1]],
        };
        let each = self.band_of(units, par);
        let bands = units.div_ceil(each);
        par.run(n * bands, |i| {
            let (image, first) = (i / bands, i % bands * each);
            let here = each.min(units - first);
            let (lines, rows) = if lines == 1 { (1, here) } else { (here, to.rows) };
            let at = to.at + image * units * len + first * len;
            let x = x.skip(image * self.layout.size() + first * skip, image);
            self.product(e, x, &Target { at, images: 1, lines, rows, ..*to }, Par::ALONE);
        });
    }

    /// All panels over the target's images.
    fn product(&self, e: &Epilogue, x: Rows<'_>, to: &Target<'_>, par: Par<'_>) {
        let out_len = to.lines * to.rows * self.geo.out_channels;
        if out_len == 0 {
            return;
        }
        let panels = self.panels();
        let parts = if par.threads() > 1 { (4 * par.threads()).min(panels.len()) } else { 1 };
        par.run(parts, |part| {
            let panels = &panels[part * panels.len() / parts..(part + 1) * panels.len() / parts];
            match (&self.weights, x) {
                (Weights::F32(p, with), Rows::F32(x)) => self.panels_f32(e, (p, *with), panels, x, to),
                (Weights::Int8 { matrix, .. }, Rows::Int8(..)) => {
                    // SAFETY: only packed for where it can run.
                    let tiles = matrix.then(|| unsafe { Tiles::set(amx::tile_rows(to.rows), self.step) });
                    self.panels_int8(e, panels, x, to, tiles.as_ref());
                }
                _ => unreachable!("inputs are prepared for their weights"),
            }
        });
        // Activations that the tiles do not do themselves.
        if let Some(act) = e.act.filter(|a| *a != Activation::Relu) {
            let all = to.images * out_len;
            let len = all.div_ceil(par.threads());
            par.run(par.threads(), |t| {
                let from = (t * len).min(all);
                // SAFETY: the product is done, and every part has its own place.
                rows::activate(unsafe { to.out.part(to.at + from, len.min(all - from)) }, act);
            });
        }
    }

    fn panels_f32(
        &self,
        e: &Epilogue,
        (p, with): (&Panels<__m512>, With),
        panels: &[Panel],
        x: &[f32],
        to: &Target<'_>,
    ) {
        let (images, size, taps) = (to.images, self.layout.size(), &self.layout.taps[..]);
        let big = p.bytes() > 1 << 20;
        for (i, panel) in panels.iter().enumerate() {
            let run = self.padded * panel.vecs;
            let each = (BLOCK / run.max(1)).clamp(1, taps.len());
            for (first, part) in taps.chunks(each).enumerate().map(|(i, t)| (i * each, t)) {
                // What comes next: this panel's other taps, or the next panel. What is small is in the cache already.
                let next = if first + each < taps.len() {
                    Some((panel, first + each))
                } else {
                    panels.get(i + 1).map(|p| (p, 0))
                };
                let (place, bytes) = match next.filter(|_| big) {
                    Some((p2, tap)) => {
                        let run = self.padded * p2.vecs;
                        (p.place(p2, tap * run), each.min(taps.len() - tap) * run * 64)
                    }
                    None => (std::ptr::null(), 0),
                };
                let here = Panel { at: panel.at + first * run, ..*panel };
                for image in 0..images {
                    let line = Line {
                        taps: part,
                        resume: first > 0,
                        partial: first + each < taps.len(),
                        ahead: Ahead::part((place, bytes), image, images),
                        ..self.line(e, x[image * size..].as_ptr(), panel, to, image)
                    };
                    // SAFETY: the target's rows lie within `out`, `x` reaches every window of them (checked by `run` and
                    // by the preparation of `x`), different panels write different columns, and the processor's
                    // features were checked when packing.
                    unsafe { with.line_f32(p.as_ptr(), &here, line) };
                }
            }
        }
    }

    fn panels_int8(&self, e: &Epilogue, panels: &[Panel], x: Rows<'_>, to: &Target<'_>, tiles: Option<&Tiles>) {
        let (Weights::Int8 { panels: p, sums, factors, .. }, Rows::Int8(x, codes, stride)) = (&self.weights, x) else {
            return;
        };
        let (images, size) = (to.images, self.layout.size());
        let big = p.bytes() > 1 << 20;
        for (i, panel) in panels.iter().enumerate() {
            let next = panels.get(i + 1).filter(|_| big);
            let bytes = |p: &Panel| self.layout.taps.len() * self.padded / 4 * p.vecs * 64;
            let next = next.map_or((std::ptr::null(), 0), |next| (p.place(next, 0), bytes(next)));
            for image in 0..images {
                let scales = scales(&codes[image..], stride, factors, sums, panel);
                let line = self.line(e, x[image * size..].as_ptr(), panel, to, image);
                let line = Line { ahead: Ahead::part(next, image, images), ..line };
                // SAFETY: as in `panels_f32`; prepared inputs have slack behind them.
                unsafe {
                    match tiles {
                        Some(t) => t.lines(p.as_ptr(), panel, line, scales),
                        None => line_u8(p.as_ptr(), panel, line, scales),
                    }
                }
            }
        }
    }

    /// One image of the target.
    fn line<'a, A>(&'a self, e: &Epilogue, a: *const A, panel: &Panel, to: &Target<'_>, image: usize) -> Line<'a, A> {
        let len = to.lines * to.rows * self.geo.out_channels;
        let at = to.at + image * len;
        Line {
            a: a.wrapping_add(panel.channel),
            stride: self.layout.strides[0],
            line_stride: self.layout.strides[1],
            taps: &self.layout.taps,
            steps: self.padded / self.step,
            rows: to.rows,
            lines: to.lines,
            out: to.out.at(at, len).wrapping_add(panel.col),
            residual: to.residual.map_or(std::ptr::null(), |r| r[at..][..len].as_ptr().wrapping_add(panel.col)),
            out_stride: self.geo.out_channels,
            bias: e.bias[panel.col..].as_ptr(),
            relu: e.act == Some(Activation::Relu),
            resume: false,
            partial: false,
            ahead: (std::ptr::null(), 0),
        }
    }
}

/// A prepared input: f32, or codes with how they were made and how many of those there are to a row (0: one an image).
#[derive(Clone, Copy)]
enum Rows<'a> {
    F32(&'a [f32]),
    Int8(&'a [u8], &'a [Code], usize),
}

impl Rows<'_> {
    /// From value `n` on, which is in image `image`.
    fn skip(&self, n: usize, image: usize) -> Self {
        match *self {
            Rows::F32(x) => Rows::F32(&x[n..]),
            Rows::Int8(x, codes, stride) => Rows::Int8(&x[n..], &codes[image..], stride),
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
    assert!(!codes.is_empty());
    // From the whole array, since the tiles step through it.
    let first = codes.as_ptr();
    const WORDS: usize = size_of::<Code>() / 4;
    // SAFETY: there is a first one; only its fields' places are taken.
    let (scale, zero) = unsafe { (&raw const (*first).scale, &raw const (*first).zero) };
    Scales { scale, zero, stride: stride * WORDS, factors, sums }
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

fn shape(g: &Geometry, l: &Layout, padded: usize) -> Shape {
    let channels = g.channels / g.groups;
    let cols = g.out_channels / g.groups;
    Shape { groups: g.groups, cols, taps: l.taps.len(), len: l.len, padded, channels, widest: WIDEST }
}
