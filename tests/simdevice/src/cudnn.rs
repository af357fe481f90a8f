//! cuDNN: handles, algorithms, and convolution forward, as candle calls them through cudarc.
//!
//! By the cuDNN 9 backend documentation (docs.nvidia.com/deeplearning/cudnn/backend): `cudnn-ops-library`
//! (descriptions), `cudnn-cnn-library` (convolutions). Descriptions are in `cudnn/describe.rs`; what a convolution
//! refuses and computes is in `cudnn/conv.rs`. Not here: the graph API, and everything that candle leaves to its own
//! kernels.

#![allow(clippy::too_many_arguments)]

mod array;
mod conv;
mod describe;
#[cfg(test)]
mod tests;

use crate::handles::Handles;
use crate::numbers::Kind;
use array::Array;
use conv::{Call, needed};
use std::ffi::{CStr, c_char, c_int, c_void};

pub const SUCCESS: u32 = 0;
pub const NOT_INITIALIZED: u32 = 1001;
pub const BAD_PARAM: u32 = 2000;
pub const NOT_SUPPORTED: u32 = 3000;
pub const EXECUTION_FAILED: u32 = 5000;

/// `cudnnGetVersion` of a cuDNN for CUDA 13.
const VERSION: usize = 91_300;
/// A `cudnnConvolutionDescriptor_t`.
#[derive(Debug, Clone, Default)]
pub struct Convolution {
    pub pads: Vec<usize>,
    pub strides: Vec<usize>,
    pub dilations: Vec<usize>,
    /// `CUDNN_CONVOLUTION`, which turns the filter round; otherwise `CUDNN_CROSS_CORRELATION`.
    pub turned: bool,
    pub compute: Option<Kind>,
    pub math: u32,
    pub groups: usize,
}

static HANDLES: Handles<usize> = Handles::new("cudnnHandle_t", 0xCDAA);
static TENSORS: Handles<Array> = Handles::new("cudnnTensorDescriptor_t", 0xCD7E);
static FILTERS: Handles<Array> = Handles::new("cudnnFilterDescriptor_t", 0xCDF1);
static CONVOLUTIONS: Handles<Convolution> = Handles::new("cudnnConvolutionDescriptor_t", 0xCDC0);

unsafe fn make<T>(to: *mut usize, table: &Handles<T>, value: T) -> u32 {
    if to.is_null() {
        return BAD_PARAM;
    }
    // SAFETY: the library's contract.
    unsafe { to.write(table.make(value)) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetVersion() -> usize {
    VERSION
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetCudartVersion() -> usize {
    13_000
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetErrorString(status: u32) -> *const c_char {
    let text: &CStr = match status {
        SUCCESS => c"CUDNN_STATUS_SUCCESS",
        NOT_INITIALIZED => c"CUDNN_STATUS_NOT_INITIALIZED",
        BAD_PARAM => c"CUDNN_STATUS_BAD_PARAM",
        NOT_SUPPORTED => c"CUDNN_STATUS_NOT_SUPPORTED",
        EXECUTION_FAILED => c"CUDNN_STATUS_EXECUTION_FAILED",
        _ => c"CUDNN_UNKNOWN_STATUS",
    };
    text.as_ptr()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnCreate(to: *mut usize) -> u32 {
    // SAFETY: the library's contract.
    unsafe { make(to, &HANDLES, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnDestroy(handle: usize) -> u32 {
    HANDLES.destroy(handle, "cudnnDestroy").map_or(NOT_INITIALIZED, |_| SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnSetStream(handle: usize, stream: usize) -> u32 {
    HANDLES.with(handle, "cudnnSetStream", |s| *s = stream).map_or(BAD_PARAM, |()| SUCCESS)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetStream(handle: usize, to: *mut usize) -> u32 {
    match HANDLES.get(handle, "cudnnGetStream") {
        Some(stream) if !to.is_null() => {
            // SAFETY: the library's contract.
            unsafe { to.write(stream) };
            SUCCESS
        }
        _ => BAD_PARAM,
    }
}

/// `cudnnConvolutionFwdAlgoPerf_t`.
#[repr(C)]
pub struct Found {
    algo: u32,
    status: u32,
    time: f32,
    memory: usize,
    determinism: u32,
    math: u32,
    reserved: [c_int; 3],
}

/// The call's descriptions; `None` where one is null.
fn given(who: &'static str, handle: usize, [x, w, conv, y]: [usize; 4]) -> Option<Call> {
    let stream = HANDLES.get(handle, who)?;
    let (x, w, y) = (TENSORS.get(x, who)?, FILTERS.get(w, who)?, TENSORS.get(y, who)?);
    Some(Call { stream, x, w, conv: CONVOLUTIONS.get(conv, who)?, y })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetConvolutionForwardAlgorithm_v7(
    handle: usize,
    x: usize,
    w: usize,
    conv: usize,
    y: usize,
    wanted: c_int,
    count: *mut c_int,
    results: *mut Found,
) -> u32 {
    let Some(call) = given("cudnnGetConvolutionForwardAlgorithm_v7", handle, [x, w, conv, y]) else { return BAD_PARAM };
    if wanted < 1 || count.is_null() || results.is_null() {
        return BAD_PARAM;
    }
    if let Err(status) = call.check() {
        return status;
    }
    let found = conv::RANKED.iter().take(wanted as usize);
    let n = found.len();
    for (i, algo) in found.enumerate() {
        let (status, memory) = match needed(&call, *algo) {
            Ok(bytes) => (SUCCESS, bytes),
            Err(status) => (status, 0),
        };
        let result = Found {
            algo: *algo,
            status,
            time: if status == SUCCESS { 1.0 + i as f32 } else { -1.0 },
            memory,
            determinism: 1,
            math: call.conv.math,
            reserved: [0; 3],
        };
        // SAFETY: the library's contract: room for as many as are wanted.
        unsafe { results.add(i).write(result) };
    }
    // SAFETY: as above.
    unsafe { count.write(n as c_int) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnGetConvolutionForwardWorkspaceSize(
    handle: usize,
    x: usize,
    w: usize,
    conv: usize,
    y: usize,
    algo: u32,
    bytes: *mut usize,
) -> u32 {
    let Some(call) = given("cudnnGetConvolutionForwardWorkspaceSize", handle, [x, w, conv, y]) else {
        return BAD_PARAM;
    };
    if bytes.is_null() {
        return BAD_PARAM;
    }
    match call.check().and_then(|_| needed(&call, algo)) {
        Ok(n) => {
            // SAFETY: the library's contract.
            unsafe { bytes.write(n) };
            SUCCESS
        }
        Err(status) => status,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cudnnConvolutionForward(
    handle: usize,
    alpha: *const c_void,
    x_desc: usize,
    x: u64,
    w_desc: usize,
    w: u64,
    conv: usize,
    algo: u32,
    workspace: u64,
    bytes: usize,
    beta: *const c_void,
    y_desc: usize,
    y: u64,
) -> u32 {
    let Some(call) = given("cudnnConvolutionForward", handle, [x_desc, w_desc, conv, y_desc]) else { return BAD_PARAM };
    // SAFETY: the library's contract.
    unsafe { call.forward([alpha, beta], [x, w, y], algo, (workspace, bytes)) }
}
