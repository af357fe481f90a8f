//! What `convert` makes of a language model by calibration text: cuts (`--prune`), zeros (`--sparsity`) and rounding to GGML's formats, each kept where
//! windows that it was not fitted on say so.
//!
//! Not here: which format a weight gets (`rounding`).

use super::rounding::{Text, bound};
use super::{Cancelled, UsageError, progress_line};
use crate::args::Convert;
use crate::exec::Cancel;
use crate::graph::{Node, Op, ParamRole, Precision, Precisions};
use crate::model::{Model, Param};
use crate::plan::{self, Cuts};
use crate::prune::{self, Action, Masks, Rank, Target};
use crate::recover::{
    self, Ask, Curve, RepairError, RepairOptions, RepairStep, RepairUpdate, RepairUse, Stage, Stages,
};
use crate::session::place;
use crate::words::counted;
use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Windows that say what a cut costs, at most: there are hundreds of cuts to try.
const CUT_WINDOWS: usize = 6;

/// What is to be cut or masked, and why, in words and for programs.
#[derive(Debug, Default)]
pub struct Decided {
    pub actions: Vec<(Target, Action)>,
    pub masks: Masks,
    pub notes: Vec<String>,
    pub said: Option<Value>,
}

/// What `--prune` and `--sparsity` come to. Nothing of `model` changes.
///
/// # Errors
/// What cannot be measured; more than could be cut; patterns and methods that are none.
pub fn decide(args: &Convert, model: &mut Model, text: &Text, cancel: &Cancel) -> Result<Decided> {
    let mut out = Decided::default();
    if let Some(share) = args.prune {
        let (cuts, notes, said) = cut(args, share, model, text, cancel)?;
        out.actions.extend(cuts.actions);
        out.notes.extend(notes);
        out.said = Some(said);
    }
    if let Some(pattern) = &args.sparsity {
        let sparsity = pattern.parse().map_err(|e: String| UsageError::of("--sparsity", e))?;
        out.masks = args.masks.parse().map_err(|e: String| anyhow::anyhow!("--masks: {e}"))?;
        let inside = |n: &&Node| matches!(n.op, Op::Linear(_)) && model.graph.sharing(n).is_none();
        let head = model.graph.output;
        let layers = model.graph.live().filter(|(id, _)| *id != head).map(|(_, n)| n).filter(inside);
        let masked = layers.map(|n| (Target::Weights(n.name.clone()), Action::Sparsify { sparsity }));
        out.actions.extend(masked);
    }
    if let Some(rank) = &args.factors {
        let rank: Rank = rank.parse().map_err(|e| UsageError(format!("--factors: {e}")))?;
        let (inside, head) = (|n: &&Node| model.graph.sharing(n).is_none(), model.graph.output);
        let layers: Vec<&Node> = model
            .graph
            .live()
            .filter(|(id, n)| *id != head && matches!(n.op, Op::Linear(_)))
            .map(|(_, n)| n)
            .filter(inside)
            .collect();
        let found: Vec<(&Node, u32)> = layers
            .iter()
            .filter_map(|n| Some((*n, rank.of(&n.op).ok()?)))
            .filter(|(n, rank)| prune::factorable(&model.graph, n, *rank).is_ok())
            .collect();
        let all = counted(layers.len(), "layer");
        let ranks = || found.iter().map(|(_, rank)| *rank);
        let (Some(least), Some(most)) = (ranks().min(), ranks().max()) else {
            bail!(
                "factors of rank {rank} are no smaller than any of {all}, or it has them already; hint: a lower --factors"
            );
        };
        let of = if least == most { most.to_string() } else { format!("{least} to {most}") };
        out.notes.push(format!("{} of {all} are to be two factors, of rank {of}", found.len()));
        let action = |(n, rank): (&Node, u32)| (Target::Weights(n.name.clone()), Action::Factorise { rank });
        out.actions.extend(found.into_iter().map(action));
    }
    Ok(out)
}

