//! `paring heal` as a process: killed and interrupted at random moments and gone on with, it writes the file that an undisturbed one writes.

mod common;

use common::program::Rig;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Kills and interrupts, all in all.
const DISTURBED: u32 = 20;

/// What is healed: a demo network in four bits.
fn rounded(rig: &Rig) -> String {
    let out = rig.path("w4.safetensors");
    let (done, said) = rig.run(&["convert", "demo:cnn", "--precision", "w4", "--out", &out]);
    assert!(done, "{said}");
    out
}

/// The command that heals `model` into `out`, keeping where it stands all the time.
fn heal(rig: &Rig, model: &str, out: &str) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_paring"));
    c.args([
        "heal",
        model,
        "--from",
        "demo:cnn",
        "--calib",
        "synthetic:calib",
        "--calib-limit",
        "160",
        "--for",
        "16 steps",
    ])
    .args(["--batch", "32", "--threads", "1", "--checkpoint-every", "1ms", "--out", out])
    .env("PARING_HOME", rig.path("home"))
    .env("XDG_CONFIG_HOME", rig.path("config"))
    .stdout(Stdio::null())
    .stderr(Stdio::piped());
    c
}

#[test]
fn kills_and_interrupts_at_random_moments_change_no_bit() {
    let rig = Rig::new();
    let model = rounded(&rig);
    let whole = rig.path("whole.safetensors");
    let began = std::time::Instant::now();
    let done = heal(&rig, &model, &whole).output().expect("run");
    let took = began.elapsed();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let want = std::fs::read(&whole).expect("written");
    assert!(!rig.dir.path().join("whole.safetensors.healing").exists(), "what was kept is gone once it is done");

    let mut rng = ChaCha8Rng::seed_from_u64(20);
    let (mut disturbed, mut went_on, mut finished) = (0, 0, 0);
    while disturbed < DISTURBED || finished == 0 {
        let out = rig.path(&format!("disturbed{finished}.safetensors"));
        let kept = format!("{out}.healing");
        let before = std::path::Path::new(&kept).exists();
        let mut child = heal(&rig, &model, &out).spawn().expect("run");
        // The last one may take as long as it likes.
        if disturbed < DISTURBED {
            std::thread::sleep(took.mul_f64(rng.random_range(0.05..0.9)));
            let signal = if rng.random_bool(0.7) { libc::SIGKILL } else { libc::SIGTERM };
            if child.try_wait().expect("a state").is_none() {
                // SAFETY: a process of our own that was not waited for.
                unsafe { libc::kill(child.id() as i32, signal) };
                disturbed += 1;
            }
        }
        let end = child.wait_with_output().expect("an end");
        let said = String::from_utf8_lossy(&end.stderr).into_owned();
        went_on += u32::from(before && said.contains("going on after step"));
        // A signal may also come between the writing of the file and the end of the process: what is there is whole all the same.
        let written = std::fs::read(&out).ok();
        assert!(written.is_some() || !end.status.success(), "no file: {said}");
        if let Some(written) = written {
            assert!(written == want, "{disturbed}: other weights\n{said}");
            finished += 1;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(went_on >= 5, "{went_on} of {disturbed} went on from where they were");
}
