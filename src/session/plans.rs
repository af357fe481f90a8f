//! Plans beside the one that is shown: kept under a name, the planner's beside agents', those that rounds were made of; and where two differ.
//!
//! Not here: what a plan is expected to do (`forecast`), taking rows of one over (`host/commands/plans`).

use super::{Seq, State};
use crate::plan::{Action, Target, same_cut};
use serde::{Deserialize, Serialize};

/// Plans that a session keeps under names.
pub const MOST_PLANS: usize = 16;
/// Longest name, characters.
pub const PLAN_NAME: usize = 40;
/// How the names begin of plans that gave way when an earlier moment was gone back to; as many are kept as [`MOST_REPLACED`].
const REPLACED: &str = "before going back";
/// Few enough to leave room for those that the engineer named.
const MOST_REPLACED: usize = 3;
/// Cuts that are this close are one: a ratio is rounded to whole units.
const ALIKE: f64 = 1e-3;

/// A plan that the engineer kept under a name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KeptPlan {
    pub name: String,
    pub actions: Vec<(Target, Action)>,
}

impl KeptPlan {
    /// The name of the plan that the restoring event `seq` took the place of.
    pub fn replaced_by(seq: Seq) -> String {
        format!("{REPLACED}, event {seq}")
    }

    /// Puts it among `plans`, in the place of one of that name.
    pub(super) fn keep(self, plans: &mut Vec<KeptPlan>) {
        plans.retain(|p| p.name != self.name);
        plans.push(self);
        let gave_way = |p: &KeptPlan| p.name.starts_with(REPLACED);
        while plans.iter().filter(|p| gave_way(p)).count() > MOST_REPLACED {
            plans.iter().position(gave_way).map(|oldest| plans.remove(oldest));
        }
    }
}

/// A plan to hold the one that is shown against.
#[derive(Debug, Clone, PartialEq)]
pub struct OtherPlan {
    /// Whose it is, or which: `the planner's`, `round 2`, a name.
    pub name: String,
    pub actions: Vec<(Target, Action)>,
    /// The round that was made of it, if one was.
    pub round: Option<u32>,
}

/// A target that two plans treat differently.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    pub target: Target,
    pub here: Action,
    pub there: Action,
}

/// Where `there` is another plan than `here`, by target; what a plan does not name it keeps.
pub fn differences(here: &[(Target, Action)], there: &[(Target, Action)]) -> Vec<Difference> {
    let of = |plan: &[(Target, Action)], target: &Target| {
        plan.iter().find(|(t, _)| t == target).map_or(Action::Keep, |(_, a)| a.clone())
    };
    let mut targets: Vec<&Target> = here.iter().chain(there).map(|(t, _)| t).collect();
    targets.sort();
    targets.dedup();
    let pairs = targets.into_iter().map(|t| Difference { target: t.clone(), here: of(here, t), there: of(there, t) });
    pairs.filter(|d| !same_cut(&d.here, &d.there, ALIKE)).collect()
}

impl State {
    /// What the plan that is shown can be held against, the most likely first.
    pub fn other_plans(&self) -> Vec<OtherPlan> {
        let rival = self.rivals.iter().rev().find(|r| r.round == self.round);
        let rival =
            rival.map(|r| OtherPlan { name: "the planner's".to_owned(), actions: r.actions.clone(), round: None });
        let kept = self.plans.iter().rev();
        let kept = kept.map(|k| OtherPlan { name: k.name.clone(), actions: k.actions.clone(), round: None });
        let made = self.rounds.iter().rev().filter(|r| r.number > 0 && r.artifact.is_some());
        let made = made.map(|r| OtherPlan {
            name: format!("round {}", r.number),
            actions: self.actions_of(r.number),
            round: Some(r.number),
        });
        let original = OtherPlan { name: "the original".to_owned(), actions: Vec::new(), round: Some(0) };
        rival.into_iter().chain(kept).chain(made).chain([original]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::Precision;
    use crate::session::{Rival, Round};

    fn cut(ratio: f64) -> Action {
        Action::Prune { ratio, kept: Vec::new() }
    }

    #[test]
    fn plans_differ_where_one_does_what_the_other_does_not() {
        let group = |id: &str| Target::Group(id.to_owned());
        let int8 = Action::Precision { precision: Precision::Int8 };
        let layer = Target::Layer("fc".to_owned());
        let here = [(group("a"), cut(0.5)), (group("b"), cut(0.25)), (layer.clone(), int8.clone())];
        let there =
            [(group("b"), cut(0.25)), (group("a"), cut(0.25)), (group("c"), cut(0.5)), (group("d"), Action::Keep)];
        let told: Vec<(Target, Action, Action)> =
            differences(&here, &there).into_iter().map(|d| (d.target, d.here, d.there)).collect();
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told.contains(&(group("a"), cut(0.5), cut(0.25))));
        assert!(told.contains(&(group("c"), Action::Keep, cut(0.5))));
        assert!(told.contains(&(layer, int8, Action::Keep)));
        assert_eq!(differences(&here, &here), []);
    }

    #[test]
    fn the_engineers_plans_stay_however_often_decisions_go_back() {
        let mut plans = Vec::new();
        let named = |name: String| KeptPlan { name, actions: Vec::new() };
        named("mine".into()).keep(&mut plans);
        (1..20).for_each(|seq| named(KeptPlan::replaced_by(seq)).keep(&mut plans));
        named("mine".into()).keep(&mut plans);
        let names: Vec<&str> = plans.iter().map(|p| p.name.as_str()).collect();
        let last = [17, 18, 19].map(KeptPlan::replaced_by);
        assert_eq!(names, [&*last[0], &last[1], &last[2], "mine"]);
    }

    #[test]
    fn what_there_is_to_hold_a_plan_against_comes_newest_first() {
        let rival = |round| Rival { round, actions: vec![(Target::Group("a".into()), cut(0.1))], words: String::new() };
        let made = |number, made: bool| Round { number, artifact: made.then(|| "x".to_owned()), ..Round::default() };
        let kept = |name: &str| KeptPlan { name: name.to_owned(), actions: Vec::new() };
        let state = State {
            round: 3,
            rivals: vec![rival(2)],
            plans: vec![kept("first"), kept("second")],
            rounds: vec![made(0, false), made(1, true), made(2, true), made(3, false)],
            ..State::default()
        };
        let names = |s: &State| s.other_plans().into_iter().map(|o| o.name).collect::<Vec<_>>();
        // The planner's was beside an earlier round's.
        assert_eq!(names(&state), ["second", "first", "round 2", "round 1", "the original"]);
        let now = State { rivals: vec![rival(2), rival(3)], ..state };
        assert_eq!(names(&now)[0], "the planner's");
    }
}
