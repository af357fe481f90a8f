//! Directories for transformers: what is written opens as what it was, from GGUF files and from directories, cut and quantized.
//! `tests/conformance/check_hub.py` opens them in transformers, by hand.

use crate::talker::{copied, with_tokenizer};
use crate::{apart, compile, cut, decoders, expected, fewer_ids, flat, floats, folder, ids, open, run};
use paring::graph::{ParamRole, Precision, WeightFormat};
use paring::model::export::{self, Manifest};
use paring::model::{Model, formats};
use paring::prune::{self, Action, Target};
use paring::quant;
use serde_json::Value;
use std::path::{Path, PathBuf};

fn to_hub(model: &Model, dir: &Path) -> Result<Vec<String>, String> {
    let written = formats::write(dir, model, &Manifest::default(), "hf");
    written.map(|w| w.notes).map_err(|e| e.to_string())
}

fn config(dir: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(dir.join("config.json")).unwrap()).unwrap()
}

#[test]
fn directories_that_are_written_open_as_what_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let (out, ours) = (dir.path().join("out"), dir.path().join("ours.safetensors"));
    let expected = expected();
    for name in ["llama", "llama_untied", "mistral", "qwen2", "qwen3"] {
        let from = with_tokenizer(name, dir.path());
        let model = open(&from);
        assert_eq!(to_hub(&model, &out), Ok(vec![]), "{name}");
        assert!(apart(&run(&open(&out)), &floats(&expected["logits"][name])) < 1e-4, "{name}");
        let [there, here] = [&from, &out].map(|d| std::fs::read(d.join("tokenizer.json")).unwrap());
        assert!(there == here);
        assert_eq!(config(&out)["model_type"], config(&from)["model_type"]);
        // By way of a file of our own, the directory gone: the configuration travels with it.
        export::safetensors(&ours, &model, &Manifest::default()).unwrap();
        drop(model);
        std::fs::remove_dir_all(&from).unwrap();
        assert_eq!(to_hub(&open(&ours), &out), Ok(vec![]), "{name}");
        assert!(apart(&run(&open(&out)), &floats(&expected["logits"][name])) < 1e-4, "{name}");
    }
    for name in ["llama", "llama_untied", "qwen2", "qwen3"] {
        let model = open(&folder().join(format!("{name}.gguf")));
        let notes = to_hub(&model, &out).unwrap();
        assert!(notes.iter().all(|n| n.starts_with("no vocabulary is written")), "{notes:?}");
        let off = apart(&run(&open(&out)), &floats(&expected["logits"][name]));
        assert!(off < 1e-4, "{name}: off by {off}");
    }
}

#[test]
fn further_kinds_become_directories() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let expected: Value =
        serde_json::from_str(&std::fs::read_to_string(decoders().join("expected.json")).unwrap()).unwrap();
    let kinds = [
        "rope_linear",
        "rope_llama3",
        "rope_yarn",
        "rope_dynamic",
        "olmo2",
        "gemma2",
        "gemma3",
        "mixtral",
        "qwen3_moe",
        "mistral_sliding",
        "qwen2_sliding",
        "gemma2.gguf",
        "gemma3.gguf",
        "rope_linear.gguf",
        "rope_yarn.gguf",
        "olmo2.gguf",
        "mixtral.gguf",
        "mixtral_first.gguf",
        "qwen3_moe.gguf",
        "phi3",
        "phi3.gguf",
        "phi3_short",
        "phi3_short.gguf",
        "gpt2",
        "gpt2.gguf",
    ];
    for name in kinds {
        let from = match name.ends_with(".gguf") {
            true => decoders().join(name),
            false => copied(&decoders().join(name), &dir.path().join(name), 32),
        };
        let notes = to_hub(&open(&from), &out).unwrap();
        assert!(notes.iter().all(|n| n.starts_with("no vocabulary is written")), "{name}: {notes:?}");
        let found = flat(&compile(&open(&out)).run(&fewer_ids()).unwrap());
        let off = apart(&found, &floats(&expected["logits"][expected["files"][name].as_str().unwrap()]));
        assert!(off < 1e-4, "{name}: off by {off}");
    }
    // Divisors of frequencies that no `config.json` has words for.
    let error = to_hub(&open(&decoders().join("rope_llama3.gguf")), &out).unwrap_err();
    assert!(error.contains("`rope_freqs.weight`") && error.contains("hint: convert the directory"), "{error}");
}

