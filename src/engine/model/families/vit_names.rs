//! What vision transformers call their parts, and reading one off a checkpoint.

use super::read::Reader;
use super::vit::{Head, Mlp, Qkv, VitDims, VitSpec};
use super::{FamilySpec, Names, Source};
use crate::graph::Activation;
use crate::model::ModelError;

pub static TIMM: Names = Names { source: Source::Timm, prefix: "", rules: &[], unused: &[] };

pub static TORCH: Names = Names {
    source: Source::Paper,
    prefix: "",
    rules: &[&[
        ("blocks.#.attn.qkv.weight", "transformer.layers.{0}.self_attn.in_proj_weight"),
        ("blocks.#.attn.qkv.bias", "transformer.layers.{0}.self_attn.in_proj_bias"),
        ("blocks.#.attn.qkv", "transformer.layers.{0}.self_attn.in_proj"),
        ("blocks.#.attn.proj", "transformer.layers.{0}.self_attn.out_proj"),
        ("blocks.#.mlp.fc1", "transformer.layers.{0}.linear1"),
        ("blocks.#.mlp.fc2", "transformer.layers.{0}.linear2"),
        ("blocks.#", "transformer.layers.{0}"),
        ("norm", "mlp_head.0"),
        ("head", "mlp_head.1"),
    ]],
    unused: &[],
};

type Rules = &'static [(&'static str, &'static str)];

const TORCHVISION: Rules = &[
    ("patch_embed.proj", "conv_proj"),
    ("cls_token", "class_token"),
    ("class_token", "encoder.class_token"),
    ("pos_embed", "encoder.pos_embedding"),
    ("blocks.#.norm1", "encoder.layers.encoder_layer_{0}.ln_1"),
    ("blocks.#.attn.qkv.weight", "encoder.layers.encoder_layer_{0}.self_attention.in_proj_weight"),
    ("blocks.#.attn.qkv.bias", "encoder.layers.encoder_layer_{0}.self_attention.in_proj_bias"),
    ("blocks.#.attn.qkv", "encoder.layers.encoder_layer_{0}.self_attention.in_proj"),
    ("blocks.#.attn.proj", "encoder.layers.encoder_layer_{0}.self_attention.out_proj"),
    ("blocks.#.norm2", "encoder.layers.encoder_layer_{0}.ln_2"),
    ("norm", "encoder.ln"),
    ("head", "heads.head"),
];
/// A new state dict of torchvision's.
pub static TORCHVISION_NEW: Names = Names {
    source: Source::Torchvision,
    prefix: "",
    rules: &[
        TORCHVISION,
        &[
            ("blocks.#.mlp.fc1", "encoder.layers.encoder_layer_{0}.mlp.0"),
            ("blocks.#.mlp.fc2", "encoder.layers.encoder_layer_{0}.mlp.3"),
            ("blocks.#", "encoder.layers.encoder_layer_{0}"),
        ],
    ],
    unused: &[],
};
/// The files that it publishes, which it renames as it loads them.
pub static TORCHVISION_PUBLISHED: Names = Names {
    source: Source::Torchvision,
    prefix: "",
    rules: &[
        TORCHVISION,
        &[
            ("blocks.#.mlp.fc1", "encoder.layers.encoder_layer_{0}.mlp.linear_1"),
            ("blocks.#.mlp.fc2", "encoder.layers.encoder_layer_{0}.mlp.linear_2"),
            ("blocks.#", "encoder.layers.encoder_layer_{0}"),
        ],
    ],
    unused: &[],
};

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
const DINO_LAYER: Rules = &[
    ("blocks.#.ls1.gamma", "{p}.encoder.layer.{0}.layer_scale1.lambda1"),
    ("blocks.#.ls2.gamma", "{p}.encoder.layer.{0}.layer_scale2.lambda1"),
];
const DINO_PLAIN: Rules = &[("blocks.#", "{p}.encoder.layer.{0}")];
const DINO_SWIGLU: Rules = &[
    ("blocks.#.mlp.fc1", "{p}.encoder.layer.{0}.mlp.weights_in"),
    ("blocks.#.mlp.fc2", "{p}.encoder.layer.{0}.mlp.weights_out"),
    ("blocks.#", "{p}.encoder.layer.{0}"),
];

const fn hf(prefix: &'static str, rules: &'static [Rules]) -> Names {
    Names { source: Source::HuggingFace, prefix, rules, unused: &[".pooler.dense.", ".mask_token"] }
}

