//! Models: a [`Graph`] with its named parameters, where it came from and how its inputs are prepared.
//!
//! Invariants: source files are only ever read, and what was read of them stays what it was or is noticed; a checkpoint is parsed, never executed; a
//! [`ParamStore`] clone is cheap and copy-on-write per tensor.

mod blob;
mod chat;
mod checkpoint;
pub(crate) mod codebook;
mod container;
mod error;
pub mod export;
pub mod families;
pub mod formats;
pub mod fp8;
pub mod ggml;
mod gguf;
mod hf;
pub mod imatrix;
mod imported;
pub mod int4;
pub mod int8;
mod llamacpp;
mod load;
mod onnx;
mod options;
mod origin;
mod params;
mod parts;
pub(crate) mod pickle;
pub mod python;
mod random;
mod recognise;
mod safetensors;
mod tokenizer;
mod torch;
mod torn;
mod transformers;
mod values;
mod written;

pub use blob::Blob;
#[doc(hidden)]
pub use blob::map_all;
pub use chat::{ChatError, ChatMessage, ChatTemplate};
pub use error::{ModelError, Result};
pub use families::FamilySpec;
pub use imatrix::{Imatrix, ImatrixMark};
pub use load::{load, load_bytes};
pub use onnx::onnx as export_onnx;
pub use options::LoadOptions;
pub use origin::Origin;
pub use params::{Dtype, Packed, Param, ParamError, ParamStore};
pub use random::{random, random_params};
pub use tokenizer::{Speaker, Speaks, Tokenizer, Voice, learn};

pub use crate::plain::name as printable;

use crate::files;
use crate::graph::{Graph, Precisions};
use checkpoint::{Checkpoint, RawTensor};
use hf::Sidecar;
use params::numel_of;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::Arc;

/// The note of a model whose file is silent about preprocessing.
pub const ASSUMED: &str = "an ONNX file does not say how images are prepared; ImageNet's mean and deviation are assumed, \
                           --mean and --std say otherwise";

/// Families: the variant, its name for `--arch`, and a line on it with names from its checkpoints.
macro_rules! families {
    ($($(#[$about:meta])* $family:ident $label:literal $line:literal,)+) => {
        /// Network families that an importer can build a graph for.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Family {
            $($(#[$about])* $family,)+
        }

        impl Family {
            /// Every family, for messages and `--arch`.
            pub const ALL: [Family; 17] = [$(Family::$family),+];

            /// The name that `--arch` takes.
            pub fn label(self) -> &'static str {
                match self { $(Family::$family => $label,)+ }
            }

            /// A line on what the family is, with names from its checkpoints.
            pub fn describe(self) -> &'static str {
                match self { $(Family::$family => $line,)+ }
            }
        }
    };
}

families! {
    /// He et al. ResNets for CIFAR, option-A shortcuts, any depth `6n+2`.
    CifarResnet "cifar-resnet" "He et al. CIFAR ResNets with option-A shortcuts (`layer1.0.conv1`, `linear`)",
    /// ResNets, wide ResNets and ResNeXts for ImageNet.
    Resnet "resnet" "ResNets, wide ResNets and ResNeXts (`layer1.0.conv1`, `resnet.encoder.stages.0`)",
    Vgg "vgg" "VGG with and without batch norm (`features.0`, `classifier.6`)",
    #[serde(rename = "mobilenet_v2")]
    MobileNetV2 "mobilenet-v2" "MobileNet v2 (`features.1.conv`, `blocks.0.0.conv_dw`)",
    #[serde(rename = "mobilenet_v3")]
    MobileNetV3 "mobilenet-v3" "MobileNet v3, small and large (`features.1.block`, `blocks.0.0.conv_dw`)",
    #[serde(rename = "efficientnet")]
    EfficientNet "efficientnet" "EfficientNet B0 to B7 (`features.1.0.block`, `blocks.0.0.se`)",
    #[serde(rename = "convnext")]
    ConvNext "convnext" "ConvNeXt (`stages.0.blocks.0.conv_dw`, `features.1.0.layer_scale`)",
    /// torch `TransformerEncoder` ViT (post-norm, fused `in_proj`).
    TorchVit "torch-vit" "ViT on torch's TransformerEncoder (`transformer.layers.0.self_attn.in_proj_weight`)",
    /// ViT, DeiT and DINOv2.
    #[serde(alias = "hf_vit", alias = "timm_vit")]
    Vit "vit" "ViT, DeiT, DINOv2 (`blocks.0.attn.qkv`, `vit.encoder.layer.0`, `encoder.layers.encoder_layer_0`)",
    Swin "swin" "Swin (`layers.0.blocks.0.attn`, `features.1.0.attn.relative_position_bias_table`)",
    SwinV2 "swin-v2" "Swin v2 (`layers.0.blocks.0.attn.logit_scale`)",
    /// Decoder-only language models of Llama's kind.
    Llama "llama" "Llama, SmolLM2, Mistral, Qwen2, Qwen3, Phi-3, OLMo 2 (`model.layers.0.self_attn.q_proj`, `blk.0.attn_q`)",
    /// Gemma 2 and Gemma 3's text part.
    Gemma "gemma" "Gemma 2, Gemma 3 (`model.layers.0.pre_feedforward_layernorm`, `blk.0.post_ffw_norm`)",
    /// GPT-2.
    #[serde(rename = "gpt2")]
    Gpt2 "gpt2" "GPT-2 (`transformer.h.0.attn.c_attn`, `blk.0.attn_qkv`)",
    /// BERT and DistilBERT with a classifier of texts.
    Bert "bert" "BERT, DistilBERT with a classifier (`bert.encoder.layer.0.attention.self.query`, `distilbert.transformer.layer.0`)",
    /// ModernBERT with a classifier of texts.
    #[serde(rename = "modernbert")]
    ModernBert "modernbert" "ModernBERT with a classifier (`model.layers.0.attn.Wqkv`)",
    /// A network read from an ONNX file, whatever it is.
    Onnx "onnx" "any classifier in an ONNX file",
}

impl Family {
    /// Its networks read text.
    pub fn of_text(self) -> bool {
        matches!(self, Family::Llama | Family::Gemma | Family::Gpt2 | Family::Bert | Family::ModernBert)
    }
}

impl std::str::FromStr for Family {
    type Err = String;

    fn from_str(s: &str) -> Result<Family, String> {
        let wanted = s.replace('_', "-").to_lowercase();
        Family::ALL.into_iter().find(|f| f.label() == wanted).ok_or_else(|| {
            let known: Vec<&str> = Family::ALL.iter().map(|f| f.label()).collect();
            format!("unknown family `{s}`; hint: one of {}", known.join(", "))
        })
    }
}

impl Preprocess {
    /// Nothing said how images are prepared: what the family's published weights expect is taken.
    pub fn assumed(&self) -> bool {
        self.origin == FAMILY_DEFAULT
    }

    /// Of what takes no images.
    pub fn none() -> Preprocess {
        Preprocess { channels: 0, origin: "no images".into(), ..Preprocess::imagenet([0, 0]) }
    }

    /// ImageNet statistics, `x = (byte/255 - mean)/std`, straight to `size`.
    pub fn imagenet(size: [usize; 2]) -> Preprocess {
        Preprocess {
            size,
            channels: 3,
            resize_shorter: None,
            fit: Fit::default(),
            mean: [0.485, 0.456, 0.406],
            std: [0.229, 0.224, 0.225],
            interpolation: Interpolation::Bilinear,
            origin: FAMILY_DEFAULT.into(),
        }
    }
}

/// [`Preprocess::origin`] of what was not told.
const FAMILY_DEFAULT: &str = "family default";

/// How a raw RGB image becomes the network's input.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Preprocess {
    /// Side lengths `[h, w]` of the network input.
    pub size: [usize; 2],
    /// Channels of the network input: 3 for RGB, 1 for grey (the first of `mean` and `std` counts then).
    #[serde(default = "rgb")]
    pub channels: usize,
    /// Shorter side to resize to before the centre crop; `None`: resize straight to `size`.
    pub resize_shorter: Option<usize>,
    /// How resizing and the crop's corner are reckoned.
    #[serde(default)]
    pub fit: Fit,
    /// Per-channel mean and standard deviation after dividing bytes by 255.
    pub mean: [f32; 3],
    pub std: [f32; 3],
    /// Interpolation for resizing.
    pub interpolation: Interpolation,
    /// Where these values came from, in words ("family default", "preprocessor_config.json", "flags").
    pub origin: String,
}

