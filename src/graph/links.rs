//! How every axis of an op's inputs, outputs and parameters links to the others: the facts that structured pruning
//! stands on. An axis that no link mentions and that is not free is protected.
//!
//! Use: put every element of every linked axis into a disjoint-set forest (a value axis is shared by the node that
//! writes it and all that read it), unite what each link's unit owns on both sides, and the resulting classes are
//! exactly the units that must be cut together. A class that touches a protected axis must stay.

use super::{Graph, GraphError, Op, ParamRole, shapes};

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
    match op {
        Op::Input { .. } => l.protect(output(0), "it is the image"),
        Op::Conv2d { in_ch, out_ch, groups, bias, .. } => {
            if *groups == 1 {
                l.each(input(0, 0), param(Weight, 1), *in_ch);
                l.each(param(Weight, 0), output(0), *out_ch);
                if *bias {
                    l.each(param(Weight, 0), param(Bias, 0), *out_ch);
                }
            } else {
                l.protect(input(0, 0), "a grouped convolution reads it");
                l.protect(output(0), "a grouped convolution writes it");
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
            l.each(input(0, 0), output(0), *channels);
            for role in [Weight, Bias, Mean, Var] {
                l.each(output(0), param(role, 0), *channels);
            }
        }
        Op::LayerNorm { .. } => {
            // Removing an element changes the mean and variance of all the others: zeroed would not equal pruned.
            l.protect(input(0, in_last), "a layer norm normalises over it");
            l.protect(output(out_last), "a layer norm normalises over it");
        }
        Op::Activation { .. } => {
            // [c, h, w] carries channels first, token shapes carry them last.
            let axis = if out.len() == 3 { 0 } else { out_last };
            l.each(input(0, axis), output(axis), out.get(axis).copied().unwrap_or(0));
        }
        Op::Add => {
            let axis = if out.len() == 3 { 0 } else { out_last };
            for side in 0..2 {
                l.each(input(side, axis), output(axis), out.get(axis).copied().unwrap_or(0));
            }
        }
        Op::MaxPool2d { .. } | Op::GlobalAvgPool => {
            l.each(input(0, 0), output(0), out.first().copied().unwrap_or(0));
        }
        Op::ChannelPad { .. } => l.free.extend([input(0, 0), output(0)]),
        Op::ToTokens => l.each(input(0, 0), output(1), out.get(1).copied().unwrap_or(0)),
        Op::PrependTokens { dim, .. } | Op::AddPositions { dim, .. } => {
            l.each(input(0, 1), output(1), *dim);
            l.each(output(1), param(Embedding, 2), *dim);
        }
        Op::Attention { heads, qk_dim, v_dim, fused, .. } => attention(&mut l, *heads, *qk_dim, *v_dim, *fused),
        Op::SelectToken { .. } | Op::MeanTokens { .. } => {
            l.each(input(0, 1), output(0), out.first().copied().unwrap_or(0));
        }
    }
    l
}

/// A unit is a head: its rows of q, k and v go with its columns of the output.
fn attention(l: &mut NodeLinks, heads: usize, qk_dim: usize, v_dim: usize, fused: bool) {
    let block = |offset: usize, width: usize| Span { offset, width, blocks: 1, stride: 0 };
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
        let fused = Op::Attention { heads: 2, qk_dim: 2, v_dim: 3, fused: true, scale: 1.0 };
        let l = node_links(&fused, &[&[5, 14]], &[5, 6]);
        let second: Vec<_> = l.links.iter().map(|l| owned(l, 1)).collect();
        let out = vec![3, 4, 5];
        assert_eq!(second, [(vec![2, 3], out.clone()), (vec![6, 7], out.clone()), (vec![11, 12, 13], out.clone())]);
        assert!(l.links.iter().all(|l| l.a == input(0, 1) && l.b == output(1) && l.units == 2));

        let split = Op::Attention { heads: 2, qk_dim: 2, v_dim: 3, fused: false, scale: 1.0 };
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
    fn channels_come_first_in_images_and_last_in_tokens() {
        let relu = Op::Activation { act: Activation::Relu };
        for (shape, axis) in [(&[4, 8, 8][..], 0), (&[65, 8], 1), (&[8], 0)] {
            let l = node_links(&relu, &[shape], shape);
            assert_eq!((l.links[0].a, l.links[0].b, l.links[0].units), (input(0, axis), output(axis), shape[axis]));
        }
    }
}
