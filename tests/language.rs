//! Language models: what transformers computes of small ones of every kind, from its directories and from GGUF files; vocabularies;
//! published models on text (*real*), and the commands that take them.

use candle_core::{Device, Tensor};
use paring::data::{Counted, TextOptions, real_dir};
use paring::eval::{Sampling, generate};
use paring::exec::candle::{self, Capture, Mode};
use paring::exec::{Cancel, CompileOptions, DecodeOptions, Kernels, KvFormat, Plan};
use paring::graph::ggml::Block;
use paring::graph::{Binding, ParamRole};
use paring::model::export::{self, Manifest};
use paring::model::families::CifarResnetSpec;
use paring::model::{Family, FamilySpec, LoadOptions, Model, Param, Speaker, Speaks, Tokenizer, formats, load, random};
use paring::prune::{self, Action, GroupKind, Target};
use paring::quant::{self, Precision};
use serde_json::Value;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

#[path = "language/answers.rs"]
mod answers;
#[path = "language/chat.rs"]
mod chat;
#[path = "language/experts.rs"]
mod experts;
#[path = "language/foreign.rs"]
mod foreign;
#[path = "language/hub.rs"]
mod hub;
#[path = "language/kept.rs"]
mod kept;
#[path = "language/narrow.rs"]
mod narrow;
#[path = "language/pieces.rs"]
mod pieces;
#[path = "common/talker.rs"]
mod talker;
#[path = "language/turns.rs"]
mod turns;
#[path = "language/written.rs"]
mod written;

use talker::with_tokenizer;
use written::{cut, to_gguf};

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/language")
}

fn expected() -> Value {
    serde_json::from_str(&std::fs::read_to_string(folder().join("expected.json")).unwrap()).unwrap()
}

fn floats(v: &Value) -> Vec<f32> {
    match v {
        Value::Array(all) => all.iter().flat_map(floats).collect(),
        other => vec![other.as_f64().unwrap() as f32],
    }
}

fn ids_of(v: &Value) -> Vec<u32> {
    v.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as u32).collect()
}

/// The ids that the fixtures' logits were computed for.
/// Nats a token by hand: `logits` of every token of every window, one after the other.
fn nats(logits: &[f32], windows: &[Vec<u32>]) -> f64 {
    let each = logits.len() / windows.len();
    let (mut all, mut tokens) = (0.0, 0);
    for (logits, ids) in logits.chunks_exact(each).zip(windows) {
        for (row, next) in logits.chunks_exact(each / ids.len()).zip(&ids[1..]) {
            let sum: f64 = row.iter().map(|v| f64::from(*v).exp()).sum();
            (all, tokens) = (all + sum.ln() - f64::from(row[*next as usize]), tokens + 1);
        }
    }
    all / f64::from(tokens)
}

fn ids() -> Tensor {
    let id = |i: u32| (i + 1).wrapping_mul(2_654_435_761) >> 8;
    Tensor::from_iter((0..26).map(|i| id(i) % 96), &Device::Cpu).unwrap().reshape((2, 13)).unwrap()
}

/// Of further kinds, with a vocabulary of 32.
fn decoders() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance/decoders")
}

fn fewer_ids() -> Tensor {
    let all: Vec<u32> = ids().flatten_all().unwrap().to_vec1().unwrap();
    Tensor::from_iter(all.into_iter().map(|i| i % 32), &Device::Cpu).unwrap().reshape((2, 13)).unwrap()
}

fn open(path: &Path) -> Model {
    load(path, &LoadOptions::default()).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn compile(model: &Model) -> Plan {
    Plan::of(model, &CompileOptions::default()).unwrap()
}

fn flat(t: &Tensor) -> Vec<f32> {
    t.flatten_all().unwrap().to_vec1().unwrap()
}

fn apart(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| if a.is_finite() { (a - b).abs() } else { f32::INFINITY }).fold(0.0, f32::max)
}

fn run(model: &Model) -> Vec<f32> {
    flat(&compile(model).run(&ids()).unwrap())
}

