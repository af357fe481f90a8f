//! Devices that fail: each ends in a message that names what failed, and `auto` goes on with the CPU.

use crate::device::{Ran, Run, libraries};
use serde_json::Value;
use std::path::Path;

/// An evaluation of a demo on a device.
fn evaluation(device: &str) -> Run {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/demo_cnn.safetensors");
    let args =
        ["eval", model.to_str().unwrap(), "--data", "synthetic:eval", "--limit", "100", "--device", device, "--json"];
    Run::new(&args).with("SIMDEVICE_KERNELS", "plain")
}

fn evaluated(fault: &str) -> Ran {
    evaluation("cuda:0").with("SIMDEVICE_FAULT", fault).run()
}

#[test]
fn what_fails_is_named_with_the_way_out() {
    for (fault, words) in [
        ("no-device", ["no CUDA-capable device is detected", "CUDA_VISIBLE_DEVICES hides it"]),
        ("driver-too-old", ["unsupported display driver", "update it"]),
        ("oom@1", ["opening cuda:0 failed (DriverError(CUDA_ERROR_OUT_OF_MEMORY", "who holds the GPU's memory"]),
        ("oom-from@20", ["CUDA_ERROR_OUT_OF_MEMORY", "`nvidia-smi` tells who else"]),
        ("illegal@1", ["an illegal memory access", "the GPU is lost to this process"]),
        ("illegal@60", ["node `", "the GPU is lost to this process"]),
        ("launch@60", ["unspecified launch failure", "what was approved is kept"]),
        ("ecc@60", ["node `", "what was approved is kept"]),
        ("lost@60", ["node `", "what was approved is kept"]),
        // Noticed by a library, which says no more than that it failed.
        ("illegal@100", ["of which the driver says", "CUDA_ERROR_ILLEGAL_ADDRESS"]),
        ("launch@100", ["of which the driver says", "CUDA_ERROR_LAUNCH_FAILED"]),
        ("ecc@100", ["of which the driver says", "CUDA_ERROR_ECC_UNCORRECTABLE"]),
    ] {
        let ran = evaluated(fault);
        let said = ran.said();
        let named = words.iter().all(|w| said.contains(w)) && !said.contains("panicked") && ran.misuse.is_empty();
        assert!(said.matches("hint:").count() == 1 && said.trim().lines().count() == 1, "{fault} is told once: {said}");
        assert!(ran.output.status.code() == Some(1) && named, "{fault}: {:?}\n{said}", ran.output.status);
    }
}

#[test]
fn a_batch_that_does_not_fit_is_halved() {
    let whole: Value = serde_json::from_slice(&evaluated("").succeeded().output.stdout).unwrap();
    let ran = evaluated("oom@40").succeeded();
    let halved: Value = serde_json::from_slice(&ran.output.stdout).unwrap();
    assert!(ran.said().contains("it went on with 50"), "{}", ran.said());
    assert_eq!(whole["correct"], halved["correct"]);
}

#[test]
fn the_device_that_is_named_is_the_one_that_runs() {
    let on = |device| evaluation(device).with("SIMDEVICE", "h100,a100").run();
    let report: Value = serde_json::from_slice(&on("cuda:1").succeeded().output.stdout).unwrap();
    assert_eq!(report["device"], "cuda:1 Simulated A100");
    let none = on("cuda:2").said();
    assert!(none.contains("invalid device ordinal") && none.contains("hint:"), "{none}");
}

#[test]
fn a_library_that_is_missing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    for (there, missing) in [
        (vec![], "libcuda was not found"),
        (vec!["libcuda.so.1"], "libcublas was not found"),
        (vec!["libcuda.so.1", "libcublas.so", "libcurand.so", "libnvrtc.so"], "libcublasLt was not found"),
    ] {
        for name in there {
            let _ = std::os::unix::fs::symlink(libraries().join(name), dir.path().join(name));
        }
        let ran = evaluation("cuda:0").with("LD_LIBRARY_PATH", dir.path().to_str().unwrap()).run();
        let said = ran.said();
        assert!(ran.output.status.code() == Some(1) && said.contains(missing), "{missing}: {said}");
    }
}

