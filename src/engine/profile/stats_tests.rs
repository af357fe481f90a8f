//! Statistics against known answers and by simulation.

use super::*;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

#[test]
fn quantiles_equal_numpy() {
    let s = LatencyStats::of(&[4.0, 1.0, 3.0, 2.0, f64::NAN]);
    // np.percentile([1, 2, 3, 4], [25, 50, 75, 95])
    assert_eq!((s.n, s.p50, s.min, s.mean), (4, 2.5, 1.0, 2.5));
    assert!((s.p95 - 3.85).abs() < 1e-12 && (s.middle - 1.5 / 2.5).abs() < 1e-12);
    assert_eq!(LatencyStats::of(&[7.0]).p95, 7.0);
    assert_eq!(LatencyStats::of(&[]), LatencyStats::default());
}

#[test]
fn a_tail_needs_a_hundred_samples() {
    let of = |n: usize| LatencyStats::of(&(0..n).map(|i| i as f64).collect::<Vec<_>>());
    assert_eq!((of(99).p99, of(99).p99()), (None, None));
    assert!(of(100).p99().is_some_and(|p| (p - 98.01).abs() < 1e-9), "{:?}", of(100).p99);
    // Journals of older versions have one of forty samples.
    let old = r#"{"n":40,"p50":1.0,"p95":1.1,"p99":1.2,"mean":1.0,"min":0.9}"#;
    let old: LatencyStats = serde_json::from_str(old).expect("reads");
    assert_eq!((old.p99, old.p99(), old.spread), (Some(1.2), None, None));
    assert!((old.spread() - 0.05).abs() < 1e-9);
}

#[test]
fn one_stray_sample_moves_no_median() {
    let mut samples = vec![10.0; 49];
    samples.push(900.0);
    let s = LatencyStats::of(&samples);
    assert_eq!((s.p50, s.p95, s.spread()), (10.0, 10.0, 0.0));
    assert_eq!(s.doubt(&Load::default()), None);
}

/// Conover, *Practical Nonparametric Statistics* (3rd ed. 1999), table A3: ranks and exact coverage for p = ½.
#[test]
fn median_intervals_equal_the_binomial_table() {
    for (n, k, coverage) in [(6, 1, 0.96875), (10, 2, 0.978515625), (20, 6, 0.958610535), (60, 22, 0.972659866)] {
        let s: Vec<f64> = (1..=n).map(|i| i as f64).collect();
        let (low, high, c) = median_interval(&s, 0.95);
        assert_eq!((low, high), (k as f64, (n + 1 - k) as f64), "{n}");
        assert!((c - coverage).abs() < 2e-4, "{n}: {c}");
    }
    // Too few for the level: the whole range, and how much that is worth.
    let (low, high, c) = median_interval(&[1.0, 2.0, 3.0], 0.95);
    assert_eq!((low, high, c), (1.0, 3.0, 0.75));
    assert_eq!(median_interval(&[5.0], 0.95).2, 0.0);
    let many: Vec<f64> = (0..3000).map(f64::from).collect();
    let (low, high, c) = median_interval(&many, 0.95);
    assert!(low > 1440.0 && high < 1560.0 && (0.95..0.96).contains(&c), "{low} {high} {c}");
}

/// A skewed latency: a floor, an exponential tail, and now and then a burst.
fn latency(rng: &mut ChaCha8Rng, typical: f64) -> f64 {
    let burst = if rng.random_bool(0.05) { 3.0 } else { 1.0 };
    typical * burst * (1.0 - 0.05 * rng.random_range(1e-9..1.0f64).ln())
}

