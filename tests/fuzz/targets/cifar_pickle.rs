//! CIFAR Python pickles.
#![no_main]

mod common;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    common::read(&common::put("pickle/test_batch", data), 3);
});
