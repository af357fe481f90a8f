"""The lattices of GGML's formats of one to three bits, for src/engine/model/ggml/coded.rs; and tensors in all formats that are read and not written, random
bits with sound scales, with what the `gguf` package decodes them to.

    python tests/conformance/make_coded.py        (needs gguf, numpy)

Writes src/engine/model/ggml/grids.bin: for each point of IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S and IQ1_S (IQ1_M's are the same) sixteen bits, two for each
of eight coordinates, or three for each of four, from the lowest on. And blocks/coded.gguf: tensors `FORMAT` of [2, 512] with `FORMAT.values` in F32.
"""

import os

import gguf
import numpy as np
from gguf.quants import IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, dequantize

HERE = os.path.dirname(os.path.abspath(__file__))
TYPES = ["IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "TQ1_0", "TQ2_0", "MXFP4"]


def grids():
    out = []
    for kind in (IQ2_XXS, IQ2_XS, IQ2_S, IQ3_XXS, IQ3_S, IQ1_S):
        kind.init_grid()
        points = kind.grid.reshape(kind.grid_shape)
        place = {v: i for i, v in enumerate(kind.grid_map)}
        bits = 2 if points.shape[1] == 8 else 3
        for point in points:
            out.append(sum(place[int(v)] << (bits * i) for i, v in enumerate(point)))
    return np.array(out, dtype="<u2").tobytes()


def tensors(path):
    rng = np.random.default_rng(11)
    w = gguf.GGUFWriter(path, "llama")
    for name in TYPES:
        kind = gguf.GGMLQuantizationType[name]
        values, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = rng.integers(0, 256, (2 * 512 // values, size), dtype=np.uint8)
        scale = lambda n: rng.uniform(1e-3, 0.5, (n, 1)).astype(np.float16).view(np.uint8)
        n = len(blocks)
        if name == "MXFP4":
            blocks[:, 0] = rng.choice([0, 1, 2, 100, 127, 130], n)
        elif name == "IQ1_M":
            # Sixteen bits of scale, four in the highest of each of four words.
            bits = rng.uniform(1e-3, 0.5, n).astype(np.float16).view(np.uint16)
            words = blocks[:, 48:].copy().view("<u2")
            for i in range(4):
                words[:, i] = words[:, i] & 0x0FFF | ((bits >> (4 * i)) & 15) << 12
            blocks[:, 48:] = words.view(np.uint8)
        elif name.startswith("TQ"):
            blocks[:, -2:] = scale(n)
        else:
            blocks[:, :2] = scale(n)
        rows = blocks.reshape(2, -1)
        w.add_tensor(name, rows, raw_dtype=kind)
        w.add_tensor(f"{name}.values", dequantize(rows, kind).astype(np.float32))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


with open(os.path.join(HERE, "../../src/engine/model/ggml/grids.bin"), "wb") as f:
    f.write(grids())
tensors(os.path.join(HERE, "blocks", "coded.gguf"))
