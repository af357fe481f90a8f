//! Chat templates: from who said what to the text, and the token ids, that a model was trained to answer.
//!
//! Here: where a checkpoint keeps its template (`tokenizer_config.json`, `chat_template.jinja`, GGUF's `tokenizer.chat_template`) and the words for
//! its special tokens. What a template computes is in `render`, as transformers' `apply_chat_template` has it; how its text becomes ids, in
//! `tokenizer/marked`. Invariants: a template is a program from a file, so its fuel, stack, input and output are bounded; only the
//! template's own words are special tokens, never those of a message.

mod python;
mod render;

use super::gguf::{self, Metadata};
use super::hf::Json;
use super::load::weight_files;
use super::tokenizer::{Marks, Tokenizer};
use super::{ModelError, Result, printable};
use crate::files;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;

/// Bytes of a template at most; published ones have up to some twenty thousand.
pub const MAX_TEMPLATE: usize = 128 << 10;

/// Bytes of all messages at most.
pub const MAX_MESSAGES: usize = 8 << 20;

/// What somebody said.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatMessage {
    /// `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    pub content: String,
}

/// A conversation that does not become a prompt.
#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    /// The template called `raise_exception`.
    #[error("the model's chat template refuses this conversation: {why}")]
    Refused { why: String },
    #[error("the model's chat template fails: {why}; hint: the file is damaged, or asks for what is not there")]
    Failed { why: String },
    #[error("{what} of {bytes} bytes is more than the {most} that a chat may have")]
    TooLarge { what: &'static str, bytes: usize, most: usize },
    #[error(transparent)]
    Vocabulary(#[from] ModelError),
}

/// A checkpoint's template.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChatTemplate {
    source: String,
    /// What the template calls special tokens by, `bos_token` and the like, and how the vocabulary writes them.
    tokens: BTreeMap<String, String>,
}

impl ChatTemplate {
    /// The template of the checkpoint at `path`: that in a GGUF file, else what lies beside the weights (or beside a `.json` file); `None` where
    /// there is none. Of several named ones, `default` is taken, or the only one.
    ///
    /// # Errors
    /// Files that cannot be read; templates beyond [`MAX_TEMPLATE`]; several, none of them `default`.
    pub fn of(path: &Path) -> Result<Option<ChatTemplate>> {
        if path.extension().is_some_and(|e| e == "json") {
            return beside(path.parent().unwrap_or(Path::new(".")));
        }
        let (files, dir) = weight_files(path)?;
        if let Some((metadata, file)) = gguf::told(&files)? {
            return of_metadata(&metadata, file);
        }
        beside(&dir)
    }

    /// A template as it is written, with the words of its special tokens.
    ///
    /// # Errors
    /// One beyond [`MAX_TEMPLATE`].
    pub fn new(source: String, tokens: BTreeMap<String, String>) -> std::result::Result<ChatTemplate, ChatError> {
        match source.len() {
            bytes if bytes > MAX_TEMPLATE => Err(ChatError::TooLarge { what: "a template", bytes, most: MAX_TEMPLATE }),
            _ => Ok(ChatTemplate { source, tokens }),
        }
    }

    /// How the vocabulary writes the token that a template calls `name`.
    pub fn token(&self, name: &str) -> Option<&str> {
        self.tokens.get(name).map(String::as_str)
    }

    /// The ids of the prompt for what comes after `messages`. `render` is [`ChatTemplate::render`], or the same in a process of its own, of these
    /// messages. No token is added to what the template writes. Special tokens are those of the template: `<|im_end|>` in a message is
    /// cut as any other text.
    ///
    /// # Errors
    /// What `render` reports; text that the vocabulary has no tokens for.
    pub fn prompt(
        &self,
        tokenizer: &Tokenizer,
        messages: &[ChatMessage],
        render: impl FnOnce(&[ChatMessage]) -> std::result::Result<String, ChatError>,
    ) -> std::result::Result<Vec<u32>, ChatError> {
        let texts = messages.iter().flat_map(|m| [m.role.as_str(), m.content.as_str()]);
        let Some(marks) = Marks::absent_from(texts.chain([self.source.as_str()])) else {
            return Err(ChatError::Failed { why: "the messages hold every private character".into() });
        };
        let marked = |m: &ChatMessage| ChatMessage { content: tokenizer.mark(&m.content, marks), ..m.clone() };
        let text = render(&messages.iter().map(marked).collect::<Vec<_>>())?;
        Ok(tokenizer.encode_marked(&text, marks)?)
    }

