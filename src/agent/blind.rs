//! What agents may know of a session whose evaluation data must not choose: everything but what came from that data.
//!
//! It is taken out of the state before anything is told, forecast or compared, so that no later line can leak it.
//! Every field is named here: a new one does not compile until it has been thought about.

use crate::session::{Round, State};

/// `state` without the evaluation data, without anything measured on it, and without words that may quote either.
pub fn blinded(state: &State) -> State {
    let mut out = state.clone();
    let State {
        seq: _,
        card,
        budget: _,
        heal: _,
        healing: _,
        until_clear: _,
        round: _,
        phase: _,
        rounds,
        ladders: _,
        sensitivity: _,
        // Set to the original's error on the evaluation data.
        trials,
        built,
        decisions: _,
        next_decision: _,
        constraints: _,
        // Said by agents, and planned from what is told here.
        claims: _,
        rivals: _,
        plans: _,
        suggested: _,
        // Measured on evaluation data.
        records,
        notes: _,
        utterances,
        timeline,
        failure,
        exports: _,
        // Of calibration text alone.
        control: _,
        undo,
        redo,
    } = &mut out;
    if let Some(card) = card {
        (card.data, card.recipe) = Default::default();
    }
    rounds.iter_mut().for_each(blind_round);
    (*trials, *built, *records, *utterances, *timeline, *failure, *undo, *redo) = Default::default();
    out
}

/// Costs are in the profile and the forecasts; an evaluation and its verdict are accuracy first of all.
fn blind_round(round: &mut Round) {
    let Round {
        number: _,
        profile: _,
        decoding: _,
        ids: _,
        recipe: _,
        forecast,
        repairs: _,
        used: _,
        evaluation,
        verdict,
        artifact: _,
        model_hash: _,
        accepted: _,
        rolled_back: _,
        // Of calibration images alone.
        heal: _,
        course: _,
        pulse: _,
    } = round;
    (*forecast, *evaluation, *verdict) = Default::default();
}
