//! Which values are alive while each step of a network runs, and how many bytes they are: from the graph and the steps that a profile has rows of.
//!
//! By the definition of [`Profile::peak_activation_bytes`] (the largest sum of step outputs alive at once, the input included, four bytes an
//! element), so that on a CPU the peak here is that figure. Not here: where values lie in an arena (`exec/arena`), which may have gaps between them.
//! Pure.

use super::{Action, Target};
use crate::graph::{Binding, Graph, GraphError, shapes, shapes_at};
use crate::profile::{Profile, Workload};
use crate::prune::{self, Group};
use std::collections::HashMap;

/// Bytes of an element between steps: kernels hand one another 32-bit floats, whatever weights are stored in.
const ELEMENT: u64 = 4;

/// A value that a step writes, or the network's input.
#[derive(Debug, Clone, PartialEq)]
pub struct Held {
    /// The node whose output it is.
    pub name: String,
    /// Of the whole batch.
    pub bytes: u64,
    /// The steps, both included, during which it is alive.
    pub first: usize,
    pub last: usize,
    /// The network's input, which no step writes.
    pub input: bool,
}

/// Values over the steps of a run.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Liveness {
    /// Names of the rows, in the order in which they run.
    pub steps: Vec<String>,
    pub values: Vec<Held>,
}

impl Liveness {
    /// Of the model that `profile` was measured on, whose graph is `graph`.
    ///
    /// # Errors
    /// A graph whose shapes do not follow.
    pub fn of(graph: &Graph, profile: &Profile) -> Result<Liveness, GraphError> {
        let shapes = match profile.workload {
            Workload::Pass => shapes(graph)?,
            Workload::Decode { .. } => shapes_at(graph, Binding::tokens(1))?,
        };
        let reachable = graph.reachable();
        let index: HashMap<&str, usize> = graph.nodes.iter().enumerate().map(|(i, n)| (n.name.as_str(), i)).collect();
        // The nodes of a row that are left of it in this graph.
        let rows: Vec<(&str, Vec<usize>)> = (profile.rows.iter())
            .map(|r| {
                let names = std::iter::once(&r.name).chain(&r.fused);
                let nodes = names.filter_map(|n| index.get(n.as_str()).copied()).filter(|&n| reachable[n]);
                (r.name.as_str(), nodes.collect())
            })
            .filter(|(_, nodes): &(_, Vec<usize>)| !nodes.is_empty())
            .collect();
        let mut last_use: HashMap<usize, usize> = HashMap::new();
        for (at, (_, nodes)) in rows.iter().enumerate() {
            for read in nodes.iter().flat_map(|&n| &graph.nodes[n].inputs).map(|i| i.index()) {
                if !nodes.contains(&read) {
                    last_use.insert(read, at);
                }
            }
        }
        let value = |node: usize, first: usize, input: bool| Held {
            name: graph.nodes[node].name.clone(),
            bytes: shapes.get(node).map_or(0, |s| s.iter().product::<usize>() as u64) * ELEMENT * profile.batch as u64,
            first,
            last: last_use.get(&node).copied().unwrap_or(first).max(first),
            input,
        };
        let input = graph.nodes.iter().position(|n| n.inputs.is_empty()).filter(|_| !rows.is_empty());
        let mut values: Vec<Held> = input.map(|n| value(n, 0, true)).into_iter().collect();
        let outputs = rows.iter().enumerate().filter_map(|(at, (_, nodes))| Some((at, *nodes.iter().max()?)));
        values.extend(outputs.filter(|(_, out)| Some(*out) != input).map(|(at, out)| value(out, at, false)));
        Ok(Liveness { steps: rows.iter().map(|(name, _)| (*name).to_owned()).collect(), values })
    }

    /// Of what `actions` would make of the original, whose profile `profile` is: its steps stay the same, those that go with a block apart.
    ///
    /// # Errors
    /// In words, where the actions cannot be applied together.
    pub fn after(
        graph: &Graph,
        groups: &[Group],
        profile: &Profile,
        actions: &[(Target, Action)],
    ) -> Result<Liveness, String> {
        let graph = prune::shrink(graph, groups, actions).map_err(|e| e.to_string())?;
        Liveness::of(&graph, profile).map_err(|e| e.to_string())
    }

    /// Bytes alive while each step runs: what it reads, what it writes, and what later steps will read.
    pub fn course(&self) -> Vec<u64> {
        let (mut begin, mut end) = (vec![0u64; self.steps.len()], vec![0u64; self.steps.len()]);
        for v in &self.values {
            begin[v.first] += v.bytes;
            end[v.last] += v.bytes;
        }
        let mut now = 0;
        let step = |(begin, end): (u64, u64)| {
            let during = now + begin;
            now = during - end;
            during
        };
        begin.into_iter().zip(end).map(step).collect()
    }

