//! Our own kernels on floats: unfolding, grouped convolution, epilogue, pooling and norms.
//!
//! Each type says what it computes, defines it in plain Rust, and queues the kernel of the same name in `cuda/kernels`.
//! Images are `[n, c, h, w]`. Not here: int8 (`int8`), what goes by heads (`heads`), matrix products (the tensor library's).

use super::geometry::Geometry;
use super::own::{Own, apply, host};
use crate::exec::kernel::rows;
use crate::exec::unfold::Window;
use crate::graph::Activation;
use candle_core::{DType, Result, Tensor};

#[cfg(feature = "cuda")]
use crate::exec::cuda::{Arg, Arg::F32, Arg::I32, Arg::I64, Arg::Ptr, Gpu, Input};

/// A float type's name in the kernels' names.
pub(super) fn label(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "f16",
        DType::BF16 => "bf16",
        _ => "f32",
    }
}

/// An activation's number in the kernels: its place in [`Activation::ALL`] from 1, 0 for none.
#[cfg(feature = "cuda")]
pub(super) fn number(act: Option<Activation>) -> i32 {
    act.and_then(|a| Activation::ALL.iter().position(|b| *b == a)).map_or(0, |i| i as i32 + 1)
}

/// `[n, c, h, w]` → `[n, c·kh·kw, oh·ow]`: a convolution's windows as the columns of one matrix an image.
pub(super) struct Unfold {
    pub window: Window,
    pub dtype: DType,
}

impl Own for Unfold {
    const NAME: &'static str = "unfold";

    fn out(&self, dims: &[usize]) -> Result<(Vec<usize>, DType)> {
        let g = Geometry::of(self.window, dims)?;
        Ok((vec![dims[0], g.k(), g.positions()], self.dtype))
    }

    fn plain(&self, x: &[f32], dims: &[usize]) -> Result<Vec<f32>> {
        let g = Geometry::of(self.window, dims)?;
        let mut out = Vec::with_capacity(dims[0] * g.k() * g.positions());
        for plane in x.chunks_exact(g.plane().max(1)) {
            for tap in g.taps() {
                out.extend(g.places().map(|at| g.under(at, tap).map_or(0.0, |i| plane[i])));
            }
        }
        Ok(out)
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, gpu: &Gpu<'_>, x: &Input<'_>, out: u64) -> Result<()> {
        let g = Geometry::of(self.window, x.dims)?;
        let n = x.dims[0] * g.k() * g.positions();
        let args = [Ptr(x.at), Arg::Geometry(g)];
        gpu.each(&format!("unfold_{}", label(self.dtype)), n, &args, out)
    }
}

/// A convolution whose output channels see their group's input channels only; `w` is `[oc, c/groups, kh, kw]` of the input's
/// type.
pub(super) struct Grouped {
    pub w: Tensor,
    pub window: Window,
    pub groups: usize,
}

/// What a convolution with weights `w` `[oc, c/groups, kh, kw]` makes of images of shape `dims`.
pub(super) fn convolved(
    x: &[f32],
    dims: &[usize],
    w: &[f32],
    oc: usize,
    groups: usize,
    window: Window,
) -> Result<Vec<f32>> {
    let g = Geometry::of(window, dims)?;
    let (cg, og, taps) = (dims[1] / groups, oc / groups, g.taps().count());
    let mut out = Vec::with_capacity(dims[0] * oc * g.positions());
    for image in x.chunks_exact(dims[1] * g.plane()) {
        for o in 0..oc {
            let planes = &image[o / og * cg * g.plane()..][..cg * g.plane()];
            let w = &w[o * cg * taps..][..cg * taps];
            out.extend(g.places().map(|at| {
                let of = |(plane, w): (&[f32], &[f32])| -> f32 {
                    g.taps().zip(w).filter_map(|(tap, w)| Some(plane[g.under(at, tap)?] * w)).sum()
                };
                planes.chunks_exact(g.plane()).zip(w.chunks_exact(taps)).map(of).sum::<f32>()
            }));
        }
    }
    Ok(out)
}

impl Own for Grouped {
    const NAME: &'static str = "grouped convolution";

    fn out(&self, dims: &[usize]) -> Result<(Vec<usize>, DType)> {
        let g = Geometry::of(self.window, dims)?;
        Ok((vec![dims[0], self.w.dim(0)?, g.oh as usize, g.ow as usize], self.w.dtype()))
    }

