"""Builds networks of each family at reduced size with random weights, exports them with PyTorch's exporters, and
records what PyTorch computes. Run by hand:

    OMP_NUM_THREADS=1 python tests/conformance/make_onnx.py OUT [NAME ...]

Needs torch, torchvision, timm, transformers, onnx, onnxscript. Writes OUT/NAME.onnx and OUT/expected.json (logits of
one input that is made by formula, so that it need not be stored). With `--fixtures` only the small ones that the
repository keeps are written.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from torch import nn

warnings.filterwarnings("ignore")


def image(side, channels=3):
    """`[1, c, side, side]`, values in -1.5..1.5 without a pattern a network could be symmetric under."""
    n = channels * side * side
    i = np.arange(n, dtype=np.int64)
    return torch.from_numpy((((i * 7919 + 13) % 2003) / 667.0 - 1.5).astype(np.float32)).reshape(1, channels, side, side)


def scramble(model, seed):
    """Random weights, biases and statistics of sane size, so that no branch is idle."""
    g = torch.Generator().manual_seed(seed)
    rand = lambda p: torch.rand(p.shape, generator=g)
    with torch.no_grad():
        for m in model.modules():
            if isinstance(m, (nn.BatchNorm1d, nn.BatchNorm2d)):
                m.running_mean.copy_(rand(m.running_mean) * 0.4 - 0.2)
                m.running_var.copy_(rand(m.running_var) + 0.5)
        for name, p in model.named_parameters():
            leaf = name.rsplit(".", 1)[-1]
            if p.ndim >= 2 and "logit_scale" not in name:
                fan = p[0].numel()
                p.copy_((rand(p) * 2 - 1) * (3.0 / fan) ** 0.5)
            elif "logit_scale" in name:
                p.copy_(rand(p) + 1.5)
            elif leaf == "bias":
                p.copy_(rand(p) * 0.2 - 0.1)
            else:
                p.copy_(rand(p) * 0.5 + 0.75)
    return model.eval()


class Logits(nn.Module):
    """The logits of a Hugging Face model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x).logits


def timm_model(name, **kw):
    import timm

    return timm.create_model(name, pretrained=False, num_classes=7, **kw)


def tv(name, **kw):
    import torchvision

    return getattr(torchvision.models, name)(num_classes=7, **kw)


def tv_resnet(block, layers, **kw):
    from torchvision.models.resnet import ResNet

    return ResNet(block, layers, num_classes=7, **kw)


def hf(cls, config, **kw):
    import transformers

    config = getattr(transformers, config)(num_labels=7, **kw)
    return Logits(getattr(transformers, cls)(config))


def tv_vit():
    from torchvision.models.vision_transformer import VisionTransformer

    return VisionTransformer(image_size=32, patch_size=8, num_layers=2, num_heads=3, hidden_dim=24, mlp_dim=48, num_classes=7)


def tv_swin(v2=False):
    from torchvision.models import swin_transformer as s

    extra = dict(block=s.SwinTransformerBlockV2, downsample_layer=s.PatchMergingV2) if v2 else {}
    return s.SwinTransformer(patch_size=[2, 2], embed_dim=8, depths=[2, 1], num_heads=[2, 4], window_size=[4, 4], num_classes=7, **extra)


def tv_convnext():
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return ConvNeXt([CNBlockConfig(16, 32, 1), CNBlockConfig(32, None, 2)], num_classes=7)


def tv_mobile_v3():
    from torchvision.models.mobilenetv3 import InvertedResidualConfig, MobileNetV3

    c = lambda *a: InvertedResidualConfig(*a, dilation=1, width_mult=1.0)
    return MobileNetV3([c(16, 3, 16, 16, True, "RE", 2), c(16, 3, 32, 24, False, "RE", 2), c(24, 5, 48, 24, True, "HS", 1)], last_channel=64, num_classes=7)


