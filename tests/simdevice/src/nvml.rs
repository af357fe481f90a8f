//! NVML, as far as `nvml-wrapper` asks it for gauges: devices, names, memory, power, clocks.
//!
//! By NVIDIA's "NVML API Reference Guide" (docs.nvidia.com/deploy/nvml-api). Memory is what the device's pools hand
//! out; power, clocks and utilisation are a model of a board that works when it holds memory and idles otherwise. Not
//! here: what changes a board, processes, MIG, events: their symbols do not resolve, as with an older driver.

#[cfg(test)]
mod tests;

use crate::config::{Model, config};
use crate::fault::{Fault, sticky, wished};
use crate::memory;
use std::ffi::{CStr, c_char, c_int, c_uint};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

const SUCCESS: u32 = 0;
const UNINITIALIZED: u32 = 1;
const INVALID_ARGUMENT: u32 = 2;
const NOT_FOUND: u32 = 6;
const INSUFFICIENT_SIZE: u32 = 7;
const DRIVER_NOT_LOADED: u32 = 9;
const GPU_IS_LOST: u32 = 15;
const ARGUMENT_VERSION_MISMATCH: u32 = 25;

/// The driver that came with CUDA 13.0 Update 1; nvml-wrapper reads the numbers of fields from it.
const DRIVER: &CStr = c"580.82.07";
const LIBRARY: &CStr = c"13.580.82.07";
/// `CUDA_ERROR_UNKNOWN`, which the fault `lost` makes every call of the driver answer.
const LOST: u32 = 999;

/// A board's watts at rest and at work, and its clocks in MHz (multiprocessors, memory), of an H100 SXM.
const IDLE_W: f64 = 70.0;
const BUSY_W: f64 = 420.0;
const LIMIT_W: f64 = 700.0;
const SM_MHZ: c_uint = 1980;
const IDLE_SM_MHZ: c_uint = 345;
const MEMORY_MHZ: c_uint = 2619;

/// `nvmlDevice_t`s are this and the index.
const FIRST: usize = 0xC0DE_0A01 << 32;

/// Inits that were not shut down.
static INITS: AtomicU32 = AtomicU32::new(0);

#[repr(C)]
pub struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

#[repr(C)]
pub struct MemoryV2 {
    version: c_uint,
    total: u64,
    reserved: u64,
    free: u64,
    used: u64,
}

/// `NVML_STRUCT_VERSION(Memory, 2)`.
const MEMORY_V2: c_uint = size_of::<MemoryV2>() as c_uint | 2 << 24;

#[repr(C)]
pub struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlInit_v2() -> u32 {
    if wished(Fault::NoDevice) {
        return DRIVER_NOT_LOADED;
    }
    INITS.fetch_add(1, Ordering::AcqRel);
    started();
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlInitWithFlags(_flags: c_uint) -> u32 {
    // SAFETY: it takes nothing.
    unsafe { nvmlInit_v2() }
}

/// "The library is only shut down when as many calls were made as of `nvmlInit`."
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlShutdown() -> u32 {
    let less = INITS.fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| n.checked_sub(1));
    if less.is_ok() { SUCCESS } else { UNINITIALIZED }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlErrorString(result: u32) -> *const c_char {
    let text = match result {
        SUCCESS => c"The operation was successful",
        UNINITIALIZED => c"Uninitialized",
        INVALID_ARGUMENT => c"Invalid Argument",
        NOT_FOUND => c"Not Found",
        INSUFFICIENT_SIZE => c"Insufficient Size",
        DRIVER_NOT_LOADED => c"Driver Not Loaded",
        GPU_IS_LOST => c"GPU is lost",
        ARGUMENT_VERSION_MISMATCH => c"Argument Version Mismatch",
        _ => c"Unknown Error",
    };
    text.as_ptr()
}

/// When the board began to use energy.
fn started() -> Instant {
    static STARTED: OnceLock<Instant> = OnceLock::new();
    *STARTED.get_or_init(Instant::now)
}

/// Writes what `f` makes of the device's number, where there is such a device.
unsafe fn answer<T>(device: usize, to: *mut T, f: impl FnOnce(usize) -> T) -> u32 {
    if INITS.load(Ordering::Acquire) == 0 {
        return UNINITIALIZED;
    }
    let Some(i) = device.checked_sub(FIRST).filter(|i| *i < config().devices.len()) else { return INVALID_ARGUMENT };
    if sticky() == Some(LOST) {
        return GPU_IS_LOST;
    }
    if to.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the library's contract: room for one.
    unsafe { to.write(f(i)) };
    SUCCESS
}

/// Writes `text` and its end.
unsafe fn say(text: &str, to: *mut c_char, room: c_uint) -> u32 {
    if to.is_null() {
        return INVALID_ARGUMENT;
    }
    if text.len() >= room as usize {
        return INSUFFICIENT_SIZE;
    }
    // SAFETY: the library's contract, and it fits.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr(), to.cast(), text.len());
        to.add(text.len()).write(0);
    }
    SUCCESS
}

