//! What networks of inverted residuals call their parts, and what their weights do not tell: strides and activations by
//! stage, as published.

use super::names::Rules;
use super::{Family, Names, Reader, Result, Source};
use crate::graph::Activation;

/// How strided convolutions are padded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Padding {
    /// `kernel/2` on every side.
    Centred,
    /// As TensorFlow's "same" (see [`same_padding`]).
    Same,
    /// transformers' EfficientNet: one pixel less above and left, but for the listed blocks.
    Listed(Vec<usize>),
}

/// Published facts of a family of one origin.
pub(super) struct Layout {
    /// Blocks per stage, for origins that number blocks through.
    pub depths: Vec<usize>,
    pub flat: bool,
    /// Stride of each stage's first block.
    pub strides: Vec<usize>,
    /// Depthwise kernels of each stage, and the stages with squeeze and excitation. Weights tell both; where they differ
    /// it is a relative with other activations.
    pub kernels: Vec<usize>,
    pub squeezes: Vec<bool>,
    /// Activation of the stages before and from `switch` on; the second also of stem and head.
    pub acts: [Activation; 2],
    pub switch: usize,
    pub squeeze: [Activation; 2],
    pub eps: f64,
    pub padding: Padding,
    /// Image side where nothing tells.
    pub image: usize,
}

impl Layout {
    pub fn of(r: &Reader) -> Result<Layout> {
        let source = r.names.source;
        let stems: &[&str] = match r.family {
            Family::MobileNetV2 => &["mobilenetv2_"],
            Family::MobileNetV3 => {
                &["mobilenetv3_small_", "mobilenetv3_large_", "tf_mobilenetv3_small_", "tf_mobilenetv3_large_"]
            }
            _ => &["efficientnet_b", "tf_efficientnet_b", "efficientnet_l", "tf_efficientnet_l"],
        };
        // `110d`: of 1.1 times the width, and deeper.
        r.called(stems, if r.family == Family::EfficientNet { &[] } else { &["d"] })?;
        // Weights that TensorFlow trained: other padding and epsilon.
        let tf = r.sidecar.architecture()?.is_some_and(|a| a.starts_with("tf_"));
        if source == Source::Timm && !r.sidecar.config.is_there() {
            r.note("no config.json: a network trained in PyTorch assumed, not one of timm's `tf_` ones");
        }
        let padded = |same| if same { Padding::Same } else { Padding::Centred };
        let plain = if tf { 1e-3 } else { 1e-5 };
        let [relu, relu6, silu] = [Activation::Relu, Activation::Relu6, Activation::Silu];
        let common = Layout {
            depths: vec![1, 2, 3, 4, 3, 3, 1],
            flat: false,
            strides: vec![1, 2, 2, 2, 1, 2, 1],
            kernels: vec![3; 7],
            squeezes: vec![false; 7],
            acts: [relu6; 2],
            switch: 0,
            squeeze: [relu, Activation::HardSigmoid],
            eps: plain,
            padding: padded(tf),
            image: 224,
        };
        Ok(match (r.family, source) {
            (Family::MobileNetV2, Source::HuggingFace) => {
                const USUAL: f64 = 32.0;
                if r.sidecar.config.number("output_stride")?.is_some_and(|s| s < USUAL) {
                    let why =
                        "its last stages are dilated instead of strided (`output_stride`), which is not supported";
                    return Err(r.not(why));
                }
                let acts = [r.sidecar.activation()?.unwrap_or(relu6); 2];
                let eps = r.sidecar.eps()?.unwrap_or(1e-3);
                let padding = padded(r.sidecar.config.bool("tf_padding")?.unwrap_or(true));
                Layout { flat: true, acts, eps, padding, ..common }
            }
            (Family::MobileNetV2, _) => Layout { flat: source == Source::Torchvision, ..common },
            (Family::MobileNetV3, _) => {
                let flat = source == Source::Torchvision;
                // torchvision's small network has 11 blocks and the large one 15; timm's have 5 and 6 stages.
                let large =
                    if flat { r.has("mb.0.14.14.expand.0.conv.weight") } else { r.has("mb.5.0.0.dw.1.conv.weight") };
                let (depths, strides, kernels, squeezes, switch) = match large {
                    true => (
                        vec![1, 2, 3, 4, 2, 3],
                        vec![1, 2, 2, 2, 1, 2],
                        vec![3, 3, 5, 3, 3, 5],
                        vec![false, false, true, false, true, true],
                        3,
                    ),
                    false => (
                        vec![1, 2, 3, 2, 3],
                        vec![2, 2, 2, 1, 2],
                        vec![3, 3, 5, 5, 5],
                        vec![true, false, true, true, true],
                        2,
                    ),
                };
                let (eps, acts) = (if flat { 1e-3 } else { plain }, [relu, Activation::HardSwish]);
                Layout { depths, flat, strides, kernels, squeezes, acts, switch, eps, ..common }
            }
            (_, Source::HuggingFace) => {
                let acts = [r.sidecar.activation()?.unwrap_or(silu); 2];
                let list = |key| {
                    r.sidecar.config.counts(key)?.ok_or_else(|| r.not(format!("config.json does not tell its `{key}`")))
                };
                let deeper = r.sidecar.config.number("depth_coefficient")?.unwrap_or(1.0).clamp(0.01, 100.0);
                let depths = list("num_block_repeats")?.iter().map(|&n| (n as f64 * deeper).ceil() as usize).collect();
                if r.sidecar.config.string("pooling_type")?.is_some_and(|p| p != "mean") {
                    return Err(r.not("its pooling is not the mean, which is not supported"));
                }
                let padding = Padding::Listed(r.sidecar.config.counts("depthwise_padding")?.unwrap_or_default());
                let (strides, eps) = (list("strides")?, r.sidecar.eps()?.unwrap_or(1e-3));
                let squeeze = [acts[0], Activation::Sigmoid];
                let (kernels, squeezes) = (list("kernel_sizes")?, vec![true; strides.len()]);
                Layout { depths, flat: true, strides, kernels, squeezes, acts, squeeze, eps, padding, ..common }
            }
            (_, _) => {
                let squeeze = [silu, Activation::Sigmoid];
                // B1 to B7 are trained on larger images; their widths tell which it is.
                let [_, width] = r.shape::<2>("head.weight")?;
                let image = match width {
                    1408 => 288,
                    1536 => 300,
                    1792 => 380,
                    2048 => 456,
                    2304 => 528,
                    2560 => 600,
                    _ if r.has("mb.1.2.0.dw.1.conv.weight") => 240,
                    _ => 224,
                };
                // torchvision took B5 to B7 over with TensorFlow's epsilon.
                let eps = if source == Source::Torchvision && width >= 2048 { 1e-3 } else { plain };
                let (kernels, squeezes) = (vec![3, 3, 5, 3, 5, 5, 3], vec![true; 7]);
                Layout { kernels, squeezes, acts: [silu; 2], squeeze, eps, image, ..common }
            }
        })
    }
}

