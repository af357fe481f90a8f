//! Two models side by side on images drawn at random, until it is clear whether the model loses more than it may.
//!
//! Here: which images are drawn, and when it stops; of both models, or of one where it is known what the original gets right. Not here: the test
//! (`task::sequential`), the pass itself (`against`). Invariants: the test gets images in the order in which they were drawn, whatever the order
//! in which a batch holds them; every image is run at most once.

use super::against::{Against, Pass};
use super::error::{EvalError, Result};
use super::run::{Sparing, for_batches, on, order};
use crate::data::Dataset;
use crate::exec::{Cancel, Plan, smaller_batch};
use crate::model::Preprocess;
use crate::task::{Clear, Scored, Sequential};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use std::collections::HashMap;

/// Items after which it may stop, or a batch where that is more: two batches of images, some batches of texts, which are of one
/// length each.
const EVERY: usize = 256;

/// What is asked of a set.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Until {
    /// Points of the original's accuracy that may be lost.
    pub allowed: f64,
    /// How likely a verdict may be wrong: see [`Sequential::new`].
    pub alpha: f64,
    /// What the images are drawn by.
    pub seed: u64,
}

/// What was found when it was clear.
#[derive(Debug, Clone, PartialEq)]
pub struct Early {
    /// Of the items that were run; lists in the set's order, the others left out.
    pub against: Against,
    pub test: Sequential,
    pub verdict: Clear,
}

/// Runs an original and a model over items of a set of classes, drawn without replacement, until it is clear whether the model loses more
/// right answers of the whole set than it may, at the latest when all were run; `progress` gets items done and in total.
///
/// # Errors
/// As [`super::against`].
pub fn until_clear(
    (original, model): (&Plan, &Plan),
    data: &Dataset,
    prep: &Preprocess,
    batch: usize,
    until: &Until,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Early> {
    let total = data.len();
    let mut test = Sequential::new(total, until.allowed, until.alpha);
    let mut pass = Pass::new((original, model), data, batch);
    let rows = draw(data, pass.most, until.seed, &mut test, &mut |part, items, done| {
        pass.over(part, prep, cancel, &mut |n, _| progress(done + n, total))?;
        let (base, new) = pass.correct();
        debug_assert_eq!(base.len(), done + items.len());
        Ok(base.into_iter().zip(new).skip(done).collect())
    })?;
    // A set without any is what never becomes clear.
    let verdict = test.clear().ok_or_else(|| EvalError::Empty { data: data.card().name })?;
    let places = places(&rows, &sorted(&rows));
    let Against { original, model, divergence } = pass.found();
    let against = Against { original: original.placed(&places), model: model.placed(&places), divergence };
    Ok(Early { against, test, verdict })
}

/// What a model scores on those items of a set that were drawn.
#[derive(Debug, Clone, PartialEq)]
pub struct Drawn {
    /// Of the items that were run; lists in the set's order, the others left out.
    pub scored: Scored,
    /// Which those are, ascending.
    pub items: Vec<usize>,
    /// About all images like those of the set: see [`Sequential::of_many`]. Nothing is clear in it where the set ended before.
    pub test: Sequential,
}

/// Runs one model over items of a set of classes, drawn without replacement, until it is clear whether it loses more than it may of what the
/// original gets right (`right`, an item each): of all images like those of the set, as the interval of a whole pass would tell. At the
/// latest when all were run; `progress` gets items done and in total.
///
/// # Errors
/// As [`super::evaluate`].
pub fn drawn_until_clear(
    (model, right): (&Plan, &[bool]),
    data: &Dataset,
    prep: &Preprocess,
    batch: usize,
    until: &Until,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Drawn> {
    let (total, most) = (data.len(), batch.clamp(1, data.len().max(1)));
    let mut test = Sequential::of_many(until.allowed, until.alpha);
    let mut scorer = data.task().scorer(data.classes());
    let mut runs = Sparing { model: on(model), most };
    let rows = draw(data, most, until.seed, &mut test, &mut |part, items, done| {
        for_batches(part, prep, most, cancel, &mut |n, _| progress(done + n, total), &mut |x, targets| {
            Ok(scorer.add(&runs.run(x)?, targets)?)
        })?;
        let new = scorer.scored().correct();
        Ok(items.iter().map(|&i| right.get(i) == Some(&true)).zip(new.into_iter().skip(done)).collect())
    })?;
    let items = sorted(&rows);
    let notes = smaller_batch(most, runs.most).into_iter().collect();
    let scored = Scored { notes, ..scorer.scored().placed(&places(&rows, &items)) };
    Ok(Drawn { scored, items, test })
}

/// Runs a part of the set: its items in the order in which they are run, after so many others. What the original and the model get right,
/// in that order.
type Run<'a> = dyn FnMut(&Dataset, &[usize], usize) -> Result<Vec<(bool, bool)>> + 'a;

/// Draws parts and has them run until `test` is clear or there are no more; which items were run, in that order.
fn draw(data: &Dataset, most: usize, seed: u64, test: &mut Sequential, run: &mut Run<'_>) -> Result<Vec<usize>> {
    let mut lot: Vec<usize> = (0..data.len()).collect();
    lot.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    let mut rows: Vec<usize> = Vec::with_capacity(data.len());
    for drawn in lot.chunks(EVERY.max(most)) {
        let done = rows.len();
        let part = data.pick(drawn);
        // A part has its items in the set's order, and batches may have them in another.
        let picked = sorted(drawn);
        rows.extend(order(&part, most).concat().into_iter().map(|i| picked[i]));
        let outcomes = run(&part, &rows[done..], done)?;
        let of: HashMap<usize, (bool, bool)> = rows[done..].iter().copied().zip(outcomes).collect();
        for item in drawn {
            let (base, new) = of[item];
            test.push(base, new);
        }
        if test.clear().is_some() {
            break;
        }
    }
    Ok(rows)
}

fn sorted(items: &[usize]) -> Vec<usize> {
    let mut sorted = items.to_vec();
    sorted.sort_unstable();
    sorted
}

/// Where each of `rows` is among `sorted`.
fn places(rows: &[usize], sorted: &[usize]) -> Vec<usize> {
    rows.iter().map(|item| sorted.partition_point(|other| other < item)).collect()
}
