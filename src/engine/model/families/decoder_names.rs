//! What decoders' nodes and tensors are called: by transformers, in GGUF files, by Meta.
//!
//! Not here: how they are put together (`decoder`), and which of them a checkpoint is (`llama`, `gemma`).

use super::names::Rules;
use super::{Names, Source};

/// What all of them share in transformers; what a kind calls otherwise comes before it.
const HUGGING_FACE: Rules = &[
    ("embed", "{p}embed_tokens"),
    ("layers.#.attn_norm", "{p}layers.{0}.input_layernorm"),
    ("layers.#.qkv", "{p}layers.{0}.self_attn.qkv_proj"),
    ("layers.#.q", "{p}layers.{0}.self_attn.q_proj"),
    ("layers.#.k", "{p}layers.{0}.self_attn.k_proj"),
    ("layers.#.v", "{p}layers.{0}.self_attn.v_proj"),
    ("layers.#.q_norm", "{p}layers.{0}.self_attn.q_norm"),
    ("layers.#.k_norm", "{p}layers.{0}.self_attn.k_norm"),
    ("layers.#.q_rope", "{p}layers.{0}.self_attn.q_rope"),
    ("layers.#.k_rope", "{p}layers.{0}.self_attn.k_rope"),
    ("layers.#.core", "{p}layers.{0}.self_attn.core"),
    ("layers.#.o", "{p}layers.{0}.self_attn.o_proj"),
    ("layers.#.mlp_norm", "{p}layers.{0}.post_attention_layernorm"),
    ("layers.#.gate_up", "{p}layers.{0}.mlp.gate_up_proj"),
    ("layers.#.gate", "{p}layers.{0}.mlp.gate_proj"),
    ("layers.#.up", "{p}layers.{0}.mlp.up_proj"),
    ("layers.#.act", "{p}layers.{0}.mlp.act_fn"),
    ("layers.#.mul", "{p}layers.{0}.mlp.mul"),
    ("layers.#.down", "{p}layers.{0}.mlp.down_proj"),
    ("layers.#.router", "{p}layers.{0}.mlp.gate"),
    ("layers.#.route", "{p}layers.{0}.mlp.route"),
    ("layers.#.combine", "{p}layers.{0}.mlp.combine"),
    ("layers.#.experts.#.gate", "{p}layers.{0}.mlp.experts.{1}.gate_proj"),
    ("layers.#.experts.#.up", "{p}layers.{0}.mlp.experts.{1}.up_proj"),
    ("layers.#.experts.#.act", "{p}layers.{0}.mlp.experts.{1}.act_fn"),
    ("layers.#.experts.#.down", "{p}layers.{0}.mlp.experts.{1}.down_proj"),
    ("layers.#.experts", "{p}layers.{0}.mlp.experts"),
    ("layers.#", "{p}layers.{0}"),
    ("norm", "{p}norm"),
    ("head", "lm_head"),
];
/// Experts under the names that Mistral gave them.
const MIXTRAL: Rules = &[
    ("layers.#.router", "{p}layers.{0}.block_sparse_moe.gate"),
    ("layers.#.route", "{p}layers.{0}.block_sparse_moe.route"),
    ("layers.#.combine", "{p}layers.{0}.block_sparse_moe.combine"),
    ("layers.#.experts.#.gate", "{p}layers.{0}.block_sparse_moe.experts.{1}.w1"),
    ("layers.#.experts.#.up", "{p}layers.{0}.block_sparse_moe.experts.{1}.w3"),
    ("layers.#.experts.#.act", "{p}layers.{0}.block_sparse_moe.experts.{1}.act_fn"),
    ("layers.#.experts.#.down", "{p}layers.{0}.block_sparse_moe.experts.{1}.w2"),
    ("layers.#.experts", "{p}layers.{0}.block_sparse_moe.experts"),
];
/// Norms after attention and MLP instead of before them.
const OLMO2: Rules = &[
    ("layers.#.attn_after", "{p}layers.{0}.post_attention_layernorm"),
    ("layers.#.mlp_after", "{p}layers.{0}.post_feedforward_layernorm"),
];
/// Norms on both sides.
const GEMMA: Rules = &[
    ("layers.#.attn_after", "{p}layers.{0}.post_attention_layernorm"),
    ("layers.#.mlp_norm", "{p}layers.{0}.pre_feedforward_layernorm"),
    ("layers.#.mlp_after", "{p}layers.{0}.post_feedforward_layernorm"),
];
const META: Rules = &[
    ("embed", "tok_embeddings"),
    ("layers.#.attn_norm", "layers.{0}.attention_norm"),
    ("layers.#.q", "layers.{0}.attention.wq"),
    ("layers.#.k", "layers.{0}.attention.wk"),
    ("layers.#.v", "layers.{0}.attention.wv"),
    ("layers.#.o", "layers.{0}.attention.wo"),
    ("layers.#.mlp_norm", "layers.{0}.ffn_norm"),
    ("layers.#.gate", "layers.{0}.feed_forward.w1"),
    ("layers.#.up", "layers.{0}.feed_forward.w3"),
    ("layers.#.down", "layers.{0}.feed_forward.w2"),
    ("head", "output"),
];
const GGUF: Rules = &[
    ("embed", "token_embd"),
    ("layers.#.qkv", "blk.{0}.attn_qkv"),
    ("layers.#.q", "blk.{0}.attn_q"),
    ("layers.#.k", "blk.{0}.attn_k"),
    ("layers.#.v", "blk.{0}.attn_v"),
    ("layers.#.q_norm", "blk.{0}.attn_q_norm"),
    ("layers.#.k_norm", "blk.{0}.attn_k_norm"),
    ("layers.#.o", "blk.{0}.attn_output"),
    ("layers.#.attn_after", "blk.{0}.post_attention_norm"),
    ("layers.#.mlp_norm", "blk.{0}.ffn_norm"),
    ("layers.#.mlp_after", "blk.{0}.post_ffw_norm"),
    // One tensor for both stands under the name of the second.
    ("layers.#.gate_up", "blk.{0}.ffn_up"),
    ("layers.#.gate", "blk.{0}.ffn_gate"),
    ("layers.#.up", "blk.{0}.ffn_up"),
    ("layers.#.down", "blk.{0}.ffn_down"),
    ("layers.#.router", "blk.{0}.ffn_gate_inp"),
    // As files had them before all experts of a layer were stacked in one tensor.
    ("layers.#.experts.#.gate", "blk.{0}.ffn_gate.{1}"),
    ("layers.#.experts.#.up", "blk.{0}.ffn_up.{1}"),
    ("layers.#.experts.#.down", "blk.{0}.ffn_down.{1}"),
    ("layers.#.stack.gate", "blk.{0}.ffn_gate_exps"),
    ("layers.#.stack.up", "blk.{0}.ffn_up_exps"),
    ("layers.#.stack.down", "blk.{0}.ffn_down_exps"),
    ("layers.#", "blk.{0}"),
    ("norm", "output_norm"),
    ("head", "output"),
];

