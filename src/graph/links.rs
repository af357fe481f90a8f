//! How every axis of an op's inputs, outputs and parameters links to the others: the facts that structured pruning
//! stands on. An axis that no link mentions and that is not free is protected.
//!
//! Use: put every element of every linked axis into a disjoint-set forest (a value axis is shared by the node that
//! writes it and all that read it), unite what each link's unit owns on both sides, and the resulting classes are
//! exactly the units that must be cut together. A class that touches a protected axis must stay.

use super::{Graph, GraphError, Op, ParamRole, PositionBias, channel_axis, shapes};

/// Which tensor of a node an axis belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Site {
    /// The node's input number so-and-so.
    Input(usize),
    Output,
    Param(ParamRole),
}

/// One axis (without the batch axis) of one tensor of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct AxisRef {
    pub site: Site,
    pub axis: usize,
}

/// Which indices of an axis a unit owns: `offset + b·stride + u·width .. + width` for `b` in `0..blocks`.
/// (The geometry of `prune::Member`.)
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    pub offset: usize,
    pub width: usize,
    pub blocks: usize,
    pub stride: usize,
}

impl Span {
    /// Unit `u` owns index `u`.
    pub const EACH: Span = Span { offset: 0, width: 1, blocks: 1, stride: 0 };

    /// Unit `u` owns `width` indices, the first unit's beginning at `offset`.
    pub fn run(offset: usize, width: usize) -> Span {
        Span { offset, width, blocks: 1, stride: 0 }
    }

    /// The indices that unit `u` owns, ascending.
    pub fn indices(self, u: usize) -> impl Iterator<Item = usize> {
        (0..self.blocks).flat_map(move |b| {
            let start = self.offset + b * self.stride + u * self.width;
            start..start + self.width
        })
    }
}

/// Unit `u` of `0..units` owns `a_span(u)` on axis `a` and `b_span(u)` on axis `b`; all of it stays or goes together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    pub a: AxisRef,
    pub b: AxisRef,
    pub units: usize,
    pub a_span: Span,
    pub b_span: Span,
}

/// An axis that must keep all its elements, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Protected {
    pub axis: AxisRef,
    pub why: &'static str,
}

/// The axis facts of one node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeLinks {
    pub links: Vec<Link>,
    /// Axes that may lose any element without a partner losing one, because the op itself absorbs it: the sides of a
    /// [`Op::ChannelPad`] (losing input `c` turns map entries `c` to zero; losing output `j` drops map entry `j`).
    pub free: Vec<AxisRef>,
    /// Axes that must stay whole, with the reason. Axes in none of the three lists are protected without words.
    pub protected: Vec<Protected>,
}

impl NodeLinks {
    fn each(&mut self, a: AxisRef, b: AxisRef, units: usize) {
        self.links.push(Link { a, b, units, a_span: Span::EACH, b_span: Span::EACH });
    }

    fn protect(&mut self, axis: AxisRef, why: &'static str) {
        self.protected.push(Protected { axis, why });
    }
}

fn input(index: usize, axis: usize) -> AxisRef {
    AxisRef { site: Site::Input(index), axis }
}

fn output(axis: usize) -> AxisRef {
    AxisRef { site: Site::Output, axis }
}

fn param(role: ParamRole, axis: usize) -> AxisRef {
    AxisRef { site: Site::Param(role), axis }
}

/// Axis facts of every node; empty for unreachable ones. The graph's own output is protected.
pub fn links(graph: &Graph) -> Result<Vec<NodeLinks>, GraphError> {
    let shapes = shapes(graph)?;
    let reachable = graph.reachable();
    Ok(graph
        .iter()
        .map(|(id, node)| {
            if !reachable[id.index()] {
                return NodeLinks::default();
            }
            let ins: Vec<&[usize]> = node.inputs.iter().map(|i| shapes[i.index()].as_slice()).collect();
            let out = &shapes[id.index()];
            let mut facts = node_links(&node.op, &ins, out);
            if id == graph.output {
                for axis in 0..out.len() {
                    facts.protect(output(axis), "it is the network's output");
                }
            }
            facts
        })
        .collect())
}

