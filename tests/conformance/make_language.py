"""Writes the fixtures of language models to tests/conformance/language/: small decoders with random weights as transformers saves
them and as GGUF files, with the logits that transformers computes (in double precision); every GGML block format with the values that the
gguf package decodes; a vocabulary with the ids that tokenizers makes.

    python3 -m venv venv && venv/bin/pip install torch transformers gguf safetensors tokenizers
    venv/bin/python tests/conformance/make_language.py

tests/language.rs and src/engine/model/gguf/tests.rs load each and compare. The same script and versions write the same bytes.
"""

import json
import os
import shutil

os.environ.setdefault("OMP_NUM_THREADS", "1")

import gguf
import numpy as np
import tokenizers
import torch
import transformers as hf
from gguf import GGMLQuantizationType as Q

HERE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "language")
VOCAB, TOKENS = 96, 13
BLOCKS = [Q.Q4_0, Q.Q4_1, Q.Q5_0, Q.Q5_1, Q.Q8_0, Q.Q2_K, Q.Q3_K, Q.Q4_K, Q.Q5_K, Q.Q6_K, Q.IQ4_NL, Q.IQ4_XS]


def ids(rows):
    """[rows, TOKENS] ids, a mix of each element's index (see tests/language.rs)."""
    x = np.arange(rows * TOKENS, dtype=np.uint64)
    x = (x + np.uint64(1)) * np.uint64(2654435761) & np.uint64(0xFFFFFFFF)
    return torch.tensor((x >> np.uint64(8)).astype(np.int64) % VOCAB).reshape(rows, TOKENS)


def network(kind, **more):
    torch.manual_seed(len(kind) + sum(map(ord, json.dumps(more, sort_keys=True))))
    config = dict(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, tie_word_embeddings=True,
        attn_implementation="eager", bos_token_id=None, eos_token_id=None, pad_token_id=None,
    ) | more
    config = getattr(hf, kind + "Config")(**config)
    net = getattr(hf, kind + "ForCausalLM")(config).eval()
    with torch.no_grad():
        for name, p in net.named_parameters():
            # Far from trivial: norms and biases too, and attention that looks here and there.
            p.copy_(torch.rand_like(p) + 0.5 if "norm" in name else torch.randn_like(p) * (0.3 if p.dim() == 1 else 0.25))
    return net


def logits(net):
    with torch.no_grad():
        return [[[round(v, 6) for v in row] for row in window] for window in net.double()(ids(2)).logits.tolist()]


NETS = {
    "llama": lambda: network("Llama", rope_theta=1000.0),
    "llama_untied": lambda: network("Llama", tie_word_embeddings=False, num_key_value_heads=4, head_dim=12),
    "mistral": lambda: network("Mistral", num_key_value_heads=1, sliding_window=None, head_dim=8),
    "qwen2": lambda: network("Qwen2"),
    "qwen3": lambda: network("Qwen3", head_dim=16, tie_word_embeddings=False),
}


def neighbours(w, heads):
    """Rows of queries or keys as Llama's converter orders them for GGUF."""
    return w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def write_gguf(path, arch, net, tensors_as=None):
    c, state = net.config, {k: v.float().numpy() for k, v in net.state_dict().items()}
    w = gguf.GGUFWriter(path, arch)
    w.add_context_length(64)
    w.add_embedding_length(c.hidden_size)
    w.add_block_count(c.num_hidden_layers)
    w.add_feed_forward_length(c.intermediate_size)
    w.add_head_count(c.num_attention_heads)
    w.add_head_count_kv(c.num_key_value_heads)
    w.add_layer_norm_rms_eps(c.rms_norm_eps)
    w.add_rope_freq_base((getattr(c, "rope_parameters", None) or {}).get("rope_theta") or c.rope_theta)
    if getattr(c, "head_dim", None):
        w.add_key_length(c.head_dim)
        w.add_value_length(c.head_dim)
    names = {
        "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm",
        "self_attn.k_norm": "attn_k_norm", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    }
    for name, v in state.items():
        if name == "lm_head.weight" and c.tie_word_embeddings:
            continue
        if arch == "llama" and ("q_proj" in name or "k_proj" in name):
            v = neighbours(v, c.num_attention_heads if "q_proj" in name else c.num_key_value_heads)
        to = name.replace("model.layers.", "blk.")
        for ours, theirs in names.items():
            to = to.replace(ours, theirs)
        if tensors_as is not None and v.ndim == 2:
            w.add_tensor(to, gguf.quants.quantize(v, tensors_as), raw_dtype=tensors_as)
        else:
            w.add_tensor(to, v)
    finish(w)


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def write_blocks(path):
    """Two rows of random blocks of every format; scales are of usual size, all other bits are anything."""
    rng = np.random.default_rng(7)
    w = gguf.GGUFWriter(path, "none")
    for q in BLOCKS:
        block, size = gguf.GGML_QUANT_SIZES[q]
        n = 512 // block
        raw = rng.integers(0, 256, (2 * n, size), dtype=np.uint8)
        halves = {
            Q.Q4_1: [0, 2], Q.Q5_1: [0, 2], Q.Q2_K: [80, 82], Q.Q3_K: [108], Q.Q4_K: [0, 2], Q.Q5_K: [0, 2], Q.Q6_K: [208],
        }.get(q, [0])
        for at in halves:
            scale = rng.standard_normal(2 * n).astype(np.float16)
            raw[:, at : at + 2] = scale.view(np.uint8).reshape(-1, 2)
        rows = raw.reshape(2, n * size)
        w.add_tensor(q.name, rows, raw_dtype=q)
        w.add_tensor(q.name + ".f32", gguf.quants.dequantize(rows, q).astype(np.float32))
    half = rng.standard_normal((2, 32)).astype(np.float16)
    w.add_tensor("F16", half)
    w.add_tensor("F16.f32", half.astype(np.float32))
    brain = gguf.quants.quantize(half.astype(np.float32), Q.BF16)
    w.add_tensor("BF16", brain, raw_dtype=Q.BF16)
    w.add_tensor("BF16.f32", gguf.quants.dequantize(brain, Q.BF16).astype(np.float32))
    finish(w)


