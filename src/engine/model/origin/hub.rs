//! A Hugging Face directory's metadata in GGUF's words, as llama.cpp's `convert_hf_to_gguf.py` writes them: dimensions from the graph, the
//! kind of network from `config.json`, the vocabulary from the tokenizer's files.

use super::{CONFIG, NO_VOCABULARY, vocabulary};
use crate::graph::op::{self, Beyond, Longer, Scaling};
use crate::graph::{Activation, Graph, Node, Op};
use crate::model::Param;
use crate::model::gguf::Fields;
use crate::model::hf::Json;
use crate::model::load::weight_files;
use crate::model::{ModelError, ModelInfo, Result, printable};
use serde_json::Value;

/// Kinds in `config.json`, with what llama.cpp calls networks that compute the same.
const KINDS: [(&str, &str); 11] = [
    ("llama", "llama"),
    ("mistral", "llama"),
    ("mixtral", "llama"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen3_moe", "qwen3moe"),
    ("olmo2", "olmo2"),
    ("gemma2", "gemma2"),
    ("gemma3_text", "gemma3"),
    ("phi3", "phi3"),
    ("gpt2", "gpt2"),
];

/// The metadata, and tensors beside those of the layers.
pub(super) type Told = (Fields, Vec<(String, Param)>);

/// What is said of `graph`, whose weights lie at [`ModelInfo::source`].
///
/// # Errors
/// Kinds of networks that are not known here, and files that cannot be read.
pub(super) fn told(graph: &Graph, info: &ModelInfo) -> Result<Told> {
    let (_, dir) = weight_files(&info.source)?;
    let config = Json::read(dir.join("config.json"))?;
    let text = config.whole().map(Value::to_string);
    let unknown = |why: String| {
        let hint = "convert the original with llama.cpp's convert_hf_to_gguf.py, and open that file";
        ModelError::unsupported(&info.source, why, hint)
    };
    let kind = config.string("model_type")?;
    let arch = match kind {
        // Meta's own checkpoints do not say.
        None => "llama",
        Some(kind) => KINDS.iter().find(|(k, _)| *k == kind).map(|(_, arch)| *arch).ok_or_else(|| {
            unknown(format!("what llama.cpp calls a network of the kind `{}` is not known here", printable(kind)))
        })?,
    };
    let mut f = Fields::default();
    let key = |name: &str| format!("{arch}.{name}");
    let others = scaling(&mut f, graph, &config, arch).map_err(&unknown)?;
    gemma(&mut f, graph, &config, arch).map_err(&unknown)?;
    gpt2(graph, arch).map_err(&unknown)?;
    f.string("general.architecture", arch);
    f.string("general.type", "model");
    if let Some(text) = text {
        f.string(CONFIG, &text);
    }
    f.string("general.name", &info.name);
    f.u32(&key("vocab_size"), graph.vocabulary().unwrap_or(0));
    if let Some(context) = info.context {
        f.u32(&key("context_length"), context);
    }
    // What the original has; it is written anew where the graph has less.
    for (theirs, ours) in [
        ("num_hidden_layers", "block_count"),
        ("intermediate_size", "feed_forward_length"),
        ("num_attention_heads", "attention.head_count"),
        ("num_key_value_heads", "attention.head_count_kv"),
        ("moe_intermediate_size", "expert_feed_forward_length"),
    ] {
        if let Some(n) = config.count(theirs)? {
            f.u32(&key(ours), n);
        }
    }
    for (_, node) in graph.live() {
        match &node.op {
            Op::Embedding(e) => f.u32(&key("embedding_length"), e.dim),
            Op::RmsNorm(norm) => f.f32(&key("attention.layer_norm_rms_epsilon"), norm.eps),
            Op::LayerNorm(norm) => f.f32(&key("attention.layer_norm_epsilon"), norm.eps),
            Op::Attention(a) => {
                // Layers with a window may have a base of their own, which llama.cpp knows by itself.
                let from = node.inputs.first().map(|id| &graph.node(*id).op);
                if let (Some(Op::Rope(rope)), true) = (from, a.most.is_none() || arch != "gemma3") {
                    f.f32(&key("rope.freq_base"), rope.theta);
                    f.u32(&key("rope.dimension_count"), rope.turned);
                }
            }
            Op::Route(route) => {
                f.u32(&key("expert_count"), route.experts);
                f.u32(&key("expert_used_count"), route.top);
            }
            _ => {}
        }
    }
    if arch == "phi3" {
        f.u32(&key("attention.sliding_window"), config.count("sliding_window")?.unwrap_or(0));
    }
    if let Err(why) = vocabulary::of(&mut f, &info.source, &dir, &config, graph.vocabulary().unwrap_or(0))? {
        f.string(NO_VOCABULARY, &why);
    }
    Ok((f, others))
}

/// Adds what is said of rotary frequencies other than those of the base alone: linear scaling and YaRN in words, Llama 3's as the tensor of
/// divisors that llama.cpp's converter makes of it, LongRoPE as two.
///
/// # Errors
/// In words: kinds for which there are none.
fn scaling(f: &mut Fields, graph: &Graph, config: &Json, arch: &str) -> Result<Vec<(String, Param)>, String> {
    let mut others = Vec::new();
    for key in ["rope_scaling", "rope_parameters"] {
        let Some(object) = config.field(key).and_then(|v| v.as_object()).filter(|o| !o.is_empty()) else { continue };
        // Gemma 3's layers that see everything.
        let object = object.get("full_attention").and_then(|v| v.as_object()).unwrap_or(object);
        let kind = ["rope_type", "type"].iter().find_map(|k| object.get(*k)?.as_str());
        let number = |name: &str| object.get(name).and_then(|v| v.as_f64());
        let name = |name: &str| format!("{arch}.rope.scaling.{name}");
        let unwritten = |why: &str| Err(format!("rotary positions scaled so ({why} of `{key}`) are not written"));
        match kind {
            None if object.contains_key("factor") => return unwritten("a factor without a type"),
            None | Some("default") => {}
            // Published as `su` and `yarn` before it had its name.
            Some("longrope" | "su" | "yarn") if arch == "phi3" => {
                let rope = graph.live().find_map(|(_, n)| rope_of(n)?.scaling.as_deref());
                let Some(Scaling { divisors, factor, beyond: Some(Beyond { tokens, how: Longer::Divided(long) }) }) =
                    rope
                else {
                    return unwritten("no lists of divisors");
                };
                for (list, which) in [(long, "long"), (divisors, "short")] {
                    let list: Vec<f32> = list.iter().map(|d| *d as f32).collect();
                    let tensor = Param::owned(vec![list.len()], list);
                    others.extend(tensor.map(|t| (format!("rope_factors_{which}.weight"), t)));
                }
                f.u32(&name("original_context_length"), *tokens);
                f.f32(&name("attn_factor"), *factor);
            }
            Some("llama3") if arch == "llama" => {
                let rope = graph.live().find_map(|(_, n)| rope_of(n)?.scaling.as_deref());
                let divisors: Vec<f32> =
                    rope.map(|s| s.divisors.iter().map(|d| *d as f32).collect()).unwrap_or_default();
                let tensor = Param::owned(vec![divisors.len()], divisors);
                others.extend(tensor.map(|t| ("rope_freqs.weight".to_owned(), t)));
            }
            Some(kind @ ("linear" | "yarn")) => {
                let known = ["rope_type", "type", "factor", "rope_theta", "original_max_position_embeddings"];
                let beta = ["beta_fast", "beta_slow"];
                let odd = |k: &&String| !known.contains(&k.as_str()) && (kind != "yarn" || !beta.contains(&k.as_str()));
                if let Some(other) = object.keys().find(odd) {
                    return unwritten(&format!("`{}`", printable(other)));
                }
                f.string(&name("type"), kind);
                f.f32(&name("factor"), number("factor").unwrap_or(1.0));
                let inside = number("original_max_position_embeddings");
                let beside = config.field("original_max_position_embeddings").and_then(|v| v.as_f64());
                if let Some(original) = beside.or(inside).filter(|_| kind == "yarn") {
                    f.u32(&name("original_context_length"), original as usize);
                }
                for (theirs, ours) in [("beta_fast", "yarn_beta_fast"), ("beta_slow", "yarn_beta_slow")] {
                    if let Some(n) = number(theirs) {
                        f.f32(&name(ours), n);
                    }
                }
            }
            Some(other) => return unwritten(&format!("`{}`", printable(other))),
        }
        // An older object goes before a newer.
        break;
    }
    Ok(others)
}

fn rope_of(node: &Node) -> Option<&op::Rope> {
    if let Op::Rope(rope) = &node.op { Some(rope) } else { None }
}

/// Is GPT-2 what llama.cpp takes it to be, which its files cannot tell otherwise?
///
/// # Errors
/// In words: what it would compute in another way.
fn gpt2(graph: &Graph, arch: &str) -> Result<(), String> {
    if arch != "gpt2" {
        return Ok(());
    }
    for (_, node) in graph.live() {
        match &node.op {
            Op::Attention(a) if (a.scale * (a.qk_dim as f64).sqrt() - 1.0).abs() > 1e-6 => {
                return Err(
                    "its scores are divided by another number than the root of a head's width (`scale_attn_weights`, \
                            `scale_attn_by_inverse_layer_idx`)"
                        .into(),
                );
            }
            Op::Activation { act } if *act != Activation::GeluTanh => {
                return Err("its MLP has another activation (`activation_function`) than GELU by tanh".into());
            }
            _ => {}
        }
    }
    Ok(())
}

/// Adds what Gemma's files have that others have not, where it is what llama.cpp takes it to be.
///
/// # Errors
/// In words: what llama.cpp would compute in another way.
fn gemma(f: &mut Fields, graph: &Graph, config: &Json, arch: &str) -> Result<(), String> {
    if !arch.starts_with("gemma") {
        return Ok(());
    }
    let key = |name: &str| format!("{arch}.{name}");
    let cores: Vec<&op::Attention> =
        graph.live().filter_map(|(_, n)| if let Op::Attention(a) = &n.op { Some(a) } else { None }).collect();
    let count = |name: &str| config.count(name).ok().flatten();
    let Some(first) = cores.first() else { return Ok(()) };
    // `llama_model::load_hparams`: the width of a head, but in the largest that of the embedding over the heads.
    let largest = count("num_hidden_layers") == Some(if arch == "gemma2" { 46 } else { 62 });
    let by = match (largest, count("hidden_size"), count("num_attention_heads")) {
        (true, Some(dim), Some(heads)) if heads > 0 => dim as f64 / heads as f64,
        _ => first.qk_dim as f64,
    };
    if cores.iter().any(|a| (a.scale * by.sqrt() - 1.0).abs() > 1e-6) {
        return Err(
            "its scores are divided by another number (`query_pre_attn_scalar`) than llama.cpp divides them by".into(),
        );
    }
    // Also where no layer with a window is left: llama.cpp gives some numbers of layers one.
    if let Some(window) = cores.iter().find_map(|a| a.most).or(count("sliding_window")) {
        f.u32(&key("attention.sliding_window"), window);
    }
    for cap in ["attn_logit_softcapping", "final_logit_softcapping"] {
        let usual = if cap.starts_with("attn") { 50.0 } else { 30.0 };
        let told = config.number(cap).ok().flatten().or((arch == "gemma2").then_some(usual));
        if let Some(n) = told {
            f.f32(&key(cap), n);
        }
    }
    let local = graph.live().filter_map(|(_, n)| Some((n, graph.node(*n.inputs.first()?)))).find_map(|(n, from)| {
        let Op::Attention(a) = &n.op else { return None };
        rope_of(from).filter(|_| a.most.is_some())
    });
    match local.filter(|_| arch == "gemma3") {
        Some(rope) if rope.scaling.is_some() => Err("positions of its layers with a window are scaled".into()),
        Some(rope) if rope.theta != 10_000.0 => {
            f.f32(&key("rope.freq_base_swa"), rope.theta);
            Ok(())
        }
        _ => Ok(()),
    }
}
