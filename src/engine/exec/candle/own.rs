//! What makes a kernel of ours an operation of the tensor library: on a CPU its definition in Rust runs, on a GPU the kernel
//! of `cuda/kernels` that computes the same.
//!
//! Not here: what kernels compute (`kernels`, `int8`). Invariant: inputs are contiguous, outputs too.

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor};

#[cfg(feature = "cuda")]
use crate::exec::cuda::{Gpu, Input};

/// A kernel with one input that varies; what else it reads it holds.
pub(super) trait Own {
    const NAME: &'static str;

    /// Shape and type of the output for an input of shape `dims`.
    fn out(&self, dims: &[usize]) -> Result<(Vec<usize>, DType)>;

    /// What is computed, in f32; the definition.
    fn plain(&self, x: &[f32], dims: &[usize]) -> Result<Vec<f32>>;

    /// Queues the same on a GPU, writing to `out`.
    #[cfg(feature = "cuda")]
    fn launch(&self, gpu: &Gpu<'_>, x: &Input<'_>, out: u64) -> Result<()>;
}

/// `kernel(x)`.
pub(super) fn apply(x: &Tensor, kernel: &impl Own) -> Result<Tensor> {
    x.contiguous()?.apply_op1_no_bwd(&Op(kernel))
}

struct Op<'a, K>(&'a K);

impl<K: Own> CustomOp1 for Op<'_, K> {
    fn name(&self) -> &'static str {
        K::NAME
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Some((from, to)) = layout.contiguous_offsets() else {
            candle_core::bail!("{} needs a contiguous tensor", K::NAME)
        };
        let x: Vec<f32> = match storage {
            CpuStorage::F32(v) => v[from..to].to_vec(),
            CpuStorage::F16(v) => v[from..to].iter().map(|v| v.to_f32()).collect(),
            CpuStorage::BF16(v) => v[from..to].iter().map(|v| v.to_f32()).collect(),
            _ => candle_core::bail!("{} takes floats", K::NAME),
        };
        let (dims, dtype) = self.0.out(layout.dims())?;
        let y = self.0.plain(&x, layout.dims())?;
        let y = match dtype {
            DType::F32 => CpuStorage::F32(y),
            DType::F16 => CpuStorage::F16(y.into_iter().map(half::f16::from_f32).collect()),
            DType::BF16 => CpuStorage::BF16(y.into_iter().map(half::bf16::from_f32).collect()),
            other => candle_core::bail!("{} makes no {other:?}", K::NAME),
        };
        Ok((y, Shape::from(dims)))
    }

    #[cfg(feature = "cuda")]
    fn cuda_fwd(
        &self,
        storage: &candle_core::CudaStorage,
        layout: &Layout,
    ) -> Result<(candle_core::CudaStorage, Shape)> {
        let gpu = Gpu::of(&storage.device)?;
        let x = Input::of(storage, layout)?;
        let (dims, dtype) = self.0.out(layout.dims())?;
        let shape = Shape::from(dims);
        let (out, at) = gpu.output(&shape, dtype)?;
        if shape.elem_count() > 0 {
            self.0.launch(&gpu, &x, at)?;
        }
        Ok((out, shape))
    }
}

/// The values of a tensor on the CPU, in f32.
pub(super) fn host(t: &Tensor) -> Result<Vec<f32>> {
    t.to_dtype(DType::F32)?.flatten_all()?.to_vec1()
}
