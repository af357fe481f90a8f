//! ONNX files, with every initializer inside.
#![no_main]

mod common;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    // What the loader tells ONNX by.
    if data.first() == Some(&8) {
        common::model(data);
    }
});
