//! `config.json` and `preprocessor_config.json` beside a checkpoint: the first byte picks one of the fixtures' weights, the
//! rest is the text of the two files, with a zero byte between them.
#![no_main]

mod common;

use paring::model::{LoadOptions, load};
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

static FIXTURES: LazyLock<Vec<PathBuf>> = LazyLock::new(|| {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance/fixtures");
    let mut all: Vec<PathBuf> = std::fs::read_dir(root)
        .expect("the fixtures")
        .map(|e| e.expect("an entry").path().join("model.safetensors"))
        .filter(|p| p.is_file())
        .collect();
    all.sort();
    all
});

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Some((which, text)) = data.split_first() else { return };
    let weights = &FIXTURES[*which as usize % FIXTURES.len()];
    let mut parts = text.splitn(2, |b| *b == 0);
    let path = common::put("config/config.json", parts.next().unwrap_or_default());
    common::put("config/preprocessor_config.json", parts.next().unwrap_or(b"{}"));
    let folder = path.parent().expect("a folder");
    let link = folder.join("model.safetensors");
    let _ = std::fs::remove_file(&link);
    std::os::unix::fs::symlink(weights, &link).expect("a link");
    if let Err(e) = load(folder, &LoadOptions::default()) {
        let text = e.to_string();
        assert!(text.contains("hint: ") && !text.chars().any(char::is_control), "{text:?}");
    }
});
