//! Swin (Liu et al. 2021) and Swin v2 (Liu et al. 2022): attention in shifted windows, patches merged between stages.

use super::blocks::{Norms, encoder_layer, mlp, patch_tokens, qkv};
use super::names::Rules;
use super::{Checkpoint, Crop, Family, FamilySpec, Graph, GraphError, Names, Reader, Result, Source};
use crate::graph::{Activation, Builder, NodeId, Op, ParamRole, PositionBias, Windows, op};
use crate::model::{Param, checkpoint::RawTensor};

/// A Swin transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct SwinSpec {
    pub names: &'static Names,
    /// Second version: cosine attention, a continuous position bias, norms after branches.
    pub v2: Option<SwinV2>,
    pub patch: usize,
    pub stages: Vec<SwinStage>,
    /// Side of a window, in tokens.
    pub window: usize,
    /// One linear for queries, keys and values.
    pub fused: bool,
    pub qkv_bias: bool,
    pub act: Activation,
    pub eps: f64,
    pub classes: usize,
    pub image: usize,
}

/// What the second version adds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SwinV2 {
    /// Hidden width of the network that makes the position bias.
    pub hidden: usize,
    /// Window of each stage that it was pretrained with; zeros: its own.
    pub trained: Vec<usize>,
}

/// Layers of one width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SwinStage {
    pub dim: usize,
    pub depth: usize,
    pub heads: usize,
    pub mlp: usize,
}

const TIMM: Rules =
    &[("merge.#", "layers.{0}.downsample"), ("layers.#.#", "layers.{0}.blocks.{1}"), ("head", "head.fc")];
const TORCHVISION: Rules = &[
    ("patch_embed.proj", "features.0.0"),
    ("patch_embed.norm", "features.0.2"),
    ("merge.#", "features.{0*2}"),
    ("layers.#.#.mlp.fc1", "features.{0*2+1}.{1}.mlp.0"),
    ("layers.#.#.mlp.fc2", "features.{0*2+1}.{1}.mlp.3"),
    ("layers.#.#", "features.{0*2+1}.{1}"),
];
const HF: Rules = &[
    ("patch_embed.proj", "{p}.embeddings.patch_embeddings.projection"),
    ("patch_embed.norm", "{p}.embeddings.norm"),
    ("merge.#", "{p}.encoder.layers.{0-1}.downsample"),
    ("layers.#.#.norm1", "{p}.encoder.layers.{0}.blocks.{1}.layernorm_before"),
    ("layers.#.#.norm2", "{p}.encoder.layers.{0}.blocks.{1}.layernorm_after"),
    ("layers.#.#.attn.q", "{p}.encoder.layers.{0}.blocks.{1}.attention.self.query"),
    ("layers.#.#.attn.k", "{p}.encoder.layers.{0}.blocks.{1}.attention.self.key"),
    ("layers.#.#.attn.v", "{p}.encoder.layers.{0}.blocks.{1}.attention.self.value"),
    ("layers.#.#.attn.proj", "{p}.encoder.layers.{0}.blocks.{1}.attention.output.dense"),
    ("layers.#.#.attn.cpb_mlp", "{p}.encoder.layers.{0}.blocks.{1}.attention.self.continuous_position_bias_mlp"),
    ("layers.#.#.attn", "{p}.encoder.layers.{0}.blocks.{1}.attention.self"),
    ("layers.#.#.mlp.fc1", "{p}.encoder.layers.{0}.blocks.{1}.intermediate.dense"),
    ("layers.#.#.mlp.fc2", "{p}.encoder.layers.{0}.blocks.{1}.output.dense"),
    ("layers.#.#", "{p}.encoder.layers.{0}.blocks.{1}"),
    ("norm", "{p}.layernorm"),
    ("head", "classifier"),
];

/// Tables that are computed, not learned.
const BUFFERS: &[&str] = &["relative_position_index", "relative_coords_table", "attn_mask", ".mask_token", ".k_bias"];

pub(super) static NAMES: [Names; 4] = [
    Names { source: Source::Timm, prefix: "", rules: &[TIMM], unused: BUFFERS },
    Names { source: Source::Torchvision, prefix: "", rules: &[TORCHVISION], unused: BUFFERS },
    Names { source: Source::HuggingFace, prefix: "swin", rules: &[HF], unused: BUFFERS },
    Names { source: Source::HuggingFace, prefix: "swinv2", rules: &[HF], unused: BUFFERS },
];
pub(super) const MARKS: &[&str] = &[
    "patch_embed.proj.weight",
    "patch_embed.norm.weight",
    "layers.0.0.norm1.weight",
    "merge.1.reduction.weight",
    "head.weight",
];

/// What tells the versions apart.
pub(super) const V1_MARK: &[&str] = &["layers.0.0.attn.relative_position_bias_table"];
pub(super) const V2_MARK: &[&str] = &["layers.0.0.attn.logit_scale"];

