//! One layer alone in a graph, at any widths, with what fuses into it: the step that a ladder times.

use crate::graph::op;
use crate::graph::{Activation, Graph, Node, NodeId, Op, ParamRef, param_shapes};
use crate::model::{Param, ParamStore};

/// The layer's node.
pub(super) const LAYER: &str = "layer";

/// What runs in the same step after the layer; batch norms fold away.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Epilogue {
    pub residual: bool,
    pub act: Option<Activation>,
}

/// The graph of `op` alone with deterministic parameters, `op`'s widths being `i` and `o` and its input `input`'s shape
/// otherwise. A residual comes from a gather of the layer's input, where the layer keeps the image's size.
pub(super) fn alone(op: &Op, input: &[usize], epilogue: Epilogue, i: usize, o: usize) -> (Graph, ParamStore) {
    let (mut op, mut input) = (op.clone(), input.to_vec());
    let mut g = Graph { nodes: Vec::new(), output: NodeId(0), blocks: Vec::new() };
    let mut add = |name: &str, op: Op, inputs: &[NodeId], params: Vec<ParamRef>| {
        g.nodes.push(Node { name: name.into(), op, inputs: inputs.to_vec(), params });
        NodeId(g.nodes.len() as u32 - 1)
    };
    // Channel k of the residual is channel k of the input, again from the first when those run out.
    let map: Vec<Option<u32>> = (0..o).map(|k| Some((k % i.max(1)) as u32)).collect();
    let gather = Op::ChannelPad(op::ChannelPad { stride: 1, in_ch: i, map });
    let (mut x, mut skip) = (None, None);
    match &mut op {
        Op::Conv2d(op::Conv2d { in_ch, out_ch, kernel, stride, padding, groups, .. }) => {
            if *groups > 1 {
                // Groups keep their width: there are fewer of them.
                *groups = (o * *groups / (*out_ch).max(1)).max(1);
            }
            (*in_ch, *out_ch) = (i, o);
            if let Some(c) = input.first_mut() {
                *c = i;
            }
            let image = add("x", Op::Input(op::Input::fixed(input)), &[], vec![]);
            let keeps = *stride == [1, 1] && (0..2).all(|d| kernel[d] == padding[d] + padding[d + 2] + 1);
            skip = (epilogue.residual && keeps).then(|| add("gather", gather, &[image], vec![]));
            x = Some(image);
        }
        Op::Linear(op::Linear { in_features, out_features, .. }) => {
            (*in_features, *out_features) = (i, o);
            // Tokens come from an image of one column; a pooled vector from an image of one pixel.
            let (rows, turn) = match input[..] {
                [tokens, _] => (tokens, Op::ToTokens),
                _ => (1, Op::GlobalAvgPool),
            };
            let image = add("x", Op::Input(op::Input::fixed([i, rows, 1])), &[], vec![]);
            if epilogue.residual && turn == Op::ToTokens {
                let image = add("gather", gather, &[image], vec![]);
                skip = Some(add("gathered", Op::ToTokens, &[image], vec![]));
            }
            x = Some(add("tokens", turn, &[image], vec![]));
        }
        _ => {}
    }
    // A step that all threads share makes what the layer reads, as layers before it do in a model: otherwise one
    // thread's cache would hold all of it.
    let mut made = |name: &str, x: NodeId| add(name, Op::Activation { act: Activation::Relu }, &[x], vec![]);
    let skip = skip.map(|s| made("skip", s));
    let x = x.map(|x| made("made", x));
    let mut params = ParamStore::default();
    let mut refs = Vec::new();
    for (role, shape) in param_shapes(&op) {
        let n: usize = shape.iter().product();
        let name = format!("{LAYER}.{role:?}");
        let values = (0..n).map(|k| ((k * 2_654_435_761) % 1009) as f32 / 504.5 - 1.0).collect();
        if let Some(p) = Param::owned(shape, values) {
            params.insert(name.clone(), p);
        }
        refs.push(ParamRef { role, name });
    }
    let inputs: Vec<NodeId> = x.into_iter().collect();
    let mut last = add(LAYER, op, &inputs, refs);
    if let Some(skip) = skip {
        last = add("add", Op::Add, &[last, skip], vec![]);
    }
    if let Some(act) = epilogue.act {
        last = add("act", Op::Activation { act }, &[last], vec![]);
    }
    g.output = last;
    (g, params)
}
