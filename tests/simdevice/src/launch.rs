//! Launching a kernel: its arguments are copied and checked against its signature, its pointers against what is allocated.
//!
//! What a launch cannot know is how many arguments it was given: the driver takes an array of pointers without a length.
//! Too few show as a pointer that nothing is mapped at, a value of another size as one whose address is not aligned for
//! the parameter, two that were swapped as a pointer that is none or a length that runs over an allocation's end.

use crate::config::{Kernels, config};
use crate::kernels::{Kernel, Launch, Param};
use crate::stream::{self, Cost};
use crate::{memory, misuse};
use std::ffi::c_void;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// Threads of a block, and blocks of a grid in y and z, that a device takes.
const MOST_THREADS: u64 = 1024;
const MOST_YZ: u32 = 65_535;
/// Dynamic shared memory that needs no leave.
pub const SHARED: u32 = 48 << 10;

static RUNNING: AtomicPtr<u8> = AtomicPtr::new(std::ptr::null_mut());
static RUNNING_LEN: AtomicUsize = AtomicUsize::new(0);

/// What the device's thread carries out from now on.
pub fn note_running(who: &'static str) {
    RUNNING.store(who.as_ptr().cast_mut(), Ordering::Release);
    RUNNING_LEN.store(who.len(), Ordering::Release);
}

fn running() -> &'static str {
    let at = RUNNING.load(Ordering::Acquire);
    if at.is_null() {
        return "nothing";
    }
    // SAFETY: a static string's parts; the device's thread alone changes them, and faults are its own.
    let bytes = unsafe { std::slice::from_raw_parts(at, RUNNING_LEN.load(Ordering::Acquire)) };
    std::str::from_utf8(bytes).unwrap_or("?")
}

/// A kernel touched what it may not.
pub fn caught(at: u64, len: u64, does: &str) -> ! {
    misuse!("{} {does} {len} bytes at 0x{at:x}: {}", running(), memory::words(at))
}

/// Tells a kernel's access to a guard page, in objects without checks of their own.
pub fn watch_guard_pages() {
    extern "C" fn on_fault(_: i32, info: *mut libc::siginfo_t, _: *mut c_void) {
        // SAFETY: the kernel gives a valid description of the fault.
        let at = unsafe { (*info).si_addr() } as u64;
        let (from, to) = memory::range();
        if (from..to).contains(&at) {
            caught(at, 1, "touches");
        }
        // Not ours: the fault comes again, and ends the process as it would have.
        // SAFETY: restores the default.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
    }
    if config().kernels == Kernels::Sanitized {
        return;
    }
    // SAFETY: a handler with the signature that SA_SIGINFO asks for.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = on_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_NODEFER;
        libc::sigaction(libc::SIGSEGV, &raw const action, std::ptr::null_mut());
    }
}

/// A parameter's value, aligned as any may ask for.
#[repr(align(16))]
#[derive(Clone, Copy)]
struct Slot([u8; SLOT]);
const SLOT: usize = 256;

/// Whether `len` bytes at `at` can be read by this process.
fn readable(at: *const c_void, len: usize) -> bool {
    let mut copy = [0u8; SLOT];
    let (local, remote) = (
        libc::iovec { iov_base: copy.as_mut_ptr().cast(), iov_len: len.min(SLOT) },
        libc::iovec { iov_base: at.cast_mut(), iov_len: len.min(SLOT) },
    );
    // SAFETY: reads this process's own memory, and says so where there is none.
    let read = unsafe { libc::process_vm_readv(libc::getpid(), &raw const local, 1, &raw const remote, 1, 0) };
    read == len.min(SLOT) as isize
}

