//! Whole runs on the simulated device: what a GPU says is held against what the CPU says of the same model and images.

use crate::device::{Ran, Run};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// Images that each evaluation takes: what a software device gets through in seconds.
const IMAGES: &str = "200";

fn asset(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets").join(name)
}

/// One of the real networks beside the repository; `None`, said aloud, where they are not there.
fn real(path: &str) -> Option<PathBuf> {
    let root = std::env::var_os("PARING_REAL").map(PathBuf::from);
    let root = root.unwrap_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/real"));
    let path = root.join(path);
    if path.exists() {
        return Some(path);
    }
    assert!(std::env::var_os("PARING_REAL_DATA").is_none(), "required, and not there: {}", path.display());
    eprintln!("skipped: no real data");
    None
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn json(ran: Ran) -> Value {
    let ran = ran.succeeded();
    serde_json::from_slice(&ran.output.stdout).unwrap()
}

/// Correct answers of an evaluation.
fn correct(model: &Path, data: &str, precision: &str, device: &str) -> i64 {
    let args = [
        "eval",
        text(model),
        "--data",
        data,
        "--limit",
        IMAGES,
        "--precision",
        precision,
        "--device",
        device,
        "--json",
    ];
    let report = json(Run::new(&args).with("SIMDEVICE_KERNELS", "plain").run());
    report["correct"].as_i64().unwrap_or_else(|| panic!("no count in {report}"))
}

/// f32 counts the same images; the others differ by no more than `slack` of them.
fn same_answers(model: &Path, data: &str, slack: i64) {
    for precision in ["f32", "int8", "f16", "bf16"] {
        let (gpu, cpu) = (correct(model, data, precision, "cuda:0"), correct(model, data, precision, "cpu"));
        let allowed = if precision == "f32" { 0 } else { slack };
        assert!((gpu - cpu).abs() <= allowed, "{precision}: {gpu} on the GPU, {cpu} on the CPU");
    }
}

#[test]
fn both_demos_answer_as_on_the_cpu() {
    for name in ["demo_vit.safetensors", "demo_cnn.safetensors"] {
        same_answers(&asset(name), "synthetic:eval", 1);
    }
}

#[test]
fn real_networks_answer_as_on_the_cpu() {
    let Some(data) = real("cifar10") else { return };
    for name in ["resnet56_cifar10.safetensors", "vit_cifar10"] {
        let Some(model) = real(name) else { return };
        same_answers(&model, text(&data), 2);
    }
}

/// Profile, sensitivity, plan, run, evaluation and export on the device; what it wrote evaluates the same on the CPU.
#[test]
fn a_whole_run_ends_as_on_the_cpu() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["demo_vit.safetensors", "demo_cnn.safetensors"] {
        let (model, out) = (asset(name), dir.path().join(name));
        let args = [
            "run",
            text(&model),
            "--data",
            "synthetic:eval",
            "--limit",
            IMAGES,
            "--calib",
            "synthetic:calib",
            "--calib-limit",
            "64",
            "--budget",
            "macs=0.8",
            "--device",
            "cuda:0",
            "--out",
            text(&out),
            "--json",
        ];
        let report = json(Run::new(&args).with("SIMDEVICE_KERNELS", "plain").run());
        assert_eq!(report["met"], true, "{report}");
        let kept = out.join("model.safetensors");
        assert_eq!(
            correct(&kept, "synthetic:eval", "f32", "cuda:0"),
            correct(&kept, "synthetic:eval", "f32", "cpu"),
            "{name}"
        );
    }
}
