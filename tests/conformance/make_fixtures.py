"""Writes the conformance fixtures: every family that paring reads, at reduced size, with random weights, saved as its
ecosystem saves it, and the logits that the ecosystem's own code computes (in double precision, so that rounding is on one side alone).

    python3 -m venv venv && venv/bin/pip install torch torchvision timm transformers safetensors
    venv/bin/python tests/conformance/make_fixtures.py [NAME...]       # no name: all
    venv/bin/python tests/conformance/make_fixtures.py --members DIR [NAME...]
    venv/bin/python tests/conformance/make_fixtures.py --full-size DIR [NAME...]

Fixtures go to tests/conformance/fixtures/NAME/, logits and load options to tests/conformance/expected.json.
tests/families.rs loads each and compares. Inputs are not stored: both sides compute them from `pixel`.

A fixture is only worth something if every tensor in it matters. So statistics, biases, gammas, tokens, positions and
tables are random too, and the script perturbs each tensor in turn and refuses a model whose logits do not notice
(but for those that mathematics or inference silences: key biases, mask tokens, unused poolers).
"""

import contextlib
import inspect
import json
import math
import os
import re
import shutil
import sys
import warnings

os.environ.setdefault("OMP_NUM_THREADS", "1")
warnings.filterwarnings("ignore")

import numpy as np
import timm
import timm.models
import torch
import torchvision.models as tv
import transformers as hf
from safetensors.torch import load_file, save_file
from torch import nn

torch.set_num_threads(1)
HERE = os.path.dirname(os.path.abspath(__file__))
CLASSES = 7
IMAGES = 2


def pixels(side):
    """[IMAGES, 3, side, side] in [-2, 2): a 32-bit mix of each element's index (see tests/families.rs)."""
    x = np.arange(IMAGES * 3 * side * side, dtype=np.uint64)
    m = np.uint64(0xFFFFFFFF)
    x = (x + np.uint64(1)) * np.uint64(2654435761) & m
    x ^= x >> np.uint64(15)
    x = x * np.uint64(2246822519) & m
    x ^= x >> np.uint64(13)
    v = (x >> np.uint64(8)).astype(np.float64) / 2**24 * 4 - 2
    return torch.tensor(v.astype(np.float32)).reshape(IMAGES, 3, side, side)


@contextlib.contextmanager
def shrunk(shrink):
    """Within it, convolutions, batch norms and linears are built with `shrink(channels)` channels. For families whose
    constructors fix their widths."""
    inits = [(c, c.__init__) for c in (nn.Conv2d, nn.BatchNorm2d, nn.Linear)]
    keep = {1, 2, 3, CLASSES}
    f = lambda n: n if n in keep else shrink(n)

    signature = inspect.signature(inits[0][1])

    def conv(self, *a, **k):
        k = signature.bind(self, *a, **k).arguments
        i, o, groups = k["in_channels"], k["out_channels"], k.get("groups", 1)
        # A grouped convolution that is not depthwise keeps its number of groups.
        g = f(groups) if groups in (i, o) else groups
        inits[0][1](**k | dict(in_channels=f(i), out_channels=f(o), groups=g))

    def norm(self, n, *a, **k):
        inits[1][1](self, f(n), *a, **k)

    def linear(self, i, o, *a, **k):
        inits[2][1](self, f(i), f(o), *a, **k)

    try:
        nn.Conv2d.__init__, nn.BatchNorm2d.__init__, nn.Linear.__init__ = conv, norm, linear
        yield
    finally:
        for c, init in inits:
            c.__init__ = init


