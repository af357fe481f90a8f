//! The driver's calls about memory: allocation, copies, fills and pools.
//!
//! Host memory is pageable unless the driver made it: what is copied from it is read before the call returns, and a copy
//! to it is done when the call returns, as the driver's page on synchronisation says. Copies of pinned memory are the
//! stream's work like any other. In a capture a copy keeps the host's address and is made when the graph runs, by when
//! pageable memory is another's: that ends the run.

use crate::config::config;
use crate::fault;
use crate::stream::{self, CopyNode, Cost, INVALID_CONTEXT, INVALID_VALUE, Kind, OUT_OF_MEMORY, Place, SUCCESS};
use crate::{memory, misuse};
use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::{Mutex, PoisonError};

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
    if let Some(error) = stream::spoilt_by() {
        return error;
    }
    // SAFETY: the caller's.
    unsafe { allocate(to, len) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(to: *mut u64, len: usize, on: usize) -> u32 {
    match stream::capturing(on) {
        Ok(true) if len == 0 || to.is_null() => INVALID_VALUE,
        Ok(true) => match fault::sticky().map_or_else(|| stream::allocate_in_capture(on, len), Err) {
            Ok(at) => {
                // SAFETY: the caller's.
                unsafe { to.write(at) };
                SUCCESS
            }
            Err(error) => error,
        },
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
    if let Some(error) = stream::spoilt_by() {
        return error;
    }
    // Waits for what may still use it.
    let result = stream::synchronize_device();
    if memory::is_aside(at) || stream::outlived(at) {
        misuse!("cuMemFree of a graph's memory is not modelled: cuMemFreeAsync is");
    }
    if !memory::release(at) {
        misuse!("cuMemFree: 0x{at:x}: {}", memory::words(at));
    }
    memory::free(at);
    result
}

#[unsafe(no_mangle)]
pub extern "C" fn cuMemFreeAsync(at: u64, on: usize) -> u32 {
    match stream::capturing(on) {
        Ok(true) => return stream::free_in_capture(on, at),
        Ok(false) => {}
        Err(error) => return error,
    }
    // A note of the driver's in the stream's order.
    let free = |work| stream::enqueue_as(on, Kind::Free { at }, "cuMemFreeAsync", None, work);
    if stream::outlived(at) {
        return free(Box::new(move || memory::unmake(at)));
    }
    if memory::is_aside(at) {
        misuse!("cuMemFreeAsync: 0x{at:x} is a graph's, which frees it itself or has not been launched");
    }
    if !memory::release(at) {
        misuse!("cuMemFreeAsync: 0x{at:x}: {}", memory::words(at));
    }
    free(Box::new(move || memory::free(at)))
}

/// What graphs have of a device and do not use, which here is all: none runs while the host asks.
#[unsafe(no_mangle)]
pub extern "C" fn cuDeviceGraphMemTrim(device: c_int) -> u32 {
    match usize::try_from(device) {
        Ok(d) if d < config().devices.len() => {
            memory::trim_graphs(d);
            SUCCESS
        }
        _ => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32 {
    let Some(device) = stream::current() else { return INVALID_CONTEXT };
    // SAFETY: the caller's.
    unsafe {
        let taken = memory::pool(device, |p| p.reserved + p.graphs);
        free.write((memory::total(device) - taken.min(memory::total(device))) as usize);
        total.write(memory::total(device) as usize);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemHostAlloc(to: *mut *mut c_void, len: usize, _flags: c_uint) -> u32 {
    if let Some(error) = stream::spoilt_by() {
        return error;
    }
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
    let (is_pinned, is_captured) = (pinned(from as usize, len), stream::capturing(on) == Ok(true));
    let source = from as usize;
    let at_once = !is_pinned && !is_captured;
    // SAFETY: the caller's memory, read before the call returns.
    let copy = at_once.then(|| unsafe { std::slice::from_raw_parts(from.cast::<u8>(), len) }.to_vec());
    let work = move || {
        if is_captured {
            still_there(source, len, "reads");
        }
        let from = copy.as_ref().map_or(source as *const u8, |c| c.as_ptr());
        memory::check_write(to, len, "cuMemcpyHtoD");
        // SAFETY: `len` bytes on both sides, just checked on the device's.
        unsafe { std::ptr::copy_nonoverlapping(from, to as *mut u8, len) };
    };
    let kind = Kind::Copy(CopyNode { bytes: len, from: Place::Host(source), to: Place::Device(to) });
    stream::enqueue_as(on, kind, "cuMemcpyHtoDAsync", Some(over_the_bus(len)), Box::new(work))
}

/// A graph copies from or to the host's memory: only what the driver made, and has not freed since, is known to be there.
fn still_there(at: usize, len: usize, does: &str) {
    if !pinned(at, len) {
        misuse!(
            "a graph {does} {len} bytes at 0x{at:x} of the host's memory when it is launched, as was captured: it is \
             pageable, and may be another's by now"
        );
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, len: usize, on: usize) -> u32 {
    if len == 0 {
        return SUCCESS;
    }
    let (is_pinned, is_captured) = (pinned(to as usize, len), stream::capturing(on) == Ok(true));
    let place = to as usize;
    let work = move || {
        if is_captured {
            still_there(place, len, "writes");
        }
        memory::check_read(from, len, "cuMemcpyDtoH");
        // SAFETY: the caller's place for `len` bytes, which it keeps until the stream is done.
        unsafe { std::ptr::copy_nonoverlapping(from as *const u8, place as *mut u8, len) };
    };
    let kind = Kind::Copy(CopyNode { bytes: len, from: Place::Device(from), to: Place::Host(place) });
    match stream::enqueue_as(on, kind, "cuMemcpyDtoHAsync", Some(over_the_bus(len)), Box::new(work)) {
        SUCCESS if !is_pinned && !is_captured => stream::synchronize(on),
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
    let kind = Kind::Copy(CopyNode { bytes: len, from: Place::Device(from), to: Place::Device(to) });
    stream::enqueue_as(on, kind, "cuMemcpyDtoDAsync", Some(moved(len)), Box::new(work))
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
    stream::enqueue_as(on, Kind::Set, "cuMemsetD8Async", Some(moved(len / 2)), Box::new(work))
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
