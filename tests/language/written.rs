//! GGUF files that are written: opened again they are what they were, cut or rounded or of further kinds; what GGUF has no words for is refused.

use super::*;

pub(super) fn to_gguf(model: &Model, path: &Path) -> Result<Vec<String>, String> {
    let written = formats::write(path, model, &Manifest::default(), "gguf");
    written.map(|w| w.notes).map_err(|e| e.to_string())
}

#[test]
fn gguf_that_is_written_opens_as_what_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    for name in ["llama", "llama_untied", "qwen2", "qwen3"] {
        let model = open(&folder().join(format!("{name}.gguf")));
        assert_eq!(to_gguf(&model, &out), Ok(vec![]));
        let again = open(&out);
        assert_eq!((&again.info.hash, again.info.context), (&model.info.hash, Some(64)), "{name}");
        // By way of a file of our own, too, and by the same bytes.
        let ours = dir.path().join("ours.safetensors");
        export::safetensors(&ours, &model, &Manifest::default()).unwrap();
        let other = dir.path().join("other.gguf");
        assert_eq!(to_gguf(&open(&ours), &other), Ok(vec![]));
        assert!(std::fs::read(&out).unwrap() == std::fs::read(&other).unwrap(), "{name}");
    }
    let expected = expected();
    for name in ["llama", "llama_untied", "mistral", "qwen2", "qwen3"] {
        let from = with_tokenizer(name, dir.path());
        assert_eq!(to_gguf(&open(&from), &out), Ok(vec![]), "{name}");
        let off = apart(&run(&open(&out)), &floats(&expected["logits"][name]));
        assert!(off < 1e-4, "{name}: off by {off}");
        let [there, here] = [&from, &out].map(|p| Tokenizer::of(p).unwrap().unwrap());
        for text in ["ab abba", "a b<|end|>c", "1984"] {
            let ids = there.encode(text).unwrap();
            assert_eq!(here.encode(text).unwrap(), ids, "{name}: {text}");
            assert_eq!(here.decode(&ids).unwrap(), text);
        }
    }
}

/// Directories of further kinds become files that compute what transformers does: scaled positions, norms elsewhere, windows in some layers.
#[test]
fn further_kinds_become_gguf_from_their_directories() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let expected: Value =
        serde_json::from_str(&std::fs::read_to_string(decoders().join("expected.json")).unwrap()).unwrap();
    for name in ["rope_linear", "rope_llama3", "rope_yarn", "olmo2", "gemma2", "gemma3", "phi3", "phi3_short", "gpt2"] {
        let from = talker::copied(&decoders().join(name), &dir.path().join(name), 32);
        let whole = open(&from);
        let notes = to_gguf(&whole, &out).unwrap();
        // What llama.cpp does otherwise is told.
        let words: &[&str] = match name {
            "rope_yarn" => &["--yarn-beta-fast 0.2 --yarn-beta-slow 0.02"],
            "phi3" => &["sliding window of 6 tokens", "texts of more than 8 tokens"],
            "phi3_short" => &["texts of more than 16 tokens"],
            _ => &[],
        };
        let told = words.iter().all(|w| notes.iter().any(|n| n.contains(w)));
        assert!(told && notes.len() == words.len(), "{name}: {notes:?}");
        let found = flat(&compile(&open(&out)).run(&fewer_ids()).unwrap());
        let off = apart(&found, &floats(&expected["logits"][expected["files"][name].as_str().unwrap()]));
        assert!(off < 1e-4, "{name}: off by {off}");
        // By way of a file of our own, too.
        let ours = dir.path().join("ours.safetensors");
        export::safetensors(&ours, &whole, &Manifest::default()).unwrap();
        let other = dir.path().join("other.gguf");
        assert_eq!(to_gguf(&open(&ours), &other), Ok(notes));
        assert_eq!(flat(&compile(&open(&other)).run(&fewer_ids()).unwrap()), found, "{name}");
    }
    // What llama.cpp does not look at is told.
    for name in ["mistral_sliding", "qwen2_sliding"] {
        let from = talker::copied(&decoders().join(name), &dir.path().join(name), 32);
        let notes = to_gguf(&open(&from), &out).unwrap();
        assert!(notes.iter().any(|n| n.contains("sliding window of") && n.contains("another network")), "{notes:?}");
    }
    for (name, words) in [("rope_dynamic", "`dynamic`"), ("rope_yarn_told", "are not written")] {
        let from = talker::copied(&decoders().join(name), &dir.path().join(name), 32);
        let error = to_gguf(&open(&from), &out).unwrap_err();
        assert!(error.contains(words) && error.matches("hint: ").count() == 1, "{error}");
        assert_eq!(error.matches("cannot be used").count(), 1, "{error}");
    }
    // Its layers with a window are those of some numbers.
    let gemma = open(&dir.path().join("gemma2"));
    let gone = |i: usize| (Target::Block(format!("layers.{i}")), Action::RemoveBlock);
    let error = to_gguf(&prune::apply(&gemma, &[], &[gone(0)]).unwrap(), &out).unwrap_err();
    assert!(error.contains("would be number 0") && error.contains("one layer in 2 look at all"), "{error}");
}

