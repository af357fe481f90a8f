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
