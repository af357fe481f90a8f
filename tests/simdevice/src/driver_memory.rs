//! The driver's calls about memory: allocation, copies, fills and pools.
//!
//! Host memory is pageable unless the driver made it: what is copied from it is read before the call returns, and a copy
//! to it is done when the call returns, as the driver's page on synchronisation says. Copies of pinned memory are the
//! stream's work like any other.

use crate::config::config;
use crate::fault;
use crate::stream::{self, CAPTURE_UNSUPPORTED, Cost, INVALID_CONTEXT, INVALID_VALUE, SUCCESS};
use crate::{memory, misuse};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

const OUT_OF_MEMORY: u32 = 2;
/// A pool's handle is its device and this.
const POOL: usize = 0x90_0000;

/// What pinned host memory the driver has made: start and length.
static PINNED: Mutex<BTreeMap<usize, usize>> = Mutex::new(BTreeMap::new());

fn pinned(at: usize, len: usize) -> bool {
    let made = PINNED.lock().unwrap_or_else(PoisonError::into_inner);
    made.range(..=at).next_back().is_some_and(|(s, l)| at + len <= s + l)
}

unsafe fn allocate(to: *mut u64, len: usize) -> u32 {
    let Some(device) = stream::current() else { return INVALID_CONTEXT };
    if let Some(error) = fault::sticky() {
        return error;
    }
    if len == 0 || to.is_null() {
        return INVALID_VALUE;
    }
    if fault::on_allocation() {
        return OUT_OF_MEMORY;
    }
    match memory::allocate(device, len) {
        Some(at) => {
            // SAFETY: the caller's.
            unsafe { to.write(at) };
            SUCCESS
        }
        None => OUT_OF_MEMORY,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(to: *mut u64, len: usize) -> u32 {
    // SAFETY: the caller's.
    unsafe { allocate(to, len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(to: *mut u64, len: usize, on: usize) -> u32 {
    match stream::capturing(on) {
        // Memory nodes are not modelled: what is captured must have its memory before.
        Ok(true) => CAPTURE_UNSUPPORTED,
        // SAFETY: the caller's.
        Ok(false) => unsafe { allocate(to, len) },
        Err(error) => error,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFree_v2(at: u64) -> u32 {
    if at == 0 {
        return SUCCESS;
    }
    // Waits for what may still use it.
    let result = stream::synchronize_device();
    if !memory::release(at) {
        misuse!("cuMemFree: 0x{at:x}: {}", memory::words(at));
    }
    memory::free(at);
    result
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(at: u64, on: usize) -> u32 {
    match stream::capturing(on) {
        Ok(true) => return CAPTURE_UNSUPPORTED,
        Ok(false) => {}
        Err(error) => return error,
    }
    if !memory::release(at) {
        misuse!("cuMemFreeAsync: 0x{at:x}: {}", memory::words(at));
    }
    stream::enqueue(on, "cuMemFreeAsync", Cost::default(), Box::new(move || memory::free(at)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32 {
    let Some(device) = stream::current() else { return INVALID_CONTEXT };
    // SAFETY: the caller's.
    unsafe {
        free.write((memory::total(device) - memory::pool(device, |p| p.reserved).min(memory::total(device))) as usize);
        total.write(memory::total(device) as usize);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(to: *mut *mut c_void, len: usize, _flags: c_uint) -> u32 {
    // SAFETY: freed by `cuMemFreeHost`.
    let at = unsafe { libc::calloc(1, len.max(1)) };
    if at.is_null() {
        return OUT_OF_MEMORY;
    }
    PINNED.lock().unwrap_or_else(PoisonError::into_inner).insert(at as usize, len);
    // SAFETY: the caller's.
    unsafe { to.write(at) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(at: *mut c_void) -> u32 {
    if PINNED.lock().unwrap_or_else(PoisonError::into_inner).remove(&(at as usize)).is_none() {
        misuse!("cuMemFreeHost: {at:?} is no pinned memory");
    }
    let result = stream::synchronize_device();
    // SAFETY: made by `cuMemHostAlloc`.
    unsafe { libc::free(at) };
    result
}

fn moved(bytes: usize) -> Cost {
    Cost { bytes: 2 * bytes as u64, ..Cost::default() }
}

/// Bytes of a host over PCIe at some 50 GB/s, as bytes of device memory take that long.
fn over_the_bus(bytes: usize) -> Cost {
    Cost { bytes: bytes as u64 * 60, ..Cost::default() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, len: usize, on: usize) -> u32 {
    if len == 0 {
        return SUCCESS;
    }
    let is_pinned = pinned(from as usize, len);
    if !is_pinned && stream::capturing(on) == Ok(true) {
        return CAPTURE_UNSUPPORTED;
    }
    let source = from as usize;
    // SAFETY: the caller's memory, read before the call returns.
    let copy = (!is_pinned).then(|| unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) }.to_vec());
    let work = move || {
        let from = copy.as_ref().map_or(source as *const u8, |c| c.as_ptr());
        memory::check_write(to, len, "cuMemcpyHtoD");
        // SAFETY: `len` bytes on both sides, just checked on the device's.
        unsafe { std::ptr::copy_nonoverlapping(from, to as *mut u8, len) };
    };
    stream::enqueue(on, "cuMemcpyHtoDAsync", over_the_bus(len), Box::new(work))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, len: usize, on: usize) -> u32 {
    if len == 0 {
        return SUCCESS;
    }
    let is_pinned = pinned(to as usize, len);
    if !is_pinned && stream::capturing(on) == Ok(true) {
        return CAPTURE_UNSUPPORTED;
    }
    let place = to as usize;
    let work = move || {
        memory::check_read(from, len, "cuMemcpyDtoH");
        // SAFETY: the caller's place for `len` bytes, which it keeps until the stream is done.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, place as *mut u8, len) };
    };
    match stream::enqueue(on, "cuMemcpyDtoHAsync", over_the_bus(len), Box::new(work)) {
        SUCCESS if !is_pinned => stream::synchronize(on),
        result => result,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, len: usize, on: usize) -> u32 {
    if len == 0 {
        return SUCCESS;
    }
    let work = move || {
        memory::check_read(from, len, "cuMemcpyDtoD");
        memory::check_write(to, len, "cuMemcpyDtoD");
        // SAFETY: both were just checked.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, len) };
    };
    stream::enqueue(on, "cuMemcpyDtoDAsync", moved(len), Box::new(work))
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemsetD8Async(to: u64, value: u8, len: usize, on: usize) -> u32 {
    if len == 0 {
        return SUCCESS;
    }
    let work = move || {
        memory::check_write(to, len, "cuMemsetD8");
        // SAFETY: just checked.
        unsafe { std::ptr::write_bytes(to as *mut u8, value, len) };
    };
    stream::enqueue(on, "cuMemsetD8Async", moved(len / 2), Box::new(work))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoD_v2(to: u64, from: *const c_void, len: usize) -> u32 {
    // SAFETY: the caller's.
    match unsafe { cuMemcpyHtoDAsync_v2(to, from, len, stream::LEGACY) } {
        SUCCESS => stream::synchronize(stream::LEGACY),
        error => error,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoH_v2(to: *mut c_void, from: u64, len: usize) -> u32 {
    // SAFETY: the caller's.
    match unsafe { cuMemcpyDtoHAsync_v2(to, from, len, stream::LEGACY) } {
        SUCCESS => stream::synchronize(stream::LEGACY),
        error => error,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetDefaultMemPool(to: *mut usize, device: c_int) -> u32 {
    match usize::try_from(device) {
        Ok(d) if d < config().devices.len() => {
            // SAFETY: the caller's.
            unsafe { to.write(POOL + d) };
            SUCCESS
        }
        _ => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetMemPool(to: *mut usize, device: c_int) -> u32 {
    // SAFETY: the caller's.
    unsafe { cuDeviceGetDefaultMemPool(to, device) }
}

fn device_of(pool: usize) -> usize {
    match pool.checked_sub(POOL) {
        Some(d) if d < config().devices.len() => d,
        _ => misuse!("0x{pool:x} is no memory pool"),
    }
}

// By the numbers of `CUmemPool_attribute`.
const RELEASE_THRESHOLD: c_uint = 4;
const RESERVED: c_uint = 5;
const RESERVED_HIGH: c_uint = 6;
const USED: c_uint = 7;
const USED_HIGH: c_uint = 8;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolGetAttribute(pool: usize, attribute: c_uint, to: *mut c_void) -> u32 {
    let pool = memory::pool(device_of(pool), |p| *p);
    let value = match attribute {
        RELEASE_THRESHOLD => pool.release_threshold,
        RESERVED => pool.reserved,
        RESERVED_HIGH => pool.reserved_high,
        USED => pool.used,
        USED_HIGH => pool.used_high,
        other => misuse!("cuMemPoolGetAttribute: attribute {other} is not modelled"),
    };
    // SAFETY: these attributes are 64-bit numbers.
    unsafe { to.cast::<u64>().write_unaligned(value) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemPoolSetAttribute(pool: usize, attribute: c_uint, from: *const c_void) -> u32 {
    // SAFETY: as above.
    let value = unsafe { from.cast::<u64>().read_unaligned() };
    memory::pool(device_of(pool), |p| match attribute {
        RELEASE_THRESHOLD => {
            p.release_threshold = value;
            SUCCESS
        }
        // High-water marks can only be set back, to what is there now.
        RESERVED_HIGH if value == 0 => {
            p.reserved_high = p.reserved;
            SUCCESS
        }
        USED_HIGH if value == 0 => {
            p.used_high = p.used;
            SUCCESS
        }
        _ => INVALID_VALUE,
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemPoolTrimTo(pool: usize, _keep: usize) -> u32 {
    memory::pool(device_of(pool), |p| p.reserved = p.used);
    SUCCESS
}
