//! The planner's words: what it saw, what it chose and why, what it left alone, how near the goal it comes.
//! Every figure in a sentence is one that the search used.

use super::solve::{Candidate, Stop};
use super::{Goal, PlannerInput};
use crate::plan::{
    Action, Basis, Budget, Decision, Estimate, Forecast, Forecaster, Limit, Outcome, PlanForecast, Target, same_cut,
};
use crate::profile::SensTarget;
use crate::prune::GroupKind;
use crate::task::Metric;
use crate::words::{counted, counted_as};
use std::collections::BTreeMap;

/// Decisions that get a sentence of their own; the others are summed up.
const SPOKEN: usize = 10;

type Say<'a> = &'a mut dyn FnMut(&str);

/// What may be lost, in words: `0.50 points of top-1`.
fn loss(budget: &Budget, metric: &Metric) -> String {
    let drop = budget.drop.unwrap_or_default();
    let unit = format!("{:.*} {}", metric.digits, drop, metric.change_unit);
    format!("{} of {}", unit.trim_end(), metric.name)
}

pub(super) fn opening(input: &PlannerInput, goal: &Goal, trust: f64, say: Say) {
    let metric = &input.quality.metric;
    let p = input.profile;
    if p.whole.p50 > 0.0 {
        say(&format!(
            "One batch of {} takes the original {:.2}{} ms on {}, with {:.1} M MACs for each {} and {} of weights. ",
            p.batch,
            p.whole.p50,
            if p.doubt.is_some() { "?" } else { "" },
            p.device,
            p.macs.conv_linear as f64 / 1e6,
            metric.item,
            bytes(p.weight_bytes as f64)
        ));
    }
    let mut shares: BTreeMap<&str, f64> = BTreeMap::new();
    let total: f64 = p.rows.iter().map(|r| r.latency.p50).sum::<f64>().max(1e-12);
    for r in &p.rows {
        *shares.entry(r.block.as_deref().unwrap_or(&r.name)).or_default() += r.latency.p50 / total;
    }
    let mut top: Vec<(&str, f64)> = shares.into_iter().collect();
    top.sort_by(|a, b| b.1.total_cmp(&a.1));
    if top.len() > 1 {
        let named: Vec<String> = top.iter().take(3).map(|(n, s)| format!("{n} ({:.0} %)", 100.0 * s)).collect();
        say(&format!("Its cost sits in {}. ", named.join(", ")));
    }
    if goal.assumed_floor {
        say(&format!("No goal is set, so I look for what {} buys; `:budget` sets one. ", loss(&goal.budget, metric)));
    } else if goal.open_ended {
        say(&format!(
            "Only a floor is set: I take time and bytes as far as a loss of {} allows. ",
            loss(&goal.budget, metric)
        ));
    } else {
        say(&format!("The goal is {}. ", goal.budget));
    }
    if !goal.quantize {
        say("Neither latency nor memory is asked for, so precision stays as it is. ");
    }
    if let Some(last) = input.quality.observed.last() {
        say(&format!(
            "Round {} measured {}, and forecasts have learnt from it",
            last.round,
            metric.change_words(last.d_quality)
        ));
        say(&if (trust - 1.0).abs() > 0.05 {
            format!("; latency savings are now scaled by {trust:.2}. ")
        } else {
            ". ".to_owned()
        });
    }
}

pub(super) fn landscape(input: &PlannerInput, candidates: &[Candidate], say: Say) {
    // Compared at the level nearest a cut by half: who gives most for least.
    let mut half: Vec<(&str, f64)> = candidates
        .iter()
        .filter(|c| matches!(c.target, Target::Group(_)))
        .filter_map(|c| {
            let at = c.levels.iter().position(|a| matches!(a, Action::Prune { ratio, .. } if *ratio >= 0.499))?;
            Some((c.target.name(), *c.divergence.get(at)?))
        })
        .collect();
    if half.len() > 1 {
        half.sort_by(|a, b| a.1.total_cmp(&b.1));
        let name = |x: &(&str, f64)| format!("{} ({:.4})", x.0, x.1);
        let k = (half.len() / 2).min(3);
        let flat: Vec<String> = half.iter().take(k).map(name).collect();
        let steep: Vec<String> = half.iter().rev().take(k).map(name).collect();
        say(&format!(
            "Cut by half and re-fitted, the output changes least (KL in nats) for {}, most for {}. ",
            flat.join(", "),
            steep.join(", ")
        ));
    }
    let unknown = input
        .groups
        .iter()
        .filter(|g| g.protected.is_none())
        .filter(|g| input.sensitivity.get(&SensTarget::Group(g.id.clone())).is_none())
        .count();
    if unknown > 0 {
        say(&format!(
            "{} no sensitivity yet; I leave {} alone. ",
            counted_as(unknown, "group has", "groups have"),
            if unknown == 1 { "it" } else { "them" }
        ));
    }
}

