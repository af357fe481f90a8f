//! One pass over a data set: batches are decoded on a thread of their own while the model runs the one before.

use super::score::Scorer;
use super::{EvalError, Metrics};
use crate::data::{DataError, Dataset};
use crate::exec::{Cancel, ExecError, Plan};
use crate::model::Preprocess;
use candle_core::{Device, Tensor};
use std::sync::mpsc;

/// Metrics, and what was predicted for each image in the data set's order.
#[derive(Debug, Clone, PartialEq)]
pub struct EvalRun {
    pub metrics: Metrics,
    pub predictions: Vec<u16>,
    pub correct: Vec<bool>,
}

/// Batches prepared ahead of the model.
const AHEAD: usize = 2;

/// Evaluates a compiled model over the whole set; `progress` gets images done and in total.
///
/// # Errors
/// Empty or unreadable data, another class count than the model's, non-finite logits, a failing model, cancellation
/// (checked before each batch).
pub fn evaluate(
    plan: &Plan,
    data: &Dataset,
    prep: &Preprocess,
    batch: usize,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<EvalRun, EvalError> {
    score_with(data, prep, batch, cancel, on(plan), progress)
}

/// The logits `[len, classes]` of a compiled model over the whole set, on the host.
///
/// # Errors
/// As [`evaluate`], but logits are handed over as they are.
pub fn logits(
    plan: &Plan,
    data: &Dataset,
    prep: &Preprocess,
    batch: usize,
    cancel: &Cancel,
) -> Result<Tensor, EvalError> {
    collect_logits(data, prep, batch, cancel, on(plan))
}

fn on(plan: &Plan) -> impl FnMut(&Tensor) -> Result<Tensor, ExecError> {
    |x| plan.run(&x.to_device(plan.device())?)
}

/// Evaluates any function from images `[N, 3, H, W]` to logits `[N, classes]` over the whole set.
///
/// # Errors
/// Empty or unreadable data, non-finite logits, a failing model, cancellation (checked before each batch).
pub fn score_with<E: Into<EvalError>>(
    data: &Dataset,
    prep: &Preprocess,
    batch: usize,
    cancel: &Cancel,
    mut model: impl FnMut(&Tensor) -> Result<Tensor, E>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<EvalRun, EvalError> {
    let mut scorer = Scorer::new(data.classes());
    for_batches(data, prep, batch, cancel, progress, &mut |x, labels| {
        let logits = model(x).map_err(Into::into)?;
        scorer.add(&logits, labels)
    })?;
    Ok(EvalRun { metrics: scorer.metrics(), predictions: scorer.predictions, correct: scorer.right })
}

/// The logits `[len, classes]` of the whole set, on the host.
///
/// # Errors
/// As [`score_with`], but non-finite logits are handed over as they are.
pub fn collect_logits<E: Into<EvalError>>(
    data: &Dataset,
    prep: &Preprocess,
    batch: usize,
    cancel: &Cancel,
    mut model: impl FnMut(&Tensor) -> Result<Tensor, E>,
) -> Result<Tensor, EvalError> {
    let mut parts = Vec::new();
    for_batches(data, prep, batch, cancel, &mut |_, _| {}, &mut |x, _| {
        let logits = model(x).map_err(Into::into)?;
        parts.push(logits.to_device(&Device::Cpu)?);
        Ok(())
    })?;
    Ok(Tensor::cat(&parts, 0)?)
}

/// What is done with a batch of images `[N, 3, H, W]` and its labels.
type Each<'a> = dyn FnMut(&Tensor, &[u32]) -> Result<(), EvalError> + 'a;

fn for_batches(
    data: &Dataset,
    prep: &Preprocess,
    batch: usize,
    cancel: &Cancel,
    progress: &mut dyn FnMut(usize, usize),
    each: &mut Each<'_>,
) -> Result<(), EvalError> {
    let (total, batch) = (data.len(), batch.max(1));
    if total == 0 {
        return Err(EvalError::Empty { data: data.card().name });
    }
    std::thread::scope(|scope| {
        let (send, receive) = mpsc::sync_channel::<Result<(Tensor, Vec<u32>), DataError>>(AHEAD);
        scope.spawn(move || {
            for start in (0..total).step_by(batch) {
                // A receiver that is gone means cancelled or failed: stop loading.
                if send.send(data.batch(start..(start + batch).min(total), prep)).is_err() {
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
