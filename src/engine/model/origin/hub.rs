//! A Hugging Face directory's metadata in GGUF's words, as llama.cpp's `convert_hf_to_gguf.py` writes them: dimensions from the graph, the
//! kind of network from `config.json`, the vocabulary from the tokenizer's files.

use super::{NO_VOCABULARY, vocabulary};
use crate::graph::{Graph, Op};
use crate::model::gguf::Fields;
use crate::model::hf::Json;
use crate::model::load::weight_files;
use crate::model::{ModelError, ModelInfo, Result, printable};

/// Kinds in `config.json`, with what llama.cpp calls networks that compute the same.
const KINDS: [(&str, &str); 6] = [
    ("llama", "llama"),
    ("mistral", "llama"),
    ("mixtral", "llama"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
    ("qwen3_moe", "qwen3moe"),
];

/// What is said of `graph`, whose weights lie at [`ModelInfo::source`].
///
/// # Errors
/// Kinds of networks that are not known here, and files that cannot be read.
pub(super) fn fields(graph: &Graph, info: &ModelInfo) -> Result<Fields> {
    let (_, dir) = weight_files(&info.source)?;
    let config = Json::read(dir.join("config.json"))?;
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
    if let Some(scaled) = ["rope_scaling", "rope_parameters"].into_iter().find(|key| is_scaled(&config, key)) {
        return Err(unknown(format!("scaled rotary positions (`{scaled}`) are not written")));
    }
    let mut f = Fields::default();
    let key = |name: &str| format!("{arch}.{name}");
    f.string("general.architecture", arch);
    f.string("general.type", "model");
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
            Op::Rope(rope) => {
                f.f32(&key("rope.freq_base"), rope.theta);
                f.u32(&key("rope.dimension_count"), rope.turned);
            }
            Op::Route(route) => {
                f.u32(&key("expert_count"), route.experts);
                f.u32(&key("expert_used_count"), route.top);
            }
            _ => {}
        }
    }
    if let Err(why) = vocabulary::of(&mut f, &info.source, &dir, &config, graph.vocabulary().unwrap_or(0))? {
        f.string(NO_VOCABULARY, &why);
    }
    Ok(f)
}

/// Does `key` ask for other frequencies than the usual ones?
fn is_scaled(config: &Json, key: &str) -> bool {
    let Some(scaling) = config.field(key).and_then(|v| v.as_object()) else { return false };
    let kind = ["rope_type", "type"].iter().find_map(|k| scaling.get(*k)?.as_str());
    kind.is_some_and(|k| k != "default") || (kind.is_none() && scaling.contains_key("factor"))
}
