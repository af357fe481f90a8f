//! ConvNeXt (Liu et al. 2022): stages of depthwise 7x7, layer norm, two 1x1 convolutions and a layer scale.
//!
//! Most checkpoints keep the 1x1 convolutions as linears over the last axis; they are the same numbers.

use super::names::Rules;
use super::{Crop, FamilySpec, Graph, GraphError, Names, Reader, Result, Source};
use crate::graph::{Activation, Builder, Conv, NodeId, Op, ParamRole, ResidualAdd, op};

/// A ConvNeXt.
#[derive(Debug, Clone, PartialEq)]
pub struct ConvNextSpec {
    pub names: &'static Names,
    /// Side of the patches that the first convolution cuts.
    pub patch: usize,
    pub stages: Vec<ConvNextStage>,
    pub layer_scale: bool,
    pub act: Activation,
    /// Of the norm before the classifier; the others have 1e-6.
    pub head_eps: f64,
    pub classes: usize,
    pub image: usize,
}

/// Blocks of one width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvNextStage {
    pub width: usize,
    pub depth: usize,
    /// Channels between the two 1x1 convolutions.
    pub mlp: usize,
    /// Side of the depthwise kernel.
    pub kernel: usize,
}

const TIMM: Rules = &[
    ("stem.conv", "stem.0"),
    ("stem.norm", "stem.1"),
    ("down.#.norm", "stages.{0}.downsample.0"),
    ("down.#.conv", "stages.{0}.downsample.1"),
    ("stages.#.#", "stages.{0}.blocks.{1}"),
    ("norm", "head.norm"),
    ("head", "head.fc"),
];
const TORCHVISION: Rules = &[
    ("stem.conv", "features.0.0"),
    ("stem.norm", "features.0.1"),
    ("down.#.norm", "features.{0*2}.0"),
    ("down.#.conv", "features.{0*2}.1"),
    ("stages.#.#.conv_dw", "features.{0*2+1}.{1}.block.0"),
    ("stages.#.#.norm", "features.{0*2+1}.{1}.block.2"),
    ("stages.#.#.mlp.fc1", "features.{0*2+1}.{1}.block.3"),
    ("stages.#.#.mlp.fc2", "features.{0*2+1}.{1}.block.5"),
    ("stages.#.#.gamma", "features.{0*2+1}.{1}.layer_scale"),
    ("stages.#.#", "features.{0*2+1}.{1}"),
    ("norm", "classifier.0"),
    ("head", "classifier.2"),
];
const HF: Rules = &[
    ("stem.conv", "{p}.embeddings.patch_embeddings"),
    ("stem.norm", "{p}.embeddings.layernorm"),
    ("down.#.norm", "{p}.encoder.stages.{0}.downsampling_layer.0"),
    ("down.#.conv", "{p}.encoder.stages.{0}.downsampling_layer.1"),
    ("stages.#.#.conv_dw", "{p}.encoder.stages.{0}.layers.{1}.dwconv"),
    ("stages.#.#.norm", "{p}.encoder.stages.{0}.layers.{1}.layernorm"),
    ("stages.#.#.mlp.fc#", "{p}.encoder.stages.{0}.layers.{1}.pwconv{2}"),
    ("stages.#.#.gamma", "{p}.encoder.stages.{0}.layers.{1}.layer_scale_parameter"),
    ("stages.#.#", "{p}.encoder.stages.{0}.layers.{1}"),
    ("norm", "{p}.layernorm"),
    ("head", "classifier"),
];
pub(super) static NAMES: [Names; 3] = [
    Names::new(Source::Timm, "", &[TIMM]),
    Names::new(Source::Torchvision, "", &[TORCHVISION]),
    Names::new(Source::HuggingFace, "convnext", &[HF]),
];
pub(super) const MARKS: &[&str] =
    &["stem.conv.weight", "stages.0.0.conv_dw.weight", "stages.0.0.mlp.fc1.weight", "norm.weight", "head.weight"];

const EPS: f64 = 1e-6;

