//! Whole runs on the simulated device: what a GPU says is held against what the CPU says of the same model and images.

use crate::device::Run;
use serde_json::Value;
use std::path::{Path, PathBuf};

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

/// How a run is made.
#[derive(Clone, Copy)]
struct How {
    device: &'static str,
    kernels: &'static str,
    seed: &'static str,
}

const CPU: How = How { device: "cpu", kernels: "plain", seed: "0" };
const GPU: How = How { device: "cuda:0", ..CPU };

fn run(args: &[&str], how: How) -> Value {
    let args = [args, &["--device", how.device, "--json"]].concat();
    // What is asked here is what is computed: latencies may be rough.
    let run = Run::new(&args).with("SIMDEVICE_SEED", how.seed).with("PARING_PATIENCE", "0.05");
    let run = if how.kernels == "sanitized" { run.sanitized() } else { run.with("SIMDEVICE_KERNELS", how.kernels) };
    let ran = run.run().succeeded();
    serde_json::from_slice(&ran.output.stdout).unwrap()
}

/// Correct answers of an evaluation on so many images.
fn correct(model: &Path, data: &str, images: &str, precision: &str, how: How) -> i64 {
    let report = run(&["eval", text(model), "--data", data, "--limit", images, "--precision", precision], how);
    report["correct"].as_i64().unwrap_or_else(|| panic!("no count in {report}"))
}

/// In f32 the same number of answers is right; in the others it differs by no more than `slack`.
fn same_answers(model: &Path, data: &str, images: &str, slack: i64, gpu: How) {
    for precision in ["f32", "int8", "f16", "bf16", "w8", "w4", "w4g32", "fp8"] {
        let [gpu, cpu] = [gpu, CPU].map(|how| correct(model, data, images, precision, how));
        let allowed = if precision == "f32" { 0 } else { slack };
        assert!((gpu - cpu).abs() <= allowed, "{}, {precision}: {gpu} on the GPU, {cpu} on the CPU", model.display());
    }
}

const DEMOS: [&str; 2] = ["demo_vit.safetensors", "demo_cnn.safetensors"];

#[test]
fn both_demos_answer_as_on_the_cpu() {
    for name in DEMOS {
        same_answers(&asset(name), "synthetic:eval", "64", 1, GPU);
    }
}

#[test]
fn every_load_and_store_is_within_its_buffer_in_any_order_that_streams_allow() {
    for name in DEMOS {
        for seed in ["0", "1", "2"] {
            same_answers(&asset(name), "synthetic:eval", "4", 1, How { kernels: "checked", seed, ..GPU });
        }
    }
}

/// An A100 has no tensor cores for 8-bit floats, and says so before anything runs; packed weights it has.
#[test]
fn what_a_device_lacks_is_refused_with_the_reason() {
    let model = asset(DEMOS[1]);
    let eval = ["eval", text(&model), "--data", "synthetic:eval", "--limit", "20", "--device", "cuda:0", "--precision"];
    let on = |precision| Run::new(&[&eval[..], &[precision]].concat()).with("SIMDEVICE", "a100").run();
    let refused = on("fp8");
    let said = refused.said();
    let why = "fp8 needs compute capability 8.9; this is 8.0; hint: ";
    assert!(!refused.output.status.success() && said.contains(why) && refused.misuse.is_empty(), "{said}");
    on("w4").succeeded();
}

#[test]
#[ignore = "a quarter of an hour: by hand"]
fn real_networks_answer_as_on_the_cpu() {
    let Some(data) = real("cifar10") else { return };
    for name in ["resnet56/resnet56.safetensors", "vit_cifar10/vit_cifar10.safetensors"] {
        let Some(model) = real(name) else { return };
        same_answers(&model, text(&data), "1000", 5, GPU);
    }
}

