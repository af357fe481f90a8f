//! Keeps the process alive when a mapped file loses its end: a page that cannot be read any more becomes zeros, and the
//! mapping remembers that it is torn.
//!
//! Not for deciding what follows from that: whoever used the bytes asks [`Watch::is_torn`] afterwards. Invariants: only
//! faults inside watched ranges are answered, every other SIGBUS goes where it went before; the handler calls nothing
//! that is not safe in one. (systemd's `sigbus.c` and Wayland's shm pools do the same.)

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Files that may be mapped at a time; a handler can neither allocate nor lock, so there is a fixed table. What finds no
/// place in it is copied into memory instead: a checkpoint of more shards of hundreds of megabytes is not known.
const RANGES: usize = 512;

struct Range {
    taken: AtomicBool,
    /// 0: nothing is watched here.
    start: AtomicUsize,
    end: AtomicUsize,
    torn: AtomicBool,
}

static WATCHED: [Range; RANGES] = [const {
    Range {
        taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        torn: AtomicBool::new(false),
    }
}; RANGES];

/// A watched range of addresses. Must be dropped before the mapping is.
#[derive(Debug)]
pub(super) struct Watch(usize);

impl Watch {
    /// Watches the mapping of `bytes`; `None` when the table is full or faults cannot be caught.
    pub fn over(bytes: &[u8]) -> Option<Watch> {
        catch_faults()?;
        let at = WATCHED.iter().position(|r| !r.taken.swap(true, Ordering::AcqRel))?;
        let (range, start) = (&WATCHED[at], bytes.as_ptr() as usize);
        range.torn.store(false, Ordering::Relaxed);
        range.end.store(start + bytes.len(), Ordering::Relaxed);
        range.start.store(start, Ordering::Release);
        Some(Watch(at))
    }

    /// A page of it could not be read, and was zeros from then on.
    pub fn is_torn(&self) -> bool {
        WATCHED[self.0].torn.load(Ordering::Acquire)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHED[self.0].start.store(0, Ordering::Release);
        WATCHED[self.0].taken.store(false, Ordering::Release);
    }
}

/// What handled the signal before us, and the size of a page: the handler may not ask for either.
struct Before {
    action: libc::sigaction,
    page: usize,
}

static BEFORE: OnceLock<Before> = OnceLock::new();

/// Installs the handler, once. `None` when the system does not let us.
fn catch_faults() -> Option<()> {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    let installed = INSTALLED.get_or_init(|| {
        // SAFETY: plain system calls on zeroed plain data; the handler is of the kind that SA_SIGINFO asks for. The old
        // action is stored before the new one is in place, so that the handler finds it.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            let page = usize::try_from(libc::sysconf(libc::_SC_PAGESIZE)).unwrap_or(0);
            if page == 0 || libc::sigaction(libc::SIGBUS, std::ptr::null(), &mut action) != 0 {
                return false;
            }
            if BEFORE.set(Before { action, page }).is_err() {
                return false;
            }
            let mut ours: libc::sigaction = std::mem::zeroed();
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = on_fault;
            ours.sa_sigaction = handler as usize;
            // On the stack that the runtime sets aside for such moments, as its own handler runs.
            ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            libc::sigemptyset(&mut ours.sa_mask);
            libc::sigaction(libc::SIGBUS, &ours, std::ptr::null_mut()) == 0
        }
    });
    installed.then_some(())
}

extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let Some(before) = BEFORE.get() else { return };
    // SAFETY: the system hands out a valid siginfo with SA_SIGINFO.
    let fault = unsafe { (*info).si_addr() } as usize;
    for range in &WATCHED {
        let (start, end) = (range.start.load(Ordering::Acquire), range.end.load(Ordering::Relaxed));
        if start == 0 || !(start..end).contains(&fault) {
            continue;
        }
        // From here to the end: where a file ends, it ends for every later page too.
        let page = fault & !(before.page - 1);
        // SAFETY: replaces pages of a read-only mapping of our own, of which these cannot be read; nobody else's address
        // lies in a watched range. mmap is a plain system call here, and it does not touch errno unless it fails.
        let zeros = unsafe {
            libc::mmap(
                page as *mut c_void,
                end - page,
                libc::PROT_READ,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        if zeros != libc::MAP_FAILED {
            range.torn.store(true, Ordering::Release);
            return;
        }
    }
    // Not ours, or not to be helped: as if this handler did not exist.
    let old = &before.action;
    // SAFETY: calls what the process had installed, in the way that its flags ask for; or lets the fault happen again
    // under the system's own action.
    unsafe {
        if matches!(old.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
            libc::signal(signal, libc::SIG_DFL);
        } else if old.sa_flags & libc::SA_SIGINFO != 0 {
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                std::mem::transmute(old.sa_sigaction);
            handler(signal, info, context);
        } else {
            let handler: extern "C" fn(c_int) = std::mem::transmute(old.sa_sigaction);
            handler(signal);
        }
    }
}
