"""Does llama.cpp load what `paring` writes, and compute the same? Each model is converted, then the same token ids are scored by both.

    npm pack @node-llama-cpp/linux-x64 && tar xzf node-llama-cpp-linux-x64-*.tgz          # llama.cpp's shared libraries
    python3 -m venv venv && venv/bin/pip install numpy gguf
    venv/bin/python benches/llamacpp/check.py package/bins/linux-x64 target/release/paring REAL [WINDOWS [CUT.safetensors | MODEL.gguf ...]] [--only]

`--only`: of the models named alone. Mixtures of experts: `make_experts.py`. Cut models: `PARING_CUT=DIR cargo test --test language cut_models_for -- --ignored`.
REAL holds `smollm2/SmolLM2-135M-Instruct.Q4_1.gguf`, `stories260k/` and `text/wikitext2_test.txt`. llama.cpp rounds activations to 8 bits before
it multiplies them with quantized weights, and keeps keys and values in 16 bits; `paring` computes in f32. What differs is that, which is measured by
itself: llama.cpp on the same weights unpacked to F32 is beside us, and llama.cpp beside itself with every position larger by 1, 7 and 64, which changes
nothing but the last bits of rotated queries and keys. What those last bits do to perplexity is what no imitation (`paring eval --as llama.cpp`) can tell.
"""

import json
import os
import struct
import subprocess
import sys
import tempfile

import gguf
import numpy as np
from llama import Llama

WINDOW = 512


def score(llama, path, ids, windows, shift=0):
    """Nats a token over all of a window but its first; positions begin at `shift`."""
    model = llama.open(path, WINDOW)
    total = count = 0
    for k in range(windows):
        window = ids[k * WINDOW : (k + 1) * WINDOW]
        logits = model.logits(window, shift)
        x = logits[:-1] - logits[:-1].max(axis=1, keepdims=True)
        total += (np.log(np.exp(x).sum(axis=1)) - x[np.arange(len(window) - 1), window[1:]]).sum()
        count += len(window) - 1
    model.close()
    return total / count


def unpacked(path, out):
    """The same file with every tensor in F32, so that llama.cpp has nothing to round activations for."""
    reader = gguf.GGUFReader(path)
    begin = min(t.field.offset for t in reader.tensors)
    infos, data = b"", []
    at = 0
    for t in reader.tensors:
        values = gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32)
        name = t.name.encode()
        infos += struct.pack("<Q", len(name)) + name + struct.pack("<I", len(t.shape))
        infos += b"".join(struct.pack("<Q", int(d)) for d in t.shape) + struct.pack("<IQ", 0, at)
        data.append(values.tobytes())
        at += -(-len(data[-1]) // 32) * 32
    with open(out, "wb") as f:
        f.write(bytes(reader.data[:begin]) + infos)
        for d in data:
            f.write(b"\0" * (-f.tell() % 32) + d)
        f.write(b"\0" * (-f.tell() % 32))


def main():
    only = "--only" in sys.argv
    folder, paring, real, *more = [a for a in sys.argv[1:] if a != "--only"]
    windows = int(more[0]) if more else 4
    llama = Llama(folder)
    smol = os.path.join(real, "smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")
    stories = os.path.join(real, "stories260k")
    work = tempfile.mkdtemp()
    at = lambda name: os.path.join(work, name)

    def run(*args):
        done = subprocess.run([paring, *args], capture_output=True, text=True)
        assert done.returncode == 0, (args, done.stderr)
        return done.stdout

    model = llama.open(smol, WINDOW)
    np.array(model.tokenize(open(os.path.join(real, "text", "wikitext2_test.txt")).read()), dtype=np.uint16).tofile(at("wiki.u16"))
    model.close()
    texts = {smol: at("wiki.u16"), stories: os.path.join(stories, "tinystories_a.tok512.u16")}
    rows = [] if only else [(smol, None), (stories, None)]
    rows += [] if only else [(m, p) for m in (smol, stories) for p in ("f16", "bf16", "q8_0", "q6_k", "q5_k", "q4_k", "iq4_xs", "q4_0", "int8", "w4g32")]
    for file in more[1:]:
        # What came from elsewhere is also rounded; a cut model is written as it is.
        rounded = ["f16", "q8_0", "q4_k", "q4_0", "iq4_xs"] if file.endswith(".gguf") else []
        rows += [(file, precision) for precision in [None, *rounded]]
        texts[file] = texts[smol]
    print("| model | precision | types | paring, nats a token | llama.cpp | perplexity differs by | from `--as llama.cpp` by | of the same weights in F32 | by itself |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for source, precision in rows:
        out = at("out.gguf")
        if os.path.exists(out):
            os.remove(out)
        run("convert", source, "--out", out, *(["--precision", precision] if precision else []))
        kinds = {}
        for t in gguf.GGUFReader(out).tensors:
            if len(t.shape) > 1:
                kinds[t.tensor_type.name] = kinds.get(t.tensor_type.name, 0) + 1
        # What was cut unevenly opens nowhere else.
        asked = ["--data", texts[source], "--window", str(WINDOW), "--limit", str(windows), "--json"]
        told = json.loads(run("eval", out if precision else source, *asked))
        ours = told["nats_per_token"]
        like = json.loads(run("eval", out, "--as", "llama.cpp", *asked))["nats_per_token"]
        ids = np.fromfile(texts[source], dtype=np.uint16).astype(int)
        theirs = score(llama, out, ids, windows)
        again = [score(llama, out, ids, windows, shift) for shift in (1, 7, 64)]
        unpacked(out, at("f32.gguf"))
        plain = score(llama, at("f32.gguf"), ids, windows)
        name = os.path.basename(source)
        off = lambda nats, of=ours: 100 * (np.exp(nats - of) - 1)
        types = ", ".join(f"{k} {n}" for k, n in sorted(kinds.items()))
        itself = ", ".join(f"{off(nats, theirs):+.2f}" for nats in again)
        print(
            f"| {name} | {precision or '-'} | {types} | {ours:.5f} | {theirs:.5f} | {off(theirs):+.2f} % | {off(theirs, like):+.2f} % | {off(plain):+.2f} % | {itself} % |",
            flush=True,
        )


main()
