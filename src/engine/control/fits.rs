//! What reads the neurons that levels keep, re-fitted for each number of them: least squares on calibration text, from what the layer is given in
//! the level to what the whole network's gives, rounded as the model's own weights are ([`recover::within`]).
//!
//! Levels that keep as much of a branch share what was fitted for the first of them, as they share what is narrowed. Not here: what levels keep
//! (`ladder`), the file (`document`). Invariant: what is read is of a branch and a number that the ladder has, in the shapes and bytes that it takes.

use super::error::Result;
use super::ladder::{Branch, Ladder, Level, Place, as_stored, placed};
use crate::data;
use crate::exec::Cancel;
use crate::graph::ggml::Block;
use crate::graph::{Graph, ParamRole, ResidualAdd};
use crate::model::{Model, Packed, Param};
use crate::prune::{Action, Group, Target};
use crate::recover::{self, RepairOptions, RepairUpdate};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tokens for each neuron that is left, so that more is known than is fitted.
const TOKENS: usize = 2;

/// Parameters by name, of each branch (by its group) and number of neurons that some level narrows it to.
#[derive(Debug, Clone, Default)]
pub struct Fits(BTreeMap<(String, u32), Vec<(String, Param)>>);

/// One parameter as a file tells of it; its bytes follow those of the one before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Told {
    group: String,
    kept: u32,
    param: String,
    shape: Vec<usize>,
    format: Format,
}

/// What its values are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Format {
    F32,
    F16,
    Bf16,
    Block(Block),
}

impl Format {
    fn of(param: &Param) -> Format {
        match param.packed() {
            None => Format::F32,
            Some((Packed::F16, _)) => Format::F16,
            Some((Packed::Bf16, _)) => Format::Bf16,
            Some((Packed::Block(block), _)) => Format::Block(block),
        }
    }

    fn packed(self) -> Option<Packed> {
        match self {
            Format::F32 => None,
            Format::F16 => Some(Packed::F16),
            Format::Bf16 => Some(Packed::Bf16),
            Format::Block(block) => Some(Packed::Block(block)),
        }
    }
}

impl PartialEq for Fits {
    fn eq(&self, other: &Fits) -> bool {
        self.told() == other.told()
    }
}

impl Fits {
    /// Fitted on `windows` of token ids, all as long as the shortest; level by level, what an earlier one has first. A level has none where there are not
    /// [`TOKENS`] tokens for each neuron of the widest MLP that it is the first to narrow so, and where windows that nothing was fitted on say that it loses by them.
    ///
    /// # Errors
    /// Windows that are none; what cutting and re-fitting report; cancellation. `said` is given levels done and of how many.
    pub fn made(
        model: &Model,
        groups: &[Group],
        ladder: &Ladder,
        windows: &[Vec<u32>],
        cancel: &Cancel,
        said: &mut dyn FnMut(usize, usize),
    ) -> Result<Fits> {
        let mut out = Fits::default();
        let tokens = windows.iter().map(Vec::len).min().unwrap_or(0);
        let set = data::windows_of(windows)?;
        let places: BTreeMap<String, Place> =
            placed(model, groups).into_iter().map(|(branch, place)| (branch.group, place)).collect();
        let whole = Graph::clone(&model.graph).bound(tokens.saturating_sub(1));
        let options = RepairOptions::default();
        for (done, level) in ladder.levels.iter().enumerate() {
            let new: Vec<(&Branch, u32)> = ladder.narrowed(level).filter(|(b, k)| out.of(b, *k).is_none()).collect();
            said(done, ladder.levels.len());
            let Some(widest) = new.iter().map(|(_, kept)| *kept as usize).max() else { continue };
            if windows.len() * tokens < TOKENS * widest {
                continue;
            }
            let (graph, actions) = cuts(&whole, ladder, level);
            let given: Vec<(String, Param)> =
                ladder.narrowed(level).filter_map(|(b, k)| out.of(b, k)).flatten().cloned().collect();
            let original = Model { graph: Arc::new(graph), ..model.clone() };
            let mut gains = false;
            let mut heard = |u: RepairUpdate| gains |= matches!(u, RepairUpdate::Step(step) if step.kept);
            let cut = recover::within(&original, (groups, &actions), &given, &set, &options, cancel, &mut heard)?;
            if !gains {
                continue;
            }
            for (branch, kept) in new {
                let Some(place) = places.get(&branch.group) else { continue };
                out.0.insert((branch.group.clone(), kept), as_stored(&cut, model.graph.node(place.down)));
            }
        }
        Ok(out)
    }

    /// How many levels of `ladder` that narrow anything have all of what they narrow re-fitted, and of how many.
    pub fn levels(&self, ladder: &Ladder) -> (usize, usize) {
        let all = ladder.levels.iter().filter(|l| ladder.narrowed(l).next().is_some());
        let fitted = all.clone().filter(|l| ladder.narrowed(l).all(|(b, k)| self.of(b, k).is_some()));
        (fitted.count(), all.count())
    }

