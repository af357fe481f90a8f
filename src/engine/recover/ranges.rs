//! Input ranges of static int8 layers, from calibration batches.
//!
//! One code for the whole input tensor of a layer, chosen before it runs: no pass over the activations to find their range,
//! the same code for every image. Layers that read one tensor share its range. Not here: how a range is chosen
//! (`quant::Histogram`), where the images of others come from (`headless`).

use super::RepairError;
use super::state::State;
use crate::exec::{CompileOptions, ExecError, Plan};
use crate::graph::{Calibration, NodeId, Range};
use crate::model::Model;
use crate::quant::{Histogram, Precision, static_layers};
use candle_core::Tensor;
use rayon::prelude::*;
use std::collections::BTreeMap;

/// Images at a time whose activations are looked at for ranges.
const RANGE_BATCH: usize = 32;

/// Finds the ranges of the model's static layers, on images by the recipe's lot.
///
/// # Errors
/// No images, unreadable ones, execution failures, cancellation (looked for before every batch).
pub(super) fn run(state: &mut State) -> Result<(), RepairError> {
    if static_layers(&state.model.graph, &state.model.precision).is_empty() {
        return Ok(());
    }
    if state.calib.is_empty() {
        return Err(RepairError::NoImages(state.calib.card().name));
    }
    // Of the weights that will run.
    state.settle()?;
    state.split()?;
    let options = state.options;
    let picks: Vec<usize> = state.shuffled().into_iter().take(options.range_images.max(1)).collect();
    let batches = state.calib.parts(&picks, RANGE_BATCH);
    let what = format!("int8 ranges, {}", options.ranges.label());
    let mut model = state.model.clone();
    calibrate(&mut model, options.ranges, &mut |i| -> Result<_, RepairError> {
        state.cancel.check()?;
        state.progress(i.min(batches.len()), batches.len(), &what);
        let Some(picks) = batches.get(i) else { return Ok(None) };
        Ok(Some(state.calib.batch(picks, &state.original.info.preprocess)?.0))
    })?;
    state.model = model;
    state.used.ranged = picks.len() as u64;
    state.picked.extend_from_slice(&picks);
    Ok(())
}

/// Gives `model` the ranges of the inputs of all its static layers while it runs the batches that `batch` returns for 0, 1,
/// … until `None`, with static layers in f32 and all others as they are. Asked for the same batches twice unless `how` is
/// [`Calibration::MinMax`].
///
/// # Errors
/// What `batch` and running the model report.
pub fn calibrate<E: From<ExecError>>(
    model: &mut Model,
    how: Calibration,
    batch: &mut dyn FnMut(usize) -> Result<Option<Tensor>, E>,
) -> Result<(), E> {
    let layers = static_layers(&model.graph, &model.precision);
    let graph = &model.graph;
    let source = |layer: &String| graph.node(graph.by_name(layer)?).inputs.first().copied();
    let mut sources: Vec<NodeId> = layers.iter().filter_map(source).collect();
    sources.sort_unstable();
    sources.dedup();
    if sources.is_empty() {
        return Ok(());
    }
    let names: Vec<&str> = sources.iter().map(|id| graph.node(*id).name.as_str()).collect();
    let mut precision = model.precision.clone();
    for layer in &layers {
        precision.set(layer.clone(), Precision::F32);
    }
    let options = CompileOptions::default().keeping(names.iter().copied());
    let mut session = Plan::compile(graph, &model.params, &precision, &options)?.session();
    // Calls `each` for every source with its values, batch by batch.
    let mut pass = |each: &(dyn Fn(&mut Histogram, &[f32]) + Sync), seen: &mut [Histogram]| -> Result<(), E> {
        for i in 0.. {
            let Some(x) = batch(i)? else { break };
            let (_, values) = session.capture(&x, &names)?;
            let one = |(name, h): (&&str, &mut Histogram)| -> Result<(), ExecError> {
                let Some(t) = values.get(*name) else { return Ok(()) };
                each(h, &t.flatten_all()?.to_vec1::<f32>()?);
                Ok(())
            };
            names.par_iter().zip(seen.par_iter_mut()).try_for_each(one)?;
        }
        Ok(())
    };
    let mut seen = vec![Histogram::default(); names.len()];
    pass(&Histogram::stretch, &mut seen)?;
    if how != Calibration::MinMax {
        pass(&Histogram::add, &mut seen)?;
    }
    let ranges: BTreeMap<NodeId, Range> =
        sources.iter().zip(seen.par_iter().map(|h| h.choose(how)).collect::<Vec<_>>()).map(|(s, r)| (*s, r)).collect();
    let found: Vec<_> = layers.iter().filter_map(|l| Some((l.clone(), *ranges.get(&source(l)?)?))).collect();
    model.precision.inputs.extend(found);
    Ok(())
}
