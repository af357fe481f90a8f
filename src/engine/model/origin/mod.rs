//! What a language model's checkpoint says besides the weights that it computes with: its metadata and vocabulary, and tensors that no
//! layer here reads. It is carried along, so that a file for llama.cpp can be written when the checkpoint is gone.
//!
//! All of it is kept in GGUF's words. A GGUF file has them; for a directory they are made of its `config.json` and tokenizer (`hub`,
//! `vocabulary`) when they are needed. In a file that `paring` writes they are a tensor of bytes, [`CARRIED`], which is a GGUF file
//! without the model's weights.

mod hub;
mod own;
mod vocabulary;

use super::gguf::{self, Fields, Metadata};
use super::tokenizer::Tokenizer;
use super::{Blob, Checkpoint, Dtype, Graph, ModelError, ModelInfo, Param, ParamStore, RawTensor, Result, numel_of};
use indexmap::IndexMap;
use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

/// The tensor of our own files that holds it.
pub(super) const CARRIED: &str = "paring_origin.gguf";

/// The text of a directory's `config.json`.
pub(super) const CONFIG: &str = "paring.config";

/// Why there is no vocabulary, or nothing at all, where that has a reason.
const NO_VOCABULARY: &str = "paring.no_vocabulary";
const NOTHING: &str = "paring.no_metadata";
/// What is otherwise about the vocabulary, as a note.
pub(super) const VOCABULARY_NOTE: &str = "paring.vocabulary_note";

/// Where metadata and vocabulary are found.
#[derive(Debug, Clone, Default)]
pub enum Origin {
    /// There are none: a network for images, or nobody told.
    #[default]
    None,
    /// Beside the weights that the model was read from ([`ModelInfo::source`]).
    Beside,
    /// Here.
    Said(Arc<Said>),
}

/// What a checkpoint says.
#[derive(Debug, Clone)]
pub struct Said {
    pub(super) metadata: Metadata,
    /// Tensors that are no parameter of a layer, such as tables of frequencies.
    pub(super) others: IndexMap<String, Param>,
}

impl Said {
    /// What `fields` say, as it is read from a file; `path` is for messages.
    fn of(fields: &Fields, others: Vec<(String, Param)>, path: &Path) -> Result<Option<Arc<Said>>> {
        let mut bytes = Vec::new();
        gguf::write(&mut bytes, fields, &[], |_| Ok(Cow::Borrowed(&[]))).map_err(super::ModelError::read(path))?;
        let held = gguf::read(&Blob::Owned(bytes.into()), path)?;
        Ok(held.gguf.map(|metadata| Arc::new(Said { metadata, others: others.into_iter().collect() })))
    }

    /// Why what it says is not enough for others, in words.
    pub(super) fn lacks(&self) -> Option<&str> {
        self.metadata.string(NOTHING).or_else(|| self.metadata.string(NO_VOCABULARY))
    }

    pub(super) fn fields(&self) -> Fields {
        Fields::of(&self.metadata)
    }
}

impl Origin {
    /// That of a checkpoint which was just read; `params` are those that the network computes with.
    pub(super) fn of(checkpoint: &Checkpoint, graph: &Graph, params: &ParamStore) -> Origin {
        if !graph.is_language_model() {
            return Origin::None;
        }
        let Some(metadata) = &checkpoint.gguf else { return Origin::Beside };
        let others = checkpoint.tensors.iter().chain(&checkpoint.read).filter_map(|(name, raw)| match raw {
            RawTensor::Float(param) if !params.contains(name) => Some((name.clone(), param.clone())),
            _ => None,
        });
        Origin::Said(Arc::new(Said { metadata: metadata.detached(), others: others.collect() }))
    }

    /// The vocabulary that it brings with it; `None` where that lies beside the weights, or there is none. `path` is for messages.
    ///
    /// # Errors
    /// Kinds of vocabularies that are not read.
    pub fn tokenizer(&self, path: &Path) -> Result<Option<Tokenizer>> {
        match self {
            Origin::Said(said) => Tokenizer::told(&said.metadata, path),
            Origin::None | Origin::Beside => Ok(None),
        }
    }

