//! A session's state on a CIFAR ResNet-20 with made-up but consistent measurements, for tests that need no tensors.
#![allow(dead_code)]

use paring::data::DataCard;
use paring::eval::Metrics;
use paring::graph::Graph;
use paring::model::families::{CifarResnetSpec, FamilySpec};
use paring::model::{Family, Interpolation, ModelInfo, Preprocess};
use paring::plan::{Author, Budget, Decision, DecisionId, Status};
use paring::profile::{LatencyStats, LayerRow, Profile, SensCurve, SensPoint, SensTarget, Sensitivity};
use paring::prune::{Action, Group, Target};
use paring::quant::Precision;
use paring::session::{Evaluation, Phase, Round, SessionCard, State};

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

/// Time in proportion to MACs.
pub fn profile(graph: &Graph) -> Profile {
    let macs = paring::graph::macs(graph).expect("macs");
    let shapes = paring::graph::shapes(graph).expect("shapes");
    let total: u64 = macs.iter().map(|m| m.conv_linear).sum();
    let rows: Vec<LayerRow> = (graph.nodes.iter().enumerate())
        .filter(|(_, n)| n.op.is_conv_or_linear())
        .map(|(i, n)| {
            let params = paring::graph::node_params(&n.op);
            LayerRow {
                name: n.name.clone(),
                kind: paring::graph::describe(&n.op),
                kernel: "test".into(),
                latency: stats(macs[i].conv_linear as f64 / 4e6),
                share: macs[i].conv_linear as f64 / total as f64,
                weight_bytes: params * 4,
                activation_bytes: 4 * shapes[i].iter().product::<usize>() as u64,
                macs: macs[i],
                params,
                intensity: 10.0,
                efficiency: 0.5,
                out_shape: shapes[i].clone(),
                ..LayerRow::default()
            }
        })
        .collect();
    Profile {
        device: "cpu".into(),
        threads: 1,
        batch: 8,
        runs: 10,
        whole: stats(total as f64 / 4e6),
        weight_bytes: rows.iter().map(|r| r.weight_bytes).sum(),
        params: rows.iter().map(|r| r.params).sum(),
        macs: rows.iter().map(|r| r.macs).sum(),
        peak_activation_bytes: 1 << 20,
        rows,
        ..Profile::default()
    }
}

fn sensitivity(graph: &Graph, groups: &[Group]) -> Sensitivity {
    let point = |ratio: f64, kl: f64| SensPoint { ratio, d_loss: kl, kl, d_quality: -5.0 * kl };
    let mut curves = Vec::new();
    for (i, g) in groups.iter().enumerate().filter(|(_, g)| g.protected.is_none()) {
        let w = 0.01 + 0.002 * i as f64;
        let points = [0.125, 0.25, 0.375, 0.5].map(|r| point(r, w * ((3.0 * r).exp() - 1.0))).to_vec();
        curves.push(SensCurve { target: SensTarget::Group(g.id.clone()), points, images: 64 });
    }
    for n in graph.nodes.iter().filter(|n| n.op.is_conv_or_linear()) {
        let target = SensTarget::Layer(n.name.clone(), Precision::Int8);
        curves.push(SensCurve { target, points: vec![point(0.0, 0.001)], images: 64 });
    }
    Sensitivity { curves, base_loss: 0.3, base_score: 0.92 }
}

/// Round 1 of a session at review, baseline measured, nothing decided.
pub fn state() -> State {
    let graph = FamilySpec::CifarResnet(CifarResnetSpec::depth(20, 10)).build().expect("builds");
    let groups = paring::prune::groups(&graph);
    let profile = profile(&graph);
    let data = |name: &str| DataCard { name: name.into(), images: 1000, classes: 10, ..DataCard::default() };
    let baseline = Evaluation {
        round: 0,
        metrics: Metrics::of_classes(1000, 920, 0.99, 0.3, vec![(92, 100); 10]),
        whole: profile.whole,
        weight_bytes: profile.weight_bytes,
        params: profile.params,
        macs: profile.macs,
        profile: None,
        baseline_ms: profile.whole.p50,
        margins: None,
        data_hash: None,
        paired: None,
        doubt: None,
        divergence: None,
        part: None,
    };
    let card = SessionCard {
        model: ModelInfo {
            name: "resnet20".into(),
            family: Family::CifarResnet,
            classes: 10,
            class_names: None,
            preprocess: Preprocess {
                size: [32, 32],
                channels: 3,
                fit: paring::model::Fit::default(),
                resize_shorter: None,
                mean: [0.5; 3],
                std: [0.25; 3],
                interpolation: Interpolation::Bilinear,
                origin: "test".into(),
            },
            source: "resnet20.safetensors".into(),
            hash: "0".into(),
            notes: vec![],
            context: None,
        },
        graph,
        groups,
        data: data("eval"),
        calib: data("calib"),
        calib_is_eval: false,
        device: "cpu".into(),
        device_note: None,
        threads: 1,
        batch: 8,
        seed: 0,
        metric: None,
        version: "test".into(),
        recipe: None,
    };
    State {
        budget: "macs=0.6,drop=1.0".parse::<Budget>().expect("budget"),
        round: 1,
        phase: Phase::Review,
        sensitivity: sensitivity(&card.graph, &card.groups),
        card: Some(card),
        rounds: vec![Round { profile: Some(profile), evaluation: Some(baseline), ..Round::default() }],
        ..State::default()
    }
}

pub fn decision(id: u64, target: Target, action: Action) -> Decision {
    Decision {
        id: DecisionId(id),
        round: 1,
        target,
        action,
        author: Author::Planner,
        rationale: "cheap".into(),
        forecast: None,
        status: Status::Proposed,
        edited_from: None,
        veto_reason: None,
    }
}
