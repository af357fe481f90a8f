//! cublasLt: descriptions and their attributes, and the entry points.
//!
//! By the cuBLAS 13.0 documentation (docs.nvidia.com/cuda/cublas), sections 3.3 and 3.4. What is refused, and the
//! product that a call means, are in `blaslt/rules.rs`. Not here: what neither cudarc's safe layer nor the program
//! calls (matrix transforms, algorithm capabilities).

#![allow(clippy::too_many_arguments)]

mod rules;
#[cfg(test)]
mod tests;

use crate::blas::{self, INVALID_VALUE, NOT_INITIALIZED, NOT_SUPPORTED, SUCCESS};
use crate::handles::Handles;
use crate::numbers::is_data_type;
use rules::{Algo, Given};
use std::ffi::{c_int, c_void};

static HANDLES: Handles<()> = Handles::new("cublasLtHandle_t", 0xB1A7);
static DESCS: Handles<Desc> = Handles::new("cublasLtMatmulDesc_t", 0xB1DE);
static LAYOUTS: Handles<Layout> = Handles::new("cublasLtMatrixLayout_t", 0xB11A);
static PREFERENCES: Handles<Preference> = Handles::new("cublasLtMatmulPreference_t", 0xB1FE);

/// Values by their attribute's number; every type of attribute fits.
type Desc = [i64; 39];
type Layout = [i64; 9];
type Preference = [i64; 13];

/// `cublasLtMatmulDescAttributes_t` of CUDA 13.0.
mod desc {
    pub const COMPUTE_TYPE: usize = 0;
    pub const SCALE_TYPE: usize = 1;
    pub const POINTER_MODE: usize = 2;
    pub const TRANSA: usize = 3;
    pub const TRANSB: usize = 4;
    pub const TRANSC: usize = 5;
    pub const FILL_MODE: usize = 6;
    pub const EPILOGUE: usize = 7;
    pub const BIAS_POINTER: usize = 8;
    pub const BIAS_BATCH_STRIDE: usize = 10;
    pub const A_SCALE_POINTER: usize = 17;
    pub const B_SCALE_POINTER: usize = 18;
    pub const C_SCALE_POINTER: usize = 19;
    pub const D_SCALE_POINTER: usize = 20;
    pub const AMAX_D_POINTER: usize = 21;
    pub const AUX_DATA_TYPE: usize = 22;
    pub const AUX_AMAX_POINTER: usize = 24;
    pub const FAST_ACCUM: usize = 25;
    pub const BIAS_DATA_TYPE: usize = 26;
    pub const SCALE_MODES: std::ops::RangeInclusive<usize> = 31..=35;
    pub const D_OUT_SCALE_POINTER: usize = 36;

    /// Bytes of an attribute; `None` where there is none of that number.
    pub fn bytes(attribute: usize) -> Option<usize> {
        Some(match attribute {
            FAST_ACCUM => 1,
            // The sixth is an emulation's description, a pointer for all that the table of 3.3.9 says.
            BIAS_POINTER | 10..=14 | 17..=21 | 23 | 24 | 36 | 38 => 8,
            0..=7 | 15 | AUX_DATA_TYPE | BIAS_DATA_TYPE | 31..=35 | 37 => 4,
            _ => return None,
        })
    }
}

/// `cublasLtMatrixLayoutAttribute_t`.
mod layout {
    pub const TYPE: usize = 0;
    pub const ORDER: usize = 1;
    pub const ROWS: usize = 2;
    pub const COLS: usize = 3;
    pub const LD: usize = 4;
    pub const BATCH_COUNT: usize = 5;
    pub const STRIDED_BATCH_OFFSET: usize = 6;
    pub const PLANE_OFFSET: usize = 7;
    pub const BATCH_MODE: usize = 8;

    pub fn bytes(attribute: usize) -> Option<usize> {
        match attribute {
            TYPE | ORDER | BATCH_COUNT | BATCH_MODE => Some(4),
            ROWS | COLS | LD | STRIDED_BATCH_OFFSET | PLANE_OFFSET => Some(8),
            _ => None,
        }
    }
}

/// `cublasLtMatmulPreferenceAttributes_t`.
mod preference {
    pub const MAX_WORKSPACE_BYTES: usize = 1;
    pub const REDUCTION_SCHEME_MASK: usize = 3;
    /// Of A, B, C and D.
    pub const MIN_ALIGNMENT: std::ops::RangeInclusive<usize> = 5..=8;
    pub const IMPL_MASK: usize = 12;