/// What the command line says.
fn paring(args: &[&str]) -> (bool, String) {
    let home = tempfile::tempdir().unwrap();
    let out = Command::new(env!("CARGO_BIN_EXE_paring")).args(args).env("PARING_HOME", home.path()).output().unwrap();
    let text = if out.status.success() { out.stdout } else { out.stderr };
    (out.status.success(), String::from_utf8(text).unwrap())
}

/// Each file of `expected` in `dir` against the logits of transformers, by every way of computing it: what loaded.
fn agree(dir: &Path, expected: &Value, ids: &Tensor) -> Vec<(String, Model)> {
    let one = |(file, name): (&String, &Value)| {
        let model = open(&dir.join(file));
        let want = floats(&expected["logits"][name.as_str().unwrap()]);
        let params = candle::tensors(&model.params, &Device::Cpu).unwrap();
        let slow = candle::forward(&model.graph, &params, ids, Mode::Eval, &mut Capture::none()).unwrap();
        let fast = compile(&model).run(ids).unwrap();
        let tensors = CompileOptions { kernels: Kernels::Tensors, ..CompileOptions::default() };
        let tensors = Plan::of(&model, &tensors).unwrap().run(ids).unwrap();
        assert_eq!(fast.dims(), [2, 13, model.info.classes]);
        let off = [&slow, &fast, &tensors].map(|y| apart(&flat(y), &want));
        println!("{file}: off by {off:?}");
        (off.iter().all(|o| *o < 1e-4), file.clone(), model)
    };
    let all: Vec<_> = expected["files"].as_object().unwrap().iter().map(one).collect();
    let off: Vec<&String> = all.iter().filter(|(good, ..)| !good).map(|(_, file, _)| file).collect();
    assert!(off.is_empty(), "{off:?}");
    all.into_iter().map(|(_, file, model)| (file, model)).collect()
}

#[test]
fn every_kind_computes_what_transformers_does() {
    let all = agree(&folder(), &expected(), &ids());
    assert_eq!(all.len(), 10);
    for (file, model) in all {
        assert_eq!((model.info.family, model.info.classes), (Family::Llama, 96), "{file}");
    }
}

/// Scaled positions, sliding windows, other places of norms, other layers.
#[test]
fn further_kinds_compute_what_transformers_does() {
    let expected: Value =
        serde_json::from_str(&std::fs::read_to_string(decoders().join("expected.json")).unwrap()).unwrap();
    let all = agree(&decoders(), &expected, &fewer_ids());
    assert_eq!(all.len(), 33);
    for (file, model) in all {
        let family = match &file {
            f if f.starts_with("gemma") => Family::Gemma,
            f if f.starts_with("gpt2") => Family::Gpt2,
            _ => Family::Llama,
        };
        assert_eq!((model.info.family, model.info.classes), (family, 32), "{file}");
        // What windows hide and where positions change is seen alike in a sequence on its own and in a compiled plan of any length.
        let plan = compile(&model);
        let (alone, params) =
            (fewer_ids().narrow(1, 0, 9).unwrap(), candle::tensors(&model.params, &Device::Cpu).unwrap());
        let slow = candle::forward(&model.graph, &params, &alone, Mode::Eval, &mut Capture::none()).unwrap();
        assert!(apart(&flat(&plan.run(&alone).unwrap()), &flat(&slow)) < 1e-4, "{file}");
    }
}

#[test]
fn a_window_is_the_same_alone_and_what_comes_later_changes_nothing() {
    let model = open(&folder().join("llama.gguf"));
    let plan = compile(&model);
    let whole = plan.run(&ids()).unwrap();
    let first = plan.run(&ids().narrow(0, 0, 1).unwrap().narrow(1, 0, 5).unwrap()).unwrap();
    let same = whole.narrow(0, 0, 1).unwrap().narrow(1, 0, 5).unwrap();
    assert!(apart(&flat(&first), &flat(&same)) < 1e-5);
    assert!(plan.memory_at(Binding::tokens(64)).is_ok());
}

