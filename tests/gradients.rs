//! Gradients of whole networks through our own kernels, held against PyTorch's and against those of the definitions.
//!
//! PyTorch's: `tests/conformance/make_gradients.py`. Not here: single kernels, and differences (the engine's own tests).

#[path = "common/mixed.rs"]
mod mixed;

use candle_core::{Device, Tensor, Var};
use mixed::mixed;
use paring::exec::candle::{self, Capture, Mode, TensorMap};
use paring::exec::tape::{Tape, Weights};
use paring::graph::{ParamRole, param_shapes};
use paring::model::{LoadOptions, Model, load};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/conformance")
}

fn weights(model: &Model) -> Weights {
    model.params.iter().map(|(name, p)| (name.to_owned(), p.values().into_owned())).collect()
}

/// The largest difference, as a part of the largest of both networks' values.
fn off(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let top = b.iter().fold(0f32, |m, v| m.max(v.abs()));
    a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0f32, f32::max) / top.max(1e-20)
}

/// By the definitions: the output, and gradients of `Σ seed · output`.
fn defined(model: &Model, x: &Tensor, seed: &[f32], mode: Mode) -> (Vec<f32>, HashMap<String, Vec<f32>>) {
    let flat = |t: &Tensor| t.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    let mut vars = HashMap::new();
    for (name, p) in model.params.iter() {
        let t = Tensor::from_slice(&p.values(), p.shape(), &Device::Cpu).unwrap();
        vars.insert(name.to_owned(), Var::from_tensor(&t).unwrap());
    }
    let map: TensorMap = vars.iter().map(|(k, v)| (k.clone(), v.as_tensor().clone())).collect();
    let y = candle::forward(&model.graph, &map, x, mode, &mut Capture::none()).unwrap();
    let seed = Tensor::from_slice(seed, y.dims(), &Device::Cpu).unwrap();
    let grads = (&y * seed).unwrap().sum_all().unwrap().backward().unwrap();
    (flat(&y), vars.iter().filter_map(|(k, v)| Some((k.clone(), flat(grads.get(v)?)))).collect())
}

#[test]
fn every_family_has_the_gradients_of_its_definition() {
    #[derive(serde::Deserialize)]
    struct Expected {
        fixtures: std::collections::BTreeMap<String, Fixture>,
    }
    #[derive(serde::Deserialize)]
    struct Fixture {
        file: String,
        image: usize,
        options: Options,
    }
    #[derive(serde::Deserialize)]
    struct Options {
        image: Option<usize>,
        heads: Option<usize>,
    }
    let text = std::fs::read_to_string(folder().join("expected.json")).unwrap();
    let all: Expected = serde_json::from_str(&text).unwrap();
    let mut tensors = 0;
    for (name, f) in &all.fixtures {
        let options = LoadOptions { arch: None, image: f.options.image, heads: f.options.heads };
        let model = load(&folder().join("fixtures").join(name).join(&f.file), &options).unwrap();
        for mode in [Mode::Eval, Mode::Batch] {
            // Where a value is so near to a kink that rounding takes it over, the gradient is another: with other images it is not.
            let mut tries = Vec::new();
            while tries.len() < 5 && tries.last().is_none_or(|by| *by >= 1e-4) {
                tries.push(differs(name, &model, f.image, tries.len(), mode));
            }
            assert!(tries.last().is_some_and(|by| *by < 1e-4), "{name} {mode:?}: {tries:?}");
            tensors += model.params.len();
        }
    }
    println!("{tensors} gradients of {} networks", all.fixtures.len());
    assert!(tensors > 3000);
}

/// How far the gradients for the `k`-th images are from the definition's, as a part of the network's largest: what cancels out in one tensor is
/// rounding.
fn differs(name: &str, model: &Model, side: usize, k: usize, mode: Mode) -> f32 {
    // Batch norms of fewer images divide by differences of single values.
    let n = 8;
    let count = n * 3 * side * side;
    let x = Tensor::from_vec(mixed(count, k * count), (n, 3, side, side), &Device::Cpu).unwrap();
    let (tape, weights) = (Tape::of(&model.graph).unwrap(), weights(model));
    let ready = tape.ready(&weights).unwrap();
    let trace = ready.forward(&x, mode).unwrap();
    let seed = mixed(trace.output(&tape).len(), 7);
    let (y, expected) = defined(model, &x, &seed, mode);
    assert!(off(trace.output(&tape), &y) < 1e-4, "{name} {mode:?}: {}", off(trace.output(&tape), &y));
    let made = ready.backward(trace, vec![(model.graph.output, seed)], false).unwrap().params;
    let top = expected.values().flatten().fold(0f32, |m, v| m.max(v.abs()));
    let mut worst = 0f32;
    for (_, node) in model.graph.live() {
        for (p, (role, _)) in node.params.iter().zip(param_shapes(&node.op)) {
            let Some(expected) = expected.get(&p.name).filter(|_| !matches!(role, ParamRole::Mean | ParamRole::Var))
            else {
                continue;
            };
            let made = made.get(&p.name).unwrap_or_else(|| panic!("{name}: `{}` has no gradient", p.name));
            worst = made.iter().zip(expected).map(|(a, b)| (a - b).abs() / top).fold(worst, f32::max);
        }
    }
    worst
}

fn held(path: &Path) -> HashMap<String, Vec<f32>> {
    let bytes = std::fs::read(path).unwrap();
    let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let values = |t: &safetensors::tensor::TensorView<'_>| {
        t.data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect::<Vec<f32>>()
    };
    file.tensors().iter().map(|(name, t)| (name.clone(), values(t))).collect()
}

#[test]
fn gradients_are_those_of_pytorch() {
    for name in ["resnet", "vit"] {
        let dir = folder().join("gradients");
        let options = LoadOptions { heads: Some(4), ..LoadOptions::default() };
        let model = load(&dir.join(format!("{name}.safetensors")), &options).unwrap();
        let told = held(&dir.join(format!("{name}.gradients.safetensors")));
        let weights = weights(&model);
        let side = 32;
        let x = &told["input"];
        let x = Tensor::from_slice(x, (x.len() / (3 * side * side), 3, side, side), &Device::Cpu).unwrap();
        let tape = Tape::of(&model.graph).unwrap();
        let ready = tape.ready(&weights).unwrap();
        let trace = ready.forward(&x, Mode::Batch).unwrap();
        assert!(off(trace.output(&tape), &told["output"]) < 1e-4, "{name}");
        let seed = told["seed"].clone();
        let made = ready.backward(trace, vec![(model.graph.output, seed)], true).unwrap();
        assert!(off(&made.input.unwrap(), &told["input_gradient"]) < 1e-4, "{name}");
        let mut seen = 0;
        for (param, expected) in told.iter().filter_map(|(k, v)| Some((k.strip_prefix("gradient:")?, v))) {
            let by =
                off(made.params.get(param).unwrap_or_else(|| panic!("{name}: no gradient of `{param}`")), expected);
            assert!(by < 1e-4, "{name} `{param}`: {by}");
            seen += 1;
        }
        assert!(seen > 20, "{name}: {seen}");
    }
}
