"""Writes tests/conformance/blocks/weighted.gguf: awkward values, awkward importances of their columns, and the blocks that ggml's
quantizers make of them with these as weights, in every format that `paring` writes; and two small files of importance, as llama.cpp's
`llama-imatrix` writes them: tests/conformance/blocks/imatrix.gguf and imatrix.dat (its older format).

    python3 -m venv venv && venv/bin/pip install gguf numpy
    npm pack @node-llama-cpp/linux-x64 && tar xzf node-llama-cpp-linux-x64-*.tgz
    venv/bin/python tests/conformance/make_weighted_blocks.py package/bins/linux-x64

src/engine/model/gguf/tests.rs encodes the same values and compares bytes, src/engine/model/imatrix.rs reads the files. Written with gguf 0.19.0
and llama.cpp v0.5.0 (node-llama-cpp 3.22.1).
"""

import os
import struct
import sys

import gguf
import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "..", "benches", "llamacpp"))
from llama import Llama

FORMATS = ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"]
COLUMNS = 512


def values():
    rng = np.random.default_rng(17)
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
        (i % 16 - 8) * 0.5,  # ties: codes fall between whole numbers
        normal * 1e-41,  # denormal numbers
        normal * 1e-7,  # scales that are denormal in half precision
        np.where(i < 40, normal, 0.0),
        np.where(i % 32 == 31, 3.0, 0.0),
        normal * np.repeat(10.0 ** -np.arange(16), 32),
        1000.0 * np.sin(i * 0.7),
    ]
    return np.array(rows, dtype=np.float32)


def importances():
    """Rows of weights; all rows of values are encoded with each."""
    rng = np.random.default_rng(18)
    n, i = COLUMNS, np.arange(COLUMNS)
    rows = [
        rng.standard_normal(n) ** 2,  # what activations give
        np.exp(3 * rng.standard_normal(n)),  # some columns count a thousand times as much
        np.where((i >= 320) & (i % 7 == 0), 1.0, 0.0),  # a whole block, whole groups, and most of the others count nothing
        np.full(n, 1e-30),
    ]
    return np.array(rows, dtype=np.float32)


def write(name, kind=None):
    w = gguf.GGUFWriter(os.path.join(HERE, "blocks", name), "none")
    if kind is not None:
        w.kv_data[0].clear()  # an imatrix has no architecture
        w.add_type(kind)
    return w


def finish(w):
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


def blocks(llama):
    x, importance = values(), importances()
    w = write("weighted.gguf")
    w.add_tensor("values", x)
    w.add_tensor("importance", importance)
    for name in FORMATS:
        kind = gguf.GGMLQuantizationType[name]
        made = np.concatenate([llama.quantize(name, x, row) for row in importance])
        print(name, f"{np.mean(made != np.concatenate([llama.quantize(name, x)] * len(importance))):.0%} of bytes are others than without")
        w.add_tensor(name, made, raw_dtype=kind)
    finish(w)


def imatrix():
    """One matrix, and a stack of two experts of which the second was never asked."""
    plain = np.array([[0.5, 8.0, 2.0, 32.0]], dtype=np.float32)
    experts = np.array([[3.0, 6.0], [0.0, 0.0]], dtype=np.float32)
    w = write("imatrix.gguf", "imatrix")
    w.add_array("imatrix.datasets", ["some.txt"])
    w.add_uint32("imatrix.chunk_count", 2)
    w.add_uint32("imatrix.chunk_size", 8)
    for name, sums, counts in [("blk.0.attn_q.weight", plain, [16.0]), ("blk.0.ffn_up_exps.weight", experts, [3.0, 0.0])]:
        w.add_tensor(f"{name}.in_sum2", sums)
        w.add_tensor(f"{name}.counts", np.array(counts, dtype=np.float32).reshape(-1, 1))
        w.add_tensor(f"{name}.in_sum", sums / 2)  # of later versions
    finish(w)
    # Means times the number of calls; an expert that was never asked has ones.
    entries = [("blk.0.attn_q.weight", 2, plain.ravel() / 16 * 2), ("blk.0.ffn_up_exps.weight", 1, np.array([1.0, 2.0, 1.0, 1.0]))]
    out = struct.pack("<i", len(entries))
    for name, calls, v in entries:
        out += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", calls, v.size) + v.astype("<f4").tobytes()
    out += struct.pack("<i", 2) + struct.pack("<i", len("some.txt")) + b"some.txt"
    with open(os.path.join(HERE, "blocks", "imatrix.dat"), "wb") as f:
        f.write(out)


def main():
    os.makedirs(os.path.join(HERE, "blocks"), exist_ok=True)
    blocks(Llama(sys.argv[1]))
    imatrix()


main()
