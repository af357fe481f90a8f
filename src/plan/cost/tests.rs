//! One currency: what is saved is never more than what the rows that are touched take, whatever was measured.

use super::*;
use crate::graph::op;
use crate::plan::testing::{chain, int8, ladders, profile_of, rung};
use crate::profile::LadderPoint;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

fn cut(group: &Group, keep: usize) -> (Target, Action) {
    let kept = (0..keep as u32).collect();
    (Target::Group(group.id.clone()), Action::Prune { ratio: group.ratio_of(keep), kept })
}

/// A machine that disturbs: rows off by up to three times, a whole off by up to ten, ladders with spikes.
fn disturbed(graph: &Graph, rng: &mut ChaCha8Rng) -> (Profile, Vec<Ladder>) {
    let mut profile = profile_of(graph, 1.0);
    for r in &mut profile.rows {
        r.latency.p50 *= rng.random_range(0.4..3.0);
        if rng.random_bool(0.3) {
            let twins_ms = r.latency.p50 * rng.random_range(0.3..2.0);
            r.doubt = Some(crate::profile::Doubt::Outlier { twins_ms });
        }
        r.latency.spread = rng.random_bool(0.5).then(|| rng.random_range(0.0..2.0));
    }
    profile.whole.p50 *= rng.random_range(0.3..10.0);
    profile.share();
    let mut tables = ladders(graph, &profile, 0.4);
    for p in tables.iter_mut().flat_map(|l| &mut l.points) {
        p.ms *= if rng.random_bool(0.2) { rng.random_range(1.0..6.0) } else { 1.0 };
        p.noisy = rng.random_bool(0.1);
    }
    (profile, tables)
}

fn plan_by_chance(groups: &[Group], layers: &[&str], rng: &mut ChaCha8Rng) -> Vec<(Target, Action)> {
    let mut plan: Vec<_> = groups
        .iter()
        .filter_map(|g| if rng.random_bool(0.6) { Some(cut(g, rng.random_range(1..=g.size))) } else { None })
        .collect();
    plan.extend(layers.iter().filter(|_| rng.random_bool(0.3)).map(|l| int8(l)));
    plan
}

#[test]
fn no_saving_exceeds_what_its_rows_take() {
    let (graph, groups) = chain(&[16, 32, 32], 16);
    let layers = ["conv1", "conv2", "conv3", "fc"];
    let mut rng = ChaCha8Rng::seed_from_u64(11);
    for case in 0..400 {
        let (profile, tables) = disturbed(&graph, &mut rng);
        let mut costs = Costs::new(&graph, &groups, &profile, &tables);
        costs.believe(rng.random_range(0.25..1.5));
        let shown: f64 = profile.rows.iter().map(|r| profile.ms(r)).sum();
        assert!(costs.base().latency_ms <= shown + 1e-9, "{case}: more is counted than shown");
        for _ in 0..5 {
            let plan = plan_by_chance(&groups, &layers, &mut rng);
            let cost = costs.cost(&plan).expect("combines");
            let (change, whole) = costs.latency(&cost, !plan.is_empty());
            let rows = costs.rows(&plan).expect("combines");
            // What the rows on the screen take that this plan touches.
            let touched: f64 = rows
                .iter()
                .filter(|r| r.ms != r.base_ms)
                .filter_map(|r| profile.rows.iter().find(|p| p.name == r.name))
                .map(|r| profile.ms(r))
                .sum();
            assert!(-change.low <= cost.touched_ms + 1e-9, "{case}: saves {} of {}", -change.low, cost.touched_ms);
            assert!(-change.value <= touched + 1e-9, "{case}: saves {} of {touched} shown", -change.value);
            assert!(cost.touched_ms <= shown + 1e-9, "{case}: {} of {shown}", cost.touched_ms);
            assert!(rows.iter().all(|r| r.ms >= 0.0), "{case}: a row below nothing");
            assert!(change.low <= change.value && change.value <= change.high);
            assert!(whole.low >= 0.0 && whole.low <= whole.value && whole.value <= whole.high);
            // The decisions of a plan change as much as the plan: one currency.
            assert!((costs.base().latency_ms + change.value - cost.latency_ms).abs() < 1e-9);
        }
    }
}

