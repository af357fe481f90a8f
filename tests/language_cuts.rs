//! Cuts and masks of language models through the program itself: `convert --prune` and `--sparsity`, by what calibration text says.

mod common;

use common::program::{Rig, fixture};
use paring::graph::{Node, NodeId, Op, ParamRole};
use paring::model::{LoadOptions, load};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// The program, with text to calibrate on and other text to judge by.
struct Texts {
    rig: Rig,
    calib: String,
    eval: String,
}

impl Texts {
    fn new() -> Texts {
        let rig = Rig::new();
        let (calib, eval) = (rig.ids("calib.u16", 1300, 5), rig.ids("eval.u16", 600, 9));
        Texts { rig, calib, eval }
    }

    /// `model` converted by calibration text, in 32 bits so that nothing is rounded besides.
    fn made(&self, model: &str, out: &str, with: &[&str]) -> Value {
        let usual = ["--calib", &self.calib, "--window", "13", "--limit", "0", "--precision", "f32", "--out", out];
        self.rig.json(&[&["convert", model][..], &usual, with].concat())
    }

    fn kl(&self, path: &str, original: &str) -> f64 {
        let said = self.rig.json(&["eval", path, "--data", &self.eval, "--window", "13", "--against", original]);
        said["against"]["kl_divergence"]["mean"].as_f64().expect("a divergence")
    }
}

fn weights(path: &str) -> usize {
    let model = load(&PathBuf::from(path), &LoadOptions::default()).expect("opened");
    model.params.iter().map(|(_, p)| p.numel()).sum()
}

/// Every row of every masked weight of the file at `path` has two zeros in four, and fewer than `percent` of all; how many there are.
fn has_its_pattern(path: &str, what: &str, percent: usize) -> usize {
    let made = load(&PathBuf::from(path), &LoadOptions::default()).expect("opened");
    let inside = |(id, n): &(NodeId, &Node)| matches!(n.op, Op::Linear(_)) && *id != made.graph.output;
    let layers: Vec<_> = made.graph.live().filter(inside).collect();
    for (_, node) in &layers {
        let name = node.param(ParamRole::Weight).expect("a weight");
        let values = made.params.get(name).expect("there").values();
        let zeros = |run: &[f32]| run.iter().filter(|w| **w == 0.0).count();
        assert!(values.chunks(4).all(|run| zeros(run) >= 2), "{what}: {name}");
        assert!(zeros(&values) < values.len() * percent / 100, "{what}: {name}");
    }
    layers.len()
}

#[test]
fn learnt_masks_have_their_pattern_and_move_answers_less_than_published_ones() {
    let texts = Texts::new();
    let rig = &texts.rig;
    let model = fixture("language/llama.gguf");
    let mut moved = Vec::new();
    for masks in ["learnt", "sparsegpt", "wanda", "magnitude"] {
        let out = rig.path(&format!("{masks}.gguf"));
        let said = texts.made(&model, &out, &["--sparsity", "2:4", "--masks", masks]);
        let seen = has_its_pattern(&out, masks, 55);
        assert!(seen >= 14, "{masks}: {seen} layers");
        if masks != "magnitude" {
            let step = &said["rounding"]["steps"][0];
            assert_eq!(
                (&step["name"], &step["kept"]),
                (&format!("masks of {seen} layers, {masks}").into(), &true.into())
            );
        }
        moved.push(texts.kl(&out, &model));
    }
    let [learnt, gpt, wanda, magnitude] = moved[..] else { panic!("four") };
    assert!(learnt < gpt && learnt < wanda && learnt < magnitude, "{moved:?}");
}

#[test]
fn zeros_outlive_rounding_and_bits_are_those_of_what_is_written() {
    let texts = Texts::new();
    let rig = &texts.rig;
    let model = fixture("language/llama.gguf");
    let text = ["--calib", &texts.calib, "--window", "13", "--limit", "0"];
    let make = |out: &str, with: &[&str]| rig.json(&[&["convert", &model, "--out", out], &text[..], with].concat());
    let notes = |said: &Value| said["notes"].to_string();
    for (precision, told) in [("q4_0", ""), ("q5_0", ""), ("q4_1", "in q5_0: q4_1 has no zero"), ("iq4_nl", "in q4_0")]
    {
        let out = rig.path(&format!("{precision}.gguf"));
        let said = make(&out, &["--sparsity", "2:4", "--precision", precision]);
        assert!(has_its_pattern(&out, precision, 70) >= 14 && notes(&said).contains(told), "{precision}: {said}");
    }
    // Rows of 60, which a cut leaves, are whole blocks of no format.
    for (with, bits) in [(["--sparsity", "2:4"], 7.5), (["--prune", "10%"], 8.5)] {
        let out = rig.path("bits.gguf");
        let said = make(&out, &[&with[..], &["--bits", &bits.to_string()]].concat());
        let came = said["bits"]["bits"].as_f64().expect("bits");
        let made = load(&PathBuf::from(&out), &LoadOptions::default()).expect("opened");
        let bytes: u64 = made.params.iter().map(|(_, p)| p.stored_bytes()).sum();
        let stored = 8.0 * bytes as f64 / weights(&out) as f64;
        assert!((stored - came).abs() < 1e-9 && came <= bits, "{with:?}: {stored}, told {came}");
        if with[0] == "--sparsity" {
            has_its_pattern(&out, "7.5 bits", 70);
        }
    }
}

