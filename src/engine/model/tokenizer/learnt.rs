//! A vocabulary of byte pairs that is learnt from text, as the `tokenizer.json` that says so.
//!
//! Invariant: the same texts give the same vocabulary: pairs are merged by how often they are there, and of equals the first.

use crate::model::{ModelError, Result, printable};
use crate::words::unwound;
use serde_json::Value;
use std::path::PathBuf;
use tokenizers::models::TrainerWrapper;
use tokenizers::models::bpe::{BPE, BpeTrainer};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::{AddedToken, Tokenizer};

/// `size` tokens: `end`, which stands between texts, all bytes, and what is merged of them in `texts` (Sennrich et al. 2016), whose words are
/// cut as GPT-2 does.
///
/// # Errors
/// What the library reports.
pub fn learn(texts: impl Iterator<Item = String> + Send, size: usize, end: &str) -> Result<Value> {
    let failed = |why: &str| ModelError::Config { path: PathBuf::from("vocabulary"), why: printable(why) };
    let trainer = BpeTrainer::builder()
        .vocab_size(size)
        .show_progress(false)
        .special_tokens(vec![AddedToken::from(end, true)])
        .initial_alphabet(ByteLevel::alphabet().into_iter().collect())
        .build();
    let learnt = unwound(|| {
        let mut hub = Tokenizer::new(BPE::default());
        hub.with_pre_tokenizer(Some(ByteLevel::new(false, false, true)));
        hub.train(&mut TrainerWrapper::from(trainer), texts)?;
        Ok::<_, tokenizers::Error>(hub)
    });
    let hub = learnt.map_err(|why| failed(&why))?.map_err(|e| failed(&e.to_string()))?;
    serde_json::to_value(&hub).map_err(|e| failed(&e.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_merged_by_how_often_they_are_there() {
        let texts = || ["aab aab aab", "cab cab"].map(str::to_owned).into_iter();
        let learnt = learn(texts(), 259, "<end>").unwrap();
        assert_eq!(learnt, learn(texts(), 259, "<end>").unwrap());
        let vocab = learnt["model"]["vocab"].as_object().unwrap();
        assert_eq!((vocab.len(), &vocab["<end>"]), (259, &Value::from(0)));
        // `ab` is there five times, `aab` three times.
        assert_eq!(learnt["model"]["merges"], serde_json::json!([["a", "b"], ["a", "ab"]]));
    }
}