/// A prompt at once, then token by token over keys and values on the device, in any order that streams allow: the same text, and a
/// profile of one token.
#[test]
fn a_language_model_writes_as_on_the_cpu() {
    let decoder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/decoders/gemma2.gguf");
    for kv in ["f32", "f16"] {
        let how = How { seed: "1", ..GPU };
        let report = run(&["profile", text(&decoder), "--decode", "12", "--kv", kv, "--runs", "3"], how);
        assert!(
            report["tokens_per_s"].as_f64().unwrap() > 0.0 && report["cache_bytes"].as_u64().unwrap() > 0,
            "{report}"
        );
    }
    let Some(model) = real("stories260k") else { return };
    let ask = ["generate", text(&model), "-p", "Once upon a time", "-n", "40", "--kv"];
    let cpu = run(&[&ask[..], &["f32"]].concat(), CPU);
    for (kv, seed) in [("f32", "0"), ("f32", "1"), ("f16", "2")] {
        let gpu = run(&[&ask[..], &[kv]].concat(), How { kernels: "checked", seed, ..GPU });
        assert_eq!(gpu["ids"], cpu["ids"], "{kv}, {seed}");
        assert_eq!(gpu["ids"].as_array().map(Vec::len), Some(40));
    }
}

/// Profile, sensitivity, plan, round, evaluation and export on the device, of `images` images (calibrated on a third as
/// many), `batch` at once: what is told of the model before and after is what a CPU finds with the same files.
fn a_whole_run(model: &Path, data: &str, calib: &str, (images, batch): (usize, &str), gpu: How) {
    let dir = tempfile::tempdir().unwrap();
    let (limit, calib_limit) = (images.to_string(), (images / 3).to_string());
    let data_args = ["--data", data, "--limit", &limit, "--calib", calib, "--calib-limit", &calib_limit];
    // Fewer MACs are pruned, fewer bytes are int8's.
    let rest = ["--budget", "macs=0.9,memory=0.5", "--batch", batch, "--out", text(dir.path())];
    let report = run(&[&["run", text(model)], &data_args[..], &rest].concat(), gpu);
    assert_eq!(report["met"], true, "{report}");
    let told = |of: &str| report[of]["correct"].as_i64().unwrap_or_else(|| panic!("no count of {of} in {report}"));
    let name = model.display();
    assert_eq!(told("baseline"), correct(model, data, &limit, "f32", CPU), "{name} before");
    let decisions = report["rounds"][0]["decisions"].to_string();
    assert!(
        decisions.contains("int8") && decisions.contains("prune"),
        "{name}: neither is to be left out: {decisions}"
    );
    let kept = dir.path().join("model.safetensors");
    let [on_gpu, on_cpu] = [gpu, CPU].map(|how| run(&["eval", text(&kept), "--data", data, "--limit", &limit], how));
    let [on_gpu, on_cpu] = [on_gpu, on_cpu].map(|r| r["correct"].as_i64().unwrap());
    assert_eq!(told("final"), on_gpu, "{name}: the exported file is the model that was evaluated");
    // One in two hundred, at least one: int8's ranges of a batch are its own on either.
    let slack = (images as i64 / 200).max(1);
    assert!((on_gpu - on_cpu).abs() <= slack, "{name} after: {on_gpu} on the GPU, {on_cpu} on the CPU");
}

#[test]
#[ignore = "minutes: by hand"]
fn whole_runs_of_the_demos_end_as_on_the_cpu() {
    DEMOS.iter().for_each(|name| a_whole_run(&asset(name), "synthetic:eval", "synthetic:calib", (200, "64"), GPU));
}

/// The real networks with their evaluation and calibration data.
fn real_networks() -> Option<([PathBuf; 2], PathBuf, PathBuf)> {
    let networks = [real("resnet56/resnet56.safetensors")?, real("vit_cifar10/vit_cifar10.safetensors")?];
    Some((networks, real("cifar10/test_batch.bin")?, real("cifar10/calib_5000.bin")?))
}

#[test]
#[ignore = "half an hour: by hand"]
fn whole_runs_of_real_networks_end_as_on_the_cpu() {
    let Some((networks, data, calib)) = real_networks() else { return };
    networks.iter().for_each(|model| a_whole_run(model, text(&data), text(&calib), (200, "16"), GPU));
}

/// Every access is several times as slow: few images, and few at once.
#[test]
#[ignore = "an hour: by hand"]
fn whole_runs_are_clean_under_the_sanitizers() {
    let how = How { kernels: "sanitized", ..GPU };
    DEMOS.iter().for_each(|name| a_whole_run(&asset(name), "synthetic:eval", "synthetic:calib", (24, "4"), how));
    let Some((networks, data, calib)) = real_networks() else { return };
    networks.iter().for_each(|model| a_whole_run(model, text(&data), text(&calib), (24, "4"), how));
}
