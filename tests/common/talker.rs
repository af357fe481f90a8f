//! Small language models that can be talked to: a network with a vocabulary of one token for each printable character.
#![allow(dead_code)]

use serde_json::{Map, Value, json};
use std::path::{Path, PathBuf};

/// The token that stands as it is; the last of 96.
pub const END: &str = "<|end|>";

/// A directory with a tokenizer that has as many tokens as the network `name` has rows: one for each printable character of ASCII, and one
/// that stands as it is.
pub fn with_tokenizer(name: &str, to: &Path) -> PathBuf {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/language").join(name);
    copied(&from, &to.join(name), 96)
}

/// `from` copied to `dir`, with a tokenizer of `size` tokens: one for each of the last printable characters of ASCII, and one that
/// stands as it is.
pub fn copied(from: &Path, dir: &Path, size: u8) -> PathBuf {
    std::fs::create_dir(dir).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(file), dir.join(file)).unwrap();
    }
    let (n, first) = (size - 3, b'~' - (size - 3));
    let vocab: Map<String, Value> = (0..n)
        .map(|i| (char::from(first + i).to_string(), Value::from(i)))
        .chain([("\u{120}".to_owned(), Value::from(n)), ("ab".to_owned(), Value::from(n + 1))])
        .collect();
    let bytes = json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true });
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "pre_tokenizer": bytes, "decoder": bytes,
        "added_tokens": [{ "id": size - 1, "content": END, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true }],
        "model": { "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": [["a", "b"]] },
    });
    std::fs::write(dir.join("tokenizer.json"), tokenizer.to_string()).unwrap();
    dir.to_owned()
}

/// One that answers after `template`, and whose answers end with [`END`].
pub fn talker(to: &Path, template: &str) -> PathBuf {
    let dir = with_tokenizer("llama", to);
    let config = json!({ "chat_template": template, "eos_token": END });
    std::fs::write(dir.join("tokenizer_config.json"), config.to_string()).unwrap();
    dir
}

/// A template in which every message ends with [`END`].
pub const TEMPLATE: &str = "\
{%- for m in messages -%}
    {%- if m.content == 'bad' %}{{ raise_exception('no ' + m.role + ' may say so') }}{% endif -%}
    {{ m.role[:1] + ':' + m.content + '<|end|>' }}
{%- endfor -%}
{%- if add_generation_prompt %}{{ 'a:' }}{% endif -%}
";