/// Axis facts of one op. Only the channel or width axis is ever linked: image rows and tokens stay whole.
pub fn node_links(op: &Op, ins: &[&[usize]], out: &[usize]) -> NodeLinks {
    use ParamRole::{Bias, Embedding, Mean, Var, Weight};
    let mut l = NodeLinks::default();
    let in_last = ins.first().map_or(0, |s| s.len().saturating_sub(1));
    let out_last = out.len().saturating_sub(1);
    let ch = channel_axis(out);
    let width = out.get(ch).copied().unwrap_or(0);
    // The channels of input `i`.
    let from = |i: usize| input(i, ins.get(i).map_or(0, |s| channel_axis(s)));
    match op {
        Op::Input { .. } => l.protect(output(0), "it is the image"),
        Op::Conv2d { in_ch, out_ch, groups, bias, .. } => {
            if *groups == 1 {
                l.each(input(0, 0), param(Weight, 1), *in_ch);
            } else {
                // A group goes as a whole: its inputs with its outputs. Depthwise: one channel.
                let [a_span, b_span] = [*in_ch, *out_ch].map(|n| Span::run(0, n / (*groups).max(1)));
                l.links.push(Link { a: input(0, 0), b: param(Weight, 0), units: *groups, a_span, b_span });
            }
            l.each(param(Weight, 0), output(0), *out_ch);
            if *bias {
                l.each(param(Weight, 0), param(Bias, 0), *out_ch);
            }
        }
        Op::Linear { in_features, out_features, bias } => {
            l.each(input(0, in_last), param(Weight, 1), *in_features);
            l.each(param(Weight, 0), output(out_last), *out_features);
            if *bias {
                l.each(param(Weight, 0), param(Bias, 0), *out_features);
            }
        }
        Op::BatchNorm2d { channels, .. } => {
            l.each(from(0), output(ch), *channels);
            for role in [Weight, Bias, Mean, Var] {
                l.each(output(ch), param(role, 0), *channels);
            }
        }
        Op::LayerNorm { .. } | Op::RmsNorm { .. } => {
            // Removing an element changes the statistics of all the others: zeroed would not equal pruned.
            l.protect(from(0), "a layer norm normalises over it");
            l.protect(output(ch), "a layer norm normalises over it");
        }
        Op::Softmax => {
            l.protect(from(0), "a softmax normalises over it");
            l.protect(output(ch), "a softmax normalises over it");
        }
        Op::Scale { channels } => {
            l.each(from(0), output(ch), *channels);
            l.each(output(ch), param(Weight, 0), *channels);
        }
        Op::Add | Op::Mul => (0..2).for_each(|side| l.each(from(side), output(ch), width)),
        Op::Activation { .. }
        | Op::Scalar { .. }
        | Op::MaxPool2d { .. }
        | Op::AvgPool2d { .. }
        | Op::AdaptiveAvgPool2d { .. }
        | Op::GlobalAvgPool
        | Op::ToTokens
        | Op::ToImage { .. }
        | Op::SelectToken { .. }
        | Op::MeanTokens { .. } => l.each(from(0), output(ch), width),
        Op::ChannelPad { .. } => l.free.extend([from(0), output(ch)]),
        Op::Concat { .. } => {
            let mut offset = 0;
            for (i, shape) in ins.iter().enumerate() {
                let units = shape.get(channel_axis(shape)).copied().unwrap_or(0);
                let (a_span, b_span) = (Span::EACH, Span::run(offset, 1));
                l.links.push(Link { a: from(i), b: output(ch), units, a_span, b_span });
                offset += units;
            }
        }
        Op::Flatten => {
            let units = ins.first().and_then(|s| s.first()).copied().unwrap_or(0);
            let (a_span, b_span) = (Span::EACH, Span::run(0, width / units.max(1)));
            l.links.push(Link { a: input(0, 0), b: output(0), units, a_span, b_span });
        }
        Op::PatchMerge { .. } => {
            let b_span = Span { offset: 0, width: 1, blocks: 4, stride: width / 4 };
            l.links.push(Link { a: input(0, 1), b: output(1), units: width / 4, a_span: Span::EACH, b_span });
        }
        Op::PrependTokens { dim, .. } | Op::AddPositions { dim, .. } => {
            l.each(input(0, 1), output(1), *dim);
            l.each(output(1), param(Embedding, 2), *dim);
        }
        Op::Attention { heads, qk_dim, v_dim, fused, cosine, bias, .. } => {
            attention(&mut l, *heads, *qk_dim, *v_dim, *fused);
            let per_head = match bias {
                PositionBias::None => None,
                PositionBias::Table => Some((ParamRole::PositionBias, 1)),
                PositionBias::Full { .. } => Some((ParamRole::PositionBias, 0)),
                PositionBias::Continuous { .. } => Some((ParamRole::PositionMlp2, 0)),
            };
            for (role, axis) in cosine.then_some((ParamRole::LogitScale, 0)).into_iter().chain(per_head) {
                let (a_span, b_span) = (Span::EACH, Span::run(0, *v_dim));
                l.links.push(Link { a: param(role, axis), b: output(1), units: *heads, a_span, b_span });
            }
        }
    }
    l
}

