//! The re-fit of a language model: its layers are too many, and take too long to run, to judge each by the network's answer. Every layer that
//! reads what was cut, or that has a mask or a rank, gets the weights with the least error on its own inputs in the network compressed so far; what they
//! aim at is what the original's layer gives, at the end of a branch less what the compressed network carries past it, so that earlier errors
//! are corrected. Each is held against its plain weights on windows that none was fitted on, and all together by the network's answer.
//!
//! Sums over windows are gathered layer by layer, so that memory is that of one layer's sums and of the activations at one place.
//! Not here: how masks are chosen (`prune::masks`).

use super::RepairError;
use super::ridge::Sums;
use super::rounding::WIDEST;
use super::segment::{FitTarget, fit_target, part};
use super::state::State;
use super::walk::{Stretch, Walk, stretches};
use super::{batchnorm, blocks};
use crate::graph::{Graph, NodeId, Op, ParamRole, Precisions, shapes};
use crate::model::Param;
use crate::prune::{Factors, Masks, Normal, Sparsity, learnt, sparsegpt, wanda};
use crate::words::counted;
use candle_core::{Device, Tensor};
use std::collections::HashSet;
use std::time::Instant;

/// Ridge terms that are tried, as parts of the Gram matrix's mean diagonal; the options' one besides.
const LAMBDAS: [f64; 3] = [1e-1, 1e-2, 1e-4];

/// Re-fits that [`run`] will try: all layers are judged at once.
pub(super) fn repairs(state: &State) -> usize {
    usize::from(stretches(state, &|i| is_refitted(state, i)).iter().any(|s| !s.layers.is_empty()))
}

/// Does the compressed network's node read what was cut, or have a mask or a rank? (Not what shares its weight with others, who were not asked, nor the
/// head, which is as wide as the vocabulary.)
fn is_refitted(state: &State, i: usize) -> bool {
    let node = &state.model.graph.nodes[i];
    let Op::Linear(l) = &node.op else { return false };
    let cut = state.kept.contains_key(&(node.name.clone(), 1));
    (cut || state.masks.contains_key(&node.name) || state.ranks.contains_key(&node.name))
        && l.in_features <= WIDEST
        && i != state.model.graph.output.index()
        && state.model.graph.sharing(node).is_none()
}

/// Re-fits what reads pruned units, and lays masks.
///
/// # Errors
/// Unreadable calibration data, execution failures, cancellation (looked for before every batch).
pub(super) fn run(state: &mut State) -> Result<(), RepairError> {
    let stretches = stretches(state, &|i| is_refitted(state, i));
    let all: usize = stretches.iter().map(|s| s.layers.len()).sum();
    if all == 0 {
        return Ok(());
    }
    let started = Instant::now();
    let images = state.images()?;
    let layers = counted(all, "layer");
    let name = match (state.masks.is_empty(), state.kept.is_empty(), state.ranks.len()) {
        (false, true, 0) => format!("masks of {layers}, {}", state.options.masks.label()),
        (true, _, 0) => format!("refit {layers}"),
        (true, true, _) => format!("factors of {layers}"),
        (false, _, 0) => format!("refit {layers}, masks {}", state.options.masks.label()),
        (true, _, ranks) => format!("refit {layers}, factors of {ranks}"),
        (false, _, ranks) => format!("refit {layers}, masks {}, factors of {ranks}", state.options.masks.label()),
    };
    let plain = state.plainly_masked()?;
    // Rounding comes later, and is learnt then: until that weights are as they were filed, and those that change are not rounded.
    let graph = state.model.graph.clone();
    let changed: HashSet<&str> =
        stretches.iter().flat_map(|s| &s.layers).map(|id| graph.node(*id).name.as_str()).collect();
    let undecided = state.original.precision.nodes.iter().filter(|(name, _)| !changed.contains(name.as_str()));
    let undecided: Precisions = undecided.map(|(name, p)| (name.as_str(), *p)).collect();
    let decided = state.model.precision.clone();
    if !state.rounds {
        state.model.precision = undecided;
    }
    let before = batchnorm::loss(state, &plain.params, &images)?;
    let mut walk = Walk::start(state, &images)?;
    let (mut done, mut samples) = (0, 0);
    for stretch in &stretches {
        let found = pass(&mut walk, stretch, (&mut done, all))?;
        samples = samples.max(found);
    }
    state.tried();
    let after = batchnorm::loss(state, &state.model.params, &images)?;
    if !state.judged(name, (before, after), samples, started) {
        state.model.params = plain.params;
    }
    state.model.precision = decided;
    Ok(())
}

/// A layer to re-fit: what it aims at, and which of the original's outputs are left.
pub(super) struct Layer {
    pub id: NodeId,
    pub target: FitTarget,
    pub rows: Option<Tensor>,
}