    /// That in a file of our own.
    ///
    /// # Errors
    /// As for a GGUF file.
    pub(super) fn carried(checkpoint: &Checkpoint, path: &Path) -> Result<Origin> {
        let Some(RawTensor::Bytes { dtype: "U8", shape, blob, offset }) = checkpoint.tensors.get(CARRIED) else {
            return Ok(Origin::None);
        };
        let bytes = numel_of(shape).and_then(|n| blob.get(*offset..offset.checked_add(n)?)).unwrap_or_default();
        let held = gguf::read(&Blob::Owned(bytes.into()), path)?;
        Ok(match &held.gguf {
            Some(metadata) => Origin::Said(Arc::new(Said {
                metadata: metadata.clone(),
                others: (held.tensors.iter())
                    .filter_map(|(name, raw)| match raw {
                        RawTensor::Float(param) => Some((name.clone(), param.clone())),
                        RawTensor::Bytes { .. } | RawTensor::Other { .. } => None,
                    })
                    .collect(),
            })),
            None => Origin::None,
        })
    }

    /// What it says, made of what lies beside the weights if need be; `None` where there is nothing. What cannot be made is kept as a
    /// reason ([`Said::lacks`]): a model is written for ourselves without it.
    ///
    /// # Errors
    /// As the system says.
    pub(super) fn said(&self, graph: &Graph, info: &ModelInfo) -> Result<Option<Arc<Said>>> {
        match self {
            Origin::None => Ok(None),
            Origin::Said(said) => Ok(Some(Arc::clone(said))),
            Origin::Beside => {
                let (mut fields, others) = hub::told(graph, info).unwrap_or_else(|why| {
                    let mut f = Fields::default();
                    let why = match why {
                        ModelError::Unsupported { why, .. } => why,
                        other => other.to_string(),
                    };
                    f.string(NOTHING, &why);
                    (f, Vec::new())
                });
                let said = Said::of(&fields, others.clone(), &info.source)?;
                let (key, why) = match said.as_ref().map(|s| vocabulary::compared(&s.metadata, &info.source)) {
                    None | Some(vocabulary::Cut::Alike) => return Ok(said),
                    Some(vocabulary::Cut::Edges(why)) => (VOCABULARY_NOTE, why),
                    Some(vocabulary::Cut::Otherwise(why)) => (NO_VOCABULARY, why),
                };
                fields.string(key, &why);
                Said::of(&fields, others, &info.source)
            }
        }
    }

    /// The bytes that a file of our own carries.
    ///
    /// # Errors
    /// As [`Origin::said`].
    pub(super) fn bytes(&self, graph: &Graph, info: &ModelInfo) -> Result<Option<Vec<u8>>> {
        let Some(said) = self.said(graph, info)? else { return Ok(None) };
        let stored: Vec<_> = said.others.values().map(Param::float_bytes).collect();
        let infos: Vec<_> = (said.others.iter().zip(&stored))
            .map(|((name, param), (dtype, bytes))| gguf::Info {
                name: name.clone(),
                shape: param.shape().to_vec(),
                kind: dtype_number(*dtype),
                bytes: bytes.len(),
            })
            .collect();
        let mut out = Vec::new();
        gguf::write(&mut out, &Fields::of(&said.metadata), &infos, |i| Ok(Cow::Borrowed(&stored[i].1)))
            .map_err(super::ModelError::read(&info.source))?;
        Ok(Some(out))
    }
}

/// `ggml_type`'s number.
pub(super) fn dtype_number(dtype: Dtype) -> u32 {
    match dtype {
        Dtype::F32 => 0,
        Dtype::F16 => 1,
        Dtype::F64 => 28,
        Dtype::Bf16 => 30,
    }
}
