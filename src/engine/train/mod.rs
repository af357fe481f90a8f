//! Supervised training of a network: trainer, objective, optimiser, schedule and where batches come from; and with them
//! the bundled demo models ([`demo`]).
//!
//! Not here: repair after compression (`recover`). Invariant: trained weights are a function of (spec, recipe, seed,
//! batches); weights are initialised, batches asked for and steps taken in one fixed order, whatever the threads.

mod adamw;
mod augment;
mod batches;
mod checkpoint;
pub mod demo;
mod error;
mod features;
mod heal;
mod healing;
mod initial;
mod loss;
mod net;
mod objective;
mod pulse;
mod pupil;
mod schedule;

pub use batches::Batches;
pub use error::TrainError;
pub use heal::{Course, HealUpdate, Healed, Keep, Look, Patient, can_heal, heal, masked, paced, steps, usual};
pub use healing::{Heal, Healing, Length, Objective, Optimiser};
pub use pulse::{LayerPulse, Spread};
pub use schedule::Cycle;

use crate::exec::Cancel;
use crate::model::{FamilySpec, ParamStore};
use net::{Net, Part};
use objective::CrossEntropy;
use rayon::prelude::*;

/// How to train: one or more cycles, each with a schedule and a fresh optimiser (warm restarts).
#[derive(Debug, Clone, PartialEq)]
pub struct Recipe {
    pub cycles: Vec<Cycle>,
    /// Images or windows per step.
    pub batch: usize,
    /// Decoupled weight decay (Loshchilov and Hutter 2019), on conv and linear weights only, and an embedding that is one.
    pub decay: f64,
    /// Share of the target spread evenly over all classes.
    pub smoothing: f64,
}

/// Where training stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    pub step: usize,
    pub steps: usize,
    /// Of this step's batch, before its update.
    pub loss: f64,
    pub right: f64,
}

/// Parts of a batch that run in parallel, each with its own batch-norm statistics; fixed, so that the number of threads
/// changes nothing.
const SHARDS: usize = 2;
/// Trains `spec` from random weights on `batches`, on the CPU.
///
/// # Errors
/// A spec that does not build, items that cannot be had, a diverging loss, cancellation (checked before each step).
pub fn train(
    spec: &FamilySpec,
    recipe: &Recipe,
    seed: u64,
    batches: &mut Batches<'_>,
    cancel: &Cancel,
    progress: &mut dyn FnMut(Progress),
) -> Result<ParamStore, TrainError> {
    let graph = spec.build()?;
    let mut net = Net::new(&graph, seed)?;
    let (mut step, steps) = (0, recipe.cycles.iter().map(|c| c.steps).sum());
    let objective = CrossEntropy { smoothing: recipe.smoothing };
    for cycle in &recipe.cycles {
        net.forget();
        for at in 0..cycle.steps {
            cancel.check()?;
            let (x, labels) = batches(recipe.batch)?;
            let share = recipe.batch.div_ceil(SHARDS);
            // One a class, or one for each token of a window.
            let each = labels.len() / recipe.batch.max(1);
            let parts = (0..recipe.batch.div_ceil(share.max(1)))
                .into_par_iter()
                .map(|i| {
                    let (from, to) = (i * share, ((i + 1) * share).min(recipe.batch));
                    let weight = (to - from) as f64 / recipe.batch as f64;
                    let labels = labels.get(from * each..to * each).unwrap_or_default();
                    net.gradients(&graph, &x.narrow(0, from, to - from)?, labels, weight, objective)
                })
                .collect::<Result<Vec<Part>, TrainError>>()?;
            let loss: f64 = parts.iter().map(|p| p.loss).sum();
            let right: f64 = parts.iter().map(|p| p.right).sum();
            if !loss.is_finite() {
                return Err(TrainError::Diverged { step });
            }
            net.update(&parts, at, cycle, recipe.decay)?;
            step += 1;
            progress(Progress { step, steps, loss, right });
        }
    }
    net.settle_statistics(&graph, batches, recipe.batch, cancel)?;
    net.into_store(&graph)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::families::CifarResnetSpec;

    fn recipe(cycles: &[usize]) -> Recipe {
        let cycles = cycles.iter().map(|&steps| Cycle { steps, rate: 3e-3, warmup: 2 }).collect();
        Recipe { cycles, batch: 20, decay: 1e-2, smoothing: 0.05 }
    }

    fn spec() -> FamilySpec {
        FamilySpec::CifarResnet(CifarResnetSpec { blocks: 1, widths: [4, 8, 8], classes: 10, image: 32 })
    }

    #[test]
    fn a_few_steps_lower_the_loss_and_repeat_exactly() {
        let run = |seed| {
            let (mut losses, prep) = (Vec::new(), demo::preprocess());
            let mut each = |p: Progress| losses.push(p.loss);
            let images = &mut demo::drawn(&prep);
            let store = train(&spec(), &recipe(&[12, 3]), seed, images, &Cancel::default(), &mut each).unwrap();
            (store, losses)
        };
        let (whole, losses) = run(1);
        assert_eq!(losses.len(), 15);
        assert!(losses[9..12].iter().sum::<f64>() < losses[..3].iter().sum::<f64>(), "{losses:?}");
        let (again, same) = run(1);
        assert_eq!((whole.hash(), losses), (again.hash(), same));
        assert_ne!(whole.hash(), run(2).0.hash());
        // Running statistics were measured.
        let var = whole.get("bn1.running_var").unwrap();
        assert!(var.values().iter().all(|v| *v > 0.0 && *v != 1.0));
    }

    #[test]
    fn cancelling_stops_it() {
        let cancel = Cancel::default();
        let stop = cancel.clone();
        let mut seen = 0;
        let run = train(&spec(), &recipe(&[50]), 1, &mut demo::drawn(&demo::preprocess()), &cancel, &mut |_| {
            seen += 1;
            stop.cancel();
        });
        assert!(matches!(run, Err(TrainError::Cancelled(_))) && seen == 1);
    }
}