/// Heads of keys with their queries, neurons with their gates: zeroed is pruned.
#[test]
fn pruned_equals_zeroed() {
    for name in ["llama", "qwen2.gguf", "qwen3"] {
        prunes(&folder().join(name), &ids(), 2, 2);
    }
    for name in ["gemma2", "gemma3_types", "phi3", "phi3.gguf", "gpt2", "gpt2.gguf", "mistral_sliding"] {
        prunes(&decoders().join(name), &fewer_ids(), 2, 2);
    }
    // Of every expert.
    for (name, neurons) in [("mixtral", 8), ("mixtral.gguf", 8), ("qwen3_moe", 12), ("qwen3_moe_only", 6)] {
        prunes(&decoders().join(name), &fewer_ids(), 2, neurons);
    }
    // Norms over all heads of queries and of keys hold them together.
    prunes(&decoders().join("olmo2"), &fewer_ids(), 0, 2);
}

/// A model of which so many groups can lose heads and neurons.
fn prunes(path: &Path, ids: &Tensor, heads: usize, neurons: usize) {
    let (name, model) = (path.display(), open(path));
    let groups = prune::groups(&model.graph);
    let open_groups: Vec<_> = groups.iter().filter(|g| g.protected.is_none() && g.kind != GroupKind::Experts).collect();
    assert_eq!(open_groups.iter().filter(|g| g.kind == GroupKind::Heads).count(), heads, "{name}");
    assert_eq!(open_groups.iter().filter(|g| g.kind == GroupKind::Neurons).count(), neurons, "{name}");
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
        let (a, b) = (compile(&small).run(ids).unwrap(), compile(&zeroed).run(ids).unwrap());
        let (off, moved) = (apart(&flat(&a), &flat(&b)), apart(&flat(&a), &flat(&compile(&model).run(ids).unwrap())));
        assert!(off < 1e-4 && moved > 1e-3, "{name} {}: {off}, {moved}", group.id);
    }
}

#[test]
fn vocabularies_give_the_ids_of_the_tokenizers_package() {
    let beside = tempfile::tempdir().unwrap();
    let v = &expected()["vocabulary"];
    let texts: Vec<&str> = v["texts"].as_array().unwrap().iter().map(|t| t.as_str().unwrap()).collect();
    for (name, want) in v["ids"].as_object().unwrap() {
        let mut all = vec![folder().join(format!("vocabulary-{name}.gguf"))];
        if name == "gpt-2" {
            // Beside weights, as transformers keeps it.
            let dir = beside.path();
            std::fs::copy(folder().join("llama/model.safetensors"), dir.join("model.safetensors")).unwrap();
            std::fs::copy(folder().join("vocabulary/tokenizer.json"), dir.join("tokenizer.json")).unwrap();
            all.push(dir.to_owned());
        }
        for path in all {
            let t = Tokenizer::of(&path).unwrap().expect("a tokenizer");
            for (text, want) in texts.iter().zip(want.as_array().unwrap()) {
                let ids = t.encode(text).unwrap();
                assert_eq!(ids, ids_of(want), "{name}: {text:?}");
                assert_eq!(t.decode(&ids).unwrap(), *text, "{name}");
            }
            // What is left of a vocabulary that only has to speak says the same, of every id and of none that is one.
            let ids: Vec<u32> = (0..t.size() as u32 + 3).chain([u32::MAX]).collect();
            let said: Vec<String> = ids.iter().map(|id| t.decode(&[*id]).unwrap()).collect();
            let special: Vec<bool> = ids.iter().map(|id| t.is_special(*id)).collect();
            let whole = t.decode(&ids).unwrap();
            let speaker = Speaker::from(t);
            for ((id, said), special) in ids.iter().zip(said).zip(special) {
                assert_eq!((speaker.decode(&[*id]).unwrap(), speaker.is_special(*id)), (said, special), "{name}: {id}");
            }
            assert_eq!(speaker.decode(&ids).unwrap(), whole, "{name}");
        }
    }
    assert!(Tokenizer::of(&folder().join("llama")).unwrap().is_none());
}