#[test]
fn what_gguf_cannot_hold_is_refused_before_anything_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let refused = |model: &Model, words: &[&str]| {
        let error = to_gguf(model, &out).unwrap_err();
        assert!(words.iter().all(|w| error.contains(w)) && error.contains("hint: "), "{error}");
        assert!(!out.exists());
    };
    let plain = open(&folder().join("llama"));
    refused(&plain, &["no tokenizer lies beside the weights"]);
    let from = with_tokenizer("llama", dir.path());
    let small = std::fs::read_to_string(from.join("tokenizer.json")).unwrap();
    let wide = folder().join("vocabulary/tokenizer.json");
    std::fs::copy(wide, from.join("tokenizer.json")).unwrap();
    refused(&open(&from), &["ids beyond the network's 96"]);
    let odd = small.replace("ByteLevel", "Whitespace");
    std::fs::write(from.join("tokenizer.json"), odd).unwrap();
    refused(&open(&from), &["cuts text"]);
    let image = random(&FamilySpec::CifarResnet(CifarResnetSpec::depth(20, 10)), 1);
    refused(&image, &["nothing is known of its metadata"]);
    // One shape for all layers.
    let qwen = open(&folder().join("qwen2.gguf"));
    let uneven = cut(&qwen, &[("blk.0.ffn_gate", 32)]);
    refused(&uneven, &["layer 1 has", "64 neurons and layer 0 has", "32 neurons", "cut every layer alike"]);
    // A file that cannot be written leaves what was there.
    std::fs::write(&out, "older").unwrap();
    let mut unreadable = std::fs::metadata(&out).unwrap().permissions();
    unreadable.set_readonly(true);
    std::fs::set_permissions(&out, unreadable).unwrap();
    let error = to_gguf(&qwen, &out).unwrap_err();
    assert!(error.contains("cannot write") && std::fs::read_to_string(&out).unwrap() == "older", "{error}");
}

#[test]
fn a_disk_without_room_leaves_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    std::fs::write(&out, "older").unwrap();
    let mut convert = Command::new(env!("CARGO_BIN_EXE_paring"));
    convert.arg("convert").arg(folder().join("llama.gguf")).arg("--out").arg(&out).env("PARING_HOME", dir.path());
    // SAFETY: a plain system call, async-signal-safe.
    unsafe {
        convert.pre_exec(|| {
            let most = libc::rlimit { rlim_cur: 20_000, rlim_max: 20_000 };
            libc::setrlimit(libc::RLIMIT_FSIZE, &raw const most);
            Ok(())
        });
    }
    let done = convert.output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.code() == Some(1) && said.contains("cannot write") && said.contains("hint: "), "{said}");
    assert_eq!(std::fs::read_to_string(&out).unwrap(), "older");
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(left.iter().all(|n| !n.to_string_lossy().starts_with(".paring-")), "{left:?}");
}

