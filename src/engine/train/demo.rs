//! The bundled demo models: what they are, how they are trained, and the trained weights.
//!
//! `assets/README.md` states the command, the seed and the quality that was measured. What the language model has of its own: `language`.

mod language;

pub use language::{CONTEXT, Fluency, Yardsticks};

use super::{Cycle, Progress, Recipe, TrainError};
use crate::data::{DataError, Dataset, synthetic};
use crate::exec::{Cancel, CompileOptions, Plan};
use crate::graph::Precisions;
use crate::model::export::Manifest;
use crate::model::families::{CifarResnetSpec, VitDims, VitSpec};
use crate::model::formats;
use crate::model::{self, FamilySpec, LoadOptions, Model, ModelError, ModelInfo, Origin, ParamStore, Preprocess};
use candle_core::{D, Tensor};
use std::path::Path;
use std::sync::Arc;

/// Which demo model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DemoModel {
    /// A small timm-style Vision Transformer.
    Vit,
    /// A small CIFAR-style ResNet.
    Cnn,
    /// A small Llama.
    Lm,
}

impl DemoModel {
    pub const ALL: [DemoModel; 3] = [DemoModel::Vit, DemoModel::Cnn, DemoModel::Lm];

    pub fn name(self) -> &'static str {
        match self {
            DemoModel::Vit => "demo_vit",
            DemoModel::Cnn => "demo_cnn",
            DemoModel::Lm => "demo_lm",
        }
    }

    /// What its weights are kept in.
    pub fn format(self) -> &'static str {
        match self {
            DemoModel::Vit | DemoModel::Cnn => "safetensors",
            // With its vocabulary.
            DemoModel::Lm => "gguf",
        }
    }

    /// The word for it on the command line.
    pub fn word(self) -> &'static str {
        match self {
            DemoModel::Vit => "vit",
            DemoModel::Cnn => "cnn",
            DemoModel::Lm => "lm",
        }
    }

    /// The one that is called `word`.
    ///
    /// # Errors
    /// Another word, in words.
    pub fn named(word: &str) -> Result<DemoModel, String> {
        let words = || DemoModel::ALL.map(|kind| format!("demo:{}", kind.word())).join(", ");
        let found = DemoModel::ALL.into_iter().find(|kind| kind.word() == word);
        found.ok_or_else(|| format!("no bundled model `{}`; hint: one of {}", model::printable(word), words()))
    }

    pub fn spec(self) -> FamilySpec {
        let classes = synthetic::CLASSES.len();
        match self {
            DemoModel::Vit => FamilySpec::Vit(VitSpec::timm_mean(VitDims {
                image: 32,
                patch: 4,
                dim: 64,
                depth: 4,
                heads: 4,
                mlp: 128,
                classes,
            })),
            DemoModel::Cnn => {
                FamilySpec::CifarResnet(CifarResnetSpec { blocks: 2, widths: [16, 32, 64], classes, image: 32 })
            }
            DemoModel::Lm => language::spec(),
        }
    }

    pub fn recipe(self) -> Recipe {
        match self {
            DemoModel::Vit => Recipe {
                cycles: vec![
                    Cycle { steps: 1_500, rate: 2e-3, warmup: 100 },
                    Cycle { steps: 1_200, rate: 1.5e-3, warmup: 50 },
                ],
                batch: 40,
                decay: 0.05,
                smoothing: 0.0,
            },
            DemoModel::Cnn => Recipe {
                cycles: vec![Cycle { steps: 320, rate: 4e-3, warmup: 50 }],
                batch: 50,
                decay: 0.02,
                smoothing: 0.0,
            },
            DemoModel::Lm => Recipe {
                cycles: vec![Cycle { steps: 1_500, rate: 4e-3, warmup: 100 }],
                batch: 8,
                decay: 0.02,
                smoothing: 0.0,
            },
        }
    }
}

/// The seed of the bundled weights.
pub const SEED: u64 = 1;

/// How synthetic images are fed to the demo models that take such.
pub fn preprocess() -> Preprocess {
    let (mean, std) = (synthetic::MEAN, synthetic::STD);
    Preprocess { mean, std, origin: "demo model".into(), ..Preprocess::imagenet([32, 32]) }
}

/// The bundled model of `kind`.
///
/// # Errors
/// None but a damaged program: the bytes are compiled in.
pub fn load(kind: DemoModel) -> Result<Model, ModelError> {
    let bytes: &'static [u8] = match kind {
        DemoModel::Vit => include_bytes!("../../../assets/demo_vit.safetensors"),
        DemoModel::Cnn => include_bytes!("../../../assets/demo_cnn.safetensors"),
        DemoModel::Lm => include_bytes!("../../../assets/demo_lm.gguf"),
    };
    model::load_bytes(kind.name(), bytes, &LoadOptions::default())
}

/// A trained demo model and how good it is.
#[derive(Debug, Clone)]
pub struct Trained {
    pub model: Model,
    pub quality: Quality,
    /// BLAKE3 (hex) of the file that was written.
    pub hash: String,
}

