//! Sliding-window extraction (im2col) as a differentiable candle operation for the CPU: `[N, C, H, W]` →
//! `[C·kh·kw, N·oh·ow]`, so that a convolution is one matrix product, forward and backward.
//!
//! candle's own CPU convolution runs at a few per cent of the matrix product's speed; training paths cannot afford it.

use crate::graph::op;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor};
use rayon::prelude::*;

/// The geometry of a convolution window over `[N, C, H, W]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Window {
    pub kernel: [usize; 2],
    pub stride: [usize; 2],
    /// `[top, left, bottom, right]`.
    pub padding: [usize; 4],
}

impl Window {
    /// One pixel after another.
    pub const ONE: Window = Window { kernel: [1, 1], stride: [1, 1], padding: [0; 4] };

    /// Output side length along axis `i` for an input side of `len`; `None` when the kernel does not fit.
    pub fn out(&self, i: usize, len: usize) -> Option<usize> {
        let room = (len + self.padding[i] + self.padding[i + 2]).checked_sub(self.kernel[i])?;
        (self.stride[i] > 0).then(|| room / self.stride[i] + 1)
    }

    /// For output position `o` and kernel offset `k` along axis `i`: the input position, if it is not padding.
    fn input(&self, i: usize, o: usize, k: usize, len: usize) -> Option<usize> {
        (o * self.stride[i] + k).checked_sub(self.padding[i]).filter(|&p| p < len)
    }
}

macro_rules! windows_of {
    ($($op:ident)*) => {$(
        impl From<&op::$op> for Window {
            fn from(op: &op::$op) -> Window {
                Window { kernel: op.kernel, stride: op.stride, padding: op.padding }
            }
        }
    )*};
}
windows_of!(Conv2d MaxPool2d AvgPool2d);

/// `[N, C, H, W]` → `[C·kh·kw, N·oh·ow]`.
pub(crate) struct Unfold(pub Window);

/// The adjoint of [`Unfold`]: sums columns back into `[N, C, H, W]` (its `dims`).
struct Fold {
    window: Window,
    dims: [usize; 4],
}

fn contiguous<'a>(s: &'a CpuStorage, l: &Layout) -> Result<&'a [f32]> {
    let data = s.as_slice::<f32>()?;
    match l.contiguous_offsets() {
        Some((a, b)) => Ok(&data[a..b]),
        None => candle_core::bail!("unfold needs a contiguous tensor"),
    }
}

/// Calls `f(column position in a [n, oh, ow] row, input position in a [n, c, h, w] tensor, run length, stride)` for every
/// horizontal run of window element `(c, ky, kx)`.
fn runs(w: &Window, dims: [usize; 4], [c, ky, kx]: [usize; 3], mut f: impl FnMut(usize, usize, usize, usize)) {
    let [n, ch, h, wd] = dims;
    let (Some(oh), Some(ow)) = (w.out(0, h), w.out(1, wd)) else { return };
    let first = (0..ow).find(|&x| w.input(1, x, kx, wd).is_some());
    let last = (0..ow).rev().find(|&x| w.input(1, x, kx, wd).is_some());
    let (Some(x0), Some(x1)) = (first, last) else { return };
    let Some(ix) = w.input(1, x0, kx, wd) else { return };
    for img in 0..n {
        for y in 0..oh {
            if let Some(iy) = w.input(0, y, ky, h) {
                f((img * oh + y) * ow + x0, ((img * ch + c) * h + iy) * wd + ix, x1 - x0 + 1, w.stride[1]);
            }
        }
    }
}

impl CustomOp1 for Unfold {
    fn name(&self) -> &'static str {
        "unfold"
    }

    fn cpu_fwd(&self, s: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        let (n, c, h, w) = l.shape().dims4()?;
        let x = contiguous(s, l)?;
        let [kh, kw] = self.0.kernel;
        let (Some(oh), Some(ow)) = (self.0.out(0, h), self.0.out(1, w)) else {
            candle_core::bail!("a {kh}x{kw} window does not fit {h}x{w}")
        };
        let cols = n * oh * ow;
        let mut out = vec![0f32; c * kh * kw * cols];
        if cols > 0 {
            out.par_chunks_mut(cols).enumerate().for_each(|(row, out)| {
                let at = [row / (kh * kw), row / kw % kh, row % kw];
                runs(&self.0, [n, c, h, w], at, |o, i, len, stride| {
                    let src = x[i..].iter().step_by(stride);
                    out[o..o + len].iter_mut().zip(src).for_each(|(o, &v)| *o = v);
                });
            });
        }
        Ok((CpuStorage::F32(out), (c * kh * kw, cols).into()))
    }

    fn bwd(&self, arg: &Tensor, _res: &Tensor, grad: &Tensor) -> Result<Option<Tensor>> {
        let dims = arg.dims4()?;
        let fold = Fold { window: self.0, dims: [dims.0, dims.1, dims.2, dims.3] };
        Ok(Some(grad.contiguous()?.apply_op1_no_bwd(&fold)?))
    }
}

impl CustomOp1 for Fold {
    fn name(&self) -> &'static str {
        "fold"
    }

    fn cpu_fwd(&self, s: &CpuStorage, l: &Layout) -> Result<(CpuStorage, Shape)> {
        let g = contiguous(s, l)?;
        let [n, c, h, w] = self.dims;
        let [kh, kw] = self.window.kernel;
        let (_, cols) = l.shape().dims2()?;
        let mut out = vec![0f32; n * c * h * w];
        if h * w > 0 && n > 0 {
            // One channel of all images a task: its rows of `g` are read by nobody else. Images interleave in `out`, so
            // each task sums into its own plane set and the planes are scattered afterwards.
            let planes: Vec<Vec<f32>> = (0..c)
                .into_par_iter()
                .map(|ch| {
                    let mut plane = vec![0f32; n * h * w];
                    for k in 0..kh * kw {
                        let row = &g[(ch * kh * kw + k) * cols..][..cols];
                        runs(&self.window, [n, 1, h, w], [0, k / kw, k % kw], |o, i, len, stride| {
                            let dst = plane[i..].iter_mut().step_by(stride);
                            row[o..o + len].iter().zip(dst).for_each(|(&v, d)| *d += v);
                        });
                    }
                    plane
                })
                .collect();
            out.par_chunks_mut(h * w).enumerate().for_each(|(i, dst)| {
                dst.copy_from_slice(&planes[i % c][(i / c) * h * w..][..h * w]);
            });
        }
        Ok((CpuStorage::F32(out), (n, c, h, w).into()))
    }
}
