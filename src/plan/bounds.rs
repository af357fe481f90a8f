//! Constraints that speak of a whole plan: what it must have at least, and what must be decided alike.
//!
//! Not here: what a single action may be (`check`). Words are for whoever has to change the plan.

use super::{Action, Constraint, Limit, Target, same_cut};
use crate::graph::Graph;
use crate::prune::Group;
use crate::quant::{Precision, stored_bytes};

/// Sets of targets that are kept together, each with its name: at least two of a kind, none of them frozen.
pub fn ties(constraints: &[Constraint]) -> Vec<(&str, Vec<&Target>)> {
    let mut sets: Vec<(&str, Vec<&Target>)> = Vec::new();
    for c in constraints {
        let Limit::Together { set } = &c.limit else { continue };
        if frozen(&c.target, constraints) {
            continue;
        }
        match sets.iter_mut().find(|(name, t)| *name == set && t.first().is_some_and(|f| f.kind() == c.target.kind())) {
            Some((_, targets)) => targets.push(&c.target),
            None => sets.push((set, vec![&c.target])),
        }
    }
    sets.retain(|(_, targets)| targets.len() > 1);
    sets
}

/// What is decided with `target`, itself left out.
pub fn tied(target: &Target, constraints: &[Constraint]) -> Vec<Target> {
    let of = |(_, targets): &(&str, Vec<&Target>)| targets.contains(&target);
    let sets = ties(constraints).into_iter().filter(of);
    sets.flat_map(|(_, targets)| targets.into_iter().filter(|t| *t != target).cloned()).collect()
}

fn frozen(target: &Target, constraints: &[Constraint]) -> bool {
    constraints.iter().any(|c| c.target == *target && c.limit == Limit::Freeze)
}

/// How much an action changes its target, 0 to 1: the part of its units, or of its bytes in f32, that goes.
pub fn strength(target: &Target, action: &Action, graph: &Graph) -> f64 {
    match action {
        Action::Prune { ratio, .. } => *ratio,
        Action::Precision { precision } => {
            let node = graph.nodes.iter().find(|n| n.name == target.name());
            let part = |n: &crate::graph::Node| {
                stored_bytes(&n.op, *precision) as f64 / stored_bytes(&n.op, Precision::F32).max(1) as f64
            };
            node.map_or(0.0, |n| (1.0 - part(n)).max(0.0))
        }
        Action::Keep => 0.0,
        Action::RemoveBlock | Action::Sparsify { .. } | Action::Factorise { .. } => 1.0,
    }
}

/// What is decided of `target` in a plan; nothing is as it was.
fn decided<'a>(plan: &'a [(Target, Action)], target: &Target) -> &'a Action {
    plan.iter().rev().find(|(t, _)| t == target).map_or(&Action::Keep, |(_, a)| a)
}

/// The block of a target is removed, and all that would be decided of it with it.
fn gone(plan: &[(Target, Action)], target: &Target, graph: &Graph, groups: &[Group]) -> bool {
    let removed = |b: &str| plan.iter().any(|(t, a)| *a == Action::RemoveBlock && t.name() == b);
    match target {
        Target::Group(g) => groups.iter().any(|o| o.id == *g && o.block.as_deref().is_some_and(removed)),
        Target::Layer(l) | Target::Weights(l) => graph.blocks.iter().any(|b| {
            removed(&b.name) && b.nodes.iter().any(|id| graph.nodes.get(id.index()).is_some_and(|n| n.name == *l))
        }),
        Target::Block(_) => false,
    }
}

/// Two actions on two targets of a set, as far as the steps of their groups can be alike.
fn alike(a: (&Target, &Action), b: (&Target, &Action), groups: &[Group]) -> bool {
    let step = |t: &Target| {
        let group = groups.iter().find(|g| g.id == t.name());
        group.map_or(0.0, |g| g.granule.max(1) as f64 / g.size.max(1) as f64)
    };
    let ratio = |action: &Action| match action {
        Action::Prune { ratio, .. } => Some(*ratio),
        Action::Keep => Some(0.0),
        _ => None,
    };
    // In its own precision and not decided are one.
    let plain = |a: &Action| matches!(a, Action::Keep | Action::Precision { precision: Precision::F32 });
    match (a.0, ratio(a.1), ratio(b.1)) {
        (Target::Group(_), Some(x), Some(y)) => (x - y).abs() <= step(a.0).max(step(b.0)) + 1e-9,
        _ => same_cut(a.1, b.1, 1e-9) || (plain(a.1) && plain(b.1)),
    }
}

