//! What can go wrong between a path and a [`super::Model`]. Every message names the thing and ends with a hint;
//! names from files are made printable before they get here.

use super::{Family, ParamError};
use crate::graph::GraphError;
use std::io;
use std::path::{Path, PathBuf};

/// What this room gives, or its own error.
pub type Result<T, E = ModelError> = std::result::Result<T, E>;

/// A model could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error("cannot read `{}`: {source}; hint: check the path and its permissions", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("cannot write `{}`: {source}; hint: check that the folder exists, is writable and has space", path.display())]
    Write { path: PathBuf, source: io::Error },
    #[error("`{}` is not a checkpoint: {why}; hint: safetensors, PyTorch state dicts (.th, .pth, .pt), GGUF and ONNX are read", path.display())]
    Format { path: PathBuf, why: String },
    #[error("`{}` is damaged: {why}; hint: compare its size and checksum with the original", path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("`{}` cannot be used: {why}; hint: {hint}", path.display())]
    Unsupported { path: PathBuf, why: String, hint: String },
    #[error(
        "`{}` holds no network of a known family. seen: {seen}. known: {}; hint: `--arch FAMILY` overrides the guess",
        path.display(), known()
    )]
    UnknownFamily { path: PathBuf, seen: String },
    #[error(
        "`{}` has operators that no layer here does: {list}; hint: export with a later opset and constant folding, or \
         simplify these parts",
        path.display()
    )]
    Operators { path: PathBuf, list: String },
    #[error(
        "`{}` is no {} network: {why}; hint: {}", path.display(), family.label(),
        match (*asked, family.of_text()) {
            (true, _) => "leave `--arch` out to let the family be recognised",
            (false, true) => "weights and configuration must be those of one network: compare with the original's directory or GGUF file",
            (false, false) => "export it to ONNX, which tells all of it",
        }
    )]
    NotFamily {
        path: PathBuf,
        family: Family,
        why: String,
        /// The family was named, not recognised.
        asked: bool,
    },
    #[error("tensor `{name}` holds {value} at element {index}; hint: the weights are broken, export them again")]
    NotFinite { name: String, index: usize, value: f32 },
    #[error(
        "running variance `{name}` is negative at element {index}; hint: the weights are broken, export them again"
    )]
    NegativeVariance { name: String, index: usize },
    #[error(
        "{} tensors have no place in a {} network: {}; hint: this is another architecture, and leaving them out would \
         give wrong answers",
        names.len(), family.label(), first(names)
    )]
    Extra { family: Family, names: Vec<String> },
    #[error("`{}`: {why}; hint: fix the file, or move it away to use defaults", path.display())]
    Config { path: PathBuf, why: String },
    #[error(transparent)]
    Param(#[from] ParamError),
    #[error(transparent)]
    Graph(#[from] GraphError),
}

impl ModelError {
    pub(super) fn read(path: &Path) -> impl Fn(io::Error) -> ModelError {
        move |source| ModelError::Read { path: path.to_owned(), source }
    }

    pub(super) fn write(path: &Path) -> impl Fn(io::Error) -> ModelError {
        move |source| ModelError::Write { path: path.to_owned(), source }
    }

    pub(super) fn format(path: &Path, why: impl Into<String>) -> ModelError {
        ModelError::Format { path: path.to_owned(), why: why.into() }
    }

    pub(super) fn damaged(path: &Path, why: impl Into<String>) -> ModelError {
        ModelError::Damaged { path: path.to_owned(), why: why.into() }
    }

    pub(super) fn unsupported(path: &Path, why: impl Into<String>, hint: &str) -> ModelError {
        ModelError::Unsupported { path: path.to_owned(), why: why.into(), hint: hint.into() }
    }
}

fn known() -> String {
    Family::ALL.map(|f| format!("{}: {}", f.label(), f.describe())).join("; ")
}

fn first(names: &[String]) -> String {
    let shown: Vec<String> = names.iter().take(4).map(|n| format!("`{n}`")).collect();
    let more = if names.len() > 4 { ", …" } else { "" };
    shown.join(", ") + more
}
