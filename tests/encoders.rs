//! Classifiers of text: what transformers computes of small ones of every kind and of texts of many lengths; cuts; sessions by the command
//! line, from a checkpoint and texts to a smaller file that scores as the verdict said; what is refused.

use candle_core::{Device, Tensor};
use paring::exec::candle::{self, Capture, Mode};
use paring::exec::{CompileOptions, Kernels, Plan};
use paring::graph::{Graph, ParamRole, macs};
use paring::model::{Family, LoadOptions, Model, Param, Tokenizer, load};
use paring::prune::{self, Action, GroupKind, Target};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

const KINDS: [&str; 5] = ["bert", "bert_tanh", "distilbert", "modernbert", "modernbert_mean"];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/encoders")
}

fn fixture(name: &str) -> String {
    folder().join(name).to_str().unwrap().to_owned()
}

fn expected() -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder().join("expected.json")).unwrap()).unwrap()
}

fn floats(v: &Value) -> Vec<f32> {
    v.as_array().unwrap().iter().map(|x| x.as_f64().unwrap() as f32).collect()
}

fn ids_of(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect()
}

fn open(name: &str) -> Model {
    load(&folder().join(name), &LoadOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn compile(model: &Model) -> Plan {
    Plan::of(model, &CompileOptions::default()).unwrap()
}

fn one(ids: &[u32]) -> Tensor {
    Tensor::from_vec(ids.to_vec(), (1, ids.len()), &Device::Cpu).unwrap()
}

fn flat(t: &Tensor) -> Vec<f32> {
    t.flatten_all().unwrap().to_vec1().unwrap()
}

fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| if a.is_finite() { (a - b).abs() } else { f32::INFINITY }).fold(0.0, f32::max)
}

/// What a graph that is told another length computes, too: sizes are of that length, values of the text's own.
fn told(model: &Model, tokens: usize) -> Model {
    Model { graph: Arc::new(Graph::clone(&model.graph).told(tokens)), ..model.clone() }
}

#[test]
fn every_kind_computes_what_transformers_does_of_texts_of_any_length() {
    let expected = expected();
    for name in KINDS {
        let model = open(name);
        let family = if name.starts_with("modern") { Family::ModernBert } else { Family::Bert };
        assert_eq!((model.info.family, model.info.classes, model.info.context), (family, 3, Some(24)), "{name}");
        assert_eq!(model.info.class_names.as_ref().unwrap()[2], "LABEL_2");
        let params = candle::tensors(&model.params, &Device::Cpu).unwrap();
        let tensors = CompileOptions { kernels: Kernels::Tensors, ..CompileOptions::default() };
        let mut sessions = [
            compile(&model).session(),
            compile(&told(&model, 9)).session(),
            Plan::of(&model, &tensors).unwrap().session(),
            Plan::of(&told(&model, 9), &tensors).unwrap().session(),
        ];
        for (ids, want) in expected["ids"].as_array().unwrap().iter().zip(expected["logits"][name].as_array().unwrap())
        {
            let (x, want) = (one(&ids_of(ids)), floats(want));
            let slow = candle::forward(&model.graph, &params, &x, Mode::Eval, &mut Capture::none()).unwrap();
            let mut off = vec![apart(&flat(&slow), &want)];
            off.extend(sessions.iter_mut().map(|s| apart(&flat(&s.run(&x).unwrap()), &want)));
            assert!(off.iter().all(|o| *o < 1e-4), "{name}, {} tokens: off by {off:?}", x.dims()[1]);
            // Beside another text of the length.
            let other: Vec<u32> = ids_of(ids).into_iter().rev().collect();
            let both = Tensor::cat(&[&one(&other), &x], 0).unwrap();
            let second = sessions[0].run(&both).unwrap().narrow(0, 1, 1).unwrap();
            assert!(apart(&flat(&second), &want) < 1e-4, "{name}");
        }
    }
}

