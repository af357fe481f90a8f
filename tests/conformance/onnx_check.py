"""Runs exported ONNX files in ONNX Runtime and compares with recorded logits. Run by hand:

    PARING_ONNX_OUT=/tmp/exports cargo test --test onnx pruned_exports
    python tests/conformance/onnx_check.py /tmp/exports

The folder holds *.onnx and expected.json (name: {side, logits}), as the test above or make_onnx.py writes them. The
input is make_onnx.py's formula, twice in one batch. Exit code 1 when a file is off by more than 1e-4 of its largest
logit. Needs numpy and onnxruntime; `onnx`, where installed, checks the files first.
"""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort


def image(n, side):
    i = np.arange(3 * side * side, dtype=np.int64)
    one = (((i * 7919 + 13) % 2003).astype(np.float32) / np.float32(667.0) - np.float32(1.5)).reshape(1, 3, side, side)
    return np.repeat(one, n, axis=0)


def main():
    folder = Path(sys.argv[1])
    expected = json.loads((folder / "expected.json").read_text())
    try:
        import onnx
    except ImportError:
        onnx = None
    worst, bad = 0.0, 0
    for name, want in expected.items():
        path = folder / f"{name}.onnx"
        try:
            if onnx:
                onnx.checker.check_model(str(path), full_check=True)
            options = ort.SessionOptions()
            options.intra_op_num_threads = 1
            session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            entry = session.get_inputs()[0]
            n = 2 if not isinstance(entry.shape[0], int) else entry.shape[0]
            found = session.run(None, {entry.name: image(n, want["side"])})[0]
        except Exception as e:
            bad += 1
            print(f"FAIL {name}: {type(e).__name__}: {str(e)[:300]}")
            continue
        want = np.array(want["logits"], dtype=np.float64)
        off = float(np.abs(found - want).max() / max(1.0, np.abs(want).max()))
        worst = max(worst, off)
        if off > 1e-4:
            bad += 1
        print(f"{'ok  ' if off <= 1e-4 else 'FAIL'} {name}: off by {off:.1e}")
    print(f"{len(expected) - bad} of {len(expected)} agree, the worst of those that ran is off by {worst:.1e}")
    sys.exit(1 if bad or not expected else 0)


main()
