//! Validates and clamps a proposed or edited action. Every proposal and every edit passes here, whoever made it:
//! planner, agent, rule file or human.
//!
//! Invariants: what [`check`] returns can be applied to the original model on its own; it never breaks a constraint.
//! Limits (`MaxRatio`, rounding to the granule) are clamped, contradictions (a frozen target, an unknown name, a ratio
//! that is no number) are errors. Not here: whether it is wise (`forecast`) and which units are kept (importance).

use super::{Action, Constraint, Limit, Target};
use crate::graph::{Graph, Node, NodeId};
use crate::prune::{self, Group};
use crate::quant::Precision;

/// Why an action cannot stand.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlanError {
    #[error("no {kind} is named `{name}`; hint: {hint}")]
    Unknown { kind: &'static str, name: String, hint: String },
    #[error("`{action}` does not apply to {target}; hint: {hint}")]
    Mismatch { target: String, action: &'static str, hint: &'static str },
    #[error("ratio `{ratio}` for `{name}` is not a number from 0 up to 1; hint: 0.25 removes a quarter")]
    Ratio { name: String, ratio: f64 },
    #[error(
        "ratio `{ratio}` would leave none of the {size} units of `{name}`; hint: at most `{most:.3}` keeps one step"
    )]
    Empties { name: String, ratio: f64, size: usize, most: f64 },
    #[error(
        "kept units of `{name}` are not ascending numbers below {size}; hint: leave them out to keep the strongest"
    )]
    Kept { name: String, size: usize },
    #[error("group `{name}` must not be pruned: {why}; hint: choose a group inside a block")]
    Protected { name: String, why: String },
    #[error("`{name}` ({op}) has no precision to choose; hint: it is set on conv and linear layers")]
    Precision { name: String, op: String },
    #[error("`{name}`: {why}")]
    Rows { name: String, why: String },
    #[error("block `{name}` cannot be removed; hint: only a residual block whose shortcut is the identity can be")]
    NotRemovable { name: String },
    #[error("{target} is frozen: {reason}; hint: reopen the veto or lift the constraint first")]
    Frozen { target: String, reason: String },
    #[error("`{name}` must stay f32: {reason}; hint: lift the constraint first")]
    KeepF32 { name: String, reason: String },
}

