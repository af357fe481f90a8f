//! The recognisers of the families: the input is a list of tensors, a line each (`NAME DIM,DIM,…`), from which a
//! well-formed safetensors file of zeros is made, so that only names and shapes are strange.
#![no_main]

mod common;

/// Bytes of weights a file may have: larger ones only cost time.
const MOST: usize = 4 << 20;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let mut header = serde_json::Map::new();
    let mut end = 0usize;
    for line in text.lines() {
        let (name, dims) = line.rsplit_once(' ').unwrap_or((line, ""));
        let dims: Vec<usize> = dims.split(',').filter_map(|d| d.parse().ok()).collect();
        let size = dims.iter().try_fold(4usize, |n, d| n.checked_mul(*d)).filter(|n| *n <= MOST - end);
        let Some(size) = size else { return };
        let entry = serde_json::json!({ "dtype": "F32", "shape": dims, "data_offsets": [end, end + size] });
        if header.insert(name.to_owned(), entry).is_none() {
            end += size;
        } else {
            return;
        }
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + end, 0);
    common::model(&file);
});
