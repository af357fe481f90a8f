//! Trials: a changed model against the original on images that nothing else touched, for what the change will cost on
//! new images.
//!
//! Held-back calibration images are usually training images, of which the original gets nearly all right and most by far;
//! the drop measured there says little. What turns an answer is how near it is to the boundary, its margin: so images are
//! weighted until the original's margins are distributed as on new ones (see [`Margins`]). Of those that are near, training
//! images have too few: views of them are disturbed (see [`Disturbance`]), each kind until the original errs on its views as
//! often as on new images, and stand beside the images as they are. Kinds disagree; their spread is part of the answer, since
//! new images are a kind of their own. Where the original errs on the held-back images as often as on new ones, they are
//! tried without views.
//!
//! Invariants: labels and images of the held-back set alone, and of the evaluation set how the original's margins are
//! distributed on it; the same inputs and batch give the same outcome.

use super::margin::{Margins, Stratum};
use super::views::Disturbance;
use super::{EvalError, Result, for_batches};
use crate::data::Dataset;
use crate::exec::Cancel;
use crate::model::Preprocess;
use crate::task::TaskError;
use candle_core::Tensor;
use serde::{Deserialize, Serialize};

/// One kind of views as the original sees them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ViewFacts {
    /// `None`: the images as they are.
    pub kind: Option<Disturbance>,
    pub strength: f64,
    /// The original's error on these views, 0 to 1.
    pub error: f64,
}

/// What makes trials on held-back images speak for new ones, and the evidence for it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Correction {
    /// Held-back images.
    pub images: usize,
    /// The original's error on them as they are, 0 to 1; `None` where there is no right and wrong.
    pub held_error: Option<f64>,
    /// Its error on new images, aimed at; `None`: unknown, images are tried as they are.
    pub new_error: Option<f64>,
    pub views: Vec<ViewFacts>,
    /// Whether they are weighted by the original's margins.
    #[serde(default)]
    pub weighted: bool,
}

/// The evidence, in words.
impl std::fmt::Display for Correction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(held_error) = self.held_error else {
            return write!(f, "{} held-back items are tried as they are", self.images);
        };
        write!(f, "the original errs on {:.1} % of the held-back images as they are", 100.0 * held_error)?;
        if let Some(e) = self.new_error {
            write!(f, ", on {:.1} % of new ones", 100.0 * e)?;
        }
        let weighed = if self.weighted { "; weighted until its margins are distributed as on new ones" } else { "" };
        let disturbed: Vec<String> =
            self.views.iter().filter_map(|v| Some(format!("{} {:.1} %", v.kind?.label(), 100.0 * v.error))).collect();
        if disturbed.is_empty() {
            write!(f, ": they are tried as they are{weighed}")
        } else {
            write!(f, "; so they are disturbed until it errs as often: {}{weighed}", disturbed.join(", "))
        }
    }
}

/// What a trial found. Changes are in the unit of the task's metric, negative for worse.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    #[serde(alias = "d_top1")]
    pub d_quality: f64,
    /// Standard error of `d_quality` from the number of held-back images.
    pub sample_sd: f64,
    /// How far kinds of views lie apart beyond their sampling errors; 0 with one kind.
    pub kind_sd: f64,
    /// Part of the views whose answer turned right or wrong, 0 to 1; where scores are of any size, what part would have to
    /// turn, by `size` each, for as much change and as much of its chance.
    pub turned: f64,
    /// What one answer that turns changes, in the metric's unit.
    #[serde(default = "answer")]
    pub size: f64,
    pub images: usize,
    /// Change by kind, in the order of [`Correction::views`].
    pub by_kind: Vec<f64>,
}

/// An answer of a classifier that turns, in points.
fn answer() -> f64 {
    100.0
}

/// Nothing changed on no images.
impl Default for Outcome {
    fn default() -> Outcome {
        Outcome {
            d_quality: 0.0,
            sample_sd: 0.0,
            kind_sd: 0.0,
            turned: 0.0,
            size: answer(),
            images: 0,
            by_kind: Vec::new(),
        }
    }
}

/// Held-back images, their views, and what the original makes of them.
#[derive(Debug, Clone)]
pub struct Trials {
    held: Dataset,
    prep: Preprocess,
    batch: usize,
    seed: u64,
    correction: Correction,
    /// The original on the images as they are.
    plain: Seen,
    /// The original on each kind of views.
    seen: Vec<Seen>,
    /// By kind: which images stand for which part of the new ones. Numbers from the count of images on are views.
    strata: Vec<Vec<Stratum>>,
}