/// Checks `action` on `target` against the graph, the groups and the constraints, and returns it as it may stand:
/// ratios rounded to the group's granule and clamped to the human's limit (a cut that rounds to nothing becomes
/// [`Action::Keep`]). `kept` survives when it agrees with the rounded ratio; otherwise it comes back empty and is to be
/// resolved by importance.
pub fn check(
    action: &Action,
    target: &Target,
    groups: &[Group],
    graph: &Graph,
    constraints: &[Constraint],
) -> Result<Action, PlanError> {
    let group = |name: &str| {
        let free = || groups.iter().filter(|g| g.protected.is_none()).map(|g| g.id.as_str());
        groups.iter().find(|g| g.id == name).ok_or_else(|| unknown("group", name, free()))
    };
    let layer = |name: &str| {
        let names = || graph.nodes.iter().map(|n| n.name.as_str());
        graph.nodes.iter().find(|n| n.name == name).ok_or_else(|| unknown("layer", name, names()))
    };
    let block = |name: &str| {
        let names = || graph.blocks.iter().map(|b| b.name.as_str());
        graph.block(name).ok_or_else(|| unknown("block", name, names()))
    };
    // What is named must be there, whatever is to be done to it.
    match target {
        Target::Group(name) => drop(group(name)?),
        Target::Layer(name) | Target::Weights(name) => drop(layer(name)?),
        Target::Block(name) => drop(block(name)?),
    }
    let wrong = |action, hint| Err(mismatch(target, action, hint));
    match (target, action) {
        (Target::Group(name), Action::Keep) => Ok(at_least(group(name)?, constraints)),
        (_, Action::Keep) => Ok(Action::Keep),
        (Target::Group(name), Action::Prune { ratio, kept }) => prune(group(name)?, *ratio, kept, target, constraints),
        (Target::Layer(name), Action::Precision { precision }) => {
            layer_precision(layer(name)?, *precision, target, groups, graph, constraints)
        }
        (Target::Weights(name), Action::Sparsify { sparsity }) => {
            sparsity.check_on(&layer(name)?.op).map_err(|why| mismatch(target, "sparsify", why))?;
            not_frozen(target, constraints)?;
            not_frozen(&Target::Layer(name.clone()), constraints)?;
            Ok(action.clone())
        }
        (Target::Weights(name), Action::Factorise { rank }) => {
            let node = layer(name)?;
            prune::factorable(graph, node, *rank).map_err(|why| PlanError::Rows { name: name.clone(), why })?;
            not_frozen(target, constraints)?;
            not_frozen(&Target::Layer(name.clone()), constraints)?;
            Ok(action.clone())
        }
        (Target::Block(name), Action::RemoveBlock) => {
            let block = block(name)?;
            if block.residual.is_empty() {
                return Err(PlanError::NotRemovable { name: name.clone() });
            }
            not_frozen(target, constraints)?;
            // Taking the block away would also take away what the human wanted left alone inside it.
            for inside in groups.iter().filter(|g| g.block.as_ref() == Some(name)) {
                not_frozen(&Target::Group(inside.id.clone()), constraints)?;
            }
            for node in block.nodes.iter().filter_map(|id| graph.nodes.get(id.index())) {
                not_frozen(&Target::Layer(node.name.clone()), constraints)?;
            }
            Ok(Action::RemoveBlock)
        }
        (Target::Block(_), Action::Prune { .. }) => wrong("prune", "prune one of the groups inside the block"),
        (_, Action::Prune { .. }) => wrong("prune", "prune the group that the layer belongs to"),
        (Target::Group(_), Action::Precision { .. }) => wrong("precision", "set a precision on one of its layers"),
        (Target::Block(_), Action::Precision { .. }) => wrong("precision", "set it on the layers of the block"),
        (_, Action::Precision { .. }) => wrong("precision", "set it on the layer"),
        (Target::Group(_), Action::Sparsify { .. }) => wrong("sparsify", "name the weights of a layer"),
        (Target::Block(_), Action::Sparsify { .. }) => wrong("sparsify", "name the weights of its layers"),
        (_, Action::Sparsify { .. }) => wrong("sparsify", "name the weights of the layer"),
        (_, Action::Factorise { .. }) => wrong("factorise", "name the weights of one of its layers"),
        (_, Action::RemoveBlock) => wrong("remove_block", "name a block"),
    }
}

/// The largest ratio that `constraints` allow `group`, rounded so that its granule fits; 0 when it is frozen or
/// protected.
pub fn max_ratio(group: &Group, constraints: &[Constraint]) -> f64 {
    if group.protected.is_some() || not_frozen(&Target::Group(group.id.clone()), constraints).is_err() {
        return 0.0;
    }
    group.ratio_of(least_kept(group, constraints))
}

/// The least of `group` that the human wants removed, rounded so that its granule fits; 0 where nothing was said, or what may go at most is
/// less, or nothing may.
pub fn least_ratio(group: &Group, constraints: &[Constraint]) -> f64 {
    let wanted = |c: &Constraint| match (&c.target, &c.limit) {
        (Target::Group(g), Limit::MinRatio { ratio }) if *g == group.id => Some(ratio.clamp(0.0, 1.0)),
        _ => None,
    };
    let least = constraints.iter().filter_map(wanted).fold(0.0, f64::max);
    // Not only for speed: what the steps do not divide would be rounded to less than all of it.
    if least <= 0.0 {
        return 0.0;
    }
    let granule = group.granule.clamp(1, group.size.max(1));
    let units = (group.size as f64 * (1.0 - least) + 1e-9).floor() as usize;
    let keep = (units / granule).max(1) * granule;
    group.ratio_of(keep.min(group.size)).min(max_ratio(group, constraints))
}

