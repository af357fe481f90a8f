//! Forecasts over small tables whose answers are known.

use super::*;
use crate::plan::Author;
use crate::plan::testing::{chain, curves, cut, group, int8, ladders, profile_of, rung, tried};
use crate::prune;

fn world() -> (Graph, Vec<Group>, Forecaster) {
    let (graph, groups) = chain(&[16, 32, 32], 16);
    let profile = profile_of(&graph, 1.0);
    let sens = curves(&groups, &[1.0, 0.5, 2.0], &["conv1", "conv2", "conv3"], 0.002);
    let f = Forecaster::new(&graph, &groups, &profile, &ladders(&graph, &profile, 0.4), &sens);
    let known = tried(&f, &groups, &["conv1", "conv2", "conv3"]);
    (graph, groups, f.with_quality(known))
}

fn prune(id: &str, ratio: f64) -> (Target, Action) {
    (group(id), cut(ratio))
}

#[test]
fn nothing_changes_nothing() {
    let (_, groups, f) = world();
    let keep: Vec<(Target, Action)> = groups.iter().map(|g| (Target::Group(g.id.clone()), Action::Keep)).collect();
    for actions in [Vec::new(), keep] {
        let p = f.actions(&actions);
        assert_eq!(p.forecast, Forecast::default());
        assert_eq!((p.latency, p.macs, p.memory, p.params), (exactly(1.0), exactly(1.0), exactly(1.0), exactly(1.0)));
    }
}

#[test]
fn counts_equal_the_shrunk_graph() {
    let (graph, groups, f) = world();
    let actions = vec![prune("conv1", 0.5), prune("conv2", 0.25), prune("conv3", 0.75)];
    let small = prune::shrink(&graph, &groups, &actions).expect("shrinks");
    let macs = |g: &Graph| crate::graph::macs(g).expect("macs").iter().map(|m| m.conv_linear as i64).sum::<i64>();
    let params = |g: &Graph| g.nodes.iter().map(|n| crate::graph::node_params(&n.op) as i64).sum::<i64>();
    let p = f.actions(&actions);
    assert_eq!(p.forecast.d_macs, macs(&small) - macs(&graph));
    assert_eq!(p.forecast.d_params, params(&small) - params(&graph));
    assert!((p.macs.value - macs(&small) as f64 / macs(&graph) as f64).abs() < 1e-12);
    // The tables make time proportional to MACs, so the whole must follow.
    assert!((p.latency.value - p.macs.value).abs() < 0.05, "{:?} {:?}", p.latency, p.macs);
    assert!(p.latency.low <= p.latency.value && p.latency.value <= p.latency.high);
    assert!(p.quality.low < p.quality.value && p.quality.value < 0.0 && p.quality.value <= p.quality.high);
}

#[test]
fn int8_is_counted_in_stored_bytes_and_measured_time() {
    let (graph, _, f) = world();
    let p = f.actions(&[int8("conv2")]);
    let held = 4 * 16 * 32 * 9i64;
    // Weights at a byte and a scale a row; it held nothing beside them.
    assert_eq!(p.forecast.d_bytes, 16 * 32 * 9 + 4 * 32 - held);
    assert_eq!(p.forecast.d_macs, 0);
    let ms = crate::graph::macs(&graph).expect("macs")[3].conv_linear as f64 / 1e6;
    assert!((p.forecast.d_latency_ms.value + 0.6 * ms * 1.1).abs() < 1e-6, "{:?} {ms}", p.forecast.d_latency_ms);
}

#[test]
fn more_cut_is_never_less_harm() {
    let (_, _, f) = world();
    let mut last = (0.0, 1.0);
    for i in 1..8 {
        let p = f.actions(&[prune("conv2", i as f64 / 8.0)]);
        assert!(p.quality.value < last.0 && p.latency.value < last.1, "{i}");
        last = (p.quality.value, p.latency.value);
    }
    // What is allowed for a point costs a point.
    let allowed = f.harm_for(1.0, &[]).expect("plans were tried");
    let at = |r: f64| [prune("conv2", r)];
    let ratio = (1..1000).map(|i| i as f64 / 1000.0).find(|&r| f.harm(&at(r)).0 >= allowed).expect("reached");
    assert!((-f.actions(&at(ratio)).quality.value - 1.0).abs() < 0.15, "{ratio}");
}

#[test]
fn a_large_divergence_harms_less_than_small_ones_that_add_up_to_it() {
    let (_, _, f) = world();
    let apart = [prune("conv1", 0.375), prune("conv2", 0.375), prune("conv3", 0.375)];
    let sum = f.divergence(&apart);
    let at = |r: f64| [prune("conv3", r)];
    let ratio = (1..2000).map(|i| i as f64 / 2000.0).find(|&r| f.divergence(&at(r)) >= sum).expect("reached");
    let (one, many) = (-f.actions(&at(ratio)).quality.value, -f.actions(&apart).quality.value);
    assert!(one < 0.95 * many && one > 0.5 * many, "{one} {many}");
}

