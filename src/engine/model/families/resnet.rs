//! ResNets: He et al.'s CIFAR networks with option-A shortcuts, and ImageNet's with projections (He et al. 2015, ResNeXt by
//! Xie et al. 2017, wide ones by Zagoruyko and Komodakis 2016).

use super::blocks::{conv_bn, usual_resize};
use super::names::Rules;
use super::{Crop, FamilySpec, Graph, GraphError, Names, Reader, Result, Source};
use crate::graph::{Activation, Builder, Conv, NodeId, Op, ResidualAdd, op};

/// A CIFAR ResNet (He et al. 2015, section 4.2): stem, three stages of `blocks` basic blocks, depth `6·blocks + 2`.
#[derive(Debug, Clone, PartialEq)]
pub struct CifarResnetSpec {
    /// Blocks per stage: 3 is ResNet-20, 9 is ResNet-56.
    pub blocks: usize,
    /// Channels per stage; `[16, 32, 64]` in the paper.
    pub widths: [usize; 3],
    pub classes: usize,
    /// Image side; 32 for CIFAR.
    pub image: usize,
}

impl CifarResnetSpec {
    /// The paper's widths on 32x32 images. `depth` is `6n + 2`; others round down.
    pub fn depth(depth: usize, classes: usize) -> CifarResnetSpec {
        CifarResnetSpec { blocks: depth.saturating_sub(2) / 6, widths: [16, 32, 64], classes, image: 32 }
    }
}

/// Which residual block a ResNet is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResnetBlock {
    /// Two 3x3 convolutions.
    Basic,
    /// 1x1, 3x3 (with the stride, as torchvision and timm do), 1x1 to four times the width.
    Bottleneck,
}

/// Blocks of one width.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResnetStage {
    /// Blocks.
    pub depth: usize,
    /// Width between a block's first and last convolution.
    pub inner: usize,
    /// Width between blocks: `inner` for basic ones, usually four times that for bottlenecks.
    pub outer: usize,
    /// Of the first block: 1 in the first stage and 2 in the others, as a rule.
    pub stride: usize,
}

impl ResnetStage {
    /// Stages with the usual strides.
    pub fn usual(depths: &[usize], inner: &[usize], outer: &[usize]) -> Vec<ResnetStage> {
        let stage =
            |(i, ((&depth, &inner), &outer))| ResnetStage { depth, inner, outer, stride: 1 + usize::from(i > 0) };
        depths.iter().zip(inner).zip(outer).enumerate().map(stage).collect()
    }
}

/// A ResNet for ImageNet: 7x7/2 stem, 3x3/2 max pool, stages, projection shortcuts where shapes change.
#[derive(Debug, Clone, PartialEq)]
pub struct ResnetSpec {
    pub names: &'static Names,
    pub block: ResnetBlock,
    /// Four in the paper, of 64, 128, 256 and 512 inner channels: 2, 2, 2 and 2 blocks are ResNet-18, 3, 4, 6 and 3
    /// ResNet-34 and 50. A wide ResNet has twice the inner channels.
    pub stages: Vec<ResnetStage>,
    /// Stem channels, usually 64.
    pub stem: usize,
    /// Groups of the 3x3 convolutions of bottlenecks (ResNeXt), else 1.
    pub groups: usize,
    /// After the stem and after each addition. Between a block's convolutions transformers has ReLU whatever it is told.
    pub act: Activation,
    pub classes: usize,
    /// Image side; 224 for ImageNet.
    pub image: usize,
}

impl ResnetSpec {
    /// The paper's widths at 224 px. `depth` is 18, 34, 50, 101 or 152; `None` for others.
    pub fn depth(depth: usize, classes: usize) -> Option<ResnetSpec> {
        let (block, depths) = match depth {
            18 => (ResnetBlock::Basic, [2, 2, 2, 2]),
            34 => (ResnetBlock::Basic, [3, 4, 6, 3]),
            50 => (ResnetBlock::Bottleneck, [3, 4, 6, 3]),
            101 => (ResnetBlock::Bottleneck, [3, 4, 23, 3]),
            152 => (ResnetBlock::Bottleneck, [3, 8, 36, 3]),
            _ => return None,
        };
        let inner = [64, 128, 256, 512];
        let outer = match block {
            ResnetBlock::Basic => inner,
            ResnetBlock::Bottleneck => inner.map(|w| w * 4),
        };
        Some(ResnetSpec {
            names: &NAMES[0],
            block,
            stages: ResnetStage::usual(&depths, &inner, &outer),
            stem: 64,
            groups: 1,
            act: Activation::Relu,
            classes,
            image: 224,
        })
    }

    /// The same network as `ResNetForImageClassification`.
    pub fn hugging_face(self) -> ResnetSpec {
        ResnetSpec { names: &NAMES[1], ..self }
    }

