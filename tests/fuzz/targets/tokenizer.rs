//! `tokenizer.json`: what it makes of a few texts, there and back.
#![no_main]

mod common;

use paring::model::Tokenizer;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let path = common::put("tokenizer/tokenizer.json", data);
    let words = |e: paring::model::ModelError| {
        let text = e.to_string();
        assert!(text.contains("hint: ") && !text.chars().any(char::is_control), "{text:?}");
    };
    match Tokenizer::of(&path) {
        Ok(Some(found)) => {
            for text in ["", "Once upon a time", "naïve 日本 \n\t", "<|im_start|>[MASK]</s> 12345"] {
                if let Err(e) = found.encode(text).and_then(|ids| found.decode(&ids)) {
                    words(e);
                }
            }
        }
        Ok(None) => {}
        Err(e) => words(e),
    }
});
