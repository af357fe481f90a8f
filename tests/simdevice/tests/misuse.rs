//! What the device finds: each case uses it wrongly, in a process of its own, and must end with the words that name it.
//! Cases of right use are beside them, so that a device that refuses everything passes nothing.

use libloading::Library;
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::process::Command;

/// The driver's calls, by name from the shared object.
struct Driver(Library);

const PER_THREAD: usize = 2;

macro_rules! call {
    ($d:expr, $name:ident, $($arg:expr => $t:ty),*) => {{
        // SAFETY: the driver's own signature.
        unsafe {
            let f = $d.0.get::<unsafe extern "C" fn($($t),*) -> u32>(stringify!($name).as_bytes()).expect(stringify!($name));
            f($($arg),*)
        }
    }};
}

impl Driver {
    fn open() -> Driver {
        let mut path: PathBuf = std::env::current_exe().unwrap();
        path.pop();
        // SAFETY: the device under test.
        let driver = Driver(unsafe { Library::new(path.join("libsimdevice.so")) }.unwrap());
        assert_eq!(call!(driver, cuInit, 0 => u32), 0);
        let mut context = 0usize;
        assert_eq!(call!(driver, cuDevicePrimaryCtxRetain, &raw mut context => *mut usize, 0 => i32), 0);
        assert_eq!(call!(driver, cuCtxSetCurrent, context => usize), 0);
        driver
    }

    fn alloc(&self, len: usize) -> u64 {
        let mut at = 0u64;
        assert_eq!(call!(self, cuMemAllocAsync, &raw mut at => *mut u64, len => usize, PER_THREAD => usize), 0);
        at
    }

    fn free(&self, at: u64, on: usize) -> u32 {
        call!(self, cuMemFreeAsync, at => u64, on => usize)
    }

    fn write(&self, to: u64, from: &[f32], on: usize) {
        let at = from.as_ptr().cast::<c_void>();
        let len = size_of_val(from);
        assert_eq!(call!(self, cuMemcpyHtoDAsync_v2, to => u64, at => *const c_void, len => usize, on => usize), 0);
    }

    fn read(&self, from: u64, n: usize, on: usize) -> Vec<f32> {
        let mut to = vec![0f32; n];
        let at = to.as_mut_ptr().cast::<c_void>();
        assert_eq!(call!(self, cuMemcpyDtoHAsync_v2, at => *mut c_void, from => u64, n * 4 => usize, on => usize), 0);
        to
    }

    fn copy(&self, to: u64, from: u64, len: usize, on: usize) {
        assert_eq!(call!(self, cuMemcpyDtoDAsync_v2, to => u64, from => u64, len => usize, on => usize), 0);
    }

    fn stream(&self) -> usize {
        let mut stream = 0usize;
        assert_eq!(call!(self, cuStreamCreate, &raw mut stream => *mut usize, 1 => u32), 0);
        stream
    }

    fn synchronize(&self, on: usize) {
        assert_eq!(call!(self, cuStreamSynchronize, on => usize), 0);
    }

    fn function(&self, module: &str, name: &str) -> usize {
        let ptx = CString::new(format!("// simdevice module: {module}\n")).unwrap();
        let name = CString::new(name).unwrap();
        let (mut module, mut function) = (0usize, 0usize);
        let image = ptx.as_ptr().cast::<c_void>();
        assert_eq!(call!(self, cuModuleLoadData, &raw mut module => *mut usize, image => *const c_void), 0);
        let to = &raw mut function;
        let at = name.as_ptr().cast::<c_void>();
        assert_eq!(call!(self, cuModuleGetFunction, to => *mut usize, module => usize, at => *const c_void), 0);
        function
    }

    /// One block of `threads`.
    fn launch(&self, function: usize, threads: u32, args: &[*const c_void], on: usize) -> u32 {
        let args = args.as_ptr();
        call!(
            self, cuLaunchKernel, function => usize, 1 => u32, 1 => u32, 1 => u32, threads => u32, 1 => u32, 1 => u32,
            0 => u32, on => usize, args => *const *const c_void, std::ptr::null() => *const c_void
        )
    }
}

fn at<T>(value: &T) -> *const c_void {
    std::ptr::from_ref(value).cast()
}