/// What is left of "leave it alone" where at least a part shall go.
fn at_least(group: &Group, constraints: &[Constraint]) -> Action {
    match least_ratio(group, constraints) {
        ratio if ratio > 0.0 => Action::Prune { ratio, kept: Vec::new() },
        _ => Action::Keep,
    }
}

fn prune(
    group: &Group,
    ratio: f64,
    kept: &[u32],
    target: &Target,
    constraints: &[Constraint],
) -> Result<Action, PlanError> {
    let name = || group.id.clone();
    if !ratio.is_finite() || !(0.0..=1.0).contains(&ratio) {
        return Err(PlanError::Ratio { name: name(), ratio });
    }
    if let Some(why) = &group.protected {
        return Err(PlanError::Protected { name: name(), why: why.clone() });
    }
    not_frozen(target, constraints)?;
    let ascending = kept.windows(2).all(|w| w[0] < w[1]);
    if !ascending || kept.last().is_some_and(|&k| k as usize >= group.size) {
        return Err(PlanError::Kept { name: name(), size: group.size });
    }
    if ratio >= 1.0 {
        let most = group.ratio_of(group.granule.clamp(1, group.size.max(1)));
        return Err(PlanError::Empties { name: name(), ratio, size: group.size, most });
    }
    let most = group.kept_at(least_ratio(group, constraints));
    let keep = group.kept_at(ratio).min(most).max(least_kept(group, constraints));
    if keep >= group.size {
        return Ok(Action::Keep);
    }
    let kept = if kept.len() == keep { kept.to_vec() } else { Vec::new() };
    Ok(Action::Prune { ratio: group.ratio_of(keep), kept })
}

/// Units that must stay: one granule, or more when a limit on the group or its block says so.
fn least_kept(group: &Group, constraints: &[Constraint]) -> usize {
    let granule = group.granule.clamp(1, group.size.max(1));
    let most = constraints
        .iter()
        .filter(|c| match &c.target {
            Target::Group(g) => *g == group.id,
            Target::Block(b) => group.block.as_ref() == Some(b),
            Target::Layer(_) | Target::Weights(_) => false,
        })
        .filter_map(|c| if let Limit::MaxRatio { ratio } = c.limit { Some(ratio.clamp(0.0, 1.0)) } else { None })
        .fold(1.0, f64::min);
    // The epsilon keeps 1 − 0.7 of ten units at three, not four.
    let units = (group.size as f64 * (1.0 - most) - 1e-9).ceil().max(0.0) as usize;
    units.div_ceil(granule).max(1).saturating_mul(granule).min(group.size)
}

fn layer_precision(
    node: &Node,
    precision: Precision,
    target: &Target,
    groups: &[Group],
    graph: &Graph,
    constraints: &[Constraint],
) -> Result<Action, PlanError> {
    if !node.op.has_precision() {
        return Err(PlanError::Precision { name: node.name.clone(), op: crate::graph::describe(&node.op) });
    }
    if precision == Precision::F32 {
        return Ok(Action::Precision { precision });
    }
    if let Some(why) = precision.unfit(&node.op) {
        return Err(PlanError::Rows { name: node.name.clone(), why });
    }
    not_frozen(target, constraints)?;
    if let Some(c) = keeps_f32(&node.name, groups, graph, constraints) {
        return Err(PlanError::KeepF32 { name: node.name.clone(), reason: c.reason.clone() });
    }
    Ok(Action::Precision { precision })
}