/// As after a round: the rows on the screen are those of the smaller model, measured in another minute.
#[test]
fn a_change_is_told_in_the_rows_that_are_shown() {
    let (graph, groups) = chain(&[16, 32, 32], 16);
    let layers = ["conv1", "conv2", "conv3", "fc"];
    let mut rng = ChaCha8Rng::seed_from_u64(12);
    for case in 0..200 {
        let (profile, tables) = disturbed(&graph, &mut rng);
        let mut costs = Costs::new(&graph, &groups, &profile, &tables);
        costs.believe(rng.random_range(0.25..1.5));
        let from = plan_by_chance(&groups, &layers, &mut rng);
        let mut shown = profile_of(&graph, 0.3);
        shown.rows.iter_mut().for_each(|r| r.latency.p50 *= rng.random_range(0.1..2.0));
        let group = &groups[rng.random_range(0..groups.len())];
        let mut to: Vec<_> = from.iter().filter(|(t, _)| *t != Target::Group(group.id.clone())).cloned().collect();
        to.push(cut(group, rng.random_range(1..=group.size)));
        let (change, touched) = costs.latency_over(&from, &to, &shown).expect("combines");
        let most: f64 = shown.rows.iter().map(|r| shown.ms(r)).sum();
        assert!(-change.low <= touched + 1e-9 && touched <= most + 1e-9, "{case}: {change:?} of {touched} of {most}");
        // The same plan changes nothing, and from the original it is the whole story.
        let (same, none) = costs.latency_over(&from, &from, &shown).expect("combines");
        assert_eq!((same.value, same.low, same.high, none), (0.0, 0.0, 0.0, 0.0));
    }
    let profile = profile_of(&graph, 1.0);
    let costs = Costs::new(&graph, &groups, &profile, &ladders(&graph, &profile, 0.4));
    let plan = vec![cut(&groups[0], 8), int8("conv2")];
    let (change, touched) = costs.latency_over(&[], &plan, &profile).expect("combines");
    let cost = costs.cost(&plan).expect("combines");
    assert!((change.value - costs.latency(&cost, true).0.value).abs() < 1e-9);
    assert!((touched - cost.touched_ms).abs() < 1e-9);
}

/// A whole model that was measured while others had the processors, ten times as long as its rows: removing a row saves what is
/// shown of it and not ten times that.
#[test]
fn a_stained_whole_stretches_rows_and_savings_alike() {
    let (graph, groups) = chain(&[16, 32, 32], 16);
    let mut profile = profile_of(&graph, 1.0);
    let sound = Costs::new(&graph, &groups, &profile, &[]).base().latency_ms;
    profile.whole.p50 *= 10.0;
    let costs = Costs::new(&graph, &groups, &profile, &[]);
    assert!((costs.base().latency_ms - 10.0 * sound).abs() < 1e-9);
    for g in &groups {
        let cost = costs.cost(&[cut(g, 1)]).expect("combines");
        let (change, _) = costs.latency(&cost, true);
        let names: Vec<&str> = g.members.iter().map(|m| m.node.as_str()).collect();
        let shown: f64 = profile.rows.iter().filter(|r| names.contains(&r.name.as_str())).map(|r| profile.ms(r)).sum();
        assert!(-change.low <= shown + 1e-9 && -change.value > 0.5 * shown, "{}: {change:?} of {shown}", g.id);
    }
}

