//! GPT-2's kind of vocabulary in a GGUF file (byte pairs of bytes), as the `tokenizer.json` that says the same; and what GGUF calls the way in
//! which a `tokenizer.json` cuts text.

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
        .map(|(id, token, special)| {
            json!({
                "id": id, "content": token, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": special,
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

/// What `tokenizer.ggml.pre` calls the way in which a `tokenizer.json` cuts text; `None` for a way that has no name here.
pub(in crate::model) fn cut_name(json: &Value) -> Option<&'static str> {
    let stages = match &json["pre_tokenizer"] {
        one if one["type"] == "Sequence" => one["pretokenizers"].as_array()?.iter().collect(),
        one => vec![one],
    };
    let bytes = |stage: &Value| {
        let plain = stage["type"] == "ByteLevel" && stage["add_prefix_space"] == false;
        plain.then(|| stage["use_regex"].as_bool().unwrap_or(true))
    };
    let nfc = json["normalizer"]["type"] == "NFC";
    let normal = json["normalizer"].is_null();
    let whole = json["model"]["ignore_merges"].as_bool().unwrap_or(false);
    match stages[..] {
        [only] if bytes(only) == Some(true) && normal && !whole => Some("gpt-2"),
        [digits, last] if digits["type"] == "Digits" && digits["individual_digits"] == true => {
            (bytes(last) == Some(true) && normal && !whole).then_some("smollm")
        }
        [split, last] if split["type"] == "Split" && bytes(last) == Some(false) => {
            let pattern = split["pattern"]["Regex"].as_str()?;
            let plain = split["behavior"] == "Isolated" && split["invert"] != true;
            let is = |digits: &str| plain && pattern == LATER.replace("{}", digits);
            match () {
                () if is("") && nfc && !whole => Some("qwen2"),
                () if is("{1,3}") && normal && whole => Some("llama-bpe"),
                () => None,
            }
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_to_cut_text_has_the_name_that_it_came_by() {
        let vocabulary = Vocabulary { tokens: vec!["a"], types: Vec::new() };
        for pre in ["gpt-2", "smollm", "qwen2", "llama-bpe"] {
            let mut said = json(&vocabulary, &[], pre).unwrap();
            assert_eq!(cut_name(&said), Some(pre));
            said["normalizer"] = json!({ "type": "Lowercase" });
            assert_eq!(cut_name(&said), None, "{pre}");
        }
        assert_eq!(cut_name(&json!({ "pre_tokenizer": { "type": "Metaspace" } })), None);
    }
}
