//! VGG (Simonyan and Zisserman 2015), with and without batch norm: convolutions in a row, then three linears.

use super::blocks::usual_resize;
use super::names::Rules;
use super::{Crop, FamilySpec, Graph, GraphError, Names, Reader, Result, Source};
use crate::graph::{Builder, Conv, Op, op};

/// A VGG network.
#[derive(Debug, Clone, PartialEq)]
pub struct VggSpec {
    pub names: &'static Names,
    /// Output channels of each convolution, `None` for a 2x2 max pool.
    pub layers: Vec<Option<usize>>,
    pub batch_norm: bool,
    /// Neurons of the two hidden linears.
    pub hidden: [usize; 2],
    /// timm keeps them as a 7x7 and a 1x1 convolution; torchvision flattens 7x7 pixels.
    pub conv_head: bool,
    pub classes: usize,
    pub image: usize,
}

const TORCHVISION: Rules = &[("fc1", "classifier.0"), ("fc2", "classifier.3"), ("head", "classifier.6")];
const TIMM: Rules = &[("fc1", "pre_logits.fc1"), ("fc2", "pre_logits.fc2"), ("head", "head.fc")];
pub(super) static NAMES: [Names; 2] =
    [Names::new(Source::Torchvision, "", &[TORCHVISION]), Names::new(Source::Timm, "", &[TIMM])];
pub(super) const MARKS: &[&str] = &["features.0.weight", "fc1.weight", "fc2.weight", "head.weight"];

/// Side of the last pooled image.
const POOLED: usize = 7;

pub(super) fn read(r: &Reader) -> Result<FamilySpec> {
    let batch_norm = r.rank("features.1.weight") == 1;
    let mut layers = Vec::new();
    let mut i = 0;
    // conv [batch norm] relu, conv … with a max pool wherever an index is skipped, and one at the end.
    while r.rank(&format!("features.{i}.weight")) == 4 {
        layers.push(Some(r.out(&format!("features.{i}.weight"))?));
        i += if batch_norm { 3 } else { 2 };
        if r.rank(&format!("features.{i}.weight")) != 4 {
            layers.push(None);
            i += 1;
        }
    }
    Ok(FamilySpec::Vgg(VggSpec {
        names: r.names,
        layers,
        batch_norm,
        hidden: [r.out("fc1.weight")?, r.out("fc2.weight")?],
        conv_head: r.rank("fc1.weight") == 4,
        classes: r.out("head.weight")?,
        image: r.image(224)?,
    }))
}

pub(super) fn build(s: &VggSpec) -> Result<Graph, GraphError> {
    let b = &mut Builder::default();
    let mut x = b.input([3, s.image, s.image]);
    let (mut width, mut side, mut i) = (3, s.image, 0);
    for layer in &s.layers {
        match *layer {
            Some(out) => {
                x = b.conv(format!("features.{i}"), x, Conv { bias: true, ..Conv::same(width, out, 3, 1) });
                i += 1;
                if s.batch_norm {
                    x = b.batch_norm(format!("features.{i}"), x, out);
                    i += 1;
                }
                x = b.relu(format!("features.{i}"), x);
                width = out;
            }
            None => {
                let pool = Op::MaxPool2d(op::MaxPool2d { kernel: [2; 2], stride: [2; 2], padding: [0; 4] });
                x = b.node(format!("features.{i}"), pool, &[x]);
                side /= 2;
            }
        }
        i += 1;
    }
    if !s.conv_head {
        if side != POOLED {
            x = b.node("avgpool", Op::AdaptiveAvgPool2d(op::AdaptiveAvgPool2d { out: [POOLED; 2] }), &[x]);
        }
        x = b.node("flatten", Op::Flatten, &[x]);
    }
    for (name, out, kernel) in [("fc1", s.hidden[0], POOLED), ("fc2", s.hidden[1], 1)] {
        x = match s.conv_head {
            true => b.conv(name, x, Conv { padding: [0; 4], bias: true, ..Conv::same(width, out, kernel, 1) }),
            false => b.linear(name, x, width * kernel * kernel, out, true),
        };
        x = b.relu(format!("{name}.act"), x);
        width = out;
    }
    if s.conv_head {
        x = b.node("avgpool", Op::GlobalAvgPool, &[x]);
    }
    x = b.linear("head", x, width, s.classes, true);
    s.names.apply(std::mem::take(b).finish(x)?)
}

impl VggSpec {
    pub(super) fn crop(&self) -> Crop {
        Crop::bilinear(usual_resize(self.image))
    }
}
