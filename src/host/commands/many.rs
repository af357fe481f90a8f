//! One act on several targets: decisions set together, and rows vetoed together, each one event that one undo takes back.
//!
//! Not here: what one target may have (`plan::check`, behind the desk). Invariant: what cannot stand is left out with its reason, and where
//! nothing can, that reason is the answer.

use super::outside::few;
use super::{Effect, Then, bounded, bounds, known, own};
use crate::host::desk::Desk;
use crate::plan::{self, Action, Constraint, Decision, DecisionId, Limit, Status, Target, same_cut};
use crate::session::{Event, State};
use crate::words::counted;

/// Reasons that are told in full, where several targets were left out.
const TOLD: usize = 2;

/// Decisions of the engineer's for these targets and for what is kept together with them, numbered, and why others have none. Targets that
/// have the action already are passed over. A decision that waits there, or was approved, gives way; `rationale` is told of it.
pub(super) fn several(
    state: &State,
    desk: &dyn Desk,
    mut actions: Vec<(Target, Action)>,
    rationale: impl Fn(Option<&Decision>) -> String,
) -> Result<(Vec<Decision>, Vec<String>), String> {
    few(actions.len())?;
    let follow =
        state.card.as_ref().map(|card| plan::follows(&actions, &[], &card.graph, &card.groups, &state.constraints));
    for (target, action) in follow.unwrap_or_default() {
        match actions.iter_mut().find(|(t, _)| *t == target) {
            Some(slot) => slot.1 = action,
            None => actions.push((target, action)),
        }
    }
    let (mut fresh, mut left): (Vec<Decision>, Vec<String>) = Default::default();
    for (target, action) in actions {
        let here = state.planned(&target);
        let shown = here.open.or_else(|| here.runs()).map_or(Action::Keep, |d| d.action.clone());
        if fresh.iter().any(|d| d.target == target) || same_cut(&shown, &action, 1e-9) {
            continue;
        }
        let waits = here.open.or(here.approved);
        if here.frozen.is_some() && waits.is_none() {
            left.push(format!("`{target}` is vetoed or frozen; hint: reopen it, or lift the constraint"));
            continue;
        }
        match desk.resolve(state, &target, &action) {
            Ok(action) => {
                let id = DecisionId(state.next_decision + fresh.len() as u64);
                fresh.push(Decision { id, rationale: rationale(waits), ..own(state, target, action) });
            }
            Err(words) => left.push(words),
        }
    }
    Ok((fresh, left))
}

/// What the engineer sets on several targets. What waited there, or was approved, counts as edited: why it was proposed stays with it.
pub fn decide(state: &State, desk: &dyn Desk, actions: Vec<(Target, Action)>) -> Result<Effect, String> {
    let (mut fresh, left) = several(state, desk, actions, |was| was.map_or(String::new(), |d| d.rationale.clone()))?;
    if fresh.is_empty() {
        let none = || "all of them have that already; hint: there is nothing to change".to_owned();
        return Err(left.into_iter().next().unwrap_or_else(none));
    }
    for d in &mut fresh {
        let here = state.planned(&d.target);
        if let Some(was) = here.open.or(here.approved) {
            d.edited_from = Some(was.edited_from.clone().unwrap_or_else(|| was.action.clone()));
            d.status = Status::Edited;
        }
    }
    let then = match left.len() {
        0 => Then::Nothing,
        n => Then::Say { waits: true, text: left_out(n, fresh.len(), &left) },
    };
    Ok(Effect { events: vec![Event::Proposed { decisions: fresh }], then })
}

fn left_out(n: usize, set: usize, left: &[String]) -> String {
    let why = left.iter().take(TOLD).cloned().collect::<Vec<_>>().join("; ");
    let more = if n > TOLD { format!("; and {} more", n - TOLD) } else { String::new() };
    format!("{} set, {n} not: {why}{more}", counted(set, "decision"))
}

