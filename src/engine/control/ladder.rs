//! What the levels of a model are: of each MLP how many of its neurons a level keeps, the first so many of one order, or none of the branch.
//!
//! Plain data, and the model that a level of it is. Not here: how the order and the numbers are found (`search`). Invariant: neurons are kept from the
//! front of one order, so that a later level's are among an earlier one's.

use super::error::{ControlError, Result};
use super::fits::Fits;
use crate::graph::{Graph, Node, NodeId, Op, ParamRef, ParamRole, WeightFormat, experts};
use crate::model::{Model, Param};
use crate::prune::{self, Action, Group, GroupKind, MemberRole, Target};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// An MLP that levels narrow or leave out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Branch {
    /// The pruning group of its neurons.
    pub group: String,
    /// The addition that joins it with what goes around it.
    pub add: String,
    /// Its neurons, those that count most first.
    pub order: Vec<u32>,
}

/// Columns of a matrix in halves or blocks that kernels multiply as they lie.
const RUN: usize = 32;

/// What one level keeps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    /// Of each branch, how many neurons of its order; 0: the branch is left out.
    pub kept: Vec<u32>,
}

/// All levels, the whole network first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ladder {
    pub branches: Vec<Branch>,
    pub levels: Vec<Level>,
}

/// Where a branch is in a graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    pub add: NodeId,
    pub skip: NodeId,
    /// The layer that reads its neurons, and what it reads.
    pub down: NodeId,
    pub neurons: NodeId,
    /// Levels keep neurons in multiples of this, so that rows of weights stay whole blocks.
    pub granule: usize,
}

/// The MLPs of `model` that levels may leave out, with their neurons in the order that they lie in, and where they are.
pub fn branches(model: &Model, groups: &[Group]) -> Vec<Branch> {
    placed(model, groups).into_iter().map(|(branch, _)| branch).collect()
}

pub(super) fn placed(model: &Model, groups: &[Group]) -> Vec<(Branch, Place)> {
    let graph = &*model.graph;
    let (consumers, experts) = (graph.consumers(), experts::places(graph));
    let one = |group: &Group| {
        if group.kind != GroupKind::Neurons || group.protected.is_some() {
            return None;
        }
        let mut readers = group.members.iter().filter(|m| m.role == MemberRole::Consumer);
        let (down, None) = (graph.by_name(&readers.next()?.node)?, readers.next()) else { return None };
        if experts[down.index()].is_some() || !matches!(graph.node(down).op, Op::Linear(_)) {
            return None;
        }
        let mut at = down;
        let add = loop {
            let [reader] = consumers[at.index()][..] else { return None };
            match graph.node(reader).op {
                Op::Add => break reader,
                Op::RmsNorm(_) | Op::LayerNorm(_) => at = reader,
                _ => return None,
            }
        };
        let skip = graph.blocks.iter().flat_map(|b| &b.residual).find(|r| r.add == add)?.skip;
        let weight = model.params.get(graph.node(down).param(ParamRole::Weight)?).ok()?;
        // Kernels take blocks, and halves, in runs of so many.
        let block = match (weight.as_blocks(), model.precision.get(&graph.node(down).name).weights()) {
            (Some((block, _)), _) | (None, WeightFormat::Block(block)) => block.values().max(RUN),
            (None, WeightFormat::F16 | WeightFormat::Bf16) => RUN,
            _ if weight.packed().is_some() => RUN,
            _ => 1,
        };
        let granule = block.max(group.granule).min(group.size.max(1));
        let neurons = *graph.node(down).inputs.first()?;
        let branch = Branch {
            group: group.id.clone(),
            add: graph.node(add).name.clone(),
            order: (0..group.size as u32).collect(),
        };
        Some((branch, Place { add, skip, down, neurons, granule }))
    };
    groups.iter().filter_map(one).collect()
}

impl Ladder {
    /// The branches that `level` narrows, and how many neurons are left of each.
    pub(super) fn narrowed<'l>(&'l self, level: &'l Level) -> impl Iterator<Item = (&'l Branch, u32)> {
        let all = self.branches.iter().zip(level.kept.iter().copied());
        all.filter(|(branch, kept)| *kept > 0 && (*kept as usize) < branch.order.len())
    }

    /// The branches that `level` leaves out.
    pub(super) fn gone<'l>(&'l self, level: &'l Level) -> impl Iterator<Item = &'l Branch> {
        self.branches.iter().zip(&level.kept).filter(|(_, kept)| **kept == 0).map(|(branch, _)| branch)
    }

    /// What narrows branches to what `level` keeps of them.
    pub(super) fn cuts(&self, level: &Level) -> Vec<(Target, Action)> {
        let one = |(branch, kept): (&Branch, u32)| {
            let mut units = branch.order[..kept as usize].to_vec();
            units.sort_unstable();
            let ratio = 1.0 - f64::from(kept) / branch.order.len() as f64;
            (Target::Group(branch.group.clone()), Action::Prune { ratio, kept: units })
        };
        self.narrowed(level).map(one).collect()
    }

    /// MLPs that are whole, narrowed and gone at `level`.
    pub fn mlps(&self, level: &Level) -> [usize; 3] {
        let mut out = [0; 3];
        for (branch, kept) in self.branches.iter().zip(&level.kept) {
            let at = match *kept as usize {
                0 => 2,
                all if all == branch.order.len() => 0,
                _ => 1,
            };
            out[at] += 1;
        }
        out
    }

    /// Why this is no ladder of `model`, if so.
    ///
    /// # Errors
    /// Other branches than the model's, orders that are none, levels that are not within the one before; in words.
    pub fn check(&self, model: &Model, groups: &[Group]) -> std::result::Result<(), String> {
        let own = placed(model, groups);
        if self.levels.is_empty() || self.levels.len() > MOST_LEVELS {
            return Err(format!("{} levels are not 1 to {MOST_LEVELS}", self.levels.len()));
        }
        let of = |b: &Branch| own.iter().find(|(o, _)| o.group == b.group && o.add == b.add);
        let mut seen = HashSet::new();
        for branch in &self.branches {
            let Some((found, _)) = of(branch) else { return Err("it names an MLP that the model has not".into()) };
            let mut order = branch.order.clone();
            order.sort_unstable();
            if order != found.order {
                return Err(format!("its order of `{}` does not name every neuron once", found.group));
            }
            if !seen.insert(&branch.group) {
                return Err(format!("it names `{}` twice", found.group));
            }
        }
        let mut before: Vec<u32> = self.branches.iter().map(|b| b.order.len() as u32).collect();
        for (i, level) in self.levels.iter().enumerate() {
            let fits = level.kept.len() == before.len() && level.kept.iter().zip(&before).all(|(k, b)| k <= b);
            if !fits || (i == 0 && level.kept != before) {
                return Err(format!("level {i} keeps what the level before it has not"));
            }
            before.clone_from(&level.kept);
        }
        Ok(())
    }
}