pub static HF_VIT: Names = hf("vit", &[HF, HF_LAYER, HF_CLASSIFIER]);
pub static HF_DEIT: Names = hf("deit", &[HF, HF_LAYER, HF_CLASSIFIER]);
pub static HF_DEIT_TEACHER: Names = hf("deit", &[HF, HF_LAYER, HF_TEACHER]);
pub static DINOV2: Names = hf("dinov2", &[HF, DINO_LAYER, DINO_PLAIN, HF_CLASSIFIER]);
pub static DINOV2_SWIGLU: Names = hf("dinov2", &[HF, DINO_LAYER, DINO_SWIGLU, HF_CLASSIFIER]);
pub static DINOV2_REGISTERS: Names = hf("dinov2_with_registers", &[HF, DINO_LAYER, DINO_PLAIN, HF_CLASSIFIER]);
pub static DINOV2_REGISTERS_SWIGLU: Names = hf("dinov2_with_registers", &[HF, DINO_LAYER, DINO_SWIGLU, HF_CLASSIFIER]);

pub(super) static NAMES: [&Names; 10] = [
    &TIMM,
    &TORCHVISION_NEW,
    &TORCHVISION_PUBLISHED,
    &HF_VIT,
    &HF_DEIT,
    &HF_DEIT_TEACHER,
    &DINOV2,
    &DINOV2_SWIGLU,
    &DINOV2_REGISTERS,
    &DINOV2_REGISTERS_SWIGLU,
];
pub(super) const MARKS: &[&str] = &["patch_embed.proj.weight", "pos_embed", "blocks.0.attn.proj.weight", "head.weight"];
/// Beside the marks: any one of these, by which names with the same prefix differ.
pub(super) const EITHER: &[&str] = &["blocks.0.mlp.fc1.weight", "blocks.0.mlp.fc1_g.weight"];

/// Dimensions from the patch convolution, the positions and one MLP; and how many tokens before the patches have
/// positions, one of `candidates`.
fn dims(r: &Reader, mlp: usize, heads: usize, candidates: &[usize]) -> Result<(VitDims, usize), ModelError> {
    let [dim, channels, patch, patch_w] = r.shape::<4>("patch_embed.proj.weight")?;
    if !matches!(channels, 1 | 3) || patch != patch_w {
        let name = r.names.of("patch_embed.proj.weight");
        return Err(r.not(format!("`{name}` does not cut square patches of grey or RGB images")));
    }
    let [_, tokens, _] = r.shape::<3>("pos_embed")?;
    let square = |&extra: &usize| {
        let patches = tokens.checked_sub(extra)?;
        (patches > 0 && patches.isqrt().pow(2) == patches).then_some((patches.isqrt(), extra))
    };
    let Some((grid, positioned)) = candidates.iter().find_map(square) else {
        let (name, extra) = (r.names.of("pos_embed"), candidates.first().copied().unwrap_or(0));
        return Err(r.not(format!("`{name}` has {tokens} positions, not a square grid and {extra} more")));
    };
    if heads == 0 || dim % heads != 0 {
        return Err(r.not(format!("{heads} heads do not divide its width {dim}; `--heads` overrides")));
    }
    let image = grid.checked_mul(patch).ok_or_else(|| r.not("its image would be too large"))?;
    let depth = r.count(|i| format!("blocks.{i}.attn.proj.weight"))?;
    Ok((VitDims { image, patch, dim, depth, heads, mlp, classes: r.out("head.weight")? }, positioned))
}

/// Every published size has heads of 64 but ViT-H, 1280 wide with 16 heads of 80, and the giants.
fn usual_heads(dim: usize) -> usize {
    match dim {
        1152 | 1280 | 1408 | 1664 => 16,
        _ => (dim / 64).max(1),
    }
}

pub(super) fn read_torch(r: &Reader) -> Result<FamilySpec, ModelError> {
    let dim = r.out("patch_embed.proj.weight")?;
    // torch's own default is 8 heads.
    let heads = r.heads(if dim % 8 == 0 { 8 } else { 1 })?;
    r.note("post-norm layers with ReLU assumed, torch's defaults (weights do not tell)");
    let (dims, _) = dims(r, r.out("blocks.0.mlp.fc1.weight")?, heads, &[1])?;
    Ok(FamilySpec::TorchVit(VitSpec::torch(dims)))
}

