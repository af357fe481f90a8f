//! [`Speaker`]: what makes text of ids and nothing else, in a tenth of the memory of a whole vocabulary.
//!
//! Whoever cut a prompt and will cut no other text needs no words by their spelling and no merges: of 49,152 tokens those are some 8 MB.
//! Invariant: [`Speaker::decode`] says what the vocabulary's own decoder says.

use super::{Kind, Spm, Tokenizer};
use crate::model::Result;
use std::path::PathBuf;
use tokenizers::Decoder as _;

/// Whatever makes text of ids.
pub trait Speaks {
    /// The text of `ids`; ids beyond the vocabulary are left out.
    ///
    /// # Errors
    /// What the vocabulary's decoder says.
    fn decode(&self, ids: &[u32]) -> Result<String>;
}

impl Speaks for Tokenizer {
    fn decode(&self, ids: &[u32]) -> Result<String> {
        Tokenizer::decode(self, ids)
    }
}

/// See the module's page.
#[derive(Debug)]
pub struct Speaker {
    words: Words,
    /// Ids that are no text, sorted.
    special: Vec<u32>,
    path: PathBuf,
}

#[derive(Debug)]
enum Words {
    Hub {
        decoder: Option<tokenizers::DecoderWrapper>,
        /// All tokens, one behind the other.
        text: Box<str>,
        /// By id, sorted: where a token begins and ends.
        places: Vec<(u32, u32, u32)>,
    },
    Spm(Spm),
}

impl Speaker {
    /// Is `id` one of the tokens that are no text?
    pub fn is_special(&self, id: u32) -> bool {
        self.special.binary_search(&id).is_ok()
    }
}

impl Speaks for Speaker {
    fn decode(&self, ids: &[u32]) -> Result<String> {
        let (decoder, text, places) = match &self.words {
            Words::Spm(spm) => return Ok(spm.decode(ids)),
            Words::Hub { decoder, text, places } => (decoder, text, places),
        };
        let token = |id: &u32| {
            let at = places.binary_search_by_key(id, |p| p.0).ok()?;
            Some(text[places[at].1 as usize..places[at].2 as usize].to_owned())
        };
        let tokens: Vec<String> = ids.iter().filter_map(token).collect();
        let Some(decoder) = decoder else { return Ok(tokens.join(" ")) };
        super::guarded(&self.path, || decoder.decode(tokens))
    }
}

impl From<Tokenizer> for Speaker {
    fn from(tokenizer: Tokenizer) -> Speaker {
        let special = tokenizer.specials().ids().collect();
        let words = match tokenizer.kind {
            Kind::Spm(spm) => Words::Spm(spm),
            Kind::Hub(hub) => {
                let mut ids: Vec<u32> = hub.get_vocab(true).into_values().collect();
                ids.extend(hub.get_added_vocabulary().get_added_tokens_decoder().keys());
                ids.sort_unstable();
                ids.dedup();
                let (mut text, mut places) = (String::new(), Vec::with_capacity(ids.len()));
                for id in ids {
                    // As the library decodes: what was added goes before what was learnt.
                    let Some(token) = hub.id_to_token(id) else { continue };
                    let from = text.len() as u32;
                    text.push_str(&token);
                    places.push((id, from, text.len() as u32));
                }
                Words::Hub { decoder: hub.get_decoder().cloned(), text: text.into_boxed_str(), places }
            }
        };
        Speaker { words, special, path: tokenizer.path }
    }
}
