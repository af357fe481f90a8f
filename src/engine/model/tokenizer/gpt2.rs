//! GPT-2's kind of vocabulary in a GGUF file (byte pairs of bytes), as the `tokenizer.json` that says the same.

use super::Vocabulary;
use serde_json::{Map, Value, json};

/// How GPT-4's and later vocabularies cut text; `{}` is how long a run of digits may be. (llama.cpp's `llama-vocab.cpp`; the models'
/// own `tokenizer.json`.)
const LATER: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The vocabulary, its merges and `tokenizer.ggml.pre` as a `tokenizer.json`.
///
/// # Errors
/// The name of a way to cut text that is not known.
pub(super) fn json(v: &Vocabulary<'_>, merges: &[&str], pre: &str) -> Result<Value, String> {
    let bytes = |regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": regex });
    let cut = |digits: &str| {
        let split = json!({
            "type": "Split",
            "pattern": { "Regex": LATER.replace("{}", digits) },
            "behavior": "Isolated",
            "invert": false,
        });
        json!({ "type": "Sequence", "pretokenizers": [split, bytes(false)] })
    };
    let (pre_tokenizer, normalizer, whole_words) = match pre {
        "gpt-2" | "gpt2" => (bytes(true), Value::Null, false),
        "smollm" => {
            let digits = json!({ "type": "Digits", "individual_digits": true });
            (json!({ "type": "Sequence", "pretokenizers": [digits, bytes(true)] }), Value::Null, false)
        }
        "qwen2" => (cut(""), json!({ "type": "NFC" }), false),
        // A word that is a token is not taken apart.
        "llama-bpe" | "llama3" | "llama-v3" => (cut("{1,3}"), Value::Null, true),
        other => return Err(other.to_owned()),
    };
    let added: Vec<Value> = v
        .whole()
        .map(|(id, token)| {
            json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            })
        })
        .collect();
    let ids: Map<String, Value> = (0u32..).zip(&v.tokens).map(|(id, t)| ((*t).to_owned(), json!(id))).collect();
    Ok(json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "post_processor": null,
        "decoder": bytes(true),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": whole_words,
            "vocab": ids,
            "merges": merges,
        },
    }))
}
