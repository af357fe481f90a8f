//! Rounding to llama.cpp's formats through the program itself: importances of columns collected, written and read again, what weights become by
//! them and by calibration text, and a format for each of them by bits.

mod common;

use common::program::{Rig, fixture};
use paring::model::imatrix::Imatrix;
use paring::model::{LoadOptions, load};
use serde_json::Value;
use std::path::{Path, PathBuf};

#[test]
fn importances_are_collected_and_weights_rounded_by_them() {
    let rig = Rig::new();
    let (model, folder) = (fixture("language/llama.gguf"), fixture("language/llama"));
    let (calib, eval) = (rig.ids("calib.u16", 400, 5), rig.ids("eval.u16", 200, 9));
    let [matrix, other] = ["m.gguf", "other.gguf"].map(|n| rig.path(n));
    let said = rig.json(&["imatrix", &model, "--calib", &calib, "--window", "13", "--limit", "20", "--out", &matrix]);
    assert_eq!((&said["windows"], &said["tokens"]), (&Value::from(20), &Value::from(260)));
    let found = Imatrix::open(Path::new(&matrix)).expect("written");
    assert_eq!((found.chunks, found.chunk_size, &found.datasets[..]), (20, 13, &["calib.u16".to_owned()][..]));
    // All linear layers, the last one by the embedding that it shares, as the directory's own names would tell it too.
    let names: Vec<&str> = found.tensors.keys().map(String::as_str).collect();
    assert!(names.contains(&"token_embd.weight") && names.contains(&"blk.1.ffn_down.weight"), "{names:?}");
    assert_eq!(said["tensors"], Value::from(names.len()));
    rig.json(&["imatrix", &folder, "--calib", &calib, "--window", "13", "--limit", "20", "--out", &other]);
    let again = Imatrix::open(Path::new(&other)).expect("written");
    for (name, squares) in &found.tensors {
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-4 * a.abs().max(1e-6);
        assert!(squares.means().iter().zip(&again.tensors[name].means()).all(near), "{name}");
    }

    let args = ["--precision", "q4_0", "--data", &eval, "--window", "13"];
    let nats = |more: &[&str]| rig.json(&[&["eval", &model][..], &args, more].concat())["nats_per_token"].as_f64();
    let (plain, with) = (nats(&[]).expect("nats"), nats(&["--imatrix", &matrix]).expect("nats"));
    assert_ne!(plain, with);
    let converted = rig.path("a.gguf");
    let said = rig.json(&["convert", &model, "--precision", "q4_0", "--imatrix", &matrix, "--out", &converted]);
    let mark = &said["imatrix"];
    assert_eq!((&mark["file"], &mark["chunks"]), (&Value::from("m.gguf"), &Value::from(20)));
    assert_eq!((&mark["used"], &mark["entries"]), (&mark["entries"], &Value::from(names.len())));
    assert!(said["llama_quantize"].as_str().is_some_and(|c| c.starts_with("llama-quantize --imatrix ")), "{said}");
    let text = String::from_utf8_lossy(&std::fs::read(&converted).expect("read")).into_owned();
    for key in ["quantize.imatrix.file", "quantize.imatrix.entries_count", r#""imatrix":{"file":"m.gguf""#] {
        assert!(text.contains(key), "{key}");
    }
    // The file is what was evaluated, and its blocks are ggml's for these importances (`gguf/tests.rs` holds those against ggml itself).
    let args = ["eval", &converted, "--data", &eval, "--window", "13"];
    let stored = rig.json(&args)["nats_per_token"].as_f64().expect("nats");
    assert!((stored - with).abs() < 1e-6, "{stored} {with}");
    let open = |path: &str| load(&PathBuf::from(path), &LoadOptions::default()).expect("opened");
    let (was, is) = (open(&model), open(&converted));
    let name = "blk.0.ffn_up.weight";
    let (block, bytes) = is.params.get(name).expect("there").as_blocks().expect("blocks");
    let means = found.tensors[name].means();
    assert_eq!(bytes, block.encode_weighted(&was.params.get(name).expect("there").values(), &means));
}

