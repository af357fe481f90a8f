//! Trials: a changed model against the original on images that nothing else touched, for what the change will cost on
//! new images.
//!
//! Held-back calibration images are usually training images, of which the original gets nearly all right; the drop
//! measured there says little. So views of them are disturbed (see [`Disturbance`]), each kind until the original errs
//! on its views as often as it does on new images, and a trial counts on those what the change turns right or wrong.
//! Kinds disagree; their spread is part of the answer, since new images are a kind of their own. Where the original errs
//! on the held-back images as often as on new ones, they are tried as they are.
//!
//! Invariants: labels and images of the held-back set alone, and one number of the evaluation set (the original's error
//! on it); the same inputs and batch give the same outcome.

use super::score::Scorer;
use super::views::Disturbance;
use super::{EvalError, for_batches};
use crate::data::Dataset;
use crate::exec::Cancel;
use crate::model::Preprocess;
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
    /// The original's error on them as they are, 0 to 1.
    pub held_error: f64,
    /// Its error on new images, aimed at; `None`: unknown, images are tried as they are.
    pub new_error: Option<f64>,
    pub views: Vec<ViewFacts>,
}

/// The evidence, in words.
impl std::fmt::Display for Correction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the original errs on {:.1} % of the held-back images as they are", 100.0 * self.held_error)?;
        if let Some(e) = self.new_error {
            write!(f, ", on {:.1} % of new ones", 100.0 * e)?;
        }
        let disturbed: Vec<String> =
            self.views.iter().filter_map(|v| Some(format!("{} {:.1} %", v.kind?.label(), 100.0 * v.error))).collect();
        if disturbed.is_empty() {
            write!(f, ": they are tried as they are")
        } else {
            write!(f, "; so they are disturbed until it errs as often: {}", disturbed.join(", "))
        }
    }
}

/// What a trial found. Changes are in points of top-1, negative for worse.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    pub d_top1: f64,
    /// Standard error of `d_top1` from the number of held-back images.
    pub sample_sd: f64,
    /// How far kinds of views lie apart beyond their sampling errors; 0 with one kind.
    pub kind_sd: f64,
    /// Part of the views whose answer turned right or wrong, 0 to 1.
    pub turned: f64,
    pub images: usize,
    /// Change by kind, in the order of [`Correction::views`].
    pub by_kind: Vec<f64>,
}

/// Held-back images, their views, and what the original makes of them.
#[derive(Debug, Clone)]
pub struct Trials {
    held: Dataset,
    prep: Preprocess,
    batch: usize,
    seed: u64,
    correction: Correction,
    /// Per kind and image: whether the original is right.
    right: Vec<Vec<bool>>,
}

/// What trials are set to.
#[derive(Debug, Clone, Copy)]
pub struct TrialOptions<'a> {
    /// The original's error on new images, 0 to 1; `None`: unknown.
    pub new_error: Option<f64>,
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
pub type Model<'a> = dyn FnMut(&Tensor) -> Result<Tensor, EvalError> + 'a;

