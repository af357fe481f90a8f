//! A configuration that came from another network: refused by what it tells and what the weights have, whatever the family.

use paring::model::{LoadOptions, load};
use std::path::Path;

#[test]
fn a_configuration_of_another_network_is_refused() {
    let all = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    let cases = [
        ("language/llama", &["vocab_size", "hidden_size", "intermediate_size"][..]),
        ("language/qwen3", &["vocab_size", "hidden_size", "intermediate_size"]),
        ("decoders/gemma2", &["vocab_size", "hidden_size", "intermediate_size"]),
        ("decoders/phi3", &["vocab_size", "hidden_size", "intermediate_size"]),
        ("decoders/olmo2", &["vocab_size", "hidden_size", "intermediate_size"]),
        ("decoders/qwen3_moe_step", &["vocab_size", "hidden_size", "intermediate_size"]),
        ("decoders/gpt2", &["vocab_size", "n_embd", "n_inner"]),
        ("encoders/bert", &["vocab_size", "hidden_size", "intermediate_size"]),
        ("encoders/distilbert", &["vocab_size", "dim", "hidden_dim"]),
        ("encoders/modernbert", &["vocab_size", "hidden_size", "intermediate_size"]),
    ];
    for (name, keys) in cases {
        let dir = tempfile::tempdir().unwrap();
        for file in std::fs::read_dir(all.join(name)).unwrap() {
            let file = file.unwrap();
            std::fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
        }
        let config = dir.path().join("config.json");
        let sound: serde_json::Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
        for key in keys {
            let mut told = sound.clone();
            let was = told[key].as_u64().unwrap_or_else(|| panic!("{name}: no {key}"));
            told[key] = (2 * was).into();
            std::fs::write(&config, told.to_string()).unwrap();
            let Err(e) = load(dir.path(), &LoadOptions::default()) else {
                panic!("{name}: {key} of twice {was} passed")
            };
            let said = e.to_string();
            let words =
                [format!("`{key}` tells of {}", 2 * was), format!("has {was}"), "of another network".to_owned()];
            assert!(words.iter().all(|w| said.contains(w)), "{name}: {said}");
        }
    }
}