/// What a family has as one tensor is one, in whatever precision its parts agree on; parts that do not are floats.
#[test]
fn parts_of_one_tensor_are_written_as_one() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    let shapes = || -> std::collections::BTreeMap<String, Vec<usize>> {
        let bytes = std::fs::read(out.join("model.safetensors")).unwrap();
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        file.tensors().into_iter().map(|(name, t)| (name, t.shape().to_vec())).collect()
    };
    let mut model = open(&decoders().join("phi3"));
    let (q, kv) = (32, 16);
    for (word, ending) in [("w8", "weight_packed"), ("int8", "weight"), ("f16", "weight")] {
        model.precision = quant::everywhere(&model.graph, Precision::parse(word).unwrap());
        to_hub(&model, &out).unwrap();
        let found = shapes();
        assert_eq!(found[&format!("model.layers.0.self_attn.qkv_proj.{ending}")][0], q + 2 * kv, "{word}");
        assert!(found.keys().all(|k| !k.contains(".q_proj") && !k.contains(".up_proj")), "{word}");
    }
    let computed = flat(&compile(&model).run(&fewer_ids()).unwrap());
    assert!(apart(&flat(&compile(&open(&out)).run(&fewer_ids()).unwrap()), &computed) < 1e-5);
    model.precision.set("model.layers.0.self_attn.q_proj", Precision::Int8);
    let notes = to_hub(&model, &out).unwrap();
    assert!(notes.iter().any(|n| n.starts_with("1 weight in int8")), "{notes:?}");
    assert!(!shapes().contains_key("model.layers.0.self_attn.qkv_proj.weight_scale"));
    // A matrix that stands the other way round there.
    let gpt2 = open(&decoders().join("gpt2"));
    to_hub(&gpt2, &out).unwrap();
    assert_eq!(shapes()["transformer.h.0.attn.c_attn.weight"], [24, 72]);
    let heads = cut(&gpt2, &[("transformer.h.0.attn.q", 2), ("transformer.h.1.attn.q", 2)]);
    let error = to_hub(&heads, &out).unwrap_err();
    assert!(error.contains("fewer than fill its width"), "{error}");
}

#[test]
fn cut_models_become_directories_with_their_new_sizes() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    for file in ["qwen2.gguf", "llama", "llama.gguf"] {
        let whole = open(&folder().join(file));
        let (layer, gate, heads) = match file.ends_with(".gguf") {
            true => ("blk.0", "blk.#.ffn_gate", "blk.#.attn_q"),
            false => ("layers.0", "layers.#.mlp.gate_proj", "layers.#.self_attn.q_proj"),
        };
        let at = |pattern: &str, i: usize| pattern.replace('#', &i.to_string());
        let gone = |i: &str| (Target::Block(i.to_owned()), Action::RemoveBlock);
        let less = prune::apply(&whole, &[], &[gone(layer)]).unwrap();
        to_hub(&less, &out).unwrap();
        assert_eq!(config(&out)["num_hidden_layers"], 1);
        assert!(apart(&run(&open(&out)), &run(&less)) < 1e-5, "{file}");
        let even: Vec<(String, usize)> = (0..2).flat_map(|i| [(at(gate, i), 40), (at(heads, i), 1)]).collect();
        let even = cut(&whole, &even.iter().map(|(id, n)| (id.as_str(), *n)).collect::<Vec<_>>());
        to_hub(&even, &out).unwrap();
        let c = config(&out);
        assert_eq!((&c["intermediate_size"], &c["num_key_value_heads"]), (&40.into(), &1.into()));
        assert!(apart(&run(&open(&out)), &run(&even)) < 1e-5, "{file}");
        let uneven = cut(&whole, &[(&at(gate, 0), 32)]);
        let error = to_hub(&uneven, &out).unwrap_err();
        assert!(error.contains("layer 1 has") && error.contains("one shape for all"), "{error}");
        // What was there stays.
        assert_eq!(config(&out)["intermediate_size"], 40);
    }
    // A folder of other things is nobody's to replace.
    std::fs::write(out.join("notes.txt"), "mine").unwrap();
    let error = to_hub(&open(&folder().join("llama")), &out).unwrap_err();
    assert!(error.contains("holds other files"), "{error}");
}

