//! ONNX in and out: what PyTorch's exporters write computes here what PyTorch computed, published files reach their
//! figures, exports come back exactly, and damaged files are refused.

mod common;

use candle_core::Tensor;
use paring::data;
use paring::eval::score_with;
use paring::exec::{Cancel, CompileOptions, Plan};
use paring::graph::op;
use paring::graph::{Activation, Op, Precision};
use paring::model::export::Manifest;
use paring::model::families::{CifarResnetSpec, VitDims, VitSpec};
use paring::model::formats;
use paring::model::{Family, FamilySpec, LoadOptions, Model, Preprocess, load, load_bytes, random};
use paring::prune::{Action, Target};
use rand::{Rng, SeedableRng};
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/onnx")
}

fn open(path: &Path) -> Model {
    load(path, &LoadOptions::default()).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn run(model: &Model, x: &Tensor) -> Vec<Vec<f32>> {
    Plan::of(model, &CompileOptions::default()).unwrap().run(x).unwrap().to_vec2().unwrap()
}

/// The input of `make_onnx.py`: `((7919 i + 13) mod 2003) / 667 - 1.5`.
fn formula(n: usize, side: usize) -> Tensor {
    let one = 3 * side * side;
    let v: Vec<f32> = (0..n * one).map(|i| ((i % one * 7919 + 13) % 2003) as f32 / 667.0 - 1.5).collect();
    Tensor::from_vec(v, (n, 3, side, side), &candle_core::Device::Cpu).unwrap()
}

fn assert_close(found: &[f32], want: &[f32], within: f32, what: &str) {
    assert_eq!(found.len(), want.len(), "{what}");
    let size = want.iter().fold(1f32, |m, v| m.max(v.abs()));
    for (f, w) in found.iter().zip(want) {
        assert!((f - w).abs() <= within * size, "{what}: {f} is not {w}");
    }
}

/// Every `*.onnx` of a folder that `make_onnx.py` wrote, against the logits that PyTorch computed. `PARING_ONNX_ZOO`
/// names a folder with more of them.
#[test]
fn what_pytorch_exports_computes_what_pytorch_computes() {
    let mut folders = vec![fixtures()];
    folders.extend(std::env::var_os("PARING_ONNX_ZOO").map(PathBuf::from));
    let mut bad = Vec::new();
    let mut count = 0;
    for folder in folders {
        let text = std::fs::read_to_string(folder.join("expected.json")).unwrap();
        let expected: serde_json::Map<String, serde_json::Value> = serde_json::from_str(&text).unwrap();
        for (name, want) in expected {
            count += 1;
            let model = match load(&folder.join(format!("{name}.onnx")), &LoadOptions::default()) {
                Ok(m) => m,
                Err(e) => {
                    bad.push(format!("{name}: {e}"));
                    continue;
                }
            };
            let side = want["side"].as_u64().unwrap() as usize;
            let want: Vec<f32> = serde_json::from_value(want["logits"].clone()).unwrap();
            let size = want.iter().fold(1f32, |m, v| m.max(v.abs()));
            // Two equal images: batches work too.
            for row in run(&model, &formula(2, side)) {
                let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * size;
                if row.len() != want.len() || !row.iter().zip(&want).all(near) {
                    bad.push(format!("{name}: {row:?} is not {want:?}"));
                    break;
                }
            }
        }
    }
    assert!(count >= 8 && bad.is_empty(), "{} of {count}:\n{}", bad.len(), bad.join("\n"));
}

/// Layers come back as layers, under the names of the network that was exported.
#[test]
fn lifted_networks_have_layers_and_names_and_blocks() {
    let find = |stem: &str| {
        let mut all = std::fs::read_dir(fixtures()).unwrap().map(|e| e.unwrap().path());
        open(&all.find(|p| p.file_name().unwrap().to_string_lossy().starts_with(stem)).unwrap())
    };
    let count = |m: &Model, f: &dyn Fn(&Op) -> bool| m.graph.nodes.iter().filter(|n| f(&n.op)).count();
    let vit = find("timm_vit-");
    assert_eq!(count(&vit, &|o| matches!(o, Op::Attention(op::Attention { heads: 3, qk_dim: 8, fused: true, .. }))), 2);
    assert_eq!(count(&vit, &|o| matches!(o, Op::Activation { act: Activation::GeluErf })), 2);
    assert_eq!(count(&vit, &|o| matches!(o, Op::LayerNorm(_))), 5);
    for name in ["blocks.0.attn.qkv", "blocks.1.mlp.fc2", "head"] {
        assert!(vit.graph.by_name(name).is_some(), "{name}");
    }
    let block = vit.graph.block("blocks.1").unwrap();
    assert_eq!(block.residual.len(), 2);
    let swin = find("swin-");
    let shifted = |o: &Op| matches!(o, Op::Attention(op::Attention { windows: Some(w), .. }) if w.shift != [0, 0] && w.size == [4, 4]);
    assert_eq!(count(&swin, &shifted), 1);
    assert_eq!(count(&swin, &|o| matches!(o, Op::Attention(op::Attention { windows: Some(_), .. }))), 2);
    assert_eq!(count(&swin, &|o| matches!(o, Op::PatchMerge(_))), 1);
    let v2 = find("swin_v2-");
    assert_eq!(count(&v2, &|o| matches!(o, Op::Attention(op::Attention { cosine: true, .. }))), 3);
    assert_eq!(vit.info.family, Family::Onnx);
}

fn prep(mean: [f32; 3], std: [f32; 3], size: [usize; 2]) -> Preprocess {
    Preprocess { mean, std, ..Preprocess::imagenet(size) }
}

/// The first `limit` images (0: all) of `set`: predictions, counts and logits as recorded from ONNX Runtime.
fn compare(name: &str, file: &str, set: &str, prep: Option<Preprocess>, limit: usize) {
    let Some(real) = common::real() else { return };
    let text = std::fs::read_to_string(real.join("expected/expected.json")).unwrap();
    let want = serde_json::from_str::<serde_json::Value>(&text).unwrap()[name].clone();
    let set = data::open(real.join(set).to_str().unwrap(), limit).unwrap();
    let model = open(&real.join(file));
    let prep = prep.unwrap_or_else(|| model.info.preprocess.clone());
    let plan = Plan::of(&model, &CompileOptions::default()).unwrap();
    let run = score_with(&set, &prep, 100, &Cancel::default(), |x| plan.run(x), &mut |_, _| {}).unwrap();
    let correct = run.correct().iter().filter(|c| **c).count() as i64;
    let key = if limit == 0 { "top1_correct" } else { "first1000_correct" };
    println!("{name}: {correct} correct");
    assert!((correct - want[key].as_i64().unwrap()).abs() <= 2, "{name}: {correct} correct, {}", want[key]);
    if let (0, Some(top5)) = (limit, want["top5_correct"].as_i64()) {
        let found = (run.metrics.other("top-5").unwrap() * run.metrics.n as f64).round() as i64;
        assert!((found - top5).abs() <= 2, "{name}: {found} in the first five, {top5}");
    }
    let (x, _) = set.batch(0..4, &prep).unwrap();
    let rows: Vec<Vec<f32>> = serde_json::from_value(want["logits_first4"].clone()).unwrap();
    for (found, want) in plan.run(&x).unwrap().to_vec2::<f32>().unwrap().iter().zip(&rows) {
        // Recorded to four decimals, the first ten classes.
        for (f, w) in found.iter().zip(want) {
            assert!((f - w).abs() <= 1.5e-4, "{name}: {f} is not {w}");
        }
    }
}

const CF: ([f32; 3], [f32; 3]) = ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010]);