/// Re-fits the stretch's layers and moves both networks to its end; how many samples there were.
fn pass(walk: &mut Walk, stretch: &Stretch, (done, all): (&mut usize, usize)) -> Result<u64, RepairError> {
    let graph = walk.state.model.graph.clone();
    let consumers = graph.consumers();
    let mut layers = Vec::new();
    for &id in &stretch.layers {
        let rows = walk.state.kept.get(&(graph.node(id).name.clone(), 0));
        let rows = rows.map(|r| Tensor::new(r.as_slice(), &Device::Cpu)).transpose()?;
        layers.push(Layer { id, target: fit_target(&graph, &consumers, id), rows });
    }
    let mut samples = 0;
    // Queries, keys and values read the same, and so do both that gate one another.
    let source = |l: &Layer| graph.node(l.id).inputs.first().copied();
    for together in layers.chunk_by(|a, b| source(a) == source(b)) {
        walk.state.progress(*done, all, &format!("re-fit {}", graph.node(together[0].id).name));
        let found = gathered(walk, &graph, stretch, together)?;
        for (layer, [fit, check]) in together.iter().zip(&found) {
            samples = fit.samples();
            refit(walk.state, &graph, layer.id, fit, check)?;
            *done += 1;
        }
    }
    advance(walk, stretch, &graph)?;
    Ok(samples)
}

/// Moves both networks' activations to the stretch's end. As long as nothing is compressed they are the same.
fn advance(walk: &mut Walk, stretch: &Stretch, graph: &Graph) -> Result<(), RepairError> {
    if stretch.to == graph.output {
        return Ok(());
    }
    let (theirs, ours) =
        (original_part(walk, stretch)?, part(graph, stretch.from, &shapes(graph)?[stretch.from.index()], stretch.to));
    let same = stretch.layers.is_empty()
        && theirs == ours
        && walk.state.original.precision == walk.state.model.precision
        && walk.same();
    walk.advance_original(&theirs)?;
    if same {
        walk.follow()
    } else {
        walk.advance(&ours)?
    }
    Ok(())
}

fn original_part(walk: &Walk, stretch: &Stretch) -> Result<Graph, RepairError> {
    let original = &walk.state.original.graph;
    Ok(part(original, stretch.from, &shapes(original)?[stretch.from.index()], stretch.to))
}

/// Sums over the tokens of the windows that are fitted on, and over those of the windows that judge, of layers that read the same.
pub(super) fn gathered(
    walk: &Walk,
    graph: &Graph,
    stretch: &Stretch,
    layers: &[Layer],
) -> Result<Vec<[Sums; 2]>, RepairError> {
    let state = &*walk.state;
    let name = |id: NodeId| graph.node(id).name.as_str();
    let source = graph.node(layers[0].id).inputs.first().copied().unwrap_or(stretch.from);
    let skips: Vec<NodeId> = layers.iter().filter_map(|l| l.target.skip).filter(|s| *s != stretch.from).collect();
    let to = if skips.is_empty() { source } else { stretch.to };
    let mut ours = match source == stretch.from && skips.is_empty() {
        true => None,
        false => {
            let keep: Vec<&str> = skips.iter().map(|s| name(*s)).chain([name(source)]).collect();
            let before = part(graph, stretch.from, &shapes(graph)?[stretch.from.index()], to);
            Some(state.runner(&before, (&state.model.params, &state.model.precision), &keep)?)
        }
    };
    let targets: Vec<&str> = layers.iter().map(|l| name(l.target.node)).collect();
    let whole = original_part(walk, stretch)?;
    let mut theirs = state.runner(&whole, (&state.original.params, &state.original.precision), &targets)?;
    let sums = |l: &Layer| match &graph.node(l.id).op {
        Op::Linear(l) => [(); 2].map(|()| Sums::new(l.in_features, l.out_features)),
        _ => [(); 2].map(|()| Sums::new(0, 0)),
    };
    let mut out: Vec<[Sums; 2]> = layers.iter().map(sums).collect();
    for chunk in &walk.chunks {
        state.cancel.check()?;
        let (end, wanted) = theirs.run(&chunk.original)?;
        let values = ours.as_mut().map(|r| r.run(&chunk.compressed)).transpose()?;
        let value = |id: NodeId| match &values {
            _ if id == stretch.from => chunk.compressed.clone(),
            Some((last, kept)) => kept.get(name(id)).unwrap_or(last).clone(),
            None => chunk.compressed.clone(),
        };
        let x = rows(&value(source))?;
        for ((layer, sums), target) in layers.iter().zip(&mut out).zip(&targets) {
            let mut t = rows(wanted.get(*target).unwrap_or(&end))?;
            if let Some(kept) = &layer.rows {
                t = t.index_select(kept, 1)?;
            }
            if let Some(skip) = layer.target.skip {
                t = (t - rows(&value(skip))?)?;
            }
            sums[usize::from(chunk.answer.is_some())].add(&x, &t)?;
        }
    }
    Ok(out)
}

