//! Models of any family and size with random weights, for tests and benches. Not trained, not meant to be right.
//!
//! Invariant: the same spec and seed give the same bytes on every machine.

use super::{FamilySpec, Model, ModelInfo, Origin, Param, ParamStore, Preprocess};
use crate::graph::{Graph, ParamRole, Precisions, param_shapes};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use std::sync::Arc;

/// A model of `spec` whose weights, biases and batch-norm statistics are all random and far from trivial, scaled so
/// that activations neither vanish nor explode.
///
/// # Panics
/// When `spec`'s dimensions do not fit together; specs are written by programmers.
pub fn random(spec: &FamilySpec, seed: u64) -> Model {
    let graph = spec.build().unwrap_or_else(|e| panic!("`random` was given a spec that does not build: {e}"));
    let params = random_params(&graph, seed);
    let preprocess = match graph.input_shape().as_deref() {
        Ok(&[channels, h, w]) => Preprocess { channels, ..spec.preprocess([h, w]) },
        _ => Preprocess::none(),
    };
    let hash = params.hash();
    let family = spec.family();
    Model {
        graph: Arc::new(graph),
        params,
        precision: Precisions::default(),
        origin: Origin::default(),
        info: ModelInfo {
            name: format!("random-{}-{seed}", family.label()),
            family,
            classes: spec.classes(),
            class_names: None,
            preprocess,
            source: Default::default(),
            hash,
            notes: Vec::new(),
            context: None,
        },
    }
}

/// Random parameters for every reachable node of `graph`.
pub fn random_params(graph: &Graph, seed: u64) -> ParamStore {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut params = ParamStore::default();
    for node in &graph.nodes {
        for (p, (role, shape)) in node.params.iter().zip(param_shapes(&node.op)) {
            let n: usize = shape.iter().product();
            let fan_in: usize = shape.iter().skip(1).product();
            let (low, high) = match role {
                // Norm scales are one-dimensional; conv and linear weights get He's uniform bound.
                ParamRole::Weight if shape.len() == 1 => (0.5, 1.5),
                ParamRole::Weight => {
                    let bound = (3.0 / fan_in.max(1) as f32).sqrt();
                    (-bound, bound)
                }
                ParamRole::Bias | ParamRole::Mean => (-0.3, 0.3),
                ParamRole::Var => (0.5, 1.5),
                ParamRole::LogitScale => (0.5, 2.5),
                ParamRole::PositionMlp1 | ParamRole::PositionMlp1Bias | ParamRole::PositionMlp2 => (-0.3, 0.3),
                ParamRole::Embedding | ParamRole::PositionBias => (-0.5, 0.5),
            };
            let data = (0..n).map(|_| rng.random_range(low..high)).collect();
            if let Some(param) = Param::owned(shape, data) {
                params.insert(p.name.clone(), param);
            }
        }
    }
    params
}
