//! Hostile and damaged checkpoints: every one is an error that names what is wrong, never a panic, never a huge
//! allocation; and the containers that are written here by hand load as the model they came from.

mod common;

use common::checkpoints::{Pickle, legacy, plain_safetensors, tensors_of, torch_zip, torch_zip_named, with_header};
use paring::graph::Activation;
use paring::model::families::{CifarResnetSpec, Head, ResnetBlock, ResnetSpec, ResnetStage, VitDims, VitSpec};
use paring::model::{FamilySpec, LoadOptions, Model, ModelError, Param, export, load, load_bytes, random};
use proptest::prelude::*;
use rand::{Rng, SeedableRng};

fn cnn() -> Model {
    random(&FamilySpec::CifarResnet(CifarResnetSpec { blocks: 1, widths: [4, 6, 8], classes: 3, image: 32 }), 3)
}

fn dims() -> VitDims {
    VitDims { image: 16, patch: 4, dim: 128, depth: 1, heads: 2, mlp: 16, classes: 4 }
}

fn hf() -> Model {
    let act = Activation::GeluTanh;
    random(&FamilySpec::Vit(VitSpec { eps: 1e-6, act, ..VitSpec::hugging_face(dims()) }), 4)
}

/// Loads from bytes; the leak is the price of `'static` in a test.
fn open(bytes: Vec<u8>) -> Result<Model, ModelError> {
    load_bytes("test", Vec::leak(bytes), &LoadOptions::default())
}

fn refused(bytes: Vec<u8>, words: &[&str]) {
    let error = open(bytes).expect_err("must be refused").to_string();
    for word in words.iter().chain(&["hint: "]) {
        assert!(error.contains(word), "`{word}` is not in: {error}");
    }
    assert!(!error.chars().any(|c| c.is_control()), "{error:?}");
}

/// The same model in every container that we read.
fn containers(model: &Model) -> Vec<(&'static str, Vec<u8>)> {
    let tensors = tensors_of(model);
    vec![
        ("safetensors", plain_safetensors(&tensors)),
        ("zip", torch_zip(&Pickle::state_dict(&tensors, "", None), &tensors)),
        ("zip nested", torch_zip(&Pickle::state_dict(&tensors, "module.", Some("state_dict")), &tensors)),
        ("legacy", legacy(&Pickle::state_dict(&tensors, "", None), &tensors)),
        ("legacy nested", legacy(&Pickle::state_dict(&tensors, "module.", Some("model")), &tensors)),
    ]
}

#[test]
fn every_container_gives_the_same_model() {
    let model = cnn();
    for (name, bytes) in containers(&model) {
        let back = open(bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(back.graph, model.graph, "{name}");
        assert_eq!(back.info.hash, model.info.hash, "{name}");
    }
}

/// How long an archive's root is decides where everything in it lies; none of it may be taken for something else.
#[test]
fn a_pytorch_file_loads_under_whatever_name_it_was_saved() {
    let model = cnn();
    let tensors = tensors_of(&model);
    let pickle = Pickle::state_dict(&tensors, "", None);
    for letters in 1..=64 {
        let bytes = torch_zip_named(&"a".repeat(letters), &pickle, &tensors);
        let back = open(bytes).unwrap_or_else(|e| panic!("{letters} letters: {e}"));
        assert_eq!(back.info.hash, model.info.hash, "{letters} letters");
    }
}

#[test]
fn a_pickle_fills_no_more_memory_than_its_size_allows() {
    // Ordered dicts of a list that was written once: six bytes for a thousand entries.
    let mut dicts = Pickle::new();
    dicts.global("collections", "OrderedDict").op(b'q').op(0).op(b'0').op(b'(').op(b'(');
    (0..1000).for_each(|_| {
        dicts.op(b'N').op(b'N').op(0x86);
    });
    dicts.op(b'l').op(0x85).op(b'q').op(1).op(b'1').op(b'(');
    (0..10_000).for_each(|_| {
        dicts.op(b'h').op(0).op(b'h').op(1).op(b'R').op(b'0');
    });
    dicts.op(b't').op(b'.');
    refused(torch_zip(&dicts.0, &[]), &["unreasonably large"]);
    refused(legacy(&dicts.0, &[]), &["unreasonably large"]);
}

/// A pipe would wait for a writer for ever, wherever a file is expected.
#[cfg(unix)]
#[test]
fn pipes_and_devices_are_no_models() {
    let (done, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let pipe = |path: &std::path::Path| {
            assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
        };
        let refused = |path: &std::path::Path, words: &str| {
            let error = load(path, &LoadOptions::default()).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("hint: "), "{error}");
        };
        pipe(&at("model.pth"));
        refused(&at("model.pth"), "a pipe");
        refused("/dev/zero".as_ref(), "a device");
        for beside in ["config.json", "preprocessor_config.json"] {
            let folder = at(&format!("{beside}.d"));
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("model.safetensors"), plain_safetensors(&tensors_of(&hf()))).unwrap();
            pipe(&folder.join(beside));
            refused(&folder, "a pipe");
        }
        done.send(()).unwrap();
    });
    wait.recv_timeout(std::time::Duration::from_secs(60)).expect("refused, and at once");
}

