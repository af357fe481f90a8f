//! Shape inference: every node's output shape from its op and its inputs' shapes, without the batch axis.
//!
//! Invariant: a graph whose shapes were inferred without error can be executed; all arithmetic is checked, because
//! graphs also come from files.

use super::binding::Binding;
use super::op::{InputType, Length, MAX_ELEMENTS};
use super::{Graph, GraphError, Node, NodeId, Op, describe};

/// Output shape per node, without the batch axis; empty for unreachable nodes.
///
/// # Errors
/// As [`shapes_at`]; [`GraphError::Unbound`] for a graph that leaves its number of tokens free.
pub fn shapes(graph: &Graph) -> Result<Vec<Vec<usize>>, GraphError> {
    shapes_at(graph, Binding::default())
}

/// As [`shapes`], with the free dimensions as long as `binding` says.
///
/// # Errors
/// [`GraphError::Unbound`] for a free dimension that has no length; what does not fit, with the node and the op.
pub fn shapes_at(graph: &Graph, binding: Binding) -> Result<Vec<Vec<usize>>, GraphError> {
    let mut out = Vec::with_capacity(graph.nodes.len());
    infer(graph, binding, &mut out)?;
    Ok(out)
}

/// `f` of every reachable node with its inputs' shapes and its own; the default for the others.
///
/// # Errors
/// As [`shapes_at`].
pub(super) fn with_shapes<T: Default>(
    graph: &Graph,
    binding: Binding,
    f: impl Fn(NodeId, &Node, &[&[usize]], &[usize]) -> T,
) -> Result<Vec<T>, GraphError> {
    Ok(over_shapes(graph, &shapes_at(graph, binding)?, f))
}

/// As [`with_shapes`], where the shapes are known already.
pub(super) fn over_shapes<T: Default>(
    graph: &Graph,
    shapes: &[Vec<usize>],
    f: impl Fn(NodeId, &Node, &[&[usize]], &[usize]) -> T,
) -> Vec<T> {
    let reachable = graph.reachable();
    let one = |(id, node): (NodeId, &Node)| {
        let ins: Vec<&[usize]> = node.inputs.iter().map(|i| shapes[i.index()].as_slice()).collect();
        if reachable[id.index()] { f(id, node, &ins, &shapes[id.index()]) } else { T::default() }
    };
    graph.iter().map(one).collect()
}

/// The binding with the fewest tokens that all ops take; the default where nothing is free. What does not depend on the
/// number of tokens (ranks, widths, links) is known from it.
///
/// # Errors
/// Whatever fits no number of tokens.
pub fn least(graph: &Graph) -> Result<Binding, GraphError> {
    let mut tokens = 1usize;
    if !graph.is_free() {
        return Ok(Binding::default());
    }
    // Between the input and an op that asks for a number of tokens a fixed number is added, so each op needs to be heard
    // once at most.
    for _ in 0..graph.nodes.len() {
        let mut made = Vec::new();
        let Err(error) = infer(graph, Binding::tokens(tokens), &mut made) else { break };
        let node = graph.nodes.get(made.len());
        let found = node.and_then(|n| n.inputs.first()).and_then(|i| made.get(i.index())?.first().copied());
        let (Some(node), Some(found)) = (node, found) else { return Err(error) };
        let wanted = match node.op.facts().length() {
            Length::AtLeast(n) if found < n => n,
            Length::Exactly(n) if found != n => n,
            Length::Any | Length::AtLeast(_) | Length::Exactly(_) => return Err(error),
        };
        tokens = match tokens.checked_add(wanted).and_then(|n| n.checked_sub(found)) {
            Some(n) if n > 0 => n,
            _ => return Err(error),
        };
    }
    infer(graph, Binding::tokens(tokens), &mut Vec::new())?;
    Ok(Binding::tokens(tokens))
}

/// Appends every node's shape to `out`, up to the first that does not fit.
fn infer(graph: &Graph, binding: Binding, out: &mut Vec<Vec<usize>>) -> Result<(), GraphError> {
    let reachable = graph.reachable();
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
        let shape = match &node.op {
            Op::Input(input) if input.is_free() && binding.tokens.is_none() => {
                return Err(GraphError::Unbound { node: node.name.clone() });
            }
            Op::Input(input) => sound(node, &ins, input.shape_at(binding))?,
            _ => node_shape(node, &ins)?,
        };
        ids_are_embedded(graph, node)?;
        out.push(shape);
    }
    Ok(())
}

