//! Depthwise convolutions: every channel has its own small kernel. Sixteen channels at a time, a few output pixels of a line
//! together, so that every weight and most inputs are loaded once for several products.
//!
//! Invariant: every version gives the same bits ([`super::lanes`]); an output is one sum in the order of the taps. Taps beside
//! the image are zeros, taps above and below it are left out.

use super::geometry::{Epilogue, Geometry, Whole};
use super::lanes::{LaneKernel, Lanes, dispatch, kind};
use super::{Par, rows, split};
use crate::graph::Activation;
use std::ops::Range;

/// A depthwise convolution with its weights in the order of reading.
pub(crate) struct Depthwise {
    geo: Geometry,
    /// Per tap, every channel's weight.
    taps: Vec<f32>,
    /// A pixel of padding.
    zeros: Vec<f32>,
}

/// Output pixels of a tile.
const PIXELS: usize = 8;

/// Most lines of a kernel that tiles are compiled for.
const LINES: usize = 7;

/// Most input pixels that a tile's line looks at.
const SPAN: usize = 2 * (PIXELS - 1) + LINES;

impl Depthwise {
    /// Is it one?
    pub fn fits(g: &Geometry) -> bool {
        g.groups == g.channels && g.out_channels == g.channels && g.channels > 1
    }

    /// `rows`: `[channels, kh·kw]`.
    pub fn new(geo: Geometry, rows: &[f32]) -> Depthwise {
        let k = geo.k();
        let taps = (0..k).flat_map(|t| rows.iter().skip(t).step_by(k.max(1)).copied()).collect();
        Depthwise { zeros: vec![0.0; geo.channels], taps, geo }
    }
}

impl Whole for Depthwise {
    fn kernel(&self) -> String {
        format!("depthwise-f32/{}", kind())
    }

    fn run(&self, e: &Epilogue, x: &[f32], residual: Option<&[f32]>, out: &mut [f32], par: Par<'_>) {
        // Limits cost nothing within the tile; other activations go over a line that is still in the cache.
        let (low, high) = match e.act {
            Some(Activation::Relu) if residual.is_none() => (0.0, f32::INFINITY),
            Some(Activation::Relu6) if residual.is_none() => (0.0, 6.0),
            _ => (f32::NEG_INFINITY, f32::INFINITY),
        };
        let rest = e.act.filter(|_| low < 0.0);
        by_lines(&self.geo, &e.bias, x, (residual, rest), out, par, |x, y, out| {
            dispatch(Row { d: self, bias: &e.bias, x, y, low, high, out });
        });
    }
}

/// Calls `f(image, output line, where it goes)` for every line of a batch, shared among the team, and adds the residual and
/// what is left of the activation while the line is in the cache.
pub(super) fn by_lines(
    g: &Geometry,
    bias: &[f32],
    x: &[f32],
    (residual, rest): (Option<&[f32]>, Option<Activation>),
    out: &mut [f32],
    par: Par<'_>,
    f: impl Fn(&[f32], usize, &mut [f32]) + Sync,
) {
    let (line, image) = (g.out_image[1] * g.out_channels, g.image[0] * g.image[1] * g.channels);
    let lines = out.len() / line.max(1);
    assert!(bias.len() == g.out_channels && residual.is_none_or(|r| r.len() == out.len()));
    assert!(x.len() * g.out_image[0] >= lines * image);
    let each = lines.div_ceil(if par.threads() > 1 { 4 * par.threads() } else { 1 }).max(1);
    split(par, out, each * line, |b, out| {
        for (i, out) in out.chunks_exact_mut(line).enumerate() {
            let at = b * each + i;
            f(&x[at / g.out_image[0] * image..][..image], at % g.out_image[0], out);
            rows::finish(out, residual.map(|r| &r[at * line..][..line]), rest);
        }
    });
}

/// The padding above an image, and which lines of the window of output line `y` are within the image.
pub(super) fn lines_of(g: &Geometry, y: usize) -> (usize, Range<usize>) {
    let (first, top) = (y * g.window.stride[0], g.window.padding[0]);
    let from = top.saturating_sub(first);
    (top, from..g.window.kernel[0].min((g.image[0] + top).saturating_sub(first)).max(from))
}

/// The gradient of a depthwise convolution's weights `[channels, kh·kw]`, for the inputs `x` `[images, h, w, c]` and the gradients `dy`
/// `[images, oh, ow, c]` of the outputs. Sums are f32 over a line of an image and f64 over lines.
pub(crate) fn weight_gradient(geo: &Geometry, x: &[f32], dy: &[f32]) -> Vec<f32> {
    assert!(Depthwise::fits(geo) && x.len() * geo.rows() == dy.len() * geo.image[0] * geo.image[1]);
    dispatch(Slopes { geo, x, dy })
}

