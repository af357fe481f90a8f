//! The real binary's `selftest`: every kernel kind is there, really computed, and a missing GPU is said in words.

use serde_json::Value;
use std::process::{Command, Output};

fn paring(args: &[&str]) -> Output {
    let dir = tempfile::tempdir().expect("temp dir");
    Command::new(env!("CARGO_BIN_EXE_paring"))
        .args(args)
        .current_dir(dir.path())
        .env("PARING_HOME", dir.path().join("home"))
        .env("XDG_CONFIG_HOME", dir.path().join("config"))
        .output()
        .expect("runs")
}

#[test]
fn every_kernel_of_the_cpu_is_checked_and_right() {
    let out = paring(&["selftest", "--device", "cpu", "--json"]);
    let stderr = String::from_utf8_lossy(&out.stderr);
    let report: Value = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {stderr}"));
    assert_eq!(report["passed"], true, "{report:#}");
    assert_eq!(out.status.code(), Some(0), "{stderr}");
    assert!(report["device"].as_str().is_some_and(|d| d.starts_with("cpu")), "{report:#}");

    let checks = report["checks"].as_array().expect("checks");
    let f32_kinds = [
        ("conv 1x1", "f32"),
        ("conv 3x3", "f32"),
        ("conv 3x3/2", "f32"),
        ("conv 7x7/2", "f32"),
        ("grouped conv 3x3", "f32"),
        ("depthwise conv 3x3", "f32"),
        ("linear", "f32"),
        ("batch norm", "affine"),
        ("layer norm", "layernorm"),
        ("attention, fused", "attention"),
        ("attention, three inputs", "attention"),
        ("softmax, wide scores", "attention"),
        ("gelu-erf", "activation"),
        ("gelu-tanh", "activation"),
        ("silu", "activation"),
        ("relu", "activation"),
        ("max pool 3x3/2", "maxpool"),
        ("global mean", "mean"),
        ("mean tokens", "mean"),
        ("add", "add"),
        ("channel pad", "pad"),
        ("select token", "copy"),
        ("positions", "add"),
        ("prepend tokens", "copy"),
        ("embedding", "gather"),
        ("route", "route"),
        ("dispatch", "copy"),
        ("experts", "combine"),
    ];
    let find = |name: &str, precision: &str| {
        let found = checks.iter().find(|c| c["name"] == name && c["precision"] == precision);
        found.unwrap_or_else(|| panic!("no {precision} check of `{name}`"))
    };
    for (name, kernel) in f32_kinds {
        let check = find(name, "f32");
        assert!(check["kernel"].as_str().is_some_and(|k| k.contains(kernel)), "{check:#}");
    }
    // These copy or choose values, or halve and quarter them, so that nothing is rounded; every other kernel rounds somewhere.
    let copies = [
        "channel pad",
        "channel map",
        "prepend",
        "select",
        "tokens after",
        "concat",
        "flatten",
        "patch merge",
        "embedding",
        "dispatch",
    ];
    let exact = [&copies[..], &["relu", "max pool", "scalar", "avg pool 2x2"]].concat();
    for check in checks {
        let name = check["name"].as_str().expect("a name");
        let (error, tolerance) = (check["error"].as_f64().expect("a number"), check["tolerance"].as_f64());
        assert_eq!(check["outcome"], "passed", "{check:#}");
        assert!(error <= tolerance.expect("a number"), "{check:#}");
        assert_eq!(error > 0.0, !exact.iter().any(|e| name.starts_with(e)), "{check:#}");
    }
    for name in ["conv 1x1", "conv 3x3", "conv 3x3/2", "conv 7x7/2", "grouped conv 3x3", "depthwise conv 3x3", "linear"]
    {
        let (float, int8) = (find(name, "f32"), find(name, "int8"));
        assert!(int8["kernel"].as_str().is_some_and(|k| k.contains("u8i8")), "{int8:#}");
        let ratio = int8["error"].as_f64().expect("a number") / float["error"].as_f64().expect("a number");
        assert!(ratio > 100.0, "int8 errors are quantization's, not f32 rounding's: {int8:#} {float:#}");
        assert!(int8["spread"].as_f64().is_some_and(|s| s > 0.5), "{int8:#}");
    }
    for model in ["model demo:vit", "model demo:cnn"] {
        assert!(find(model, "f32")["tolerance"].as_f64().is_some_and(|t| t > 0.0 && t < 0.01));
    }

    let timings = report["timings"].as_array().expect("timings");
    assert!(timings.len() >= 7, "{timings:#?}");
    for t in timings {
        assert!(t["ms"].as_f64().is_some_and(|ms| ms > 0.0), "{t:#}");
        assert!(t["gbs"].as_f64().is_some_and(|r| r > 0.0), "{t:#}");
        assert!(t["share"].as_f64().is_some_and(|s| s > 0.0 && s <= 1.3), "{t:#}");
    }
    for word in ["conv 3x3", "conv 1x1", "linear", "attention"] {
        let counted: Vec<_> =
            timings.iter().filter(|t| t["name"].as_str().is_some_and(|n| n.starts_with(word))).collect();
        assert!(!counted.is_empty() && counted.iter().all(|t| t["gflops"].as_f64().is_some_and(|r| r > 0.0)), "{word}");
    }
    assert!(report["ceilings"]["f32_gflops"].as_f64().is_some_and(|r| r > 0.0), "{report:#}");
}

/// Without a GPU, or without CUDA in the build: in words, with a way out, and nothing on standard output.
#[test]
fn a_gpu_that_is_not_there_is_an_error_that_says_why() {
    let out = paring(&["selftest", "--device", "cuda:99", "--json"]);
    let stderr = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{stderr}");
    assert!(out.stdout.is_empty());
    assert!(stderr.contains("cuda:99") && stderr.contains("hint:") && stderr.contains("--device cpu"), "{stderr}");
    if cfg!(not(feature = "cuda")) {
        let out = paring(&["selftest", "--device", "cuda:0"]);
        let stderr = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{stderr}");
        assert!(stderr.contains("`cuda:0`") && stderr.contains("no CUDA in it"), "{stderr}");
        assert!(stderr.contains("--features cuda") && stderr.contains("hint:"), "{stderr}");
    }
}
