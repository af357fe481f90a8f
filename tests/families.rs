//! Every family from every place where people get it: small networks with random weights that torchvision, timm and
//! transformers saved (tests/conformance), against the logits that their own code computed.

#[path = "common/mixed.rs"]
mod mixed;

use candle_core::{Device, Tensor};
use mixed::mixed;
use paring::exec::candle::{self, Capture, Mode};
use paring::exec::{CompileOptions, Kernels, Plan};
use paring::graph::node_params;
use paring::model::{LoadOptions, Model, ModelError, load};
use paring::quant::Precisions;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Instant;

#[derive(Deserialize)]
struct Expected {
    fixtures: BTreeMap<String, Fixture>,
}

#[derive(Deserialize)]
struct Fixture {
    /// What to open, relative to the fixture's folder; empty: the folder.
    file: String,
    image: usize,
    options: Options,
    /// Learned parameters, as PyTorch counts them.
    parameters: u64,
    logits: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
struct Options {
    image: Option<usize>,
    heads: Option<usize>,
}

/// Where the fixtures are; by hand, those that `make_fixtures.py --members DIR` made: `PARING_FIXTURES=DIR cargo test
/// --test families every_family`.
fn folder() -> PathBuf {
    let here = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    std::env::var_os("PARING_FIXTURES").map_or_else(here, PathBuf::from)
}

fn fixtures(folder: &Path) -> BTreeMap<String, Fixture> {
    let text = std::fs::read_to_string(folder.join("expected.json")).unwrap();
    serde_json::from_str::<Expected>(&text).unwrap().fixtures
}

fn open(folder: &Path, f: &Fixture) -> Result<Model, ModelError> {
    load(&folder.join(&f.file), &LoadOptions { arch: None, image: f.options.image, heads: f.options.heads })
}

fn parameters(model: &Model) -> u64 {
    model.graph.nodes.iter().map(|n| node_params(&n.op)).sum()
}

/// Parameters that PyTorch counts and no classifier reads (DINOv2's mask token), or the other way round (timm keeps no
/// zeros for the missing bias of Swin v2's keys).
fn uncounted(name: &str) -> i64 {
    match name {
        _ if name.starts_with("hf_dinov2") => -24,
        _ if name.starts_with("timm_swinv2") => 2 * 12 + 2 * 24,
        _ => 0,
    }
}

/// The input that the fixtures' logits were computed for.
fn pixels(side: usize, images: usize) -> Tensor {
    let values = mixed(images * 3 * side * side, 0);
    Tensor::from_vec(values, (images, 3, side, side), &Device::Cpu).unwrap()
}

/// Largest difference of any logit.
fn difference(found: &Tensor, want: &[Vec<f32>]) -> f32 {
    let found = found.to_vec2::<f32>().unwrap();
    assert_eq!(found.len(), want.len());
    let pairs = found.iter().flatten().zip(want.iter().flatten());
    pairs.map(|(f, w)| if f.is_finite() { (f - w).abs() } else { f32::INFINITY }).fold(0.0, f32::max)
}

#[test]
fn every_family_computes_what_its_own_code_does() {
    let mut wrong = Vec::new();
    for (name, f) in fixtures(&folder()) {
        let model = match open(&folder().join("fixtures").join(&name), &f) {
            Ok(model) => model,
            Err(e) => {
                wrong.push(format!("{name}: {e}"));
                continue;
            }
        };
        let x = pixels(f.image, f.logits.len());
        let params = candle::tensors(&model.params, &Device::Cpu).unwrap();
        let slow = candle::forward(&model.graph, &params, &x, Mode::Eval, &mut Capture::none()).unwrap();
        let fast = Plan::of(&model, &CompileOptions::default()).unwrap().run(&x).unwrap();
        // What a GPU plan computes, on the CPU.
        let tensors = CompileOptions { kernels: Kernels::Tensors, ..CompileOptions::default() };
        // It multiplies 16-bit weights in 16 bits; what is asked here is what the graph computes.
        let wide = Model { precision: Precisions::default(), ..model.clone() };
        let tensors = Plan::of(&wide, &tensors).unwrap().run(&x).unwrap();
        let [slow, fast, tensors] = [&slow, &fast, &tensors].map(|y| difference(y, &f.logits));
        println!(
            "{name}: {:?}, off by {slow:.1e} in the interpreter, {fast:.1e} in the plan, {tensors:.1e} in a GPU's plan",
            model.info.family
        );
        assert_eq!(parameters(&model) as i64, f.parameters as i64 + uncounted(&name), "{name}");
        if slow.max(fast).max(tensors) > 1e-4 {
            wrong.push(format!(
                "{name}: off by {slow} in the interpreter, {fast} in the plan, {tensors} in a GPU's plan"
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Logits would not tell if an image were prepared otherwise than its network was trained with.
#[test]
fn every_folder_tells_how_its_images_are_prepared() {
    for (name, f) in fixtures(&folder()) {
        let model = open(&folder().join("fixtures").join(&name), &f).unwrap();
        let prep = &model.info.preprocess;
        let origin = match name.split('_').next() {
            Some("hf") => "preprocessor_config.json",
            Some("timm") => "config.json",
            _ => "family default",
        };
        assert_eq!(prep.origin, origin, "{name}");
        assert_eq!(prep.size, [f.image; 2], "{name}");
        if origin == "preprocessor_config.json" {
            assert_eq!((prep.mean, prep.resize_shorter), ([0.5; 3], None), "{name}");
        }
    }
}

/// What lies in the repository is what the list names, and little.
#[test]
fn fixtures_are_all_listed_and_small() {
    let listed: BTreeSet<String> = fixtures(&folder()).into_keys().collect();
    let mut found = BTreeSet::new();
    let mut bytes = 0;
    for dir in std::fs::read_dir(folder().join("fixtures")).unwrap() {
        let dir = dir.unwrap();
        found.insert(dir.file_name().into_string().unwrap());
        bytes += dir.path().read_dir().unwrap().map(|f| f.unwrap().metadata().unwrap().len()).sum::<u64>();
    }
    assert_eq!(found, listed);
    assert!(bytes < 10_000_000, "{bytes} bytes");
}

/// A fixture, loaded with another word in its configuration.
fn with_config(name: &str, from: &str, to: &str) -> Result<Model, ModelError> {
    let dir = tempfile::tempdir().unwrap();
    for file in folder().join("fixtures").join(name).read_dir().unwrap() {
        let file = file.unwrap();
        std::fs::copy(file.path(), dir.path().join(file.file_name())).unwrap();
    }
    assert!(load(dir.path(), &LoadOptions::default()).is_ok(), "{name}");
    let config = dir.path().join("config.json");
    let text = std::fs::read_to_string(&config).unwrap();
    assert!(text.contains(from), "{name}");
    std::fs::write(&config, text.replace(from, to)).unwrap();
    load(dir.path(), &LoadOptions::default())
}

/// timm names widths and depths in more ways than one.
#[test]
fn members_that_differ_in_numbers_alone_are_taken_by_any_name() {
    for (name, from, to) in [
        ("timm_mobilenetv2_100", "\"mobilenetv2_100\"", "\"mobilenetv2_110d\""),
        ("timm_mobilenetv3_large_100", "\"mobilenetv3_large_100\"", "\"mobilenetv3_large_150d\""),
        ("timm_efficientnet_b0", "\"efficientnet_b0\"", "\"efficientnet_l2\""),
    ] {
        with_config(name, from, to).unwrap_or_else(|e| panic!("{to}: {e}"));
    }
}

/// timm has networks that share all names and shapes with a family and compute something else.
#[test]
fn relatives_that_compute_something_else_are_refused() {
    for (name, from, to) in [
        ("timm_resnet18", "\"resnet18\"", "\"resnetblur18\""),
        ("timm_vit", "\"vit_base_patch16_224\"", "\"vit_base_patch16_clip_quickgelu_224\""),
        ("timm_vit", "\"global_pool\": \"token\"", "\"global_pool\": \"map\""),
        ("timm_swin", "\"swin_tiny_patch4_window7_224\"", "\"swin_s3_tiny_224\""),
        ("timm_efficientnet_b0", "\"efficientnet_b0\"", "\"efficientnet_lite0\""),
        ("hf_resnet_bottleneck", "\"downsample_in_bottleneck\": false", "\"downsample_in_bottleneck\": true"),
        ("hf_vit", "\"hidden_act\": \"gelu\"", "\"hidden_act\": \"quick_gelu\""),
        ("timm_vit", "\"vit_base_patch16_224\"", "\"vit_base_patch16_rpn_224\""),
        ("hf_mobilenet_v2", "\"output_stride\": 32", "\"output_stride\": 16"),
        ("hf_efficientnet_b0", "\"pooling_type\": \"mean\"", "\"pooling_type\": \"max\""),
    ] {
        let error = with_config(name, from, to).unwrap_err().to_string();
        assert!(error.contains("not supported") || error.contains("supported"), "{name}: {error}");
        assert!(error.contains("hint: "), "{error}");
    }
}

/// Highest resident memory of this process so far, in bytes.
#[cfg(target_os = "linux")]
fn peak() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = text.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// By hand, a network a process: `make_fixtures.py --full-size DIR`, then
/// `PARING_FULL_SIZE=DIR/NAME cargo test --test families full_size -- --ignored --nocapture`.
#[cfg(target_os = "linux")]
#[test]
#[ignore = "needs full-size networks"]
fn full_size() {
    let Some(dir) = std::env::var_os("PARING_FULL_SIZE").map(PathBuf::from) else { return };
    let name = dir.file_name().unwrap().to_str().unwrap().to_owned();
    let f = fixtures(dir.parent().unwrap()).remove(&name).expect("it is listed");
    let before = peak();
    let start = Instant::now();
    let model = open(&dir, &f).unwrap();
    let loaded = (start.elapsed(), peak() - before);
    let start = Instant::now();
    let plan = Plan::of(&model, &CompileOptions::default()).unwrap();
    let compiled = (start.elapsed(), peak() - before);
    let weights = 4 * f.parameters;
    let share = |bytes: u64| bytes as f64 / weights as f64;
    let error = difference(&plan.run(&pixels(f.image, f.logits.len())).unwrap(), &f.logits);
    println!(
        "{name}: {:.1} M parameters, loaded in {:.2} s with {:.2}x the weights, compiled in {:.2} s with {:.2}x, off by {error:.1e}",
        parameters(&model) as f64 / 1e6,
        loaded.0.as_secs_f64(),
        share(loaded.1),
        compiled.0.as_secs_f64(),
        share(compiled.1),
    );
    assert_eq!(parameters(&model), f.parameters);
    assert!(share(compiled.1) <= 1.3 && error <= 1e-4);
}
