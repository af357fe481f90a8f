//! From text to token ids and back, as a checkpoint's own files say: a `tokenizer.json` or `tokenizer.model` beside the weights, the vocabulary
//! in a GGUF file, or a `tok*.bin` of llama2.c.
//!
//! Byte pairs and word pieces go through the `tokenizers` crate, SentencePiece through `spm` (its files: `pieces`); `marked` keeps special tokens out of what people
//! write, `voice` makes text of tokens as they come, `speaker` is what that needs of a vocabulary. Not here: texts and windows (`data`), conversations (`chat`). Invariants:
//! no token is added to what was given (no beginning, no end; a text of several documents is parted by `data`) but by
//! [`Tokenizer::enclosed`]; the same text gives the same ids.

mod gpt2;
mod learnt;
mod marked;
mod pieces;
mod speaker;
mod spm;
mod voice;
mod wordpiece;

pub(super) use gpt2::cut_name;
pub use learnt::learn;
pub(super) use marked::Marks;
pub(super) use pieces::{BYTE, CONTROL, NORMAL, Pieces, UNKNOWN, UNUSED, USERS};
pub use speaker::{Speaker, Speaks};
pub use voice::Voice;

use super::gguf::{self, Metadata};
use super::hf::Json;
use super::load::weight_files;
use super::{ModelError, Result, printable};
use crate::files;
use crate::words::unwound;
use marked::Specials;
use spm::Spm;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// No vocabulary comes near this many bytes.
const MAX_BYTES: u64 = 256 << 20;

/// A vocabulary with its way to cut text.
#[derive(Debug)]
pub struct Tokenizer {
    kind: Kind,
    /// Where it was read, for messages.
    path: PathBuf,
    /// The id that begins a document, where there is one.
    begin: Option<u32>,
    /// A text begins with that where nobody says otherwise.
    begins: bool,
    /// The ids that end a text.
    ends: Vec<u32>,
    /// Found when they are first asked for.
    specials: OnceLock<Specials>,
}

#[derive(Debug, Clone)]
enum Kind {
    Hub(Box<tokenizers::Tokenizer>),
    Spm(Spm),
}

impl Tokenizer {
    /// The tokenizer of the checkpoint at `path`: what a GGUF file holds, else what lies beside the weights; `None` where nothing
    /// does. A `.json` file is one itself, and a `.model` of SentencePiece's.
    ///
    /// # Errors
    /// Files that cannot be read or are damaged, kinds of vocabularies that are not read, by name.
    pub fn of(path: &Path) -> Result<Option<Tokenizer>> {
        // Reading takes five times the memory that a vocabulary is kept in, and what is kept would lie scattered among what was let go, in pages
        // that no allocator can give back: it is read in a thread, whose memory is its own, and copied from there.
        let read = std::thread::scope(|s| s.spawn(|| Tokenizer::read(path)).join());
        let read = read.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        Ok(read.map(|t| Tokenizer::new(t.kind.clone(), t.path.clone(), t.begin, t.begins, t.ends.clone())))
    }

