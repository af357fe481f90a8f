//! What calibration images say about rows: gradients of the calibration loss and norms of the inputs, boiled down to
//! what importance needs.

use super::error::PruneError;
use super::importance::Evidence;
use crate::exec::{Cancel, reference};
use crate::graph::ParamRole;
use crate::model::Model;
use candle_core::{Device, Tensor, Var};
use std::collections::HashMap;

/// Runs forward and backward over `batches` (`[N, C, H, W]` images with their labels), batch norms in inference mode,
/// and keeps a few sums of every row of every convolution and linear layer.
///
/// # Errors
/// Whatever execution reports, and [`PruneError::Cancelled`], which is looked for before every batch.
pub fn evidence(
    model: &Model,
    batches: impl IntoIterator<Item = (Tensor, Vec<u32>)>,
    cancel: &Cancel,
) -> Result<Evidence, PruneError> {
    let exec = |e: String| PruneError::Exec(e);
    let graph = &model.graph;
    let reachable = graph.reachable();
    let mut params = reference::tensors(&model.params, &Device::Cpu).map_err(|e| exec(e.to_string()))?;
    // Only rows are asked for, so only weights and biases of convolutions and linears become variables.
    let mut vars: Vec<(String, Var)> = Vec::new();
    // Layers with the node whose value they read, and how many of its channels one group of the layer reads.
    let mut readers: Vec<(&crate::graph::Node, &str)> = Vec::new();
    for node in graph.nodes.iter().zip(&reachable).filter(|(_, r)| **r).map(|(n, _)| n) {
        if !node.op.is_conv_or_linear() {
            continue;
        }
        if let Some(input) = node.inputs.first() {
            readers.push((node, &graph.node(*input).name));
        }
        for role in [ParamRole::Weight, ParamRole::Bias] {
            if let Some((name, t)) = node.param(role).and_then(|n| Some((n, params.get(n)?.clone()))) {
                let var = Var::from_tensor(&t).map_err(|e| exec(e.to_string()))?;
                params.insert(name.to_owned(), var.as_tensor().clone());
                vars.push((node.name.clone(), var));
            }
        }
    }
    let mut out = Evidence::default();
    // Per layer, the sum of squares of every input channel; per variable, the sum of squared gradients.
    let mut squares: HashMap<&str, Vec<f64>> = HashMap::new();
    let mut curvature: Vec<Option<Tensor>> = vec![None; vars.len()];
    let mut count = 0usize;
    for (batch, (images, labels)) in batches.into_iter().enumerate() {
        cancel.check()?;
        let mut capture = reference::Capture::of(readers.iter().map(|(_, input)| *input));
        let logits = reference::forward(graph, &params, &images, reference::Mode::Eval, &mut capture);
        let logits = logits.map_err(|e| exec(e.to_string()))?;
        for (node, input) in &readers {
            let Some(value) = capture.values.get(*input) else { continue };
            let sums = channel_squares(value).map_err(|e| exec(e.to_string()))?;
            let all = squares.entry(node.name.as_str()).or_insert_with(|| vec![0.0; sums.len()]);
            all.iter_mut().zip(sums).for_each(|(a, s)| *a += f64::from(s));
        }
        capture.values.clear();
        let sums = row_sums(&logits, &labels, &vars, &mut curvature).map_err(|e| exec(e.to_string()))?;
        for (node, sum) in sums {
            let all = out.first.entry(node).or_default();
            match all.get_mut(batch) {
                // Weight first, then the bias of the same node.
                Some(have) => have.iter_mut().zip(&sum).for_each(|(a, b)| *a += b),
                None => all.push(sum),
            }
        }
        count += 1;
    }
    for ((node, var), h) in vars.iter().zip(curvature) {
        let Some(h) = h else { continue };
        let rows = || -> candle_core::Result<Vec<f32>> {
            let w = var.as_tensor().detach();
            let half = ((w.sqr()? * h)? * (0.5 / count.max(1) as f64))?;
            half.reshape((half.dim(0)?, ()))?.sum(1)?.to_vec1::<f32>()
        };
        let rows = rows().map_err(|e| exec(e.to_string()))?;
        match out.second.get_mut(node) {
            Some(have) => have.iter_mut().zip(&rows).for_each(|(a, b)| *a += b),
            None => drop(out.second.insert(node.clone(), rows)),
        }
    }
    for (node, _) in &readers {
        if let (Some(sums), Some(weight)) = (squares.get(node.name.as_str()), node.param(ParamRole::Weight)) {
            let weight = model.params.get(weight)?;
            let norms: Vec<f32> = sums.iter().map(|s| s.sqrt() as f32).collect();
            out.activation.insert(node.name.clone(), weighed(&weight.values(), weight.shape(), &norms));
        }
    }
    Ok(out)
}