pub(super) const V2_MARKS: &[&str] = &["stem.conv.weight", "ds.0.0.0.dw.0.conv.weight", "head.weight"];
/// Squeeze and excitation and a hidden layer after pooling.
pub(super) const V3_MARKS: &[&str] = &["stem.conv.weight", "hidden.bias", "head.weight"];
/// Squeeze and excitation in the very first block.
pub(super) const EFFICIENTNET_MARKS: &[&str] =
    &["stem.conv.weight", "ds.0.0.0.dw.0.conv.weight", "ds.0.0.0.se.1.reduce.weight", "head.weight"];

const TORCHVISION: Rules = &[("stem.conv", "features.0.0"), ("stem.bn", "features.0.1")];

/// The last convolution comes after all blocks, or after all stages.
const TORCHVISION_TOP_BLOCKS: Rules =
    &[("top.#.#.conv", "features.{0+1}.0"), ("top.#.#.bn", "features.{0+1}.1"), ("top.#.#", "features.{0+1}")];
const TORCHVISION_TOP_STAGES: Rules =
    &[("top.#.#.conv", "features.{1+1}.0"), ("top.#.#.bn", "features.{1+1}.1"), ("top.#.#", "features.{1+1}")];

const TIMM: Rules = &[
    ("stem.conv", "conv_stem"),
    ("stem.bn", "bn1"),
    ("head", "classifier"),
    ("ds|mb.#.#.#.expand.#.conv", "blocks.{0}.{1}.conv_pw"),
    ("ds|mb.#.#.#.dw.#.conv", "blocks.{0}.{1}.conv_dw"),
    ("ds|mb.#.#.#.expand|dw.#.bn", "blocks.{0}.{1}.bn{3+1}"),
    ("ds|mb.#.#.#.se.#.reduce", "blocks.{0}.{1}.se.conv_reduce"),
    ("ds|mb.#.#.#.se.#.expand", "blocks.{0}.{1}.se.conv_expand"),
    ("ds.#.#.#.project.#.conv", "blocks.{0}.{1}.conv_pw"),
    ("ds.#.#.#.project.#.bn", "blocks.{0}.{1}.bn2"),
    ("mb.#.#.#.project.#.conv", "blocks.{0}.{1}.conv_pwl"),
    ("mb.#.#.#.project.#.bn", "blocks.{0}.{1}.bn3"),
    ("ds|mb.#.#.#", "blocks.{0}.{1}"),
];
const TIMM_TOP: Rules = &[("top.#.#.conv", "conv_head"), ("top.#.#.bn", "bn2"), ("top.#.#", "top")];