/// `model` with so many units of some groups, the last ones.
pub(super) fn cut(model: &Model, groups_to: &[(&str, usize)]) -> Model {
    let groups = prune::groups(&model.graph);
    let actions = groups_to.iter().map(|(id, keep)| {
        let group = groups.iter().find(|g| g.id == *id).unwrap();
        let kept: Vec<u32> = (group.size as u32 - *keep as u32..group.size as u32).collect();
        let ratio = 1.0 - *keep as f64 / group.size as f64;
        (Target::Group(group.id.clone()), Action::Prune { ratio, kept })
    });
    prune::apply(model, &groups, &actions.collect::<Vec<_>>()).unwrap()
}

fn size(n: usize) -> String {
    if n < 1000 { format!("{n} B") } else { format!("{:.1} kB", n as f64 / 1e3) }
}

#[test]
fn cut_models_become_gguf_with_their_new_shapes() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    let of = |model: &Model| {
        let notes = to_gguf(model, &out).unwrap();
        (open(&out), notes)
    };
    for name in ["llama.gguf", "qwen2.gguf"] {
        let whole = open(&folder().join(name));
        let even = [("blk.0.ffn_gate", 32), ("blk.1.ffn_gate", 32), ("blk.0.attn_q", 1), ("blk.1.attn_q", 1)];
        // llama.cpp's Qwen2 has queries as wide as the embedding.
        let cuts = if name == "qwen2.gguf" { &even[..2] } else { &even[..] };
        if cuts.len() < even.len() {
            let error = to_gguf(&cut(&whole, &even), &out).unwrap_err();
            assert!(
                error.contains("its heads (2) do not fill its width of 32") && error.contains("hint: keep its heads"),
                "{error}"
            );
        }
        let even = cut(&whole, cuts);
        let (again, notes) = of(&even);
        assert_eq!((run(&again), notes), (run(&even), vec![]), "{name}");
        let gone = (Target::Block("blk.0".to_owned()), Action::RemoveBlock);
        let short = prune::apply(&whole, &[], &[gone]).unwrap();
        let (again, notes) = of(&short);
        assert_eq!(again.graph.blocks.len(), 1);
        assert_eq!(run(&again), run(&short), "{name}");
        assert!(notes[0].contains("layers 0 are gone") || notes[0].contains("layer 0 is gone"), "{notes:?}");
    }
    // Llama's layers may differ, under another name.
    let whole = open(&folder().join("llama.gguf"));
    for cuts in [[("blk.1.attn_q", 1)], [("blk.0.attn_q", 1)], [("blk.1.ffn_gate", 32)]] {
        let uneven = cut(&whole, &cuts);
        let (again, notes) = of(&uneven);
        assert!(notes[0].contains("`deci`"), "{notes:?}");
        assert_eq!(run(&again), run(&uneven), "{cuts:?}");
        // What was read so is written so.
        let run_before = run(&again);
        let (third, notes) = of(&again);
        assert_eq!((run(&third), notes), (run_before, vec![]), "{cuts:?}");
    }
    let bytes = std::fs::read(&out).unwrap();
    let has = |text: &[u8]| bytes.windows(text.len()).any(|w| w == text);
    // Rows that are no whole blocks: what they take instead is said.
    let mut odd = cut(&whole, &[("blk.0.ffn_gate", 20), ("blk.1.ffn_gate", 20)]);
    odd.precision.set("blk.1.ffn_down", Precision::Int8);
    let rows = odd.params.get("blk.1.ffn_down.weight").unwrap().shape()[0];
    let (_, notes) = of(&odd);
    let told = format!("F16 is written, {} instead of the {} that were decided", size(rows * 40), size(rows * 24));
    assert!(notes.iter().any(|n| n.starts_with("1 tensor in int8") && n.ends_with(&told)), "{told}: {notes:?}");
    assert!(has(b"deci.feed_forward_length") && !has(b"llama.block_count"));
}

