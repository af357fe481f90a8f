//! The fit on worlds whose law is known.

use super::*;
use crate::eval::TrialOutcome;
use crate::plan::plan_key;
use crate::quant::Precision;

/// Cuts of groups `g0..` cost `1` nat at ratio 1, in proportion; int8 of layers `l0..` 0.1.
fn harm(actions: &[(Target, Action)]) -> Harms {
    let mut h = Harms::default();
    for (_, a) in actions {
        match a {
            Action::Prune { ratio, .. } => h.kinds[0] += ratio,
            Action::Precision { .. } => h.kinds[2] += 0.1,
            Action::Sparsify { .. } | Action::Factorise { .. } | Action::RemoveBlock => {
                h.unknown += 1;
                h.which += 1;
            }
            Action::Keep => {}
        }
    }
    h
}

fn cuts(n: usize, ratio: f64) -> Vec<(Target, Action)> {
    (0..n).map(|i| (Target::Group(format!("g{i}")), Action::Prune { ratio, kept: vec![0] })).collect()
}

fn int8(n: usize) -> Vec<(Target, Action)> {
    let action = Action::Precision { precision: Precision::Int8 };
    (0..n).map(|i| (Target::Layer(format!("l{i}")), action.clone())).collect()
}

fn trial(actions: Vec<(Target, Action)>, drop: f64, sd: f64, anchor: bool) -> Trial {
    let outcome = TrialOutcome {
        d_quality: -drop,
        sample_sd: sd,
        kind_sd: 0.0,
        turned: (0.02 * drop).min(1.0),
        size: 100.0,
        images: 10_000,
        by_kind: vec![-drop],
    };
    Trial { key: plan_key(&actions), actions, outcome, anchor }
}

fn input() -> QualityInput {
    QualityInput { base: Some(0.9), metric: Metric::top1(10), images: 10_000, ..QualityInput::default() }
}

/// The law of these worlds: points of a plan, 20 a nat of cuts and 5 a nat of rounding, saturating at 80.
fn law(actions: &[(Target, Action)]) -> f64 {
    let h = harm(actions).kinds;
    80.0 * (1.0 - (-(20.0 * h[0] + 5.0 * h[2]) / 80.0).exp())
}

fn fitted() -> QualityModel {
    let mut i = input();
    for actions in [cuts(4, 0.05), cuts(4, 0.2), cuts(4, 0.6), int8(20), int8(5)] {
        let drop = law(&actions);
        i.trials.add(trial(actions, drop, 0.02, true));
    }
    QualityModel::fit(i, harm)
}

fn ask(m: &QualityModel, actions: &[(Target, Action)]) -> Quality {
    m.forecast(actions, &harm(actions), |other| {
        let lacks = |l: &[(Target, Action)], x: &(Target, Action)| !l.contains(x);
        let apart: Vec<_> = actions
            .iter()
            .filter(|x| lacks(other, x))
            .chain(other.iter().filter(|x| lacks(actions, x)))
            .cloned()
            .collect();
        harm(&apart)
    })
}

#[test]
fn a_known_law_is_found_and_doubt_falls_with_evidence() {
    let m = fitted();
    assert!(m.doubt < 0.7 * DOUBT.0, "{}", m.doubt);
    for plan in [cuts(6, 0.1), cuts(2, 0.5), int8(12), [cuts(3, 0.3), int8(8)].concat()] {
        let q = ask(&m, &plan);
        assert!((-q.value - law(&plan)).abs() < 0.1 * law(&plan) + 0.02, "{q:?} {}", law(&plan));
        assert!(q.low < q.value && q.value < q.high && q.basis == Basis::Scanned && q.coverage == COVERAGE);
    }
    let w = m.fit.expect("fitted").weights();
    assert!((w[2] / w[0] - 0.25).abs() < 0.05, "{w:?}");
    assert!((m.exchange(2) - w[2] / w[0]).abs() < 1e-9 && m.exchange(0) == 1.0);
    let harm_of_two = m.harm_for(2.0, &Harms::default()).expect("fitted");
    assert!((harm_of_two - 2.0 / 20.0).abs() < 0.02, "{harm_of_two}");
}

#[test]
fn nothing_is_exactly_nothing_and_what_nobody_measured_is_no_figure() {
    let m = fitted();
    assert_eq!((ask(&m, &[]).value, ask(&m, &[]).low, ask(&m, &[]).high), (0.0, 0.0, 0.0));
    let keep = vec![(Target::Group("g0".into()), Action::Keep)];
    assert_eq!(ask(&m, &keep).basis, Basis::Unchanged);
    let mask =
        (Target::Weights("l0".into()), Action::Sparsify { sparsity: crate::prune::Sparsity::NofM { n: 2, m: 4 } });
    let q = ask(&m, &[mask]);
    assert_eq!((q.basis, q.low), (Basis::Unmeasured, -90.0));
    // A model of which no plan was tried has no figure for anything.
    let bare = QualityModel::fit(input(), harm);
    assert_eq!(ask(&bare, &cuts(1, 0.1)).basis, Basis::Unmeasured);
    assert_eq!(bare.harm_for(1.0, &Harms::default()), None);
}

