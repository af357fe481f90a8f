//! Checkpoint files: the published ones in both formats, our own exports, and what must be refused.

mod common;

use paring::graph::{Precision, describe, macs, node_params};
use paring::model::families::{CifarResnetSpec, Head, VitDims, VitSpec};
use paring::model::{Family, FamilySpec, LoadOptions, Model, ModelError, export, formats, load, python, random};
use std::path::Path;

fn open(path: &Path) -> Result<Model, ModelError> {
    load(path, &LoadOptions::default())
}

#[test]
fn published_files_load_alike_from_both_formats() {
    let Some(real) = common::real() else { return };
    for (pickle, safetensors, family, params, classes) in [
        ("resnet20/resnet20-12fca82f.th", "resnet20/resnet20.safetensors", Family::CifarResnet, 269_722, 10),
        ("resnet56/resnet56-4bfd9763.th", "resnet56/resnet56.safetensors", Family::CifarResnet, 853_018, 10),
        ("vit_cifar10/vit_cifar10.pth", "vit_cifar10/vit_cifar10.safetensors", Family::TorchVit, 811_146, 10),
    ] {
        let (a, b) = (open(&real.join(pickle)).unwrap(), open(&real.join(safetensors)).unwrap());
        assert_eq!(a.graph, b.graph, "{pickle}");
        assert_eq!(a.info.hash, b.info.hash, "{pickle}: every tensor is the same");
        assert_eq!((a.info.family, a.info.classes), (family, classes));
        let count: u64 = a.graph.nodes.iter().map(|n| node_params(&n.op)).sum();
        assert_eq!(count, params, "{pickle}");
        assert!(macs(&a.graph).is_ok());
    }
    let vit = open(&real.join("vit_cifar10/vit_cifar10.pth")).unwrap();
    assert_eq!(vit.info.preprocess.mean, [0.4914, 0.4822, 0.4465]);
    let core = vit.graph.by_name("transformer.layers.0.attention_core").unwrap();
    assert_eq!(describe(&vit.graph.node(core).op), "attention 8h");
    assert!(vit.info.notes.iter().any(|n| n.contains("8 attention heads assumed")));
}

#[test]
fn networks_of_other_families_are_named_not_guessed() {
    let Some(real) = common::real() else { return };
    for (file, words) in [
        ("mnist/burn_mnist.pt", &["conv1", "mobilenet-v2", "hint"][..]),
        ("mnist/burn_mnist.safetensors", &["conv1"]),
        ("stories260k/stories260K.bin", &["not a checkpoint"]),
        ("expected/expected.json", &["not a checkpoint"]),
        ("cifar10", &["holds no `model.safetensors`"]),
        ("no/such/file", &["cannot read", "hint"]),
    ] {
        let text = open(&real.join(file)).unwrap_err().to_string();
        for word in words {
            assert!(text.contains(word), "{file}: {text}");
        }
    }
    let wrong = LoadOptions { arch: Some(Family::Vit), ..LoadOptions::default() };
    let text = load(&real.join("resnet20/resnet20.safetensors"), &wrong).unwrap_err().to_string();
    assert!(text.contains("no vit network") && text.contains("`patch_embed.proj.weight`"), "{text}");
}

fn small_cnn() -> Model {
    let spec = CifarResnetSpec { blocks: 1, widths: [4, 8, 12], classes: 5, image: 16 };
    random(&FamilySpec::CifarResnet(spec), 1)
}

#[test]
fn an_export_opens_as_the_same_model() {
    let dims = VitDims { image: 16, patch: 4, dim: 24, depth: 2, heads: 3, mlp: 32, classes: 7 };
    let vit = FamilySpec::Vit(VitSpec { head: Head::MeanThenNorm, ..VitSpec::timm(dims) });
    let dir = tempfile::tempdir().unwrap();
    for (i, mut model) in [small_cnn(), random(&vit, 2)].into_iter().enumerate() {
        // Drop the last block's branches, as removing a block does.
        let graph = std::sync::Arc::make_mut(&mut model.graph);
        let block = graph.blocks.iter().rfind(|b| !b.residual.is_empty()).unwrap().clone();
        for r in &block.residual {
            let skip = r.skip;
            for node in &mut graph.nodes {
                node.inputs.iter_mut().filter(|n| **n == r.add).for_each(|n| *n = skip);
            }
        }
        graph.check().unwrap();
        let int8 = if i == 0 { "layer2.0.conv2" } else { "blocks.0.attn.qkv" };
        model.precision.set(int8, Precision::Int8);

        let path = dir.path().join(format!("m{i}.safetensors"));
        let manifest = export::Manifest {
            recipe: serde_json::json!({"seed": 7}),
            original: Some("abc".into()),
            ..Default::default()
        };
        let hash = export::safetensors(&path, &model, &manifest).unwrap();
        assert_eq!(hash, blake3::hash(&std::fs::read(&path).unwrap()).to_hex().to_string());
        assert_eq!(common::manifest::manifest(&path).unwrap(), manifest);

        let back = open(&path).unwrap();
        assert_eq!(back.graph, model.graph);
        assert_eq!(back.precision, model.precision);
        let stored = back.params.get(&format!("{int8}.weight")).unwrap();
        let original = model.params.get(&format!("{int8}.weight")).unwrap();
        let rows = original.shape()[0];
        let (q, scales) = paring::model::int8::quantize_rows(&original.values(), rows);
        assert_eq!(stored.as_int8().unwrap(), (&q[..], &scales[..]));
        assert_eq!(stored.stored_bytes() as usize, q.len() + 4 * rows);
        for (name, param) in back.params.iter().filter(|(n, _)| !n.starts_with(int8)) {
            assert_eq!(param.values(), model.params.get(name).unwrap().values(), "{name}");
        }
        // Written again, it is the same file but for the name of its source.
        let again = dir.path().join(format!("again{i}.safetensors"));
        export::safetensors(&again, &back, &manifest).unwrap();
        assert_eq!(open(&again).unwrap().info.hash, back.info.hash);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2 * (i + 1), "no temporary file is left");
    }
}

