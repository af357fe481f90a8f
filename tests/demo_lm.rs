//! The bundled language model: as good as it is said to be, worth compressing, and taken wherever a model is.

mod common;

use common::program::Rig;
use paring::data::{self, Counted, Dataset, TextOptions};
use paring::eval;
use paring::exec::{Cancel, CompileOptions, Plan};
use paring::model::export::Manifest;
use paring::model::{LoadOptions, Model, Preprocess, Tokenizer, formats};
use paring::prune::{self, Action, Method, Target};
use paring::train::demo::{self, DemoModel, Yardsticks};
use serde_json::Value;

fn bundled() -> (Model, Tokenizer) {
    let model = demo::load(DemoModel::Lm).unwrap();
    let tokenizer = model.origin.tokenizer(&model.info.source).unwrap().unwrap();
    (model, tokenizer)
}

fn windows(tokenizer: &Tokenizer, limit: usize) -> Dataset {
    let options = TextOptions { window: demo::CONTEXT, counted: Counted::Inside, limit };
    data::text("synthetic:eval", Some(tokenizer), &options).unwrap()
}

/// Nats a token.
fn loss(model: &Model, data: &Dataset) -> f64 {
    let plan = Plan::of(model, &CompileOptions::default()).unwrap();
    let run = eval::evaluate(&plan, data, &Preprocess::none(), 8, &Cancel::default(), &mut |_, _| {}).unwrap();
    run.metrics.loss
}

#[test]
fn it_is_as_good_as_told_and_careless_cuts_and_rounding_cost() {
    let (model, tokenizer) = bundled();
    let data = windows(&tokenizer, 0);
    let nats = loss(&model, &data);
    let told = Yardsticks::of(&tokenizer).unwrap();
    println!("{nats} nats/token in {} windows, {told:?}", data.len());
    assert!((nats - 0.713_969).abs() < 1e-4, "{nats}");
    // Far better than what comes after what, and no better than what the stories leave open.
    assert!(nats < 0.6 * told.pairs && told.pairs < told.single && nats > told.choices, "{nats}, {told:?}");

    let few = data.take(16);
    let whole = loss(&model, &few);
    let groups = prune::groups(&model.graph);
    let actions: Vec<_> = (groups.iter().filter(|g| g.protected.is_none()))
        .map(|g| {
            let scores = prune::importance(&model, g, Method::L2, None).unwrap();
            (Target::Group(g.id.clone()), Action::Prune { ratio: 0.5, kept: prune::resolve(g, &scores, 0.5) })
        })
        .collect();
    let halved = loss(&prune::apply(&model, &groups, &actions).unwrap(), &few);
    assert!(actions.len() >= 8 && halved > whole + 0.5, "{} groups: {whole}, halved {halved}", actions.len());
}

#[test]
fn as_gguf_it_opens_again_with_the_same_logits() {
    let (model, tokenizer) = bundled();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("again.gguf");
    formats::write(&path, &model, &Manifest::default(), "gguf").unwrap();
    let again = paring::model::load(&path, &LoadOptions::default()).unwrap();
    let data = windows(&tokenizer, 2);
    let logits = |model: &Model| {
        let plan = Plan::of(model, &CompileOptions::default()).unwrap();
        plan.run(&data.batch(0..2, &Preprocess::none()).unwrap().0)
            .unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1::<f32>()
            .unwrap()
    };
    assert_eq!(logits(&model), logits(&again));
    let theirs = Tokenizer::of(&path).unwrap().unwrap();
    let text = "Anna gives the red ball to Tom. Zażółć!";
    assert_eq!(theirs.encode(text).unwrap(), tokenizer.encode(text).unwrap());
    assert_eq!(theirs.decode(&theirs.encode(text).unwrap()).unwrap(), text);
    assert!(theirs.first().is_some() && theirs.ends() == [theirs.first().unwrap()]);
}

#[test]
fn without_a_file_it_is_evaluated_continued_compressed_and_exported() {
    let rig = Rig::new();
    let nats = |v: &Value| v["nats_per_token"].as_f64().unwrap();
    let original = rig.json(&["eval", "demo:lm", "--limit", "12"]);
    let out = rig.path("out");
    let budget = ["--budget", "memory=0.6,drop=0.5", "--limit", "12", "--calib-limit", "24", "--out", &out];
    let report = rig.json(&[&["run", "demo:lm"], &budget[..]].concat());
    assert_eq!(report["met"], Value::Bool(true), "{report}");
    assert!((report["baseline"]["loss"].as_f64().unwrap() - nats(&original)).abs() < 1e-5, "{report}");

    // What came of it, with the vocabulary of what it was; the other way round, as llama.cpp takes it.
    let kept = rig.path("out/model.safetensors");
    let eval = ["--data", "synthetic:eval", "--tokenizer", "demo:lm", "--limit", "12"];
    let again = rig.json(&[&["eval", &kept], &eval[..]].concat());
    assert!((report["final"]["loss"].as_f64().unwrap() - nats(&again)).abs() < 1e-6, "{report}");
    let gguf = rig.path("small.gguf");
    rig.json(&["convert", "demo:lm", "--precision", "q8_0", "--out", &gguf]);
    let rounded = rig.json(&["eval", &gguf, "--data", "synthetic:eval", "--limit", "12", "--against", "demo:lm"]);
    assert!((nats(&rounded) - nats(&original)).abs() < 0.05, "{rounded}");

    let said = rig.json(&["generate", "demo:lm", "--prompt", "Anna and Tom are in the garden. Tom has a", "-n", "200"]);
    let text = said["text"].as_str().unwrap();
    assert!(said["ended"] == Value::Bool(true) && text.contains("In the end"), "{said}");
    let (code, _, why) = rig.paring(&["eval", "demo:llama"]);
    assert!(code == Some(1) && why.contains("demo:vit, demo:cnn, demo:lm"), "{why}");
    let (code, _, why) = rig.paring(&["generate", "demo:lm", "--chat", "--prompt", "Who?"]);
    assert!(code == Some(1) && why.contains("without a chat template"), "{why}");
}
