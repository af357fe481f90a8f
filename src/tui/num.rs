//! Figures as short text: never wider than asked, the unit in the heading, `—` for what is not known.

use crate::task::Metric;
pub use crate::words::bytes;

/// Milliseconds for a narrow column.
pub fn ms(v: f64) -> String {
    match v {
        v if !v.is_finite() => "—".into(),
        v if v < 0.0995 => format!("{v:.3}"),
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v if v < 99_999.5 => format!("{v:.0}"),
        v => format!("{v:.0e}"),
    }
}

/// A figure in units of `unit` with three significant digits.
pub fn scaled(v: f64, unit: f64) -> String {
    let x = v / unit;
    match x {
        x if !x.is_finite() => "—".into(),
        0.0 => "0".into(),
        x if x < 0.01 => "<.01".into(),
        x if x < 9.995 => format!("{x:.2}"),
        x => ms(x),
    }
}

/// Three significant digits of what may be very small: `12.3`, `0.0123`, `1.2e-3`.
pub fn fine(v: f64) -> String {
    match v {
        v if !v.is_finite() => "—".into(),
        0.0 => "0".into(),
        v if v >= 0.995 => {
            if v < 9.995 {
                format!("{v:.2}")
            } else {
                ms(v)
            }
        }
        v if v >= 0.0995 => format!("{v:.3}"),
        v if v >= 0.00995 => format!("{v:.4}"),
        v if v >= 0.95e-9 => format!("{v:.1e}"),
        v => format!("{v:.0e}"),
    }
}

/// Three significant digits of any number, with a real minus sign; eight characters at most, for which those of three digits in their exponent
/// have one digit less.
pub fn any(v: f64) -> String {
    let sign = if v < 0.0 { "−" } else { "" };
    let text = match v.abs() {
        v if !(99_999.5..=f64::MAX).contains(&v) => fine(v),
        v if v < 9.995e99 => format!("{v:.2e}"),
        v => format!("{v:.1e}"),
    };
    format!("{sign}{text}")
}

/// A number of things that is not known to one: `3.2`, `412`, `41k`, `4e9`; five characters at most.
pub fn about(v: f64) -> String {
    match v {
        v if !v.is_finite() => "—".into(),
        v if v < 9.95 => format!("{v:.1}"),
        v if v < 9999.5 => format!("{v:.0}"),
        v if v < 9_999_500.0 => format!("{:.0}k", v / 1e3),
        v => format!("{v:.0e}"),
    }
}

/// A part as a percentage of at most five characters.
pub fn percent(v: f64) -> String {
    match 100.0 * v {
        p if !p.is_finite() => "—".into(),
        p if p == 0.0 || p >= 99.95 => format!("{p:.0}%"),
        p if p < 0.05 => "<.1%".into(),
        p => format!("{p:.1}%"),
    }
}

/// Counts with k, M, G: `64`, `9.4k`, `86.6M`.
pub fn count(v: u64) -> String {
    let v = v as f64;
    match v {
        v if v < 9999.5 => format!("{v:.0}"),
        v if v < 999_950.0 => format!("{:.1}k", v / 1e3),
        v if v < 999_950_000.0 => format!("{:.1}M", v / 1e6),
        v if v < 999_950_000_000.0 => format!("{:.1}G", v / 1e9),
        v => format!("{:.1e}", v),
    }
}

/// With a real minus sign: `+0.12`, `−0.34`.
pub fn signed(v: f64, decimals: usize) -> String {
    if !v.is_finite() {
        return "—".into();
    }
    let s = format!("{:.decimals$}", v.abs());
    let zero = s.chars().all(|c| matches!(c, '0' | '.'));
    match (zero, v < 0.0) {
        (true, _) => format!("±{s}"),
        (false, true) => format!("−{s}"),
        (false, false) => format!("+{s}"),
    }
}

/// What stands behind a figure that is not to be decided on.
pub fn mark(doubtful: bool) -> &'static str {
    if doubtful { "?" } else { "" }
}

/// A range of changes of `metric`, in its own direction: `[−0.40,+0.10]`.
pub fn range(metric: &Metric, (low, high): (f64, f64), comma: &str) -> String {
    let (low, high) = metric.shown_range(low, high);
    format!("[{}{comma}{}]", signed(low, metric.digits), signed(high, metric.digits))
}

/// A factor: `0.71x`.
pub fn factor(v: f64) -> String {
    if v.is_finite() { format!("{v:.2}x") } else { "—".into() }
}