#[test]
fn blocks_are_stored_and_exported_as_they_were_decided_and_stay() {
    let dir = tempfile::tempdir().unwrap();
    let [gguf, ours, other] = ["a.gguf", "a.safetensors", "b.gguf"].map(|n| dir.path().join(n));
    let mut model = open(&folder().join("llama.gguf"));
    let q4_k = Precision::parse("q4_k").unwrap();
    // Rows of 32 and 64 are no whole blocks of 256.
    model.precision = quant::everywhere(&model.graph, q4_k);
    assert!(model.precision.nodes.values().all(|p| *p == Precision::Block(Block::Q5_0)));
    model.precision.set("blk.0.ffn_down", q4_k);
    let error = Plan::of(&model, &CompileOptions::default()).unwrap_err().to_string();
    assert!(error.contains("`blk.0.ffn_down`") && error.contains("hint: q5_0"), "{error}");
    assert!(export::safetensors(&ours, &model, &Manifest::default()).unwrap_err().to_string().contains("q4_k"));
    let mixed = [Block::Q4_0, Block::Q4_1, Block::Q5_0, Block::Q5_1, Block::Q8_0, Block::IQ4_NL];
    let layers: Vec<String> = model.precision.nodes.keys().cloned().collect();
    for (layer, block) in layers.iter().zip(mixed.into_iter().cycle()) {
        model.precision.set(layer.clone(), Precision::Block(block));
    }
    let logits = run(&model);
    assert!(apart(&logits, &run(&open(&folder().join("llama.gguf")))) > 1e-3);
    export::safetensors(&ours, &model, &Manifest::default()).unwrap();
    let kept = open(&ours);
    assert_eq!((&kept.precision, run(&kept)), (&model.precision, logits.clone()));
    assert_eq!(to_gguf(&model, &gguf), Ok(vec![]));
    assert_eq!(to_gguf(&kept, &other), Ok(vec![]));
    assert!(std::fs::read(&gguf).unwrap() == std::fs::read(&other).unwrap());
    let again = open(&gguf);
    assert_eq!(run(&again), logits);
    let text = String::from_utf8_lossy(&std::fs::read(&gguf).unwrap()).into_owned();
    assert!(text.contains("llama-quantize --tensor-type 'blk\\.(0)\\.attn_k="), "the way of llama.cpp's own tool");
    let block = |m: &Model, name: &str| m.params.get(name).unwrap().as_blocks().map(|(b, bytes)| (b, bytes.to_vec()));
    for (layer, want) in layers.iter().zip(mixed.into_iter().cycle()).filter(|(l, _)| l.starts_with("blk")) {
        let name = format!("{layer}.weight");
        let (found, bytes) = block(&again, &name).unwrap();
        assert_eq!(found, want, "{layer}");
        // Nothing was decided for what was read: the same blocks, however often it is written.
        export::safetensors(&ours, &again, &Manifest::default()).unwrap();
        assert_eq!(block(&open(&ours), &name), Some((found, bytes)), "{layer}");
    }
    // Rows go as they are, and so do columns in whole blocks.
    let heads = cut(&again, &[("blk.0.ffn_gate", 32)]);
    let rows = |m: &Model, name: &str| block(m, name).map(|(_, bytes)| bytes);
    let (all, half) = (rows(&again, "blk.0.ffn_up.weight").unwrap(), rows(&heads, "blk.0.ffn_up.weight").unwrap());
    assert_eq!(half, all[all.len() / 2..]);
    assert!(rows(&heads, "blk.0.ffn_down.weight").is_some());
    assert!(rows(&cut(&again, &[("blk.0.ffn_gate", 40)]), "blk.0.ffn_down.weight").is_none(), "a block would be torn");
}

