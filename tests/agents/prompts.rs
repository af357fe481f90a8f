//! What a role is told: the facts are there, it fits, and nothing hostile is in it.

use crate::{role, session};
use paring::agent::{Prompts, blinded, context, critic};
use paring::plan::{Basis, Constraint, Limit, Quality, Status, Verdict};
use paring::profile::{SensCurve, SensPoint, SensTarget};
use paring::prune::{Action, Target};
use paring::recover::RepairStep;
use paring::session::{ROLES, Round, State, Utterance};

#[test]
fn contexts_hold_what_each_role_needs_and_fit() {
    let mut state = session::state();
    state.notes = vec![(1, "please leave\u{1b}[2J the stem alone".into())];
    state.constraints = vec![Constraint {
        target: Target::Group("layer3.0.conv1".into()),
        limit: Limit::Freeze,
        reason: "drifts".into(),
    }];
    for role in &ROLES {
        for room in [3_000, 8_000, context::DEFAULT_ROOM] {
            let text = context::context(&state, role, room);
            assert!(text.chars().count() <= room + 200, "{role} {room}: {}", text.chars().count());
            assert!(!text.contains('\u{1b}'));
            for needle in
                ["macs=0.6,drop=1", "resnet20", "leave[2J the stem alone", "layer3.0.conv1 | do not cut | drifts"]
            {
                assert!(text.contains(needle), "{role} {room} lacks {needle}:\n{text}");
            }
        }
    }
    let pruning = context::context(&state, role("pruning"), context::DEFAULT_ROOM);
    assert!(pruning.contains("layer1.0.conv1 | Channels | 16 | 1 |") && pruning.contains("0.25: "), "{pruning}");
    assert!(pruning.contains("can be removed whole"));
    let small = context::context(&state, role("pruning"), 2_500);
    assert!(small.contains("lesser rows left out for room, together"), "{small}");
    let quant = context::context(&state, role("quantization"), context::DEFAULT_ROOM);
    assert!(quant.contains("linear | linear") && quant.contains(" | 0.001\n"), "{quant}");
}

#[test]
fn an_empty_session_is_no_error() {
    let text = context::context(&Default::default(), role("analysis"), 1000);
    assert!(!text.is_empty());
}

#[test]
fn the_critic_compares_forecast_and_measurement() {
    let mut state = session::state();
    assert_eq!(critic::compare(&state, 1), None);
    let mut d =
        session::decision(1, Target::Group("layer1.0.conv1".into()), Action::Prune { ratio: 0.5, kept: vec![] });
    d.status = Status::Applied;
    state.decisions = vec![d];
    let mut e = state.rounds[0].evaluation.clone().unwrap();
    e.round = 1;
    e.macs.conv_linear = (e.macs.conv_linear as f64 * 0.94) as u64;
    e.whole = session::stats(e.baseline_ms * 1.4);
    state.rounds.push(Round {
        number: 1,
        ids: vec![state.decisions[0].id],
        recipe: vec![state.decisions[0].id],
        // As it stood when the run was asked for.
        forecast: Some(Quality { value: -0.5, low: -1.0, high: -0.1, coverage: 0.9, basis: Basis::Rehearsed }),
        evaluation: Some(e),
        verdict: Some(Verdict {
            outcome: paring::plan::Outcome::Reject,
            lines: vec![],
            d_quality: -3.0,
            d_quality_low: -3.5,
            d_quality_high: -2.5,
        }),
        ..Round::default()
    });
    let c = critic::compare(&state, 1).unwrap();
    let of = |n: &str| c.lines.iter().find(|l| l.name == n).unwrap();
    // Half the inner channels of one of nine blocks whose two convolutions cost 2.36 of 40.8 M MACs each.
    assert!((of("macs").forecast.value - (1.0 - 2.359_296 / 40.813_184)).abs() < 0.01, "{:?}", of("macs"));
    assert!(of("macs").held());
    assert!(!of("latency").held() && !of("top-1").held());
    let text = c.to_string();
    assert!(text.contains("latency: forecast ~") && text.contains("worse than forecast"), "{text}");
    assert!(context::context(&state, role("pruning"), 8_000).contains("Forecast against measurement, round 1"));
    let said = critic::utterance(&state, 1).unwrap().text;
    let record = said.strip_prefix(&text).expect("the comparison comes first");
    let planner = "\nplanner: so far: 1 round judged, too hopeful by 2.50 points, its range met the measured one in 0 of 1, 0 met the budget";
    assert_eq!(record, planner);
}