pub(super) fn choices(input: &PlannerInput, decisions: &[Decision], stop: Stop, say: Say) {
    if decisions.is_empty() {
        say(match stop {
            Stop::Met => "Nothing new to propose: what stands already does it. ",
            Stop::Floor | Stop::Exhausted => "Nothing new to propose beyond what stands. ",
        });
        return;
    }
    let saved = |d: &Decision| d.forecast.map_or(0.0, |f| -(f.d_macs as f64) - f.d_bytes as f64);
    let mut order: Vec<&Decision> = decisions.iter().collect();
    order.sort_by(|a, b| saved(b).total_cmp(&saved(a)));
    for d in order.iter().take(SPOKEN) {
        say(&format!("\n{}: {} {}", d.target, action_words(input, &d.target, &d.action), d.rationale));
    }
    say("\n");
    if let Some(rest) = order.get(SPOKEN..).filter(|r| !r.is_empty()) {
        let pruned: Vec<f64> = rest
            .iter()
            .filter_map(|d| if let Action::Prune { ratio, .. } = d.action { Some(ratio) } else { None })
            .collect();
        let mut precisions: BTreeMap<&str, usize> = BTreeMap::new();
        for d in rest {
            if let Action::Precision { precision } = d.action {
                *precisions.entry(precision.label()).or_default() += 1;
            }
        }
        let mut parts = Vec::new();
        if !pruned.is_empty() {
            let (lo, hi) = pruned.iter().fold((f64::INFINITY, 0.0f64), |(l, h), &r| (l.min(r), h.max(r)));
            parts.push(match pruned.len() {
                1 => format!("1 group loses {:.0} %", 100.0 * lo),
                n => format!("{n} groups lose {:.0} to {:.0} %", 100.0 * lo, 100.0 * hi),
            });
        }
        for (label, n) in &precisions {
            parts.push(format!("{} to {label}", counted_as(*n, "layer goes", "layers go")));
        }
        let other = rest.len() - pruned.len() - precisions.values().sum::<usize>();
        if other > 0 {
            parts.push(counted(other, "other change"));
        }
        say(&format!("Beyond these, {}; each card says why. ", parts.join(" and ")));
    }
}

pub(super) fn left_alone(input: &PlannerInput, candidates: &[Candidate], actions: &[(Target, Action)], say: Say) {
    let mut frozen: Vec<String> = Vec::new();
    for c in input.constraints.iter().filter(|c| !matches!(c.limit, Limit::Prefer { .. })) {
        let words = format!("{} ({})", c.target, quoted(&c.reason));
        if !frozen.contains(&words) {
            frozen.push(words);
        }
    }
    frozen.truncate(4);
    if !frozen.is_empty() {
        say(&format!("As you asked, I hold to your limits on {}. ", frozen.join(", ")));
    }
    let mut spared: Vec<(&Candidate, f64)> = candidates
        .iter()
        .filter(|c| matches!(c.target, Target::Group(_)))
        .filter(|c| !actions.iter().any(|(t, _)| *t == c.target))
        .filter_map(|c| Some((c, *c.divergence.get(1)?)))
        .collect();
    spared.sort_by(|a, b| b.1.total_cmp(&a.1));
    if let Some((c, harm)) = spared.first() {
        say(&format!(
            "I left {} whole; {} is the dearest, where the first step already costs {:.4} nats. ",
            counted(spared.len(), "group"),
            c.target.name(),
            harm
        ));
    }
    let protected = input.groups.iter().filter(|g| g.protected.is_some()).count();
    if protected > 0 {
        say(&format!("{} protected by the graph itself. ", counted_as(protected, "group is", "groups are")));
    }
}

