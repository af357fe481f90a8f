//! Which of several plans for one budget: what was built and tried goes before what is forecast.
//!
//! Invariant: only trials of both on the same held-back items change a choice, and only beyond what chance would do. Not here: trying
//! (`host::compute::trial`).

use super::solve::Solution;
use crate::eval::TrialOutcome;
use crate::plan::{Action, Target, Trial, Trials, same_cut};

/// Parts of the error of a difference that it must exceed to count. Trials share their items, so that this errs to the side of leaving the
/// choice as it is.
const SURE: f64 = 0.5;

/// How much better `a` did than `b`, in the metric's unit, where that is more than chance.
pub fn beats(a: &TrialOutcome, b: &TrialOutcome) -> Option<f64> {
    let gained = a.d_quality - b.d_quality;
    (gained > SURE * a.sample_sd.hypot(b.sample_sd)).then_some(gained)
}

/// The same targets with the same actions, whatever units the cuts keep; what is kept whole does not count.
pub fn same_plan(a: &[(Target, Action)], b: &[(Target, Action)]) -> bool {
    let changes = |plan: &[(Target, Action)]| plan.iter().filter(|(_, action)| *action != Action::Keep).count();
    let has =
        |(target, action): &(Target, Action)| b.iter().any(|(t, other)| t == target && same_cut(action, other, 1e-9));
    changes(a) == changes(b) && a.iter().filter(|(_, action)| *action != Action::Keep).all(has)
}

/// The newest trial of the same plan.
pub fn trial_of<'a>(trials: &'a Trials, plan: &[(Target, Action)]) -> Option<&'a Trial> {
    trials.list.iter().rev().find(|t| same_plan(&t.actions, plan))
}

/// The solution that did best where it and others were tried, and what that gained over the first.
pub(super) fn by_trial(first: Solution, trials: &Trials) -> (Solution, Option<f64>) {
    let Some(tried) = trial_of(trials, &first.actions) else { return (first, None) };
    let better = first.others.iter().enumerate().filter_map(|(i, plan)| {
        let gained = beats(&trial_of(trials, plan)?.outcome, &tried.outcome)?;
        Some((gained, i))
    });
    let Some((gained, i)) = better.max_by(|a, b| a.0.total_cmp(&b.0)) else { return (first, None) };
    let Solution { actions, stop, mut others } = first;
    let best = std::mem::replace(&mut others[i], actions);
    (Solution { actions: best, stop, others }, Some(gained))
}

#[cfg(test)]
mod tests {
    use super::super::solve::Stop;
    use super::*;
    use crate::plan::plan_key;
    use crate::quant::Precision;

    fn cut(id: &str, ratio: f64, kept: Vec<u32>) -> (Target, Action) {
        (Target::Group(id.into()), Action::Prune { ratio, kept })
    }

    #[test]
    fn trials_of_both_and_more_than_chance_change_the_choice() {
        let plan = |ratio| vec![cut("a", ratio, Vec::new())];
        let trial = |ratio, d_quality, sample_sd| {
            let actions = vec![cut("a", ratio, vec![0, 1]), (Target::Group("b".into()), Action::Keep)];
            let outcome = TrialOutcome { d_quality, sample_sd, ..TrialOutcome::default() };
            Trial { key: plan_key(&actions), actions, outcome, anchor: false }
        };
        let chosen = |list: Vec<Trial>| {
            let first = Solution { actions: plan(0.5), stop: Stop::Met, others: vec![plan(0.25), plan(0.375)] };
            let (found, gained) = by_trial(first, &Trials { list, correction: None });
            assert_eq!(found.others.len(), 2);
            (found.actions, gained)
        };
        assert_eq!(chosen(vec![trial(0.375, 5.0, 0.1)]), (plan(0.5), None), "the first was not tried");
        let both = chosen(vec![trial(0.5, -1.0, 0.1), trial(0.375, -0.5, 0.1), trial(0.25, -0.75, 0.1)]);
        assert_eq!(both, (plan(0.375), Some(0.5)));
        assert_eq!(chosen(vec![trial(0.5, -1.0, 1.0), trial(0.375, -0.5, 1.0)]).1, None, "that is chance");
        let int8 = (Target::Layer("a".into()), Action::Precision { precision: Precision::Int8 });
        assert!(!same_plan(&plan(0.5), &[cut("a", 0.5, Vec::new()), int8]));
    }
}
