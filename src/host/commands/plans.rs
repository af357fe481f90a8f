//! Plans beside the one that is shown: keeping it under a name, and taking rows of another one over.

use super::{Effect, many};
use crate::host::desk::Desk;
use crate::plan::{Action, Target};
use crate::session::{Event, KeptPlan, PLAN_NAME, State};

/// The plan that is shown, under a name that shows as it is.
pub fn fork(state: &State, name: &str) -> Result<Effect, String> {
    let name = name.trim();
    if name.is_empty() || name.chars().count() > PLAN_NAME {
        return Err(format!("a plan's name has 1 to {PLAN_NAME} characters; hint: `:fork cautious`"));
    }
    if name.chars().any(crate::plain::hostile) {
        return Err("a plan's name is plain text; hint: `:fork cautious`".to_owned());
    }
    let taken = |other: &str| other.eq_ignore_ascii_case(name);
    if state.other_plans().iter().any(|o| taken(&o.name))
        || ["shown", "planner", "original"].iter().any(|w| taken(w))
        || name.starts_with("round ")
    {
        return Err(format!("there is a plan called `{name}`; hint: another name"));
    }
    let mut actions = state.shown_actions();
    actions.retain(|(_, action)| *action != Action::Keep);
    if actions.is_empty() {
        return Err("there is no plan to keep; hint: ask for one or decide something first".to_owned());
    }
    Ok(Effect::events([Event::PlanKept { plan: KeptPlan { name: name.to_owned(), actions } }]))
}

/// What another plan has, as decisions of the engineer's that wait for approval. What cannot stand (a veto, a limit) is left out, and an
/// error only where nothing can.
pub fn take(state: &State, desk: &dyn Desk, actions: Vec<(Target, Action)>, from: &str) -> Result<Effect, String> {
    let rationale = format!("Taken from {}.", crate::agent::clean::line(from, 2 * PLAN_NAME));
    let (fresh, left) = many::several(state, desk, actions, |_| rationale.clone())?;
    if fresh.is_empty() {
        let none = || "the plan that is shown has that already; hint: there is nothing to take".to_owned();
        return Err(left.into_iter().next().unwrap_or_else(none));
    }
    Ok(Effect::events([Event::Proposed { decisions: fresh }]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::Fake;
    use crate::plan::{Author, Constraint, Decision, DecisionId, Limit, Status, same_cut};
    use crate::session::Record;

    fn group(id: &str) -> Target {
        Target::Group(id.to_owned())
    }

    fn cut(ratio: f64) -> Action {
        Action::Prune { ratio, kept: Vec::new() }
    }

    fn apply(state: &mut State, events: Vec<Event>) {
        for event in events {
            state.apply(&Record { seq: state.seq + 1, at_ms: 0, event });
        }
    }

    /// An agent's plan for a and b: a waits, b is approved.
    fn session() -> State {
        let agent = Author::Agent { role: "pruning".into(), model: "m".into() };
        let made = |id, name: &str, ratio| Decision {
            id: DecisionId(id),
            round: 1,
            ..Decision::new(group(name), cut(ratio), agent.clone())
        };
        let mut state = State { round: 1, phase: crate::session::Phase::Review, ..State::default() };
        apply(&mut state, vec![Event::Proposed { decisions: vec![made(0, "a", 0.5), made(1, "b", 0.5)] }]);
        apply(&mut state, vec![Event::Approved { ids: vec![DecisionId(1)] }]);
        state
    }

    fn shown(state: &State, name: &str) -> Option<(Action, Status, bool)> {
        let d = state.planned(&group(name)).shown()?;
        Some((d.action.clone(), d.status, d.by_person()))
    }

    #[test]
    fn rows_of_another_plan_become_decisions_that_wait_and_can_be_undone() {
        let mut state = session();
        let theirs = vec![(group("a"), Action::Keep), (group("b"), cut(0.25)), (group("c"), cut(0.25))];
        let took = take(&state, &Fake::default(), theirs, "the planner's").unwrap();
        apply(&mut state, took.events);
        for name in ["a", "b", "c"] {
            let (_, status, mine) = shown(&state, name).unwrap();
            assert!(mine && matches!(status, Status::Proposed | Status::Edited), "{name}: {status:?}");
        }
        let of = |state: &State, name: &str| {
            let actions = state.shown_actions();
            actions.into_iter().find(|(t, _)| *t == group(name)).map_or(Action::Keep, |(_, a)| a)
        };
        assert!(same_cut(&of(&state, "b"), &cut(0.25), 1e-9) && same_cut(&of(&state, "c"), &cut(0.25), 1e-9));
        assert_eq!(of(&state, "a"), Action::Keep);
        // Nothing runs by it.
        assert_eq!(state.recipe_actions(), []);
        // One step, the approval included.
        apply(&mut state, vec![Event::Undone]);
        assert!(same_cut(&of(&state, "a"), &cut(0.5), 1e-9) && shown(&state, "c").is_none());
        assert_eq!(shown(&state, "b").unwrap().1, Status::Approved);
        assert_eq!(state.recipe_actions().len(), 1);
    }

    #[test]
    fn what_cannot_stand_is_left_out_and_nothing_at_all_is_an_error() {
        let mut state = session();
        let constraint = Constraint { target: group("c"), limit: Limit::Freeze, reason: "mine".into() };
        apply(&mut state, vec![Event::ConstraintSet { constraint }]);
        let both = vec![(group("a"), cut(0.25)), (group("c"), cut(0.25))];
        let took = take(&state, &Fake::default(), both.clone(), "x").unwrap();
        apply(&mut state, took.events);
        assert!(shown(&state, "a").unwrap().2 && shown(&state, "c").is_none());
        let why = take(&state, &Fake::default(), both, "x").unwrap_err();
        assert!(why.contains("frozen") && why.contains("hint:"), "{why}");
        assert!(take(&state, &Fake::default(), vec![(group("a"), cut(0.25))], "x").unwrap_err().contains("already"));
        assert!(take(&state, &Fake::default(), vec![], "x").is_err());
    }

    #[test]
    fn the_plan_that_is_shown_is_kept_under_a_plain_name() {
        let mut state = session();
        for bad in ["", "  ", &"x".repeat(41), "a\u{1b}[2J"] {
            assert!(fork(&state, bad).unwrap_err().contains("hint:"), "{bad:?}");
        }
        let kept = fork(&state, " cautious ").unwrap();
        apply(&mut state, kept.events);
        for taken in ["cautious", "Cautious", "round 1", "the original", "shown"] {
            assert!(fork(&state, taken).unwrap_err().contains("another name"), "{taken}");
        }
        assert_eq!((state.plans.len(), state.plans[0].name.as_str(), state.plans[0].actions.len()), (1, "cautious", 2));
        assert!(fork(&State::default(), "x").unwrap_err().contains("no plan"));
    }
}
