"""ONNX graphs of torchvision's ResNet-50 and timm's ViT-B/16 with random weights, batch free: speed does not depend on
values. Batch norms are left for ONNX Runtime to fold, as an exporter in training layout would leave them."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


class Graph:
    def __init__(self, seed=1):
        self.rng = np.random.default_rng(seed)
        self.nodes, self.inits, self.n = [], [], 0

    def const(self, value):
        self.n += 1
        name = f"c{self.n}"
        self.inits.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *shape, fan_in=None):
        fan = fan_in or int(np.prod(shape[1:])) or 1
        return self.const((self.rng.standard_normal(shape) / np.sqrt(fan)).astype(np.float32))

    def op(self, kind, *inputs, outputs=1, **attributes):
        self.n += 1
        out = [f"t{self.n}_{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), out, name=f"{kind}{self.n}", **attributes))
        return out[0] if outputs == 1 else out

    def save(self, path, output, classes):
        self.nodes.append(helper.make_node("Identity", [output], ["logits"]))
        image = helper.make_tensor_value_info("input", TensorProto.FLOAT, ["N", 3, 224, 224])
        logits = helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", classes])
        graph = helper.make_graph(self.nodes, "g", [image], [logits], self.inits)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
        onnx.checker.check_model(model)
        onnx.save(model, path)


def resnet50(path):
    g = Graph()

    def conv(x, i, o, k, stride, act=True):
        x = g.op("Conv", x, g.weight(o, i, k, k), kernel_shape=[k, k], strides=[stride] * 2, pads=[k // 2] * 4)
        stats = [g.const(np.full(o, v, np.float32)) for v in (1, 0, 0, 1)]
        x = g.op("BatchNormalization", x, *stats)
        return g.op("Relu", x) if act else x

    x = conv("input", 3, 64, 7, 2)
    x = g.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    c = 64
    for width, depth, stride in [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]:
        for i in range(depth):
            s = stride if i == 0 else 1
            y = conv(conv(x, c, width, 1, 1), width, width, 3, s)
            y = conv(y, width, 4 * width, 1, 1, act=False)
            short = conv(x, c, 4 * width, 1, s, act=False) if i == 0 else x
            x, c = g.op("Relu", g.op("Add", y, short)), 4 * width
    x = g.op("Flatten", g.op("GlobalAveragePool", x))
    x = g.op("Gemm", x, g.weight(1000, c), g.const(np.zeros(1000, np.float32)), transB=1)
    g.save(path, x, 1000)


def vit_b16(path, dim=768, depth=12, heads=12, mlp=3072, tokens=197):
    g = Graph()
    ints = lambda *v: g.const(np.array(v, np.int64))

    def linear(x, i, o):
        x = g.op("MatMul", x, g.weight(i, o, fan_in=i))
        return g.op("Add", x, g.const(np.zeros(o, np.float32)))

    def norm(x):
        w, b = g.const(np.ones(dim, np.float32)), g.const(np.zeros(dim, np.float32))
        return g.op("LayerNormalization", x, w, b, axis=-1, epsilon=1e-6)

    x = g.op("Conv", "input", g.weight(dim, 3, 16, 16), g.const(np.zeros(dim, np.float32)), kernel_shape=[16, 16],
             strides=[16, 16])
    x = g.op("Transpose", g.op("Reshape", x, ints(0, dim, 196)), perm=[0, 2, 1])
    batch = g.op("Slice", g.op("Shape", x), ints(0), ints(1))
    token = g.op("Expand", g.weight(1, 1, dim), g.op("Concat", batch, ints(1, dim), axis=0))
    x = g.op("Add", g.op("Concat", token, x, axis=1), g.weight(1, tokens, dim))
    for _ in range(depth):
        qkv = g.op("Split", linear(norm(x), dim, 3 * dim), outputs=3, axis=2, num_outputs=3)
        split = lambda t, perm: g.op("Transpose", g.op("Reshape", t, ints(0, tokens, heads, dim // heads)), perm=perm)
        q, k, v = split(qkv[0], [0, 2, 1, 3]), split(qkv[1], [0, 2, 3, 1]), split(qkv[2], [0, 2, 1, 3])
        scores = g.op("Mul", g.op("MatMul", q, k), g.const(np.float32((dim // heads) ** -0.5)))
        y = g.op("MatMul", g.op("Softmax", scores, axis=-1), v)
        y = g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]), ints(0, tokens, dim))
        x = g.op("Add", x, linear(y, dim, dim))
        y = g.op("Gelu", linear(norm(x), dim, mlp))
        x = g.op("Add", x, linear(y, mlp, dim))
    x = g.op("Gather", norm(x), g.const(np.array(0, np.int64)), axis=1)
    x = g.op("Gemm", x, g.weight(1000, dim), g.const(np.zeros(1000, np.float32)), transB=1)
    g.save(path, x, 1000)
