//! What a role is told: the facts are there, it fits, and nothing hostile is in it.

use crate::session;
use paring::agent::{Role, context, critic};
use paring::plan::{Constraint, Limit, Status, Verdict};
use paring::prune::{Action, Target};
use paring::session::Round;

#[test]
fn contexts_hold_what_each_role_needs_and_fit() {
    let mut state = session::state();
    state.notes = vec![(1, "please leave\u{1b}[2J the stem alone".into())];
    state.constraints = vec![Constraint {
        target: Target::Group("layer3.0.conv1".into()),
        limit: Limit::Freeze,
        reason: "drifts".into(),
    }];
    for role in Role::ALL {
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
    let pruning = context::context(&state, Role::Pruning, context::DEFAULT_ROOM);
    assert!(pruning.contains("layer1.0.conv1 | Channels | 16 | 1 |") && pruning.contains("0.25: "), "{pruning}");
    assert!(pruning.contains("can be removed whole"));
    let small = context::context(&state, Role::Pruning, 2_500);
    assert!(small.contains("lesser rows left out for room, together"), "{small}");
    let quant = context::context(&state, Role::Quantization, context::DEFAULT_ROOM);
    assert!(quant.contains("linear | linear") && quant.contains("0.001/-0.005"), "{quant}");
}

#[test]
fn an_empty_session_is_no_error() {
    let text = context::context(&Default::default(), Role::Analysis, 1000);
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
        evaluation: Some(e),
        verdict: Some(Verdict {
            outcome: paring::plan::Outcome::Reject,
            lines: vec![],
            d_top1: -3.0,
            d_top1_low: -3.5,
            d_top1_high: -2.5,
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
    assert!(context::context(&state, Role::Pruning, 8_000).contains("Forecast against measurement, round 1"));
    assert_eq!(critic::utterance(&state, 1).unwrap().text, text);
}