#[test]
fn cuts_are_chosen_jointly_take_what_was_asked_and_cost_less_than_whole_blocks() {
    let texts = Texts::new();
    let rig = &texts.rig;
    let model = fixture("language/llama.gguf");
    let before = weights(&model);
    let [joint, blocks, plain] = ["joint.safetensors", "blocks.safetensors", "again.safetensors"].map(|n| rig.path(n));
    let said = texts.made(&model, &joint, &["--prune", "12%"]);
    let (cuts, after) = (&said["cuts"], weights(&joint));
    assert_eq!(cuts["weights"].as_u64(), Some((before - after) as u64), "{said}");
    assert!(before - after >= before * 12 / 100, "{before} {after}");
    let (cost, least) = (cuts["nats"].as_f64().expect("nats"), cuts["least"].as_f64().expect("least"));
    assert!(least <= cost && cost.is_finite(), "{said}");
    let curves = cuts["curves"].as_array().expect("curves");
    assert!(curves.iter().any(|c| c["influence"].is_f64()) && curves.iter().any(|c| c["influence"].is_null()));
    let step = &said["rounding"]["steps"][0];
    assert!(step["name"].as_str().is_some_and(|n| n.starts_with("refit ")) && step["kept"] == true, "{said}");
    // The same again, to the bit.
    assert_eq!(texts.made(&model, &plain, &["--prune", "0.12"])["hash"], said["hash"]);
    // By what was measured before: of all that is kept, costs are made a thousandfold.
    let kept = |e: std::io::Result<std::fs::DirEntry>| {
        Some(e.ok()?.path()).filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("cuts-")))
    };
    let cache = rig.dir.path().join("home/cache");
    let kept: Vec<PathBuf> = std::fs::read_dir(cache).expect("a cache").filter_map(kept).collect();
    assert_eq!(kept.len(), curves.len());
    for path in &kept {
        let mut curve: Value = serde_json::from_slice(&std::fs::read(path).expect("read")).expect("JSON");
        for cut in curve["cuts"].as_array_mut().expect("cuts") {
            cut["cost"] = (1000.0 * cut["cost"].as_f64().expect("a cost")).into();
        }
        std::fs::write(path, curve.to_string()).expect("written");
    }
    let dear = texts.made(&model, &plain, &["--prune", "12%"])["cuts"]["nats"].as_f64().expect("nats");
    assert!(dear > 900.0 * cost, "{dear} {cost}");
    // Nothing is known of other text.
    let with = ["--prune", "12%", "--calib", &texts.eval, "--window", "13", "--out", &plain];
    let other = rig.json(&[&["convert", &model][..], &with].concat())["cuts"]["nats"].as_f64().expect("nats");
    assert!(other < 100.0 * cost, "{other} {cost}");
    let said = texts.made(&model, &blocks, &["--prune", "12%", "--prune-by", "influence"]);
    assert!(said["cuts"]["actions"].as_array().is_some_and(|a| a.iter().all(|a| a[1]["action"] == "remove_block")));
    let moved = [&joint, &blocks].map(|path| texts.kl(path, &model));
    assert!(moved[0] < moved[1], "{moved:?}");
}