fn cut(
    args: &Convert,
    share: f64,
    model: &mut Model,
    text: &Text,
    cancel: &Cancel,
) -> Result<(Cuts, Vec<String>, Value)> {
    let all: usize = model.params.iter().map(|(_, p)| p.numel()).sum();
    let gone = (share * all as f64).ceil() as u64;
    let by_influence = args.prune_by == "influence";
    let cache = place::cache().ok();
    let mut line = progress_line("cuts");
    let measured = bound(model, text, |model| {
        let groups = prune::groups(&model.graph);
        let options = RepairOptions { check_images: CUT_WINDOWS, ..RepairOptions::default() };
        let ask = if by_influence { Ask::Influence } else { Ask::Costs };
        let found = recover::curves(model, &groups, ask, (&text.data, &options), cache.as_deref(), cancel, &mut |u| {
            if let RepairUpdate::Progress { done, total, .. } = u {
                line.show(done as u64, total as u64);
            }
        });
        match found {
            Err(RepairError::Cancelled(_)) => Err(Cancelled.into()),
            other => Ok(other?),
        }
    });
    line.clear();
    let (curves, windows) = measured?;
    let found = if by_influence { plan::by_influence(&curves, gone) } else { plan::joint(&curves, gone) };
    let cuts = found.with_context(|| {
        let most = plan::most(&curves);
        format!(
            "{:.1} % of the weights are more than all cuts together take; hint: --prune {:.0}% or less",
            100.0 * share,
            (100.0 * most as f64 / all.max(1) as f64).floor()
        )
    })?;
    let count = |of: fn(&Target) -> bool| cuts.actions.iter().filter(|(t, _)| of(t)).count();
    let (groups, blocks) = (count(|t| matches!(t, Target::Group(_))), count(|t| matches!(t, Target::Block(_))));
    let mut notes = vec![format!(
        "{:.1} % of the weights go ({:.1} million of {:.1}): {} narrower, {} away",
        100.0 * cuts.weights as f64 / all.max(1) as f64,
        cuts.weights as f64 / 1e6,
        all as f64 / 1e6,
        counted(groups, "group"),
        counted(blocks, "block")
    )];
    if let (Some(cost), Some(least)) = (cuts.cost, cuts.least) {
        notes.push(format!(
            "chosen by what each cut alone costs on {} of calibration text; adding up, {cost:.4} nats a token (no choice of these cuts adds up \
             to less than {least:.4})",
            counted(windows as usize, "window")
        ));
    }
    let of = |c: &Curve| {
        let cuts = c.cuts.iter().map(
            |c| json!({ "weights": c.weights, "nats": c.cost.is_finite().then_some(c.cost), "measured": c.measured }),
        );
        json!({ "target": c.target.name(), "influence": c.influence, "cuts": cuts.collect::<Vec<_>>() })
    };
    let said = json!({ "weights": cuts.weights, "of": all, "by": args.prune_by, "nats": cuts.cost, "least": cuts.least, "windows": windows,
        "actions": cuts.actions, "curves": curves.iter().map(of).collect::<Vec<_>>() });
    Ok((cuts, notes, said))
}

