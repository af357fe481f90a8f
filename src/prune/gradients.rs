//! What calibration images say about rows of convolutions and linear layers, boiled down to what importance needs:
//! gradients of every single image, and norms of the inputs.
//!
//! Calibration images are mostly training images, on which a network is so sure of itself that the gradient of its plain
//! loss is noise. The loss is therefore the cross-entropy of logits divided by a temperature (Hinton et al. 2015), chosen
//! by the margins of the untouched network; one that is not so sure keeps temperature 1.

use super::error::PruneError;
use super::importance::{Evidence, Method};
use crate::exec::{Cancel, CompileOptions, Plan, reference};
use crate::graph::{Node, ParamRole};
use crate::model::Model;
use candle_core::{Device, Tensor, Var};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use std::collections::HashMap;

/// Images `[N, C, H, W]` with their labels.
pub type Batch = (Tensor, Vec<u32>);

/// Bytes of gradients that images in flight may hold.
const IN_FLIGHT: usize = 1 << 30;

/// `n` of `len` images, by the seed's lot, ascending: data sets are often stored class by class.
pub fn spread(len: usize, n: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..len).collect();
    order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed));
    order.truncate(n);
    order.sort_unstable();
    order
}

/// What `method` needs to know of `batches`; nothing for methods that look at weights alone. Batch norms run in inference
/// mode. The same images give the same evidence, whatever the number of threads. `say` hears how many images are done.
///
/// # Errors
/// Whatever execution reports, and [`PruneError::Cancelled`], which is looked for before every batch.
pub fn evidence(
    model: &Model,
    method: Method,
    batches: impl IntoIterator<Item = Batch>,
    cancel: &Cancel,
    say: &mut dyn FnMut(usize),
) -> Result<Evidence, PruneError> {
    let of = Rows::of(model)?;
    match method {
        Method::Taylor => of.first_order(batches, cancel, say),
        Method::Hessian => of.second_order(batches, cancel, say),
        Method::Activation => of.activation(batches, cancel, say),
        Method::L1 | Method::L2 | Method::BatchNorm | Method::Fpgm | Method::Random => Ok(Evidence::default()),
    }
}

/// Temperature at which the mean margin between the best two classes is two, at least 1.
pub fn temperature<'a>(logits: impl IntoIterator<Item = &'a [f32]>) -> f64 {
    let (mut sum, mut n) = (0.0, 0usize);
    for row in logits {
        let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
        for &v in row {
            if v > first {
                (first, second) = (v, first);
            } else if v > second {
                second = v;
            }
        }
        let margin = f64::from(first - second);
        if margin.is_finite() {
            sum += margin;
            n += 1;
        }
    }
    (sum / n.max(1) as f64 / 2.0).max(1.0)
}

/// A model and its convolutions and linear layers.
struct Rows<'a> {
    model: &'a Model,
    layers: Vec<&'a Node>,
    params: reference::TensorMap,
}

fn exec(e: impl std::fmt::Display) -> PruneError {
    PruneError::Exec(e.to_string())
}

