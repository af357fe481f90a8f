//! A session for screens to show: a ViT-B/16 with made-up but plausible figures, built through the real event fold, so
//! that nothing here can drift from what a host sends.
#![allow(dead_code)]

use paring::config::Settings;
use paring::data::DataCard;
use paring::eval::{Correction, Disturbance, Metrics, TrialOutcome, ViewFacts};
use paring::graph::{Graph, Macs, Op, Precisions, describe, macs, node_params};
use paring::model::families::{FamilySpec, VitDims, VitSpec};
use paring::model::{Family, Interpolation, ModelInfo, Preprocess};
use paring::plan::*;
use paring::profile::*;
use paring::prune::{Group, groups};
use paring::quant::Precision;
use paring::recover::RepairStep;
use paring::session::*;
use paring::tui::App;

pub const START_MS: i64 = 1_763_650_000_000;

/// Records events as a host would.
pub struct Story {
    pub state: State,
    pub at_ms: i64,
}

impl Story {
    pub fn push(&mut self, event: Event) -> &mut Story {
        self.at_ms += 7_000;
        let record = Record { seq: self.state.seq + 1, at_ms: self.at_ms, event };
        self.state.apply(&record);
        self
    }
}

pub fn graph() -> Graph {
    FamilySpec::Vit(VitSpec::timm(VitDims::base16())).build().expect("builds")
}

pub fn card() -> SessionCard {
    let graph = graph();
    let groups = groups(&graph);
    SessionCard {
        model: ModelInfo {
            name: "vit_b16".into(),
            family: Family::Vit,
            classes: 10,
            class_names: None,
            preprocess: Preprocess {
                size: [224, 224],
                channels: 3,
                fit: paring::model::Fit::default(),
                resize_shorter: None,
                mean: [0.5; 3],
                std: [0.5; 3],
                interpolation: Interpolation::Bicubic,
                origin: "preprocessor_config.json".into(),
            },
            source: "/models/vit_b16.safetensors".into(),
            hash: "3f9a".repeat(16),
            notes: vec![],
            context: None,
        },
        graph,
        groups,
        data: data("imagenette-val", 5000),
        calib: data("imagenette-calib", 1024),
        calib_is_eval: false,
        device: "cpu 16 threads".into(),
        device_note: None,
        threads: 16,
        batch: 8,
        seed: 7,
        metric: None,
        version: "0.1.0".into(),
        recipe: None,
    }
}

fn data(name: &str, images: usize) -> DataCard {
    let names = ["tench", "springer", "player", "saw", "church", "horn", "truck", "pump", "ball", "parachute"];
    DataCard {
        name: name.into(),
        images,
        classes: 10,
        class_names: names.iter().map(|n| (*n).to_owned()).collect(),
        source: format!("/data/{name}"),
        limit: 0,
    }
}

/// A repeatable number in 0..1 from a name.
fn noise(name: &str) -> f64 {
    let h = name.bytes().fold(0xcbf2_9ce4u32, |h, b| (h ^ b as u32).wrapping_mul(0x0100_0193));
    (h >> 8) as f64 / (1u32 << 24) as f64
}

fn stats(ms: f64) -> LatencyStats {
    LatencyStats {
        n: 200,
        p50: ms,
        p95: ms * 1.06,
        p99: None,
        mean: ms * 1.01,
        min: ms * 0.96,
        spread: None,
        middle: 0.0,
        replayed: false,
    }
}

/// A profile whose layers take time by their MACs.
pub fn profile(graph: &Graph, factor: f64, precision: &Precisions) -> Profile {
    let costs = macs(graph).expect("costs");
    let mut rows: Vec<LayerRow> = Vec::new();
    for (i, node) in graph.nodes.iter().enumerate() {
        if !matches!(node.op, Op::Conv2d(_) | Op::Linear(_) | Op::LayerNorm(_) | Op::Attention(_)) {
            continue;
        }
        let m: Macs = costs[i];
        let all = (m.conv_linear + m.attention + m.norms) as f64;
        let p = precision.get(&node.name);
        let ms = (0.004 + all / 1.1e9 * (0.92 + 0.16 * noise(&node.name))) * factor;
        let params = node_params(&node.op);
        let block = graph.blocks.iter().find(|b| b.nodes.iter().any(|n| n.index() == i)).map(|b| b.name.clone());
        rows.push(LayerRow {
            name: node.name.clone(),
            kind: describe(&node.op),
            block,
            kernel: if p == Precision::Int8 { "gemm-u8i8/vnni".into() } else { "gemm-f32/avx512".into() },
            precision: p,
            latency: stats(if p == Precision::Int8 { ms * 0.4 } else { ms }),
            weight_bytes: if p == Precision::Int8 { params } else { params * 4 },
            activation_bytes: 8 * 197 * 768 * 4,
            macs: m,
            params,
            intensity: 42.0,
            bound: if all > 1e8 { Bound::Compute } else { Bound::Memory },
            efficiency: 0.61,
            out_shape: vec![197, 768],
            ..LayerRow::default()
        });
    }
    let total: f64 = rows.iter().map(|r| r.latency.p50).sum();
    rows.iter_mut().for_each(|r| r.share = r.latency.p50 / total);
    Profile {
        device: "cpu".into(),
        threads: 16,
        batch: 8,
        runs: 200,
        ceilings: Ceilings { f32_gflops: 460.0, int8_gops: 1700.0, bandwidth_gbs: 38.0 },
        whole: stats(total * 0.98),
        weight_bytes: rows.iter().map(|r| r.weight_bytes).sum(),
        params: rows.iter().map(|r| r.params).sum(),
        macs: rows.iter().map(|r| r.macs).sum(),
        peak_activation_bytes: 12_000_000,
        rows,
        ..Profile::default()
    }
}

