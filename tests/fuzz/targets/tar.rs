//! WebDataset tars.
#![no_main]

mod common;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    common::read(&common::put("tar/x.tar", data), 3);
});