#[test]
fn vocabularies_give_the_ids_of_the_tokenizers_package() {
    let expected = expected();
    // A `tokenizer.json`, and a `vocab.txt`.
    for name in ["bert", "bert_tanh"] {
        let tokenizer = Tokenizer::of(&folder().join(name)).unwrap().unwrap();
        let texts = expected["texts"].as_array().unwrap();
        for (text, want) in texts.iter().zip(expected["ids"].as_array().unwrap()) {
            let (text, want) = (text.as_str().unwrap(), ids_of(want));
            let (ids, over) = tokenizer.enclosed(text, 24).unwrap();
            assert_eq!((ids, over > 0), (want.clone(), text.len() > 60), "{name}: {text}");
            let (short, over) = tokenizer.enclosed(text, 3).unwrap();
            assert_eq!((short.first(), short.last(), short.len()), (Some(&2), Some(&3), want.len().min(3)), "{text}");
            assert!(over == 0 || want.len() > 3);
        }
        assert!(tokenizer.enclosed("bad", 1).unwrap_err().to_string().contains("no room"));
    }
}

/// Heads and neurons: zeroed is pruned.
#[test]
fn pruned_equals_zeroed() {
    let ids: Vec<u32> = (0..17).map(|i| (i * 29 + 7) % 76).collect();
    for name in KINDS {
        let model = open(name);
        let groups = prune::groups(&model.graph);
        let open_groups: Vec<_> = groups.iter().filter(|g| g.protected.is_none()).collect();
        let layers = if name.starts_with("modern") { 4 } else { 2 };
        for kind in [GroupKind::Heads, GroupKind::Neurons] {
            let found = open_groups.iter().filter(|g| g.kind == kind).count();
            assert!(found >= layers, "{name}: {found} of {kind:?}");
        }
        let before = flat(&compile(&model).run(&one(&ids)).unwrap());
        for group in open_groups {
            let kept: Vec<u32> = (0..group.size as u32).filter(|u| u % 2 == 1).collect();
            let ratio = 1.0 - kept.len() as f64 / group.size as f64;
            let action = Action::Prune { ratio, kept };
            let small = prune::apply(&model, &groups, &[(Target::Group(group.id.clone()), action)]).unwrap();
            // What the last layer of the group reads of units that are gone becomes nothing.
            let mut zeroed = model.clone();
            for m in group.members.iter().filter(|m| m.role == prune::MemberRole::Consumer) {
                let node = model.graph.node(model.graph.by_name(&m.node).unwrap());
                let weight = node.param(ParamRole::Weight).unwrap();
                let old = zeroed.params.get(weight).unwrap();
                let (mut values, shape) = (old.values().into_owned(), old.shape().to_vec());
                for u in (0..group.size).filter(|u| u % 2 == 0) {
                    for i in m.indices(u) {
                        values.iter_mut().skip(i).step_by(shape[1]).for_each(|v| *v = 0.0);
                    }
                }
                zeroed.params.insert(weight, Param::owned(shape, values).unwrap());
            }
            let (a, b) = (compile(&small).run(&one(&ids)).unwrap(), compile(&zeroed).run(&one(&ids)).unwrap());
            let (off, moved) = (apart(&flat(&a), &flat(&b)), apart(&flat(&a), &before));
            assert!(off < 1e-4 && moved > 1e-5, "{name} {}: {off}, {moved}", group.id);
        }
    }
}

#[test]
fn figures_are_of_the_length_that_a_graph_is_told() {
    let model = open("bert");
    let all = |tokens: usize| macs(&told(&model, tokens).graph).unwrap().into_iter().sum::<paring::graph::Macs>();
    // Two layers of four projections and an MLP for each token; pooler and classifier once.
    let (layer, once) = (2 * (4 * 16 * 16 + 2 * 16 * 24), 16 * 16 + 16 * 3);
    assert_eq!(all(5).conv_linear, 5 * layer + once);
    assert_eq!(all(24).conv_linear, 24 * layer + once);
    assert!(macs(&model.graph).is_err(), "no length is told");
    assert!(macs(&told(&model, 25).graph).unwrap_err().to_string().contains("24 positions"));
}

struct Rig(tempfile::TempDir);