def tv_mobile_v2():
    from torchvision.models.mobilenetv2 import MobileNetV2

    return MobileNetV2(num_classes=7, inverted_residual_setting=[[1, 16, 1, 1], [4, 24, 2, 2]])


def tv_efficient():
    from torchvision.models.efficientnet import EfficientNet, MBConvConfig

    return EfficientNet([MBConvConfig(1, 3, 1, 16, 16, 1, 1.0, 1.0), MBConvConfig(4, 5, 2, 16, 24, 2, 1.0, 1.0)], 0.0, num_classes=7, last_channel=48)


def tv_vgg():
    from torchvision.models.vgg import VGG, make_layers

    m = VGG(make_layers([8, "M", 16, "M"], batch_norm=True), num_classes=7)
    m.avgpool = nn.AdaptiveAvgPool2d((4, 4))
    m.classifier = nn.Sequential(nn.Linear(256, 32), nn.ReLU(), nn.Dropout(), nn.Linear(32, 7))
    return m


def resnet_small(bottleneck, **kw):
    from torchvision.models.resnet import BasicBlock, Bottleneck

    return tv_resnet(Bottleneck if bottleneck else BasicBlock, [1, 1, 1, 1], **kw)


HF_VIT = dict(image_size=32, patch_size=8, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=48)
HF_SWIN = dict(image_size=32, patch_size=2, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4)

# name: (builder, image side, wide enough that only the conformance run keeps it)
MODELS = {
    "resnet": (lambda: resnet_small(False, width_per_group=64), 32, True),
    "resnext": (lambda: resnet_small(True, groups=4, width_per_group=16), 32, True),
    "timm_resnet": (lambda: timm_model("resnet10t"), 64, True),
    "vgg": (tv_vgg, 16, False),
    "mobilenet_v2": (tv_mobile_v2, 32, True),
    "mobilenet_v3": (tv_mobile_v3, 32, False),
    "timm_mobilenet_v3": (lambda: timm_model("mobilenetv3_small_050"), 64, True),
    "efficientnet": (tv_efficient, 32, False),
    "timm_efficientnet": (lambda: timm_model("efficientnet_b0"), 64, True),
    "convnext": (tv_convnext, 32, False),
    "timm_convnext": (lambda: timm_model("convnext_atto", depths=(1, 1, 1, 1), dims=(8, 16, 24, 32)), 64, True),
    "hf_convnext": (lambda: hf("ConvNextForImageClassification", "ConvNextConfig", image_size=64, hidden_sizes=[8, 16, 24, 32], depths=[1, 1, 1, 1]), 64, True),
    "vit": (tv_vit, 32, False),
    "timm_vit": (lambda: timm_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3), 32, False),
    "timm_vit_gap": (lambda: timm_model("vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=1, num_heads=3, class_token=False, global_pool="avg"), 32, True),
    "timm_vit_reg": (lambda: timm_model("vit_small_patch14_reg4_dinov2", img_size=28, embed_dim=24, depth=1, num_heads=3), 28, True),
    "hf_vit": (lambda: hf("ViTForImageClassification", "ViTConfig", **HF_VIT), 32, True),
    "timm_deit": (lambda: timm_model("deit_tiny_distilled_patch16_224", img_size=32, patch_size=8, embed_dim=24, depth=2, num_heads=3), 32, True),
    "hf_deit": (lambda: hf("DeiTForImageClassification", "DeiTConfig", **HF_VIT), 32, True),
    "hf_dinov2": (lambda: hf("Dinov2ForImageClassification", "Dinov2Config", image_size=28, patch_size=7, hidden_size=24, num_hidden_layers=2, num_attention_heads=3), 28, True),
    "hf_dinov2_swiglu": (lambda: hf("Dinov2ForImageClassification", "Dinov2Config", image_size=28, patch_size=7, hidden_size=24, num_hidden_layers=1, num_attention_heads=3, use_swiglu_ffn=True), 28, True),
    "swin": (tv_swin, 16, False),
    "swin_v2": (lambda: tv_swin(True), 16, False),
    "timm_swin": (lambda: timm_model("swin_tiny_patch4_window7_224", img_size=32, patch_size=2, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4)), 32, True),
    "timm_swin_v2": (lambda: timm_model("swinv2_tiny_window8_256", img_size=32, patch_size=2, window_size=4, embed_dim=16, depths=(2, 2), num_heads=(2, 4)), 32, True),
    "hf_swin": (lambda: hf("SwinForImageClassification", "SwinConfig", **HF_SWIN), 32, True),
    "hf_swin_v2": (lambda: hf("Swinv2ForImageClassification", "Swinv2Config", **HF_SWIN), 32, True),
}