pub(super) fn outcome(input: &PlannerInput, goal: &Goal, f: &PlanForecast, stop: Stop, say: Say) {
    let metric = &input.quality.metric;
    say(&format!(
        "Together I expect latency ~{}, MACs {:.3}x, memory {:.3}x, parameters {:.3}x and {}. ",
        factor(f.latency),
        f.macs.value,
        f.memory.value,
        f.params.value,
        match f.quality.basis {
            Basis::Unmeasured => format!("a loss of {} that nothing has measured yet", metric.name),
            Basis::Measured => format!(
                "{}, as a round of these decisions measured",
                metric.forecast_words(f.quality.value, f.quality.low, f.quality.high).replace('~', "")
            ),
            _ => metric.forecast_words(f.quality.value, f.quality.low, f.quality.high),
        }
    ));
    if matches!(f.quality.basis, Basis::Neighbour | Basis::Scanned) {
        say(&format!("Once it is rehearsed on held-back {}s the card tells more of it than I can. ", metric.item));
    }
    let missed: Vec<String> = f
        .against(&goal.budget)
        .iter()
        .filter(|l| l.is_factor() && l.forecast.value > l.target + 1e-9)
        .map(|l| format!("{} at {:.3}x of the {:.3}x asked", l.name, l.forecast.value, l.target))
        .collect();
    let known = f.quality.basis != Basis::Unmeasured;
    let drop = f.against(&goal.budget).into_iter().find(|l| known && l.name == "drop");
    let over = drop.as_ref().is_some_and(|line| line.forecast.value > line.target);
    match stop {
        _ if goal.open_ended => {}
        Stop::Met => {}
        Stop::Floor => say(&format!(
            "The goal cannot be met within {} as far as I can tell: {} with {}. \
             A larger drop, or training afterwards, would go further. ",
            loss(&goal.budget, metric),
            // What the engineer decided, or an earlier round's figures, may be over it already.
            if over { "this plan goes no further, and is over the floor," } else { "this plan stops at the floor" },
            if missed.is_empty() { "every factor in reach".to_owned() } else { missed.join(", ") }
        )),
        Stop::Exhausted => say(&format!(
            "The goal cannot be met: with everything I may touch taken, this is the nearest, {}. ",
            if missed.is_empty() { "short of the goal by its margin".to_owned() } else { missed.join(", ") }
        )),
    }
    if let Some(line) = drop {
        // Of what was measured no evaluation is to come.
        let measured = f.quality.basis == Basis::Measured;
        if measured && line.forecast.value > line.target {
            say(&format!(
                "Mind the floor: the measured drop of {:.*} is over the {:.*} allowed. ",
                metric.digits, line.forecast.value, metric.digits, line.target
            ));
        } else if measured && line.outcome == Outcome::Undecided {
            say("The floor lies within the measured interval. ");
        } else if line.forecast.value > line.target {
            say(&format!(
                "Mind the floor: the forecast drop of {:.*} is over the {:.*} allowed, though its range reaches {:.*}; the \
                 evaluation will tell. ",
                metric.digits,
                line.forecast.value,
                metric.digits,
                line.target,
                metric.digits,
                line.forecast.low.max(0.0)
            ));
        } else if line.outcome == Outcome::Undecided {
            say("The floor lies within the forecast's range, so the evaluation decides. ");
        }
    }
}

/// That the floor may allow more than this plan takes.
pub(super) fn farther(input: &PlannerInput, say: Say) {
    say(&format!(
        "The floor may allow more, but no plan much harsher than this one was tried yet: rehearse it on held-back {}s, and I go on from what \
         that shows. ",
        input.quality.metric.item
    ));
}

/// That a plan does less harm than the goal asks for, since one that does more was measured.
pub(super) fn milder(input: &PlannerInput, goal: &Goal, round: u32, say: Say) {
    let lost = input.quality.observed.iter().find(|o| o.round == round).map_or(0.0, |o| o.d_quality);
    let (metric, allowed) = (&input.quality.metric, loss(&goal.budget, &input.quality.metric));
    say(&format!(
        "I would have proposed round {round}'s plan, but that measured {}, where {allowed} may be lost: this one goes less far. ",
        metric.change_words(lost)
    ));
}

/// That a plan was taken for what held-back images say of it.
pub(super) fn swapped(input: &PlannerInput, gained: f64, say: Say) {
    say(&format!(
        "Of the plans for this goal that were built and tried on held-back {}s I take the one that did best: {} against what I would have \
         proposed by forecasts alone. ",
        input.quality.metric.item,
        input.quality.metric.change_words(gained)
    ));
}

