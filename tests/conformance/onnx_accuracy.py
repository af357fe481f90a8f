"""Right answers of ONNX files on CIFAR-10 binary files, by ONNX Runtime. Run by hand:

    python tests/conformance/onnx_accuracy.py DIR/cifar10/test_batch.bin MODEL.onnx ... [--cifar]

Prints one line a model: correct, of how many. Images are normalised with ImageNet's mean and deviation, or with
CIFAR-10's with --cifar. Needs numpy and onnxruntime.
"""

import sys

import numpy as np
import onnxruntime as ort


def main():
    args = [a for a in sys.argv[1:] if not a.startswith("--")]
    if "--cifar" in sys.argv:
        mean, std = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
    else:
        mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    raw = np.fromfile(args[0], dtype=np.uint8).reshape(-1, 3073)
    labels, pixels = raw[:, 0], raw[:, 1:].reshape(-1, 3, 32, 32)
    shape = (1, 3, 1, 1)
    mean, std = np.float32(mean).reshape(shape), np.float32(std).reshape(shape)
    for path in args[1:]:
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        name = session.get_inputs()[0].name
        right = 0
        for at in range(0, len(labels), 250):
            x = (pixels[at : at + 250].astype(np.float32) / np.float32(255) - mean) / std
            logits = session.run(None, {name: x})[0]
            right += int((logits.argmax(axis=1) == labels[at : at + 250]).sum())
        print(f"{path}: {right} of {len(labels)}", flush=True)


main()