#[test]
fn the_paired_interval_holds_the_true_ratio_as_often_as_it_says() {
    let mut rng = ChaCha8Rng::seed_from_u64(5);
    for n in [8, 15, 60] {
        let (mut held, trials) = (0, 3000);
        let mut stated = 0.0;
        for _ in 0..trials {
            // What weighs on the machine weighs on both of a pair, and drifts by a factor of three.
            let pairs: Vec<(f64, f64)> = (0..n)
                .map(|_| {
                    let load = rng.random_range(1.0..3.0);
                    (load * latency(&mut rng, 10.0), load * latency(&mut rng, 6.0))
                })
                .collect();
            let r = Ratio::of(&pairs);
            stated = r.coverage;
            // Both are of the same shape, so the ratio's median is that of the typical values.
            held += usize::from(r.low <= 0.6 && 0.6 <= r.high);
        }
        let rate = f64::from(held as u32) / f64::from(trials);
        assert!(stated >= 0.95, "{n}: {stated}");
        assert!((rate - stated).abs() < 0.02, "{n}: held {rate}, stated {stated}");
    }
}

#[test]
fn pairs_see_through_a_load_that_medians_do_not() {
    // The machine gets three times as slow half way through; the second model is 0.6 of the first all along.
    let pairs: Vec<(f64, f64)> = (0..41).map(|i| if i < 20 { (10.0, 6.0) } else { (30.0, 18.0) }).collect();
    let r = Ratio::of(&pairs);
    assert!((r.value - 0.6).abs() < 1e-12 && (r.high - r.low) < 1e-9);
    assert_eq!(r.doubt(&Load::default(), false), None);
    let (low, high) = Ratio::of_single(&pairs);
    assert!((low - 0.6).abs() < 1e-9 && (high - 0.6).abs() < 1e-9);
    assert!(Ratio::of(&[]).value.is_nan());
}

#[test]
fn scatter_drift_and_load_are_told() {
    let quiet = Load { clock: 1.0, ..Load::default() };
    let mut rng = ChaCha8Rng::seed_from_u64(1);
    let steady: Vec<f64> = (0..60).map(|_| 10.0 + rng.random_range(-0.2..0.2)).collect();
    assert_eq!(LatencyStats::of(&steady).doubt(&quiet), None);
    // A load that comes and goes: two heaps of samples, and the median is in neither.
    let bursts: Vec<f64> = (0..60).map(|i| if (i / 7) % 2 == 0 { 10.0 } else { 19.0 }).collect();
    assert!(matches!(LatencyStats::of(&bursts).doubt(&quiet), Some(Doubt::Scatter { spread }) if spread > 0.1));
    // One that comes and stays is steady from sample to sample.
    let drift: Vec<f64> = (0..60).map(|i| if i < 30 { 10.0 } else { 14.0 } + rng.random_range(-0.1..0.1)).collect();
    assert!(matches!(LatencyStats::of(&drift).doubt(&quiet), Some(Doubt::Scatter { .. })));
    // One that was there all the time leaves no trace in the samples at all.
    let busy = Load { waited: 0.4, others: 0.45, ..quiet };
    assert_eq!(LatencyStats::of(&steady).doubt(&busy), Some(Doubt::Contention { others: 0.45 }));
    // What it was is said as far as it is known: threads that waited were not always in others' way.
    let crowded = |waited, others, steal| crowded(&Load { waited, others, steal, ..quiet });
    assert_eq!(crowded(0.3, 0.0, 0.0), Some(Doubt::Waiting { part: 0.3 }));
    assert_eq!(crowded(0.61, 0.31, 0.0), Some(Doubt::Contention { others: 0.31 }));
    assert_eq!(crowded(0.0, 0.0, 0.2), Some(Doubt::Contention { others: 0.2 }));
    assert_eq!(crowded(0.0, 0.05, 0.01), None);
    let fell = Load { clock: 0.6, ..quiet };
    assert!(matches!(LatencyStats::of(&steady).doubt(&fell), Some(Doubt::Clock { by }) if (by - 0.4).abs() < 1e-9));
    assert_eq!(Ratio::of(&[(10.0, 6.0); 9]).doubt(&busy, false), Some(Doubt::Contention { others: 0.45 }));
    // A clock that falls slows both of a pair.
    assert_eq!(Ratio::of(&[(10.0, 6.0); 9]).doubt(&fell, false), None);
}

