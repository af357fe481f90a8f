//! cuBLAS: handles and their state, and the entry points of its products.
//!
//! By the cuBLAS 13.0 documentation (docs.nvidia.com/cuda/cublas), sections 2.2 to 2.8. What it refuses is in
//! `blas/call.rs`; the products themselves are `gemm.rs`. Not here: cublasLt (`blaslt.rs`), and the routines that
//! neither candle nor cudarc's safe layer calls: their symbols do not resolve.

#![allow(clippy::missing_safety_doc, clippy::too_many_arguments)]

mod call;
#[cfg(test)]
mod tests;

use crate::handles::Handles;
pub use call::supported;
use call::{Call, Side};
use std::ffi::{CStr, c_char, c_int, c_longlong, c_void};

pub const SUCCESS: u32 = 0;
pub const NOT_INITIALIZED: u32 = 1;
pub const INVALID_VALUE: u32 = 7;
pub const EXECUTION_FAILED: u32 = 13;
pub const NOT_SUPPORTED: u32 = 15;

/// `cublasGetVersion` of the library that comes with CUDA 13.0 Update 1.
pub const VERSION: c_int = 130_002;

/// A `cublasHandle_t`'s state.
#[derive(Debug, Clone, Copy, Default)]
pub struct Blas {
    stream: usize,
    math_mode: u32,
    pointers_to_device: bool,
}

pub static HANDLES: Handles<Blas> = Handles::new("cublasHandle_t", 0xB1A5);

const TF32_TENSOR_OP_MATH: u32 = 3;
/// `CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION`, which is combined with a mode.
const EXACT_REDUCTION: u32 = 16;

impl Blas {
    fn tf32(&self) -> bool {
        self.math_mode & !EXACT_REDUCTION == TF32_TENSOR_OP_MATH
    }
}

/// What a library answers where a launch was answered with `result` (a `CUresult`).
pub fn launched(result: u32) -> u32 {
    if result == 0 { SUCCESS } else { EXECUTION_FAILED }
}

fn with(handle: usize, who: &str, f: impl FnOnce(&mut Blas) -> u32) -> u32 {
    HANDLES.with(handle, who, f).unwrap_or(NOT_INITIALIZED)
}