#[test]
fn what_cannot_be_is_said_before_anything_is_measured() {
    let texts = Texts::new();
    let rig = &texts.rig;
    let model = fixture("language/llama.gguf");
    let (calib, out) = (texts.calib.clone(), rig.path("none.gguf"));
    let refused = |args: &[&str], words: &str| {
        let (done, said) = rig.run(&[args, &["--out", &out]].concat());
        assert!(!done && said.contains(words), "`{words}` is not in: {said}");
        assert!(!Path::new(&out).exists());
    };
    let with = ["convert", &model, "--calib", &calib, "--window", "13"];
    let asked = |more: &[&'static str]| [&with[..], more].concat();
    refused(&asked(&["--prune", "99%"]), "more than all cuts together take; hint: --prune ");
    refused(&asked(&["--prune", "0"]), "more than none and less than all");
    refused(&asked(&["--prune", "10%", "--prune-by", "lot"]), "joint");
    refused(&asked(&["--sparsity", "4:2"]), "--sparsity: ");
    refused(&asked(&["--sparsity", "2:4", "--masks", "lottery"]), "--masks: unknown masks");
    refused(&["convert", &model, "--prune", "10%"], "--calib");
    refused(&["convert", "demo:vit", "--prune", "10%", "--calib", "synthetic:calib"], "--prune is for language models");
}

#[test]
fn what_cannot_be_written_is_said_before_anything_is_measured() {
    let texts = Texts::new();
    let (rig, llama) = (&texts.rig, fixture("language/llama.gguf"));
    let refused = |with: &[&str], out: &str, words: &[&str]| {
        let usual = ["convert", &llama, "--calib", &texts.calib, "--window", "13", "--limit", "0", "--out", out];
        let (done, said) = rig.run(&[&usual, with].concat());
        assert!(!done && words.iter().all(|w| said.contains(w)), "{with:?}: {said}");
        // No line of what is under way: `cuts 1/6`.
        assert!(!said.contains("cuts ") && !said.contains("sensitivity"), "{with:?}: {said}");
    };
    let (prune, at) = (["--prune", "10%"], |name: &str| rig.path(name));
    refused(&prune, &at("m.onnx"), &["rotary positions", "ONNX", "hint: export as safetensors or pytorch"]);
    refused(&["--bits", "1"], &at("m.gguf"), &["fewer than the smallest formats take", "hint: --bits "]);
    let occupied = at("occupied");
    std::fs::create_dir(&occupied).expect("made");
    std::fs::write(format!("{occupied}/own.txt"), "not ours").expect("written");
    for format in ["pytorch", "hf"] {
        let with = [&prune[..], &["--format", format]].concat();
        refused(&with, &occupied, &["holds other files", "hint: an empty folder"]);
        refused(&with, &format!("{occupied}/own.txt"), &["it is a file, where a folder is to be"]);
    }
    refused(&prune, &occupied, &["it is a folder", "hint: name a file in it"]);
    refused(&prune, &format!("{}/", at("new")), &["what ends in `/` is a folder"]);
    refused(&prune, &at("none/m.gguf"), &["there is no folder"]);
    refused(&prune, "-", &["not written to standard output"]);
    assert!(Path::new(&format!("{occupied}/own.txt")).is_file());
    let (done, said) = rig.run(&["imatrix", &llama, "--calib", &texts.calib, "--out", &at("im.safetensors")]);
    assert!(!done && said.contains("would not be gguf"), "{said}");
}

#[test]
fn first_windows_alone_are_told_of() {
    let texts = Texts::new();
    let (model, out) = (fixture("language/llama.gguf"), texts.rig.path("m.safetensors"));
    for (limit, told) in [("20", true), ("0", false)] {
        let with = ["convert", &model, "--calib", &texts.calib, "--window", "13", "--limit", limit, "--out", &out];
        let made = texts.rig.json(&[&with[..], &["--sparsity", "2:4"]].concat());
        let notes = made["notes"].to_string();
        assert_eq!(notes.contains("the first 20 windows of calib.u16 alone"), told, "{limit}: {notes}");
    }
}

#[test]
fn factors_by_text_move_answers_less_than_those_of_weights_alone() {
    let texts = Texts::new();
    let rig = &texts.rig;
    let model = fixture("language/llama.gguf");
    let out = rig.path("factors.safetensors");
    let said = texts.made(&model, &out, &["--factors", "25%"]);
    let notes = said["notes"].to_string();
    assert!(notes.contains("are to be two factors, of rank ") && notes.contains("factors of "), "{notes}");
    let made = load(&PathBuf::from(&out), &LoadOptions::default()).expect("opened");
    let pairs = made.graph.factored();
    assert!(!pairs.is_empty());
    for (first, second) in &pairs {
        let (Op::Linear(a), Op::Linear(b)) = (&first.op, &second.op) else { panic!("{} is linear", second.name) };
        assert_eq!(a.out_features, b.in_features);
        assert!(a.out_features * (a.in_features + b.out_features) < a.in_features * b.out_features);
    }
    assert!(weights(&out) < weights(&model));
    let plain = ["eval", &model, "--data", &texts.eval, "--window", "13", "--against", &model, "--factors", "25%"];
    let plain = rig.json(&plain)["against"]["kl_divergence"]["mean"].as_f64().expect("a divergence");
    let learnt = texts.kl(&out, &model);
    assert!(learnt > 0.0 && learnt < plain, "{learnt} by text, {plain} by weights alone");

    // What has them already is left alone, and its halves may have some of their own.
    let (to, tokens) = (rig.path("again.safetensors"), texts.calib.as_str());
    let again = ["convert", &out, "--calib", tokens, "--window", "13", "--factors", "2", "--out", &to];
    let (code, _, said) = rig.paring(&again);
    assert!(code == Some(0) && said.contains("two factors, of rank 2"), "{said}");

    // What cannot be is said before anything is learnt.
    let asked = |with: &[&str], out: &str| {
        let usual = ["convert", &model, "--calib", &texts.calib, "--window", "13", "--out", out];
        let (code, _, said) = rig.paring(&[&usual[..], with].concat());
        (code, said)
    };
    let gguf = rig.path("factors.gguf");
    let (code, said) = asked(&["--factors", "25%"], &gguf);
    assert!(code == Some(1) && said.contains("two low-rank factors") && said.contains("hint: "), "{said}");
    assert!(!Path::new(&gguf).exists() && !said.contains("re-fit"), "{said}");
    let (code, said) = asked(&["--factors", "x"], &rig.path("x.safetensors"));
    assert!(code == Some(2) && said.contains("`x` is no rank"), "{said}");
    let (code, said) = asked(&["--factors", "25%", "--bits", "8"], &rig.path("x.safetensors"));
    assert!(code == Some(2) && said.contains("cannot be used with"), "{said}");
    let (code, said) = asked(&["--factors", "100000"], &rig.path("x.safetensors"));
    assert!(code == Some(1) && said.contains("no smaller than any of"), "{said}");
}

/// Our own codes are rounded by text too: with GPTQ, and after scales were moved; what stays is no worse than the nearest.
#[test]
fn own_codes_are_learnt_by_text_and_are_no_worse_than_the_nearest() {
    let texts = Texts::new();
    let rig = &texts.rig;
    let llama = fixture("language/llama.gguf");
    for precision in ["w4", "w4g32", "int8", "lut3"] {
        let [plain, learnt] = ["plain", "learnt"].map(|what| rig.path(&format!("{what}-{precision}.safetensors")));
        let (done, said) = rig.run(&["convert", &llama, "--precision", precision, "--out", &plain]);
        assert!(done, "{said}");
        let told = ["--precision", precision, "--calib", &texts.calib, "--window", "13", "--limit", "0"];
        let (code, _, said) = rig.paring(&[&["convert", &llama, "--out", &learnt][..], &told].concat());
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("with GPTQ:") && said.contains("with GPTQ after moved scales:"), "{said}");
        assert!(!said.contains("by importance"), "{said}");
        let [nearest, by_text] = [&plain, &learnt].map(|path| texts.kl(path, &llama));
        // Calibration text and this are of one kind, and few.
        assert!(by_text < 1.15 * nearest + 1e-6, "{precision}: {by_text} {nearest}");
    }
}