pub(super) fn read(r: &Reader) -> Result<FamilySpec> {
    let mut stages = Vec::new();
    while r.has(&format!("stages.{}.0.conv_dw.weight", stages.len())) {
        let s = stages.len();
        let [width, _, kernel, _] = r.shape::<4>(&format!("stages.{s}.0.conv_dw.weight"))?;
        let depth = r.count(|i| format!("stages.{s}.{i}.conv_dw.weight"))?;
        stages.push(ConvNextStage { width, depth, mlp: r.out(&format!("stages.{s}.0.mlp.fc1.weight"))?, kernel });
    }
    let [_, _, patch, _] = r.shape::<4>("stem.conv.weight")?;
    let head_eps = if r.names.source == Source::HuggingFace { r.sidecar.eps()?.unwrap_or(1e-12) } else { EPS };
    Ok(FamilySpec::ConvNext(ConvNextSpec {
        names: r.names,
        patch,
        stages,
        layer_scale: r.has("stages.0.0.gamma"),
        act: r.sidecar.activation()?.unwrap_or(Activation::GeluErf),
        head_eps,
        classes: r.out("head.weight")?,
        image: r.image(224)?,
    }))
}

fn block(b: &mut Builder, spec: &ConvNextSpec, s: &ConvNextStage, at: &str, x: NodeId) -> NodeId {
    b.begin_block(at);
    let depthwise = Conv { groups: s.width, bias: true, ..Conv::same(s.width, s.width, s.kernel, 1) };
    let point = |in_ch, out_ch| Conv { bias: true, ..Conv::same(in_ch, out_ch, 1, 1) };
    let mut y = b.conv(format!("{at}.conv_dw"), x, depthwise);
    y = b.layer_norm(format!("{at}.norm"), y, s.width, EPS);
    y = b.conv(format!("{at}.mlp.fc1"), y, point(s.width, s.mlp));
    y = b.act(format!("{at}.mlp.act"), y, spec.act);
    y = b.conv(format!("{at}.mlp.fc2"), y, point(s.mlp, s.width));
    if spec.layer_scale {
        y = b.node(format!("{at}.scale"), Op::Scale(op::Scale { channels: s.width }), &[y]);
        b.rename_param(y, ParamRole::Weight, format!("{at}.gamma"));
    }
    let add = b.add(format!("{at}.add"), y, x);
    b.end_block(vec![ResidualAdd { add, skip: x }]);
    add
}

pub(super) fn build(s: &ConvNextSpec) -> Result<Graph, GraphError> {
    let b = &mut Builder::default();
    let mut x = b.input([3, s.image, s.image]);
    let mut width = 3;
    for (i, stage) in s.stages.iter().enumerate() {
        let cut = |kernel| Conv {
            kernel,
            stride: kernel,
            padding: [0; 4],
            bias: true,
            ..Conv::same(width, stage.width, 1, 1)
        };
        if i == 0 {
            x = b.conv("stem.conv", x, cut(s.patch));
            x = b.layer_norm("stem.norm", x, stage.width, EPS);
        } else {
            x = b.layer_norm(format!("down.{i}.norm"), x, width, EPS);
            x = b.conv(format!("down.{i}.conv"), x, cut(2));
        }
        for j in 0..stage.depth {
            x = block(b, s, stage, &format!("stages.{i}.{j}"), x);
        }
        width = stage.width;
    }
    x = b.node("pool", Op::GlobalAvgPool, &[x]);
    x = b.layer_norm("norm", x, width, s.head_eps);
    x = b.linear("head", x, width, s.classes, true);
    s.names.apply(std::mem::take(b).finish(x)?)
}

impl ConvNextSpec {
    /// Tiny to large, from torchvision's weights and the paper's code.
    pub(super) fn crop(&self) -> Crop {
        let (depth, width) = (self.stages.get(2).map_or(0, |s| s.depth), self.stages.first().map_or(0, |s| s.width));
        match self.names.source {
            Source::Torchvision => Crop::bilinear(match (depth, width) {
                (9, 96) => 236,
                (27, 96) => 230,
                _ => 232 * self.image / 224,
            }),
            _ => Crop::bicubic(self.image * 8 / 7),
        }
    }
}
