//! A list of actions, validated against a graph and its groups, as axis masks, removed blocks and precisions.
//!
//! Invariants: kept units are relative to the graph that the groups were found on; a later action on the same target
//! replaces an earlier one (`Keep` withdraws it); nothing here touches a tensor.

use super::action::{Action, Target};
use super::error::{PruneError, Result, nearest};
use super::group::Group;
use super::lowrank;
use super::sparsity::Sparsity;
use crate::graph::{Graph, NodeId, Op, Precision};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What is to change, by node index.
#[derive(Debug, Default)]
pub(super) struct Edits {
    /// `(node, axis)` → which indices of that axis stay.
    pub masks: BTreeMap<(usize, usize), Vec<bool>>,
    /// Indices into `graph.blocks`.
    pub removed: Vec<usize>,
    pub precision: Vec<(String, Precision)>,
    /// Masks by layer name.
    pub sparse: Vec<(String, Sparsity)>,
}

impl Edits {
    /// Validates `actions`. With `forecast`, a `Prune` without kept units stands for the first units at its ratio;
    /// otherwise it is refused as unresolved.
    pub fn new(graph: &Graph, groups: &[Group], actions: &[(Target, Action)], forecast: bool) -> Result<Edits> {
        let nodes: HashMap<&str, usize> = graph.nodes.iter().enumerate().map(|(i, n)| (n.name.as_str(), i)).collect();
        let layer = |name: &str| {
            let at = known("layer", name, nodes.get(name).copied(), graph.nodes.iter().map(|n| n.name.as_str()))?;
            Ok::<_, PruneError>(&graph.nodes[at].op)
        };
        let group = |name: &str| {
            let at = groups.iter().position(|g| g.id == name);
            known("group", name, at, groups.iter().map(|g| g.id.as_str()))
        };
        let block = |name: &str| {
            let at = graph.blocks.iter().position(|b| b.name == name);
            known("block", name, at, graph.blocks.iter().map(|b| b.name.as_str()))
        };
        let mut pruned: BTreeMap<usize, Vec<bool>> = BTreeMap::new();
        let mut removed: BTreeSet<usize> = BTreeSet::new();
        let mut precision: BTreeMap<&str, Precision> = BTreeMap::new();
        let mut sparse: BTreeMap<&str, Sparsity> = BTreeMap::new();
        for (target, action) in actions {
            let mismatch = |action, hint| PruneError::Mismatch { target: target.to_string(), action, hint };
            match (target, action) {
                (Target::Group(name), Action::Keep) => {
                    pruned.remove(&group(name)?);
                }
                (Target::Group(name), Action::Prune { ratio, kept }) => {
                    let at = group(name)?;
                    pruned.insert(at, units(&groups[at], *ratio, kept, forecast)?);
                }
                (Target::Block(name), Action::Keep) => {
                    removed.remove(&block(name)?);
                }
                (Target::Block(name), Action::RemoveBlock) => {
                    let at = block(name)?;
                    if graph.blocks[at].residual.is_empty() {
                        let reason = "it has no residual branch with an identity shortcut".to_owned();
                        return Err(PruneError::NotRemovable { block: name.clone(), reason });
                    }
                    removed.insert(at);
                }
                (Target::Layer(name), Action::Keep) => {
                    layer(name)?;
                    precision.remove(name.as_str());
                }
                (Target::Layer(name), Action::Precision { precision: p }) => {
                    let op = layer(name)?;
                    if !op.has_precision() {
                        let op = crate::graph::describe(op);
                        return Err(PruneError::NotQuantizable { node: name.clone(), op });
                    }
                    precision.insert(name, *p);
                }
                (Target::Weights(name), Action::Keep) => {
                    layer(name)?;
                    sparse.remove(name.as_str());
                }
                (Target::Weights(name), Action::Sparsify { sparsity }) => {
                    sparsity.check_on(layer(name)?).map_err(|why| mismatch("sparsify", why))?;
                    sparse.insert(name, *sparsity);
                }
                (Target::Weights(name), Action::Factorise { rank }) => {
                    let unfit = |why| PruneError::Rank { node: name.clone(), why };
                    lowrank::fits(layer(name)?, *rank).map_err(unfit)?;
                    sparse.remove(name.as_str());
                }
                (Target::Group(_) | Target::Block(_) | Target::Weights(_), Action::Precision { .. }) => {
                    return Err(mismatch("precision", "a precision belongs to a layer"));
                }
                (Target::Group(_) | Target::Layer(_) | Target::Weights(_), Action::RemoveBlock) => {
                    return Err(mismatch("remove_block", "only a block can be removed"));
                }
                (Target::Group(_) | Target::Layer(_) | Target::Block(_), Action::Sparsify { .. }) => {
                    return Err(mismatch("sparsify", "name the weights that get zeros"));
                }
                (Target::Group(_) | Target::Layer(_) | Target::Block(_), Action::Factorise { .. }) => {
                    return Err(mismatch("factorise", "name the weights that get factors"));
                }
                (Target::Layer(_) | Target::Block(_) | Target::Weights(_), Action::Prune { .. }) => {
                    return Err(mismatch("prune", "name the group whose units are pruned"));
                }
            }
        }
        let mut edits = Edits {
            removed: removed.into_iter().collect(),
            precision: precision.into_iter().map(|(n, p)| (n.to_owned(), p)).collect(),
            sparse: sparse.into_iter().map(|(n, s)| (n.to_owned(), s)).collect(),
            ..Edits::default()
        };
        for (at, keep) in &pruned {
            edits.mask(graph, &nodes, &groups[*at], keep)?;
        }
        Ok(edits)
    }

