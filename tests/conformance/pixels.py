"""Writes what tests/pixels.rs compares with: resized and cropped pixels by Pillow, torchvision, timm and transformers.

    python tests/conformance/pixels.py [PHOTOS]

with Pillow 12 or older (13 swaps the two passes of resizing where that is cheaper, which changes some bytes by one)
writes tests/conformance/pixels.txt and a few small JPEG files with the PNG files that Pillow decodes them to. Images are
made by the same few lines here and in Rust; a line of pixels.txt is a case and the FNV-1a hash of the resulting RGB bytes.
With a folder PHOTOS of images, JPEG and PNG pairs of them are written to PHOTOS/pairs, for `PARING_JPEGS=PHOTOS/pairs
cargo test --test pixels -- --nocapture`, which prints how far apart the decoders are.
"""

import pathlib
import sys

import numpy as np
from PIL import Image

HERE = pathlib.Path(__file__).parent
FILTERS = {"box": 4, "bilinear": 2, "hamming": 5, "bicubic": 3, "lanczos": 1}


def image(width, height):
    """Noise over a gradient, from a 64-bit linear congruential generator."""
    state, out = 1, np.zeros(width * height * 3, np.uint8)
    for i in range(out.size):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        out[i] = (i // 3 % width * 160 // width + (state >> 56)) % 256
    return Image.fromarray(out.reshape(height, width, 3))


def fnv(im):
    value = 0xCBF29CE484222325
    for byte in np.asarray(im).tobytes():
        value = ((value ^ byte) * 0x100000001B3) % 2**64
    return f"{value:016x}"


def torchvision(im, shorter, side, name):
    from torchvision import transforms as t

    mode = t.InterpolationMode(name)
    return t.Compose([t.Resize(shorter, interpolation=mode), t.CenterCrop(side)])(im)


def timm(im, pct, side, name):
    from timm.data import create_transform

    steps = create_transform((3, side, side), interpolation=name, crop_pct=pct, is_training=False).transforms
    for step in steps[:2]:
        im = step(im)
    return im


def hf(im, config):
    from transformers.models.deit.image_processing_pil_deit import DeiTImageProcessorPil as Processor

    out = Processor(do_rescale=False, do_normalize=False, **config)(im, return_tensors="np")["pixel_values"][0]
    return np.asarray(out).transpose(1, 2, 0).astype(np.uint8)


def main():
    lines = []
    sizes = [(40, 30), (31, 47), (7, 200), (224, 3), (1, 1), (64, 64)]
    wants = [(16, 16), (33, 20), (64, 64), (90, 5), (3, 3), (128, 97)]
    for filter_name, number in FILTERS.items():
        for have in sizes:
            for want in wants:
                out = image(*have).resize(want, resample=number)
                lines.append(f"pillow {filter_name} {have[0]} {have[1]} {want[0]} {want[1]} {fnv(out)}")
    for have in [(50, 37), (37, 50), (41, 30), (30, 43), (64, 64), (200, 20)]:
        for name in ["bilinear", "bicubic"]:
            for shorter, side in [(20, 16), (19, 16), (17, 16), (16, 16)]:
                out = torchvision(image(*have), shorter, side, name)
                lines.append(f"torchvision {name} {have[0]} {have[1]} {shorter} {side} {fnv(out)}")
            for pct, side in [(0.875, 16), (0.9, 18), (0.95, 21), (1.0, 16)]:
                out = timm(image(*have), pct, side, name)
                lines.append(f"timm {name} {have[0]} {have[1]} {pct} {side} {fnv(out)}")
            for shorter, side in [(20, 16), (19, 16), (17, 16)]:
                common = {"resample": FILTERS[name], "do_center_crop": True, "crop_size": side}
                out = hf(image(*have), {"size": {"shortest_edge": shorter}, **common})
                lines.append(f"hf {name} {have[0]} {have[1]} {shorter} {side} {fnv(out)}")
                out = hf(image(*have), {"size": {"height": shorter, "width": shorter}, **common})
                lines.append(f"hf-squash {name} {have[0]} {have[1]} {shorter} {side} {fnv(out)}")
    (HERE / "pixels.txt").write_text("\n".join(lines) + "\n")

    def pair(im, folder, stem, **options):
        im.save(folder / f"{stem}.jpg", **options)
        Image.open(folder / f"{stem}.jpg").convert("RGB").save(folder / f"{stem}.png", optimize=True)

    smooth = image(4, 4).resize((45, 35), resample=3)
    for stem, options in {"s420": {"subsampling": 2}, "s444": {"subsampling": 0}, "progressive": {"progressive": True}}.items():
        pair(smooth, HERE, stem, quality=85, **options)
    pair(smooth.convert("L"), HERE, "grey", quality=85)
    for folder in map(pathlib.Path, sys.argv[1:]):
        (folder / "pairs").mkdir(exist_ok=True)
        for k, photo in enumerate(sorted(p for p in folder.iterdir() if p.suffix in (".png", ".jpg"))):
            pair(Image.open(photo).convert("RGB"), folder / "pairs", f"{k:04}", quality=[75, 90, 95][k % 3])


main()