/// Ids are numbers only by name: whatever reads them must look them up, and what looks up must read ids.
fn ids_are_embedded(graph: &Graph, node: &Node) -> Result<(), GraphError> {
    let vocab = |n: &Node| match &n.op {
        Op::Input(input) => match input.dtype {
            InputType::Ids { vocab } => Some(vocab),
            InputType::F32 => None,
        },
        _ => None,
    };
    let ids = node.inputs.iter().find_map(|i| vocab(graph.node(*i)));
    let why = match (&node.op, ids) {
        (Op::Embedding(e), Some(n)) if n <= e.vocab => return Ok(()),
        (Op::Embedding(e), Some(n)) => format!("has {} rows for a vocabulary of {n}", e.vocab),
        (Op::Embedding(_), None) => "does not read token ids".to_owned(),
        (_, Some(_)) => "reads token ids".to_owned(),
        (_, None) => return Ok(()),
    };
    Err(GraphError::Ids { node: node.name.clone(), op: describe(&node.op), why })
}

/// Output shape of one node given its inputs' shapes; of an input that leaves nothing free, its own.
pub fn node_shape(node: &Node, ins: &[&[usize]]) -> Result<Vec<usize>, GraphError> {
    let expected = node.op.facts().arity();
    if ins.len() != expected {
        let (node, op) = (node.name.clone(), describe(&node.op));
        return Err(GraphError::Arity { node, op, found: ins.len(), expected });
    }
    sound(node, ins, node.op.facts().shape(ins))
}

