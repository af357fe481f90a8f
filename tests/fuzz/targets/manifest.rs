//! The manifest of a file that paring wrote: the input is its text.
#![no_main]

mod common;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let header = serde_json::json!({ "__metadata__": { "paring": text } }).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    common::model(&file);
});
