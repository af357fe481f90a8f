//! Mixtures of experts: tokens that are left out change nothing, files in and out, shapes that lie.

use crate::talker::copied;
use crate::{apart, compile, cut, decoders, fewer_ids, flat, floats, nats, open, paring, to_gguf};
use paring::exec::candle::{self, Capture, Mode};
use paring::exec::{CompileOptions, Plan};
use paring::graph::{Op, ParamRef, ParamRole, experts};
use paring::model::export::{self, Manifest};
use paring::model::{Imatrix, LoadOptions, Model, Param, Tokenizer, formats, load};
use paring::prune::{self, Action, Group, GroupKind, Target};
use paring::quant::Precision;
use serde_json::Value;

fn run(model: &Model) -> Vec<f32> {
    flat(&compile(model).run(&fewer_ids()).unwrap())
}

fn logits(name: &str) -> Vec<f32> {
    let text = std::fs::read_to_string(decoders().join("expected.json")).unwrap();
    floats(&serde_json::from_str::<Value>(&text).unwrap()["logits"][name])
}

/// What is asked for is what its definition says, though the plan computes no more than the tokens that are sent to an expert.
#[test]
fn values_of_experts_are_zeros_where_no_token_is_sent() {
    for name in ["mixtral", "qwen3_moe.gguf", "qwen3_moe_step"] {
        let model = open(&decoders().join(name));
        let inside = |n: &&paring::graph::Node| {
            let id = model.graph.by_name(&n.name).unwrap();
            experts::places(&model.graph)[id.index()].is_some() || matches!(n.op, Op::Route(_) | Op::Combine(_))
        };
        let names: Vec<&str> = model.graph.nodes.iter().filter(inside).map(|n| n.name.as_str()).collect();
        assert!(names.len() > 20, "{name}: {names:?}");
        let params = candle::tensors(&model.params, &candle_core::Device::Cpu).unwrap();
        let mut want = Capture::of(&names);
        candle::forward(&model.graph, &params, &fewer_ids(), Mode::Eval, &mut want).unwrap();
        for threads in [1, 3] {
            let options = CompileOptions { threads: Some(threads), ..CompileOptions::default() };
            let plan = Plan::of(&model, &options.clone().keeping(names.iter().copied())).unwrap();
            let (y, found) = plan.session().capture(&fewer_ids(), &names).unwrap();
            for n in &names {
                let (a, b) = (flat(&found[*n]), flat(&want.values[*n]));
                assert!(apart(&a, &b) < 1e-4, "{name}: {n}");
                assert!(a.iter().zip(&b).all(|(a, b)| (*a == 0.0) == (*b == 0.0)), "{name}: {n}");
            }
            // Rows do not depend on which are computed with them.
            let bare = Plan::of(&model, &options).unwrap().run(&fewer_ids()).unwrap();
            assert_eq!(flat(&bare), flat(&y), "{name}");
        }
    }
}

