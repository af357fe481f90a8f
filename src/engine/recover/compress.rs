//! Compression as a whole: the stages of a recipe, one after the other over one state.
//!
//! A stage can be interrupted before it begins and before every batch of images within it; what it gained is said as it is
//! judged. Invariant: a pure function of original weights, actions, calibration images and options.

use super::stage::Stage;
use super::state::State;
use super::{RepairError, RepairOptions, RepairUpdate, batchnorm, language, ranges, rounding, walk};
use crate::data::Dataset;
use crate::exec::Cancel;
use crate::model::Model;
use crate::prune::{Action, Group, Target};

/// `original` after `actions`, repaired without training on `calib`, the inputs of static int8 layers calibrated on it:
/// what the options' stages say, in their order.
///
/// # Errors
/// Refused actions, unreadable calibration data, execution failures, cancellation (looked for before every stage and
/// every batch).
pub fn compress(
    original: &Model,
    groups: &[Group],
    actions: &[(Target, Action)],
    calib: &Dataset,
    options: &RepairOptions,
    cancel: &Cancel,
    say: &mut dyn FnMut(RepairUpdate),
) -> Result<Model, RepairError> {
    let mut state = State::new(original, (groups, actions), calib, options, cancel, say);
    for stage in options.stages.iter() {
        cancel.check()?;
        match stage {
            Stage::Apply => {
                state.apply()?;
                state.total = options.stages.iter().map(|stage| repairs(stage, &state)).sum();
            }
            Stage::Refit if is_text(&state) => language::run(&mut state)?,
            Stage::Refit => walk::run(&mut state)?,
            Stage::BatchNorm => batchnorm::run(&mut state)?,
            Stage::Round => rounding::run(&mut state)?,
            Stage::Ranges => ranges::run(&mut state)?,
        }
    }
    state.finish()
}

fn is_text(state: &State) -> bool {
    state.original.graph.is_language_model()
}

/// Repairs that a stage will try.
fn repairs(stage: Stage, state: &State) -> usize {
    match stage {
        Stage::Refit if is_text(state) => language::repairs(state),
        Stage::Refit => walk::repairs(state),
        Stage::BatchNorm => batchnorm::repairs(state),
        Stage::Round => rounding::repairs(state),
        Stage::Apply | Stage::Ranges => 0,
    }
}