#[test]
fn a_rehearsed_plan_has_its_own_outcome_and_its_neighbours_the_difference() {
    let mut i = fitted().input;
    let plan = cuts(5, 0.3);
    // The fit says about 25 points; the trial says 4.
    i.trials.add(trial(plan.clone(), 4.0, 0.3, false));
    let m = QualityModel::fit(i, harm);
    let q = ask(&m, &plan);
    assert_eq!(q.basis, Basis::Rehearsed);
    assert!((q.value + 4.0).abs() < 0.2, "contradicted by the trial, the fit counts little: {q:?}");
    assert!(q.low < -4.4 && q.high > -3.6 && q.low > -7.0, "{q:?}");
    let mut near = plan.clone();
    near[0].1 = Action::Prune { ratio: 0.31, kept: vec![0] };
    let n = ask(&m, &near);
    assert_eq!(n.basis, Basis::Neighbour);
    assert!(n.value < -4.0 && n.value > -4.6, "{n:?}");
    let far = cuts(1, 0.4);
    assert_eq!(ask(&m, &far).basis, Basis::Scanned, "as far as anything is from it");
}

#[test]
fn beyond_what_was_tried_a_sum_of_harms_is_doubted() {
    let mut i = input();
    for plan in [cuts(4, 0.05), cuts(4, 0.2), cuts(4, 0.6)] {
        let drop = 2.0 * harm(&plan).kinds[0];
        i.trials.add(trial(plan, drop, 0.02, true));
    }
    let m = QualityModel::fit(i.clone(), harm);
    let (_, reach) = m.tried(1.0, &Harms::default()).expect("plans were tried");
    assert!((reach - 4.0 * 0.6).abs() < 1e-9, "{reach}");
    let far = cuts(36, 0.2);
    let width = |m: &QualityModel| {
        let q = ask(m, &far);
        assert_eq!(q.basis, Basis::Scanned);
        q.high - q.low
    };
    i.trials.add(trial(cuts(36, 0.21), 2.0 * harm(&far).kinds[0], 0.02, true));
    let tried = QualityModel::fit(i, harm);
    assert!(width(&m) > 2.0 * width(&tried), "{} {}", width(&m), width(&tried));
}

/// Nobody measured what zeros cost, but a plan with the same ones was tried.
#[test]
fn what_nobody_measured_is_no_difference_to_a_plan_that_has_it_too() {
    let sparsity = crate::prune::Sparsity::NofM { n: 2, m: 4 };
    let zeros = vec![(Target::Weights("l0".into()), Action::Sparsify { sparsity })];
    let with = |cuts: Vec<(Target, Action)>| [zeros.clone(), cuts].concat();
    let mut i = fitted().input;
    i.trials.add(trial(zeros.clone(), 3.0, 0.1, false));
    let m = QualityModel::fit(i.clone(), harm);
    let q = ask(&m, &with(cuts(4, 0.15)));
    assert_eq!(q.basis, Basis::Neighbour, "{q:?}");
    assert!((-q.value - 3.0 - law(&cuts(4, 0.15))).abs() < 1.0, "{q:?}");
    assert_eq!(ask(&m, &cuts(4, 0.15)).basis, Basis::Scanned, "without them it is another plan");
    // Of eight points three are theirs.
    let limit = |m: &QualityModel, drop: f64, plan: &[(Target, Action)]| m.harm_for(drop, &harm(plan)).expect("fitted");
    let (left, all) = (limit(&m, 8.0, &zeros), limit(&m, 5.0, &[]));
    assert!((left - all).abs() < 0.02 * all, "{left} {all}");
    // A plan with them teaches what the rest of it costs.
    let plan = with(cuts(4, 0.4));
    i.trials.add(trial(plan.clone(), 60.0, 0.1, false));
    let taught = QualityModel::fit(i, harm);
    assert!(limit(&taught, 8.0, &zeros) < 0.9 * left, "{} {left}", limit(&taught, 8.0, &zeros));
    // Between what cost 3 points and what cost 60, evenly; of those without them nothing is known beyond.
    let (between, _) = taught.tried(8.0, &harm(&zeros)).expect("tried");
    assert!((between - 1.6 * 5.0 / 57.0).abs() < 1e-9, "{between}");
    assert_eq!(taught.tried(60.0, &harm(&[])).map(|t| t.0), Some(f64::INFINITY));
}

/// A few images cannot tell a small drop; what other plans taught can.
#[test]
fn a_trial_lost_in_chance_is_weighed_against_the_fit() {
    let mut i = fitted().input;
    let plan = cuts(1, 0.02);
    i.trials.add(trial(plan.clone(), -0.8, 0.9, false));
    let m = QualityModel::fit(i, harm);
    let q = ask(&m, &plan);
    assert!(q.basis == Basis::Rehearsed && (-0.5..0.0).contains(&q.value), "{q:?} by law {}", law(&plan));
    assert!(q.high - q.low < 2.0, "{q:?}");
}

