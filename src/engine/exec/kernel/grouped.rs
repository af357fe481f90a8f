//! Grouped convolutions with narrow groups (ResNeXt, RegNet, ShuffleNet): several groups share one AVX-512 vector of output
//! channels. A permutation lays each group's next input channel beside its outputs, so no product is with a zero.
//!
//! Invariant: an output is one sum over taps in the order (line, channel, column), however the image is cut. Taps beside
//! the image are zeros, taps above and below it are left out.

use super::Par;
use super::avx512::unroll;
use super::depthwise::{by_lines, lines_of};
use super::geometry::{Epilogue, Geometry, Whole};
use crate::graph::Activation;
use std::arch::x86_64::*;

/// A grouped convolution packed for AVX-512.
pub(crate) struct Grouped {
    geo: Geometry,
    blocks: Vec<Block>,
    /// Input and output channels of a block.
    inp: usize,
    out: usize,
    /// Per input channel of a group: which lane of a block's inputs each output takes.
    takes: Vec<__m512i>,
    /// Per block, kernel line, channel of a group and kernel column: a weight for every output.
    taps: Vec<__m512>,
    /// A pixel of padding.
    zeros: Vec<f32>,
}

/// Groups that share vectors: their first input and output channel.
#[derive(Debug, Clone, Copy)]
struct Block {
    from: usize,
    to: usize,
}

/// Most input pixels that a line of a tile looks at.
const SPAN: usize = 16;

/// Most lines of a kernel.
const LINES: usize = 7;

impl Whole for Grouped {
    fn kernel(&self) -> String {
        "grouped-f32/avx512".to_owned()
    }

    fn run(&self, e: &Epilogue, x: &[f32], residual: Option<&[f32]>, out: &mut [f32], par: Par<'_>) {
        let relu = residual.is_none() && e.act == Some(Activation::Relu);
        let rest = e.act.filter(|_| !relu);
        by_lines(&self.geo, &e.bias, x, (residual, rest), out, par, |x, y, out| self.line(&e.bias, x, y, relu, out));
    }
}

impl Grouped {
    /// Is it one, with groups so narrow that several fit a vector, and a window that tiles are compiled for?
    pub fn fits(g: &Geometry) -> bool {
        let [kh, kw] = g.window.kernel;
        let (inp, out) = (g.channels / g.groups, g.out_channels / g.groups);
        let window = kh <= LINES && matches!((kw, g.window.stride[1]), (3, 1 | 2) | (1, 1));
        g.groups > 1 && window && (1..=8).contains(&out) && 16 / out * inp <= 16
    }

    /// `rows`: `[out channels, kh·kw·channels of a group]`, channels fastest. [`Grouped::fits`] and
    /// [`super::avx512::floats`] must hold.
    pub fn new(geo: Geometry, rows: &[f32]) -> Grouped {
        let [kh, kw] = geo.window.kernel;
        let (inp, out) = (geo.channels / geo.groups, geo.out_channels / geo.groups);
        let each = (16 / out).min(geo.groups);
        let lanes = |f: &dyn Fn(usize) -> f32| {
            let v: [f32; 16] = std::array::from_fn(|lane| if lane < each * out { f(lane) } else { 0.0 });
            // SAFETY: same size, any bits are valid.
            unsafe { std::mem::transmute::<[f32; 16], __m512>(v) }
        };
        let takes = (0..inp).map(|i| {
            let v: [i32; 16] =
                std::array::from_fn(|lane| if lane < each * out { lane / out * inp + i } else { 0 } as i32);
            // SAFETY: same size, any bits are valid.
            unsafe { std::mem::transmute::<[i32; 16], __m512i>(v) }
        });
        let mut this = Grouped {
            blocks: vec![],
            inp: each * inp,
            out: each * out,
            takes: takes.collect(),
            taps: vec![],
            zeros: vec![0.0; geo.channels],
            geo,
        };
        for first in (0..geo.groups).step_by(each) {
            // The last block begins earlier where it would end too late: some outputs are computed twice.
            let first = first.min(geo.groups - each);
            this.blocks.push(Block { from: first * inp, to: first * out });
            for ky in 0..kh {
                for i in 0..inp {
                    for kx in 0..kw {
                        this.taps
                            .push(lanes(&|lane| rows[(first * out + lane) * kh * kw * inp + (ky * kw + kx) * inp + i]));
                    }
                }
            }
        }
        this
    }

