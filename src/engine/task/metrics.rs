//! Plain results of an evaluation, and what the metric they speak of is called.

use serde::{Deserialize, Serialize};

/// 97.5 % point of the standard normal distribution.
pub(super) const Z: f64 = 1.959_963_984_540_054;

/// What a task measures quality by. Scores are better the higher, whichever way the metric goes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    /// As people call it: `top-1`.
    pub name: String,
    /// One of what is scored: `image`.
    #[serde(default = "image", skip_serializing_if = "is_image")]
    pub item: String,
    /// Unit of a value (`%`) and of a change (`points`); empty: none.
    pub unit: String,
    pub change_unit: String,
    /// What a score of one is in that unit; negative where less is better (a score is the negative loss then).
    pub scale: f64,
    /// What a hundred points are in that unit: from what knows nothing to what errs nowhere, or so. Forecasts think in points.
    pub whole: f64,
    /// Decimals that people are shown.
    pub digits: usize,
    /// Mean score of what knows nothing; the worst and the best there are. `None`: no such.
    pub chance: Option<f64>,
    pub worst: Option<f64>,
    pub best: Option<f64>,
}

fn image() -> String {
    "image".to_owned()
}

fn is_image(item: &str) -> bool {
    item == "image"
}

impl Metric {
    /// So many of what is scored, in words.
    pub fn items(&self, n: usize) -> String {
        crate::words::counted(n, &self.item)
    }

    /// So many that nothing but trials touched.
    pub fn held_back(&self, n: usize) -> String {
        crate::words::counted(n, &format!("held-back {}", self.item))
    }

    /// Top-1 among so many classes.
    pub fn top1(classes: usize) -> Metric {
        Metric {
            name: "top-1".to_owned(),
            item: image(),
            unit: "%".to_owned(),
            change_unit: "points".to_owned(),
            scale: 100.0,
            whole: 100.0,
            digits: 2,
            chance: Some(1.0 / classes.max(1) as f64),
            worst: Some(0.0),
            best: Some(1.0),
        }
    }

    /// A mean score as people are shown it.
    pub fn value(&self, score: f64) -> f64 {
        self.scale * score
    }

    /// The change from one mean score to another, in the unit, negative for worse.
    pub fn change(&self, from: f64, to: f64) -> f64 {
        (to - from) * self.scale.abs()
    }

    /// A change (negative for worse) in the metric's own direction.
    pub fn shown(&self, change: f64) -> f64 {
        if self.scale < 0.0 { -change } else { change }
    }

    /// An interval of a change in the metric's own direction, ascending.
    pub fn shown_range(&self, low: f64, high: f64) -> (f64, f64) {
        if self.scale < 0.0 { (-high, -low) } else { (low, high) }
    }

    /// So many points (see [`Metric::whole`]) in the metric's unit.
    pub fn of_points(&self, points: f64) -> f64 {
        points * (self.whole / 100.0)
    }

    /// Name and unit: `top-1 %`.
    pub fn title(&self) -> String {
        format!("{} {}", self.name, self.unit).trim_end().to_owned()
    }

    /// A change in words: `-0.95 points`.
    pub fn change_words(&self, change: f64) -> String {
        format!("{:+.*} {}", self.digits, self.shown(change), self.change_unit).trim_end().to_owned()
    }

    /// A range of changes: `[-1.20, -0.60]`.
    pub fn range_words(&self, low: f64, high: f64) -> String {
        let (digits, (low, high)) = (self.digits, self.shown_range(low, high));
        format!("[{low:+.digits$}, {high:+.digits$}]")
    }

    /// A change that is expected, with its range: `top-1 ~-0.95 [-1.20, -0.60]`.
    pub fn forecast_words(&self, value: f64, low: f64, high: f64) -> String {
        let digits = self.digits;
        format!("{} ~{:+.digits$} {}", self.name, self.shown(value), self.range_words(low, high))
    }

    /// A mean score in words: `92.18 %`.
    pub fn value_words(&self, score: f64) -> String {
        format!("{:.*} {}", self.digits, self.value(score), self.unit).trim_end().to_owned()
    }
}

impl Default for Metric {
    fn default() -> Metric {
        Metric::top1(0)
    }
}

/// One further metric, as a score times its scale.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    pub name: String,
    pub score: f64,
    pub scale: f64,
    pub unit: String,
}

/// Right answers of a classifier.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Classes {
    pub correct: usize,
    /// Correct and total per class.
    pub per_class: Vec<(usize, usize)>,
}

/// Metrics over `n` items.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(from = "Stored")]
pub struct Metrics {
    pub n: usize,
    /// Mean score: see [`Metric`]. For classifiers the share of right answers, 0 to 1.
    pub score: f64,
    /// Mean loss; cross-entropies in nats.
    pub loss: f64,
    /// Standard error of `score` where answers are not right or wrong.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub standard_error: Option<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<Reading>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub classes: Option<Classes>,
}

/// Metrics as they were stored: since there are tasks, or (schema 1) by a classifier's own fields.
#[derive(Deserialize)]
struct Stored {
    n: usize,
    #[serde(alias = "top1")]
    score: f64,
    loss: f64,
    standard_error: Option<f64>,
    #[serde(default)]
    others: Vec<Reading>,
    classes: Option<Classes>,
    correct: Option<usize>,
    top5: Option<f64>,
    #[serde(default)]
    per_class: Vec<(usize, usize)>,
}

