//! Batch-norm statistics of a compressed network's own activations.

use super::RepairError;
use crate::data::Dataset;
use crate::exec::{Cancel, candle};
use crate::graph::{Op, ParamRole};
use crate::model::{Model, Param, ParamStore};
use candle_core::Device;
use std::collections::HashMap;

/// Running means and variances as one pass in training mode over `images` would leave them: the average of the
/// batches' statistics, every batch counting by its images.
pub(super) fn reestimated(
    model: &Model,
    calib: &Dataset,
    images: &[usize],
    cancel: &Cancel,
) -> Result<ParamStore, RepairError> {
    let tensors = candle::tensors(&model.params, &Device::Cpu)?;
    let mut sums: HashMap<String, (Vec<f64>, Vec<f64>)> = HashMap::new();
    let mut total = 0.0;
    for picks in images.chunks(128) {
        cancel.check()?;
        let (x, _) = calib.batch(picks, &model.info.preprocess)?;
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