/// Sum of squares of every channel of a batch.
fn channel_squares(value: &Tensor) -> candle_core::Result<Vec<f32>> {
    let axis = if value.rank() == 4 { 1 } else { value.rank() - 1 };
    let others: Vec<usize> = (0..value.rank()).filter(|a| *a != axis).collect();
    value.detach().sqr()?.sum(others.as_slice())?.to_vec1::<f32>()
}

/// `Σ |w| · norm of its input` for every row of `[out, in/groups, ..]`.
fn weighed(values: &[f32], shape: &[usize], norms: &[f32]) -> Vec<f32> {
    let (rows, inputs) = (shape.first().copied().unwrap_or(0), shape.get(1).copied().unwrap_or(1).max(1));
    let taps: usize = shape.iter().skip(2).product();
    let per_group = rows / (norms.len() / inputs).max(1);
    let mut out = Vec::with_capacity(rows);
    for (r, row) in values.chunks_exact((inputs * taps).max(1)).enumerate() {
        let first = r / per_group.max(1) * inputs;
        let one = |(i, w): (usize, &[f32])| {
            let sum: f32 = w.iter().map(|w| w.abs()).sum();
            sum * norms.get(first + i).copied().unwrap_or(0.0)
        };
        out.push(row.chunks_exact(taps.max(1)).enumerate().map(one).sum());
    }
    out
}

/// `(node, Σ w · ∂L/∂w per row)` for every variable, in order; adds squared gradients to `curvature`.
fn row_sums(
    logits: &Tensor,
    labels: &[u32],
    vars: &[(String, Var)],
    curvature: &mut [Option<Tensor>],
) -> candle_core::Result<Vec<(String, Vec<f32>)>> {
    let labels = Tensor::new(labels, logits.device())?;
    let loss = candle_nn::loss::cross_entropy(logits, &labels)?;
    let grads = loss.backward()?;
    let mut out = Vec::with_capacity(vars.len());
    for ((node, var), square) in vars.iter().zip(curvature) {
        let sum = match grads.get(var) {
            Some(g) => {
                let g = g.detach();
                *square = Some(match square.take() {
                    Some(s) => (s + g.sqr()?)?,
                    None => g.sqr()?,
                });
                let product = (var.as_tensor().detach() * g)?;
                let rows = product.dim(0)?;
                product.reshape((rows, ()))?.sum(1)?.to_vec1::<f32>()?
            }
            None => vec![0.0; var.dim(0)?],
        };
        out.push((node.clone(), sum));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_weigh_their_own_inputs() {
        // Two groups of one input each, two taps: row 0 reads input 0, row 1 input 1.
        assert_eq!(weighed(&[1.0, -2.0, 3.0, 4.0], &[2, 1, 1, 2], &[10.0, 100.0]), [30.0, 700.0]);
        assert_eq!(weighed(&[1.0, -2.0, 3.0, 4.0], &[2, 2], &[10.0, 100.0]), [210.0, 430.0]);
    }
}
