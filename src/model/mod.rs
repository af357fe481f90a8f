//! Models: a [`Graph`] with its named parameters, where it came from and how its inputs are prepared.
//!
//! Invariants: source files are memory-mapped and never written; a checkpoint is parsed, never executed; a
//! [`ParamStore`] clone is cheap and copy-on-write per tensor.

mod params;

pub use params::{Param, ParamError, ParamStore};

use crate::graph::{Graph, PrecisionPlan};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// Network families that an importer can build a graph for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Family {
    /// He et al. ResNets for CIFAR, option-A shortcuts, any depth `6n+2`.
    CifarResnet,
    /// torchvision / timm ResNets, basic or bottleneck blocks.
    Resnet,
    /// torch `TransformerEncoder` ViT (post-norm, fused `in_proj`).
    TorchVit,
    /// Hugging Face `ViTForImageClassification` / DeiT.
    HfVit,
    /// timm `VisionTransformer` (also DeiT).
    TimmVit,
}

/// How a raw RGB image becomes the network's input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Preprocess {
    /// Side lengths `[h, w]` of the network input.
    pub size: [usize; 2],
    /// Shorter side to resize to before the centre crop; `None`: resize straight to `size`.
    pub resize_shorter: Option<usize>,
    /// Per-channel mean and standard deviation after dividing bytes by 255.
    pub mean: [f32; 3],
    pub std: [f32; 3],
    /// Interpolation for resizing.
    pub interpolation: Interpolation,
    /// Where these values came from, in words ("family default", "preprocessor_config.json", "flags").
    pub origin: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interpolation {
    Bilinear,
    Bicubic,
}

/// A loaded model.
#[derive(Debug, Clone)]
pub struct Model {
    pub graph: Arc<Graph>,
    pub params: ParamStore,
    /// All f32 for an imported checkpoint; what was decided for one that `paring` wrote.
    pub precision: PrecisionPlan,
    pub info: ModelInfo,
}

/// What is known of a model besides its tensors.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ModelInfo {
    /// Short name for the header, e.g. `resnet56-4bfd9763`.
    pub name: String,
    pub family: Family,
    pub classes: usize,
    pub class_names: Option<Vec<String>>,
    pub preprocess: Preprocess,
    pub source: PathBuf,
    /// BLAKE3 over names, shapes and f32 bytes of all parameters.
    pub hash: String,
    /// Warnings met while loading (unused tensors, unusual values).
    pub notes: Vec<String>,
}
