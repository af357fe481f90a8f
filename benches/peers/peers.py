#!/usr/bin/env python3
"""ONNX Runtime (and PyTorch, when it is installed) against paring: the same models, batches and threads, in turn in one
run, so that the ratios are comparable whatever else the machine does.

    python3 -m venv peers && peers/bin/pip install onnxruntime onnx numpy      # torch torchvision: optional
    peers/bin/python benches/peers/peers.py [--real DIR] [--only NAME] [--rounds 7] [--threads 2] [--json FILE]

`--real` names a folder with resnet20/, resnet56/ and vit_cifar10/ holding a `.safetensors` and an `.onnx` each; without
it only the networks with random weights run. One line a work: median milliseconds a batch of paring and of each peer over
all rounds, and peer / paring (above 1: paring is faster). The limit is the time that the counted multiply-adds take at the
rate that the processor's units reach on registers (int8 with AMX: on tiles in the first-level cache), measured in the same
run."""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np
import onnxruntime as ort

import onnx_models

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))


class Paring:
    """The forward bench in its `--serve` mode: one request a line, one JSON answer a line."""

    def __init__(self, threads, binary):
        exe = [binary] if binary else self.build()
        env = dict(os.environ, PARING_THREADS=str(threads))
        pipe = subprocess.PIPE
        self.child = subprocess.Popen([exe[-1], "--serve"], stdin=pipe, stdout=pipe, text=True, env=env)

    def build(self):
        build = ["cargo", "bench", "--bench", "forward", "--no-run", "--message-format=json"]
        out = subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
        made = [json.loads(line) for line in out.splitlines()]
        return [m["executable"] for m in made if m.get("target", {}).get("name") == "forward" and m.get("executable")]

    def ask(self, **request):
        self.child.stdin.write(json.dumps(request) + "\n")
        self.child.stdin.flush()
        answer = json.loads(self.child.stdout.readline())
        if "error" in answer:
            raise SystemExit(f"paring: {answer['error']}")
        return answer

    def runner(self, model, batch, precision):
        return lambda seconds: self.ask(model=model, batch=batch, precision=precision, seconds=seconds)["ms"]


def timed(call, seconds):
    """Milliseconds of repeated calls for about that long, at least three."""
    out, start = [], time.perf_counter()
    while len(out) < 3 or time.perf_counter() - start < seconds:
        t = time.perf_counter()
        call()
        out.append((time.perf_counter() - t) * 1e3)
    return out


def ort_runner(path, x, threads):
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: x}
    session.run(None, feed)
    return lambda seconds: timed(lambda: session.run(None, feed), seconds)


def torch_runner(name, x, threads):
    try:
        import torch
        import torchvision
    except ImportError:
        return None
    make = {"resnet50": torchvision.models.resnet50, "vit_b16": torchvision.models.vit_b_16}.get(name)
    if make is None:
        return None
    torch.set_num_threads(threads)
    model, x = make(weights=None).eval(), torch.from_numpy(x)

    def call():
        with torch.inference_mode():
            model(x)

    call()
    return lambda seconds: timed(call, seconds)


def dynamic_int8(path, folder):
    """ONNX Runtime's own dynamic quantization of matrix products: signed weights, one scale a tensor (its default)."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    out = os.path.join(folder, os.path.basename(path).replace(".onnx", ".int8.onnx"))
    quantize_dynamic(path, out, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul", "Gemm"])
    return out


def works(args, folder):
    """(name, what paring loads, ONNX file, image side, batch, precision)"""
    for name in ["resnet20", "resnet56", "vit_cifar10"] if args.real else []:
        base = os.path.join(os.path.abspath(args.real), name, name)
        for batch in (128, 1):
            yield name, base + ".safetensors", base + ".onnx", 32, batch, "f32"
    for name, make in [("resnet50", onnx_models.resnet50), ("vit_b16", onnx_models.vit_b16)]:
        if args.only and args.only not in name:
            continue
        path = os.path.join(folder, name + ".onnx")
        make(path)
        for batch in (8, 1):
            yield name, name, path, 224, batch, "f32"
        if name == "vit_b16":
            quantized = dynamic_int8(path, folder)
            for batch in (8, 1):
                yield name, name, quantized, 224, batch, "int8"
        else:
            yield name, name, None, 224, 8, "int8"


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--real")
    p.add_argument("--only", default="")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--seconds", type=float, default=1.0)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--json")
    p.add_argument("--binary", help="a forward bench that is built already")
    args = p.parse_args()
    paring = Paring(args.threads, args.binary)
    peak = paring.ask(ceiling=True)
    print(f"onnxruntime {ort.__version__}, {args.threads} threads; the units reach", end=" ")
    print(f"f32 {peak['f32']:.0f} GMAC/s, int8 {peak['int8']:.0f} GMAC/s")
    print(f"{'work':<12} {'batch':>5} {'':>5} {'paring':>9} {'ORT':>9} {'PyTorch':>9} {'limit':>9}  ORT/paring  paring/limit")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, model, path, side, batch, precision in works(args, folder):
            if args.only and args.only not in name:
                continue
            x = np.random.default_rng(0).standard_normal((batch, 3, side, side), dtype=np.float32)
            run = {"paring": paring.runner(model, batch, precision)}
            if path:
                run["ort"] = ort_runner(path, x, args.threads)
            if precision == "f32":
                run["torch"] = torch_runner(name, x, args.threads)
            ms = {k: [] for k, r in run.items() if r}
            for _ in range(args.rounds):
                for k in ms:
                    ms[k] += run[k](args.seconds / args.rounds)
                    # Thread pools spin for a while after their last work; the next one shall have the cores alone.
                    time.sleep(0.05)
            mid = {k: statistics.median(v) for k, v in ms.items()}
            gmac = paring.ask(model=model, macs=True)["gmac"] * batch
            limit = gmac / peak[precision] * 1e3
            cell = lambda k: f"{mid[k]:9.2f}" if k in mid else "        -"
            ratio = f"{mid['ort'] / mid['paring']:10.2f}" if "ort" in mid else "         -"
            print(f"{name:<12} {batch:>5} {precision:>5} {cell('paring')} {cell('ort')} {cell('torch')} {limit:9.2f}", end="")
            print(f"  {ratio}  {mid['paring'] / limit:12.2f}", flush=True)
            rows.append(dict(work=name, batch=batch, precision=precision, limit=limit, **mid))
    if args.json:
        with open(args.json, "w") as f:
            json.dump(dict(onnxruntime=ort.__version__, threads=args.threads, ceilings=peak, rows=rows), f, indent=1)


if __name__ == "__main__":
    sys.path.insert(0, HERE)
    main()
