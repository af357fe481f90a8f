//! What a GGUF file's metadata says of its network, in the words of a Hugging Face `config.json`: one reader serves both.
//!
//! Keys are of gguf.md, defaults those of llama.cpp's `llama-hparams`. What is not known here is passed on by name, so that the
//! family can refuse it.

use super::Metadata;
use serde_json::{Map, Value, json};

/// Architectures whose converter reorders the rows of queries and keys, so that rotation turns neighbours (`norm` in llama.cpp);
/// all others rotate halves (`neox`).
const INTERLEAVED: [&str; 2] = ["llama", "deci"];

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
        ("rope.dimension_count", "rotary_dim"),
        ("expert_count", "num_local_experts"),
    ] {
        let key = key(theirs);
        if let Some(n) = m.same(&key).filter(|n| *n > 0) {
            c.insert(ours.to_owned(), json!(n));
        } else if m.has(&key) && m.count(&key) != Some(0) {
            // One number a layer: what it says is refused by the family, not passed over.
            c.insert(ours.to_owned(), json!("different for each layer"));
        }
    }
    for (theirs, ours) in [("attention.layer_norm_rms_epsilon", "rms_norm_eps"), ("rope.freq_base", "rope_theta")] {
        let key = key(theirs);
        // Stored as f32 of a decimal number.
        if let Some(n) = m.number(&key).map(decimal).filter(|n| n.is_finite()) {
            c.insert(ours.to_owned(), json!(n));
        } else if m.has(&key) {
            // JSON has no word for it; the family refuses what is no number.
            c.insert(ours.to_owned(), json!("not finite"));
        }
    }
    // Linear is what a factor means where no type is told; 0 stands for none.
    let factor = ["rope.scaling.factor", "rope.scale_linear"].iter().find_map(|k| m.number(&key(k)));
    let scaled = factor.is_some_and(|n| n != 0.0 && n != 1.0);
    let kind = m.string(&key("rope.scaling.type")).or(scaled.then_some("linear"));
    if let Some(kind) = kind.filter(|k| *k != "none") {
        c.insert("rope_scaling".to_owned(), json!({ "rope_type": kind }));
    }
    Some(Value::Object(c))
}

/// The shortest decimal number that is this one in f32: 1e-5 was meant, not 9.99999974737875e-6.
fn decimal(n: f64) -> f64 {
    (n as f32).to_string().parse().unwrap_or(n)
}