/// As int8, half of it as blocks, and as our own and as GGUF files.
#[test]
fn experts_are_rounded_and_written_layer_by_layer() {
    let dir = tempfile::tempdir().unwrap();
    let [ours, gguf, other] = ["a.safetensors", "a.gguf", "b.gguf"].map(|n| dir.path().join(n));
    for name in ["mixtral", "mixtral.gguf", "qwen3_moe", "qwen3_moe_only"] {
        let model = open(&decoders().join(name));
        export::safetensors(&ours, &model, &Manifest::default()).unwrap();
        assert_eq!(run(&open(&ours)), run(&model), "{name}");
    }
    for (name, file) in [("mixtral", "mixtral.gguf"), ("qwen3_moe", "qwen3_moe.gguf")] {
        let model = open(&decoders().join(file));
        assert_eq!(to_gguf(&model, &gguf), Ok(vec![]));
        let again = open(&gguf);
        assert_eq!((&again.info.hash, run(&again)), (&model.info.hash, run(&model)), "{file}");
        // From a directory, whose metadata is made.
        let from = copied(&decoders().join(name), &dir.path().join(name), 32);
        assert_eq!(to_gguf(&open(&from), &other), Ok(vec![]));
        assert!(apart(&run(&open(&other)), &logits(name)) < 1e-4, "{name}");
        assert!(Tokenizer::of(&other).unwrap().is_some());
    }
    let mut model = open(&decoders().join("mixtral.gguf"));
    let [q8_0, int8] = ["q8_0", "int8"].map(|p| Precision::parse(p).unwrap());
    for n in model.graph.nodes.iter().filter(|n| matches!(n.op, Op::Linear(_))) {
        let blocks = n.name.contains("ffn_up") || n.name.contains("ffn_gate.");
        model.precision.set(n.name.clone(), if blocks { q8_0 } else { int8 });
    }
    let off = apart(&run(&model), &logits("mixtral"));
    assert!(off > 1e-4 && off < 0.5, "{off}");
    export::safetensors(&ours, &model, &Manifest::default()).unwrap();
    assert_eq!(run(&open(&ours)), run(&model));
    model.precision.nodes.retain(|_, p| *p == q8_0);
    let notes = to_gguf(&model, &gguf).unwrap();
    assert!(notes.len() == 1 && notes[0].contains("exact in F32"), "{notes:?}");
    assert_eq!(run(&open(&gguf)), run(&model));
    // All of a layer cut alike.
    let each: Vec<(String, usize)> =
        (0..2).flat_map(|i| (0..4).map(move |e| (format!("blk.{i}.ffn_gate.{e}"), 20))).collect();
    let each: Vec<(&str, usize)> = each.iter().map(|(id, n)| (id.as_str(), *n)).collect();
    let even = cut(&open(&decoders().join("mixtral.gguf")), &each);
    assert_eq!(to_gguf(&even, &gguf), Ok(vec![]));
    assert_eq!(run(&open(&gguf)), run(&even));
}

/// The network with a router's bias that no token is sent to the experts that are not `kept`.
fn never_chosen(model: &Model, router: &str, kept: &[u32]) -> Model {
    let mut masked = model.clone();
    let mut graph = (*model.graph).clone();
    let at = graph.by_name(router).unwrap().index();
    let Op::Linear(l) = &mut graph.nodes[at].op else { panic!("{router}") };
    l.bias = true;
    let bias = (0..l.out_features as u32).map(|e| if kept.contains(&e) { 0.0 } else { -1e9 }).collect();
    masked.params.insert("never", Param::owned(vec![l.out_features], bias).unwrap());
    graph.nodes[at].params.push(ParamRef { role: ParamRole::Bias, name: "never".to_owned() });
    masked.graph = graph.into();
    masked
}

fn experts_of(model: &Model) -> (Vec<Group>, Vec<Group>) {
    let groups = prune::groups(&model.graph);
    let own = groups.iter().filter(|g| g.kind == GroupKind::Experts && g.protected.is_none()).cloned().collect();
    (groups, own)
}

pub fn without_experts(model: &Model, which: impl Fn(usize) -> Vec<u32>) -> Model {
    let (groups, own) = experts_of(model);
    let cut = |(i, g): (usize, &Group)| {
        let kept = which(i);
        (Target::Group(g.id.clone()), Action::Prune { ratio: g.ratio_of(kept.len()), kept })
    };
    prune::apply(model, &groups, &own.iter().enumerate().map(cut).collect::<Vec<_>>()).unwrap()
}