/// The constraint, if any, that holds `layer` at f32: set on it, on a group that has its rows or columns, or on its block.
pub fn keeps_f32<'a>(
    layer: &str,
    groups: &[Group],
    graph: &Graph,
    constraints: &'a [Constraint],
) -> Option<&'a Constraint> {
    let is_layer = |id: &NodeId| graph.nodes.get(id.index()).is_some_and(|n| n.name == layer);
    let inside = |block: &str| graph.block(block).is_some_and(|b| b.nodes.iter().any(is_layer));
    constraints.iter().filter(|c| c.limit == Limit::KeepF32).find(|c| match &c.target {
        Target::Layer(l) | Target::Weights(l) => l == layer,
        Target::Group(g) => groups.iter().any(|group| &group.id == g && group.members.iter().any(|m| m.node == layer)),
        Target::Block(b) => inside(b),
    })
}

fn not_frozen(target: &Target, constraints: &[Constraint]) -> Result<(), PlanError> {
    match constraints.iter().find(|c| &c.target == target && c.limit == Limit::Freeze) {
        None => Ok(()),
        Some(c) => Err(PlanError::Frozen {
            target: target.to_string(),
            reason: if c.reason.is_empty() { "vetoed".into() } else { c.reason.clone() },
        }),
    }
}

fn mismatch(target: &Target, action: &'static str, hint: &'static str) -> PlanError {
    PlanError::Mismatch { target: target.to_string(), action, hint }
}

/// Why the device that refuses these precisions, each with its reason, cannot carry `action` out.
pub fn refusal<'a>(refused: &'a [(Precision, String)], action: &Action) -> Option<&'a str> {
    let Action::Precision { precision } = action else { return None };
    refused.iter().find(|(p, _)| p == precision).map(|(_, why)| why.as_str())
}

