//! The selftest on the simulated device: every check that a GPU gets. Its clock is the real one: the selftest compares the
//! device's with the host's.

use crate::device::Run;

fn selftest(kernels: &str, seed: &str) {
    let ran = Run::new(&["selftest", "--device", "cuda:0"])
        .with("SIMDEVICE_CLOCK", "real")
        .with("SIMDEVICE_KERNELS", kernels)
        .with("SIMDEVICE_SEED", seed)
        .run()
        .succeeded();
    let said = ran.said();
    assert!(said.contains("Simulated H100") && said.contains("0 failed, 0 skipped"), "{said}");
}

#[test]
fn every_check_passes() {
    selftest("plain", "0");
}

#[test]
#[ignore = "minutes: by hand"]
fn every_check_passes_watched_and_in_any_order() {
    for seed in ["0", "1", "2"] {
        selftest("checked", seed);
    }
}