/// See [`weight_gradient`].
struct Slopes<'a> {
    geo: &'a Geometry,
    x: &'a [f32],
    dy: &'a [f32],
}

impl LaneKernel for Slopes<'_> {
    type Out = Vec<f32>;

    #[inline(always)]
    fn run<V: Lanes>(self) -> Vec<f32> {
        let Slopes { geo: g, x, dy } = self;
        let ([kh, kw], [sy, sx], [_, left, ..]) = (g.window.kernel, g.window.stride, g.window.padding);
        let (c, [h, w], [oh, ow]) = (g.channels, g.image, g.out_image);
        let mut sums = vec![0f64; c * kh * kw];
        for (x, dy) in x.chunks_exact(h * w * c).zip(dy.chunks_exact(oh * ow * c)) {
            for y in 0..oh {
                let (top, lines) = lines_of(g, y);
                let line = &dy[y * ow * c..][..ow * c];
                for ky in lines {
                    let from = &x[(y * sy + ky - top) * w * c..][..w * c];
                    for kx in 0..kw {
                        // Outputs whose pixel under this tap lies within the line.
                        let first = left.saturating_sub(kx).div_ceil(sx);
                        let last = (w + left).saturating_sub(kx).div_ceil(sx).min(ow);
                        for at in (0..c).step_by(16) {
                            let n = (c - at).min(16);
                            // SAFETY: `n` channels from `at` on of pixels that are within both lines.
                            let sum = unsafe {
                                let load = |p: &[f32], i: usize| {
                                    let p = p[i..][..n].as_ptr();
                                    if n == 16 { V::load(p) } else { V::load_part(p, n, 0.0) }
                                };
                                let more = |o: usize, sum: V| {
                                    load(from, (o * sx + kx - left) * c + at).fma(load(line, o * c + at), sum)
                                };
                                // Two sums, since one product waits for the one before it.
                                let (mut even, mut odd) = (V::splat(0.0), V::splat(0.0));
                                let mut o = first;
                                while o + 1 < last {
                                    (even, odd) = (more(o, even), more(o + 1, odd));
                                    o += 2;
                                }
                                if o < last {
                                    even = more(o, even);
                                }
                                let mut sum = [0f32; 16];
                                even.add(odd).store(sum.as_mut_ptr());
                                sum
                            };
                            for (ch, sum) in sum.iter().enumerate().take(n) {
                                sums[(at + ch) * kh * kw + ky * kw + kx] += f64::from(*sum);
                            }
                        }
                    }
                }
            }
        }
        sums.into_iter().map(|v| v as f32).collect()
    }
}

/// One line of the output.
struct Row<'a> {
    d: &'a Depthwise,
    bias: &'a [f32],
    /// An image.
    x: &'a [f32],
    y: usize,
    low: f32,
    high: f32,
    out: &'a mut [f32],
}

impl LaneKernel for Row<'_> {
    type Out = ();

    #[inline(always)]
    fn run<V: Lanes>(self) {
        let g = &self.d.geo;
        if g.window.kernel[0] > LINES || g.channels < 16 {
            return self.any::<V>();
        }
        match (g.window.kernel[1], g.window.stride[1]) {
            (3, 1) => self.tiles::<V, 3, 1>(),
            (3, 2) => self.tiles::<V, 3, 2>(),
            (5, 1) => self.tiles::<V, 5, 1>(),
            (5, 2) => self.tiles::<V, 5, 2>(),
            (7, 1) => self.tiles::<V, 7, 1>(),
            _ => self.any::<V>(),
        }
    }
}

