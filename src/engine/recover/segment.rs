//! Cutting a graph where a single value is alive, so that a repair can walk the network with running activations
//! instead of starting every forward pass from the image.
//!
//! Invariant: running the segments one after the other computes exactly what the whole graph computes.

use crate::graph::{Graph, Node, NodeId, Op, op};

/// Nodes after which their own value is the only one still needed, in order: the input first, the output last.
pub(super) fn boundaries(graph: &Graph) -> Vec<NodeId> {
    let reachable = graph.reachable();
    let consumers = graph.consumers();
    let last_use = |i: usize| {
        if i == graph.output.index() { usize::MAX } else { consumers[i].iter().map(|c| c.index()).max().unwrap_or(0) }
    };
    let mut alive: Vec<(usize, usize)> = Vec::new();
    let mut out = Vec::new();
    for i in (0..graph.nodes.len()).filter(|&i| reachable[i]) {
        alive.retain(|&(_, until)| until > i);
        alive.push((i, last_use(i)));
        // What only feeds a norm or activation is fused with it: no place to stop.
        let fuses = |id: NodeId| matches!(graph.node(id).op, Op::BatchNorm2d(_) | Op::Scale(_) | Op::Activation { .. });
        let fused = matches!(consumers[i][..], [next] if fuses(next));
        if alive.len() == 1 && !fused {
            out.push(NodeId(i as u32));
        }
    }
    out
}

/// The part of `graph` after `from` (whose value of `shape` becomes the input) up to and with `to`.
/// Node names are kept; `from`'s name is that of the new input.
pub(super) fn part(graph: &Graph, from: NodeId, shape: &[usize], to: NodeId) -> Graph {
    let mut new_id = vec![None; graph.nodes.len()];
    let input = match &graph.node(from).op {
        // It may take other things than floats.
        Op::Input(input) => input.clone(),
        _ => match *shape {
            // Sequences that are of any length at first are so all through.
            [tokens, width] if graph.is_open() => {
                op::Input { dims: vec![op::Dim::Usual(tokens), op::Dim::Fixed(width)], ..op::Input::tokens(width) }
            }
            _ => op::Input::fixed(shape),
        },
    };
    let input =
        Node { name: graph.node(from).name.clone(), op: Op::Input(input), inputs: Vec::new(), params: Vec::new() };
    new_id[from.index()] = Some(NodeId(0));
    let mut nodes = vec![input];
    let needed = needed(graph, from, to);
    for (id, node) in graph.iter().filter(|(id, _)| needed[id.index()] && *id != from) {
        let mut node = node.clone();
        node.inputs = node.inputs.iter().filter_map(|i| new_id[i.index()]).collect();
        new_id[id.index()] = Some(NodeId(nodes.len() as u32));
        nodes.push(node);
    }
    Graph { output: new_id[to.index()].unwrap_or(NodeId(0)), nodes, blocks: Vec::new() }
}

/// Ancestors of `to` that come after `from`, and `to` itself.
fn needed(graph: &Graph, from: NodeId, to: NodeId) -> Vec<bool> {
    let mut needed = vec![false; graph.nodes.len()];
    needed[to.index()] = true;
    for i in (from.index() + 1..=to.index()).rev().filter(|i| *i < graph.nodes.len()) {
        if needed[i] {
            for input in &graph.nodes[i].inputs {
                needed[input.index()] = true;
            }
        }
    }
    needed
}

/// What a layer is re-fitted to reproduce.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FitTarget {
    /// The batch norm or layer scale right after the layer, if any.
    pub norm: Option<NodeId>,
    /// The node whose original value is the target: the addition that ends the branch, else the norm or layer itself.
    pub node: NodeId,
    /// The other input of that addition.
    pub skip: Option<NodeId>,
}

/// Follows `layer` to what it should reproduce.
pub(super) fn fit_target(graph: &Graph, consumers: &[Vec<NodeId>], layer: NodeId) -> FitTarget {
    let only = |id: NodeId| match consumers[id.index()].as_slice() {
        [one] => Some(*one),
        _ => None,
    };
    let mut at = layer;
    let mut norm = None;
    if let Some(next) = only(at).filter(|n| matches!(graph.node(*n).op, Op::BatchNorm2d(_) | Op::Scale(_))) {
        norm = Some(next);
        at = next;
    }
    if let Some(next) = only(at).filter(|n| matches!(graph.node(*n).op, Op::Add)) {
        let skip = graph.node(next).inputs.iter().copied().find(|i| *i != at);
        if skip.is_some() {
            return FitTarget { norm, node: next, skip };
        }
    }
    FitTarget { norm, node: at, skip: None }
}

