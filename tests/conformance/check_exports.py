"""Runs what paring exported in the programs that others use, and compares logits.

    PARING_EXPORTS=/tmp/exports cargo test --test pruned_fixtures what_is_cut
    python tests/conformance/check_exports.py /tmp/exports

Every folder holds a pruned model as `paring export --format pytorch` writes it (and `model.onnx`, where it was written)
with `check.json`: an input and the logits that paring computes for it. Needs torch, safetensors, onnxruntime.
"""

import importlib.util
import json
import os
import sys

import torch

torch.set_num_threads(1)


def close(a, b):
    """Largest difference, relative to the largest logit or 1."""
    return float((a - b).abs().max() / max(1.0, float(b.abs().max())))


def main(root):
    worst, failed = 0.0, []
    for name in sorted(os.listdir(root)):
        folder = os.path.join(root, name)
        check = os.path.join(folder, "check.json")
        if not os.path.exists(check):
            continue
        with open(check) as f:
            check = json.load(f)
        x = torch.tensor(check["input"]).reshape(check["shape"])
        want = torch.tensor(check["logits"]).reshape(x.shape[0], -1)
        line = []
        spec = importlib.util.spec_from_file_location(f"exported_{name}", os.path.join(folder, "model.py"))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        with torch.no_grad():
            line.append(("torch", close(module.load()(x), want)))
        onnx = os.path.join(folder, "model.onnx")
        if os.path.exists(onnx):
            import onnxruntime

            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            session = onnxruntime.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
            got = session.run(None, {session.get_inputs()[0].name: x.numpy()})[0]
            line.append(("onnxruntime", close(torch.tensor(got), want)))
        for what, error in line:
            worst = max(worst, error)
            if not error <= 1e-4:
                failed.append(f"{name} in {what}: {error:.2e}")
        print(f"{name:40}", "  ".join(f"{what} {error:.1e}" for what, error in line), flush=True)
    print(f"worst {worst:.2e}; {len(failed)} beyond 1e-4", *failed, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