    /// What `branch` has where `kept` of its neurons are left.
    pub fn of(&self, branch: &Branch, kept: u32) -> Option<&Vec<(String, Param)>> {
        self.0.get(&(branch.group.clone(), kept))
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What a file tells of them, and their bytes.
    pub(super) fn told(&self) -> (Vec<Told>, Vec<u8>) {
        let (mut told, mut bytes) = (Vec::new(), Vec::new());
        for ((group, kept), params) in &self.0 {
            for (name, param) in params {
                match param.packed() {
                    Some((_, own)) => bytes.extend_from_slice(own),
                    None => bytes.extend(param.values().iter().flat_map(|v| v.to_le_bytes())),
                }
                let (group, format) = (group.clone(), Format::of(param));
                told.push(Told { group, kept: *kept, param: name.clone(), shape: param.shape().to_vec(), format });
            }
        }
        (told, bytes)
    }

    /// What `told` tells of `bytes`, for a ladder of `model`.
    ///
    /// # Errors
    /// What the ladder does not keep, other parameters or shapes than its layers have, bytes that are too few or left over, values that are no
    /// numbers; in words.
    pub(super) fn read(
        (told, bytes): (&[Told], &[u8]),
        (model, groups): (&Model, &[Group]),
        ladder: &Ladder,
    ) -> std::result::Result<Fits, String> {
        let (mut out, mut rest) = (Fits::default(), bytes);
        let places: BTreeMap<String, Place> = placed(model, groups).into_iter().map(|(b, p)| (b.group, p)).collect();
        for one in told {
            let Told { group, kept, param, shape, format } = one;
            let cut =
                ladder.levels.iter().flat_map(|l| ladder.narrowed(l)).any(|(b, k)| b.group == *group && k == *kept);
            let place = places.get(group).filter(|_| cut);
            let Some(place) = place else { return Err(format!("no level keeps {kept} neurons of `{group}`")) };
            let node = model.graph.node(place.down);
            let rows = node.param(ParamRole::Weight).and_then(|w| model.params.get(w).ok()?.shape().first().copied());
            let wanted = match rows {
                Some(rows) if node.param(ParamRole::Weight) == Some(param) => vec![rows, *kept as usize],
                Some(rows) if node.param(ParamRole::Bias) == Some(param) => vec![rows],
                _ => return Err(format!("`{param}` is not of what reads `{group}`")),
            };
            if *shape != wanted {
                return Err(format!("`{param}` has the shape {shape:?} where {wanted:?} is needed"));
            }
            let numel: usize = wanted.iter().product();
            let row = wanted.last().copied().unwrap_or(1);
            let size = match format {
                Format::F32 => numel * 4,
                Format::F16 | Format::Bf16 => numel * 2,
                Format::Block(block) if wanted.len() == 2 && row.is_multiple_of(block.values()) => {
                    numel / block.values() * block.size()
                }
                Format::Block(block) => {
                    return Err(format!("rows of `{param}` are no whole blocks of {}", block.label()));
                }
            };
            let Some((own, after)) = rest.split_at_checked(size) else {
                return Err(format!("its bytes end within `{param}`"));
            };
            rest = after;
            let read = match format.packed() {
                Some(packed) => Param::packed_in(wanted, own.to_vec(), packed),
                None => Param::owned(wanted, own.chunks_exact(4).map(number).collect()),
            };
            let sound = read.filter(|p| p.values().iter().all(|v| v.is_finite()));
            let Some(read) = sound else { return Err(format!("`{param}` has values that are no numbers")) };
            let entry = out.0.entry((group.clone(), *kept)).or_default();
            if entry.iter().any(|(name, _)| name == param) {
                return Err(format!("it has `{param}` for {kept} neurons twice"));
            }
            entry.push((param.clone(), read));
        }
        if rest.is_empty() { Ok(out) } else { Err(format!("{} bytes are left over", rest.len())) }
    }
}

fn number(bytes: &[u8]) -> f32 {
    bytes.try_into().map_or(f32::NAN, f32::from_le_bytes)
}

/// What makes `level` of the whole network's graph, and that graph with blocks for the branches that are left out, which re-fitting knows by those.
fn cuts(whole: &Graph, ladder: &Ladder, level: &Level) -> (Graph, Vec<(Target, Action)>) {
    let (mut graph, mut actions) = (whole.clone(), ladder.cuts(level));
    for (at, branch) in ladder.gone(level).enumerate() {
        let Some(add) = graph.by_name(&branch.add) else { continue };
        let branches = graph.blocks.iter().flat_map(|b| &b.residual);
        let residual: Vec<ResidualAdd> = branches.filter(|r| r.add == add).take(1).cloned().collect();
        let name = format!("{}, left out ({at})", branch.add);
        graph.blocks.push(crate::graph::Block { name: name.clone(), nodes: vec![add], residual });
        actions.push((Target::Block(name), Action::RemoveBlock));
    }
    (graph, actions)
}
