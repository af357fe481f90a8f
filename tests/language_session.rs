//! Sessions on language models, by the command line: from a checkpoint and text to a smaller file that scores as the verdict said.
//! A network of transformers' with random weights, and a published one (*real*).

mod common;

use common::program::Rig;
use paring::data::real_dir;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// `count` token ids below `vocab`, in a file; another seed, other ids.
fn ids(rig: &Rig, name: &str, count: u32, vocab: u32, seed: u32) -> String {
    let id = |i: u32| ((i + seed).wrapping_mul(2_654_435_761) >> 9) % vocab;
    let bytes: Vec<u8> = (0..count).flat_map(|i| (id(i) as u16).to_le_bytes()).collect();
    std::fs::write(rig.path(name), bytes).unwrap();
    rig.path(name)
}

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/language").join(name);
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_language_model_goes_from_opening_to_a_file_that_scores_the_same() {
    let rig = Rig::new();
    let [eval, calib] = [ids(&rig, "eval.u16", 420, 96, 1), ids(&rig, "calib.u16", 700, 96, 7777)];
    let (model, out) = (fixture("llama.gguf"), rig.path("out"));
    let text = ["--data", &eval, "--window", "14"];
    let rest = ["--calib", &calib, "--budget", "macs=0.95,memory=0.7,kl=50", "--out", &out];
    let report = rig.json(&[&["run", &model], &text[..], &rest].concat());
    assert_eq!((&report["met"], report["final"]["n"].as_i64()), (&Value::Bool(true), Some(30)), "{report}");
    let decisions = report["rounds"][0]["decisions"].to_string();
    assert!(decisions.contains("prune") && decisions.contains("q8_0"), "{decisions}");
    let original = rig.json(&[&["eval", &model], &text[..]].concat());
    let loss = |v: &Value| v.as_f64().unwrap();
    assert!((loss(&report["baseline"]["loss"]) - loss(&original["nats_per_token"])).abs() < 1e-5, "{report}");
    // What a token takes after such a window, of the original and of what came of it.
    for token in [&report["token"], &report["rounds"][0]["token"]] {
        assert_eq!((token["context"].as_u64(), token["kv"].as_str()), (Some(13), Some("f16")), "{report}");
        assert!(token["tokens_per_s"].as_f64().unwrap() > 0.0);
    }

    // The file has no memory of the window.
    let kept = rig.path("out/model.safetensors");
    let again = rig.json(&[&["eval", &kept], &text[..]].concat());
    let (said, seen) = (report["final"]["loss"].as_f64().unwrap(), again["nats_per_token"].as_f64().unwrap());
    assert!((said - seen).abs() < 1e-6, "{said} was told, {seen} is found");
    assert_eq!(report["final"]["weight_bytes"], again["weight_bytes"]);
    rig.json(&["eval", &kept, "--data", &eval, "--window", "23"]);
    // How far its outputs are from the original's: as the verdict said, and as the two files say.
    let beside = rig.json(&[&["eval", &kept, "--against", &model], &text[..]].concat());
    let (said, seen) = (&report["final"]["kl_divergence"], &beside["against"]["kl_divergence"]);
    for figure in ["mean", "low", "high", "median", "p99", "max"] {
        let (said, seen) = (loss(&said[figure]), loss(&seen[figure]));
        assert!((said - seen).abs() < 1e-5 * (1.0 + seen) && seen > 1e-4, "{figure}: {said} was told, {seen} is found");
    }
    assert_eq!(report["final"]["top_token_agreement"]["value"], beside["against"]["top_token_agreement"]["value"]);
    assert!(report["baseline"]["kl_divergence"].is_null());
    let floor = report["verdict"]["lines"].as_array().unwrap().iter().find(|l| l["name"] == "kl").unwrap();
    assert_eq!((floor["outcome"].as_str(), floor["measured"].as_f64()), (Some("accept"), said["mean"].as_f64()));
    let (code, _, told) = rig.paring(&["run", "demo:cnn", "--budget", "kl=0.1", "--limit", "16", "--out", &out]);
    assert!(code == Some(1) && told.contains("`kl=0.1` is for language models"), "{told}");
    // For llama.cpp, with what the original said; the planner cuts each layer as suits it.
    let gguf = rig.path("out/model.gguf");
    let notes = rig.json(&["convert", &kept, "--out", &gguf])["notes"].to_string();
    assert!(notes.contains("`deci`"), "{notes}");
    assert!(std::fs::read(&gguf).unwrap().starts_with(b"GGUF"));
    let (code, _, told) = rig.paring(&["eval", &kept, "--data", file!()]);
    assert!(code == Some(1) && told.contains("--tokenizer"), "{told}");
}

