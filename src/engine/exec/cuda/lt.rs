//! Products of signed bytes and of 8-bit floats on tensor cores, through cublasLt.
//!
//! Invariants: both operands are k-major ("TN" is the only layout that int8 tensor cores take, and that those of 8-bit floats
//! take up to Hopper), and their rows and k are multiples of 16, zeros at the end. A plan is made once a kind and shape and kept
//! for the process.

use super::Gpu;
use candle_core::cuda_backend::DeviceId;
use candle_core::{CudaDevice, Error, Result};
use cudarc::cublaslt::{result as lt, sys};
use cudarc::driver::{CudaSlice, DevicePtr};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ffi::c_void;
use std::sync::{Mutex, PoisonError};

/// Bytes that an algorithm may use; what NVIDIA recommends for Hopper.
const WORKSPACE: usize = 32 << 20;

static HANDLES: Mutex<Option<HashMap<DeviceId, Handle>>> = Mutex::new(None);

/// Calls `f` with the device's handle, made at its first use.
fn with_handle<R>(device: &CudaDevice, f: impl FnOnce(&mut Handle) -> Result<R>) -> Result<R> {
    let mut handles = HANDLES.lock().unwrap_or_else(PoisonError::into_inner);
    f(match handles.get_or_insert_default().entry(device.id()) {
        Entry::Occupied(e) => e.into_mut(),
        Entry::Vacant(e) => e.insert(Handle::new(device)?),
    })
}

/// Loads the library and makes the device's handle.
pub(super) fn prepare(device: &CudaDevice) -> Result<()> {
    with_handle(device, |_| Ok(()))
}

/// `out[n][m] = Σ_k a[m][k] · b[n][k]`, all row-major: `a` and `b` signed bytes, `out` i32. `[m, n, k]`: `m` and `k` are
/// multiples of 16. Queued on the device's stream.
pub(in crate::exec) fn int8_product(gpu: &Gpu<'_>, shape: [usize; 3], a: u64, b: u64, out: u64) -> Result<()> {
    with_handle(gpu.device, |handle| handle.run(gpu.device, (Kind::Int8, shape), a, b, out))
}

/// As [`int8_product`] of 8-bit floats (E4M3), `out` f32. Nothing is scaled: one scale a matrix is all that cublasLt has on every
/// device with these products (vectors of scales: on compute capability 9.0 alone, from CUDA 12.9 on), and rows and channels have
/// their own, which what follows the product multiplies with. In f32, not in half precision, whose range products without
/// scales leave. Needs compute capability 8.9.
pub(in crate::exec) fn fp8_product(gpu: &Gpu<'_>, shape: [usize; 3], a: u64, b: u64, out: u64) -> Result<()> {
    with_handle(gpu.device, |handle| handle.run(gpu.device, (Kind::Fp8, shape), a, b, out))
}

/// What is multiplied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Kind {
    /// Signed bytes to i32.
    Int8,
    /// E4M3 to f32.
    Fp8,
}

/// `[m, n, k]` of a kind.
type Sizes = (Kind, [usize; 3]);

struct Handle {
    /// The library's own: cudarc's safe one brings a workspace that only it can use.
    raw: sys::cublasLtHandle_t,
    workspace: CudaSlice<u8>,
    plans: HashMap<Sizes, Plan>,
}

// SAFETY: cublasLt's handles are not bound to a thread; used under the lock of `HANDLES`.
unsafe impl Send for Handle {}

impl Handle {
    fn new(device: &CudaDevice) -> Result<Handle> {
        // SAFETY: only cublasLt uses it, and writes what it reads.
        let workspace = unsafe { device.alloc::<u8>(WORKSPACE)? };
        // After the allocation, which makes the device's context this thread's.
        let raw = lt::create_handle().map_err(Error::wrap)?;
        Ok(Handle { raw, workspace, plans: HashMap::new() })
    }