impl From<Stored> for Metrics {
    fn from(s: Stored) -> Metrics {
        let classes = s.classes.or(s.correct.map(|correct| Classes { correct, per_class: s.per_class }));
        let others = s.others.into_iter().chain(s.top5.map(top5)).collect();
        let Stored { n, score, loss, standard_error, .. } = s;
        Metrics { n, score, loss, standard_error, others, classes }
    }
}

fn top5(score: f64) -> Reading {
    Reading { name: "top-5".to_owned(), score, scale: 100.0, unit: "%".to_owned() }
}

impl Metrics {
    /// A classifier's: right answers, the share of items whose class is among the five largest logits (fewer classes: among
    /// all of them), mean cross-entropy, right answers and items by class.
    pub fn of_classes(n: usize, correct: usize, top5_share: f64, loss: f64, per_class: Vec<(usize, usize)>) -> Metrics {
        let score = correct as f64 / n.max(1) as f64;
        let (others, classes) = (vec![top5(top5_share)], Some(Classes { correct, per_class }));
        Metrics { n, score, loss, standard_error: None, others, classes }
    }

    /// Right answers; `None` where there is no right and wrong.
    pub fn correct(&self) -> Option<usize> {
        self.classes.as_ref().map(|c| c.correct)
    }

    /// Right answers and items by class; empty where there are no classes.
    pub fn per_class(&self) -> &[(usize, usize)] {
        self.classes.as_ref().map_or(&[], |c| &c.per_class)
    }

    /// A further metric's score.
    pub fn other(&self, name: &str) -> Option<f64> {
        self.others.iter().find(|r| r.name == name).map(|r| r.score)
    }

    /// The 95 % interval of `score`: Wilson's of a classifier's (from 0 to 1 without images), else the normal one.
    pub fn interval(&self) -> (f64, f64) {
        match (self.correct(), self.standard_error) {
            (Some(correct), _) if self.n > 0 => wilson(correct as f64, self.n as f64),
            (None, Some(se)) => (self.score - Z * se, self.score + Z * se),
            (Some(_), _) => (0.0, 1.0),
            // Nobody knows how far it may be off.
            (None, None) => (self.score, self.score),
        }
    }

    /// What always naming the commonest class would get right, where the model is not surely better than that. Such a
    /// model usually sees images prepared for another, or labels in another order.
    pub fn guesses(&self) -> Option<f64> {
        let per_class = self.per_class();
        let most = per_class.iter().map(|(_, total)| *total).max()?;
        let chance = most as f64 / self.n.max(1) as f64;
        (per_class.len() > 1 && self.n > 0 && self.interval().0 <= chance).then_some(chance)
    }

    /// [`Metrics::guesses`] as a warning.
    pub fn guess_warning(&self) -> Option<String> {
        let chance = self.guesses()?;
        Some(format!(
            "top-1 of {:.1} % is no better than always naming one class ({:.1} %): check the order of the labels, and for \
             images --mean and --std",
            100.0 * self.score,
            100.0 * chance
        ))
    }
}

/// Wilson's score interval of `k` out of `n` (E. B. Wilson, JASA 22:209-212, 1927) at 95 %.
pub fn wilson(k: f64, n: f64) -> (f64, f64) {
    wilson_at(k, n, Z)
}

/// [`wilson`] at another level: `z` is the standard normal's quantile.
pub(super) fn wilson_at(k: f64, n: f64, z: f64) -> (f64, f64) {
    let (p, z2) = (k / n, z * z);
    let centre = p + z2 / (2.0 * n);
    let half = z * (p * (1.0 - p) / n + z2 / (4.0 * n * n)).sqrt();
    let scale = 1.0 + z2 / n;
    (((centre - half) / scale).max(0.0), ((centre + half) / scale).min(1.0))
}

/// What the class loses that loses most; see [`super::worst_class`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WorstClass {
    pub class: usize,
    /// Images of it.
    pub images: usize,
    /// Points of its accuracy, positive for worse.
    pub loss: f64,
    /// Between what the largest loss of any class lies.
    pub low: f64,
    pub high: f64,
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
            Metrics::of_classes(n, correct, 0.0, 0.0, per_class)
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
        let of = |correct, n| Metrics::of_classes(n, correct, 0.0, 0.0, Vec::new()).interval();
        let (low, high) = of(9173, 10_000);
        assert!((low - 0.91174).abs() < 2e-4 && (high - 0.92255).abs() < 2e-4, "{low} {high}");
        assert_eq!(of(0, 0), (0.0, 1.0));
    }

    #[test]
    fn metrics_of_the_first_schema_are_read() {
        let old = r#"{"n":4,"correct":3,"top1":0.75,"top5":1.0,"loss":0.5,"per_class":[[1,2],[2,2]]}"#;
        let m: Metrics = serde_json::from_str(old).expect("reads");
        assert_eq!(m, Metrics::of_classes(4, 3, 1.0, 0.5, vec![(1, 2), (2, 2)]));
        assert_eq!(serde_json::from_str::<Metrics>(&serde_json::to_string(&m).unwrap()).unwrap(), m);
    }

    #[test]
    fn a_metric_of_which_less_is_better_is_shown_so() {
        let nll = Metric { name: "loss".into(), unit: "nats".into(), scale: -1.0, digits: 3, ..Metric::top1(2) };
        assert_eq!((nll.value(-0.25), nll.shown(-0.1), nll.shown_range(-0.2, 0.05)), (0.25, 0.1, (-0.05, 0.2)));
        assert_eq!((nll.value_words(-0.25), nll.title()), ("0.250 nats".to_owned(), "loss nats".to_owned()));
    }
}