def randomise(model, seed):
    """Random everything, scaled so that signals neither die nor explode: He's scale for matrices."""
    g = torch.Generator().manual_seed(seed)
    normal = lambda t, std, mean=0.0: t.copy_(torch.randn(t.shape, generator=g) * std + mean)
    with torch.no_grad():
        for name, p in model.named_parameters():
            last = name.rsplit(".", 1)[-1]
            if "logit_scale" in last:
                p.copy_(torch.log(torch.rand(p.shape, generator=g) * 6 + 2))
            elif "relative_position_bias_table" in last:
                normal(p, 0.7)
            elif any(w in last for w in ("gamma", "layer_scale", "lambda")):
                p.copy_(torch.rand(p.shape, generator=g) * 0.8 + 0.4)
            elif any(w in name for w in ("token", "pos_embed", "position_embedding", "pos_embedding")):
                normal(p, 0.7)
            elif p.ndim >= 2:
                fan = p[0].numel()
                normal(p, math.sqrt(1.7 / fan))
            elif last == "weight":
                p.copy_(torch.rand(p.shape, generator=g) * 0.8 + 0.6)
            else:
                normal(p, 0.3)
        for name, b in model.named_buffers():
            if name.endswith("running_mean"):
                normal(b, 0.3)
            elif name.endswith("running_var"):
                b.copy_(torch.rand(b.shape, generator=g) * 1.5 + 0.5)


def calibrate(model, run, x):
    """Moves every batch norm's statistics near what flows through it (keeping them random), so that deep convolution
    stacks keep a signal that depends on the image."""
    for m in model.modules():
        if not isinstance(m, nn.BatchNorm2d):
            continue
        seen = []
        hook = m.register_forward_pre_hook(lambda _, a: seen.append(a[0].detach()))
        run(x)
        hook.remove()
        if not seen:
            continue
        t = seen[0].transpose(0, 1).flatten(1)
        with torch.no_grad():
            # Channels that hardly vary are not blown up: that would make rounding visible.
            std = t.std(1)
            std = std.clamp_min(max(1.5 * std.median().item(), 1e-2))
            m.running_mean.mul_(std).add_(t.mean(1))
            m.running_var.mul_(std**2)


def exact(model, x):
    """Logits in double precision: the truth that f32 programs differ from by rounding."""
    y = logits_of(model.double())(x.double()).float()
    model.float()
    return y


def logits_of(model):
    def run(x):
        with torch.no_grad():
            y = model(x)
        return y.logits if hasattr(y, "logits") else y

    return run


# What inference or mathematics silences: softmax ignores what adds the same to every key, masks and poolers are not used.
SILENT = re.compile(r"mask_token|pooler\.|\.k_proj\.bias|key\.bias|k_bias|num_batches_tracked")


def insensitive(model, run, x, base):
    """Names of parameters and statistics whose change the logits do not notice."""
    quiet = []
    tensors = [(n, p) for n, p in model.named_parameters()]
    tensors += [(n, b) for n, b in model.named_buffers() if n.endswith(("running_mean", "running_var"))]
    g = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, t in tensors:
            if SILENT.search(name):
                continue
            old = t.clone()
            t.mul_(1 + 0.2 * torch.rand(t.shape, generator=g))
            change = (run(x) - base).abs().max().item()
            t.copy_(old)
            if change < 3e-4:
                quiet.append(f"{name} ({change:.1e})")
    return quiet


# ---- saving ----------------------------------------------------------------------------------------------------------


def save_torchvision(model, out, **_):
    torch.save(model.state_dict(), os.path.join(out, "model.pth"))


def save_old_vit(model, out, **_):
    """The files that torchvision publishes for ViTs call the MLP's layers `linear_1` and `linear_2`; it renames them
    when it loads."""
    rename = lambda k: k.replace(".mlp.0.", ".mlp.linear_1.").replace(".mlp.3.", ".mlp.linear_2.")
    torch.save({rename(k): v for k, v in model.state_dict().items()}, os.path.join(out, "model.pth"))


def save_timm(model, out, name, args, **_):
    """As `timm.models.push_to_hf_hub` lays out a repository: model.safetensors and config.json."""
    config = dict(model.pretrained_cfg)
    timm.models.save_for_hf(model, out, model_config=dict(pretrained_cfg=config), model_args=args, safe_serialization=True)
    for extra in ("pytorch_model.bin",):
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(out, extra))


