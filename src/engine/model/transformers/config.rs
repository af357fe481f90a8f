//! The `config.json`: the original's where the checkpoint had one, else what its GGUF file says in those words, with the sizes that are left.

use super::refusal;
use crate::graph::{Graph, Op, op};
use crate::model::gguf;
use crate::model::hf::Json;
use crate::model::llamacpp::{self, Unfit};
use crate::model::load::weight_files;
use crate::model::origin::{CONFIG, Origin};
use crate::model::{Model, Result, printable};
use serde_json::{Map, Value, json};

/// Kinds that are written, as `config.json` and GGUF call them, with transformers' word and class.
const KINDS: [(&str, &str, &str); 13] = [
    ("llama", "llama", "LlamaForCausalLM"),
    ("mistral", "mistral", "MistralForCausalLM"),
    ("qwen2", "qwen2", "Qwen2ForCausalLM"),
    ("qwen3", "qwen3", "Qwen3ForCausalLM"),
    ("olmo2", "olmo2", "Olmo2ForCausalLM"),
    ("gemma2", "gemma2", "Gemma2ForCausalLM"),
    ("gemma3", "gemma3_text", "Gemma3ForCausalLM"),
    ("gemma3_text", "gemma3_text", "Gemma3ForCausalLM"),
    ("mixtral", "mixtral", "MixtralForCausalLM"),
    ("qwen3_moe", "qwen3_moe", "Qwen3MoeForCausalLM"),
    ("qwen3moe", "qwen3_moe", "Qwen3MoeForCausalLM"),
    ("phi3", "phi3", "Phi3ForCausalLM"),
    ("gpt2", "gpt2", "GPT2LMHeadModel"),
];

/// What GGUF files say that transformers has no such field for.
const FOREIGN: [&str; 4] = ["rope_interleaved", "rotary_dim", "v_head_dim", "sliding_window_pattern"];

