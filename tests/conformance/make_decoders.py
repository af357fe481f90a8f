"""Writes the fixtures of further kinds of language models to tests/conformance/decoders/: small decoders with random weights as transformers
saves them and, where llama.cpp's converter writes such a kind, as a GGUF file with the names, metadata and changes of values that it
makes (its conversion/*.py), with the logits that transformers computes (in double precision).

    venv/bin/python tests/conformance/make_decoders.py      (the environment of make_language.py)

tests/language.rs loads each and compares. The same script and versions write the same bytes.
"""

import json
import math
import os
import shutil

import make_language as made
import gguf
import safetensors.torch
import torch
import transformers as hf

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "decoders")
VOCAB = 32


def network(kind, model=None, config=None, **more):
    """A network of class `kind`; norms are far from 1, whether their weights are stored with it or without."""
    torch.manual_seed(len(kind) + sum(map(ord, json.dumps(more, sort_keys=True))))
    config = getattr(hf, config or kind + "Config")(
        **dict(vocab_size=VOCAB, attn_implementation="eager", bos_token_id=None, eos_token_id=None, pad_token_id=None) | more
    )
    net = getattr(hf, model or kind + "ForCausalLM")(config).eval()
    less = 0.5 if kind.startswith("Gemma") else -0.5
    with torch.no_grad():
        for name, p in net.named_parameters():
            norm = "norm" in name or ".ln_" in name and name.endswith("weight")
            p.copy_(torch.rand_like(p) - less if norm else torch.randn_like(p) * (0.3 if p.dim() == 1 else 0.25))
    return net


def decoder(kind, **more):
    """Two layers of four heads, two of keys, eight values each."""
    sizes = dict(
        hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True,
    )
    # A class without a width of heads of its own takes none.
    return network(kind, **{k: v for k, v in (sizes | more).items() if k != "head_dim" or v})


def scaled(kind, **more):
    """Llama with scaled positions of such a kind."""
    context = more.pop("max_position_embeddings", 32)
    rope = dict(rope_type=kind, rope_theta=1000.0) | more
    return decoder("Llama", num_hidden_layers=2, max_position_embeddings=context, rope_parameters=rope)


def phi3(original, **more):
    rope = dict(
        rope_type="longrope", rope_theta=1000.0, partial_rotary_factor=0.75,
        short_factor=[1.0, 1.1, 1.3], long_factor=[1.5, 2.5, 4.0],
    )
    return decoder(
        "Phi3", hidden_size=32, head_dim=None, max_position_embeddings=32, original_max_position_embeddings=original,
        tie_word_embeddings=False, rope_parameters=rope, **more,
    )


GEMMA2 = dict(sliding_window=5, attn_logit_softcapping=2.0, final_logit_softcapping=3.0)
GEMMA3 = dict(
    config="Gemma3TextConfig", sliding_window=4, query_pre_attn_scalar=8,
    rope_parameters=dict(
        full_attention=dict(rope_type="linear", factor=8.0, rope_theta=10000.0),
        sliding_attention=dict(rope_type="default", rope_theta=100.0),
    ),
)

EXPERTS = dict(tie_word_embeddings=False, experts_implementation="eager")
QWEN_EXPERTS = dict(moe_intermediate_size=12) | EXPERTS

