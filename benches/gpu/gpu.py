#!/usr/bin/env python3
"""A GPU put to the test, on the machine that has it: the selftest, what `paring` computes there against what it computes on the CPU
(whose results the test suite holds against other programs), latencies beside PyTorch's, and whole runs.

    python3 benches/gpu/gpu.py PARING OUT [--real DIR] [--batch 32] [--only NETWORK...] [--precisions P...] [--stages STAGE...]

PARING is a binary built with `--features cuda`; OUT takes every answer as a file. Stages: selftest, families, latency, language,
session; all of them in this order when none is named. Needs PyTorch and torchvision; networks get random weights there (seed 0).
`--real` names a folder with resnet56.safetensors, vit_cifar10.safetensors and CIFAR-10's calib.bin and test.bin; without it the
stage `session` runs the demo. One line a finding; the last line counts those that are wrong."""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import time

FAMILIES = {
    "resnet50": "resnet", "resnet101": "resnet", "vgg11_bn": "vgg", "mobilenet_v2": "mobilenet-v2",
    "mobilenet_v3_large": "mobilenet-v3", "efficientnet_b0": "efficientnet", "convnext_tiny": "convnext", "vit_b_16": "vit",
    "swin_t": "swin", "swin_v2_t": "swin-v2",
}
TIMED = ["resnet50", "resnet101", "mobilenet_v2", "convnext_tiny", "vit_b_16", "swin_t"]
# Largest distance of the logits from the CPU's, in parts of the largest logit. Precisions whose codes depend on the last bits of what
# came before (a rounding that falls the other way) are held to what such a code is worth.
ALLOWED = {"f32": 1e-4, "f16": 2e-2, "bf16": 1e-1, "int8": 5e-2, "w4g32": 1e-4, "fp8": 2e-1}