/// Writes `value` where the caller wants it.
unsafe fn give<T>(to: *mut T, value: T) -> u32 {
    if to.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the library's contract: room for one.
    unsafe { to.write(value) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasCreate_v2(handle: *mut usize) -> u32 {
    // SAFETY: the library's contract. A null pointer must not leave a handle behind.
    if handle.is_null() { INVALID_VALUE } else { unsafe { give(handle, HANDLES.make(Blas::default())) } }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasDestroy_v2(handle: usize) -> u32 {
    HANDLES.destroy(handle, "cublasDestroy").map_or(NOT_INITIALIZED, |_| SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGetVersion_v2(_handle: usize, version: *mut c_int) -> u32 {
    // SAFETY: the library's contract.
    unsafe { give(version, VERSION) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGetProperty(which: u32, value: *mut c_int) -> u32 {
    let part = match which {
        0 => VERSION / 10_000,
        1 => VERSION / 100 % 100,
        2 => VERSION % 100,
        _ => return INVALID_VALUE,
    };
    // SAFETY: the library's contract.
    unsafe { give(value, part) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGetStatusName(status: u32) -> *const c_char {
    let name: &CStr = match status {
        SUCCESS => c"CUBLAS_STATUS_SUCCESS",
        NOT_INITIALIZED => c"CUBLAS_STATUS_NOT_INITIALIZED",
        INVALID_VALUE => c"CUBLAS_STATUS_INVALID_VALUE",
        EXECUTION_FAILED => c"CUBLAS_STATUS_EXECUTION_FAILED",
        NOT_SUPPORTED => c"CUBLAS_STATUS_NOT_SUPPORTED",
        _ => c"CUBLAS_STATUS_UNKNOWN",
    };
    name.as_ptr()
}

/// "Unconditionally resets the cuBLAS library workspace back to the default workspace pool", which no caller sees.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasSetStream_v2(handle: usize, stream: usize) -> u32 {
    with(handle, "cublasSetStream", |blas| {
        blas.stream = stream;
        SUCCESS
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGetStream_v2(handle: usize, stream: *mut usize) -> u32 {
    // SAFETY: the library's contract.
    with(handle, "cublasGetStream", |blas| unsafe { give(stream, blas.stream) })
}

/// "The workspace pointer has to be aligned to at least 256 bytes, otherwise `CUBLAS_STATUS_INVALID_VALUE`."
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasSetWorkspace_v2(handle: usize, workspace: u64, _bytes: usize) -> u32 {
    // Products here need none, so what is set is only checked.
    with(handle, "cublasSetWorkspace", |_| if workspace.is_multiple_of(256) { SUCCESS } else { INVALID_VALUE })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasSetMathMode(handle: usize, mode: u32) -> u32 {
    with(handle, "cublasSetMathMode", |blas| {
        if !matches!(mode & !EXACT_REDUCTION, 0..=4 | 8) {
            return INVALID_VALUE;
        }
        blas.math_mode = mode;
        SUCCESS
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGetMathMode(handle: usize, mode: *mut u32) -> u32 {
    // SAFETY: the library's contract.
    with(handle, "cublasGetMathMode", |blas| unsafe { give(mode, blas.math_mode) })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasSetPointerMode_v2(handle: usize, mode: u32) -> u32 {
    with(handle, "cublasSetPointerMode", |blas| {
        if mode > 1 {
            return INVALID_VALUE;
        }
        blas.pointers_to_device = mode == 1;
        SUCCESS
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGetPointerMode_v2(handle: usize, mode: *mut u32) -> u32 {
    // SAFETY: the library's contract.
    with(handle, "cublasGetPointerMode", |blas| unsafe { give(mode, blas.pointers_to_device.into()) })
}

const R_32F: u32 = 0;
const R_64F: u32 = 1;
const R_16F: u32 = 2;
const COMPUTE_16F: u32 = 64;
const COMPUTE_32F: u32 = 68;
const COMPUTE_64F: u32 = 70;
const DEFAULT_ALGO: c_int = -1;

/// `cublas<t>gemm` and its strided batches, whose types are all one.
macro_rules! typed {
    ($one:ident, $many:ident, $type:expr, $compute:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $one(
            handle: usize,
            transa: u32,
            transb: u32,
            m: c_int,
            n: c_int,
            k: c_int,
            alpha: *const c_void,
            a: u64,
            lda: c_int,
            b: u64,
            ldb: c_int,
            beta: *const c_void,
            c: u64,
            ldc: c_int,
        ) -> u32 {
            let side = |at, ld: c_int| Side { at, code: $type, ld: ld.into(), stride: 0 };
            let call = Call {
                who: stringify!($one),
                ops: [transa, transb],
                shape: [m.into(), n.into(), k.into()],
                batch: 1,
                alpha,
                beta,
                sides: [side(a, lda), side(b, ldb), side(c, ldc)],
                compute: $compute,
                algo: DEFAULT_ALGO,
            };
            // SAFETY: the library's contract.
            unsafe { call.make(handle) }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $many(
            handle: usize,
            transa: u32,
            transb: u32,
            m: c_int,
            n: c_int,
            k: c_int,
            alpha: *const c_void,
            a: u64,
            lda: c_int,
            stride_a: c_longlong,
            b: u64,
            ldb: c_int,
            stride_b: c_longlong,
            beta: *const c_void,
            c: u64,
            ldc: c_int,
            stride_c: c_longlong,
            batch: c_int,
        ) -> u32 {
            let side = |at, ld: c_int, stride| Side { at, code: $type, ld: ld.into(), stride };
            let call = Call {
                who: stringify!($many),
                ops: [transa, transb],
                shape: [m.into(), n.into(), k.into()],
                batch: batch.into(),
                alpha,
                beta,
                sides: [side(a, lda, stride_a), side(b, ldb, stride_b), side(c, ldc, stride_c)],
                compute: $compute,
                algo: DEFAULT_ALGO,
            };
            // SAFETY: the library's contract.
            unsafe { call.make(handle) }
        }
    };
}

typed!(cublasSgemm_v2, cublasSgemmStridedBatched, R_32F, COMPUTE_32F);
typed!(cublasDgemm_v2, cublasDgemmStridedBatched, R_64F, COMPUTE_64F);
typed!(cublasHgemm, cublasHgemmStridedBatched, R_16F, COMPUTE_16F);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGemmEx(
    handle: usize,
    transa: u32,
    transb: u32,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const c_void,
    a: u64,
    a_type: u32,
    lda: c_int,
    b: u64,
    b_type: u32,
    ldb: c_int,
    beta: *const c_void,
    c: u64,
    c_type: u32,
    ldc: c_int,
    compute: u32,
    algo: c_int,
) -> u32 {
    let side = |at, code, ld: c_int| Side { at, code, ld: ld.into(), stride: 0 };
    let call = Call {
        who: "cublasGemmEx",
        ops: [transa, transb],
        shape: [m.into(), n.into(), k.into()],
        batch: 1,
        alpha,
        beta,
        sides: [side(a, a_type, lda), side(b, b_type, ldb), side(c, c_type, ldc)],
        compute,
        algo,
    };
    // SAFETY: the library's contract.
    unsafe { call.make(handle) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasGemmStridedBatchedEx(
    handle: usize,
    transa: u32,
    transb: u32,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: *const c_void,
    a: u64,
    a_type: u32,
    lda: c_int,
    stride_a: c_longlong,
    b: u64,
    b_type: u32,
    ldb: c_int,
    stride_b: c_longlong,
    beta: *const c_void,
    c: u64,
    c_type: u32,
    ldc: c_int,
    stride_c: c_longlong,
    batch: c_int,
    compute: u32,
    algo: c_int,
) -> u32 {
    let side = |at, code, ld: c_int, stride| Side { at, code, ld: ld.into(), stride };
    let call = Call {
        who: "cublasGemmStridedBatchedEx",
        ops: [transa, transb],
        shape: [m.into(), n.into(), k.into()],
        batch: batch.into(),
        alpha,
        beta,
        sides: [side(a, a_type, lda, stride_a), side(b, b_type, ldb, stride_b), side(c, c_type, ldc, stride_c)],
        compute,
        algo,
    };
    // SAFETY: the library's contract.
    unsafe { call.make(handle) }
}

/// `cublas<t>gemv`.
macro_rules! vector {
    ($name:ident, $type:expr, $compute:expr) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(
            handle: usize,
            trans: u32,
            m: c_int,
            n: c_int,
            alpha: *const c_void,
            a: u64,
            lda: c_int,
            x: u64,
            incx: c_int,
            beta: *const c_void,
            y: u64,
            incy: c_int,
        ) -> u32 {
            let side = |at, ld: c_int| Side { at, code: $type, ld: ld.into(), stride: 0 };
            let call = Call {
                who: stringify!($name),
                ops: [trans, 0],
                shape: [m.into(), n.into(), 0],
                batch: 1,
                alpha,
                beta,
                sides: [side(a, lda), side(x, incx), side(y, incy)],
                compute: $compute,
                algo: DEFAULT_ALGO,
            };
            // SAFETY: the library's contract.
            unsafe { call.make_vector(handle) }
        }
    };
}

vector!(cublasSgemv_v2, R_32F, COMPUTE_32F);
vector!(cublasDgemv_v2, R_64F, COMPUTE_64F);