/// `[N, T, D]` as `[N · T, D]`.
pub(super) fn rows(v: &Tensor) -> candle_core::Result<Tensor> {
    let v = v.to_device(&Device::Cpu)?.contiguous()?;
    let width = v.dims().last().copied().unwrap_or(1);
    v.reshape(((), width))
}

/// A layer's weights that could be taken, and what goes to its bias.
struct Tried {
    weight: Vec<f32>,
    bias: Vec<f32>,
}

/// Gives layer `id` the weights that have the least error on the windows that judge.
fn refit(state: &mut State, graph: &Graph, id: NodeId, fit: &Sums, check: &Sums) -> Result<(), RepairError> {
    let node = graph.node(id);
    let Some(name) = node.param(ParamRole::Weight) else { return Ok(()) };
    let prior = state.model.params.get(name)?.values().into_owned();
    let bias = node.param(ParamRole::Bias);
    let own = match bias {
        Some(b) => state.model.params.get(b)?.values().into_owned(),
        None => vec![0.0; prior.len() / fit.inputs().max(1)],
    };
    let (gram, cross, squares) = fit.normal(bias.is_some());
    let normal = Normal { gram: &gram, cross: &cross, squares };
    let mask = state.masks.get(&node.name).copied();
    // Windows that judge must be some.
    let judge = if check.samples() > 0 { check } else { fit };
    let cost = |t: &Tried| judge.error(&t.weight, &t.bias);
    let with_bias = |weight: Vec<f32>| {
        let bias = if bias.is_some() { fit.intercept(&weight) } else { own.clone() };
        Tried { weight, bias }
    };
    let plain = |weight: Vec<f32>| Tried { weight, bias: own.clone() };
    let lambdas = [state.options.lambda].into_iter().chain(LAMBDAS);
    // Of all ridge terms the one with the least error on windows that judge, masks or not.
    let solved = || {
        let one = |lambda| {
            let found = with_bias(normal.solve(&prior, lambda)?);
            Some((cost(&found), lambda, found))
        };
        lambdas.filter_map(one).min_by(|a, b| a.0.total_cmp(&b.0))
    };
    let rank = state.ranks.get(&node.name).map(|rank| *rank as usize);
    let factors = |weight: &[f32], gram: Option<&[f64]>| {
        Some(with_bias(Factors::of(weight, fit.inputs(), rank?, gram)?.whole(fit.inputs())))
    };
    let tried: Vec<Tried> = match (mask, state.options.masks) {
        _ if rank.is_some() => {
            let solved = solved().map(|(.., t)| t.weight);
            let of = [Some(&prior), solved.as_ref()].into_iter().flatten();
            of.filter_map(|w| factors(w, Some(&gram))).chain(factors(&prior, None)).collect()
        }
        (None, _) => [Some(plain(prior.clone())), solved().map(|(.., t)| t)].into_iter().flatten().collect(),
        (Some(pattern), Masks::Learnt) => {
            let own = solved().and_then(|(_, lambda, _)| learnt(&normal, &prior, pattern, lambda));
            own.map(&with_bias)
                .into_iter()
                .chain([plain(published(&normal, &prior, pattern, Masks::SparseGpt))])
                .collect()
        }
        (Some(pattern), method) => vec![plain(published(&normal, &prior, pattern, method))],
    };
    let costs = tried.into_iter().map(|t| (cost(&t), t)).filter(|(c, _)| c.is_finite());
    let Some((_, Tried { weight, bias: found })) = costs.min_by(|a, b| a.0.total_cmp(&b.0)) else { return Ok(()) };
    let rounded = match state.rounds {
        // What it had is rounded already, where it can be.
        true if weight == prior => Some(state.model.params.get(name)?.clone()),
        true => {
            let with_errors = |p: Param| (judge.error(&p.values(), &found), p);
            let tried = blocks::rounded_now(&state.model, node, &weight, &fit.normal(false).0);
            tried.into_iter().map(with_errors).min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, p)| p)
        }
        false => None,
    };
    match rounded {
        Some(rounded) => state.model.params.insert(name, rounded),
        None => state.model.params.set(name, weight)?,
    }
    if let Some(bias) = bias {
        state.model.params.set(bias, found)?;
    }
    Ok(())
}

/// `prior` with zeros of `pattern` by a published method.
fn published(normal: &Normal, prior: &[f32], pattern: Sparsity, masks: Masks) -> Vec<f32> {
    let found = match masks {
        Masks::Magnitude => None,
        Masks::Wanda => wanda(prior, normal.gram, pattern),
        Masks::SparseGpt | Masks::Learnt => sparsegpt(prior, normal.gram, pattern),
    };
    found.unwrap_or_else(|| {
        let mut w = prior.to_vec();
        pattern.apply(&mut w, &[normal.outputs(), normal.inputs()]);
        w
    })
}