    pub fn bytes(attribute: usize) -> Option<usize> {
        match attribute {
            MAX_WORKSPACE_BYTES | IMPL_MASK => Some(8),
            0 | REDUCTION_SCHEME_MASK | 5..=9 => Some(4),
            _ => None,
        }
    }
}

/// "`CUBLAS_STATUS_INVALID_VALUE`: If `buf` is NULL or `sizeInBytes` doesn't match the size of the internal storage
/// for the selected attribute."
unsafe fn set(
    to: &mut [i64],
    sizes: fn(usize) -> Option<usize>,
    attribute: u32,
    buf: *const c_void,
    size: usize,
) -> u32 {
    let attribute = attribute as usize;
    if buf.is_null() || sizes(attribute) != Some(size) {
        return INVALID_VALUE;
    }
    // SAFETY: the library's contract: `size` bytes are there, aligned or not.
    to[attribute] = unsafe {
        match size {
            1 => buf.cast::<i8>().read().into(),
            4 => buf.cast::<i32>().read_unaligned().into(),
            _ => buf.cast::<i64>().read_unaligned(),
        }
    };
    SUCCESS
}

/// "If `sizeInBytes` is 0 and `sizeWritten` is NULL, or if it is non-zero and `buf` is NULL, or if it doesn't match":
/// the same.
unsafe fn get(
    from: &[i64],
    sizes: fn(usize) -> Option<usize>,
    attribute: u32,
    buf: *mut c_void,
    size: usize,
    written: *mut usize,
) -> u32 {
    let Some(bytes) = sizes(attribute as usize) else { return INVALID_VALUE };
    if (size == 0 && written.is_null()) || (size != 0 && (buf.is_null() || size != bytes)) {
        return INVALID_VALUE;
    }
    // SAFETY: the library's contract: there is room for what was asked.
    unsafe {
        if size > 0 {
            let value = from[attribute as usize].to_le_bytes();
            std::ptr::copy_nonoverlapping(value.as_ptr(), buf.cast(), bytes);
        }
        if !written.is_null() {
            written.write(bytes);
        }
    }
    SUCCESS
}

/// The calls that make, change and end one kind of description.
macro_rules! described {
    ($table:ident, $sizes:path, $set:ident, $get:ident, $destroy:ident) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $set(of: usize, attribute: u32, buf: *const c_void, size: usize) -> u32 {
            // SAFETY: the library's contract.
            let done = $table.with(of, stringify!($set), |d| unsafe { set(d, $sizes, attribute, buf, size) });
            done.unwrap_or(INVALID_VALUE)
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get(
            of: usize,
            attribute: u32,
            buf: *mut c_void,
            size: usize,
            written: *mut usize,
        ) -> u32 {
            // SAFETY: the library's contract.
            let done = $table.with(of, stringify!($get), |d| unsafe { get(d, $sizes, attribute, buf, size, written) });
            done.unwrap_or(INVALID_VALUE)
        }

        /// Null is freed as `free` would: nothing happens.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $destroy(of: usize) -> u32 {
            $table.destroy(of, stringify!($destroy));
            SUCCESS
        }
    };
}

described!(
    DESCS,
    desc::bytes,
    cublasLtMatmulDescSetAttribute,
    cublasLtMatmulDescGetAttribute,
    cublasLtMatmulDescDestroy
);
described!(
    LAYOUTS,
    layout::bytes,
    cublasLtMatrixLayoutSetAttribute,
    cublasLtMatrixLayoutGetAttribute,
    cublasLtMatrixLayoutDestroy
);
described!(
    PREFERENCES,
    preference::bytes,
    cublasLtMatmulPreferenceSetAttribute,
    cublasLtMatmulPreferenceGetAttribute,
    cublasLtMatmulPreferenceDestroy
);

