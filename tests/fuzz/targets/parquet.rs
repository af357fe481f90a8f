//! Parquet with images.
#![no_main]

mod common;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    common::read(&common::put("x.parquet", data), 3);
});