#[test]
fn what_is_not_there_yet_says_so() {
    let model = folder().join("llama.gguf");
    let model = model.to_str().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let text = dir.path().join("text.txt");
    std::fs::write(&text, "some words").unwrap();
    let text = text.to_str().unwrap();
    let refused = |args: &[&str], words: &str| {
        let (done, said) = paring(args);
        assert!(!done && said.contains(words) && said.contains("hint: "), "{args:?}: {said}");
    };
    refused(&["open", model, "--data", text, "--calib-is-eval", "--detach", "--name", "lm"], "without a tokenizer");
    refused(&["eval", model], "no text given");
    refused(&["eval", model, "--data", text], "without a tokenizer");
    refused(&["eval", model, "--data", text, "--targets", "all"], "is not `inside`");
    refused(&["eval", model, "--data", text, "--logits", "1"], "--logits is for classifiers");
    refused(&["convert", model, "--out", dir.path().join("m.onnx").to_str().unwrap()], "not written to ONNX");
    // A relative that shares the names.
    let other = dir.path().join("gemma");
    std::fs::create_dir(&other).unwrap();
    std::fs::copy(folder().join("llama/model.safetensors"), other.join("model.safetensors")).unwrap();
    let config = std::fs::read_to_string(folder().join("llama/config.json")).unwrap();
    std::fs::write(other.join("config.json"), config.replace("\"model_type\": \"llama\"", "\"model_type\": \"gemma\""))
        .unwrap();
    refused(&["eval", other.to_str().unwrap(), "--data", text], "`gemma` is a relative");
    std::fs::write(other.join("config.json"), config.replace("\"default\"", "\"proportional\"")).unwrap();
    refused(&["eval", other.to_str().unwrap(), "--data", text], "`proportional`");
}

/// Ids as they are, and what is converted is the same network.
#[test]
fn ids_are_scored_from_every_file_of_a_network() {
    let dir = tempfile::tempdir().unwrap();
    let ids_file = dir.path().join("ids.u16");
    let bytes: Vec<u8> = flat(&ids().to_dtype(candle_core::DType::F32).unwrap())
        .iter()
        .flat_map(|v| (*v as u16).to_le_bytes())
        .collect();
    std::fs::write(&ids_file, bytes).unwrap();
    let (ids_file, converted) = (ids_file.to_str().unwrap(), dir.path().join("converted.safetensors"));
    let gguf = folder().join("llama.gguf");
    let (done, said) = paring(&["convert", gguf.to_str().unwrap(), "--out", converted.to_str().unwrap()]);
    assert!(done, "{said}");
    let score = |path: &Path| -> Value {
        let args = ["eval", path.to_str().unwrap(), "--data", ids_file, "--window", "13", "--device", "cpu", "--json"];
        let (done, said) = paring(&args);
        assert!(done, "{said}");
        serde_json::from_str(&said).unwrap()
    };
    let [a, b, c] = [folder().join("llama"), gguf, converted].map(|p| score(&p));
    // By hand, of transformers' logits.
    let mean = nats(&floats(&expected()["logits"]["llama"]), &ids().to_vec2::<u32>().unwrap());
    for found in [&a, &b, &c] {
        assert_eq!((found["windows"].as_u64(), found["tokens"].as_u64()), (Some(2), Some(24)));
        let nats = found["nats_per_token"].as_f64().unwrap();
        assert!((nats - mean).abs() < 1e-5, "{nats}, not {mean}");
        assert!((found["perplexity"].as_f64().unwrap() - mean.exp()).abs() < 1e-3 * mean.exp());
        assert!(found["convention"].as_str().unwrap().starts_with("inside: windows of 13"));
    }
}

#[test]
fn windows_beyond_what_a_model_was_made_for_are_noted() {
    let dir = tempfile::tempdir().unwrap();
    let ids = dir.path().join("ids.u16");
    std::fs::write(&ids, (0..66u16).flat_map(u16::to_le_bytes).collect::<Vec<u8>>()).unwrap();
    for model in ["llama", "llama.gguf"] {
        // Of a window of n tokens the model sees n - 1.
        for (window, noted) in [("65", false), ("66", true)] {
            let mut eval = Command::new(env!("CARGO_BIN_EXE_paring"));
            eval.args(["eval", "--window", window, "--device", "cpu", "--data"]).arg(&ids).arg(folder().join(model));
            let out = eval.env("PARING_HOME", dir.path()).output().unwrap();
            let said = String::from_utf8(out.stderr).unwrap();
            assert!(out.status.success(), "{said}");
            assert_eq!(said.contains("longer than the 64 that the model was made for"), noted, "{window}: {said}");
        }
    }
}

