"""Makes a language model of Llama 2 7B's shape with random weights in bfloat16: a Hugging Face directory, one shard a layer, of
which one tensor at a time is held. Needs numpy, about 13.5 GB of disk and two minutes.

    python benches/scale/make_llama.py DIR [LAYERS]

The values of a tensor are one draw of a million normal numbers with deviation 0.02, started at another place for each tensor: they
repeat, so that they are made in the time that it takes to write them.
"""

import json
import pathlib
import sys

import numpy as np

DIM, HIDDEN, HEADS, VOCAB = 4096, 11008, 32, 32000
DRAWN = 1 << 20


def main():
    out = pathlib.Path(sys.argv[1])
    layers = int(sys.argv[2]) if len(sys.argv) > 2 else 32
    out.mkdir(parents=True)
    drawn = (np.random.default_rng(7).standard_normal(DRAWN, dtype=np.float32) * 0.02).view(np.uint32)
    # Rounded to even, as every framework does.
    drawn = ((drawn + 0x7FFF + ((drawn >> 16) & 1)) >> 16).astype("<u2")
    ones = np.full(DIM, 0x3F80, dtype="<u2")
    where, total = {}, 0

    def values(name, shape):
        n = int(np.prod(shape))
        if len(shape) == 1:
            return ones
        at = sum(map(ord, name)) * 7919 % DRAWN
        return np.resize(np.roll(drawn, at), n)

    def shard(number, of, tensors):
        nonlocal total
        file = f"model-{number:05}-of-{of:05}.safetensors"
        header, at = {}, 0
        for name, shape in tensors:
            size = 2 * int(np.prod(shape))
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
            at += size
            where[name] = file
        total += at
        head = json.dumps(header).encode()
        head += b" " * (-len(head) % 8)
        with open(out / file, "wb") as f:
            f.write(len(head).to_bytes(8, "little") + head)
            for name, shape in tensors:
                f.write(values(name, shape).tobytes())

    shards = layers + 1
    shard(1, shards, [("model.embed_tokens.weight", [VOCAB, DIM]), ("model.norm.weight", [DIM]), ("lm_head.weight", [VOCAB, DIM])])
    for i in range(layers):
        at = f"model.layers.{i}"
        square = [(f"{at}.self_attn.{p}_proj.weight", [DIM, DIM]) for p in "qkvo"]
        mlp = [(f"{at}.mlp.{p}_proj.weight", [HIDDEN, DIM]) for p in ("gate", "up")]
        norms = [(f"{at}.{p}_layernorm.weight", [DIM]) for p in ("input", "post_attention")]
        shard(i + 2, shards, square + mlp + [(f"{at}.mlp.down_proj.weight", [DIM, HIDDEN])] + norms)
    (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": where}))
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": DIM, "intermediate_size": HIDDEN,
        "num_hidden_layers": layers, "num_attention_heads": HEADS, "num_key_value_heads": HEADS, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 4096, "vocab_size": VOCAB,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16",
    }
    (out / "config.json").write_text(json.dumps(config))


main()