# Sequences have 13 tokens: more than every window, and more than networks with scaled positions were trained with, but one.
NETS = {
    "rope_linear": lambda: scaled("linear", factor=4.0),
    "rope_dynamic": lambda: scaled("dynamic", factor=2.0, max_position_embeddings=8),
    "rope_llama3": lambda: scaled("llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=24),
    "rope_yarn": lambda: scaled("yarn", factor=4.0, original_max_position_embeddings=8, beta_fast=0.2, beta_slow=0.02),
    "rope_yarn_told": lambda: scaled(
        "yarn", factor=4.0, original_max_position_embeddings=8, attention_factor=1.3, beta_fast=1.5, beta_slow=0.2, truncate=False
    ),
    "rope_yarn_mscale": lambda: scaled("yarn", factor=4.0, original_max_position_embeddings=8, mscale=0.7, mscale_all_dim=0.4),
    "mistral_sliding": lambda: decoder("Mistral", sliding_window=5),
    "qwen2_sliding": lambda: decoder("Qwen2", head_dim=4, use_sliding_window=True, sliding_window=4, max_window_layers=1),
    "gemma2": lambda: decoder("Gemma2", query_pre_attn_scalar=8, **GEMMA2),
    "gemma2_scalar": lambda: decoder("Gemma2", query_pre_attn_scalar=24, **GEMMA2 | dict(final_logit_softcapping=None)),
    "gemma3": lambda: decoder("Gemma3", num_hidden_layers=6, **GEMMA3),
    "gemma3_types": lambda: decoder("Gemma3", layer_types=["full_attention", "sliding_attention"], **GEMMA3),
    "phi3": lambda: phi3(8, sliding_window=6),
    "phi3_short": lambda: phi3(16),
    "olmo2": lambda: decoder("Olmo2", head_dim=None),
    "mixtral": lambda: decoder(
        "Mixtral", hidden_size=32, intermediate_size=32, num_local_experts=4, num_experts_per_tok=2, **EXPERTS
    ),
    "qwen3_moe": lambda: decoder("Qwen3Moe", num_experts=6, num_experts_per_tok=3, norm_topk_prob=True, **QWEN_EXPERTS),
    # Layers without experts between others, weights that do not sum up to 1.
    "qwen3_moe_step": lambda: decoder(
        "Qwen3Moe", num_hidden_layers=3, num_experts=5, num_experts_per_tok=2, norm_topk_prob=False, decoder_sparse_step=2, **QWEN_EXPERTS
    ),
    "qwen3_moe_only": lambda: decoder(
        "Qwen3Moe", num_experts=5, num_experts_per_tok=1, norm_topk_prob=False, mlp_only_layers=[1], **QWEN_EXPERTS
    ),
    "gpt2": lambda: network(
        "GPT2", model="GPT2LMHeadModel", n_embd=24, n_layer=2, n_head=3, n_inner=40, n_positions=16,
    ),
}
ARCHS = {
    "rope_linear": "llama", "rope_llama3": "llama", "rope_yarn": "llama", "gemma2": "gemma2", "gemma3": "gemma3", "phi3": "phi3",
    "phi3_short": "phi3", "olmo2": "olmo2", "gpt2": "gpt2", "mixtral": "llama", "qwen3_moe": "qwen3moe",
}
SHARDED = ["qwen3_moe_step"]
GGUF = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
    "self_attn.qkv_proj": "attn_qkv", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_up_proj": "ffn_up", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "pre_feedforward_layernorm": "ffn_norm", "post_feedforward_layernorm": "post_ffw_norm",
    "transformer.wte": "token_embd", "transformer.wpe": "position_embd", "transformer.ln_f": "output_norm",
    "ln_1": "attn_norm", "ln_2": "ffn_norm", "attn.c_attn": "attn_qkv", "attn.c_proj": "attn_output", "mlp.c_fc": "ffn_up",
    "mlp.c_proj": "ffn_down", "mlp.gate.weight": "ffn_gate_inp.weight",
}


def rope_metadata(w, c, arch):
    """As TextModel.set_gguf_parameters, Phi3MiniModel and LlamaModel.generate_extra_tensors have them."""
    all_rope = c.rope_parameters
    rope = all_rope.get("full_attention", all_rope)
    w.add_rope_freq_base(rope["rope_theta"])
    if "sliding_attention" in all_rope:
        w.add_rope_freq_base_swa(all_rope["sliding_attention"]["rope_theta"])
    kind, factor = rope["rope_type"], rope.get("factor")
    if kind == "linear":
        w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        w.add_rope_scaling_factor(factor)
    if kind == "yarn":
        w.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        w.add_rope_scaling_factor(factor)
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        w.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        w.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
    if kind == "llama3":
        frequencies = 1.0 / (rope["rope_theta"] ** (torch.arange(0, c.head_dim, 2, dtype=torch.float32) / c.head_dim))
        original, low, high = rope["original_max_position_embeddings"], rope["low_freq_factor"], rope["high_freq_factor"]
        factors = []
        for f in frequencies:
            wave = 2 * math.pi / f
            smooth = (original / wave - low) / (high - low)
            middle = 1 / ((1 - smooth) / factor + smooth)
            factors.append(1 if wave < original / high else factor if wave > original / low else middle)
        w.add_tensor("rope_freqs.weight", torch.tensor(factors, dtype=torch.float32).numpy())
    if arch == "phi3":
        original, context = c.original_max_position_embeddings, c.max_position_embeddings
        w.add_rope_scaling_orig_ctx_len(original)
        w.add_rope_dimension_count(int(rope["partial_rotary_factor"] * c.hidden_size) // c.num_attention_heads)
        scale = context / original
        w.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)) if scale > 1 else 1.0)
        for name in ["long", "short"]:
            w.add_tensor(f"rope_factors_{name}.weight", torch.tensor(rope[f"{name}_factor"], dtype=torch.float32).numpy())


