//! How every axis of an op's inputs, outputs and parameters links to the others: the facts that structured pruning
//! stands on. An axis that no link mentions and that is not free is protected.
//!
//! Use: put every element of every linked axis into a disjoint-set forest (a value axis is shared by the node that
//! writes it and all that read it), unite what each link's unit owns on both sides, and the resulting classes are
//! exactly the units that must be cut together. A class that touches a protected axis must stay.

use super::axes::NodeLinks;
use super::op::output;
use super::shapes::with_shapes;
use super::{Graph, GraphError, Op, least};

/// Axis facts of every node; empty for unreachable ones. The graph's own output is protected. They hold for any number
/// of tokens, where that is free.
pub fn links(graph: &Graph) -> Result<Vec<NodeLinks>, GraphError> {
    with_shapes(graph, least(graph)?, |id, node, ins, out| {
        let mut facts = node_links(&node.op, ins, out);
        if id == graph.output {
            (0..out.len()).for_each(|axis| facts.protect(output(axis), "it is the network's output"));
        }
        facts
    })
}

/// Axis facts of one op. Only the channel or width axis is ever linked: image rows and tokens stay whole.
pub fn node_links(op: &Op, ins: &[&[usize]], out: &[usize]) -> NodeLinks {
    op.facts().links(ins, out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::axes::{AxisRef, Link, Site, Span};
    use crate::graph::{Activation, Conv, op};

    fn input(index: usize, axis: usize) -> AxisRef {
        AxisRef { site: Site::Input(index), axis }
    }

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
        let l = node_links(&Op::LayerNorm(op::LayerNorm { dim: 8, eps: 1e-5 }), &[&[5, 8]], &[5, 8]);
        assert!(l.links.is_empty() && l.free.is_empty());
        assert_eq!(l.protected.iter().map(|p| p.axis).collect::<Vec<_>>(), [input(0, 1), output(1)]);
        let pad = Op::ChannelPad(op::ChannelPad { stride: 2, in_ch: 4, map: vec![None, Some(0)] });
        let l = node_links(&pad, &[&[4, 8, 8]], &[2, 4, 4]);
        assert!(l.links.is_empty() && l.protected.is_empty());
        assert_eq!(l.free, [input(0, 0), output(0)]);
    }

    #[test]
    fn groups_concatenations_and_patches_own_their_runs() {
        let op = Op::from(Conv { groups: 2, ..Conv::same(4, 8, 3, 1) });
        let l = node_links(&op, &[&[4, 8, 8]], &[8, 8, 8]);
        assert_eq!((l.links[0].units, owned(&l.links[0], 1)), (2, (vec![2, 3], vec![4, 5, 6, 7])));
        let l = node_links(&Op::Concat(op::Concat { inputs: 2 }), &[&[3, 2, 2], &[2, 2, 2]], &[5, 2, 2]);
        assert_eq!(l.links[1].a, input(1, 0));
        assert_eq!(owned(&l.links[1], 1), (vec![1], vec![4]));
        let l = node_links(&Op::Flatten, &[&[3, 2, 2]], &[12]);
        assert_eq!(owned(&l.links[0], 2), (vec![2], vec![8, 9, 10, 11]));
        let l = node_links(&Op::PatchMerge(op::PatchMerge { grid: [2, 2] }), &[&[4, 3]], &[1, 12]);
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