#[test]
fn an_index_of_very_many_shards_is_read_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let shard = |i: usize| format!("model-{i:05}-of-40000.safetensors");
    let map: serde_json::Map<String, serde_json::Value> =
        (0..40_000).map(|i| (format!("t{i}"), shard(i).into())).collect();
    let index = serde_json::json!({ "weight_map": map }).to_string();
    std::fs::write(dir.path().join("model.safetensors.index.json"), index).unwrap();
    let start = std::time::Instant::now();
    let error = load(dir.path(), &LoadOptions::default()).unwrap_err().to_string();
    assert!(error.contains(&shard(0)), "{error}");
    // Comparing each with each takes half a minute and more.
    assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
}

#[test]
fn strided_tensors_are_read_in_their_own_order() {
    let model = cnn();
    let tensors = tensors_of(&model);
    // `linear.weight` [3, 8] stored transposed, with strides (1, 3).
    let mut stored = tensors.clone();
    let t = stored.iter_mut().find(|t| t.name == "linear.weight").unwrap();
    let rows = t.values.clone();
    t.values = (0..24).map(|i| rows[(i % 3) * 8 + i / 3]).collect();
    t.stride = vec![1, 3];
    let pickle = Pickle::state_dict(&stored, "", None);
    for bytes in [torch_zip(&pickle, &stored), legacy(&pickle, &stored)] {
        assert_eq!(open(bytes).unwrap().info.hash, model.info.hash);
    }
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.safetensors");
    export::safetensors(&path, &cnn(), &export::Manifest::default()).unwrap();
    let mut all = containers(&cnn());
    all.push(("export", std::fs::read(&path).unwrap()));
    for (name, bytes) in all {
        let step = (bytes.len() / 60).max(1);
        for cut in (0..bytes.len()).step_by(step).chain(0..16).chain(bytes.len() - 8..bytes.len()) {
            let r = open(bytes[..cut].to_vec());
            // A legacy file only has to be whole where its tensors are.
            assert!(r.is_err(), "{name} cut at {cut} of {}", bytes.len());
        }
    }
}

