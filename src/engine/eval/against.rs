//! One pass of two models side by side: what each scores, and how far apart their outputs are.
//!
//! Invariant: of both models only the outputs of the batch at hand are held. Not here: the arithmetic (`task::divergence`).

use super::error::Result;
use super::run::{Sparing, for_batches, on};
use crate::data::Dataset;
use crate::exec::{Cancel, Plan, smaller_batch};
use crate::model::Preprocess;
use crate::task::{Divergence, Divergences, Estimate, Scored};

/// What two models are on the same items.
#[derive(Debug, Clone, PartialEq)]
pub struct Against {
    pub original: Scored,
    pub model: Scored,
    pub divergence: Divergence,
}

impl Against {
    /// How much more the model loses an item than the original, in the unit of the task's scores (nats a token), over pairs of items:
    /// positive for worse.
    pub fn worse_by(&self) -> Estimate {
        let pairs = self.original.scores.iter().zip(&self.model.scores);
        Estimate::of(&pairs.map(|(o, m)| f64::from(*o) - f64::from(*m)).collect::<Vec<f64>>())
    }
}

/// Runs both over the whole set, batch by batch; `progress` gets items done and in total. Where a device runs out of memory, fewer items
/// are run at a time, and the model's notes say so.
///
/// # Errors
/// As [`super::evaluate`], for either model; outputs that are unlike.
pub fn against(
    original: &Plan,
    model: &Plan,
    data: &Dataset,
    prep: &Preprocess,
    batch: usize,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Against> {
    let most = batch.clamp(1, data.len().max(1));
    let (mut base, mut new) = (Sparing { model: on(original), most }, Sparing { model: on(model), most });
    let scorer = || data.task().scorer(data.classes());
    let (mut of_base, mut of_new, mut apart) = (scorer(), scorer(), Divergences::default());
    for_batches(data, prep, most, cancel, progress, &mut |x, targets| {
        let before = base.run(x)?;
        cancel.check()?;
        let after = new.run(x)?;
        // What is broken is told as itself before it is compared.
        of_base.add(&before, targets)?;
        of_new.add(&after, targets)?;
        Ok(apart.add(&before, &after)?)
    })?;
    let notes = smaller_batch(most, base.most.min(new.most)).into_iter().collect();
    let model = Scored { notes, ..of_new.scored() };
    Ok(Against { original: of_base.scored(), model, divergence: apart.found() })
}