/// The three whose weights run on the whole test set in other formats too take its first 1,000 images here;
/// `PARING_WHOLE_SETS` asks for all.
#[test]
fn published_networks_reach_their_figures() {
    let some = if std::env::var_os("PARING_WHOLE_SETS").is_some() { 0 } else { 1000 };
    let cf = || Some(prep(CF.0, CF.1, [32, 32]));
    let cifar = "cifar10/test_batch.bin";
    compare("resnet20", "resnet20/resnet20.onnx", cifar, None, some);
    compare("resnet56", "resnet56/resnet56.onnx", cifar, None, some);
    compare("vit_cifar10", "vit_cifar10/vit_cifar10.onnx", cifar, cf(), some);
    compare("vit_pgd_2_3_16", "onnx/vit_pgd_2_3_16.onnx", cifar, cf(), 0);
    let grey = Preprocess { channels: 1, ..prep([0.1307; 3], [0.3081; 3], [28, 28]) };
    compare("rten_mnist", "mnist/rten_mnist.onnx", "mnist/t10k-images-idx3-ubyte.gz", Some(grey), 0);
}

#[test]
fn mobilenet_with_tensorflows_padding_classifies_photos() {
    let half = Some(prep([0.5; 3], [0.5; 3], [224, 224]));
    compare("mobilenet_v1_075_224", "mobilenet_v1_075_224/mobilenet_v1_075_224.onnx", "imagenet_sample", half, 0);
}

fn models() -> Vec<Model> {
    let cnn = CifarResnetSpec { blocks: 1, widths: [4, 6, 8], classes: 3, image: 32 };
    let dims = VitDims { image: 16, patch: 4, dim: 32, depth: 1, heads: 2, mlp: 16, classes: 4 };
    vec![random(&FamilySpec::CifarResnet(cnn), 3), random(&FamilySpec::Vit(VitSpec::timm(dims)), 4)]
}