/// `act(y · scale + bias + residual)` of the program's kernels, on `n` values in one channel.
fn epilogue(d: &Driver, y: u64, out: u64, n: i64, on: usize) -> u32 {
    let function = d.function("paring", "epilogue_f32_f32_f32");
    let none = 0u64;
    let (channels, inner, act) = (1i32, n, 1i32);
    let args = [at(&y), at(&none), at(&none), at(&none), at(&channels), at(&inner), at(&act), at(&n), at(&out)];
    d.launch(function, 32, &args, on)
}

fn case(name: &str) {
    let d = Driver::open();
    let values: Vec<f32> = (0..100).map(|v| v as f32 - 50.0).collect();
    match name {
        "right" => {
            let (a, b) = (d.alloc(400), d.alloc(400));
            d.write(a, &values, PER_THREAD);
            assert_eq!(epilogue(&d, a, b, 100, PER_THREAD), 0);
            let expected: Vec<f32> = values.iter().map(|v| v.max(0.0)).collect();
            assert_eq!(d.read(b, 100, PER_THREAD), expected);
            assert_eq!((d.free(a, PER_THREAD), d.free(b, PER_THREAD)), (0, 0));
            d.synchronize(PER_THREAD);
        }
        "freed" => {
            let a = d.alloc(400);
            d.write(a, &values, PER_THREAD);
            d.free(a, PER_THREAD);
            d.read(a, 100, PER_THREAD);
        }
        "freed-twice" => {
            let a = d.alloc(400);
            d.free(a, PER_THREAD);
            d.synchronize(PER_THREAD);
            d.free(a, PER_THREAD);
        }
        "unwritten" => {
            let a = d.alloc(400);
            d.write(a, &values[..99], PER_THREAD);
            d.read(a, 100, PER_THREAD);
        }
        "foreign" => {
            let mine = [0f32; 4];
            d.read(at(&mine) as u64, 4, PER_THREAD);
        }
        "too-long" => {
            let a = d.alloc(396);
            d.write(a, &values, PER_THREAD);
            d.synchronize(PER_THREAD);
        }
        "kernel-writes-too-far" => {
            let (a, b) = (d.alloc(400), d.alloc(396));
            d.write(a, &values, PER_THREAD);
            epilogue(&d, a, b, 100, PER_THREAD);
            d.synchronize(PER_THREAD);
        }
        "kernel-reads-unwritten" => {
            let (a, b) = (d.alloc(400), d.alloc(400));
            d.write(a, &values[1..], PER_THREAD);
            epilogue(&d, a, b, 100, PER_THREAD);
            d.synchronize(PER_THREAD);
        }
        "kernel-after-free" => {
            let (a, b) = (d.alloc(400), d.alloc(400));
            d.write(a, &values, PER_THREAD);
            d.free(a, PER_THREAD);
            epilogue(&d, a, b, 100, PER_THREAD);
            d.synchronize(PER_THREAD);
        }
        "swapped-arguments" => {
            let (a, b, n, none) = (d.alloc(400), d.alloc(400), 100i64, 0u64);
            d.write(a, &values, PER_THREAD);
            let function = d.function("paring", "epilogue_f32_f32_f32");
            let (channels, inner, act) = (1i32, n, 1i32);
            // The length and the output.
            let args = [at(&a), at(&none), at(&none), at(&none), at(&channels), at(&inner), at(&act), at(&b), at(&n)];
            d.launch(function, 32, &args, PER_THREAD);
            d.synchronize(PER_THREAD);
        }
        "small-argument" => {
            let (a, b, none) = (d.alloc(400), d.alloc(400), 0u64);
            d.write(a, &values, PER_THREAD);
            let function = d.function("paring", "epilogue_f32_f32_f32");
            let (channels, act) = (1i32, 1i32);
            // The kernel's n has eight bytes.
            let n = [7i32, 100, 0];
            let args = [at(&a), at(&none), at(&none), at(&none), at(&channels), at(&n[1]), at(&act), at(&n[1]), at(&b)];
            let inner_at_four = (at(&n[1]) as usize) % 8;
            let other = [at(&n[0]), at(&n[1])][usize::from(inner_at_four == 0)];
            let mut args = args;
            if inner_at_four == 0 {
                args[5] = other.cast::<u8>().wrapping_sub(4).cast();
                args[7] = args[5];
            }
            d.launch(function, 32, &args, PER_THREAD);
            d.synchronize(PER_THREAD);
        }
        // A copy on one stream of what another has not made yet: with some seed it is read before it is written.
        "missing-wait" | "with-wait" => {
            let (one, other) = (d.stream(), d.stream());
            for _ in 0..40 {
                let (a, b) = (d.alloc(400), d.alloc(400));
                d.write(a, &values, one);
                if name == "with-wait" {
                    let mut event = 0usize;
                    assert_eq!(call!(d, cuEventCreate, &raw mut event => *mut usize, 2 => u32), 0);
                    assert_eq!(call!(d, cuEventRecord, event => usize, one => usize), 0);
                    assert_eq!(call!(d, cuStreamWaitEvent, other => usize, event => usize, 0 => u32), 0);
                }
                d.copy(b, a, 400, other);
                assert_eq!(d.read(b, 100, other), values);
            }
        }
        "no-context" => {
            let elsewhere = std::thread::spawn(move || {
                let mut at = 0u64;
                call!(d, cuMemAllocAsync, &raw mut at => *mut u64, 16 => usize, PER_THREAD => usize)
            });
            assert_eq!(elsewhere.join().unwrap(), 201);
        }
        "graph" => {
            let s = d.stream();
            let (a, b) = (d.alloc(400), d.alloc(400));
            d.write(a, &values, PER_THREAD);
            d.synchronize(PER_THREAD);
            let (mut graph, mut exec) = (0usize, 0usize);
            assert_eq!(call!(d, cuStreamBeginCapture_v2, s => usize, 0 => u32), 0);
            assert_eq!(epilogue(&d, a, b, 100, s), 0);
            assert_eq!(call!(d, cuStreamEndCapture, s => usize, &raw mut graph => *mut usize), 0);
            let to = &raw mut exec;
            assert_eq!(call!(d, cuGraphInstantiateWithFlags, to => *mut usize, graph => usize, 0 => u64), 0);
            for round in 0..3 {
                let values: Vec<f32> = values.iter().map(|v| v * round as f32).collect();
                d.write(a, &values, s);
                assert_eq!(call!(d, cuGraphLaunch, exec => usize, s => usize), 0);
                let expected: Vec<f32> = values.iter().map(|v| v.max(0.0)).collect();
                assert_eq!(d.read(b, 100, s), expected);
            }
        }
        other => panic!("no case {other}"),
    }
}