#[test]
fn an_export_that_was_touched_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    export::safetensors(&path, &small_cnn(), &export::Manifest::default()).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 2;
    bytes[last] ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    let text = open(&path).unwrap_err().to_string();
    assert!(text.contains("not those that were written") || text.contains("element"), "{text}");
    let nowhere = dir.path().join("no/such/dir/m.safetensors");
    assert!(matches!(
        export::safetensors(&nowhere, &small_cnn(), &export::Manifest::default()),
        Err(ModelError::Write { .. })
    ));
}

#[test]
fn an_int8_export_runs_bit_for_bit_as_before() {
    use candle_core::{Device, Tensor};
    use paring::exec::{CompileOptions, Plan};
    let mut model = small_cnn();
    for node in ["conv1", "layer1.0.conv1", "layer2.0.conv2", "linear"] {
        model.precision.set(node, Precision::Int8);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    export::safetensors(&path, &model, &export::Manifest::default()).unwrap();
    let back = open(&path).unwrap();
    let x: Vec<f32> = (0..2 * 3 * 16 * 16).map(|i| ((i * 7919 % 1000) as f32 - 500.0) / 250.0).collect();
    let x = Tensor::from_vec(x, (2, 3, 16, 16), &Device::Cpu).unwrap();
    let run = |m: &Model| {
        let plan = Plan::of(m, &CompileOptions::default()).unwrap();
        plan.run(&x).unwrap().to_vec2::<f32>().unwrap()
    };
    assert_eq!(run(&model), run(&back));
}

#[test]
fn a_pytorch_folder_appears_whole_and_replaces_nothing_but_its_like() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("net");
    let (model, manifest) = (small_cnn(), export::Manifest::default());
    python::folder(&path, &model, &manifest).unwrap();
    assert_eq!(open(&path).unwrap().info.hash, model.info.hash);
    // An earlier export gives way as a whole: nothing of it is left among the new one's files.
    std::fs::write(path.join("weights.safetensors"), "of an int8 export").unwrap();
    python::folder(&path, &model, &manifest).unwrap();
    assert!(!path.join("weights.safetensors").exists());
    // Anything else stays what it is.
    std::fs::write(path.join("notes.txt"), "mine").unwrap();
    let error = python::folder(&path, &model, &manifest).unwrap_err().to_string();
    assert!(error.contains("other files") && error.contains("hint: "), "{error}");
    let file = dir.path().join("file");
    std::fs::write(&file, "mine").unwrap();
    assert!(python::folder(&file, &model, &manifest).is_err());
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2, "no temporary folder is left");
}

#[test]
fn an_export_has_the_format_that_its_name_says() {
    let of = |name: &str, path: &str| formats::format(name, path);
    assert_eq!(of("", "/tmp/x.onnx"), Ok("onnx"));
    assert_eq!(of("", "/tmp/x.ONNX"), Ok("onnx"));
    assert_eq!(of("", "/tmp/x"), Ok("safetensors"));
    assert_eq!(of("onnx", "/tmp/x.final"), Ok("onnx"));
    assert_eq!(of("pytorch", "/tmp/x.v2"), Ok("pytorch"));
    for (name, path) in [("safetensors", "/tmp/x.onnx"), ("onnx", "x.safetensors"), ("", "x.pth"), ("onnx", "x.pt")] {
        let error = of(name, path).unwrap_err();
        assert!(error.contains("hint: "), "{error}");
    }
    assert!(of("tf", "x").unwrap_err().contains("pytorch"));
}
