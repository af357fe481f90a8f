//! What cuts of a language model cost, measured on calibration text: of each group that one layer reads, its units in the order in which the layer
//! can do without them (`prune::surgeon`), and of some of those cuts what they do to the network's answer, everything else being the original's;
//! of each block what the answer loses without it, and how much it changes what passes through it (block influence, Men et al. 2024,
//! ShortGPT, arXiv 2403.03853: one less the mean cosine between what enters and what leaves).
//!
//! Not here: what is chosen (`plan::cuts`), and the cutting (`compress`).

use super::language::{self, Layer};
use super::rounding::WIDEST;
use super::segment::{fit_target, part};
use super::state::State;
use super::walk::{Judge, Stretch, Walk, stretches};
use super::{RepairError, RepairOptions, RepairUpdate};
use crate::data::Dataset;
use crate::exec::Cancel;
use crate::files::{Cache, rounded};
use crate::graph::experts::Mixture;
use crate::graph::{Block, Graph, NodeId, Op, ParamRole, WeightFormat, shapes};
use crate::model::{Model, Param};
use crate::prune::{
    self, Action, Group, Member, MemberRole, Normal, Target, expert_weights, of_group, shrink, without,
};
use candle_core::Tensor;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Cuts of a group that are offered at most.
const CUTS: usize = 16;

/// Units are kept in multiples of this where there are many: what kernels and blocks of formats like.
const GRANULE: usize = 32;

/// Shares of a group whose loss is measured; that of other cuts follows from the layer's own error, between and beyond them.
const PROBES: [f64; 2] = [0.125, 0.375];

/// A cut that could be made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cut {
    pub action: Action,
    /// Weights that go.
    pub weights: u64,
    /// Nats a token that it costs alone.
    pub cost: f64,
    /// The cost was measured, not concluded from that of other cuts.
    pub measured: bool,
}

/// The cuts of a target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    pub target: Target,
    /// The block it lies in, or is.
    pub block: Option<String>,
    /// The group of experts and the number of the one that it lies in.
    #[serde(default)]
    pub expert: Option<(String, u32)>,
    pub cuts: Vec<Cut>,
    /// Of a block.
    pub influence: Option<f64>,
}

/// What is asked of a network's cuts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// What each costs.
    Costs,
    /// How much whole blocks change what passes through them, and nothing that takes longer; their cost is unknown, infinite.
    Influence,
}

