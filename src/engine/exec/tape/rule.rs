//! How each node of a tape is computed.

use super::attention::Core;
use super::dense;
use super::shortcut::Shortcut;
use crate::exec::kernel::geometry::{Codes, Geometry};
use crate::exec::kernel::slope;
use crate::graph::{Activation, Graph, Op, op};

/// How a node is computed, forwards and backwards.
#[derive(Debug)]
pub(super) enum Rule {
    Input,
    /// Its input's value is its own: another order of the same memory, or a ReLU that its input's step computes.
    Same,
    Dense(Geometry),
    BatchNorm {
        channels: usize,
        eps: f64,
        relu: bool,
    },
    LayerNorm {
        eps: f64,
    },
    Activation(Activation),
    Add {
        relu: bool,
    },
    /// The mean over places of every channel.
    MeanPlaces {
        places: usize,
        channels: usize,
    },
    Attention(Core),
    Shortcut(Shortcut),
    /// By its definition, through the tensor library.
    Defined,
}

/// One for every node that is `needed`.
pub(super) fn choose(graph: &Graph, shapes: &[Vec<usize>], needed: &[bool]) -> Vec<Option<Rule>> {
    let readers = graph.consumers();
    // The ReLU that alone reads a node.
    let relu_of = |i: usize| {
        let live: Vec<usize> = readers[i].iter().map(|id| id.index()).filter(|r| needed[*r]).collect();
        let relu = |r: usize| matches!(graph.nodes[r].op, Op::Activation { act: Activation::Relu });
        match live[..] {
            [r] if graph.output.index() != i && relu(r) => Some(r),
            _ => None,
        }
    };
    let mut fused = vec![false; graph.nodes.len()];
    let mut rules = Vec::with_capacity(graph.nodes.len());
    for (id, node) in graph.iter() {
        let i = id.index();
        if !needed[i] {
            rules.push(None);
            continue;
        }
        let of = |k: usize| node.inputs.get(k).map(|id| shapes[id.index()].as_slice()).unwrap_or_default();
        let (x, out) = (of(0), shapes[i].as_slice());
        let takes = matches!(node.op, Op::BatchNorm2d(_) | Op::Add);
        let relu = relu_of(i).filter(|_| takes);
        if let Some(r) = relu {
            fused[r] = true;
        }
        let relu = relu.is_some();
        let rule = match &node.op {
            Op::Input(_) => Rule::Input,
            Op::Activation { act: Activation::Relu } if fused[i] => Rule::Same,
            Op::Activation { act } if slope::has(*act) => Rule::Activation(*act),
            Op::Conv2d(conv) => match (x, out) {
                (&[c, h, w], &[o, oh, ow]) => {
                    let (window, groups, codes) = (conv.into(), conv.groups, Codes::Image);
                    let (image, out_image) = ([h, w], [oh, ow]);
                    let geo = Geometry { image, channels: c, out_image, out_channels: o, window, groups, codes };
                    if dense::fits(&geo) { Rule::Dense(geo) } else { Rule::Defined }
                }
                _ => Rule::Defined,
            },
            Op::Linear(op::Linear { in_features, out_features, .. }) => {
                let places = x.iter().product::<usize>() / (*in_features).max(1);
                Rule::Dense(Geometry::linear(places, *in_features, *out_features))
            }
            Op::BatchNorm2d(op::BatchNorm2d { channels, eps }) => {
                Rule::BatchNorm { channels: *channels, eps: *eps, relu }
            }
            Op::LayerNorm(op::LayerNorm { eps, .. }) => Rule::LayerNorm { eps: *eps },
            Op::Add => Rule::Add { relu },
            Op::GlobalAvgPool => match *x {
                [c, h, w] => Rule::MeanPlaces { places: h * w, channels: c },
                _ => Rule::Defined,
            },
            Op::ChannelPad(pad) => Shortcut::of(x, pad.stride, &pad.map).map_or(Rule::Defined, Rule::Shortcut),
            Op::ToTokens | Op::ToImage(_) => Rule::Same,
            Op::Flatten if x.get(1..).unwrap_or_default().iter().product::<usize>() == 1 => Rule::Same,
            Op::Attention(attention) => Core::of(attention, out).map_or(Rule::Defined, Rule::Attention),
            _ => Rule::Defined,
        };
        rules.push(Some(rule));
    }
    rules
}