#[test]
fn newest_decision_counts_and_vetoed_ones_do_not() {
    let (_, _, f) = world();
    let d = |ratio, status| {
        let (target, action) = prune("conv1", ratio);
        Decision { round: 1, status, ..Decision::new(target, action, Author::Human) }
    };
    let (a, b, c) = (d(0.5, Status::Approved), d(0.25, Status::Proposed), d(0.75, Status::Vetoed));
    assert_eq!(f.plan(&[&a, &b, &c]), f.actions(&[prune("conv1", 0.25)]));
    assert_eq!(f.decision(&a), f.actions(&[prune("conv1", 0.5)]).forecast);
}

#[test]
fn what_does_not_combine_is_left_out_and_named() {
    let (_, _, f) = world();
    let p = f.actions(&[prune("conv1", 0.5), prune("conv9", 0.5)]);
    assert_eq!(p.skipped.len(), 1);
    assert!(p.skipped[0].contains("conv9"), "{:?}", p.skipped);
    assert_eq!(p.forecast, f.actions(&[prune("conv1", 0.5)]).forecast);
}

#[test]
fn budget_lines_follow_the_range() {
    let (_, _, f) = world();
    let p = f.actions(&[prune("conv2", 0.5)]);
    let budget: Budget =
        format!("macs={},latency={},drop=80", p.macs.value - 0.01, p.latency.value).parse().expect("b");
    let lines = p.against(&budget);
    let of = |n: &str| lines.iter().find(|l| l.name == n).map(|l| l.outcome);
    assert_eq!(of("macs"), Some(Outcome::Reject));
    assert_eq!(of("latency"), Some(Outcome::Undecided));
    assert_eq!(of("drop"), Some(Outcome::Accept));
    assert_eq!(of("params"), None);
}

#[test]
fn fewer_macs_never_take_longer_on_rising_ladders() {
    let (_, groups, f) = world();
    let mut seen: Vec<(f64, f64)> = Vec::new();
    for a in 0..6 {
        for b in 0..6 {
            let cuts = [(&groups[0], a), (&groups[1], b)];
            let actions: Vec<_> =
                cuts.iter().filter(|(_, n)| *n > 0).map(|(g, n)| prune(&g.id, *n as f64 / 8.0)).collect();
            let p = f.actions(&actions);
            seen.push((p.macs.value, p.latency.value));
            // Cutting one more group further never adds time.
            let deeper = f.actions(&[prune("conv1", (a + 1) as f64 / 8.0), prune("conv2", (b + 1) as f64 / 8.0)]);
            assert!(deeper.macs.value < p.macs.value && deeper.latency.value < p.latency.value, "{a} {b}");
        }
    }
    assert_eq!(seen[0], (1.0, 1.0), "nothing cut");
}

#[test]
fn a_cut_to_a_slow_width_is_told_with_the_nearest_that_pays() {
    let (graph, groups) = chain(&[16, 32, 32], 16);
    let profile = profile_of(&graph, 1.0);
    let sens = curves(&groups, &[1.0, 0.5, 2.0], &["conv1", "conv2", "conv3"], 0.002);
    let mut tables = ladders(&graph, &profile, 0.4);
    let slow = tables.iter_mut().find(|l| l.layer == "conv2").expect("ladder");
    let full = slow.points[0].ms;
    // At 28 of 32 the layer takes three times as long; from 24 down it is as fast as its MACs.
    for (out_width, ms) in [(28, 3.0 * full), (24, 0.75 * full), (30, full)] {
        slow.points.push(rung(16, out_width, Precision::F32, ms));
    }
    let f = Forecaster::new(&graph, &groups, &profile, &tables, &sens);
    let group = Target::Group("conv2".into());
    let at = |keep: u32| Action::Prune { ratio: 1.0 - f64::from(keep) / 32.0, kept: (0..keep).collect() };
    let slower = f.costs.slower(&group, &at(28)).expect("three times as long is slower");
    let pays = slower.pays_at.expect("a width that pays");
    let d = |keep: usize| f.actions(&[(group.clone(), at(keep as u32))]).forecast.d_latency_ms.value;
    assert!(slower.ms > 0.0 && (d(28) - slower.ms).abs() < 1e-9);
    assert!(d(pays) < 0.0, "{pays}");
    let nearer = 28usize.abs_diff(pays);
    for k in (1..32).filter(|k| 28usize.abs_diff(*k) < nearer) {
        let e = f.actions(&[(group.clone(), at(k as u32))]).forecast.d_latency_ms;
        assert!(e.high >= 0.0, "{k} is nearer than {pays} and pays for sure: {e:?}");
    }
    assert!(slower.words().contains(&format!("keeps {pays}")), "{}", slower.words());
    assert_eq!(f.costs.slower(&group, &at(16)), None, "half the width is faster");
    assert_eq!(f.costs.slower(&group, &Action::Keep), None);
}