/// Neurons of single experts are cut, and what follows them is fitted anew.
#[test]
fn a_mixture_of_experts_goes_the_same_way() {
    let rig = Rig::new();
    let [eval, calib] = [ids(&rig, "eval.u16", 420, 32, 1), ids(&rig, "calib.u16", 700, 32, 7777)];
    let (model, out) = (fixture("../decoders/mixtral"), rig.path("out"));
    let text = ["--data", &eval, "--window", "14"];
    let report =
        rig.json(&[&["run", &model], &text[..], &["--calib", &calib, "--budget", "macs=0.85", "--out", &out]].concat());
    assert_eq!(report["met"], Value::Bool(true), "{report}");
    let decisions = report["rounds"][0]["decisions"].to_string();
    assert!(decisions.contains("block_sparse_moe.experts."), "{decisions}");
    let again = rig.json(&[&["eval", &rig.path("out/model.safetensors")], &text[..]].concat());
    let (said, seen) = (report["final"]["loss"].as_f64().unwrap(), again["nats_per_token"].as_f64().unwrap());
    assert!((said - seen).abs() < 1e-6, "{said} was told, {seen} is found");
    // A token is sent to two of four: half of the experts' share.
    let each = (32 * (32 + 16 + 16) + 32 * 32) + 32 * 4 + 2 * 3 * 32 * 32;
    let macs = report["baseline"]["macs"].as_f64().unwrap();
    assert_eq!(macs, 13.0 * f64::from(2 * each + 32 * 32), "{report}");
}

#[test]
fn a_narrow_original_is_counted_by_its_file_and_what_is_told_comes_before_what_is_planned() {
    let rig = Rig::new();
    let [eval, calib] = [ids(&rig, "eval.u16", 420, 96, 1), ids(&rig, "calib.u16", 700, 96, 7777)];
    let (wide, narrow) = (fixture("llama.gguf"), rig.path("half.gguf"));
    rig.json(&["convert", &wide, "--precision", "f16", "--out", &narrow]);
    let rest = ["--data", &eval, "--window", "14", "--calib", &calib, "--out"];
    let [first, second] = [rig.path("out"), rig.path("told")];
    let bytes = |report: &Value, of: &str| report[of]["weight_bytes"].as_u64().unwrap();
    let report = rig.json(&[&["run", &narrow, "--budget", "memory=0.7"], &rest[..], &[&first]].concat());
    let [original, wide_original] = [&narrow, &wide].map(|model| {
        let found = rig.json(&["eval", model, "--data", &eval, "--window", "14"]);
        found["weight_bytes"].as_u64().unwrap()
    });
    assert_eq!(bytes(&report, "baseline"), original);
    assert!(original < wide_original * 6 / 10, "{original} of {wide_original}");
    assert_eq!(report["met"], Value::Bool(true), "{report}");
    assert!(bytes(&report, "final") * 10 <= original * 7, "{report}");
    let written = rig.path("out/small.gguf");
    rig.json(&["convert", &rig.path("out/model.safetensors"), "--out", &written]);
    let size = |path: &str| std::fs::metadata(path).unwrap().len();
    assert!(size(&written) < size(&narrow), "{} of {}", size(&written), size(&narrow));

    // What it can hold as it is needs no work, and is no failure.
    let none = rig.path("none");
    let report = rig.json(&[&["run", &narrow, "--budget", "memory=1.0"], &rest[..], &[&none]].concat());
    assert_eq!((&report["met"], report["rounds"].as_array().map(Vec::len)), (&Value::Bool(true), Some(0)), "{report}");

    // Four bits alone are within this budget: nothing is cut besides.
    let report =
        rig.json(&[&["run", &wide, "--precision", "w4", "--budget", "memory=0.6"], &rest[..], &[&second]].concat());
    assert_eq!((&report["met"], &report["final"]["macs"]), (&Value::Bool(true), &report["baseline"]["macs"]));
    let decisions = report["rounds"][0]["decisions"].as_array().unwrap();
    assert!(!decisions.is_empty() && decisions.iter().all(|d| d.to_string().contains("w4")), "{report}");
}

