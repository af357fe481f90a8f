//! Going back to the decisions of an earlier moment, in one act that one undo takes back.
//!
//! Not here: reading that moment from the journal (`host/core`), models (a round goes back by `RollBack`). Invariants: what waited then waits again,
//! with its author and reasons; what was approved or in force then is approved, and nothing else is; constraints, budget and rounds stay as they
//! are, and what they forbid by now is left out and told. The plan that gives way is kept ([`KeptPlan::replaced_by`]).

use super::{Effect, Then};
use crate::host::desk::Desk;
use crate::plan::{Action, Decision, DecisionId, Status, Target, same_cut};
use crate::session::{Event, KeptPlan, Planned, State};
use crate::words::counted_as;

/// Targets that are told in full, of those that stay as they are now.
const TOLD: usize = 2;

/// What `target` had then: an action and whether it waited or was to be built; `None`: as in the original.
fn had(then: &Planned<'_>) -> Option<Decision> {
    match then.open {
        Some(open) => Some(open.clone()),
        None => then.runs().map(|d| Decision { status: Status::Approved, ..d.clone() }),
    }
}

/// What `state` has instead of what `past` had, in events.
pub fn restore(state: &State, desk: &dyn Desk, past: &State) -> Result<Effect, String> {
    let mut targets: Vec<&Target> = state.plan().into_iter().chain(past.plan()).map(|(t, _)| t).collect();
    targets.sort();
    targets.dedup();
    let (mut decisions, mut dropped, mut left): (Vec<Decision>, Vec<DecisionId>, Vec<String>) = Default::default();
    for target in targets {
        let (now, wanted) = (state.planned(target), had(&past.planned(target)));
        let waits = now.open.into_iter().chain(now.approved);
        if stands(&now, wanted.as_ref()) {
            // At most a proposal lies over what shall be.
            if wanted.as_ref().is_none_or(|w| w.status == Status::Approved) {
                dropped.extend(now.open.map(|d| d.id));
            }
            continue;
        }
        let in_force = now.in_force.map(|(d, _)| d).filter(|d| d.status != Status::Vetoed);
        let built = |w: &Decision| {
            w.status == Status::Approved && in_force.is_some_and(|d| same_cut(&d.action, &w.action, 1e-9))
        };
        let fresh = match wanted {
            // The newest model has it: what lies over it goes, and nothing is approved twice.
            Some(wanted) if built(&wanted) => None,
            Some(wanted) => Some(wanted),
            // In force now and not then: the next run goes back to the original here.
            None if in_force.is_some() => {
                Some(Decision { status: Status::Approved, ..super::own(state, target.clone(), Action::Keep) })
            }
            None => None,
        };
        match fresh.as_ref().and_then(|d| refused(state, desk, &now, d)) {
            Some(why) => left.push(why),
            None => {
                dropped.extend(waits.map(|d| d.id));
                let id = DecisionId(state.next_decision + decisions.len() as u64);
                let round = state.round;
                decisions.extend(fresh.map(|d| Decision { id, round, veto_reason: None, forecast: None, ..d }));
            }
        }
    }
    let to = past.seq;
    if decisions.is_empty() && dropped.is_empty() {
        let same =
            || format!("the decisions are as they were after event {to}; hint: pick another row of the timeline");
        return Err(left.into_iter().next().unwrap_or_else(same));
    }
    let then = match left.len() {
        0 => Then::Nothing,
        n => {
            let told = left.iter().take(TOLD).cloned().collect::<Vec<_>>().join("; ");
            let more = if n > TOLD { format!("; and {} more", n - TOLD) } else { String::new() };
            let text = format!("{} as now: {told}{more}", counted_as(n, "target stays", "targets stay"));
            Then::Say { waits: true, text }
        }
    };
    let mut actions = state.shown_actions();
    actions.retain(|(_, action)| *action != Action::Keep);
    // The event after the one that keeps it.
    let kept = (!actions.is_empty()).then(|| KeptPlan { name: KeptPlan::replaced_by(state.seq + 2), actions });
    let events = kept.map(|plan| Event::PlanKept { plan }).into_iter();
    Ok(Effect { events: events.chain([Event::Restored { to, decisions, dropped }]).collect(), then })
}

