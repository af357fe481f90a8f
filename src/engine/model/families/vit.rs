//! Vision transformers (Dosovitskiy et al. 2021): ViT, DeiT with and without distillation, DINOv2 with registers, and
//! plain `TransformerEncoder` networks. One builder; names and what differs are in [`VitSpec`].

use super::blocks::{Norms, encoder_layer, mlp, patch_tokens, qkv, usual_resize};
use super::vit_names as table;
use super::{Crop, Graph, GraphError, Names, Source};
use crate::graph::{Activation, Builder, NodeId, Op, ParamRole, op};

/// The dimensions that every ViT here shares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VitDims {
    /// Image side in pixels.
    pub image: usize,
    /// Patch side in pixels; divides `image`.
    pub patch: usize,
    pub dim: usize,
    pub depth: usize,
    /// Divides `dim`.
    pub heads: usize,
    /// Hidden neurons of the MLPs (of each half, where they are gated).
    pub mlp: usize,
    pub classes: usize,
}

impl VitDims {
    /// ViT-B/16 and DeiT-B at 224 px, 1000 classes.
    pub fn base16() -> VitDims {
        VitDims { image: 224, patch: 16, dim: 768, depth: 12, heads: 12, mlp: 3072, classes: 1000 }
    }
}

/// A vision transformer.
#[derive(Debug, Clone, PartialEq)]
pub struct VitSpec {
    pub names: &'static Names,
    pub dims: VitDims,
    pub act: Activation,
    pub eps: f64,
    pub patch_bias: bool,
    pub class_token: bool,
    /// DeiT's distillation token, after the class token.
    pub dist_token: bool,
    /// Register tokens (Darcet et al. 2024), before the patches.
    pub registers: usize,
    /// How many of the tokens before the patches have positions: none, class and distillation token, or all.
    pub positioned: usize,
    /// A norm between positions and layers (CLIP).
    pub norm_pre: bool,
    /// Norms after each addition (torch's default) instead of before each branch.
    pub post_norm: bool,
    pub qkv: Qkv,
    pub qkv_bias: bool,
    /// A learned factor per channel after each branch (Touvron et al. 2021).
    pub layer_scale: bool,
    pub mlp: Mlp,
    pub head: Head,
}

/// How queries, keys and values are projected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Qkv {
    /// By one linear.
    Fused,
    /// By three.
    Separate,
}

/// What a layer's MLP is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mlp {
    /// Linear, activation, linear.
    Plain,
    /// SwiGLU (Shazeer 2020) whose first linear makes gate and value at once.
    Packed,
    /// SwiGLU with a linear for each.
    Gated,
}

/// What the classifier reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Head {
    /// The class token, normed.
    Class,
    /// Only that token is normed: the norm belongs to the head.
    ClassThenNorm,
    /// The mean of the normed patches.
    Mean,
    /// The mean of the patches, normed.
    MeanThenNorm,
    /// Class token and mean of the patches, both normed, beside each other (DINOv2).
    ClassAndMean,
    /// The class token as the last layer leaves it.
    ClassAsIs,
    /// The mean of the patches as the last layer leaves them.
    MeanAsIs,
    /// The mean of two classifiers, on class and distillation token.
    Distilled,
}

impl VitSpec {
    /// timm's `VisionTransformer`, by default: class token, biases, norms first.
    pub fn timm(dims: VitDims) -> VitSpec {
        VitSpec {
            names: table::TIMM,
            dims,
            act: Activation::GeluErf,
            eps: 1e-6,
            patch_bias: true,
            class_token: true,
            dist_token: false,
            registers: 0,
            positioned: 1,
            norm_pre: false,
            post_norm: false,
            qkv: Qkv::Fused,
            qkv_bias: true,
            layer_scale: false,
            mlp: Mlp::Plain,
            head: Head::Class,
        }
    }

    /// timm's with the patches' mean instead of a class token.
    pub fn timm_mean(dims: VitDims) -> VitSpec {
        VitSpec { class_token: false, positioned: 0, head: Head::MeanThenNorm, ..VitSpec::timm(dims) }
    }

