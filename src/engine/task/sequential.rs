//! When it is clear, from images drawn one after another, whether a model loses more of a set's right answers than it may: a test that
//! may be looked at after every image and stopped at any of them.
//!
//! Here: the question, two capitals, what they have refuted. Not here: drawing and running (`eval::early`), the interval of a sample of a size
//! that was fixed before (`paired`). Invariant: images come in an order drawn at random, each at most once. That of a folder is no such order (class
//! after class), nor is that of a sorted part of it; in those the verdict says nothing.
//!
//! Source: I. Waudby-Smith and A. Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86:1-27 (2024), with their
//! section on sampling without replacement. An image's loss x is 1 where only the base is right, -1 where only the new model is, else
//! nothing. The set has N images and the balance K = Σ x over all of them (lost less gained); the question is whether 100 K / N is at most the
//! points d that may go. K is a whole number, so it is whether K ≤ k = ⌊N d / 100⌋ or K ≥ k + 1. If K were k, the t-th loss would have, after
//! those before it, the mean
//!
//! ```text
//! m_t = (k - Σ_{i<t} x_i) / (N - t + 1)
//! ```
//!
//! exactly, and a gambler who bets the part c of what they have on more than that (c of the largest bet that cannot ruin them) would have
//! W_t = W_{t-1} (1 + c (x_t - m_t) / (1 + m_t)), a martingale that is never negative; with a smaller K it falls on average. By Ville's inequality W
//! then reaches 1 / a with a probability of at most a, however long one looks: where it does, K ≤ k is refuted at the level 1 - a.
//! K ≥ k + 1 is refuted by the same on -x. As nobody knows the best part, W is the mean over several, which is such a martingale as well.

/// The level at which verdicts are given unless told otherwise is one less this: 99.5 %.
pub const ALPHA: f64 = 0.005;

/// Parts that are bet. The best is about (1 + m) times the true mean's distance from m, divided by the losses' variance: the largest for
/// networks that are broken, the least for tenths of a point.
const PARTS: [f64; 6] = [0.8, 0.4, 0.2, 0.1, 0.05, 0.025];

/// More images than anybody has: 2^40.
const MANY: usize = 1 << 40;

/// What became clear of the set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Clear {
    /// The model loses no more than it may.
    Held,
    /// It loses more.
    Missed,
}

/// What those who bet against one balance have, each having begun with 1.
#[derive(Debug, Clone, PartialEq)]
struct Capital([f64; PARTS.len()]);

impl Capital {
    fn new() -> Capital {
        Capital([1.0; PARTS.len()])
    }

    /// All bet on more than `mean`, and `x`, from -1 to 1, comes.
    fn bet(&mut self, mean: f64, x: f64) {
        // Nothing but -1 can come then, on which nobody can win; what else comes is told by counts.
        if mean <= -1.0 {
            return;
        }
        let gain = (x - mean) / (1.0 + mean);
        self.0.iter_mut().zip(PARTS).for_each(|(has, part)| *has *= 1.0 + part * gain);
    }

    fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / PARTS.len() as f64
    }
}

/// The test. See the file's head; its verdict is of the set itself, not of images like its own.
#[derive(Debug, Clone, PartialEq)]
pub struct Sequential {
    total: usize,
    allowed: f64,
    alpha: f64,
    /// The largest balance that may be.
    most: i64,
    /// Losses in the order in which they came.
    losses: Vec<i8>,
    balance: i64,
    /// Against a balance of at most `most`, and against a larger one.
    low: Capital,
    high: Capital,
    clear: Option<Clear>,
    counted: bool,
}

impl Sequential {
    /// Of a set of `total` images, of whose accuracy at most `allowed` points may be lost. A verdict is wrong with a probability of at most `alpha`
    /// (above 0, below 1): each side has half of it, so that [`Sequential::range`] is at the same level and the verdict is whether
    /// that range lies on one side of what may be lost.
    pub fn new(total: usize, allowed: f64, alpha: f64) -> Sequential {
        // A product such as 1000 · 0.3 may lie an ulp below its whole number.
        let most = (total as f64 * allowed / 100.0 + 1e-9).floor() as i64;
        Sequential {
            total,
            allowed,
            alpha,
            most,
            losses: Vec::new(),
            balance: 0,
            low: Capital::new(),
            high: Capital::new(),
            clear: None,
            counted: false,
        }
    }

    /// Of all images like those that come, of whose accuracy at most `allowed` points may be lost: so many that what came changes nothing for
    /// those that did not. The question that a sample's interval answers ([`super::Task::compare`]), where [`Sequential::new`] asks
    /// only about the set itself.
    pub fn of_many(allowed: f64, alpha: f64) -> Sequential {
        Sequential::new(MANY, allowed, alpha)
    }