/// Why one decision, with its figures.
pub(super) fn rationale(
    input: &PlannerInput,
    candidates: &[Candidate],
    forecaster: &Forecaster,
    target: &Target,
    action: &Action,
    forecast: &Forecast,
) -> String {
    let base = forecaster.costs.base();
    let harm = forecaster.measured(target, action).unwrap_or(0.0);
    let share = |part: f64, whole: f64| if whole > 0.0 { 100.0 * part / whole } else { 0.0 };
    let macs = share(-(forecast.d_macs as f64), base.macs as f64);
    let mem = share(-(forecast.d_bytes as f64), base.bytes as f64);
    let ms = share(-forecast.d_latency_ms.value, base.latency_ms);
    let mut saves = Vec::new();
    for (v, what) in [(ms, "of the latency"), (macs, "of the MACs"), (mem, "of the bytes")] {
        if v >= 0.05 {
            saves.push(format!("{}{v:.1} % {what}", if what.ends_with("latency") { "~" } else { "" }));
        }
    }
    let saves = if saves.is_empty() { "little by itself".to_owned() } else { saves.join(", ") };
    let mut text = format!("Saves {saves} for a KL of {harm:.4} nats.");
    match action {
        Action::Prune { .. } => {
            let cand = candidates.iter().find(|c| &c.target == target);
            let at = cand.and_then(|c| c.levels.iter().position(|l| same_cut(l, action, 1e-9)));
            if let Some((next, now)) =
                cand.zip(at).and_then(|(c, i)| Some((c.divergence.get(i + 1)?, c.divergence.get(i)?)))
            {
                text.push_str(&format!(" The next step would cost {:.4} more.", (next - now).max(0.0)));
            }
            if let Some(slower) = forecaster.costs.slower(target, action) {
                text.push_str(&format!(" {}", slower.words()));
            }
        }
        Action::Precision { .. } => {
            if forecast.d_latency_ms.value > 0.0 {
                text.push_str(" It is not faster on this device; the bytes are what counts here.");
            }
        }
        Action::RemoveBlock => text.push_str(" Its shortcut carries the signal on."),
        Action::Sparsify { .. } => text.push_str(" No kernel here skips zeros: it is for hardware that does."),
        Action::Factorise { .. } => text.push_str(" Two thinner products stand for one."),
        Action::Keep => {}
    }
    for c in input.constraints.iter().filter(|c| c.target == *target) {
        let why = if c.reason.is_empty() { String::new() } else { format!(" ({})", quoted(&c.reason)) };
        text.push_str(&match &c.limit {
            Limit::MinRatio { ratio } => format!(" At least {:.0} % of it shall go, as you asked{why}.", 100.0 * ratio),
            Limit::Together { set } => format!(" Decided alike with all of {}, as you asked{why}.", quoted(set)),
            Limit::Prefer { wish } => format!(" Your wish, {wish}, was weighed{why}."),
            Limit::Freeze | Limit::MaxRatio { .. } | Limit::KeepF32 => {
                format!(" Held within your limit ({}).", quoted(&c.reason))
            }
        });
    }
    text
}

fn action_words(input: &PlannerInput, target: &Target, action: &Action) -> String {
    match action {
        Action::Keep => "stays whole.".into(),
        Action::RemoveBlock => "goes.".into(),
        Action::Sparsify { sparsity } => format!("gets zeros ({sparsity})."),
        Action::Factorise { rank } => format!("becomes two factors of rank {rank}."),
        Action::Precision { precision } => format!("runs in {}.", precision.label()),
        Action::Prune { ratio, .. } => {
            let Some(g) = input.groups.iter().find(|g| g.id == target.name()) else { return "is cut.".into() };
            let unit = match g.kind {
                GroupKind::Channels | GroupKind::Residual => "channels",
                GroupKind::Neurons => "neurons",
                GroupKind::Heads => "heads",
                GroupKind::Width => "dimensions",
                GroupKind::Experts => "experts",
            };
            format!("{} → {} {unit} (−{:.0} %).", g.size, g.kept_at(*ratio), 100.0 * ratio)
        }
    }
}

fn factor(e: Estimate) -> String {
    format!("{:.2}x [{:.2}, {:.2}]", e.value, e.low, e.high)
}

fn bytes(v: f64) -> String {
    if v >= 1e6 { format!("{:.2} MB", v / 1e6) } else { format!("{:.0} kB", v / 1e3) }
}

fn quoted(reason: &str) -> String {
    if reason.is_empty() { "no reason given".into() } else { reason.chars().take(60).collect() }
}