pub fn curves(groups: &[Group]) -> Vec<SensCurve> {
    let open = groups.iter().filter(|g| g.protected.is_none());
    open.map(|g| {
        let early = g.id.contains("blocks.1.") || g.id.contains("blocks.0.");
        let hard = 0.004 + noise(&g.id) * if early { 0.2 } else { 0.03 };
        let point = |r: f64| SensPoint {
            ratio: r,
            d_loss: hard * r * r * r,
            kl: hard * r * r * r,
            d_quality: -hard * 20.0 * r * r * r,
        };
        SensCurve {
            target: SensTarget::Group(g.id.clone()),
            points: [0.125, 0.25, 0.375, 0.5, 0.75].map(point).to_vec(),
            images: 1024,
        }
    })
    .chain((0..12).map(|b| {
        let kl = 0.0008 + 0.002 * noise(&format!("int8 {b}"));
        SensCurve {
            target: SensTarget::Layer(format!("blocks.{b}.attn.qkv"), Precision::Int8),
            points: vec![SensPoint { ratio: 0.0, d_loss: kl, kl, d_quality: 0.0 }],
            images: 1024,
        }
    }))
    .collect()
}

fn evaluation(round: u32, profile: Profile, lost: usize) -> Evaluation {
    let per = |i: usize| (470 - 3 * i - lost * (i % 4) / 6, 500);
    let per_class: Vec<(usize, usize)> = (0..10).map(per).collect();
    let correct: usize = per_class.iter().map(|c| c.0).sum();
    Evaluation {
        round,
        metrics: Metrics::of_classes(
            5000,
            correct,
            0.9962 - 0.0001 * lost as f64,
            0.2113 + 0.001 * lost as f64,
            per_class,
        ),
        whole: profile.whole,
        weight_bytes: profile.weight_bytes,
        params: profile.params,
        macs: profile.macs,
        baseline_ms: if round == 0 { profile.whole.p50 } else { profile.whole.p50 / 0.62 },
        paired: (round > 0).then(|| Paired {
            base: stats(profile.whole.p50 / 0.62),
            new: profile.whole,
            ratio: Ratio { n: 60, value: 0.62, low: 0.61, high: 0.63, coverage: 0.97 },
            doubt: None,
            load: Load::default(),
        }),
        doubt: None,
        divergence: None,
        part: None,
        profile: Some(profile),
        margins: None,
        data_hash: None,
    }
}

pub fn decision(id: u64, target: Target, action: Action, why: &str) -> Decision {
    let role = if matches!(action, Action::Precision { .. }) { "quantization" } else { "pruning" };
    Decision {
        id: DecisionId(id),
        round: 1,
        target,
        action,
        author: Author::Agent { role: role.into(), model: "qwen3-32b".into() },
        rationale: why.into(),
        forecast: None,
        status: Status::Proposed,
        edited_from: None,
        veto_reason: None,
    }
}

/// Opened, baseline evaluated and profiled, sensed; nothing proposed.
pub fn profiled() -> Story {
    let mut s = Story { state: State::default(), at_ms: START_MS };
    let card = card();
    let base = profile(&card.graph, 1.0, &Precisions::default());
    let curves = curves(&card.groups);
    let budget = Budget { latency: Some(0.6), drop: Some(0.5), ..Budget::default() };
    s.push(Event::Opened { card: Box::new(card), budget });
    s.push(Event::PhaseEntered { round: 0, phase: Phase::Profile });
    s.push(Event::Profiled { round: 0, profile: Box::new(base.clone()) });
    s.push(Event::Evaluated { evaluation: Box::new(evaluation(0, base, 0)) });
    s.push(Event::Sensed { base_loss: 0.21, base_score: 0.93, curves });
    tried(&mut s);
    s.push(Event::PhaseEntered { round: 1, phase: Phase::Review });
    s
}