/// As [`answer`] for a text.
unsafe fn tell(device: usize, to: *mut c_char, room: c_uint, f: impl FnOnce(usize) -> String) -> u32 {
    let mut text = String::new();
    // SAFETY: a place of its own; and the caller's.
    match unsafe { answer(device, &raw mut text, f) } {
        SUCCESS => unsafe { say(&text, to, room) },
        error => error,
    }
}

/// Writes the handle of the device that `found` says.
unsafe fn find(to: *mut usize, found: impl FnOnce(usize) -> Option<usize>, none: u32) -> u32 {
    if INITS.load(Ordering::Acquire) == 0 {
        return UNINITIALIZED;
    }
    match found(config().devices.len()) {
        _ if to.is_null() => INVALID_ARGUMENT,
        None => none,
        Some(i) => {
            // SAFETY: the library's contract.
            unsafe { to.write(FIRST + i) };
            SUCCESS
        }
    }
}

/// As the driver's `cuDeviceGetUuid` has it.
fn uuid(i: usize) -> String {
    let byte = |at: usize| if at == 15 { i as u8 + 1 } else { b"simulated device"[at] };
    let hex = |from: usize, to: usize| (from..to).map(|at| format!("{:02x}", byte(at))).collect::<String>();
    format!("GPU-{}-{}-{}-{}-{}", hex(0, 4), hex(4, 6), hex(6, 8), hex(8, 10), hex(10, 16))
}

/// Domain, bus and device: NVML writes the domain with eight digits.
fn bus_id(i: usize) -> String {
    format!("00000000:{:02X}:00.0", i + 1)
}

fn busy(i: usize) -> bool {
    memory::used(i) > 0
}

