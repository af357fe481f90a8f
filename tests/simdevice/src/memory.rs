//! Device memory: one reserved range of addresses, each allocation apart in it with an unmapped page behind.
//!
//! A shadow has a byte for every byte: not allocated, allocated and never written, written. It is kept exactly where all
//! kernels are instrumented (`Kernels::Checked`); elsewhere a kernel's writes are not seen, so only the bounds of
//! allocations are checked. Addresses are used again only after all others have been, so that a pointer that was freed is
//! known for what it is. Fresh memory holds 0xff, which is NaN to every float.
//!
//! Not here: when memory is freed (streams do it in their order).

use crate::config::{Kernels, config};
use crate::{fault, misuse};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// Addresses that are reserved, and as many for their shadow.
const RANGE: usize = 1 << 40;
const PAGE: usize = 4096;
/// What the driver guarantees of an allocation's address.
const ALIGN: usize = 256;
/// Freed blocks that are remembered by name.
const REMEMBERED: usize = 100_000;
/// A pool takes memory from the device in pieces of this size.
const CHUNK: u64 = 2 << 20;

const UNWRITTEN: u8 = 1;
const WRITTEN: u8 = 2;

#[derive(Debug, Clone, Copy)]
struct Block {
    len: usize,
    device: usize,
    /// A running number, to name it.
    number: u64,
}

/// What a device's pool hands out and has handed out, in bytes.
#[derive(Debug, Default, Clone, Copy)]
pub struct Pool {
    pub used: u64,
    pub used_high: u64,
    pub reserved: u64,
    pub reserved_high: u64,
    pub release_threshold: u64,
    /// What graphs have of the device, apart from what the pool has.
    pub graphs: u64,
}

#[derive(Default)]
struct State {
    live: BTreeMap<u64, Block>,
    /// Addresses that are graphs', whether memory lies there now or not.
    aside: BTreeMap<u64, Block>,
    freed: BTreeMap<u64, Block>,
    freed_order: VecDeque<u64>,
    next: usize,
    number: u64,
    pools: Vec<Pool>,
}

/// Where the range and its shadow begin.
static BASE: AtomicUsize = AtomicUsize::new(0);
static SHADOW: AtomicUsize = AtomicUsize::new(0);

fn state() -> MutexGuard<'static, State> {
    static STATE: OnceLock<Mutex<State>> = OnceLock::new();
    let made = STATE.get_or_init(|| {
        let map = |protection| {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
            // SAFETY: a fresh mapping anywhere.
            let at = unsafe { libc::mmap(std::ptr::null_mut(), RANGE, protection, flags, -1, 0) };
            if at == libc::MAP_FAILED {
                misuse!("this machine gives no range of addresses: {}", std::io::Error::last_os_error());
            }
            at as usize
        };
        BASE.store(map(libc::PROT_NONE), Ordering::Release);
        SHADOW.store(map(libc::PROT_READ | libc::PROT_WRITE), Ordering::Release);
        let pools = vec![Pool::default(); config().devices.len()];
        Mutex::new(State { pools, ..State::default() })
    });
    made.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The range of addresses that device memory lies in.
pub fn range() -> (u64, u64) {
    drop(state());
    let base = BASE.load(Ordering::Acquire) as u64;
    (base, base + RANGE as u64)
}

fn shadow(at: u64) -> *mut u8 {
    (SHADOW.load(Ordering::Acquire) + (at as usize - BASE.load(Ordering::Acquire))) as *mut u8
}

/// Memory of `device`; `None` where it has no more.
pub fn allocate(device: usize, len: usize) -> Option<u64> {
    let mut state = state();
    let pool = &mut state.pools[device];
    if pool.used + pool.graphs + len as u64 > config().memory {
        return None;
    }
    pool.used += len as u64;
    pool.used_high = pool.used_high.max(pool.used);
    pool.reserved = pool.reserved.max(pool.used.next_multiple_of(CHUNK));
    pool.reserved_high = pool.reserved_high.max(pool.reserved);
    let (at, block) = place(&mut state, device, len);
    map(&mut state, at, block);
    Some(at)
}

/// Addresses that nothing has, for `len` bytes.
fn place(state: &mut State, device: usize, len: usize) -> (u64, Block) {
    let pages = len.max(1).next_multiple_of(PAGE);
    if state.next + pages + PAGE > RANGE {
        state.next = 0;
    }
    // After a round, what is still in use is stepped over.
    loop {
        let from = (BASE.load(Ordering::Acquire) + state.next) as u64;
        let to = from + (pages + PAGE) as u64;
        let last = |blocks: &BTreeMap<u64, Block>| blocks.range(..to).next_back().map(|(at, b)| at + b.len as u64);
        match last(&state.live).max(last(&state.aside)) {
            Some(end) if end > from => {
                state.next = (end as usize - BASE.load(Ordering::Acquire)).next_multiple_of(PAGE) + PAGE;
            }
            _ => break,
        }
    }
    let start = BASE.load(Ordering::Acquire) + state.next;
    state.next += pages + PAGE;
    state.number += 1;
    // As near to the unmapped page behind as the alignment allows.
    ((((start + pages - len.max(1)) / ALIGN) * ALIGN) as u64, Block { len, device, number: state.number })
}

