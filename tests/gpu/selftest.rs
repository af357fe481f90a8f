//! The selftest on the simulated device: every check that a GPU gets.

use crate::device::Run;

#[test]
fn every_check_passes() {
    let ran = Run::new(&["selftest", "--device", "cuda:0"]).with("SIMDEVICE_CLOCK", "real").run().succeeded();
    let said = ran.said();
    assert!(said.contains("Simulated H100"), "{said}");
}

#[test]
fn every_check_passes_in_any_order_that_streams_allow() {
    for seed in ["1", "2"] {
        Run::new(&["selftest", "--device", "cuda:0"])
            .with("SIMDEVICE_CLOCK", "real")
            .with("SIMDEVICE_SEED", seed)
            .run()
            .succeeded();
    }
}