/// Whole experts are among the cuts, each at a measured cost, and never so many go that a token is sent to fewer.
#[test]
fn whole_experts_are_among_the_cuts() {
    let texts = Texts::new();
    let rig = &texts.rig;
    let mixtral = fixture("decoders/mixtral.gguf");
    // Its vocabulary has 32 tokens.
    let few = |name: &str, count: u32, seed: u32| {
        let id = |i: u32| (i.wrapping_mul(2_654_435_761).wrapping_add(seed) >> 13) % 32;
        let path = rig.path(name);
        std::fs::write(&path, (0..count).flat_map(|i| (id(i) as u16).to_le_bytes()).collect::<Vec<u8>>())
            .expect("written");
        path
    };
    let (calib, eval) = (few("calib32.u16", 1300, 5), few("eval32.u16", 600, 99_991));
    let out = rig.path("cut.safetensors");
    let calib_args = ["--calib", &calib, "--window", "13", "--limit", "0", "--precision", "f32"];
    let said = rig.json(&[&["convert", &mixtral, "--prune", "25%", "--out", &out][..], &calib_args].concat());
    let curves = said["cuts"]["curves"].as_array().expect("curves");
    let experts: Vec<&Value> =
        curves.iter().filter(|c| c["target"].as_str().is_some_and(|t| t.ends_with("ffn_gate_inp"))).collect();
    assert_eq!(experts.len(), 2, "{said}");
    for curve in experts {
        let cuts = curve["cuts"].as_array().expect("cuts");
        // Of four, to two of which a token is sent.
        assert_eq!(cuts.len(), 2, "{curve}");
        assert!(cuts.iter().all(|c| c["measured"] == true && c["nats"].as_f64() > Some(0.0)), "{curve}");
    }
    let before = weights(&mixtral);
    assert!(weights(&out) <= before - before / 4, "{} of {before}", weights(&out));
    let scored = rig.json(&["eval", &out, "--data", &eval, "--window", "13", "--against", &mixtral]);
    assert!(scored["against"]["kl_divergence"]["mean"].as_f64().is_some());
}
