"""Right answers of the published CIFAR-10 networks in PyTorch with rounded or sparse weights, on the first N test images
and on all: the figures that `tests/precisions.rs` and `tests/sparse_real.rs` compare with.

    python real_counts.py SHARED_REAL [N]
"""
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import prune

IM = ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225])
CF = ([0.4914, 0.4822, 0.4465], [0.2023, 0.1994, 0.2010])


class Block(nn.Module):
    def __init__(self, i, o, stride):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = nn.Conv2d(o, o, 3, 1, 1, bias=False), nn.BatchNorm2d(o)
        self.pad = o // 4 if stride != 1 else 0

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.pad:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(x + y)


class ResNet(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        width = 16
        for s, o in enumerate([16, 32, 64]):
            blocks = [Block(width if b == 0 else o, o, 2 if s > 0 and b == 0 else 1) for b in range(n)]
            setattr(self, f"layer{s + 1}", nn.Sequential(*blocks))
            width = o
        self.linear = nn.Linear(64, 10)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(x.mean((2, 3)))


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.cls_token, self.pos_embed = nn.Parameter(torch.zeros(1, 1, 128)), nn.Parameter(torch.zeros(1, 65, 128))
        self.patch_embed = nn.Module()
        self.patch_embed.proj = nn.Conv2d(3, 128, 4, 4)
        layer = nn.TransformerEncoderLayer(128, 8, 256, batch_first=True)
        self.transformer = nn.TransformerEncoder(layer, 6)
        self.mlp_head = nn.Sequential(nn.LayerNorm(128), nn.Linear(128, 10))

    def forward(self, x):
        x = self.patch_embed.proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.mlp_head(self.transformer(x)[:, 0])


def weights(model):
    """Every convolution's and linear layer's weight, the fused projection of attention included."""
    for m in model.modules():
        if isinstance(m, (nn.Conv2d, nn.Linear)):
            yield m, "weight"
        if isinstance(m, nn.MultiheadAttention):
            yield m, "in_proj_weight"


def rounded(model, top):
    """Symmetric, one scale a row."""
    for m, name in weights(model):
        w = getattr(m, name).data
        rows = w.flatten(1)
        scale = rows.abs().amax(1, keepdim=True) / top
        q = torch.where(scale > 0, (rows / scale).round().clamp(-top, top) * scale, 0)
        w.copy_(q.view_as(w))


def sparse(model, _):
    for m, name in list(weights(model)):
        prune.l1_unstructured(m, name, amount=0.5)
        prune.remove(m, name)


def load(real, name):
    model = Vit() if name == "vit_cifar10" else ResNet({"resnet20": 3, "resnet56": 9}[name])
    file = next(p for p in (real / name).iterdir() if p.suffix in (".th", ".pth"))
    state = torch.load(file, map_location="cpu", weights_only=True)
    state = {k.removeprefix("module."): v for k, v in state.get("state_dict", state).items()}
    model.load_state_dict(state)
    return model.eval()


def main():
    real, first = Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 2000
    raw = np.frombuffer((real / "cifar10/test_batch.bin").read_bytes(), np.uint8).reshape(-1, 3073)
    labels = torch.from_numpy(raw[:, 0].astype(np.int64))
    images = torch.from_numpy(raw[:, 1:].reshape(-1, 3, 32, 32).copy())
    for name in ["resnet20", "resnet56", "vit_cifar10"]:
        mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (CF if name == "vit_cifar10" else IM))
        for what, change, top in [("f32", None, 0), ("w8", rounded, 127), ("w4", rounded, 7), ("half zero", sparse, 0)]:
            model = load(real, name)
            if change:
                change(model, top)
            with torch.inference_mode():
                right = torch.cat([
                    model((x.float() / 255 - mean) / std).argmax(1) == y
                    for x, y in zip(images.split(250), labels.split(250))
                ])
            print(f"{name} {what}: {right[:first].sum()} of the first {first}, {right.sum()} of {len(right)}", flush=True)


if __name__ == "__main__":
    main()
