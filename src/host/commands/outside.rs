//! What a program outside asks for: proposals, rehearsals, a question to the engineer. None of it changes what the engineer decided.

use super::{Effect, Then, admit, carried_out, held_back};
use crate::agent::clean;
use crate::host::desk::Desk;
use crate::host::jobs::JobKind;
use crate::plan::{Action, Author, Decision, Target, bare};
use crate::session::{Claim, Event, OUTSIDE, Offer, State, Utterance, ledger};

/// Longest name of a program, summary, reason of a decision and line of what was looked at, characters.
const NAME: usize = 60;
const SUMMARY: usize = 2_000;
const WHY: usize = 280;
const LINE: usize = 300;
/// Decisions of one offer or rehearsal.
const MOST: usize = 1024;

pub(super) fn few(n: usize) -> Result<(), String> {
    match n {
        0 => Err("no decision was given; hint: at least one".to_owned()),
        n if n > MOST => Err(format!("{n} decisions are too many; hint: {MOST} at most")),
        _ => Ok(()),
    }
}

fn said(state: &State, by: &str, text: String) -> Event {
    let utterance = Utterance::whole(state.round, OUTSIDE.name, &clean::line(by, NAME), text);
    Event::Said { utterance: Box::new(utterance) }
}

/// What can stand waits for the engineer, with forecasts; an error when nothing can.
pub fn offer(state: &State, desk: &dyn Desk, offer: Offer) -> Result<Effect, String> {
    few(offer.decisions.len())?;
    let author = Author::Agent { role: OUTSIDE.name.to_owned(), model: clean::line(&offer.by, NAME) };
    let mut first: Option<String> = None;
    let mut fit: Vec<Decision> = Vec::with_capacity(offer.decisions.len());
    for (target, action, why) in offer.decisions {
        match desk.resolve(state, &target, &action) {
            Ok(action) => {
                let rationale = clean::line(&why, WHY);
                fit.push(Decision { rationale, ..Decision::new(target, action, author.clone()) });
            }
            Err(words) => drop(first.get_or_insert(words)),
        }
    }
    if fit.is_empty() {
        return Err(first.unwrap_or_default());
    }
    // With what it has offered before in this round.
    let before = state.claims.iter().rev().find(|c| c.round == state.round && c.author == author);
    let before = before.map(|c| c.plan.clone()).unwrap_or_default();
    let mut plan: Vec<(Target, Action)> =
        before.into_iter().filter(|(t, _)| !fit.iter().any(|d| d.target == *t)).collect();
    plan.extend(fit.iter().map(|d| (d.target.clone(), bare(d.action.clone()))));
    let forecaster = state.forecaster();
    for d in &mut fit {
        d.forecast = forecaster.as_ref().map(|f| f.decision(d));
    }
    let proposed = admit(state, desk, fit);
    // What somebody else proposed there gives way; that is said.
    let new: Vec<&Target> = proposed.iter().filter_map(decisions_of).flatten().map(|d| &d.target).collect();
    let gone = state.open().into_iter().filter(|d| new.contains(&&d.target) && d.author != author).count();
    let mut text = clean::line(&offer.summary, SUMMARY);
    if gone > 0 {
        let gone = crate::words::counted(gone, "open proposal");
        text = format!("{text} (in the place of {gone} of others)").trim().to_owned();
    }
    let mut events = vec![said(state, &offer.by, text)];
    let expects = offer.expects.and_then(|e| ledger::expected(&state.metric(), e));
    let claim = Claim { round: state.round, author, expects, plan, prompts: String::new() };
    events.push(Event::Claimed { claim });
    events.extend(proposed);
    Ok(Effect::events(events))
}

fn decisions_of(event: &Event) -> Option<&Vec<Decision>> {
    match event {
        Event::Proposed { decisions } => Some(decisions),
        _ => None,
    }
}

/// A plan as it can be tried: what can stand, with the units of its cuts.
///
/// # Errors
/// In words: nothing is held back, too much or nothing is asked, what cannot stand or be carried out here.
pub fn rehearsable(
    state: &State,
    desk: &dyn Desk,
    actions: Vec<(Target, Action)>,
) -> Result<Vec<(Target, Action)>, String> {
    held_back(desk)?;
    few(actions.len())?;
    let mut fit = Vec::with_capacity(actions.len());
    for (target, action) in actions {
        let action = desk.resolve(state, &target, &action)?;
        if action != Action::Keep {
            fit.push((target, action));
        }
    }
    if fit.is_empty() {
        return Err("it changes nothing; hint: a plan with a cut, a precision or a removal".to_owned());
    }
    carried_out(&fit, desk)?;
    Ok(fit)
}

pub fn tries(state: &State, desk: &dyn Desk, actions: Vec<(Target, Action)>, by: &str) -> Result<Effect, String> {
    let fit = rehearsable(state, desk, actions)?;
    let what = crate::words::counted(fit.len(), "decision");
    if state.trials.of(&fit).is_some() {
        return Ok(Effect::events([]));
    }
    let events = vec![said(state, by, format!("has a plan of {what} tried on held-back data"))];
    Ok(Effect { events, then: Then::Start(JobKind::Try { actions: fit }) })
}

pub fn ask(state: &State, question: &str, by: &str) -> Result<Effect, String> {
    // On one line, so that nothing in it looks like somebody else's turn.
    let question = clean::line(question, SUMMARY);
    if question.is_empty() {
        return Err("the question is empty; hint: ask something".to_owned());
    }
    let said = said(state, by, format!("asks: {question} the next note answers (`:note …`)"));
    let text = format!("{} asks: {question} (`:note …` answers)", clean::line(by, NAME));
    let then = Then::Say { waits: true, text };
    Ok(Effect { events: vec![said], then })
}

pub fn looked(at: &str, by: &str) -> Result<Effect, String> {
    let text = format!("{} looked at {}", clean::line(by, NAME), clean::line(at, LINE));
    Ok(Effect { events: Vec::new(), then: Then::Say { waits: false, text } })
}