    fn read(path: &Path) -> Result<Option<Tokenizer>> {
        if path.extension().is_some_and(|e| e == "json") {
            let text = files::read(path, MAX_BYTES).map_err(ModelError::read(path))?;
            return Tokenizer::hub(&text, path, None, Vec::new()).map(Some);
        }
        if path.extension().is_some_and(|e| e == "model") {
            let own = Pieces::read(path)?;
            let ends = own.end.into_iter().collect();
            return Ok(Some(Tokenizer::new(Kind::Spm(own.spm()), path.to_owned(), own.begin, true, ends)));
        }
        let (files, dir) = weight_files(path)?;
        if let Some((metadata, file)) = gguf::told(&files)? {
            return of_metadata(&metadata, file);
        }
        let hub = dir.join("tokenizer.json");
        if hub.exists() {
            let text = files::read(&hub, MAX_BYTES).map_err(ModelError::read(&hub))?;
            let told = Tokenizer::hub(&text, &hub, None, ends_beside(&dir))?;
            let begin = begin_beside(&dir, |token| told.id(token))?;
            // transformers' classes of SentencePiece's kind go by what is said, whatever lies in the file.
            let said = Json::read(dir.join("tokenizer_config.json"))?;
            let class = said.string("tokenizer_class")?.unwrap_or_default();
            let own = ["Llama", "CodeLlama", "Gemma"].iter().any(|kind| class.starts_with(kind));
            let asked = said.bool("add_bos_token")?.filter(|_| own);
            let asked = asked.map_or_else(|| told.puts_first().map(|first| first == begin), Ok)?;
            let begins = begin.is_some() && asked;
            return Ok(Some(Tokenizer { begin, begins, ..told }));
        }
        let pieces = dir.join("tokenizer.model");
        if pieces.exists() {
            let spm = Pieces::read(&pieces)?;
            let begin = begin_beside(&dir, |token| spm.id(token))?.or(spm.begin);
            let begins = Json::read(dir.join("tokenizer_config.json"))?.bool("add_bos_token")?.unwrap_or(true);
            let mut ends = ends_beside(&dir);
            if ends.is_empty() {
                ends.extend(spm.end);
            }
            return Ok(Some(Tokenizer::new(Kind::Spm(spm.spm()), pieces, begin, begins, ends)));
        }
        let words = dir.join("vocab.txt");
        if words.exists() {
            let text = files::read_text(&words, MAX_BYTES).map_err(ModelError::read(&words))?;
            let json = wordpiece::json(&text, &Json::read(dir.join("tokenizer_config.json"))?)
                .map_err(|why| ModelError::damaged(&words, why))?;
            return Tokenizer::hub(json.to_string().as_bytes(), &words, None, Vec::new()).map(Some);
        }
        let mut found: Vec<PathBuf> = std::fs::read_dir(&dir)
            .map_err(ModelError::read(&dir))?
            .filter_map(|e| Some(e.ok()?.path()))
            .filter(|p| p.file_name().and_then(|n| n.to_str()).is_some_and(llama2))
            .collect();
        found.sort();
        match found.first() {
            None => Ok(None),
            Some(file) => {
                let bytes = files::read(file, MAX_BYTES).map_err(ModelError::read(file))?;
                let spm = Spm::llama2(&bytes).map_err(|why| ModelError::damaged(file, why))?;
                Ok(Some(Tokenizer::new(Kind::Spm(spm), file.clone(), Some(1), true, vec![2])))
            }
        }
    }

    /// The vocabulary that a model brings with it ([`super::Origin`]), where it does; `path` is for messages.
    ///
    /// # Errors
    /// As [`Tokenizer::of`].
    pub(super) fn told(metadata: &Metadata, path: &Path) -> Result<Option<Tokenizer>> {
        of_metadata(metadata, path)
    }

    /// A `tokenizer.json`.
    fn hub(text: &[u8], path: &Path, begin: Option<u32>, ends: Vec<u32>) -> Result<Tokenizer> {
        let refused = |why: &str| ModelError::Config { path: path.to_owned(), why: printable(why) };
        let failed = |e: tokenizers::Error| refused(&e.to_string());
        let made = unwound(|| tokenizers::Tokenizer::from_bytes(text));
        let mut hub = made.map_err(|why| refused(&merge_without_words(text).unwrap_or(why)))?.map_err(failed)?;
        // What a file keeps of how it was last used would cut text short without a word.
        hub.with_truncation(None).map_err(failed)?;
        hub.with_padding(None);
        Ok(Tokenizer::new(Kind::Hub(Box::new(hub)), path.to_owned(), begin, false, ends))
    }

    /// What it puts before a text of its own accord.
    fn puts_first(&self) -> Result<Option<u32>> {
        let Kind::Hub(hub) = &self.kind else { return Ok(None) };
        let around = self.guarded(|| hub.encode_fast("", true))?;
        Ok(around.get_ids().first().copied())
    }

    fn new(kind: Kind, path: PathBuf, begin: Option<u32>, begins: bool, ends: Vec<u32>) -> Tokenizer {
        Tokenizer { kind, path, begin, begins, ends, specials: OnceLock::new() }
    }