impl<'a> Rows<'a> {
    fn of(model: &'a Model) -> Result<Rows<'a>, PruneError> {
        let reachable = model.graph.reachable();
        let nodes = model.graph.nodes.iter().zip(&reachable).filter(|(_, r)| **r).map(|(n, _)| n);
        let layers = nodes.filter(|n| n.op.is_conv_or_linear()).collect();
        Ok(Rows { model, layers, params: reference::tensors(&model.params, &Device::Cpu).map_err(exec)? })
    }

    /// All batches, and the temperature at which the network is unsure of them.
    fn softened(
        &self,
        batches: impl IntoIterator<Item = Batch>,
        cancel: &Cancel,
    ) -> Result<(Vec<Batch>, f64), PruneError> {
        let plan = Plan::of(self.model, &CompileOptions::default()).map_err(exec)?;
        let (mut all, mut logits) = (Vec::new(), Vec::new());
        for (x, labels) in batches {
            cancel.check()?;
            logits.extend(plan.run(&x).and_then(|l| Ok(l.to_vec2::<f32>()?)).map_err(exec)?);
            all.push((x, labels));
        }
        Ok((all, temperature(logits.iter().map(Vec::as_slice))))
    }

    /// `Σ w · ∂L/∂w` of every row for every image: the derivative by a factor on the row's output, which is 1. Factors of
    /// their own for each image give each image's derivative from one backward pass.
    fn first_order(
        &self,
        batches: impl IntoIterator<Item = Batch>,
        cancel: &Cancel,
        say: &mut dyn FnMut(usize),
    ) -> Result<Evidence, PruneError> {
        let (batches, temperature) = self.softened(batches, cancel)?;
        let (mut out, mut done) = (Evidence::default(), 0);
        for (x, labels) in &batches {
            cancel.check()?;
            let mut capture = reference::Capture::gated(self.layers.iter().map(|n| &n.name));
            let graph = &self.model.graph;
            let logits =
                reference::forward(graph, &self.params, x, reference::Mode::Eval, &mut capture).map_err(exec)?;
            let mut rows = || -> candle_core::Result<()> {
                let grads = loss(&logits, labels, temperature)?.backward()?;
                for node in &self.layers {
                    let Some(gate) = capture.gates.get(&node.name) else { continue };
                    let zeros = || gate.zeros_like();
                    let g = grads.get(gate).map_or_else(zeros, |g| Ok(g.clone()))?;
                    let images = g.reshape((labels.len(), ()))?.to_vec2::<f32>()?;
                    out.first.entry(node.name.clone()).or_default().extend(images);
                }
                Ok(())
            };
            rows().map_err(exec)?;
            done += labels.len();
            say(done);
        }
        Ok(out)
    }

    /// `½ Σ w² h` of every row, with `h` the mean over images of their squared gradients.
    fn second_order(
        &self,
        batches: impl IntoIterator<Item = Batch>,
        cancel: &Cancel,
        say: &mut dyn FnMut(usize),
    ) -> Result<Evidence, PruneError> {
        let (batches, temperature) = self.softened(batches, cancel)?;
        let mut params = self.params.clone();
        let mut vars: Vec<(&Node, Var)> = Vec::new();
        for node in &self.layers {
            for role in [ParamRole::Weight, ParamRole::Bias] {
                if let Some((name, t)) = node.param(role).and_then(|n| Some((n, params.get(n)?.clone()))) {
                    let var = Var::from_tensor(&t).map_err(exec)?;
                    params.insert(name.to_owned(), var.as_tensor().clone());
                    vars.push((node, var));
                }
            }
        }
        let one = |x: &Tensor, label: u32| -> Result<Vec<Option<Tensor>>, PruneError> {
            let graph = &self.model.graph;
            let mut capture = reference::Capture::none();
            let logits = reference::forward(graph, &params, x, reference::Mode::Eval, &mut capture).map_err(exec)?;
            let grads = loss(&logits, &[label], temperature).and_then(|l| l.backward()).map_err(exec)?;
            let square = |(_, var): &(&Node, Var)| grads.get(var).map(|g| g.detach().sqr()).transpose().map_err(exec);
            vars.iter().map(square).collect()
        };
        let bytes: usize = vars.iter().map(|(_, v)| v.elem_count() * 4).sum();
        let at_once = (IN_FLIGHT / bytes.max(1)).clamp(1, crate::exec::threads().max(1));
        let mut curvature: Vec<Option<Tensor>> = vec![None; vars.len()];
        let mut count = 0usize;
        for (x, labels) in &batches {
            let images: Vec<usize> = (0..labels.len()).collect();
            for part in images.chunks(at_once) {
                cancel.check()?;
                // Images go side by side, and are added up in their order.
                let squares = part
                    .par_iter()
                    .map(|&i| one(&x.narrow(0, i, 1).map_err(exec)?, labels[i]))
                    .collect::<Result<Vec<_>, PruneError>>()?;
                for (sum, square) in squares.iter().flat_map(|s| curvature_of(s)) {
                    let slot = &mut curvature[sum];
                    *slot = Some(match slot.take() {
                        Some(s) => (s + square).map_err(exec)?,
                        None => square.clone(),
                    });
                }
                count += part.len();
                say(count);
            }
        }
        let mut out = Evidence::default();
        for ((node, var), h) in vars.iter().zip(curvature) {
            let Some(h) = h else { continue };
            let rows = || -> candle_core::Result<Vec<f32>> {
                let half = ((var.as_tensor().detach().sqr()? * h)? * (0.5 / count.max(1) as f64))?;
                half.reshape((half.dim(0)?, ()))?.sum(1)?.to_vec1::<f32>()
            };
            let rows = rows().map_err(exec)?;
            match out.second.get_mut(&node.name) {
                // Weight first, then the bias of the same node.
                Some(have) => have.iter_mut().zip(&rows).for_each(|(a, b)| *a += b),
                None => drop(out.second.insert(node.name.clone(), rows)),
            }
        }
        Ok(out)
    }

    /// `Σ |w| · ‖x‖` of every row, with the norm of each input channel over all images and places.
    fn activation(
        &self,
        batches: impl IntoIterator<Item = Batch>,
        cancel: &Cancel,
        say: &mut dyn FnMut(usize),
    ) -> Result<Evidence, PruneError> {
        let graph = &self.model.graph;
        let readers: Vec<(&Node, &str)> =
            self.layers.iter().filter_map(|n| Some((*n, graph.node(*n.inputs.first()?).name.as_str()))).collect();
        let mut squares: HashMap<&str, Vec<f64>> = HashMap::new();
        let mut done = 0;
        for (x, labels) in batches {
            cancel.check()?;
            let mut capture = reference::Capture::of(readers.iter().map(|(_, input)| *input));
            reference::forward(graph, &self.params, &x, reference::Mode::Eval, &mut capture).map_err(exec)?;
            for (node, input) in &readers {
                let Some(value) = capture.values.get(*input) else { continue };
                let sums = channel_squares(value).map_err(exec)?;
                let all = squares.entry(node.name.as_str()).or_insert_with(|| vec![0.0; sums.len()]);
                all.iter_mut().zip(sums).for_each(|(a, s)| *a += f64::from(s));
            }
            done += labels.len();
            say(done);
        }
        let mut out = Evidence::default();
        for (node, _) in &readers {
            if let (Some(sums), Some(weight)) = (squares.get(node.name.as_str()), node.param(ParamRole::Weight)) {
                let weight = self.model.params.get(weight)?;
                let norms: Vec<f32> = sums.iter().map(|s| s.sqrt() as f32).collect();
                out.activation.insert(node.name.clone(), weighed(&weight.values(), weight.shape(), &norms));
            }
        }
        Ok(out)
    }
}

/// What one image adds, by variable.
fn curvature_of(squares: &[Option<Tensor>]) -> impl Iterator<Item = (usize, &Tensor)> {
    squares.iter().enumerate().filter_map(|(i, s)| Some((i, s.as_ref()?)))
}

/// Cross-entropy of softened logits, summed over images so that each keeps its own gradient.
fn loss(logits: &Tensor, labels: &[u32], temperature: f64) -> candle_core::Result<Tensor> {
    let n = labels.len() as f64;
    let labels = Tensor::new(labels, logits.device())?;
    candle_nn::loss::cross_entropy(&(logits / temperature)?, &labels)? * n
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_weigh_their_own_inputs() {
        // Two groups of one input each, two taps: row 0 reads input 0, row 1 input 1.
        assert_eq!(weighed(&[1.0, -2.0, 3.0, 4.0], &[2, 1, 1, 2], &[10.0, 100.0]), [30.0, 700.0]);
        assert_eq!(weighed(&[1.0, -2.0, 3.0, 4.0], &[2, 2], &[10.0, 100.0]), [210.0, 430.0]);
    }

    #[test]
    fn the_spread_is_a_lot_over_all_images_and_the_same_every_time() {
        let picks = spread(10_000, 200, 7);
        assert_eq!(picks, spread(10_000, 200, 7));
        assert_ne!(picks, spread(10_000, 200, 8));
        assert!(picks.windows(2).all(|p| p[0] < p[1]) && picks.len() == 200);
        // Tenths of the set, as classes lie in sorted folders.
        let tenths = picks.iter().fold([0; 10], |mut n, p| {
            n[p / 1000] += 1;
            n
        });
        assert!(tenths.iter().all(|n| (8..=36).contains(n)), "{tenths:?}");
        assert_eq!(spread(3, 200, 1), [0, 1, 2]);
    }

    #[test]
    fn the_temperature_brings_the_mean_margin_to_two() {
        let rows: [&[f32]; 2] = [&[9.0, 1.0, 0.0], &[-1.0, 3.0, -1.0]];
        assert_eq!(temperature(rows), 3.0);
        assert_eq!(temperature([&[0.5f32, 0.0][..]]), 1.0);
        assert_eq!(temperature([]), 1.0);
    }
}
