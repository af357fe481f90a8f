//! Batch-norm statistics of a compressed network's own activations: kept where they lower its calibration loss.

use super::RepairError;
use super::loss::Mean;
use super::state::{Images, State};
use crate::data::Dataset;
use crate::exec::{Cancel, candle};
use crate::graph::{Op, ParamRole};
use crate::model::{Model, Param, ParamStore};
use candle_core::Device;
use std::collections::HashMap;
use std::time::Instant;

/// Images for batch-norm statistics: every one brings all its positions, so a few hundred settle a mean and variance.
const BATCH_NORM_IMAGES: usize = 512;

/// Repairs that [`run`] will try.
pub(super) fn repairs(state: &State) -> usize {
    let norm = || state.model.graph.nodes.iter().any(|n| matches!(n.op, Op::BatchNorm2d(_)));
    usize::from(state.changed && norm())
}

/// Tries batch-norm statistics of the compressed network's own activations.
///
/// # Errors
/// Unreadable calibration data, execution failures, cancellation (looked for before every batch).
pub(super) fn run(state: &mut State) -> Result<(), RepairError> {
    if !state.changed {
        return Ok(());
    }
    let images = state.images()?;
    if repairs(state) == 0 {
        return Ok(());
    }
    let started = Instant::now();
    let name = "re-estimate batch norm".to_owned();
    state.trying(&name);
    let fit = &images.fit[..images.fit.len().min(BATCH_NORM_IMAGES)];
    let new = reestimated(&state.model, state.calib, fit, state.cancel)?;
    state.tried();
    let losses = (loss(state, &state.model.params, &images)?, loss(state, &new, &images)?);
    if state.judged(name, losses, fit.len() as u64, started) {
        state.model.params = new;
    }
    Ok(())
}

/// Calibration loss of the whole compressed network with these parameters.
pub(super) fn loss(state: &State, params: &ParamStore, images: &Images) -> Result<f64, RepairError> {
    let model = &state.model;
    let mut runner = state.runner(&model.graph, (params, &model.precision), &[])?;
    let mut mean = Mean::default();
    for (picks, answer) in &images.check {
        state.cancel.check()?;
        let (x, _) = state.calib.batch(picks, &model.info.preprocess)?;
        mean.add(state.calib.task(), &runner.run(&x)?.0, answer);
    }
    Ok(mean.get())
}

/// Running means and variances as one pass in training mode over `images` would leave them: the average of the
/// batches' statistics, every batch counting by its images.
fn reestimated(model: &Model, calib: &Dataset, images: &[usize], cancel: &Cancel) -> Result<ParamStore, RepairError> {
    let tensors = candle::tensors(&model.params, &Device::Cpu)?;
    let mut sums: HashMap<String, (Vec<f64>, Vec<f64>)> = HashMap::new();
    let mut total = 0.0;
    for picks in calib.parts(images, 128) {
        cancel.check()?;
        let (x, _) = calib.batch(&picks, &model.info.preprocess)?;
        let mut capture = candle::Capture::none();
        candle::forward(&model.graph, &tensors, &x, candle::Mode::Batch, &mut capture)?;
        let weight = picks.len() as f64;
        total += weight;
        for (node, stats) in &capture.stats {
            let (mean, var) = (stats.mean.to_vec1::<f32>()?, stats.var.to_vec1::<f32>()?);
            let sum = sums.entry(node.clone()).or_insert_with(|| (vec![0.0; mean.len()], vec![0.0; var.len()]));
            sum.0.iter_mut().zip(&mean).for_each(|(s, v)| *s += weight * f64::from(*v));
            sum.1.iter_mut().zip(&var).for_each(|(s, v)| *s += weight * f64::from(*v));
        }
    }
    let mut params = model.params.clone();
    for node in model.graph.nodes.iter().filter(|n| matches!(n.op, Op::BatchNorm2d(_))) {
        let Some((mean, var)) = sums.get(&node.name) else { continue };
        for (role, sum) in [(ParamRole::Mean, mean), (ParamRole::Var, var)] {
            let values: Vec<f32> = sum.iter().map(|s| (s / total) as f32).collect();
            if let (Some(name), Some(p)) = (node.param(role), Param::owned(vec![sum.len()], values)) {
                params.insert(name, p);
            }
        }
    }
    Ok(params)
}
