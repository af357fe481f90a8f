//! What agents may know of a session whose evaluation data must not choose: everything but what came from that data.
//!
//! It is taken out of the state before anything is told, forecast or compared, so that no later line can leak it.
//! Every field is named here: a new one does not compile until it has been thought about.

use crate::session::{Round, SessionCard, State};

/// `state` without the evaluation data, without anything measured on it, and without words that may quote either.
pub fn blinded(state: &State) -> State {
    let State {
        seq,
        card,
        budget,
        round,
        phase,
        rounds,
        ladders,
        sensitivity,
        // Set to the original's error on the evaluation data.
        trials: _,
        built: _,
        decisions,
        next_decision,
        constraints,
        notes,
        utterances: _,
        timeline: _,
        failure: _,
        exports,
        undo: _,
        redo: _,
    } = state;
    State {
        seq: *seq,
        card: card.as_ref().map(|c| SessionCard { data: Default::default(), recipe: None, ..c.clone() }),
        budget: *budget,
        round: *round,
        phase: *phase,
        rounds: rounds.iter().map(blinded_round).collect(),
        ladders: ladders.clone(),
        sensitivity: sensitivity.clone(),
        trials: Default::default(),
        built: Vec::new(),
        decisions: decisions.clone(),
        next_decision: *next_decision,
        constraints: constraints.clone(),
        notes: notes.clone(),
        utterances: Vec::new(),
        timeline: Vec::new(),
        failure: None,
        exports: exports.clone(),
        undo: Vec::new(),
        redo: Vec::new(),
    }
}

/// Costs are in the profile and the forecasts; an evaluation and its verdict are accuracy first of all.
fn blinded_round(round: &Round) -> Round {
    let Round {
        number,
        profile,
        ids,
        recipe,
        forecast: _,
        repairs,
        used,
        evaluation: _,
        verdict: _,
        artifact,
        model_hash,
        accepted,
        rolled_back,
    } = round;
    Round {
        number: *number,
        profile: profile.clone(),
        ids: ids.clone(),
        recipe: recipe.clone(),
        forecast: None,
        repairs: repairs.clone(),
        used: used.clone(),
        evaluation: None,
        verdict: None,
        artifact: artifact.clone(),
        model_hash: model_hash.clone(),
        accepted: *accepted,
        rolled_back: rolled_back.clone(),
    }
}
