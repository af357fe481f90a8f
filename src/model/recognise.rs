//! Telling which network a checkpoint is, from tensor names, shapes and `config.json`, and with which dimensions.
//!
//! Not here: building the graph (`families`) and fetching parameters (`load`). Shapes beat configuration where both
//! speak; what neither tells (head counts, activations) is taken from options, then defaults, and noted.

use super::checkpoint::Checkpoint;
use super::families::{
    CifarResnetSpec, FamilySpec, HfVitSpec, ResnetBlock, ResnetSpec, TimmVitSpec, TorchVitSpec, VitDims,
};
use super::hf::Beside;
use super::{Family, LoadOptions, ModelError};
use crate::graph::Activation;
use std::path::Path;

/// The family by its marks, or `None`.
fn guess(c: &Checkpoint) -> Option<Family> {
    if c.has("blocks.0.attn.qkv.weight") && c.has("patch_embed.proj.weight") {
        Some(Family::TimmVit)
    } else if hf_prefix(c).is_some() {
        Some(Family::HfVit)
    } else if c.has("transformer.layers.0.self_attn.in_proj_weight") && c.has("cls_token") {
        Some(Family::TorchVit)
    } else if c.has("layer1.0.conv1.weight") && c.has("layer4.0.conv1.weight") && c.has("fc.weight") {
        Some(Family::Resnet)
    } else if c.has("layer1.0.conv1.weight") && !c.has("layer4.0.conv1.weight") && c.has("linear.weight") {
        Some(Family::CifarResnet)
    } else {
        None
    }
}

fn hf_prefix(c: &Checkpoint) -> Option<&'static str> {
    ["vit", "deit"].into_iter().find(|p| c.has(&format!("{p}.encoder.layer.0.attention.attention.query.weight")))
}

/// The spec of the network in `c`; what had to be assumed goes to `notes`.
pub(super) fn spec(
    c: &Checkpoint,
    beside: &Beside,
    options: &LoadOptions,
    path: &Path,
    notes: &mut Vec<String>,
) -> Result<FamilySpec, ModelError> {
    let Some(family) = options.arch.or_else(|| guess(c)) else {
        let calls = beside.calls_itself().map(|t| format!("; config.json says `{t}`")).unwrap_or_default();
        return Err(ModelError::UnknownFamily { path: path.to_owned(), seen: c.summary() + &calls });
    };
    let r = Reader { c, family, beside, options };
    match family {
        Family::CifarResnet => r.cifar_resnet().map(FamilySpec::CifarResnet),
        Family::Resnet => r.resnet(notes).map(FamilySpec::Resnet),
        Family::TorchVit => r.torch_vit(notes).map(FamilySpec::TorchVit),
        Family::HfVit => r.hf_vit(notes).map(FamilySpec::HfVit),
        Family::TimmVit => r.timm_vit(notes).map(FamilySpec::TimmVit),
    }
}

struct Reader<'a> {
    c: &'a Checkpoint,
    family: Family,
    beside: &'a Beside,
    options: &'a LoadOptions,
}

