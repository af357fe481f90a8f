//! Precisions, precision plans and the quantization arithmetic shared by kernels, forecasts and checks.
//!
//! The graph stays float: a [`Precisions`] says per node what runs, and `exec` records which kernel ran.

mod gptq;
mod gptq_blocks;
mod histogram;
mod shared;

pub use crate::graph::{Calibration, Precision, Precisions, Range, Runs, WeightFormat};
pub(crate) use gptq::{Factor, ROWS};
pub use gptq::{Grid, Learnt, gptq};
pub use gptq_blocks::{LearntBlocks, gptq_blocks};
pub use histogram::Histogram;
pub use shared::{LearntShared, share};

use crate::graph::{Graph, Node, NodeId, Op, ParamRole, param_shapes};

/// Reachable nodes whose precision can be chosen: convolutions and linear layers, in graph order. Routers are left out: a few rows, whose scores say which
/// experts a token goes to, and which llama.cpp and vLLM leave in floats as well.
pub fn choosable(graph: &Graph) -> Vec<&Node> {
    let routers: Vec<NodeId> =
        graph.live().filter_map(|(_, n)| matches!(n.op, Op::Route(_)).then(|| n.inputs.first().copied())?).collect();
    graph.live().filter(|(id, n)| n.op.is_conv_or_linear() && !routers.contains(id)).map(|(_, n)| n).collect()
}

/// Reachable layers that `plan` runs in static int8, in graph order.
pub fn static_layers(graph: &Graph, plan: &Precisions) -> Vec<String> {
    let layers = choosable(graph).into_iter().filter(|n| plan.get(&n.name) == Precision::Int8Static);
    layers.map(|n| n.name.clone()).collect()
}

/// A plan that runs every layer which can at `precision`; where rows are no whole blocks of GGML's, at [`Precision::instead`].
pub fn everywhere(graph: &Graph, precision: Precision) -> Precisions {
    choosable(graph).into_iter().map(|n| (n.name.as_str(), precision.instead(&n.op))).collect()
}

/// Bytes that an export stores for one node: four a number, but a layer's weights in their precision's format.
pub fn stored_bytes(op: &Op, precision: Precision) -> u64 {
    let one = |(role, shape): &(ParamRole, Vec<usize>)| {
        let n = shape.iter().product::<usize>();
        let rows = shape.first().copied().unwrap_or(0);
        match role {
            ParamRole::Weight if op.is_conv_or_linear() => {
                precision.weights().bytes(rows, n.checked_div(rows).unwrap_or(0))
            }
            _ => 4 * n as u64,
        }
    };
    param_shapes(op).iter().map(one).sum()
}

/// Bytes that an export of the reachable nodes stores under `plan`.
pub fn stored_total(graph: &Graph, plan: &Precisions) -> u64 {
    graph.live().map(|(_, n)| stored_bytes(&n.op, plan.get(&n.name))).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::families::{CifarResnetSpec, FamilySpec};

    #[test]
    fn int8_everywhere_stores_about_a_quarter() {
        let graph = FamilySpec::CifarResnet(CifarResnetSpec::depth(56, 10)).build().unwrap();
        assert_eq!(choosable(&graph).len(), 56);
        let f32 = stored_total(&graph, &Precisions::default());
        // 853,018 trained parameters and twice 2,032 running statistics.
        assert_eq!(f32, 4 * (853_018 + 2 * 2_032));
        let int8 = stored_total(&graph, &everywhere(&graph, Precision::Int8));
        let part = int8 as f64 / f32 as f64;
        assert!(part > 0.25 && part < 0.28, "{part}");
    }
}
