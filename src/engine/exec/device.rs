//! Choosing a device and the threads that compute runs on; says in words what was opened and why something else was not.

use super::kernel::team::Team;
use super::{ExecError, Result};
use candle_core::Device;
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Which kernels a plan is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Kernels {
    /// The device's own: on a CPU our prepacked kernels, on a GPU as [`Kernels::Tensors`].
    #[default]
    Device,
    /// Operations of the tensor library and plain definitions of a GPU's kernels, on any device: on a CPU this is slow, and
    /// shows what a GPU plan computes.
    Tensors,
}

/// A device that was opened.
#[derive(Debug, Clone)]
pub struct Opened {
    pub device: Device,
    /// What plans on it are made of.
    pub kernels: Kernels,
    /// What it is, for the header: `cpu, 2 threads, avx512-vnni` or `cuda:0 NVIDIA H200`.
    pub words: String,
    /// With `auto`, why the processor was taken instead of a GPU that is there. A machine without one needs no excuse.
    pub note: Option<String>,
}

/// Opens `cpu`, `cuda`, `cuda:N` or `auto` (a GPU when one can be opened, else the CPU with [`Opened::note`]).
///
/// # Errors
/// An unknown spec, or an explicitly named GPU that cannot be opened.
pub fn open(spec: &str) -> Result<Opened> {
    let cpu = |note| Opened { device: Device::Cpu, kernels: Kernels::Device, words: cpu_words(), note };
    let bad = |why: String| ExecError::Device { spec: spec.to_owned(), why };
    match spec.trim() {
        "cpu" => Ok(cpu(None)),
        "auto" | "" => match open_cuda(0) {
            Ok((device, words)) => Ok(Opened { device, kernels: Kernels::Device, words, note: None }),
            Err(why) => Ok(cpu(fallback(Path::new("/"), &why))),
        },
        other => {
            let ordinal = match other.strip_prefix("cuda") {
                Some("") => 0,
                Some(rest) => match rest.strip_prefix(':').and_then(|n| n.parse().ok()) {
                    Some(n) => n,
                    None => return Err(bad(format!("the part after `cuda:` is not a number; {WHICH}"))),
                },
                None => return Err(bad(format!("unknown device; {WHICH}"))),
            };
            let (device, words) = open_cuda(ordinal).map_err(bad)?;
            Ok(Opened { device, kernels: Kernels::Device, words, note: None })
        }
    }
}

/// How devices are named.
const WHICH: &str = "hint: use `cpu`, `cuda:0` or `auto`";

/// Why `auto` stays on the CPU, where that is worth a word: an NVIDIA device is there and cannot be used.
fn fallback(root: &Path, why: &str) -> Option<String> {
    // What the driver makes when it is loaded; a container may have only the first.
    let signs = ["dev/nvidia0", "proc/driver/nvidia/version"];
    signs.iter().any(|s| root.join(s).exists()).then(|| format!("the NVIDIA GPU of this machine is not used: {why}"))
}

/// Lets f32 matrix products on a GPU round their factors to TF32 (11 significant bits), from now on and for the whole process.
/// On a CPU it only notes that it has no effect.
pub fn allow_tf32(opened: &mut Opened) {
    if opened.device.is_cuda() {
        candle_core::cuda::set_gemm_reduced_precision_f32(true);
        opened.words += ", tf32";
        return;
    }
    let why = "tf32 has no effect on a CPU".to_owned();
    opened.note = Some(match opened.note.take() {
        Some(note) => format!("{note}; {why}"),
        None => why,
    });
}

/// The processor in words: threads and the vector instructions that kernels will use.
pub fn cpu_words() -> String {
    format!("cpu, {}, {}", crate::words::counted(threads(), "thread"), isa())
}

/// Which processor this is, by its maker's name and numbers: what a measurement on it is good for. Empty where the system
/// does not tell.
pub fn processor() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    processor_of(&text)
}