    /// The first step with the most bytes alive, and those.
    pub fn peak(&self) -> Option<(usize, u64)> {
        self.course().into_iter().enumerate().rev().max_by_key(|(_, bytes)| *bytes)
    }

    /// Who holds the memory while step `at` runs, the largest first.
    pub fn holders(&self, at: usize) -> Vec<&Held> {
        let mut all: Vec<&Held> = self.values.iter().filter(|v| v.first <= at && at <= v.last).collect();
        all.sort_by_key(|v| (std::cmp::Reverse(v.bytes), v.first));
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::Cancel;
    use crate::model::families::{CifarResnetSpec, FamilySpec, VitDims, VitSpec};
    use crate::model::random;
    use crate::profile::{Ceilings, ProfileOptions, Watch, profile};

    fn profiled(spec: FamilySpec) -> (Graph, Profile) {
        let model = random(&spec, 1);
        let ceilings = Some(Ceilings { f32_gflops: 100.0, int8_gops: 300.0, bandwidth_gbs: 10.0 });
        let options = ProfileOptions {
            batch: 2,
            runs: 6,
            threads: Some(1),
            ceilings,
            watch: Watch::Quiet,
            ..ProfileOptions::default()
        };
        let measured = profile(&model, &options, &Cancel::default(), &mut |_| {}).unwrap();
        ((*model.graph).clone(), measured)
    }

    fn small() -> FamilySpec {
        FamilySpec::CifarResnet(CifarResnetSpec { blocks: 2, widths: [4, 8, 8], classes: 10, image: 16 })
    }

    #[test]
    fn the_peak_is_the_one_that_the_profile_states() {
        let vit = VitDims { image: 16, patch: 8, dim: 16, depth: 2, heads: 2, mlp: 32, classes: 5 };
        for spec in [small(), FamilySpec::Vit(VitSpec::timm(vit))] {
            let (graph, profile) = profiled(spec);
            let live = Liveness::of(&graph, &profile).unwrap();
            let (at, bytes) = live.peak().unwrap();
            assert_eq!(bytes, profile.peak_activation_bytes);
            assert_eq!(live.steps.len(), profile.rows.len());
            let held = live.holders(at);
            assert_eq!(held.iter().map(|v| v.bytes).sum::<u64>(), bytes);
            assert!(held.is_sorted_by_key(|v| std::cmp::Reverse(v.bytes)) && held.iter().all(|v| v.last >= at));
        }
    }

    #[test]
    fn a_residual_branch_is_held_until_it_is_added() {
        let (graph, profile) = profiled(small());
        let live = Liveness::of(&graph, &profile).unwrap();
        // What enters a block is read by its first convolution and added after its second.
        let entry = live.values.iter().find(|v| v.first == 0 && !v.input).unwrap();
        assert_eq!((entry.last, entry.bytes), (2, 2 * 4 * 16 * 16 * 4));
        let input = live.values.iter().find(|v| v.input).unwrap();
        assert_eq!((input.first, input.last, input.bytes), (0, 0, 2 * 3 * 16 * 16 * 4));
    }

    #[test]
    fn what_a_plan_cuts_is_held_no_longer() {
        let (graph, profile) = profiled(small());
        let groups = prune::groups(&graph);
        let before = Liveness::of(&graph, &profile).unwrap();
        assert_eq!(Liveness::after(&graph, &groups, &profile, &[]).unwrap(), before);
        let widest = groups.iter().find(|g| g.protected.is_none() && g.id.starts_with("layer1.0")).unwrap();
        let cut = Action::Prune { ratio: 0.5, kept: vec![] };
        let after = Liveness::after(&graph, &groups, &profile, &[(Target::Group(widest.id.clone()), cut)]).unwrap();
        let of = |l: &Liveness| l.values.iter().find(|v| v.first == 1 && !v.input).unwrap().bytes;
        assert_eq!(of(&after) * 2, of(&before));
        // A block that goes takes its steps along.
        let block = graph.blocks.iter().find(|b| !b.residual.is_empty()).unwrap().name.clone();
        let gone = Liveness::after(&graph, &groups, &profile, &[(Target::Block(block), Action::RemoveBlock)]).unwrap();
        assert!(gone.steps.len() < before.steps.len());
        assert!(gone.values.iter().all(|v| v.last < gone.steps.len()));
    }
}