    /// The ids of `text`, which is taken as one piece; tokens such as `<|endoftext|>` are recognised in it.
    ///
    /// # Errors
    /// What the vocabulary has no token for.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match &self.kind {
            Kind::Spm(spm) => Ok(spm.encode(text)),
            Kind::Hub(hub) => {
                let encoded = self.guarded(|| hub.encode_fast(text, false))?;
                Ok(encoded.get_ids().to_vec())
            }
        }
    }

    /// The ids of a whole text between those that the vocabulary puts around one (`[CLS]` and `[SEP]`), `most` at most; and how many of
    /// the text's own there were room for no more.
    ///
    /// # Errors
    /// A vocabulary that puts nothing around a text, or no room for that; what the vocabulary has no token for.
    pub fn enclosed(&self, text: &str, most: usize) -> Result<(Vec<u32>, usize)> {
        use tokenizers::PostProcessor;
        let added = match &self.kind {
            Kind::Hub(hub) => hub.get_post_processor().map_or(0, |p| p.added_tokens(false)),
            Kind::Spm(_) => 0,
        };
        let (Kind::Hub(hub), true) = (&self.kind, added > 0) else {
            let why = "it puts no tokens around a text, as those of classifiers do".to_owned();
            return Err(ModelError::Config { path: self.path.clone(), why });
        };
        let room = most.checked_sub(added).ok_or_else(|| self.failed(&format!("{most} tokens have no room for it")))?;
        let mut own = self.guarded(|| hub.encode_fast(text, false))?;
        let over = own.len().saturating_sub(room);
        own.truncate(room, 0, tokenizers::TruncationDirection::Right);
        let whole = self.guarded(|| hub.post_process(own, None, true))?;
        Ok((whole.get_ids().to_vec(), over))
    }

    /// The text of `ids`; ids beyond the vocabulary are left out.
    ///
    /// # Errors
    /// What the vocabulary's decoder says.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        match &self.kind {
            Kind::Spm(spm) => Ok(spm.decode(ids)),
            Kind::Hub(hub) => self.guarded(|| hub.decode(ids, false)),
        }
    }

    /// The id that begins a document, where the vocabulary says one.
    pub fn begin(&self) -> Option<u32> {
        self.begin
    }

    /// The id that a prompt begins with, as the model was trained.
    pub fn first(&self) -> Option<u32> {
        self.begin.filter(|_| self.begins)
    }

    /// The ids after which a text goes no further, where the checkpoint names them.
    pub fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Tokens and scores of SentencePiece's kind, by their ids.
    pub(super) fn pieces(&self) -> Option<(&[String], &[f32])> {
        match &self.kind {
            Kind::Spm(spm) => Some(spm.pieces()),
            Kind::Hub(_) => None,
        }
    }

    /// Tokens that there are, those that users added included.
    pub fn size(&self) -> usize {
        match &self.kind {
            Kind::Spm(spm) => spm.pieces().0.len(),
            Kind::Hub(hub) => hub.get_vocab_size(true),
        }
    }

    /// The id of a token as the vocabulary writes it.
    pub fn id(&self, token: &str) -> Option<u32> {
        match &self.kind {
            Kind::Spm(spm) => spm.id(token),
            Kind::Hub(hub) => hub.token_to_id(token),
        }
    }

    /// What the library makes of a vocabulary that it read: where it cannot, it may panic.
    fn guarded<T>(&self, f: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
        guarded(&self.path, f)
    }

    fn failed(&self, why: &str) -> ModelError {
        unusable(&self.path, why)
    }
}

/// See [`Tokenizer::guarded`]; the vocabulary was read at `path`.
fn guarded<T>(path: &Path, f: impl FnOnce() -> tokenizers::Result<T>) -> Result<T> {
    match unwound(f) {
        Ok(made) => made.map_err(|e| unusable(path, &e.to_string())),
        Err(why) => Err(unusable(path, &why)),
    }
}

fn unusable(path: &Path, why: &str) -> ModelError {
    ModelError::Config { path: path.to_owned(), why: format!("it cannot be used on this text: {}", printable(why)) }
}

/// Ways to cut text whose prompts begin with the id that begins a document.
const LLAMA_3: [&str; 6] = ["llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken"];

/// The token that begins a text, as what lies beside weights names it.
fn begin_beside(dir: &Path, id: impl Fn(&str) -> Option<u32>) -> Result<Option<u32>> {
    let said = Json::read(dir.join("tokenizer_config.json"))?;
    let token = said.field("bos_token").and_then(|t| t.as_str().or_else(|| t["content"].as_str()));
    let config = Json::read(dir.join("config.json"))?;
    let told = || config.field("bos_token_id").and_then(|v| u32::try_from(v.as_u64()?).ok());
    Ok(token.and_then(id).or_else(told))
}