    /// Takes the next image of the random order, and gives what is clear by now. What became clear stays so, unless counts prove otherwise; when
    /// all were seen, it is what they say. Images beyond the set's number are left out.
    pub fn push(&mut self, base_right: bool, new_right: bool) -> Option<Clear> {
        let rest = self.rest();
        if rest == 0 {
            return self.clear;
        }
        let loss = i8::from(base_right) - i8::from(new_right);
        let owed = self.most - self.balance;
        self.low.bet(owed as f64 / rest as f64, f64::from(loss));
        self.high.bet(-(owed + 1) as f64 / rest as f64, -f64::from(loss));
        self.losses.push(loss);
        self.balance += i64::from(loss);
        let (fewest, most) = self.proven();
        if most <= self.most || fewest > self.most {
            self.counted = true;
            self.clear = Some(if most <= self.most { Clear::Held } else { Clear::Missed });
        } else if self.clear.is_none() {
            self.clear = if self.low.mean() >= self.enough() {
                Some(Clear::Missed)
            } else if self.high.mean() >= self.enough() {
                Some(Clear::Held)
            } else {
                None
            };
        }
        self.clear
    }

    /// What is clear by now.
    pub fn clear(&self) -> Option<Clear> {
        self.clear
    }

    /// Whether that is so by counting, whatever the images are that were not seen.
    pub fn counted(&self) -> bool {
        self.counted
    }

    /// Images that came.
    pub fn seen(&self) -> usize {
        self.losses.len()
    }

    /// Images of the set.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Points that may be lost.
    pub fn allowed(&self) -> f64 {
        self.allowed
    }

    /// How likely a verdict is right at least, 0 to 1.
    pub fn level(&self) -> f64 {
        1.0 - self.alpha
    }

    /// Between what the change of the accuracy over the whole set lies, in points (new less base, negative for worse), at the test's
    /// level whenever one asks: the balances that no capital has refuted, by now or before.
    pub fn range(&self) -> (f64, f64) {
        let (fewest, most) = self.proven();
        let low = first(fewest, most, |k| !self.refuted(k, 1));
        let high = -first(-most, -fewest, |k| !self.refuted(k, -1));
        // Both sides have refuted everything between them: it happens as seldom as a wrong verdict. Counts hold.
        let (low, high) = if low <= high { (low, high) } else { (fewest, most) };
        let points = |balance: i64| 100.0 * (-balance) as f64 / self.total.max(1) as f64;
        (points(high), points(low))
    }

    /// Images that did not come yet.
    fn rest(&self) -> usize {
        self.total.saturating_sub(self.losses.len())
    }

    /// Between what the set's balance lies, whatever is still to come.
    fn proven(&self) -> (i64, i64) {
        let rest = self.rest() as i64;
        (self.balance - rest, self.balance + rest)
    }

    /// The capital that refutes.
    fn enough(&self) -> f64 {
        2.0 / self.alpha
    }

    /// Whether a capital against a balance of at most `bound` has ever been enough; of the balance's negative where `sign` is -1. Once it
    /// was for a bound, it was for all below, for which every bet gains more.
    fn refuted(&self, bound: i64, sign: i8) -> bool {
        let (mut capital, mut balance) = (Capital::new(), 0);
        self.losses.iter().zip((1..=self.total).rev()).any(|(&loss, rest)| {
            let loss = sign * loss;
            capital.bet((bound - balance) as f64 / rest as f64, f64::from(loss));
            balance += i64::from(loss);
            capital.mean() >= self.enough()
        })
    }
}

