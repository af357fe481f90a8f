//! The kernels' shared objects: what they offer, and how one is called (`kernels/sim.h` has the same in C++).

use crate::config::{Kernels, config};
use crate::misuse;
use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

/// One parameter of a kernel, as the compiler sees it.
#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Param {
    pub size: u32,
    pub align: u32,
    /// 1: a pointer; `constant` says that it points to what is not written, `pointee` how large one of those is.
    pub pointer: u32,
    pub constant: u32,
    pub pointee: u32,
}

#[repr(C)]
struct RawKernel {
    module: *const c_char,
    name: *const c_char,
    count: u32,
    params: *const Param,
    call: *const c_void,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
pub struct Launch {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    pub seed: u64,
}

/// A kernel of the objects.
pub struct Kernel {
    raw: *const RawKernel,
    pub module: &'static str,
    pub name: &'static str,
    pub params: &'static [Param],
}

// SAFETY: points to constants of an object that stays loaded.
unsafe impl Send for Kernel {}
// SAFETY: as above.
unsafe impl Sync for Kernel {}

type LaunchFn = unsafe extern "C" fn(*const RawKernel, *const Launch, *const *mut c_void) -> *const c_char;
type Touch = extern "C" fn(u64, u64, i32);

/// What the object that [`config`] chose has.
pub struct Library {
    kernels: Vec<Kernel>,
    by_name: HashMap<(&'static str, &'static str), usize>,
    launch: LaunchFn,
}

pub fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let name = match config().kernels {
            Kernels::Plain => "plain",
            Kernels::Checked => "checked",
            Kernels::Sanitized => "sanitized",
        };
        let dir = std::env::var("SIMDEVICE_OBJECTS").unwrap_or_else(|_| env!("SIM_KERNELS_DIR").into());
        let path = format!("{dir}/libsimkernels-{name}.so");
        // SAFETY: built with this crate; its functions have the signatures of `kernels/sim.h`. It is never unloaded.
        unsafe {
            let object = libloading::Library::new(&path).unwrap_or_else(|e| misuse!("{path}: {e}"));
            let object: &'static libloading::Library = Box::leak(Box::new(object));
            let get = |name: &[u8]| {
                let symbol = object.get::<*const c_void>(name);
                *symbol.unwrap_or_else(|e| misuse!("{path}: {e}"))
            };
            let list: unsafe extern "C" fn(*mut usize) -> *const RawKernel = std::mem::transmute(get(b"sim_kernels"));
            let watch: unsafe extern "C" fn(u64, u64, Touch) = std::mem::transmute(get(b"sim_watch"));
            let launch: LaunchFn = std::mem::transmute(get(b"sim_launch"));
            let (from, to) = crate::memory::range();
            watch(from, to, crate::memory::touch);
            let mut count = 0;
            let first = list(&raw mut count);
            let words = |at: *const c_char| CStr::from_ptr(at).to_str().unwrap_or("?");
            let kernels: Vec<Kernel> = std::slice::from_raw_parts(first, count)
                .iter()
                .map(|raw| Kernel {
                    raw,
                    module: words(raw.module),
                    name: words(raw.name),
                    params: match raw.count {
                        0 => &[],
                        n => std::slice::from_raw_parts(raw.params, n as usize),
                    },
                })
                .collect();
            let by_name = kernels.iter().enumerate().map(|(i, k)| ((k.module, k.name), i)).collect();
            Library { kernels, by_name, launch }
        }
    })
}

impl Library {
    pub fn get(&'static self, module: &str, name: &str) -> Option<&'static Kernel> {
        self.by_name.get(&(module, name)).map(|i| &self.kernels[*i])
    }

    pub fn all(&'static self) -> &'static [Kernel] {
        &self.kernels
    }
}

impl Kernel {
    /// Runs every thread of every block. `args` points to each argument.
    pub fn run(&self, launch: &Launch, args: &[*mut c_void]) {
        // SAFETY: the arguments were copied with the sizes of the kernel's parameters.
        let said = unsafe { (library().launch)(self.raw, launch, args.as_ptr()) };
        if !said.is_null() {
            // SAFETY: a message in static storage.
            let said = unsafe { CStr::from_ptr(said) };
            misuse!("{}: {}", self.name, said.to_string_lossy());
        }
    }
}
