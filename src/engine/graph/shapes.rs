//! Shape inference: every node's output shape from its op and its inputs' shapes, without the batch axis.
//!
//! Invariant: a graph whose shapes were inferred without error can be executed; all arithmetic is checked, because
//! graphs also come from files.

use super::op::MAX_ELEMENTS;
use super::{Graph, GraphError, Node, describe};

/// Output shape per node, without the batch axis; empty for unreachable nodes.
pub fn shapes(graph: &Graph) -> Result<Vec<Vec<usize>>, GraphError> {
    let reachable = graph.reachable();
    let mut out: Vec<Vec<usize>> = Vec::with_capacity(graph.nodes.len());
    for (id, node) in graph.iter() {
        if !reachable[id.index()] {
            out.push(Vec::new());
            continue;
        }
        let mut ins = Vec::with_capacity(node.inputs.len());
        for input in &node.inputs {
            match out.get(input.index()) {
                Some(s) => ins.push(s.as_slice()),
                None => return Err(GraphError::Order { node: node.name.clone(), input: input.0 }),
            }
        }
        let shape = node_shape(node, &ins)?;
        out.push(shape);
    }
    Ok(out)
}

/// Output shape of one node given its inputs' shapes.
pub fn node_shape(node: &Node, ins: &[&[usize]]) -> Result<Vec<usize>, GraphError> {
    let expected = node.op.facts().arity();
    if ins.len() != expected {
        let (node, op) = (node.name.clone(), describe(&node.op));
        return Err(GraphError::Arity { node, op, found: ins.len(), expected });
    }
    let shape = node.op.facts().shape(ins).and_then(|shape| {
        let elements = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
        match elements {
            Some(n) if n > 0 && n <= MAX_ELEMENTS => Ok(shape),
            Some(0) => Err("its output would be empty".to_owned()),
            _ => Err("its output would be too large".to_owned()),
        }
    });
    shape.map_err(|why| GraphError::Shape {
        node: node.name.clone(),
        op: describe(&node.op),
        shapes: ins.iter().map(|s| s.to_vec()).collect(),
        why,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Activation, Op, PositionBias, op};

    fn shape(op: Op, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let node = Node { name: "n".into(), op, inputs: Vec::new(), params: Vec::new() };
        node_shape(&node, ins).map_err(|e| e.to_string())
    }

    fn conv(stride: usize, padding: usize, groups: usize) -> Op {
        Op::Conv2d(op::Conv2d {
            in_ch: 4,
            out_ch: 6,
            kernel: [3; 2],
            stride: [stride; 2],
            padding: [padding; 4],
            groups,
            bias: true,
        })
    }

    /// A strided convolution padded as TensorFlow does.
    fn same_conv(padding: [usize; 4]) -> Op {
        match conv(2, 0, 1) {
            Op::Conv2d(op::Conv2d { in_ch, out_ch, kernel, stride, groups, bias, .. }) => {
                Op::Conv2d(op::Conv2d { in_ch, out_ch, kernel, stride, padding, groups, bias })
            }
            other => other,
        }
    }

    fn swin(grid: [usize; 2], size: [usize; 2]) -> Op {
        let windows = Some(crate::graph::Windows { grid, size, shift: [1, 1] });
        let (cosine, bias) = (false, PositionBias::Table);
        Op::Attention(op::Attention { heads: 2, qk_dim: 3, v_dim: 5, fused: true, scale: 1.0, cosine, windows, bias })
    }

    #[test]
    fn shapes_follow_pytorch() {
        let pool = Op::MaxPool2d(op::MaxPool2d { kernel: [3; 2], stride: [2; 2], padding: [1; 4] });
        let pad = Op::ChannelPad(op::ChannelPad { stride: 2, in_ch: 4, map: vec![None, Some(0), Some(3)] });
        let fused = Op::attention(2, 3, 5, true, 1.0);
        let split = Op::attention(2, 3, 5, false, 1.0);
        for (op, ins, want) in [
            (conv(1, 1, 1), &[&[4, 9, 8][..]][..], &[6, 9, 8][..]),
            (conv(2, 1, 1), &[&[4, 9, 8]], &[6, 5, 4]),
            (conv(1, 0, 2), &[&[4, 9, 8]], &[6, 7, 6]),
            (pool, &[&[4, 112, 112]], &[4, 56, 56]),
            (pad, &[&[4, 9, 8]], &[3, 5, 4]),
            (Op::Linear(op::Linear { in_features: 8, out_features: 3, bias: false }), &[&[5, 8]], &[5, 3]),
            (Op::ToTokens, &[&[4, 3, 2]], &[6, 4]),
            (fused, &[&[7, 22]], &[7, 10]),
            (split, &[&[7, 6], &[7, 6], &[7, 10]], &[7, 10]),
            (Op::MeanTokens(op::MeanTokens { skip: 1 }), &[&[7, 10]], &[10]),
            (Op::Activation { act: Activation::Relu }, &[&[7]], &[7]),
            (same_conv([0, 0, 1, 1]), &[&[4, 8, 8]], &[6, 4, 4]),
            (Op::Mul, &[&[4, 8, 8], &[4]], &[4, 8, 8]),
            (Op::Mul, &[&[5, 4], &[5, 4]], &[5, 4]),
            (Op::Concat(op::Concat { inputs: 3 }), &[&[4, 2, 2], &[1, 2, 2], &[2, 2, 2]], &[7, 2, 2]),
            (Op::Concat(op::Concat { inputs: 2 }), &[&[5, 4], &[5, 3]], &[5, 7]),
            (Op::Flatten, &[&[4, 3, 2]], &[24]),
            (Op::ToImage(op::ToImage { h: 3, w: 2 }), &[&[6, 4]], &[4, 3, 2]),
            (Op::PatchMerge(op::PatchMerge { grid: [4, 2] }), &[&[8, 5]], &[2, 20]),
            (Op::AdaptiveAvgPool2d(op::AdaptiveAvgPool2d { out: [7, 7] }), &[&[4, 9, 3]], &[4, 7, 7]),
            (Op::ChannelPad(op::ChannelPad { stride: 1, in_ch: 4, map: vec![Some(2), Some(3)] }), &[&[5, 4]], &[5, 2]),
            (Op::PrependTokens(op::PrependTokens { count: 2, dim: 4, at: 1 }), &[&[5, 4]], &[7, 4]),
            (swin([4, 4], [2, 2]), &[&[16, 22]], &[16, 10]),
        ] {
            assert_eq!(shape(op.clone(), ins).as_deref(), Ok(want), "{op:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused_with_the_node() {
        for (op, ins, words) in [
            (conv(1, 1, 1), &[&[5, 9, 8][..]][..], "channel count is 5, expected 4"),
            (conv(1, 1, 3), &[&[4, 9, 8]], "3 groups do not divide"),
            (conv(1, 0, 1), &[&[4, 2, 8]], "larger than the image"),
            (conv(0, 0, 1), &[&[4, 9, 8]], "at least 1"),
            (conv(1, usize::MAX / 2, 1), &[&[4, 9, 8]], "padding is too large"),
            (conv(1, 1 << 30, 1), &[&[4, 9, 8]], "too large"),
            (Op::Add, &[&[4, 2], &[4, 3]], "one shape"),
            (Op::Add, &[&[4, 2]], "1 inputs, expected 2"),
            (Op::SelectToken(op::SelectToken { index: 4 }), &[&[4, 2]], "no token 4"),
            (Op::MeanTokens(op::MeanTokens { skip: 4 }), &[&[4, 2]], "nothing is left"),
            (
                Op::ChannelPad(op::ChannelPad { stride: 1, in_ch: 2, map: vec![Some(2)] }),
                &[&[2, 4, 4]],
                "channel 2 of 2",
            ),
            (Op::ChannelPad(op::ChannelPad { stride: 1, in_ch: 2, map: vec![] }), &[&[2, 4, 4]], "would be empty"),
            (Op::GlobalAvgPool, &[&[2, 4]], "[channels, height, width]"),
            (Op::Mul, &[&[2, 4], &[2]], "factor per channel"),
            (Op::Concat(op::Concat { inputs: 2 }), &[&[2, 4], &[3, 4]], "everything but the channels"),
            (Op::Concat(op::Concat { inputs: 0 }), &[], "at least one input"),
            (Op::PatchMerge(op::PatchMerge { grid: [3, 2] }), &[&[6, 4]], "even sides"),
            (swin([4, 4], [3, 2]), &[&[16, 22]], "do not divide"),
        ] {
            let error = shape(op, ins).expect_err("must be refused");
            assert!(error.contains(words) && error.contains("`n`") && error.contains("hint: "), "{error}");
        }
    }
}
