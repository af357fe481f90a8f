//! What flows into one layer of the original on calibration items, and how far its output is off where that layer alone is in a precision: run by the
//! kernels that would run it, weights and inputs rounded as they round them.

use super::rounding::apart;
use super::{Compute, JobError};
use crate::graph::{MacConvention, NodeId, macs};
use crate::model::Model;
use crate::quant::{Histogram, Precision};
use crate::session::Activations;
use crate::{exec::Plan, prune};
use candle_core::Tensor;

/// MACs of one look, over all precisions together: some seconds of two processors.
const WORK: u64 = 200_000_000_000;
/// Items at the most: histograms of more look alike.
const ITEMS: usize = 64;
/// Bars of a histogram.
const BARS: usize = 32;

impl Compute {
    /// # Errors
    /// No such layer, one without weights; data that is gone; a model that does not run here.
    pub(super) fn activations_of(&self, layer: &str) -> Result<Activations, JobError> {
        let graph = &*self.model.graph;
        let id = graph.by_name(layer).ok_or_else(|| JobError::Failed(format!("`{layer}` is no layer of the model")))?;
        let node = graph.node(id);
        let Some(&source) = node.inputs.first().filter(|_| node.op.is_conv_or_linear()) else {
            return Err(JobError::Failed(format!("`{layer}` has no weights, and takes no precision")));
        };
        let fits: Vec<Precision> = Precision::menu(graph.vocabulary().is_some()).to_vec();
        let fits: Vec<Precision> = fits.into_iter().filter(|p| p.unfit(&node.op).is_none()).collect();
        let one: u64 = macs(graph).map_err(JobError::of)?.into_iter().map(|m| m.get(MacConvention::Norms)).sum();
        let runs = fits.len() as u64 + 1;
        let items = (WORK / (one * runs).max(1)).clamp(1, ITEMS as u64) as usize;
        let picks = prune::spread(self.calib.len(), items.min(self.calib.len()), self.shelf.recipe.seed());
        let (x, _) = self.calib.batch(&picks, &self.model.info.preprocess).map_err(JobError::of)?;
        let (input, output) = self.seen(&self.model, (source, id), &x)?;
        let mut histogram = Histogram::default();
        histogram.stretch(&input);
        histogram.add(&input);
        let mut off = Vec::new();
        for p in fits {
            let mut changed = self.model.clone();
            changed.precision.set(layer, p);
            if p == Precision::Int8Static {
                let range = histogram.choose(self.shelf.recipe.repair.ranges);
                changed.precision.inputs.insert(layer.to_owned(), range);
            }
            // The original may have the precision itself: nothing is off then, and nothing to run.
            let other = self.seen(&changed, (source, id), &x)?.1;
            off.push((p, apart(&output, &other)));
        }
        let finite = || input.iter().copied().filter(|v| v.is_finite());
        let (lo, hi) = finite().fold((f32::INFINITY, f32::NEG_INFINITY), |(lo, hi), v| (lo.min(v), hi.max(v)));
        let values = finite().count() as u64;
        Ok(Activations {
            items: picks.len() as u64,
            values,
            lo: if values > 0 { lo } else { 0.0 },
            hi: if values > 0 { hi } else { 0.0 },
            zeros: finite().filter(|v| *v == 0.0).count() as f32 / values.max(1) as f32,
            bars: bars(finite(), lo, hi),
            off,
            why: None,
        })
    }

    /// The values of two nodes in a run of `x`, in one row each.
    fn seen(
        &self,
        model: &Model,
        (source, layer): (NodeId, NodeId),
        x: &Tensor,
    ) -> Result<(Vec<f32>, Vec<f32>), JobError> {
        let graph = &*model.graph;
        let names = [source, layer].map(|id| graph.node(id).name.as_str());
        let plan = Plan::of(model, &self.compiles().keeping(names)).map_err(JobError::of)?;
        let (_, mut values) = plan.session().capture(x, &names).map_err(JobError::of)?;
        let mut flat = |name: &str| -> Result<Vec<f32>, JobError> {
            let value = values.remove(name).ok_or_else(|| JobError::Failed(format!("`{name}` gave no value")))?;
            let value = value.flatten_all().and_then(|v| v.to_dtype(candle_core::DType::F32)?.to_vec1::<f32>());
            value.map_err(JobError::of)
        };
        Ok((flat(names[0])?, flat(names[1])?))
    }
}

fn bars(values: impl Iterator<Item = f32>, lo: f32, hi: f32) -> Vec<u64> {
    let mut out = vec![0u64; BARS];
    let width = (f64::from(hi) - f64::from(lo)) / BARS as f64;
    for v in values {
        let at = if width > 0.0 { ((f64::from(v) - f64::from(lo)) / width) as usize } else { 0 };
        out[at.min(BARS - 1)] += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_hold_every_value_once_from_the_least_to_the_largest() {
        let values = [-1.0f32, -1.0, 0.0, 0.99, 1.0];
        let found = bars(values.into_iter(), -1.0, 1.0);
        assert_eq!((found.len(), found.iter().sum::<u64>(), found[0], found[BARS / 2]), (BARS, 5, 2, 1));
        assert_eq!(found[BARS - 1], 2);
        assert_eq!(bars([2.0f32; 3].into_iter(), 2.0, 2.0)[0], 3);
    }
}