/// The values of a kernel's arguments, from where the caller has them.
fn values(kernel: &Kernel, args: *const *const c_void) -> Vec<Slot> {
    let mut slots = Vec::with_capacity(kernel.params.len());
    for (i, param) in kernel.params.iter().enumerate() {
        let Param { size, align, .. } = *param;
        // SAFETY: the driver reads as many pointers as the kernel has parameters.
        let at = unsafe { *args.add(i) };
        let nth = format_args!("argument {} of {}", i + 1, kernel.name).to_string();
        if !(at as usize).is_multiple_of(align as usize) {
            misuse!(
                "{nth} has {size} bytes and lies at {at:?}, which is not aligned to {align}: a value of another size?"
            );
        }
        // A system call an argument would be most of a launch: nothing that the host has lies in the lowest pages.
        let plausible = at as usize > 1 << 16 && (at as usize) < 1 << 47;
        if !plausible || (config().kernels == Kernels::Checked && !readable(at, size as usize)) {
            misuse!("{nth} is not there (the launch gives {at:?}): too few arguments?");
        }
        let mut slot = Slot([0; SLOT]);
        // SAFETY: readable, and no parameter is larger than a slot.
        unsafe { std::ptr::copy_nonoverlapping(at.cast::<u8>(), slot.0.as_mut_ptr(), (size as usize).min(SLOT)) };
        slots.push(slot);
    }
    slots
}

/// Queues a launch. `args` has a pointer to each argument.
pub fn launch(
    kernel: &'static Kernel,
    grid: [u32; 3],
    block: [u32; 3],
    shared_bytes: u32,
    shared_allowed: u32,
    stream: usize,
    args: *const *const c_void,
) -> u32 {
    let threads: u64 = block.iter().map(|v| u64::from(*v)).product();
    let blocks: u64 = grid.iter().map(|v| u64::from(*v)).product();
    if threads == 0 || threads > MOST_THREADS || block[2] > 64 || blocks == 0 || grid[0] > i32::MAX as u32 {
        return stream::INVALID_VALUE;
    }
    if grid[1] > MOST_YZ || grid[2] > MOST_YZ || shared_bytes > shared_allowed {
        return stream::INVALID_VALUE;
    }
    let slots = values(kernel, args);
    let mut bytes = 0;
    let mut outputs = Vec::new();
    for (slot, param) in slots.iter().zip(kernel.params) {
        if param.pointer == 0 {
            continue;
        }
        let at = u64::from_ne_bytes(std::array::from_fn(|i| slot.0[i]));
        if at == 0 {
            continue;
        }
        let Some((start, len, _)) = memory::block_of_now_or_later(at) else {
            misuse!("{} is given 0x{at:x} as a pointer: {}", kernel.name, memory::words(at));
        };
        if param.pointee > 1
            && !at.is_multiple_of(u64::from(param.pointee.min(16)) & param.pointee.wrapping_neg() as u64)
        {
            misuse!("{} is given 0x{at:x}, which is not aligned to what it points to", kernel.name);
        }
        bytes += (start + len as u64 - at).min(len as u64);
        if param.constant == 0 {
            outputs.push((at, (start + len as u64 - at) as usize));
        }
    }
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let seed = if config().seed == 0 { 0 } else { config().seed.wrapping_mul(0x9e37_79b9).wrapping_add(number) | 1 };
    let launch = Launch { grid, block, shared_bytes, seed };
    // Each value is taken to be worked on a little: kernels of ours are bound by memory.
    let cost = Cost { bytes, flops: blocks * threads * 8, peak: 0.0 };
    let work = move || {
        for (at, _) in &outputs {
            // Freed between the launch and now?
            if memory::block_of(*at).is_none() {
                misuse!("{} writes to 0x{at:x}: {}", kernel.name, memory::words(*at));
            }
        }
        let mut slots = slots.clone();
        let pointers: Vec<*mut c_void> = slots.iter_mut().map(|s| s.0.as_mut_ptr().cast()).collect();
        kernel.run(&launch, &pointers);
    };
    stream::enqueue(stream, kernel.name, cost, Box::new(work))
}
