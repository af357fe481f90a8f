//! Whole plans that were built and tried on held-back calibration images: what forecasts of quality rest on.
//!
//! A *rehearsal* is the plan on the screen, built as a run would build it; an *anchor* is a plan made only to learn from.
//! Plain data; trying is `eval`'s, building `recover`'s.

use super::{Action, Target, same_cut};
use crate::eval::{Correction, TrialOutcome};
use serde::{Deserialize, Serialize};

/// One plan that was tried.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Trial {
    /// See [`plan_key`].
    pub key: String,
    pub actions: Vec<(Target, Action)>,
    pub outcome: TrialOutcome,
    /// Made to learn from, not asked for.
    #[serde(default)]
    pub anchor: bool,
}

/// All trials of a session, and what makes them speak for new images.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Trials {
    pub correction: Option<Correction>,
    pub list: Vec<Trial>,
}

impl Trials {
    /// The trial of exactly these actions.
    pub fn of(&self, actions: &[(Target, Action)]) -> Option<&Trial> {
        self.list.iter().rev().find(|t| same_plan(&t.actions, actions))
    }

    /// Takes a trial in; an earlier one of the same plan gives way.
    pub fn add(&mut self, trial: Trial) {
        self.list.retain(|t| t.key != trial.key);
        self.list.push(trial);
        if self.list.len() > Trials::MOST {
            // Anchors teach most: the oldest rehearsal goes.
            let at = self.list.iter().position(|t| !t.anchor).unwrap_or(0);
            self.list.remove(at);
        }
    }

    /// Trials that are kept.
    pub const MOST: usize = 100;
}

/// Whether two plans are the same. Where one has a cut whose units are still to be chosen it is the other's: their importance chooses them,
/// always alike.
pub fn same_plan(a: &[(Target, Action)], b: &[(Target, Action)]) -> bool {
    let open = |a: &Action| matches!(a, Action::Prune { kept, .. } if kept.is_empty());
    let same = |(of, a): &(Target, Action), (other, b): &(Target, Action)| {
        of == other && (a == b || ((open(a) || open(b)) && same_cut(a, b, 1e-9)))
    };
    let acts = |plan: &[(Target, Action)]| plan.iter().filter(|(_, a)| *a != Action::Keep).count();
    let within = |a: &[(Target, Action)], b: &[(Target, Action)]| {
        // In order they are mostly the same, so that each is looked for where the last was found.
        let mut at = 0;
        a.iter().filter(|(_, a)| *a != Action::Keep).all(|one| {
            let found = (at..b.len()).chain(0..at).find(|&i| same(one, &b[i]));
            at = found.map_or(0, |i| i + 1);
            found.is_some()
        })
    };
    acts(a) == acts(b) && within(a, b) && within(b, a)
}

/// What a plan is known by: its actions whatever their order, [`Action::Keep`] left out.
pub fn plan_key(actions: &[(Target, Action)]) -> String {
    let mut parts: Vec<String> = actions
        .iter()
        .filter(|(_, a)| *a != Action::Keep)
        .map(|one| serde_json::to_string(one).unwrap_or_default())
        .collect();
    parts.sort_unstable();
    blake3::hash(parts.join("\n").as_bytes()).to_hex().as_str()[..32].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cut(id: &str, ratio: f64) -> (Target, Action) {
        (Target::Group(id.into()), Action::Prune { ratio, kept: vec![0, 2] })
    }

    #[test]
    fn a_plan_is_known_by_its_actions_in_any_order() {
        let (a, b) = (cut("a", 0.5), cut("b", 0.25));
        let keep = (Target::Group("c".into()), Action::Keep);
        let other = (a.0.clone(), Action::Prune { ratio: 0.5, kept: vec![0, 1] });
        let plans = [
            (vec![a.clone(), b.clone()], vec![b.clone(), keep.clone(), a.clone()], true),
            (vec![], vec![keep], true),
            (vec![a.clone()], vec![cut("a", 0.25)], false),
            (vec![a.clone()], vec![other], false),
            (vec![a.clone(), b.clone()], vec![a.clone()], false),
            (vec![a.clone(), b.clone()], vec![a.clone(), a.clone()], false),
        ];
        for (one, two, same) in plans {
            assert_eq!(plan_key(&one) == plan_key(&two), same, "{one:?} {two:?}: which units stay decides");
            assert_eq!(same_plan(&one, &two), same, "{one:?} {two:?}");
            assert_eq!(same_plan(&two, &one), same, "{two:?} {one:?}");
        }
    }

    #[test]
    fn units_that_are_still_to_be_chosen_are_those_that_were() {
        let open = |ratio| (Target::Group("a".into()), Action::Prune { ratio, kept: Vec::new() });
        let (built, b) = (cut("a", 0.5), cut("b", 0.25));
        assert!(same_plan(&[open(0.5), b.clone()], &[b.clone(), built.clone()]));
        assert!(same_plan(std::slice::from_ref(&built), &[open(0.5)]) && same_plan(&[open(0.5)], &[open(0.5)]));
        assert!(!same_plan(&[open(0.25)], std::slice::from_ref(&built)) && !same_plan(&[open(0.5), b], &[built]));
    }

    #[test]
    fn the_newest_trial_of_a_plan_counts_and_anchors_stay() {
        let of = |ratio: f64, d: f64, anchor| {
            let actions = vec![cut("a", ratio)];
            let outcome = TrialOutcome { d_quality: d, ..Default::default() };
            Trial { key: plan_key(&actions), actions, outcome, anchor }
        };
        let mut t = Trials::default();
        t.add(of(0.5, -1.0, false));
        t.add(of(0.5, -2.0, false));
        assert_eq!((t.list.len(), t.of(&[cut("a", 0.5)]).map(|t| t.outcome.d_quality)), (1, Some(-2.0)));
        t.add(of(0.25, -3.0, true));
        for i in 0..2 * Trials::MOST {
            t.add(of(0.001 * i as f64 + 0.0005, 0.0, false));
        }
        assert_eq!(t.list.len(), Trials::MOST);
        assert!(t.of(&[cut("a", 0.25)]).is_some_and(|t| t.anchor));
    }
}
