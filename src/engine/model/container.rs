//! Which container a checkpoint's file is, told by its first bytes and not by its name, and reading it.

use super::{Blob, Checkpoint, ModelError, Result, gguf, safetensors, torch};
use std::path::Path;

/// Reads a checkpoint from bytes; `path` is for messages.
pub(super) fn parse(blob: &Blob, path: &Path) -> Result<Checkpoint> {
    let format = |why| Err(ModelError::format(path, why));
    let bytes: &[u8] = blob;
    match bytes {
        [] => format("the file is empty"),
        _ if bytes.starts_with(gguf::MAGIC) => gguf::read(blob, path),
        _ if safetensors::is(bytes) => safetensors::read(blob, path),
        [b'P', b'K', 3, 4, ..] => torch::zip(blob, path),
        [0x80, 1..=5, ..] => torch::legacy(blob, path),
        [0x89, b'H', b'D', b'F', ..] => format("HDF5 (Keras) files are not supported"),
        _ if bytes.starts_with(b"version https://git-lfs") => {
            format("it is a Git LFS pointer, the weights were not downloaded")
        }
        _ => format("its first bytes belong to no known format"),
    }
}