    /// The ids after which an answer is complete: those of the vocabulary, and the template's `eos_token`.
    pub fn ends(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let named = self.token("eos_token").and_then(|token| tokenizer.id(token));
        let mut ends: Vec<u32> = tokenizer.ends().iter().copied().chain(named).collect();
        ends.sort_unstable();
        ends.dedup();
        ends
    }
}

/// As the error of a file.
fn at(path: &Path) -> impl Fn(ChatError) -> ModelError {
    move |e| ModelError::Unsupported {
        path: path.to_owned(),
        why: e.to_string(),
        hint: "a template is some kilobytes".into(),
    }
}

/// What lies in a directory: `chat_template.jinja` goes before `tokenizer_config.json`, as in transformers.
fn beside(dir: &Path) -> Result<Option<ChatTemplate>> {
    let config = dir.join("tokenizer_config.json");
    let json = Json::read(config.clone())?;
    let tokens = json.fields().filter_map(|(key, value)| special(key, value)).collect();
    let own = dir.join("chat_template.jinja");
    if own.exists() {
        let bytes = files::read(&own, MAX_TEMPLATE as u64).map_err(ModelError::read(&own))?;
        let source = String::from_utf8(bytes).map_err(|_| ModelError::damaged(&own, "it is not UTF-8"))?;
        return ChatTemplate::new(source, tokens).map(Some).map_err(at(&own));
    }
    let source = match json.field("chat_template") {
        None => return Ok(None),
        Some(Value::String(source)) => source.clone(),
        Some(Value::Array(all)) => {
            let named = |v: &Value| Some((v["name"].as_str()?.to_owned(), v["template"].as_str()?.to_owned()));
            let Some(all) = all.iter().map(named).collect::<Option<Vec<_>>>() else {
                return Err(json.bad("`chat_template` has entries without `name` and `template`"));
            };
            if all.is_empty() {
                return Ok(None);
            }
            chosen(all, &config)?
        }
        Some(_) => return Err(json.bad("`chat_template` is neither a text nor a list of named ones")),
    };
    ChatTemplate::new(source, tokens).map(Some).map_err(at(&config))
}

/// The template that is called `default`, or the only one.
fn chosen(mut all: Vec<(String, String)>, path: &Path) -> Result<String> {
    let default = all.iter().position(|(name, _)| name == "default");
    match default.or((all.len() == 1).then_some(0)) {
        Some(at) => Ok(all.swap_remove(at).1),
        None => {
            let names: Vec<String> = all.iter().map(|(name, _)| format!("`{}`", printable(name))).collect();
            let why = format!("of its chat templates {} none is `default`", names.join(", "));
            Err(ModelError::unsupported(path, why, "put the one to be used in a `chat_template.jinja` beside it"))
        }
    }
}

/// `bos_token` and the like, as text or as an object with its text.
fn special(key: &str, value: &Value) -> Option<(String, String)> {
    let text = value.as_str().or_else(|| value["content"].as_str());
    key.ends_with("_token").then(|| Some((key.to_owned(), text?.to_owned())))?
}

/// What a GGUF file says: `tokenizer.chat_template`, and tokens by their ids.
fn of_metadata(m: &Metadata, path: &Path) -> Result<Option<ChatTemplate>> {
    let Some(source) = m.string("tokenizer.chat_template") else { return Ok(None) };
    let words = m.strings("tokenizer.ggml.tokens").unwrap_or_default();
    let names = [("bos", "bos_token"), ("eos", "eos_token"), ("unknown", "unk_token"), ("padding", "pad_token")];
    let token = |(key, name): (&str, &str)| {
        let id = m.count(&format!("tokenizer.ggml.{key}_token_id"))?;
        Some((name.to_owned(), (*words.get(id)?).to_owned()))
    };
    let tokens = names.into_iter().filter_map(token).collect();
    ChatTemplate::new(source.to_owned(), tokens).map(Some).map_err(at(path))
}

#[cfg(test)]
mod tests;