/// The cuts of `model` that `calib` has something to say of, and on how many windows costs were measured. `options` say which windows. What a
/// target's cuts cost on the same windows is kept in the folder `cache`.
///
/// # Errors
/// Unreadable calibration data, execution failures, cancellation (looked for before every batch); what was finished is cached by then.
pub fn curves(
    model: &Model,
    groups: &[Group],
    ask: Ask,
    (calib, options): (&Dataset, &RepairOptions),
    cache: Option<&Path>,
    cancel: &Cancel,
    say: &mut dyn FnMut(RepairUpdate),
) -> Result<(Vec<Curve>, u64), RepairError> {
    let mut state = State::new(model, (groups, &[]), calib, options, cancel, say);
    state.apply()?;
    let images = state.images()?;
    let read: Vec<(NodeId, &Group, &Member)> = groups.iter().filter_map(|g| lone_reader(model, g)).collect();
    let mixtures: Vec<(&Group, Mixture)> =
        groups.iter().filter(|g| g.protected.is_none()).filter_map(|g| Some((g, of_group(&model.graph, g)?))).collect();
    let inside = |id: NodeId| {
        let of = |(g, m): &(&Group, Mixture)| {
            let e = m.layers.iter().position(|layers| layers.contains(&id))?;
            Some((g.id.clone(), e as u32))
        };
        mixtures.iter().find_map(of)
    };
    // A mixture is cut where its sum is.
    let sum_of = |id: NodeId| mixtures.iter().find(|(_, m)| m.combine == id);
    let stretches =
        stretches(&state, &|i| read.iter().any(|(id, ..)| id.index() == i) || sum_of(NodeId(i as u32)).is_some());
    let known = Known::of(&state, cache);
    let mut walk = Walk::start(&mut state, &images)?;
    let total = stretches.iter().map(|s| s.layers.len()).sum();
    let (mut out, mut done) = (Vec::new(), 0);
    // Where blocks began that the walk has not left yet, and what they were given.
    let mut entered: Vec<(&Block, Vec<Tensor>)> = Vec::new();
    for stretch in &stretches {
        for block in model.graph.blocks.iter().filter(|b| ends(b).is_some_and(|(from, _)| from == stretch.from)) {
            out.extend(known.or(&Target::Block(block.name.clone()), ask, || removal(&walk, block, ask))?);
            entered.push((block, walk.chunks.iter().map(|c| c.compressed.clone()).collect()));
        }
        if !stretch.layers.is_empty() && ask == Ask::Costs {
            let mut judge = None;
            for &id in &stretch.layers {
                let units = read.iter().find(|(at, ..)| *at == id).map(|(_, group, member)| (*group, *member));
                let Some(group) = units.map(|(g, _)| g).or_else(|| sum_of(id).map(|(g, _)| *g)) else { continue };
                walk.state.progress(done, total, &format!("try cuts of {}", group.id));
                done += 1;
                let measured = || {
                    let judge = match &mut judge {
                        Some(judge) => judge,
                        none => none.insert(walk.judge(stretch.to)?),
                    };
                    match (units, sum_of(id)) {
                        (Some((group, member)), _) => curve(&mut walk, stretch, (id, group, member), judge),
                        (None, Some((group, mixture))) => of_experts(&mut walk, stretch, (group, mixture), judge),
                        (None, None) => Ok(None),
                    }
                };
                let found = known.or(&Target::Group(group.id.clone()), ask, measured)?;
                out.extend(found.map(|c| Curve { expert: inside(id), ..c }));
            }
        }
        if stretch.to == model.graph.output {
            break;
        }
        let whole = part(&model.graph, stretch.from, &shapes(&model.graph)?[stretch.from.index()], stretch.to);
        walk.advance_original(&whole)?;
        walk.follow();
        for (block, before) in entered.extract_if(.., |(b, _)| ends(b).is_some_and(|(_, to)| to == stretch.to)) {
            let found = influence(&before, &walk)?;
            let own = out.iter_mut().find(|c| c.target == Target::Block(block.name.clone()));
            own.into_iter().for_each(|c| c.influence = Some(found));
        }
    }
    let checked = state.used.checked;
    Ok((out, checked))
}

/// What was measured before, of the same network on the same windows.
struct Known<'c> {
    model: &'c Model,
    cache: Cache<'c>,
    key: String,
}

impl<'c> Known<'c> {
    fn of(state: &State<'c>, cache: Option<&'c Path>) -> Known<'c> {
        let model = state.original;
        let precision = serde_json::to_string(&model.precision).unwrap_or_default();
        let seen = state.calib.seen(state.picked.iter().copied()).unwrap_or_default();
        let (checked, lambda) = (state.used.checked, state.options.lambda);
        Known { model, cache: Cache(cache), key: format!("{} {precision} {seen} {checked} {lambda}", model.info.hash) }
    }

    /// The cuts of `target`, measured where nobody did.
    fn or(
        &self,
        target: &Target,
        ask: Ask,
        measure: impl FnOnce() -> Result<Option<Curve>, RepairError>,
    ) -> Result<Option<Curve>, RepairError> {
        let key = format!("{} {target}", self.key);
        let known = (ask == Ask::Costs).then(|| self.cache.get::<Curve>("cuts", &key)).flatten();
        if let Some(known) = known.filter(|c| c.target == *target) {
            return Ok(Some(known));
        }
        let found = measure()?;
        // Kept under the model's hash: only what that model gave.
        self.model.params.unchanged()?;
        let sound = |c: &&Curve| ask == Ask::Costs && c.cuts.iter().all(|c| c.cost.is_finite());
        if let Some(curve) = found.as_ref().filter(sound) {
            self.cache.put("cuts", &key, curve);
        }
        Ok(found)
    }
}

/// The layer that alone reads a group's units.
fn lone_reader<'g>(model: &Model, group: &'g Group) -> Option<(NodeId, &'g Group, &'g Member)> {
    if group.protected.is_some() || group.size < 2 {
        return None;
    }
    let mut readers = group.members.iter().filter(|m| m.role == MemberRole::Consumer);
    let (member, None) = (readers.next()?, readers.next()) else { return None };
    let id = model.graph.by_name(&member.node)?;
    let node = model.graph.node(id);
    let fits = matches!(&node.op, Op::Linear(l) if l.in_features <= WIDEST);
    (fits && model.graph.sharing(node).is_none()).then_some((id, group, member))
}