#[test]
fn whole_experts_go_as_if_their_router_never_chose_them() {
    let dir = tempfile::tempdir().unwrap();
    let ours = dir.path().join("a.safetensors");
    for (name, experts) in
        [("mixtral", 4), ("mixtral.gguf", 4), ("qwen3_moe", 6), ("qwen3_moe_only", 5), ("qwen3_moe_step", 5)]
    {
        let model = open(&decoders().join(name));
        let (groups, own) = experts_of(&model);
        assert!(!own.is_empty() && own.iter().all(|g| g.size == experts), "{name}: {own:?}");
        for kept in [vec![1, 3], vec![0, 2, 3], vec![2]] {
            let g = &own[own.len() - 1];
            let action = Action::Prune { ratio: g.ratio_of(kept.len()), kept: kept.clone() };
            let small = prune::apply(&model, &groups, &[(Target::Group(g.id.clone()), action.clone())]).unwrap();
            let (a, b) = (run(&small), run(&never_chosen(&model, &g.id, &kept)));
            let moved = apart(&a, &run(&model));
            assert!(apart(&a, &b) < 1e-5 && moved > 1e-4, "{name} {kept:?}: {} {moved}", apart(&a, &b));
            assert!(small.params.iter().count() < model.params.iter().count(), "{name}: their weights are gone");
            let macs = |m: &Model| paring::graph::macs_at(&m.graph, paring::graph::Binding::tokens(60)).unwrap();
            let all = |m: &Model| macs(m).iter().map(|m| m.conv_linear).sum::<u64>();
            assert!(all(&small) < all(&model), "{name}");
            assert_eq!(
                *prune::shrink(&model.graph, &groups, &[(Target::Group(g.id.clone()), action)]).unwrap().nodes,
                *small.graph.nodes
            );
            export::safetensors(&ours, &small, &Manifest::default()).unwrap();
            assert_eq!(run(&open(&ours)), a, "{name}");
        }
    }
}

/// Other experts of each layer, as many: what every format can be told.
#[test]
fn what_is_left_of_experts_is_written_under_new_numbers() {
    let dir = tempfile::tempdir().unwrap();
    let (gguf, hub) = (dir.path().join("a.gguf"), dir.path().join("hub"));
    let kept = |i: usize| if i == 0 { vec![1, 3] } else { vec![0, 2] };
    let small = without_experts(&open(&decoders().join("mixtral.gguf")), kept);
    assert_eq!(to_gguf(&small, &gguf), Ok(vec![]));
    let again = open(&gguf);
    assert_eq!(run(&again), run(&small));
    let counts = |m: &Model| experts_of(m).1.iter().map(|g| g.size).collect::<Vec<_>>();
    assert_eq!(counts(&again), [2, 2]);
    for name in ["mixtral", "qwen3_moe"] {
        let from = copied(&decoders().join(name), &dir.path().join(name), 32);
        let kept = |i: usize| if i == 0 { vec![1, 2, 3] } else { vec![0, 2, 3] };
        let small = without_experts(&open(&from), kept);
        formats::write(&hub, &small, &Manifest::default(), "hf").unwrap();
        let again = open(&hub);
        assert!(apart(&run(&again), &run(&small)) < 1e-6, "{name}");
        assert_eq!(counts(&again), [3, 3], "{name}");
        // By way of GGUF as well.
        to_gguf(&small, &gguf).unwrap();
        assert!(apart(&run(&open(&gguf)), &run(&small)) < 1e-5, "{name}");
        let uneven = without_experts(&open(&from), |i| (0..3 - i as u32).collect());
        let error = formats::write(&hub, &uneven, &Manifest::default(), "hf").unwrap_err().to_string();
        assert!(error.contains("of 3 experts") && error.contains("hint: "), "{error}");
        let error = to_gguf(&uneven, &gguf).unwrap_err();
        assert!(error.contains("of 2 experts") && error.contains("one number for all"), "{error}");
    }
}