TEXTS = [
    "The quick brown fox jumps over the lazy dog.", " leading and  two   spaces\n\n\ttabs", "Zahlen: 12345 und 3.14, 2026-01-31",
    "naïve café, 東京 🙂", "it's we'll THEY'RE", "<|endoftext|>begin <|user|> middle<|endoftext|>", "trailing   \n", "",
]


def write_vocabulary(at):
    """Byte pairs learnt from this file's own words, as a tokenizer.json and in a GGUF file; the ids of some texts by how text is cut."""
    later = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    pre, T = tokenizers.pre_tokenizers, tokenizers.Tokenizer
    bytes_ = lambda regex: pre.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=regex)
    split = lambda digits: pre.Split(tokenizers.Regex(later % digits), "isolated")
    cuts = {
        "gpt-2": bytes_(True),
        "smollm": pre.Sequence([pre.Digits(True), bytes_(True)]),
        "qwen2": pre.Sequence([split(""), bytes_(False)]),
        "llama-bpe": pre.Sequence([split("{1,3}"), bytes_(False)]),
    }
    base = T(tokenizers.models.BPE())
    base.pre_tokenizer = bytes_(True)
    special = ["<|endoftext|>", "<|user|>"]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=420, special_tokens=special, initial_alphabet=pre.ByteLevel.alphabet(), show_progress=False
    )
    words = open(os.path.abspath(__file__)).read().split("TEXTS")[0]
    base.train_from_iterator([words], trainer)
    model = json.loads(base.to_str())["model"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    tokens = sorted(model["vocab"], key=model["vocab"].get)
    expected = {}
    for name, cut in cuts.items():
        bpe = tokenizers.models.BPE(model["vocab"], [tuple(m.split(" ")) for m in merges], ignore_merges=name == "llama-bpe")
        t = T(bpe)
        t.pre_tokenizer = cut
        t.decoder = tokenizers.decoders.ByteLevel()
        if name == "qwen2":
            t.normalizer = tokenizers.normalizers.NFC()
        t.add_special_tokens(special)
        expected[name] = [t.encode(s, add_special_tokens=False).ids for s in TEXTS]
        w = gguf.GGUFWriter(os.path.join(at, f"vocabulary-{name}.gguf"), "llama")
        w.add_tokenizer_model("gpt2")
        w.add_tokenizer_pre(name)
        w.add_token_list(tokens)
        w.add_token_types([3 if t in special else 1 for t in tokens])
        w.add_token_merges(merges)
        finish(w)
        if name == "gpt-2":
            os.makedirs(os.path.join(at, "vocabulary"))
            t.save(os.path.join(at, "vocabulary", "tokenizer.json"))
    return {"texts": TEXTS, "ids": expected}


def main():
    shutil.rmtree(HERE, ignore_errors=True)
    os.makedirs(HERE)
    out = {"logits": {}, "files": {}}
    for name, make in NETS.items():
        net = make()
        net.save_pretrained(os.path.join(HERE, name))
        arch = {"llama": "llama", "llama_untied": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}.get(name)
        if arch:
            write_gguf(os.path.join(HERE, f"{name}.gguf"), arch, net)
        if name == "llama":
            net.save_pretrained(os.path.join(HERE, "llama_sharded"), max_shard_size="40KB")
        for other in os.listdir(os.path.join(HERE, name)):
            if other not in ("config.json", "model.safetensors"):
                os.remove(os.path.join(HERE, name, other))
        for file in [name] + ([f"{name}.gguf"] if arch else []) + (["llama_sharded"] if name == "llama" else []):
            out["files"][file] = name
        out["logits"][name] = logits(net)
    write_blocks(os.path.join(HERE, "blocks.gguf"))
    out["vocabulary"] = write_vocabulary(HERE)
    with open(os.path.join(HERE, "expected.json"), "w") as f:
        f.write(json.dumps(out, ensure_ascii=False, separators=(",", ":")).replace("],[", "],\n["))


if __name__ == "__main__":
    main()
