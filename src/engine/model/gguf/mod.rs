//! GGUF, the container of llama.cpp: typed metadata, tensor infos, aligned tensor data; versions 2 and 3, little-endian
//! (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>).
//!
//! Reading the container (`read`), its metadata (`metadata`), and what that says in the words of a `config.json` (`config`). Not here: the formats
//! of blocks (`ggml`), vocabularies (`tokenizer`), networks (`families`).

mod config;
mod metadata;
mod read;
#[cfg(test)]
mod tests;

pub(super) use config::config;
pub(super) use metadata::Metadata;
pub(super) use read::read;

/// The first bytes of such a file.
pub(super) const MAGIC: &[u8] = b"GGUF";
