//! Plain results of an evaluation.

use serde::{Deserialize, Serialize};

/// 97.5 % point of the standard normal distribution.
const Z: f64 = 1.959_963_984_540_054;

/// Metrics over `n` images.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    pub n: usize,
    pub correct: usize,
    /// `correct / n`, 0 to 1.
    pub top1: f64,
    /// Share of images whose class is among the five largest logits (fewer classes: among all of them), 0 to 1.
    pub top5: f64,
    /// Mean cross-entropy in nats.
    pub loss: f64,
    /// Correct and total per class.
    pub per_class: Vec<(usize, usize)>,
}

impl Metrics {
    /// Wilson's 95 % interval of `top1`; from 0 to 1 without images.
    pub fn interval(&self) -> (f64, f64) {
        if self.n == 0 { (0.0, 1.0) } else { wilson(self.correct as f64, self.n as f64) }
    }

    /// What always naming the commonest class would get right, where the model is not surely better than that. Such a
    /// model usually sees images prepared for another, or labels in another order.
    pub fn guesses(&self) -> Option<f64> {
        let most = self.per_class.iter().map(|(_, total)| *total).max()?;
        let chance = most as f64 / self.n.max(1) as f64;
        (self.per_class.len() > 1 && self.n > 0 && self.interval().0 <= chance).then_some(chance)
    }

    /// [`Metrics::guesses`] as a warning.
    pub fn guess_warning(&self) -> Option<String> {
        let chance = self.guesses()?;
        Some(format!(
            "top-1 of {:.1} % is no better than always naming one class ({:.1} %): check --mean and --std, and the order of \
             the labels",
            100.0 * self.top1,
            100.0 * chance
        ))
    }
}

/// Wilson's score interval of `k` out of `n` (E. B. Wilson, JASA 22:209-212, 1927).
pub fn wilson(k: f64, n: f64) -> (f64, f64) {
    let (p, z2) = (k / n, Z * Z);
    let centre = p + z2 / (2.0 * n);
    let half = Z * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    let scale = 1.0 + z2 / n;
    (((centre - half) / scale).max(0.0), ((centre + half) / scale).min(1.0))
}

/// The difference in accuracy of two models on the same images.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Paired {
    /// Images that both were evaluated on.
    pub n: usize,
    /// Wrong before, right now.
    pub gained: usize,
    /// Right before, wrong now.
    pub lost: usize,
    /// New minus base accuracy in points (negative: worse).
    pub diff: f64,
    /// 95 % interval of `diff` in points.
    pub low: f64,
    pub high: f64,
    /// Two-sided exact McNemar p-value of "no difference".
    pub p: f64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guess_is_told_from_a_poor_model() {
        let of = |correct: usize, per_class: &[usize]| {
            let n = per_class.iter().sum();
            let per_class = per_class.iter().map(|&total| (0, total)).collect();
            Metrics { n, correct, top1: correct as f64 / f64::from(n as u32), per_class, ..Metrics::default() }
        };
        assert_eq!(of(98, &[100; 10]).guesses(), Some(0.1));
        assert_eq!(of(115, &[100; 10]).guesses(), Some(0.1), "chance reaches so far");
        assert_eq!(of(140, &[100; 10]).guesses(), None);
        // A model that always says the commonest of unlike classes knows nothing either.
        assert_eq!(of(800, &[800, 200]).guesses(), Some(0.8));
        assert_eq!(of(900, &[800, 200]).guesses(), None);
        // One class, and none, are no test of anything.
        assert_eq!(of(5, &[10]).guesses(), None);
        assert_eq!(of(0, &[]).guesses(), None);
        assert!(of(98, &[100; 10]).guess_warning().is_some_and(|w| w.contains("9.8 %") && w.contains("(10.0 %)")));
    }

    #[test]
    fn intervals_are_wilsons() {
        let of = |correct, n| Metrics { n, correct, ..Metrics::default() }.interval();
        let (low, high) = of(9173, 10_000);
        assert!((low - 0.91174).abs() < 2e-4 && (high - 0.92255).abs() < 2e-4, "{low} {high}");
        assert_eq!(of(0, 0), (0.0, 1.0));
    }
}
