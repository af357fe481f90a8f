//! What vision transformers call their parts.

use super::names::Rules;
use super::{Names, Source};

const TRANSFORMER_ENCODER: Rules = &[
    ("blocks.#.attn.qkv.weight", "transformer.layers.{0}.self_attn.in_proj_weight"),
    ("blocks.#.attn.qkv.bias", "transformer.layers.{0}.self_attn.in_proj_bias"),
    ("blocks.#.attn.qkv", "transformer.layers.{0}.self_attn.in_proj"),
    ("blocks.#.attn.proj", "transformer.layers.{0}.self_attn.out_proj"),
    ("blocks.#.mlp.fc#", "transformer.layers.{0}.linear{1}"),
    ("blocks.#", "transformer.layers.{0}"),
    ("norm", "mlp_head.0"),
    ("head", "mlp_head.1"),
];
pub static TORCH: [Names; 1] = [Names::new(Source::Paper, "", &[TRANSFORMER_ENCODER])];

const TORCHVISION: Rules = &[
    ("patch_embed.proj", "conv_proj"),
    ("cls_token", "class_token"),
    ("class_token", "encoder.class_token"),
    ("pos_embed", "encoder.pos_embedding"),
    ("blocks.#.norm#", "encoder.layers.encoder_layer_{0}.ln_{1}"),
    ("blocks.#.attn.qkv.weight", "encoder.layers.encoder_layer_{0}.self_attention.in_proj_weight"),
    ("blocks.#.attn.qkv.bias", "encoder.layers.encoder_layer_{0}.self_attention.in_proj_bias"),
    ("blocks.#.attn.qkv", "encoder.layers.encoder_layer_{0}.self_attention.in_proj"),
    ("blocks.#.attn.proj", "encoder.layers.encoder_layer_{0}.self_attention.out_proj"),
    ("norm", "encoder.ln"),
    ("head", "heads.head"),
    ("blocks.#", "encoder.layers.encoder_layer_{0}"),
];
/// A new state dict of torchvision's.
const TORCHVISION_NEW: Rules = &[
    ("blocks.#.mlp.fc1", "encoder.layers.encoder_layer_{0}.mlp.0"),
    ("blocks.#.mlp.fc2", "encoder.layers.encoder_layer_{0}.mlp.3"),
];
/// The files that it publishes, which it renames as it loads them.
const TORCHVISION_PUBLISHED: Rules = &[("blocks.#.mlp.fc#", "encoder.layers.encoder_layer_{0}.mlp.linear_{1}")];

const HF: Rules = &[
    ("patch_embed.proj", "{p}.embeddings.patch_embeddings.projection"),
    ("cls_token", "{p}.embeddings.cls_token"),
    ("dist_token", "{p}.embeddings.distillation_token"),
    ("reg_token", "{p}.embeddings.register_tokens"),
    ("pos_embed", "{p}.embeddings.position_embeddings"),
    ("blocks.#.attn.q", "{p}.encoder.layer.{0}.attention.attention.query"),
    ("blocks.#.attn.k", "{p}.encoder.layer.{0}.attention.attention.key"),
    ("blocks.#.attn.v", "{p}.encoder.layer.{0}.attention.attention.value"),
    ("blocks.#.attn.proj", "{p}.encoder.layer.{0}.attention.output.dense"),
    ("norm", "{p}.layernorm"),
];
const HF_LAYER: Rules = &[
    ("blocks.#.norm1", "{p}.encoder.layer.{0}.layernorm_before"),
    ("blocks.#.norm2", "{p}.encoder.layer.{0}.layernorm_after"),
    ("blocks.#.mlp.fc1", "{p}.encoder.layer.{0}.intermediate.dense"),
    ("blocks.#.mlp.fc2", "{p}.encoder.layer.{0}.output.dense"),
    ("blocks.#", "{p}.encoder.layer.{0}"),
];
const HF_CLASSIFIER: Rules = &[("head", "classifier")];
const HF_TEACHER: Rules = &[("head_dist", "distillation_classifier"), ("head", "cls_classifier")];
const DINO_LAYER: Rules = &[("blocks.#.ls#.gamma", "{p}.encoder.layer.{0}.layer_scale{1}.lambda1")];
const DINO_PLAIN: Rules = &[("blocks.#", "{p}.encoder.layer.{0}")];
const DINO_SWIGLU: Rules = &[
    ("blocks.#.mlp.fc1", "{p}.encoder.layer.{0}.mlp.weights_in"),
    ("blocks.#.mlp.fc2", "{p}.encoder.layer.{0}.mlp.weights_out"),
    ("blocks.#", "{p}.encoder.layer.{0}"),
];

const fn hf(prefix: &'static str, rules: &'static [Rules]) -> Names {
    Names { source: Source::HuggingFace, prefix, rules, unused: &[".pooler.dense.", ".mask_token"] }
}

pub(super) static NAMES: [Names; 10] = [
    Names::new(Source::Timm, "", &[]),
    Names::new(Source::Torchvision, "", &[TORCHVISION_NEW, TORCHVISION]),
    Names::new(Source::Torchvision, "", &[TORCHVISION_PUBLISHED, TORCHVISION]),
    hf("vit", &[HF, HF_LAYER, HF_CLASSIFIER]),
    hf("deit", &[HF, HF_LAYER, HF_CLASSIFIER]),
    hf("deit", &[HF, HF_LAYER, HF_TEACHER]),
    hf("dinov2", &[HF, DINO_LAYER, DINO_PLAIN, HF_CLASSIFIER]),
    hf("dinov2", &[HF, DINO_LAYER, DINO_SWIGLU, HF_CLASSIFIER]),
    hf("dinov2_with_registers", &[HF, DINO_LAYER, DINO_PLAIN, HF_CLASSIFIER]),
    hf("dinov2_with_registers", &[HF, DINO_LAYER, DINO_SWIGLU, HF_CLASSIFIER]),
];
pub static TIMM: &Names = &NAMES[0];
pub static HF_VIT: &Names = &NAMES[3];
pub static HF_DEIT: &Names = &NAMES[4];

pub(super) const MARKS: &[&str] = &["patch_embed.proj.weight", "pos_embed", "blocks.0.attn.proj.weight", "head.weight"];
/// Beside the marks: any one of these, by which names with the same prefix differ.
pub(super) const EITHER: &[&str] = &["blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc1_g.weight"];
