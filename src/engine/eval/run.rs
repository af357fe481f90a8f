//! One pass over a data set: batches are decoded on a thread of their own while the model runs the one before.

use super::error::{EvalError, Result};
use crate::data::{DataError, Dataset};
use crate::exec::{Cancel, ExecError, OutOfMemory, Plan, smaller_batch};
use crate::model::Preprocess;
use crate::task::{Scored, Targets};
use candle_core::{Device, Tensor};
use std::sync::mpsc;

/// Runs a model on fewer images at a time once its device has run out of memory.
pub(super) struct Sparing<F> {
    pub(super) model: F,
    /// The largest batch that is tried.
    pub(super) most: usize,
}

impl<F, E: Into<EvalError>> Sparing<F>
where
    F: FnMut(&Tensor) -> Result<Tensor, E>,
{
    pub(super) fn run(&mut self, x: &Tensor) -> Result<Tensor> {
        let images = x.dim(0)?;
        let (mut parts, mut done) = (Vec::new(), 0);
        while done < images {
            let n = self.most.min(images - done);
            let part = if n == images { x.clone() } else { x.narrow(0, done, n)? };
            match (self.model)(&part).map_err(Into::into) {
                Err(e) if n > 1 && e.is_out_of_memory() => self.most = n / 2,
                other => {
                    parts.push(other?);
                    done += n;
                }
            }
        }
        match &parts[..] {
            [one] => Ok(one.clone()),
            _ => Ok(Tensor::cat(&parts, 0)?),
        }
    }
}

/// Batches prepared ahead of the model.
const AHEAD: usize = 2;

/// Evaluates a compiled model over the whole set; `progress` gets images done and in total.
///
/// # Errors
/// Empty or unreadable data, another class count than the model's, non-finite outputs, a failing model, cancellation
/// (checked before each batch).
pub fn evaluate(
    plan: &Plan,
    data: &Dataset,
    prep: &Preprocess,
    batch: usize,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Scored> {
    score_with(data, prep, batch, cancel, on(plan), progress)
}

/// The logits `[len, classes]` of a compiled model over the whole set, on the host.
///
/// # Errors
/// As [`evaluate`], but non-finite logits are handed over as they are.
pub fn logits(plan: &Plan, data: &Dataset, prep: &Preprocess, batch: usize, cancel: &Cancel) -> Result<Tensor> {
    let mut parts = Vec::new();
    let mut model = Sparing { model: on(plan), most: batch.max(1) };
    for_batches(data, prep, batch, cancel, &mut |_, _| {}, &mut |x, _| {
        let logits = model.run(x)?;
        parts.push(logits.to_device(&Device::Cpu)?);
        Ok(())
    })?;
    let (all, order) = (Tensor::cat(&parts, 0)?, order(data, batch).concat());
    if order.is_sorted() {
        return Ok(all);
    }
    let mut back = vec![0u32; order.len()];
    (0u32..).zip(&order).for_each(|(row, &item)| back[item] = row);
    Ok(all.index_select(&Tensor::new(back, &Device::Cpu)?, 0)?)
}

pub(super) fn on(plan: &Plan) -> impl FnMut(&Tensor) -> Result<Tensor, ExecError> {
    let mut session = plan.session();
    move |x| session.run(x)
}

/// Evaluates any function from inputs `[N, …]` to outputs (images `[N, 3, H, W]` to logits `[N, classes]`) over the whole
/// set, as its task scores them. Where its device runs out
/// of memory, fewer images are run at a time, and the run's notes say so.
///
/// # Errors
/// Empty or unreadable data, non-finite outputs, a failing model, cancellation (checked before each batch).
pub fn score_with<E: Into<EvalError>>(
    data: &Dataset,
    prep: &Preprocess,
    batch: usize,
    cancel: &Cancel,
    model: impl FnMut(&Tensor) -> Result<Tensor, E>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Scored> {
    let mut scorer = data.task().scorer(data.classes());
    let batch = batch.clamp(1, data.len().max(1));
    let mut model = Sparing { model, most: batch };
    for_batches(data, prep, batch, cancel, progress, &mut |x, labels| {
        let logits = model.run(x)?;
        Ok(scorer.add(&logits, labels)?)
    })?;
    let notes = smaller_batch(batch, model.most).into_iter().collect();
    Ok(Scored { notes, ..scorer.scored().placed(&order(data, batch).concat()) })
}

/// Which items make which batch: as they come, those of one length together where they have lengths.
pub(super) fn order(data: &Dataset, batch: usize) -> Vec<Vec<usize>> {
    data.parts(&(0..data.len()).collect::<Vec<_>>(), batch)
}

/// What is done with a batch of inputs `[N, …]` and its targets.
pub(super) type Each<'a> = dyn FnMut(&Tensor, &Targets) -> Result<()> + 'a;

pub(super) fn for_batches(
    data: &Dataset,
    prep: &Preprocess,
    batch: usize,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize, usize),
    each: &mut Each<'_>,
) -> Result<()> {
    let (total, batch) = (data.len(), batch.max(1));
    if total == 0 {
        return Err(EvalError::Empty { data: data.card().name });
    }
    let order = order(data, batch);
    std::thread::scope(|scope| {
        let (send, receive) = mpsc::sync_channel::<Result<(Tensor, Targets), DataError>>(AHEAD);
        scope.spawn(move || {
            for picks in order {
                // A receiver that is gone means cancelled or failed: stop loading.
                if send.send(data.batch(picks, prep)).is_err() {
                    break;
                }
            }
        });
        let mut done = 0;
        progress(0, total);
        for loaded in receive {
            cancel.check()?;
            let (x, labels) = loaded?;
            each(&x, &labels)?;
            done += labels.len();
            progress(done, total);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::synthetic;

    /// A model that runs out of memory above `most` images; its logits depend on the image alone.
    fn small(most: usize, seen: &mut Vec<usize>) -> impl FnMut(&Tensor) -> Result<Tensor, ExecError> {
        move |x| {
            let n = x.dim(0)?;
            seen.push(n);
            if n > most {
                return Err(candle_core::Error::Cuda("CUDA_ERROR_OUT_OF_MEMORY".into()).into());
            }
            let image = x.flatten_from(1)?;
            Ok(image.narrow(1, 0, 10)?.contiguous()?)
        }
    }

    fn run(most: usize, batch: usize) -> (Result<Scored>, Vec<usize>) {
        let data = synthetic::dataset(synthetic::Split::Eval, 22);
        let prep = Preprocess::imagenet([32, 32]);
        let mut seen = Vec::new();
        let r = score_with(&data, &prep, batch, &Cancel::default(), small(most, &mut seen), &mut |_, _| {});
        (r, seen)
    }

    #[test]
    fn a_full_device_gets_smaller_batches_and_every_image_once() {
        let (whole, seen) = run(100, 8);
        let whole = whole.expect("fits");
        assert_eq!((seen, whole.notes.len()), (vec![8, 8, 6], 0));
        let (spared, seen) = run(3, 8);
        let spared = spared.expect("fits in parts");
        // Tried with 8 and 4 once; what was learnt holds for the batches after it.
        assert_eq!(seen, [8, 4, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]);
        assert_eq!((&spared.predictions, &spared.metrics), (&whole.predictions, &whole.metrics));
        assert!(spared.notes[0].contains("out of memory with 8 images") && spared.notes[0].ends_with("with 2"));
        assert!(run(0, 8).0.is_err_and(|e| e.is_out_of_memory()));
    }
}
