//! BERT's vocabularies as they were before `tokenizer.json`: a `vocab.txt` of word pieces, one a line (Devlin et al. 2019).
//!
//! Not here: cutting text (the `tokenizers` crate does).

use crate::model::hf::Json;
use serde_json::{Map, Value, json};

/// What stands for itself in a text.
const SPECIAL: [&str; 5] = ["[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"];

/// The lines of a `vocab.txt` as a `tokenizer.json`, with what a `tokenizer_config.json` says of them; BERT's own ways where it says nothing.
///
/// # Errors
/// In words: a piece that is there twice, a special token that is not there, options that are none.
pub(super) fn json(vocabulary: &str, config: &Json) -> Result<Value, String> {
    let mut ids = Map::new();
    for (id, piece) in vocabulary.lines().enumerate() {
        if ids.insert(piece.to_owned(), json!(id)).is_some() {
            return Err(format!("line {} is there twice", id + 1));
        }
    }
    let id = |token: &str| ids.get(token).cloned().ok_or_else(|| format!("it has no token `{token}`"));
    let option = |key: &str| config.bool(key).map_err(|e| e.to_string());
    let special = |token: &str| {
        Some(json!({ "id": ids.get(token)?, "content": token, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true }))
    };
    let mut made = json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": SPECIAL.iter().filter_map(|t| special(t)).collect::<Vec<_>>(),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": true,
            "handle_chinese_chars": option("tokenize_chinese_chars")?.unwrap_or(true),
            "strip_accents": option("strip_accents")?,
            "lowercase": option("do_lower_case")?.unwrap_or(true),
        },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": { "type": "BertProcessing", "sep": ["[SEP]", id("[SEP]")?], "cls": ["[CLS]", id("[CLS]")?] },
        "decoder": { "type": "WordPiece", "prefix": "##", "cleanup": true },
        "model": {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
    });
    id("[UNK]")?;
    made["model"]["vocab"] = Value::Object(ids);
    Ok(made)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_vocabulary_without_its_special_tokens_is_refused() {
        let none = Json::default();
        assert!(json("[UNK]\n[CLS]\n[SEP]\na\n##b", &none).is_ok());
        assert!(json("[UNK]\n[CLS]\na", &none).unwrap_err().contains("`[SEP]`"));
        assert!(json("[CLS]\n[SEP]\na", &none).unwrap_err().contains("`[UNK]`"));
        assert!(json("[UNK]\na\na", &none).unwrap_err().contains("line 3"));
    }
}
