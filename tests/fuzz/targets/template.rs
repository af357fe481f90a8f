//! Chat templates, over a short conversation. What a render may cost besides its fuel is bounded by the process that it has in the
//! program; here by the fuzzer's own limits.
#![no_main]

use paring::model::{ChatMessage, ChatTemplate};
use std::collections::BTreeMap;

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let Ok(source) = std::str::from_utf8(data) else { return };
    let say = |role: &str, content: &str| ChatMessage { role: role.into(), content: content.into() };
    let messages = [say("system", "Be brief."), say("user", "Hi {{ there }}\n"), say("assistant", ""), say("user", "?")];
    let tokens: BTreeMap<String, String> =
        [("bos_token", "<s>"), ("eos_token", "</s>")].map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    if let Err(e) = ChatTemplate::new(source.to_owned(), tokens).and_then(|t| t.render(&messages, true)) {
        let words = e.to_string();
        assert!(words.contains("template") && !words.contains("panic"), "{words:?}");
    }
});
