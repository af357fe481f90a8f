//! `tokenizer.model` (SentencePiece): what it makes of a few texts, there and back.
#![no_main]

mod common;

use paring::model::Tokenizer;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let path = common::put("pieces/tokenizer.model", data);
    match Tokenizer::of(&path) {
        Ok(Some(found)) => {
            for text in ["", "Once upon a time", "naïve 日本 \n\t", "<s>[INST]</s> 12345"] {
                let ids = found.encode(text).expect("every text has ids");
                found.decode(&ids).expect("and they are text");
            }
        }
        Ok(None) => {}
        Err(e) => {
            let text = e.to_string();
            assert!(text.contains("hint: ") && !text.chars().any(char::is_control), "{text:?}");
        }
    }
});