/// Codes in words of 32 bits as compressed-tensors lays them out: the values are those that we compute with.
#[test]
fn narrow_weights_are_laid_out_as_compressed_tensors_has_them() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out");
    for (precision, bits, format) in [
        (Precision::W4, 4, "pack-quantized"),
        (Precision::W4g32, 4, "pack-quantized"),
        (Precision::W8, 8, "pack-quantized"),
        (Precision::Int8, 8, "int-quantized"),
        (Precision::Fp8, 8, "float-quantized"),
    ] {
        for from in ["qwen3", "llama.gguf"] {
            let mut model = open(&folder().join(from));
            model.precision = quant::everywhere(&model.graph, precision);
            let notes = to_hub(&model, &out).unwrap();
            assert!(notes.iter().any(|n| n.contains("compressed-tensors")), "{notes:?}");
            let c = config(&out);
            let q = &c["quantization_config"];
            assert_eq!((&q["quant_method"], &q["format"]), (&"compressed-tensors".into(), &format.into()));
            assert_eq!(q["config_groups"]["group_0"]["weights"]["num_bits"], bits);
            let bytes = std::fs::read(out.join("model.safetensors")).unwrap();
            let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            let (own, theirs) = match from {
                "qwen3" => ("model.layers.1.mlp.up_proj", "model.layers.1.mlp.up_proj"),
                _ => ("blk.1.ffn_up", "model.layers.1.mlp.up_proj"),
            };
            let stored = model.params.get(&format!("{own}.weight")).unwrap().stored_in(precision.weights());
            let want = stored.values();
            let (rows, cols) = (stored.shape()[0], stored.shape()[1]);
            let view = |ending: &str| file.tensor(&format!("{theirs}.{ending}")).unwrap();
            let scales: Vec<f32> = view("weight_scale")
                .data()
                .chunks_exact(4)
                .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
                .collect();
            let groups = scales.len() / rows;
            let codes: Vec<f32> = match format {
                "pack-quantized" => {
                    let words = view("weight_packed").data().chunks_exact(4);
                    let words = words.map(|b| u32::from_le_bytes(b.try_into().unwrap()));
                    let mask = (1u32 << bits) - 1;
                    let offset = (1i32 << (bits - 1)) as f32;
                    words.flat_map(|w| (0..32 / bits).map(move |i| (w >> (i * bits) & mask) as f32 - offset)).collect()
                }
                "int-quantized" => view("weight").data().iter().map(|b| f32::from(b.cast_signed())).collect(),
                _ => continue,
            };
            for (i, (q, want)) in codes.iter().zip(want.iter()).enumerate() {
                let scale = scales[i / cols * groups + i % cols * groups / cols];
                assert!((q * scale - want).abs() <= 1e-6 * want.abs(), "{precision:?} {from} {i}");
            }
            assert_eq!(codes.len(), rows * cols);
        }
    }
    // What there is no layout for is told.
    let mut model = open(&folder().join("llama.gguf"));
    model.precision = quant::everywhere(&model.graph, Precision::Lut4);
    let notes = to_hub(&model, &out).unwrap();
    assert!(notes.iter().any(|n| n.contains("lut4") && n.contains("in floats")), "{notes:?}");
    let found = apart(&run(&open(&out)), &run(&model));
    assert!(found < 1e-5, "off by {found}");
}

/// Directories for `tests/conformance/check_hub.py`.
#[test]
#[ignore = "by hand: PARING_HUB=DIR"]
fn directories_for_transformers() {
    let Some(out) = std::env::var_os("PARING_HUB").map(PathBuf::from) else { return };
    std::fs::create_dir_all(&out).unwrap();
    let put = |name: &str, model: &Model| {
        to_hub(model, &out.join(name)).unwrap();
        let ids: Value = fewer_ids().to_vec2::<u32>().unwrap().into();
        let ids = if model.info.classes == 32 { ids } else { crate::ids().to_vec2::<u32>().unwrap().into() };
        let x = if model.info.classes == 32 { fewer_ids() } else { crate::ids() };
        // What transformers computes with: weights as they are stored, activations as they are.
        let mut plain = model.clone();
        for node in quant::choosable(&model.graph) {
            let name = node.param(ParamRole::Weight).unwrap();
            let stored = model.params.get(name).unwrap().stored_in(model.precision.get(&node.name).weights());
            plain.params.insert(name, stored.stored_in(WeightFormat::F32));
        }
        plain.precision = Default::default();
        let logits = flat(&compile(&plain).run(&x).unwrap());
        let told = serde_json::json!({ "ids": ids, "logits": logits });
        std::fs::write(out.join(format!("{name}.json")), told.to_string()).unwrap();
    };
    for name in ["llama", "llama_untied", "mistral", "qwen2", "qwen3", "llama.gguf", "qwen2.gguf", "qwen3.gguf"] {
        let whole = open(&folder().join(name));
        put(name, &whole);
        for precision in [Precision::W4, Precision::W4g32, Precision::W8, Precision::Int8, Precision::Fp8] {
            let mut model = whole.clone();
            model.precision = quant::everywhere(&model.graph, precision);
            put(&format!("{name}-{}", precision.label()), &model);
        }
        let mut mixed = whole.clone();
        let cycle = [Precision::W4, Precision::W8, Precision::F16, Precision::F32, Precision::Int8].into_iter().cycle();
        let layers = quant::choosable(&mixed.graph).into_iter().zip(cycle);
        mixed.precision = layers.map(|(n, p)| (n.name.clone(), p)).collect();
        put(&format!("{name}-mixed"), &mixed);
    }
    for name in [
        "rope_linear",
        "rope_llama3",
        "rope_yarn",
        "olmo2",
        "gemma2",
        "gemma3",
        "mixtral",
        "qwen3_moe",
        "gemma2.gguf",
        "gemma3.gguf",
    ] {
        put(name, &open(&decoders().join(name)));
    }
    for name in ["mixtral", "qwen3_moe"] {
        let whole = open(&decoders().join(name));
        put(
            &format!("{name}-experts"),
            &crate::experts::without_experts(&whole, |i| (i as u32..i as u32 + 3).collect()),
        );
    }
    let _ = ids();
}