const V2_TORCHVISION: Rules = &[
    ("head", "classifier.1"),
    ("ds|mb.#.#.#.expand|dw.#.conv", "features.{2+1}.conv.{3}.0"),
    ("ds|mb.#.#.#.expand|dw.#.bn", "features.{2+1}.conv.{3}.1"),
    ("ds|mb.#.#.#.project.#.conv", "features.{2+1}.conv.{3}"),
    ("ds|mb.#.#.#.project.#.bn", "features.{2+1}.conv.{3+1}"),
    ("ds|mb.#.#.#", "features.{2+1}"),
];
const V2_HF: Rules = &[
    ("stem.conv", "{p}.conv_stem.first_conv.convolution"),
    ("stem.bn", "{p}.conv_stem.first_conv.normalization"),
    ("ds|mb.0.0.0.expand.#.conv", "{p}.conv_stem.expand_1x1.convolution"),
    ("ds|mb.0.0.0.expand.#.bn", "{p}.conv_stem.expand_1x1.normalization"),
    ("ds|mb.0.0.0.dw.#.conv", "{p}.conv_stem.conv_3x3.convolution"),
    ("ds|mb.0.0.0.dw.#.bn", "{p}.conv_stem.conv_3x3.normalization"),
    ("ds|mb.0.0.0.project.#.conv", "{p}.conv_stem.reduce_1x1.convolution"),
    ("ds|mb.0.0.0.project.#.bn", "{p}.conv_stem.reduce_1x1.normalization"),
    ("ds|mb.0.0.0", "{p}.conv_stem"),
    ("ds|mb.#.#.#.expand.#.conv", "{p}.layer.{2-1}.expand_1x1.convolution"),
    ("ds|mb.#.#.#.expand.#.bn", "{p}.layer.{2-1}.expand_1x1.normalization"),
    ("ds|mb.#.#.#.dw.#.conv", "{p}.layer.{2-1}.conv_3x3.convolution"),
    ("ds|mb.#.#.#.dw.#.bn", "{p}.layer.{2-1}.conv_3x3.normalization"),
    ("ds|mb.#.#.#.project.#.conv", "{p}.layer.{2-1}.reduce_1x1.convolution"),
    ("ds|mb.#.#.#.project.#.bn", "{p}.layer.{2-1}.reduce_1x1.normalization"),
    ("ds|mb.#.#.#", "{p}.layer.{2-1}"),
    ("top.#.#.conv", "{p}.conv_1x1.convolution"),
    ("top.#.#.bn", "{p}.conv_1x1.normalization"),
    ("top.#.#", "{p}.conv_1x1"),
    ("head", "classifier"),
];
pub(super) static V2: [Names; 3] = [
    Names::new(Source::Timm, "", &[TIMM_TOP, TIMM]),
    Names::new(Source::Torchvision, "", &[TORCHVISION, TORCHVISION_TOP_BLOCKS, V2_TORCHVISION]),
    Names::new(Source::HuggingFace, "mobilenet_v2", &[V2_HF]),
];