/// Of the first processor that `/proc/cpuinfo` lists.
fn processor_of(cpuinfo: &str) -> String {
    let first = cpuinfo.split("\n\n").next().unwrap_or_default();
    // On x86 and on Arm.
    let telling = [
        "vendor_id",
        "cpu family",
        "model",
        "model name",
        "stepping",
        "cache size",
        "CPU implementer",
        "CPU part",
        "CPU variant",
    ];
    let fields = first.lines().filter_map(|l| l.split_once(':')).filter(|(k, _)| telling.contains(&k.trim()));
    fields.map(|(_, v)| v.trim()).filter(|v| !v.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The best instruction set that kernels choose on this machine.
pub fn isa() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw") {
            return match is_x86_feature_detected!("avx512vnni") {
                true if super::kernel::matrix() => "avx512-amx",
                true => "avx512-vnni",
                false => "avx512",
            };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
            return "avx2";
        }
    }
    if cfg!(target_arch = "aarch64") { "neon" } else { "generic" }
}

/// [`isa`], and what `PARING_KERNELS` holds it down to: with the same words the same sums are rounded in the same order.
pub fn kernels() -> String {
    match std::env::var("PARING_KERNELS").as_deref() {
        Ok(held @ ("portable" | "vector")) => format!("{} ({held})", isa()),
        _ => isa().to_owned(),
    }
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(_ordinal: usize) -> Result<(Device, String), String> {
    Err("this build has no CUDA in it; hint: `cargo build --release --features cuda` makes one that has; `--device cpu` does without".into())
}

/// cudarc's run-time loader panics when a library is missing, and opening uses all of them.
#[cfg(feature = "cuda")]
fn open_cuda(ordinal: usize) -> Result<(Device, String), String> {
    let opened = crate::words::unwound(|| super::cuda::open(ordinal)).and_then(|opened| opened);
    opened.map_err(|why| {
        let line = why.lines().next().unwrap_or("unknown failure").trim();
        // The loader lists every file name that it tried.
        let line = match line.split_once("Unable to dynamically load the \"") {
            Some((_, rest)) => match rest.split('"').next().unwrap_or("cuda") {
                "cuda" => "libcuda was not found: is the NVIDIA driver installed?".to_owned(),
                name => format!("lib{name} was not found: put the folder of the CUDA libraries on LD_LIBRARY_PATH"),
            },
            None => line.to_owned(),
        };
        format!("opening cuda:{ordinal} failed ({line}); hint: {}", way_out(&line))
    })
}

/// What to do about a device that does not open, by the driver's name of the failure.
#[cfg(any(test, feature = "cuda"))]
fn way_out(line: &str) -> &'static str {
    const HINTS: [(&str, &str); 6] = [
        (
            "NO_DEVICE",
            "`nvidia-smi` lists no GPU either, or CUDA_VISIBLE_DEVICES hides it; `--device cpu` does without",
        ),
        ("INSUFFICIENT_DRIVER", DRIVER),
        ("DRIVER_MISMATCH", DRIVER),
        ("UNSUPPORTED_PTX_VERSION", DRIVER),
        ("OUT_OF_MEMORY", "`nvidia-smi` tells who holds the GPU's memory; `--device cpu` does without"),
        ("INVALID_DEVICE", "`nvidia-smi -L` lists the GPUs that are there, from 0"),
    ];
    const DRIVER: &str =
        "the NVIDIA driver is older than the CUDA that this program was built with: update it, or use `--device cpu`";
    let known = HINTS.into_iter().find(|(name, _)| line.contains(name));
    known.map_or("`nvidia-smi` tells whether the GPU is well; `--device cpu` does without", |(_, hint)| hint)
}

/// Threads that a pool may have at most: more than the largest machines have cores, fewer than any system refuses to start.
pub const MOST_THREADS: usize = 1024;

static THREADS: Mutex<Option<usize>> = Mutex::new(None);

/// How many threads compute uses from now on, for plans compiled without an explicit number. At least one.
pub fn set_threads(n: usize) {
    *THREADS.lock().unwrap_or_else(PoisonError::into_inner) = Some(n.max(1));
}