def save_hf(model, out, processor=None, **_):
    model.save_pretrained(out, safe_serialization=True)
    if processor is not None:
        with open(os.path.join(out, "preprocessor_config.json"), "w") as f:
            json.dump(processor, f, indent=1)
    for extra in ("README.md", "generation_config.json"):
        with contextlib.suppress(FileNotFoundError):
            os.remove(os.path.join(out, extra))


# ---- the list --------------------------------------------------------------------------------------------------------

FIXTURES = {}


def fixture(name, image, save, file=None, options=None):
    """Registers a builder that returns (model, save's keyword arguments). `file`: the path that paring opens, relative
    to the fixture's folder. `options`: what weights do not tell (image side, heads)."""

    def wrap(f):
        FIXTURES[name] = (f, image, save, file, options or {})
        return f

    return wrap


def torchvision(name, image, **options):
    options = {"image": image, **options}
    return fixture(f"torchvision_{name}", image, save_torchvision, "model.pth", options)


def timm_model(label, arch, image, shrink=None, options=None, **args):
    def build():
        with shrunk(shrink) if shrink else contextlib.nullcontext():
            model = timm.create_model(arch, pretrained=False, num_classes=CLASSES, **args)
        cfg = dict(model.pretrained_cfg, input_size=(3, image, image), num_classes=CLASSES)
        model.pretrained_cfg = cfg
        plain = {k: v for k, v in args.items() if isinstance(v, (int, float, str, bool, list, tuple))}
        return model, dict(name=arch, args=plain)

    fixture(f"timm_{label}", image, save_timm, None, options)(build)


def hf_model(label, cls, config, image, mean=0.5, std=0.5, resample=3, **extra):
    def build():
        model = getattr(hf, cls)(getattr(hf, config)(num_labels=CLASSES, **extra))
        size = {"height": image, "width": image}
        processor = dict(do_resize=True, size=size, resample=resample, do_rescale=True, rescale_factor=1 / 255)
        processor |= dict(do_normalize=True, image_mean=[mean] * 3, image_std=[std] * 3)
        return model, dict(processor=processor)

    fixture(f"hf_{label}", image, save_hf)(build)