/// A model's answers to a set of images.
#[derive(Debug, Clone, Default, PartialEq)]
struct Seen {
    scores: Vec<f32>,
    /// Zero where the task has none.
    margins: Vec<f32>,
    /// Answers are right or wrong.
    errs: bool,
}

impl Seen {
    fn error(&self) -> f64 {
        self.scores.iter().filter(|s| **s <= 0.5).count() as f64 / self.scores.len().max(1) as f64
    }

    /// Change of every image's score: of classifiers +1, 0 or −1, as it turned right, stayed, turned wrong.
    fn change<'a>(&'a self, before: &'a Seen) -> impl Iterator<Item = f64> + 'a {
        let one = |(new, old): (&f32, &f32)| f64::from(*new) - f64::from(*old);
        self.scores.iter().zip(&before.scores).map(one)
    }
}

/// What trials are set to.
#[derive(Debug, Clone, Copy)]
pub struct TrialOptions<'a> {
    /// The original's margins on new images; `None`: not even its error is known.
    pub new: Option<&'a Margins>,
    /// Views that were found before; taken if they were found for as many images and that error.
    pub known: Option<&'a Correction>,
    pub batch: usize,
    pub seed: u64,
}

/// Images on which strengths are searched; all of them say how often the original errs then.
const SEARCH_IMAGES: usize = 400;
/// Halvings of the strength's range.
const HALVINGS: usize = 6;
/// A kind that cannot make the original err at this part of the wanted rate is left out.
const REACHED: f64 = 0.7;

/// A model as trials run it: prepared images `[N, C, H, W]` to logits `[N, classes]`.
pub type Model<'a> = dyn FnMut(&Tensor) -> Result<Tensor> + 'a;

