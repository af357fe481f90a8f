//! Which decision of a plan costs most, found by trying the plan without parts of it. Pure.
//!
//! Each trial leaves out half of what is suspected; whichever half gives more back goes on being suspected. What the other half would give
//! is the difference, since losses add up about (see `plan::quality`); the one that is found is tried itself in the end. A plan of `n` decisions needs
//! `⌈log2 n⌉ + 1` trials at most besides the one of the whole plan: eight of 64, the whole plan included.

/// Looks for the decision that costs most.
#[derive(Debug, Clone)]
pub struct Bisect {
    /// What the whole plan loses, in the metric's unit, negative for worse.
    whole: f64,
    /// Decisions that may be the one.
    suspects: Vec<usize>,
    /// What leaving all of them out gives back, as far as it is known.
    gives: f64,
    /// Whether that was tried, or follows from other trials.
    tried: bool,
    trials: usize,
}

/// What to do next.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// Try the plan without these.
    Without(Vec<usize>),
    Found(Found),
}

/// The decision that costs most.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Found {
    pub at: usize,
    /// What the plan gains without it, in the metric's unit.
    pub gives: f64,
    /// What the whole plan loses.
    pub whole: f64,
    /// Trials that it took, without that of the whole plan.
    pub trials: usize,
}

impl Bisect {
    /// Among decisions that are expected to do `harm` each, of a plan that was tried and came to a change of `whole` in the metric (negative for
    /// worse). `None` where there is nothing to choose among.
    pub fn new(harm: &[f64], whole: f64) -> Option<Bisect> {
        if harm.len() < 2 || !whole.is_finite() {
            return None;
        }
        // Dealt out by turns, so that halves are expected to do as much harm: what one gives back beyond that is the surprise.
        let mut order: Vec<usize> = (0..harm.len()).collect();
        order.sort_by(|a, b| harm[*b].total_cmp(&harm[*a]));
        Some(Bisect { whole, suspects: order, gives: -whole, tried: false, trials: 0 })
    }

    /// The half that is left out next: every second of them.
    fn half(&self) -> Vec<usize> {
        // Of two it does not matter which.
        self.suspects.iter().copied().step_by(2).collect()
    }

    pub fn step(&self) -> Step {
        match self.suspects[..] {
            [at] if self.tried => Step::Found(Found { at, gives: self.gives, whole: self.whole, trials: self.trials }),
            [at] => Step::Without(vec![at]),
            _ => Step::Without(self.half()),
        }
    }

    /// What came of the trial that [`Bisect::step`] asked for: the change in the metric of the plan without that part.
    pub fn told(&mut self, change: f64) {
        self.trials += 1;
        let gave = change - self.whole;
        if self.suspects.len() == 1 {
            (self.gives, self.tried) = (gave, true);
            return;
        }
        let left_out = self.half();
        let rest = self.gives - gave;
        if gave >= rest {
            (self.suspects, self.gives, self.tried) = (left_out, gave, true);
        } else {
            self.suspects.retain(|s| !left_out.contains(s));
            (self.gives, self.tried) = (rest, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    /// What is found in a plan whose decisions lose `losses`, each trial off by up to `noise`.
    fn find(losses: &[f64], harm: &[f64], noise: f64, rng: &mut ChaCha8Rng) -> Found {
        let mut off = || if noise > 0.0 { rng.random_range(-noise..noise) } else { 0.0 };
        let whole: f64 = losses.iter().sum();
        let mut b = Bisect::new(harm, -whole + off()).expect("some");
        for _ in 0..64 {
            match b.step() {
                Step::Found(found) => return found,
                Step::Without(left_out) => {
                    let gone: f64 = left_out.iter().map(|i| losses[*i]).sum();
                    b.told(gone - whole + off());
                }
            }
        }
        panic!("it does not end");
    }

    #[test]
    fn one_bad_decision_among_64_is_found_in_eight_trials_wherever_it_is() {
        let mut rng = ChaCha8Rng::seed_from_u64(1);
        for bad in 0..64 {
            let mut losses: Vec<f64> = (0..64).map(|_| rng.random_range(0.0..0.04)).collect();
            losses[bad] = 4.0;
            // Nobody expected it: it was forecast as harmless as any.
            let harm: Vec<f64> = (0..64).map(|_| rng.random_range(0.0..0.04)).collect();
            let found = find(&losses, &harm, 0.2, &mut rng);
            assert_eq!(found.at, bad);
            assert!(found.trials < 8, "{} and that of the whole plan", found.trials);
            assert!((found.gives - 4.0).abs() < 0.5, "{found:?}");
        }
    }

    #[test]
    fn any_number_of_decisions_ends_and_the_one_that_is_found_was_tried_alone() {
        let mut rng = ChaCha8Rng::seed_from_u64(2);
        for n in 2..70usize {
            let bad = rng.random_range(0..n);
            let mut losses = vec![0.01; n];
            losses[bad] = 2.0;
            let found = find(&losses, &vec![0.01; n], 0.0, &mut rng);
            assert_eq!(found.at, bad, "of {n}");
            assert!(found.trials <= n.next_power_of_two().ilog2() as usize + 1, "{n}: {}", found.trials);
            assert!((found.gives - 2.0).abs() < 1e-9);
        }
        assert!(Bisect::new(&[1.0], -1.0).is_none() && Bisect::new(&[1.0, 2.0], f64::NAN).is_none());
    }
}