    fn plain(&self, x: &[f32], dims: &[usize]) -> Result<Vec<f32>> {
        convolved(x, dims, &host(&self.w)?, self.w.dim(0)?, self.groups, self.window)
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, gpu: &Gpu<'_>, x: &Input<'_>, out: u64) -> Result<()> {
        let (g, oc) = (Geometry::of(self.window, x.dims)?, self.w.dim(0)?);
        let n = x.dims[0] * oc * g.positions();
        let label = label(self.w.dtype());
        // Every channel on its own, with a window that there is a kernel for.
        let alone = self.groups == oc && self.groups == x.dims[1] && g.ow % 4 == 0;
        let window = matches!((g.kw, g.sx), (3 | 5, 1 | 2) | (7, 1));
        gpu.with(&self.w, |w| {
            let args = [Ptr(x.at), Ptr(w.at), Arg::Geometry(g)];
            if alone && window {
                return gpu.each(&format!("depthwise{}_{}_{label}", g.kw, g.sx), n, &args, out);
            }
            let args = [&args[..], &[I32(oc as i32), I32(self.groups as i32)]].concat();
            gpu.each(&format!("grouped_{label}"), n, &args, out)
        })
    }
}

/// `act(y · scale[c] + bias[c] + residual)`; what is `None` is left out. `c` goes along axis 1 of images, else along the last.
pub(super) struct Epilogue<'a> {
    /// `[c]`, f32.
    pub scale: Option<&'a Tensor>,
    /// `[c]`, f32.
    pub bias: Option<&'a Tensor>,
    /// Of the input's shape; of its type or f32.
    pub residual: Option<&'a Tensor>,
    pub act: Option<Activation>,
    /// Of the output: the input's type or f32.
    pub dtype: DType,
}

impl Epilogue<'_> {
    /// Nothing but the output's type.
    pub fn none(dtype: DType) -> Epilogue<'static> {
        Epilogue { scale: None, bias: None, residual: None, act: None, dtype }
    }

    /// Applies it; a value that nothing happens to is handed back as it is.
    pub fn on(&self, y: &Tensor) -> Result<Tensor> {
        if self.scale.is_none() && self.bias.is_none() && self.residual.is_none() && self.act.is_none() {
            return y.to_dtype(self.dtype);
        }
        let residual = match self.residual {
            Some(r) if r.dims() != y.dims() => candle_core::bail!("a residual {:?} for {:?}", r.dims(), y.dims()),
            // The other half type never meets this one in a plan, but through a cut it may.
            Some(r) if r.dtype() != y.dtype() && r.dtype() != DType::F32 => Some(r.to_dtype(DType::F32)?),
            Some(r) => Some(r.contiguous()?),
            None => None,
        };
        apply(y, &OnInput { of: self, residual, dtype: y.dtype() })
    }
}

/// An epilogue for an input of one type.
struct OnInput<'a> {
    of: &'a Epilogue<'a>,
    residual: Option<Tensor>,
    #[cfg_attr(not(feature = "cuda"), expect(dead_code, reason = "read where kernels are launched"))]
    dtype: DType,
}

/// Channels, and values of a channel that lie together.
fn channels(dims: &[usize]) -> (usize, usize) {
    match dims {
        [_, c, h, w] => (*c, h * w),
        _ => (dims.last().copied().unwrap_or(1), 1),
    }
}

impl Own for OnInput<'_> {
    const NAME: &'static str = "epilogue";

    fn out(&self, dims: &[usize]) -> Result<(Vec<usize>, DType)> {
        Ok((dims.to_vec(), self.of.dtype))
    }

    fn plain(&self, x: &[f32], dims: &[usize]) -> Result<Vec<f32>> {
        let (c, inner) = channels(dims);
        let mut y = x.to_vec();
        let per_channel = |y: &mut [f32], v: &[f32], f: fn(&mut f32, f32)| {
            y.chunks_mut(inner.max(1)).enumerate().for_each(|(i, y)| y.iter_mut().for_each(|y| f(y, v[i % c])));
        };
        if let Some(scale) = self.of.scale {
            per_channel(&mut y, &host(scale)?, |y, s| *y *= s);
        }
        if let Some(bias) = self.of.bias {
            per_channel(&mut y, &host(bias)?, |y, b| *y += b);
        }
        let residual = self.residual.as_ref().map(host).transpose()?;
        rows::finish(&mut y, residual.as_deref(), self.of.act);
        Ok(y)
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, gpu: &Gpu<'_>, x: &Input<'_>, out: u64) -> Result<()> {
        let ((c, inner), n) = (channels(x.dims), x.dims.iter().product::<usize>());
        let residual = self.residual.as_ref().map_or(self.dtype, |r| r.dtype());
        let name = format!("epilogue_{}_{}_{}", label(self.dtype), label(residual), label(self.of.dtype));
        gpu.with_some([self.of.scale, self.of.bias, self.residual.as_ref()], |[scale, bias, residual]| {
            let args = [Ptr(x.at), scale, bias, residual, I32(c as i32), I64(inner as i64), I32(number(self.of.act))];
            gpu.each(&name, n, &args, out)
        })
    }
}

