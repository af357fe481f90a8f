//! Two models side by side on images drawn at random, until it is clear whether the model loses more than it may.
//!
//! Here: which images are drawn, and when it stops. Not here: the test (`task::sequential`), the pass itself (`against`). Invariants: the test gets
//! images in the order in which they were drawn, whatever the order in which a batch holds them; every image is run at most once.

use super::against::{Against, Pass};
use super::error::{EvalError, Result};
use super::run::order;
use crate::data::Dataset;
use crate::exec::{Cancel, Plan};
use crate::model::Preprocess;
use crate::task::{Clear, Sequential};
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
    let mut lot: Vec<usize> = (0..total).collect();
    lot.shuffle(&mut ChaCha8Rng::seed_from_u64(until.seed));
    let mut test = Sequential::new(total, until.allowed, until.alpha);
    let mut pass = Pass::new((original, model), data, batch);
    // Which item was run when.
    let mut rows: Vec<usize> = Vec::with_capacity(total);
    for drawn in lot.chunks(EVERY.max(pass.most)) {
        let done = rows.len();
        let part = data.pick(drawn);
        pass.over(&part, prep, cancel, &mut |n, _| progress(done + n, total))?;
        // A part has its items in the set's order, and batches may have them in another.
        let mut picked = drawn.to_vec();
        picked.sort_unstable();
        rows.extend(order(&part, pass.most).concat().into_iter().map(|i| picked[i]));
        let row_of: HashMap<usize, usize> = rows.iter().copied().zip(0..).skip(done).collect();
        let (base, new) = pass.correct();
        for item in drawn {
            let row = row_of[item];
            test.push(base[row], new[row]);
        }
        if test.clear().is_some() {
            break;
        }
    }
    // A set without any is what never becomes clear.
    let verdict = test.clear().ok_or_else(|| EvalError::Empty { data: data.card().name })?;
    let mut sorted = rows.clone();
    sorted.sort_unstable();
    let places: Vec<usize> = rows.iter().map(|item| sorted.partition_point(|other| other < item)).collect();
    let Against { original, model, divergence } = pass.found();
    let against = Against { original: original.placed(&places), model: model.placed(&places), divergence };
    Ok(Early { against, test, verdict })
}
