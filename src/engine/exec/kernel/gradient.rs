//! The gradient of a dense step's weights: for every output channel and every element of its window, the sum over places of
//! gradient times input.
//!
//! As in `avx512` there is no im2col: the elements of one line of a window are one run in a channels-last image, so a tile holds some
//! output channels by some vectors of such a run, and places are walked past it. Elsewhere windows are written out and multiplied.
//! Invariant: sums are made in one fixed order, of [`PLACES`] places at a time and then over those.

use super::dense::windows;
use super::geometry::Geometry;
use super::{gemm, room, with_scratch};

/// Places whose products stay in registers before they are added to memory.
#[cfg(target_arch = "x86_64")]
const PLACES: usize = 128;

/// Adds to `out` `[out channels, kh, kw, in channels]` what the inputs `x` `[images, h, w, c]` and the gradients `dy` `[images, oh, ow, oc]` of
/// the outputs give. Steps without groups only.
pub(crate) fn weights(geo: &Geometry, x: &[f32], dy: &[f32], out: &mut [f32]) {
    let (in_len, out_len) = (geo.image[0] * geo.image[1] * geo.channels, geo.rows() * geo.out_channels);
    let images = dy.len() / out_len.max(1);
    assert!(geo.groups == 1 && x.len() == images * in_len && out.len() == geo.out_channels * geo.k());
    #[cfg(target_arch = "x86_64")]
    if super::geometry::Level::allowed() >= super::geometry::Level::Vector && super::avx512::floats() {
        if geo.in_place() {
            // Rows as they lie, whichever image they are of.
            let rows = images * geo.rows();
            // SAFETY: the feature was detected, and all sizes are as the walk takes them.
            return unsafe { tiles::walk(geo, [rows, 1], [geo.channels, 0], geo.channels, (x, dy), out) };
        }
        let [top, left, bottom, right] = geo.window.padding;
        let (lines, width) = (geo.image[0] + top + bottom, geo.image[1] + left + right);
        let (c, [sy, sx]) = (geo.channels, geo.window.stride);
        let line = width * c;
        return with_scratch(|s| {
            let padded = room(&mut s.f32, lines * line);
            padded.fill(0.0);
            for (x, dy) in x.chunks_exact(in_len).zip(dy.chunks_exact(out_len)) {
                for (y, row) in x.chunks_exact(geo.image[1] * c).enumerate() {
                    padded[(y + top) * line + left * c..][..row.len()].copy_from_slice(row);
                }
                let places = [geo.out_image[1], geo.out_image[0]];
                // SAFETY: as above; the walk stays in the image with its border.
                unsafe { tiles::walk(geo, places, [sx * c, sy * line], line, (padded, dy), out) };
            }
        });
    }
    written_out(geo, x, dy, out);
}

/// By a product with windows that were written out.
fn written_out(geo: &Geometry, x: &[f32], dy: &[f32], out: &mut [f32]) {
    let (in_len, out_len, k) = (geo.image[0] * geo.image[1] * geo.channels, geo.rows() * geo.out_channels, geo.k());
    let mut part = vec![0f32; out.len()];
    let mut add = |cols: &[f32], dy: &[f32]| {
        gemm::run_f32_columns(dy, geo.out_channels, cols, k, &mut part);
        out.iter_mut().zip(&part).for_each(|(o, p)| *o += p);
    };
    if geo.in_place() {
        return add(x, dy);
    }
    with_scratch(|s| {
        let cols = room(&mut s.f32, geo.rows() * k);
        for (x, dy) in x.chunks_exact(in_len).zip(dy.chunks_exact(out_len)) {
            windows(geo, 0, x, 0.0, 0, cols);
            add(cols, dy);
        }
    });
}

#[cfg(target_arch = "x86_64")]
mod tiles {
    use super::{Geometry, PLACES};
    use std::arch::x86_64::*;

    /// What a tile walks: `lines` lines of `places` places, with steps from place to place and line to line of input and gradient.
    #[derive(Clone, Copy)]
    struct Walk {
        places: usize,
        lines: usize,
        x: [usize; 2],
        dy: [usize; 2],
    }

