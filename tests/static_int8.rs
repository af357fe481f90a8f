//! Static int8: calibrated input ranges, what runs with them, and accuracy by calibration method.

mod common;

use candle_core::{Device, Tensor};
use paring::data;
use paring::eval::score_with;
use paring::exec::{Cancel, CompileOptions, ExecError, Plan};
use paring::graph::{Calibration, Precision};
use paring::model::families::CifarResnetSpec;
use paring::model::{FamilySpec, LoadOptions, Model, export, load, random};
use paring::prune::{self, Action, Target};
use paring::quant;
use paring::recover::{self, RepairOptions, compress};

fn small() -> Model {
    let cnn = CifarResnetSpec { blocks: 1, widths: [6, 8, 12], classes: 5, image: 16 };
    random(&FamilySpec::CifarResnet(cnn), 1)
}

fn batch(seed: usize) -> Tensor {
    let x: Vec<f32> = (0..4 * 3 * 16 * 16).map(|i| (((i + seed) * 7919 % 1000) as f32 - 400.0) / 250.0).collect();
    Tensor::from_vec(x, (4, 3, 16, 16), &Device::Cpu).unwrap()
}

fn calibrate(model: &mut Model, how: Calibration) {
    recover::calibrate(model, how, &mut |i| Ok::<_, ExecError>((i < 3).then(|| batch(i)))).unwrap();
}

fn logits(model: &Model, x: &Tensor) -> Vec<Vec<f32>> {
    Plan::of(model, &CompileOptions::default()).unwrap().run(x).unwrap().to_vec2().unwrap()
}

#[test]
fn without_a_range_a_layer_is_refused_by_name() {
    let mut model = small();
    model.precision.set("layer2.0.conv1", Precision::Int8Static);
    let text = Plan::of(&model, &CompileOptions::default()).unwrap_err().to_string();
    assert!(text.contains("layer2.0.conv1") && text.contains("hint"), "{text}");
}

#[test]
fn ranges_are_those_of_each_layers_input_and_shared_by_what_reads_it() {
    let mut model = small();
    model.precision = quant::everywhere(&model.graph, Precision::Int8Static);
    calibrate(&mut model, Calibration::MinMax);
    let inputs = &model.precision.inputs;
    assert_eq!(inputs.len(), quant::choosable(&model.graph).len());
    // The image itself, over all three batches.
    let all: Vec<f32> = (0..3).flat_map(|i| batch(i).flatten_all().unwrap().to_vec1::<f32>().unwrap()).collect();
    assert_eq!(inputs["conv1"], quant::Range::of(&all));
    // What follows a ReLU has nothing below zero.
    assert!(inputs["layer1.0.conv2"].lo == 0.0 && inputs["layer1.0.conv2"].hi > 0.0);
    for how in Calibration::ALL {
        let mut other = model.clone();
        calibrate(&mut other, how);
        for (name, r) in &other.precision.inputs {
            assert!(r.lo >= inputs[name].lo && r.hi <= inputs[name].hi && r.hi > r.lo, "{how:?} {name} {r:?}");
        }
    }
    // Another precision drops the range.
    model.precision.set("conv1", Precision::Int8);
    assert!(!model.precision.inputs.contains_key("conv1"));
}

#[test]
fn what_runs_says_so_is_near_dynamic_int8_and_survives_a_file_bit_for_bit() {
    let mut model = small();
    let exact = logits(&model, &batch(0));
    model.precision = quant::everywhere(&model.graph, Precision::Int8);
    let dynamic = logits(&model, &batch(0));
    model.precision = quant::everywhere(&model.graph, Precision::Int8Static);
    calibrate(&mut model, Calibration::MinMax);
    let plan = Plan::of(&model, &CompileOptions::default()).unwrap();
    for s in plan.steps().iter().filter(|s| s.precision == Precision::Int8Static) {
        assert!(s.kernel.contains("u8i8") && s.kernel.ends_with("(static)"), "{}", s.kernel);
    }
    let ours = logits(&model, &batch(0));
    let off = |a: &[Vec<f32>]| {
        let d = a.iter().flatten().zip(exact.iter().flatten()).map(|(a, b)| ((a - b) as f64).powi(2));
        d.sum::<f64>().sqrt()
    };
    assert_ne!(ours, dynamic);
    assert!(off(&ours) < 3.0 * off(&dynamic) + 1e-6, "{} against {}", off(&ours), off(&dynamic));

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    export::safetensors(&path, &model, &export::Manifest::default()).unwrap();
    let back = load(&path, &LoadOptions::default()).unwrap();
    assert_eq!(back.precision, model.precision);
    assert_eq!(logits(&back, &batch(1)), logits(&model, &batch(1)));
}

#[test]
fn compressing_calibrates_what_was_decided() {
    let model = small();
    let groups = prune::groups(&model.graph);
    let static_of = |name: &str| (Target::Layer(name.into()), Action::Precision { precision: Precision::Int8Static });
    let calib = data::open("synthetic:calib", 64).unwrap();
    let mut model16 = model.clone();
    model16.info.preprocess.size = [16, 16];
    let options = RepairOptions { range_images: 40, ..RepairOptions::default() };
    let actions = [static_of("conv1"), static_of("layer1.0.conv2")];
    let run = || compress(&model16, &groups, &actions, &calib, &options, &Cancel::default(), &mut |_| {}).unwrap();
    let out = run();
    assert_eq!(out.precision.inputs.keys().collect::<Vec<_>>(), ["conv1", "layer1.0.conv2"]);
    assert!(Plan::of(&out, &CompileOptions::default()).is_ok());
    assert_eq!(run().precision, out.precision, "the same again");
}

/// Every convolution and linear layer, ranges from 512 training images.
#[test]
fn accuracy_by_calibration_method_on_a_published_network() {
    let Some(real) = common::real() else { return };
    // Of the first 2,000 images and of all: 1833 and 9173 in f32; half a point for rounding activations with one code a tensor.
    let (part, least) = if common::full() { (0, 9123) } else { (2000, 1823) };
    let set = data::open(real.join("cifar10/test_batch.bin").to_str().unwrap(), part).unwrap();
    let calib = data::open(real.join("cifar10/calib_5000.bin").to_str().unwrap(), 512).unwrap();
    let mut model = load(&real.join("resnet20/resnet20.safetensors"), &LoadOptions::default()).unwrap();
    let prep = model.info.preprocess.clone();
    for how in Calibration::ALL {
        model.precision = quant::everywhere(&model.graph, Precision::Int8Static);
        recover::calibrate(&mut model, how, &mut |i| {
            let picks = i * 64..((i + 1) * 64).min(calib.len());
            let x = (!picks.is_empty()).then(|| calib.batch(picks, &prep).unwrap().0);
            Ok::<_, ExecError>(x)
        })
        .unwrap();
        let plan = Plan::of(&model, &CompileOptions::default()).unwrap();
        let run = score_with(&set, &prep, 128, &Cancel::default(), |x| plan.run(x), &mut |_, _| {}).unwrap();
        let correct = run.correct().iter().filter(|c| **c).count();
        println!("resnet20 int8-static, {}: {correct} of {} correct", how.label(), set.len());
        assert!(correct >= least, "{how:?}: {correct}");
    }
}