/// What the configurations beside weights say ends a text: a number, or a list of them.
fn ends_beside(dir: &Path) -> Vec<u32> {
    let mut ends: Vec<u32> = Vec::new();
    for name in ["generation_config.json", "config.json"] {
        let Ok(json) = Json::read(dir.join(name)) else { continue };
        let found = match json.field("eos_token_id") {
            Some(serde_json::Value::Array(all)) => all.clone(),
            Some(one) => vec![one.clone()],
            None => Vec::new(),
        };
        ends.extend(found.iter().filter_map(|v| u32::try_from(v.as_u64()?).ok()));
    }
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// `tok512.bin`, `tokenizer.bin`.
fn llama2(name: &str) -> bool {
    let stem = name.strip_suffix(".bin").and_then(|n| n.strip_prefix("tok"));
    stem.is_some_and(|rest| rest == "enizer" || rest.chars().all(|c| c.is_ascii_digit()))
}

/// The vocabulary in a GGUF file; `None` where it has none.
fn of_metadata(m: &Metadata, path: &Path) -> Result<Option<Tokenizer>> {
    let damaged = |what: &str| ModelError::damaged(path, format!("its vocabulary has {what}"));
    let Some(model) = m.string("tokenizer.ggml.model") else { return Ok(None) };
    let tokens = m.strings("tokenizer.ggml.tokens").ok_or_else(|| damaged("no tokens"))?;
    let types = match m.numbers("tokenizer.ggml.token_type") {
        Some(types) if types.len() != tokens.len() => return Err(damaged("another number of types than tokens")),
        types => types.unwrap_or_default(),
    };
    let begin = m.count("tokenizer.ggml.bos_token_id").and_then(|n| u32::try_from(n).ok());
    let end = ["eos", "eot", "eom"].map(|end| m.count(&format!("tokenizer.ggml.{end}_token_id")));
    let ends = end.into_iter().flatten().filter_map(|n| u32::try_from(n).ok()).collect();
    let begins = m.bool("tokenizer.ggml.add_bos_token");
    let vocabulary = Vocabulary { tokens, types };
    match model {
        "gpt2" => {
            let merges = m.strings("tokenizer.ggml.merges").ok_or_else(|| damaged("no merges"))?;
            let hint = "give ids as a `.u16` file, or the original directory with its tokenizer.json";
            let unknown = |why: String| ModelError::unsupported(path, why, hint);
            // What llama.cpp cuts by then (and by `default`) is none of the ways that are known here.
            let pre =
                m.string("tokenizer.ggml.pre").ok_or_else(|| unknown("it does not tell how text is cut".into()))?;
            let json = gpt2::json(&vocabulary, &merges, pre, None)
                .map_err(|pre| unknown(format!("its text is cut by `{}`, which is not known", printable(&pre))))?;
            let tokenizer = Tokenizer::hub(json.to_string().as_bytes(), path, begin, ends)?;
            // As llama.cpp where the file does not say.
            Ok(Some(Tokenizer { begins: begins.unwrap_or(LLAMA_3.contains(&pre)), ..tokenizer }))
        }
        "llama" => {
            let scores = m.numbers("tokenizer.ggml.scores").ok_or_else(|| damaged("no scores"))?;
            if scores.len() != vocabulary.tokens.len() {
                return Err(damaged("another number of scores than tokens"));
            }
            let prefix = m.bool("tokenizer.ggml.add_space_prefix").unwrap_or(true);
            let spm = Spm::gguf(&vocabulary, &scores, prefix);
            let (kind, begins) = (Kind::Spm(spm), begins.unwrap_or(true));
            Ok(Some(Tokenizer::new(kind, path.to_owned(), begin, begins, ends)))
        }
        other => {
            let why = format!("its vocabulary is of the kind `{}`", printable(other));
            Err(ModelError::unsupported(path, why, "gpt2 (byte pairs) and llama (SentencePiece) are read"))
        }
    }
}

impl Tokenizer {
    /// The `tokenizer.json` that says what a GGUF file's metadata says of its vocabulary; `None` for vocabularies of other kinds.
    ///
    /// # Errors
    /// In words: what it lacks, or a way to cut text that is not known.
    pub(super) fn hub_json(m: &Metadata) -> Result<Option<serde_json::Value>, String> {
        let kind = m.string("tokenizer.ggml.model").filter(|kind| ["gpt2", "llama"].contains(kind));
        let Some(kind) = kind else { return Ok(None) };
        let tokens = m.strings("tokenizer.ggml.tokens").ok_or("it has no tokens")?;
        let types = m.numbers("tokenizer.ggml.token_type").unwrap_or_default();
        let vocabulary = Vocabulary { tokens, types };
        if kind == "llama" {
            let scores = m.numbers("tokenizer.ggml.scores").filter(|s| s.len() == vocabulary.tokens.len());
            let scores = scores.ok_or("it has no score for every token")?;
            let prefix = m.bool("tokenizer.ggml.add_space_prefix").unwrap_or(true);
            let begins = m.bool("tokenizer.ggml.add_bos_token").unwrap_or(true);
            let begin = m.count("tokenizer.ggml.bos_token_id").and_then(|n| u32::try_from(n).ok());
            return Ok(Some(pieces::json(&vocabulary, &scores, prefix, begin.filter(|_| begins))));
        }
        let merges = m.strings("tokenizer.ggml.merges").ok_or("it has no merges")?;
        let pre = m.string("tokenizer.ggml.pre").ok_or("it does not tell how text is cut")?;
        let begin = m.count("tokenizer.ggml.bos_token_id").and_then(|n| u32::try_from(n).ok());
        let begins = m.bool("tokenizer.ggml.add_bos_token").unwrap_or(LLAMA_3.contains(&pre));
        let json = gpt2::json(&vocabulary, &merges, pre, begin.filter(|_| begins));
        json.map(Some).map_err(|pre| format!("its text is cut by `{}`, which is not known", printable(&pre)))
    }
}

/// Tokens in the order of their ids, and what GGUF says each is (empty: all usual).
struct Vocabulary<'a> {
    tokens: Vec<&'a str>,
    types: Vec<f64>,
}

