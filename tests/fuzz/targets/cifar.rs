//! CIFAR binaries, with class names.
#![no_main]

mod common;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let (names, records) = data.split_at(data.len() % 3073);
    common::put("cifar/batches.meta.txt", names);
    common::read(&common::put("cifar/x.bin", records), 3);
});
