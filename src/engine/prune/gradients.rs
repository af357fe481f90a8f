//! What calibration images say about rows of convolutions and linear layers, boiled down to what importance needs:
//! gradients of every single image, and norms of the inputs.
//!
//! Calibration images are mostly training images, on which a network is so sure of itself that the gradient of its plain
//! loss is noise. The loss is therefore the cross-entropy of logits divided by a temperature (Hinton et al. 2015), chosen
//! by the margins of the untouched network; one that is not so sure keeps temperature 1.

use super::error::{PruneError, Result};
use super::experts::added;
use super::importance::{Evidence, Method};
use crate::exec::{Cancel, CompileOptions, Plan, candle};
use crate::graph::experts::mixtures;
use crate::graph::{Node, ParamRole};
use crate::model::Model;
use crate::task::{Targets, Task};
use candle_core::{Device, Tensor, Var};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use std::collections::HashMap;

/// Inputs `[N, …]` with their targets.
pub type Batch = (Tensor, Targets);

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
    task: &dyn Task,
    method: Method,
    batches: impl IntoIterator<Item = Batch>,
    cancel: &Cancel,
    say: &mut dyn FnMut(usize),
) -> Result<Evidence> {
    let of = Rows::of(model, task, cancel);
    match method {
        Method::Taylor => of.first_order(batches, say),
        Method::Hessian => of.second_order(batches, say),
        Method::Activation => of.activation(batches, say),
        Method::L1 | Method::L2 | Method::BatchNorm | Method::Fpgm | Method::Random => Ok(Evidence::default()),
    }
}

/// A model and its convolutions and linear layers.
struct Rows<'a> {
    model: &'a Model,
    task: &'a dyn Task,
    cancel: &'a Cancel,
    layers: Vec<&'a Node>,
}

fn exec(e: impl std::fmt::Display) -> PruneError {
    PruneError::Exec(e.to_string())
}

/// Weights and biases of rows, as variables, with their node.
type Vars<'a> = Vec<(&'a Node, Var)>;

impl<'a> Rows<'a> {
    fn of(model: &'a Model, task: &'a dyn Task, cancel: &'a Cancel) -> Rows<'a> {
        let nodes = model.graph.live().map(|(_, n)| n);
        Rows { model, task, cancel, layers: nodes.filter(|n| n.op.is_conv_or_linear()).collect() }
    }

    /// All batches, and the temperature at which the network is unsure of them.
    fn softened(&self, batches: impl IntoIterator<Item = Batch>) -> Result<(Vec<Batch>, f64)> {
        let mut session = Plan::of(self.model, &CompileOptions::default()).map_err(exec)?.session();
        let (mut all, mut outputs) = (Vec::new(), Vec::new());
        for (x, targets) in batches {
            self.cancel.check()?;
            outputs.push(session.run(&x).map_err(exec)?);
            all.push((x, targets));
        }
        if outputs.is_empty() {
            return Ok((all, 1.0));
        }
        let outputs = Tensor::cat(&outputs, 0).map_err(exec)?;
        Ok((all, self.task.temperature(&outputs).map_err(exec)?))
    }

    /// Hands out what `of` makes of each image's gradients, which it gets by variable, in the images' order. A few images
    /// are worked on side by side, one thread each: their gradients must not be added up, and a batch would. `say` hears
    /// how many have been taken.
    fn each_image<T: Send>(
        &self,
        batches: impl IntoIterator<Item = Batch>,
        say: &mut dyn FnMut(usize),
        of: impl Fn(&Vars, &[Option<Tensor>]) -> candle_core::Result<T> + Sync,
        take: &mut dyn FnMut(T) -> Result<()>,
    ) -> Result<Vars<'a>> {
        let (batches, temperature) = self.softened(batches)?;
        let mut params = candle::tensors(&self.model.params, &Device::Cpu).map_err(exec)?;
        let mut vars: Vars = Vec::new();
        for &node in &self.layers {
            for role in [ParamRole::Weight, ParamRole::Bias] {
                if let Some((name, t)) = node.param(role).and_then(|n| Some((n, params.get(n)?.clone()))) {
                    let var = Var::from_tensor(&t).map_err(exec)?;
                    params.insert(name.to_owned(), var.as_tensor().clone());
                    vars.push((node, var));
                }
            }
        }
        let one = |x: &Tensor, target: &Targets| -> Result<T> {
            let graph = &self.model.graph;
            let mut capture = candle::Capture::none();
            let logits = candle::forward(graph, &params, x, candle::Mode::Eval, &mut capture).map_err(exec)?;
            let loss = self.task.loss(&logits, target, temperature);
            let grads = loss.and_then(|l| l.backward()).map_err(exec)?;
            let grads: Vec<Option<Tensor>> = vars.iter().map(|(_, v)| grads.get(v).map(Tensor::detach)).collect();
            of(&vars, &grads).map_err(exec)
        };
        let bytes: usize = vars.iter().map(|(_, v)| v.elem_count() * 4).sum();
        let at_once = (IN_FLIGHT / bytes.max(1)).clamp(1, crate::exec::threads().max(1));
        let mut done = 0;
        for (x, targets) in &batches {
            let items: Vec<usize> = (0..targets.len()).collect();
            for part in items.chunks(at_once) {
                self.cancel.check()?;
                let each = |&i: &usize| one(&x.narrow(0, i, 1).map_err(exec)?, &targets.narrow(i, 1).map_err(exec)?);
                let made = part.par_iter().map(each).collect::<Result<Vec<_>>>()?;
                for of_image in made {
                    take(of_image)?;
                    done += 1;
                    say(done);
                }
            }
        }
        Ok(vars)
    }

