//! What is kept together gets one action: each set is tried with what its targets were given alone, and the best of those stands.
//!
//! Not here: which sets there are (`plan::bounds`).

use super::solve::{Problem, Solution, Stop};
use super::{Action, PlannerInput, Target, check};
use crate::plan::{common, strength, ties};

/// Sets whose actions are tried one by one; of more, all get the mildest.
const TRIED: usize = 8;

/// `first` with the sets decided alike, solved again by `solve` for all others.
pub(super) fn together(
    first: Solution,
    problem: &mut Problem<'_>,
    input: &PlannerInput,
    solve: &mut dyn FnMut(&mut Problem<'_>) -> Solution,
) -> Solution {
    let mut best = first;
    let sets = ties(input.constraints);
    for (n, (_, targets)) in sets.iter().enumerate() {
        let of = |plan: &[(Target, Action)], t: &Target| {
            plan.iter().find(|(o, _)| o == t).map_or(Action::Keep, |(_, a)| a.clone())
        };
        let standing = problem.fixed.iter().find(|(t, _)| targets.contains(&t)).map(|(_, a)| vec![a.clone()]);
        let options = standing.unwrap_or_else(|| {
            let mut all: Vec<(f64, Action)> = targets
                .iter()
                .map(|t| {
                    let action = of(&best.actions, t);
                    (strength(t, &action, input.graph), action)
                })
                .collect();
            all.sort_by(|a, b| a.0.total_cmp(&b.0));
            all.dedup_by(|a, b| (a.0 - b.0).abs() < 1e-9);
            let mean = all.iter().map(|(s, _)| s).sum::<f64>() / all.len().max(1) as f64;
            let cuts = all.iter().any(|(_, a)| matches!(a, Action::Prune { .. })) && all.len() > 1;
            let between = cuts.then(|| Action::Prune { ratio: mean, kept: Vec::new() });
            let most = if n < TRIED { all.len() } else { 1 };
            all.into_iter().take(most).map(|(_, a)| a).chain(between.filter(|_| n < TRIED)).collect()
        });
        let before = problem.candidates.clone();
        let mut found: Option<(Solution, _)> = None;
        let mut options: Vec<Action> =
            (options.iter()).map(|a| common(a, targets, input.graph, input.groups, input.constraints)).collect();
        options.dedup();
        for option in options {
            problem.candidates.clone_from(&before);
            for c in problem.candidates.iter_mut().filter(|c| targets.contains(&&c.target)) {
                let Ok(action) = check(&option, &c.target, input.groups, input.graph, input.constraints) else {
                    continue;
                };
                let divergence = problem.forecaster.divergence_of(&c.target, &action).unwrap_or(0.0);
                c.must = action != Action::Keep;
                (c.levels, c.divergence, c.weighed) = (vec![action], vec![divergence], vec![divergence]);
            }
            let next = solve(problem);
            let rank = |s: &Solution| (s.stop != Stop::Met, problem.forecaster.divergence(&s.actions));
            let better = found.as_ref().is_none_or(|(than, _)| {
                let (a, b) = (rank(&next), rank(than));
                a.0.cmp(&b.0).then(a.1.total_cmp(&b.1)).is_lt()
            });
            if better {
                found = Some((next, problem.candidates.clone()));
            }
        }
        match found {
            Some((next, candidates)) => (best, problem.candidates) = (next, candidates),
            None => problem.candidates = before,
        }
    }
    best
}