/// An export with and without int8 weights opens as the very same model, and is refused when it was cut.
#[test]
fn exports_come_back_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.onnx");
    for mut model in models() {
        for int8 in [false, true] {
            if int8 {
                let last = model.graph.nodes.last().unwrap().name.clone();
                model.precision.set(last, Precision::Int8);
            }
            let written = formats::write(&path, &model, &Manifest::default(), "onnx").unwrap();
            assert_eq!(written.notes, [""; 0]);
            let back = open(&path);
            assert_eq!((&back.graph, &back.precision), (&model.graph, &model.precision));
            let side = model.graph.input_shape().unwrap()[1];
            assert_eq!(run(&back, &formula(3, side)), run(&model, &formula(3, side)));
            let bytes = std::fs::read(&path).unwrap();
            assert!(load_bytes("cut", Vec::leak(bytes[..bytes.len() - 9].to_vec()), &LoadOptions::default()).is_err());
        }
    }
}

/// What ONNX has no words for is told: nobody takes such a file for smaller than it is.
#[test]
fn what_an_export_widens_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let mut model = models().remove(1);
    let layers: Vec<String> =
        model.graph.nodes.iter().filter(|n| n.op.is_conv_or_linear()).map(|n| n.name.clone()).collect();
    for (name, precision) in layers.iter().zip([Precision::F16, Precision::W4g32, Precision::F16, Precision::Int8]) {
        model.precision.set(name.clone(), precision);
    }
    let written = formats::write(&dir.path().join("m.onnx"), &model, &Manifest::default(), "onnx").unwrap();
    let [note] = &written.notes[..] else { panic!("{:?}", written.notes) };
    assert!(note.starts_with("weights of 2 layers in f16, 1 layer in w4g32 are f32 in an ONNX file"), "{note}");
}

/// Numbers of shared values are looked up in the graph: smaller than f32, the same when it is opened again, and the same for who knows no
/// manifest.
#[test]
fn shared_values_are_looked_up_in_the_graph() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.onnx");
    for mut model in models() {
        formats::write(&path, &model, &Manifest::default(), "onnx").unwrap();
        let wide = std::fs::metadata(&path).unwrap().len();
        let layers = model.graph.nodes.iter().filter(|n| n.op.is_conv_or_linear()).map(|n| n.name.clone());
        let cycle = Precision::SHARED.into_iter().cycle();
        layers.collect::<Vec<_>>().into_iter().zip(cycle).for_each(|(name, p)| model.precision.set(name, p));
        let written = formats::write(&path, &model, &Manifest::default(), "onnx").unwrap();
        assert!(written.notes.iter().any(|n| n.contains("takes 8 bits in an ONNX file")), "{:?}", written.notes);
        let weights: u64 = model.params.iter().map(|(_, p)| p.numel() as u64).sum();
        let narrow = std::fs::metadata(&path).unwrap().len();
        assert!(narrow < wide && wide - narrow > weights, "{wide} {narrow} {weights}");
        let back = load(&path, &LoadOptions::default()).unwrap();
        assert_eq!(back.precision, model.precision);
        let x = formula(2, model.graph.input_shape().unwrap()[1]);
        assert_eq!(run(&back, &x), run(&model, &x));
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(12).position(|w| w == b"paring.nodes").unwrap();
        bytes[at..at + 12].copy_from_slice(b"other__nodes");
        let lifted = load_bytes("lifted", Vec::leak(bytes), &LoadOptions::default()).unwrap();
        for (a, b) in run(&lifted, &x).iter().zip(run(&model, &x)) {
            assert_close(a, &b, 1e-5, &model.info.name);
        }
    }
}

/// Any reader of ONNX gets the same network from an export: without our manifest the importer lifts its operators.
#[test]
fn exports_are_plain_onnx() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.onnx");
    for model in models() {
        formats::write(&path, &model, &Manifest::default(), "onnx").unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        // Another key of the same length: the manifest is no longer found.
        let at = bytes.windows(12).position(|w| w == b"paring.nodes").unwrap();
        bytes[at..at + 12].copy_from_slice(b"other__nodes");
        let lifted = load_bytes("lifted", Vec::leak(bytes), &LoadOptions::default()).unwrap();
        assert_eq!(lifted.info.family, Family::Onnx);
        let side = model.graph.input_shape().unwrap()[1];
        for (a, b) in run(&lifted, &formula(2, side)).iter().zip(run(&model, &formula(2, side))) {
            assert_close(a, &b, 1e-5, &model.info.name);
        }
        for node in model.graph.nodes.iter().filter(|n| n.op.is_conv_or_linear()) {
            assert_eq!(lifted.graph.by_name(&node.name).map(|id| &lifted.graph.node(id).op), Some(&node.op));
        }
    }
}