/// Runs a case as a process of its own.
fn run(name: &str, seed: u64) -> (Option<i32>, String) {
    let ran = Command::new(std::env::current_exe().unwrap())
        .args(["a_case_alone", "--exact", "--nocapture", "--ignored"])
        .env("CASE", name)
        .env("SIMDEVICE_SEED", seed.to_string())
        .output()
        .unwrap();
    let said = [ran.stdout, ran.stderr].concat();
    (ran.status.code(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
#[ignore = "run by the others, in a process of its own"]
fn a_case_alone() {
    case(&std::env::var("CASE").unwrap());
}

#[test]
fn right_use_is_carried_out() {
    for name in ["right", "with-wait", "no-context", "graph"] {
        for seed in 0..4 {
            let (code, said) = run(name, seed);
            assert_eq!(code, Some(0), "{name}, seed {seed}: {said}");
        }
    }
}

#[test]
fn wrong_use_is_told_by_name() {
    for (name, words) in [
        ("freed", "0 bytes into the freed allocation 1 of 400 bytes"),
        ("freed-twice", "0 bytes into the freed allocation 1"),
        ("unwritten", "reads what was never written"),
        ("foreign", "this is no device memory"),
        ("too-long", "cuMemcpyHtoD writes 400 bytes"),
        ("kernel-writes-too-far", "epilogue_f32_f32_f32 writes 4 bytes"),
        ("kernel-reads-unwritten", "epilogue_f32_f32_f32 reads what was never written"),
        ("kernel-after-free", "the freed allocation 1"),
        ("swapped-arguments", "epilogue_f32_f32_f32 is given 0x64 as a pointer"),
        ("small-argument", "not aligned to 8"),
    ] {
        for seed in [0, 7] {
            let (code, said) = run(name, seed);
            assert!(code == Some(86) && said.contains(words), "{name}, seed {seed}: {code:?} {said}");
        }
    }
}

#[test]
fn a_missing_wait_shows_with_some_seed() {
    let shows = |seed: &u64| {
        let (code, said) = run("missing-wait", *seed);
        // What was there before, or nothing yet.
        code != Some(0) && (said.contains("left == right") || said.contains("reads what was never written"))
    };
    let shown = (1..=8).filter(shows).count();
    assert!(shown >= 4, "of eight seeds {shown} show it");
}
