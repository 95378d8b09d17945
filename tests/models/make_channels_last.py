#!/usr/bin/env python3
"""make_channels_last.py - writes channels_last.onnx.xz as tf2onnx writes a Keras model: [N, H, W, C], and a pair of transposes around
every convolution, batch norm and pooling. Needs onnx and numpy.

A stem, a residual block, squeeze and excitation, padding, pooling, a concat, global means, a linear layer: 20 transposes.
"""
import lzma
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

random = np.random.default_rng(0)
nodes, initializers = [], []


def constant(name, value):
    initializers.append(numpy_helper.from_array(value, name))
    return name


def weight(name, *shape):
    return constant(name, random.normal(0, 0.2, shape).astype(np.float32))


def node(op, inputs, name, **attributes):
    nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
    return name


def between_transposes(op, inputs, name, **attributes):
    before = node("Transpose", inputs[:1], name + "_nchw", perm=[0, 3, 1, 2])
    inner = node(op, [before] + inputs[1:], name + "_op", **attributes)
    return node("Transpose", [inner], name + "_nhwc", perm=[0, 2, 3, 1])


def conv(x, c_in, c_out, k, name, stride=1):
    y = between_transposes("Conv", [x, weight(name + "_w", c_out, c_in, k, k)], name, kernel_shape=[k, k], auto_pad="SAME_UPPER",
                           strides=[stride, stride])
    return node("Add", [y, weight(name + "_b", c_out)], name)


def norm(x, c, name):
    return between_transposes("BatchNormalization", [x] + [weight(name + s, c) for s in ("_scale", "_bias", "_mean")] +
                              [constant(name + "_variance", np.ones(c, np.float32))], name, epsilon=1e-3)


x = node("Relu", [norm(conv("x", 3, 8, 3, "stem", 2), 8, "norm1")], "relu1")
y = node("Relu", [norm(conv(x, 8, 8, 3, "conv2"), 8, "norm2")], "relu2")
x = node("Relu", [node("Add", [x, conv(y, 8, 8, 3, "conv3")], "residual")], "relu3")
s = conv(node("ReduceMean", [x], "squeeze", axes=[1, 2], keepdims=1), 8, 2, 1, "reduce")
s = node("Mul", [node("Sigmoid", [s], "gate"), s], "swish")
x = node("Mul", [x, node("Sigmoid", [conv(s, 2, 8, 1, "excite")], "attend")], "scaled")
x = node("Pad", [x, constant("pads", np.array([0, 1, 1, 0, 0, 1, 1, 0], np.int64))], "padded")
x = between_transposes("MaxPool", [x], "pooled", kernel_shape=[3, 3], strides=[2, 2])
x = conv(node("Concat", [x, conv(x, 8, 4, 1, "branch")], "joined", axis=3), 12, 6, 3, "last")
x = node("ReduceMean", [x], "mean", axes=[1, 2], keepdims=0)
node("Add", [node("MatMul", [x, weight("dense_w", 6, 10)], "dense"), weight("dense_b", 10)], "logits")
graph = helper.make_graph(nodes, "channels_last", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 32, 32, 3])],
                          [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 10])], initializers)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], producer_name="tf2onnx", ir_version=8)
onnx.checker.check_model(model)
with lzma.open(Path(__file__).parent / "channels_last.onnx.xz", "wb", preset=9) as f:
    f.write(model.SerializeToString())
