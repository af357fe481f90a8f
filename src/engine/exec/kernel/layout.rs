//! How the input of a dense step lies in memory when the tiles read it, and which runs of it make a window.
//!
//! Rows that are a multiple of many cache lines apart compete for the same few places of the first-level cache, so the
//! pixels of such an input are copied (or quantized) to a pitch of an odd number of lines.

use super::geometry::Geometry;

/// What has to be done to an input before the tiles read it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Prepare {
    /// Rows as they lie, one a pixel: linears and 1x1 convolutions.
    Rows,
    /// Only the pixels that a strided 1x1 convolution looks at.
    Gather,
    /// A border of padding, or none.
    Border,
}

/// A prepared input. Lengths are in values.
#[derive(Debug, Clone)]
pub(crate) struct Layout {
    pub prepare: Prepare,
    /// Lines and pixels of a prepared image, and values from pixel to pixel.
    pub lines: usize,
    pub width: usize,
    pub pitch: usize,
    /// The input needs no copy.
    pub direct: bool,
    /// Values from output row to output row, and from output line to output line.
    pub strides: [usize; 2],
    /// Offsets of contiguous runs from a window's first value, and their length.
    pub taps: Vec<usize>,
    pub len: usize,
}

/// Longest run, so that a panel's part of it stays in the second-level cache beside its input.
const RUN: usize = 1536;

impl Layout {
    /// For values of `size` bytes; `quantized` inputs are always written anew.
    pub fn of(g: &Geometry, size: usize, quantized: bool) -> Layout {
        let [kh, kw] = g.window.kernel;
        let (c, group) = (g.channels, g.channels / g.groups);
        let bare = g.window.padding == [0; 4];
        let prepare = match (g.in_place(), bare && kh * kw == 1 && g.groups == 1) {
            (true, _) => Prepare::Rows,
            (_, true) => Prepare::Gather,
            _ => Prepare::Border,
        };
        // Copying pays where several panels read it; see the module's words for the pitch.
        let often = quantized || g.out_channels > 96;
        let crowded = (c * size).is_multiple_of(16 * 64);
        let pitch = if crowded && often && prepare != Prepare::Border || crowded && (quantized || !bare) {
            c + 64 / size
        } else {
            c
        };
        let (lines, width) = match prepare {
            Prepare::Rows => (g.image[0], g.image[1]),
            Prepare::Gather => (g.out_image[0], g.out_image[1]),
            Prepare::Border => {
                let [top, left, bottom, right] = g.window.padding;
                (g.image[0] + top + bottom, g.image[1] + left + right)
            }
        };
        let [sy, sx] = if prepare == Prepare::Border { g.window.stride } else { [1, 1] };
        let strides = [sx * pitch, sy * width * pitch];
        let direct = !quantized && pitch == c && bare && prepare != Prepare::Gather;
        let (taps, len) = if kh * kw == 1 && g.groups == 1 {
            // Runs of equal length.
            let n = (c.div_ceil(RUN)..=8).find(|n| c.is_multiple_of(*n)).unwrap_or(1);
            ((0..n).map(|i| i * (c / n)).collect(), c / n)
        } else if g.groups == 1 && pitch == c && kw * c <= RUN {
            ((0..kh).map(|ky| ky * width * pitch).collect(), kw * c)
        } else {
            ((0..kh * kw).map(|i| (i / kw * width + i % kw) * pitch).collect(), group)
        };
        Layout { prepare, lines, width, pitch, direct, strides, taps, len }
    }

    /// Values of a prepared line and image.
    pub fn line(&self) -> usize {
        self.width * self.pitch
    }

    pub fn size(&self) -> usize {
        self.lines * self.line()
    }

    /// Lines and rows of the output as the tiles walk them: one long line where nothing comes between.
    pub fn walk(&self, g: &Geometry) -> [usize; 2] {
        if self.prepare == Prepare::Border { g.out_image } else { [1, g.rows()] }
    }

    /// Writes prepared line `y` of the image `x` into `out`: borders of `fill`, pixels through `put`.
    pub fn write<T: Copy>(
        &self,
        g: &Geometry,
        x: &[f32],
        y: usize,
        fill: T,
        out: &mut [T],
        put: impl Fn(&[f32], &mut [T]),
    ) {
        let (c, inner) = (g.channels, g.image[1] * g.channels);
        let ([py, px, ..], [sy, sx]) = (g.window.padding, g.window.stride);
        if self.prepare == Prepare::Gather {
            let x = &x[y * sy * inner..][..inner];
            for (i, out) in out.chunks_exact_mut(self.pitch).enumerate() {
                put(&x[i * sx * c..][..c], &mut out[..c]);
            }
            return;
        }
        let Some(y) = y.checked_sub(py).filter(|&y| y < g.image[0]) else { return out.fill(fill) };
        let (x, side) = (&x[y * inner..][..inner], px * self.pitch);
        out[..side].fill(fill);
        if self.pitch == c {
            put(x, &mut out[side..side + inner]);
        } else {
            let out = &mut out[side..][..g.image[1] * self.pitch];
            x.chunks_exact(c).zip(out.chunks_exact_mut(self.pitch)).for_each(|(x, out)| put(x, &mut out[..c]));
        }
        out[side + g.image[1] * self.pitch..].fill(fill);
    }
}