/// Times of a GPU's own clock: the host's processors are no reason to doubt what does not scatter, nor what is replayed.
#[test]
fn a_devices_times_are_judged_by_their_scatter() {
    let busy = Load { waited: 0.26, others: 0.07, told: true, clock: 0.6, on_device: true, ..Load::default() };
    let stats = |replayed, samples: &[f64]| LatencyStats { replayed, ..LatencyStats::of(samples) };
    let bursts: Vec<f64> = (0..60).map(|i| if (i / 7) % 2 == 0 { 10.0 } else { 19.0 }).collect();
    for replayed in [true, false] {
        assert_eq!(stats(replayed, &[10.0; 20]).doubt(&busy), None);
        assert_eq!(Ratio::of(&[(10.0, 6.0); 9]).doubt(&busy, replayed), None);
    }
    assert!(matches!(stats(true, &bursts).doubt(&busy), Some(Doubt::Scatter { .. })));
    assert!(matches!(stats(false, &bursts).doubt(&busy), Some(Doubt::Waiting { part }) if part == 0.26));
    let pairs: Vec<(f64, f64)> = bursts.iter().map(|b| (10.0, *b)).collect();
    assert!(matches!(Ratio::of(&pairs).doubt(&busy, true), Some(Doubt::Scatter { .. })));
    assert!(matches!(Ratio::of(&pairs).doubt(&busy, false), Some(Doubt::Waiting { .. })));
    // Others on the GPU itself slow both alike: no scatter tells of them.
    let shared = Load { gpu_others: Some(0.4), ..busy };
    assert_eq!(stats(true, &[10.0; 20]).doubt(&shared), Some(Doubt::Shared { others: 0.4 }));
    let little = Load { gpu_others: Some(0.02), ..busy };
    assert_eq!(stats(true, &[10.0; 20]).doubt(&little), None);
}

#[test]
fn a_stated_spread_is_never_less_than_two_measurements_differ_by() {
    let s = LatencyStats::of(&[10.0; 20]).at_least(0.02, 0.003);
    assert!((s.spread() - 0.02).abs() < 1e-12);
    let tiny = LatencyStats::of(&[0.01; 20]).at_least(0.02, 0.003);
    assert!((tiny.spread() - 0.3).abs() < 1e-12, "three microseconds of ten");
    assert_eq!(LatencyStats::default().at_least(0.02, 0.003).spread(), 0.0);
}

fn row(name: &str, ms: f64, shape: &[usize]) -> LayerRow {
    let latency = LatencyStats { spread: Some(0.02), ..LatencyStats::of(&[ms; 9]) };
    LayerRow { name: name.into(), latency, out_shape: shape.to_vec(), ..LayerRow::default() }
}

#[test]
fn a_row_that_stands_out_among_its_shape_is_marked() {
    let names = ["a", "b", "c", "d", "e"];
    let build = |ms: [f64; 5]| -> Vec<LayerRow> { names.iter().zip(ms).map(|(n, ms)| row(n, ms, &[8])).collect() };
    let marked = |mut rows: Vec<LayerRow>| -> Vec<String> {
        outliers(&mut rows);
        rows.into_iter().filter(|r| r.doubt.is_some()).map(|r| r.name).collect()
    };
    assert!(marked(build([1.0, 1.05, 0.97, 1.1, 1.2])).is_empty(), "a fifth is what caches do");
    assert_eq!(marked(build([1.0, 1.05, 0.97, 5.0, 1.02])), ["d"]);
    assert_eq!(marked(build([1.0, 1.05, 0.97, 0.4, 1.02])), ["d"], "too fast is not to be believed either");
    // Another shape is no twin, and two are no norm.
    let mut mixed = build([1.0, 1.05, 0.97, 1.0, 1.02]);
    mixed.extend([row("x", 5.0, &[9]), row("y", 1.0, &[9])]);
    assert!(marked(mixed).is_empty());
    let mut rows = build([1.0, 1.05, 0.97, 5.0, 1.02]);
    outliers(&mut rows);
    assert_eq!(rows[3].doubt, Some(Doubt::Outlier { twins_ms: 1.02 }));
}
