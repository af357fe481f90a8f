//! Products of convolutions and linears in f32, f16 and bf16; weights have the type that the input is brought to.
//!
//! Not here: int8 (`int8`), what follows the product (`kernels::Epilogue`).

use super::kernels::Unfold;
use super::own::apply;
use crate::exec::unfold::Window;
use candle_core::{DType, Result, Tensor};

/// A linear `[out, in]` over the last axis of `x`.
pub(super) fn linear(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let (out, inp) = w.dims2()?;
    let mut dims = x.dims().to_vec();
    match dims.last_mut() {
        Some(last) if *last == inp => *last = out,
        _ => candle_core::bail!("a linear of {inp} inputs got {:?}", x.dims()),
    }
    let rows = x.contiguous()?.reshape((x.elem_count() / inp.max(1), inp))?;
    matmul(&rows, &w.t()?)?.reshape(dims)
}

/// A 1x1 convolution `[1, out, in]`.
pub(super) fn pointwise(x: &Tensor, w: &Tensor) -> Result<Tensor> {
    let (n, c, h, wd) = x.dims4()?;
    images(w, &x.contiguous()?.reshape((n, c, h * wd))?, [h, wd])
}

/// `[1, out, c·kh·kw]` over unfolded windows.
pub(super) fn unfolded(x: &Tensor, w: &Tensor, unfold: &Unfold) -> Result<Tensor> {
    let (_, _, h, wd) = x.dims4()?;
    let window = unfold.window;
    let (Some(oh), Some(ow)) = (window.out(0, h), window.out(1, wd)) else {
        candle_core::bail!("a kernel of {:?} does not fit {h}x{wd}", window.kernel)
    };
    images(w, &apply(x, unfold)?, [oh, ow])
}

/// `w` `[1, out, k]` times every image's columns `[n, k, h·w]` → `[n, out, h, w]`.
fn images(w: &Tensor, columns: &Tensor, [h, wd]: [usize; 2]) -> Result<Tensor> {
    let (n, (_, out, k)) = (columns.dim(0)?, w.dims3()?);
    // Not copied: the product takes one matrix for all images.
    matmul(&w.broadcast_as((n, out, k))?, columns)?.reshape((n, out, h, wd))
}

/// A product in the operands' type, summed in f32.
pub(super) fn matmul(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    if a.device().is_cpu() && a.dtype() != DType::F32 {
        // The CPU's library has no bf16 product, and sums f16 as it likes.
        let y = a.to_dtype(DType::F32)?.matmul(&b.to_dtype(DType::F32)?)?;
        return y.to_dtype(a.dtype());
    }
    a.matmul(b)
}

/// Whether the library's convolution is the better one: cuDNN's, where f32 may be rounded to TF32. The tensor library lets it do that
/// whatever was asked for (seen on an H100: a 1x1 convolution was 300 times as far off as f32 is).
pub(super) fn library(x: &candle_core::Device, window: &Window, dtype: DType) -> bool {
    let even = window.stride[0] == window.stride[1] && window.padding.iter().all(|p| *p == window.padding[0]);
    // cuDNN would sum f16 in f16.
    let rounded = x.is_cuda() && candle_core::cuda::gemm_reduced_precision_f32();
    cfg!(feature = "cudnn") && rounded && even && dtype == DType::F32
}
