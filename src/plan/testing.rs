//! Small graphs, groups and tables for the tests of this room.

use super::{
    Action, Constraint, DecisionId, Forecaster, Limit, Outcome, QualityInput, Target, Trial, Verdict, plan_key,
};
use crate::eval::TrialOutcome;
use crate::graph::op;
use crate::graph::{Activation, Graph, Node, NodeId, Op, ParamRef, ParamRole, Span};
use crate::profile::{
    Ladder, LadderPoint, LatencyStats, LayerRow, Profile, SensCurve, SensPoint, SensTarget, Sensitivity,
};
use crate::prune::{Group, GroupKind, Member, MemberRole};
use crate::quant::Precision;
use crate::task::Metric;

fn node(name: &str, op: Op, inputs: &[u32], params: &[ParamRole]) -> Node {
    let params = params.iter().map(|&role| ParamRef { role, name: format!("{name}.{role:?}") }).collect();
    Node { name: name.into(), op, inputs: inputs.iter().map(|&i| NodeId(i)).collect(), params }
}

/// `conv1 relu1 conv2 relu2 … pool fc` of 3x3 convolutions on `[3, side, side]`, with one group a convolution.
pub fn chain(widths: &[usize], side: usize) -> (Graph, Vec<Group>) {
    let mut nodes = vec![node("image", Op::Input(op::Input::fixed([3, side, side])), &[], &[])];
    let mut groups = Vec::new();
    let mut in_ch = 3;
    let member =
        |node: String, role, axis| Member { node, roles: vec![ParamRole::Weight], axis, role, span: Span::EACH };
    for (i, &out_ch) in widths.iter().enumerate() {
        let (name, last) = (format!("conv{}", i + 1), nodes.len() as u32 - 1);
        let op = Op::Conv2d(op::Conv2d {
            in_ch,
            out_ch,
            kernel: [3, 3],
            stride: [1, 1],
            padding: [1; 4],
            groups: 1,
            bias: false,
        });
        nodes.push(node(&name, op, &[last], &[ParamRole::Weight]));
        nodes.push(node(&format!("relu{}", i + 1), Op::Activation { act: Activation::Relu }, &[last + 1], &[]));
        let next = if i + 1 < widths.len() { format!("conv{}", i + 2) } else { "fc".into() };
        groups.push(Group {
            id: name.clone(),
            kind: GroupKind::Channels,
            size: out_ch,
            granule: 1,
            members: vec![member(name, MemberRole::Producer, 0), member(next, MemberRole::Consumer, 1)],
            protected: None,
            block: None,
        });
        in_ch = out_ch;
    }
    let last = nodes.len() as u32 - 1;
    nodes.push(node("pool", Op::GlobalAvgPool, &[last], &[]));
    let fc = Op::Linear(op::Linear { in_features: in_ch, out_features: 10, bias: true });
    nodes.push(node("fc", fc, &[last + 1], &[ParamRole::Weight, ParamRole::Bias]));
    let output = NodeId(nodes.len() as u32 - 1);
    (Graph { nodes, output, blocks: Vec::new() }, groups)
}

pub fn group(name: &str) -> Target {
    Target::Group(name.to_owned())
}

pub fn ids(ids: &[u64]) -> Vec<DecisionId> {
    ids.iter().map(|&i| DecisionId(i)).collect()
}

/// A cut whose kept units are still to be picked.
pub fn cut(ratio: f64) -> Action {
    Action::Prune { ratio, kept: Vec::new() }
}

pub fn freeze(target: Target) -> Vec<Constraint> {
    vec![Constraint { target, limit: Limit::Freeze, reason: "no".into() }]
}

/// A verdict without lines: nothing was lost and nothing gained.
pub fn verdict(outcome: Outcome) -> Verdict {
    Verdict { outcome, lines: Vec::new(), d_quality: 0.0, d_quality_low: 0.0, d_quality_high: 0.0 }
}

pub fn stats(ms: f64) -> LatencyStats {
    LatencyStats {
        n: 10,
        p50: ms,
        p95: ms * 1.1,
        p99: None,
        mean: ms,
        min: ms * 0.95,
        spread: None,
        middle: 0.0,
        replayed: false,
    }
}

/// A profile whose conv and linear rows take `ms_per_mmac` a million MACs; the whole takes 1.1 times their sum.
pub fn profile_of(graph: &Graph, ms_per_mmac: f64) -> Profile {
    let macs = crate::graph::macs(graph).expect("macs");
    let shapes = crate::graph::shapes(graph).expect("shapes");
    let of = |(i, n): (usize, &Node)| {
        let (ms, params) = (macs[i].conv_linear as f64 / 1e6 * ms_per_mmac, crate::graph::node_params(&n.op));
        LayerRow { macs: macs[i], out_shape: shapes[i].clone(), ..row(&n.name, ms, params) }
    };
    let weighty = graph.nodes.iter().enumerate().filter(|(_, n)| n.op.is_conv_or_linear());
    let rows: Vec<LayerRow> = weighty.map(of).collect();
    let total: f64 = rows.iter().map(|r| r.latency.p50).sum();
    profile(rows, total * 1.1)
}