impl Trials {
    /// Finds the views of `held` on which `original` errs as often as on new images; those of `known`, if it was found for as
    /// many images and that error.
    ///
    /// # Errors
    /// No images, unreadable ones, a failing model, cancellation.
    pub fn prepare(
        original: &mut Model<'_>,
        held: &Dataset,
        prep: &Preprocess,
        options: &TrialOptions<'_>,
        cancel: &Cancel,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Trials> {
        let TrialOptions { new, known, batch, seed } = *options;
        let new_error = new.map(|m| m.error);
        let mut trials = Trials {
            held: held.clone(),
            prep: prep.clone(),
            batch: batch.max(1),
            seed,
            correction: Correction { images: held.len(), new_error, ..Correction::default() },
            plain: Seen::default(),
            seen: Vec::new(),
            strata: Vec::new(),
        };
        let known = known.filter(|k| k.images == held.len() && k.new_error == new_error && !k.views.is_empty());
        let total = 1 + known.map_or(Disturbance::ALL.len(), |k| k.views.len());
        trials.plain = trials.see(original, None, 0.0, held.len(), cancel)?;
        progress(1, total);
        if let Some(known) = known {
            for (done, view) in known.views.iter().enumerate() {
                if view.kind.is_some() {
                    trials.seen.push(trials.see(original, view.kind, view.strength, held.len(), cancel)?);
                }
                progress(done + 2, total);
            }
            trials.correction = known.clone();
        } else {
            trials.find_views(original, cancel, &mut |done| progress(done + 1, total))?;
        }
        trials.weigh(new);
        Ok(trials)
    }

    fn find_views(&mut self, original: &mut Model<'_>, cancel: &Cancel, progress: &mut dyn FnMut(usize)) -> Result<()> {
        let (images, held_error) = (self.held.len(), self.plain.error());
        self.correction.held_error = self.plain.errs.then_some(held_error);
        // Within chance of each other: these images are as new to the network as any.
        let chance = |e: f64| (e * (1.0 - e) / images.max(1) as f64).sqrt();
        // What is done to images is done to nothing else.
        let wanted = self.correction.new_error.filter(|_| self.plain.errs && self.held.holds_images());
        let wanted = wanted.filter(|e| held_error + chance(*e) < *e && *e < 0.95);
        if let Some(wanted) = wanted {
            for (done, kind) in Disturbance::ALL.into_iter().enumerate() {
                progress(done);
                let Some(strength) = self.strength_for(original, kind, wanted, cancel)? else { continue };
                let seen = self.see(original, Some(kind), strength, images, cancel)?;
                self.correction.views.push(ViewFacts { kind: Some(kind), strength, error: seen.error() });
                self.seen.push(seen);
            }
        }
        progress(Disturbance::ALL.len());
        if self.seen.is_empty() {
            self.correction.views.push(ViewFacts { kind: None, strength: 0.0, error: held_error });
        }
        Ok(())
    }

    /// Says which images and views stand for which of the new ones.
    fn weigh(&mut self, new: Option<&Margins>) {
        let images = self.held.len();
        let even = Margins::default();
        let new = new.unwrap_or(&even);
        self.correction.weighted = !new.quantiles.is_empty();
        let both = |views: &Seen| {
            let margins = [&self.plain.margins[..], &views.margins].concat();
            if self.correction.weighted {
                return new.strata(&margins);
            }
            vec![Stratum { share: 1.0, images: (images..2 * images).collect() }]
        };
        self.strata = match &self.seen[..] {
            [] => vec![new.strata(&self.plain.margins)],
            seen => seen.iter().map(both).collect(),
        };
    }

    /// The evidence for what trials say.
    pub fn correction(&self) -> &Correction {
        &self.correction
    }

    /// Tries `model` on every view.
    ///
    /// # Errors
    /// As [`Trials::prepare`]; logits that are no numbers count as wrong answers.
    pub fn run(
        &self,
        model: &mut Model<'_>,
        cancel: &Cancel,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Outcome> {
        let views: Vec<&ViewFacts> = self.correction.views.iter().filter(|v| v.kind.is_some()).collect();
        let total = views.len() + 1;
        let images = self.held.len();
        let plain: Vec<f64> = self.see(model, None, 0.0, images, cancel)?.change(&self.plain).collect();
        progress(1, total);
        let mut change = vec![plain.clone(); self.strata.len()];
        for (i, (view, before)) in views.iter().zip(&self.seen).enumerate() {
            let now = self.see(model, view.kind, view.strength, images, cancel)?;
            if let Some(both) = change.get_mut(i) {
                both.extend(now.change(before));
            }
            progress(i + 2, total);
        }
        Ok(outcome(images, &change, &self.strata, self.held.task().scale()))
    }

    fn strength_for(
        &self,
        original: &mut Model<'_>,
        kind: Disturbance,
        wanted: f64,
        cancel: &Cancel,
    ) -> Result<Option<f64>> {
        let few = self.held.len().min(SEARCH_IMAGES);
        let mut at = |s: f64| Ok::<f64, EvalError>(self.see(original, Some(kind), s, few, cancel)?.error());
        if at(1.0)? < REACHED * wanted {
            return Ok(None);
        }
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..HALVINGS {
            let mid = 0.5 * (low + high);
            if at(mid)? < wanted { low = mid } else { high = mid }
        }
        Ok(Some(0.5 * (low + high)))
    }

    /// What `model` answers to the views of the first `images`.
    fn see(
        &self,
        model: &mut Model<'_>,
        kind: Option<Disturbance>,
        strength: f64,
        images: usize,
        cancel: &Cancel,
    ) -> Result<Seen> {
        let mut out = Seen::default();
        for_batches(&self.held, &self.prep, self.batch, cancel, &mut |_, _| {}, &mut |x, labels| {
            let done = out.scores.len();
            if done >= images {
                return Ok(());
            }
            let view = match kind {
                Some(kind) => kind.views(x, done, strength, self.seed)?,
                None => x.clone(),
            };
            let logits = model(&view)?;
            let mut scorer = self.held.task().scorer(0);
            match scorer.add(&logits, labels) {
                Ok(()) => {
                    let scored = scorer.scored();
                    out.errs = scored.metrics.classes.is_some();
                    out.margins.extend(scored.margins);
                    out.scores.extend(scored.scores);
                    out.margins.resize(out.scores.len(), 0.0);
                }
                // A plan can break a network: that is an answer.
                Err(TaskError::NonFinite { .. }) => {
                    out.scores.resize(done + labels.len(), self.held.task().broken());
                    out.margins.resize(out.scores.len(), f32::MIN);
                }
                Err(e) => return Err(e.into()),
            }
            Ok(())
        })?;
        out.scores.truncate(images);
        out.margins.truncate(images);
        Ok(out)
    }
}

/// Means and errors of changes of scores: `change` by kind, of the images and then, where there are views, of the views of
/// the same images; `strata` by kind; `scale` is what a score of one is in the metric's unit.
fn outcome(n: usize, change: &[Vec<f64>], strata: &[Vec<Stratum>], scale: f64) -> Outcome {
    let kinds = change.len();
    if n == 0 || kinds == 0 {
        return Outcome::default();
    }
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len().max(1) as f64;
    let (mut by_kind, mut moved, mut square) = (vec![0.0; kinds], 0.0, 0.0);
    // What each image contributes beyond its strata's means, by kind. Views of one image are not independent: images are
    // what was sampled.
    let mut beyond = vec![vec![0.0; n]; kinds];
    for (k, (change, strata)) in change.iter().zip(strata).enumerate() {
        for s in strata.iter().filter(|s| !s.images.is_empty()) {
            let of = |i: &usize| change.get(*i).copied().unwrap_or_default();
            // The images as they are stand beside every kind, and count as one of them over all.
            let one = |i: &usize| if *i < n { 1.0 / kinds as f64 } else { 1.0 };
            let mass: f64 = s.images.iter().map(one).sum();
            let over = |f: &dyn Fn(&usize) -> f64| s.images.iter().map(|i| one(i) * f(i)).sum::<f64>() / mass;
            let about = over(&of);
            by_kind[k] += s.share * about;
            moved += s.share * over(&|i| of(i).abs()) / kinds as f64;
            square += s.share * over(&|i| of(i).powi(2)) / kinds as f64;
            let effective = mass * mass / s.images.iter().map(|i| one(i).powi(2)).sum::<f64>();
            let small = (effective / (effective - 1.0).max(1.0)).sqrt();
            for i in &s.images {
                beyond[k][i % n] += s.share * one(i) / mass * small * (of(i) - about);
            }
        }
    }
    let value = mean(&by_kind);
    let image = |i: usize| beyond.iter().map(|k| k[i]).sum::<f64>() / kinds as f64;
    let sample: f64 = (0..n).map(|i| image(i).powi(2)).sum();
    let kind_sd = if kinds > 1 {
        let between = by_kind.iter().map(|k| (k - value).powi(2)).sum::<f64>() / (kinds - 1) as f64;
        // What differing views of the same images differ by through chance alone.
        let apart = |k: &Vec<f64>| (0..n).map(|i| (k[i] - image(i)).powi(2)).sum::<f64>();
        let chance = beyond.iter().map(apart).sum::<f64>() / (kinds - 1) as f64;
        (between - chance).max(0.0).sqrt()
    } else {
        0.0
    };
    // Answers of this size, turned so often, have this mean size and this mean square.
    let size = if moved > 0.0 { square / moved } else { 1.0 };
    Outcome {
        d_quality: scale * value,
        sample_sd: scale * sample.sqrt(),
        kind_sd: scale * kind_sd,
        turned: moved / size,
        size: scale * size,
        images: n,
        by_kind: by_kind.iter().map(|k| scale * k).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::synthetic;
    use crate::train::demo;
    use candle_core::Device;

    #[test]
    fn outcomes_are_means_with_errors_of_images_and_of_kinds() {
        let even = |change: &[Vec<f64>]| {
            let all = |c: &Vec<f64>| vec![Stratum { share: 1.0, images: (0..c.len()).collect() }];
            outcome(change.first().map_or(0, Vec::len), change, &change.iter().map(all).collect::<Vec<_>>(), 100.0)
        };
        let o = even(&[vec![-1.0, 0.0, 0.0, 0.0], vec![0.0, 0.0, 0.0, 1.0]]);
        assert_eq!((o.d_quality, o.turned, o.images), (0.0, 0.25, 4));
        assert_eq!(o.by_kind, [-25.0, 25.0]);
        // Image means −½, 0, 0, ½: variance 1/6, over four images.
        assert!((o.sample_sd - 100.0 * (1.0f64 / 24.0).sqrt()).abs() < 1e-9);
        let same = even(&[vec![-1.0, 0.0, 1.0, -1.0], vec![-1.0, 0.0, 1.0, -1.0]]);
        assert_eq!((same.d_quality, same.kind_sd), (-25.0, 0.0));
        let apart = even(&[vec![-1.0; 50], vec![0.0; 50]]);
        assert!((apart.kind_sd - 100.0 * 0.5f64.sqrt()).abs() < 1e-9 && apart.sample_sd == 0.0);
        assert_eq!(even(&[]), Outcome::default());
        // Three images and three views of them: those near the boundary stand for nine in ten.
        let strata = vec![Stratum { share: 0.9, images: vec![0, 4] }, Stratum { share: 0.1, images: vec![1, 2, 3, 5] }];
        let weighed = outcome(3, &[vec![-1.0, 0.0, 0.0, 0.0, 0.0, 1.0]], &[strata], 100.0);
        assert!((weighed.d_quality - 100.0 * (0.9 * -0.5 + 0.1 * 0.25)).abs() < 1e-9, "{weighed:?}");
        assert!((weighed.turned - (0.9 * 0.5 + 0.1 * 0.25)).abs() < 1e-9, "{weighed:?}");
    }

    /// Knows nothing: an image's first ten values are its logits, `push` favours the later classes.
    fn toy(push: f64) -> impl FnMut(&Tensor) -> Result<Tensor> {
        move |x| {
            let logits = x.flatten_from(1)?.narrow(1, 0, 10)?.contiguous()?;
            let by_class: Vec<f32> = (0..10).map(|c| (f64::from(c) * push / 10.0) as f32).collect();
            Ok(logits.broadcast_add(&Tensor::from_vec(by_class, 10, &Device::Cpu)?)?)
        }
    }

    fn prepare(
        original: &mut Model<'_>,
        (held, prep): (&Dataset, &Preprocess),
        new: Option<&Margins>,
        known: Option<&Correction>,
        batch: usize,
    ) -> Trials {
        let options = TrialOptions { new, known, batch, seed: 1 };
        Trials::prepare(original, held, prep, &options, &Cancel::default(), &mut |_, _| {}).unwrap()
    }

    #[test]
    fn an_original_that_is_as_wrong_as_on_new_images_is_tried_on_the_images_as_they_are() {
        let held = synthetic::dataset(synthetic::Split::Calib, 60);
        let prep = Preprocess::imagenet([32, 32]);
        let none = Cancel::default();
        let mut original = toy(0.0);
        let t = prepare(&mut original, (&held, &prep), Some(&Margins::unknown(0.1)), None, 16);
        assert!(t.correction().held_error > Some(0.5), "a toy knows nothing");
        assert_eq!(t.correction().views.len(), 1);
        assert_eq!(t.correction().views[0].kind, None);
        let same = t.run(&mut toy(0.0), &none, &mut |_, _| {}).unwrap();
        assert_eq!((same.d_quality, same.turned), (0.0, 0.0), "the original against itself");
        let other = t.run(&mut toy(3.0), &none, &mut |_, _| {}).unwrap();
        assert!(other.turned > 0.0 && other.sample_sd > 0.0);
        let t = prepare(&mut original, (&held, &prep), None, None, 7);
        assert_eq!(t.run(&mut toy(3.0), &none, &mut |_, _| {}).unwrap(), other, "batches change nothing");
    }

    #[test]
    fn views_are_disturbed_until_the_original_errs_at_the_wanted_rate() {
        let held = synthetic::dataset(synthetic::Split::Calib, 150);
        let model = demo::load(demo::DemoModel::Vit).unwrap();
        let plan = crate::exec::Plan::of(&model, &Default::default()).unwrap();
        let none = Cancel::default();
        let mut original = |x: &Tensor| Ok(plan.run(x)?);
        let prep = &model.info.preprocess;
        let t = prepare(&mut original, (&held, prep), Some(&Margins::unknown(0.3)), None, 64);
        let c = t.correction();
        assert!(c.held_error < Some(0.2), "{c:?}");
        assert!(c.views.len() >= 3, "{c:?}");
        assert!(c.views.iter().all(|v| (v.error - 0.3).abs() < 0.1), "{c:?}");
        let o = t.run(&mut original, &none, &mut |_, _| {}).unwrap();
        assert_eq!((o.d_quality, o.turned, o.by_kind.len()), (0.0, 0.0, c.views.len()));
        let again = prepare(&mut original, (&held, prep), Some(&Margins::unknown(0.3)), Some(c), 64);
        assert_eq!(
            (again.correction(), &again.seen, &again.plain),
            (c, &t.seen, &t.plain),
            "found again from what was recorded"
        );
    }
}
