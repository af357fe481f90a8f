"""Writes tests/conformance/blocks/encoded.gguf: awkward values, and the blocks that ggml's reference quantizers make of them in every format
that `paring` writes (without weights of importance, as `llama-quantize` calls them); those of 32 values are held against the gguf package.

    python3 -m venv venv && venv/bin/pip install gguf numpy
    npm pack @node-llama-cpp/linux-x64 && tar xzf node-llama-cpp-linux-x64-*.tgz
    venv/bin/python tests/conformance/make_blocks.py package/bins/linux-x64

src/engine/model/gguf/tests.rs encodes the same values and compares bytes. Written with gguf 0.19.0 and llama.cpp v0.5.0 (node-llama-cpp 3.22.1).
"""

import os
import sys

import gguf
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "benches", "llamacpp"))
from llama import Llama

FORMATS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]
COLUMNS = 512


def values():
    rng = np.random.default_rng(11)
    n, i = COLUMNS, np.arange(COLUMNS)
    normal = rng.standard_normal(n)
    rows = [
        normal * 0.02,
        rng.standard_t(2, n) * 0.05,
        np.zeros(n),
        np.where(i % 97 == 5, 7.25, normal * 1e-3),  # one large among small ones
        -np.abs(normal) - 0.25,
        np.abs(normal) + 0.25,
        np.full(n, 0.3),
        np.full(n, -1.5),
        (i % 16 - 8) * 0.5,  # ties: codes fall between whole numbers
        (i % 33 - 16) * 0.0625 + 0.03125,
        np.where(i % 2 == 0, 1.0, -1.0),
        normal * 1e-41,  # denormal numbers
        normal * 1e-7,  # scales that are denormal in half precision
        np.where(i < 40, normal, 0.0),
        np.where(i % 32 == 31, 3.0, 0.0),
        normal * np.repeat(10.0 ** -np.arange(16), 32),
        i / n,
        1000.0 * np.sin(i * 0.7),
    ]
    return np.array(rows, dtype=np.float32)


def main():
    llama = Llama(sys.argv[1])
    x = values()
    at = os.path.join(HERE, "blocks")
    os.makedirs(at, exist_ok=True)
    w = gguf.GGUFWriter(os.path.join(at, "encoded.gguf"), "none")
    w.add_tensor("values", x)
    for name in FORMATS:
        kind = gguf.GGMLQuantizationType[name]
        blocks = llama.quantize(name, x)
        try:
            other = gguf.quants.quantize(x, kind)
            differ = np.flatnonzero((other != blocks).any(axis=1))
            print(name, "rows that differ from the gguf package's:", differ.tolist())
        except NotImplementedError:
            pass
        w.add_tensor(name, blocks, raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


main()
