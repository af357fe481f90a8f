"""Directories that paring wrote, opened by transformers: every logit against what paring computes.

    PARING_HUB=DIR cargo test --test language -- --ignored directories_for_transformers
    python check_hub.py DIR

Needs transformers and compressed-tensors. Weights of 8 and 4 bits are the same numbers; where activations are rounded as they come (int8, fp8) the two
round in their own ways, so that those agree to a part of their logits' spread alone.
"""
import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

worst = {}
for told in sorted(Path(sys.argv[1]).glob("*.json")):
    name, d = told.name.removesuffix(".json"), json.loads(told.read_text())
    model = AutoModelForCausalLM.from_pretrained(told.with_suffix(""), dtype=torch.float32).eval()
    with torch.no_grad():
        logits = model(torch.tensor(d["ids"])).logits.flatten()
    want = torch.tensor(d["logits"])
    off, spread = (logits - want).abs().max().item(), want.std().item()
    kind = "rounded" if any(w in name for w in ["int8", "fp8", "mixed"]) else "same"
    good = off < (0.1 * spread if kind == "rounded" else 1e-4)
    worst[kind] = max(worst.get(kind, 0), off)
    print(f"{'ok ' if good else 'BAD'} {name}: off by {off:.2e} (spread {spread:.2e})", flush=True)
    if not good:
        worst["bad"] = worst.get("bad", 0) + 1
print(worst)
sys.exit("bad" in worst)
