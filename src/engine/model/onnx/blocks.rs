//! Blocks of an imported graph: residual branches that can be removed, told by the shape of the graph and named after
//! what their layers' names share.

use crate::graph::{Block, Graph, NodeId, Op, ResidualAdd};
use std::collections::{HashMap, HashSet};

/// Longest residual branch that is looked for, in nodes.
const MAX_BRANCH: usize = 400;

/// The blocks of `graph`; each lists its residual additions.
pub(super) fn find(graph: &Graph) -> Vec<Block> {
    let consumers = graph.consumers();
    let mut found: Vec<(String, Vec<NodeId>, ResidualAdd)> = Vec::new();
    for (id, node) in graph.iter().filter(|(_, n)| n.op == Op::Add) {
        let &[a, b] = node.inputs.as_slice() else { continue };
        let (skip, end) = if a < b { (a, b) } else { (b, a) };
        if let Some(branch) = branch(graph, &consumers, id, skip, end) {
            let name = shared_prefix(branch.iter().map(|n| graph.node(*n).name.as_str()));
            found.push((name, branch, ResidualAdd { add: id, skip }));
        }
    }
    let mut order: Vec<String> = Vec::new();
    let mut groups: HashMap<String, (Vec<NodeId>, Vec<ResidualAdd>)> = HashMap::new();
    let mut taken = vec![false; graph.nodes.len()];
    for (i, (prefix, branch, residual)) in found.into_iter().enumerate() {
        let name = if prefix.is_empty() { format!("block{}", i + 1) } else { prefix };
        let nodes: Vec<NodeId> = branch.into_iter().chain([residual.add]).collect();
        if nodes.iter().any(|n| taken[n.index()]) {
            continue;
        }
        nodes.iter().for_each(|n| taken[n.index()] = true);
        if !groups.contains_key(&name) {
            order.push(name.clone());
        }
        let group = groups.entry(name).or_default();
        group.0.extend(nodes);
        group.1.push(residual);
    }
    // What else is called after a block belongs to it: activations and norms behind the addition.
    for (id, node) in graph.iter().filter(|(id, _)| !taken[id.index()]) {
        let owner = node.name.rmatch_indices('.').map(|(i, _)| &node.name[..i]).find(|p| groups.contains_key(*p));
        if let Some((nodes, _)) = owner.and_then(|p| groups.get_mut(p)) {
            nodes.push(id);
        }
    }
    order
        .into_iter()
        .filter_map(|name| {
            let (mut nodes, residual) = groups.remove(&name)?;
            nodes.sort_unstable();
            Some(Block { name, nodes, residual })
        })
        .collect()
}

/// The nodes between `skip` and the addition, if nothing else enters or leaves them.
fn branch(graph: &Graph, consumers: &[Vec<NodeId>], add: NodeId, skip: NodeId, end: NodeId) -> Option<Vec<NodeId>> {
    let mut seen: Vec<NodeId> = vec![end];
    let mut known = HashSet::from([end]);
    let mut next = 0;
    while let Some(&id) = seen.get(next) {
        next += 1;
        // Everything in the branch lies between its ends; nodes are in order.
        if id <= skip || seen.len() > MAX_BRANCH {
            return None;
        }
        for &input in &graph.node(id).inputs {
            if input != skip && known.insert(input) {
                seen.push(input);
            }
        }
    }
    let inside = |id: &NodeId| *id == add || known.contains(id);
    if !seen.iter().all(|id| consumers[id.index()].iter().all(inside)) {
        return None;
    }
    seen.sort_unstable();
    Some(seen)
}

/// The dotted parts that all names begin with, but for the last part of any.
fn shared_prefix<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let mut shared: Option<Vec<&str>> = None;
    for name in names {
        let mut parts: Vec<&str> = name.split('.').collect();
        parts.pop();
        shared = Some(match shared {
            None => parts,
            Some(s) => s.into_iter().zip(parts).take_while(|(a, b)| a == b).map(|(a, _)| a).collect(),
        });
    }
    shared.unwrap_or_default().join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FamilySpec;
    use crate::model::families::{CifarResnetSpec, VitDims, VitSpec};

    /// What the builders of families say is found from the graph alone.
    #[test]
    fn residual_blocks_of_known_families_are_found_again() {
        let dims = VitDims { image: 16, patch: 4, dim: 8, depth: 2, heads: 2, mlp: 16, classes: 4 };
        let cnn = CifarResnetSpec { blocks: 2, widths: [4, 6, 8], classes: 3, image: 32 };
        for spec in [FamilySpec::Vit(VitSpec::timm(dims)), FamilySpec::CifarResnet(cnn)] {
            let graph = spec.build().unwrap();
            let known: Vec<&Block> = graph.blocks.iter().filter(|b| !b.residual.is_empty()).collect();
            let found = find(&graph);
            assert_eq!(found.len(), known.len());
            for (f, k) in found.iter().zip(known) {
                assert_eq!((&f.name, &f.residual, &f.nodes), (&k.name, &k.residual, &k.nodes));
            }
        }
    }
}