    /// Output channels of a tile at most.
    const ROWS: usize = 8;

    type Tile = unsafe fn(Walk, *const f32, *const f32, __mmask16, *mut f32, usize);

    /// Adds the gradients of one prepared image, or of many rows. `places` a line, and lines; `step` from place to place and line to
    /// line of the input, `line` from one line of a window to the next.
    ///
    /// # Safety
    /// The processor has AVX-512; `data` and `out` are as large as the geometry says.
    pub unsafe fn walk(
        geo: &Geometry,
        [places, lines]: [usize; 2],
        step: [usize; 2],
        line: usize,
        (x, dy): (&[f32], &[f32]),
        out: &mut [f32],
    ) {
        let (oc, [kh, kw]) = (geo.out_channels, geo.window.kernel);
        let run = kw * geo.channels;
        // As many lines as make a part, or a part of a long one.
        let (each_lines, each) = ((PLACES / places.max(1)).max(1), places.min(PLACES));
        for y in (0..lines).step_by(each_lines) {
            for at in (0..places).step_by(each) {
                let part = Walk {
                    places: each.min(places - at),
                    lines: each_lines.min(lines - y),
                    x: step,
                    dy: [oc, places * oc],
                };
                let (x0, dy0) = (y * step[1] + at * step[0], (y * places + at) * oc);
                for ky in 0..kh {
                    for v in (0..run).step_by(48) {
                        let width = (run - v).min(48);
                        let vecs = width.div_ceil(16);
                        let mask = (0xffff_u32 >> (16 * vecs - width)) as __mmask16;
                        for o in blocks(oc) {
                            let tile = TILES[vecs - 1][o.len() - 1];
                            // SAFETY: within what the caller vouches for; the last vector is masked to the run.
                            unsafe {
                                let to = out.as_mut_ptr().add((o.start * kh + ky) * run + v);
                                tile(
                                    part,
                                    x.as_ptr().add(x0 + ky * line + v),
                                    dy.as_ptr().add(dy0 + o.start),
                                    mask,
                                    to,
                                    kh * run,
                                );
                            }
                        }
                    }
                }
            }
        }
    }

    /// Channels in blocks of nearly the same size.
    fn blocks(channels: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
        let n = channels.div_ceil(ROWS);
        (0..n).map(move |i| i * channels / n..(i + 1) * channels / n)
    }

    /// By vectors and rows.
    static TILES: [[Tile; ROWS]; 3] = [
        [
            tile::<1, 1>,
            tile::<2, 1>,
            tile::<3, 1>,
            tile::<4, 1>,
            tile::<5, 1>,
            tile::<6, 1>,
            tile::<7, 1>,
            tile::<8, 1>,
        ],
        [
            tile::<1, 2>,
            tile::<2, 2>,
            tile::<3, 2>,
            tile::<4, 2>,
            tile::<5, 2>,
            tile::<6, 2>,
            tile::<7, 2>,
            tile::<8, 2>,
        ],
        [
            tile::<1, 3>,
            tile::<2, 3>,
            tile::<3, 3>,
            tile::<4, 3>,
            tile::<5, 3>,
            tile::<6, 3>,
            tile::<7, 3>,
            tile::<8, 3>,
        ],
    ];

