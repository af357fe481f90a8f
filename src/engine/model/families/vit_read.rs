//! Reading a vision transformer off a checkpoint.

use super::vit::{Head, Mlp, Qkv, VitDims, VitSpec};
use super::{FamilySpec, Reader, Result, Source};
use crate::graph::Activation;

/// Dimensions from the patch convolution, the positions and one MLP; and how many tokens before the patches have
/// positions, one of `candidates`.
fn dims(r: &Reader, mlp: usize, heads: usize, candidates: &[usize]) -> Result<(VitDims, usize)> {
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

pub(super) fn read_torch(r: &Reader) -> Result<FamilySpec> {
    let dim = r.out("patch_embed.proj.weight")?;
    // torch's own default is 8 heads.
    let heads = r.heads(if dim % 8 == 0 { 8 } else { 1 })?;
    r.note("post-norm layers with ReLU assumed, torch's defaults (weights do not tell)");
    let (dims, _) = dims(r, r.out("blocks.0.mlp.fc1.weight")?, heads, &[1])?;
    Ok(FamilySpec::TorchVit(VitSpec::torch(dims)))
}

pub(super) fn read(r: &Reader) -> Result<FamilySpec> {
    let (source, prefix) = (r.names.source, r.names.prefix);
    let dino = prefix.starts_with("dinov2");
    if let Some(name) = r.sidecar.architecture()? {
        // Relatives that share all names but have other activations, pooling or positions.
        let other = ["quickgelu", "siglip", "so400m", "rope", "relpos", "gemma", "_xp_", "_rpn_"]
            .iter()
            .any(|w| name.contains(w));
        if other || !["vit_", "deit", "flexivit_"].iter().any(|stem| name.starts_with(stem)) {
            return Err(r.relative(name));
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
            if !r.sidecar.config.is_there() {
                r.note("no config.json: GELU and the usual layer-norm epsilon assumed");
            }
            r.sidecar.eps()?.unwrap_or(if dino { 1e-6 } else { 1e-12 })
        }
        // timm's CLIP towers.
        Source::Timm if norm_pre => 1e-5,
        _ => 1e-6,
    };
    let act = match (mlp, source) {
        (Mlp::Plain, _) => r.sidecar.activation()?.unwrap_or(Activation::GeluErf),
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

fn head(r: &Reader, class_token: bool, dist_token: bool, dino: bool) -> Result<Head> {
    // timm's word for how tokens become one vector.
    let pool = r.sidecar.config.string("global_pool")?;
    let normed = r.has("norm.weight");
    if pool.is_none() && !class_token && !r.has("fc_norm.weight") && r.names.source == Source::Timm {
        r.note("the mean of the patches assumed before the classifier (weights do not tell)");
    }
    Ok(match pool {
        _ if r.has("head_dist.weight") && dist_token => Head::Distilled,
        _ if dino => Head::ClassAndMean,
        Some("token") if r.has("fc_norm.weight") => {
            return Err(r.not("its class token is normed by `fc_norm`, which is not supported"));
        }
        _ if r.has("fc_norm.weight") => Head::MeanThenNorm,
        Some("token") | None if class_token && normed => Head::Class,
        Some("token") | None if class_token => Head::ClassAsIs,
        // Without a class token there is nothing else to read.
        Some("avg") | None if r.names.source == Source::Timm && !normed => Head::MeanAsIs,
        None if r.names.source == Source::Timm => Head::Mean,
        Some("avg") => Head::Mean,
        Some("token") | None => return Err(r.not("it has no `cls_token`")),
        Some(other) => {
            let other = crate::model::printable(other);
            return Err(r.not(format!("its pooling is `{other}`, which is not supported")));
        }
    })
}