fn real(what: &str) -> Option<PathBuf> {
    let found = real_dir().map(|d| d.join(what));
    if found.is_none() {
        println!("skipped: no real data");
    }
    found
}

#[test]
fn stories_are_foretold_as_published() {
    let Some(dir) = real("stories260k") else { return };
    let ids = dir.join("tinystories_a.tok512.u16");
    let want = std::fs::read(&ids).unwrap();
    let want: Vec<u32> = want.chunks_exact(2).map(|b| u32::from(u16::from_le_bytes([b[0], b[1]]))).collect();
    // From the text: every id.
    let t = Tokenizer::of(&dir).unwrap().expect("tok512.bin");
    let options = TextOptions { window: 512, counted: Counted::Next, limit: 0 };
    let data = paring::data::text(dir.join("tinystories_a.txt").to_str().unwrap(), Some(&t), &options).unwrap();
    assert_eq!(data.len(), 1027);
    let (x, _) = data.batch(0..1027, &paring::model::Preprocess::none()).unwrap();
    assert_eq!(x.flatten_all().unwrap().to_vec1::<u32>().unwrap(), want[..1027 * 512]);
    for file in ["tinystories_a.tok512.u16", "tinystories_a.txt"] {
        let data = dir.join(file);
        let args = [
            "eval",
            dir.to_str().unwrap(),
            "--data",
            data.to_str().unwrap(),
            "--limit",
            "64",
            "--targets",
            "next",
            "--json",
        ];
        let (done, said) = paring(&args);
        assert!(done, "{said}");
        let found: Value = serde_json::from_str(&said).unwrap();
        let of = |key: &str| found[key].as_f64().unwrap();
        assert!((of("nats_per_token") - 1.42716).abs() < 1e-4 && of("tokens") == 32_768.0, "{said}");
        assert!(
            (of("perplexity") - 4.1669).abs() < 1e-3 && (of("next_token_accuracy") - 0.6114).abs() < 1e-4,
            "{said}"
        );
    }
}

/// The id with the largest of a row of logits.
fn best(row: &[f32]) -> u32 {
    (0u32..).zip(row).fold((0, f32::NEG_INFINITY), |m, (i, v)| if *v > m.1 { (i, *v) } else { m }).0
}

#[test]
fn smollm2_answers_as_transformers_makes_it() {
    let (Some(dir), Some(text)) = (real("smollm2"), real("text/wikitext2_test.txt")) else { return };
    let path = dir.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    let want: Value = serde_json::from_str(&std::fs::read_to_string(dir.join("expected.json")).unwrap()).unwrap();
    let wiki = &want["wikitext2_test"];

    let t = Tokenizer::of(&path).unwrap().expect("in the file");
    let ids = t.encode(&std::fs::read_to_string(&text).unwrap()).unwrap();
    assert_eq!((ids.len() as u64, &ids[..16]), (wiki["tokens"].as_u64().unwrap(), &ids_of(&wiki["first_ids"])[..]));

    let model = open(&path);
    let first = &wiki["first_window"];
    let x = Tensor::new(&ids[..512], &Device::Cpu).unwrap().unsqueeze(0).unwrap();
    let stored = Plan::of(&model, &CompileOptions::default().as_stored()).unwrap();
    for (plan, how) in [(compile(&model), "unpacked"), (stored.clone(), "as stored")] {
        let logits = plan.run(&x).unwrap().squeeze(0).unwrap();
        for (place, key) in [(0, "pos0"), (511, "pos511")] {
            let row = flat(&logits.get(place).unwrap());
            let off = apart(&row[..8], &floats(&first[key]));
            println!("{how}, {key}: off by {off}");
            assert!(off < 1e-3, "{how}, {key}: off by {off}");
        }
        let argmax: Vec<u32> = (0..16).map(|i| best(&flat(&logits.get(i).unwrap()))).collect();
        assert_eq!(argmax, ids_of(&first["argmax"]));
    }

    // Greedy, token by token.
    let said = ids_of(&want["greedy"]["ids"]);
    let prompt = t.encode(want["greedy"]["prompt"].as_str().unwrap()).unwrap();
    assert_eq!((&prompt[..], t.first()), (&said[..prompt.len()], None));
    for kv in [KvFormat::F32, KvFormat::F16] {
        let mut decoder = stored.decoder(&DecodeOptions { sequences: 1, context: said.len(), kv }).unwrap();
        let (ends, cancel) = ((said.len() - prompt.len(), t.ends()), Cancel::default());
        let written = generate(&mut decoder, &prompt, ends, Sampling::default(), &cancel, &mut |_| ()).unwrap();
        assert_eq!(written.ids, said[prompt.len()..], "{}", kv.label());
        assert_eq!((written.tokens.len() + 1, written.ended), (written.ids.len(), false));
    }
    assert_eq!(t.decode(&said).unwrap(), want["greedy"]["text"].as_str().unwrap());
}

