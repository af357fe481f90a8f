//! What the device finds: each case uses it wrongly, in a process of its own, and must end with the words that name it.
//! Cases of right use are beside them, so that a device that refuses everything passes nothing.

use libloading::Library;
use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

/// The driver's calls, by name from the shared object, and the kernel that cases launch: a capture takes no module's loading.
struct Driver(Library, OnceLock<usize>);

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
        let driver = Driver(unsafe { Library::new(path.join("libsimdevice.so")) }.unwrap(), OnceLock::new());
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
    let function = *d.1.get_or_init(|| d.function("paring", "epilogue_f32_f32_f32"));
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
            assert_eq!(epilogue(&d, a, b, 100, PER_THREAD), 0);
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
        other => graph_case(&d, other, &values),
    }
}

/// A stream that is captured in `mode`, and what was recorded on it.
fn capture(d: &Driver, on: usize, mode: u32, record: impl FnOnce()) -> (u32, usize) {
    let mut graph = 0usize;
    assert_eq!(call!(d, cuStreamBeginCapture_v2, on => usize, mode => u32), 0);
    record();
    (call!(d, cuStreamEndCapture, on => usize, &raw mut graph => *mut usize), graph)
}

const THREAD_LOCAL: u32 = 1;
const AUTO_FREE: u64 = 1;

fn instantiate(d: &Driver, graph: usize, flags: u64) -> (u32, usize) {
    let mut exec = 0usize;
    let to = &raw mut exec;
    (call!(d, cuGraphInstantiateWithFlags, to => *mut usize, graph => usize, flags => u64), exec)
}

fn launch_graph(d: &Driver, exec: usize, on: usize) -> u32 {
    call!(d, cuGraphLaunch, exec => usize, on => usize)
}

fn alloc_on(d: &Driver, len: usize, on: usize) -> u64 {
    let mut at = 0u64;
    assert_eq!(call!(d, cuMemAllocAsync, &raw mut at => *mut u64, len => usize, on => usize), 0);
    at
}

fn nodes(d: &Driver, graph: usize) -> Vec<usize> {
    let (mut n, none) = (0usize, std::ptr::null_mut::<usize>());
    assert_eq!(call!(d, cuGraphGetNodes, graph => usize, none => *mut usize, &raw mut n => *mut usize), 0);
    let mut nodes = vec![0usize; n];
    let to = nodes.as_mut_ptr();
    assert_eq!(call!(d, cuGraphGetNodes, graph => usize, to => *mut usize, &raw mut n => *mut usize), 0);
    nodes
}

fn node_type(d: &Driver, node: usize) -> u32 {
    let mut kind = u32::MAX;
    assert_eq!(call!(d, cuGraphNodeGetType, node => usize, &raw mut kind => *mut u32), 0);
    kind
}

fn status(d: &Driver, on: usize) -> u32 {
    let mut status = u32::MAX;
    assert_eq!(call!(d, cuStreamIsCapturing, on => usize, &raw mut status => *mut u32), 0);
    status
}

fn event(d: &Driver) -> usize {
    let mut event = 0usize;
    assert_eq!(call!(d, cuEventCreate, &raw mut event => *mut usize, 0 => u32), 0);
    event
}

