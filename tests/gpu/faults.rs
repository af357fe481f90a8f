//! Devices that fail: each ends in a message that names what failed, and `auto` goes on with the CPU.

use crate::device::Run;

#[test]
fn a_device_that_cannot_be_opened_is_told_why() {
    for (fault, words) in [
        ("no-device", "no CUDA-capable device"),
        ("driver-too-old", "unsupported display driver"),
    ] {
        let ran = Run::new(&["selftest", "--device", "cuda:0"]).with("SIMDEVICE_FAULT", fault).run();
        let said = ran.said();
        assert!(!ran.output.status.success() && said.contains(words) && !said.contains("panicked"), "{fault}: {said}");
    }
}
