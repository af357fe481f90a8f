//! The selftest on the simulated device: every check that a GPU gets. Its clock is the real one: the selftest compares the
//! device's with the host's.

use crate::device::{Ran, Run};

fn selftest(kernels: &str, seed: &str) -> Ran {
    let ran = Run::new(&["selftest", "--device", "cuda:0"])
        .with("SIMDEVICE_CLOCK", "real")
        .with("SIMDEVICE_KERNELS", kernels)
        .with("SIMDEVICE_SEED", seed)
        .run();
    let said = ran.said();
    let checked = said.contains("Simulated H100") && said.contains("0 failed, 0 skipped");
    // Every step of every check is captured and replayed, but those that upload what they compare with whenever they run.
    let masked = ["route", "dispatch", "experts"];
    let lines: Vec<&str> = said.lines().collect();
    let replayed = lines.windows(2).all(|two| {
        let [check, note] = two else { return true };
        !note.contains("kernel by kernel") || masked.iter().any(|m| check.starts_with(m))
    });
    assert!(checked && replayed && ran.misuse.is_empty(), "{said}");
    ran
}

#[test]
fn every_check_passes() {
    selftest("plain", "0").succeeded();
}

#[test]
#[ignore = "minutes: by hand"]
fn every_check_passes_watched_and_in_any_order() {
    for seed in ["0", "1", "2"] {
        // Looking up every load and store costs what no timing can be held against.
        selftest("checked", seed);
    }
}