    fn line(&self, bias: &[f32], x: &[f32], y: usize, relu: bool, out: &mut [f32]) {
        let g = &self.geo;
        // Tiles of seven where they leave less over: images are often multiples of seven wide.
        let seven = g.out_image[1].next_multiple_of(7) < g.out_image[1].next_multiple_of(8);
        // SAFETY: the features were checked when packing.
        unsafe {
            match (g.window.kernel[1], g.window.stride[1], seven) {
                (3, 1, true) => self.tiles::<3, 1, 7>(bias, x, y, relu, out),
                (3, 1, false) => self.tiles::<3, 1, 8>(bias, x, y, relu, out),
                (3, _, _) => self.tiles::<3, 2, 7>(bias, x, y, relu, out),
                (_, _, true) => self.tiles::<1, 1, 7>(bias, x, y, relu, out),
                (_, _, false) => self.tiles::<1, 1, 8>(bias, x, y, relu, out),
            }
        }
    }

    /// Line `y` of the output of image `x`.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    fn tiles<const K: usize, const S: usize, const P: usize>(
        &self,
        bias: &[f32],
        x: &[f32],
        y: usize,
        relu: bool,
        out: &mut [f32],
    ) {
        let g = &self.geo;
        let (w, c, left, ow) = (g.image[1], g.channels, g.window.padding[1], g.out_image[1]);
        let (top, lines) = lines_of(g, y);
        let n = lines.len();
        let x = &x[(y * g.window.stride[0] + lines.start).saturating_sub(top) * w * c..];
        assert!(n * w * c <= x.len());
        let mut places = [[std::ptr::null::<f32>(); SPAN]; LINES];
        let mut o = 0;
        while o < ow {
            // The last tile begins earlier where it would end too late.
            let pixels = ow.min(P);
            o = o.min(ow - pixels);
            for (y, places) in places.iter_mut().enumerate().take(n) {
                for (i, place) in places.iter_mut().enumerate().take((P - 1) * S + K) {
                    let inside = (o * S + i).checked_sub(left).filter(|&at| at < w);
                    *place = inside.map_or(self.zeros.as_ptr(), |at| x[(y * w + at) * c..].as_ptr());
                }
            }
            // SAFETY: every place has all channels, as have bias and the pixels of the output from here on.
            unsafe {
                self.tile::<K, S, P>(&places[..n], lines.start, bias, relu, pixels, &mut out[o * g.out_channels..])
            };
            o += pixels;
        }
    }

    /// # Safety
    /// Every place has all input channels; `out` has `pixels` pixels.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn tile<const K: usize, const S: usize, const P: usize>(
        &self,
        places: &[[*const f32; SPAN]],
        first: usize,
        bias: &[f32],
        relu: bool,
        pixels: usize,
        out: &mut [f32],
    ) {
        let (oc, run) = (self.geo.out_channels, self.takes.len() * K);
        let mask = |n: usize| ((1u32 << n) - 1) as __mmask16;
        let (inp, all) = (mask(self.inp), mask(self.out));
        let low = _mm512_set1_ps(if relu { 0.0 } else { f32::NEG_INFINITY });
        for (block, taps) in self.blocks.iter().zip(self.taps.chunks_exact(self.geo.window.kernel[0] * run)) {
            // SAFETY: as the caller vouches; masks end with the block's channels.
            unsafe {
                let mut sums = [_mm512_maskz_loadu_ps(all, bias[block.to..][..self.out].as_ptr()); P];
                for (places, taps) in places.iter().zip(taps[first * run..].chunks_exact(run)) {
                    let mut x = [_mm512_setzero_ps(); SPAN];
                    unroll!(Q < (P - 1) * S + K, {
                        x[Q] = _mm512_maskz_loadu_ps(inp, places[Q].add(block.from));
                    });
                    for (take, w) in self.takes.iter().zip(taps.chunks_exact(K)) {
                        unroll!(Q < (P - 1) * S + K, {
                            let v = _mm512_permutexvar_ps(*take, x[Q]);
                            unroll!(C < K, {
                                let p = output(Q, C, S);
                                if p < P {
                                    sums[p] = _mm512_fmadd_ps(v, w[C], sums[p]);
                                }
                            });
                        });
                    }
                }
                for (p, sum) in sums.into_iter().enumerate().take(pixels) {
                    let to = out[p * oc + block.to..][..self.out].as_mut_ptr();
                    _mm512_mask_storeu_ps(to, all, _mm512_max_ps(low, sum));
                }
            }
        }
    }
}

/// The output of a line of which input pixel `q` is column `c`; none has the largest number.
#[inline(always)]
const fn output(q: usize, c: usize, stride: usize) -> usize {
    match q.checked_sub(c) {
        Some(d) if d.is_multiple_of(stride) => d / stride,
        _ => usize::MAX,
    }
}