    fn mask(&mut self, graph: &Graph, nodes: &HashMap<&str, usize>, group: &Group, keep: &[bool]) -> Result<()> {
        for m in &group.members {
            let foreign = || PruneError::Foreign { group: group.id.clone(), node: m.node.clone(), axis: m.axis };
            let at = *nodes.get(m.node.as_str()).ok_or_else(foreign)?;
            let len = graph.nodes[at].op.facts().axis_len(m.axis).ok_or_else(foreign)?;
            let mask = self.masks.entry((at, m.axis)).or_insert_with(|| vec![true; len]);
            // Block by block, not unit by unit: this is asked at every step of a dragged ratio.
            for b in 0..m.span.blocks {
                let start = m.span.offset + b * m.span.stride;
                let owned = mask.get_mut(start..start + group.size * m.span.width).ok_or_else(foreign)?;
                if m.span.width == 1 {
                    owned.iter_mut().zip(keep).for_each(|(stays, keep)| *stays &= keep);
                    continue;
                }
                for (owned, keep) in owned.chunks_exact_mut(m.span.width.max(1)).zip(keep) {
                    owned.iter_mut().for_each(|stays| *stays &= keep);
                }
            }
        }
        Ok(())
    }
}

/// `at`, where `name` was found among `all` names of its kind; or what to say where it was not.
fn known<'a>(kind: &'static str, name: &str, at: Option<usize>, all: impl Iterator<Item = &'a str>) -> Result<usize> {
    at.ok_or_else(|| PruneError::Unknown { kind, name: name.to_owned(), hint: nearest(name, all) })
}

/// Which units stay, checked.
fn units(group: &Group, ratio: f64, kept: &[u32], forecast: bool) -> Result<Vec<bool>> {
    let id = || group.id.clone();
    if let Some(reason) = &group.protected {
        return Err(PruneError::Protected { group: id(), reason: reason.clone() });
    }
    if !ratio.is_finite() || !(0.0..=1.0).contains(&ratio) {
        return Err(PruneError::Ratio { group: id(), ratio });
    }
    if ratio >= 1.0 {
        return Err(PruneError::Empty { group: id(), size: group.size });
    }
    if kept.is_empty() {
        if !forecast {
            return Err(PruneError::Unresolved { group: id() });
        }
        let n = group.kept_at(ratio);
        return Ok((0..group.size).map(|u| u < n).collect());
    }
    let mut keep = vec![false; group.size];
    let mut before = None;
    for &unit in kept {
        if before.is_some_and(|b| b >= unit) {
            return Err(PruneError::KeptOrder { group: id(), unit });
        }
        before = Some(unit);
        let last = group.size.saturating_sub(1);
        *keep.get_mut(unit as usize).ok_or_else(|| PruneError::KeptRange { group: id(), unit, last })? = true;
    }
    Ok(keep)
}

/// For every node, the node that stands in for it once `removed` blocks are gone: a removed residual `Add` becomes its
/// skip input, transitively. Identity for all others.
pub(super) fn stand_ins(graph: &Graph, removed: &[usize]) -> Result<Vec<NodeId>> {
    let mut to: Vec<NodeId> = (0..graph.nodes.len()).map(|i| NodeId(i as u32)).collect();
    let mut gone: Vec<(NodeId, NodeId)> = Vec::new();
    for block in removed.iter().filter_map(|&b| graph.blocks.get(b)) {
        for r in &block.residual {
            let add = graph.nodes.get(r.add.index());
            if !add.is_some_and(|n| matches!(n.op, Op::Add) && n.inputs.contains(&r.skip)) {
                let reason = "its shortcut is not an input of its addition".to_owned();
                return Err(PruneError::NotRemovable { block: block.name.clone(), reason });
            }
            gone.push((r.add, r.skip));
        }
    }
    // Ascending: a skip that is itself a removed Add has its stand-in already.
    gone.sort();
    for (add, skip) in gone {
        to[add.index()] = to[skip.index()];
    }
    Ok(to)
}
