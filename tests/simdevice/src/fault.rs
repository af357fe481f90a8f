//! What the device says when it was used wrongly, and faults that are wished for.
//!
//! `SIMDEVICE_FAULT` is a list of them, each with the call at which it comes: `no-device`, `driver-too-old`, `oom@N` (the
//! N-th allocation fails), `oom-from@N` (every one from the N-th), `illegal@N` (after the N-th launch every call answers that an
//! address was illegal), `launch@N`, `ecc@N`, `lost@N` (the device no longer answers), `capture@N` (the N-th call that a capture
//! records cannot be captured).

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Tells the fault on standard error (and in `SIMDEVICE_LOG`) and ends the process: a wrong use is a bug of the program.
pub fn misuse(what: std::fmt::Arguments<'_>) -> ! {
    let line = format!("simdevice: {what}\n");
    // A full-screen program's standard error may be closed or drawn over: the log is the record.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Ok(path) = std::env::var("SIMDEVICE_LOG")
        && let Ok(mut log) = std::fs::OpenOptions::new().create(true).append(true).open(path)
    {
        let _ = log.write_all(line.as_bytes());
    }
    // Nothing of the program may run on a device that was used wrongly.
    // SAFETY: ends the process.
    unsafe { libc::_exit(86) }
}

/// `misuse!("…", …)`.
#[macro_export]
macro_rules! misuse {
    ($($t:tt)*) => { $crate::fault::misuse(format_args!($($t)*)) };
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    NoDevice,
    DriverTooOld,
    OutOfMemory {
        at: u64,
        ever_after: bool,
    },
    /// The `at`-th call that is recorded spoils its capture.
    Capture {
        at: u64,
    },
    /// An error that stays, from the `at`-th launch on.
    Sticky {
        at: u64,
        error: u32,
    },
}

const ILLEGAL_ADDRESS: u32 = 700;
const LAUNCH_FAILED: u32 = 719;
const ECC_UNCORRECTABLE: u32 = 214;
const UNKNOWN: u32 = 999;

fn faults() -> &'static [Fault] {
    static FAULTS: OnceLock<Vec<Fault>> = OnceLock::new();
    FAULTS.get_or_init(|| {
        let wished = std::env::var("SIMDEVICE_FAULT").unwrap_or_default();
        wished.split(',').map(str::trim).filter(|w| !w.is_empty()).map(parse).collect()
    })
}

fn parse(wish: &str) -> Fault {
    let (kind, at) = match wish.split_once('@') {
        Some((kind, at)) => (kind, at.parse().unwrap_or_else(|_| misuse!("SIMDEVICE_FAULT: `{wish}` has no number"))),
        None => (wish, 1),
    };
    match kind {
        "no-device" => Fault::NoDevice,
        "driver-too-old" => Fault::DriverTooOld,
        "oom" => Fault::OutOfMemory { at, ever_after: false },
        "oom-from" => Fault::OutOfMemory { at, ever_after: true },
        "illegal" => Fault::Sticky { at, error: ILLEGAL_ADDRESS },
        "launch" => Fault::Sticky { at, error: LAUNCH_FAILED },
        "ecc" => Fault::Sticky { at, error: ECC_UNCORRECTABLE },
        "capture" => Fault::Capture { at },
        "lost" => Fault::Sticky { at, error: UNKNOWN },
        other => misuse!("SIMDEVICE_FAULT: there is no fault `{other}`"),
    }
}

static STICKY: AtomicU32 = AtomicU32::new(0);

/// Whether `fault` was wished for.
pub fn wished(fault: Fault) -> bool {
    faults().contains(&fault)
}

/// The error that every call answers from some moment on.
pub fn sticky() -> Option<u32> {
    match STICKY.load(Ordering::Acquire) {
        0 => None,
        error => Some(error),
    }
}

/// Counts a call that puts work on the device; what it answers instead of doing so.
pub fn on_call(_who: &str) -> Option<u32> {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    let number = CALLS.fetch_add(1, Ordering::AcqRel) + 1;
    for fault in faults() {
        if let Fault::Sticky { at, error } = fault
            && number == *at
        {
            STICKY.store(*error, Ordering::Release);
        }
    }
    sticky()
}

/// Counts an allocation; whether it fails.
pub fn on_allocation() -> bool {
    static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
    let number = ALLOCATIONS.fetch_add(1, Ordering::AcqRel) + 1;
    faults().iter().any(|f| match f {
        Fault::OutOfMemory { at, ever_after } => number == *at || (*ever_after && number > *at),
        _ => false,
    })
}

/// Counts a call that a capture records; whether it cannot be captured.
pub fn on_capture() -> bool {
    static RECORDED: AtomicU64 = AtomicU64::new(0);
    let number = RECORDED.fetch_add(1, Ordering::AcqRel) + 1;
    wished(Fault::Capture { at: number })
}

/// What the device's thread carries out now, for messages about it.
pub fn running(who: &'static str) {
    crate::launch::note_running(who);
}
