//! What the engineer binds: constraints set and lifted, those that agents read in a note confirmed or let go, and what follows of them for
//! decisions that come later.
//!
//! Not here: what a constraint makes of an action (`plan::check`) and of a plan (`plan::bounds`).

use super::{Effect, bounded, known, own, reopenable, reviewable};
use crate::host::desk::Desk;
use crate::plan::{self, Action, Constraint, Decision, DecisionId, Limit, Status, Target, Wish};
use crate::session::{Event, State};

fn shall_go(target: &Target, least: f64) -> String {
    format!("at least {:.0} % of {target} shall go", 100.0 * least)
}

/// Why what shall go of a target at least forbids to refuse all of it, if it does.
pub(super) fn refusable(state: &State, target: &Target) -> Result<(), String> {
    let least = state.constraints_on(target).find_map(|c| match c.limit {
        Limit::MinRatio { ratio } => Some(ratio),
        _ => None,
    });
    match least {
        Some(least) => Err(format!("{}; hint: edit it, or `:lift {}` first", shall_go(target, least), target.name())),
        None => Ok(()),
    }
}

/// Longest name of a set, characters.
const SET_NAME: usize = 80;

/// Whether a constraint says something of its target, and nothing against those that are there.
fn sound(state: &State, there: &[Constraint], c: &Constraint) -> Result<(), String> {
    let fits = match (&c.limit, &c.target) {
        (Limit::Freeze, _) => true,
        // Of a block it is said of the groups in it.
        (Limit::MaxRatio { .. }, t) => matches!(t, Target::Group(_) | Target::Block(_)),
        (Limit::KeepF32, _) => true,
        (Limit::MinRatio { .. }, t) => matches!(t, Target::Group(_)),
        (Limit::Together { .. }, t) => matches!(t, Target::Group(_) | Target::Layer(_)),
        (Limit::Prefer { wish: Wish::Precision { .. } }, t) => matches!(t, Target::Layer(_)),
        (Limit::Prefer { wish: Wish::Cut | Wish::Spare }, _) => true,
    };
    if !fits {
        return Err(format!("that says nothing of {}; hint: ratios are of groups, precisions of layers", c.target));
    }
    match &c.limit {
        Limit::MinRatio { ratio } if *ratio <= 0.0 => {
            return Err("at least nothing binds nothing; hint: `:at-least 25%`".to_owned());
        }
        Limit::MaxRatio { ratio } | Limit::MinRatio { ratio } if !(0.0..=1.0).contains(ratio) => {
            return Err(format!("limit `{ratio}` is out of range; hint: a ratio lies between 0 and 1"));
        }
        Limit::Together { set } if set.trim().is_empty() || set.chars().count() > SET_NAME => {
            return Err(format!("a set's name has 1 to {SET_NAME} characters; hint: `:together layer1.*`"));
        }
        _ => {}
    }
    let here = |o: &&Constraint| o.target == c.target;
    let other = |f: &dyn Fn(&Limit) -> Option<f64>| there.iter().filter(here).find_map(|o| f(&o.limit));
    let against = match c.limit {
        Limit::MinRatio { ratio } => other(&|l| match l {
            Limit::MaxRatio { ratio: most } if *most < ratio => Some(*most),
            Limit::Freeze => Some(0.0),
            _ => None,
        })
        .map(|most| format!("at most {:.0} % of {} may go", 100.0 * most, c.target)),
        Limit::MaxRatio { .. } | Limit::Freeze => other(&|l| match (l, &c.limit) {
            (Limit::MinRatio { ratio: least }, Limit::MaxRatio { ratio }) if least <= ratio => None,
            (Limit::MinRatio { ratio: least }, _) => Some(*least),
            _ => None,
        })
        .map(|least| shall_go(&c.target, least)),
        _ => None,
    };
    if let Some(against) = against {
        return Err(format!("{against}; hint: `:lift {}` first", c.target.name()));
    }
    let group =
        state.card.as_ref().and_then(|card| card.groups.iter().find(|g| Target::Group(g.id.clone()) == c.target));
    if let (Limit::MinRatio { .. }, Some(why)) = (&c.limit, group.and_then(|g| g.protected.as_ref())) {
        return Err(format!("nothing of {} can go: {why}; hint: another group", c.target));
    }
    Ok(())
}

