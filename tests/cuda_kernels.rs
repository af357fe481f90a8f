//! The GPU's kernels without a GPU: compiled as C++ and run on threads, each against its definition
//! (`tests/kernels/on_threads.cpp`). A machine without a C++20 compiler says so and passes.

use std::path::Path;
use std::process::Command;

/// Whether `compiler` makes something of C++20 with the half-precision type that the test needs.
fn works(compiler: &str, dir: &Path) -> bool {
    let probe = dir.join("probe.cpp");
    std::fs::write(&probe, "#include <barrier>\nint main() { std::barrier<> b(1); _Float16 h = 0; return (int)h; }\n")
        .unwrap();
    let built =
        Command::new(compiler).args(["-std=c++20", "-pthread", "-o"]).arg(dir.join("probe")).arg(&probe).output();
    built.is_ok_and(|o| o.status.success())
}

#[test]
fn every_kernel_computes_its_definition() {
    let dir = tempfile::tempdir().unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let named = std::env::var("CXX").ok();
    let compilers = named.iter().map(String::as_str).chain(["c++", "g++", "clang++"]);
    let Some(compiler) = compilers.into_iter().find(|c| works(c, dir.path())) else {
        eprintln!("no C++20 compiler here: the kernels were not run");
        return;
    };
    let program = dir.path().join("on_threads");
    let built = Command::new(compiler)
        // Nothing may fuse that the GPU's intrinsics keep apart.
        .args(["-std=c++20", "-O1", "-ffp-contract=off", "-pthread", "-w", "-I"])
        .arg(root.join("src/engine/exec/cuda"))
        .arg("-o")
        .arg(&program)
        .arg(root.join("tests/kernels/on_threads.cpp"))
        .output()
        .unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    let ran = Command::new(&program).output().unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stdout));
}