/// How good a model is on the synthetic evaluation split.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Quality {
    /// Right answers, and images.
    Images {
        correct: usize,
        images: usize,
    },
    Text(Fluency),
}

impl std::fmt::Display for Quality {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Quality::Images { correct, images } => write!(f, "{correct} of {images} right"),
            Quality::Text(Fluency { nats, tokens, yardsticks: Yardsticks { single, pairs, choices } }) => write!(
                f,
                "{nats:.4} nats/token on {tokens} tokens (tokens alone {single:.4}, pairs of them {pairs:.4}, the stories' own \
                 choices {choices:.4})"
            ),
        }
    }
}

impl Quality {
    fn json(&self) -> serde_json::Value {
        match self {
            Quality::Images { correct, images } => {
                serde_json::json!({ "data": "synthetic:eval", "images": images, "correct": correct })
            }
            Quality::Text(Fluency { nats, tokens, yardsticks: Yardsticks { single, pairs, choices } }) => {
                serde_json::json!({
                    "data": "synthetic:eval", "window": CONTEXT, "tokens": tokens, "nats": nats,
                    "single": single, "pairs": pairs, "choices": choices,
                })
            }
        }
    }
}

/// The synthetic set's training images, one after the other. Every step draws fresh ones: there are no epochs, no
/// augmentation and no over-fitting.
pub(super) fn drawn(prep: &Preprocess) -> impl FnMut(usize) -> Result<(Tensor, Vec<u32>), DataError> {
    let mut next = 0;
    move |size| {
        let at = next;
        next += size as u64;
        synthetic::batch(synthetic::Split::Train, at, size, prep)
    }
}

/// Trains a demo model from scratch (minutes on one core), measures it on the evaluation split and writes it to `out`
/// with its recipe and how good it is.
///
/// # Errors
/// Cancellation, a loss that is no number, a file that cannot be written.
pub fn train(
    kind: DemoModel,
    seed: u64,
    out: &Path,
    cancel: &Cancel,
    progress: &mut dyn FnMut(Progress),
) -> Result<Trained, TrainError> {
    let recipe = kind.recipe();
    let (model, quality) = match kind {
        DemoModel::Vit | DemoModel::Cnn => {
            let prep = preprocess();
            let params = super::train(&kind.spec(), &recipe, seed, &mut drawn(&prep), cancel, progress)?;
            let model = assemble(kind, params, Origin::default())?;
            let eval = synthetic::dataset(synthetic::Split::Eval, 0);
            let quality = Quality::Images { correct: correct(&model, &eval, cancel)?, images: eval.len() };
            (model, quality)
        }
        DemoModel::Lm => {
            let origin = language::origin(kind.name())?;
            let tokenizer = language::tokenizer(&origin, kind.name())?;
            let windows = &mut language::drawn(&tokenizer, CONTEXT);
            let params = super::train(&kind.spec(), &recipe, seed, windows, cancel, progress)?;
            let model = assemble(kind, params, origin)?;
            let quality = Quality::Text(language::measured(&model, &tokenizer, cancel)?);
            (model, quality)
        }
    };
    let manifest = Manifest {
        recipe: serde_json::json!({
            "command": format!("paring demo train {} --seed {seed}", kind.word()),
            "seed": seed,
            "cycles": recipe.cycles.iter().map(|c| [c.steps as f64, c.rate, c.warmup as f64]).collect::<Vec<_>>(),
            "batch": recipe.batch,
            "decay": recipe.decay,
            "smoothing": recipe.smoothing,
        }),
        figures: quality.json(),
        ..Manifest::default()
    };
    let hash = formats::write(out, &model, &manifest, kind.format())?.hash;
    Ok(Trained { model, quality, hash })
}

/// How many images the model puts into the right class.
fn correct(model: &Model, data: &Dataset, cancel: &Cancel) -> Result<usize, TrainError> {
    let mut session = Plan::of(model, &CompileOptions::default())?.session();
    let mut correct = 0;
    for from in (0..data.len()).step_by(100) {
        cancel.check()?;
        let (x, labels) = data.batch(from..(from + 100).min(data.len()), &model.info.preprocess)?;
        let best = session.run(&x)?.argmax(D::Minus1)?.to_vec1::<u32>()?;
        correct += best.iter().zip(labels.classes()).filter(|(a, b)| a == b).count();
    }
    Ok(correct)
}

fn assemble(kind: DemoModel, params: ParamStore, origin: Origin) -> Result<Model, crate::graph::GraphError> {
    let spec = kind.spec();
    let hash = params.hash();
    let text = spec.family().of_text();
    Ok(Model {
        graph: Arc::new(spec.build()?),
        params,
        precision: Precisions::default(),
        origin,
        info: ModelInfo {
            name: kind.name().into(),
            family: spec.family(),
            classes: spec.classes(),
            class_names: (!text).then(synthetic::class_names),
            preprocess: if text { Preprocess::none() } else { preprocess() },
            source: Default::default(),
            hash,
            notes: Vec::new(),
            context: text.then_some(CONTEXT),
        },
    })
}