/// Where a removable block begins and ends.
fn ends(block: &Block) -> Option<(NodeId, NodeId)> {
    Some((block.residual.first()?.skip, block.residual.last()?.add))
}

/// What the network's answer loses without a block.
fn removal(walk: &Walk, block: &Block, ask: Ask) -> Result<Option<Curve>, RepairError> {
    let Some((_, to)) = ends(block) else { return Ok(None) };
    let graph = &walk.state.model.graph;
    let cost = match ask {
        Ask::Influence => f64::INFINITY,
        Ask::Costs => walk.loss_after(to, &mut walk.judge(to)?, &mut |c| Ok(c.compressed.clone()))?,
    };
    let params = &walk.state.model.params;
    let of = |id: &NodeId| graph.node(*id).params.iter().filter_map(|p| Some(params.get(&p.name).ok()?.numel() as u64));
    let cut = Cut {
        action: Action::RemoveBlock,
        weights: block.nodes.iter().flat_map(of).sum(),
        cost: rounded(cost),
        measured: cost.is_finite(),
    };
    Ok(Some(Curve {
        target: Target::Block(block.name.clone()),
        block: Some(block.name.clone()),
        expert: None,
        cuts: vec![cut],
        influence: None,
    }))
}

/// One less the mean cosine between what a block was given and where the walk is.
fn influence(before: &[Tensor], walk: &Walk) -> Result<f64, RepairError> {
    let (mut sum, mut n) = (0.0, 0);
    for (a, chunk) in before.iter().zip(&walk.chunks) {
        let (a, b) = (language::rows(a)?, language::rows(&chunk.compressed)?);
        let lengths = (a.sqr()?.sum(1)? * b.sqr()?.sum(1)?)?.sqrt()?;
        let cosines = ((&a * &b)?.sum(1)? / lengths)?.to_vec1::<f32>()?;
        n += cosines.len();
        sum += cosines.iter().map(|c| f64::from(*c)).sum::<f64>();
    }
    Ok(1.0 - sum / n.max(1) as f64)
}

/// The cuts of one group.
fn curve(
    walk: &mut Walk,
    stretch: &Stretch,
    (id, group, member): (NodeId, &Group, &Member),
    judge: &mut Judge,
) -> Result<Option<Curve>, RepairError> {
    let graph = walk.state.model.graph.clone();
    let node = graph.node(id);
    let Some(name) = node.param(ParamRole::Weight) else { return Ok(None) };
    let layer = Layer { id, target: fit_target(&graph, &graph.consumers(), id), rows: None };
    let Some([fit, _]) = language::gathered(walk, &graph, stretch, &[layer])?.pop() else { return Ok(None) };
    let prior = walk.state.model.params.get(name)?.values().into_owned();
    let bias = node.param(ParamRole::Bias);
    let (gram, cross, squares) = fit.normal(bias.is_some());
    let normal = Normal { gram: &gram, cross: &cross, squares };
    let units: Vec<Vec<usize>> = (0..group.size).map(|u| member.indices(u).collect()).collect();
    let granule = granule(&walk.state.model, &graph, id, group);
    let least = if group.size <= CUTS { 1.max(granule) } else { (group.size / 8).next_multiple_of(granule) };
    let together = if group.size <= CUTS { 1 } else { (granule / 2).max(1) };
    let Some(gone) = without(&normal, &prior, &units, (least, together), walk.state.options.lambda) else {
        return Ok(None);
    };
    let step = (group.size / CUTS).next_multiple_of(granule).max(granule);
    let counts: Vec<usize> = (1..).map(|i| i * step).take_while(|n| *n <= gone.len()).collect();
    let whole = part(&graph, stretch.from, &shapes(&graph)?[stretch.from.index()], stretch.to);
    let asked: Vec<usize> = match group.size <= CUTS {
        true => counts.clone(),
        false => {
            let near = |share: &f64| {
                let wanted = share * group.size as f64;
                counts.iter().copied().min_by(|a, b| (*a as f64 - wanted).abs().total_cmp(&(*b as f64 - wanted).abs()))
            };
            PROBES.iter().filter_map(near).collect()
        }
    };
    let mut known: Vec<(f64, f64)> = Vec::new();
    let mut measured = Vec::new();
    for n in asked {
        if measured.contains(&n) {
            continue;
        }
        let out: Vec<usize> = gone[..n].iter().flat_map(|(u, _)| units[*u as usize].iter().copied()).collect();
        let Some(weight) = solved(&normal, &prior, &out, walk.state.options.lambda) else { continue };
        let mut params = walk.state.model.params.clone();
        if let Some(bias) = bias {
            params.set(bias, fit.intercept(&weight))?;
        }
        params.set(name, weight)?;
        let old = std::mem::replace(&mut walk.state.model.params, params);
        let cost = walk.loss_through(&whole, stretch.to, judge);
        walk.state.model.params = old;
        known.push((gone[n - 1].1, cost?));
        measured.push(n);
    }
    let each = unit_weights(&walk.state.model, group);
    let cut = |n: &usize| {
        let mut kept: Vec<u32> = (0..group.size as u32).filter(|u| !gone[..*n].iter().any(|(g, _)| g == u)).collect();
        kept.sort_unstable();
        Cut {
            action: Action::Prune { ratio: group.ratio_of(kept.len()), kept },
            weights: (each * *n as f64).round() as u64,
            cost: rounded(concluded(&known, gone[*n - 1].1)),
            measured: measured.contains(n),
        }
    };
    let cuts = counts.iter().map(cut).filter(|c| c.cost.is_finite()).collect();
    Ok(Some(Curve { cuts, ..Curve::of(group) }))
}

