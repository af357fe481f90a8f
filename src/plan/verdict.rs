//! The evaluation's outcome against the budget. Pure.
//!
//! Invariant: a line is undecided only when its interval straddles the target; the whole is rejected if any line is,
//! else undecided if any is, else accepted.

use super::{Budget, Outcome, Verdict, VerdictLine};
use crate::profile::Ratio;
use crate::task::{Change, Estimate, WorstClass};

/// What a verdict compares: one model counted.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Measured {
    pub macs: u64,
    pub weight_bytes: u64,
    pub params: u64,
}

/// Weighs `new` against `base` by `budget`. `latency` is the factor measured in pairs, with its interval, `quality` the
/// paired change of the task's metric, with its own, `class` what the class loses that loses most, `kl` the divergence of the outputs from the
/// original's, where these were measured.
pub fn verdict(
    budget: &Budget,
    base: &Measured,
    new: &Measured,
    latency: Ratio,
    quality: Change,
    class: Option<WorstClass>,
    kl: Option<Estimate>,
) -> Verdict {
    let Change { value: diff, low, high } = quality;
    let over = |a: f64, b: f64| if b > 0.0 { a / b } else { 1.0 };
    let exact = |v: f64| (v, v, v);
    let measured = [
        (latency.value, latency.low, latency.high),
        exact(over(new.macs as f64, base.macs as f64)),
        exact(over(new.weight_bytes as f64, base.weight_bytes as f64)),
        exact(over(new.params as f64, base.params as f64)),
        (-diff, -high, -low),
        class.map_or((f64::NAN, f64::NAN, f64::NAN), |c| (c.loss, c.low, c.high)),
        kl.map_or((f64::NAN, f64::NAN, f64::NAN), |e| {
            // What has no interval decides nothing.
            let (low, high) = e.range.unwrap_or((f64::NAN, f64::NAN));
            (e.value, low, high)
        }),
    ];
    let lines: Vec<VerdictLine> = (budget.items().into_iter().zip(measured))
        .filter_map(|((name, target), (value, low, high))| {
            let target = target?;
            let outcome = decide(target, low, high);
            let range = (low < high).then_some((low, high));
            let class = class.filter(|_| name == "class").map(|c| c.class);
            Some(VerdictLine { name: name.into(), class, target, measured: value, range, outcome })
        })
        .collect();
    let any = |o: Outcome| lines.iter().any(|l| l.outcome == o);
    let outcome = [Outcome::Reject, Outcome::Undecided].into_iter().find(|o| any(*o)).unwrap_or(Outcome::Accept);
    Verdict { outcome, lines, d_quality: diff, d_quality_low: low, d_quality_high: high }
}