/// Files with bytes changed, cut and repeated: an error or a model, never a panic, a hang or much memory. Eight seconds
/// of it; `PARING_FUZZ_SECONDS` says otherwise, and `PARING_FUZZ_SEED` where to begin.
#[test]
fn damaged_files_are_refused_or_read() {
    let number = |key: &str| std::env::var(key).ok().and_then(|v| v.parse::<u64>().ok());
    let (seconds, seed) = (number("PARING_FUZZ_SECONDS").unwrap_or(8), number("PARING_FUZZ_SEED").unwrap_or(5));
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let mut seeds: Vec<Vec<u8>> = std::fs::read_dir(fixtures())
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "onnx"))
        .map(|p| std::fs::read(p).unwrap())
        .filter(|b| b.len() < 300_000)
        .collect();
    seeds.sort_by_key(Vec::len);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bad.onnx");
    let begun = std::time::Instant::now();
    let mut rounds = 0;
    'all: for round in 0.. {
        for seed in &seeds {
            let mut bad = seed.clone();
            for _ in 0..rng.random_range(1..6) {
                let at = rng.random_range(2..bad.len());
                match (round + rounds) % 4 {
                    0 => bad[at] = rng.random(),
                    1 => bad[at] = bad[at].wrapping_add(1),
                    2 => bad.truncate(at.max(bad.len() - 2000)),
                    _ => {
                        let end = (at + rng.random_range(1..400)).min(bad.len());
                        let piece = bad[at..end].to_vec();
                        let to = rng.random_range(2..bad.len());
                        bad.splice(to..to, piece);
                    }
                }
            }
            let started = std::time::Instant::now();
            std::fs::write(&path, &bad).unwrap();
            if let Err(e) = load(&path, &LoadOptions::default()) {
                let text = e.to_string();
                assert!(text.contains("hint: ") && !text.chars().any(char::is_control), "{text:?}");
            }
            assert!(started.elapsed().as_secs() < 5, "took {:?}", started.elapsed());
            rounds += 1;
            if begun.elapsed().as_secs() >= seconds {
                break 'all;
            }
        }
    }
    assert!(rounds > 20, "{rounds}");
}

/// Every group of `model` pruned by 30 %, the first units kept.
fn pruned(model: &Model) -> Model {
    let groups = paring::prune::groups(&model.graph);
    let actions: Vec<(Target, Action)> = groups
        .iter()
        .filter(|g| g.protected.is_none() && g.kept_at(0.3) < g.size)
        .map(|g| {
            let kept = g.kept_at(0.3);
            (Target::Group(g.id.clone()), Action::Prune { ratio: g.ratio_of(kept), kept: (0..kept as u32).collect() })
        })
        .collect();
    paring::prune::apply(model, &groups, &actions).unwrap()
}

/// Every fixture pruned by 30 % in every group exports and opens again with the same logits. With `PARING_ONNX_OUT` the
/// files stay there with what we computed, for `tests/conformance/onnx_check.py` to run in ONNX Runtime.
#[test]
fn pruned_exports_come_back_with_the_same_logits() {
    let keep = std::env::var_os("PARING_ONNX_OUT").map(PathBuf::from);
    let temporary = tempfile::tempdir().unwrap();
    let out = keep.clone().unwrap_or_else(|| temporary.path().to_owned());
    std::fs::create_dir_all(&out).unwrap();
    let mut all: Vec<PathBuf> = std::fs::read_dir(fixtures()).unwrap().map(|e| e.unwrap().path()).collect();
    all.retain(|p| p.extension().is_some_and(|e| e == "onnx"));
    all.sort();
    let mut expected = serde_json::Map::new();
    let mut count = 0;
    for path in all {
        let original = open(&path);
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        for (suffix, model) in [("", original.clone()), ("-30", pruned(&original))] {
            let file = out.join(format!("{name}{suffix}.onnx"));
            formats::write(&file, &model, &Manifest::default(), "onnx").unwrap();
            let back = open(&file);
            assert_eq!(back.graph, model.graph, "{name}{suffix}");
            let side = model.graph.input_shape().unwrap()[1];
            let rows = run(&model, &formula(2, side));
            assert_eq!(run(&back, &formula(2, side)), rows, "{name}{suffix}");
            expected.insert(format!("{name}{suffix}"), serde_json::json!({ "side": side, "logits": rows[0] }));
            count += 1;
        }
    }
    if let Some(dir) = keep {
        std::fs::write(dir.join("expected.json"), serde_json::to_string(&expected).unwrap()).unwrap();
    }
    assert!(count >= 16, "{count}");
}