impl Curve {
    /// Of a group, without a cut yet.
    fn of(group: &Group) -> Curve {
        let target = Target::Group(group.id.clone());
        Curve { target, block: group.block.clone(), expert: None, cuts: Vec::new(), influence: None }
    }
}

/// The cuts of a mixture: those experts go that add least to its sum on the calibration text, and a token is sent to as many as before. Nothing
/// makes up for what they gave.
fn of_experts(
    walk: &mut Walk,
    stretch: &Stretch,
    (group, mixture): (&Group, &Mixture),
    judge: &mut Judge,
) -> Result<Option<Curve>, RepairError> {
    let graph = walk.state.model.graph.clone();
    let Op::Route(route) = &graph.node(mixture.route).op else { return Ok(None) };
    let start = &shapes(&graph)?[stretch.from.index()];
    let names: Vec<&str> = graph.node(mixture.combine).inputs.iter().map(|id| graph.node(*id).name.as_str()).collect();
    let whole = part(&graph, stretch.from, start, stretch.to);
    let mut runner = walk.state.runner(&whole, (&walk.state.model.params, &walk.state.model.precision), &names)?;
    let mut adds = vec![0f64; group.size];
    for chunk in &walk.chunks {
        walk.state.cancel.check()?;
        let (_, values) = runner.run(&chunk.compressed)?;
        adds.iter_mut().zip(prune::added(mixture, &graph, &values)?).for_each(|(a, v)| *a += v);
    }
    drop(runner);
    let mut gone: Vec<u32> = (0..group.size as u32).collect();
    gone.sort_by(|a, b| adds[*a as usize].total_cmp(&adds[*b as usize]).then(a.cmp(b)));
    let most = group.size.saturating_sub(route.top);
    let step = group.size.div_ceil(CUTS);
    let counts: Vec<usize> = (1..).map(|i| i * step).take_while(|n| *n <= most).collect();
    let router = graph.node(mixture.router).param(ParamRole::Weight);
    let Some(router) = router.filter(|_| graph.node(mixture.router).param(ParamRole::Bias).is_none()) else {
        return Ok(None);
    };
    let rows = walk.state.model.params.get(router)?.clone();
    let cols = rows.numel() / group.size.max(1);
    let each = expert_weights(mixture, &walk.state.model);
    let mut cuts = Vec::new();
    for n in counts {
        let mut kept: Vec<u32> = gone[n..].to_vec();
        kept.sort_unstable();
        let action = Action::Prune { ratio: group.ratio_of(kept.len()), kept: kept.clone() };
        let target = Target::Group(group.id.clone());
        let small = shrink(&graph, std::slice::from_ref(group), &[(target, action.clone())])?;
        let mut params = walk.state.model.params.clone();
        let values = rows.values();
        let stay = kept.iter().flat_map(|e| values[*e as usize * cols..][..cols].iter().copied()).collect();
        let Some(stay) = Param::owned(vec![kept.len(), cols], stay) else { return Ok(None) };
        params.insert(router.to_owned(), stay);
        let old = std::mem::replace(&mut walk.state.model.params, params);
        let cost = walk.loss_through(&part(&small, stretch.from, start, stretch.to), stretch.to, judge);
        walk.state.model.params = old;
        cuts.push(Cut {
            action,
            weights: gone[..n].iter().map(|e| each[*e as usize]).sum(),
            cost: rounded(cost?),
            measured: true,
        });
    }
    Ok(Some(Curve { cuts, ..Curve::of(group) }))
}