    pub(super) fn crop(&self) -> Crop {
        let side = usual_resize(self.image);
        // transformers resizes with PIL's bicubic filter.
        if self.names.source == Source::HuggingFace { Crop::bicubic(side) } else { Crop::bilinear(side) }
    }
}

const HF: Rules = &[
    ("conv1", "{p}.embedder.embedder.convolution"),
    ("bn1", "{p}.embedder.embedder.normalization"),
    ("relu", "{p}.embedder.embedder.activation"),
    ("maxpool", "{p}.embedder.pooler"),
    ("layer#.#.conv#", "{p}.encoder.stages.{0-1}.layers.{1}.layer.{2-1}.convolution"),
    ("layer#.#.bn#", "{p}.encoder.stages.{0-1}.layers.{1}.layer.{2-1}.normalization"),
    ("layer#.#.downsample.0", "{p}.encoder.stages.{0-1}.layers.{1}.shortcut.convolution"),
    ("layer#.#.downsample.1", "{p}.encoder.stages.{0-1}.layers.{1}.shortcut.normalization"),
    ("layer#.#", "{p}.encoder.stages.{0-1}.layers.{1}"),
    ("fc", "classifier.1"),
];
/// torchvision's and timm's names are the builder's own.
pub(super) static NAMES: [Names; 2] =
    [Names::new(Source::Torchvision, "", &[]), Names::new(Source::HuggingFace, "resnet", &[HF])];
pub(super) const MARKS: &[&str] = &["conv1.weight", "layer1.0.conv1.weight", "fc.weight"];

pub(super) static CIFAR_NAMES: [Names; 1] = [Names::new(Source::Paper, "", &[])];
pub(super) const CIFAR_MARKS: &[&str] = &["layer1.0.conv1.weight", "layer3.0.conv1.weight", "linear.weight"];

const EPS: f64 = 1e-5;
/// Side of the first kernel of a ResNet for ImageNet.
const STEM_KERNEL: usize = 7;

pub(super) fn read_cifar(r: &Reader) -> Result<FamilySpec> {
    let mut widths = [0; 3];
    let mut blocks = [0; 3];
    for s in 0..3 {
        blocks[s] = r.count(|i| format!("layer{}.{i}.conv1.weight", s + 1))?;
        widths[s] = r.out(&format!("layer{}.0.conv1.weight", s + 1))?;
    }
    if blocks[1..] != [blocks[0]; 2] {
        return Err(r.not(format!("its stages have {blocks:?} blocks, expected one number")));
    }
    let (classes, image) = (r.out("linear.weight")?, r.options.image.unwrap_or(32));
    Ok(FamilySpec::CifarResnet(CifarResnetSpec { blocks: blocks[0], widths, classes, image }))
}

pub(super) fn read(r: &Reader) -> Result<FamilySpec> {
    r.called(&["resnet", "resnext", "wide_resnet", "tv_resnet"], &[])?;
    if r.sidecar.config.bool("downsample_in_bottleneck")? == Some(true) {
        return Err(r.not("its bottlenecks stride in the first convolution, which is not supported"));
    }
    let bottleneck = r.has("layer1.0.conv3.weight");
    let (block, last) = if bottleneck { (ResnetBlock::Bottleneck, "conv3") } else { (ResnetBlock::Basic, "conv2") };
    let [stem, _, kernel, _] = r.shape::<4>("conv1.weight")?;
    if kernel != STEM_KERNEL {
        return Err(r.not(format!(
            "its first convolution is {kernel}x{kernel}, and weights do not tell its stride and whether pooling follows"
        )));
    }
    let mut groups = 1;
    let mut stages = Vec::new();
    while r.has(&format!("layer{}.0.conv1.weight", stages.len() + 1)) {
        let at = format!("layer{}", stages.len() + 1);
        let inner = r.out(&format!("{at}.0.conv1.weight"))?;
        let outer = r.out(&format!("{at}.0.{last}.weight"))?;
        let [_, per_group, ..] = r.shape::<4>(&format!("{at}.0.conv2.weight"))?;
        groups = inner / per_group;
        // A first stage that changes no width has a shortcut of its own only if it strides.
        let shortcut = || stem == outer && r.has(&format!("{at}.0.downsample.0.weight"));
        let told = r.sidecar.config.bool("downsample_in_first_stage")?;
        let strides = !stages.is_empty() || told.unwrap_or_else(shortcut);
        let depth = r.count(|i| format!("{at}.{i}.conv1.weight"))?;
        stages.push(ResnetStage { depth, inner, outer, stride: 1 + usize::from(strides) });
    }
    Ok(FamilySpec::Resnet(ResnetSpec {
        names: r.names,
        block,
        stages,
        stem,
        groups: groups.max(1),
        act: r.sidecar.activation()?.unwrap_or(Activation::Relu),
        classes: r.out("fc.weight")?,
        image: r.image(224)?,
    }))
}

