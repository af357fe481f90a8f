//! Every precision: what is stored, what runs, and that a file opened again gives the very same outputs. Accuracy of
//! weight-only quantization on the published networks.

mod common;

use candle_core::{Device, Tensor};
use paring::data;
use paring::eval::score_with;
use paring::exec::{Cancel, CompileOptions, Plan};
use paring::graph::{Precision, Runs};
use paring::model::families::{CifarResnetSpec, VitDims, VitSpec};
use paring::model::{FamilySpec, LoadOptions, Model, export, load, random};
use paring::{quant, recover};

fn models() -> Vec<Model> {
    let cnn = CifarResnetSpec { blocks: 1, widths: [5, 8, 12], classes: 5, image: 16 };
    let dims = VitDims { image: 16, patch: 4, dim: 24, depth: 2, heads: 3, mlp: 75, classes: 7 };
    let vit = VitSpec::timm(dims);
    vec![random(&FamilySpec::CifarResnet(cnn), 1), random(&FamilySpec::Vit(vit), 2)]
}

/// Every layer at `p`; static ones with the range of the very images that are run.
fn set(model: &mut Model, p: Precision) {
    model.precision = quant::everywhere(&model.graph, p);
    let mut once = |i: usize| Ok::<_, paring::exec::ExecError>((i == 0).then(images));
    recover::calibrate(model, quant::Calibration::Mse, &mut once).unwrap();
}

fn images() -> Tensor {
    let x: Vec<f32> = (0..2 * 3 * 16 * 16).map(|i| ((i * 7919 % 1000) as f32 - 500.0) / 250.0).collect();
    Tensor::from_vec(x, (2, 3, 16, 16), &Device::Cpu).unwrap()
}

fn run(model: &Model) -> (Plan, Vec<Vec<f32>>) {
    let plan = Plan::of(model, &CompileOptions::default()).unwrap();
    let out = plan.run(&images()).unwrap().to_vec2().unwrap();
    (plan, out)
}

#[test]
fn files_hold_the_bytes_that_were_promised_and_run_bit_for_bit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    for mut model in models() {
        let mut sizes = Vec::new();
        for p in Precision::menu(false).iter().copied() {
            set(&mut model, p);
            export::safetensors(&path, &model, &export::Manifest::default()).unwrap();
            let bytes = std::fs::read(&path).unwrap();
            let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
            let stored = quant::stored_total(&model.graph, &model.precision);
            assert_eq!((bytes.len() - 8 - header) as u64, stored, "{}", p.label());
            // Other programs read it as well.
            let theirs = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            assert!(theirs.len() >= model.params.len(), "{}", p.label());

            let back = load(&path, &LoadOptions::default()).unwrap();
            assert_eq!(back.precision, model.precision);
            let held: u64 = back.params.iter().map(|(_, p)| p.stored_bytes()).sum();
            assert_eq!(held, stored, "{}", p.label());
            assert_eq!(run(&back).1, run(&model).1, "{}", p.label());
            // A layer set back to f32 is stored in f32 again.
            let mut wide = back.clone();
            wide.precision = Default::default();
            export::safetensors(&path, &wide, &export::Manifest::default()).unwrap();
            let again = load(&path, &LoadOptions::default()).unwrap();
            assert_eq!(run(&again).1, run(&wide).1, "{}", p.label());
            let held: u64 = again.params.iter().map(|(_, p)| p.stored_bytes()).sum();
            assert_eq!(held, quant::stored_total(&model.graph, &Default::default()));
            sizes.push((stored, p));
        }
        let of = |p| sizes.iter().find(|(_, q)| *q == p).unwrap().0;
        assert!(of(Precision::W4) < of(Precision::W4g32) && of(Precision::W4g32) < of(Precision::W8));
        assert_eq!(of(Precision::W8), of(Precision::Fp8));
        assert!(of(Precision::Lut2) < of(Precision::Lut3) && of(Precision::Lut3) < of(Precision::Lut4));
        assert!(of(Precision::W8) < of(Precision::F16) && of(Precision::F16) < of(Precision::F32));
    }
}