/// Files for benches/llamacpp/check.py, which llama.cpp opens.
#[test]
#[ignore = "by hand: PARING_CUT=DIR"]
fn cut_models_for_llama_cpp() {
    let (Some(dir), Some(out)) = (real("smollm2"), std::env::var_os("PARING_CUT").map(PathBuf::from)) else { return };
    let whole = open(&dir.join("SmolLM2-135M-Instruct.Q4_1.gguf"));
    let put = |name: &str, model: &Model| {
        export::safetensors(&out.join(name), model, &Manifest::default()).unwrap();
    };
    let gone = |i: usize| (Target::Block(format!("blk.{i}")), Action::RemoveBlock);
    put("layers.safetensors", &prune::apply(&whole, &[], &[gone(10), gone(11), gone(20)]).unwrap());
    let each: Vec<(String, usize)> =
        (0..30).flat_map(|i| [(format!("blk.{i}.ffn_gate"), 1280), (format!("blk.{i}.attn_q"), 2)]).collect();
    let each: Vec<(&str, usize)> = each.iter().map(|(id, n)| (id.as_str(), *n)).collect();
    let mut even = cut(&whole, &each);
    put("even.safetensors", &even);
    put(
        "uneven.safetensors",
        &cut(&whole, &[("blk.5.ffn_gate", 1024), ("blk.7.attn_q", 2), ("blk.29.ffn_gate", 1500)]),
    );
    let mixed = ["q8_0", "q4_k", "f16", "q6_k"].map(|w| Precision::parse(w).unwrap());
    let layers = quant::choosable(&even.graph).into_iter().zip(mixed.iter().cycle());
    even.precision = layers.map(|(n, p)| (n.name.clone(), p.instead(&n.op))).collect();
    put("even_mixed.safetensors", &even);
}

/// Our own formats have the nearest of GGUF's: the codes stay, scales lose bits.
#[test]
fn our_own_codes_become_blocks() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    for (word, block) in [("int8", Block::Q8_0), ("w8", Block::Q8_0), ("w4", Block::Q4_0), ("w4g32", Block::Q4_0)] {
        let mut model = open(&folder().join("llama.gguf"));
        model.precision = quant::everywhere(&model.graph, Precision::parse(word).unwrap());
        let notes = to_gguf(&model, &out).unwrap();
        assert!(notes[0].contains(block.label()), "{notes:?}");
        let again = open(&out);
        for name in ["blk.0.attn_k.weight", "blk.1.ffn_down.weight"] {
            let wanted = model.params.get(name).unwrap().stored_in(Precision::parse(word).unwrap().weights());
            let found = again.params.get(name).unwrap();
            assert_eq!(found.as_blocks().map(|(b, _)| b), Some(block));
            let (found, wanted) = (found.values(), wanted.values());
            let off = found.iter().zip(wanted.iter()).map(|(a, b)| (a - b).abs() / b.abs().max(1e-6));
            assert!(off.fold(0.0, f32::max) < 1.0 / 2048.0, "{word} {name}");
        }
    }
    let mut model = open(&folder().join("llama.gguf"));
    model.precision = quant::everywhere(&model.graph, Precision::Fp8);
    assert!(to_gguf(&model, &out).unwrap()[0].contains("F16"));
}