/// What graphs are used for, rightly and wrongly.
fn graph_case(d: &Driver, name: &str, values: &[f32]) {
    let s = d.stream();
    let (a, b) = (d.alloc(400), d.alloc(400));
    d.write(a, values, PER_THREAD);
    assert_eq!(epilogue(d, a, b, 100, PER_THREAD), 0);
    d.synchronize(PER_THREAD);
    let positive: Vec<f32> = values.iter().map(|v| v.max(0.0)).collect();
    match name {
        "graph-memory" => {
            let (ended, graph) = capture(d, s, THREAD_LOCAL, || {
                let t = alloc_on(d, 400, s);
                assert_eq!(epilogue(d, a, t, 100, s), 0);
                let u = alloc_on(d, 400, s);
                d.copy(u, t, 400, s);
                assert_eq!(d.free(t, s), 0);
                d.copy(b, u, 400, s);
                assert_eq!(d.free(u, s), 0);
            });
            assert_eq!(ended, 0);
            let mut kinds: Vec<u32> = nodes(d, graph).into_iter().map(|n| node_type(d, n)).collect();
            kinds.sort_unstable();
            assert_eq!(kinds, [0, 1, 1, 10, 10, 11, 11]);
            let (made, exec) = instantiate(d, graph, 0);
            // With memory nodes there is one instance at a time.
            assert_eq!((made, instantiate(d, graph, 0).0), (0, 1));
            for round in 1..4 {
                let values: Vec<f32> = values.iter().map(|v| v * round as f32).collect();
                d.write(a, &values, s);
                assert_eq!(launch_graph(d, exec, s), 0);
                let expected: Vec<f32> = values.iter().map(|v| v.max(0.0)).collect();
                assert_eq!(d.read(b, 100, s), expected);
            }
            // Twice in a row, and gone while it may still run.
            assert_eq!((launch_graph(d, exec, s), launch_graph(d, exec, s)), (0, 0));
            assert_eq!(call!(d, cuGraphExecDestroy, exec => usize), 0);
            assert_eq!(call!(d, cuGraphDestroy, graph => usize), 0);
            assert_eq!(call!(d, cuDeviceGraphMemTrim, 0 => i32), 0);
            d.synchronize(s);
        }
        "graph-keeps-memory" | "graph-frees-on-launch" => {
            let mut t = 0;
            let (ended, graph) = capture(d, s, THREAD_LOCAL, || {
                t = alloc_on(d, 400, s);
                assert_eq!(epilogue(d, a, t, 100, s), 0);
            });
            assert_eq!(ended, 0);
            let flags = if name == "graph-keeps-memory" { 0 } else { AUTO_FREE };
            let exec = instantiate(d, graph, flags).1;
            assert_eq!(launch_graph(d, exec, s), 0);
            assert_eq!(d.read(t, 100, s), positive);
            // What it allocated is still there: no second launch without freeing it.
            let again = launch_graph(d, exec, s);
            assert_eq!(again, if flags == 0 { 1 } else { 0 });
            assert_eq!(d.read(t, 100, s), positive);
            assert_eq!(d.free(t, s), 0);
            assert_eq!(launch_graph(d, exec, s), 0);
            assert_eq!(d.read(t, 100, s), positive);
            assert_eq!(d.free(t, s), 0);
            d.synchronize(s);
        }
        // Each spoils its capture with the error that belongs to it, and leaves a stream that works.
        "capture-spoilt" => {
            let (e, before) = (event(d), event(d));
            assert_eq!(call!(d, cuEventRecord, before => usize, PER_THREAD => usize), 0);
            let at = Cell::new(0u64);
            let spoil: [(&str, u32, &dyn Fn() -> u32); 8] = [
                ("wait for the stream", 900, &|| call!(d, cuStreamSynchronize, s => usize)),
                ("wait for the device", 900, &|| call!(d, cuCtxSynchronize,)),
                ("allocate at once", 900, &|| call!(d, cuMemAlloc_v2, at.as_ptr() => *mut u64, 16 => usize)),
                ("free at once", 900, &|| call!(d, cuMemFree_v2, a => u64)),
                ("free what is no graph's", 1, &|| d.free(b, s)),
                ("load a module", 900, &|| {
                    let (mut module, ptx) = (0usize, c"// simdevice module: paring\n".as_ptr().cast::<c_void>());
                    call!(d, cuModuleLoadData, &raw mut module => *mut usize, ptx => *const c_void)
                }),
                ("ask for an event", 900, &|| {
                    assert_eq!(call!(d, cuEventRecord, e => usize, s => usize), 0);
                    call!(d, cuEventQuery, e => usize)
                }),
                (
                    "wait for work that is not captured",
                    905,
                    &|| call!(d, cuStreamWaitEvent, s => usize, before => usize, 0 => u32),
                ),
            ];
            for (what, error, call) in spoil {
                let (ended, graph) = capture(d, s, THREAD_LOCAL, || {
                    assert_eq!((epilogue(d, a, b, 100, s), status(d, s)), (0, 1), "{what}");
                    assert_eq!((call(), status(d, s)), (error, 2), "{what}");
                    assert_eq!(epilogue(d, a, b, 100, s), 901, "{what}");
                });
                assert_eq!((ended, graph, status(d, s)), (901, 0, 0), "{what}");
                assert_eq!(epilogue(d, a, b, 100, s), 0);
                assert_eq!(d.read(b, 100, s), positive, "{what}");
            }
            assert_eq!(at.get(), 0, "nothing was allocated");
        }
        "capture-by-threads" => {
            // Elsewhere a thread may allocate; ending is the beginner's.
            let mut context = 0usize;
            assert_eq!(call!(d, cuCtxGetCurrent, &raw mut context => *mut usize), 0);
            let (ended, graph) = capture(d, s, THREAD_LOCAL, || {
                assert_eq!(epilogue(d, a, b, 100, s), 0);
                std::thread::scope(|threads| {
                    let there = threads.spawn(|| {
                        assert_eq!(call!(d, cuCtxSetCurrent, context => usize), 0);
                        let (mut at, mut graph) = (0u64, 0usize);
                        let made = call!(d, cuMemAlloc_v2, &raw mut at => *mut u64, 16 => usize);
                        (made, call!(d, cuStreamEndCapture, s => usize, &raw mut graph => *mut usize))
                    });
                    assert_eq!(there.join().unwrap(), (0, 908));
                });
            });
            assert!(ended == 0 && graph != 0);
            let none = &mut 0usize;
            assert_eq!(call!(d, cuStreamEndCapture, s => usize, &raw mut *none => *mut usize), 401);
        }
        "graph-pinned-source" => {
            let mut pinned = std::ptr::null_mut::<c_void>();
            assert_eq!(call!(d, cuMemHostAlloc, &raw mut pinned => *mut *mut c_void, 400 => usize, 0 => u32), 0);
            let (ended, graph) = capture(d, s, THREAD_LOCAL, || {
                let from = pinned.cast_const();
                assert_eq!(
                    call!(d, cuMemcpyHtoDAsync_v2, b => u64, from => *const c_void, 400 => usize, s => usize),
                    0
                );
            });
            assert_eq!(ended, 0);
            let exec = instantiate(d, graph, 0).1;
            for round in 0..2 {
                let now: Vec<f32> = values.iter().map(|v| v + round as f32).collect();
                // SAFETY: it has 400 bytes, and no launch is under way.
                unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), pinned.cast(), 100) };
                assert_eq!(launch_graph(d, exec, s), 0);
                assert_eq!(d.read(b, 100, s), now, "it is read when the graph runs");
            }
        }
        "graph-host-source" => {
            let (ended, graph) = capture(d, s, THREAD_LOCAL, || d.write(b, values, s));
            assert_eq!(ended, 0);
            let node = nodes(d, graph)[0];
            assert_eq!(node_type(d, node), 1);
            let mut params = [0u64; 25];
            let to = params.as_mut_ptr().cast::<c_void>();
            assert_eq!(call!(d, cuGraphMemcpyNodeGetParams, node => usize, to => *mut c_void), 0);
            // From the host (1) to the device (2), so many bytes.
            let kinds = [params[4] as u32, params[15] as u32];
            assert_eq!((kinds, params[12 + 10], params[5], params[17]), ([1, 2], 400, values.as_ptr() as u64, b));
            let exec = instantiate(d, graph, 0).1;
            launch_graph(d, exec, s);
            d.synchronize(s);
        }
        "graph-memory-outside" | "graph-memory-before" => {
            let mut t = 0;
            let graph = capture(d, s, THREAD_LOCAL, || {
                t = alloc_on(d, 400, s);
                assert_eq!(epilogue(d, a, t, 100, s), 0);
                assert_eq!(d.free(t, s), 0);
            });
            let exec = instantiate(d, graph.1, 0).1;
            if name == "graph-memory-outside" {
                launch_graph(d, exec, s);
                d.synchronize(s);
            }
            d.read(t, 100, s);
        }
        "graph-frees-foreign" => {
            let mut t = 0;
            let graph = capture(d, s, THREAD_LOCAL, || {
                t = alloc_on(d, 400, s);
                assert_eq!(d.free(t, s), 0);
            });
            let exec = instantiate(d, graph.1, 0).1;
            launch_graph(d, exec, s);
            d.free(t, s);
        }
        // Twenty small kernels: one by one each waits for the host, in a graph for the one before it.
        "graph-clock" => {
            let record = || (0..20).for_each(|_| assert_eq!(epilogue(d, a, b, 100, s), 0));
            let (ended, graph) = capture(d, s, THREAD_LOCAL, record);
            assert_eq!(ended, 0);
            let exec = instantiate(d, graph, 0).1;
            let timed = |run: &dyn Fn()| {
                let (from, to, mut ms) = (event(d), event(d), 0f32);
                assert_eq!(call!(d, cuEventRecord, from => usize, s => usize), 0);
                run();
                assert_eq!(call!(d, cuEventRecord, to => usize, s => usize), 0);
                d.synchronize(s);
                let at = &raw mut ms;
                assert_eq!(call!(d, cuEventElapsedTime_v2, at => *mut f32, from => usize, to => usize), 0);
                f64::from(ms) * 1e3
            };
            let (eager, replayed) = (timed(&record), timed(&|| assert_eq!(launch_graph(d, exec, s), 0)));
            assert!((20.0 * 2.5..20.0 * 2.5 + 6.0).contains(&eager), "{eager} us one by one");
            assert!((20.0 * 1.5..20.0 * 1.5 + 6.0).contains(&replayed), "{replayed} us at once");
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
    for name in [
        "right",
        "with-wait",
        "no-context",
        "graph",
        "graph-memory",
        "graph-keeps-memory",
        "graph-frees-on-launch",
        "graph-pinned-source",
        "graph-clock",
        "capture-spoilt",
        "capture-by-threads",
    ] {
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
        ("kernel-writes-too-far", "epilogue_f32_f32_f32 writes 16 bytes"),
        ("kernel-reads-unwritten", "epilogue_f32_f32_f32 reads what was never written"),
        ("kernel-after-free", "the freed allocation 1"),
        ("swapped-arguments", "epilogue_f32_f32_f32 is given 0x64 as a pointer"),
        ("small-argument", "not aligned to 8"),
        ("graph-host-source", "a graph reads 400 bytes"),
        ("graph-memory-outside", "memory of a graph, which is there only while the graph runs"),
        ("graph-memory-before", "memory of a graph, which is there only while the graph runs"),
        ("graph-frees-foreign", "is a graph's, which frees it itself"),
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
