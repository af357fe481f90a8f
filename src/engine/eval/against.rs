//! One pass of two models side by side: what each scores, and how far apart their outputs are.
//!
//! Invariant: of both models only the outputs of the batch at hand are held. Not here: the arithmetic (`task::divergence`).

use super::error::Result;
use super::run::{Sparing, for_batches, on};
use crate::data::Dataset;
use crate::exec::{Cancel, ExecError, Plan, smaller_batch};
use crate::model::Preprocess;
use crate::task::{Divergence, Divergences, Estimate, Scored, Scorer};
use candle_core::Tensor;

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
    let mut pass = Pass::new((original, model), data, batch);
    pass.over(data, prep, cancel, progress)?;
    Ok(pass.found())
}

/// One of the two, as it runs.
type Runs<'a> = Box<dyn FnMut(&Tensor) -> Result<Tensor, ExecError> + 'a>;

/// Both models over a set, or over parts of it one after another.
pub(super) struct Pass<'a> {
    base: Sparing<Runs<'a>>,
    new: Sparing<Runs<'a>>,
    of_base: Box<dyn Scorer>,
    of_new: Box<dyn Scorer>,
    apart: Divergences,
    /// Items a batch.
    pub(super) most: usize,
}

impl<'a> Pass<'a> {
    /// The original and the model, over `data` or parts of it.
    pub(super) fn new((original, model): (&'a Plan, &'a Plan), data: &Dataset, batch: usize) -> Pass<'a> {
        let most = batch.clamp(1, data.len().max(1));
        let (base, new): (Runs<'a>, Runs<'a>) = (Box::new(on(original)), Box::new(on(model)));
        let scorer = || data.task().scorer(data.classes());
        Pass {
            base: Sparing { model: base, most },
            new: Sparing { model: new, most },
            of_base: scorer(),
            of_new: scorer(),
            apart: Divergences::default(),
            most,
        }
    }

    /// Goes over all of `part`.
    pub(super) fn over(
        &mut self,
        part: &Dataset,
        prep: &Preprocess,
        cancel: &Cancel,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<()> {
        let Pass { base, new, of_base, of_new, apart, most } = self;
        for_batches(part, prep, *most, cancel, progress, &mut |x, targets| {
            let before = base.run(x)?;
            cancel.check()?;
            let after = new.run(x)?;
            // What is broken is told as itself before it is compared.
            of_base.add(&before, targets)?;
            of_new.add(&after, targets)?;
            Ok(apart.add(&before, &after)?)
        })
    }

    /// Which items the original, and which the model gets right, in the order in which they were run.
    pub(super) fn correct(&self) -> (Vec<bool>, Vec<bool>) {
        (self.of_base.scored().correct(), self.of_new.scored().correct())
    }

    /// What they are on all that was run, lists in the order in which it was.
    pub(super) fn found(self) -> Against {
        let notes = smaller_batch(self.most, self.base.most.min(self.new.most)).into_iter().collect();
        let model = Scored { notes, ..self.of_new.scored() };
        Against { original: self.of_base.scored(), model, divergence: self.apart.found() }
    }
}
