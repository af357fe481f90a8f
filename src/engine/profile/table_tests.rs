//! One currency: rows add up to the whole, and what is measured again takes its place.

use super::*;

fn row(name: &str, ms: f64) -> LayerRow {
    let latency = LatencyStats { n: 9, p50: ms, ..LatencyStats::default() };
    LayerRow { name: name.into(), kernel: "k".into(), latency, ..LayerRow::default() }
}

fn profile(whole: f64, ms: &[f64]) -> Profile {
    let rows: Vec<LayerRow> = ms.iter().enumerate().map(|(i, ms)| row(&format!("l{i}"), *ms)).collect();
    let whole = LatencyStats { n: 9, p50: whole, ..LatencyStats::default() };
    let mut p = Profile { rows, whole, ..Profile::default() };
    p.share();
    p
}

fn sum(p: &Profile) -> f64 {
    p.rows.iter().map(|r| p.ms(r)).sum()
}

#[test]
fn rows_are_parts_of_the_whole_models_latency() {
    for (whole, rows) in [(10.0, [2.0, 3.0, 5.0]), (12.0, [2.0, 3.0, 5.0]), (134.0, [12.7, 3.0, 5.0])] {
        let p = profile(whole, &rows);
        assert!((sum(&p) - whole).abs() < 1e-9, "{whole}");
        assert!(p.rows.iter().all(|r| (p.ms(r) / whole - r.share).abs() < 1e-9));
    }
    // Nothing measured of the whole: rows stand for themselves.
    assert_eq!(profile(0.0, &[2.0, 3.0]).scale(), 1.0);
    assert_eq!(profile(7.0, &[]).scale(), 1.0);
}

#[test]
fn what_stands_out_is_shown_as_measured_and_counted_as_its_twins() {
    let mut p = profile(10.0, &[2.0, 9.0, 2.0, 4.0]);
    p.rows[1].doubt = Some(Doubt::Outlier { twins_ms: 2.0 });
    assert_eq!((p.scale(), p.ms(&p.rows[1]), p.counted_ms(&p.rows[1])), (1.0, 9.0, 2.0));
    // Faster than its twins it counts as it was measured, so that no forecast saves more than is shown.
    p.rows[1].latency.p50 = 0.5;
    assert_eq!(p.counted_ms(&p.rows[1]), p.ms(&p.rows[1]));
}

#[test]
fn a_row_measured_again_takes_its_place_and_a_stain_goes() {
    let mut p = profile(40.0, &[2.0, 9.0, 2.0]);
    p.rows[1].doubt = Some(Doubt::Scatter { spread: 0.4 });
    p.rows[2].doubt = Some(Doubt::Scatter { spread: 0.4 });
    p.doubt = Some(Doubt::Contention { others: 0.5 });
    let mut fresh = profile(10.0, &[2.5, 3.0, 4.5]);
    fresh.rows[2].doubt = Some(Doubt::Scatter { spread: 0.2 });
    p.renew("l1", &fresh);
    let ms: Vec<f64> = p.rows.iter().map(|r| r.latency.p50).collect();
    // l0 was sound and was not asked for; l2 is in doubt there too.
    assert_eq!((ms, p.rows[1].doubt, p.whole.p50, p.doubt), (vec![2.0, 3.0, 2.0], None, 10.0, None));
    assert!((sum(&p) - 10.0).abs() < 1e-9);
    // The row asked for is taken in any case, a sound whole only by choice of its own.
    let mut stained = profile(40.0, &[2.0, 8.0, 2.0]);
    stained.rows[1].doubt = Some(Doubt::Scatter { spread: 0.3 });
    stained.doubt = Some(Doubt::Scatter { spread: 0.3 });
    p.renew("l1", &stained);
    let doubts = p.rows.iter().filter(|r| r.doubt.is_some()).count();
    assert_eq!((p.rows[1].latency.p50, p.whole.p50, doubts), (8.0, 10.0, 1), "l2 was sound there");
}