pub(super) fn read(r: &Reader) -> Result<FamilySpec, ModelError> {
    let (source, prefix) = (r.source(), r.names.prefix);
    let dino = prefix.starts_with("dinov2");
    if let Some(name) = r.beside.architecture()? {
        // Relatives that share all names but have other activations, pooling or positions.
        let other = ["quickgelu", "siglip", "so400m", "rope", "relpos", "gemma", "_xp_", "_rpn_"]
            .iter()
            .any(|w| name.contains(w));
        if other || !["vit_", "deit", "flexivit_"].iter().any(|stem| name.starts_with(stem)) {
            let name = crate::model::printable(name);
            return Err(r.not(format!("timm's `{name}` is a relative that is not supported")));
        }
    }
    let dim = r.out("patch_embed.proj.weight")?;
    let heads = r.heads(usual_heads(dim))?;
    let (mlp, hidden) = if r.has("blocks.0.mlp.fc1_g.weight") {
        (Mlp::Gated, r.out("blocks.0.mlp.fc1_g.weight")?)
    } else {
        let ([rows, _], [_, inner]) =
            (r.shape::<2>("blocks.0.mlp.fc1.weight")?, r.shape::<2>("blocks.0.mlp.fc2.weight")?);
        (if rows == inner { Mlp::Plain } else { Mlp::Packed }, inner)
    };
    let class_token = r.has("cls_token");
    let dist_token = r.has("dist_token");
    let registers = if r.has("reg_token") { r.shape::<3>("reg_token")?[1] } else { 0 };
    let named = usize::from(class_token) + usize::from(dist_token);
    // Registers have no positions in any published network; timm's ViTs with them and DeiT III give patches alone theirs.
    let (dims, positioned) = dims(r, hidden, heads, &[named, 0, named + registers])?;
    let norm_pre = r.has("norm_pre.weight");
    let eps = match source {
        Source::HuggingFace => {
            if !r.beside.has_config() {
                r.note("no config.json: GELU and the usual layer-norm epsilon assumed");
            }
            r.beside.eps()?.unwrap_or(if dino { 1e-6 } else { 1e-12 })
        }
        // timm's CLIP towers.
        Source::Timm if norm_pre => 1e-5,
        _ => 1e-6,
    };
    let act = match (mlp, source) {
        (Mlp::Plain, _) => r.beside.activation()?.unwrap_or(Activation::GeluErf),
        (Mlp::Packed | Mlp::Gated, _) => Activation::Silu,
    };
    let head = head(r, class_token, dist_token, dino)?;
    Ok(FamilySpec::Vit(VitSpec {
        names: r.names,
        dims,
        act,
        eps,
        patch_bias: r.has("patch_embed.proj.bias"),
        class_token,
        dist_token,
        registers,
        positioned,
        norm_pre,
        post_norm: false,
        qkv: if r.has("blocks.0.attn.qkv.weight") { Qkv::Fused } else { Qkv::Separate },
        qkv_bias: r.has("blocks.0.attn.qkv.bias") || r.has("blocks.0.attn.q.bias"),
        layer_scale: r.has("blocks.0.ls1.gamma"),
        mlp,
        head,
    }))
}

fn head(r: &Reader, class_token: bool, dist_token: bool, dino: bool) -> Result<Head, ModelError> {
    let pool = r.beside.global_pool()?;
    let normed = r.has("norm.weight");
    if pool.is_none() && !class_token && !r.has("fc_norm.weight") && r.source() == Source::Timm {
        r.note("the mean of the patches assumed before the classifier (weights do not tell)");
    }
    Ok(match pool {
        _ if r.has("head_dist.weight") && dist_token => Head::Distilled,
        _ if dino => Head::ClassAndMean,
        Some("token") if r.has("fc_norm.weight") => {
            return Err(r.not("its class token is normed by `fc_norm`, which is not supported"));
        }
        _ if r.has("fc_norm.weight") => Head::MeanThenNorm,
        Some("token") | None if class_token => {
            if normed {
                Head::Class
            } else {
                Head::ClassAsIs
            }
        }
        // Without a class token there is nothing else to read.
        Some("avg") | None if r.source() == Source::Timm => {
            if normed {
                Head::Mean
            } else {
                Head::MeanAsIs
            }
        }
        Some("avg") => Head::Mean,
        Some("token") | None => return Err(r.not("it has no `cls_token`")),
        Some(other) => {
            let other = crate::model::printable(other);
            return Err(r.not(format!("its pooling is `{other}`, which is not supported")));
        }
    })
}
