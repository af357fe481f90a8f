"""What rounding costs a language model, by hand: KL divergence from the original and perplexity on text that nothing was fitted on, of one format for all
matrices and of formats chosen by bits, each rounded to the nearest, by importance and as `convert --calib` learns it. Rounding by importance is llama.cpp's:
the blocks are bit for bit those that it writes with the same importances, which are those of its `llama-imatrix`.

    python3 benches/llamacpp/rounding.py PARING MODEL CALIB.txt EVAL.txt [--windows 40] [--eval-windows 32] [--formats q4_k q4_0] [--bits 4.5]
"""

import argparse
import json
import os
import subprocess
import tempfile
import time


def run(*args):
    out = subprocess.run([str(a) for a in args], check=True, capture_output=True, text=True)
    return json.loads(out.stdout)


def main():
    a = argparse.ArgumentParser()
    a.add_argument("paring")
    a.add_argument("model")
    a.add_argument("calib")
    a.add_argument("eval")
    a.add_argument("--windows", type=int, default=40)
    a.add_argument("--eval-windows", type=int, default=32)
    a.add_argument("--formats", nargs="*", default=["q4_k", "q4_0", "iq4_nl"])
    a.add_argument("--bits", nargs="*", default=["4.5"])
    a = a.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        out, matrix = os.path.join(folder, "m.gguf"), os.path.join(folder, "imatrix.gguf")
        run(a.paring, "imatrix", a.model, "--calib", a.calib, "--limit", a.windows, "--out", matrix, "--json")
        asked = [("--precision", f) for f in a.formats] + [("--bits", b) for b in a.bits]
        ways = [("nearest", []), ("importance", ["--imatrix", matrix]), ("learnt", ["--calib", a.calib, "--limit", a.windows])]
        print("asked          rounded     bits   KL, nats a token            same likeliest  perplexity x             seconds", flush=True)
        for what in asked:
            for name, how in ways:
                begun = time.time()
                made = run(a.paring, "convert", a.model, *what, *how, "--out", out, "--json")
                took = time.time() - begun
                said = run(a.paring, "eval", out, "--data", a.eval, "--limit", a.eval_windows, "--against", a.model, "--json")
                d = said["against"]
                kl, same, ratio = d["kl_divergence"], d["top_token_agreement"], d["perplexity_ratio"]
                show = lambda e: f"{e.get('value', e.get('mean')):.4f} [{e['low']:.4f}, {e['high']:.4f}]"
                size = 8 * said["weight_bytes"] / made["weights"]
                print(f"{' '.join(what):<14} {name:<11} {size:5.2f}  {show(kl)}  {show(same)}  {show(ratio)}  {took:6.0f}", flush=True)


if __name__ == "__main__":
    main()