pub(super) fn constrain(state: &State, constraint: Constraint) -> Result<Effect, String> {
    known(state, &constraint.target)?;
    let constraint = Constraint { reason: bounded(&constraint.reason)?, ..constraint };
    let there: Vec<Constraint> = state.constraints_on(&constraint.target).cloned().collect();
    sound(state, &there, &constraint)?;
    let here = state.planned(&constraint.target);
    let waits: Vec<DecisionId> = here.open.iter().chain(&here.approved).map(|d| d.id).collect();
    if constraint.limit == Limit::Freeze && !waits.is_empty() && reviewable(state).is_ok() {
        // To freeze a target is to refuse what waits there.
        return Ok(Effect::events([Event::Vetoed { ids: waits, reason: constraint.reason }]));
    }
    Ok(Effect::events([Event::ConstraintSet { constraint }]))
}

/// All of them at once, and each held against the others; what waits where nothing new may come is refused with them, in the same step.
pub(super) fn bind(state: &State, constraints: Vec<Constraint>) -> Result<Effect, String> {
    let mut there = state.constraints.clone();
    let (mut vetoed, mut set) = (Vec::new(), Vec::new());
    for constraint in constraints {
        sound(state, &there, &constraint)?;
        there.push(constraint.clone());
        for event in constrain(state, constraint.clone())?.events {
            match event {
                Event::Vetoed { ids: waits, reason } => {
                    vetoed.extend(waits);
                    set.push(Constraint { reason, ..constraint.clone() });
                }
                Event::ConstraintSet { constraint } => set.push(constraint),
                _ => {}
            }
        }
    }
    let set = (!set.is_empty()).then_some(Event::ConstraintsSet { constraints: set, vetoed });
    Ok(Effect::events(set))
}

pub(super) fn lift(state: &State, targets: Vec<Target>) -> Result<Effect, String> {
    let (mut ids, mut lifted) = (Vec::new(), Vec::new());
    for target in targets {
        for event in unconstrain(state, target)?.events {
            match event {
                Event::Reopened { ids: back } => ids.extend(back),
                Event::ConstraintLifted { target } => lifted.push(target),
                _ => {}
            }
        }
    }
    let lifted = (!lifted.is_empty()).then_some(Event::ConstraintsLifted { targets: lifted });
    let reopened = (!ids.is_empty()).then_some(Event::Reopened { ids });
    Ok(Effect::events(lifted.into_iter().chain(reopened)))
}

pub(super) fn unconstrain(state: &State, target: Target) -> Result<Effect, String> {
    if state.constraints_on(&target).next().is_none() {
        return Err(format!("`{target}` has no constraint; hint: the decision card lists those that bind"));
    }
    // A veto without its freeze would bind nobody and still look like one.
    let vetoed = |d: &&Decision| d.target == target && d.status == Status::Vetoed;
    let ids: Vec<DecisionId> = state.decisions.iter().filter(vetoed).map(|d| d.id).collect();
    let ids = reopenable(state, &ids);
    let more = state.constraints_on(&target).any(|c| c.limit != Limit::Freeze);
    let lifted = (more || ids.is_empty()).then_some(Event::ConstraintLifted { target });
    let reopened = (!ids.is_empty()).then_some(Event::Reopened { ids });
    Ok(Effect::events(lifted.into_iter().chain(reopened)))
}

/// What agents read in a note becomes the engineer's own, or goes.
pub(super) fn confirm(state: &State, take: bool) -> Result<Effect, String> {
    if state.suggested.is_empty() {
        return Err("no rule waits for you; hint: a note to the agents may become one".to_owned());
    }
    let mut events = match take {
        true => bind(state, state.suggested.iter().flat_map(|s| s.constraints.clone()).collect())?.events,
        false => Vec::new(),
    };
    events.push(Event::SuggestionsDropped);
    Ok(Effect::events(events))
}

/// What the plan that would run leaves undone of the constraints, if anything.
pub(super) fn kept(state: &State) -> Result<(), String> {
    let Some(card) = state.card.as_ref().filter(|_| !state.constraints.is_empty()) else { return Ok(()) };
    match plan::unmet(&state.recipe_actions(), &card.graph, &card.groups, &state.constraints).into_iter().next() {
        Some(words) => Err(words),
        None => Ok(()),
    }
}