impl Reader<'_> {
    fn not(&self, why: impl Into<String>) -> ModelError {
        ModelError::NotFamily { family: self.family, why: why.into() }
    }

    /// The shape of `name`, which must have `N` axes, none of them empty.
    fn shape<const N: usize>(&self, name: &str) -> Result<[usize; N], ModelError> {
        let found = self.c.shape(name).ok_or_else(|| self.not(format!("tensor `{name}` is missing")))?;
        match <[usize; N]>::try_from(found) {
            Ok(s) if !s.contains(&0) => Ok(s),
            _ => Err(self.not(format!("tensor `{name}` has shape {found:?}, which does not have {N} non-empty axes"))),
        }
    }

    /// How many consecutive indices `i` from 0 have a tensor `name(i)`; at least one.
    fn count(&self, name: impl Fn(usize) -> String) -> Result<usize, ModelError> {
        let n = (0..).take_while(|&i| self.c.has(&name(i))).count();
        if n == 0 { Err(self.not(format!("tensor `{}` is missing", name(0)))) } else { Ok(n) }
    }

    fn cifar_resnet(&self) -> Result<CifarResnetSpec, ModelError> {
        let mut widths = [0; 3];
        let mut blocks = [0; 3];
        for s in 0..3 {
            blocks[s] = self.count(|i| format!("layer{}.{i}.conv1.weight", s + 1))?;
            [widths[s], ..] = self.shape::<4>(&format!("layer{}.0.conv1.weight", s + 1))?;
        }
        if blocks[1..] != [blocks[0]; 2] {
            return Err(self.not(format!("its stages have {blocks:?} blocks, expected one number")));
        }
        let [classes, _] = self.shape("linear.weight")?;
        Ok(CifarResnetSpec { blocks: blocks[0], widths, classes, image: self.options.image.unwrap_or(32) })
    }

    fn resnet(&self, notes: &mut Vec<String>) -> Result<ResnetSpec, ModelError> {
        let block = if self.c.has("layer1.0.conv3.weight") { ResnetBlock::Bottleneck } else { ResnetBlock::Basic };
        let last = match block {
            ResnetBlock::Basic => "conv2",
            ResnetBlock::Bottleneck => "conv3",
        };
        let (mut depths, mut inner, mut outer) = ([0; 4], [0; 4], [0; 4]);
        let mut groups = 1;
        for s in 0..4 {
            let at = format!("layer{}", s + 1);
            depths[s] = self.count(|i| format!("{at}.{i}.conv1.weight"))?;
            [inner[s], ..] = self.shape::<4>(&format!("{at}.0.conv1.weight"))?;
            [outer[s], ..] = self.shape::<4>(&format!("{at}.0.{last}.weight"))?;
            let [_, per_group, ..] = self.shape::<4>(&format!("{at}.0.conv2.weight"))?;
            groups = inner[s] / per_group;
        }
        let [stem, ..] = self.shape::<4>("conv1.weight")?;
        let [classes, _] = self.shape("fc.weight")?;
        let image = match (self.options.image, self.beside.image()?) {
            (Some(image), _) | (None, Some(image)) => image,
            (None, None) => {
                notes.push("image size assumed to be 224 (weights do not tell; `--image-size` overrides)".into());
                224
            }
        };
        Ok(ResnetSpec { block, depths, inner, outer, stem, groups: groups.max(1), classes, image })
    }

    /// Dimensions from the patch convolution, the positions and one MLP; `extra` tokens come before the patches.
    fn vit_dims(&self, names: &VitNames, extra: usize, heads: usize) -> Result<VitDims, ModelError> {
        let [dim, channels, patch, patch_w] = self.shape::<4>(names.patch)?;
        if channels != 3 || patch != patch_w {
            return Err(self.not(format!("`{}` does not cut square RGB patches", names.patch)));
        }
        let [_, tokens, _] = self.shape::<3>(names.positions)?;
        let patches = tokens.saturating_sub(extra);
        let grid = patches.isqrt();
        if grid == 0 || grid * grid != patches {
            let why = format!("`{}` has {tokens} positions, not a square grid and {extra} more", names.positions);
            return Err(self.not(why));
        }
        let [mlp, _] = self.shape::<2>(&names.fc1)?;
        let [classes, _] = self.shape::<2>(names.head)?;
        let depth = self.count(&names.layer)?;
        if heads == 0 || dim % heads != 0 {
            return Err(self.not(format!("{heads} heads do not divide its width {dim}; `--heads` overrides")));
        }
        let image = grid.checked_mul(patch).ok_or_else(|| self.not("its image would be too large"))?;
        Ok(VitDims { image, patch, dim, depth, heads, mlp, classes })
    }

    /// Head count: option, configuration, else `default(width)` with a note.
    fn heads(
        &self,
        patch: &str,
        default: impl Fn(usize) -> usize,
        notes: &mut Vec<String>,
    ) -> Result<usize, ModelError> {
        if let Some(h) = self.options.heads {
            return Ok(h);
        }
        if let Some(h) = self.beside.heads()? {
            return Ok(h);
        }
        let [dim, ..] = self.shape::<4>(patch)?;
        let heads = default(dim);
        notes.push(format!("{heads} attention heads assumed (weights do not tell; `--heads` overrides)"));
        Ok(heads)
    }

    fn torch_vit(&self, notes: &mut Vec<String>) -> Result<TorchVitSpec, ModelError> {
        let names = VitNames {
            patch: "patch_embed.proj.weight",
            positions: "pos_embed",
            fc1: "transformer.layers.0.linear1.weight".into(),
            head: "mlp_head.1.weight",
            layer: Box::new(|i| format!("transformer.layers.{i}.self_attn.in_proj_weight")),
        };
        // torch's own default is 8 heads.
        let heads = self.heads(names.patch, |dim| if dim % 8 == 0 { 8 } else { 1 }, notes)?;
        notes.push("post-norm layers with ReLU assumed, torch's defaults (weights do not tell)".into());
        Ok(TorchVitSpec { dims: self.vit_dims(&names, 1, heads)?, act: Activation::Relu })
    }

    fn hf_vit(&self, notes: &mut Vec<String>) -> Result<HfVitSpec, ModelError> {
        let prefix = hf_prefix(self.c)
            .ok_or_else(|| self.not("tensor `vit.encoder.layer.0.attention.attention.query.weight` is missing"))?;
        if self.c.has("cls_classifier.weight") {
            return Err(self.not("it has two classifiers (DeiT with teacher), which is not supported"));
        }
        let distilled = self.c.has(&format!("{prefix}.embeddings.distillation_token"));
        let at = |name: &str| format!("{prefix}.{name}");
        let (patch, positions) =
            (at("embeddings.patch_embeddings.projection.weight"), at("embeddings.position_embeddings"));
        let names = VitNames {
            patch: &patch,
            positions: &positions,
            fc1: at("encoder.layer.0.intermediate.dense.weight"),
            head: "classifier.weight",
            layer: Box::new(|i| format!("{prefix}.encoder.layer.{i}.attention.attention.query.weight")),
        };
        let heads = self.heads(&patch, |dim| (dim / 64).max(1), notes)?;
        let dims = self.vit_dims(&names, 1 + usize::from(distilled), heads)?;
        if !self.beside.has_config() {
            notes.push("no config.json: GELU and layer-norm epsilon 1e-12 assumed".into());
        }
        Ok(HfVitSpec {
            dims,
            prefix: prefix.into(),
            distilled,
            act: self.beside.activation()?.unwrap_or(Activation::GeluErf),
            eps: self.beside.eps()?.unwrap_or(1e-12),
            qkv_bias: self.c.has(&at("encoder.layer.0.attention.attention.query.bias")),
        })
    }

    fn timm_vit(&self, notes: &mut Vec<String>) -> Result<TimmVitSpec, ModelError> {
        if self.c.has("dist_token") {
            return Err(self.not("it is distilled with two averaged heads, which is not supported"));
        }
        let class_token = self.c.has("cls_token");
        let mean_pool = self.c.has("fc_norm.weight");
        if !class_token && !mean_pool {
            return Err(self.not("it has neither `cls_token` nor `fc_norm.weight`"));
        }
        let names = VitNames {
            patch: "patch_embed.proj.weight",
            positions: "pos_embed",
            fc1: "blocks.0.mlp.fc1.weight".into(),
            head: "head.weight",
            layer: Box::new(|i| format!("blocks.{i}.attn.qkv.weight")),
        };
        // Every published size has heads of 64 but ViT-H, 1280 wide with 16 heads of 80, and ViT-g (1408, 16).
        let by_width = |dim: usize| match dim {
            1280 | 1408 | 1664 => 16,
            _ => (dim / 64).max(1),
        };
        Ok(TimmVitSpec {
            dims: self.vit_dims(&names, usize::from(class_token), self.heads(names.patch, by_width, notes)?)?,
            qkv_bias: self.c.has("blocks.0.attn.qkv.bias"),
            class_token,
            mean_pool,
        })
    }
}

/// Where a ViT family keeps what its dimensions are read from.
struct VitNames<'a> {
    patch: &'a str,
    positions: &'a str,
    fc1: String,
    head: &'a str,
    layer: Box<dyn Fn(usize) -> String + 'a>,
}