impl Trials {
    /// Finds the views of `held` on which `original` errs at the rate `new_error` (`None`: not known); those of `known`, if it
    /// was found for as many images and that rate.
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
    ) -> Result<Trials, EvalError> {
        let TrialOptions { new_error, known, batch, seed } = *options;
        let mut trials = Trials {
            held: held.clone(),
            prep: prep.clone(),
            batch: batch.max(1),
            seed,
            correction: Correction { images: held.len(), new_error, ..Correction::default() },
            right: Vec::new(),
        };
        if let Some(known) = known.filter(|k| k.images == held.len() && k.new_error == new_error && !k.views.is_empty())
        {
            for (done, view) in known.views.iter().enumerate() {
                progress(done, known.views.len());
                trials.right.push(trials.right_on(original, view.kind, view.strength, held.len(), cancel)?);
            }
            trials.correction = known.clone();
            return Ok(trials);
        }
        let plain = trials.right_on(original, None, 0.0, held.len(), cancel)?;
        let held_error = error(&plain);
        trials.correction.held_error = held_error;
        // Within chance of each other: these images are as new to the network as any.
        let chance = |e: f64| (e * (1.0 - e) / held.len().max(1) as f64).sqrt();
        let wanted = new_error.filter(|e| held_error + chance(*e) < *e && *e < 0.95);
        if let Some(wanted) = wanted {
            let total = Disturbance::ALL.len();
            for (done, kind) in Disturbance::ALL.into_iter().enumerate() {
                progress(done, total);
                let Some(strength) = trials.strength_for(original, kind, wanted, cancel)? else { continue };
                let right = trials.right_on(original, Some(kind), strength, held.len(), cancel)?;
                trials.correction.views.push(ViewFacts { kind: Some(kind), strength, error: error(&right) });
                trials.right.push(right);
            }
            progress(total, total);
        }
        if trials.right.is_empty() {
            trials.correction.views.push(ViewFacts { kind: None, strength: 0.0, error: held_error });
            trials.right.push(plain);
        }
        Ok(trials)
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
    ) -> Result<Outcome, EvalError> {
        let views = &self.correction.views;
        let mut change: Vec<Vec<f64>> = Vec::with_capacity(views.len());
        for (i, (view, base)) in views.iter().zip(&self.right).enumerate() {
            progress(i, views.len());
            let right = self.right_on(model, view.kind, view.strength, self.held.len(), cancel)?;
            let one = |(new, old): (&bool, &bool)| f64::from(u8::from(*new)) - f64::from(u8::from(*old));
            change.push(right.iter().zip(base).map(one).collect());
        }
        progress(views.len(), views.len());
        Ok(outcome(&change))
    }

    fn strength_for(
        &self,
        original: &mut Model<'_>,
        kind: Disturbance,
        wanted: f64,
        cancel: &Cancel,
    ) -> Result<Option<f64>, EvalError> {
        let few = self.held.len().min(SEARCH_IMAGES);
        let mut at = |s: f64| Ok::<f64, EvalError>(error(&self.right_on(original, Some(kind), s, few, cancel)?));
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

    /// Whether `model` is right on the views of the first `images`.
    fn right_on(
        &self,
        model: &mut Model<'_>,
        kind: Option<Disturbance>,
        strength: f64,
        images: usize,
        cancel: &Cancel,
    ) -> Result<Vec<bool>, EvalError> {
        let mut out = Vec::with_capacity(images);
        for_batches(&self.held, &self.prep, self.batch, cancel, &mut |_, _| {}, &mut |x, labels| {
            if out.len() >= images {
                return Ok(());
            }
            let view = match kind {
                Some(kind) => kind.views(x, out.len(), strength, self.seed)?,
                None => x.clone(),
            };
            let logits = model(&view)?;
            let mut scorer = Scorer::new(0);
            match scorer.add(&logits, labels) {
                Ok(()) => out.extend(scorer.right),
                // A plan can break a network: that is an answer.
                Err(EvalError::NonFinite { .. }) => out.extend(labels.iter().map(|_| false)),
                Err(e) => return Err(e),
            }
            Ok(())
        })?;
        out.truncate(images);
        Ok(out)
    }
}

fn error(right: &[bool]) -> f64 {
    right.iter().filter(|r| !**r).count() as f64 / right.len().max(1) as f64
}