/// A layer's weights without the columns `out`: the least squares of the others.
fn solved(normal: &Normal, prior: &[f32], out: &[usize], lambda: f64) -> Option<Vec<f32>> {
    let d = normal.inputs();
    let kept: Vec<usize> = (0..d).filter(|c| !out.contains(c)).collect();
    let (n, o) = (kept.len(), normal.outputs());
    let small: Vec<f64> = (0..n * n).map(|k| normal.gram[kept[k / n] * d + kept[k % n]]).collect();
    let across: Vec<f64> = (0..o * n).map(|k| normal.cross[k / n * d + kept[k % n]]).collect();
    let own: Vec<f32> = (0..o * n).map(|k| prior[k / n * d + kept[k % n]]).collect();
    let found = Normal { gram: &small, cross: &across, squares: normal.squares }.solve(&own, lambda)?;
    let mut weight = vec![0f32; prior.len()];
    for (row, found) in weight.chunks_exact_mut(d).zip(found.chunks_exact(n)) {
        kept.iter().zip(found).for_each(|(c, w)| row[*c] = *w);
    }
    Some(weight)
}

/// The cost of an error by the costs of others, `(error, cost)` by rising errors: a power law between two, in proportion beyond them.
fn concluded(known: &[(f64, f64)], error: f64) -> f64 {
    let proportion = |(e, c): (f64, f64)| if e > 0.0 { c * error / e } else { c };
    let after = known.iter().position(|(e, _)| *e >= error);
    match (after, known) {
        (_, []) => f64::INFINITY,
        (Some(0), [first, ..]) => proportion(*first),
        (None, [.., last]) => proportion(*last),
        (Some(i), _) => {
            let ((e, c), (f, d)) = (known[i - 1], known[i]);
            if e > 0.0 && f > e && c > 0.0 && d > 0.0 {
                c * (d / c).powf((error / e).ln() / (f / e).ln())
            } else {
                proportion((f, d))
            }
        }
    }
}

/// Units that are kept together: whole blocks of the reader's format, and what kernels like where there are many.
fn granule(model: &Model, graph: &Graph, id: NodeId, group: &Group) -> usize {
    if group.size <= CUTS {
        return group.granule.max(1);
    }
    let weight = graph.node(id).param(ParamRole::Weight).and_then(|w| model.params.get(w).ok());
    let block = match (weight.and_then(|w| w.as_blocks()), model.precision.get(&graph.node(id).name).weights()) {
        (Some((block, _)), _) | (None, WeightFormat::Block(block)) => block.values(),
        _ => 1,
    };
    let most = group.size / 4;
    [block, GRANULE].into_iter().filter(|g| *g <= most).fold(group.granule.max(1), usize::max)
}

/// Weights that one unit of a group has, in all that it is coupled with.
fn unit_weights(model: &Model, group: &Group) -> f64 {
    let of = |m: &Member| {
        let Some(node) = model.graph.by_name(&m.node).map(|id| model.graph.node(id)) else { return 0.0 };
        let each = m.roles.iter().filter_map(|r| model.params.get(node.param(*r)?).ok());
        let share = m.indices(0).count() as f64;
        each.map(|p| p.numel() as f64 / p.shape().get(m.axis).copied().unwrap_or(1).max(1) as f64 * share).sum::<f64>()
    };
    group.members.iter().map(of).sum()
}

#[cfg(test)]
mod tests {
    use super::concluded;

    #[test]
    fn costs_between_two_that_are_known_follow_a_power_law() {
        let known = [(1.0, 0.1), (4.0, 0.4)];
        for (error, cost) in [(0.5, 0.05), (1.0, 0.1), (2.0, 0.2), (4.0, 0.4), (8.0, 0.8)] {
            assert!((concluded(&known, error) - cost).abs() < 1e-12, "{error}");
        }
        let steep = [(1.0, 0.1), (4.0, 1.6)];
        assert!((concluded(&steep, 2.0) - 0.4).abs() < 1e-12);
        assert_eq!(concluded(&[], 1.0), f64::INFINITY);
        assert!((concluded(&[(0.0, 0.0), (1.0, 0.1)], 0.5) - 0.05).abs() < 1e-12);
    }
}