/// What of the constraints a whole plan leaves undone, in words with a hint; empty where it keeps all.
pub fn unmet(plan: &[(Target, Action)], graph: &Graph, groups: &[Group], constraints: &[Constraint]) -> Vec<String> {
    let mut out = Vec::new();
    for c in constraints {
        let Limit::MinRatio { ratio } = c.limit else { continue };
        let Some(group) = groups.iter().find(|g| Target::Group(g.id.clone()) == c.target) else { continue };
        if frozen(&c.target, constraints) || gone(plan, &c.target, graph, groups) {
            continue;
        }
        let least = super::least_ratio(group, constraints);
        let has = match decided(plan, &c.target) {
            Action::Prune { ratio, .. } => *ratio,
            _ => 0.0,
        };
        if has < least - 1e-9 {
            out.push(format!(
                "{} loses {:.0} %, and at least {:.0} % shall go; hint: cut it, ask for a plan, or `:lift {}`",
                c.target.name(),
                100.0 * has,
                100.0 * ratio,
                c.target.name()
            ));
        }
    }
    for (name, targets) in ties(constraints) {
        let here: Vec<&Target> = targets.into_iter().filter(|t| !gone(plan, t, graph, groups)).collect();
        let Some(first) = here.first() else { continue };
        let one = (*first, decided(plan, first));
        if let Some(other) = here.iter().find(|t| !alike(one, (t, decided(plan, t)), groups)) {
            out.push(format!(
                "decide {} anew: it is kept together with {} ({name}) and unlike it; hint: the others follow it, or `:lift {}`",
                first.name(),
                other.name(),
                first.name()
            ));
        }
    }
    out
}

/// `action` as all of `targets` may have it: no less than shall go of any of them, and no more than may.
pub fn common(
    action: &Action,
    targets: &[&Target],
    graph: &Graph,
    groups: &[Group],
    constraints: &[Constraint],
) -> Action {
    let layers = || targets.iter().filter(|t| matches!(t, Target::Layer(_)));
    let ratio = match action {
        Action::Precision { precision } if *precision != Precision::F32 => {
            let held = layers().any(|t| super::keeps_f32(t.name(), groups, graph, constraints).is_some());
            return if held { Action::Keep } else { action.clone() };
        }
        Action::Keep => 0.0,
        Action::Prune { ratio, .. } => *ratio,
        other => return other.clone(),
    };
    let of = |t: &&Target| groups.iter().find(|g| matches!(t, Target::Group(id) if *id == g.id));
    let here: Vec<&Group> = targets.iter().filter_map(of).collect();
    if here.is_empty() {
        return action.clone();
    }
    let least = here.iter().map(|g| super::least_ratio(g, constraints)).fold(0.0, f64::max);
    let most = here.iter().map(|g| super::max_ratio(g, constraints)).fold(1.0, f64::min);
    match ratio.max(least).min(most) {
        ratio if ratio > 0.0 => Action::Prune { ratio, kept: Vec::new() },
        _ => Action::Keep,
    }
}