/// Means and errors of per-kind, per-image changes (−1, 0 or 1).
fn outcome(change: &[Vec<f64>]) -> Outcome {
    let kinds = change.len();
    let n = change.first().map_or(0, Vec::len);
    if n == 0 {
        return Outcome::default();
    }
    let mean = |v: &[f64]| v.iter().sum::<f64>() / v.len().max(1) as f64;
    let by_kind: Vec<f64> = change.iter().map(|k| mean(k)).collect();
    let value = mean(&by_kind);
    let image = |i: usize| change.iter().map(|k| k[i]).sum::<f64>() / kinds as f64;
    // Views of one image are not independent: images are what was sampled.
    let over = |v: &dyn Fn(usize) -> f64, about: f64| {
        let ss: f64 = (0..n).map(|i| (v(i) - about).powi(2)).sum();
        ss / (n.max(2) - 1) as f64 / n as f64
    };
    let sample = over(&image, value);
    let kind_sd = if kinds > 1 {
        let between = by_kind.iter().map(|k| (k - value).powi(2)).sum::<f64>() / (kinds - 1) as f64;
        // What differing views of the same images differ by through chance alone.
        let chance =
            mean(&by_kind.iter().zip(change).map(|(k, c)| over(&|i| c[i] - image(i), k - value)).collect::<Vec<f64>>())
                * kinds as f64
                / (kinds - 1) as f64;
        (between - chance).max(0.0).sqrt()
    } else {
        0.0
    };
    let turned = change.iter().flatten().filter(|c| **c != 0.0).count() as f64 / (n * kinds) as f64;
    Outcome {
        d_top1: 100.0 * value,
        sample_sd: 100.0 * sample.sqrt(),
        kind_sd: 100.0 * kind_sd,
        turned,
        images: n,
        by_kind: by_kind.iter().map(|k| 100.0 * k).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::synthetic;
    use candle_core::Device;

    #[test]
    fn outcomes_are_means_with_errors_of_images_and_of_kinds() {
        let o = outcome(&[vec![-1.0, 0.0, 0.0, 0.0], vec![0.0, 0.0, 0.0, 1.0]]);
        assert_eq!((o.d_top1, o.turned, o.images), (0.0, 0.25, 4));
        assert_eq!(o.by_kind, [-25.0, 25.0]);
        // Image means −½, 0, 0, ½: variance 1/6, over four images.
        assert!((o.sample_sd - 100.0 * (1.0f64 / 24.0).sqrt()).abs() < 1e-9);
        let same = outcome(&[vec![-1.0, 0.0, 1.0, -1.0], vec![-1.0, 0.0, 1.0, -1.0]]);
        assert_eq!((same.d_top1, same.kind_sd), (-25.0, 0.0));
        let apart = outcome(&[vec![-1.0; 50], vec![0.0; 50]]);
        assert!((apart.kind_sd - 100.0 * 0.5f64.sqrt()).abs() < 1e-9 && apart.sample_sd == 0.0);
        assert_eq!(outcome(&[]), Outcome::default());
    }

    /// Knows nothing: an image's first ten values are its logits, `push` favours the later classes.
    fn toy(push: f64) -> impl FnMut(&Tensor) -> Result<Tensor, EvalError> {
        move |x| {
            let logits = x.flatten_from(1)?.narrow(1, 0, 10)?.contiguous()?;
            let by_class: Vec<f32> = (0..10).map(|c| (f64::from(c) * push / 10.0) as f32).collect();
            Ok(logits.broadcast_add(&Tensor::from_vec(by_class, 10, &Device::Cpu)?)?)
        }
    }

    #[test]
    fn an_original_that_is_as_wrong_as_on_new_images_is_tried_on_the_images_as_they_are() {
        let held = synthetic::dataset(synthetic::Split::Calib, 60);
        let prep = Preprocess::imagenet([32, 32]);
        let none = Cancel::default();
        let mut original = toy(0.0);
        let t = Trials::prepare(
            &mut original,
            &held,
            &prep,
            &TrialOptions { new_error: Some(0.1), known: None, batch: 16, seed: 1 },
            &none,
            &mut |_, _| {},
        )
        .unwrap();
        assert!(t.correction().held_error > 0.5, "a toy knows nothing");
        assert_eq!(t.correction().views.len(), 1);
        assert_eq!(t.correction().views[0].kind, None);
        let same = t.run(&mut toy(0.0), &none, &mut |_, _| {}).unwrap();
        assert_eq!((same.d_top1, same.turned), (0.0, 0.0), "the original against itself");
        let other = t.run(&mut toy(3.0), &none, &mut |_, _| {}).unwrap();
        assert!(other.turned > 0.0 && other.sample_sd > 0.0);
        let t = Trials::prepare(
            &mut original,
            &held,
            &prep,
            &TrialOptions { new_error: None, known: None, batch: 7, seed: 1 },
            &none,
            &mut |_, _| {},
        )
        .unwrap();
        assert_eq!(t.run(&mut toy(3.0), &none, &mut |_, _| {}).unwrap(), other, "batches change nothing");
    }

    #[test]
    fn views_are_disturbed_until_the_original_errs_at_the_wanted_rate() {
        let held = synthetic::dataset(synthetic::Split::Calib, 150);
        let model = crate::data::demo::vit().unwrap();
        let plan = crate::exec::Plan::of(&model, &Default::default()).unwrap();
        let none = Cancel::default();
        let mut original = |x: &Tensor| Ok(plan.run(x)?);
        let prep = &model.info.preprocess;
        let t = Trials::prepare(
            &mut original,
            &held,
            prep,
            &TrialOptions { new_error: Some(0.3), known: None, batch: 64, seed: 1 },
            &none,
            &mut |_, _| {},
        )
        .unwrap();
        let c = t.correction();
        assert!(c.held_error < 0.2, "{c:?}");
        assert!(c.views.len() >= 3, "{c:?}");
        assert!(c.views.iter().all(|v| (v.error - 0.3).abs() < 0.1), "{c:?}");
        let o = t.run(&mut original, &none, &mut |_, _| {}).unwrap();
        assert_eq!((o.d_top1, o.turned, o.by_kind.len()), (0.0, 0.0, c.views.len()));
        let again = Trials::prepare(
            &mut original,
            &held,
            prep,
            &TrialOptions { new_error: Some(0.3), known: Some(c), batch: 64, seed: 1 },
            &none,
            &mut |_, _| {},
        )
        .unwrap();
        assert_eq!((again.correction(), &again.right), (c, &t.right), "found again from what was recorded");
    }
}