/// An expert's weight times what it gives, by the definition's values; by weights alone one number an expert as well.
#[test]
fn experts_are_ranked_by_what_they_add() {
    let model = open(&decoders().join("qwen3_moe"));
    let params = candle::tensors(&model.params, &candle_core::Device::Cpu).unwrap();
    for g in experts_of(&model).1 {
        let mixture = prune::of_group(&model.graph, &g).unwrap();
        assert!(mixture.layers.iter().all(|layers| layers.len() == 3));
        let inputs = &model.graph.node(mixture.combine).inputs;
        let names: Vec<&str> = inputs.iter().map(|id| model.graph.node(*id).name.as_str()).collect();
        let mut seen = Capture::of(&names);
        candle::forward(&model.graph, &params, &fewer_ids(), Mode::Eval, &mut seen).unwrap();
        let values = seen.values.iter().map(|(n, t)| (n.to_string(), t.clone())).collect();
        let found = prune::added(&mixture, &model.graph, &values).unwrap();
        let weights = flat(&seen.values[names[0]]);
        for (e, name) in names[1..].iter().enumerate() {
            let rows = flat(&seen.values[*name]);
            let norm = |row: &[f32]| row.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>().sqrt();
            let each = rows.chunks(seen.values[*name].dim(2).unwrap()).zip(weights.chunks(g.size));
            let want: f64 = each.map(|(row, w)| f64::from(w[e]) * norm(row)).sum();
            assert!(want > 0.0 && (found[e] - want).abs() < 1e-4 * want, "{e}: {} {want}", found[e]);
        }
        let mut evidence = prune::Evidence::default();
        evidence.activation.insert(g.id.clone(), found.iter().map(|v| *v as f32).collect());
        let by = |method, with| prune::importance(&model, &g, method, with).map_err(|e| e.to_string());
        let added = by(prune::Method::Activation, Some(&evidence)).unwrap();
        assert!(added.iter().zip(&found).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-4 * b));
        for method in [prune::Method::L1, prune::Method::L2, prune::Method::Random] {
            let scores = by(method, None).unwrap();
            assert!(scores.len() == g.size && scores.iter().all(|s| *s > 0.0), "{method:?}: {scores:?}");
        }
        assert!(by(prune::Method::Taylor, None).is_err() && by(prune::Method::Activation, None).is_err());
    }
}

#[test]
fn what_gguf_cannot_stack_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let refused = |model: &Model, words: &str| {
        let error = to_gguf(model, &out).unwrap_err();
        assert!(error.contains(words) && error.contains("hint: ") && !out.exists(), "{error}");
    };
    let whole = open(&decoders().join("mixtral.gguf"));
    let uneven = cut(&whole, &[("blk.0.ffn_gate.1", 20)]);
    assert_ne!(run(&uneven), run(&whole));
    refused(&uneven, "expert 1 of `blk.0.ffn_gate_exps.weight` has shape [20, 32] and expert 0 [32, 32]");
    let mut mixed = whole.clone();
    mixed.precision.set("blk.1.ffn_up.2", Precision::parse("q8_0").unwrap());
    refused(&mixed, "expert 2 of `blk.1.ffn_up_exps.weight` is in Q8_0 and expert 0 in F32");
    let from = copied(&decoders().join("qwen3_moe_only"), &dir.path().join("only"), 32);
    refused(&open(&from), "do not sum up to 1");
    // What sums up, but not in every layer.
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    let config = config.replace("\"norm_topk_prob\": false", "\"norm_topk_prob\": true");
    std::fs::write(from.join("config.json"), config).unwrap();
    refused(&open(&from), "layer 0 has experts and layer 1 has none");
    let (done, said) = paring(&[
        "convert",
        decoders().join("mixtral").to_str().unwrap(),
        "--out",
        dir.path().join("m.onnx").to_str().unwrap(),
    ]);
    assert!(!done && said.contains("not written to ONNX") && said.contains("hint: "), "{said}");
}

