//! Keeps the house in order: import directions, file length, documented files, one version of shared crates.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Rooms that every room may import; they import none.
const BASE: &[&str] = &["files", "words"];

/// Rooms that each room may import besides itself. `cli`, `headless` and `host` wire everything.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("graph", &[]),
    ("model", &["graph"]),
    ("exec", &["graph", "model", "quant"]),
    ("quant", &["graph", "model", "exec"]),
    ("data", &["graph", "model", "exec", "quant"]),
    ("eval", &["graph", "model", "exec", "quant", "data"]),
    ("prune", &["graph", "model", "exec", "quant"]),
    ("recover", &["graph", "model", "exec", "quant", "data", "eval", "prune"]),
    ("profile", &["graph", "model", "exec", "quant", "data", "eval", "prune", "recover"]),
    ("plan", &["graph", "model", "quant", "prune", "profile", "eval"]),
    ("agent", &["graph", "model", "quant", "prune", "profile", "eval", "plan", "session", "config"]),
    ("session", &["graph", "model", "quant", "data", "eval", "prune", "recover", "profile", "plan"]),
    ("config", &["graph", "plan", "session"]),
    (
        "tui",
        &[
            "graph", "model", "quant", "data", "eval", "prune", "recover", "profile", "plan", "session", "config",
            "host",
        ],
    ),
];

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("readable source folder").flatten() {
        let path = entry.path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn all(dirs: &[&str]) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    for d in dirs {
        if root().join(d).is_dir() {
            sources(&root().join(d), &mut files);
        }
    }
    files.sort();
    files
        .into_iter()
        .map(|f| {
            let text = std::fs::read_to_string(&f).expect("utf-8 source");
            (f.strip_prefix(root()).expect("inside").to_path_buf(), text)
        })
        .collect()
}

#[test]
fn files_are_short_and_say_what_they_are_for() {
    let mut bad = Vec::new();
    for (path, text) in all(&["src", "tests", "benches"]) {
        let lines = text.lines().count();
        if lines > 800 {
            bad.push(format!("{}: {lines} lines, at most 800", path.display()));
        }
        if !text.starts_with("//!") {
            bad.push(format!("{}: does not open with what it is for", path.display()));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn imports_point_down() {
    let allowed: BTreeMap<&str, &[&str]> = MAY_IMPORT.iter().copied().collect();
    let rooms: Vec<&str> = allowed.keys().copied().chain(["host", "cli", "headless"]).collect();
    let mut bad = Vec::new();
    for (path, text) in all(&["src"]) {
        let room = path.components().nth(1).map(|c| c.as_os_str().to_string_lossy().into_owned()).unwrap_or_default();
        let none: &[&str] = &[];
        let base = BASE.iter().any(|b| room.strip_suffix(".rs").unwrap_or(&room) == *b);
        let Some(allowed) = (if base { Some(&none) } else { allowed.get(room.as_str()) }) else { continue };
        // Unit tests may reach further: everything from the test module on is left out.
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or(&text);
        for (n, line) in code.lines().enumerate() {
            if line.trim_start().starts_with("//") {
                continue;
            }
            for other in rooms.iter().filter(|r| **r != room) {
                if line.contains(&format!("crate::{other}::")) && !allowed.contains(other) {
                    bad.push(format!("{}:{}: `{room}` imports `{other}`", path.display(), n + 1));
                }
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn the_screen_touches_no_tensor_and_no_host_internals() {
    let mut bad = Vec::new();
    for (path, text) in all(&["src/tui", "src/session", "src/graph", "src/plan", "src/config"]) {
        for word in ["candle_core", "candle_nn", "rten_"] {
            if text.contains(word) {
                bad.push(format!("{}: mentions `{word}`", path.display()));
            }
        }
        if path.starts_with("src/tui") {
            for line in text.lines().filter(|l| l.contains("crate::host::")) {
                if !line.contains("crate::host::client") {
                    bad.push(format!("{}: `{}`", path.display(), line.trim()));
                }
            }
        }
        if path.starts_with("src/session") && text.contains("tokio::") {
            bad.push(format!("{}: mentions tokio", path.display()));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

/// What the session's thread asks while commands wait must not be able to reach anything heavy.
#[test]
fn commands_are_judged_without_compute() {
    let mut bad = Vec::new();
    for (path, text) in all(&["src/host"]) {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if !["commands.rs", "desk.rs"].contains(&name.as_str()) {
            continue;
        }
        for word in ["crate::exec", "crate::data", "crate::eval", "crate::recover", "Dataset", "Engine", "compute"] {
            if text.lines().any(|l| l.contains(word) && !l.trim_start().starts_with("//")) {
                bad.push(format!("{}: mentions `{word}`", path.display()));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn crates_whose_types_cross_have_one_version() {
    let lock = std::fs::read_to_string(root().join("Cargo.lock")).expect("Cargo.lock");
    let crates = [
        "candle-core",
        "candle-nn",
        "cudarc",
        "ratatui-core",
        "crossterm",
        "tokio",
        "serde",
        "serde_json",
        "safetensors",
        "rten-gemm",
        "half",
    ];
    let mut bad = Vec::new();
    for name in crates {
        let n = lock.lines().filter(|l| *l == format!("name = \"{name}\"")).count();
        if n > 1 {
            bad.push(format!("`{name}` is locked in {n} versions"));
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}