/// The `config.json` of `model`.
///
/// # Errors
/// What it has no words for.
pub(super) fn of(model: &Model) -> Result<Map<String, Value>> {
    let unfit = |u: Unfit| refusal(model, u);
    let plain = |why: String| unfit(Unfit::new(why, "export as safetensors or pytorch"));
    let (mut c, from_gguf) = original(model)?.ok_or_else(|| plain("nothing is known of its configuration".into()))?;
    let shape = llamacpp::shape(model)?;
    let first = shape.layers[0];
    let kind = match c.get("model_type").and_then(Value::as_str).unwrap_or("llama") {
        // One architecture for both there.
        "llama" if from_gguf && first.sparse() => "mixtral".to_owned(),
        kind => kind.to_owned(),
    };
    let known = KINDS.iter().find(|(k, ..)| *k == kind);
    let &(_, kind, class) =
        known.ok_or_else(|| plain(format!("networks of the kind `{}` are not written", printable(&kind))))?;
    c.insert("model_type".into(), kind.into());
    c.insert("architectures".into(), json!([class]));
    ["auto_map", "quantization_config", "transformers_version"].iter().for_each(|key| _ = c.remove(*key));
    let like = |l: &&llamacpp::Layer| {
        (l.heads, l.kv_heads, l.hidden, l.experts) == (first.heads, first.kv_heads, first.hidden, first.experts)
    };
    if let Some(l) = shape.layers.iter().find(|l| !like(l)) {
        let experts = |l: &llamacpp::Layer| match l.experts {
            [0, _] => String::new(),
            [all, top] => format!(", {top} of {all} experts"),
        };
        let [a, b] = [&first, l]
            .map(|l| format!("{} heads, {} of keys, {} neurons{}", l.heads, l.kv_heads, l.hidden, experts(l)));
        let why = format!(
            "layer {} has {b} and layer {} has {a}, and a `config.json` has one shape for all",
            l.was, first.was
        );
        return Err(unfit(Unfit::new(why, "cut every layer alike, or export as safetensors or pytorch")));
    }
    if first.sparse() {
        alike(&model.graph, first.hidden).map_err(unfit)?;
    }
    let [keys, values] = shape.head.unwrap_or([0, 0]);
    let partial = shape.turned.filter(|t| from_gguf && *t != keys);
    if let Some(turned) = partial.filter(|_| kind == "phi3") {
        c.insert("partial_rotary_factor".into(), json!(turned as f64 / keys as f64));
    }
    if keys != values || partial.is_some() && kind != "phi3" {
        return Err(plain("its heads are of a shape that a `config.json` cannot tell".into()));
    }
    if kind == "gpt2" && first.heads * keys != shape.dim {
        return Err(plain(
            "its heads are fewer than fill its width, which a `config.json` of GPT-2 cannot tell".into(),
        ));
    }
    let hidden = if kind == "qwen3_moe" { "moe_intermediate_size" } else { "intermediate_size" };
    let usual = [
        ("vocab_size", shape.vocab),
        ("hidden_size", shape.dim),
        ("num_hidden_layers", shape.layers.len()),
        ("num_attention_heads", first.heads),
        (hidden, first.hidden),
        ("num_key_value_heads", first.kv_heads),
        ("head_dim", keys),
    ];
    // GPT-2's own words for the first of them.
    let own = ["vocab_size", "n_embd", "n_layer", "n_head", "n_inner"];
    for (i, (key, n)) in usual.into_iter().enumerate() {
        match own.get(i).filter(|_| kind == "gpt2") {
            Some(word) => {
                c.remove(key);
                c.insert((*word).into(), n.into());
            }
            None if kind == "gpt2" => _ = c.remove(key),
            None => _ = c.insert(key.into(), n.into()),
        }
    }
    if first.sparse() {
        // Whichever of the names the original has, so that nothing tells otherwise.
        let usual = if kind == "mixtral" { "num_local_experts" } else { "num_experts" };
        c.insert(usual.into(), first.experts[0].into());
        for other in ["num_experts", "num_local_experts", "n_routed_experts"] {
            if c.contains_key(other) {
                c.insert(other.into(), first.experts[0].into());
            }
        }
        c.insert("num_experts_per_tok".into(), first.experts[1].into());
    }
    // Other lists with an entry for each layer.
    let kept: Vec<usize> = shape.layers.iter().map(|l| l.was).collect();
    for list in
        c.values_mut().filter_map(Value::as_array_mut).filter(|l| l.len() == shape.were && shape.were > kept.len())
    {
        *list = kept.iter().map(|i| list[*i].clone()).collect();
    }
    let windows = shape.layers.iter().any(|l| l.window.is_some());
    if kind.starts_with("gemma") || windows && !shape.layers.iter().all(|l| l.window == first.window) {
        let words =
            shape.layers.iter().map(|l| if l.window.is_some() { "sliding_attention" } else { "full_attention" });
        c.insert("layer_types".into(), words.collect::<Vec<_>>().into());
        c.remove("_sliding_window_pattern");
    }
    if from_gguf {
        FOREIGN.iter().for_each(|key| _ = c.remove(*key));
        told(model, &mut c, kind).map_err(unfit)?;
    }
    Ok(c)
}

/// The original's configuration, and whether it is a GGUF file's.
fn original(model: &Model) -> Result<Option<(Map<String, Value>, bool)>> {
    let object = |v: Value| if let Value::Object(map) = v { Some(map) } else { None };
    if let Origin::Beside = &model.origin {
        let (_, dir) = weight_files(&model.info.source)?;
        let config = Json::read(dir.join("config.json"))?;
        return Ok(config.whole().cloned().and_then(object).map(|c| (c, false)));
    }
    let Some(said) = model.origin.said(&model.graph, &model.info)? else { return Ok(None) };
    if let Some(text) = said.metadata.string(CONFIG) {
        let config = serde_json::from_str(text).ok().and_then(object);
        return Ok(config.map(|c| (c, false)));
    }
    Ok(gguf::config(&said.metadata).and_then(object).map(|c| (c, true)))
}