/// The fixture `name` with words of its configuration or names of its tensors written otherwise, of the same length.
fn changed(name: &str, config: (&str, &str), tensor: (&str, &str)) -> Result<Model, String> {
    let dir = tempfile::tempdir().unwrap();
    let from = decoders().join(name);
    let text = std::fs::read_to_string(from.join("config.json")).unwrap();
    assert!(text.contains(config.0), "{}", config.0);
    std::fs::write(dir.path().join("config.json"), text.replace(config.0, config.1)).unwrap();
    let bytes =
        replaced(std::fs::read(from.join("model.safetensors")).unwrap(), tensor.0.as_bytes(), tensor.1.as_bytes());
    std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    load(dir.path(), &LoadOptions::default()).map_err(|e| e.to_string())
}

fn replaced(mut bytes: Vec<u8>, from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let at = bytes.windows(from.len().max(1)).position(|w| w == from).filter(|_| !from.is_empty());
    assert!(from.is_empty() || at.is_some());
    at.into_iter().for_each(|at| bytes[at..at + to.len()].copy_from_slice(to));
    bytes
}

#[test]
fn experts_that_are_not_there_are_told_by_name() {
    let refused = |name: &str, config: (&str, &str), tensor: (&str, &str), words: &str| {
        let error = changed(name, config, tensor).map(|_| ()).unwrap_err();
        assert!(error.contains(words), "{name} {config:?} {tensor:?}: {error}");
    };
    let (same, count, used) = (("", ""), "\"num_local_experts\": 4", "\"num_experts_per_tok\": 2");
    assert!(changed("mixtral", same, same).is_ok());
    refused(
        "mixtral",
        (count, "\"num_local_experts\": 3"),
        same,
        "tells of 3 experts, and `model.layers.0.block_sparse_moe.gate.weight` chooses among 4",
    );
    refused("mixtral", (count, "\"num_local_experts\": 0"), same, "`num_local_experts` is not a positive number");
    refused("mixtral", (count, "\"experts\": 4"), same, "tells of 8 experts");
    refused("mixtral", (used, "\"num_experts_per_tok\": 5"), same, "cannot be sent to 5 of 4 experts");
    refused("mixtral", (used, "\"num_experts_per_tok\": 0"), same, "`num_experts_per_tok` is not a positive number");
    refused("mixtral", (used, "\"num_experts_per_tok\": -1"), same, "`num_experts_per_tok` is not a positive number");
    let expert = ("layers.1.block_sparse_moe.experts.3.w1", "layers.1.block_sparse_moe.experts.9.w1");
    refused("mixtral", same, expert, "`model.layers.1.block_sparse_moe.experts.3.w1.weight`");
    let router = ("layers.1.block_sparse_moe.gate", "layers.1.block_sparse_moe.gote");
    refused("mixtral", same, router, "tensor `model.layers.1.block_sparse_moe.gate.weight` is missing");
    let kind = "\"model_type\": \"mixtral\"";
    refused("mixtral", (kind, "\"model_type\": \"mistral\""), same, "of the kind `mistral` with experts");
    refused("mixtral", (kind, "\"model_type\": \"qwen2_moe\""), same, "`qwen2_moe` is a relative");
    let only = "\"mlp_only_layers\": [\n    1\n  ]";
    refused(
        "qwen3_moe_only",
        (only, "\"mlp_only_layers\": []"),
        same,
        "tensor `model.layers.1.mlp.gate.weight` is missing",
    );
    refused(
        "qwen3_moe_only",
        (only, "\"mlp_only_layers\": [0, 1]"),
        same,
        "`model.layers.0.mlp.gate.weight` is not expected",
    );
    let step = "\"decoder_sparse_step\": 1";
    refused("qwen3_moe", (step, "\"decoder_sparse_step\": 0"), same, "`decoder_sparse_step` is not a positive number");
    refused(
        "qwen3_moe",
        (step, "\"decoder_sparse_step\": 2"),
        same,
        "`model.layers.0.mlp.gate.weight` is not expected",
    );
    // A dense network that says that it has some.
    let dense = ("\"model_type\": \"mistral\"", "\"num_experts\": 4, \"model_type\": \"qwen3_moe\"");
    refused("mistral_sliding", dense, same, "tells of 4 experts, and tensor `layers.0.mlp.gate.weight` is missing");
}