/// The pages of a block: where they begin, and their bytes.
fn pages_of(at: u64, block: Block) -> (usize, usize) {
    let start = at as usize / PAGE * PAGE;
    (start, (at as usize + block.len.max(1)).next_multiple_of(PAGE) - start)
}

/// Puts memory where `block` was placed.
fn map(state: &mut State, at: u64, block: Block) {
    state.live.insert(at, block);
    let ((start, pages), len) = (pages_of(at, block), block.len);
    // SAFETY: pages within the range that no live allocation has.
    unsafe {
        if libc::mprotect(start as *mut _, pages, libc::PROT_READ | libc::PROT_WRITE) != 0 {
            misuse!("this machine has no {len} bytes: {}", std::io::Error::last_os_error());
        }
        std::ptr::write_bytes(at as *mut u8, 0xff, len);
        if exact() {
            std::ptr::write_bytes(shadow(at), UNWRITTEN, len);
        }
    }
    poison(start as u64, pages, true);
    poison(at, len, false);
}

/// Addresses for a graph's memory. Nothing lies there before [`make`].
pub fn set_aside(device: usize, len: usize) -> u64 {
    let mut state = state();
    let (at, block) = place(&mut state, device, len);
    state.aside.insert(at, block);
    at
}

/// The addresses are no graph's any more; what lies there stays until it is freed.
pub fn give_back(at: u64) {
    state().aside.remove(&at);
}

/// Whether `at` is where a graph's memory begins.
pub fn is_aside(at: u64) -> bool {
    state().aside.contains_key(&at)
}

/// A graph's allocation begins.
pub fn make(at: u64) {
    let mut state = state();
    let Some(block) = state.aside.get(&at).copied() else { misuse!("an allocation node has no addresses") };
    if state.live.contains_key(&at) {
        misuse!("a graph allocates what it has not freed ({})", describe(&state, at));
    }
    map(&mut state, at, block);
}

/// A graph's allocation ends, its addresses stay the graph's.
pub fn unmake(at: u64) {
    free(at);
}

/// Holds `bytes` of the device for graphs, of which `at` is one's. `false` where it has no more.
pub fn reserve_for_graphs(at: u64, bytes: u64) -> bool {
    let mut state = state();
    let Some(device) = state.aside.get(&at).map(|b| b.device) else { return false };
    let pool = &mut state.pools[device];
    if bytes <= pool.graphs {
        return true;
    }
    if fault::on_allocation() || pool.used + bytes > config().memory {
        return false;
    }
    pool.graphs = bytes;
    true
}

/// What graphs hold and do not use goes back to the device.
pub fn trim_graphs(device: usize) {
    let mut state = state();
    let used = state.aside.iter().filter(|(at, b)| b.device == device && state.live.contains_key(at));
    let used = used.map(|(_, b)| b.len as u64).sum();
    state.pools[device].graphs = used;
}

/// Gives the memory at `at` back to its pool for others to be allocated, though work that was queued before may still use it.
/// `false` where nothing was allocated there.
pub fn release(at: u64) -> bool {
    let mut state = state();
    let Some(block) = state.live.get(&at).copied() else { return false };
    state.pools[block.device].used -= block.len as u64;
    true
}

/// Unmaps the memory at `at`, after [`release`].
pub fn free(at: u64) {
    let mut state = state();
    let Some(block) = state.live.remove(&at) else { misuse!("0x{at:x} is freed twice ({})", describe(&state, at)) };
    let (start, pages) = pages_of(at, block);
    // SAFETY: the block's own pages.
    unsafe {
        libc::mprotect(start as *mut _, pages, libc::PROT_NONE);
        libc::madvise(start as *mut _, pages, libc::MADV_DONTNEED);
        libc::madvise(shadow(start as u64).cast(), pages, libc::MADV_DONTNEED);
    }
    if state.freed_order.len() >= REMEMBERED
        && let Some(oldest) = state.freed_order.pop_front()
    {
        state.freed.remove(&oldest);
    }
    state.freed.insert(at, block);
    state.freed_order.push_back(at);
}

/// Whether the shadow knows what was written.
fn exact() -> bool {
    config().kernels == Kernels::Checked
}

/// The allocation that `at` lies in or just behind: its start, length and device.
pub fn block_of(at: u64) -> Option<(u64, usize, usize)> {
    within(&state().live, at)
}

/// As [`block_of`], also where a graph's memory will lie when the graph runs.
pub fn block_of_now_or_later(at: u64) -> Option<(u64, usize, usize)> {
    let state = state();
    within(&state.live, at).or_else(|| within(&state.aside, at))
}

fn within(blocks: &BTreeMap<u64, Block>, at: u64) -> Option<(u64, usize, usize)> {
    let (start, block) = blocks.range((Bound::Unbounded, Bound::Included(at))).next_back()?;
    (at <= start + block.len as u64).then_some((*start, block.len, block.device))
}

pub fn used(device: usize) -> u64 {
    state().pools[device].used
}