/// Names of tensors in a GGUF file that the `gguf` package made, those that a graph reads and those whose values went into it, are in what is written of it.
#[test]
fn no_tensor_of_a_file_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("out.gguf");
    for (file, names) in [
        ("rope_llama3.gguf", &["rope_freqs.weight", "blk.0.attn_q.weight"][..]),
        (
            "phi3.gguf",
            &["rope_factors_long.weight", "rope_factors_short.weight", "blk.1.attn_qkv.weight", "blk.0.ffn_up.weight"],
        ),
        ("phi3_short.gguf", &["blk.1.attn_qkv.weight"]),
        (
            "gpt2.gguf",
            &["position_embd.weight", "blk.1.attn_qkv.weight", "blk.1.attn_qkv.bias", "blk.0.attn_norm.bias"],
        ),
        ("olmo2.gguf", &["blk.0.post_ffw_norm.weight"]),
        ("mixtral.gguf", &["blk.0.ffn_gate_exps.weight"]),
    ] {
        let model = open(&decoders().join(file));
        to_gguf(&model, &out).unwrap();
        let again = open(&out);
        let [a, b] = [&model, &again].map(|m| flat(&compile(m).run(&fewer_ids()).unwrap()));
        assert_eq!(a, b, "{file}");
        let bytes = std::fs::read(&out).unwrap();
        let has = |name: &str| bytes.windows(name.len()).any(|w| w == name.as_bytes());
        assert!(names.iter().all(|n| has(n)), "{file}");
        let parted = file.starts_with("phi3") || file.starts_with("gpt2");
        assert!(!parted || !has("attn_q.weight") && !has("ffn_gate"), "{file}");
    }
    // Parts of one tensor are in one format.
    let mut model = open(&decoders().join("phi3.gguf"));
    model.precision = quant::everywhere(&model.graph, Precision::parse("q8_0").unwrap());
    let notes = to_gguf(&model, &out).unwrap();
    assert!(notes.iter().any(|n| n.contains("exact in F32")), "{notes:?}");
    let [a, b] = [&model, &open(&out)].map(|m| flat(&compile(m).run(&fewer_ids()).unwrap()));
    assert_eq!(a, b);
    model.precision.set("blk.1.attn_k", Precision::parse("q4_0").unwrap());
    let error = to_gguf(&model, &out).unwrap_err();
    assert!(
        error.contains("part 1 of `blk.1.attn_qkv.weight` is in Q4_0") && error.contains("queries, keys"),
        "{error}"
    );
}

/// Files of every kind for benches/llamacpp/families.py, which llama.cpp opens: whole, and cut alike in every layer; beside each the logits of ours.
#[test]
#[ignore = "by hand: PARING_FAMILIES=DIR"]
fn every_kind_for_llama_cpp() {
    let Some(out) = std::env::var_os("PARING_FAMILIES").map(PathBuf::from) else { return };
    let dir = tempfile::tempdir().unwrap();
    let (small, further) = (
        ["llama", "mistral", "qwen2", "qwen3"],
        [
            "rope_linear",
            "rope_llama3",
            "rope_yarn",
            "olmo2",
            "gemma2",
            "gemma3",
            "phi3",
            "phi3_short",
            "gpt2",
            "mixtral",
            "qwen3_moe",
        ],
    );
    let all =
        small.iter().map(|n| (n, folder(), 96, ids())).chain(further.iter().map(|n| (n, decoders(), 32, fewer_ids())));
    for (i, (name, from, tokens, ids)) in all.enumerate() {
        // Of what is called `phi3`, llama.cpp wants certain tokens.
        let whole = open(&talker::copied(&from.join(name), &dir.path().join(format!("net{i}")), tokens));
        let groups = prune::groups(&whole.graph);
        let half = |kind: GroupKind| -> Vec<(String, usize)> {
            let of = groups.iter().filter(|g| g.kind == kind && g.protected.is_none() && g.size > 1);
            of.map(|g| (g.id.clone(), g.size / 2)).collect()
        };
        for (what, cuts) in
            [("whole", vec![]), ("heads", half(GroupKind::Heads)), ("neurons", half(GroupKind::Neurons))]
        {
            let cuts: Vec<(&str, usize)> = cuts.iter().map(|(id, n)| (id.as_str(), *n)).collect();
            let model = cut(&whole, &cuts);
            let file = out.join(format!("{name}-{what}.gguf"));
            let told = match to_gguf(&model, &file) {
                Ok(notes) => {
                    serde_json::json!({ "ids": ids.to_vec2::<u32>().unwrap(), "logits": flat(&compile(&model).run(&ids).unwrap()), "notes": notes })
                }
                Err(refused) => serde_json::json!({ "refused": refused }),
            };
            std::fs::write(file.with_extension("json"), told.to_string()).unwrap();
        }
    }
}
