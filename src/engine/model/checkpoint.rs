//! A checkpoint as found in a file: named tensors and metadata, before anyone knows which network it is.
//!
//! Invariants: parsed, never executed; no allocation grows faster than the file itself; every view's bounds were
//! checked; floats are viewed in place.

use super::gguf::Metadata;
use super::params::Dtype;
use super::{Blob, ModelError, Param, Result, printable};
use indexmap::IndexMap;
use std::path::Path;

/// One tensor of a checkpoint.
#[derive(Debug, Clone)]
pub(super) enum RawTensor {
    Float(Param),
    /// `I8` or `U8` values at `offset` of the blob (quantized weights of our own exports, of 8 or 4 bits).
    Bytes {
        dtype: &'static str,
        shape: Vec<usize>,
        blob: Blob,
        offset: usize,
    },
    /// Integers, booleans: counters that no network here computes with.
    Other {
        shape: Vec<usize>,
        dtype: String,
    },
}

impl RawTensor {
    pub fn shape(&self) -> &[usize] {
        match self {
            RawTensor::Float(p) => p.shape(),
            RawTensor::Bytes { shape, .. } | RawTensor::Other { shape, .. } => shape,
        }
    }
}

/// Everything read from one file, or from all shards of one checkpoint.
#[derive(Debug, Default)]
pub(super) struct Checkpoint {
    pub tensors: IndexMap<String, RawTensor>,
    pub metadata: IndexMap<String, String>,
    /// Of a GGUF file.
    pub gguf: Option<Metadata>,
    /// Tensors of a GGUF file whose values went into the graph (divisors of rotary frequencies): no layer's, and the file's for others all the same.
    pub read: IndexMap<String, RawTensor>,
}

impl Checkpoint {
    /// The shape of `name`, if there is such a tensor.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(RawTensor::shape)
    }

    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Adds another shard; a name in both is damage.
    pub fn absorb(&mut self, other: Checkpoint, path: &Path) -> Result<()> {
        for (name, tensor) in other.tensors {
            if self.tensors.contains_key(&name) {
                return Err(ModelError::damaged(path, format!("tensor `{}` is in two shards", printable(&name))));
            }
            self.tensors.insert(name, tensor);
        }
        self.metadata.extend(other.metadata);
        self.gguf = self.gguf.take().or(other.gguf);
        Ok(())
    }

    /// Takes off prefixes that wrappers put before every name (`DataParallel`'s `module.`, `torch.compile`'s
    /// `_orig_mod.`, a Lightning module's `model.`).
    pub fn strip_wrappers(&mut self) {
        const WRAPPERS: [&str; 4] = ["module.", "_orig_mod.", "model.", "net."];
        while let Some(prefix) =
            WRAPPERS.iter().find(|p| !self.tensors.is_empty() && self.tensors.keys().all(|k| k.starts_with(**p)))
        {
            self.tensors =
                std::mem::take(&mut self.tensors).into_iter().map(|(k, v)| (k[prefix.len()..].to_owned(), v)).collect();
        }
    }

    /// A few words on what is in here, for errors: first names with shapes, and how many there are.
    pub fn summary(&self) -> String {
        if self.tensors.is_empty() {
            return "no tensors at all".into();
        }
        let shown: Vec<String> =
            self.tensors.iter().take(6).map(|(k, t)| format!("`{}` {:?}", printable(k), t.shape())).collect();
        let n = self.tensors.len();
        format!("{n} tensors, first {}{}", shown.join(", "), if n > shown.len() { ", …" } else { "" })
    }
}

/// The float type of a storage or header entry, by PyTorch's or safetensors' word.
pub(super) fn float_dtype(word: &str) -> Option<Dtype> {
    match word {
        "F32" | "FloatStorage" => Some(Dtype::F32),
        "F16" | "HalfStorage" => Some(Dtype::F16),
        "BF16" | "BFloat16Storage" => Some(Dtype::Bf16),
        "F64" | "DoubleStorage" => Some(Dtype::F64),
        _ => None,
    }
}