/// Refuses what waits on `targets`, or where nothing does what is in force there or was rolled back, and freezes all of them.
pub fn veto(state: &State, targets: Vec<Target>, reason: &str) -> Result<Effect, String> {
    few(targets.len())?;
    let reason = bounded(reason)?;
    let (mut constraints, mut vetoed): (Vec<Constraint>, Vec<DecisionId>) = Default::default();
    for target in targets {
        known(state, &target)?;
        bounds::refusable(state, &target)?;
        if constraints.iter().any(|c| c.target == target) {
            continue;
        }
        let here = state.planned(&target);
        let stands = here.in_force.map(|(d, _)| d).filter(|d| d.status != Status::Vetoed);
        let tried = here.newest.filter(|d| d.status == Status::RolledBack);
        match here.open.or(here.approved) {
            Some(_) => vetoed.extend(here.open.iter().chain(&here.approved).map(|d| d.id)),
            None => vetoed.extend(stands.or(tried).map(|d| d.id)),
        }
        constraints.push(Constraint { target, limit: Limit::Freeze, reason: reason.clone() });
    }
    Ok(Effect::events([Event::ConstraintsSet { constraints, vetoed }]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::Fake;
    use crate::plan::Author;
    use crate::session::{Phase, Record, Standing};

    fn group(id: &str) -> Target {
        Target::Group(id.to_owned())
    }

    fn cut(ratio: f64) -> Action {
        Action::Prune { ratio, kept: Vec::new() }
    }

    fn apply(state: &mut State, event: Event) {
        state.apply(&Record { seq: state.seq + 1, at_ms: 0, event });
    }

    fn take(state: &mut State, effect: Effect) -> Then {
        effect.events.into_iter().for_each(|e| apply(state, e));
        effect.then
    }

    /// An agent's cut of a waits, its cut of b is approved, c is free.
    fn session() -> State {
        let agent = Author::Agent { role: "pruning".into(), model: "m".into() };
        let made = |id, name: &str| Decision {
            id: DecisionId(id),
            round: 1,
            rationale: "flat".into(),
            ..Decision::new(group(name), cut(0.5), agent.clone())
        };
        let mut state = State { round: 1, phase: Phase::Review, ..State::default() };
        apply(&mut state, Event::Proposed { decisions: vec![made(0, "a"), made(1, "b")] });
        apply(&mut state, Event::Approved { ids: vec![DecisionId(1)] });
        state
    }

    #[test]
    fn several_are_set_in_one_step_and_what_cannot_be_is_told() {
        let mut state = session();
        let before = state.decisions.clone();
        let frozen = Constraint { target: group("c"), limit: Limit::Freeze, reason: "mine".into() };
        apply(&mut state, Event::ConstraintSet { constraint: frozen });
        let all = ["a", "b", "c"].map(|n| (group(n), cut(0.25))).to_vec();
        let then = decide(&state, &Fake::default(), all.clone()).map(|e| take(&mut state, e));
        let Ok(Then::Say { waits: true, text }) = then else { panic!("{then:?}") };
        assert!(text.starts_with("2 decisions set, 1 not: ") && text.contains("frozen"), "{text}");
        for name in ["a", "b"] {
            let d = state.planned(&group(name)).open.expect("waits");
            let told = (d.rationale.as_str(), d.edited_from.clone(), d.status, d.by_person());
            assert_eq!(told, ("flat", Some(cut(0.5)), Status::Edited, true), "{name}");
        }
        // Nothing runs by it, and one undo takes back all of it, the approval's loss included.
        assert_eq!(state.recipe_actions(), []);
        apply(&mut state, Event::Undone);
        assert_eq!(state.decisions, before);
        // Nothing to do is said, and so is nothing that could be done.
        let same = decide(&state, &Fake::default(), vec![(group("a"), cut(0.5))]).unwrap_err();
        assert!(same.contains("already") && same.contains("hint:"), "{same}");
        let none = decide(&state, &Fake::default(), vec![(group("c"), cut(0.5))]).unwrap_err();
        assert!(none.contains("frozen") && none.contains("hint:"), "{none}");
        assert!(decide(&state, &Fake::default(), vec![]).is_err());
    }

    #[test]
    fn rows_are_vetoed_whatever_is_decided_there_and_it_binds() {
        let mut state = session();
        let before = (state.decisions.clone(), state.constraints.clone());
        let all = ["a", "b", "c", "c"].map(group).to_vec();
        let vetoed = veto(&state, all.clone(), " too thin ").expect("vetoed");
        take(&mut state, vetoed);
        for name in ["a", "b", "c"] {
            assert_eq!(state.planned(&group(name)).standing(), Standing::Vetoed, "{name}");
            let why = state.frozen(&group(name)).map(|c| c.reason.as_str());
            assert_eq!(why, Some("too thin"), "{name}");
            let refused = super::super::decide(&state, &Fake::default(), group(name), cut(0.25));
            assert!(refused.is_err_and(|e| e.contains("hint:")), "{name}");
        }
        assert_eq!(state.recipe_actions(), []);
        apply(&mut state, Event::Undone);
        assert_eq!((state.decisions.clone(), state.constraints.clone()), before);
        // What shall go at least cannot be refused, nor can what is not there.
        let least = Constraint { target: group("a"), limit: Limit::MinRatio { ratio: 0.25 }, reason: String::new() };
        apply(&mut state, Event::ConstraintSet { constraint: least });
        assert!(veto(&state, all, "").unwrap_err().contains("hint:"));
        assert!(veto(&state, vec![], "").is_err());
    }
}