/// `model` with what was decided, and the weights that are to be in GGML's formats rounded by calibration text, the best of three ways by windows
/// that none was fitted on; what was done, in words and for the manifest.
///
/// # Errors
/// What [`recover::compress`] reports.
pub fn learn(model: &mut Model, decided: &Decided, text: &Text, cancel: &Cancel) -> Result<(Vec<String>, Value)> {
    let filed = |model: &Model, name: &str| {
        let weight = model.graph.by_name(name).and_then(|id| model.graph.node(id).param(ParamRole::Weight));
        let filed = weight.and_then(|w| model.params.get(w).ok()).and_then(Param::filed);
        filed.unwrap_or(Precision::F32)
    };
    let precisions: Vec<(Target, Action)> = model
        .precision
        .nodes
        .iter()
        .filter(|(name, p)| **p != filed(model, name))
        .map(|(name, p)| (Target::Layer(name.clone()), Action::Precision { precision: *p }))
        .collect();
    let rounded = model.precision.nodes.values().any(|p| p.is_learnt());
    if !rounded && decided.actions.is_empty() {
        return Ok((
            vec![
                "no weight is rounded to a format in which there is something to learn: the calibration text is unused"
                    .to_owned(),
            ],
            Value::Null,
        ));
    }
    let stages = Stages::new(vec![Stage::Apply, Stage::Refit, Stage::Round])?;
    let options = RepairOptions { stages, masks: decided.masks, ..RepairOptions::default() };
    let (mut steps, mut used) = (Vec::new(), RepairUse::default());
    let mut line = progress_line("learn");
    let wanted = model.precision.clone();
    // The original is the model as its file has it.
    for (target, _) in &precisions {
        model.precision.set(target.name(), filed(model, target.name()));
    }
    let actions: Vec<(Target, Action)> = decided.actions.iter().cloned().chain(precisions).collect();
    let made = bound(model, text, |model| {
        let groups = prune::groups(&model.graph);
        let made = recover::compress(model, &groups, &actions, &text.data, &options, cancel, &mut |u| match u {
            RepairUpdate::Progress { done, total, .. } => line.show(done as u64, total as u64),
            RepairUpdate::Step(step) => steps.push(step),
            RepairUpdate::Used(u) => used = u,
        });
        match made {
            Err(RepairError::Cancelled(_)) => Err(Cancelled.into()),
            other => {
                *model = other?;
                Ok(())
            }
        }
    });
    line.clear();
    made?;
    let on = format!(
        "{} of {}{}",
        counted(used.checked as usize, "window"),
        text.data.card().name,
        if used.checked_on_fitted { ", which are those that it was fitted on, being so few" } else { "" }
    );
    let mut notes: Vec<String> = steps.iter().map(|s| step_words(s, &on)).collect();
    notes.extend(without_zero(decided, &wanted, model));
    notes.extend(recover::stayed_whole(&model.graph, &actions));
    notes.extend(rounded_factors(model));
    notes.push(match used.fitted {
        0 => format!(
            "nothing was fitted or tried on {}: what this costs is unmeasured; hint: `paring eval` with --against the original tells",
            text.data.card().name
        ),
        n => format!("fitted on {} of {}", counted(n as usize, "window"), text.data.card().name),
    });
    let said = json!({ "steps": steps.iter().map(RepairStep::for_manifest).collect::<Vec<_>>(), "fitted": used.fitted, "checked": used.checked,
        "data": text.data.card().name, "seen": used.hash });
    Ok((notes, said))
}

/// Layers whose precision has no zero for those that they got.
fn without_zero(decided: &Decided, wanted: &Precisions, model: &Model) -> Vec<String> {
    let mut moved: BTreeMap<[&str; 2], usize> = BTreeMap::new();
    for (target, _) in decided.actions.iter().filter(|(t, _)| matches!(t, Target::Weights(_))) {
        let [from, to] = [wanted, &model.precision].map(|p| p.get(target.name()));
        if from != to && to == from.with_zero() {
            *moved.entry([from.label(), to.label()]).or_default() += 1;
        }
    }
    let told = |([from, to], n): ([&str; 2], usize)| {
        format!("{} in {to}: {from} has no zero for those that a mask leaves", counted(n, "layer"))
    };
    moved.into_iter().map(told).collect()
}

/// Factors that are stored in few bits: two weights were not what was learnt.
fn rounded_factors(model: &Model) -> Vec<String> {
    let mut few: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, layer) in model.graph.factored() {
        let precision = model.precision.get(&layer.name);
        if precision.weights().bytes(1, 256) < 512 {
            *few.entry(precision.label()).or_default() += 1;
        }
    }
    let told = |(label, n): (&str, usize)| {
        format!(
            "factors of {} are rounded to the nearest in {label}, and what that costs is no part of the divergence above; hint: --precision f16 \
             keeps them, and `paring eval --against` tells",
            counted(n, "layer")
        )
    };
    few.into_iter().map(told).collect()
}

fn step_words(step: &RepairStep, on: &str) -> String {
    let (what, stays) = (&step.name, if step.kept { "kept" } else { "not kept" });
    format!(
        "{what}: a divergence from the original of {:.4} nats a token instead of {:.4} on {on}, {stays}",
        step.loss_after, step.loss_before
    )
}
