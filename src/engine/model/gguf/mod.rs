//! GGUF, the container of llama.cpp: typed metadata, tensor infos, aligned tensor data; versions 2 and 3, little-endian
//! (<https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>).
//!
//! Reading the container (`read`), its metadata (`metadata`), and what that says in the words of a `config.json` (`config`); writing the
//! container (`write`) with metadata that was read or made (`fields`). Not here: the formats of blocks (`ggml`), vocabularies
//! (`tokenizer`), networks (`families`), and how a model becomes such a file (`llamacpp`).

mod config;
mod fields;
mod metadata;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub(super) use config::{config, decimal, interleaved};
pub(super) use fields::Fields;
pub(super) use metadata::Metadata;
pub(super) use read::{read, told};
pub(super) use write::{Info, write};

/// The first bytes of such a file.
pub(super) const MAGIC: &[u8] = b"GGUF";
