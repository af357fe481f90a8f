"""Mixtures of experts with random weights and the vocabulary of another GGUF file, for `check.py`: is what `paring` writes of them what llama.cpp
computes?

    venv/bin/python benches/llamacpp/make_experts.py VOCABULARY.gguf OUT
    venv/bin/python benches/llamacpp/check.py … OUT/mixtral.gguf OUT/qwen3moe.gguf
"""

import os
import sys

import gguf
import numpy as np

WIDTH, HEADS, KV, HEAD, LAYERS = 256, 4, 2, 64, 3
# Architecture, experts, of which are used, neurons of one.
KINDS = {"mixtral": ("llama", 8, 2, 512), "qwen3moe": ("qwen3moe", 16, 4, 256)}


def vocabulary(writer, reader):
    for name, field in reader.fields.items():
        if name.startswith("tokenizer."):
            kind = field.types[0]
            sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(name, field.contents(), kind, sub_type=sub)
    return len(reader.fields["tokenizer.ggml.tokens"].contents())


def make(source, out, kind):
    arch, experts, used, neurons = KINDS[kind]
    rng = np.random.default_rng(7)
    w = gguf.GGUFWriter(out, arch)
    tokens = vocabulary(w, gguf.GGUFReader(source))
    w.add_context_length(2048)
    w.add_embedding_length(WIDTH)
    w.add_block_count(LAYERS)
    w.add_feed_forward_length(neurons)
    w.add_head_count(HEADS)
    w.add_head_count_kv(KV)
    w.add_key_length(HEAD)
    w.add_value_length(HEAD)
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0)
    w.add_vocab_size(tokens)
    w.add_expert_count(experts)
    w.add_expert_used_count(used)
    if arch == "qwen3moe":
        w.add_expert_feed_forward_length(neurons)
    else:
        w.add_rope_dimension_count(HEAD)

    def tensor(name, *shape, scale=1.0):
        w.add_tensor(name, (rng.standard_normal(shape) * scale / np.sqrt(shape[-1])).astype(np.float32))

    def norm(name, n):
        w.add_tensor(name, (1 + 0.2 * rng.standard_normal(n)).astype(np.float32))

    # What random weights say is worse than guessing: two programs are compared by it, nothing else.
    tensor("token_embd.weight", tokens, WIDTH, scale=16)
    for i in range(LAYERS):
        at = f"blk.{i}."
        tensor(at + "attn_q.weight", HEADS * HEAD, WIDTH)
        tensor(at + "attn_k.weight", KV * HEAD, WIDTH)
        tensor(at + "attn_v.weight", KV * HEAD, WIDTH)
        tensor(at + "attn_output.weight", WIDTH, HEADS * HEAD)
        # Apart, so that rounding seldom changes who is chosen; among so many random choices some stay near ties.
        tensor(at + "ffn_gate_inp.weight", experts, WIDTH, scale=4)
        tensor(at + "ffn_gate_exps.weight", experts, neurons, WIDTH, scale=2)
        tensor(at + "ffn_up_exps.weight", experts, neurons, WIDTH, scale=2)
        tensor(at + "ffn_down_exps.weight", experts, WIDTH, neurons)
        norm(at + "attn_norm.weight", WIDTH)
        norm(at + "ffn_norm.weight", WIDTH)
        if arch == "qwen3moe":
            norm(at + "attn_q_norm.weight", HEAD)
            norm(at + "attn_k_norm.weight", HEAD)
    norm("output_norm.weight", WIDTH)
    tensor("output.weight", tokens, WIDTH, scale=2)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def main():
    source, out = sys.argv[1:3]
    os.makedirs(out, exist_ok=True)
    for kind in KINDS:
        make(source, os.path.join(out, f"{kind}.gguf"), kind)


main()
