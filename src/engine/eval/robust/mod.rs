//! How well a classifier of images holds beyond its accuracy on clean images: whether it is as sure as it is right, what common corruptions and
//! adversaries cost it, whether its answers tell images that it knows nothing of.
//!
//! Here: figures of answers (`answers`, `separation`), corruptions (`corruption`, `jpeg`), adversaries (`attack`), how images get from bytes to a
//! network (`pixels`), and the pass that asks for all of it. Not here: what is told (`headless/robust`), views that make held-back images speak
//! for new ones (`eval/views`). Invariants: every image is a function of its bytes, its number, the kind and strength and the seed, whatever the
//! batch; answers are the compiled plan's, gradients those of the same weights in f32.

mod answers;
mod attack;
mod corruption;
mod jpeg;
mod pixels;
mod separation;

pub use answers::{Answers, BINS, Figure, Said};
pub use attack::{Adversary, Attack};
pub use corruption::{Corruption, Image, STRENGTHS};
pub use separation::Separation;

use super::run::{Sparing, for_batches, on};
use super::{EvalError, Result};
use crate::data::Dataset;
use crate::exec::{Cancel, Plan, smaller_batch};
use crate::model::{Model, Preprocess};
use candle_core::Tensor;

/// What is asked of a network besides its answers to the images as they are.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Asked {
    /// Each at every strength.
    pub corruptions: Vec<Corruption>,
    pub attacks: Vec<Attack>,
    /// Of noise and of random starts.
    pub seed: u64,
}

impl Asked {
    /// Passes over the images that this takes at most, the one over clean images included.
    pub fn passes(&self) -> usize {
        1 + self.corruptions.len() * STRENGTHS + self.attacks.len()
    }
}

/// What was asked of one network; lists have one value an image, in the set's order.
#[derive(Debug, Clone)]
pub struct Found {
    pub clean: Answers,
    /// Answers to images of another set.
    pub outside: Option<Vec<Said>>,
    /// By corruption and strength, 1 to [`STRENGTHS`]: which images are answered rightly.
    pub corrupted: Vec<(Corruption, usize, Vec<bool>)>,
    /// Which images are answered rightly at every point that the adversary tried.
    pub attacked: Vec<(Attack, Vec<bool>)>,
    /// What did not go as asked, for people.
    pub notes: Vec<String>,
}

/// Whose answers are asked for.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    pub model: &'a Model,
    /// The same, compiled.
    pub plan: &'a Plan,
}

/// Asks `of` for all of it on the images of `data`, and `outside` for how its answers to those differ. `progress` gets what is done now, images
/// done and in total.
///
/// # Errors
/// What is no classifier of images, sets of other items or with other labels; as [`super::evaluate`]; cancellation, checked before each batch and
/// each step of an adversary.
pub fn examine(
    of: Subject<'_>,
    (data, outside): (&Dataset, Option<&Dataset>),
    asked: &Asked,
    batch: usize,
    cancel: &Cancel,
    progress: &mut dyn FnMut(&str, usize, usize),
) -> Result<Found> {
    let classes = fit(of.model, data)?;
    let prep = &of.model.info.preprocess;
    let most = batch.clamp(1, data.len().max(1));
    let mut net = Sparing { model: on(of.plan), most };
    let mut clean = Answers::new(classes);
    for_batches(data, prep, most, cancel, &mut |d, n| progress("clean", d, n), &mut |x, targets| {
        clean.add(&net.run(x)?, targets.classes())
    })?;
    let outside = outside
        .map(|other| -> Result<Vec<Said>> {
            fit(of.model, other)?;
            let mut said = Vec::new();
            for_batches(other, prep, most, cancel, &mut |d, n| progress("another set", d, n), &mut |x, _| {
                said.extend(Said::all(&net.run(x)?, said.len())?);
                Ok(())
            })?;
            Ok(said)
        })
        .transpose()?;
    let plain = pixels::plain(prep);
    let mut corrupted = Vec::new();
    for (kind, strength) in asked.corruptions.iter().flat_map(|k| (1..=STRENGTHS).map(move |s| (*k, s))) {
        let (mut right, what) = (Vec::new(), format!("{} {strength}", kind.label()));
        for_batches(data, &plain, most, cancel, &mut |d, n| progress(&what, d, n), &mut |x, targets| {
            let x = seen(x, prep, |image, i| kind.apply(strength, image, (right.len() + i) as u64, asked.seed))?;
            right.extend(are_right(&net.run(&x)?, targets.classes(), right.len())?);
            Ok(())
        })?;
        corrupted.push((kind, strength, right));
    }
    let mut attacked = Vec::new();
    if !asked.attacks.is_empty() {
        let adversary = Adversary::of(of.model)?;
        let ready = adversary.ready()?;
        for &attack in &asked.attacks {
            let (mut right, what) = (Vec::new(), attack.to_string());
            for_batches(data, &plain, most, cancel, &mut |d, n| progress(&what, d, n), &mut |x, targets| {
                let place = (right.len() as u64, asked.seed);
                let mut ask = |x: &Tensor| net.run(x);
                right.extend(ready.withstood(&attack, (x, targets.classes()), place, &mut ask, cancel)?);
                Ok(())
            })?;
            attacked.push((attack, right));
        }
    }
    let notes = smaller_batch(most, net.most).into_iter().collect();
    Ok(Found { clean, outside, corrupted, attacked, notes })
}

/// How many classes the network tells, where it can be asked about images of `data`.
fn fit(model: &Model, data: &Dataset) -> Result<usize> {
    let unfit = |why: String| Err(EvalError::Unfit(why));
    let name = &model.info.name;
    let takes_images = model.graph.input_shape().is_ok_and(|s| s.len() == 3);
    if model.graph.is_language_model() || !takes_images {
        return unfit(format!(
            "`{name}` takes no images: corruptions and adversaries are of images; hint: `paring eval` scores other models"
        ));
    }
    if !data.holds_images() {
        return unfit(format!("`{}` holds no images; hint: give a data set of images", data.card().name));
    }
    Ok(model.info.classes)
}

/// Images between 0 and 1 as a network sees them after `change` of their bytes, which gets the number of the image in the batch.
fn seen(x: &Tensor, prep: &Preprocess, change: impl Fn(&mut Image<'_>, usize) + Sync) -> Result<Tensor> {
    let (n, c, h, w) = x.dims4()?;
    let mut bytes = pixels::bytes(x)?;
    pixels::each(&mut bytes, c * h * w, |i, bytes| change(&mut Image { bytes, channels: c, height: h, width: w }, i));
    Ok(pixels::normalised(bytes.iter().map(|b| f32::from(*b) / 255.0), (n, c, h, w), prep)?)
}

/// Which of a batch, whose first image is number `first`, are answered rightly.
fn are_right(logits: &Tensor, labels: &[u32], first: usize) -> Result<Vec<bool>> {
    let said = Said::all(logits, first)?;
    Ok(said.iter().zip(labels).map(|(s, label)| s.class == *label).collect())
}