/// How a figure that lies between `low` and `high` stands to the most that it may be.
pub(super) fn decide(target: f64, low: f64, high: f64) -> Outcome {
    // Not a number means it was not measured: never accept that.
    if low.is_nan() || high.is_nan() {
        Outcome::Undecided
    } else if high <= target + 1e-9 {
        Outcome::Accept
    } else if low > target + 1e-9 {
        Outcome::Reject
    } else {
        Outcome::Undecided
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(macs: u64, bytes: u64) -> Measured {
        Measured { macs, weight_bytes: bytes, params: bytes / 4 }
    }

    fn change((value, low, high): (f64, f64, f64)) -> Change {
        Change { value, low, high }
    }

    fn ratio(value: f64, spread: f64) -> Ratio {
        Ratio { n: 60, value, low: value * (1.0 - spread), high: value * (1.0 + spread), coverage: 0.95 }
    }

    #[test]
    fn table() {
        let base = at(1000, 400);
        let cases = [
            ("macs=0.6", (ratio(0.9, 0.0), at(600, 400)), (0.0, 0.0, 0.0), Outcome::Accept),
            ("macs=0.6", (ratio(0.9, 0.0), at(601, 400)), (0.0, 0.0, 0.0), Outcome::Reject),
            ("macs=0.6,drop=1", (ratio(0.9, 0.0), at(600, 400)), (-0.5, -0.9, -0.1), Outcome::Accept),
            ("macs=0.6,drop=1", (ratio(0.9, 0.0), at(600, 400)), (-0.9, -1.3, -0.5), Outcome::Undecided),
            ("macs=0.6,drop=1", (ratio(0.9, 0.0), at(600, 400)), (-1.9, -2.3, -1.5), Outcome::Reject),
            ("latency=0.8", (ratio(0.79, 0.05), at(600, 400)), (0.0, 0.0, 0.0), Outcome::Undecided),
            ("latency=0.8", (ratio(0.7, 0.05), at(600, 400)), (0.0, 0.0, 0.0), Outcome::Accept),
            ("latency=0.8,drop=1", (ratio(0.95, 0.05), at(600, 400)), (-0.9, -1.3, -0.5), Outcome::Reject),
            ("memory=0.27,params=1", (ratio(0.95, 0.05), at(600, 108)), (-3.0, -4.0, -2.0), Outcome::Accept),
            ("latency=0.8", (ratio(f64::NAN, 0.0), at(600, 400)), (0.0, 0.0, 0.0), Outcome::Undecided),
            ("", (ratio(5.0, 0.0), at(9000, 4000)), (-50.0, -51.0, -49.0), Outcome::Accept),
        ];
        for (budget, (latency, new), d, want) in cases {
            let b: Budget = budget.parse().expect("budget");
            let v = verdict(&b, &base, &new, latency, change(d), None, None);
            assert_eq!(v.outcome, want, "{budget} {latency:?} {new:?} {d:?}: {:?}", v.lines);
            assert_eq!(v.lines.len(), budget.split(',').filter(|s| !s.is_empty()).count());
        }
    }

    #[test]
    fn what_was_not_measured_is_undecided_and_can_be_stored() {
        let b: Budget = "latency=0.8,macs=1".parse().expect("budget");
        let at = Measured { macs: 5, ..Measured::default() };
        let v = verdict(&b, &at, &at, Ratio::UNKNOWN, Change::default(), None, None);
        let text = serde_json::to_string(&v).expect("stored");
        let back: super::super::Verdict = serde_json::from_str(&text).expect("read");
        assert_eq!((back.outcome, back.lines[1].measured), (Outcome::Undecided, 1.0));
        assert!(back.lines[0].measured.is_nan() && back.lines[0].range.is_none(), "{text}");
    }

    #[test]
    fn a_divergence_is_judged_by_its_interval_and_never_without() {
        let b: Budget = "kl=0.05".parse().expect("budget");
        let cases = [
            (Some((0.03, Some((0.02, 0.04)))), Outcome::Accept),
            (Some((0.05, Some((0.04, 0.06)))), Outcome::Undecided),
            (Some((0.07, Some((0.06, 0.08)))), Outcome::Reject),
            // One window, and what was not measured.
            (Some((0.01, None)), Outcome::Undecided),
            (None, Outcome::Undecided),
        ];
        for (kl, want) in cases {
            let kl = kl.map(|(value, range)| Estimate { value, range });
            let at = Measured::default();
            let v = verdict(&b, &at, &at, Ratio::default(), Change::default(), None, kl);
            assert_eq!((v.outcome, v.lines.len(), v.lines[0].name.as_str()), (want, 1, "kl"), "{kl:?}");
            assert_eq!(v.lines[0].range, kl.and_then(|e| e.range));
        }
    }

    #[test]
    fn a_class_is_judged_by_the_one_that_loses_most_and_named() {
        let b: Budget = "class=3".parse().expect("budget");
        let worst = |loss, low, high| Some(WorstClass { class: 4, images: 100, loss, low, high });
        let cases = [
            (worst(1.0, -0.5, 2.9), Outcome::Accept),
            (worst(3.0, 1.0, 6.0), Outcome::Undecided),
            (worst(8.0, 3.1, 14.0), Outcome::Reject),
            (None, Outcome::Undecided),
        ];
        for (class, want) in cases {
            let at = Measured::default();
            let v = verdict(&b, &at, &at, Ratio::default(), Change::default(), class, None);
            assert_eq!((v.outcome, v.lines.len(), v.lines[0].class), (want, 1, class.map(|c| c.class)), "{class:?}");
        }
    }

    #[test]
    fn drop_is_reported_as_a_positive_number() {
        let b: Budget = "drop=1".parse().expect("budget");
        let v = verdict(
            &b,
            &Measured::default(),
            &Measured::default(),
            Ratio::default(),
            change((-0.4, -0.8, 0.0)),
            None,
            None,
        );
        assert_eq!((v.lines[0].measured, v.lines[0].range, v.d_quality), (0.4, Some((-0.0, 0.8)), -0.4));
    }
}