/// Whole plans tried on held-back images: what forecasts of accuracy are fitted to. Six points go with a nat.
fn tried(s: &mut Story) {
    let forecaster = s.state.forecaster().expect("profiled");
    let correction = Correction {
        images: 1000,
        held_error: Some(0.01),
        new_error: Some(0.07),
        weighted: true,
        views: Disturbance::ALL.map(|k| ViewFacts { kind: Some(k), strength: 0.4, error: 0.07 }).to_vec(),
    };
    let cut = |ratio: f64| -> Vec<(Target, Action)> {
        let fc1 = |b: usize| Target::Group(format!("blocks.{b}.mlp.fc1"));
        let kept: Vec<u32> = (0..(3072.0 * (1.0 - ratio)) as u32).collect();
        (0..12).map(|b| (fc1(b), Action::Prune { ratio, kept: kept.clone() })).collect()
    };
    let int8 = (0..12)
        .map(|b| (Target::Layer(format!("blocks.{b}.attn.qkv")), Action::Precision { precision: Precision::Int8 }))
        .collect();
    for actions in [cut(0.25), cut(0.5), int8] {
        let d_quality = -6.0 * forecaster.harm(&actions).0;
        let outcome = TrialOutcome {
            d_quality,
            sample_sd: 0.1,
            kind_sd: 0.05,
            size: 100.0,
            turned: 0.01,
            images: 1000,
            by_kind: vec![d_quality; 4],
        };
        let trial = Trial { key: plan_key(&actions), actions, outcome, anchor: true };
        s.push(Event::Tried { trial: Box::new(trial), correction: Some(correction.clone()) });
    }
}

/// The fc1 groups and qkv layers proposed, some settled: the first round under review.
pub fn review() -> Story {
    let mut s = profiled();
    let mut all = Vec::new();
    let mut id = 1;
    for b in 0..12 {
        let ratio = if b < 4 { 0.125 } else { 0.375 };
        let g = format!("blocks.{b}.mlp.fc1");
        let kept = (0..(3072.0 * (1.0 - ratio)) as u32).collect();
        let why = "sensitivity stays flat to 0.4 and the ladder steps at 1920, so the knee is cheap here";
        all.push(decision(id, Target::Group(g), Action::Prune { ratio, kept }, why));
        id += 1;
        if b >= 6 {
            let l = format!("blocks.{b}.attn.qkv");
            let why = "weights are well conditioned; int8 costs 0.01 points alone";
            all.push(decision(id, Target::Layer(l), Action::Precision { precision: Precision::Int8 }, why));
            id += 1;
        }
    }
    let ids =
        |all: &[Decision], f: &dyn Fn(&Decision) -> bool| all.iter().filter(|d| f(d)).map(|d| d.id).collect::<Vec<_>>();
    let approved = ids(&all, &|d| d.target.name().contains("blocks.10.") || d.target.name().contains("blocks.9."));
    let vetoed = ids(&all, &|d| d.target.name().contains("blocks.2."));
    let edited = ids(&all, &|d| d.target.name() == "blocks.8.mlp.fc1");
    s.push(Event::PhaseEntered { round: 1, phase: Phase::Reason });
    for u in utterances() {
        s.push(Event::Said { utterance: Box::new(u) });
    }
    s.push(Event::Proposed { decisions: all });
    s.push(Event::PhaseEntered { round: 1, phase: Phase::Review });
    s.push(Event::Approved { ids: approved });
    s.push(Event::Vetoed { ids: vetoed, reason: "early blocks carry the texture".into() });
    for id in edited {
        let action = Action::Prune { ratio: 0.25, kept: (0..2304).collect() };
        s.push(Event::Edited { id, action, author: Author::Human });
    }
    s
}

pub fn utterances() -> Vec<Utterance> {
    let say = |role: &str, reasoning: &str, text: &str, tokens| Utterance {
        round: 1,
        role: role.into(),
        model: "qwen3-32b".into(),
        reasoning: reasoning.into(),
        text: text.into(),
        prompt: format!("You are the {role} agent of paring.\nPropose only what the tables support."),
        tokens,
        seconds: tokens as f64 / 38.0,
        ..Utterance::default()
    };
    vec![
        say(
            "analysis",
            "blocks 4–11 spend 58 % of latency in fc1 and fc2, and their sensitivity stays flat to 0.4 …",
            "The MLPs dominate: two thirds of all MACs. Attention cores are memory-bound and small.",
            212,
        ),
        say(
            "pruning",
            "The knee of most curves lies near 0.4. Multiples of 64 keep the ladder's flat steps, so 1920 of 3072 neurons.",
            "I propose neurons 0.375 in blocks 4–11 (multiples of 64, the ladder's flat steps) and 0.125 in blocks 0–3, heads untouched.",
            412,
        ),
    ]
}

