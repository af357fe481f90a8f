//! Vision transformers: torch's `TransformerEncoder` (post-norm), Hugging Face's and timm's ViT and DeiT (pre-norm).

use crate::graph::{Activation, Builder, Conv, Graph, GraphError, NodeId, Op, ParamRole, ResidualAdd};
use serde::{Deserialize, Serialize};

/// The dimensions that every ViT here shares.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct VitDims {
    /// Image side in pixels.
    pub image: usize,
    /// Patch side in pixels; divides `image`.
    pub patch: usize,
    pub dim: usize,
    pub depth: usize,
    /// Divides `dim`.
    pub heads: usize,
    /// Hidden neurons of the MLPs.
    pub mlp: usize,
    pub classes: usize,
}

impl VitDims {
    /// Patches of the image.
    pub fn patches(&self) -> usize {
        (self.image / self.patch.max(1)).pow(2)
    }

    /// ViT-B/16 and DeiT-B at 224 px, 1000 classes.
    pub fn base16() -> VitDims {
        VitDims { image: 224, patch: 16, dim: 768, depth: 12, heads: 12, mlp: 3072, classes: 1000 }
    }

    /// ViT-S/16 and DeiT-S at 224 px, 1000 classes.
    pub fn small16() -> VitDims {
        VitDims { dim: 384, heads: 6, mlp: 1536, ..VitDims::base16() }
    }
}

/// `nn.TransformerEncoder` with `batch_first`, as in `real/vit_cifar10`: post-norm, fused `in_proj`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TorchVitSpec {
    pub dims: VitDims,
    /// The layers' activation; torch's default is ReLU.
    pub act: Activation,
}

/// `ViTForImageClassification` (prefix `vit`) or `DeiTForImageClassification` (prefix `deit`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HfVitSpec {
    pub dims: VitDims,
    /// `vit` or `deit`.
    pub prefix: String,
    /// A distillation token after the class token (DeiT); the classifier reads the class token alone.
    pub distilled: bool,
    pub act: Activation,
    pub eps: f64,
    pub qkv_bias: bool,
}

/// timm's `VisionTransformer`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TimmVitSpec {
    pub dims: VitDims,
    pub qkv_bias: bool,
    /// Class token present (`cls_token`).
    pub class_token: bool,
    /// Classify the mean of the patch tokens through `fc_norm` instead of the class token through `norm`.
    pub mean_pool: bool,
}

/// What differs between the families' transformer layers.
struct Layer<'a> {
    at: String,
    dims: &'a VitDims,
    eps: f64,
    act: Activation,
    qkv_bias: bool,
    /// Norms after each addition (torch's default) instead of before each branch.
    post_norm: bool,
    names: &'a Names,
}