/// The frequencies that older versions of transformers saved.
const UNUSED: &[&str] = &["rotary_emb.inv_freq"];

/// A table of transformers' names, which begin with `model.` unless the last layer's weight is the embedding and a wrapper took that off.
const fn hugging_face(prefix: &'static str, rules: &'static [Rules]) -> Names {
    Names { unused: UNUSED, ..Names::new(Source::HuggingFace, prefix, rules) }
}

pub(super) static LLAMA: [Names; 4] = [
    hugging_face("model.", &[HUGGING_FACE]),
    hugging_face("", &[HUGGING_FACE]),
    Names::new(Source::Gguf, "", &[GGUF]),
    Names::new(Source::Paper, "", &[META]),
];
pub(super) static MIXTRALS: [Names; 2] =
    [hugging_face("model.", &[MIXTRAL, HUGGING_FACE]), hugging_face("", &[MIXTRAL, HUGGING_FACE])];
pub(super) static OLMO: [Names; 3] = [
    hugging_face("model.", &[OLMO2, HUGGING_FACE]),
    hugging_face("", &[OLMO2, HUGGING_FACE]),
    Names::new(Source::Gguf, "", &[GGUF]),
];
pub(super) static GEMMAS: [Names; 3] = [
    hugging_face("model.", &[GEMMA, HUGGING_FACE]),
    hugging_face("", &[GEMMA, HUGGING_FACE]),
    Names::new(Source::Gguf, "", &[GGUF]),
];

/// The tensor in which GGUF files stack an expert's `name`, such as `blk.3.ffn_up.7.weight`, with those of its layer, and its place there.
pub(in crate::model) fn stack_of(name: &str) -> Option<(String, usize)> {
    let mut parts = name.strip_prefix("blk.")?.splitn(4, '.');
    let (layer, part, expert) = (parts.next()?, parts.next()?, parts.next()?);
    let ending = parts.next().filter(|_| ["ffn_gate", "ffn_up", "ffn_down"].contains(&part))?;
    Some((format!("blk.{layer}.{part}_exps.{ending}"), expert.parse().ok()?))
}

pub(super) const LLAMA_MARKS: &[&str] = &["embed.weight", "layers.0.q.weight", "layers.0.gate.weight", "norm.weight"];
/// Experts in the first layer.
pub(super) const EXPERT_MARKS: &[&str] =
    &["embed.weight", "layers.0.q.weight", "layers.0.router.weight", "norm.weight"];
/// Queries, keys and values in one tensor, the gate and what it gates in another.
pub(super) const FUSED_MARKS: &[&str] =
    &["embed.weight", "layers.0.qkv.weight", "layers.0.gate_up.weight", "norm.weight"];
/// Norms after attention and MLP; without one before them, these are OLMo's.
pub(super) const AFTER_MARKS: &[&str] =
    &["embed.weight", "layers.0.q.weight", "layers.0.attn_after.weight", "layers.0.mlp_after.weight", "norm.weight"];
pub(super) const AROUND_MARKS: &[&str] = &[
    "layers.0.attn_norm.weight",
    "layers.0.attn_after.weight",
    "layers.0.mlp_norm.weight",
    "layers.0.mlp_after.weight",
];