#[test]
fn what_cannot_be_rounded_by_importance_says_why() {
    let rig = Rig::new();
    let model = fixture("language/llama.gguf");
    let calib = rig.ids("calib.u16", 60, 5);
    let refused = |args: &[&str], words: &str| {
        let (done, said) = rig.run(args);
        assert!(!done && said.contains(words) && said.contains("hint: "), "`{words}` is not in: {said}");
    };
    let out = &rig.path("out.gguf");
    let convert = |precision: &str, matrix: &str, words: &str| {
        refused(&["convert", &model, "--precision", precision, "--imatrix", matrix, "--out", out], words);
    };
    let theirs = fixture("blocks/imatrix.gguf");
    convert("q4_0", &theirs, "`blk.0.attn_q.weight` has 32 columns and 4 importances");
    convert("w4", &theirs, "--imatrix is for GGML's formats");
    convert("q4_0", &rig.path("nowhere"), "cannot read");
    convert("q4_0", &calib, "no file of importances");
    convert("q4_0", &model, "no importances");
    // One that knows no layer at all.
    let mut strange = Imatrix::default();
    let squares = paring::model::imatrix::Squares::new(vec![1.0; 4], vec![1.0]).expect("sound");
    strange.tensors.insert("something.weight".to_owned(), squares);
    let path = rig.path("strange.gguf");
    strange.write(Path::new(&path)).expect("written");
    convert("q4_0", &path, "knows none of the weights, such as `blk.0.attn_q.weight`");
    assert!(!Path::new(out).exists());

    refused(&["imatrix", &model, "--window", "13", "--calib", &calib, "--out", &model], "is not replaced");
    refused(&["imatrix", &model, "--window", "13", "--calib", &calib, "--out", &calib], "is not replaced");
    refused(&["imatrix", &model, "--window", "70", "--calib", &calib, "--out", out], "less than one window");
    refused(&["imatrix", &model, "--calib", "/nowhere.u16", "--out", out], "no data");
    refused(&["imatrix", &model, "--window", "13", "--calib", &calib, "--out", "/nowhere/m.gguf"], "cannot write");
    assert!(!Path::new(out).exists());
}