pub fn total(_device: usize) -> u64 {
    config().memory
}

/// Reads or changes the figures of a device's pool.
pub fn pool<R>(device: usize, f: impl FnOnce(&mut Pool) -> R) -> R {
    f(&mut state().pools[device])
}

/// What lies at `at`, in words.
fn describe(state: &State, at: u64) -> String {
    let near = |blocks: &BTreeMap<u64, Block>| {
        let (start, block) = blocks.range(..=at).next_back()?;
        (at - start <= block.len as u64 + (64 << 10)).then_some((*start, *block))
    };
    let said = |what: &str, (start, block): (u64, Block)| {
        let Block { len, number, .. } = block;
        match at.checked_sub(start + len as u64) {
            None => format!("{} bytes into {what} allocation {number} of {len} bytes", at - start),
            Some(behind) => format!("{behind} bytes behind the end of {what} allocation {number} of {len} bytes"),
        }
    };
    if within(&state.live, at).is_none() && within(&state.aside, at).is_some() {
        return "memory of a graph, which is there only while the graph runs".into();
    }
    let (live, freed) = (near(&state.live), near(&state.freed));
    match (live, freed) {
        (Some(l), Some(f)) if f.0 > l.0 => said("the freed", f),
        (Some(l), _) => said("the live", l),
        (None, Some(f)) => said("the freed", f),
        (None, None) => {
            let (base, end) = (BASE.load(Ordering::Acquire) as u64, (BASE.load(Ordering::Acquire) + RANGE) as u64);
            if (base..end).contains(&at) { "no allocation is near".into() } else { "this is no device memory".into() }
        }
    }
}

/// What lies at `at`, in words.
pub fn words(at: u64) -> String {
    describe(&state(), at)
}

/// Ends the run where the `len` bytes at `at` are not within one live allocation.
fn check(at: u64, len: usize, who: &str, does: &str) {
    if len == 0 {
        return;
    }
    let state = state();
    let inside = state.live.range(..=at).next_back().is_some_and(|(s, b)| at + len as u64 <= s + b.len as u64);
    if !inside {
        let last = at + len as u64 - 1;
        misuse!(
            "{who} {does} {len} bytes at 0x{at:x}: {}; the last is {}",
            describe(&state, at),
            describe(&state, last)
        );
    }
}

/// `len` bytes at `at` are about to be read by `who`: they must lie in one live allocation and have been written.
pub fn check_read(at: u64, len: usize, who: &str) {
    check(at, len, who, "reads");
    if !exact() || len == 0 {
        return;
    }
    // SAFETY: the shadow of bytes that were just found to be allocated.
    let shadow = unsafe { std::slice::from_raw_parts(shadow(at), len) };
    if let Some(first) = shadow.iter().position(|b| *b != WRITTEN) {
        let at = at + first as u64;
        misuse!("{who} reads what was never written at 0x{at:x}: {}", words(at));
    }
}

/// `len` bytes at `at` are about to be written by `who`: they must lie in one live allocation. They count as written after.
pub fn check_write(at: u64, len: usize, who: &str) {
    check(at, len, who, "writes");
    if exact() && len > 0 {
        // SAFETY: the shadow of bytes that were just found to be allocated.
        unsafe { std::ptr::write_bytes(shadow(at), WRITTEN, len) };
    }
}

/// A load or store of a kernel, of bytes within the range. Called for every one of them: no lock, one look at the shadow.
pub extern "C" fn touch(at: u64, len: u64, write: i32) {
    let shadow = shadow(at);
    for i in 0..len as usize {
        // SAFETY: all of the shadow's range is mapped, and kernels run one after another.
        unsafe {
            let state = shadow.add(i);
            match *state {
                WRITTEN => {}
                UNWRITTEN if write != 0 => *state = WRITTEN,
                UNWRITTEN => crate::launch::caught(at, len, "reads what was never written"),
                _ => crate::launch::caught(at, len, if write != 0 { "writes" } else { "reads" }),
            }
        }
    }
}

/// Tells the address sanitizer, where it is loaded, what is no memory.
fn poison(at: u64, len: usize, no_memory: bool) {
    type Mark = unsafe extern "C" fn(*const u8, usize);
    static MARKS: OnceLock<Option<(Mark, Mark)>> = OnceLock::new();
    let marks = MARKS.get_or_init(|| {
        // SAFETY: looked up by name; both have this signature (`sanitizer/asan_interface.h`).
        unsafe {
            let poison = libc::dlsym(libc::RTLD_DEFAULT, c"__asan_poison_memory_region".as_ptr());
            let unpoison = libc::dlsym(libc::RTLD_DEFAULT, c"__asan_unpoison_memory_region".as_ptr());
            (!poison.is_null() && !unpoison.is_null())
                .then(|| (std::mem::transmute::<*mut _, Mark>(poison), std::mem::transmute::<*mut _, Mark>(unpoison)))
        }
    });
    if let Some((poison, unpoison)) = marks {
        // SAFETY: addresses of the range.
        unsafe { if no_memory { poison(at as *const u8, len) } else { unpoison(at as *const u8, len) } }
    }
}