#[test]
fn sensitivities_are_told_as_they_rank() {
    let mut state = session::state();
    let target = SensTarget::Group("layer1.0.conv1".into());
    let point = |ratio, kl| SensPoint { ratio, d_loss: -0.777, kl, d_quality: 0.555 };
    let points = vec![point(0.25, 0.004321), point(0.5, 1.25), point(0.75, 50.0)];
    state.sensitivity.curves.retain(|c| c.target != target);
    state.sensitivity.curves.push(SensCurve { target, points, images: 64 });
    let text = context::context(&state, role("pruning"), context::DEFAULT_ROOM);
    assert!(text.contains("0.25: 0.00432, 0.5: 1.25, 0.75: broken"), "{text}");
    // What calibration images, which a network is sure of, say of loss and accuracy is not told as sensitivity.
    for role in &ROLES {
        let text = context::context(&state, role, context::DEFAULT_ROOM);
        assert!(!text.contains("0.777") && !text.contains("0.555"), "{role}: {text}");
    }
    let prompts = Prompts::default();
    for role in &ROLES {
        let all = prompts.system(role) + &prompts.question(role, &[("context", &text)]);
        assert!(!all.contains("dloss") && !all.contains("dtop1") && !all.contains("before repair"), "{role}");
        assert!(all.contains("in nats") && all.contains("measured after such a re-fit"), "{role}");
    }
}

/// A round that was measured, in a session where everything that came from the evaluation data carries `mark`.
fn measured(mark: usize) -> State {
    let mut state = session::state();
    let mut d =
        session::decision(1, Target::Group("layer1.0.conv1".into()), Action::Prune { ratio: 0.5, kept: vec![] });
    d.status = Status::Applied;
    state.decisions = vec![d];
    let card = state.card.as_mut().expect("a card");
    card.data.name = format!("data{mark}");
    card.data.images += mark;
    let base = state.rounds[0].evaluation.as_mut().expect("a baseline");
    let counts = base.metrics.classes.as_mut().expect("a classifier");
    counts.correct -= mark;
    counts.per_class[0].0 -= mark;
    base.metrics.score -= mark as f64 / 1000.0;
    base.metrics.loss += mark as f64 / 100.0;
    let mut e = base.clone();
    e.round = 1;
    let d_quality = -1.0 - mark as f64 / 7.0;
    let verdict = Verdict {
        outcome: if mark == 0 { paring::plan::Outcome::Accept } else { paring::plan::Outcome::Reject },
        lines: vec![],
        d_quality,
        d_quality_low: d_quality - 0.5,
        d_quality_high: d_quality + 0.5,
    };
    let ids = vec![state.decisions[0].id];
    let (evaluation, verdict) = (Some(e), Some(verdict));
    state.rounds.push(Round { number: 1, ids, evaluation, verdict, accepted: true, ..Round::default() });
    state.round = 2;
    state
        .utterances
        .push(Utterance { text: format!("top-1 fell by {mark}"), ..critic::utterance(&state, 1).expect("one") });
    state.failure = Some(format!("evaluate: image {mark}"));
    state
}

#[test]
fn a_blind_session_tells_agents_nothing_of_the_evaluation_data() {
    let (one, other) = (measured(0), measured(31));
    for role in &ROLES {
        for room in [3_000, context::DEFAULT_ROOM] {
            let text = |s: &State| context::context(s, role, room);
            assert_ne!(text(&one), text(&other), "{role}: the two sessions differ in what a sighted agent is told");
            assert_eq!(text(&blinded(&one)), text(&blinded(&other)), "{role}");
            let blind = text(&blinded(&other));
            for leak in ["data31", "original top-1", "top-1 change", "Forecast against measurement", "reject"] {
                assert!(!blind.contains(leak), "{role}: `{leak}` in {blind}");
            }
            // What is needed to propose stays.
            for needed in ["resnet20", "calibrated on calib", "macs=0.6,drop=1", "KL in nats"] {
                let told = blind.contains(needed) || (needed == "KL in nats" && !role.proposes());
                assert!(told, "{role}: no `{needed}` in {blind}");
            }
        }
    }
    assert_eq!(critic::compare(&blinded(&other), 1), None);
    assert_eq!(blinded(&one), blinded(&other), "nothing of it is left for a forecast to learn from either");
}

#[test]
fn repairs_are_summed_up_step_by_step() {
    let mut state = measured(0);
    // Losses at different places of the network: each falls, though the last is larger than the first.
    let step = |name: &str, a, b, kept| RepairStep {
        name: name.into(),
        loss_before: a,
        loss_after: b,
        kept,
        seconds: 0.1,
        samples: 64,
    };
    state.rounds[1].repairs = vec![
        step("refit a", 0.087, 0.0435, true),
        step("refit b", 0.4, 0.5, false),
        step("refit c", 1.3, 1.17, true),
        step("re-estimate batch norm", 0.2, 0.15, true),
    ];
    let text = critic::compare(&state, 1).expect("measured").to_string();
    let line = text.lines().last().unwrap_or_default();
    assert!(!line.contains("0.087") && !line.contains("1.17"), "{line}");
    assert!(line.starts_with("repair: 3 steps kept, 1 reverted") && line.contains("took 25 % off"), "{line}");
}
