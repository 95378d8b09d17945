#!/usr/bin/env python3
"""make.py - writes the models of ../obstacles.py beside itself: what can be wrong with a model, much of it at once. Needs the Python
module onnx; the models are committed, the test needs none."""
import os
import numpy as np
from onnx import TensorProto as T, helper as h, numpy_helper as nh, save

HERE = os.path.dirname(os.path.abspath(__file__))


def weight(name, *dims):
    return nh.from_array(np.random.RandomState(len(name)).randn(*dims).astype("f"), name)


def node(op, inputs, outputs, name, module=None, **more):
    """As the dynamo exporter writes it: a name of its own kind, the module in the metadata."""
    n = h.make_node(op, inputs, outputs, name=name, **more)
    if module:
        n.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=f"['', '{module}', '{outputs[0]}']")
    return n


def value(name, dims, dtype=T.FLOAT):
    return h.make_tensor_value_info(name, dtype, dims)


def write(name, nodes, inputs, outputs, weights, functions=(), opset=18):
    graph = h.make_graph(nodes, name, inputs, outputs, weights)
    opsets = [h.make_opsetid("", opset)] * (opset > 0) + [h.make_opsetid("my.ops", 3), h.make_opsetid("here", 1)]
    model = h.make_model(graph, opset_imports=opsets, functions=list(functions), producer_name="pytorch")
    model.ir_version = 9
    save(model, os.path.join(HERE, name + ".onnx"))


def many():
    """Every kind of obstacle once, each behind a parameter of its own where that can be."""
    X, IMG, IDS = value("x", ["batch", 4]), value("img", ["batch", 3, 8, 8]), value("ids", ["batch"], T.INT64)
    body = h.make_graph([node("MatMul", ["x", "loop.w"], ["lm"], "node_matmul"), node("Bogus", ["lm"], ["lb"], "node_bogus")],
                        "then", [], [value("lb", None)], [])
    other = h.make_graph([node("Identity", ["x"], ["lo"], "node_identity")], "else", [], [value("lo", None)], [])
    block = h.make_function("here", "Block", ["a", "w"], ["b"],
                            [node("MatMul", ["a", "w"], ["m"], "node_matmul"), node("Det", ["m"], ["d"], "node_odd", domain="my.ops"),
                             node("Identity", ["d"], ["b"], "node_last")],
                            [h.make_opsetid("", 18), h.make_opsetid("my.ops", 3)])
    nodes = [
        node("MatMul", ["x", "enc.w"], ["e0"], "node_linear", "enc"),
        node("Foo", ["e0"], ["e1"], "node_foo", "enc.act", domain="my.ops"),
        node("MatMul", ["x", "words.w"], ["s0"], "node_linear_1", "words"),
        node("StringNormalizer", ["s0"], ["s1"], "node_words", "words"),
        node("MatMul", ["x", "mask.w"], ["n0"], "node_linear_2", "mask"),
        node("NonZero", ["n0"], ["n1"], "node_nonzero", "mask"),
        node("MatMul", ["x", "shape.w"], ["d0"], "node_linear_3", "shape"),
        node("Reshape", ["d0", "sizes"], ["d1"], "node_view", "shape"),
        node("MatMul", ["x", "inner.w"], ["i0"], "node_linear_4", "inner"),
        node("Conv", ["img", "conv.w"], ["c0"], "node_conv2d", "conv", auto_pad="WEIRD"),
        node("Add", ["x", "add.b"], ["a0"], "node_add", "add"),
        node("MatMul", ["x", "old.w"], ["o0"], "node_linear_5", "old"),
        node("Upsample", ["o0"], ["o1"], "node_upsample", "old", mode="nearest"),
        node("Gather", ["table.w", "positions"], ["g0"], "node_embedding", "table"),
        node("MatMul", ["x", "axis.w"], ["x0"], "node_linear_6", "axis"),
        node("Softmax", ["x0"], ["x1"], "node_softmax", "axis", axis=7),
        node("Concat", ["img", "cat.w"], ["k0"], "node_cat", "cat", axis=1),
        node("Gemm", ["lacks.w"], ["l0"], "node_addmm", "lacks"),
        node("MatMul", ["x", "undefined.w"], ["u0"], "node_linear_7", "undefined"),
        node("Add", ["u0", "nowhere"], ["u1"], "node_add_1", "undefined"),
        node("If", ["flag"], ["f0"], "node_if", "branch", then_branch=body, else_branch=other),
        node("Block", ["x", "block.w"], ["b0"], "node_block", "block", domain="here"),
        node("MatMul", ["x", "best.w"], ["m0"], "node_linear_8", "best"),
        node("ArgMax", ["m0"], ["m1"], "node_argmax", "best", axis=1, keepdims=0),
        node("Cast", ["m1"], ["m2"], "node_cast", "best", to=T.FLOAT),
        node("MatMul", ["x", "round.w"], ["r0"], "node_linear_9", "round"),
        node("Round", ["r0"], ["r1"], "node_round", "round"),
    ]
    ends = ["e1", "s1", "n1", "d1", "i0", "c0", "a0", "o1", "g0", "x1", "k0", "l0", "u1", "f0", "b0", "m2", "r1"]
    nodes += [node("ReduceSum", [e], [e + "_sum"], "node_sum_" + e, keepdims=0) for e in ends]
    nodes.append(node("Sum", [e + "_sum" for e in ends], ["loss"], "node_loss"))
    weights = [weight(n + ".w", 4, 4) for n in "enc words mask shape old axis undefined block best round loop lacks".split()]
    weights += [weight("inner.w", 5, 4), weight("conv.w", 8, 3, 3, 3), weight("add.b", 7), weight("table.w", 6, 4), weight("cat.w", 1, 5, 7, 7),
                nh.from_array(np.array(True), "flag")]
    write("many", nodes, [X, IMG, IDS, value("sizes", [2], T.INT64), value("positions", [3])], [value("loss", [])], weights, [block])