fn unknown<'a>(kind: &'static str, name: &str, known: impl Iterator<Item = &'a str>) -> PlanError {
    let near = known
        .map(|k| (strsim::jaro_winkler(k, name), k))
        .filter(|(score, _)| *score > 0.7)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    let hint = match near {
        Some((_, k)) => format!("did you mean `{k}`?"),
        None => format!("the layer list shows every {kind}"),
    };
    // Names come from agents: keep a hostile one from flooding the message.
    PlanError::Unknown { kind, name: name.chars().take(80).collect(), hint }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::testing::{chain, cut, freeze};

    #[test]
    fn ratios_are_rounded_clamped_or_refused() {
        let (graph, mut groups) = chain(&[16, 16], 8);
        groups[0].granule = 4;
        let t = Target::Group(groups[0].id.clone());
        let run = |r: f64, c: &[Constraint]| check(&cut(r), &t, &groups, &graph, c);
        assert_eq!(run(0.3, &[]), Ok(cut(0.25)));
        assert_eq!(run(0.05, &[]), Ok(Action::Keep));
        assert_eq!(run(0.99, &[]), Ok(cut(0.75)));
        for bad in [f64::NAN, f64::INFINITY, -0.1, 38.0] {
            assert!(matches!(run(bad, &[]), Err(PlanError::Ratio { .. })), "{bad}");
        }
        assert!(matches!(run(1.0, &[]), Err(PlanError::Empties { .. })));
        let limit =
            |ratio| vec![Constraint { target: t.clone(), limit: Limit::MaxRatio { ratio }, reason: "mine".into() }];
        assert_eq!(run(0.75, &limit(0.3)), Ok(cut(0.25)));
        assert_eq!(run(0.75, &limit(0.0)), Ok(Action::Keep));
        assert_eq!(max_ratio(&groups[0], &limit(0.3)), 0.25);
        assert_eq!(max_ratio(&groups[0], &freeze(t.clone())), 0.0);
        assert!(matches!(run(0.5, &freeze(t.clone())), Err(PlanError::Frozen { .. })));
        assert_eq!(check(&Action::Keep, &t, &groups, &graph, &freeze(t.clone())), Ok(Action::Keep));
    }

    #[test]
    fn at_least_raises_what_is_asked_and_what_is_left_alone() {
        let (graph, mut groups) = chain(&[16, 16], 8);
        groups[0].granule = 4;
        let t = Target::Group(groups[0].id.clone());
        let run = |a: Action, c: &[Constraint]| check(&a, &t, &groups, &graph, c);
        let bind = |limit| Constraint { target: t.clone(), limit, reason: String::new() };
        let least = bind(Limit::MinRatio { ratio: 0.3 });
        // Rounded up: three tenths of sixteen in steps of four are eight.
        assert_eq!(least_ratio(&groups[0], std::slice::from_ref(&least)), 0.5);
        assert_eq!(run(cut(0.25), std::slice::from_ref(&least)), Ok(cut(0.5)));
        assert_eq!(run(cut(0.75), std::slice::from_ref(&least)), Ok(cut(0.75)));
        assert_eq!(run(Action::Keep, std::slice::from_ref(&least)), Ok(cut(0.5)));
        // What may go at most is the stronger word, and a veto the strongest.
        let both = [least.clone(), bind(Limit::MaxRatio { ratio: 0.25 })];
        assert_eq!(run(Action::Keep, &both), Ok(cut(0.25)));
        let frozen = [vec![least], freeze(t.clone())].concat();
        assert_eq!(run(Action::Keep, &frozen), Ok(Action::Keep));
        assert_eq!(least_ratio(&groups[1], &frozen), 0.0);
        // Steps that do not divide the whole cut nothing by themselves.
        let mut groups = groups.clone();
        groups[0].granule = 6;
        let run = |a: Action, c: &[Constraint]| check(&a, &t, &groups, &graph, c);
        assert_eq!(run(Action::Keep, &[]), Ok(Action::Keep));
        assert_eq!(run(cut(0.01), &[]), Ok(Action::Keep));
        assert_eq!(run(Action::Keep, &[bind(Limit::MinRatio { ratio: 0.1 })]), Ok(cut(0.25)));
    }

    #[test]
    fn kept_units_survive_only_when_they_agree() {
        let (graph, groups) = chain(&[8, 8], 8);
        let t = Target::Group(groups[0].id.clone());
        let run = |ratio, kept: &[u32]| check(&Action::Prune { ratio, kept: kept.to_vec() }, &t, &groups, &graph, &[]);
        assert_eq!(run(0.5, &[0, 2, 4, 6]), Ok(Action::Prune { ratio: 0.5, kept: vec![0, 2, 4, 6] }));
        assert_eq!(run(0.25, &[0, 2, 4, 6]), Ok(cut(0.25)));
        for bad in [&[2u32, 1, 4, 6][..], &[0, 2, 4, 8], &[1, 1, 2, 3]] {
            assert!(matches!(run(0.5, bad), Err(PlanError::Kept { .. })), "{bad:?}");
        }
    }

    #[test]
    fn targets_and_actions_must_fit() {
        let (graph, groups) = chain(&[8, 8], 8);
        let int8 = Action::Precision { precision: Precision::Int8 };
        let group = Target::Group(groups[0].id.clone());
        let layer = Target::Layer("conv1".into());
        assert_eq!(check(&int8, &layer, &groups, &graph, &[]), Ok(int8.clone()));
        assert!(matches!(check(&int8, &group, &groups, &graph, &[]), Err(PlanError::Mismatch { .. })));
        assert!(matches!(check(&cut(0.5), &layer, &groups, &graph, &[]), Err(PlanError::Mismatch { .. })));
        let relu = Target::Layer("relu1".into());
        assert!(matches!(check(&int8, &relu, &groups, &graph, &[]), Err(PlanError::Precision { .. })));
        let typo = Target::Layer("conv_1".into());
        let text = check(&int8, &typo, &groups, &graph, &[]).unwrap_err().to_string();
        assert!(text.contains("`conv_1`") && text.contains("did you mean `conv1`"), "{text}");
        let nothing = Target::Block("layer9".into());
        assert!(matches!(check(&Action::RemoveBlock, &nothing, &groups, &graph, &[]), Err(PlanError::Unknown { .. })));
        let keep = vec![Constraint { target: group.clone(), limit: Limit::KeepF32, reason: "edge".into() }];
        assert!(matches!(check(&int8, &layer, &groups, &graph, &keep), Err(PlanError::KeepF32 { .. })));
        let mut fixed = groups.clone();
        fixed[0].protected = Some("it is the output".into());
        assert!(matches!(check(&cut(0.5), &group, &fixed, &graph, &[]), Err(PlanError::Protected { .. })));
        assert_eq!(max_ratio(&fixed[0], &[]), 0.0);
    }

    /// A veto is of one kind of change: a group's cut, a layer's weights in fewer bits or with zeros, a block's removal.
    #[test]
    fn a_veto_binds_what_it_names() {
        let (graph, groups) = chain(&[8, 8], 8);
        let (group, layer) = (Target::Group("conv1".into()), Target::Layer("conv1".into()));
        let weights = Target::Weights("conv1".into());
        let w4 = Action::Precision { precision: Precision::W4 };
        let zeros = Action::Sparsify { sparsity: "50%".parse().expect("sparsity") };
        let run = |a: &Action, t: &Target, c: &[Constraint]| check(a, t, &groups, &graph, c);
        let whole = freeze(group.clone());
        assert!(matches!(run(&cut(0.5), &group, &whole), Err(PlanError::Frozen { .. })));
        assert_eq!(run(&w4, &layer, &whole), Ok(w4.clone()), "the layer of the same name keeps its own say");
        assert_eq!(run(&zeros, &weights, &whole), Ok(zeros.clone()));
        let bits = freeze(layer.clone());
        assert!(matches!(run(&w4, &layer, &bits), Err(PlanError::Frozen { .. })));
        assert!(matches!(run(&zeros, &weights, &bits), Err(PlanError::Frozen { .. })));
        assert_eq!(run(&cut(0.5), &group, &bits), Ok(cut(0.5)));
        // Back to the original is never forbidden.
        assert!(run(&Action::Precision { precision: Precision::F32 }, &layer, &bits).is_ok());
        let both =
            [whole, vec![Constraint { target: group.clone(), limit: Limit::KeepF32, reason: "x".into() }]].concat();
        assert!(matches!(run(&w4, &layer, &both), Err(PlanError::KeepF32 { .. })), "unless it is kept in f32");
    }

    #[test]
    fn blocks_are_removed_only_when_nothing_forbids_it() {
        let (mut graph, mut groups) = chain(&[8, 8], 8);
        let id = |n: &str| crate::graph::NodeId(graph.nodes.iter().position(|m| m.name == n).unwrap() as u32);
        let (a, b) = (id("conv2"), id("relu1"));
        graph.blocks.push(crate::graph::Block { name: "b".into(), nodes: vec![a], residual: vec![] });
        let t = Target::Block("b".into());
        let run = |graph: &Graph, groups: &[Group], c: &[Constraint]| check(&Action::RemoveBlock, &t, groups, graph, c);
        assert!(matches!(run(&graph, &groups, &[]), Err(PlanError::NotRemovable { .. })));
        graph.blocks[0].residual.push(crate::graph::ResidualAdd { add: a, skip: b });
        assert_eq!(run(&graph, &groups, &[]), Ok(Action::RemoveBlock));
        groups[0].block = Some("b".into());
        let inner = freeze(Target::Group(groups[0].id.clone()));
        assert!(matches!(run(&graph, &groups, &inner), Err(PlanError::Frozen { .. })));
        let layer = freeze(Target::Layer("conv2".into()));
        assert!(matches!(run(&graph, &groups, &layer), Err(PlanError::Frozen { .. })));
    }
}
