//! One layer's re-fit: ridge regression from the compressed network's inputs to the original network's values.
//!
//! With a batch norm after the layer the regression is done for the norm's output and folded back: rows divided by
//! the norm's scale, the intercept put into the norm's bias. Scale and running statistics stay as they are. With a layer
//! scale the intercept is divided too and stays the layer's own.

use super::RepairError;
use super::ridge::Sums;
use super::runner::Runner;
use super::sample::{self, Places};
use super::segment::FitTarget;
use crate::exec::Cancel;
use crate::graph::{Graph, NodeId, Op, ParamRole, op};
use crate::model::{Model, ParamStore};
use candle_core::Tensor;

/// A layer to re-fit.
pub(super) struct Layer {
    pub id: NodeId,
    pub target: FitTarget,
    /// Which of the original layer's outputs are left; `None`: all.
    pub rows: Option<Vec<u32>>,
    pub places: Places,
    /// Width of a convolution's output image.
    pub out_width: usize,
}

/// The layer's own affine map and what follows it.
struct Affine {
    weight: Vec<f32>,
    /// `γ / √(var + ε)` of the norm, the layer scale's factors, else ones.
    scale: Vec<f32>,
    inputs: usize,
    outputs: usize,
}

/// The parameters with `layer` re-fitted on the compressed activations `chunks` (at the start of `part`) against
/// `targets`, one per chunk. `None`: there is nothing that could be fitted.
pub(super) fn refit(
    model: &Model,
    part: &Graph,
    layer: &Layer,
    chunks: &[&Tensor],
    targets: &[sample::Target],
    lambda: f64,
    cancel: &Cancel,
) -> Result<Option<ParamStore>, RepairError> {
    let graph = &model.graph;
    let node = graph.node(layer.id);
    let (Some(weight_name), Some(&source)) = (node.param(ParamRole::Weight), node.inputs.first()) else {
        return Ok(None);
    };
    let input = graph.node(source).name.as_str();
    let skip = layer.target.skip.map(|s| graph.node(s).name.as_str());
    let keep: Vec<&str> = [Some(input), skip].into_iter().flatten().collect();
    let affine = Affine::of(model, layer, weight_name)?;
    let mut runner = Runner::new(part, (&model.params, &model.precision), &keep, false)?;
    let mut sums = Sums::new(affine.inputs, affine.outputs);
    for (x, target) in chunks.iter().zip(targets) {
        cancel.check()?;
        let (out, values) = runner.run(x)?;
        let value = |name: &str| values.get(name).cloned().unwrap_or_else(|| out.clone());
        let rows = sample::inputs(&node.op, &value(input), layer.out_width, &target.at)?;
        let wanted = match skip {
            Some(s) => (&target.values - sample::values(&value(s), &target.at)?)?,
            None => target.values.clone(),
        };
        sums.add(&rows, &wanted)?;
    }
    let norm = layer.target.norm.map(|n| graph.node(n));
    let own_bias = norm.is_none_or(|n| n.param(ParamRole::Bias).is_none());
    let bias_name = if own_bias { node } else { norm.unwrap_or(node) }.param(ParamRole::Bias);
    let rows = affine.weight.chunks_exact(affine.inputs.max(1)).zip(&affine.scale);
    let prior: Vec<f32> = rows.flat_map(|(row, &s)| row.iter().map(move |&w| w * s)).collect();
    let Some(fit) = sums.solve(lambda, &prior, bias_name.is_some()) else { return Ok(None) };
    // A norm that all but silences a channel cannot carry a new row.
    let loud = affine.scale.iter().fold(0f32, |m, s| m.max(s.abs())) * 1e-5;
    let mut params = model.params.clone();
    let mut weight = affine.weight.clone();
    for (j, &s) in affine.scale.iter().enumerate().filter(|(_, s)| s.abs() > loud) {
        let range = j * affine.inputs..(j + 1) * affine.inputs;
        for (w, f) in weight[range.clone()].iter_mut().zip(&fit.weight[range]) {
            *w = f / s;
        }
    }
    params.set(weight_name, weight)?;
    if let Some(name) = bias_name {
        let mut bias = params.get(name)?.values().into_owned();
        // What the norm takes away as its mean (less the layer's own bias) is given back.
        let shift: Vec<f32> = match norm.filter(|_| !own_bias) {
            Some(n) => {
                let read = |name: Option<&str>| -> Result<Vec<f32>, RepairError> {
                    Ok(match name {
                        Some(n) => params.get(n)?.values().into_owned(),
                        None => vec![0.0; affine.outputs],
                    })
                };
                let (mean, own) = (read(n.param(ParamRole::Mean))?, read(node.param(ParamRole::Bias))?);
                mean.iter().zip(&own).zip(&affine.scale).map(|((m, c), s)| s * (m - c)).collect()
            }
            None => vec![0.0; affine.outputs],
        };
        for (j, b) in bias.iter_mut().enumerate().filter(|(j, _)| affine.scale[*j].abs() > loud) {
            *b = if own_bias { fit.bias[j] / affine.scale[j] } else { fit.bias[j] + shift[j] };
        }
        params.set(name, bias)?;
    }
    Ok(Some(params))
}

impl Affine {
    fn of(model: &Model, layer: &Layer, weight_name: &str) -> Result<Affine, RepairError> {
        let weight = model.params.get(weight_name)?;
        let outputs = weight.shape().first().copied().unwrap_or(0);
        let inputs = weight.numel() / outputs.max(1);
        let mut scale = vec![1f32; outputs];
        let norm = layer.target.norm.map(|n| model.graph.node(n));
        if let Some(norm) = norm
            && let Op::BatchNorm2d(op::BatchNorm2d { eps, .. }) = norm.op
            && let (Some(gamma), Some(var)) = (norm.param(ParamRole::Weight), norm.param(ParamRole::Var))
        {
            let (gamma, var) = (model.params.get(gamma)?.values(), model.params.get(var)?.values());
            for ((s, g), v) in scale.iter_mut().zip(gamma.iter()).zip(var.iter()) {
                *s = g / (v + eps as f32).sqrt();
            }
        }
        if let Some(factors) = norm.filter(|n| matches!(n.op, Op::Scale(_)))
            && let Some(name) = factors.param(ParamRole::Weight)
        {
            scale.copy_from_slice(&model.params.expect(name, &[outputs])?);
        }
        Ok(Affine { weight: weight.values().into_owned(), scale, inputs, outputs })
    }
}