class Bench:
    def __init__(self, args):
        self.paring, self.out, self.args, self.wrong = args.paring, pathlib.Path(args.out), args, 0
        self.work = pathlib.Path("/tmp/paring-gpu")
        self.work.mkdir(parents=True, exist_ok=True)

    def ask(self, *argv, name=None, timeout=240, text=False):
        """Standard output of the program, as JSON unless `text`; None and a line where it fails."""
        start = time.time()
        try:
            ran = subprocess.run([self.paring, *argv], capture_output=True, text=True, timeout=timeout)
        except subprocess.TimeoutExpired:
            self.found(False, f"{' '.join(argv)}: no end within {timeout} s")
            return None
        if name:
            (self.out / name).write_text(ran.stdout + (f"\n--- rc {ran.returncode}, stderr:\n{ran.stderr}" if text else ""))
        took = time.time() - start
        if ran.returncode not in (0, 3):
            self.found(False, f"{' '.join(argv)}: rc {ran.returncode}, {took:.1f} s: {ran.stderr.strip()[-600:]}")
            return None if not text else ran.stdout
        if text:
            return ran.stdout
        try:
            return json.loads(ran.stdout)
        except json.JSONDecodeError as e:
            self.found(False, f"{' '.join(argv)}: {e}: {ran.stdout[:300]}")
            return None

    def found(self, right, line):
        self.wrong += not right
        print(("ok    " if right else "WRONG ") + line, flush=True)

    def selftest(self):
        said = self.ask("selftest", "--device", "cuda:0", name="selftest.txt", text=True, timeout=300) or ""
        lines = said.splitlines()
        self.found(any(line.startswith("passed:") for line in lines), f"selftest: {lines[-1] if lines else 'nothing was said'}")
        shown = (line for i, line in enumerate(lines) if "FAILED" in line or "p50 ms" in line or i > len(lines) - 27)
        print("\n".join(shown), flush=True)

    def model(self, name):
        """A checkpoint with random weights, batch norms with statistics that are not the defaults."""
        import torch
        import torchvision

        path = self.work / f"{name}.pth"
        torch.manual_seed(0)
        net = getattr(torchvision.models, name)(weights=None).eval()
        for module in net.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
            # Some begin with a classifier of zeros.
            if isinstance(module, torch.nn.Linear) and not module.weight.any():
                torch.nn.init.normal_(module.weight, 0, 0.02)
        if not path.exists():
            torch.save(net.state_dict(), path)
        return net, str(path)

    def images(self):
        """Class folders of noise with structure: two classes of four pictures of 224 x 224."""
        import numpy as np
        from PIL import Image

        root = self.work / "images"
        if not root.exists():
            rng = np.random.default_rng(0)
            for c in ("a", "b"):
                (root / c).mkdir(parents=True)
                for i in range(4):
                    coarse = rng.integers(0, 256, (14, 14, 3), dtype=np.uint8)
                    Image.fromarray(coarse).resize((256, 256), Image.BICUBIC).save(root / c / f"{i}.png")
            names = ["a", "b"] + [f"class{i}" for i in range(998)]
            (root / "classes.txt").write_text("\n".join(names) + "\n")
        return str(root)

    def families(self):
        for name, arch in FAMILIES.items():
            if self.args.only and name not in self.args.only:
                continue
            _, path = self.model(name)
            ask = ["eval", path, "--arch", arch, "--data", self.images(), "--logits", "8", "--json", "--image-size", "256" if arch == "swin-v2" else "224",
                   "--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225"]
            for precision in self.args.precisions:
                how = ask + ["--precision", precision]
                # What the CPU has no kernel for it computes in f32, with these weights.
                cpu = self.ask(*how, "--device", "cpu")
                gpu = self.ask(*how, "--device", "cuda:0", name=f"{name}.{precision}.json")
                if not cpu or not gpu:
                    continue
                a, b = (sum(r["logits"], []) for r in (cpu, gpu))
                top = max(map(abs, a))
                far = max(abs(x - y) for x, y in zip(a, b)) / top
                same = sum(max(range(len(x)), key=x.__getitem__) == max(range(len(y)), key=y.__getitem__)
                           for x, y in zip(cpu["logits"], gpu["logits"]))
                self.found(far <= ALLOWED[precision] and len(a) == len(b),
                           f"{name} {precision}: {far:.1e} of the largest logit from the CPU, {same} of {len(cpu['logits'])} answers the same")

    def torch_ms(self, net, batch, half):
        """Median ms of a replayed graph, channels last, weights folded by nobody; and launched one by one."""
        import torch

        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        net = net.cuda().to(memory_format=torch.channels_last)
        x = torch.randn(batch, 3, 224, 224, device="cuda").to(memory_format=torch.channels_last)
        if half:
            net, x = net.half(), x.half()
        with torch.inference_mode():
            side = torch.cuda.Stream()
            with torch.cuda.stream(side):
                for _ in range(5):
                    net(x)
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                net(x)

            def median(call):
                for _ in range(5):
                    call()
                times = []
                for _ in range(30):
                    a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    a.record()
                    call()
                    b.record()
                    b.synchronize()
                    times.append(a.elapsed_time(b))
                return statistics.median(times)

            out = median(graph.replay), median(lambda: net(x))
        net.cpu().float()
        del graph
        torch.cuda.empty_cache()
        return out

    def latency(self):
        batch = self.args.batch
        for name in self.args.only or TIMED:
            net, path = self.model(name)
            peer = {p: self.torch_ms(net, batch, p == "f16") for p in ("f32", "f16") if p in self.args.precisions}
            for precision in self.args.precisions:
                got = self.ask("profile", path, "--arch", FAMILIES[name], "--image-size", "224", "--batch", str(batch), "--precision", precision,
                               "--device", "cuda:0", "--json", name=f"profile.{name}.{precision}.json")
                if not got:
                    continue
                whole = got["whole"]
                beside = peer.get(precision)
                said = f"; PyTorch {beside[0]:.3f} replayed, {beside[1]:.3f} launched: {beside[0] / whole['p50']:.2f}x" if beside else ""
                self.found(True, f"{name} {precision}, batch {batch}: {whole['p50']:.3f} ms, replayed {got['whole'].get('replayed', got.get('replayed'))}{said}; {got.get('notes', [])}")

    def language(self):
        said = [self.ask("generate", "demo:lm", "--prompt", "Anna and Tom are in the", "-n", "40", "--device", d, "--json", name=f"generate.{d[:4]}.json")
                for d in ("cpu", "cuda:0")]
        if all(said):
            texts = [r.get("text") for r in said]
            self.found(texts[0] == texts[1], f"generate demo:lm: {texts}")
        llama = self.work / "llama"
        if not llama.exists():
            here = pathlib.Path(__file__).resolve().parent.parent
            subprocess.run([sys.executable, here / "scale" / "make_llama.py", llama, "4"], check=True)
        for precision in self.args.precisions:
            for more in (["--decode", "512"], ["--window", "512"]):
                got = self.ask("profile", str(llama), "--precision", precision, *more, "--batch", "1", "--device", "cuda:0", "--json",
                               name=f"llama.{precision}.{more[0][2:]}.json")
                if got:
                    whole = got["whole"]
                    rate = got["weight_bytes"] / whole["p50"] / 1e6
                    self.found(True, f"4 layers of Llama 2 7B, {precision}, {' '.join(more)}: {whole['p50']:.3f} ms, weights at {rate:.0f} GB/s; {got.get('notes', [])}")

    def session(self):
        real = self.args.real
        runs = [("demo_vit", ["demo", "--data", "synthetic:eval", "--calib", "synthetic:calib"], "latency=0.8,drop=2")]
        if real:
            data = ["--data", f"{real}/test.bin", "--calib", f"{real}/calib.bin"]
            runs = [("resnet56", [f"{real}/resnet56.safetensors", *data], "macs=0.6,drop=2"),
                    ("vit_cifar10", [f"{real}/vit_cifar10.safetensors", *data], "latency=0.7,drop=3")]
            for name in ("resnet56", "vit_cifar10"):
                for precision in ("f32", "f16", "int8", "w4", "fp8"):
                    ask = ["eval", f"{real}/{name}.safetensors", "--data", f"{real}/test.bin", "--precision", precision, "--json"]
                    right = [self.ask(*ask, "--device", d) for d in ("cpu", "cuda:0")]
                    if all(right):
                        cpu, gpu = (r["correct"] for r in right)
                        slack = 0 if precision == "f32" else max(5, right[0]["n"] // 200)
                        self.found(abs(cpu - gpu) <= slack, f"{name} {precision}: {gpu} of {right[0]['n']} right, {cpu} on the CPU")
        for name, what, budget in runs:
            out = self.work / f"run.{name}"
            subprocess.run(["rm", "-rf", out])
            start = time.time()
            got = self.ask("run", *what, "--budget", budget, "--device", "cuda:0", "--out", str(out), "--json", name=f"run.{name}.json", timeout=400)
            if got:
                last = json.dumps({k: got[k] for k in got if k not in ("decisions", "rounds", "profile", "layers")})[:900]
                self.found(True, f"run {name}, {budget}, {time.time() - start:.0f} s: {last}")


STAGES = ["selftest", "families", "latency", "language", "session"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("paring")
    parser.add_argument("out")
    parser.add_argument("--real")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--only", nargs="+", metavar="NETWORK")
    parser.add_argument("--precisions", nargs="+", default=["f32", "f16", "int8", "w4g32", "fp8"])
    parser.add_argument("--stages", nargs="+", default=STAGES)
    args = parser.parse_args()
    os.makedirs(args.out, exist_ok=True)
    subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"])
    bench = Bench(args)
    for stage in args.stages:
        start = time.time()
        try:
            getattr(bench, stage)()
        except Exception as e:  # one stage says nothing of the next
            bench.found(False, f"{stage}: {type(e).__name__}: {e}")
        print(f"      {stage}: {time.time() - start:.0f} s", flush=True)
    print(f"{bench.wrong} wrong")
    sys.exit(bench.wrong > 0)


if __name__ == "__main__":
    main()