/// A quick profile of a demo.
fn profile(model: &str, more: &[&str], name: &str, value: &str) -> Ran {
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets").join(model);
    let args = ["profile", model.to_str().unwrap(), "--device", "cuda:0", "--runs", "5", "--json"];
    let run = Run::new(&[&args[..], more].concat()).with("SIMDEVICE_KERNELS", "plain").with("PARING_PATIENCE", "0.1");
    run.with(name, value).run()
}

/// What it measured, and what it said besides.
fn profiled(ran: Ran) -> (Value, String) {
    let ran = ran.succeeded();
    (serde_json::from_slice(&ran.output.stdout).unwrap(), ran.said())
}

/// How large the ceilings' matrices become is a matter of the machine's speed, so whether they are what does not fit is as well.
#[test]
fn a_profile_takes_as_much_memory_as_there_is() {
    for (memory, more) in [("67108864", &[][..]), ("100663296", &[]), ("67108864", &["--batch", "2"])] {
        let (report, said) = profiled(profile("demo_cnn.safetensors", more, "SIMDEVICE_MEMORY", memory));
        assert!(report["whole"]["p50"].as_f64().unwrap() > 0.0, "{memory} {more:?}: {said}");
        let ceilings = ["f32_gflops", "int8_gops", "bandwidth_gbs"].map(|c| report["ceilings"][c].as_f64().unwrap());
        assert!(ceilings[0] > 0.0 && !said.contains("`linear`"), "{ceilings:?}: {said}");
    }
}

/// Wherever memory runs out once after the weights, which must fit: in a ceiling's matrices, in a batch, in a pass.
#[test]
fn a_profile_goes_on_after_one_allocation_that_failed() {
    let failing =
        |at: usize| profile("demo_vit.safetensors", &["--batch", "4"], "SIMDEVICE_FAULT", &format!("oom@{at}"));
    let mut at = 1;
    let first = loop {
        let ran = failing(at);
        if ran.output.status.success() {
            break ran;
        }
        let said = ran.said();
        assert!(said.contains("CUDA_ERROR_OUT_OF_MEMORY") && said.contains("hint:") && at < 500, "{at}: {said}");
        at += 1;
    };
    let (_, said) = profiled(first);
    assert!(said.contains("measured with less than usual, since memory ran out"), "{said}");
    for more in [3, 13, 33, 130, 170] {
        let (report, said) = profiled(failing(at + more));
        assert!(report["whole"]["p50"].as_f64().unwrap() > 0.0, "{at} + {more}: {said}");
    }
}

/// What a run made and scored is not lost with its latency, for which two models must fit at once.
#[test]
fn a_run_without_memory_for_its_latency_keeps_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/demo_cnn.safetensors");
    let out = dir.path().to_str().unwrap();
    let args =
        ["run", model.to_str().unwrap(), "--data", "synthetic:eval", "--limit", "100", "--calib", "synthetic:calib"];
    let rest = ["--calib-limit", "200", "--precision", "int8", "--device", "cuda:0", "--out", out, "--json"];
    let run = Run::new(&[&args[..], &rest].concat()).with("SIMDEVICE_KERNELS", "plain").with("PARING_PATIENCE", "0.1");
    let ran = run.with("SIMDEVICE_MEMORY", "100663296").run().succeeded();
    let (report, said): (Value, _) = (serde_json::from_slice(&ran.output.stdout).unwrap(), ran.said());
    assert!(report["final"]["correct"].as_i64().is_some() && dir.path().join("model.safetensors").exists(), "{said}");
    // Either both fit, or there is no figure and it is said.
    let unmeasured = report["final"]["latency_ms"].is_null();
    assert_eq!(unmeasured, said.contains("the latency was not measured"), "{said}");
    assert_eq!(unmeasured, report["final"]["latency_factor"].is_null(), "{report}");
}

/// The modelled clock: 60 % of an H100's arithmetic and 80 % of its bandwidth, whatever the host takes.
#[test]
fn ceilings_are_of_the_clock_that_layers_are_timed_with() {
    let (report, said) = profiled(profile("demo_vit.safetensors", &["--batch", "4"], "SIMDEVICE_CLOCK", "model"));
    let ceiling = |name: &str| report["ceilings"][name].as_f64().unwrap();
    assert!((10_000.0..70_000.0).contains(&ceiling("f32_gflops")), "{said}");
    assert!((1_000.0..3_400.0).contains(&ceiling("bandwidth_gbs")), "{said}");
    assert!(ceiling("int8_gops") > ceiling("f32_gflops"), "{said}");
}
