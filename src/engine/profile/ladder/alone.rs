//! One layer alone in a graph, at any widths, with what fuses into it: the step that a ladder times.

use crate::graph::{Activation, Builder, Graph, GraphError, NodeId, Op, ParamRole, op, param_shapes};
use crate::model::{Param, ParamStore};
use crate::quant::Precision;

/// The layer's node.
pub(super) const LAYER: &str = "layer";

/// What runs in the same step after the layer; batch norms fold away.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Epilogue {
    pub residual: bool,
    pub act: Option<Activation>,
}

/// The graph of `op` alone with deterministic parameters, `op`'s widths being `i` and `o` and its input `input`'s shape
/// otherwise; a weight that is to be `stored` in blocks is, so that none is rounded only to be timed. A residual comes from a gather of the layer's input, where the layer keeps the image's size.
pub(super) fn alone(
    op: &Op,
    input: &[usize],
    epilogue: Epilogue,
    (i, o): (usize, usize),
    stored: Precision,
) -> Result<(Graph, ParamStore), GraphError> {
    let (mut op, mut input) = (op.clone(), input.to_vec());
    let mut b = Builder::default();
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
            let image = b.input_of(op::Input::fixed(input));
            let keeps = *stride == [1, 1] && (0..2).all(|d| kernel[d] == padding[d] + padding[d + 2] + 1);
            skip = (epilogue.residual && keeps).then(|| b.node("gather", gather, &[image]));
            x = Some(image);
        }
        Op::Linear(op::Linear { in_features, out_features, .. }) => {
            (*in_features, *out_features) = (i, o);
            // Tokens come from an image of one column; a pooled vector from an image of one pixel.
            let (rows, turn) = match input[..] {
                [tokens, _] => (tokens, Op::ToTokens),
                _ => (1, Op::GlobalAvgPool),
            };
            let image = b.input([i, rows, 1]);
            if epilogue.residual && turn == Op::ToTokens {
                let image = b.node("gather", gather, &[image]);
                skip = Some(b.node("gathered", Op::ToTokens, &[image]));
            }
            x = Some(b.node("tokens", turn, &[image]));
        }
        _ => {}
    }
    // A step that all threads share makes what the layer reads, as layers before it do in a model: otherwise one
    // thread's cache would hold all of it.
    let skip = skip.map(|s| b.relu("skip", s));
    let inputs: Vec<NodeId> = x.map(|x| b.relu("made", x)).into_iter().collect();
    let shapes = param_shapes(&op);
    let layer = b.node(LAYER, op, &inputs);
    let mut last = layer;
    if let Some(skip) = skip {
        last = b.add("add", last, skip);
    }
    if let Some(act) = epilogue.act {
        last = b.act("act", last, act);
    }
    let graph = b.finish(last)?;
    let mut params = ParamStore::default();
    for (at, (_, shape)) in graph.node(layer).params.iter().zip(shapes) {
        let value = |k: usize| ((k * 2_654_435_761) % 1009) as f32 / 504.5 - 1.0;
        let made = match (at.role, stored, &shape[..]) {
            (ParamRole::Weight, Precision::Block(block), &[rows, row]) => {
                let one: Vec<f32> = (0..row).map(value).collect();
                Param::of_blocks(shape, block.encode(&one).repeat(rows), block)
            }
            _ => {
                let n: usize = shape.iter().product();
                Param::owned(shape, (0..n).map(value).collect())
            }
        };
        if let Some(p) = made {
            params.insert(at.name.clone(), p);
        }
    }
    Ok((graph, params))
}