/// Channels where nothing else is said.
fn rgb() -> usize {
    3
}

/// Pillow's antialiased filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Interpolation {
    Box,
    Bilinear,
    Hamming,
    Bicubic,
    Lanczos,
}

impl Interpolation {
    pub const ALL: [Self; 5] = [Self::Box, Self::Bilinear, Self::Hamming, Self::Bicubic, Self::Lanczos];

    /// Pillow's name for it, which timm's `interpolation` takes too.
    pub fn label(self) -> &'static str {
        self.pillow().0
    }

    /// Pillow's number for it, which Hugging Face's `resample` holds.
    pub fn number(self) -> usize {
        self.pillow().1
    }

    fn pillow(self) -> (&'static str, usize) {
        match self {
            Interpolation::Lanczos => ("lanczos", 1),
            Interpolation::Bilinear => ("bilinear", 2),
            Interpolation::Bicubic => ("bicubic", 3),
            Interpolation::Box => ("box", 4),
            Interpolation::Hamming => ("hamming", 5),
        }
    }
}

/// Where libraries differ in resizing before a centre crop; without `resize_shorter` it says nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fit {
    /// torchvision and timm: the shorter side is resized; half a pixel of the crop's corner rounds to even.
    #[default]
    Shorter,
    /// Hugging Face: the shorter side is resized; half a pixel of the crop's corner is dropped.
    ShorterFloor,
    /// Hugging Face with an exact size: both sides become `resize_shorter`, whatever the image's aspect.
    SquashFloor,
}

/// A loaded model.
#[derive(Debug, Clone)]
pub struct Model {
    pub graph: Arc<Graph>,
    pub params: ParamStore,
    /// What was decided for a model that `paring` wrote; else what the checkpoint stores weights in, where that is fewer than 32 bits.
    pub precision: Precisions,
    pub info: ModelInfo,
    /// What a language model's checkpoint says besides its weights.
    pub origin: Origin,
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
    /// Tokens that a model of text was made for at most, where its configuration tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<usize>,
}
