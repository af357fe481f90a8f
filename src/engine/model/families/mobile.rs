//! Networks of inverted residuals: MobileNet v2 (Sandler et al. 2018), MobileNet v3 (Howard et al. 2019) and EfficientNet
//! (Tan and Le 2019). One builder serves them all; they differ in activations, squeeze and excitation, and heads.

use super::blocks::{conv_bn, same_padding, squeeze_excite, usual_resize};
use super::mobile_names::Layout;
pub use super::mobile_names::Padding;
use super::{Crop, Family, FamilySpec, Graph, GraphError, Names, Reader, Result, Source};
use crate::graph::{Activation, Builder, Conv, NodeId, Op, ResidualAdd};

/// A network of inverted residuals.
#[derive(Debug, Clone, PartialEq)]
pub struct MobileSpec {
    pub family: Family,
    pub names: &'static Names,
    /// Channels after the first convolution, 3x3 with stride 2.
    pub stem: usize,
    pub stages: Vec<Vec<MobileBlock>>,
    /// Channels of the last 1x1 convolution.
    pub top: usize,
    /// How many more of its kind follow it: a depth multiplier repeats it too.
    pub more: usize,
    /// Neurons of the layer between pooling and classifier (v3).
    pub hidden: Option<usize>,
    /// Of stem, top and hidden layer.
    pub act: Activation,
    /// Inside squeeze and excitation, and its gate.
    pub squeeze: [Activation; 2],
    pub eps: f64,
    pub padding: Padding,
    pub classes: usize,
    pub image: usize,
}

/// expand 1x1 → depthwise → squeeze and excite → project 1x1, plus the input where shapes agree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MobileBlock {
    /// Channels that the depthwise convolution works on; `None` when nothing expands its input.
    pub expand: Option<usize>,
    pub kernel: usize,
    pub stride: usize,
    /// Channels between squeeze and excitation.
    pub squeeze: Option<usize>,
    pub out: usize,
    /// Adds its input, where stride and widths allow.
    pub skip: bool,
    pub act: Activation,
}

/// Names of a block's parts: the builder's own carry every number that some origin's names are made of.
struct At {
    /// `mb` with an expansion, `ds` (depthwise separable) without; then stage, index in the stage, index in the network.
    block: String,
    expands: bool,
    squeezes: bool,
}

impl At {
    fn new(place: [usize; 3], expands: bool, squeezes: bool) -> At {
        let [stage, i, flat] = place;
        At { block: format!("{}.{stage}.{i}.{flat}", if expands { "mb" } else { "ds" }), expands, squeezes }
    }

    /// The part called `role`, with its position among the block's parts.
    fn part(&self, role: &str) -> String {
        let e = usize::from(self.expands);
        let position = match role {
            "expand" => 0,
            "dw" => e,
            "se" => e + 1,
            _ => e + 1 + usize::from(self.squeezes),
        };
        format!("{}.{role}.{position}", self.block)
    }
}

/// One block, if there is one at `place`; strides and activations come later.
fn read_block(r: &Reader, place: [usize; 3]) -> Result<Option<MobileBlock>> {
    for expands in [true, false] {
        let at = At::new(place, expands, false);
        let squeezes = r.has(&format!("{}.reduce.weight", at.part("se")));
        let at = At { squeezes, ..at };
        let roles: &[&str] = if expands { &["expand", "dw", "project"] } else { &["dw", "project"] };
        if !roles.iter().all(|role| r.has(&format!("{}.conv.weight", at.part(role)))) {
            continue;
        }
        let [width, per_group, kernel, _] = r.shape::<4>(&format!("{}.conv.weight", at.part("dw")))?;
        if per_group != 1 {
            continue;
        }
        let squeeze = squeezes.then(|| r.out(&format!("{}.reduce.weight", at.part("se")))).transpose()?;
        let out = r.out(&format!("{}.conv.weight", at.part("project")))?;
        let expand = expands.then_some(width);
        // transformers' MobileNet v2 makes its first block part of the stem, which adds nothing.
        let skip = !(r.family == Family::MobileNetV2 && r.names.source == Source::HuggingFace && place[2] == 0);
        return Ok(Some(MobileBlock { expand, kernel, stride: 1, squeeze, out, skip, act: Activation::Relu6 }));
    }
    Ok(None)
}

