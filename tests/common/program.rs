//! The program as a command, for tests of what it prints: run in a home of its own, on fixtures and token ids.

use serde_json::Value;
use std::path::Path;
use std::process::Command;

/// A file or folder of `tests/conformance`.
pub fn fixture(name: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    dir.join(name).to_str().expect("a name").to_owned()
}

/// The program in a home of its own.
pub struct Rig {
    pub dir: tempfile::TempDir,
}

impl Rig {
    pub fn new() -> Rig {
        Rig { dir: tempfile::tempdir().expect("temp dir") }
    }

    pub fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().expect("a name").to_owned()
    }

    /// Token ids below 96, in a file.
    pub fn ids(&self, name: &str, count: u32, seed: u32) -> String {
        let path = self.path(name);
        std::fs::write(&path, super::ids(count as usize, seed)).expect("written");
        path
    }

    /// The exit code, and what was written to standard output and to standard error.
    pub fn paring(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let out = Command::new(env!("CARGO_BIN_EXE_paring"))
            .args(args)
            .env("PARING_HOME", self.path("home"))
            .env("XDG_CONFIG_HOME", self.path("config"))
            // What is tested so is not how well latency is known.
            .env("PARING_PATIENCE", "0.1")
            .env_remove("OPENAI_BASE_URL")
            .output()
            .expect("run");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("UTF-8");
        (out.status.code(), text(out.stdout), text(out.stderr))
    }

    pub fn run(&self, args: &[&str]) -> (bool, String) {
        let (code, out, err) = self.paring(args);
        let done = code == Some(0);
        (done, if done { out } else { err })
    }

    pub fn json(&self, args: &[&str]) -> Value {
        let (done, said) = self.run(&[args, &["--json"]].concat());
        assert!(done, "{args:?}: {said}");
        serde_json::from_str(&said).expect("JSON")
    }
}
