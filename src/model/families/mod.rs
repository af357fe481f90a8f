//! Network families: a graph from a small spec, with the checkpoint's own node and parameter names.
//!
//! Not here: reading checkpoints (`model::load`) and telling families apart (`model::recognise`). A new family is a
//! spec struct, one builder function out of the shared blocks, and an entry in [`FamilySpec`].

mod resnet;
mod vit;

pub use resnet::{CifarResnetSpec, ResnetBlock, ResnetSpec, cifar_resnet, resnet};
pub use vit::{HfVitSpec, TimmVitSpec, TorchVitSpec, VitDims, hf_vit, timm_vit, torch_vit};

use super::Family;
use crate::graph::{Graph, GraphError};
use serde::{Deserialize, Serialize};

/// A family with its dimensions: everything a graph is built from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "family", rename_all = "snake_case")]
pub enum FamilySpec {
    CifarResnet(CifarResnetSpec),
    Resnet(ResnetSpec),
    TorchVit(TorchVitSpec),
    HfVit(HfVitSpec),
    TimmVit(TimmVitSpec),
}

impl FamilySpec {
    pub fn family(&self) -> Family {
        match self {
            FamilySpec::CifarResnet(_) => Family::CifarResnet,
            FamilySpec::Resnet(_) => Family::Resnet,
            FamilySpec::TorchVit(_) => Family::TorchVit,
            FamilySpec::HfVit(_) => Family::HfVit,
            FamilySpec::TimmVit(_) => Family::TimmVit,
        }
    }

    pub fn classes(&self) -> usize {
        match self {
            FamilySpec::CifarResnet(s) => s.classes,
            FamilySpec::Resnet(s) => s.classes,
            FamilySpec::TorchVit(s) => s.dims.classes,
            FamilySpec::HfVit(s) => s.dims.classes,
            FamilySpec::TimmVit(s) => s.dims.classes,
        }
    }

    /// The checked graph.
    ///
    /// # Errors
    /// [`GraphError`] when the dimensions do not fit together.
    pub fn build(&self) -> Result<Graph, GraphError> {
        match self {
            FamilySpec::CifarResnet(s) => cifar_resnet(s),
            FamilySpec::Resnet(s) => resnet(s),
            FamilySpec::TorchVit(s) => torch_vit(s),
            FamilySpec::HfVit(s) => hf_vit(s),
            FamilySpec::TimmVit(s) => timm_vit(s),
        }
    }
}