#[test]
fn a_profile_is_of_one_length_and_shared_weights_count_once() {
    let rig = Rig::new();
    let profile = |window| rig.json(&["profile", &fixture("llama"), "--window", window, "--runs", "2"]);
    let (short, long) = (profile("8"), profile("16"));
    let macs = |p: &Value, what: &str| p["macs"][what].as_u64().unwrap();
    assert_eq!(2 * macs(&short, "conv_linear"), macs(&long, "conv_linear"));
    assert!(macs(&long, "attention") > 2 * macs(&short, "attention"), "every token looks at all before it");
    // One token that sees itself and fifteen before it is a sixteenth of what sixteen are.
    let token = rig.json(&["profile", &fixture("llama"), "--decode", "15", "--runs", "2"]);
    for what in ["conv_linear", "attention"] {
        assert_eq!(16 * macs(&token, what), macs(&long, what), "{what}");
    }
    let names = |p: &Value| -> Vec<String> {
        p["rows"].as_array().unwrap().iter().map(|r| r["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names(&token), names(&long));
    assert_eq!(token["workload"]["context"].as_u64(), Some(15));
    let (code, _, said) = rig.paring(&["profile", "demo:vit", "--decode", "5"]);
    assert!(code == Some(1) && said.contains("no language model"), "{said}");
    let file = safetensors(&fixture("llama"));
    assert_eq!(long["params"].as_u64(), Some(file), "the embedding is the last layer's weight");
    let rows: u64 = long["rows"].as_array().unwrap().iter().map(|r| r["params"].as_u64().unwrap()).sum();
    assert_eq!(rows, file);
}

/// Numbers in the file of a folder.
fn safetensors(folder: &str) -> u64 {
    let bytes = std::fs::read(PathBuf::from(folder).join("model.safetensors")).unwrap();
    let header = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Value = serde_json::from_slice(&bytes[8..8 + header]).unwrap();
    let shapes = header.as_object().unwrap().values().filter_map(|t| t["shape"].as_array());
    shapes.map(|s| s.iter().map(|d| d.as_u64().unwrap()).product::<u64>()).sum()
}

#[test]
fn half_of_a_published_models_bytes_go_for_next_to_nothing() {
    let Some(real) = real_dir() else {
        eprintln!("skipped: no real data");
        return;
    };
    let rig = Rig::new();
    let real = real.join("stories260k");
    let ids = std::fs::read(real.join("tinystories_a.tok512.u16")).unwrap();
    let (eval, calib) = (rig.path("eval.u16"), rig.path("calib.u16"));
    std::fs::write(&eval, &ids[..2 * 512 * 24]).unwrap();
    std::fs::write(&calib, &ids[2 * 512 * 24..2 * 512 * 64]).unwrap();
    let (model, out) = (real.to_str().unwrap(), rig.path("out"));
    let report = rig.json(&["run", model, "--data", &eval, "--calib", &calib, "--budget", "memory=0.5", "--out", &out]);
    let loss = |of: &str| report[of]["loss"].as_f64().unwrap();
    let change = loss("final") - loss("baseline");
    assert!(report["met"] == true && change.abs() < 0.01, "{change} nats a token: {}", report["verdict"]);
    // As GGUF, the codes are the same, in scales of 16 bits.
    let gguf = rig.path("out/model.gguf");
    rig.json(&["convert", &rig.path("out/model.safetensors"), "--out", &gguf]);
    let again = rig.json(&["eval", &gguf, "--data", &eval, "--window", "512"])["nats_per_token"].as_f64().unwrap();
    assert!((again - loss("final")).abs() < 2e-3, "{} was told, {again} is found", loss("final"));
    let forecast = &report["rounds"][0]["forecast"];
    eprintln!("{change:+.5} nats a token; {forecast}");
}
