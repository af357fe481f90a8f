#!/usr/bin/env python3
"""A training step of PyTorch eager against paring's: the same networks, batches and threads, in turn in one run.

    cargo bench --bench train --no-run; python3 -m venv peers && peers/bin/pip install torch numpy safetensors
    peers/bin/python benches/peers/train.py BENCH REAL [--rounds 5] [--threads 2] [--batch 128]

BENCH is the bench's binary (target/release/deps/train-*), REAL holds resnet20/, resnet56/ and vit_cifar10/. A step is: forward, cross-entropy, backward,
SGD with Nesterov's momentum. Prints median milliseconds of both over all rounds and PyTorch / paring with its range over rounds."""

import argparse
import json
import os
import statistics
import subprocess
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(o)
        self.conv2 = nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(o)
        self.widen = stride > 1

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.widen:
            c = y.shape[1] - x.shape[1]
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, c // 2, c - c // 2))
        return F.relu(y + x)


class Resnet(nn.Module):
    """He et al. 2016, section 4.2."""

    def __init__(self, n):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        blocks, i = [], 16
        for o in (16, 32, 64):
            for k in range(n):
                blocks.append(Block(i, o, 2 if k == 0 and o > 16 else 1))
                i = o
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        x = self.blocks(F.relu(self.bn1(self.conv1(x))))
        return self.linear(x.mean((2, 3)))


class Vit(nn.Module):
    def __init__(self, dim=128, heads=8, mlp=256, depth=6):
        super().__init__()
        self.patch = nn.Conv2d(3, dim, 4, 4)
        self.cls = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos = nn.Parameter(torch.zeros(1, 65, dim))
        layer = nn.TransformerEncoderLayer(dim, heads, mlp, 0.0, "relu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 10))

    def forward(self, x):
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), -1, -1), x], 1) + self.pos
        return self.head(self.layers(x)[:, 0])


def eager(net, batch, steps):
    net.train()
    optimiser = torch.optim.SGD(net.parameters(), 1e-4, momentum=0.9, nesterov=True, weight_decay=1e-4)
    x, y = torch.randn(batch, 3, 32, 32), torch.randint(0, 10, (batch,))
    took = []
    for _ in range(steps + 1):
        at = time.perf_counter()
        optimiser.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimiser.step()
        took.append((time.perf_counter() - at) * 1e3)
    return took[1:]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("bench")
    p.add_argument("real")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--batch", type=int, default=128)
    p.add_argument("--steps", type=int, default=5)
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    env = dict(os.environ, PARING_THREADS=str(a.threads))
    child = subprocess.Popen([a.bench, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)

    def ours(path):
        child.stdin.write(json.dumps({"model": path, "batch": a.batch, "steps": a.steps}) + "\n")
        child.stdin.flush()
        return json.loads(child.stdout.readline())["ms"]

    nets = [("resnet20", Resnet(3)), ("resnet56", Resnet(9)), ("vit_cifar10", Vit())]
    print(f"PyTorch {torch.__version__}, {a.threads} threads, batch {a.batch}")
    for name, net in nets:
        folder = os.path.join(a.real, name)
        path = next(os.path.join(folder, f) for f in os.listdir(folder) if f.endswith(".safetensors"))
        mine, theirs, ratios = [], [], []
        for _ in range(a.rounds):
            m, t = ours(path), eager(net, a.batch, a.steps)
            mine += m
            theirs += t
            ratios.append(statistics.median(t) / statistics.median(m))
        print(f"{name:12} paring {statistics.median(mine):7.1f} ms  PyTorch {statistics.median(theirs):7.1f} ms  "
              f"{statistics.median(ratios):.2f}x [{min(ratios):.2f}, {max(ratios):.2f}]", flush=True)


if __name__ == "__main__":
    main()