/// What a GGUF file tells otherwise, or leaves to its architecture.
fn told(model: &Model, c: &mut Map<String, Value>, kind: &str) -> Result<(), Unfit> {
    let graph = &model.graph;
    let tied = graph.live().any(|(_, n)| matches!(n.op, Op::Embedding(_)) && graph.sharing(n).is_some());
    c.insert("tie_word_embeddings".into(), tied.into());
    let act = match kind {
        "gpt2" => ("activation_function", "gelu_new"),
        _ if kind.starts_with("gemma") => ("hidden_activation", "gelu_pytorch_tanh"),
        _ => ("hidden_act", "silu"),
    };
    c.insert(act.0.into(), act.1.into());
    if kind == "gpt2"
        && let Some(n) = c.remove("max_position_embeddings")
    {
        c.insert("n_positions".into(), n);
    }
    let biased: Vec<bool> = graph
        .live()
        .filter(|(_, n)| n.name.contains(".attn_"))
        .filter_map(|(_, n)| if let Op::Linear(l) = &n.op { Some(l.bias) } else { None })
        .collect();
    let any = biased.iter().any(|b| *b);
    if kind == "qwen3_moe" {
        c.insert("norm_topk_prob".into(), true.into());
    }
    if kind == "llama" {
        if any && !biased.iter().all(|b| *b) {
            return Err(Unfit::new(
                "some of its projections have biases and some have none",
                "export as safetensors or pytorch",
            ));
        }
        c.insert("attention_bias".into(), any.into());
    }
    let said = model.origin.said(graph, &model.info).ok().flatten();
    if let Some(said) = said {
        if let Some(table) = said.others.keys().find(|k| k.starts_with("rope_f")) {
            // Llama 3's frequencies, reduced to a table.
            let rope = graph.live().find_map(|(_, n)| if let Op::Rope(rope) = &n.op { Some(rope) } else { None });
            let words = match table.as_str() {
                "rope_freqs.weight" => rope.and_then(llama3),
                _ => rope.and_then(|rope| longrope(rope, c)),
            };
            let Some(said) = words else {
                return Err(Unfit::new(
                    format!(
                        "its rotary positions are divided by a table (`{}`), for which a `config.json` has no words",
                        printable(table)
                    ),
                    "convert the directory that the GGUF file was made from",
                ));
            };
            c.insert("rope_scaling".into(), said);
            c.insert("rope_theta".into(), json!(rope.map(|r| r.theta)));
        }
        for (theirs, ours) in [("bos", "bos_token_id"), ("eos", "eos_token_id"), ("padding", "pad_token_id")] {
            if let Some(id) = said.metadata.count(&format!("tokenizer.ggml.{theirs}_token_id")) {
                c.insert(ours.into(), id.into());
            }
        }
    }
    Ok(())
}

/// The words for LongRoPE's two tables; the length of the texts before they are stretched goes into `c`.
fn longrope(rope: &op::Rope, c: &mut Map<String, Value>) -> Option<Value> {
    let op::Scaling { divisors, factor, beyond } = rope.scaling.as_deref()?;
    let op::Beyond { tokens, how: op::Longer::Divided(long) } = beyond.as_ref()? else { return None };
    let list = |all: &[f64]| -> Vec<f64> { all.iter().copied().map(gguf::decimal).collect() };
    c.insert("original_max_position_embeddings".into(), json!(tokens));
    let scale = c.get("max_position_embeddings").and_then(Value::as_f64).unwrap_or(0.0) / *tokens as f64;
    let usual = op::Scaling::longrope_factor(scale, *tokens as f64);
    let mut said = json!({ "rope_type": "longrope", "type": "longrope", "short_factor": list(divisors), "long_factor": list(long) });
    if (factor / usual - 1.0).abs() > 1e-5 {
        said["attention_factor"] = json!(factor);
    }
    Some(said)
}

/// The words for a table of divisors that is one of those published with Llama 3.1 to 3.3; `None` for another.
fn llama3(rope: &op::Rope) -> Option<Value> {
    const ORIGINAL: f64 = 8192.0;
    let divisors = &rope.scaling.as_deref()?.divisors;
    let plain = op::Rope::plain(rope.head_dim, rope.turned, rope.theta, rope.pairs);
    let is = |factor: &f64| {
        let told = op::Scaling::llama3(&plain, ORIGINAL, *factor, [1.0, 4.0]);
        divisors.len() == told.len() && divisors.iter().zip(told).all(|(d, t)| (d / t - 1.0).abs() < 1e-5)
    };
    let factor = [8.0, 32.0].into_iter().find(is)?;
    Some(json!({ "rope_type": "llama3", "factor": factor, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": ORIGINAL as u64 }))
}

/// Are all experts as wide as the first?
fn alike(graph: &Graph, hidden: usize) -> Result<(), Unfit> {
    let down = |name: &str| {
        name.contains("experts.") && (name.ends_with(".down_proj") || name.ends_with(".w2"))
            || name.contains(".ffn_down.")
    };
    let other = graph.live().find(|(_, n)| match &n.op {
        Op::Linear(l) => down(&n.name) && l.in_features != hidden,
        _ => false,
    });
    match other {
        None => Ok(()),
        Some((_, n)) => Err(Unfit::new(
            format!(
                "`{}` has another number of neurons than expert 0 ({hidden}), and a `config.json` has one for all",
                printable(&n.name)
            ),
            "cut all experts alike, or export as pytorch",
        )),
    }
}