pub(super) fn read(r: &Reader) -> Result<FamilySpec> {
    let v2 = r.family == Family::SwinV2;
    let stem = if v2 { "swinv2" } else { "swin" };
    let stems = ["tiny", "small", "base", "large"].map(|size| format!("{stem}_{size}"));
    r.called(&stems.each_ref().map(String::as_str), &[])?;
    let mut stages = Vec::new();
    while r.has(&format!("layers.{}.0.norm1.weight", stages.len())) {
        let at = format!("layers.{}.0", stages.len());
        let heads = match v2 {
            true => r.out(&format!("{at}.attn.logit_scale"))?,
            false => r.shape::<2>(&format!("{at}.attn.relative_position_bias_table"))?[1],
        };
        let (dim, mlp) = (r.out(&format!("{at}.norm1.weight"))?, r.out(&format!("{at}.mlp.fc1.weight"))?);
        let depth = r.count(|i| format!("layers.{}.{i}.norm1.weight", stages.len()))?;
        if dim % heads != 0 {
            return Err(r.not(format!("{heads} heads do not divide the width {dim} of stage {}", stages.len())));
        }
        stages.push(SwinStage { dim, depth, heads, mlp });
    }
    let trained = if v2 { r.sidecar.trained_windows()?.unwrap_or_default() } else { Vec::new() };
    let [_, _, patch, _] = r.shape::<4>("patch_embed.proj.weight")?;
    let hidden = || r.out("layers.0.0.attn.cpb_mlp.0.weight");
    let spec = SwinSpec {
        names: r.names,
        window: window(r, v2)?,
        v2: if v2 { Some(SwinV2 { hidden: hidden()?, trained }) } else { None },
        patch,
        stages,
        fused: r.has("layers.0.0.attn.qkv.weight"),
        qkv_bias: ["qkv.bias", "q.bias", "q_bias"].iter().any(|n| r.has(&format!("layers.0.0.attn.{n}"))),
        act: r.sidecar.activation()?.unwrap_or(Activation::GeluErf),
        eps: r.sidecar.eps()?.unwrap_or(EPS),
        classes: r.out("head.weight")?,
        image: r.image(if v2 { 256 } else { 224 })?,
    };
    Ok(if v2 { FamilySpec::SwinV2(spec) } else { FamilySpec::Swin(spec) })
}

/// Side of a window: from the table's size, an index buffer's, or what lies beside the weights.
fn window(r: &Reader, v2: bool) -> Result<usize> {
    let odd = |rows: usize| rows.isqrt().div_ceil(2);
    if !v2 {
        return Ok(odd(r.out("layers.0.0.attn.relative_position_bias_table")?));
    }
    if r.has("layers.0.0.attn.relative_coords_table") {
        let [_, rows, ..] = r.shape::<4>("layers.0.0.attn.relative_coords_table")?;
        return Ok(rows.div_ceil(2));
    }
    if let Some(window) = r.sidecar.window()? {
        return Ok(window);
    }
    r.note("windows of 8 assumed (neither weights nor config.json tell)");
    Ok(8)
}

/// PyTorch's default.
const EPS: f64 = 1e-5;

/// One stage as it is built.
struct Stage<'a> {
    spec: &'a SwinSpec,
    dims: SwinStage,
    /// Tokens a side.
    side: usize,
    index: usize,
}

fn attention(b: &mut Builder, s: &Stage, at: &str, layer: usize, x: NodeId) -> NodeId {
    let (SwinStage { dim, heads, .. }, spec) = (s.dims, s.spec);
    let head = dim / heads.max(1);
    let v2 = spec.v2.as_ref();
    // The second version's keys have no bias.
    let inputs = qkv(b, at, x, dim, spec.fused, |n| spec.qkv_bias && (v2.is_none() || n != "k"));
    let size = spec.window.min(s.side);
    let shift = if layer % 2 == 1 && s.side > spec.window { spec.window / 2 } else { 0 };
    let scale = if v2.is_some() { 1.0 } else { 1.0 / (head as f64).sqrt() };
    let op = Op::Attention(op::Attention {
        cosine: v2.is_some(),
        windows: Some(Windows { grid: [s.side; 2], size: [size; 2], shift: [shift; 2] }),
        bias: match v2 {
            None => PositionBias::Table,
            Some(v) => {
                let trained = v.trained.get(s.index).copied().unwrap_or(0);
                PositionBias::Continuous { hidden: v.hidden, trained: [trained; 2] }
            }
        },
        ..op::Attention::plain(heads, head, head, spec.fused, scale)
    });
    let core = b.node(format!("{at}.attention_core"), op, &inputs);
    for (role, name) in [
        (ParamRole::PositionBias, "relative_position_bias_table"),
        (ParamRole::LogitScale, "logit_scale"),
        (ParamRole::PositionMlp1, "cpb_mlp.0.weight"),
        (ParamRole::PositionMlp1Bias, "cpb_mlp.0.bias"),
        (ParamRole::PositionMlp2, "cpb_mlp.2.weight"),
    ] {
        b.rename_param(core, role, format!("{at}.attn.{name}"));
    }
    b.linear(format!("{at}.attn.proj"), core, dim, dim, true)
}