#[test]
fn flipped_bytes_never_panic() {
    let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(11);
    for (_, bytes) in containers(&cnn()) {
        for round in 0..150 {
            let mut bad = bytes.clone();
            for _ in 0..rng.random_range(1..4) {
                // Headers and directories lie at the ends.
                let at = match round % 3 {
                    0 => rng.random_range(0..bad.len().min(2000)),
                    1 => bad.len() - 1 - rng.random_range(0..bad.len().min(2000)),
                    _ => rng.random_range(0..bad.len()),
                };
                bad[at] = rng.random();
            }
            let _ = open(bad);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn random_pickles_never_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
        let tensors = tensors_of(&cnn());
        let mut pickle = vec![0x80, 2];
        pickle.extend(body);
        let _ = open(torch_zip(&pickle, &tensors[..1]));
        let _ = open(legacy(&pickle, &tensors[..1]));
    }

    #[test]
    fn random_headers_never_panic(
        dtype in "(F32|F16|I8|X9)",
        shape in proptest::collection::vec(any::<u64>(), 0..4),
        offsets in any::<[u64; 2]>(),
    ) {
        let header = serde_json::json!({ "conv1.weight": { "dtype": dtype, "shape": shape, "data_offsets": offsets } });
        let _ = open(with_header(&header.to_string(), &[0; 64]));
    }
}

#[test]
fn hostile_safetensors_headers_are_refused() {
    let entry = |name: &str, shape: &str, from: u64, to: u64| {
        format!(r#""{name}":{{"dtype":"F32","shape":{shape},"data_offsets":[{from},{to}]}}"#)
    };
    let file = |entries: &[String]| with_header(&format!("{{{}}}", entries.join(",")), &[0; 64]);
    refused(file(&[entry("a", "[4]", 0, 16), entry("b", "[4]", 8, 24)]), &["`a` and `b` overlap"]);
    refused(file(&[entry("a", "[4]", 0, 16), entry("a", "[4]", 16, 32)]), &["`a` is listed twice"]);
    refused(file(&[entry("a", "[400]", 0, 1600)]), &["`a` reaches past the end"]);
    refused(file(&[entry("a", "[4]", 0, 20)]), &["`a` claims bytes 0..20"]);
    refused(file(&[entry("a", "[4]", 16, 0)]), &["`a` claims bytes 16..0"]);
    refused(file(&[entry("a", "[4294967296,4294967296]", 0, 16)]), &["`a` claims"]);
    refused(file(&[entry("a", "[18446744073709551615,2]", 0, 16)]), &["`a` claims"]);
    refused(file(&[entry("a", "[-1]", 0, 16)]), &["header is not valid"]);
    refused(file(&[r#""a":{"dtype":"F99","shape":[4],"data_offsets":[0,16]}"#.into()]), &["unknown type `F99`"]);
    refused(with_header("{", &[]), &["header is not valid"]);
    refused(with_header(&("{\"a\":".to_owned() + &"[".repeat(100_000)), &[]), &["header is not valid"]);
    let mut huge = with_header("{}", &[]);
    huge[..8].copy_from_slice(&(u64::MAX / 2).to_le_bytes());
    refused(huge, &["header claims"]);
    refused(with_header("{}", &[]), &["no tensors at all", "known: "]);
    refused(file(&[entry("\\u001b[2Jevil\\u202e", "[4]", 0, 16)]), &["\\u{1b}[2Jevil\\u{202e}"]);
    refused(Vec::new(), &["the file is empty"]);
    refused(b"version https://git-lfs.github.com/spec/v1\n".to_vec(), &["Git LFS pointer"]);
}

#[test]
fn hostile_pickles_are_refused_and_never_run() {
    let tensors = tensors_of(&cnn());
    let refuse = |pickle: Vec<u8>, words: &[&str]| {
        refused(torch_zip(&pickle, &tensors), words);
        // The stream format lists its storages, of which most of these pickles use none.
        let used = pickle.windows(13).any(|w| w == b"conv1.weightc");
        refused(legacy(&pickle, if used { &tensors } else { &[] }), words);
    };
    let marker = std::env::temp_dir().join(format!("paring-pickle-{}", std::process::id()));
    let command = format!("touch {}", marker.display());
    let mut evil = Pickle::new();
    evil.global("posix", "system").op(b'(').text(&command).op(b't').op(b'R').op(b'.');
    refuse(evil.0, &["`posix.system`", "state_dict()"]);
    assert!(!marker.exists());
    let mut class = Pickle::new();
    class.global("__main__", "Net\u{1b}[31m").op(b')').op(0x81).op(b'.');
    refuse(class.0, &["`__main__.Net\\u{1b}[31m`"]);

    let mut deep = Pickle::new();
    deep.op(b')');
    for _ in 0..300_000 {
        deep.op(0x85);
    }
    deep.op(b'.');
    refuse(deep.0, &["no state dict"]);
    let mut cycle = Pickle::new();
    cycle.op(b'}').op(b'q').op(0).text("state_dict").op(b'h').op(0).op(b's').op(b'.');
    refuse(cycle.0, &["no state dict", "`state_dict`"]);
    let mut long = Pickle::new();
    long.op(0x8d).0.extend(u64::MAX.to_le_bytes());
    refuse(long.0, &["ends too early"]);
    for (bytes, words) in [
        (&b"\x80\x02h\x07."[..], "memo is missing"),
        (b"\x80\x02\x82\x01.", "opcode 0x82"),
        (b"\x80\x02.", "a value is missing"),
        (b"\x80\x02}u.", "a mark is missing"),
        (b"\x80\x02K\x01)R.", "a call of what is no global"),
        (b"\x80\x02]", "ends too early"),
        (b"\x80\x02]Q.", "storage id"),
    ] {
        refuse(bytes.to_vec(), &[words]);
    }

    // Tensors that lie about their windows.
    for (shape, stride, offset, words) in [
        (&[4, 3, 3, 1 << 40][..], &[27, 9, 3, 1][..], 0, "past the end of its storage"),
        (&[4, 3, 3, 3], &[27, 9, 3, 1], 1, "past the end of its storage"),
        (&[1 << 40, 3, 3, 3], &[0, 0, 0, 0], 0, "repeats its storage too often"),
        (&[usize::MAX >> 1, 4, 4, 4], &[0, 0, 0, 0], 0, "impossible size"),
        (&[4, 3, 3, 3], &[usize::MAX >> 1, 9, 3, 1], 0, "past the end of its storage"),
    ] {
        let mut lie = tensors.clone();
        let t = lie.iter_mut().find(|t| t.name == "conv1.weight").unwrap();
        (t.shape, t.stride, t.offset) = (shape.to_vec(), stride.to_vec(), offset);
        refuse(Pickle::state_dict(&lie, "", None).to_vec(), &["`conv1.weight`", words]);
    }
}

#[test]
fn weights_that_make_no_sense_are_named() {
    let with = |name: &str, f: &dyn Fn(&mut Vec<f32>)| {
        let mut tensors = tensors_of(&cnn());
        f(&mut tensors.iter_mut().find(|t| t.name == name).unwrap().values);
        plain_safetensors(&tensors)
    };
    refused(with("layer2.0.conv1.weight", &|v| v[5] = f32::NAN), &["`layer2.0.conv1.weight`", "NaN", "element 5"]);
    refused(with("linear.bias", &|v| v[1] = f32::INFINITY), &["`linear.bias`", "inf"]);
    refused(with("bn1.running_var", &|v| v[0] = -1.0), &["`bn1.running_var`", "negative"]);

    let without = |name: &str| {
        let tensors: Vec<_> = tensors_of(&cnn()).into_iter().filter(|t| t.name != name).collect();
        plain_safetensors(&tensors)
    };
    refused(without("layer3.0.bn2.weight"), &["`layer3.0.bn2.weight`"]);

    let mut tensors = tensors_of(&cnn());
    let mut more = tensors[0].clone();
    more.name = "layer1.0.se.fc.weight".into();
    tensors.push(more);
    refused(plain_safetensors(&tensors), &["`layer1.0.se.fc.weight`", "no place in a cifar-resnet"]);

    let mut tensors = tensors_of(&cnn());
    let t = tensors.iter_mut().find(|t| t.name == "layer1.0.conv2.weight").unwrap();
    (t.shape, t.stride) = (vec![4, 4, 9, 1], vec![36, 9, 1, 1]);
    refused(plain_safetensors(&tensors), &["`layer1.0.conv2.weight`", "[4, 4, 9, 1]", "[4, 4, 3, 3]"]);
}

#[test]
fn a_hugging_face_folder_is_read_with_its_configuration() {
    let model = hf();
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let tensors = tensors_of(&model);
    let (a, b) = tensors.split_at(5);
    std::fs::write(at("model-1.safetensors"), plain_safetensors(a)).unwrap();
    std::fs::write(at("model-2.safetensors"), plain_safetensors(b)).unwrap();
    let index: serde_json::Map<String, serde_json::Value> = (tensors.iter().enumerate())
        .map(|(i, t)| (t.name.clone(), format!("model-{}.safetensors", 1 + usize::from(i >= 5)).into()))
        .collect();
    let write = |name: &str, v: serde_json::Value| std::fs::write(at(name), v.to_string()).unwrap();
    write("model.safetensors.index.json", serde_json::json!({ "weight_map": index }));
    let config = serde_json::json!({
        "model_type": "vit", "num_attention_heads": 2, "hidden_act": "gelu_new", "layer_norm_eps": 1e-6,
        "id2label": {"0": "cat", "1": "dog\u{1b}[2J", "2": "cow", "3": "owl"},
    });
    write("config.json", config.clone());
    write(
        "preprocessor_config.json",
        serde_json::json!({ "image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.5, 0.5], "size": 16, "resample": 3 }),
    );
    let open = || load(dir.path(), &LoadOptions::default());
    let back = open().unwrap();
    assert_eq!(back.graph, model.graph);
    assert_eq!(back.info.hash, model.info.hash);
    let p = &back.info.preprocess;
    assert_eq!((p.mean, p.std, p.origin.as_str()), ([0.5; 3], [0.25, 0.5, 0.5], "preprocessor_config.json"));
    assert_eq!(p.interpolation, paring::model::Interpolation::Bicubic);
    assert_eq!(back.info.class_names.unwrap(), ["cat", "dog\\u{1b}[2J", "cow", "owl"]);

    // What the processors of ViT, DeiT, CLIP-like and ConvNeXt models do (an input of 16).
    use paring::model::{Fit, Interpolation::*};
    for (json, resize_shorter, fit, interpolation) in [
        (serde_json::json!({ "size": {"height": 16, "width": 16}, "resample": 2 }), None, Fit::ShorterFloor, Bilinear),
        (
            serde_json::json!({ "size": {"height": 20, "width": 20}, "do_center_crop": true, "crop_size": 16, "resample": 3 }),
            Some(20),
            Fit::SquashFloor,
            Bicubic,
        ),
        (
            serde_json::json!({ "size": {"shortest_edge": 19}, "crop_size": {"height": 16, "width": 16}, "resample": 1 }),
            Some(19),
            Fit::ShorterFloor,
            Lanczos,
        ),
        (
            serde_json::json!({ "size": {"shortest_edge": 16}, "crop_pct": 0.875, "resample": 3, "image_mean": [0.25] }),
            Some(18),
            Fit::ShorterFloor,
            Bicubic,
        ),
        (serde_json::json!({ "size": {"shortest_edge": 384}, "crop_pct": 0.875 }), None, Fit::ShorterFloor, Bilinear),
    ] {
        write("preprocessor_config.json", json.clone());
        let p = open().unwrap_or_else(|e| panic!("{json}: {e}")).info.preprocess;
        assert_eq!((p.resize_shorter, p.fit, p.interpolation), (resize_shorter, fit, interpolation), "{json}");
        assert!(p.mean == [0.25; 3] || json.get("image_mean").is_none());
    }
    for (json, words) in [
        (serde_json::json!({ "resample": 0 }), "`resample`"),
        (serde_json::json!({ "size": {"shortest_edge": 16}, "crop_pct": 7 }), "`crop_pct`"),
        (serde_json::json!({ "size": {"height": 16, "width": 20}, "do_center_crop": true }), "not square"),
    ] {
        write("preprocessor_config.json", json);
        let error = open().unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("hint: "), "{error}");
    }
    std::fs::remove_file(at("preprocessor_config.json")).unwrap();

    for (key, value, words) in [
        ("num_attention_heads", serde_json::json!("two"), "`num_attention_heads`"),
        ("num_attention_heads", serde_json::json!(7), "7 heads do not divide"),
        ("hidden_act", serde_json::json!("mish"), "`mish`"),
        ("layer_norm_eps", serde_json::json!(-1), "`layer_norm_eps`"),
    ] {
        let mut bad = config.clone();
        bad[key] = value;
        write("config.json", bad);
        let error = open().unwrap_err().to_string();
        assert!(error.contains(words) && error.contains("hint: "), "{error}");
    }
    write("config.json", config);
    write("preprocessor_config.json", serde_json::json!({ "image_std": [0.0, 1.0, 1.0] }));
    assert!(open().unwrap_err().to_string().contains("standard deviation"));
    std::fs::remove_file(at("preprocessor_config.json")).unwrap();
    write("model.safetensors.index.json", serde_json::json!({ "weight_map": { "a": "../../etc/passwd" } }));
    assert!(open().unwrap_err().to_string().contains("is no file name"));
    write("model.safetensors.index.json", serde_json::json!({ "weight_map": { "a": "model-9.safetensors" } }));
    assert!(open().unwrap_err().to_string().contains("model-9.safetensors"));
}

#[test]
fn timm_files_with_and_without_class_token_are_recognised() {
    let class = VitSpec { head: Head::MeanThenNorm, qkv_bias: false, ..VitSpec::timm(dims()) };
    // Without a class token, the mean of the normed patches; without a final norm, either as it is.
    let gap = VitSpec { head: Head::Mean, qkv_bias: false, layer_scale: true, ..VitSpec::timm_mean(dims()) };
    let plain = VitSpec { head: Head::MeanAsIs, ..VitSpec::timm_mean(dims()) };
    let token = VitSpec { head: Head::ClassAsIs, ..VitSpec::timm(dims()) };
    for spec in [VitSpec::timm(dims()), class, VitSpec::timm_mean(dims()), gap, plain, token] {
        let spec = FamilySpec::Vit(spec);
        let model = random(&spec, 9);
        let back = open(plain_safetensors(&tensors_of(&model))).unwrap();
        assert_eq!(back.graph, model.graph);
    }
}

/// A family is what its blocks compute, not how many of them there are.
#[test]
fn resnets_of_any_depth_are_recognised() {
    let spec = |block, depths: &[usize], inner: &[usize], factor: usize| {
        let outer: Vec<usize> = inner.iter().map(|w| w * factor).collect();
        let stages = ResnetStage::usual(depths, inner, &outer);
        let spec = ResnetSpec { block, stages, stem: 5, classes: 4, ..ResnetSpec::depth(18, 4).unwrap() };
        [spec.clone().hugging_face(), spec]
    };
    let specs = [
        spec(ResnetBlock::Bottleneck, &[2, 3, 2], &[3, 4, 5], 4),
        spec(ResnetBlock::Basic, &[1, 1, 2, 1, 1], &[4, 5, 6, 7, 8], 1),
        spec(ResnetBlock::Basic, &[2], &[6], 1),
    ];
    for spec in specs.into_iter().flatten() {
        let model = random(&FamilySpec::Resnet(spec), 5);
        let back = open(plain_safetensors(&tensors_of(&model))).unwrap();
        assert_eq!(back.graph, model.graph);
        assert_eq!(back.info.hash, model.info.hash);
    }
    // A first stage that strides says so by its shortcut.
    let [_, mut strided] = spec(ResnetBlock::Basic, &[1, 1], &[5, 6], 1);
    strided.stages[0].stride = 2;
    let model = random(&FamilySpec::Resnet(strided), 5);
    assert_eq!(open(plain_safetensors(&tensors_of(&model))).unwrap().graph, model.graph);
}

#[test]
fn networks_for_grey_images_differ_in_a_number() {
    let vit = random(&FamilySpec::Vit(VitSpec::timm(dims())), 9);
    for (model, first) in [(cnn(), "conv1.weight"), (vit, "patch_embed.proj.weight")] {
        let mut tensors = tensors_of(&model);
        let t = tensors.iter_mut().find(|t| t.name == first).unwrap();
        t.shape[1] = 1;
        t.values.truncate(t.shape.iter().product());
        let grey = open(plain_safetensors(&tensors)).unwrap();
        assert_eq!((grey.graph.input_shape().unwrap()[0], grey.info.preprocess.channels), (1, 1));
        assert_eq!(grey.params.get(first).unwrap().shape()[1], 1);
    }
}

#[test]
fn half_precision_and_double_are_widened() {
    let model = cnn();
    let tensors = tensors_of(&model);
    let mut data = Vec::new();
    let mut header = serde_json::Map::new();
    for (i, t) in tensors.iter().enumerate() {
        let from = data.len();
        let dtype = ["F16", "BF16", "F64"][i % 3];
        for &v in &t.values {
            match dtype {
                "F16" => data.extend(half::f16::from_f32(v).to_le_bytes()),
                "BF16" => data.extend(half::bf16::from_f32(v).to_le_bytes()),
                _ => data.extend(f64::from(v).to_le_bytes()),
            }
        }
        let entry = serde_json::json!({ "dtype": dtype, "shape": t.shape, "data_offsets": [from, data.len()] });
        header.insert(t.name.clone(), entry);
    }
    let back = open(with_header(&serde_json::Value::Object(header).to_string(), &data)).unwrap();
    for (i, t) in tensors.iter().enumerate() {
        let tolerance = [1e-3, 1e-2, 0.0][i % 3];
        let found: &Param = back.params.get(&t.name).unwrap();
        for (a, b) in found.values().iter().zip(&t.values) {
            assert!((a - b).abs() <= tolerance * b.abs().max(0.01), "{}: {a} {b}", t.name);
        }
    }
}