/// The number that [`set_threads`] set, else what the system offers.
pub fn threads() -> usize {
    let set = *THREADS.lock().unwrap_or_else(PoisonError::into_inner);
    set.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, |n| n.get()))
}

/// Threads for compute, as rayon's pool and as a team.
pub(crate) struct Workers {
    pub rayon: rayon::ThreadPool,
    pub team: Arc<Team>,
}

/// The shared pool of `n` threads; pools are made once a size and kept.
pub(crate) fn pool(n: usize) -> Result<Arc<Workers>> {
    static POOLS: OnceLock<Mutex<HashMap<usize, Arc<Workers>>>> = OnceLock::new();
    if n > MOST_THREADS {
        // Each would take a stack, and a machine's last process numbers.
        let why = format!("{n} threads are asked for, at most {MOST_THREADS} are of use; hint: a smaller --threads");
        return Err(ExecError::Device { spec: "cpu".into(), why });
    }
    let mut pools = POOLS.get_or_init(Default::default).lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(p) = pools.get(&n) {
        return Ok(p.clone());
    }
    let made = rayon::ThreadPoolBuilder::new().num_threads(n).thread_name(|i| format!("exec-{i}")).build();
    let rayon = made.map_err(|e| ExecError::Device { spec: "cpu".into(), why: format!("no threads: {e}") })?;
    let made = Arc::new(Workers { rayon, team: Team::new(n) });
    pools.insert(n, made.clone());
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_processor_is_told_by_name_and_numbers_not_by_its_clock() {
        let info = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 143\nmodel name\t: Intel(R) Xeon(R)\n\
                    stepping\t: 8\ncpu MHz\t\t: 2000.123\ncache size\t: 107520 KB\n\nprocessor\t: 1\nmodel name\t: other\n";
        assert_eq!(processor_of(info), "GenuineIntel 6 143 Intel(R) Xeon(R) 8 107520 KB");
        assert_eq!(processor_of(""), "");
    }

    #[test]
    fn what_does_not_open_has_a_way_out_of_its_own() {
        let hint = |line: &str| way_out(line);
        assert!(hint("DriverError(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH, \"x\")").contains("update it"));
        assert!(hint("DriverError(CUDA_ERROR_INVALID_DEVICE, \"x\")").contains("nvidia-smi -L"));
        assert!(hint("something else").contains("--device cpu"));
        let unknown = open("gpu").map(|_| ()).unwrap_err().to_string();
        assert!(unknown.ends_with(WHICH), "{unknown}");
    }

    #[test]
    fn no_pool_takes_a_machines_last_threads() {
        let refused = pool(20_000).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(refused.contains("20000 threads") && refused.contains("1024"), "{refused}");
    }

    #[test]
    fn specs_open_or_say_why() {
        let cpu = open("cpu").unwrap();
        assert!(cpu.device.is_cpu() && cpu.note.is_none() && cpu.words.starts_with("cpu"));
        assert!(open("gpu").unwrap_err().to_string().contains("`gpu`"));
        assert!(open("cuda:x").is_err());
        let auto = open("auto").unwrap();
        assert!(auto.device.is_cpu() || auto.note.is_none(), "{auto:?}");
        let mut cpu = cpu;
        allow_tf32(&mut cpu);
        assert!(cpu.note.is_some_and(|n| n.contains("no effect")) && !cpu.words.contains("tf32"));
    }

    #[test]
    fn only_a_gpu_that_is_there_is_missed() {
        let root = tempfile::tempdir().unwrap();
        assert_eq!(fallback(root.path(), "no CUDA"), None);
        // The driver's folder alone may be left over from a container's image.
        std::fs::create_dir_all(root.path().join("proc/driver/nvidia")).unwrap();
        assert_eq!(fallback(root.path(), "no CUDA"), None);
        std::fs::write(root.path().join("proc/driver/nvidia/version"), "NVRM").unwrap();
        let note = fallback(root.path(), "no CUDA").unwrap();
        assert!(note.contains("NVIDIA") && note.ends_with("no CUDA"), "{note}");
    }
}