/// The one token of `layer`'s output that the network's answer depends on, if only one does: everything downstream
/// works token by token until a token is selected.
pub(super) fn only_token(graph: &Graph, consumers: &[Vec<NodeId>], layer: NodeId) -> Option<usize> {
    let mut todo = vec![layer];
    let mut found = None;
    while let Some(at) = todo.pop() {
        if at == graph.output {
            return None;
        }
        for &next in &consumers[at.index()] {
            match &graph.node(next).op {
                Op::SelectToken(op::SelectToken { index }) => {
                    if found.is_some_and(|f| f != *index) {
                        return None;
                    }
                    found = Some(*index);
                }
                op if op.traits().per_token => todo.push(next),
                // Anything else may mix tokens.
                _ => return None,
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::candle::{Capture, Mode, forward, tensors};
    use crate::graph::shapes;
    use crate::model::families::{CifarResnetSpec, FamilySpec, VitDims, VitSpec};
    use crate::model::random;
    use candle_core::{Device, Tensor};

    fn vit() -> FamilySpec {
        let dims = VitDims { image: 16, patch: 4, dim: 16, depth: 2, heads: 2, mlp: 24, classes: 5 };
        FamilySpec::TorchVit(VitSpec::torch(dims))
    }

    fn resnet() -> FamilySpec {
        FamilySpec::CifarResnet(CifarResnetSpec { blocks: 2, widths: [4, 8, 16], classes: 5, image: 16 })
    }

    #[test]
    fn the_parts_one_after_the_other_are_the_whole() {
        for spec in [vit(), resnet()] {
            let m = random(&spec, 3);
            let params = tensors(&m.params, &Device::Cpu).unwrap();
            let x = Tensor::randn(0f32, 1.0, (2, 3, 16, 16), &Device::Cpu).unwrap();
            let run = |g: &Graph, x: &Tensor| forward(g, &params, x, Mode::Eval, &mut Capture::none()).unwrap();
            let whole = run(&m.graph, &x);
            let shapes = shapes(&m.graph).unwrap();
            let stops = boundaries(&m.graph);
            assert!(stops.len() > 6 && stops[0] == NodeId(0) && stops.last() == Some(&m.graph.output), "{stops:?}");
            let mut at = x;
            for pair in stops.windows(2) {
                let part = part(&m.graph, pair[0], &shapes[pair[0].index()], pair[1]);
                part.check().unwrap();
                at = run(&part, &at);
            }
            let (a, b): (Vec<f32>, Vec<f32>) =
                (whole.flatten_all().unwrap().to_vec1().unwrap(), at.flatten_all().unwrap().to_vec1().unwrap());
            assert_eq!(a, b);
        }
    }

    #[test]
    fn a_branch_aims_at_its_addition_and_only_the_last_layer_has_a_lone_token() {
        let g = resnet().build().unwrap();
        let consumers = g.consumers();
        let name = |id: NodeId| g.node(id).name.as_str();
        let conv2 = g.by_name("layer1.0.conv2").unwrap();
        let a = fit_target(&g, &consumers, conv2);
        assert_eq!(a.norm.map(name), Some("layer1.0.bn2"));
        assert!(matches!(g.node(a.node).op, Op::Add) && a.skip.is_some());
        let conv1 = fit_target(&g, &consumers, g.by_name("layer1.0.conv1").unwrap());
        assert_eq!((name(conv1.node), conv1.skip), ("layer1.0.bn1", None));

        let g = vit().build().unwrap();
        let consumers = g.consumers();
        let linears: Vec<NodeId> = g.iter().filter(|(_, n)| n.name.contains("linear2")).map(|(id, _)| id).collect();
        assert_eq!(linears.len(), 2);
        assert_eq!(only_token(&g, &consumers, linears[0]), None);
        assert_eq!(only_token(&g, &consumers, linears[1]), Some(0));
    }
}