/// The blocks as stages; where names number them through, split as `layout` says.
fn read_stages(r: &Reader, layout: &Layout) -> Result<Vec<Vec<MobileBlock>>> {
    let mut stages: Vec<Vec<MobileBlock>> = Vec::new();
    let mut flat = 0;
    // Some origins count stages and blocks in a stage, others only blocks; then all lie in stage 0.
    loop {
        let mut stage = Vec::new();
        while let Some(block) = read_block(r, [stages.len(), stage.len(), flat])? {
            stage.push(block);
            flat += 1;
        }
        if stage.is_empty() {
            break;
        }
        stages.push(stage);
    }
    if flat == 0 {
        return Err(r.not("it has no inverted residuals"));
    }
    if layout.flat {
        let mut all = stages.concat().into_iter();
        let expected: usize = layout.depths.iter().sum();
        stages = match flat == expected {
            true => layout.depths.iter().map(|&n| all.by_ref().take(n).collect()).collect(),
            // Of another depth: a stage ends where the width changes.
            false => stages.concat().chunk_by(|a, b| a.out == b.out).map(<[_]>::to_vec).collect(),
        };
        if stages.len() != layout.strides.len() {
            let why = format!("it has {flat} blocks, expected {expected}, and its widths do not tell its stages");
            return Err(r.not(why));
        }
    }
    if stages.len() != layout.strides.len() {
        return Err(r.not(format!("it has {} stages, expected {}", stages.len(), layout.strides.len())));
    }
    for (i, (stage, &stride)) in stages.iter_mut().zip(&layout.strides).enumerate() {
        for (j, block) in stage.iter_mut().enumerate() {
            let expected = (layout.kernels.get(i).copied(), layout.squeezes.get(i).copied());
            if (Some(block.kernel), Some(block.squeeze.is_some())) != expected {
                let found = format!("kernels of {} and squeeze {}", block.kernel, block.squeeze.is_some());
                return Err(r.not(format!("its stage {i} has {found}; it is a relative that is not supported")));
            }
            block.stride = if j == 0 { stride } else { 1 };
            block.act = layout.acts[usize::from(i >= layout.switch)];
        }
    }
    Ok(stages)
}

pub(super) fn read(r: &Reader) -> Result<FamilySpec> {
    let layout = Layout::of(r)?;
    let stages = read_stages(r, &layout)?;
    let n: usize = stages.iter().map(Vec::len).sum();
    let hidden = if r.has("hidden.weight") { Some(r.out("hidden.weight")?) } else { None };
    Ok(FamilySpec::Mobile(MobileSpec {
        family: r.family,
        names: r.names,
        stem: r.out("stem.conv.weight")?,
        top: r.out(&format!("top.{n}.{}.conv.weight", stages.len()))?,
        more: (1..).take_while(|i| r.has(&format!("more.{}.{i}.conv.weight", stages.len()))).count(),
        stages,
        hidden,
        act: layout.acts[1],
        squeeze: layout.squeeze,
        eps: layout.eps,
        padding: layout.padding,
        classes: r.out("head.weight")?,
        image: r.image(layout.image)?,
    }))
}

/// What the blocks are built in: the image's present side and channels.
struct Flow {
    x: NodeId,
    side: usize,
    width: usize,
}

