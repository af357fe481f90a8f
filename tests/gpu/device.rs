//! Builds the simulated device and runs the program on it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// Every library's name that the loaders look for.
const LIBRARIES: [&str; 9] = [
    "libcuda.so.1",
    "libcuda.so",
    "libnvrtc.so",
    "libcublas.so",
    "libcublasLt.so",
    "libcurand.so",
    "libcudnn.so",
    "libnvidia-ml.so",
    "libnvidia-ml.so.1",
];

/// The folder with the libraries, built once.
pub fn libraries() -> &'static Path {
    static MADE: OnceLock<PathBuf> = OnceLock::new();
    MADE.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/simdevice");
        let target = std::env::var_os("SIMDEVICE_TARGET").map(PathBuf::from);
        let target = target.unwrap_or_else(|| Path::new(env!("CARGO_TARGET_TMPDIR")).join("simdevice"));
        let built = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "--manifest-path"])
            .arg(root.join("Cargo.toml"))
            .env("CARGO_TARGET_DIR", &target)
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let links = target.join("libraries");
        std::fs::create_dir_all(&links).unwrap();
        for name in LIBRARIES {
            let link = links.join(name);
            // A test beside this one may have made it.
            if let Err(e) = std::os::unix::fs::symlink(target.join("debug/libsimdevice.so"), &link) {
                assert_eq!(e.kind(), std::io::ErrorKind::AlreadyExists, "{e}");
            }
        }
        links
    })
}

/// A run of the program on the device.
pub struct Run {
    command: Command,
    log: tempfile::TempDir,
}

/// What it left behind.
pub struct Ran {
    pub output: Output,
    /// What the device found wrong.
    pub misuse: String,
}

impl Run {
    pub fn new(args: &[&str]) -> Run {
        let log = tempfile::tempdir().unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_paring"));
        command
            .args(args)
            .env("LD_LIBRARY_PATH", libraries())
            .env("PARING_HOME", log.path().join("home"))
            .env("SIMDEVICE_LOG", log.path().join("log"))
            .env_remove("RUST_BACKTRACE");
        Run { command, log }
    }

    /// Sets what the device is asked for (`simdevice/src/config.rs`).
    pub fn with(mut self, name: &str, value: &str) -> Run {
        self.command.env(name, value);
        self
    }

    /// With kernels that the address and undefined-behaviour sanitizers watch: their runtime is loaded before anything else.
    pub fn sanitized(self) -> Run {
        let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".into());
        let said = Command::new(compiler).arg("-print-file-name=libasan.so").output().unwrap();
        let runtime = String::from_utf8(said.stdout).unwrap();
        // candle and its libraries keep what they allocate once.
        self.with("SIMDEVICE_KERNELS", "sanitized")
            .with("LD_PRELOAD", runtime.trim())
            .with("ASAN_OPTIONS", "detect_leaks=0")
    }

    pub fn run(mut self) -> Ran {
        let output = self.command.output().unwrap();
        let misuse = std::fs::read_to_string(self.log.path().join("log")).unwrap_or_default();
        Ran { output, misuse }
    }
}

impl Ran {
    /// What it said, both ways.
    pub fn said(&self) -> String {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        format!("{}{}{}", text(&self.output.stdout), text(&self.output.stderr), self.misuse)
    }

    /// The run was right, and the device was used rightly.
    pub fn succeeded(self) -> Ran {
        let said = self.said();
        let clean = self.misuse.is_empty() && !said.contains("Sanitizer") && !said.contains("runtime error:");
        assert!(self.output.status.success() && clean, "{:?}\n{said}", self.output.status);
        self
    }
}
