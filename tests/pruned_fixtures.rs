//! Pruning and export over every fixture of `tests/conformance`: every group of every family as its ecosystem saves it.
//!
//! With `PARING_EXPORTS=DIR` the models that are cut by 30 % everywhere, and those with factors everywhere, are also left in `DIR`, each with its logits, for
//! `tests/conformance/check_exports.py`, which runs them in PyTorch and ONNX Runtime.

mod common;

use common::zeroed::{check, close, logits, picture, prunable, some_units};
use paring::exec::{CompileOptions, Plan};
use paring::graph::Node;
use paring::model::export::Manifest;
use paring::model::formats;
use paring::model::{LoadOptions, Model, load, python};
use paring::prune::{self, Action, Rank, Target};
use paring::quant::choosable;
use std::path::{Path, PathBuf};

/// Every fixture with its options.
fn fixtures() -> Vec<(String, Model)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    let text = std::fs::read_to_string(dir.join("expected.json")).expect("expected.json");
    let json: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
    let all = json["fixtures"].as_object().expect("fixtures");
    all.iter()
        .map(|(name, f)| {
            let number = |key: &str| f["options"][key].as_u64().map(|n| n as usize);
            let arch = f["options"]["arch"].as_str().map(|a| a.parse().expect("a family"));
            let options = LoadOptions { image: number("image"), heads: number("heads"), arch };
            let path = dir.join("fixtures").join(name).join(f["file"].as_str().unwrap_or_default());
            (name.clone(), load(&path, &options).unwrap_or_else(|e| panic!("{name}: {e}")))
        })
        .collect()
}

/// Cuts every group by `ratio`.
fn cut(model: &Model, ratio: f64) -> Model {
    let groups = prune::groups(&model.graph);
    let actions: Vec<_> = prunable(&groups)
        .into_iter()
        .map(|g| {
            let group = &groups[g];
            let kept = some_units(group.size, group.kept_at(ratio), g as u64 * 17 + 5);
            let ratio = group.ratio_of(kept.len());
            (Target::Group(group.id.clone()), Action::Prune { ratio, kept })
        })
        .collect();
    prune::apply(model, &groups, &actions).unwrap()
}

#[test]
fn zeroed_equals_pruned_for_every_group_of_every_fixture() {
    let mut all = 0;
    for (name, model) in fixtures() {
        let groups = prune::groups(&model.graph);
        let open = prunable(&groups);
        assert!(!open.is_empty(), "{name}: nothing can be pruned: {groups:?}");
        for g in open {
            let n = (groups[g].size as f64 * 0.7).round() as usize;
            let kept = some_units(groups[g].size, n, g as u64 * 31 + 1);
            check(&model, &groups, &[(g, kept)], &format!("{name}, group {}", groups[g].id));
            all += 1;
        }
    }
    println!("{all} groups");
}

/// Two low-rank factors in the place of every layer that has any at `share` of its full rank.
fn factored(model: &Model, share: f64) -> Model {
    let of = |n: &&Node| {
        let rank = Rank::Share(share).of(&n.op).ok()?;
        Some((Target::Weights(n.name.clone()), Action::Factorise { rank }))
    };
    let actions: Vec<_> = choosable(&model.graph).iter().filter_map(of).collect();
    prune::split(model, &prune::ranks(&model.graph, &actions)).unwrap()
}

#[test]
fn what_is_cut_or_factored_everywhere_runs_and_is_opened_again() {
    let keep = std::env::var_os("PARING_EXPORTS").map(PathBuf::from);
    let temporary = tempfile::tempdir().unwrap();
    let root = keep.as_deref().unwrap_or(temporary.path());
    let mut pairs = 0;
    for (name, model) in fixtures() {
        let all = [(name.clone(), cut(&model, 0.3)), (format!("{name}-factors"), factored(&model, 0.4))];
        pairs += all[1].1.graph.factored().len();
        for (name, small) in all {
            let n = |m: &Model| m.params.iter().map(|(_, p)| p.values().len()).sum::<usize>();
            assert!(n(&small) < n(&model), "{name} did not shrink");
            opens_again(&root.join(&name), &name, &small, keep.is_some());
        }
    }
    assert!(pairs > 500, "{pairs} layers have factors");
}

/// Runs it, writes it as a folder for PyTorch and as ONNX, and opens both; what is to be kept has its input and logits beside it.
fn opens_again(dir: &Path, name: &str, small: &Model, keep: bool) {
    let want = logits(small, 7);
    let plan = Plan::of(small, &CompileOptions::default()).unwrap();
    let run = |p: &Plan| p.run(&picture(small, 7)).unwrap().flatten_all().unwrap().to_vec1::<f32>().unwrap();
    close(&run(&plan), &want, name);
    python::folder(dir, small, &Manifest::default()).unwrap();
    let again = load(dir, &LoadOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(*again.graph, *small.graph, "{name}");
    assert_eq!(run(&Plan::of(&again, &CompileOptions::default()).unwrap()), run(&plan), "{name}");
    let onnx = dir.join("model.onnx");
    formats::write(&onnx, small, &Manifest::default(), "onnx").unwrap();
    let again = load(&onnx, &LoadOptions::default()).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(*again.graph, *small.graph, "{name}");
    assert_eq!(run(&Plan::of(&again, &CompileOptions::default()).unwrap()), run(&plan), "{name}");
    if keep {
        let input = picture(small, 7);
        let all = input.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        let text = serde_json::json!({ "shape": input.dims(), "input": all, "logits": want });
        std::fs::write(dir.join("check.json"), text.to_string()).unwrap();
    }
}