const V3_TIMM: Rules = &[
    ("top.#.#.conv", "blocks.{1}.0.conv"),
    ("top.#.#.bn", "blocks.{1}.0.bn1"),
    ("top.#.#", "blocks.{1}.0"),
    ("more.#.#.conv", "blocks.{0}.{1}.conv"),
    ("more.#.#.bn", "blocks.{0}.{1}.bn1"),
    ("more.#.#", "blocks.{0}.{1}"),
    ("hidden", "conv_head"),
];
const V3_TORCHVISION: Rules = &[
    ("hidden", "classifier.0"),
    ("head", "classifier.3"),
    ("ds|mb.#.#.#.expand|dw|project.#.conv", "features.{2+1}.block.{3}.0"),
    ("ds|mb.#.#.#.expand|dw|project.#.bn", "features.{2+1}.block.{3}.1"),
    ("ds|mb.#.#.#.se.#.reduce", "features.{2+1}.block.{3}.fc1"),
    ("ds|mb.#.#.#.se.#.expand", "features.{2+1}.block.{3}.fc2"),
    ("ds|mb.#.#.#", "features.{2+1}"),
];
pub(super) static V3: [Names; 2] = [
    Names::new(Source::Timm, "", &[V3_TIMM, TIMM]),
    Names::new(Source::Torchvision, "", &[TORCHVISION, TORCHVISION_TOP_BLOCKS, V3_TORCHVISION]),
];

const EFFICIENTNET_TORCHVISION: Rules = &[
    ("head", "classifier.1"),
    ("ds|mb.#.#.#.expand|dw|project.#.conv", "features.{0+1}.{1}.block.{3}.0"),
    ("ds|mb.#.#.#.expand|dw|project.#.bn", "features.{0+1}.{1}.block.{3}.1"),
    ("ds|mb.#.#.#.se.#.reduce", "features.{0+1}.{1}.block.{3}.fc1"),
    ("ds|mb.#.#.#.se.#.expand", "features.{0+1}.{1}.block.{3}.fc2"),
    ("ds|mb.#.#.#", "features.{0+1}.{1}"),
];
const EFFICIENTNET_HF: Rules = &[
    ("stem.conv", "{p}.embeddings.convolution"),
    ("stem.bn", "{p}.embeddings.batchnorm"),
    ("ds|mb.#.#.#.expand.#.conv", "{p}.encoder.blocks.{2}.expansion.expand_conv"),
    ("ds|mb.#.#.#.expand.#.bn", "{p}.encoder.blocks.{2}.expansion.expand_bn"),
    ("ds|mb.#.#.#.dw.#.conv", "{p}.encoder.blocks.{2}.depthwise_conv.depthwise_conv"),
    ("ds|mb.#.#.#.dw.#.bn", "{p}.encoder.blocks.{2}.depthwise_conv.depthwise_norm"),
    ("ds|mb.#.#.#.se.#.reduce", "{p}.encoder.blocks.{2}.squeeze_excite.reduce"),
    ("ds|mb.#.#.#.se.#.expand", "{p}.encoder.blocks.{2}.squeeze_excite.expand"),
    ("ds|mb.#.#.#.project.#.conv", "{p}.encoder.blocks.{2}.projection.project_conv"),
    ("ds|mb.#.#.#.project.#.bn", "{p}.encoder.blocks.{2}.projection.project_bn"),
    ("ds|mb.#.#.#", "{p}.encoder.blocks.{2}"),
    ("top.#.#.conv", "{p}.encoder.top_conv"),
    ("top.#.#.bn", "{p}.encoder.top_bn"),
    ("top.#.#", "{p}.encoder.top"),
    ("head", "classifier"),
];
pub(super) static EFFICIENTNET: [Names; 3] = [
    Names::new(Source::Timm, "", &[TIMM_TOP, TIMM]),
    Names::new(Source::Torchvision, "", &[TORCHVISION, TORCHVISION_TOP_STAGES, EFFICIENTNET_TORCHVISION]),
    Names::new(Source::HuggingFace, "efficientnet", &[EFFICIENTNET_HF]),
];
