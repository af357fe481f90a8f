//! Importances of columns through the program itself: collected, written, read again, and what weights become by them.

use paring::model::imatrix::Imatrix;
use paring::model::{LoadOptions, load};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn fixture(name: &str) -> String {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    dir.join(name).to_str().expect("a name").to_owned()
}

struct Rig {
    dir: tempfile::TempDir,
}

impl Rig {
    fn new() -> Rig {
        Rig { dir: tempfile::tempdir().expect("temp dir") }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().expect("a name").to_owned()
    }

    /// Token ids below 96, in a file.
    fn ids(&self, name: &str, count: u32, seed: u32) -> String {
        let (path, mut x) = (self.path(name), seed);
        let mut next = || {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            ((x >> 16) % 96) as u16
        };
        std::fs::write(&path, (0..count).flat_map(|_| next().to_le_bytes()).collect::<Vec<u8>>()).expect("written");
        path
    }

    fn run(&self, args: &[&str]) -> (bool, String) {
        let mut paring = Command::new(env!("CARGO_BIN_EXE_paring"));
        let out = paring.args(args).env("PARING_HOME", self.dir.path().join("home")).output().expect("run");
        let text = if out.status.success() { out.stdout } else { out.stderr };
        (out.status.success(), String::from_utf8(text).expect("UTF-8"))
    }

    fn json(&self, args: &[&str]) -> Value {
        let (done, said) = self.run(&[args, &["--json"]].concat());
        assert!(done, "{args:?}: {said}");
        serde_json::from_str(&said).expect("JSON")
    }
}

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
