//! The driver's calls: initialisation, devices, contexts, modules, launches, streams and events. Memory's are in
//! `driver_memory.rs`, those of graphs in `driver_graph.rs`. What each does is elsewhere; here stands only what a call looks like and what it answers.

use crate::config::config;
use crate::fault::{self, Fault};
use crate::module::{Function, Module};
use crate::stream::{self, INVALID_HANDLE, INVALID_VALUE, SUCCESS};
use crate::{launch, misuse, module};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::atomic::Ordering;

const NO_DEVICE: u32 = 100;
const INVALID_DEVICE: u32 = 101;
const INVALID_PTX: u32 = 218;
const NOT_FOUND: u32 = 500;
/// What a driver answers to a program that was built for a newer one.
const SYSTEM_DRIVER_MISMATCH: u32 = 803;

/// Where a result goes; a call with a null one is refused.
pub(crate) unsafe fn put<T>(at: *mut T, value: T) -> u32 {
    if at.is_null() {
        return INVALID_VALUE;
    }
    // SAFETY: the caller's place for a result.
    unsafe { at.write(value) };
    SUCCESS
}

/// `Ok` to `at`, the error as the answer.
pub(crate) unsafe fn answer<T>(at: *mut T, result: Result<T, u32>) -> u32 {
    match result {
        // SAFETY: as `put`.
        Ok(value) => unsafe { put(at, value) },
        Err(error) => error,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuInit(_flags: c_uint) -> u32 {
    if fault::wished(Fault::NoDevice) {
        return NO_DEVICE;
    }
    if fault::wished(Fault::DriverTooOld) {
        return SYSTEM_DRIVER_MISMATCH;
    }
    launch::watch_guard_pages();
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> u32 {
    // SAFETY: the caller's.
    unsafe { put(version, 13_000) }
}

/// Name and description of an error, each with its zero.
fn described(error: u32) -> Option<(&'static CStr, &'static CStr)> {
    Some(match error {
        0 => (c"CUDA_SUCCESS", c"no error"),
        1 => (c"CUDA_ERROR_INVALID_VALUE", c"invalid argument"),
        2 => (c"CUDA_ERROR_OUT_OF_MEMORY", c"out of memory"),
        3 => (c"CUDA_ERROR_NOT_INITIALIZED", c"initialization error"),
        100 => (c"CUDA_ERROR_NO_DEVICE", c"no CUDA-capable device is detected"),
        101 => (c"CUDA_ERROR_INVALID_DEVICE", c"invalid device ordinal"),
        201 => (c"CUDA_ERROR_INVALID_CONTEXT", c"invalid device context"),
        214 => (c"CUDA_ERROR_ECC_UNCORRECTABLE", c"uncorrectable ECC error encountered"),
        218 => (c"CUDA_ERROR_INVALID_PTX", c"a PTX JIT compilation failed"),
        400 => (c"CUDA_ERROR_INVALID_HANDLE", c"invalid resource handle"),
        500 => (c"CUDA_ERROR_NOT_FOUND", c"named symbol not found"),
        600 => (c"CUDA_ERROR_NOT_READY", c"device not ready"),
        700 => (c"CUDA_ERROR_ILLEGAL_ADDRESS", c"an illegal memory access was encountered"),
        719 => (c"CUDA_ERROR_LAUNCH_FAILED", c"unspecified launch failure"),
        803 => {
            (c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", c"system has unsupported display driver / cuda driver combination")
        }
        401 => (c"CUDA_ERROR_ILLEGAL_STATE", c"the operation cannot be performed in the present state"),
        900 => (c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", c"operation not permitted when stream is capturing"),
        901 => (c"CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", c"operation failed due to a previous error during capture"),
        905 => (c"CUDA_ERROR_STREAM_CAPTURE_ISOLATION", c"dependency created on uncaptured work in another stream"),
        906 => (
            c"CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
            c"operation would make the legacy stream depend on a capturing blocking stream",
        ),
        908 => (
            c"CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD",
            c"attempt to terminate a thread-local capture sequence from another thread",
        ),
        999 => (c"CUDA_ERROR_UNKNOWN", c"unknown error"),
        _ => return None,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: u32, name: *mut *const c_char) -> u32 {
    // SAFETY: the caller's.
    unsafe { answer(name, described(error).map(|d| d.0.as_ptr()).ok_or(INVALID_VALUE)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: u32, text: *mut *const c_char) -> u32 {
    // SAFETY: the caller's.
    unsafe { answer(text, described(error).map(|d| d.1.as_ptr()).ok_or(INVALID_VALUE)) }
}

fn device(ordinal: c_int) -> Result<usize, u32> {
    usize::try_from(ordinal).ok().filter(|d| *d < config().devices.len()).ok_or(INVALID_DEVICE)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> u32 {
    // SAFETY: the caller's.
    unsafe { put(count, config().devices.len() as c_int) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(to: *mut c_int, ordinal: c_int) -> u32 {
    // SAFETY: the caller's.
    unsafe { answer(to, device(ordinal).map(|_| ordinal)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, len: c_int, of: c_int) -> u32 {
    let Ok(of) = device(of) else { return INVALID_DEVICE };
    let text = config().devices[of].name.as_bytes();
    let n = text.len().min((len.max(1) - 1) as usize);
    // SAFETY: the caller has room for `len` bytes.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), n);
        *name.add(n) = 0;
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], of: c_int) -> u32 {
    let id = |d: usize| std::array::from_fn(|i| if i == 15 { d as u8 + 1 } else { b"simulated device"[i] });
    // SAFETY: the caller's.
    unsafe { answer(uuid, device(of).map(id)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, of: c_int) -> u32 {
    // SAFETY: the caller's.
    unsafe { answer(bytes, device(of).map(|d| crate::memory::total(d) as usize)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, of: c_int) -> u32 {
    let Ok(of) = device(of) else { return INVALID_DEVICE };
    let model = config().devices[of];
    // By the numbers of `CUdevice_attribute`.
    let found = match attribute {
        1 => 1024,
        2 | 3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65_535,
        8 => launch::SHARED as c_int,
        10 => 32,
        16 => model.multiprocessors,
        33 => 0,
        34 => of as c_int + 1,
        39 => 2048,
        41 => 1,
        50 => 0,
        75 => model.capability.0,
        76 => model.capability.1,
        81 => 228 << 10,
        82 => 65_536,
        // Opt-in shared memory of a block.
        97 => 227 << 10,
        // Memory pools.
        115 => 1,
        other => misuse!("cuDeviceGetAttribute: attribute {other} is not modelled"),
    };
    // SAFETY: the caller's.
    unsafe { put(value, found) }
}

/// A context's handle is its device and this.
const CONTEXT: usize = 0xc0_0000;

fn device_of(context: usize) -> Option<usize> {
    context.checked_sub(CONTEXT).filter(|d| *d < config().devices.len())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, of: c_int) -> u32 {
    // SAFETY: the caller's.
    unsafe { answer(context, fault::sticky().map_or_else(|| device(of).map(|d| CONTEXT + d), Err)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuDevicePrimaryCtxRelease_v2(of: c_int) -> u32 {
    if device(of).is_ok() { SUCCESS } else { INVALID_DEVICE }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetCurrent(context: usize) -> u32 {
    if context != 0 && device_of(context).is_none() {
        misuse!("0x{context:x} is no context");
    }
    stream::set_current(device_of(context));
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetCurrent(context: *mut usize) -> u32 {
    // SAFETY: the caller's.
    unsafe { put(context, stream::current().map_or(0, |d| CONTEXT + d)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSynchronize() -> u32 {
    stream::synchronize_device()
}

#[unsafe(no_mangle)]
pub extern "C" fn cuCtxSetFlags(_: c_uint) -> u32 {
    if stream::current().is_some() { SUCCESS } else { stream::INVALID_CONTEXT }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(to: *mut *mut Module, image: *const c_void) -> u32 {
    if stream::current().is_none() {
        return stream::INVALID_CONTEXT;
    }
    if let Some(error) = stream::spoilt_by() {
        return error;
    }
    // SAFETY: PTX is a C string.
    let text = unsafe { CStr::from_ptr(image.cast()) }.to_string_lossy();
    // SAFETY: the caller's.
    unsafe { answer(to, module::load(&text).map(|m| Box::into_raw(Box::new(m))).ok_or(INVALID_PTX)) }
}

/// Modules stay: functions of theirs may still be queued.
#[unsafe(no_mangle)]
pub extern "C" fn cuModuleUnload(_: *mut Module) -> u32 {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(to: *mut usize, of: *mut Module, name: *const c_char) -> u32 {
    // SAFETY: made by `cuModuleLoadData`; a C string.
    let (module, name) = unsafe { (&*of, CStr::from_ptr(name).to_string_lossy()) };
    // SAFETY: the caller's.
    unsafe { answer(to, module.function(&name).ok_or(NOT_FOUND)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncSetAttribute(of: *mut Function, attribute: c_uint, value: c_int) -> u32 {
    const MAX_DYNAMIC_SHARED: c_uint = 8;
    if attribute != MAX_DYNAMIC_SHARED || !(0..=227 << 10).contains(&value) {
        return INVALID_VALUE;
    }
    // SAFETY: made by `cuModuleGetFunction`.
    unsafe { &*of }.shared.store(value as u32, Ordering::Relaxed);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuLaunchKernel(
    of: *mut Function,
    gx: c_uint,
    gy: c_uint,
    gz: c_uint,
    bx: c_uint,
    by: c_uint,
    bz: c_uint,
    shared: c_uint,
    on: usize,
    args: *const *const c_void,
    extra: *const c_void,
) -> u32 {
    if of.is_null() {
        return INVALID_HANDLE;
    }
    if !extra.is_null() {
        misuse!("cuLaunchKernel: arguments in one buffer are not modelled");
    }
    // SAFETY: made by `cuModuleGetFunction`.
    let function = unsafe { &*of };
    let allowed = function.shared.load(Ordering::Relaxed);
    launch::launch(function.kernel, [gx, gy, gz], [bx, by, bz], shared, allowed, on, args)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(to: *mut usize, flags: c_uint) -> u32 {
    // SAFETY: the caller's.
    unsafe { answer(to, fault::sticky().map_or_else(|| stream::create(flags & 1 != 0), Err)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(to: *mut usize, flags: c_uint, _priority: c_int) -> u32 {
    // SAFETY: the caller's.
    unsafe { cuStreamCreate(to, flags) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamDestroy_v2(of: usize) -> u32 {
    stream::destroy(of)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamSynchronize(of: usize) -> u32 {
    stream::synchronize(of)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamWaitEvent(of: usize, event: usize, _flags: c_uint) -> u32 {
    stream::wait_event(of, event)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamIsCapturing(of: usize, status: *mut c_uint) -> u32 {
    // SAFETY: the caller's.
    unsafe { answer(status, stream::capture_status(of)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuStreamBeginCapture_v2(of: usize, mode: c_uint) -> u32 {
    stream::begin_capture(of, mode)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(to: *mut usize, flags: c_uint) -> u32 {
    const DISABLE_TIMING: c_uint = 2;
    // SAFETY: the caller's.
    unsafe { answer(to, stream::create_event(flags & DISABLE_TIMING == 0)) }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventDestroy_v2(event: usize) -> u32 {
    stream::destroy_event(event)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventRecord(event: usize, on: usize) -> u32 {
    stream::record(event, on)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventQuery(event: usize) -> u32 {
    stream::query_event(event)
}

#[unsafe(no_mangle)]
pub extern "C" fn cuEventSynchronize(event: usize) -> u32 {
    stream::synchronize_event(event)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(ms: *mut f32, from: usize, to: usize) -> u32 {
    // SAFETY: the caller's.
    unsafe { answer(ms, stream::elapsed_ms(from, to)) }
}