impl Row<'_> {
    /// Any window and any number of channels, one pixel at a time.
    #[inline(always)]
    fn any<V: Lanes>(self) {
        let g = &self.d.geo;
        let ([_, kw], [sy, sx], [_, left, ..]) = (g.window.kernel, g.window.stride, g.window.padding);
        let (c, w, (top, lines)) = (g.channels, g.image[1], lines_of(g, self.y));
        for (o, out) in self.out.chunks_exact_mut(c).enumerate() {
            let (kx0, kx1) = (left.saturating_sub(o * sx), kw.min((w + left).saturating_sub(o * sx)));
            for at in (0..c).step_by(16) {
                let n = (c - at).min(16);
                // SAFETY: `n` channels from `at` on of pixels and taps that are within their bounds.
                unsafe {
                    let load = |p: &[f32], i: usize| {
                        let p = p[i..][..n].as_ptr();
                        if n == 16 { V::load(p) } else { V::load_part(p, n, 0.0) }
                    };
                    let mut sum = load(self.bias, at);
                    for ky in lines.clone() {
                        for kx in kx0..kx1 {
                            let pixel = (self.y * sy + ky - top) * w + o * sx + kx - left;
                            sum = load(self.x, pixel * c + at).fma(load(&self.d.taps, (ky * kw + kx) * c + at), sum);
                        }
                    }
                    let y = V::splat(self.high).min(V::splat(self.low).max(sum));
                    let out = out[at..][..n].as_mut_ptr();
                    if n == 16 { y.store(out) } else { y.store_part(out, n) }
                }
            }
        }
    }

    /// `K` columns, every `S`-th pixel.
    #[inline(always)]
    fn tiles<V: Lanes, const K: usize, const S: usize>(self) {
        let g = &self.d.geo;
        let (c, w, left, ow) = (g.channels, g.image[1], g.window.padding[1], g.out_image[1]);
        let (top, lines) = lines_of(g, self.y);
        let mut tile = Tile {
            x: std::ptr::null(),
            line: w * c,
            c,
            zeros: self.d.zeros.as_ptr(),
            taps: self.d.taps[lines.start * K * c..].as_ptr(),
            bias: self.bias.as_ptr(),
            low: self.low,
            high: self.high,
            lines: lines.len(),
            out: std::ptr::null_mut(),
            pixels: ow.min(PIXELS),
            from: 0,
            width: w,
        };
        let image = self.x[(self.y * g.window.stride[0] + lines.start).saturating_sub(top) * w * c..].as_ptr();
        let mut o = 0;
        while o < ow {
            // The last tile begins earlier where it would end too late.
            o = o.min(ow - tile.pixels);
            tile.out = self.out[o * c..][..tile.pixels * c].as_mut_ptr();
            let inside = o * S >= left && (o + PIXELS - 1) * S + K <= w + left && tile.pixels == PIXELS;
            // SAFETY: `lines` lines from `image` on lie within the image; a tile inside looks at pixels of theirs only, one
            // at the border asks for every pixel. Channels are at least sixteen.
            unsafe {
                if inside {
                    tile.x = image.add((o * S - left) * c);
                    tile.run::<V, K, S, false>();
                } else {
                    tile.x = image;
                    tile.from = (o * S) as isize - left as isize;
                    tile.run::<V, K, S, true>();
                }
            }
            o += tile.pixels;
        }
    }
}

/// A few neighbouring pixels of an output line.
struct Tile {
    /// The first input pixel of the first line; at the border: the first pixel of the line.
    x: *const f32,
    /// Values from input line to input line.
    line: usize,
    c: usize,
    zeros: *const f32,
    /// From the first line's taps on.
    taps: *const f32,
    bias: *const f32,
    low: f32,
    high: f32,
    lines: usize,
    out: *mut f32,
    /// At most [`PIXELS`], and as many unless at the border.
    pixels: usize,
    /// At the border: the first input pixel, and the pixels of a line.
    from: isize,
    width: usize,
}

impl Tile {
    /// # Safety
    /// All pointers reach their lines, pixels and at least sixteen channels.
    #[inline(always)]
    unsafe fn run<V: Lanes, const K: usize, const S: usize, const BORDER: bool>(&self) {
        let c = self.c;
        let mut places = [[std::ptr::null::<f32>(); SPAN]; LINES];
        // SAFETY: pixels are looked up within the line, or are zeros; blocks of sixteen channels end with the last channel.
        unsafe {
            if BORDER {
                for (y, places) in places.iter_mut().enumerate().take(self.lines) {
                    for (i, place) in places.iter_mut().enumerate().take((PIXELS - 1) * S + K) {
                        let at = self.from + i as isize;
                        let inside = at >= 0 && at < self.width as isize;
                        *place = if inside { self.x.add(y * self.line + at as usize * c) } else { self.zeros };
                    }
                }
            }
            let (low, high) = (V::splat(self.low), V::splat(self.high));
            let mut at = 0;
            while at < c {
                at = at.min(c - 16);
                let mut sums = [V::load(self.bias.add(at)); PIXELS];
                for (y, places) in places.iter().enumerate().take(self.lines) {
                    let (x, taps) = (self.x.add(y * self.line + at), self.taps.add(y * K * c + at));
                    for k in 0..K {
                        let w = V::load(taps.add(k * c));
                        for p in 0..PIXELS {
                            let pixel = if BORDER { places[p * S + k].add(at) } else { x.add((p * S + k) * c) };
                            sums[p] = V::load(pixel).fma(w, sums[p]);
                        }
                    }
                }
                for (p, sum) in sums.into_iter().enumerate() {
                    if !BORDER || p < self.pixels {
                        high.min(low.max(sum)).store(self.out.add(p * c + at));
                    }
                }
                at += 16;
            }
        }
    }
}