# exporter, opset, dynamic batch
WAYS = [("script", 9, False), ("script", 11, True), ("script", 14, True), ("script", 17, False), ("dynamo", 18, True), ("dynamo", 20, False), ("dynamo", 21, True)]
# What the repository keeps: each family once, ways in turn.
FIXTURES = {
    "vgg": ("script", 13, True),
    "mobilenet_v3": ("dynamo", 18, True),
    "efficientnet": ("script", 17, False),
    "convnext": ("script", 13, True),
    "timm_vit": ("dynamo", 20, False),
    "vit": ("script", 17, False),
    "swin": ("script", 13, True),
    "swin_v2": ("script", 17, True),
}


def export(model, x, path, way, opset, dynamic):
    if way == "script":
        axes = {"input": {0: "N"}, "logits": {0: "N"}} if dynamic else None
        torch.onnx.export(model, x, path, dynamo=False, opset_version=opset, input_names=["input"], output_names=["logits"], dynamic_axes=axes)
    else:
        shapes = ({0: torch.export.Dim("N", min=1, max=64)},) if dynamic else None
        x = x.repeat(2, 1, 1, 1) if dynamic else x
        torch.onnx.export(model, (x,), path, dynamo=True, opset_version=opset, input_names=["input"], output_names=["logits"], dynamic_shapes=shapes, external_data=False, verbose=False)
        forget_where(path)


def forget_where(path):
    """Drops the exporter's stack traces: they name the folders of the machine that ran it."""
    import onnx

    proto = onnx.load(path)
    for node in proto.graph.node:
        kept = [p for p in node.metadata_props if p.key != "pkg.torch.onnx.stack_trace"]
        del node.metadata_props[:]
        node.metadata_props.extend(kept)
    onnx.save(proto, path)


def main():
    args = [a for a in sys.argv[1:] if not a.startswith("--")]
    fixtures = "--fixtures" in sys.argv
    out = Path(args[0])
    out.mkdir(parents=True, exist_ok=True)
    names = args[1:] or (list(FIXTURES) if fixtures else list(MODELS))
    table = out / "expected.json"
    expected = json.loads(table.read_text()) if table.exists() else {}
    for name in names:
        build, side, _ = MODELS[name]
        try:
            torch.manual_seed(1)
            model = scramble(build(), seed=len(name))
            x = image(side)
            with torch.no_grad():
                logits = model(x)[0].tolist()
        except Exception as e:
            print(f"{name}: cannot build: {type(e).__name__}: {str(e)[:300]}")
            continue
        for way, opset, dynamic in [FIXTURES[name]] if fixtures else WAYS:
            path = out / f"{name}-{way}{opset}{'-n' if dynamic else ''}.onnx"
            try:
                export(model, x, str(path), way, opset, dynamic)
                expected[path.stem] = {"side": side, "logits": logits}
                print(f"{path.name}: {path.stat().st_size} bytes", flush=True)
            except Exception as e:
                print(f"{path.name}: not exported: {type(e).__name__}: {str(e)[:300]}", flush=True)
        table.write_text(json.dumps(expected, indent=1))


main()
