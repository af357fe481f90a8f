#!/usr/bin/env python3
"""Gradients of PyTorch for tests/gradients.rs: two small networks with random weights, in training mode.

    python3 -m venv venv && venv/bin/pip install torch numpy safetensors
    venv/bin/python tests/conformance/make_gradients.py
"""

import os
import sys

import torch
from safetensors.torch import save_file

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "benches", "peers"))
from train import Resnet, Vit  # noqa: E402

OUT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "gradients")


def resnet_names(state):
    """As the checkpoints of CIFAR ResNets name them: three blocks a stage."""
    out = {}
    for name, v in state.items():
        if name.startswith("blocks."):
            _, k, rest = name.split(".", 2)
            name = f"layer{int(k) // N + 1}.{int(k) % N}.{rest}"
        out[name] = v
    return out


def vit_names(state):
    swap = {"patch.": "patch_embed.proj.", "cls": "cls_token", "pos": "pos_embed", "layers.layers.": "transformer.layers.", "head.": "mlp_head."}
    out = {}
    for name, v in state.items():
        for a, b in swap.items():
            if name.startswith(a):
                name = b + name[len(a) :]
                break
        out[name] = v
    return out


N = 1


def main():
    torch.manual_seed(5)
    torch.set_default_dtype(torch.float64)
    os.makedirs(OUT, exist_ok=True)
    for name, net, names in (("resnet", Resnet(N), resnet_names), ("vit", Vit(dim=32, heads=4, mlp=40, depth=2), vit_names)):
        # In single precision, so that both sides have the same weights; the gradients are of double precision.
        with torch.no_grad():
            for p in net.parameters():
                if p.dim() == 1:
                    p.add_(0.2 * torch.randn_like(p))
                p.copy_(p.float().double())
        net.train()
        x = torch.randn(2, 3, 32, 32).float().double().requires_grad_()
        state = {k: v.clone() for k, v in net.state_dict().items() if "num_batches" not in k}
        y = net(x)
        seed = torch.randn_like(y).float().double()
        (y * seed).sum().backward()
        single = lambda d: {k: v.detach().float().contiguous() for k, v in d.items()}
        save_file(single(names(state)), os.path.join(OUT, f"{name}.safetensors"))
        told = {"input": x, "output": y, "seed": seed, "input_gradient": x.grad}
        told |= {f"gradient:{k}": v for k, v in names({k: p.grad for k, p in net.named_parameters()}).items()}
        save_file(single(told), os.path.join(OUT, f"{name}.gradients.safetensors"))


main()
