//! Answers about the network: its layers as measured, what targets can stand, how units hang together.

use super::Asked;
use crate::agent::validate::unknown;
use crate::config::text::glob;
use crate::plan::{Action, Target, max_ratio};
use crate::profile::{LayerRow, Profile, SensTarget};
use crate::prune::{Group, MemberRole};
use crate::session::State;
use serde_json::{Value, json};

/// What layers can be sorted by.
pub(super) const SORTS: &[&str] = &["ms", "macs", "weight_bytes", "activation_bytes", "params", "name"];
/// Rows of one answer at most.
const MOST_ROWS: usize = 400;
/// Members of a group that are told.
const MOST_MEMBERS: usize = 60;

/// The profile that is asked about: that of the model in force.
fn measured(state: &State) -> Result<&Profile, String> {
    state.profile().ok_or_else(|| "nothing is profiled yet; hint: the engineer profiles first (`P`)".to_owned())
}

pub fn layers(state: &State, asked: &Asked<'_>) -> Result<Value, String> {
    let profile = measured(state)?;
    let fits = |r: &&LayerRow| match asked.text("filter") {
        None => true,
        Some(pattern) if pattern.contains('*') => glob(pattern, &r.name, None),
        Some(word) => r.name.contains(word) || r.kind.contains(word),
    };
    let mut rows: Vec<&LayerRow> = profile.rows.iter().filter(fits).collect();
    let by = asked.text("sort").unwrap_or("ms");
    let weight = |r: &LayerRow| match by {
        "macs" => r.macs.conv_linear as f64,
        "weight_bytes" => r.weight_bytes as f64,
        "activation_bytes" => r.activation_bytes as f64,
        "params" => r.params as f64,
        _ => profile.ms(r),
    };
    match by {
        "name" => rows.sort_by(|a, b| a.name.cmp(&b.name)),
        _ => rows.sort_by(|a, b| weight(b).total_cmp(&weight(a))),
    }
    let (found, limit) = (rows.len(), asked.count("limit", 40, MOST_ROWS));
    let row = |r: &&LayerRow| {
        json!({
            "name": r.name, "kind": r.kind, "block": r.block, "ms": profile.ms(r), "share": r.share, "macs": r.macs.conv_linear,
            "weight_bytes": r.weight_bytes, "activation_bytes": r.activation_bytes, "params": r.params,
            "precision": r.precision.label(), "bound": r.bound, "efficiency": r.efficiency,
            "in_doubt": r.doubt.map(|d| d.to_string()),
        })
    };
    Ok(json!({
        "model_of_round": state.base_round(),
        "device": profile.device, "threads": profile.threads, "batch": profile.batch,
        "whole": { "ms_p50": profile.whole.p50, "ms_p95": profile.whole.p95, "ms_p99": profile.whole.p99, "in_doubt": profile.doubt.map(|d| d.to_string()) },
        "macs": profile.macs.conv_linear, "params": profile.params, "weight_bytes": profile.weight_bytes,
        "peak_activation_bytes": profile.peak_activation_bytes,
        "sorted_by": by,
        "layers": rows.iter().take(limit).map(row).collect::<Vec<_>>(),
        "left_out": found.saturating_sub(limit),
    }))
}

pub fn profile(state: &State, asked: &Asked<'_>) -> Result<Value, String> {
    let profile = measured(state)?;
    let name = asked.text("name").unwrap_or_default();
    let here = |r: &&LayerRow| r.name == name || r.fused.iter().any(|f| f == name);
    let Some(row) = profile.rows.iter().find(here) else {
        return Err(unknown("layer", name, profile.rows.iter().map(|r| r.name.as_str())));
    };
    let mut told = serde_json::to_value(row).map_err(|e| e.to_string())?;
    told["ms"] = json!(profile.ms(row));
    told["in_doubt"] = json!(row.doubt.map(|d| d.to_string()));
    told["weights"] = json!(
        profile.parameters.iter().find(|p| p.name == row.name).map(|p| serde_json::to_value(p).unwrap_or_default())
    );
    Ok(told)
}