/// Makes a handle where the caller wants it.
unsafe fn make<T>(to: *mut usize, table: &Handles<T>, value: T) -> u32 {
    if to.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the library's contract.
    unsafe { to.write(table.make(value)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtCreate(handle: *mut usize) -> u32 {
    // SAFETY: the library's contract.
    unsafe { make(handle, &HANDLES, ()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtDestroy(handle: usize) -> u32 {
    HANDLES.destroy(handle, "cublasLtDestroy").map_or(NOT_INITIALIZED, |()| SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtGetVersion() -> usize {
    blas::VERSION as usize
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulDescCreate(to: *mut usize, compute: u32, scale: u32) -> u32 {
    let mut d: Desc = [0; 39];
    d[desc::COMPUTE_TYPE] = compute.into();
    d[desc::SCALE_TYPE] = scale.into();
    d[desc::FILL_MODE] = rules::FILL_MODE_FULL;
    d[desc::EPILOGUE] = rules::EPILOGUE_DEFAULT;
    d[desc::AUX_DATA_TYPE] = -1;
    d[desc::BIAS_DATA_TYPE] = -1;
    // SAFETY: the library's contract.
    unsafe { make(to, &DESCS, d) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatrixLayoutCreate(to: *mut usize, code: u32, rows: u64, cols: u64, ld: i64) -> u32 {
    if !is_data_type(code) {
        return INVALID_VALUE;
    }
    let mut l: Layout = [0; 9];
    l[layout::TYPE] = code.into();
    l[layout::ROWS] = rows as i64;
    l[layout::COLS] = cols as i64;
    l[layout::LD] = ld;
    l[layout::BATCH_COUNT] = 1;
    // SAFETY: the library's contract.
    unsafe { make(to, &LAYOUTS, l) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulPreferenceCreate(to: *mut usize) -> u32 {
    let mut p: Preference = [0; 13];
    p[preference::REDUCTION_SCHEME_MASK] = 7;
    p[preference::MIN_ALIGNMENT].fill(256);
    p[preference::IMPL_MASK] = -1;
    // SAFETY: the library's contract.
    unsafe { make(to, &PREFERENCES, p) }
}

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Found {
    algo: Algo,
    workspace: usize,
    state: u32,
    waves: f32,
    reserved: [c_int; 4],
}

/// What a handle's call may go on with; a `cublasHandle_t` "can be used in place of `cublasLtHandle_t`" (3.3.3).
fn known(handle: usize, who: &str) -> bool {
    if blas::HANDLES.owns(handle) {
        return blas::HANDLES.get(handle, who).is_some();
    }
    HANDLES.get(handle, who).is_some()
}

/// The descriptions of a call, with `C` being as `D` where it is left out.
fn given(who: &'static str, operation: usize, [a, b, c, d]: [usize; 4]) -> Option<Given> {
    let layout = |l| LAYOUTS.get(l, who);
    let d = layout(d)?;
    let c = if c == 0 { d } else { layout(c)? };
    Some(Given { desc: DESCS.get(operation, who)?, a: layout(a)?, b: layout(b)?, c, d })
}

/// "`CUBLAS_STATUS_INVALID_VALUE`: If `requestedAlgoCount` is less or equal to zero. `CUBLAS_STATUS_NOT_SUPPORTED`:
/// If no heuristic function available for current configuration."
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmulAlgoGetHeuristic(
    handle: usize,
    operation: usize,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    preference: usize,
    wanted: c_int,
    results: *mut Found,
    count: *mut c_int,
) -> u32 {
    let who = "cublasLtMatmulAlgoGetHeuristic";
    if !known(handle, who) {
        return NOT_INITIALIZED;
    }
    let (Some(given), Some(preference)) = (given(who, operation, [a, b, c, d]), PREFERENCES.get(preference, who))
    else {
        return INVALID_VALUE;
    };
    if wanted <= 0 || results.is_null() || count.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the library's contract: room for the count, and for as many results as are wanted.
    unsafe {
        count.write(0);
        match given.algorithm(&preference) {
            Err(status) => status,
            Ok(algo) => {
                let found = Found { algo, workspace: algo.workspace(), state: SUCCESS, waves: 1.0, reserved: [0; 4] };
                results.write(found);
                count.write(1);
                SUCCESS
            }
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cublasLtMatmul(
    handle: usize,
    operation: usize,
    alpha: *const c_void,
    a: u64,
    a_layout: usize,
    b: u64,
    b_layout: usize,
    beta: *const c_void,
    c: u64,
    c_layout: usize,
    d: u64,
    d_layout: usize,
    algo: *const Algo,
    workspace: u64,
    workspace_bytes: usize,
    stream: usize,
) -> u32 {
    let who = "cublasLtMatmul";
    if !known(handle, who) {
        return NOT_INITIALIZED;
    }
    let Some(given) = given(who, operation, [a_layout, b_layout, c_layout, d_layout]) else { return INVALID_VALUE };
    // SAFETY: the library's contract: null, or what a heuristic gave.
    let algo = unsafe { algo.as_ref().copied() };
    // SAFETY: the same: host scalars of the scale type.
    match unsafe { given.product([alpha, beta], [a, b, c, d], algo, (workspace, workspace_bytes)) } {
        Ok(product) => blas::launched(product.queue(stream)),
        Err(status) => status,
    }
}

/// Says in words what is refused for a reason that is this file's, not the documentation's.
fn not_made(what: &str) -> u32 {
    eprintln!("simdevice: cublasLt: {what} is not made of software");
    NOT_SUPPORTED
}
