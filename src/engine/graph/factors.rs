//! Layers that two stand for, with low-rank factors of one layer's weights: how they are called, and which they are.

use super::{Graph, Node, NodeId};

/// What the first of two layers that stand for `layer` is called; the second keeps its name.
pub fn inner_name(layer: &str) -> String {
    format!("{layer}.0")
}

impl Graph {
    /// Live pairs of layers that stand for one, first and second.
    pub fn factored(&self) -> Vec<(&Node, &Node)> {
        let consumers = self.consumers();
        let pair = |(id, first): (NodeId, &Node)| {
            let [second] = consumers[id.index()].as_slice() else { return None };
            let second = self.nodes.get(second.index())?;
            (first.op.is_conv_or_linear() && second.op.is_conv_or_linear() && first.name == inner_name(&second.name))
                .then_some((id, second))
        };
        self.live().filter_map(pair).map(|(id, second)| (&self.nodes[id.index()], second)).collect()
    }
}