/// One round run, evaluated, waiting for its verdict to be accepted.
pub fn verdict() -> Story {
    let mut s = review();
    let open: Vec<DecisionId> = s.state.open().iter().map(|d| d.id).collect();
    s.push(Event::Approved { ids: open });
    let ids: Vec<DecisionId> = s.state.pending().iter().map(|d| d.id).collect();
    s.push(Event::RunStarted { round: 1, ids: ids.clone(), recipe: None, forecast: None });
    let step = |name: &str, a, b, kept| RepairStep {
        name: name.into(),
        loss_before: a,
        loss_after: b,
        samples: 24_576,
        kept,
        seconds: 1.8,
    };
    s.push(Event::Repaired { round: 1, step: step("refit blocks.4.mlp.fc2", 0.3121, 0.2544, true) });
    s.push(Event::Repaired { round: 1, step: step("refit blocks.5.mlp.fc2", 0.2544, 0.2391, true) });
    s.push(Event::Applied {
        round: 1,
        ids,
        artifact: "round-1".into(),
        model_hash: "77".repeat(32),
        used: Default::default(),
    });
    let card = s.state.card.clone().expect("opened");
    let mut plan = Precisions::default();
    for b in 6..12 {
        plan.set(format!("blocks.{b}.attn.qkv"), Precision::Int8);
    }
    let p = profile(&card.graph, 0.66, &plan);
    s.push(Event::Evaluated { evaluation: Box::new(evaluation(1, p, 22)) });
    let line = |name: &str, target, measured, outcome| VerdictLine {
        name: name.into(),
        class: None,
        target,
        measured,
        range: None,
        outcome,
    };
    s.push(Event::VerdictGiven {
        round: 1,
        verdict: Verdict {
            outcome: Outcome::Reject,
            lines: vec![line("latency", 0.6, 0.62, Outcome::Reject), line("drop", 0.5, 0.32, Outcome::Accept)],
            d_quality: -0.32,
            d_quality_low: -0.61,
            d_quality_high: -0.03,
        },
    });
    s
}

/// Round 1 accepted; round 2 took its cut of block 9 back and cut block 5 deeper, and was rolled back.
pub fn rolled_back() -> Story {
    let mut s = verdict();
    s.push(Event::RoundAccepted { round: 1 });
    let fc1 = |b: usize| Target::Group(format!("blocks.{b}.mlp.fc1"));
    let keep = "round 1 had it; this plan meets the goal better without";
    let deeper = Action::Prune { ratio: 0.75, kept: (0..768).collect() };
    let mut decisions = vec![decision(101, fc1(9), Action::Keep, keep), decision(102, fc1(5), deeper, "still flat")];
    decisions.iter_mut().for_each(|d| d.round = 2);
    let ids: Vec<DecisionId> = decisions.iter().map(|d| d.id).collect();
    s.push(Event::Proposed { decisions });
    s.push(Event::Approved { ids: ids.clone() });
    let recipe = Some(s.state.recipe().iter().map(|d| d.id).collect());
    s.push(Event::RunStarted { round: 2, ids: ids.clone(), recipe, forecast: None });
    s.push(Event::Applied {
        round: 2,
        ids,
        artifact: "round-2".into(),
        model_hash: "78".repeat(32),
        used: Default::default(),
    });
    let graph = s.state.card.clone().expect("opened").graph;
    let p = profile(&graph, 0.6, &Precisions::default());
    s.push(Event::Evaluated { evaluation: Box::new(evaluation(2, p, 60)) });
    let (d_quality, d_quality_low, d_quality_high) = (-4.9, -5.4, -4.4);
    let verdict = Verdict { outcome: Outcome::Reject, lines: vec![], d_quality, d_quality_low, d_quality_high };
    s.push(Event::VerdictGiven { round: 2, verdict });
    s.push(Event::RolledBack { round: 2, reason: "too deep".into() });
    s
}

/// An app that a host has welcomed, with the pen.
pub fn app(state: State, settings: Settings, size: (u16, u16)) -> App {
    let mut app = App::new(settings, size);
    app.now_ms = START_MS + 600_000;
    app.host(HostMsg::Welcome { protocol: PROTOCOL, state: Box::new(state), you: 1, pen: Some(1) });
    app.settle();
    app
}