fn watts(i: usize) -> f64 {
    if busy(i) { BUSY_W } else { IDLE_W }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, room: c_uint) -> u32 {
    // SAFETY: the library's contract.
    unsafe { say(&DRIVER.to_string_lossy(), to, room) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetNVMLVersion(to: *mut c_char, room: c_uint) -> u32 {
    // SAFETY: the library's contract.
    unsafe { say(&LIBRARY.to_string_lossy(), to, room) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(version: *mut c_int) -> u32 {
    if version.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the library's contract.
    unsafe { version.write(13_000) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(count: *mut c_uint) -> u32 {
    // SAFETY: the library's contract. Counted as of the first device, which there always is.
    unsafe { answer(FIRST, count, |_| config().devices.len() as c_uint) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, to: *mut usize) -> u32 {
    // SAFETY: the library's contract.
    unsafe { find(to, |n| Some(index as usize).filter(|i| *i < n), INVALID_ARGUMENT) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(text: *const c_char, to: *mut usize) -> u32 {
    if text.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the library's contract: a text that ends.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    // SAFETY: the library's contract.
    unsafe { find(to, |n| (0..n).find(|i| uuid(*i).eq_ignore_ascii_case(&text)), NOT_FOUND) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByPciBusId_v2(text: *const c_char, to: *mut usize) -> u32 {
    if text.is_null() {
        return INVALID_ARGUMENT;
    }
    // SAFETY: the library's contract: a text that ends.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    // CUDA writes the domain with four digits.
    let is = |i: usize| text.eq_ignore_ascii_case(&bus_id(i)) || text.eq_ignore_ascii_case(&bus_id(i)[4..]);
    // SAFETY: the library's contract.
    unsafe { find(to, |n| (0..n).find(|i| is(*i)), NOT_FOUND) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetIndex(device: usize, index: *mut c_uint) -> u32 {
    // SAFETY: the library's contract.
    unsafe { answer(device, index, |i| i as c_uint) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(device: usize, to: *mut c_char, room: c_uint) -> u32 {
    // SAFETY: the library's contract.
    unsafe { tell(device, to, room, |i| config().devices[i].name.to_owned()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(device: usize, to: *mut c_char, room: c_uint) -> u32 {
    // SAFETY: the library's contract.
    unsafe { tell(device, to, room, uuid) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: usize,
    major: *mut c_int,
    minor: *mut c_int,
) -> u32 {
    let of = |i: usize| -> &Model { &config().devices[i] };
    // SAFETY: the library's contract.
    unsafe { answer(device, major, |i| of(i).capability.0).max(answer(device, minor, |i| of(i).capability.1)) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo(device: usize, to: *mut Memory) -> u32 {
    let info = |i| {
        let (total, used) = (memory::total(i), memory::used(i));
        Memory { total, free: total - used, used }
    };
    // SAFETY: the library's contract.
    unsafe { answer(device, to, info) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: usize, to: *mut MemoryV2) -> u32 {
    // SAFETY: the library's contract: the caller has written the version.
    if to.is_null() || unsafe { (*to).version } != MEMORY_V2 {
        return if to.is_null() { INVALID_ARGUMENT } else { ARGUMENT_VERSION_MISMATCH };
    }
    let info = |i| {
        let (total, used) = (memory::total(i), memory::used(i));
        MemoryV2 { version: MEMORY_V2, total, reserved: 0, free: total - used, used }
    };
    // SAFETY: the library's contract.
    unsafe { answer(device, to, info) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(device: usize, to: *mut Utilization) -> u32 {
    let of = |i| if busy(i) { Utilization { gpu: 93, memory: 41 } } else { Utilization { gpu: 0, memory: 0 } };
    // SAFETY: the library's contract.
    unsafe { answer(device, to, of) }
}

/// Milliwatts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerUsage(device: usize, to: *mut c_uint) -> u32 {
    // SAFETY: the library's contract.
    unsafe { answer(device, to, |i| (watts(i) * 1e3) as c_uint) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetEnforcedPowerLimit(device: usize, to: *mut c_uint) -> u32 {
    // SAFETY: the library's contract.
    unsafe { answer(device, to, |_| (LIMIT_W * 1e3) as c_uint) }
}

/// Millijoules since the driver was loaded: never less than at the last call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEnergyConsumption(device: usize, to: *mut u64) -> u32 {
    // SAFETY: the library's contract.
    unsafe { answer(device, to, |_| (started().elapsed().as_secs_f64() * BUSY_W * 1e3) as u64) }
}

/// Graphics and multiprocessors have one clock, and there is one of the memory; that of video is as the first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetClockInfo(device: usize, which: u32, to: *mut c_uint) -> u32 {
    let clock = |i| match which {
        2 => MEMORY_MHZ,
        _ if busy(i) => SM_MHZ,
        _ => IDLE_SM_MHZ,
    };
    // SAFETY: the library's contract.
    if which > 3 { INVALID_ARGUMENT } else { unsafe { answer(device, to, clock) } }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxClockInfo(device: usize, which: u32, to: *mut c_uint) -> u32 {
    // SAFETY: the library's contract.
    if which > 3 {
        INVALID_ARGUMENT
    } else {
        unsafe { answer(device, to, |_| if which == 2 { MEMORY_MHZ } else { SM_MHZ }) }
    }
}

/// Celsius; there is one sensor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperature(device: usize, sensor: u32, to: *mut c_uint) -> u32 {
    // SAFETY: the library's contract.
    if sensor > 0 { INVALID_ARGUMENT } else { unsafe { answer(device, to, |i| if busy(i) { 61 } else { 34 }) } }
}