/// A unit is a head: its rows of q, k and v go with its columns of the output.
fn attention(l: &mut NodeLinks, heads: usize, qk_dim: usize, v_dim: usize, fused: bool) {
    let block = Span::run;
    let qk = heads * qk_dim;
    let parts = if fused {
        [(0, block(0, qk_dim)), (0, block(qk, qk_dim)), (0, block(2 * qk, v_dim))]
    } else {
        [(0, block(0, qk_dim)), (1, block(0, qk_dim)), (2, block(0, v_dim))]
    };
    for (i, a_span) in parts {
        l.links.push(Link { a: input(i, 1), b: output(1), units: heads, a_span, b_span: block(0, v_dim) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Activation;

    /// What unit `u` of each link owns on both sides.
    fn owned(l: &Link, u: usize) -> (Vec<usize>, Vec<usize>) {
        (l.a_span.indices(u).collect(), l.b_span.indices(u).collect())
    }

    #[test]
    fn a_head_takes_its_rows_of_q_k_and_v_along() {
        let fused = Op::attention(2, 2, 3, true, 1.0);
        let l = node_links(&fused, &[&[5, 14]], &[5, 6]);
        let second: Vec<_> = l.links.iter().map(|l| owned(l, 1)).collect();
        let out = vec![3, 4, 5];
        assert_eq!(second, [(vec![2, 3], out.clone()), (vec![6, 7], out.clone()), (vec![11, 12, 13], out.clone())]);
        assert!(l.links.iter().all(|l| l.a == input(0, 1) && l.b == output(1) && l.units == 2));

        let split = Op::attention(2, 2, 3, false, 1.0);
        let l = node_links(&split, &[&[5, 4], &[5, 4], &[5, 6]], &[5, 6]);
        let second: Vec<_> = l.links.iter().map(|l| (l.a.site, owned(l, 1).0)).collect();
        let sites = [Site::Input(0), Site::Input(1), Site::Input(2)];
        assert_eq!(second, [(sites[0], vec![2, 3]), (sites[1], vec![2, 3]), (sites[2], vec![3, 4, 5])]);
    }

    #[test]
    fn spans_repeat_over_blocks() {
        let span = Span { offset: 1, width: 2, blocks: 3, stride: 10 };
        assert_eq!(span.indices(1).collect::<Vec<_>>(), [3, 4, 13, 14, 23, 24]);
    }

    #[test]
    fn norms_over_the_width_protect_it_and_option_a_shortcuts_free_both_sides() {
        let l = node_links(&Op::LayerNorm { dim: 8, eps: 1e-5 }, &[&[5, 8]], &[5, 8]);
        assert!(l.links.is_empty() && l.free.is_empty());
        assert_eq!(l.protected.iter().map(|p| p.axis).collect::<Vec<_>>(), [input(0, 1), output(1)]);
        let pad = Op::ChannelPad { stride: 2, in_ch: 4, map: vec![None, Some(0)] };
        let l = node_links(&pad, &[&[4, 8, 8]], &[2, 4, 4]);
        assert!(l.links.is_empty() && l.protected.is_empty());
        assert_eq!(l.free, [input(0, 0), output(0)]);
    }

    #[test]
    fn groups_concatenations_and_patches_own_their_runs() {
        let op =
            Op::Conv2d { in_ch: 4, out_ch: 8, kernel: [3, 3], stride: [1, 1], padding: [1; 4], groups: 2, bias: false };
        let l = node_links(&op, &[&[4, 8, 8]], &[8, 8, 8]);
        assert_eq!((l.links[0].units, owned(&l.links[0], 1)), (2, (vec![2, 3], vec![4, 5, 6, 7])));
        let l = node_links(&Op::Concat { inputs: 2 }, &[&[3, 2, 2], &[2, 2, 2]], &[5, 2, 2]);
        assert_eq!(l.links[1].a, input(1, 0));
        assert_eq!(owned(&l.links[1], 1), (vec![1], vec![4]));
        let l = node_links(&Op::Flatten, &[&[3, 2, 2]], &[12]);
        assert_eq!(owned(&l.links[0], 2), (vec![2], vec![8, 9, 10, 11]));
        let l = node_links(&Op::PatchMerge { grid: [2, 2] }, &[&[4, 3]], &[1, 12]);
        assert_eq!(owned(&l.links[0], 1), (vec![1], vec![1, 4, 7, 10]));
        let l = node_links(&Op::Mul, &[&[4, 8, 8], &[4]], &[4, 8, 8]);
        assert_eq!([l.links[0].a, l.links[1].a], [input(0, 0), input(1, 0)]);
    }

    #[test]
    fn channels_come_first_in_images_and_last_in_tokens() {
        let relu = Op::Activation { act: Activation::Relu };
        for (shape, axis) in [(&[4, 8, 8][..], 0), (&[65, 8], 1), (&[8], 0)] {
            let l = node_links(&relu, &[shape], shape);
            assert_eq!((l.links[0].a, l.links[0].b, l.links[0].units), (input(0, axis), output(axis), shape[axis]));
        }
    }
}