/// A row of a profile in f32, with nothing in doubt of it.
pub fn row(name: &str, ms: f64, params: u64) -> LayerRow {
    LayerRow {
        name: name.into(),
        kind: "layer".into(),
        kernel: "test".into(),
        latency: stats(ms),
        weight_bytes: params * 4,
        params,
        intensity: 1.0,
        efficiency: 0.5,
        out_shape: vec![1],
        ..LayerRow::default()
    }
}

/// A profile of these rows, all of which take `ms` together.
pub fn profile(rows: Vec<LayerRow>, ms: f64) -> Profile {
    Profile {
        device: "cpu".into(),
        threads: 1,
        batch: 1,
        runs: 10,
        whole: stats(ms),
        weight_bytes: rows.iter().map(|r| r.weight_bytes).sum(),
        params: rows.iter().map(|r| r.params).sum(),
        macs: rows.iter().map(|r| r.macs).sum(),
        rows,
        ..Profile::default()
    }
}

/// `kl = weight · (exp(3 ratio) − 1) / 100` for every group, `int8_kl` for every layer.
pub fn curves(groups: &[Group], weights: &[f64], layers: &[&str], int8_kl: f64) -> Sensitivity {
    let point = |ratio: f64, kl: f64| SensPoint { ratio, d_loss: kl, kl, d_quality: -kl * 5.0 };
    let mut curves: Vec<SensCurve> = groups
        .iter()
        .zip(weights)
        .map(|(g, w)| SensCurve {
            target: SensTarget::Group(g.id.clone()),
            points: [0.125, 0.25, 0.5, 0.75, 0.875]
                .iter()
                .map(|&r| point(r, w * ((3.0 * r).exp() - 1.0) / 100.0))
                .collect(),
            images: 64,
        })
        .collect();
    for l in layers {
        curves.push(SensCurve {
            target: SensTarget::Layer((*l).into(), Precision::Int8),
            points: vec![point(0.0, int8_kl)],
            images: 64,
        });
    }
    Sensitivity { curves, base_loss: 0.1, base_score: 0.95 }
}

/// What a layer took at these widths.
pub fn rung(in_width: usize, out_width: usize, precision: Precision, ms: f64) -> LadderPoint {
    LadderPoint { in_width, out_width, precision, ms, spread: 0.0, noisy: false }
}

/// Ladders in which time is proportional to both widths and int8 takes `int8` of f32.
pub fn ladders(graph: &Graph, profile: &Profile, int8: f64) -> Vec<Ladder> {
    let mut out = Vec::new();
    for n in &graph.nodes {
        let Some((i, o)) = n.op.facts().widths() else { continue };
        let full = profile.rows.iter().find(|r| r.name == n.name).map_or(1.0, |r| r.latency.p50);
        let at = |iw: usize, ow: usize, precision, k: f64| {
            rung(iw, ow, precision, full * k * (iw as f64 / i as f64) * (ow as f64 / o as f64))
        };
        let mut points = vec![at(i, o, Precision::F32, 1.0), at(i, o, Precision::Int8, int8)];
        for (iw, ow) in [(i / 2, o), (i, o / 2), (i / 2, o / 2)] {
            if iw > 0 && ow > 0 {
                points.push(at(iw, ow, Precision::F32, 1.0));
                points.push(at(iw, ow, Precision::Int8, int8));
            }
        }
        out.push(Ladder { layer: n.name.clone(), points, ..Ladder::default() });
    }
    out
}

pub fn int8(layer: &str) -> (Target, Action) {
    (Target::Layer(layer.into()), Action::Precision { precision: Precision::Int8 })
}

/// What was tried of `forecaster`'s model, if 27 points go with each nat of whatever was done: cuts of every group by a
/// quarter, a half and three quarters, and int8 everywhere, on a network that is right on 95 of 100 images of ten classes.
pub fn tried(forecaster: &Forecaster, groups: &[Group], layers: &[&str]) -> QualityInput {
    let mut input =
        QualityInput { base: Some(0.95), metric: Metric::top1(10), images: 10_000, ..QualityInput::default() };
    let cuts = |ratio: f64| -> Vec<(Target, Action)> {
        let free = groups.iter().filter(|g| g.protected.is_none());
        free.map(|g| (group(&g.id), cut(ratio))).collect()
    };
    let rounded = layers.iter().map(|l| int8(l)).collect();
    for actions in [cuts(0.25), cuts(0.5), cuts(0.75), rounded] {
        input.trials.add(trial(forecaster, actions, 27.0));
    }
    input
}

/// A trial of `actions` in which a nat cost `points`, saturating at chance.
pub fn trial(forecaster: &Forecaster, actions: Vec<(Target, Action)>, points: f64) -> Trial {
    let drop = 85.0 * (1.0 - (-forecaster.harm(&actions).0 * points / 85.0).exp());
    let turned = (3.0 * drop / 100.0).min(1.0);
    let outcome = TrialOutcome {
        d_quality: -drop,
        sample_sd: 0.01 * drop,
        turned,
        images: 1_000_000,
        by_kind: vec![-drop],
        ..Default::default()
    };
    Trial { key: plan_key(&actions), actions, outcome, anchor: true }
}