/// Whether what shall be is there by now, apart from proposals over it.
fn stands(now: &Planned<'_>, wanted: Option<&Decision>) -> bool {
    let same =
        |have: Option<&Decision>, action: &Action| same_cut(have.map_or(&Action::Keep, |d| &d.action), action, 1e-9);
    match wanted {
        Some(w) if w.status == Status::Approved => same(now.runs(), &w.action),
        Some(w) => now.open.is_some() && same(now.open, &w.action),
        None => now.approved.is_none() && now.in_force.is_none_or(|(d, _)| d.status == Status::Vetoed),
    }
}

/// Why `d` cannot stand by now, in words.
fn refused(state: &State, desk: &dyn Desk, now: &Planned<'_>, d: &Decision) -> Option<String> {
    if now.frozen.is_some() && now.open.is_none() && now.approved.is_none() {
        return Some(format!("`{}` was vetoed or frozen since; hint: reopen it, or lift the constraint", d.target));
    }
    state.forbids(d).or_else(|| desk.refuses(&d.action).map(|why| format!("`{}`: {why}", d.target)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::fake::Fake;
    use crate::plan::{Author, Constraint, Limit};
    use crate::session::{Phase, Record};

    fn group(id: &str) -> Target {
        Target::Group(id.to_owned())
    }

    fn cut(ratio: f64) -> Action {
        Action::Prune { ratio, kept: vec![0, 1] }
    }

    fn made(id: u64, name: &str, ratio: f64) -> Decision {
        let agent = Author::Agent { role: "pruning".into(), model: "m".into() };
        let rationale = format!("why {id}");
        Decision { id: DecisionId(id), round: 1, rationale, ..Decision::new(group(name), cut(ratio), agent) }
    }

    fn apply(state: &mut State, events: Vec<Event>) {
        for event in events {
            state.apply(&Record { seq: state.seq + 1, at_ms: 0, event });
        }
    }

    /// A waits, b is approved.
    fn session() -> State {
        let mut state = State { round: 1, phase: Phase::Review, ..State::default() };
        apply(&mut state, vec![Event::Proposed { decisions: vec![made(0, "a", 0.5), made(1, "b", 0.5)] }]);
        apply(&mut state, vec![Event::Approved { ids: vec![DecisionId(1)] }]);
        state
    }

    type Shown = Vec<(Target, Action, Status, Author, String)>;

    /// What waits and what is approved, without numbers.
    fn shown(state: &State) -> Shown {
        let of = |d: &Decision| (d.target.clone(), d.action.clone(), d.status, d.author.clone(), d.rationale.clone());
        let mut out: Shown = state.open().into_iter().chain(state.pending()).map(of).collect();
        out.sort_by(|a, b| a.0.cmp(&b.0));
        out
    }

    #[test]
    fn an_earlier_moment_comes_back_in_one_act_and_what_gives_way_is_kept() {
        let mut state = session();
        let past = state.clone();
        // Since then: another cut of a is approved, b is decided anew and open, c is approved.
        let own = |id, name: &str, ratio| Decision { author: Author::Human, ..made(id, name, ratio) };
        apply(&mut state, vec![Event::Proposed { decisions: vec![own(2, "a", 0.25)] }]);
        apply(&mut state, vec![Event::Proposed { decisions: vec![own(3, "b", 0.75), own(4, "c", 0.125)] }]);
        apply(&mut state, vec![Event::Approved { ids: vec![DecisionId(2), DecisionId(4)] }]);
        let before = state.clone();
        let back = restore(&state, &Fake::default(), &past).expect("restored");
        assert_eq!(back.then, Then::Nothing);
        apply(&mut state, back.events);
        assert_eq!(shown(&state), shown(&past), "with authors, reasons and approvals");
        assert_eq!(state.recipe_actions(), past.recipe_actions());
        let kept = state.plans.last().expect("what was replaced is kept");
        let mut had = before.shown_actions();
        had.sort_by(|a, b| a.0.cmp(&b.0));
        let mut has = kept.actions.clone();
        has.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!((kept.name.clone(), has), (KeptPlan::replaced_by(state.seq), had));
        // One undo brings all of it back, approvals included; one redo the past.
        apply(&mut state, vec![Event::Undone]);
        assert_eq!((shown(&state), &state.decisions), (shown(&before), &before.decisions));
        apply(&mut state, vec![Event::Redone]);
        assert_eq!(shown(&state), shown(&past));
        // There is nothing to go back to twice.
        let why = restore(&state, &Fake::default(), &past).unwrap_err();
        assert!(why.contains("as they were") && why.contains("hint:"), "{why}");
    }

    #[test]
    fn what_is_in_force_gives_way_by_the_next_run_and_what_was_comes_back_by_it() {
        let mut state = session();
        let ids = vec![DecisionId(1)];
        let (artifact, model_hash) = ("m".to_owned(), "h".to_owned());
        let run = |round, ids: Vec<DecisionId>, recipe: Vec<DecisionId>| {
            vec![
                Event::RunStarted { round, ids: ids.clone(), recipe: Some(recipe), forecast: None },
                Event::Applied {
                    round,
                    ids,
                    artifact: artifact.clone(),
                    model_hash: model_hash.clone(),
                    used: Default::default(),
                },
                Event::RoundAccepted { round },
            ]
        };
        let original = State { seq: 0, ..State::default() };
        apply(&mut state, run(1, ids.clone(), ids));
        let round1 = state.clone();
        assert_eq!(round1.in_force().len(), 1);
        // To the beginning: the model stands, and the next run builds the original.
        let back = restore(&state, &Fake::default(), &original).expect("restored");
        apply(&mut state, back.events);
        assert_eq!((state.recipe_actions(), state.in_force().len()), (vec![(group("b"), Action::Keep)], 1));
        assert!(state.open().is_empty(), "the proposal is gone too");
        // And to the round again: it is in force already, nothing is approved twice.
        let forth = restore(&state, &Fake::default(), &round1).expect("restored");
        apply(&mut state, forth.events);
        assert_eq!((state.recipe_actions(), state.pending().len()), (round1.recipe_actions(), 0));
        // Rolled back, it is approved anew, to be built as it was.
        apply(&mut state, vec![Event::RolledBack { round: 1, reason: String::new() }]);
        assert!(state.in_force().is_empty());
        let again = restore(&state, &Fake::default(), &round1).expect("restored");
        apply(&mut state, again.events);
        assert_eq!(state.recipe_actions(), [(group("b"), cut(0.5))]);
        assert_eq!(state.pending().len(), 1);
    }

    #[test]
    fn what_was_forbidden_since_stays_as_it_is_and_is_told() {
        let mut state = session();
        let past = state.clone();
        apply(&mut state, vec![Event::Vetoed { ids: vec![DecisionId(0), DecisionId(1)], reason: "thin".into() }]);
        let why = restore(&state, &Fake::default(), &past).unwrap_err();
        assert!(why.contains("since") && why.contains("hint:"), "{why}");
        apply(&mut state, vec![Event::ConstraintLifted { target: group("a") }]);
        let back = restore(&state, &Fake::default(), &past).expect("a comes back");
        let Then::Say { waits: true, text } = &back.then else { panic!("{:?}", back.then) };
        assert!(text.starts_with("1 target stays as now") && text.contains("since"), "{text}");
        apply(&mut state, back.events);
        assert_eq!(shown(&state).iter().map(|(t, ..)| t.clone()).collect::<Vec<_>>(), [group("a")]);
        // Constraints are of now.
        let limit = Constraint { target: group("a"), limit: Limit::Freeze, reason: String::new() };
        apply(&mut state, vec![Event::ConstraintSet { constraint: limit }]);
        assert!(state.frozen(&group("a")).is_some());
    }
}