    /// `ViTForImageClassification`.
    pub fn hugging_face(dims: VitDims) -> VitSpec {
        VitSpec { names: table::HF_VIT, eps: 1e-12, qkv: Qkv::Separate, ..VitSpec::timm(dims) }
    }

    /// `DeiTForImageClassification`: a distillation token that its classifier does not read.
    pub fn hugging_face_deit(dims: VitDims) -> VitSpec {
        VitSpec { names: table::HF_DEIT, dist_token: true, positioned: 2, ..VitSpec::hugging_face(dims) }
    }

    /// `nn.TransformerEncoder` with `batch_first`: norms after additions, ReLU.
    pub fn torch(dims: VitDims) -> VitSpec {
        VitSpec {
            names: &table::TORCH[0],
            act: Activation::Relu,
            eps: 1e-5,
            post_norm: true,
            head: Head::ClassThenNorm,
            ..VitSpec::timm(dims)
        }
    }

    pub(super) fn crop(&self) -> Crop {
        let side = self.dims.image;
        match self.names.source {
            // Hugging Face's processor resizes straight to the square and maps bytes to -1..1.
            Source::HuggingFace if self.names.prefix == "vit" => {
                Crop { resize: None, half: true, ..Crop::bilinear(side) }
            }
            Source::HuggingFace | Source::Timm => Crop::bicubic(usual_resize(side)),
            Source::Torchvision | Source::Paper | Source::Gguf => Crop::bilinear(usual_resize(side)),
        }
    }
}

fn attention(b: &mut Builder, s: &VitSpec, at: &str, x: NodeId) -> NodeId {
    let (dim, heads) = (s.dims.dim, s.dims.heads);
    let head = dim / heads.max(1);
    let fused = s.qkv == Qkv::Fused;
    let inputs = qkv(b, at, x, dim, fused, |_| s.qkv_bias);
    let op = Op::attention(heads, head, head, fused, 1.0 / (head as f64).sqrt());
    let core = b.node(format!("{at}.attention_core"), op, &inputs);
    b.linear(format!("{at}.attn.proj"), core, dim, dim, true)
}

fn feed_forward(b: &mut Builder, s: &VitSpec, at: &str, x: NodeId) -> NodeId {
    let (dim, hidden) = (s.dims.dim, s.dims.mlp);
    let gated = |b: &mut Builder, gate, value| {
        let gate = b.act(format!("{at}.act"), gate, s.act);
        b.node(format!("{at}.mlp.mul"), Op::Mul, &[gate, value])
    };
    let y = match s.mlp {
        Mlp::Plain => return mlp(b, at, x, [dim, hidden], s.act),
        Mlp::Packed => {
            let both = b.linear(format!("{at}.mlp.fc1"), x, dim, 2 * hidden, true);
            let mut half = |name, from: usize| {
                let map = (from..from + hidden).map(|i| Some(i as u32)).collect();
                b.node(
                    format!("{at}.mlp.{name}"),
                    Op::ChannelPad(op::ChannelPad { stride: 1, in_ch: 2 * hidden, map }),
                    &[both],
                )
            };
            let (gate, value) = (half("gate", 0), half("value", hidden));
            gated(b, gate, value)
        }
        Mlp::Gated => {
            let gate = b.linear(format!("{at}.mlp.fc1_g"), x, dim, hidden, true);
            let value = b.linear(format!("{at}.mlp.fc1_x"), x, dim, hidden, true);
            gated(b, gate, value)
        }
    };
    b.linear(format!("{at}.mlp.fc2"), y, hidden, dim, true)
}

fn layer(b: &mut Builder, s: &VitSpec, at: &str, x: NodeId) -> NodeId {
    let dim = s.dims.dim;
    let norms = if s.post_norm { Norms::AfterAdditions } else { Norms::BeforeBranches };
    encoder_layer(b, at, x, norms, (dim, s.eps), |b, i, x| {
        let mut y = if i == 1 { attention(b, s, at, x) } else { feed_forward(b, s, at, x) };
        if s.layer_scale {
            y = b.node(format!("{at}.ls{i}"), Op::Scale(op::Scale { channels: dim }), &[y]);
            b.rename_param(y, ParamRole::Weight, format!("{at}.ls{i}.gamma"));
        }
        y
    })
}