/// One residual block called `at`: `convs`, each with a batch norm and but for the last a ReLU, then the addition and `act`.
/// The skip is what `shortcut` makes of `x`; only a block whose skip is `x` itself is removable.
fn block(
    b: &mut Builder,
    at: &str,
    x: NodeId,
    convs: &[Conv],
    act: Activation,
    shortcut: impl FnOnce(&mut Builder) -> NodeId,
) -> NodeId {
    b.begin_block(at);
    let mut y = x;
    for (k, &conv) in (1..).zip(convs) {
        y = conv_bn(b, format!("{at}.conv{k}"), format!("{at}.bn{k}"), y, conv, EPS);
        if k < convs.len() {
            y = b.relu(format!("{at}.relu{k}"), y);
        }
    }
    let skip = shortcut(b);
    let add = b.add(format!("{at}.add"), y, skip);
    let out = b.act(format!("{at}.relu{}", convs.len()), add, act);
    b.end_block(if skip == x { vec![ResidualAdd { add, skip }] } else { Vec::new() });
    out
}

/// Builds a CIFAR ResNet; names as in `akamaster/pytorch_resnet_cifar10`.
pub(super) fn cifar_resnet(spec: &CifarResnetSpec) -> Result<Graph, GraphError> {
    let b = &mut Builder::default();
    let mut x = b.input([3, spec.image, spec.image]);
    let mut width = spec.widths[0];
    x = conv_bn(b, "conv1".into(), "bn1".into(), x, Conv::same(3, width, 3, 1), EPS);
    x = b.relu("relu", x);
    for (stage, &out) in spec.widths.iter().enumerate() {
        for i in 0..spec.blocks {
            let at = format!("layer{}.{i}", stage + 1);
            let stride = if stage > 0 && i == 0 { 2 } else { 1 };
            let convs = [Conv::same(width, out, 3, stride), Conv::same(out, out, 3, 1)];
            x = block(b, &at, x, &convs, Activation::Relu, |b| {
                if stride == 1 && width == out {
                    return x;
                }
                let op = Op::ChannelPad(op::ChannelPad { stride, in_ch: width, map: option_a(width, out) });
                b.node(format!("{at}.shortcut"), op, &[x])
            });
            width = out;
        }
    }
    x = b.node("avgpool", Op::GlobalAvgPool, &[x]);
    x = b.linear("linear", x, width, spec.classes, true);
    std::mem::take(b).finish(x)
}

/// Option A pads the new channels half before and half after (the reference code pads `out/4` on each side, which for
/// a doubling is the same).
fn option_a(width: usize, out: usize) -> Vec<Option<u32>> {
    let before = out.saturating_sub(width) / 2;
    (0..out).map(|j| j.checked_sub(before).filter(|&c| c < width).map(|c| c as u32)).collect()
}

/// Builds an ImageNet ResNet.
pub(super) fn resnet(spec: &ResnetSpec) -> Result<Graph, GraphError> {
    let b = &mut Builder::default();
    let mut x = b.input([3, spec.image, spec.image]);
    let mut width = spec.stem;
    x = conv_bn(b, "conv1".into(), "bn1".into(), x, Conv::same(3, width, STEM_KERNEL, 2), EPS);
    x = b.act("relu", x, spec.act);
    x = b.node("maxpool", Op::MaxPool2d(op::MaxPool2d { kernel: [3; 2], stride: [2; 2], padding: [1; 4] }), &[x]);
    for (s, stage) in spec.stages.iter().enumerate() {
        let (inner, out) = (stage.inner, stage.outer);
        for i in 0..stage.depth {
            let at = format!("layer{}.{i}", s + 1);
            let stride = if i == 0 { stage.stride } else { 1 };
            let grouped = Conv { groups: spec.groups, ..Conv::same(inner, inner, 3, stride) };
            let convs: &[Conv] = match spec.block {
                ResnetBlock::Basic => &[Conv::same(width, inner, 3, stride), Conv::same(inner, out, 3, 1)],
                ResnetBlock::Bottleneck => &[Conv::same(width, inner, 1, 1), grouped, Conv::same(inner, out, 1, 1)],
            };
            x = block(b, &at, x, convs, spec.act, |b| {
                if stride == 1 && width == out {
                    return x;
                }
                let down = format!("{at}.downsample");
                conv_bn(b, format!("{down}.0"), format!("{down}.1"), x, Conv::same(width, out, 1, stride), EPS)
            });
            width = out;
        }
    }
    x = b.node("avgpool", Op::GlobalAvgPool, &[x]);
    x = b.linear("fc", x, width, spec.classes, true);
    spec.names.apply(std::mem::take(b).finish(x)?)
}
