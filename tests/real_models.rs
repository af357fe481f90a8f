//! The published networks compute what their authors' weights computed in PyTorch: logits of four images, and the
//! number of right answers on the whole CIFAR-10 test set.

mod common;

use candle_core::{Device, Tensor};
use paring::data::{self, Dataset};
use paring::eval::score_with;
use paring::exec::candle::{self, Capture, Mode};
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
            let params = candle::tensors(&model.params, &Device::Cpu).unwrap();
            let logits = candle::forward(&model.graph, &params, &x, Mode::Eval, &mut Capture::none()).unwrap();
            assert_logits(&logits, &want, &format!("{file}, reference"));
            let plan = Plan::of(&model, &CompileOptions::default()).unwrap();
            assert_logits(&plan.run(&x).unwrap(), &want, &format!("{file}, plan"));
        }
    }
}

/// Compares every prediction on the whole test set with PyTorch's.
fn compare(real: &Path, name: &str, file: &str) {
    let want = expected(real, name);
    let set = test_set(real, 0);
    let model = open(&real.join(file));
    let plan = Plan::of(&model, &CompileOptions::default()).unwrap();
    let prep = &model.info.preprocess;
    let run = score_with(&set, prep, 128, &Cancel::default(), |x| plan.run(x), &mut |_, _| {}).unwrap();
    let stored = std::fs::read(real.join(format!("expected/{name}.pred.u16"))).unwrap();
    let stored: Vec<u16> = stored.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
    assert_eq!(run.predictions.len(), stored.len());
    for (key, n) in [("first1000_correct", 1000), ("top1_correct", stored.len())] {
        let differ = run.predictions.iter().zip(&stored).take(n).filter(|(a, b)| a != b).count();
        let correct = run.correct().iter().take(n).filter(|c| **c).count() as i64;
        println!("{name}: {correct} of {n} correct, {differ} predictions differ");
        assert!(differ <= 2, "{name}: {differ} of {n} predictions differ from PyTorch's");
        let expected = want[key].as_i64().unwrap();
        assert!((correct - expected).abs() <= 2, "{name}: {correct} correct, published {expected}");
    }
    let loss = want["mean_cross_entropy"].as_f64().unwrap();
    assert!((run.metrics.loss - loss).abs() < 1e-4, "{name}: loss {} of {loss}", run.metrics.loss);
}

/// 9173, 9339 and 7372 of 10,000.
#[test]
fn predictions_and_correct_counts_on_the_whole_test_set_are_the_published_ones() {
    let Some(real) = common::real() else { return };
    for (name, pickle, _) in MODELS {
        compare(&real, name, pickle);
    }
}