#[test]
fn weights_that_are_unpacked_say_so_and_equal_rounded_weights_in_f32() {
    for mut model in models() {
        let exact = run(&model).1;
        for p in Precision::menu(false).iter().copied() {
            set(&mut model, p);
            let (plan, out) = run(&model);
            let layers: Vec<_> = plan.steps().iter().filter(|s| s.precision == p).collect();
            assert!(p == Precision::F32 || layers.len() == quant::choosable(&model.graph).len());
            for s in &layers {
                let unpacked = s.kernel.contains(&format!("({} unpacked)", p.label()));
                assert_eq!(unpacked, p.runs() == Runs::Simulated, "{}", s.kernel);
                assert_eq!(s.held_bytes > s.weight_bytes, unpacked, "{} {}", s.name, s.kernel);
                assert_eq!(s.kernel.contains("u8i8"), p.int8_products(), "{}", s.kernel);
            }
            assert_eq!(out == exact, p == Precision::F32, "{}", p.label());
            // 8-bit floats round what goes in, too.
            if p.runs() == Runs::Simulated && p != Precision::Fp8 {
                let mut rounded = model.clone();
                rounded.precision = Default::default();
                for node in quant::choosable(&model.graph) {
                    let name = &node.params[0].name;
                    let weight = model.params.get(name).unwrap().stored_in(p.weights());
                    rounded.params.insert(name.clone(), weight);
                }
                assert_eq!(run(&rounded).1, out, "{}", p.label());
            }
        }
    }
}

/// A file that says less than what runs would be another model.
#[test]
fn fp8_is_not_written_as_onnx_and_the_way_out_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.onnx");
    let mut model = models().remove(0);
    model.precision.set("conv1", Precision::Fp8);
    let refused = paring::model::export_onnx(&path, &model, &export::Manifest::default()).unwrap_err().to_string();
    assert!(
        ["`conv1`", "fp8", "opset 19", "hint: export as safetensors"].iter().all(|w| refused.contains(w)),
        "{refused}"
    );
    assert!(!path.exists());
    model.precision.set("conv1", Precision::W4);
    assert!(paring::model::export_onnx(&path, &model, &export::Manifest::default()).is_ok());
}

#[test]
fn what_f16_cannot_hold_is_refused_by_name() {
    let mut model = models().remove(0);
    let conv = model.params.get("conv1.weight").unwrap();
    let mut values = conv.values().into_owned();
    values[3] = 1e5;
    let big = paring::model::Param::owned(conv.shape().to_vec(), values).unwrap();
    model.params.insert("conv1.weight", big);
    model.precision.set("conv1", Precision::F16);
    let text = Plan::of(&model, &CompileOptions::default()).unwrap_err().to_string();
    assert!(text.contains("conv1"), "{text}");
    model.precision.set("conv1", Precision::Bf16);
    assert!(Plan::of(&model, &CompileOptions::default()).is_ok());
}

/// PyTorch 2.15 gives these counts with weights rounded as documented in `model::int8` and `model::int4`, on the first 2,000
/// images and on all (`conformance/real_counts.py`).
#[test]
fn weight_only_accuracy_is_that_of_the_reference() {
    let Some(real) = common::real() else { return };
    let (part, off) = if common::full() { (0, 5) } else { (2000, 2) };
    let set = data::open(real.join("cifar10/test_batch.bin").to_str().unwrap(), part).unwrap();
    let references = [
        ("resnet20", [1832, 9177], [1806, 9012]),
        ("resnet56", [1863, 9345], [1842, 9222]),
        ("vit_cifar10", [1445, 7375], [1407, 7274]),
    ];
    for (name, w8, w4) in references {
        let mut model = load(&real.join(format!("{name}/{name}.safetensors")), &LoadOptions::default()).unwrap();
        for (precision, want) in [(Precision::W8, w8), (Precision::W4, w4)] {
            model.precision = quant::everywhere(&model.graph, precision);
            let plan = Plan::of(&model, &CompileOptions::default()).unwrap();
            let run = |x: &_| plan.run(x);
            let run = score_with(&set, &model.info.preprocess, 128, &Cancel::default(), run, &mut |_, _| {}).unwrap();
            let correct = run.correct().iter().filter(|c| **c).count() as i64;
            let want: i64 = want[usize::from(common::full())];
            println!("{name} {}: {correct} of {} correct", precision.label(), set.len());
            assert!((correct - want).abs() <= off, "{name} {}: {correct}, expected {want}", precision.label());
        }
    }
}