/// Levels at most: each is a plan of its own.
pub const MOST_LEVELS: usize = 16;

/// `model` as a level of `ladder`, which fits it. Weights of branches that stay whole, and everything else, are the model's own.
///
/// # Errors
/// As [`prune::apply`]; a branch that is not the model's.
pub fn level_model(model: &Model, groups: &[Group], ladder: &Ladder, level: &Level) -> Result<Model> {
    let actions = ladder.cuts(level);
    let gone: Vec<&str> = ladder.gone(level).map(|branch| branch.add.as_str()).collect();
    let mut cut = match actions.is_empty() {
        true => model.clone(),
        false => prune::apply(model, groups, &actions)?,
    };
    if !gone.is_empty() {
        cut.graph = Arc::new(without(&cut.graph, &gone)?);
    }
    Ok(cut)
}

/// `model` at every level of `ladder`, one after the other, with what was re-fitted for them; see [`level_model`]. What two levels keep as much of is
/// one copy: levels that take turns read less that the other has not.
pub fn level_models(
    model: &Model,
    groups: &[Group],
    ladder: &Ladder,
    fits: &Fits,
) -> impl Iterator<Item = Result<Model>> {
    let mut made: HashMap<(&str, u32), Vec<(String, Param)>> = HashMap::new();
    ladder.levels.iter().map(move |level| {
        let mut cut = level_model(model, groups, ladder, level)?;
        for (branch, kept) in ladder.narrowed(level) {
            let group = groups.iter().find(|g| g.id == branch.group);
            let stored = || {
                let mut own = group.map(|group| narrowed(&cut, group)).unwrap_or_default();
                own.extend(fits.of(branch, kept).into_iter().flatten().cloned());
                own
            };
            for (name, param) in made.entry((&branch.group, kept)).or_insert_with(stored).iter() {
                cut.params.insert(name.clone(), param.clone());
            }
        }
        Ok(cut)
    })
}

/// The weights that the group's neurons are part of, as they are stored where they are computed with.
fn narrowed(cut: &Model, group: &Group) -> Vec<(String, Param)> {
    let nodes = group.members.iter().filter_map(|member| cut.graph.by_name(&member.node));
    nodes.flat_map(|node| as_stored(cut, cut.graph.node(node))).collect()
}

/// The parameters that `node` of `cut` has there: its weight in the halves or blocks that kernels multiply as they lie, where it is decided to be in
/// such.
pub(super) fn as_stored(cut: &Model, node: &Node) -> Vec<(String, Param)> {
    let format = cut.precision.get(&node.name).weights();
    let lies = matches!(format, WeightFormat::Block(_) | WeightFormat::F16 | WeightFormat::Bf16);
    let one = |p: &ParamRef| {
        let param = cut.params.get(&p.name).ok()?;
        let param = if lies && p.role == ParamRole::Weight { param.stored_in(format) } else { param.clone() };
        Some((p.name.clone(), param))
    };
    node.params.iter().filter_map(one).collect()
}

/// The graph in which what is added at the nodes `adds` is left out. Ids, order and names stay.
fn without(graph: &Graph, adds: &[&str]) -> Result<Graph> {
    let mut to: Vec<NodeId> = (0..graph.nodes.len()).map(|i| NodeId(i as u32)).collect();
    for (id, node) in graph.iter() {
        if !adds.contains(&node.name.as_str()) {
            continue;
        }
        let residual = graph.blocks.iter().flat_map(|b| &b.residual).find(|r| r.add == id);
        let skip = residual.filter(|r| node.inputs.contains(&r.skip)).map(|r| r.skip);
        let Some(skip) = skip else {
            return Err(ControlError::Bad(format!("`{}` adds nothing that could be left out", node.name)));
        };
        // Ids ascend: what goes around it has its stand-in already.
        to[id.index()] = to[skip.index()];
    }
    let mut g = graph.clone();
    for node in &mut g.nodes {
        for input in &mut node.inputs {
            *input = to[input.index()];
        }
    }
    g.output = to[g.output.index()];
    g.check()?;
    Ok(g)
}