pub fn sensitivity(state: &State, asked: &Asked<'_>) -> Result<Value, String> {
    let name = asked.text("target").unwrap_or_default();
    let all = &state.sensitivity;
    if all.curves.is_empty() {
        return Err("no sensitivity is measured yet; hint: the engineer scans it (`W`)".to_owned());
    }
    fn named(t: &SensTarget) -> &str {
        match t {
            SensTarget::Group(n) | SensTarget::Layer(n, _) | SensTarget::Block(n) => n,
        }
    }
    let curves: Vec<Value> = (all.curves.iter().filter(|c| named(&c.target) == name))
        .map(|c| {
            let (what, precision) = match &c.target {
                SensTarget::Group(_) => ("prune", None),
                SensTarget::Layer(_, p) => ("precision", Some(p.label())),
                SensTarget::Block(_) => ("remove_block", None),
            };
            let points: Vec<Value> = (c.points.iter())
                .map(|p| json!({ "ratio": p.ratio, "kl_nats": p.kl, "d_loss": p.d_loss, "change": state.metric().shown(p.d_quality) }))
                .collect();
            json!({ "action": what, "precision": precision, "items": c.images, "points": points })
        })
        .collect();
    match curves.is_empty() {
        true => Err(unknown("scanned target", name, all.curves.iter().map(|c| named(&c.target)))),
        false => Ok(json!({
            "target": name, "of": "calibration data, each change alone",
            "metric": state.metric().name, "worse_is": super::worse(&state.metric()), "base_loss": all.base_loss, "base_score": state.metric().value(all.base_score), "curves": curves,
        })),
    }
}

pub fn ladder(state: &State, asked: &Asked<'_>) -> Result<Value, String> {
    let name = asked.text("layer").unwrap_or_default();
    let Some(ladder) = state.ladders.iter().find(|l| l.layer == name) else {
        return Err(match state.ladders.is_empty() {
            true => "no ladder is measured yet; hint: the engineer profiles first (`P`)".to_owned(),
            false => unknown("layer with a ladder", name, state.ladders.iter().map(|l| l.layer.as_str())),
        });
    };
    let point = |p: &crate::profile::LadderPoint| {
        json!({
            "in_width": p.in_width, "out_width": p.out_width, "precision": p.precision.label(), "ms": p.ms, "spread": p.spread,
            "noisy": p.noisy,
        })
    };
    let told: Vec<Value> = ladder.points.iter().take(MOST_ROWS).map(point).collect();
    Ok(json!({ "layer": name, "points": told, "left_out": ladder.points.len().saturating_sub(MOST_ROWS) }))
}

pub fn group(state: &State, asked: &Asked<'_>) -> Result<Value, String> {
    let card = state.card.as_ref().ok_or("no session is open")?;
    let name = asked.text("name").unwrap_or_default();
    // A layer that computes the units of a group stands for it.
    let makes = |g: &&Group| g.members.iter().any(|m| m.node == name && m.role == MemberRole::Producer);
    let Some(group) = card.groups.iter().find(|g| g.id == name).or_else(|| card.groups.iter().find(makes)) else {
        return Err(unknown("group", name, card.groups.iter().map(|g| g.id.as_str())));
    };
    let target = Target::Group(group.id.clone());
    let members: Vec<Value> = group
        .members
        .iter()
        .take(MOST_MEMBERS)
        .map(|m| json!({ "node": m.node, "axis": m.axis, "role": m.role }))
        .collect();
    let forecaster = state.forecaster();
    let saves = |ratio: f64| {
        let forecaster = forecaster.as_ref()?;
        let ratio = group.ratio_of(group.kept_at(ratio));
        let (old, new) = (
            forecaster.costs.base(),
            forecaster.costs.cost(&[(target.clone(), Action::Prune { ratio, kept: Vec::new() })]).ok()?,
        );
        let part = |old: f64, new: f64| if old > 0.0 { (old - new) / old } else { 0.0 };
        Some(json!({
            "ratio": ratio, "latency": part(old.latency_ms, new.latency_ms), "macs": part(old.macs as f64, new.macs as f64),
            "params": part(old.params as f64, new.params as f64), "bytes": part(old.bytes as f64, new.bytes as f64),
        }))
    };
    let ratios = if group.protected.is_some() { &[][..] } else { &[0.25, 0.5, 0.75][..] };
    Ok(json!({
        "id": group.id, "kind": group.kind, "units": group.size, "step": group.granule, "block": group.block,
        "protected": group.protected, "most_that_may_go": max_ratio(group, &state.constraints),
        "members": members, "members_left_out": group.members.len().saturating_sub(MOST_MEMBERS),
        "saves_in_parts_of_the_model": ratios.iter().filter_map(|r| saves(*r)).collect::<Vec<_>>(),
    }))
}
