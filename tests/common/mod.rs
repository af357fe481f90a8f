//! Helpers shared by the integration tests.
#![allow(dead_code)]

pub mod checkpoints;
pub mod manifest;
pub mod zeroed;

use std::path::PathBuf;

/// The folder of real weights and data, or `None` (with a line saying so) when this machine has none; a failure where
/// `PARING_REAL_DATA=required` says that there must be one.
pub fn real() -> Option<PathBuf> {
    let dir = paring::data::real_dir();
    if dir.is_none() {
        println!("skipped: no real data");
    }
    dir
}

/// Everything by hand (`PARING_FULL=1`), or what a suite that runs with every change has time for?
pub fn full() -> bool {
    std::env::var_os("PARING_FULL").is_some()
}