impl Rig {
    fn new() -> Rig {
        Rig(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn write(&self, name: &str, text: &str) -> String {
        std::fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    fn paring(&self, args: &[&str]) -> (Option<i32>, String, String) {
        let out = Command::new(env!("CARGO_BIN_EXE_paring"))
            .args(args)
            .env("PARING_HOME", self.path("home"))
            // What is tested here is not how well latency is known.
            .env("PARING_PATIENCE", "0.1")
            .output()
            .unwrap();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        (out.status.code(), text(out.stdout), text(out.stderr))
    }

    fn json(&self, args: &[&str]) -> (Value, String) {
        let (code, out, err) = self.paring(&[args, &["--json"]].concat());
        assert_eq!(code, Some(0), "{args:?}: {err}");
        (serde_json::from_str(&out).unwrap(), err)
    }

    /// `count` texts of one to twelve words, each with the class that `model` gives it but for every ninth.
    fn texts(&self, name: &str, count: u32, seed: u32, model: &str) -> String {
        let words =
            ["the", "film", "was", "good", "bad", "not", "at", "all", "unlikely", "bestest", "quick", "zoo", "?"];
        let draw = |i: u32, j: u32| ((i * 31 + j + 977 * seed).wrapping_mul(2_654_435_761) >> 12) as usize;
        let text = |i: u32| {
            let all: Vec<&str> = (0..1 + draw(i, 30) as u32 % 12).map(|j| words[draw(i, j) % words.len()]).collect();
            // No two texts are the same, whatever they were drawn from.
            let letters = |n: u32| (b'a' + (n % 26) as u8) as char;
            format!("{} {}{}{}", all.join(" "), letters(seed), letters(i / 26), letters(i))
        };
        let lines = |labels: &dyn Fn(u32) -> usize| -> String {
            (0..count).fold(String::new(), |mut all, i| {
                let _ = writeln!(all, "{}", serde_json::json!({ "text": text(i), "label": labels(i) }));
                all
            })
        };
        let path = self.write(name, &lines(&|_| 0));
        let (found, _) = self.json(&["eval", model, "--data", &path, "--logits", &count.to_string()]);
        let best = |row: &Value| {
            let row = floats(row);
            (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap()
        };
        let rows = found["logits"].as_array().unwrap();
        self.write(name, &lines(&|i| (best(&rows[i as usize]) + usize::from(i % 9 == 0)) % 3))
    }
}

#[test]
fn texts_are_scored_whatever_their_lengths_and_their_order() {
    let rig = Rig::new();
    let expected = expected();
    for name in KINDS {
        let model = fixture(name);
        let (found, said) = rig.json(&["eval", &model, "--data", &fixture("texts.jsonl"), "--logits", "8"]);
        assert!(said.contains("1 of 8 texts of `texts.jsonl` are longer than 24 tokens"), "{said}");
        let want = expected["logits"][name].as_array().unwrap();
        let labels = ids_of(&expected["labels"]);
        let mut right = 0;
        for ((row, want), label) in found["logits"].as_array().unwrap().iter().zip(want).zip(labels) {
            let want = floats(want);
            assert!(apart(&floats(row), &want) < 1e-4, "{name}: {row}");
            right += u64::from(want.iter().all(|v| *v <= want[label as usize]));
        }
        assert_eq!((found["n"].as_u64(), found["correct"].as_u64()), (Some(8), Some(right)), "{name}");
    }
    // The same texts in a table, the other way round; one at a time.
    let texts = expected["texts"].as_array().unwrap().iter().zip(ids_of(&expected["labels"]));
    let rows: Vec<String> =
        texts.map(|(t, l)| format!("{l},\"{}\"", t.as_str().unwrap().replace('"', "\"\""))).rev().collect();
    let table = rig.write("texts.csv", &format!("label,sentence\n{}\n", rows.join("\n")));
    let (found, _) = rig.json(&["eval", &fixture("bert"), "--data", &table, "--batch", "1"]);
    assert_eq!((found["n"].as_u64(), found["correct"].as_u64()), (Some(8), Some(7)));
    // What is cut shorter is told, and a part is spread over all.
    let (found, said) =
        rig.json(&["eval", &fixture("bert"), "--data", &table, "--window", "5", "--limit", "4", "--precision", "int8"]);
    assert!(found["n"].as_u64() == Some(4) && said.contains("longer than 5 tokens"), "{said}");
    // Static ranges are found on texts as well.
    let of = ["eval", &fixture("modernbert"), "--data", &table, "--precision", "int8-static"];
    let (found, _) = rig.json(&[&of[..], &["--calib", &fixture("texts.jsonl"), "--calibration", "minmax"]].concat());
    assert!(found["ranges"].as_str().unwrap().ends_with("on 8 texts of texts.jsonl"), "{found}");
    let (code, _, said) = rig.paring(&of);
    assert!(code == Some(1) && said.contains("--calib"), "{said}");
}

#[test]
fn a_profile_is_of_the_length_that_is_asked_for() {
    let rig = Rig::new();
    let of = |window: &str| {
        rig.json(&["profile", &fixture("modernbert"), "--window", window, "--runs", "2"]).0["macs"]["attention"]
            .as_u64()
    };
    assert!(of("20") > of("10"));
    for (more, words) in
        [(["--window", "25"], "24 tokens"), (["--window", "2"], "3 at least"), (["--decode", "5"], "no language model")]
    {
        let (code, _, said) = rig.paring(&[&["profile", &fixture("modernbert"), "--runs", "2"], &more[..]].concat());
        assert!(code == Some(1) && said.contains(words) && !said.contains("panicked"), "{said}");
    }
    let (code, _, said) = rig.paring(&["generate", &fixture("bert"), "--prompt", "a"]);
    assert!(code == Some(1) && said.contains("no language model"), "{said}");
}

#[test]
fn a_classifier_of_texts_goes_from_opening_to_a_file_that_scores_the_same() {
    for (name, importance) in [("bert", "taylor"), ("modernbert", "l2")] {
        let (rig, model) = (Rig::new(), fixture(name));
        let [eval, calib] =
            [("eval.jsonl", 60, 1), ("calib.jsonl", 120, 2)].map(|(n, count, s)| rig.texts(n, count, s, &model));
        let out = rig.path("out");
        // No class can lose more than all: met where it was measured.
        let budget = "macs=0.9,memory=0.8,class=100";
        let rest = ["--calib", &calib, "--budget", budget, "--importance", importance, "--out", &out];
        let (report, _) = rig.json(&[&["run", &model, "--data", &eval], &rest[..]].concat());
        assert_eq!((&report["met"], report["final"]["n"].as_i64()), (&Value::Bool(true), Some(60)), "{report}");
        let decisions = report["rounds"][0]["decisions"].to_string();
        assert!(decisions.contains("prune") && decisions.contains("int8"), "{decisions}");
        let (original, _) = rig.json(&["eval", &model, "--data", &eval]);
        assert_eq!(report["baseline"]["correct"], original["correct"]);
        assert!((report["baseline"]["loss"].as_f64().unwrap() - original["loss"].as_f64().unwrap()).abs() < 1e-5);
        // The file takes texts of any length, and has no vocabulary.
        let kept = rig.path("out/model.safetensors");
        let (again, _) = rig.json(&["eval", &kept, "--data", &eval, "--tokenizer", &model]);
        for what in ["correct", "weight_bytes"] {
            assert_eq!(report["final"][what], again[what], "{name}: {what}");
        }
        assert!((report["final"]["loss"].as_f64().unwrap() - again["loss"].as_f64().unwrap()).abs() < 1e-5);
        let (code, _, said) = rig.paring(&["eval", &kept, "--data", &eval]);
        assert!(code == Some(1) && said.contains("--tokenizer"), "{said}");
    }
}

/// A small network with something else in its configuration.
fn with(name: &str, change: &dyn Fn(&mut Value)) -> paring::model::Result<Model> {
    let dir = tempfile::tempdir().unwrap();
    let from = folder().join(name);
    std::fs::copy(from.join("model.safetensors"), dir.path().join("model.safetensors")).unwrap();
    let mut config: Value = serde_json::from_str(&std::fs::read_to_string(from.join("config.json")).unwrap()).unwrap();
    change(&mut config);
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    load(dir.path(), &LoadOptions::default())
}

#[test]
fn what_shares_their_names_is_refused_by_its_own() {
    let refused = |name: &str, key: &str, value: Value, words: &str| {
        let error = with(name, &|c| c[key] = value.clone()).unwrap_err().to_string();
        assert!(error.contains(words), "{name}, {key}: {error}");
    };
    let text = |s: &str| Value::String(s.into());
    refused("bert", "model_type", text("nezha"), "`nezha`");
    refused("bert", "architectures", serde_json::json!(["BertForTokenClassification"]), "`BertForTokenClassification`");
    refused("bert", "problem_type", text("multi_label_classification"), "multi_label_classification");
    refused("bert", "position_embedding_type", text("relative_key"), "`relative_key`");
    refused("bert", "is_decoder", Value::Bool(true), "decoder");
    refused("bert", "hidden_act", text("mish"), "`mish`");
    refused("bert", "num_attention_heads", 5.into(), "5 heads");
    refused("bert", "num_hidden_layers", 3.into(), "3 layers, and there are weights for 2");
    refused("distilbert", "activation", text("tanh"), "`tanh`");
    refused("modernbert", "classifier_pooling", text("max"), "`max`");
    refused("modernbert", "layer_types", serde_json::json!(["full_attention"]), "1 layers");
    let types = serde_json::json!(["full_attention", "chunked_attention", "full_attention", "full_attention"]);
    refused("modernbert", "layer_types", types, "chunked_attention");
    let yarn = serde_json::json!({ "full_attention": { "rope_type": "yarn", "rope_theta": 1e4, "factor": 2.0 } });
    refused("modernbert", "rope_parameters", yarn, "`yarn`");
    // As older versions of transformers wrote it, with the same meaning.
    let older = with("modernbert", &|c| {
        let c = c.as_object_mut().unwrap();
        c.remove("rope_parameters");
        c.remove("layer_types");
        c.insert("global_rope_theta".into(), 160_000.0.into());
        c.insert("local_rope_theta".into(), 10_000.0.into());
    });
    assert_eq!(older.unwrap().graph, open("modernbert").graph);
}

#[test]
fn data_that_is_none_says_why() {
    let rig = Rig::new();
    let model = fixture("bert");
    let refused = |name: &str, text: &str, words: &str| {
        let path = rig.write(name, text);
        let (code, _, said) = rig.paring(&["eval", &model, "--data", &path]);
        assert!(code == Some(1) && said.contains(words) && said.contains("hint: "), "{said}");
    };
    refused("a.jsonl", "", "it holds no texts");
    refused("a.jsonl", "{\"text\": \"a\", \"label\": 0}\n{\"text\": 7, \"label\": 0}", "line 2 has no `text`");
    refused("a.jsonl", "{\"text\": \"a\", \"label\": 3}", "has 4 classes");
    refused("a.csv", "text,label\na,one\n", "line 2 has the label `one`");
    let (code, _, said) = rig.paring(&["eval", &model]);
    assert!(code == Some(1) && said.contains("no texts given"), "{said}");
    let (code, _, said) = rig.paring(&["eval", &model, "--data", "synthetic:eval"]);
    assert!(code == Some(1) && said.contains("no data at"), "{said}");
}

#[test]
fn other_formats_hold_the_same_network_or_are_refused() {
    let (rig, texts) = (Rig::new(), fixture("texts.jsonl"));
    let logits = |model: &str, tokenizer: &str| {
        let eval = ["eval", model, "--tokenizer", tokenizer, "--data", &texts, "--logits", "8"];
        rig.json(&eval).0["logits"].as_array().unwrap().iter().flat_map(floats).collect::<Vec<f32>>()
    };
    for name in ["bert", "distilbert"] {
        let (model, onnx) = (fixture(name), rig.path(&format!("{name}.onnx")));
        rig.json(&["convert", &model, "--out", &onnx]);
        assert!(apart(&logits(&onnx, &model), &logits(&model, &model)) < 1e-5, "{name}");
    }
    for (name, to, words) in [("modernbert", "x.onnx", "rotary positions"), ("bert", "x.gguf", "only language models")]
    {
        let (code, _, said) = rig.paring(&["convert", &fixture(name), "--out", &rig.path(to)]);
        assert!(code == Some(1) && said.contains(words), "{said}");
    }
}