/// The first number from `low` to `high` that `stands`, as all after it do; `high` where none does.
fn first(mut low: i64, mut high: i64, stands: impl Fn(i64) -> bool) -> i64 {
    while low < high {
        let middle = low + (high - low) / 2;
        if stands(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::seq::SliceRandom;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    const TIMES: usize = 1000;

    /// A set whose base is right nine times in ten, by pairs: so many lost, so many gained.
    fn set(total: usize, (lost, gained): (usize, usize)) -> Vec<(bool, bool)> {
        let pair = |i: usize| match i {
            i if i < lost => (true, false),
            i if i < lost + gained => (false, true),
            i => (i % 10 > 0, i % 10 > 0),
        };
        (0..total).map(pair).collect()
    }

    fn truth(total: usize, (lost, gained): (usize, usize), allowed: f64) -> Clear {
        if 100.0 * (lost as f64 - gained as f64) <= allowed * total as f64 { Clear::Held } else { Clear::Missed }
    }

    /// Of a thousand orders of a set: wrong verdicts, and the mean share of the images that a verdict took.
    fn thousand(total: usize, pairs: (usize, usize), allowed: f64, alpha: f64) -> (usize, f64) {
        let (mut all, right) = (set(total, pairs), truth(total, pairs, allowed));
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        let (mut wrong, mut seen) = (0, 0);
        for _ in 0..TIMES {
            all.shuffle(&mut rng);
            let mut test = Sequential::new(total, allowed, alpha);
            let found = all.iter().find_map(|&(base, new)| test.push(base, new));
            wrong += usize::from(found != Some(right));
            seen += test.seen();
        }
        (wrong, seen as f64 / (TIMES * total) as f64)
    }

    /// Wrong at most 5 times in a thousand by the theory; 10 leave room for chance. Shares are what a simulation in Python took, give or take.
    fn check(total: usize, pairs: (usize, usize), share: (f64, f64)) {
        let (wrong, took) = thousand(total, pairs, 1.0, ALPHA);
        // What the README says of it, under `--nocapture`.
        println!(
            "{pairs:?} lost and gained of {total}: clear after {:.0} on average, {wrong} wrong",
            took * total as f64
        );
        assert!(wrong < 10, "{pairs:?} of {total}: {wrong} wrong");
        assert!(share.0 <= took && took <= share.1, "{pairs:?} of {total}: a share of {took}");
    }

    #[test]
    fn what_is_far_from_the_bound_is_clear_early() {
        // Five points lost where one may be, half a point won, two lost, none lost.
        check(10_000, (600, 100), (0.02, 0.1));
        check(10_000, (50, 100), (0.05, 0.2));
        check(10_000, (300, 100), (0.2, 0.5));
        check(10_000, (150, 150), (0.2, 0.5));
        check(1000, (60, 10), (0.2, 0.55));
        check(1000, (10, 10), (0.6, 0.95));
    }

    /// Images like a population's come one after the other, and there is always another.
    #[test]
    fn a_verdict_on_all_such_images_is_seldom_wrong_and_says_when_it_cannot_tell() {
        let mut rng = ChaCha8Rng::seed_from_u64(9);
        // Lost and gained of a thousand, at most 2 % allowed to go.
        for (lost, gained) in [(20u32, 0u32), (30, 10), (21, 0), (60, 10), (10, 10), (0, 0)] {
            let right = if lost - gained.min(lost) <= 20 { Clear::Held } else { Clear::Missed };
            let (mut wrong, mut open) = (0, 0);
            for time in 0..TIMES {
                let mut test = Sequential::of_many(2.0, ALPHA);
                let found = (0..2000).find_map(|_| {
                    let at = rng.random_range(0..1000);
                    test.push(at < lost || at >= lost + gained, at >= lost)
                });
                assert!(!test.counted());
                // What the range says is what the verdict says; it takes a while.
                if time < 20 {
                    let (low, high) = test.range();
                    assert!(low <= high && (found == Some(Clear::Held)) == (low >= -2.0 - 1e-9), "{low} {high}");
                    assert_eq!(found == Some(Clear::Missed), high < -2.0, "{low} {high}");
                }
                match found {
                    None => open += 1,
                    Some(clear) => wrong += usize::from(clear != right),
                }
            }
            assert!(wrong < 10, "{lost} lost, {gained} gained: {wrong} wrong");
            // At the bound itself nobody can tell; far from it 2,000 images nearly always can.
            let near = lost - gained.min(lost) >= 20 && lost - gained.min(lost) <= 21;
            assert!(if near { open > 900 } else { open < 300 }, "{lost} lost, {gained} gained: {open} open");
        }
    }

    #[test]
    fn what_differs_by_one_image_is_seldom_told_wrong() {
        // Exactly as much lost as may be, and an image more; of 1 %, 5 % and 10 % that are answered otherwise.
        for pairs in [(100, 0), (101, 0), (300, 200), (300, 199), (550, 450), (550, 449)] {
            check(10_000, pairs, (0.9, 1.0));
        }
        for pairs in [(10, 0), (11, 0), (30, 20), (31, 20), (55, 45), (56, 45)] {
            check(1000, pairs, (0.9, 1.0));
        }
    }

    #[test]
    fn a_level_that_allows_errors_makes_them() {
        // What the tests above count can be there.
        let (wrong, share) = thousand(1000, (31, 20), 1.0, 0.5);
        assert!((30..=250).contains(&wrong) && share < 0.95, "{wrong} wrong, a share of {share}");
    }

    #[test]
    fn the_range_holds_what_the_set_has_and_agrees_with_the_verdict() {
        let mut rng = ChaCha8Rng::seed_from_u64(8);
        for pairs in [(60usize, 10usize), (31, 20), (5, 15)] {
            let mut all = set(1000, pairs);
            let change = (pairs.1 as f64 - pairs.0 as f64) / 10.0;
            let mut outside = 0;
            for _ in 0..200 {
                all.shuffle(&mut rng);
                let mut test = Sequential::new(1000, 1.0, ALPHA);
                let clear = all.iter().find_map(|&(base, new)| test.push(base, new));
                let (low, high) = test.range();
                assert!(low <= high, "{low} {high}");
                match clear {
                    Some(Clear::Held) => assert!(low >= -1.0, "{low} {high}"),
                    Some(Clear::Missed) => assert!(high < -1.0, "{low} {high}"),
                    None => panic!("all were seen"),
                }
                outside += usize::from(change < low - 1e-9 || high + 1e-9 < change);
            }
            assert!(outside < 6, "{pairs:?}: {outside} of 200");
        }
        // All were seen: there is nothing in doubt.
        let mut test = Sequential::new(1000, 1.0, ALPHA);
        for (base, new) in set(1000, (31, 20)) {
            test.push(base, new);
        }
        assert_eq!((test.range(), test.clear(), test.counted()), ((-1.1, -1.1), Some(Clear::Missed), true));
    }

    /// Over all orders of a set with the very balance that is bet against, a capital is on average what it was.
    #[test]
    fn bets_are_fair_where_the_hypothesis_is_true() {
        // Two lost and one gained of six: a balance of one. In base 3: 0 for gained, 1 for neither, 2 for lost.
        let digits = |n: usize| [1, 3, 9, 27, 81, 243].map(|place| n / place % 3);
        let orders = (0..729).map(digits).filter(|d| {
            let count = |of: usize| d.iter().filter(|&&v| v == of).count();
            (count(2), count(0)) == (2, 1)
        });
        let orders: Vec<[usize; 6]> = orders.collect();
        assert_eq!(orders.len(), 60);
        for seen in 1..=6 {
            let after = |allowed: f64| {
                let (mut low, mut high) = (0.0, 0.0);
                for order in &orders {
                    let mut test = Sequential::new(6, allowed, ALPHA);
                    for outcome in &order[..seen] {
                        test.push(*outcome == 2, *outcome == 0);
                    }
                    low += test.low.mean() / 60.0;
                    high += test.high.mean() / 60.0;
                }
                (low, high)
            };
            // At most one, which it is; more than none, which begins with one.
            let (low, high) = (after(17.0).0, after(0.0).1);
            assert!((low - 1.0).abs() < 1e-12 && (high - 1.0).abs() < 1e-12, "{seen}: {low} {high}");
            // Where less is lost than is bet against, bets lose.
            assert!(after(50.0).0 < 1.0);
        }
    }

    #[test]
    fn capitals_and_counts_are_those_worked_by_hand() {
        // One of four may be lost.
        let mut test = Sequential::new(4, 25.0, ALPHA);
        assert_eq!(test.push(true, false), None);
        // (1 - ¼) / (1 + ¼) won by 0.8; on the other side (-1 + ½) / (1 - ½) lost.
        assert!((test.low.0[0] - 1.48).abs() < 1e-12 && (test.high.0[0] - 0.2).abs() < 1e-12, "{test:?}");
        assert_eq!(test.push(true, false), None);
        assert!((test.low.0[0] - 1.48 * 1.8).abs() < 1e-12);
        // Three are lost, and one cannot make up for two.
        assert_eq!((test.push(true, false), test.counted(), test.seen()), (Some(Clear::Missed), true, 3));
        assert_eq!(test.range(), (-100.0, -50.0));
        test.push(true, true);
        // There is no fifth.
        assert_eq!((test.push(false, true), test.seen(), test.range()), (Some(Clear::Missed), 4, (-75.0, -75.0)));
        let none = Sequential::new(0, 1.0, ALPHA);
        assert_eq!((none.clear(), none.seen(), none.range()), (None, 0, (0.0, 0.0)));
        // A product that lies just below its whole number is that number.
        assert_eq!(
            [(1000, 0.3), (10_000, 0.57), (4000, 0.0)].map(|(n, d)| Sequential::new(n, d, ALPHA).most),
            [3, 57, 0]
        );
    }
}