/// The same through the command line: what a text begins with, and how it is told.
#[test]
fn a_text_is_written_and_told_with_its_times() {
    let model = folder().join("vocabulary-smollm.gguf");
    let (done, said) = paring(&["generate", model.to_str().unwrap(), "-p", "x"]);
    assert!(!done && said.contains("hint: "), "{said}");
    let Some(dir) = real("stories260k") else { return };
    let args = ["generate", dir.to_str().unwrap(), "-p", "Once upon a time", "-n", "40", "--device", "cpu"];
    let (done, text) = paring(&args);
    assert!(done && text.starts_with(", there was a little girl named Lily."), "{text}");
    let (done, said) = paring(&[&args[..], &["--json", "--kv", "f32"]].concat());
    assert!(done, "{said}");
    let found: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(found["text"].as_str().map(str::trim_end), Some(text.trim_end()));
    // Five layers of four heads of keys and values of eight.
    let tokens = found["prompt_tokens"].as_u64().unwrap() + 39;
    assert_eq!(found["kv_bytes"].as_u64(), Some(tokens * 5 * 2 * 4 * 8 * 4));
    assert_eq!((found["ids"].as_array().unwrap().len(), found["token_ms"]["n"].as_u64()), (40, Some(39)));
    for (flag, value, words) in [
        ("--temperature", "NaN", "no finite number of 0 or more"),
        ("--temperature", "-1", "no finite number of 0 or more"),
        ("--top-p", "0", "not above 0 and at most 1"),
        ("-n", "18446744073709551615", "too many; hint: "),
        ("--kv", "q4", "hint: f32, f16 or int8"),
    ] {
        let (done, said) = paring(&[&args[..4], &[flag, value]].concat());
        assert!(!done && said.contains(words), "{flag} {value}: {said}");
    }
    let (done, said) = paring(&[&args[..4], &["-n", "0", "--json"]].concat());
    assert!(done && said.contains("\"ids\": []"), "{said}");
    let drawn = |seed: &str| paring(&[&args[..], &["--temperature", "1", "--seed", seed]].concat()).1;
    assert_eq!(drawn("3"), drawn("3"));
    assert_ne!(drawn("3"), drawn("4"));
}

#[test]
fn smollm2_foretells_wikitext_as_transformers_does() {
    let (Some(dir), Some(text)) = (real("smollm2"), real("text/wikitext2_test.txt")) else { return };
    let path = dir.join("SmolLM2-135M-Instruct.Q4_1.gguf");
    let args = [
        "eval",
        path.to_str().unwrap(),
        "--data",
        text.to_str().unwrap(),
        "--limit",
        "32",
        "--device",
        "cpu",
        "--json",
    ];
    let (done, said) = paring(&args);
    assert!(done, "{said}");
    let found: Value = serde_json::from_str(&said).unwrap();
    let of = |key: &str| found[key].as_f64().unwrap();
    assert!((of("nats_per_token") - 3.216_385_708_863).abs() < 1e-4, "{said}");
    assert!((of("perplexity") - 24.937_824_54).abs() < 1e-2 && of("tokens") == 32.0 * 511.0, "{said}");
    assert!((of("next_token_accuracy") - 0.416_585_127).abs() < 1e-4, "{said}");
}
