//! Paired statistics: two models on the same images. Far sharper than comparing two accuracies, because the images that
//! both get right or wrong cancel.

use super::metrics::{Z, wilson_at};
use super::{Paired, WorstClass};

/// New minus base accuracy with its 95 % interval. Image `i` of both slices must be the same image; surplus entries of
/// the longer slice are ignored.
///
/// Interval: Newcombe's hybrid score ("square and add") interval for paired proportions, method 10 of R. G. Newcombe,
/// Statistics in Medicine 17:2635-2650 (1998): Wilson intervals of both accuracies, joined with their correlation. It
/// stays within ±100 points and keeps its coverage near 0 and 100 %, where Wald's does not. Test: McNemar's, exact.
pub fn paired(base: &[bool], new: &[bool]) -> Paired {
    let mut cells = [0usize; 4];
    for (b, n) in base.iter().zip(new) {
        cells[usize::from(!b) * 2 + usize::from(!n)] += 1;
    }
    let [both, lost, gained, neither] = cells;
    from_counts(both, lost, gained, neither)
}

/// [`paired`] from its two-by-two table: right in both, only in the base, only in the new, in neither.
pub fn from_counts(both: usize, lost: usize, gained: usize, neither: usize) -> Paired {
    from_counts_at([both, lost, gained, neither], Z)
}

/// What the class loses that loses most of its right answers, with an interval for the largest loss of any class: each class's own holds at 95 %
/// for all of them together (Bonferroni: C. E. Bonferroni, 1936), so that one of twenty that looks bad by chance is no verdict. `None` without
/// images. Image `i` of all slices must be the same image.
pub fn worst_class(base: &[bool], new: &[bool], labels: &[u32]) -> Option<WorstClass> {
    let classes = labels.iter().max().map_or(0, |&l| l as usize + 1);
    let mut cells = vec![[0usize; 4]; classes];
    for ((b, n), &label) in base.iter().zip(new).zip(labels) {
        cells[label as usize][usize::from(!b) * 2 + usize::from(!n)] += 1;
    }
    let seen: Vec<(usize, [usize; 4])> =
        cells.into_iter().enumerate().filter(|(_, c)| c.iter().sum::<usize>() > 0).collect();
    let z = quantile(0.05 / seen.len().max(1) as f64);
    let of = |(class, cells): (usize, [usize; 4])| {
        let p = from_counts_at(cells, z);
        WorstClass { class, images: p.n, loss: -p.diff, low: -p.high, high: -p.low }
    };
    let all: Vec<WorstClass> = seen.into_iter().map(of).collect();
    let worst = all.iter().copied().max_by(|a, b| a.loss.total_cmp(&b.loss))?;
    let most = |f: fn(&WorstClass) -> f64| all.iter().map(f).fold(f64::NEG_INFINITY, f64::max);
    Some(WorstClass { low: most(|c| c.low), high: most(|c| c.high), ..worst })
}

/// The standard normal's quantile that leaves `two_sided` outside on both sides together.
fn quantile(two_sided: f64) -> f64 {
    let (mut low, mut high) = (0.0, 40.0);
    for _ in 0..100 {
        let middle = 0.5 * (low + high);
        if libm::erfc(middle / std::f64::consts::SQRT_2) > two_sided { low = middle } else { high = middle }
    }
    low
}

fn from_counts_at([both, lost, gained, neither]: [usize; 4], z: f64) -> Paired {
    let n = both + lost + gained + neither;
    if n == 0 {
        return Paired { p: 1.0, low: -100.0, high: 100.0, ..Paired::default() };
    }
    let (e, f, g, h) = (both as f64, gained as f64, lost as f64, neither as f64);
    let total = n as f64;
    let (new, base) = ((e + f) / total, (e + g) / total);
    let diff = (f - g) / total;
    let (l_new, u_new) = wilson_at(e + f, total, z);
    let (l_base, u_base) = wilson_at(e + g, total, z);
    let margins = ((e + f) * (g + h) * (e + g) * (f + h)).sqrt();
    let raw = e * h - f * g;
    // Newcombe's continuity correction of phi applies to positive association only.
    let raw = if raw > 0.0 { (raw - total / 2.0).max(0.0) } else { raw };
    let phi = if margins > 0.0 { raw / margins } else { 0.0 };
    let join = |a: f64, b: f64| (a * a - 2.0 * phi * a * b + b * b).max(0.0).sqrt();
    let low = diff - join(new - l_new, u_base - base);
    let high = diff + join(u_new - new, base - l_base);
    Paired {
        n,
        gained,
        lost,
        diff: 100.0 * diff,
        low: 100.0 * low.max(-1.0),
        high: 100.0 * high.min(1.0),
        p: mcnemar(gained, lost),
    }
}