    /// `Σ w · ∂L/∂w` of every row for every image.
    fn first_order(&self, batches: impl IntoIterator<Item = Batch>, say: &mut dyn FnMut(usize)) -> Result<Evidence> {
        let mut out = Evidence::default();
        self.each_image(
            batches,
            say,
            |vars, grads| {
                let mut rows: HashMap<String, Vec<f32>> = HashMap::new();
                for ((node, var), g) in vars.iter().zip(grads) {
                    let weight = var.as_tensor().detach();
                    let of_each = match g {
                        Some(g) => (weight * g)?.reshape((g.dim(0)?, ()))?.sum(1)?.to_vec1::<f32>()?,
                        None => vec![0.0; weight.dim(0)?],
                    };
                    add(&mut rows, node, &of_each);
                }
                Ok(rows)
            },
            &mut |rows: HashMap<String, Vec<f32>>| {
                rows.into_iter().for_each(|(node, rows)| out.first.entry(node).or_default().push(rows));
                Ok(())
            },
        )?;
        Ok(out)
    }

    /// `½ Σ w² h` of every row, with `h` the mean over images of their squared gradients.
    fn second_order(&self, batches: impl IntoIterator<Item = Batch>, say: &mut dyn FnMut(usize)) -> Result<Evidence> {
        let mut sums: Vec<Option<Tensor>> = Vec::new();
        let mut count = 0usize;
        let vars = self.each_image(
            batches,
            say,
            |_, grads| {
                grads.iter().map(|g| g.as_ref().map(Tensor::sqr).transpose()).collect::<candle_core::Result<Vec<_>>>()
            },
            &mut |squares: Vec<Option<Tensor>>| {
                sums.resize(squares.len(), None);
                for (sum, square) in sums.iter_mut().zip(squares) {
                    *sum = match (sum.take(), square) {
                        (Some(sum), Some(square)) => Some((sum + square).map_err(exec)?),
                        (sum, square) => sum.or(square),
                    };
                }
                count += 1;
                Ok(())
            },
        )?;
        let mut out = Evidence::default();
        for ((node, var), h) in vars.iter().zip(sums) {
            let Some(h) = h else { continue };
            let rows = || -> candle_core::Result<Vec<f32>> {
                let half = ((var.as_tensor().detach().sqr()? * h)? * (0.5 / count.max(1) as f64))?;
                half.reshape((half.dim(0)?, ()))?.sum(1)?.to_vec1::<f32>()
            };
            add(&mut out.second, node, &rows().map_err(exec)?);
        }
        Ok(out)
    }

    /// `Σ |w| · ‖x‖` of every row, with the norm of each input channel over all images and places.
    fn activation(&self, batches: impl IntoIterator<Item = Batch>, say: &mut dyn FnMut(usize)) -> Result<Evidence> {
        let graph = &self.model.graph;
        let readers: Vec<(&Node, &str)> =
            self.layers.iter().filter_map(|n| Some((*n, graph.node(*n.inputs.first()?).name.as_str()))).collect();
        let mixtures = mixtures(graph);
        let of_mixtures = mixtures.iter().flat_map(|m| graph.node(m.combine).inputs.iter());
        let mut names: Vec<&str> = readers.iter().map(|(_, input)| *input).collect();
        names.extend(of_mixtures.map(|id| graph.node(*id).name.as_str()));
        let mut sums: Vec<Vec<f64>> = vec![Vec::new(); mixtures.len()];
        let keep = CompileOptions::default().keeping(names.iter().copied());
        let mut session = Plan::of(self.model, &keep).map_err(exec)?.session();
        let mut squares: HashMap<&str, Vec<f64>> = HashMap::new();
        let mut done = 0;
        for (x, labels) in batches {
            self.cancel.check()?;
            let (_, values) = session.capture(&x, &names).map_err(exec)?;
            for (node, input) in &readers {
                let Some(value) = values.get(*input) else { continue };
                let sums = channel_squares(value).map_err(exec)?;
                let all = squares.entry(node.name.as_str()).or_insert_with(|| vec![0.0; sums.len()]);
                all.iter_mut().zip(sums).for_each(|(a, s)| *a += f64::from(s));
            }
            for (mixture, sum) in mixtures.iter().zip(&mut sums) {
                let new = added(mixture, graph, &values).map_err(exec)?;
                sum.resize(new.len(), 0.0);
                sum.iter_mut().zip(new).for_each(|(a, s)| *a += s);
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
        for (mixture, sum) in mixtures.iter().zip(sums) {
            let router = graph.node(mixture.router).name.clone();
            out.activation.insert(router, sum.into_iter().map(|v| v as f32).collect());
        }
        Ok(out)
    }
}

/// Adds a parameter's rows to those of its node: the weight's first, then the bias's.
fn add(all: &mut HashMap<String, Vec<f32>>, node: &Node, rows: &[f32]) {
    match all.get_mut(&node.name) {
        Some(have) => have.iter_mut().zip(rows).for_each(|(a, b)| *a += b),
        None => drop(all.insert(node.name.clone(), rows.to_vec())),
    }
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
}
