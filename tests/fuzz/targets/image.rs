//! One image of a class folder: png, jpeg, webp by their bytes.
#![no_main]

mod common;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let path = common::put("image/one/a.png", data);
    common::read(path.ancestors().nth(2).expect("a folder"), 3);
});
