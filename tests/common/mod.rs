//! Helpers shared by the integration tests.
#![allow(dead_code)]

pub mod checkpoints;
pub mod manifest;
pub mod program;
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

/// Token ids below 96 as `.u16` files have them, the same for the same seed.
pub fn ids(count: usize, seed: u32) -> Vec<u8> {
    let mut x = seed;
    let mut next = || {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        ((x >> 16) % 96) as u16
    };
    (0..count).flat_map(|_| next().to_le_bytes()).collect()
}

/// Everything by hand (`PARING_FULL=1`), or what a suite that runs with every change has time for?
pub fn full() -> bool {
    std::env::var_os("PARING_FULL").is_some()
}