#[test]
fn stacks_that_lie_are_told_by_name() {
    let file = std::fs::read(decoders().join("mixtral.gguf")).unwrap();
    let opened = |bytes: &[u8]| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        std::fs::write(&path, bytes).unwrap();
        load(&path, &LoadOptions::default()).map(|_| ()).map_err(|e| e.to_string())
    };
    // A key's bytes are followed by the number of its type, then by its value.
    let told = |key: &str, value: u32| {
        let at = file.windows(key.len()).position(|w| w == key.as_bytes()).unwrap() + key.len() + 4;
        let mut bytes = file.clone();
        bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
        opened(&bytes).unwrap_err()
    };
    assert_eq!(opened(&file), Ok(()));
    for (key, value, words) in [
        ("llama.expert_count", 5, "tells of 5 experts, and `blk.0.ffn_gate_inp.weight` chooses among 4"),
        ("llama.expert_count", u32::MAX, "`num_local_experts` is not a positive number"),
        ("llama.expert_count", 0, "does not tell how many experts"),
        ("llama.expert_used_count", 9, "cannot be sent to 9 of 4 experts"),
        ("llama.expert_used_count", 0, "does not tell how many experts a token is sent to"),
    ] {
        let error = told(key, value);
        assert!(error.contains(words), "{key} {value}: {error}");
    }
    for (from, to, words) in [
        ("blk.1.ffn_up_exps.weight", "blk.1.ffn_up_expo.weight", "tensor `blk.1.ffn_up_exps.weight` is missing"),
        ("blk.0.ffn_gate_exps.weight", "blk.0.ffn_gate_expo.weight", "`blk.0.ffn_gate.0.weight`"),
    ] {
        let error = opened(&replaced(file.clone(), from.as_bytes(), to.as_bytes())).unwrap_err();
        assert!(error.contains(words), "{from}: {error}");
    }
    // One expert fewer in a stack: its dimensions follow its name, innermost first.
    let name = b"blk.1.ffn_down_exps.weight";
    let at = file.windows(name.len()).position(|w| w == name).unwrap() + name.len() + 4 + 16;
    let mut fewer = file.clone();
    assert_eq!(fewer[at..at + 8], 4u64.to_le_bytes());
    fewer[at] = 3;
    let error = opened(&fewer).unwrap_err();
    assert!(error.contains("`blk.1.ffn_down_exps.weight` stacks 3 experts, and there are 4"), "{error}");
}

