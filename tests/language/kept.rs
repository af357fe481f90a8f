//! What keys and values are kept in as a decision: windows are judged as decoding would find them, files carry it, and what cannot be is said.

use super::{apart, decoders, fewer_ids, flat, folder, ids, open, paring};
use candle_core::Tensor;
use paring::exec::{CompileOptions, DecodeOptions, KvFormat, Plan};
use paring::graph::{Op, Precision};
use paring::model::export::{self, Manifest};
use paring::model::{Model, formats};
use paring::plan::check;
use paring::prune::{self, Action, Target};

fn decided(name: &str, format: KvFormat) -> Model {
    let path = if name.starts_with("llama") || name.starts_with("qwen2") { folder() } else { decoders() };
    let mut model = open(&path.join(name));
    format.decide(&mut model);
    model
}

/// Token by token from the first on: every one sees those before it as the cache has them.
fn in_turn(model: &Model, ids: &Tensor, kv: KvFormat) -> Vec<f32> {
    let plan = Plan::of(model, &CompileOptions::default()).unwrap();
    let (_, tokens) = ids.dims2().unwrap();
    let mut decoder = plan.decoder(&DecodeOptions { sequences: 1, context: tokens, kv }).unwrap();
    let row = ids.to_vec2::<u32>().unwrap().remove(0);
    row.iter().flat_map(|id| decoder.feed(0, &[*id]).unwrap()).collect()
}

#[test]
fn windows_are_judged_as_decoding_finds_them() {
    for name in ["llama.gguf", "qwen2", "gemma2", "mixtral"] {
        let x = if name == "gemma2" || name == "mixtral" { fewer_ids() } else { ids() };
        let x = x.narrow(0, 0, 1).unwrap();
        let [f32, f16, int8] = KvFormat::ALL.map(|f| decided(name, f));
        let whole = |m: &Model| flat(&Plan::of(m, &CompileOptions::default()).unwrap().run(&x).unwrap());
        let plain = whole(&f32);
        for (model, format, least) in [(&f16, KvFormat::F16, 1e-6), (&int8, KvFormat::Int8, 1e-4)] {
            let rounded = whole(model);
            let moved = apart(&rounded, &plain);
            // What the file says goes before what is asked for of models that say nothing.
            let turns = in_turn(model, &x, KvFormat::F32);
            let off = apart(&rounded, &turns);
            assert!(moved > least && off < 0.05 * moved + 2e-5, "{name} {format:?}: moved {moved}, off {off}");
        }
        assert!(apart(&whole(&int8), &plain) < 0.3, "{name}");
    }
}

#[test]
fn files_of_our_own_carry_it_and_others_say_that_they_do_not() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, gguf, hub) = (dir.path().join("a.safetensors"), dir.path().join("a.gguf"), dir.path().join("hub"));
    let model = decided("llama.gguf", KvFormat::Int8);
    export::safetensors(&ours, &model, &Manifest::default()).unwrap();
    let again = open(&ours);
    assert_eq!(again.precision, model.precision);
    let plan = Plan::of(&again, &CompileOptions::default()).unwrap();
    let decoder = plan.decoder(&DecodeOptions { sequences: 1, context: 8, kv: KvFormat::F16 }).unwrap();
    assert_eq!(decoder.kept_in(), "int8");
    for (path, format) in [(&gguf, "gguf"), (&hub, "hf")] {
        let notes = formats::write(path, &model, &Manifest::default(), format).unwrap().notes;
        assert!(notes.iter().any(|n| n.contains("keys and values in int8") && n.contains("-ctk")), "{notes:?}");
    }
    // By the command line, and asked for otherwise.
    let path = ours.to_str().unwrap();
    let out = dir.path().join("b.safetensors");
    let from = folder().join("llama.gguf");
    let args = ["convert", from.to_str().unwrap(), "--kv", "int8", "--out", out.to_str().unwrap()];
    let (done, said) = paring(&args);
    assert!(done, "{said}");
    assert_eq!(open(&out).precision, model.precision);
    let (done, said) = paring(&["convert", path, "--kv", "q4", "--out", out.to_str().unwrap()]);
    assert!(!done && said.contains("hint: f32, f16 or int8"), "{said}");
}

#[test]
fn it_is_decided_on_the_core_that_keeps_them() {
    let model = open(&folder().join("llama.gguf"));
    let core = model.graph.nodes.iter().find(|n| matches!(n.op, Op::Attention(_))).unwrap().name.clone();
    let groups = prune::groups(&model.graph);
    let decide =
        |precision| check(&Action::Precision { precision }, &Target::Layer(core.clone()), &groups, &model.graph, &[]);
    for precision in [Precision::F32, Precision::F16, Precision::Int8] {
        assert_eq!(decide(precision), Ok(Action::Precision { precision }));
    }
    let why = decide(Precision::W4).unwrap_err().to_string();
    assert!(why.contains("not kept in w4") && why.contains("hint: f32, f16 or int8"), "{why}");
    let action = Action::Precision { precision: Precision::Int8 };
    let made = prune::apply(&model, &groups, &[(Target::Layer(core.clone()), action)]).unwrap();
    assert_eq!(made.precision.get(&core), Precision::Int8);
    let plan = Plan::of(&made, &CompileOptions::default()).unwrap();
    let decoder = plan.decoder(&DecodeOptions { sequences: 1, context: 8, kv: KvFormat::F16 }).unwrap();
    assert_eq!(decoder.kept_in(), "f16 and int8");
}
