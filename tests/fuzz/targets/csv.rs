//! labels.csv and class lists beside an image.
#![no_main]

mod common;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let half = data.iter().position(|b| *b == 0).unwrap_or(data.len());
    let (csv, list) = data.split_at(half);
    common::put("csv/a.png", b"\x89PNG\r\n\x1a\n");
    if list.is_empty() {
        let _ = std::fs::remove_file(common::put("csv/classes.txt", b""));
    } else {
        common::put("csv/classes.txt", list);
    }
    common::read(&common::put("csv/labels.csv", csv), 3);
});