/// Of the tokens that each expert is sent, in one tensor a layer as llama.cpp has them; and weights are rounded by them.
#[test]
fn importances_are_of_the_tokens_that_an_expert_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let [file, found, out] = ["ids.u16", "m.gguf", "out.gguf"].map(|n| dir.path().join(n));
    let ids = fewer_ids().to_vec2::<u32>().unwrap().concat();
    std::fs::write(&file, ids.iter().flat_map(|i| (*i as u16).to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let path = decoders().join("mixtral.gguf");
    let said = |args: &[&str]| {
        let (done, said) = paring(args);
        assert!(done, "{said}");
    };
    let [model, data, m, gguf] = [&path, &file, &found, &out].map(|p| p.to_str().unwrap());
    said(&["imatrix", model, "--calib", data, "--window", "13", "--out", m]);
    let (matrix, model_here) = (Imatrix::open(&found).unwrap(), open(&path));
    let params = candle::tensors(&model_here.params, &candle_core::Device::Cpu).unwrap();
    let mut seen = Capture::of(["blk.1.experts.2.dispatch", "blk.1.route"]);
    candle::forward(&model_here.graph, &params, &fewer_ids(), Mode::Eval, &mut seen).unwrap();
    // What follows the second window would be the token after it.
    let read = |name: &str| flat(&seen.values[name].narrow(0, 0, 1).unwrap());
    let tokens = read("blk.1.route").chunks(4).filter(|w| w[2] != 0.0).count();
    assert!(tokens > 0 && tokens < 13, "{tokens}");
    let mut want = vec![0f64; 32];
    for row in read("blk.1.experts.2.dispatch").chunks(32) {
        want.iter_mut().zip(row).for_each(|(w, v)| *w += f64::from(v * v) / tokens as f64);
    }
    for part in ["gate", "up"] {
        let means = matrix.tensors[&format!("blk.1.ffn_{part}_exps.weight")].means();
        assert_eq!(means.len(), 4 * 32);
        assert!(means[64..96].iter().zip(&want).all(|(a, b)| (f64::from(*a) - b).abs() < 1e-4 * (1.0 + b)), "{part}");
    }
    assert!(matrix.tensors.keys().all(|n| !n.contains(".ffn_up.")), "{:?}", matrix.tensors.keys());
    said(&["convert", model, "--precision", "q4_0", "--imatrix", m, "--out", gguf]);
    let [by, plain] = [open(&out), {
        said(&["convert", model, "--precision", "q4_0", "--out", gguf]);
        open(&out)
    }];
    let name = "blk.1.ffn_up.2.weight";
    let blocks = |m: &Model| m.params.get(name).unwrap().as_blocks().map(|(_, b)| b.to_vec()).unwrap();
    assert_ne!(blocks(&by), blocks(&plain));
    // Multiplied as they are stored, or unpacked.
    let stored = Plan::of(&by, &CompileOptions::default().as_stored()).unwrap().run(&fewer_ids()).unwrap();
    assert!(apart(&flat(&stored), &run(&by)) < 1e-3);
}

/// By the command line: the score of transformers' logits, and what MACs count.
#[test]
fn experts_are_evaluated_and_profiled() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("ids.u16");
    let ids = fewer_ids().to_vec2::<u32>().unwrap();
    std::fs::write(&file, ids.concat().iter().flat_map(|i| (*i as u16).to_le_bytes()).collect::<Vec<u8>>()).unwrap();
    let json = |args: &[&str]| -> Value {
        let (done, said) = paring(args);
        assert!(done, "{said}");
        serde_json::from_str(&said).unwrap()
    };
    for name in ["mixtral", "mixtral.gguf", "qwen3_moe_step"] {
        let path = decoders().join(name);
        let path = path.to_str().unwrap();
        let said =
            json(&["eval", path, "--data", file.to_str().unwrap(), "--window", "13", "--device", "cpu", "--json"]);
        let mean = nats(&logits(name.trim_end_matches(".gguf")), &ids);
        assert!((said["nats_per_token"].as_f64().unwrap() - mean).abs() < 1e-5, "{name}: {said}");
    }
    let path = decoders().join("mixtral");
    let path = path.to_str().unwrap();
    for how in [&["--window", "9"][..], &["--decode", "4"]] {
        let args = [&["profile", path, "--device", "cpu", "--runs", "2", "--json"], how].concat();
        let said = json(&args);
        let notes = said["notes"].to_string();
        assert!(notes.contains("MACs of experts are of 2 of 4, which a token is sent to"), "{notes}");
        let rows = said["rows"].as_array().unwrap();
        let macs = |name: &str| {
            let row = rows.iter().find(|r| r["name"] == name).unwrap_or_else(|| panic!("{name}"));
            row["macs"]["conv_linear"].as_u64().unwrap()
        };
        let tokens = if how[0] == "--decode" { 1 } else { 9 };
        assert_eq!(macs("model.layers.0.block_sparse_moe.gate"), tokens * 32 * 4);
        assert_eq!(macs("model.layers.0.block_sparse_moe.experts.3.w1"), tokens * 32 * 32 / 2);
    }
}
