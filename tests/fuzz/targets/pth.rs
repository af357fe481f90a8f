//! PyTorch checkpoints, zip and legacy: a pickle is put where the file begins.
#![no_main]

mod common;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    common::model(data);
    if !data.starts_with(b"PK") && !data.starts_with(&[0x80]) {
        common::model(&[&[0x80, 2][..], data].concat());
    }
});
