//! A window laid over images, in the numbers that kernels on a GPU take and their definitions go by.
//!
//! Not here: what is computed under it (`kernels`, `int8`). Invariant: laid out as `Geometry` of `cuda/kernels`.

use crate::exec::unfold::Window;
use candle_core::Result;

/// A window over images of one size. The kernels' `Geometry`, field by field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub(in crate::exec) struct Geometry {
    pub c: i32,
    pub h: i32,
    pub w: i32,
    pub oh: i32,
    pub ow: i32,
    pub kh: i32,
    pub kw: i32,
    pub sy: i32,
    pub sx: i32,
    pub py: i32,
    pub px: i32,
}

impl Geometry {
    /// `window` over `[n, c, h, w]`.
    pub fn of(window: Window, dims: &[usize]) -> Result<Geometry> {
        let &[_, c, h, w] = dims else { candle_core::bail!("{dims:?} are no images") };
        let (Some(oh), Some(ow)) = (window.out(0, h), window.out(1, w)) else {
            candle_core::bail!("a kernel of {:?} does not fit {h}x{w}", window.kernel)
        };
        let ([kh, kw], [sy, sx], [py, px, ..]) = (window.kernel, window.stride, window.padding);
        let all = [c, h, w, oh, ow, kh, kw, sy, sx, py, px].map(i32::try_from);
        let [Ok(c), Ok(h), Ok(w), Ok(oh), Ok(ow), Ok(kh), Ok(kw), Ok(sy), Ok(sx), Ok(py), Ok(px)] = all else {
            candle_core::bail!("{dims:?} is too large for a GPU kernel")
        };
        Ok(Geometry { c, h, w, oh, ow, kh, kw, sy, sx, py, px })
    }

    /// Values under one window.
    pub fn k(&self) -> usize {
        (self.c * self.kh * self.kw) as usize
    }

    /// Windows of an image.
    pub fn positions(&self) -> usize {
        (self.oh * self.ow) as usize
    }

    /// The offset in a plane of what lies under kernel place `(ky, kx)` at output `(oy, ox)`; `None` in the padding.
    pub fn under(&self, [oy, ox]: [usize; 2], [ky, kx]: [usize; 2]) -> Option<usize> {
        let (iy, ix) = (oy as i32 * self.sy + ky as i32 - self.py, ox as i32 * self.sx + kx as i32 - self.px);
        ((0..self.h).contains(&iy) && (0..self.w).contains(&ix)).then_some((iy * self.w + ix) as usize)
    }

    /// Every output place, row by row.
    pub fn places(&self) -> impl Iterator<Item = [usize; 2]> + Clone {
        let (oh, ow) = (self.oh as usize, self.ow as usize);
        (0..oh).flat_map(move |y| (0..ow).map(move |x| [y, x]))
    }

    /// Every kernel place, row by row.
    pub fn taps(&self) -> impl Iterator<Item = [usize; 2]> + Clone {
        let (kh, kw) = (self.kh as usize, self.kw as usize);
        (0..kh).flat_map(move |y| (0..kw).map(move |x| [y, x]))
    }

    /// Values of one channel of an image.
    pub fn plane(&self) -> usize {
        (self.h * self.w) as usize
    }
}