/// `shape` when memory could hold it.
fn sound(node: &Node, ins: &[&[usize]], shape: Result<Vec<usize>, String>) -> Result<Vec<usize>, GraphError> {
    let shape = shape.and_then(|shape| {
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
    use crate::graph::{Activation, Builder, Conv, NodeId, Op, PositionBias, op};

    fn shape(op: Op, ins: &[&[usize]]) -> Result<Vec<usize>, String> {
        let node = Node { name: "n".into(), op, inputs: Vec::new(), params: Vec::new() };
        node_shape(&node, ins).map_err(|e| e.to_string())
    }

    fn padded_conv(stride: usize, padding: [usize; 4], groups: usize) -> Op {
        Conv { padding, groups, bias: true, ..Conv::same(4, 6, 3, stride) }.into()
    }

    fn conv(stride: usize, padding: usize, groups: usize) -> Op {
        padded_conv(stride, [padding; 4], groups)
    }

    fn swin(grid: [usize; 2], size: [usize; 2]) -> Op {
        let windows = Some(crate::graph::Windows { grid, size, shift: [1, 1] });
        Op::Attention(op::Attention { windows, bias: PositionBias::Table, ..op::Attention::plain(2, 3, 5, true, 1.0) })
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
            // Padded as TensorFlow does.
            (padded_conv(2, [0, 0, 1, 1], 1), &[&[4, 8, 8]], &[6, 4, 4]),
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

    /// Ids or floats, then `body`, the mean over tokens, and a linear layer.
    fn sequence(input: op::Input, body: impl Fn(&mut Builder, NodeId) -> NodeId) -> Result<Graph, GraphError> {
        let mut b = Builder::default();
        let mut x = b.input_of(input.clone());
        if let InputType::Ids { vocab } = input.dtype {
            x = b.embedding("embed", x, vocab, 8);
        }
        let x = body(&mut b, x);
        let x = b.node("mean", Op::MeanTokens(op::MeanTokens { skip: 0 }), &[x]);
        let x = b.linear("head", x, 8, 3, true);
        b.finish(x)
    }

    #[test]
    fn shapes_and_costs_follow_the_number_of_tokens() {
        let attention = |b: &mut Builder, x| {
            let x = b.linear("qkv", x, 8, 24, false);
            b.node("core", Op::attention(2, 4, 4, true, 0.5), &[x])
        };
        let g = sequence(op::Input::ids(50), attention).unwrap();
        assert_eq!(least(&g), Ok(Binding::tokens(1)));
        for t in [3, 7, 12] {
            let shapes = shapes_at(&g, Binding::tokens(t)).unwrap();
            let want: [&[usize]; 6] = [&[t], &[t, 8], &[t, 24], &[t, 8], &[8], &[3]];
            assert_eq!(shapes, want);
            let macs = crate::graph::macs_at(&g, Binding::tokens(t)).unwrap();
            let t = t as u64;
            assert_eq!((macs[1].conv_linear, macs[2].conv_linear), (0, t * 8 * 24));
            assert_eq!((macs[3].attention, macs[5].conv_linear), (2 * t * t * 8, 24));
        }
        assert_eq!(crate::graph::node_params(&g.nodes[1].op), 50 * 8);
        assert_eq!(crate::graph::links(&g).map(|l| l.len()), Ok(6));
        let unbound = GraphError::Unbound { node: "input".into() };
        assert_eq!(shapes(&g), Err(unbound.clone()));
        assert_eq!(crate::graph::macs(&g), Err(unbound.clone()));
        assert_eq!(g.input_shape(), Err(unbound.clone()));
        assert_eq!(unbound.to_string(), "the input `input` takes any number of tokens; hint: say for how many");
        assert!(shapes_at(&g, Binding::tokens(0)).unwrap_err().to_string().contains("would be empty"));
    }

    #[test]
    fn what_fixes_the_number_of_tokens_refuses_others() {
        let positions = |b: &mut Builder, x| {
            let x = b.node("first", Op::PrependTokens(op::PrependTokens { count: 2, dim: 8, at: 3 }), &[x]);
            b.node("positions", Op::AddPositions(op::AddPositions::of(9, 8)), &[x])
        };
        let windows = |b: &mut Builder, x| {
            let windows = Some(crate::graph::Windows { grid: [2, 4], size: [2, 2], shift: [0, 1] });
            let op = op::Attention { windows, ..op::Attention::plain(2, 4, 4, false, 1.0) };
            b.node("windows", Op::Attention(op), &[x, x, x])
        };
        let image = |b: &mut Builder, x| {
            let x = b.node("image", Op::ToImage(op::ToImage { h: 2, w: 3 }), &[x]);
            b.node("tokens", Op::ToTokens, &[x])
        };
        let merge = |b: &mut Builder, x| {
            let x = b.node("merge", Op::PatchMerge(op::PatchMerge { grid: [2, 2] }), &[x]);
            b.linear("reduce", x, 32, 8, false)
        };
        type Body = fn(&mut Builder, NodeId) -> NodeId;
        let cases: [(Body, usize, &str); 4] = [
            (positions, 7, "`positions` (positions) cannot take input shapes [[8, 8]]: token count is 8, expected 9"),
            (windows, 8, "a grid of 2x4 does not have"),
            (image, 6, "`image` (to image) cannot take input shapes [[5, 8]]: token count is 5, expected 6"),
            (merge, 4, "`merge` (patch merge)"),
        ];
        for (body, tokens, words) in cases {
            let g = sequence(op::Input::tokens(8), body).unwrap();
            assert_eq!(least(&g), Ok(Binding::tokens(tokens)), "{words}");
            for other in [tokens - 1, tokens + 1] {
                let error = shapes_at(&g, Binding::tokens(other)).unwrap_err().to_string();
                assert!(other > tokens || error.contains(words), "{error}");
            }
        }
        // Two that disagree.
        let both = |b: &mut Builder, x| {
            let x = b.node("three", Op::AddPositions(op::AddPositions::of(3, 8)), &[x]);
            b.node("four", Op::AddPositions(op::AddPositions::of(4, 8)), &[x])
        };
        let error = sequence(op::Input::tokens(8), both).unwrap_err().to_string();
        assert!(error.contains("token count is"), "{error}");
    }

    #[test]
    fn ids_go_into_embeddings_only() {
        let none = |_: &mut Builder, x| x;
        let embedded = |input: op::Input| {
            let mut b = Builder::default();
            let x = b.input_of(input);
            let x = b.embedding("embed", x, 8, 4);
            b.finish(x)
        };
        let plain = {
            let mut b = Builder::default();
            let x = b.input_of(op::Input { dims: vec![op::Dim::Fixed(8)], ..op::Input::ids(9) });
            let x = b.linear("linear", x, 8, 4, true);
            b.finish(x)
        };
        for (graph, words) in [
            (embedded(op::Input::ids(9)), "`embed` (embedding 8) has 8 rows for a vocabulary of 9"),
            (plain, "`linear` (linear) reads token ids"),
            (embedded(op::Input::fixed([5])), "`embed` (embedding 8) does not read token ids"),
        ] {
            let error = graph.unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("hint: "), "{error}");
        }
        sequence(op::Input::ids(9), none).unwrap();
        sequence(op::Input::tokens(8), none).unwrap();
    }
}