/// Norm before each branch, or in the second version after it.
fn layer(b: &mut Builder, s: &Stage, index: usize, x: NodeId) -> NodeId {
    let at = &format!("layers.{}.{index}", s.index);
    let norms = if s.spec.v2.is_some() { Norms::AfterBranches } else { Norms::BeforeBranches };
    encoder_layer(b, at, x, norms, (s.dims.dim, s.spec.eps), |b, i, x| match i {
        1 => attention(b, s, at, index, x),
        _ => mlp(b, at, x, [s.dims.dim, s.dims.mlp], s.spec.act),
    })
}

pub(super) fn build(spec: &SwinSpec) -> Result<Graph, GraphError> {
    let b = &mut Builder::default();
    let mut width = spec.stages.first().map_or(0, |s| s.dim);
    let mut side = spec.image / spec.patch.max(1);
    let mut x = patch_tokens(b, spec.image, spec.patch, width, true);
    x = b.layer_norm("patch_embed.norm", x, width, EPS);
    for (index, &dims) in spec.stages.iter().enumerate() {
        if index > 0 {
            let at = format!("merge.{index}");
            x = b.node(format!("{at}.merge"), Op::PatchMerge(op::PatchMerge { grid: [side; 2] }), &[x]);
            if spec.v2.is_none() {
                x = b.layer_norm(format!("{at}.norm"), x, 4 * width, EPS);
            }
            x = b.linear(format!("{at}.reduction"), x, 4 * width, dims.dim, false);
            if spec.v2.is_some() {
                x = b.layer_norm(format!("{at}.norm"), x, dims.dim, EPS);
            }
            (width, side) = (dims.dim, side / 2);
        }
        let stage = Stage { spec, dims, side, index };
        for i in 0..dims.depth {
            x = layer(b, &stage, i, x);
        }
    }
    x = b.layer_norm("norm", x, width, spec.eps);
    x = b.node("mean_tokens", Op::MeanTokens(op::MeanTokens { skip: 0 }), &[x]);
    x = b.linear("head", x, width, spec.classes, true);
    spec.names.apply(std::mem::take(b).finish(x)?)
}

impl SwinSpec {
    /// Tiny, small and base, from torchvision's weights.
    pub(super) fn crop(&self) -> Crop {
        let (width, depth) = (self.stages.first().map_or(0, |s| s.dim), self.stages.get(2).map_or(0, |s| s.depth));
        let resize = match (self.names.source, self.v2.is_some(), width, depth) {
            (Source::Torchvision, false, 96, 6) => 232,
            (Source::Torchvision, false, 96, _) => 246,
            (Source::Torchvision, false, ..) => 238,
            (Source::Torchvision, true, 96, _) => 260,
            (Source::Torchvision, true, ..) => 272,
            _ => (self.image as f64 / 0.9) as usize,
        };
        Crop::bicubic(resize)
    }
}

/// Second versions keep one linear for queries, keys and values but no bias for keys: timm as two tensors, torchvision
/// as one whose middle third it ignores. Here it is one tensor with zeros in the middle.
pub(super) fn adapt(spec: &SwinSpec, c: &mut Checkpoint) {
    if spec.v2.is_none() || !spec.fused || !spec.qkv_bias {
        return;
    }
    for (s, stage) in spec.stages.iter().enumerate() {
        for i in 0..stage.depth {
            let name = |part: &str| spec.names.of(&format!("layers.{s}.{i}.attn.{part}"));
            let values = |c: &Checkpoint, part: &str| match c.tensors.get(&name(part)) {
                Some(RawTensor::Float(p)) => Some(p.values().into_owned()),
                _ => None,
            };
            let dim = stage.dim;
            let mut all = match (values(c, "q_bias"), values(c, "v_bias")) {
                (Some(q), Some(v)) if q.len() == dim && v.len() == dim => {
                    c.tensors.shift_remove(&name("q_bias"));
                    c.tensors.shift_remove(&name("v_bias"));
                    [q, vec![0.0; dim], v].concat()
                }
                _ => values(c, "qkv.bias").unwrap_or_default(),
            };
            if let Some(keys) = all.get_mut(dim..2 * dim) {
                keys.fill(0.0);
                if let Some(p) = Param::owned(vec![all.len()], all) {
                    c.tensors.insert(name("qkv.bias"), RawTensor::Float(p));
                }
            }
        }
    }
}