/// With text alone rounding is learnt by importance, with GPTQ and so after moved scales, and the best by other windows stays.
#[test]
fn rounding_is_learnt_from_text() {
    let rig = Rig::new();
    let model = fixture("language/llama.gguf");
    let (calib, eval) = (rig.ids("calib.u16", 1300, 5), rig.ids("eval.u16", 400, 9));
    let [plain, learnt] = ["plain.gguf", "learnt.gguf"].map(|n| rig.path(n));
    rig.json(&["convert", &model, "--precision", "q4_0", "--out", &plain]);
    let with = ["--precision", "q4_0", "--calib", &calib, "--window", "13", "--limit", "0"];
    let said = rig.json(&[&["convert", &model][..], &with, &["--out", &learnt]].concat());
    let steps = said["rounding"]["steps"].as_array().expect("steps");
    assert_eq!(steps.len(), 3, "{said}");
    let loss = |i: usize, which: &str| steps[i][which].as_f64().expect("a loss");
    assert!(loss(1, "loss_after") < loss(0, "loss_before"), "{said}");
    assert_eq!((&said["rounding"]["fitted"], &said["rounding"]["checked"]), (&80.into(), &19.into()));
    // No command of theirs makes this.
    assert_eq!(said["llama_quantize"], Value::Null);
    let kl = |path: &str| {
        let said = rig.json(&["eval", path, "--data", &eval, "--window", "13", "--against", &model]);
        said["against"]["kl_divergence"]["mean"].as_f64().expect("a divergence")
    };
    let (nearest, ours) = (kl(&plain), kl(&learnt));
    assert!(ours < nearest, "{ours} {nearest}");
    // The same again, to the bit; and what is in the file says how it came about.
    let again = rig.path("again.gguf");
    let twice = rig.json(&[&["convert", &model][..], &with, &["--out", &again]].concat());
    assert_eq!(twice["hash"], said["hash"]);
    let text = String::from_utf8_lossy(&std::fs::read(&learnt).expect("read")).into_owned();
    assert!(text.contains(r#""rounding":{"#) && text.contains("with GPTQ"), "told in the manifest");
}

/// A format for each weight, so that all together take so many bits.
#[test]
fn bits_are_spent_where_rounding_costs_most() {
    let rig = Rig::new();
    let model = fixture("language/llama.gguf");
    let calib = rig.ids("calib.u16", 650, 5);
    let out = &rig.path("out.gguf");
    let stored = |path: &str| {
        let found = load(&PathBuf::from(path), &LoadOptions::default()).expect("opened");
        let bytes: u64 = found.params.iter().map(|(_, p)| p.stored_bytes()).sum();
        let values: u64 = found.params.iter().map(|(_, p)| p.numel() as u64).sum();
        8.0 * bytes as f64 / values as f64
    };
    let text = ["--calib", &calib, "--window", "13"];
    for (bits, with) in [(6.0, &text[..]), (7.5, &[]), (8.0, &text)] {
        let asked = bits.to_string();
        let said = rig.json(&[&["convert", &model, "--bits", &asked, "--out", out][..], with].concat());
        let came = said["bits"]["bits"].as_f64().expect("bits");
        assert!(came <= bits && came > bits - 0.6, "{bits}: {came}");
        assert!((stored(out) - came).abs() < 1e-9, "{} {came}", stored(out));
        let layers = said["bits"]["layers"].as_array().expect("layers");
        let kinds: std::collections::BTreeSet<&str> = layers.iter().filter_map(|l| l["format"].as_str()).collect();
        assert!(kinds.len() > 1, "one format for all would not do: {said}");
        // Only what was measured is told as nats.
        assert_eq!(said["bits"]["harm"].is_f64(), !with.is_empty(), "{said}");
        assert!(layers.iter().all(|l| l["cost"].is_number() != with.is_empty()), "{said}");
    }
    let refused = |args: &[&str], words: &str| {
        let (done, said) = rig.run(&[args, &["--out", &rig.path("none.gguf")]].concat());
        assert!(!done && said.contains(words), "`{words}` is not in: {said}");
    };
    refused(&["convert", &model, "--bits", "2"], "fewer than the smallest formats take; hint: --bits ");
    refused(&["convert", "demo:vit", "--bits", "4"], "--bits is for language models; hint: ");
    refused(&["convert", &model, "--bits", "0"], "--bits");
    refused(&["convert", &model, "--bits", "nan"], "--bits");
    refused(&["convert", &model, "--bits", "4", "--precision", "q4_0"], "cannot be used with");
    refused(&["convert", &model, "--bits", "5", "--limit", "3"], "--calib");
    // What cannot be written is said before anything is measured: nothing but the reason is.
    let (done, said) =
        rig.run(&["convert", &fixture("language/llama"), "--bits", "6", "--out", &rig.path("none.gguf")]);
    assert!(!done && said.contains("as GGUF, ") && !said.contains("bits a weight"), "{said}");
    refused(&["convert", &model, "--precision", "q4_0", "--calib", "/nowhere.u16"], "no data");
}

/// A classifier's columns are its windows' places; its layers go by their own names.
#[test]
fn a_classifier_has_importances_too() {
    let rig = Rig::new();
    let matrix = rig.path("m.gguf");
    let said = rig.json(&["imatrix", "demo:vit", "--calib", "synthetic:calib", "--limit", "16", "--out", &matrix]);
    assert_eq!((&said["images"], &said["windows"]), (&Value::from(16), &Value::Null));
    let args = ["eval", "demo:vit", "--data", "synthetic:eval", "--limit", "64", "--precision", "q4_0"];
    let plain = rig.json(&args);
    let with = rig.json(&[&args[..], &["--imatrix", &matrix]].concat());
    assert!(with["imatrix"]["used"].as_u64().is_some_and(|n| n > 0), "{with}");
    assert_ne!(plain["loss"], with["loss"]);
}