/// Two-sided exact p-value: under "no difference" the gained ones of the discordant images are Binomial(d, 1/2).
fn mcnemar(gained: usize, lost: usize) -> f64 {
    let d = gained + lost;
    // Terms are summed as exp(ln C(d, k) - d ln 2), each from the one before.
    let mut ln_term = -(d as f64) * std::f64::consts::LN_2;
    let mut tail = 0.0;
    for k in 0..=gained.min(lost) {
        tail += ln_term.exp();
        ln_term += ((d - k) as f64).ln() - ((k + 1) as f64).ln();
    }
    (2.0 * tail).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::super::wilson;
    use super::*;

    fn close(a: f64, b: f64, tol: f64) {
        assert!((a - b).abs() <= tol, "{a} is not {b} to {tol}");
    }

    #[test]
    fn quantiles_are_those_of_tables() {
        for (two_sided, z) in
            [(0.05, 1.959_963_985), (0.005, 2.807_033_768), (0.01, 2.575_829_304), (5e-5, 4.055_626_981)]
        {
            close(quantile(two_sided), z, 1e-8);
        }
    }

    #[test]
    fn the_class_that_loses_most_is_found_and_chance_among_many_is_no_verdict() {
        // Class 1 loses 30 of 100, class 0 one, class 2 gains.
        let (mut base, mut new, mut labels) = (Vec::new(), Vec::new(), Vec::new());
        for (class, lost, gained) in [(0u32, 1, 0), (1, 30, 0), (2, 0, 5)] {
            for i in 0..100 {
                labels.push(class);
                base.push(i < lost || i >= lost + gained);
                new.push(i >= lost);
            }
        }
        let w = worst_class(&base, &new, &labels).expect("images");
        assert_eq!((w.class, w.images, w.loss), (1, 100, 30.0));
        let alone = paired(&base[100..200], &new[100..200]);
        assert!(w.low < -alone.high && w.high > -alone.low && w.low > 10.0, "{w:?} {alone:?}");
        assert_eq!(worst_class(&[], &[], &[]), None);
        // A hundred classes of twenty images, each of which loses one or none by chance: the worst looks like five points, and may be none.
        let labels: Vec<u32> = (0..2000).map(|i| i / 20).collect();
        let new: Vec<bool> = (0..2000).map(|i| !(i % 20 == 0 && i / 20 % 3 == 0)).collect();
        let w = worst_class(&[true; 2000], &new, &labels).expect("images");
        assert!(w.loss == 5.0 && w.low < 0.5 && w.high > 20.0, "{w:?}");
    }

    #[test]
    fn wilson_matches_published_values() {
        // Newcombe, Statistics in Medicine 17:857-872 (1998), table I, method 3.
        for (k, n, low, high) in [
            (81.0, 263.0, 0.2553, 0.3662),
            (15.0, 148.0, 0.0624, 0.1605),
            (0.0, 20.0, 0.0, 0.1611),
            (1.0, 29.0, 0.0061, 0.1718),
        ] {
            let (l, u) = wilson(k, n);
            close(l, low, 5e-5);
            close(u, high, 5e-5);
        }
    }

    #[test]
    fn the_interval_matches_a_published_example() {
        // Airway hyper-responsiveness data of Fagerland, Lydersen and Laake, Statistics in Medicine 33:2850-2875 (2014):
        // 1, 1, 7, 12 of 21; difference -0.286, Newcombe's square-and-add interval -0.507 to -0.026.
        let p = from_counts(1, 7, 1, 12);
        close(p.diff, -28.6, 0.05);
        close(p.low, -50.7, 0.05);
        close(p.high, -2.6, 0.05);
        // Their exact conditional McNemar p-value: 0.070.
        close(p.p, 0.0703, 5e-5);
    }

    #[test]
    fn counts_pairs() {
        let base = [true, true, true, false, false];
        let new = [true, false, true, true, false];
        let p = paired(&base, &new);
        assert_eq!((p.n, p.gained, p.lost, p.diff), (5, 1, 1, 0.0));
        assert_eq!(p, from_counts(2, 1, 1, 1));
        close(p.p, 1.0, 0.0);
        assert_eq!(paired(&[], &[]).n, 0);
    }

    #[test]
    fn swapping_the_models_mirrors_the_interval() {
        for (e, f, g, h) in [(90, 4, 1, 5), (9000, 150, 60, 790), (0, 3, 0, 0), (10, 0, 0, 0), (0, 7, 9, 0)] {
            let (a, b) = (from_counts(e, f, g, h), from_counts(e, g, f, h));
            close(a.diff, -b.diff, 1e-12);
            close(a.low, -b.high, 1e-9);
            close(a.high, -b.low, 1e-9);
            assert!(a.low <= a.diff && a.diff <= a.high && a.low >= -100.0 && a.high <= 100.0);
            close(a.p, b.p, 1e-12);
        }
    }

    #[test]
    fn exact_test_is_stable_for_many_images() {
        close(mcnemar(5, 15), 0.041_389_465, 1e-8);
        let p = mcnemar(4000, 4000);
        close(p, 1.0, 1e-9);
        assert!(mcnemar(3000, 5000) < 1e-100);
    }
}