/// What a pooling window becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pooled {
    Max,
    /// Over the whole window, padding as zeros.
    MeanOfAll,
    /// Over what is no padding.
    MeanOfSeen,
}

/// `[n, c, h, w]` → `[n, c, oh, ow]`.
pub(super) struct Pool {
    pub window: Window,
    pub pooled: Pooled,
    pub dtype: DType,
}

impl Own for Pool {
    const NAME: &'static str = "pool";

    fn out(&self, dims: &[usize]) -> Result<(Vec<usize>, DType)> {
        let g = Geometry::of(self.window, dims)?;
        Ok((vec![dims[0], dims[1], g.oh as usize, g.ow as usize], self.dtype))
    }

    fn plain(&self, x: &[f32], dims: &[usize]) -> Result<Vec<f32>> {
        let g = Geometry::of(self.window, dims)?;
        let mut out = Vec::with_capacity(dims[0] * dims[1] * g.positions());
        for plane in x.chunks_exact(g.plane().max(1)) {
            out.extend(g.places().map(|at| {
                let seen = g.taps().filter_map(|tap| Some(plane[g.under(at, tap)?]));
                match self.pooled {
                    Pooled::Max => seen.fold(f32::MIN, f32::max),
                    Pooled::MeanOfAll => seen.sum::<f32>() / g.taps().count() as f32,
                    Pooled::MeanOfSeen => seen.clone().sum::<f32>() / seen.count() as f32,
                }
            }));
        }
        Ok(out)
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, gpu: &Gpu<'_>, x: &Input<'_>, out: u64) -> Result<()> {
        let g = Geometry::of(self.window, x.dims)?;
        let n = x.dims[0] * x.dims[1] * g.positions();
        let mode = match self.pooled {
            Pooled::Max => 0,
            Pooled::MeanOfAll => 1,
            Pooled::MeanOfSeen => 2,
        };
        let args = [Ptr(x.at), Arg::Geometry(g), I32(mode)];
        gpu.each(&format!("pool_{}", label(self.dtype)), n, &args, out)
    }
}

/// Layer norm over the channels, those of images or the last axis, or rms norm where there is no `b`; f32.
pub(super) struct Norm {
    /// `[width]`.
    pub w: Tensor,
    /// `[width]`.
    pub b: Option<Tensor>,
    pub eps: f32,
}

impl Own for Norm {
    const NAME: &'static str = "norm";

    fn out(&self, dims: &[usize]) -> Result<(Vec<usize>, DType)> {
        match channels(dims).0 == self.w.elem_count() {
            true => Ok((dims.to_vec(), DType::F32)),
            false => candle_core::bail!("{dims:?} normalised over {}", self.w.elem_count()),
        }
    }

    fn plain(&self, x: &[f32], dims: &[usize]) -> Result<Vec<f32>> {
        let (w, (c, inner)) = (host(&self.w)?, channels(dims));
        // Positions of images, channel by channel, as rows of channels, and back.
        let turned = |x: &[f32], from: usize, to: usize| -> Vec<f32> {
            let planes = x.chunks_exact((c * inner).max(1));
            planes.flat_map(|x| (0..to).flat_map(move |p| (0..from).map(move |i| x[i * to + p]))).collect()
        };
        let x = turned(x, c, inner);
        let mut out = vec![0.0; x.len()];
        match &self.b {
            Some(b) => rows::layer_norm(&x, &w, &host(b)?, self.eps, &mut out),
            None => rows::rms_norm(&x, &w, self.eps, &mut out),
        }
        Ok(turned(&out, inner, c))
    }

    #[cfg(feature = "cuda")]
    fn launch(&self, gpu: &Gpu<'_>, x: &Input<'_>, out: u64) -> Result<()> {
        /// Positions of a block of `norm_channels`, and its threads.
        const BESIDE: (usize, u32) = (32, 256);
        let (width, inner) = channels(x.dims);
        let rows = x.dims.iter().product::<usize>() / width;
        let end = [F32(self.eps), I32(i32::from(self.b.is_some()))];
        gpu.with_some([Some(&self.w), self.b.as_ref()], |[w, b]| {
            let args = [Ptr(x.at), w, b, I32(width as i32)];
            if inner == 1 {
                return gpu.rows("norm_rows", rows, width, &[&args[..], &end].concat(), out);
            }
            let ((beside, threads), images) = (BESIDE, rows / inner);
            let blocks = inner.div_ceil(beside);
            let args = [&args[..], &[I64(inner as i64), I32(blocks as i32)], &end].concat();
            gpu.blocks("norm_channels", images * blocks, threads, &args, out)
        })
    }
}