#[test]
fn a_width_is_called_slow_only_beyond_what_measurements_differ_by() {
    let (graph, groups) = chain(&[16, 32, 32], 16);
    let profile = profile_of(&graph, 1.0);
    let slow = |times: f64, noisy: bool| {
        let mut tables = ladders(&graph, &profile, 0.4);
        let l = tables.iter_mut().find(|l| l.layer == "conv2").expect("ladder");
        let ms = times * l.points[0].ms;
        l.points.push(LadderPoint { spread: 0.01, noisy, ..rung(16, 28, Precision::F32, ms) });
        let costs = Costs::new(&graph, &groups, &profile, &tables);
        let (target, action) = cut(&groups[1], 28);
        costs.slower(&target, &action).map(|s| s.ms)
    };
    let row = profile.rows.iter().find(|r| r.name == "conv2").map(|r| profile.ms(r)).expect("row");
    assert_eq!((slow(0.9, false), slow(1.03, false)), (None, None));
    // Four times as long, seen once only: an artefact of the measurement advises nothing.
    assert_eq!(slow(4.0, true), None);
    // Seen again and again: the advice, and no more than was measured.
    let said = slow(1.5, false).expect("half as slow again is slower");
    assert!(said > 0.0 && said <= 0.5 * row + 1e-9, "{said} of {row}");
}

/// On a GPU every format has a kernel of its own: its measured time is what counts, and where there is none the range is wide;
/// on a CPU it takes f32's time, which is certain.
#[test]
fn a_kernel_of_its_own_answers_for_itself_or_nobody_does() {
    let (graph, groups) = chain(&[16, 32, 32], 16);
    let profile = profile_of(&graph, 1.0);
    let row = profile.rows.iter().find(|r| r.name == "conv2").expect("a row");
    let to = |precision| [(Target::Layer("conv2".into()), Action::Precision { precision })];
    let (i, o) = graph.node(graph.by_name("conv2").expect("a layer")).op.facts().widths().expect("widths");
    let of = |own: &[Precision], timed: Option<f64>, precision| {
        let mut tables = ladders(&graph, &profile, 0.4);
        let table = tables.iter_mut().find(|l| l.layer == "conv2").expect("its ladder");
        table.own = own.to_vec();
        table.points.extend(timed.map(|part| rung(i, o, precision, row.latency.p50 * part)));
        let costs = Costs::new(&graph, &groups, &profile, &tables);
        let cost = costs.cost(&to(precision)).expect("combines");
        (
            (cost.latency_ms - costs.base().latency_ms) / profile.counted_ms(row),
            cost.latency_spread / profile.counted_ms(row),
        )
    };
    let f32_and_int8 = [Precision::F32, Precision::Int8];
    for precision in [Precision::F16, Precision::W8, Precision::W4, Precision::W4g64, Precision::Fp8] {
        let (cpu, sure) = of(&f32_and_int8, None, precision);
        assert!(cpu.abs() < 1e-9 && sure < 0.2, "{precision:?}: {cpu} {sure}");
        let gpu = [&f32_and_int8[..], &[precision]].concat();
        let (timed, _) = of(&gpu, Some(0.3), precision);
        assert!((timed + 0.7).abs() < 1e-9, "{precision:?}: {timed}");
        let (_, unsure) = of(&gpu, None, precision);
        assert!(unsure >= UNTIMED, "{precision:?}: {unsure}");
    }
}

#[test]
fn bytes_are_those_of_the_format_and_what_lies_beside_them_goes_by_rows() {
    let linear = |in_features, out_features| Op::Linear(op::Linear { in_features, out_features, bias: false });
    let (half, int8) = (Precision::F16, Precision::Int8);
    // Without a bias nothing lies beside: two bytes a weight become one, and four a row.
    assert_eq!(stored(64 * 32 * 2, &linear(64, 32), half, &linear(64, 32), int8), 64 * 32 + 4 * 32);
    // With one, half of the rows keep half of it.
    assert_eq!(stored(64 * 32 * 2 + 4 * 32, &linear(64, 32), half, &linear(64, 16), half), 64 * 16 * 2 + 4 * 16);
    // Shared with another row, which holds it.
    assert_eq!(stored(0, &linear(64, 32), half, &linear(64, 16), int8), 0);
}