def metadata(w, c, arch):
    w.add_context_length(c.max_position_embeddings)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_head_count(c.num_attention_heads)
    if arch == "gpt2":
        w.add_feed_forward_length(c.n_inner or 4 * c.hidden_size)
        return w.add_layer_norm_eps(c.layer_norm_epsilon)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    if hasattr(c, "num_experts_per_tok"):
        w.add_expert_count(c.num_local_experts)
        w.add_expert_used_count(c.num_experts_per_tok)
    if arch == "qwen3moe":
        w.add_expert_feed_forward_length(c.moe_intermediate_size)
    if arch in ("gemma2", "gemma3", "llama", "qwen3moe"):
        w.add_key_length(c.head_dim)
        w.add_value_length(c.head_dim)
    if arch == "llama":
        w.add_rope_dimension_count(c.head_dim)
    if arch == "gemma2":
        w.add_attn_logit_softcapping(c.attn_logit_softcapping)
        w.add_final_logit_softcapping(c.final_logit_softcapping)
    if arch in ("gemma2", "gemma3", "phi3"):
        w.add_sliding_window(c.sliding_window or 0)
    # The converter of Gemma 2 leaves the base of its positions to its default.
    if arch == "gemma2":
        assert c.rope_parameters["rope_theta"] == 10000.0
    else:
        rope_metadata(w, c, arch)


def write_gguf(path, arch, net, stacked=True):
    c = net.config
    w = gguf.GGUFWriter(path, arch)
    metadata(w, c, arch)
    after = {"post_attention_layernorm": "post_attention_norm" if arch in ("gemma2", "gemma3", "olmo2") else "ffn_norm"}
    for name, v in net.state_dict().items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        v = v.float()
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            v = v + 1
        if arch == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            v = v.T.contiguous()
        v = v.numpy()
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            v = made.neighbours(v, c.num_attention_heads if "q_proj" in name else c.num_key_value_heads)
        to = name.replace("model.layers.", "blk.").replace("transformer.h.", "blk.")
        for ours, theirs in (GGUF | after).items():
            to = to.replace(ours, theirs)
        parts = {to: v}
        if ".experts." in name:
            # All experts of a layer in one tensor, their gates beside what these gate.
            at, half = to.split(".mlp.")[0], v.shape[1] // 2
            parts = {"down": v} if "down" in name else {"gate": v[:, :half], "up": v[:, half:]}
            parts = {f"{at}.ffn_{part}_exps.weight": v for part, v in parts.items()}
        if ".experts." in name and not stacked:
            one = lambda to, i: to.replace("_exps", f".{i}")
            parts = {one(to, i): matrix for to, v in parts.items() for i, matrix in enumerate(v)}
        for to, v in parts.items():
            w.add_tensor(to, v)
    made.finish(w)


def old(config):
    """Positions as configurations told them before they had an object of their own."""
    rope = config.pop("rope_parameters")
    rope["type"] = rope.pop("rope_type")
    return config | {"rope_theta": rope.pop("rope_theta"), "rope_scaling": rope}


def save(name, net):
    at = os.path.join(HERE, name)
    net.save_pretrained(at, max_shard_size="24KB" if name in SHARDED else "1GB")
    for other in os.listdir(at):
        if other != "config.json" and not other.startswith("model"):
            os.remove(os.path.join(at, other))
    if name == "rope_yarn":
        with open(os.path.join(at, "config.json")) as f:
            config = old(json.load(f))
        with open(os.path.join(at, "config.json"), "w") as f:
            f.write(json.dumps(config, indent=2) + "\n")


def save_first(net):
    """GPT-2 as it was first published: names without their beginning, and the masks among the weights."""
    at = os.path.join(HERE, "gpt2_first")
    os.makedirs(at)
    tensors = {k.removeprefix("transformer."): v.contiguous() for k, v in net.state_dict().items() if k != "lm_head.weight"}
    size = net.config.n_positions
    mask = torch.ones(size, size).tril().reshape(1, 1, size, size)
    tensors |= {f"h.{i}.attn.bias": mask.clone() for i in range(net.config.n_layer)}
    safetensors.torch.save_file(tensors, os.path.join(at, "model.safetensors"), metadata={"format": "pt"})
    shutil.copy(os.path.join(HERE, "gpt2", "config.json"), at)


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    os.makedirs(HERE)
    out = {"logits": {}, "files": {}}
    for name, make in NETS.items():
        net = make()
        save(name, net)
        out["files"][name] = name
        if arch := ARCHS.get(name):
            write_gguf(os.path.join(HERE, f"{name}.gguf"), arch, net)
            out["files"][f"{name}.gguf"] = name
        if name == "mixtral":
            # As llama.cpp's converter first wrote them.
            write_gguf(os.path.join(HERE, "mixtral_first.gguf"), "llama", net, stacked=False)
            out["files"]["mixtral_first.gguf"] = name
        if name == "gpt2":
            save_first(net)
            out["files"]["gpt2_first"] = name
        with torch.no_grad():
            y = net.double()(made.ids(2) % VOCAB).logits.tolist()
        out["logits"][name] = [[[round(v, 6) for v in row] for row in window] for window in y]
    with open(os.path.join(HERE, "expected.json"), "w") as f:
        f.write(json.dumps(out, separators=(",", ":")).replace("],[", "],\n["))


if __name__ == "__main__":
    main()
