//! GPT-2's kind of vocabulary in a GGUF file (byte pairs of bytes), as the `tokenizer.json` that says the same; and what GGUF calls the way in
//! which a `tokenizer.json` cuts text.

use super::Vocabulary;
use super::pieces::template;
use serde_json::{Map, Value, json};

/// How GPT-4's and later vocabularies cut text; `{}` is how long a run of digits may be. (llama.cpp's `llama-vocab.cpp`; the models'
/// own `tokenizer.json`.)
const LATER: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// How Mistral's (`tekken`) and GPT-4o's cut text: letters by their case; `{s}` is a contraction after them, `{n}` how many digits go together.
const BY_CASE: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+{s}|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*{s}|\p{N}{n}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The pattern that `pre` names, where it is one; what cuts by the case of letters comes last.
fn pattern(pre: &str) -> Option<String> {
    let by_case = |contraction: &str, digits: &str| BY_CASE.replace("{s}", contraction).replace("{n}", digits);
    Some(match pre {
        "qwen2" => LATER.replace("{}", ""),
        "llama-bpe" | "dbrx" => LATER.replace("{}", "{1,3}"),
        "tekken" => by_case("", ""),
        "gpt-4o" => by_case("(?i:'s|'t|'re|'ve|'m|'ll|'d)?", "{1,3}"),
        _ => return None,
    })
}

/// The name here of what llama.cpp has several names for.
fn plain(pre: &str) -> &str {
    match pre {
        "gpt2" | "phi-2" => "gpt-2",
        "starcoder" | "refact" | "command-r" => "smollm",
        "deepseek-r1-qwen" | "megrez" => "qwen2",
        "llama3" | "llama-v3" | "falcon3" | "pixtral" => "llama-bpe",
        "smaug-bpe" => "dbrx",
        "llama4" => "gpt-4o",
        other => other,
    }
}

/// Of vocabularies that cut so, a word that is a token is not taken apart.
fn whole_words(pre: &str) -> bool {
    ["llama-bpe", "tekken"].contains(&pre)
}

/// The vocabulary, its merges and `tokenizer.ggml.pre` as a `tokenizer.json`; `begin`: the token that it puts before a text.
///
/// # Errors
/// The name of a way to cut text that is not known.
pub(super) fn json(v: &Vocabulary<'_>, merges: &[&str], pre: &str, begin: Option<u32>) -> Result<Value, String> {
    let bytes = |regex: bool| json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": regex });
    let pre = plain(pre);
    let pre_tokenizer = match (pre, pattern(pre)) {
        ("gpt-2", _) => bytes(true),
        ("smollm", _) => {
            let digits = json!({ "type": "Digits", "individual_digits": true });
            json!({ "type": "Sequence", "pretokenizers": [digits, bytes(true)] })
        }
        (_, Some(pattern)) => {
            let split =
                json!({ "type": "Split", "pattern": { "Regex": pattern }, "behavior": "Isolated", "invert": false });
            json!({ "type": "Sequence", "pretokenizers": [split, bytes(false)] })
        }
        (other, None) => return Err(other.to_owned()),
    };
    let normalizer = if pre == "qwen2" { json!({ "type": "NFC" }) } else { Value::Null };
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
        "post_processor": template(v, begin),
        "decoder": bytes(true),
        "model": {
            "type": "BPE",
            "dropout": null,
            "unk_token": null,
            "continuing_subword_prefix": null,
            "end_of_word_suffix": null,
            "fuse_unk": false,
            "byte_fallback": false,
            "ignore_merges": whole_words(pre),
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
            let found = split["pattern"]["Regex"].as_str()?;
            // Every character is part of a match, so that what lies between matches is nothing.
            let plain = match split["behavior"].as_str()? {
                "Isolated" => split["invert"] != true,
                "Removed" => split["invert"] == true,
                _ => false,
            };
            let known = ["qwen2", "llama-bpe", "dbrx", "tekken", "gpt-4o"];
            known.into_iter().filter(|_| plain).find(|pre| {
                let changed = if *pre == "qwen2" { nfc } else { normal };
                changed && whole == whole_words(pre) && pattern(pre).is_some_and(|p| p == found)
            })
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
        for pre in ["gpt-2", "smollm", "qwen2", "llama-bpe", "dbrx", "tekken", "gpt-4o"] {
            let mut said = json(&vocabulary, &[], pre, None).unwrap();
            assert_eq!(cut_name(&said), Some(pre));
            said["normalizer"] = json!({ "type": "Lowercase" });
            assert_eq!(cut_name(&said), None, "{pre}");
        }
        assert_eq!(cut_name(&json!({ "pre_tokenizer": { "type": "Metaspace" } })), None);
    }
}