/// Image → patch tokens with positions, class, distillation and register tokens before them.
fn embed(b: &mut Builder, s: &VitSpec) -> NodeId {
    let d = &s.dims;
    let mut x = patch_tokens(b, d.image, d.patch, d.dim, s.patch_bias);
    // In their order before the patches.
    let prefix = [
        ("cls_token", usize::from(s.class_token)),
        ("dist_token", usize::from(s.dist_token)),
        ("reg_token", s.registers),
    ];
    let place = |b: &mut Builder, x, positioned: bool| {
        let mut before = 0;
        let mut todo = Vec::new();
        for (name, count) in prefix.iter().filter(|(_, n)| *n > 0) {
            let early = before < s.positioned;
            if early == positioned {
                // Tokens without positions go behind those that are there already.
                todo.push((*name, *count, if positioned { 0 } else { before.min(s.positioned) }));
            }
            before += count;
        }
        // The last of a run first, so that each lands before the one that follows it.
        todo.iter().rev().fold(x, |x, &(name, count, at)| {
            b.node(name, Op::PrependTokens(op::PrependTokens { count, dim: d.dim, at }), &[x])
        })
    };
    x = place(b, x, true);
    let tokens = (d.image / d.patch.max(1)).pow(2) + s.positioned;
    x = b.node("pos_embed", Op::AddPositions(op::AddPositions::of(tokens, d.dim)), &[x]);
    x = place(b, x, false);
    if s.norm_pre { b.layer_norm("norm_pre", x, d.dim, s.eps) } else { x }
}

/// Tokens → logits.
fn head(b: &mut Builder, s: &VitSpec, x: NodeId) -> NodeId {
    let (dim, classes) = (s.dims.dim, s.dims.classes);
    let norm = |b: &mut Builder, x| b.layer_norm("norm", x, dim, s.eps);
    let class = |b: &mut Builder, x| b.node("class_token", Op::SelectToken(op::SelectToken { index: 0 }), &[x]);
    // Tokens before the patches.
    let skip = usize::from(s.class_token) + usize::from(s.dist_token) + s.registers;
    let mean = |b: &mut Builder, x| b.node("mean_tokens", Op::MeanTokens(op::MeanTokens { skip }), &[x]);
    let (x, width) = match s.head {
        Head::Class | Head::Mean => {
            let x = norm(b, x);
            (if s.head == Head::Class { class(b, x) } else { mean(b, x) }, dim)
        }
        Head::ClassThenNorm => {
            let x = class(b, x);
            (norm(b, x), dim)
        }
        Head::MeanThenNorm => {
            let x = mean(b, x);
            (b.layer_norm("fc_norm", x, dim, s.eps), dim)
        }
        Head::ClassAsIs => (class(b, x), dim),
        Head::MeanAsIs => (mean(b, x), dim),
        Head::ClassAndMean => {
            let x = norm(b, x);
            let both = [class(b, x), mean(b, x)];
            (b.node("class_and_mean", Op::Concat(op::Concat { inputs: 2 }), &both), 2 * dim)
        }
        Head::Distilled => {
            let x = norm(b, x);
            let class = class(b, x);
            let dist = b.node("distillation_token", Op::SelectToken(op::SelectToken { index: 1 }), &[x]);
            let class = b.linear("head", class, dim, classes, true);
            let dist = b.linear("head_dist", dist, dim, classes, true);
            let sum = b.add("head.add", class, dist);
            return b.node("head.mean", Op::Scalar(op::Scalar { mul: 0.5, add: 0.0 }), &[sum]);
        }
    };
    b.linear("head", x, width, classes, true)
}

pub(super) fn build(s: &VitSpec) -> Result<Graph, GraphError> {
    let b = &mut Builder::default();
    let mut x = embed(b, s);
    for i in 0..s.dims.depth {
        x = layer(b, s, &format!("blocks.{i}"), x);
    }
    x = head(b, s, x);
    s.names.apply(std::mem::take(b).finish(x)?)
}