fn block(b: &mut Builder, s: &MobileSpec, f: &mut Flow, m: &MobileBlock, place: [usize; 3]) {
    let at = At::new(place, m.expand.is_some(), m.squeeze.is_some());
    b.begin_block(&at.block);
    let part = |role: &str, what: &str| format!("{}.{what}", at.part(role));
    let unit = |b: &mut Builder, role: &str, x, conv| conv_bn(b, part(role, "conv"), part(role, "bn"), x, conv, s.eps);
    let (skip, inner) = (f.x, m.expand.unwrap_or(f.width));
    let mut y = f.x;
    if m.expand.is_some() {
        y = unit(b, "expand", y, Conv::same(f.width, inner, 1, 1));
        y = b.act(part("expand", "act"), y, m.act);
    }
    let padding = s.padding.of(f.side, m.kernel, m.stride, place[2]);
    let depthwise = Conv { groups: inner, padding, ..Conv::same(inner, inner, m.kernel, m.stride) };
    y = unit(b, "dw", y, depthwise);
    y = b.act(part("dw", "act"), y, m.act);
    if let Some(squeezed) = m.squeeze {
        y = squeeze_excite(b, &at.part("se"), y, [inner, squeezed], s.squeeze);
    }
    y = unit(b, "project", y, Conv::same(inner, m.out, 1, 1));
    let residual = m.skip && m.stride == 1 && f.width == m.out;
    let mut removable = Vec::new();
    if residual {
        y = b.add(format!("{}.add", at.block), y, skip);
        removable.push(ResidualAdd { add: y, skip });
    }
    b.end_block(removable);
    *f = Flow { x: y, side: f.side.div_ceil(m.stride.max(1)), width: m.out };
}

impl Padding {
    fn of(&self, side: usize, kernel: usize, stride: usize, block: usize) -> [usize; 4] {
        let half = kernel / 2;
        match self {
            Padding::Centred => [half; 4],
            Padding::Same => same_padding(side, kernel, stride),
            Padding::Listed(full) if stride > 1 && !full.contains(&block) => {
                let less = half.saturating_sub(1);
                [less, less, half, half]
            }
            Padding::Listed(_) => [half; 4],
        }
    }
}

pub(super) fn build(s: &MobileSpec) -> Result<Graph, GraphError> {
    let b = &mut Builder::default();
    let mut x = b.input([3, s.image, s.image]);
    let padding = match &s.padding {
        Padding::Listed(_) => [0, 0, 1, 1],
        other => other.of(s.image, 3, 2, 0),
    };
    x = conv_bn(b, "stem.conv".into(), "stem.bn".into(), x, Conv { padding, ..Conv::same(3, s.stem, 3, 2) }, s.eps);
    x = b.act("stem.act", x, s.act);
    let mut f = Flow { x, side: s.image.div_ceil(2), width: s.stem };
    let mut flat = 0;
    for (i, stage) in s.stages.iter().enumerate() {
        for (j, m) in stage.iter().enumerate() {
            block(b, s, &mut f, m, [i, j, flat]);
            flat += 1;
        }
    }
    let top = format!("top.{flat}.{}", s.stages.len());
    x = conv_bn(b, format!("{top}.conv"), format!("{top}.bn"), f.x, Conv::same(f.width, s.top, 1, 1), s.eps);
    x = b.act(format!("{top}.act"), x, s.act);
    for i in 1..=s.more {
        let more = format!("more.{}.{i}", s.stages.len());
        x = conv_bn(b, format!("{more}.conv"), format!("{more}.bn"), x, Conv::same(s.top, s.top, 1, 1), s.eps);
        x = b.act(format!("{more}.act"), x, s.act);
    }
    x = b.node("pool", Op::GlobalAvgPool, &[x]);
    let mut width = s.top;
    if let Some(hidden) = s.hidden {
        x = b.linear("hidden", x, width, hidden, true);
        x = b.act("hidden.act", x, s.act);
        width = hidden;
    }
    x = b.linear("head", x, width, s.classes, true);
    s.names.apply(std::mem::take(b).finish(x)?)
}

impl MobileSpec {
    /// torchvision's and timm's evaluation crops.
    pub(super) fn crop(&self) -> Crop {
        match (self.family, self.names.source, self.image) {
            (Family::EfficientNet, Source::Torchvision, 240) => Crop::bilinear(256),
            (Family::EfficientNet, Source::Torchvision, 300) => Crop::bicubic(320),
            (Family::EfficientNet, Source::Torchvision, 380) => Crop::bicubic(384),
            (Family::EfficientNet, Source::Torchvision, side @ (288 | 456 | 528 | 600)) => Crop::bicubic(side),
            (Family::EfficientNet, ..) | (_, Source::Timm, _) => Crop::bicubic(usual_resize(self.image)),
            _ => Crop::bilinear(usual_resize(self.image)),
        }
    }
}
