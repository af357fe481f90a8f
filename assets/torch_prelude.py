"""Rebuilds a model that paring compressed, in PyTorch alone.

    from model import load
    net = load()            # torch.nn.Module in evaluation mode, weights from model.safetensors beside this file
    logits = net(images)    # [N, C, H, W], normalised as in model.json

The state dict has the checkpoint's own tensor names, with the shapes that are left. Written by paring; the part below
the line is generated.
"""

import json
import math
import os

import torch
import torch.nn.functional as F
from torch import nn


def _windows(grid, size, shift):
    """Which token stands where, window by window, and which part of the grid it comes from."""
    h, w = grid
    ids = torch.arange(h * w).reshape(h, w)
    part = torch.zeros(h, w, dtype=torch.long)
    for axis, factor in ((0, 3), (1, 1)):
        n, s, d = grid[axis], size[axis], shift[axis]
        p = torch.arange(n)
        zone = ((p >= n - s).long() + (p >= n - d).long()) * factor if d else torch.zeros(n, dtype=torch.long)
        part += zone.reshape(-1, 1) if axis == 0 else zone.reshape(1, -1)
    ids = torch.roll(ids, (-shift[0], -shift[1]), (0, 1))

    def cut(t):
        t = t.reshape(h // size[0], size[0], w // size[1], size[1])
        return t.permute(0, 2, 1, 3).reshape(-1, size[0] * size[1])

    return cut(ids), cut(part)


def _relative_index(size):
    h, w = size
    y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    y, x = y.flatten(), x.flatten()
    return (y[:, None] - y[None, :] + h - 1) * (2 * w - 1) + (x[:, None] - x[None, :] + w - 1)


def _log_coordinates(size, trained):
    sides = []
    for n, t in zip(size, trained):
        r = torch.arange(-(n - 1), n, dtype=torch.float64) / (max(t or n, 2) - 1) * 8
        sides.append(torch.sign(r) * torch.log2(r.abs() + 1) / 3)
    y, x = torch.meshgrid(*sides, indexing="ij")
    return torch.stack([y.flatten(), x.flatten()], 1).float()


def _attention(q, k, v, heads, scale, bias=None, factors=None, windows=None, group=1, causal=False, most=None,
               cap=None, reach=None):
    """Softmax attention over `[N, tokens, heads * width]`; `bias` is `[heads, n, n]`; `group` heads share keys and values. A
    token sees the last `most` tokens, or those within `reach` on both sides; scores are capped at `cap`."""
    n, tokens, _ = q.shape
    mask = None
    if windows is not None:
        order, part = (t.to(q.device) for t in _windows(*windows))
        q, k, v = (t[:, order.flatten()].reshape(n * order.shape[0], order.shape[1], -1) for t in (q, k, v))
        if any(windows[2]):
            mask = (part[:, :, None] != part[:, None, :]).float() * -100.0
    q, k, v = (
        t.reshape(t.shape[0], t.shape[1], h, -1).transpose(1, 2)
        for t, h in ((q, heads), (k, heads // group), (v, heads // group))
    )
    if group > 1:
        k, v = (t.repeat_interleave(group, 1) for t in (k, v))
    if factors is not None:
        q = F.normalize(q, dim=-1) * factors.clamp(max=math.log(100.0)).exp()
        k = F.normalize(k, dim=-1)
    scores = q @ k.transpose(-2, -1) * scale
    if bias is not None:
        scores = scores + bias
    if cap is not None:
        scores = cap * (scores / cap).tanh()
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril()
        if most is not None:
            seen = seen.triu(1 - most)
        scores = scores.masked_fill(~seen, float("-inf"))
    if reach is not None:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).tril(reach).triu(-reach)
        scores = scores.masked_fill(~seen, float("-inf"))
    if mask is not None:
        scores = (scores.reshape(n, mask.shape[0], heads, *mask.shape[1:]) + mask[None, :, None]).reshape(scores.shape)
    y = (scores.softmax(-1) @ v).transpose(1, 2)
    y = y.reshape(y.shape[0], y.shape[1], -1)
    if windows is not None:
        back = torch.empty_like(order.flatten())
        back[order.flatten()] = torch.arange(tokens, device=back.device)
        y = y.reshape(n, tokens, -1)[:, back]
    return y


def _route(logits, top, normalised):
    """Weights of a mixture's experts: a softmax of which the `top` largest stay, divided by their sum if `normalised`."""
    weights = logits.softmax(-1)
    kept, at = weights.topk(top, -1)
    if normalised:
        kept = kept / kept.sum(-1, keepdim=True)
    return torch.zeros_like(weights).scatter(-1, at, kept)


def _rope(x, head_dim, turned, theta, halves, divisors=(), factor=1.0, beyond=None):
    """Rotary positions of `[N, tokens, heads * head_dim]`: the first `turned` values of each head, in pairs. Frequencies are
    divided by `divisors`; `beyond`: of more tokens than its first by its second, or with a base grown by its third."""
    if beyond is not None and x.shape[1] > beyond[0]:
        if beyond[1] is not None:
            divisors = beyond[1]
        else:
            theta *= (beyond[2] * x.shape[1] / beyond[0] - (beyond[2] - 1)) ** (turned / (turned - 2))
    frequencies = 1.0 / theta ** (torch.arange(0, turned, 2, dtype=torch.float64, device=x.device) / turned)
    if divisors:
        frequencies = frequencies / torch.tensor(divisors, dtype=torch.float64, device=x.device)
    angles = torch.arange(x.shape[1], device=x.device)[:, None] * frequencies.float()
    cos, sin = angles.cos()[:, None] * factor, angles.sin()[:, None] * factor
    heads = x.unflatten(-1, (-1, head_dim))
    first, rest = heads[..., :turned], heads[..., turned:]
    a, b = first.chunk(2, -1) if halves else (first[..., 0::2], first[..., 1::2])
    y, z = a * cos - b * sin, b * cos + a * sin
    first = torch.cat((y, z), -1) if halves else torch.stack((y, z), -1).flatten(-2)
    return torch.cat((first, rest), -1).flatten(-2)


def _over_channels(f, x):
    """Runs `f`, which works over the last axis, over the channels of images as well."""
    return f(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2) if x.dim() == 4 else f(x)


def _batch_norm(x, p, name, names, eps, training):
    rows = x.transpose(1, 2) if x.dim() == 3 else x
    w, b, mean, var = (p(n) for n in names)
    y = F.batch_norm(rows, mean, var, w, b, training, 0.1, eps)
    return y.transpose(1, 2) if x.dim() == 3 else y


def _channel_map(x, stride, index):
    """Channel `j` of the result is channel `index[j]`, or zero where that is -1."""
    axis = 1 if x.dim() == 4 else x.dim() - 1
    if stride > 1:
        x = x[:, :, ::stride, ::stride]
    index = torch.tensor(index, device=x.device)
    y = x.index_select(axis, index.clamp(min=0))
    shape = [1] * x.dim()
    shape[axis] = -1
    return y * (index >= 0).to(y.dtype).reshape(shape)


def _per_channel(v, x):
    return v.reshape(1, -1, 1, 1) if x.dim() == 4 else v


def _multiply(a, b):
    if a.shape != b.shape:
        b = b[:, :, None, None] if a.dim() == 4 else b[:, None, :]
    return a * b


def _max_pool(x, kernel, stride, padding):
    t, l, b, r = padding
    return F.max_pool2d(F.pad(x, (l, r, t, b), value=float("-inf")), kernel, stride)


def _avg_pool(x, kernel, stride, padding, count_padding):
    t, l, b, r = padding
    mean = F.avg_pool2d(F.pad(x, (l, r, t, b)), kernel, stride)
    if count_padding:
        return mean
    return mean / F.avg_pool2d(F.pad(torch.ones_like(x[:1, :1]), (l, r, t, b)), kernel, stride)


def _patch_merge(x, h, w):
    n, _, d = x.shape
    return x.reshape(n, h // 2, 2, w // 2, 2, d).permute(0, 1, 3, 4, 2, 5).reshape(n, h // 2 * (w // 2), 4 * d)


class _Tensors(nn.Module):
    """Tensors under dotted names, so that the state dict has the checkpoint's keys."""

    def put(self, name, value, trained):
        *path, last = name.split(".")
        at = self
        for part in path:
            if part not in at._modules:
                at.add_module(part, nn.Module())
            at = at._modules[part]
        if trained:
            at.register_parameter(last, nn.Parameter(value))
        else:
            at.register_buffer(last, value)

    def p(self, name):
        at = self
        for part in name.split("."):
            at = at._modules.get(part, None) if part in at._modules else getattr(at, part)
        return at


def load(path=None):
    """The network with its weights, in evaluation mode."""
    from safetensors.torch import load_file

    tensors = load_file(path or os.path.join(os.path.dirname(os.path.abspath(__file__)), WEIGHTS))
    return Net(tensors).eval()


def _of_rank(value, rank):
    """1x1 convolutions, linears and scales differ by axes of length 1 only."""
    while value.dim() > rank and value.shape[-1] == 1:
        value = value.squeeze(-1)
    while value.dim() < rank:
        value = value.unsqueeze(-1)
    return value


def _two(module, inner, outer):
    """What stands for a layer with low-rank factors of its weights."""
    bias = module.bias is not None
    if isinstance(module, nn.Linear):
        return nn.Sequential(nn.Linear(*inner.shape[::-1], bias=False), nn.Linear(*outer.shape[::-1], bias=bias))
    first = nn.Conv2d(inner.shape[1], inner.shape[0], module.kernel_size, module.stride, module.padding, bias=False)
    return nn.Sequential(first, nn.Conv2d(outer.shape[1], outer.shape[0], 1, bias=bias))


def fit(network, path=None):
    """Gives a torchvision, timm or transformers network of this architecture the shapes and weights that are left.

    `network` is built as usual, with the original configuration; its modules keep their types and code. Returns it.
    Raises ValueError where that code cannot express what is left (pruned heads in torch's MultiheadAttention, in
    torchvision's Swin and in Swin v2) or names its tensors otherwise; `load` covers everything.
    """
    from safetensors.torch import load_file

    tensors = load_file(path or os.path.join(os.path.dirname(os.path.abspath(__file__)), WEIGHTS))
    modules = dict(network.named_modules())
    for name in REMOVED:
        parent, _, last = name.rpartition(".")
        setattr(modules[parent], last, nn.Identity())
    for name in FACTORS:
        parent, _, last = name.rpartition(".")
        module = modules.get(name)
        if not isinstance(module, (nn.Conv2d, nn.Linear)) or isinstance(modules[parent], nn.MultiheadAttention):
            raise ValueError(f"the network has no layer {name} that two could stand for: load() needs no network")
        setattr(modules[parent], last, _two(module, tensors[name + ".0.weight"], tensors[name + ".1.weight"]))
    modules = dict(network.named_modules())
    for name, value in tensors.items():
        owner, _, last = name.rpartition(".")
        if owner not in modules or not hasattr(modules[owner], last):
            raise ValueError(f"the network has no {name} (other versions may name it otherwise): load() needs no network")
        module, old = modules[owner], getattr(modules[owner], last)
        if old is None:
            # timm's Swin v2 keeps the biases of queries and values apart.
            parent = modules.get(owner.rpartition(".")[0])
            if not hasattr(parent, "q_bias"):
                raise ValueError(f"the network has no {name}: load() needs no network")
            n = len(value) // 3
            parent.q_bias, parent.v_bias = nn.Parameter(value[:n]), nn.Parameter(value[2 * n:])
            if getattr(parent, "k_bias", None) is not None:
                parent.k_bias = value[n:2 * n]
            continue
        if type(module).__name__ in ("Gemma2RMSNorm", "Gemma3RMSNorm"):
            # Their code adds 1, which is in the weight here.
            value = value - 1
        value = _of_rank(value, old.dim()).to(old.dtype)
        if isinstance(old, nn.Parameter):
            setattr(module, last, nn.Parameter(value, requires_grad=old.requires_grad))
        else:
            setattr(module, last, value)
    for name, groups in GROUPS.items():
        modules[name].groups = groups
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            module.out_channels = module.weight.shape[0]
            module.in_channels = module.weight.shape[1] * module.groups
        elif isinstance(module, nn.Linear):
            module.out_features, module.in_features = module.weight.shape
        elif isinstance(module, nn.BatchNorm2d):
            module.num_features = module.running_mean.shape[0]
    for name, (heads, width) in ATTENTION.items():
        # The core is named after its attention module or the block around it.
        path, found = name, []
        while path and not found:
            inside = (m for n, m in modules.items() if n == path or n.startswith(path + "."))
            found = [m for m in inside if hasattr(m, "num_heads") or hasattr(m, "num_attention_heads")]
            path = path.rpartition(".")[0]
        for module in found:
            before = getattr(module, "num_heads", getattr(module, "num_attention_heads", None))
            # Code that takes the width of what leaves from what enters.
            fixed = isinstance(module, nn.MultiheadAttention) or hasattr(module, "cpb_mlp")
            fixed = fixed or type(module).__name__.startswith("ShiftedWindowAttention")
            if fixed and before != heads:
                raise ValueError(f"{type(module).__name__} cannot have {heads} of {before} heads: load() needs no network")
            for attribute, value in (("num_heads", heads), ("num_attention_heads", heads),
                                     ("attn_dim", heads * width), ("all_head_size", heads * width)):
                if hasattr(module, attribute):
                    setattr(module, attribute, value)
    return network


# --------------------------------------------------------------------------------------------------------------------
