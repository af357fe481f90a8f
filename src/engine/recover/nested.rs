//! A language model within one that was re-fitted before, which keeps what that one has.
//!
//! Not here: how a layer is re-fitted (`language`). Invariant: what is given is in the model that comes out as it was given.

use super::state::State;
use super::{RepairError, RepairOptions, RepairUpdate, language};
use crate::data::Dataset;
use crate::exec::Cancel;
use crate::model::{Model, Param};
use crate::prune::{Action, Group, Target};
use std::collections::HashSet;

/// `original` after `actions`, with the parameters `given` by name. Every other layer that reads what was cut is re-fitted on `calib` in the network
/// that has them, and rounded right then to the format that it is decided to be in, so that those after it make up for that too.
///
/// # Errors
/// As [`compress`](super::compress).
pub fn within(
    original: &Model,
    (groups, actions): (&[Group], &[(Target, Action)]),
    given: &[(String, Param)],
    calib: &Dataset,
    options: &RepairOptions,
    cancel: &Cancel,
    say: &mut dyn FnMut(RepairUpdate),
) -> Result<Model, RepairError> {
    let mut state = State::new(original, (groups, actions), calib, options, cancel, say);
    state.rounds = true;
    state.apply()?;
    given.iter().for_each(|(name, param)| state.model.params.insert(name.clone(), param.clone()));
    let names: HashSet<&str> = given.iter().map(|(name, _)| name.as_str()).collect();
    let of = |node: &crate::graph::Node| node.params.iter().any(|p| names.contains(p.name.as_str()));
    let theirs: HashSet<&str> = original.graph.nodes.iter().filter(|n| of(n)).map(|n| n.name.as_str()).collect();
    state.kept.retain(|(node, axis), _| *axis == 0 || !theirs.contains(node.as_str()));
    language::run(&mut state)?;
    state.finish()
}