    fn run(&mut self, device: &CudaDevice, sizes: Sizes, a: u64, b: u64, out: u64) -> Result<()> {
        let handle = self.raw;
        let plan = match self.plans.entry(sizes) {
            Entry::Occupied(e) => e.into_mut(),
            Entry::Vacant(e) => e.insert(Plan::new(handle, sizes)?),
        };
        let stream = device.cuda_stream();
        let (workspace, _guard) = self.workspace.device_ptr(&stream);
        // Zero has the same bits in both types.
        let (one, one_f32, beta) = (1i32, 1f32, 0i32);
        let alpha: *const c_void = match sizes.0 {
            Kind::Int8 => (&raw const one).cast(),
            Kind::Fp8 => (&raw const one_f32).cast(),
        };
        // SAFETY: the operands have the sizes that the plan was made for, and all is queued on one stream.
        unsafe {
            sys::cublasLtMatmul(
                handle,
                plan.desc,
                alpha,
                a as *const c_void,
                plan.a,
                b as *const c_void,
                plan.b,
                (&raw const beta).cast(),
                out as *const c_void,
                plan.out,
                out as *mut c_void,
                plan.out,
                &raw const plan.algo,
                workspace as *mut c_void,
                WORKSPACE,
                stream.cu_stream().cast(),
            )
            .result()
            .map_err(Error::wrap)
        }
    }
}

/// What cublasLt knows of one shape. Column-major in its own words: `out` `[m, n]` is `aᵀ b` of `a` `[k, m]`, `b` `[k, n]`.
struct Plan {
    desc: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    algo: sys::cublasLtMatmulAlgo_t,
}

// SAFETY: descriptions that nothing changes once they are made; used under the lock of `HANDLES`.
unsafe impl Send for Plan {}

impl Plan {
    fn new(handle: sys::cublasLtHandle_t, (kind, [m, n, k]): Sizes) -> Result<Plan> {
        use sys::cublasComputeType_t::{CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_32I};
        use sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_FAST_ACCUM;
        use sys::cublasLtMatmulDescAttributes_t::{CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB};
        use sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        use sys::cudaDataType::{CUDA_R_8F_E4M3, CUDA_R_8I, CUDA_R_32F, CUDA_R_32I};
        let (compute, factor, sum) = match kind {
            Kind::Int8 => (CUBLAS_COMPUTE_32I, CUDA_R_8I, CUDA_R_32I),
            Kind::Fp8 => (CUBLAS_COMPUTE_32F, CUDA_R_8F_E4M3, CUDA_R_32F),
        };
        let (yes, no, room) = (1i32, 0i32, WORKSPACE);
        let (m64, n64, k64) = (m as u64, n as u64, k as u64);
        let ld = |v: usize| v as i64;
        // SAFETY: handles come from the calls above each use; attributes have the sizes that are said. What a failure half
        // way leaves behind is a few bytes of host memory.
        unsafe {
            let desc = lt::create_matmul_desc(compute, sum).map_err(Error::wrap)?;
            let int = size_of::<i32>();
            lt::set_matmul_desc_attribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, (&raw const yes).cast(), int)
                .map_err(Error::wrap)?;
            lt::set_matmul_desc_attribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, (&raw const no).cast(), int)
                .map_err(Error::wrap)?;
            if kind == Kind::Fp8 {
                // Fast accumulation adds within the tensor cores, in fewer bits than f32; without it partial sums are f32.
                let off = 0i8;
                lt::set_matmul_desc_attribute(desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, (&raw const off).cast(), 1)
                    .map_err(Error::wrap)?;
            }
            let a = lt::create_matrix_layout(factor, k64, m64, ld(k)).map_err(Error::wrap)?;
            let b = lt::create_matrix_layout(factor, k64, n64, ld(k)).map_err(Error::wrap)?;
            let out = lt::create_matrix_layout(sum, m64, n64, ld(m)).map_err(Error::wrap)?;
            let wish = lt::create_matmul_pref().map_err(Error::wrap)?;
            let bytes = size_of::<usize>();
            let most = CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            lt::set_matmul_pref_attribute(wish, most, (&raw const room).cast(), bytes).map_err(Error::wrap)?;
            let found = lt::get_matmul_algo_heuristic(handle, desc, a, b, out, out, wish);
            let algo = found.map_err(|e| Error::msg(format!("no {kind:?} product for {m}x{n}x{k}: {e:?}")))?.algo;
            lt::destroy_matmul_pref(wish).map_err(Error::wrap)?;
            Ok(Plan { desc, a, b, out, algo })
        }
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        // SAFETY: made by `new`, dropped once. A failure to free is nothing that anyone could act on.
        unsafe {
            for layout in [self.a, self.b, self.out] {
                let _ = lt::destroy_matrix_layout(layout);
            }
            let _ = lt::destroy_matmul_desc(self.desc);
        }
    }
}
