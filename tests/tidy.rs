//! Keeps the house in order: import directions, file length, documented files, one version of shared crates.

use std::path::{Path, PathBuf};

/// Rooms that every room may import; they import none.
const BASE: &[&str] = &["files", "mask", "plain", "words"];

/// Rooms that each room may import besides itself and the base, every one after those that it imports.
const MAY_IMPORT: &[(&str, &[&str])] = &[
    ("args", &[]),
    ("graph", &[]),
    ("model", &["graph"]),
    ("quant", &["graph", "model"]),
    ("task", &["graph", "model"]),
    ("data", &["graph", "model", "task"]),
    ("exec", &["graph", "model", "quant"]),
    ("train", &["graph", "model", "task", "data", "exec"]),
    ("eval", &["graph", "model", "exec", "quant", "task", "data"]),
    ("prune", &["graph", "model", "exec", "quant", "task"]),
    ("recover", &["graph", "model", "exec", "quant", "task", "data", "eval", "prune"]),
    ("profile", &["graph", "model", "exec", "quant", "task", "data", "eval", "prune", "recover"]),
    ("control", &["graph", "model", "exec", "quant", "task", "data", "eval", "prune", "recover", "profile"]),
    ("plan", &["graph", "model", "quant", "prune", "profile", "recover", "task", "eval"]),
    (
        "session",
        &["graph", "model", "quant", "task", "data", "train", "eval", "prune", "recover", "profile", "control", "plan"],
    ),
    ("config", &["graph", "exec", "plan", "session"]),
    ("agent", &["graph", "model", "quant", "prune", "profile", "task", "eval", "plan", "session", "config"]),
    (
        "host",
        &[
            "graph", "model", "quant", "task", "data", "exec", "train", "eval", "prune", "recover", "profile",
            "control", "plan", "session", "config", "agent",
        ],
    ),
    (
        "tui",
        &[
            "graph", "model", "quant", "task", "data", "train", "eval", "prune", "recover", "profile", "control",
            "plan", "session", "config", "host",
        ],
    ),
    (
        "headless",
        &[
            "args", "graph", "model", "quant", "task", "data", "exec", "train", "eval", "prune", "recover", "profile",
            "control", "plan", "session", "config", "agent", "host",
        ],
    ),
    ("mcp", &["plan", "session", "agent", "host", "headless"]),
    ("serve", &["args", "graph", "model", "exec", "eval", "control", "headless"]),
    (
        "cli",
        &[
            "args", "graph", "model", "prune", "plan", "session", "config", "agent", "host", "tui", "headless",
            "serve", "mcp",
        ],
    ),
];

fn sources(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).expect("readable source folder").flatten() {
        let path = entry.path();
        // What crates of their own built beside their sources is nobody's writing.
        if path.ends_with("target") {
            continue;
        }
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
        sources(&root().join(d), &mut files);
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

/// The rooms that a line of code names: `crate::room::…`, `crate::room;`, and each of `crate::{room::…, …}`.
fn named(code: &str) -> Vec<String> {
    let word = |s: &str| s.trim_start().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>();
    let mut found = Vec::new();
    for (_, rest) in code.match_indices("crate::").map(|(at, m)| code.split_at(at + m.len())) {
        let Some(group) = rest.strip_prefix('{') else {
            found.push(word(rest));
            continue;
        };
        let (mut depth, mut begins) = (0, true);
        for (at, c) in group.char_indices() {
            if begins && !c.is_whitespace() {
                found.push(word(&group[at..]));
            }
            begins = (begins && c.is_whitespace()) || (c == ',' && depth == 0);
            depth += i32::from(c == '{') - i32::from(c == '}');
            if depth < 0 {
                break;
            }
        }
    }
    found
}

#[test]
fn names_are_found_in_every_kind_of_import() {
    let code = "use crate::a::B; use crate::c; pub(in crate::d) x; use crate::{e::{F, g}, h,\n  i::*}; j::crate_::k";
    assert_eq!(named(code), ["a", "c", "d", "e", "h", "i"]);
}

#[test]
fn imports_point_down() {
    let rooms: Vec<&str> = BASE.iter().copied().chain(MAY_IMPORT.iter().map(|(room, _)| *room)).collect();
    let mut bad = Vec::new();
    // Each after what it imports: there are no circles.
    for (n, (room, allowed)) in MAY_IMPORT.iter().enumerate() {
        let before: Vec<&str> = MAY_IMPORT[..n].iter().map(|(room, _)| *room).collect();
        bad.extend(allowed.iter().filter(|a| !before.contains(a)).map(|a| format!("`{room}` before `{a}`")));
    }
    for (path, text) in all(&["src"]) {
        let parts = path.components().skip(1).map(|c| c.as_os_str().to_string_lossy().into_owned());
        // The lower rooms are a package of their own.
        let mut parts = parts.skip_while(|p| p == "engine");
        let room = parts.next().unwrap_or_default();
        let room = room.strip_suffix(".rs").unwrap_or(&room);
        // Unit tests may reach further, and the crate's two roots name everything.
        let tests = parts.any(|p| p == "tests" || p.ends_with("tests.rs"));
        if tests || ["lib", "main"].contains(&room) {
            continue;
        }
        if !rooms.contains(&room) {
            bad.push(format!("{}: `{room}` is no room that is known here", path.display()));
        }
        let allowed = MAY_IMPORT.iter().find(|(r, _)| *r == room).map_or(&[][..], |(_, allowed)| *allowed);
        let code = text.split("#[cfg(test)]\nmod ").next().unwrap_or(&text);
        let code: Vec<&str> = code.lines().filter(|l| !l.trim_start().starts_with("//")).collect();
        for other in named(&code.join("\n")) {
            let known = rooms.contains(&other.as_str()) && !BASE.contains(&other.as_str());
            if known && other != room && !allowed.contains(&other.as_str()) {
                bad.push(format!("{}: `{room}` imports `{other}`", path.display()));
            }
        }
    }
    assert!(bad.is_empty(), "{}", bad.join("\n"));
}

#[test]
fn the_screen_touches_no_tensor_and_no_host_internals() {
    let mut bad = Vec::new();
    for (path, text) in all(&["src/tui", "src/session", "src/engine/graph", "src/plan", "src/config"]) {
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
