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

    pub fn run(&self, args: &[&str]) -> (bool, String) {
        let mut paring = Command::new(env!("CARGO_BIN_EXE_paring"));
        let out = paring.args(args).env("PARING_HOME", self.dir.path().join("home")).output().expect("run");
        let text = if out.status.success() { out.stdout } else { out.stderr };
        (out.status.success(), String::from_utf8(text).expect("UTF-8"))
    }

    pub fn json(&self, args: &[&str]) -> Value {
        let (done, said) = self.run(&[args, &["--json"]].concat());
        assert!(done, "{args:?}: {said}");
        serde_json::from_str(&said).expect("JSON")
    }
}