/// What else follows of `decided` (newest decisions of a plan) for what is kept together: of what was decided for a set the mildest counts
/// for all of it, or what `settled` has for one of them. Targets and actions that are to be decided besides, or instead.
pub fn follows(
    decided: &[(Target, Action)],
    settled: &[(Target, Action)],
    graph: &Graph,
    groups: &[Group],
    constraints: &[Constraint],
) -> Vec<(Target, Action)> {
    let mut out = Vec::new();
    for (_, targets) in ties(constraints) {
        let of = |plan: &[(Target, Action)]| -> Vec<(Target, Action)> {
            plan.iter().filter(|(t, _)| targets.contains(&t)).cloned().collect()
        };
        let new = of(decided);
        let standing = of(settled);
        let mildest = |all: &[(Target, Action)]| {
            let weak = |a: &&(Target, Action), b: &&(Target, Action)| {
                strength(&a.0, &a.1, graph).total_cmp(&strength(&b.0, &b.1, graph))
            };
            all.iter().min_by(weak).cloned()
        };
        let Some(chosen) = (if new.is_empty() { None } else { mildest(&standing).or_else(|| mildest(&new)) }) else {
            continue;
        };
        let chosen = (chosen.0, common(&chosen.1, &targets, graph, groups, constraints));
        for target in &targets {
            let has = new.iter().find(|(t, _)| t == *target).map(|(_, a)| a);
            let stands = standing.iter().any(|(t, _)| t == *target);
            let same = has.is_some_and(|a| alike((&chosen.0, &chosen.1), (target, a), groups));
            if !stands && !same && !gone(decided, target, graph, groups) {
                out.push(((*target).clone(), super::bare(chosen.1.clone())));
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::{chain, cut, group};

    fn tie(name: &str, targets: &[&str]) -> Vec<Constraint> {
        let bind = |t: &&str| Constraint {
            target: group(t),
            limit: Limit::Together { set: name.to_owned() },
            reason: String::new(),
        };
        targets.iter().map(bind).collect()
    }

    #[test]
    fn a_set_follows_its_mildest_and_what_stands() {
        let (graph, groups) = chain(&[16, 16, 16], 8);
        let names: Vec<&str> = groups.iter().map(|g| g.id.as_str()).collect();
        let c = tie("all", &names);
        let (a, b) = (group(names[0]), group(names[1]));
        let new = [(a.clone(), cut(0.5)), (b.clone(), cut(0.25))];
        let then = follows(&new, &[], &graph, &groups, &c);
        assert!(then.contains(&(a.clone(), cut(0.25))) && !then.iter().any(|(t, _)| *t == b), "{then:?}");
        assert!(then.iter().all(|(_, action)| *action == cut(0.25)));
        // What the engineer settled counts before what is new, also where it is the harsher one.
        let then = follows(&new[1..], &[(a, cut(0.75))], &graph, &groups, &c);
        assert!(then.contains(&(b, cut(0.75))), "{then:?}");
        assert_eq!(follows(&[], &[], &graph, &groups, &c), []);
        assert_eq!(follows(&new, &[], &graph, &groups, &tie("one", &names[..1])), [], "one alone is tied to nothing");
    }

    /// What one of a set shall lose at least, all lose, and no more than the most that one of them may.
    #[test]
    fn a_set_goes_as_far_as_each_of_it_must_and_may() {
        let (graph, groups) = chain(&[16, 16, 16], 8);
        let names: Vec<&str> = groups.iter().map(|g| g.id.as_str()).collect();
        let bind = |at: usize, limit| Constraint { target: group(names[at]), limit, reason: String::new() };
        let mut c = tie("all", &names);
        c.push(bind(0, Limit::MinRatio { ratio: 0.5 }));
        let then = follows(&[(group(names[1]), cut(0.25))], &[], &graph, &groups, &c);
        assert!(then.len() == 3 && then.iter().all(|(_, a)| *a == cut(0.5)), "{then:?}");
        c.push(bind(2, Limit::MaxRatio { ratio: 0.75 }));
        let all: Vec<(Target, Action)> = names.iter().map(|n| (group(n), cut(0.875))).collect();
        let then = follows(&all, &[], &graph, &groups, &c);
        assert!(then.len() == 3 && then.iter().all(|(_, a)| *a == cut(0.75)), "{then:?}");
        let targets: Vec<Target> = names.iter().map(|n| group(n)).collect();
        let targets: Vec<&Target> = targets.iter().collect();
        assert_eq!(common(&cut(0.875), &targets, &graph, &groups, &c), cut(0.75));
        assert_eq!(common(&Action::Keep, &targets, &graph, &groups, &c), cut(0.5));
    }

    #[test]
    fn what_a_plan_leaves_undone_is_told() {
        let (graph, groups) = chain(&[16, 16], 8);
        let (a, b) = (group(&groups[0].id), group("conv2"));
        let least = |ratio| Constraint { target: a.clone(), limit: Limit::MinRatio { ratio }, reason: "thin".into() };
        let told = |plan: &[(Target, Action)], c: &[Constraint]| unmet(plan, &graph, &groups, c);
        assert_eq!(told(&[], &[least(0.25)]).len(), 1);
        assert_eq!(told(&[(a.clone(), cut(0.125))], &[least(0.25)]).len(), 1);
        assert_eq!(told(&[(a.clone(), cut(0.25))], &[least(0.25)]).len(), 0);
        let frozen = Constraint { target: a.clone(), limit: Limit::Freeze, reason: "no".into() };
        assert_eq!(told(&[], &[least(0.25), frozen]).len(), 0, "a veto is the later word");
        let c = tie("pair", &["conv1", "conv2"]);
        assert_eq!(told(&[(a.clone(), cut(0.5))], &c).len(), 1);
        assert_eq!(told(&[(a, cut(0.5)), (b, cut(0.5))], &c).len(), 0);
    }
}
