//! Gradients of the calibration loss, boiled down to what first-order Taylor importance needs.

use super::error::PruneError;
use super::importance::Gradients;
use crate::exec::{Cancel, reference};
use crate::graph::{Op, ParamRole};
use crate::model::Model;
use candle_core::{Device, Tensor, Var};
use std::collections::HashMap;

/// Runs forward and backward over `batches` (`[N, C, H, W]` images with their labels), batch norms in inference mode,
/// and keeps `Σ w · ∂L/∂w` of every row of every convolution and linear layer, batch by batch.
///
/// # Errors
/// Whatever execution reports, and [`PruneError::Cancelled`], which is looked for before every batch.
pub fn gradients(
    model: &Model,
    batches: impl IntoIterator<Item = (Tensor, Vec<u32>)>,
    cancel: &Cancel,
) -> Result<Gradients, PruneError> {
    let exec = |e: String| PruneError::Exec(e);
    let graph = &model.graph;
    let reachable = graph.reachable();
    let mut params = reference::tensors(&model.params, &Device::Cpu).map_err(|e| exec(e.to_string()))?;
    // Only rows are asked for, so only weights and biases of convolutions and linears become variables.
    let mut vars: Vec<(String, Var)> = Vec::new();
    for node in graph.nodes.iter().zip(&reachable).filter(|(_, r)| **r).map(|(n, _)| n) {
        if !matches!(node.op, Op::Conv2d { .. } | Op::Linear { .. }) {
            continue;
        }
        for role in [ParamRole::Weight, ParamRole::Bias] {
            if let Some((name, t)) = node.param(role).and_then(|n| Some((n, params.get(n)?.clone()))) {
                let var = Var::from_tensor(&t).map_err(|e| exec(e.to_string()))?;
                params.insert(name.to_owned(), var.as_tensor().clone());
                vars.push((node.name.clone(), var));
            }
        }
    }
    let mut rows: HashMap<String, Vec<Vec<f32>>> = HashMap::new();
    for (batch, (images, labels)) in batches.into_iter().enumerate() {
        cancel.check()?;
        let none = &mut reference::Capture::none();
        let logits = reference::forward(graph, &params, &images, reference::Mode::Eval, none);
        let logits = logits.map_err(|e| exec(e.to_string()))?;
        let sums = row_sums(&logits, &labels, &vars).map_err(|e| exec(e.to_string()))?;
        for (node, sum) in sums {
            let all = rows.entry(node).or_default();
            match all.get_mut(batch) {
                // Weight first, then the bias of the same node.
                Some(have) => have.iter_mut().zip(&sum).for_each(|(a, b)| *a += b),
                None => all.push(sum),
            }
        }
    }
    Ok(Gradients { rows })
}

/// `(node, Σ w · ∂L/∂w per row)` for every variable, in order.
fn row_sums(logits: &Tensor, labels: &[u32], vars: &[(String, Var)]) -> candle_core::Result<Vec<(String, Vec<f32>)>> {
    let labels = Tensor::new(labels, logits.device())?;
    let loss = candle_nn::loss::cross_entropy(logits, &labels)?;
    let grads = loss.backward()?;
    let mut out = Vec::with_capacity(vars.len());
    for (node, var) in vars {
        let sum = match grads.get(var) {
            Some(g) => {
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
