//! What a GGUF file's metadata says of its network, in the words of a Hugging Face `config.json`: one reader serves both.
//!
//! Keys are of gguf.md, defaults those of llama.cpp's `llama-hparams`. What is not known here is passed on by name, so that the
//! family can refuse it.

use super::Metadata;
use serde_json::{Map, Value, json};

/// Architectures whose converter reorders the rows of queries and keys, so that rotation turns neighbours (`norm` in llama.cpp);
/// all others rotate halves (`neox`).
const INTERLEAVED: [&str; 2] = ["llama", "deci"];

/// Architectures whose layers may have shapes of their own, told by lists (`llama-hparams`).
const UNEVEN: [&str; 1] = ["deci"];

/// What such a list may tell.
const SHAPES: [&str; 3] = ["feed_forward_length", "attention.head_count", "attention.head_count_kv"];

/// Does `arch` turn neighbours?
pub(in crate::model) fn interleaved(arch: &str) -> bool {
    INTERLEAVED.contains(&arch)
}

/// The metadata as a `config.json`; `None` where no architecture is named.
pub(in crate::model) fn config(m: &Metadata) -> Option<Value> {
    let arch = m.string("general.architecture")?;
    let key = |name: &str| format!("{arch}.{name}");
    let mut c = Map::new();
    c.insert("model_type".to_owned(), json!(arch));
    c.insert("rope_interleaved".to_owned(), json!(interleaved(arch)));
    for (theirs, ours) in [
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("block_count", "num_hidden_layers"),
        ("attention.head_count", "num_attention_heads"),
        ("attention.head_count_kv", "num_key_value_heads"),
        ("attention.key_length", "head_dim"),
        ("attention.value_length", "v_head_dim"),
        ("attention.sliding_window", "sliding_window"),
        ("attention.sliding_window_pattern", "sliding_window_pattern"),
        ("rope.dimension_count", "rotary_dim"),
        ("expert_count", "num_local_experts"),
        ("expert_used_count", "num_experts_per_tok"),
    ] {
        let key = key(theirs);
        let layers = m.count(&format!("{arch}.block_count"));
        // A list has a number for each layer, and `llama-hparams` refuses another.
        let short = SHAPES.contains(&theirs) && m.numbers(&key).is_some_and(|all| Some(all.len()) != layers);
        if let Some(n) = m.same(&key).filter(|n| *n > 0 && !short) {
            c.insert(ours.to_owned(), json!(n));
        } else if let Some(all) = m.counts(&key).filter(|_| UNEVEN.contains(&arch) && SHAPES.contains(&theirs)) {
            c.insert(ours.to_owned(), json!(all));
        } else if m.has(&key) && m.count(&key) != Some(0) {
            // One number a layer: what it says is refused by the family, not passed over.
            c.insert(ours.to_owned(), json!("different for each layer"));
        }
    }
    for (theirs, ours) in [
        ("attention.layer_norm_rms_epsilon", "rms_norm_eps"),
        ("attention.layer_norm_epsilon", "layer_norm_epsilon"),
        ("rope.freq_base", "rope_theta"),
        ("rope.freq_base_swa", "rope_local_base_freq"),
        ("attn_logit_softcapping", "attn_logit_softcapping"),
        ("final_logit_softcapping", "final_logit_softcapping"),
    ] {
        let key = key(theirs);
        // Stored as f32 of a decimal number.
        if let Some(n) = m.number(&key).map(decimal).filter(|n| n.is_finite()) {
            c.insert(ours.to_owned(), json!(n));
        } else if m.has(&key) {
            // JSON has no word for it; the family refuses what is no number.
            c.insert(ours.to_owned(), json!("not finite"));
        }
    }
    if let Some(scaling) = scaling(m, arch) {
        c.insert("rope_scaling".to_owned(), scaling);
    }
    if let Some(n) = pre_attention(&c, arch) {
        c.insert("query_pre_attn_scalar".to_owned(), json!(n));
    }
    Some(Value::Object(c))
}

/// What it says of scaled rotary positions, if anything: the object that transformers calls `rope_scaling`, with two numbers more.
fn scaling(m: &Metadata, arch: &str) -> Option<Value> {
    let key = |name: &str| format!("{arch}.rope.{name}");
    let mut c = Map::new();
    // Linear is what a factor means where no type is told; 0 stands for none.
    let factor = ["scaling.factor", "scale_linear"].iter().find_map(|k| m.number(&key(k))).map(decimal);
    let factor = factor.filter(|n| *n != 0.0);
    let kind = m.string(&key("scaling.type")).or(factor.filter(|n| *n != 1.0).map(|_| "linear"));
    if let Some(kind) = kind.filter(|k| *k != "none") {
        c.insert("rope_type".to_owned(), json!(kind));
        if let Some(factor) = factor {
            c.insert("factor".to_owned(), json!(factor));
        }
    }
    for (theirs, ours) in [
        // All that is turned is multiplied by it; what YaRN's own factor is otherwise, the second tells.
        ("scaling.attn_factor", "attn_factor"),
        ("scaling.yarn_attn_factor", "attention_factor"),
        ("scaling.yarn_ext_factor", "extrapolation_factor"),
        ("scaling.yarn_beta_fast", "beta_fast"),
        ("scaling.yarn_beta_slow", "beta_slow"),
        ("scaling.yarn_log_multiplier", "mscale_all_dim"),
    ] {
        if let Some(n) = m.number(&key(theirs)).map(decimal) {
            c.insert(ours.to_owned(), if n.is_finite() { json!(n) } else { json!("not finite") });
        }
    }
    if c.contains_key("mscale_all_dim") {
        c.insert("mscale".to_owned(), json!(1.0));
    }
    if let Some(n) = m.count(&key("scaling.original_context_length")) {
        c.insert("original_max_position_embeddings".to_owned(), json!(n));
    }
    (!c.is_empty()).then_some(Value::Object(c))
}

/// What Gemma's scores are divided by the root of, which its files do not tell and llama.cpp takes from the number of layers: the
/// width of a head, but in the largest of both generations that of the embedding over the heads.
fn pre_attention(c: &Map<String, Value>, arch: &str) -> Option<u64> {
    let largest = match arch {
        "gemma2" => 46,
        "gemma3" => 62,
        _ => return None,
    };
    let of = |key: &str| c.get(key).and_then(Value::as_u64);
    let (dim, heads) = (of("hidden_size")?, of("num_attention_heads").filter(|n| *n > 0)?);
    match of("num_hidden_layers") == Some(largest) {
        true => Some(dim / heads),
        false => Some(of("head_dim").unwrap_or(dim / heads)),
    }
}

/// The shortest decimal number that is this one in f32: 1e-5 was meant, not 9.99999974737875e-6.
pub(in crate::model) fn decimal(n: f64) -> f64 {
    (n as f32).to_string().parse().unwrap_or(n)
}