#[test]
fn ranges_keep_to_what_can_happen_and_hold_chance_on_the_evaluation_images() {
    let m = fitted();
    let all = ask(&m, &cuts(60, 1.0));
    assert!(all.low >= -90.0 && all.value >= -90.0, "{all:?}");
    let mut i = fitted().input;
    i.trials.add(trial(cuts(3, 0.1), 0.0, 0.0, false));
    i.images = 100;
    let few = QualityModel::fit(i.clone(), harm);
    i.images = 100_000;
    let many = QualityModel::fit(i, harm);
    let width = |m: &QualityModel| {
        let q = ask(m, &cuts(4, 0.2));
        q.high - q.low
    };
    assert!(width(&few) > width(&many), "{} {}", width(&few), width(&many));
    let gain = ask(&few, &cuts(3, 0.1));
    assert!(gain.high <= 10.0 + 1e-9, "no more than all images can be right: {gain:?}");
}

#[test]
fn what_rounds_measured_moves_every_forecast() {
    let mut i = fitted().input;
    let plan = cuts(5, 0.2);
    let drop = law(&plan);
    i.trials.add(trial(plan.clone(), drop, 0.1, false));
    let before = QualityModel::fit(i.clone(), harm);
    let (d_quality, interval) = (-1.6 * drop, (-1.6 * drop - 0.5, -1.6 * drop + 0.3));
    let round = PastRound { round: 1, actions: plan.clone(), latency: 1.0, d_quality, sd: 0.2, interval };
    i.observed.push(round);
    let after = QualityModel::fit(i, harm);
    assert!(after.shift.0 > 1.5 && after.shift.0 < 1.6 && after.shift.1 < before.shift.1, "{:?}", after.shift);
    assert!((ask(&after, &plan).value + 1.6 * drop).abs() < 0.1 * drop, "{:?}", ask(&after, &plan));
    let told = ask(&after, &plan);
    assert_eq!(told.basis, Basis::Measured, "what was measured is not forecast");
    assert_eq!(
        (told.value, told.low, told.high, told.coverage),
        (d_quality, interval.0, interval.1, 0.95),
        "as the verdict"
    );
    // More of the same cuts loses more than what was measured of less, and is known about as well.
    let mut more = plan.clone();
    more[0].1 = Action::Prune { ratio: 0.25, kept: vec![0] };
    let (q, known) = (ask(&after, &more), ask(&after, &plan));
    assert_eq!(q.basis, Basis::Neighbour);
    assert!(q.value < known.value - 0.2 && q.value > known.value - 4.0, "{q:?} {known:?}");
    let without = ask(&before, &more);
    assert!(q.high - q.low < without.high - without.low, "{q:?} {without:?}");
    // A rehearsal that says otherwise counts by its error beside the measured neighbour.
    let mut with = after.input.clone();
    with.trials.add(trial(more.clone(), 0.5 * drop, 2.0, false));
    let both = ask(&QualityModel::fit(with, harm), &more);
    assert_eq!(both.basis, Basis::Rehearsed);
    assert!(both.value < -0.5 * after.shift.0 * drop - 1.0 && both.value > q.value, "{both:?} {q:?}");
    let other = cuts(2, 0.2);
    assert!(ask(&after, &other).value < 1.3 * ask(&before, &other).value);
}

/// Drops that follow the law with a relative error of their own, tried and measured with chance: ranges hold as often as
/// they say.
#[test]
fn ranges_hold_as_often_as_they_say_in_a_world_of_chance() {
    use rand::{Rng, SeedableRng};
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(5);
    let mut normal = move || (0..12).map(|_| rng.random::<f64>()).sum::<f64>() - 6.0;
    let (mut held, mut rehearsed, mut all) = (0, 0, 0);
    for _ in 0..60 {
        let mut i = input();
        // Of the answers that turn (see `trial`) the balance is one plan's own.
        let truth = |actions: &[(Target, Action)], e: f64| law(actions) * ((0.3 * e).exp() + ONE_SIDED * 2.0 * e);
        for actions in [cuts(4, 0.05), cuts(4, 0.2), cuts(4, 0.5), int8(20), int8(8)] {
            let drop = truth(&actions, normal()) + 0.3 * normal();
            i.trials.add(trial(actions, drop, 0.3, true));
        }
        for n in 1..6 {
            let plan = cuts(n, 0.12);
            let real = truth(&plan, normal());
            let seen = real + 100.0 * (0.02 * real / 1e4).sqrt() * normal();
            let m = QualityModel::fit(i.clone(), harm);
            let q = ask(&m, &plan);
            held += usize::from(q.low <= -seen && -seen <= q.high);
            let mut with = i.clone();
            // Views are not new images: drops on them are off by a factor.
            let tried = real * (SHIFT * normal()).exp() + 0.3 * normal();
            with.trials.add(trial(plan.clone(), tried, 0.3, false));
            let q = ask(&QualityModel::fit(with, harm), &plan);
            rehearsed += usize::from(q.low <= -seen && -seen <= q.high);
            all += 1;
        }
    }
    let part = |n: usize| n as f64 / all as f64;
    assert!((0.84..=0.99).contains(&part(held)), "scanned: {}", part(held));
    assert!((0.84..=0.99).contains(&part(rehearsed)), "rehearsed: {}", part(rehearsed));
}
