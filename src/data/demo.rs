//! The bundled demo models: what they are, how they are trained, and the trained weights.
//!
//! `assets/README.md` states the command, the seed and the accuracy that was measured.

use super::synthetic;
use super::train::{Progress, Recipe, TrainError, train as run};
use crate::exec::Cancel;
use crate::graph::PrecisionPlan;
use crate::model::families::{CifarResnetSpec, TimmVitSpec, VitDims};
use crate::model::{FamilySpec, Interpolation, Model, ModelInfo, ParamStore, Preprocess};
use std::sync::Arc;

/// Which demo model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A small timm-style Vision Transformer.
    Vit,
    /// A small CIFAR-style ResNet.
    Cnn,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Kind::Vit => "demo_vit",
            Kind::Cnn => "demo_cnn",
        }
    }

    pub fn spec(self) -> FamilySpec {
        let classes = synthetic::CLASSES.len();
        match self {
            Kind::Vit => FamilySpec::TimmVit(TimmVitSpec {
                dims: VitDims { image: 32, patch: 4, dim: 64, depth: 4, heads: 4, mlp: 128, classes },
                qkv_bias: true,
                class_token: false,
                mean_pool: true,
            }),
            Kind::Cnn => {
                FamilySpec::CifarResnet(CifarResnetSpec { blocks: 2, widths: [16, 32, 64], classes, image: 32 })
            }
        }
    }

    pub fn recipe(self) -> Recipe {
        match self {
            Kind::Vit => Recipe { steps: 2_500, batch: 40, rate: 2e-3, warmup: 100, decay: 0.05, smoothing: 0.0 },
            Kind::Cnn => Recipe { steps: 700, batch: 50, rate: 4e-3, warmup: 50, decay: 0.02, smoothing: 0.0 },
        }
    }
}

/// The seed of the bundled weights.
pub const SEED: u64 = 1;

/// How synthetic images are fed to the demo models.
pub fn preprocess() -> Preprocess {
    Preprocess {
        size: [32, 32],
        resize_shorter: None,
        mean: synthetic::MEAN,
        std: synthetic::STD,
        interpolation: Interpolation::Bilinear,
        origin: "demo model".into(),
    }
}

/// Trains a demo model from scratch; minutes on one core.
///
/// # Errors
/// Cancellation, or a loss that is no number.
pub fn train(kind: Kind, seed: u64, cancel: &Cancel, progress: &mut dyn FnMut(Progress)) -> Result<Model, TrainError> {
    train_with(kind, &kind.recipe(), seed, cancel, progress)
}

/// [`train`] by another recipe.
///
/// # Errors
/// As [`train`].
pub fn train_with(
    kind: Kind,
    recipe: &Recipe,
    seed: u64,
    cancel: &Cancel,
    progress: &mut dyn FnMut(Progress),
) -> Result<Model, TrainError> {
    let params = run(&kind.spec(), &preprocess(), recipe, seed, cancel, progress)?;
    Ok(assemble(kind, params)?)
}

fn assemble(kind: Kind, params: ParamStore) -> Result<Model, crate::graph::GraphError> {
    let spec = kind.spec();
    let hash = params.hash();
    Ok(Model {
        graph: Arc::new(spec.build()?),
        params,
        precision: PrecisionPlan::default(),
        info: ModelInfo {
            name: kind.name().into(),
            family: spec.family(),
            classes: spec.classes(),
            class_names: Some(synthetic::CLASSES.iter().map(|s| (*s).to_owned()).collect()),
            preprocess: preprocess(),
            source: Default::default(),
            hash,
            notes: Vec::new(),
        },
    })
}