impl Vocabulary<'_> {
    /// Tokens that text is searched for as they stand: the unknown token (2), control tokens (3) and those of users (4), as in
    /// llama.cpp.
    /// The last of the three says that it is no text.
    fn whole(&self) -> impl Iterator<Item = (u32, &str, bool)> {
        let kinds = self.types.iter().zip(&self.tokens);
        (0u32..)
            .zip(kinds)
            .filter(|(_, (kind, _))| [2.0, 3.0, 4.0].contains(*kind))
            .map(|(id, (kind, token))| (id, *token, *kind != 4.0))
    }
}

/// Which merge of a `tokenizer.json` is of pieces that its vocabulary is without, or that are no continuations: what the library panics at.
fn merge_without_words(text: &[u8]) -> Option<String> {
    let json: serde_json::Value = serde_json::from_slice(text).ok()?;
    let (vocabulary, merges) = (json["model"]["vocab"].as_object()?, json["model"]["merges"].as_array()?);
    let prefix = json["model"]["continuing_subword_prefix"].as_str().unwrap_or_default();
    merges.iter().find_map(|merge| {
        let (a, b) = match merge.as_str() {
            Some(both) => both.split_once(' ')?,
            None => (merge[0].as_str()?, merge[1].as_str()?),
        };
        match [a, b].into_iter().find(|piece| !vocabulary.contains_key(*piece)) {
            Some(missing) => Some(format!("its merge `{a} {b}` is of `{missing}`, which its vocabulary is without")),
            None if !b.is_char_boundary(prefix.len()) => {
                Some(format!("its merge `{a} {b}` continues with `{b}`, which does not begin with `{prefix}`"))
            }
            None => None,
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merges_that_cannot_be_are_named() {
        let of = |merge: &str, prefix: &str| {
            let model = serde_json::json!({ "type": "BPE", "vocab": { "a": 0, "b": 1, "##c": 2, "ac": 3 }, "merges": [merge],
                "continuing_subword_prefix": prefix, "unk_token": null, "end_of_word_suffix": null });
            let json = serde_json::json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
                "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null, "model": model });
            let made = Tokenizer::hub(json.to_string().as_bytes(), Path::new("tokenizer.json"), None, Vec::new());
            made.map(|_| ()).map_err(|e| e.to_string())
        };
        assert_eq!(of("a ##c", "##"), Ok(()));
        let error = of("a b", "##").unwrap_err();
        assert!(error.contains("its merge `a b` continues with `b`, which does not begin with `##`"), "{error}");
        assert!(of("a x", "").unwrap_err().contains("x"));
    }

    /// `bytes` with one run of bytes in another's place.
    fn replaced(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
        let at = bytes.windows(old.len()).position(|w| w == old).expect("what is replaced");
        [&bytes[..at], new, &bytes[at + old.len()..]].concat()
    }

    #[test]
    fn byte_pairs_whose_text_is_cut_in_an_unknown_way_are_refused() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/conformance/language/vocabulary-gpt-2.gguf");
        let whole = std::fs::read(&file).unwrap();
        let of = |bytes: Vec<u8>| {
            let found = gguf::read(&crate::model::Blob::Owned(bytes.into()), &file).unwrap();
            of_metadata(&found.gguf.unwrap(), &file).map(|t| t.unwrap()).map_err(|e| e.to_string())
        };
        assert!(of(whole.clone()).is_ok());
        let word = |text: &[u8]| [&(text.len() as u64).to_le_bytes()[..], text].concat();
        let error = of(replaced(&whole, &word(b"gpt-2"), &word(b"default"))).unwrap_err();
        assert!(error.contains("cut by `default`") && error.contains("hint: "), "{error}");
        let error = of(replaced(&whole, b"tokenizer.ggml.pre", b"tokenizer.ggml.xxx")).unwrap_err();
        assert!(error.contains("not tell how text is cut") && error.contains("hint: "), "{error}");
    }
}
