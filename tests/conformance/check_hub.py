"""Directories that paring wrote, opened by transformers: every logit against what paring computes with the same weights.

    PARING_HUB=DIR cargo test --test language -- --ignored directories_for_transformers
    python check_hub.py DIR

Needs transformers and compressed-tensors. transformers decompresses quantized weights and rounds no activations; layers that are quantized in several
ways it does not open: of those each weight goes through compressed-tensors itself, under the scheme that names it, and into the dense directory.
"""
import json
import sys
from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, CompressedTensorsConfig


def dense(where, config):
    """The network without its quantization, its weights decompressed one by one."""
    tensors = load_file(where / "model.safetensors")
    groups = QuantizationConfig.model_validate(config["quantization_config"]).config_groups.values()
    for scheme in groups:
        for module in scheme.targets:
            own = {k.removeprefix(module + "."): tensors.pop(k) for k in list(tensors) if k.startswith(module + ".weight")}
            made = BaseCompressor.get_value_from_registry(scheme.format).decompress(own, scheme)
            tensors[module + ".weight"] = made["weight"].float()
    return tensors


worst, bad = 0, 0
for told in sorted(Path(sys.argv[1]).glob("*.json")):
    name, d, where = told.name.removesuffix(".json"), json.loads(told.read_text()), told.with_suffix("")
    config = json.loads((where / "config.json").read_text())
    several = len(config.get("quantization_config", {}).get("config_groups", [])) > 1
    if several:
        # The same network unquantized lies beside it.
        model = AutoModelForCausalLM.from_pretrained(Path(str(where).removesuffix("-mixed")), dtype=torch.float32).eval()
        missing = model.load_state_dict(
            {k if k.startswith(("model.", "lm_head.")) else "model." + k: v.float() for k, v in dense(where, config).items()},
            strict=False,
        )
        assert set(missing.missing_keys) <= {"lm_head.weight"} and not missing.unexpected_keys, missing
    else:
        packed = "quantization_config" in config
        how = {"quantization_config": CompressedTensorsConfig(run_compressed=False)} if packed else {}
        model = AutoModelForCausalLM.from_pretrained(where, dtype=torch.float32, **how).eval()
    with torch.no_grad():
        logits = model(torch.tensor(d["ids"])).logits.flatten()
    off = (logits - torch.tensor(d["logits"])).abs().max().item()
    worst, bad = max(worst, off), bad + (off > 1e-4)
    print(f"{'ok ' if off <= 1e-4 else 'BAD'} {name}: off by {off:.2e}", flush=True)
print("worst", worst)
sys.exit(bad > 0)