/// A factor beside the target that it exceeds, in so many decimals that it is seen to: `0.603x` over `0.60x`.
pub fn factor_over(v: f64, target: f64) -> String {
    let at = |decimals: usize| format!("{v:.decimals$}");
    let decimals = (2..=4).find(|&d| v <= target + 1e-9 || at(d) != format!("{target:.d$}")).unwrap_or(4);
    if v.is_finite() { format!("{}x", at(decimals)) } else { factor(v) }
}

/// Time left or spent: `8 s`, `3 min`, `1 h 20`.
pub fn duration(seconds: f64) -> String {
    if !seconds.is_finite() || seconds < 0.0 {
        return "—".into();
    }
    match seconds {
        s if s < 1.0 => "<1 s".into(),
        s if s < 90.0 => format!("{s:.0} s"),
        s if s < 5400.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h {:02.0}", (s / 3600.0).floor(), (s % 3600.0) / 60.0),
    }
}

/// `HH:MM:SS`, UTC.
pub fn clock(at_ms: i64) -> String {
    let s = at_ms.div_euclid(1000).rem_euclid(86_400);
    format!("{:02}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60)
}

/// `2026-01-31 12:34:56Z` of milliseconds since the Unix epoch (civil-from-days, Howard Hinnant).
pub fn moment(at_ms: i64) -> String {
    let seconds = at_ms.div_euclid(1000);
    let (days, of_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let (day, month) = (doy - (153 * mp + 2) / 5 + 1, if mp < 10 { mp + 3 } else { mp - 9 });
    let year = yoe + era * 400 + i64::from(month <= 2);
    let (h, m, s) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {h:02}:{m:02}:{s:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_exceeds_its_target_is_not_rounded_into_it() {
        assert_eq!(factor_over(0.603, 0.6), "0.603x");
        assert_eq!(factor_over(0.6003, 0.6), "0.6003x");
        assert_eq!(factor_over(0.6, 0.6), "0.60x");
        assert_eq!(factor_over(0.598, 0.6), "0.60x");
        assert_eq!(factor_over(0.71, 0.6), "0.71x");
        assert_eq!(factor_over(f64::NAN, 0.6), factor(f64::NAN));
    }

    #[test]
    fn figures_are_short_at_every_magnitude() {
        for e in -12..=300 {
            let v = 9.9999 * 10f64.powi(e);
            assert!(ms(v).chars().count() <= 6, "{} for {v}", ms(v));
            assert!(scaled(v, 1e6).chars().count() <= 6, "{} for {v}", scaled(v, 1e6));
            assert!(fine(v).chars().count() <= 6, "{} for {v}", fine(v));
            assert!(about(v).chars().count() <= 5, "{} for {v}", about(v));
            assert!(any(-v).chars().count() <= 8, "{} for {v}", any(-v));
        }
        assert_eq!([123_456.0, -99_999.4, 9.996e99, f64::INFINITY].map(any), ["1.23e5", "−99999", "1.0e100", "—"]);
        assert_eq!([0.0123, 0.00099, 1.5e-12, 0.5, 3.0].map(fine), ["0.0123", "9.9e-4", "2e-12", "0.500", "3.00"]);
        assert_eq!([3.21, 412.0, 41_200.0].map(about), ["3.2", "412", "41k"]);
        assert_eq!([0.0, 1e-5, 0.125, 1.0, 0.9999].map(percent), ["0%", "<.1%", "12.5%", "100%", "100%"]);
        for e in 0..20 {
            assert!(count(10u64.saturating_pow(e)).len() <= 6);
            assert!(count(10u64.saturating_pow(e) - 1).len() <= 6);
        }
        assert_eq!(count(u64::MAX), "1.8e19");
        assert_eq!(
            (ms(0.48), ms(1.92), ms(11.02), ms(f64::NAN)),
            ("0.48".into(), "1.92".into(), "11.0".into(), "—".into())
        );
        assert_eq!((count(64), count(9_408), count(86_567_656)), ("64".into(), "9408".into(), "86.6M".into()));
    }

    #[test]
    fn signs_and_times() {
        assert_eq!(signed(-0.12, 2), "−0.12");
        assert_eq!(signed(0.07, 2), "+0.07");
        assert_eq!(signed(-0.001, 2), "±0.00");
        assert_eq!(duration(0.2), "<1 s");
        assert_eq!(duration(4800.0), "80 min");
        assert_eq!(duration(6000.0), "1 h 40");
        assert_eq!(clock(1_700_000_000_000), "22:13:20");
        assert_eq!(clock(-1000), "23:59:59");
        assert_eq!(moment(0), "1970-01-01 00:00:00Z");
        assert_eq!(moment(951_827_696_999), "2000-02-29 12:34:56Z");
        assert_eq!(moment(4_102_444_799_000), "2099-12-31 23:59:59Z");
    }
}