/// Names of a layer's parts, relative to the layer.
struct Names {
    norm: [&'static str; 2],
    qkv: Qkv,
    proj: &'static str,
    fc: [&'static str; 2],
}

enum Qkv {
    /// One linear; `weight` and `bias` tensors called as given when they do not follow the node's name.
    Fused {
        node: &'static str,
        tensors: Option<[&'static str; 2]>,
    },
    Separate([&'static str; 3]),
}

const TORCH: Names = Names {
    norm: ["norm1", "norm2"],
    qkv: Qkv::Fused {
        node: "self_attn.in_proj",
        tensors: Some(["self_attn.in_proj_weight", "self_attn.in_proj_bias"]),
    },
    proj: "self_attn.out_proj",
    fc: ["linear1", "linear2"],
};

const HF: Names = Names {
    norm: ["layernorm_before", "layernorm_after"],
    qkv: Qkv::Separate(["attention.attention.query", "attention.attention.key", "attention.attention.value"]),
    proj: "attention.output.dense",
    fc: ["intermediate.dense", "output.dense"],
};

const TIMM: Names = Names {
    norm: ["norm1", "norm2"],
    qkv: Qkv::Fused { node: "attn.qkv", tensors: None },
    proj: "attn.proj",
    fc: ["mlp.fc1", "mlp.fc2"],
};

fn attention(b: &mut Builder, l: &Layer, x: NodeId) -> NodeId {
    let (dim, at) = (l.dims.dim, &l.at);
    let head = dim / l.dims.heads.max(1);
    let (fused, inputs) = match &l.names.qkv {
        Qkv::Fused { node, tensors } => {
            let qkv = b.linear(format!("{at}.{node}"), x, dim, 3 * dim, l.qkv_bias);
            if let Some([weight, bias]) = tensors {
                b.rename_param(qkv, ParamRole::Weight, format!("{at}.{weight}"));
                b.rename_param(qkv, ParamRole::Bias, format!("{at}.{bias}"));
            }
            (true, vec![qkv])
        }
        Qkv::Separate(names) => {
            (false, names.iter().map(|n| b.linear(format!("{at}.{n}"), x, dim, dim, l.qkv_bias)).collect())
        }
    };
    let scale = 1.0 / (head as f64).sqrt();
    let op = Op::attention(l.dims.heads, head, head, fused, scale);
    let core = b.node(format!("{at}.attention_core"), op, &inputs);
    b.linear(format!("{at}.{}", l.names.proj), core, dim, dim, true)
}

fn mlp(b: &mut Builder, l: &Layer, x: NodeId) -> NodeId {
    let (at, [fc1, fc2]) = (&l.at, l.names.fc);
    let x = b.linear(format!("{at}.{fc1}"), x, l.dims.dim, l.dims.mlp, true);
    let x = b.act(format!("{at}.act"), x, l.act);
    b.linear(format!("{at}.{fc2}"), x, l.dims.mlp, l.dims.dim, true)
}

/// One encoder layer, which is one removable block with two residual additions. When it is removed a post-norm layer's
/// norms stay (they lie on the residual stream).
fn layer(b: &mut Builder, l: &Layer, mut x: NodeId) -> NodeId {
    b.begin_block(&l.at);
    let mut residual = Vec::new();
    for (i, branch) in [attention, mlp].into_iter().enumerate() {
        let norm = format!("{}.{}", l.at, l.names.norm[i]);
        let skip = x;
        let y = if l.post_norm { x } else { b.layer_norm(&norm, x, l.dims.dim, l.eps) };
        let y = branch(b, l, y);
        let add = b.add(format!("{}.add{}", l.at, i + 1), y, skip);
        residual.push(ResidualAdd { add, skip });
        x = if l.post_norm { b.layer_norm(&norm, add, l.dims.dim, l.eps) } else { add };
    }
    b.end_block(residual);
    x
}

/// image → patch tokens, by a convolution called `name`.
fn patches(b: &mut Builder, d: &VitDims, name: &str) -> NodeId {
    let x = b.input([3, d.image, d.image]);
    let conv = Conv { in_ch: 3, out_ch: d.dim, kernel: d.patch, stride: d.patch, padding: 0, groups: 1, bias: true };
    let x = b.conv(name, x, conv);
    b.node("tokens", Op::ToTokens, &[x])
}

fn prepend(b: &mut Builder, d: &VitDims, name: &str, x: NodeId) -> NodeId {
    b.node(name, Op::PrependTokens { count: 1, dim: d.dim, at: 0 }, &[x])
}

fn positions(b: &mut Builder, d: &VitDims, extra: usize, name: &str, x: NodeId) -> NodeId {
    b.node(name, Op::AddPositions { tokens: d.patches() + extra, dim: d.dim }, &[x])
}

/// Builds the torch `TransformerEncoder` ViT.
pub fn torch_vit(spec: &TorchVitSpec) -> Result<Graph, GraphError> {
    let (b, d) = (&mut Builder::default(), &spec.dims);
    let mut x = patches(b, d, "patch_embed.proj");
    x = prepend(b, d, "cls_token", x);
    x = positions(b, d, 1, "pos_embed", x);
    for i in 0..d.depth {
        let at = format!("transformer.layers.{i}");
        let l = Layer { at, dims: d, eps: 1e-5, act: spec.act, qkv_bias: true, post_norm: true, names: &TORCH };
        x = layer(b, &l, x);
    }
    x = b.node("class_token", Op::SelectToken { index: 0 }, &[x]);
    x = b.layer_norm("mlp_head.0", x, d.dim, 1e-5);
    x = b.linear("mlp_head.1", x, d.dim, d.classes, true);
    std::mem::take(b).finish(x)
}

/// Builds a Hugging Face ViT or DeiT classifier.
pub fn hf_vit(spec: &HfVitSpec) -> Result<Graph, GraphError> {
    let (b, d, p) = (&mut Builder::default(), &spec.dims, &spec.prefix);
    let mut x = patches(b, d, &format!("{p}.embeddings.patch_embeddings.projection"));
    if spec.distilled {
        x = prepend(b, d, &format!("{p}.embeddings.distillation_token"), x);
    }
    x = prepend(b, d, &format!("{p}.embeddings.cls_token"), x);
    x = positions(b, d, 1 + usize::from(spec.distilled), &format!("{p}.embeddings.position_embeddings"), x);
    for i in 0..d.depth {
        let at = format!("{p}.encoder.layer.{i}");
        let l =
            Layer { at, dims: d, eps: spec.eps, act: spec.act, qkv_bias: spec.qkv_bias, post_norm: false, names: &HF };
        x = layer(b, &l, x);
    }
    x = b.layer_norm(format!("{p}.layernorm"), x, d.dim, spec.eps);
    x = b.node("class_token", Op::SelectToken { index: 0 }, &[x]);
    x = b.linear("classifier", x, d.dim, d.classes, true);
    std::mem::take(b).finish(x)
}

/// timm's epsilon for ViTs.
const TIMM_EPS: f64 = 1e-6;

/// Builds timm's ViT or DeiT.
pub fn timm_vit(spec: &TimmVitSpec) -> Result<Graph, GraphError> {
    let (b, d) = (&mut Builder::default(), &spec.dims);
    let extra = usize::from(spec.class_token);
    let mut x = patches(b, d, "patch_embed.proj");
    if spec.class_token {
        x = prepend(b, d, "cls_token", x);
    }
    x = positions(b, d, extra, "pos_embed", x);
    for i in 0..d.depth {
        let at = format!("blocks.{i}");
        let l = Layer {
            at,
            dims: d,
            eps: TIMM_EPS,
            act: Activation::GeluErf,
            qkv_bias: spec.qkv_bias,
            post_norm: false,
            names: &TIMM,
        };
        x = layer(b, &l, x);
    }
    if spec.mean_pool {
        x = b.node("mean_tokens", Op::MeanTokens { skip: extra }, &[x]);
        x = b.layer_norm("fc_norm", x, d.dim, TIMM_EPS);
    } else {
        x = b.layer_norm("norm", x, d.dim, TIMM_EPS);
        x = b.node("class_token", Op::SelectToken { index: 0 }, &[x]);
    }
    x = b.linear("head", x, d.dim, d.classes, true);
    std::mem::take(b).finish(x)
}
