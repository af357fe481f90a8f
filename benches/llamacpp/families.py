"""Does llama.cpp load what `paring` writes of every kind of network, and compute the same? Small networks with random weights, whole and cut alike in
every layer, each written from its directory; every logit beside ours, which tests hold against transformers.

    PARING_FAMILIES=DIR cargo test --test language every_kind_for_llama_cpp -- --ignored
    venv/bin/python benches/llamacpp/families.py package/bins/linux-x64 DIR        (libraries as for check.py)
"""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np


def one(folder, path):
    """In a process of its own: what does not load ends it."""
    from llama import Llama

    told = json.loads(path.with_suffix(".json").read_text())
    ids = np.array(told["ids"])
    ours = np.array(told["logits"]).reshape(*ids.shape, -1)
    model = Llama(folder).open(str(path), ids.shape[1])
    theirs = np.stack([model.logits(row) for row in ids])
    model.close()
    off = abs(ours - theirs).max(axis=2)
    # A token near a tie may go to other experts there.
    print(f"FOUND {off.max():.2e} {abs(ours).max():.2f} {np.mean(off > 5e-3 * max(1.0, abs(ours).max())):.3f}")


def main():
    folder, out = sys.argv[1], Path(sys.argv[2])
    bad = 0
    for told in sorted(out.glob("*.json")):
        said = json.loads(told.read_text())
        refused = said.get("refused")
        if refused:
            print(f"--  {told.stem}: refused: {refused}")
            continue
        run = subprocess.run([sys.executable, __file__, folder, str(out), told.stem], capture_output=True, text=True)
        found = [line for line in run.stdout.splitlines() if line.startswith("FOUND")]
        if not found:
            bad += 1
            why = [line for line in (run.stdout + run.stderr).splitlines() if line.strip()]
            print(f"BAD {told.stem}: does not load: {' / '.join(why[-3:])[:300]}")
            continue
        off, most, share = found[0].split()[1:]
        good = float(share) <= (0.05 if told.stem.startswith(("mixtral", "qwen3_moe")) else 0.0)
        if not good and said["notes"]:
            print(f"--  {told.stem}: off by {off} of {most}, as was told: {' / '.join(said['notes'])[:160]}")
            continue
        bad += not good
        print(f"{'ok ' if good else 'BAD'} {told.stem}: off by {off} of {most}, {100 * float(share):.0f} % of the tokens")
    sys.exit(bad > 0)


if len(sys.argv) > 3:
    one(sys.argv[1], Path(sys.argv[2]) / f"{sys.argv[3]}.gguf")
else:
    main()