    #[target_feature(enable = "avx512f,avx512bw,avx512vl")]
    unsafe fn tile<const R: usize, const V: usize>(
        walk: Walk,
        x: *const f32,
        dy: *const f32,
        mask: __mmask16,
        out: *mut f32,
        stride: usize,
    ) {
        let mut sums = [[_mm512_setzero_ps(); V]; R];
        let masked = |v: usize| if v + 1 == V { mask } else { 0xffff };
        // SAFETY: the caller vouches for all places; masked lanes are not touched.
        unsafe {
            for y in 0..walk.lines {
                let (mut x, mut dy) = (x.add(y * walk.x[1]), dy.add(y * walk.dy[1]));
                for _ in 0..walk.places {
                    let mut run = [_mm512_setzero_ps(); V];
                    for (v, to) in run.iter_mut().enumerate() {
                        *to = _mm512_maskz_loadu_ps(masked(v), x.add(16 * v));
                    }
                    for (r, sums) in sums.iter_mut().enumerate() {
                        let g = _mm512_set1_ps(*dy.add(r));
                        for (sum, run) in sums.iter_mut().zip(run) {
                            *sum = _mm512_fmadd_ps(g, run, *sum);
                        }
                    }
                    x = x.wrapping_add(walk.x[0]);
                    dy = dy.wrapping_add(walk.dy[0]);
                }
            }
            for (r, sums) in sums.iter().enumerate() {
                for (v, sum) in sums.iter().enumerate() {
                    let to = out.add(r * stride + 16 * v);
                    let have = _mm512_maskz_loadu_ps(masked(v), to);
                    _mm512_mask_storeu_ps(to, masked(v), _mm512_add_ps(have, *sum));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::kernel::geometry::Codes;
    use crate::exec::kernel::noise;
    use crate::exec::unfold::Window;

    fn geometry(image: [usize; 2], channels: usize, out_channels: usize, window: Window) -> Geometry {
        let out_image = [window.out(0, image[0]).unwrap(), window.out(1, image[1]).unwrap()];
        Geometry { image, channels, out_image, out_channels, window, groups: 1, codes: Codes::Image }
    }

    /// Term by term.
    fn plain(g: &Geometry, x: &[f32], dy: &[f32]) -> Vec<f32> {
        let mut out = vec![0f64; g.out_channels * g.k()];
        let ([kh, kw], [h, w], c) = (g.window.kernel, g.image, g.channels);
        let images = dy.len() / (g.rows() * g.out_channels);
        for n in 0..images {
            for (p, dy) in dy[n * g.rows() * g.out_channels..].chunks_exact(g.out_channels).take(g.rows()).enumerate() {
                let (oy, ox) = (p / g.out_image[1], p % g.out_image[1]);
                for (ky, kx) in (0..kh * kw).map(|t| (t / kw, t % kw)) {
                    let y = (oy * g.window.stride[0] + ky).checked_sub(g.window.padding[0]).filter(|y| *y < h);
                    let xx = (ox * g.window.stride[1] + kx).checked_sub(g.window.padding[1]).filter(|x| *x < w);
                    let (Some(y), Some(xx)) = (y, xx) else { continue };
                    for (o, dy) in dy.iter().enumerate() {
                        for ch in 0..c {
                            let v = x[((n * h + y) * w + xx) * c + ch];
                            out[((o * kh + ky) * kw + kx) * c + ch] += f64::from(v) * f64::from(*dy);
                        }
                    }
                }
            }
        }
        out.into_iter().map(|v| v as f32).collect()
    }

    #[test]
    fn both_ways_are_the_sum_over_places() {
        let three = |stride| Window { kernel: [3, 3], stride: [stride, stride], padding: [1; 4] };
        let odd = Window { kernel: [2, 5], stride: [2, 1], padding: [0, 2, 1, 1] };
        let cases = [
            geometry([6, 5], 3, 9, three(1)),
            geometry([8, 8], 16, 16, three(1)),
            geometry([9, 7], 13, 21, three(2)),
            geometry([7, 9], 20, 5, odd),
            geometry([5, 5], 33, 17, Window { stride: [2, 2], ..Window::ONE }),
            Geometry::linear(7, 50, 19),
            Geometry::linear(200, 16, 1),
        ];
        for (i, g) in cases.iter().enumerate() {
            let images = 3;
            let x = noise(images * g.image[0] * g.image[1] * g.channels, i as u64);
            let dy = noise(images * g.rows() * g.out_channels, 100 + i as u64);
            let expected = plain(g, &x, &dy);
            let top = expected.iter().fold(1f32, |m, v| m.max(v.abs()));
            for by in [weights, written_out] {
                let mut out = vec![0f32; expected.len()];
                by(g, &x, &dy, &mut out);
                for (a, b) in out.iter().zip(&expected) {
                    assert!((a - b).abs() <= 2e-6 * top, "case {i}: {a} {b}");
                }
            }
        }
    }
}