/// What was settled of targets that are kept together with others.
fn settled(state: &State) -> Vec<(Target, Action)> {
    let sets = plan::ties(&state.constraints);
    let targets = sets.into_iter().flat_map(|(_, targets)| targets);
    targets.filter_map(|t| Some((t.clone(), state.planned(t).settled()?.action.clone()))).collect()
}

/// Proposals with what the constraints ask for besides: those that are kept together alike, and what shall go at least.
pub(super) fn completed(state: &State, desk: &dyn Desk, mut decisions: Vec<Decision>) -> Vec<Decision> {
    let asks = |c: &Constraint| matches!(c.limit, Limit::Together { .. } | Limit::MinRatio { .. });
    let Some(card) = state.card.as_ref().filter(|_| state.constraints.iter().any(asks)) else { return decisions };
    let Some(author) = decisions.first().map(|d| d.author.clone()) else { return decisions };
    // As each may stand by itself, before they are held against each other.
    // What an author only took back by leaving it out says nothing of the others.
    let planned: Vec<(Target, Action)> = (decisions.iter())
        .filter(|d| d.rationale != plan::GIVEN_UP)
        .map(|d| (d.target.clone(), desk.resolve(state, &d.target, &d.action).unwrap_or_else(|_| d.action.clone())))
        .collect();
    for (target, action) in plan::follows(&planned, &settled(state), &card.graph, &card.groups, &state.constraints) {
        let others = plan::WITH_OTHERS;
        match decisions.iter_mut().find(|d| d.target == target) {
            Some(d) => {
                d.action = action;
                d.rationale = format!("{others} {}", d.rationale).trim().to_owned();
                d.forecast = None;
            }
            None => decisions
                .push(Decision { rationale: others.to_owned(), ..Decision::new(target, action, author.clone()) }),
        }
    }
    if decisions.iter().any(|d| matches!(d.target, Target::Group(_))) {
        let shown = state.shown_actions();
        let has = |plan: &[(Target, Action)], t: &Target| plan.iter().any(|(o, a)| o == t && *a != Action::Keep);
        for c in state.constraints.iter().filter(|c| matches!(c.limit, Limit::MinRatio { .. })) {
            let new = decisions.iter().any(|d| d.target == c.target);
            let removed = |d: &Decision| {
                let block = card.groups.iter().find(|g| g.id == c.target.name()).and_then(|g| g.block.as_deref());
                d.action == Action::RemoveBlock && block == Some(d.target.name())
            };
            if new || has(&shown, &c.target) || decisions.iter().any(removed) {
                continue;
            }
            // Left alone, it comes to what shall go at least.
            if let Ok(action) = desk.resolve(state, &c.target, &Action::Keep)
                && action != Action::Keep
            {
                let rationale = "At least this much of it shall go, as you asked.".to_owned();
                decisions.push(Decision { rationale, ..Decision::new(c.target.clone(), action, author.clone()) });
            }
        }
    }
    decisions
}

/// What the engineer sets on a target that is kept together with others: on all of them, in one step. `None` where it stands alone.
pub(super) fn alike(state: &State, desk: &dyn Desk, target: &Target, action: &Action) -> Result<Option<Event>, String> {
    let others = plan::tied(target, &state.constraints);
    let Some(card) = state.card.as_ref().filter(|_| !others.is_empty()) else { return Ok(None) };
    let all: Vec<&Target> = std::iter::once(target).chain(&others).collect();
    let action = &plan::common(action, &all, &card.graph, &card.groups, &state.constraints);
    let mut fresh: Vec<Decision> = Vec::new();
    for (at, target) in std::iter::once(target.clone()).chain(others.clone()).enumerate() {
        let action = match (desk.resolve(state, &target, &plan::bare(action.clone())), at) {
            (Ok(action), _) => action,
            (Err(words), 0) => return Err(words),
            (Err(words), _) => return Err(format!("{target} is kept together with it: {words}")),
        };
        let here = state.planned(&target);
        if at > 0 && here.open.or_else(|| here.runs()).is_some_and(|d| plan::same_cut(&d.action, &action, 1e-9)) {
            continue;
        }
        let id = DecisionId(state.next_decision + fresh.len() as u64);
        fresh.push(Decision { id, ..own(state, target, action) });
    }
    Ok(Some(Event::Proposed { decisions: fresh }))
}