by16 = lambda n: max(4, n // 16)
# Narrower still for the wide layers, where most weights are; different widths stay different.
mobile = lambda n: max(4, n // 4 if n <= 48 else 8 + n // 12 if n <= 200 else 20 + n // 40)
vgg = lambda n: {64: 4, 128: 6, 256: 8, 512: 10, 4096: 16, 512 * 49: 490}.get(n, n)


# ResNets


def resnet(block, layers, **args):
    def build():
        with shrunk(by16):
            return tv.ResNet(block, layers, num_classes=CLASSES, **args), {}

    return build


from torchvision.models.resnet import BasicBlock, Bottleneck

torchvision("resnet_basic", 48)(resnet(BasicBlock, [2, 1, 1, 1]))
torchvision("resnet_bottleneck", 48)(resnet(Bottleneck, [1, 2, 1, 1]))
torchvision("wide_resnet", 48)(resnet(Bottleneck, [1, 1, 1, 1], width_per_group=128))
timm_model("resnet18", "resnet18", 48, shrink=by16)
timm_model("resnet50", "resnet50", 48, shrink=by16, layers=(1, 1, 2, 1))
timm_model("resnext", "resnext50_32x4d", 48, shrink=by16, layers=(1, 1, 1, 1), cardinality=4, base_width=32)
hf_model("resnet_basic", "ResNetForImageClassification", "ResNetConfig", 48, embedding_size=8,
         hidden_sizes=[8, 12, 16, 24], depths=[2, 1, 1, 1], layer_type="basic")
hf_model("resnet_bottleneck", "ResNetForImageClassification", "ResNetConfig", 48, embedding_size=8,
         hidden_sizes=[16, 24, 32, 40], depths=[1, 2, 1, 1], layer_type="bottleneck")

# VGG: at 224 px the pooling to 7x7 is the identity, at others it is not.


def vgg_model(build_fn):
    def build():
        with shrunk(vgg):
            return build_fn(num_classes=CLASSES, weights=None), {}

    return build


torchvision("vgg11", 224)(vgg_model(tv.vgg11))
torchvision("vgg11_bn", 96)(vgg_model(tv.vgg11_bn))
timm_model("vgg11", "vgg11", 224, shrink=vgg)
timm_model("vgg13_bn", "vgg13_bn", 224, shrink=vgg)

# MobileNets and EfficientNets


def mobile_tv(build_fn, **args):
    def build():
        with shrunk(mobile):
            return build_fn(num_classes=CLASSES, **args), {}

    return build


torchvision("mobilenet_v2", 64)(mobile_tv(tv.MobileNetV2))
torchvision("mobilenet_v3_small", 64)(mobile_tv(tv.mobilenet_v3_small, weights=None))
torchvision("mobilenet_v3_large", 64)(mobile_tv(tv.mobilenet_v3_large, weights=None))
torchvision("efficientnet_b0", 64)(mobile_tv(tv.efficientnet_b0, weights=None))
timm_model("mobilenetv2_100", "mobilenetv2_100", 64, shrink=mobile)
timm_model("mobilenetv3_small_100", "mobilenetv3_small_100", 64, shrink=mobile)
timm_model("mobilenetv3_large_100", "mobilenetv3_large_100", 64, shrink=mobile)
timm_model("efficientnet_b0", "efficientnet_b0", 64, shrink=mobile)
timm_model("tf_efficientnet_b0", "tf_efficientnet_b0", 63, shrink=mobile)
hf_model("mobilenet_v2", "MobileNetV2ForImageClassification", "MobileNetV2Config", 64, depth_multiplier=0.125,
         depth_divisible_by=2, min_depth=4, finegrained_output=False)
hf_model("mobilenet_v2_odd", "MobileNetV2ForImageClassification", "MobileNetV2Config", 65, depth_multiplier=0.125,
         depth_divisible_by=2, min_depth=4, finegrained_output=False, first_layer_is_expansion=True)
hf_model("efficientnet_b0", "EfficientNetForImageClassification", "EfficientNetConfig", 64, width_coefficient=0.125,
         depth_coefficient=0.5, depth_divisor=2, hidden_dim=160, image_size=64, depthwise_padding=[3])

# ConvNeXt


@torchvision("convnext", 64)
def convnext_tv():
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    blocks = [CNBlockConfig(8, 16, 1), CNBlockConfig(16, 24, 1), CNBlockConfig(24, 32, 2), CNBlockConfig(32, None, 1)]
    return ConvNeXt(blocks, num_classes=CLASSES), {}


timm_model("convnext", "convnext_tiny", 64, dims=(8, 16, 24, 32), depths=(1, 1, 2, 1))
timm_model("convnext_atto", "convnext_atto", 64, dims=(8, 16, 24, 32), depths=(1, 1, 2, 1))
hf_model("convnext", "ConvNextForImageClassification", "ConvNextConfig", 64, hidden_sizes=[8, 16, 24, 32],
         depths=[1, 1, 2, 1], image_size=64)

# ViT, DeiT, DINOv2


@torchvision("vit", 32, heads=3)
def vit_tv():
    return tv.VisionTransformer(32, 8, 2, 3, 24, 40, num_classes=CLASSES), {}


@fixture("torchvision_vit_linear_names", 32, save_old_vit, "model.pth", {"image": 32, "heads": 3})
def vit_tv_old():
    return tv.VisionTransformer(32, 8, 2, 3, 24, 40, num_classes=CLASSES), {}


VIT = dict(embed_dim=24, depth=2, num_heads=3, img_size=32, patch_size=8)
timm_model("vit", "vit_base_patch16_224", 32, **VIT)
timm_model("vit_gap", "vit_base_patch16_224", 32, global_pool="avg", **VIT)
timm_model("vit_gap_no_class_token", "vit_base_patch16_224", 32, global_pool="avg", class_token=False, **VIT)
timm_model("deit", "deit_small_patch16_224", 32, **VIT)
timm_model("deit_distilled", "deit_small_distilled_patch16_224", 32, **VIT)
timm_model("deit3", "deit3_small_patch16_224", 32, **VIT)
timm_model("dinov2", "vit_small_patch14_dinov2", 28, **VIT | dict(img_size=28, patch_size=14))
timm_model("dinov2_reg4", "vit_small_patch14_reg4_dinov2", 28, **VIT | dict(img_size=28, patch_size=14))
timm_model("dinov2_swiglu", "vit_giant_patch14_dinov2", 28, **VIT | dict(img_size=28, patch_size=14))
timm_model("vit_clip", "vit_base_patch32_clip_224", 32, **VIT)

VIT_HF = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=3, image_size=32, patch_size=8)
hf_model("vit", "ViTForImageClassification", "ViTConfig", 32, intermediate_size=40, **VIT_HF)
hf_model("deit", "DeiTForImageClassification", "DeiTConfig", 32, intermediate_size=40, **VIT_HF)
hf_model("deit_distilled", "DeiTForImageClassificationWithTeacher", "DeiTConfig", 32, intermediate_size=40, **VIT_HF)
hf_model("dinov2", "Dinov2ForImageClassification", "Dinov2Config", 32, mlp_ratio=2, **VIT_HF)
hf_model("dinov2_swiglu", "Dinov2ForImageClassification", "Dinov2Config", 32, mlp_ratio=2, use_swiglu_ffn=True, **VIT_HF)
hf_model("dinov2_registers", "Dinov2WithRegistersForImageClassification", "Dinov2WithRegistersConfig", 32,
         mlp_ratio=2, num_register_tokens=3, **VIT_HF)

# Swin: windows of 4 on 8x8 and 4x4 patches, so that the first stage shifts and the second does not.


def swin_tv(v2):
    def build():
        from torchvision.models.swin_transformer import PatchMergingV2, SwinTransformerBlockV2

        args = dict(block=SwinTransformerBlockV2, downsample_layer=PatchMergingV2) if v2 else {}
        model = tv.SwinTransformer([4, 4], 12, [2, 2], [2, 3], [4, 4], mlp_ratio=2.0, num_classes=CLASSES, **args)
        return model, {}

    return build


torchvision("swin", 32)(swin_tv(False))
torchvision("swin_v2", 32)(swin_tv(True))
SWIN = dict(img_size=32, patch_size=4, embed_dim=12, depths=(2, 2), num_heads=(2, 3), window_size=4, mlp_ratio=2.0)
timm_model("swin", "swin_tiny_patch4_window7_224", 32, **SWIN)
timm_model("swinv2", "swinv2_tiny_window8_256", 32, **SWIN)
timm_model("swinv2_pretrained_window", "swinv2_base_window12to16_192to256", 32, pretrained_window_sizes=(2, 2), **SWIN)
SWIN_HF = dict(image_size=32, patch_size=4, embed_dim=12, depths=[2, 2], num_heads=[2, 3], window_size=4, mlp_ratio=2.0)
hf_model("swin", "SwinForImageClassification", "SwinConfig", 32, **SWIN_HF)
hf_model("swinv2", "Swinv2ForImageClassification", "Swinv2Config", 32, **SWIN_HF)


# ---- other members of the families, by hand ---------------------------------------------------------------------------

STORED = dict(FIXTURES)
FIXTURES.clear()

# Networks that differ from the stored ones in numbers alone: they add nothing to the stored ones but a test of that.
hf_model("resnet_three_stages", "ResNetForImageClassification", "ResNetConfig", 48, hidden_sizes=[64, 128, 256], depths=[2, 3, 2])
hf_model("resnet_five_stages", "ResNetForImageClassification", "ResNetConfig", 96, embedding_size=8, layer_type="basic",
         hidden_sizes=[8, 12, 16, 24, 32], depths=[1, 2, 1, 1, 1], downsample_in_first_stage=True, hidden_act="gelu")
for arch in ("resnet26", "resnet34", "wide_resnet50_2"):
    timm_model(arch, arch, 48, shrink=by16)
# Of its own widths: shrunk, some that differ would be the same, and add what this network does not.
timm_model("mobilenetv2_050", "mobilenetv2_050", 64)
for arch in ("mobilenetv2_110d", "mobilenetv2_120d", "mobilenetv2_140", "mobilenetv3_large_150d",
             "mobilenetv3_small_075", "efficientnet_b1", "efficientnet_b4", "tf_efficientnet_b2"):
    timm_model(arch, arch, 64, shrink=mobile)
# (expansion, width, blocks, stride) of each stage: 1.2 times as deep.
DEEPER = [[1, 16, 1, 1], [6, 24, 3, 2], [6, 32, 4, 2], [6, 64, 5, 2], [6, 96, 4, 1], [6, 160, 4, 2], [6, 320, 1, 1]]
torchvision("mobilenet_v2_deeper", 64)(mobile_tv(tv.MobileNetV2, inverted_residual_setting=DEEPER))
torchvision("efficientnet_b4", 64)(mobile_tv(tv.efficientnet_b4, weights=None))
# Of its full width, which tells that its epsilon is another.
torchvision("efficientnet_b5", 64)(lambda: (tv.efficientnet_b5(num_classes=CLASSES, weights=None), {}))
hf_model("mobilenet_v2_relu", "MobileNetV2ForImageClassification", "MobileNetV2Config", 64, depth_multiplier=0.25,
         depth_divisible_by=4, min_depth=4, finegrained_output=False, hidden_act="relu", tf_padding=False)
hf_model("efficientnet_deeper", "EfficientNetForImageClassification", "EfficientNetConfig", 64, width_coefficient=0.125,
         depth_coefficient=1.4, depth_divisor=2, hidden_dim=160, image_size=64, depthwise_padding=[5])
timm_model("vit_medium_gap", "vit_medium_patch16_gap_240", 32, **VIT)
timm_model("vit_no_norm", "vit_base_patch16_224", 32, final_norm=False, **VIT)
timm_model("vit_mean_no_norm", "vit_base_patch16_224", 32, final_norm=False, class_token=False, global_pool="avg", **VIT)
timm_model("vit_reg_gap", "vit_little_patch16_reg4_gap_256", 32, **VIT)
hf_model("swin_three_stages", "SwinForImageClassification", "SwinConfig", 32, image_size=32, patch_size=2, embed_dim=12,
         depths=[2, 1, 2], num_heads=[2, 3, 4], window_size=4)

MEMBERS, FIXTURES = FIXTURES, STORED


# ---- variants of files -----------------------------------------------------------------------------------------------


def variants(entries, only):
    """hf_vit again in shards, in f16 and in bf16: the same files as `save_pretrained` and `half()` make."""
    base = os.path.join(HERE, "fixtures", "hf_vit")
    want = lambda n: not only or n in only
    for dtype in ("float16", "bfloat16"):
        name = f"hf_vit_{dtype}"
        if not want(name):
            continue
        model = hf.ViTForImageClassification.from_pretrained(base, dtype=getattr(torch, dtype))
        out = fresh(name)
        model.save_pretrained(out)
        shutil.copy(os.path.join(base, "preprocessor_config.json"), out)
        # The values are what was rounded; the arithmetic is f32 on both sides.
        entries[name] = entry(model.float().eval(), "", 32, {}, check=False)
    if want("hf_vit_sharded"):
        model = hf.ViTForImageClassification.from_pretrained(base)
        out = fresh("hf_vit_sharded")
        model.save_pretrained(out, max_shard_size="20KB")
        shutil.copy(os.path.join(base, "preprocessor_config.json"), out)
        assert os.path.exists(os.path.join(out, "model.safetensors.index.json")), "it was not sharded"
        entries["hf_vit_sharded"] = entry(model.eval(), "", 32, {}, check=False)


def fresh(name):
    out = os.path.join(HERE, "fixtures", name)
    shutil.rmtree(out, ignore_errors=True)
    os.makedirs(out)
    return out


def entry(model, file, image, options, check=True):
    run, x = logits_of(model), pixels(image)
    y = run(x)
    assert y.shape == (IMAGES, CLASSES), y.shape
    truth = exact(model, x)
    rounding = (y - truth).abs().max().item()
    assert rounding < 2e-5, f"f32 itself is off by {rounding}: badly conditioned"
    if check:
        quiet = insensitive(model, run, x, y)
        assert not quiet, f"the logits do not notice {quiet}"
    y = truth
    spread, apart = y.std().item(), (y[0] - y[1]).abs().max().item()
    assert 0.1 < spread < 20 and apart > 0.05, f"spread {spread}, apart {apart}"
    params = sum(p.numel() for p in model.parameters())
    return dict(file=file, image=image, options=options, parameters=params, logits=y.tolist())


def build(name):
    """Tries a few seeds: narrow ReLUs between squeeze and excitation may all be off."""
    for attempt in range(8):
        try:
            return build_with(name, sum(name.encode()) + 1000 * attempt)
        except AssertionError:
            if attempt == 7:
                raise


def build_with(name, seed):
    f, image, save, file, options = FIXTURES[name]
    torch.manual_seed(0)
    model, args = f()
    model.eval()
    run, x = logits_of(model), pixels(image)
    randomise(model, seed)
    calibrate(model, run, x)
    # Logits of order one, whatever the depth.
    with torch.no_grad():
        scale = 1.0 / max(run(x).std().item(), 1e-6)
        for n, p in model.named_parameters():
            if re.search(r"(^|\.)(head|fc|classifier|cls_classifier|distillation_classifier|head_dist|heads)(\.\w+)?\.(weight|bias)$", n):
                if p.shape[0] == CLASSES:
                    p.mul_(scale)
    # Whether every tensor matters is asked of the stored ones.
    result = entry(model, file or "", image, options, check=FIXTURES is not MEMBERS)
    save(model, fresh(name), **args)
    return result


# ---- full size, by hand ----------------------------------------------------------------------------------------------


def full_size(root, only):
    """Networks as published, with random weights, from every source: DIR/NAME/ and DIR/expected.json, for
    `PARING_FULL_SIZE=DIR cargo test --test families full_size -- --ignored --nocapture`."""
    labels = {i: f"class {i}" for i in range(1000)}
    make = {
        "torchvision_resnet101": lambda: tv.resnet101(weights=None),
        "timm_resnet101": lambda: timm.create_model("resnet101"),
        "hf_resnet101": lambda: hf.ResNetForImageClassification(hf.ResNetConfig(depths=[3, 4, 23, 3], id2label=labels)),
        "torchvision_vit_b_16": lambda: tv.vit_b_16(weights=None),
        "timm_vit_base_patch16_224": lambda: timm.create_model("vit_base_patch16_224"),
        "hf_vit_base": lambda: hf.ViTForImageClassification(hf.ViTConfig(id2label=labels)),
        "torchvision_swin_b": lambda: tv.swin_b(weights=None),
        "timm_swin_base_patch4_window7_224": lambda: timm.create_model("swin_base_patch4_window7_224"),
        "hf_swin_base": lambda: hf.SwinForImageClassification(hf.SwinConfig(
            embed_dim=128, depths=[2, 2, 18, 2], num_heads=[4, 8, 16, 32], id2label=labels)),
        "timm_deit_base_patch16_224": lambda: timm.create_model("deit_base_patch16_224"),
        "hf_deit_base": lambda: hf.DeiTForImageClassification(hf.DeiTConfig(id2label=labels)),
        # Figures only: parameters and sizes of the smaller ones.
        "torchvision_mobilenet_v2": lambda: tv.mobilenet_v2(weights=None),
        "torchvision_mobilenet_v3_large": lambda: tv.mobilenet_v3_large(weights=None),
        "torchvision_efficientnet_b3": lambda: tv.efficientnet_b3(weights=None),
        "torchvision_vgg16_bn": lambda: tv.vgg16_bn(weights=None),
        "torchvision_convnext_tiny": lambda: tv.convnext_tiny(weights=None),
        "torchvision_swin_v2_t": lambda: tv.swin_v2_t(weights=None),
        "torchvision_resnext101_32x8d": lambda: tv.resnext101_32x8d(weights=None),
    }
    path = os.path.join(root, "expected.json")
    entries = json.load(open(path))["fixtures"] if os.path.exists(path) else {}
    for name, f in make.items():
        if only and name not in only:
            continue
        torch.manual_seed(0)
        model = f().eval()
        side = {"torchvision_efficientnet_b3": 300, "torchvision_swin_v2_t": 256}.get(name, 224)
        run, x = logits_of(model), pixels(side)[:1]
        randomise(model, sum(name.encode()))
        calibrate(model, run, x)
        y = run(x)
        scale = 1.0 / y.std().item()
        with torch.no_grad():
            for _, p in list(model.named_parameters())[-2:]:
                p.mul_(scale)
        rounding, y = run(x), exact(model, x)
        rounding = (rounding - y).abs().max().item()
        out = os.path.join(root, name)
        shutil.rmtree(out, ignore_errors=True)
        os.makedirs(out)
        file, options = "", {}
        if name.startswith("torchvision"):
            save_torchvision(model, out)
            file, options = "model.pth", {"image": side}
        elif name.startswith("timm"):
            timm.models.save_for_hf(model, out, model_config=dict(pretrained_cfg=dict(model.pretrained_cfg)), safe_serialization=True)
        else:
            save_hf(model, out)
        params = sum(p.numel() for p in model.parameters())
        entries[name] = dict(file=file, image=side, options=options, parameters=params, logits=y.tolist())
        with open(path, "w") as out:
            json.dump({"fixtures": entries}, out)
        print(f"{name}: {params} parameters, logits of {y.std().item():.2f}, PyTorch's f32 off by {rounding:.1e}")


def main():
    global HERE, FIXTURES
    if sys.argv[1:2] == ["--full-size"]:
        return full_size(sys.argv[2], sys.argv[3:])
    only = sys.argv[1:]
    if sys.argv[1:2] == ["--members"]:
        HERE, only, FIXTURES = sys.argv[2], sys.argv[3:], MEMBERS
    path = os.path.join(HERE, "expected.json")
    entries = json.load(open(path))["fixtures"] if os.path.exists(path) else {}
    failed = []
    for name in FIXTURES:
        if only and name not in only:
            continue
        try:
            entries[name] = build(name)
            size = sum(os.path.getsize(os.path.join(HERE, "fixtures", name, f)) for f in os.listdir(os.path.join(HERE, "fixtures", name)))
            print(f"{name}: {entries[name]['parameters']} parameters, {size / 1e3:.0f} kB")
        except Exception as e:  # one bad fixture must not hide the others
            failed.append(name)
            shutil.rmtree(os.path.join(HERE, "fixtures", name), ignore_errors=True)
            entries.pop(name, None)
            print(f"{name}: FAILED {type(e).__name__}: {e}")
    if FIXTURES is not MEMBERS:
        variants(entries, only)
    made_with = {m.__name__: m.__version__ for m in (torch, timm, hf)} | {"torchvision": __import__("torchvision").__version__}
    with open(path, "w") as f:
        json.dump({"made_with": made_with, "fixtures": dict(sorted(entries.items()))}, f, indent=1)
    total = sum(os.path.getsize(os.path.join(d, f)) for d, _, fs in os.walk(os.path.join(HERE, "fixtures")) for f in fs)
    print(f"{len(entries)} fixtures, {total / 1e6:.1f} MB; failed: {failed or 'none'}")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
