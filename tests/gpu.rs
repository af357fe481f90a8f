//! The GPU path, on a device made of software: this binary of the program, built with `--features cuda`, with
//! `simdevice/`'s shared object in place of the driver and NVIDIA's libraries. Run by `simdevice/cargo-cuda`, which see.
//!
//! Not here: what only hardware can show (`simdevice/README.md` lists it).

#[path = "gpu/device.rs"]
mod device;
#[path = "gpu/faults.rs"]
mod faults;
#[path = "gpu/graphs.rs"]
mod graphs;
#[path = "gpu/outlive.rs"]
mod outlive;
#[path = "common/pty.rs"]
mod pty;
#[path = "gpu/selftest.rs"]
mod selftest;
#[path = "gpu/session.rs"]
mod session;
#[path = "common/small.rs"]
mod small;
