//! The published networks compute what their authors' weights computed in PyTorch: logits of four images, and the
//! number of right answers on the whole CIFAR-10 test set.

mod common;

use candle_core::{Device, Tensor};
use paring::data::{self, Dataset};
use paring::eval::score_with;
use paring::exec::reference::{self, Capture, Mode};
use paring::exec::{Cancel, CompileOptions, Plan};
use paring::model::{LoadOptions, Model, load};
use std::path::Path;

/// name, PyTorch file, safetensors file
const MODELS: [(&str, &str, &str); 3] = [
    ("resnet20", "resnet20/resnet20-12fca82f.th", "resnet20/resnet20.safetensors"),
    ("resnet56", "resnet56/resnet56-4bfd9763.th", "resnet56/resnet56.safetensors"),
    ("vit_cifar10", "vit_cifar10/vit_cifar10.pth", "vit_cifar10/vit_cifar10.safetensors"),
];

fn expected(real: &Path, model: &str) -> serde_json::Value {
    let text = std::fs::read_to_string(real.join("expected/expected.json")).unwrap();
    serde_json::from_str::<serde_json::Value>(&text).unwrap()[model].clone()
}

fn test_set(real: &Path, limit: usize) -> Dataset {
    data::open(real.join("cifar10/test_batch.bin").to_str().unwrap(), limit).unwrap()
}

fn open(path: &Path) -> Model {
    load(path, &LoadOptions::default()).unwrap()
}

/// The stored logits are rounded to four decimals, hence the half digit more.
fn assert_logits(found: &Tensor, want: &serde_json::Value, what: &str) {
    let want: Vec<Vec<f32>> = serde_json::from_value(want["logits_first4"].clone()).unwrap();
    let found = found.to_vec2::<f32>().unwrap();
    assert_eq!(found.len(), want.len());
    for (f, w) in found.iter().flatten().zip(want.iter().flatten()) {
        assert!((f - w).abs() <= 1.5e-4, "{what}: {f} is not {w}");
    }
}

#[test]
fn logits_agree_with_pytorch() {
    let Some(real) = common::real() else { return };
    let set = test_set(&real, 4);
    for (name, pickle, safetensors) in MODELS {
        let want = expected(&real, name);
        for file in [pickle, safetensors] {
            let model = open(&real.join(file));
            let (x, _) = set.batch(0..4, &model.info.preprocess).unwrap();
            let params = reference::tensors(&model.params, &Device::Cpu).unwrap();
            let logits = reference::forward(&model.graph, &params, &x, Mode::Eval, &mut Capture::none()).unwrap();
            assert_logits(&logits, &want, &format!("{file}, reference"));
            let plan = Plan::of(&model, &CompileOptions::default()).unwrap();
            assert_logits(&plan.run(&x).unwrap(), &want, &format!("{file}, plan"));
        }
    }
}

#[test]
fn correct_counts_on_the_test_set_are_the_published_ones() {
    let Some(real) = common::real() else { return };
    let set = test_set(&real, 0);
    for (name, _, safetensors) in MODELS {
        let want = expected(&real, name);
        let model = open(&real.join(safetensors));
        let plan = Plan::of(&model, &CompileOptions::default()).unwrap();
        let run =
            score_with(&set, &model.info.preprocess, 128, &Cancel::default(), |x| plan.run(x), &mut |_, _| {}).unwrap();
        let stored = std::fs::read(real.join(format!("expected/{name}.pred.u16"))).unwrap();
        let stored: Vec<u16> = stored.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
        assert_eq!(run.predictions.len(), stored.len());
        let differ = run.predictions.iter().zip(&stored).filter(|(a, b)| a != b).count();
        let correct = run.correct.iter().filter(|c| **c).count() as i64;
        let expected = want["top1_correct"].as_i64().unwrap();
        println!("{name}: {correct} correct, published {expected}, {differ} predictions differ");
        assert!((correct - expected).abs() <= 2 && differ <= 3, "{name}: {correct} of {expected}, {differ} differ");
        let loss = want["mean_cross_entropy"].as_f64().unwrap();
        assert!((run.metrics.loss - loss).abs() < 1e-4, "{name}: loss {} of {loss}", run.metrics.loss);
    }
}