def cut():
    """Nothing is wrong but that two parameters of three are behind ops that let no gradient through."""
    nodes = [
        node("MatMul", ["x", "fc.weight"], ["h"], "node_linear", "fc"),
        node("MatMul", ["x", "best.weight"], ["m0"], "node_linear_1", "best"),
        node("ArgMax", ["m0"], ["m1"], "node_argmax", "best", axis=1, keepdims=1),
        node("Cast", ["m1"], ["m2"], "node_cast", "best", to=T.FLOAT),
        node("MatMul", ["x", "round.weight"], ["r0"], "node_linear_2", "round"),
        node("Round", ["r0"], ["r1"], "node_round", "round"),
        node("MatMul", ["x", "less.weight"], ["q0"], "node_linear_3", "less"),
        node("Less", ["q0", "x"], ["q1"], "node_lt", "less"),
        node("Cast", ["q1"], ["q2"], "node_cast_1", "less", to=T.FLOAT),
        node("Sum", ["h", "m2", "r1", "q2"], ["y"], "node_sum"),
    ]
    weights = [weight(n + ".weight", 4, 4) for n in ("fc", "best", "round", "less")]
    write("cut", nodes, [value("x", ["batch", 4])], [value("y", ["batch", 4])], weights)


def layers():
    """A hundred layers with the same obstacle."""
    nodes, weights, last = [], [], "x"
    for i in range(100):
        nodes += [node("MatMul", ["x", f"layer.{i}.weight"], [f"h{i}"], f"node_linear_{i}", f"layer.{i}"),
                  node("Odd", [f"h{i}"], [f"o{i}"], f"node_odd_{i}", f"layer.{i}.act", domain="my.ops")]
        weights.append(weight(f"layer.{i}.weight", 4, 4))
    nodes.append(node("Sum", [f"o{i}" for i in range(100)], ["y"], "node_sum"))
    write("layers", nodes, [value("x", ["batch", 4])], [value("y", ["batch", 4])], weights)


def probs():
    """An output that is probabilities already."""
    nodes = [node("MatMul", ["x", "fc.weight"], ["h"], "node_linear", "fc"), node("Softmax", ["h"], ["p"], "node_softmax", axis=1)]
    write("probs", nodes, [value("x", ["batch", 4])], [value("p", ["batch", 4])], [weight("fc.weight", 4, 4)])


def broken():
    """Files that no exporter should write."""
    x, y, w = value("x", ["batch", 4]), value("y", ["batch", 4]), weight("w", 4, 4)
    relu = node("Relu", ["x"], ["y"], "node_relu")

    def one(name, nodes=(relu,), inputs=(x,), outputs=(y,), weights=(), **more):
        write("broken_" + name, list(nodes), list(inputs), list(outputs), list(weights), **more)
    one("cycle", [node("Add", ["x", "b"], ["a"], "node_first"), node("Relu", ["a"], ["b"], "node_second"), node("Relu", ["b"], ["y"], "node_last")])
    one("twice", [relu, node("Neg", ["x"], ["y"], "node_neg")])
    one("input_made", [node("Relu", ["x"], ["x"], "node_again"), relu])
    one("no_opset", opset=0)
    one("empty", [], [], [])
    one("no_nodes", [])
    one("huge", inputs=[value("x", [1 << 40, 1 << 40])])
    one("type_99", inputs=[value("x", ["batch", 4], 99)])
    one("no_rank", inputs=[value("x", None)])
    short, many_dims, below = weight("w", 4, 4), weight("w", 4, 4), weight("w", 4, 4)
    short.raw_data = short.raw_data[:60]
    many_dims.dims[:] = [1 << 40, 1 << 40]
    below.dims[:] = [-4, -4]
    product = [node("MatMul", ["x", "w"], ["y"], "node_linear")]
    one("short_weight", product, weights=[short])
    one("huge_weight", product, weights=[many_dims])
    one("negative_weight", product, weights=[below])
    one("weight_twice", product, weights=[w, w])
    odd = node("Transpose", ["x"], ["y"], "node_permute")
    odd.attribute.add(name="perm", type=5)
    one("attribute", [odd])


many()
cut()
broken()
layers()
probs()
