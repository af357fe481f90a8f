//! The kernels' shared objects, by themselves: `kernels/check.cpp` launches kernels of every source against plain loops.

use std::process::Command;

fn check(variant: &str, preload: Option<&str>) {
    let dir = env!("SIM_KERNELS_DIR");
    let mut command = Command::new(format!("{dir}/check"));
    command.arg(format!("{dir}/libsimkernels-{variant}.so")).arg(variant);
    if let Some(library) = preload {
        command.env("LD_PRELOAD", library);
    }
    let done = command.output().expect("the check runs");
    let said = String::from_utf8_lossy(&done.stdout).into_owned() + &String::from_utf8_lossy(&done.stderr);
    println!("{said}");
    assert!(done.status.success(), "{variant}: {said}");
}

#[test]
fn plain_kernels_compute_what_loops_do() {
    check("plain", None);
}

#[test]
fn checked_kernels_tell_every_planted_fault() {
    check("checked", None);
}

#[test]
fn sanitized_kernels_run_clean() {
    check("sanitized", Some(env!("SIM_SANITIZER")));
}
