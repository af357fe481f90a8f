"""Tokens a second of `paring` and llama.cpp side by side, by hand: the same GGUF files, a prompt of 512 tokens, 128 tokens after it, two
threads, in turns. `PARING` is a release build: a development build's kernels check every access.

    python3 -m venv venv && venv/bin/pip install xllamacpp
    venv/bin/python benches/llamacpp/speed.py PARING MODEL.gguf ... [--turns 3] [--threads 2]
"""

import argparse
import json
import statistics
import subprocess
import tempfile

PROMPT, TOKENS = 512, 128


def ours(paring, model, threads):
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as prompt:
        # One token a word in every vocabulary that has blanks before words.
        prompt.write(" the" * PROMPT)
        prompt.flush()
        args = [paring, "generate", model, "--prompt-file", prompt.name, "-n", str(TOKENS), "--ignore-end", "--no-begin"]
        out = subprocess.run([*args, "--threads", str(threads), "--device", "cpu", "--json"], check=True, capture_output=True)
    told = json.loads(out.stdout)
    assert told["prompt_tokens"] == PROMPT, told["prompt_tokens"]
    return told["prompt_tokens_per_s"], told["tokens_per_s"]


THEIRS = """
import json, sys, xllamacpp as x
p = x.CommonParams()
p.model.path, p.n_ctx, p.n_parallel, p.n_gpu_layers, p.warmup = sys.argv[1], 1024, 1, 0, True
p.cpuparams.n_threads = p.cpuparams_batch.n_threads = int(sys.argv[2])
ask = {"prompt": [506] * PROMPT, "n_predict": TOKENS, "ignore_eos": True, "temperature": 0, "cache_prompt": False}
server = x.Server(p)
for _ in range(2):
    out = server.handle_completions(ask)
out = out if isinstance(out, dict) else json.loads(out)
print("TIMES", json.dumps(out["timings"]))
""".replace("PROMPT", str(PROMPT)).replace("TOKENS", str(TOKENS))


def theirs(model, threads):
    import sys

    out = subprocess.run([sys.executable, "-c", THEIRS, model, str(threads)], check=True, capture_output=True, text=True)
    line = next(line for line in out.stdout.splitlines() if line.startswith("TIMES "))
    t = json.loads(line[6:])
    return t["prompt_per_second"], t["predicted_per_second"]


def main():
    a = argparse.ArgumentParser()
    a.add_argument("paring")
    a.add_argument("models", nargs="+")
    a.add_argument("--turns", type=int, default=3)
    a.add_argument("--threads", type=int, default=2)
    a = a.parse_args()
    for model in a.models:
        rows = [(ours(a.paring, model, a.threads), theirs(model, a.threads)) for _ in range(a.turns)]
        told = []
        for i, what in enumerate(["prompt", "tokens"]):
            mine, other = ([r[who][i] for r in rows] for who in (0, 1))
            ratios = [x / y for x, y in zip(mine, other)]
            told.append(
                f"{what} {statistics.median(mine):.1f} and {statistics.median(other):.1f} a second, "
                f"{statistics.median(ratios):.2f}x [{min(ratios):.2f}, {max(ratios):.2f}]"
            )
        print(f"{model.rsplit('/', 1)[-1]}: {'; '.join(told)}", flush=True)


main()
