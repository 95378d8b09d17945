#!/usr/bin/env python3
"""make_models.py - writes the small ONNX files of this folder (models/). Needs onnx and numpy; run it after a change and commit the result."""
import os
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FOLDER = os.path.join(os.path.dirname(os.path.abspath(__file__)), "models")
FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


def info(name, dims, dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, dims)


def raw(name, array):
    return numpy_helper.from_array(np.asarray(array), name)


def save(name, nodes, inputs, outputs, initializers=(), opset=17, functions=(), extra_opsets=(), producer=""):
    graph = helper.make_graph(nodes, name, inputs, outputs, list(initializers))
    opsets = [helper.make_opsetid("", opset)] + [helper.make_opsetid(d, 1) for d in extra_opsets]
    model = helper.make_model(graph, opset_imports=opsets, functions=list(functions), producer_name=producer)
    model.ir_version = 8
    onnx.save(model, os.path.join(FOLDER, name + ".onnx"))


def external(name, location, dims, **fields):
    t = TensorProto(name=name, data_type=FLOAT, dims=dims, data_location=TensorProto.EXTERNAL)
    for key, value in dict(location=location, **fields).items():
        t.external_data.add(key=key, value=str(value))
    return t


def node(op, ins, outs, name="", domain="", **attributes):
    return helper.make_node(op, ins, outs, name=name or outs[0], domain=domain, **attributes)


def tiny():
    """weights inline as raw bytes, in typed fields, and an integer initializer in typed fields"""
    save("tiny", [node("Gemm", ["x", "w", "b"], ["h"], "/layer/Gemm"), node("Reshape", ["h", "shape"], ["y"])], [info("x", ["batch", 4])],
         [info("y", ["batch", 3])],
         [raw("w", np.arange(12, dtype=np.float32).reshape(4, 3)), helper.make_tensor("b", FLOAT, [3], [1, 2, 3]),
          helper.make_tensor("shape", INT64, [2], [-1, 3])])


def external_files():
    nodes, ins, outs = [node("Add", ["x", "w"], ["h"]), node("Mul", ["h", "v"], ["y"])], [info("x", ["batch", 4])], [info("y", ["batch", 4])]
    with open(os.path.join(FOLDER, "weights.bin"), "wb") as f:
        f.write(np.arange(8, dtype=np.float32).tobytes())
    save("external", nodes, ins, outs, [external("w", "weights.bin", [4], offset=0, length=16), external("v", "weights.bin", [4], offset=16)])
    save("external_missing", nodes, ins, outs, [external("w", "absent1.bin", [4]), external("v", "absent2.bin", [4])])
    save("external_short", nodes, ins, outs, [external("w", "weights.bin", [4], offset=24, length=16), external("v", "weights.bin", [4], length=12)])
    save("external_escape", nodes, ins, outs, [external("w", "../weights.bin", [4]), external("v", "/etc/hostname", [4])])


def obstacles():
    save("obstacles",
         [node("MatMul", ["x", "a.weight"], ["a"]), node("Strange", ["a"], ["s"], "first", "com.example"), node("NonZero", ["s"], ["hidden"]),
          node("Unique", ["s"], ["u"], "second"), node("MatMul", ["x", "b.weight"], ["b"]), node("Odd", ["b"], ["o"], "third", "com.example"),
          node("Add", ["u", "o"], ["y"]), node("Dead", ["x"], ["unused"], "nobody", "com.example")],
         [info("x", ["batch", 4])], [info("y", ["batch", 4])],
         [raw("a.weight", np.ones((4, 4), np.float32)), raw("b.weight", np.ones((4, 4), np.float32))], extra_opsets=["com.example"])


def beside_the_loss():
    """an output behind an op that nobody knows, beside one that trains"""
    for name, op, scalar in (("beside_logits", "Identity", "logits"), ("beside_scalar", "ReduceMean", "value")):
        save(name, [node("MatMul", ["x", "w"], ["h"]), node(op, ["h"], [scalar], keepdims=0) if op == "ReduceMean" else node(op, ["h"], [scalar]),
                    node("Strange", ["h"], ["s"], "other", "com.example"), node("Relu", ["s"], ["boxes"])], [info("x", ["batch", 4])],
             [info(scalar, [] if op == "ReduceMean" else ["batch", 3]), info("boxes", ["batch", 3])], [raw("w", np.ones((4, 3), np.float32))],
             extra_opsets=["com.example"])


def fold():
    """the shape chain that TorchScript writes; the mask is arithmetic on shapes alone"""
    c = lambda name, value: node("Constant", [], [name], value=raw(name, np.asarray(value)))
    save("fold",
         [node("Shape", ["ids"], ["sh"]), c("i1", np.int64(1)), node("Gather", ["sh", "i1"], ["seq"], axis=0), c("zero", np.int64(0)),
          c("one", np.int64(1)), node("Range", ["zero", "seq", "one"], ["pos"]), c("ax0", np.array([0], np.int64)), c("ax1", np.array([1], np.int64)),
          node("Unsqueeze", ["pos", "ax0"], ["cols"]), node("Unsqueeze", ["pos", "ax1"], ["rows"]), node("LessOrEqual", ["cols", "rows"], ["mask"]),
          c("neg", np.float32(-1)), c("nil", np.float32(0)), node("Where", ["mask", "nil", "neg"], ["bias"]),
          node("Gather", ["table", "ids"], ["rows_of_table"]), node("ReduceSum", ["rows_of_table"], ["sum"], keepdims=0),
          node("Add", ["bias", "sum"], ["y"])],
         [info("ids", ["batch", "sequence"], INT64)], [info("y", ["sequence", "sequence"])], [raw("table", np.ones((7, 2), np.float32))])


def versions():
    """the same function, in the words of opset 9 and of opset 18"""
    ins, outs, w = [info("x", ["batch", 6, 4])], [info("y", ["batch", 6])], raw("w", np.ones((6, 4), np.float32))
    i = lambda name, values: helper.make_tensor(name, INT64, [len(values)], values)
    save("versions_9",
         [node("Add", ["x", "w"], ["a"], "a"), node("Slice", ["a"], ["b"], "b", starts=[0], ends=[3], axes=[2]), node("Unsqueeze", ["b"], ["c"], "c", axes=[1]),
          node("Squeeze", ["c"], ["d"], "d", axes=[1]), node("Pad", ["d"], ["e"], "e", pads=[0, 0, 1, 0, 0, 0], value=0.5),
          node("Clip", ["e"], ["f"], "f", min=-1.0, max=2.0), node("Split", ["f"], ["g1", "g2"], "g", axis=1, split=[2, 4]),
          node("Concat", ["g2", "g1"], ["h"], "h", axis=1), node("Softmax", ["h"], ["s"], "s", axis=2), node("ReduceSum", ["s"], ["y"], "y", axes=[2], keepdims=0)],
         ins, outs, [w], opset=9)
    f = lambda name, v: node("Constant", [], [name], value=helper.make_tensor(name, FLOAT, [], [v]))
    save("versions_18",
         [f("half", 0.5), f("lo", -1.0), f("hi", 2.0), node("Add", ["x", "w"], ["a"], "a"), node("Slice", ["a", "st", "en", "ax"], ["b"], "b"), node("Unsqueeze", ["b", "one"], ["c"], "c"),
          node("Squeeze", ["c", "one"], ["d"], "d"), node("Pad", ["d", "pads", "half"], ["e"], "e"), node("Clip", ["e", "lo", "hi"], ["f"], "f"),
          node("Split", ["f", "sp"], ["g1", "g2"], "g", axis=1), node("Concat", ["g2", "g1"], ["h"], "h", axis=1),
          node("Softmax", ["h"], ["s"], "s", axis=2), node("ReduceSum", ["s", "ax"], ["y"], "y", keepdims=0)],
         ins, outs, [w, i("st", [0]), i("en", [3]), i("ax", [2]), i("one", [1]), i("pads", [0, 0, 1, 0, 0, 0]), i("sp", [2, 4])],
         opset=18)


def inlining():
    body = helper.make_function("local", "Scale", ["v", "by"], ["out"],
                                [node("Mul", ["v", "by"], ["m"]), node("LeakyRelu", ["m"], ["out"])], [helper.make_opsetid("", 17)], ["alpha"])
    del body.node[1].attribute[:]
    body.node[1].attribute.append(onnx.AttributeProto(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT))
    body.attribute[:] = ["slope"]
    then = helper.make_graph([node("Add", ["s", "w"], ["t"])], "then", [], [info("t", None)])
    other = helper.make_graph([node("Unknown", ["s"], ["e"])], "else", [], [info("e", None)])
    save("inlining", [node("Scale", ["x", "w"], ["s"], "call", "local", slope=0.5), node("Constant", [], ["yes"], value=raw("yes", np.array(True))),
                      node("If", ["yes"], ["y"], "branch", then_branch=then, else_branch=other)],
         [info("x", ["batch", 2])], [info("y", ["batch", 2])], [raw("w", np.array([2, 3], np.float32))], functions=[body], extra_opsets=["local"])


def training():
    c = lambda name, value: node("Constant", [], [name], value=raw(name, np.asarray(value)))
    save("training",
         [c("ratio", np.float32(0.25)), c("mode", np.array(True)), node("Dropout", ["x", "ratio", "mode"], ["d"]), node("Dropout", ["d", "ratio", "mode"], ["e"]),
          node("BatchNormalization", ["e", "scale", "bias", "mean", "var"], ["y", "m", "v"], training_mode=1)],
         [info("x", ["batch", 3, 2])], [info("y", ["batch", 3, 2])],
         [raw(n, np.ones(3, np.float32)) for n in ("scale", "bias", "mean", "var")], producer="pytorch")


def statistics():
    """running statistics as one batch moves them from 0 and 1, and as training leaves them"""
    for name, mean, var, opset in (("moved_once", 0.02, 0.93, 17), ("moved_once_9", 0.02, 0.93, 9), ("trained", 0.3, 0.41, 17)):
        mode = {"training_mode": 1} if opset >= 14 else {}           # before opset 14 the further outputs alone say so
        save(name, [node("BatchNormalization", ["x", "scale", "bias", "mean", "var"], ["y", "m", "v"], **mode)],
             [info("x", ["batch", 3, 2])], [info("y", ["batch", 3, 2])],
             [raw("scale", np.ones(3, np.float32)), raw("bias", np.zeros(3, np.float32)), raw("mean", np.full(3, mean, np.float32)),
              raw("var", np.full(3, var, np.float32))], opset=opset, producer="pytorch")


def inference_norm():
    """BatchNormalization as an inference export writes it"""
    save("inference_norm", [node("BatchNormalization", ["x", "scale", "bias", "mean", "var"], ["y"])], [info("x", ["batch", 3, 2])],
         [info("y", ["batch", 3, 2])], [raw(n, np.ones(3, np.float32)) for n in ("scale", "bias", "mean", "var")])


def faults():
    """one file for each way in which a node can be wrong"""
    x, y = [info("x", ["batch", 4])], [info("y", None)]
    save("fault_version", [node("Upsample", ["x", "s"], ["y"])], x, y, [raw("s", np.ones(2, np.float32))])
    save("fault_attribute", [node("Gelu", ["x"], ["y"], approximate="sine")], x, y, opset=20)
    save("fault_shapes", [node("Add", ["x", "w"], ["y"])], x, y, [raw("w", np.ones(3, np.float32))])
    save("fault_undefined", [node("Add", ["x", "nowhere"], ["y"])], x, y)
    save("fault_missing", [node("MatMul", ["x"], ["y"])], x, y)
    save("fault_dtype", [node("Add", ["x", "w"], ["y"])], x, y, [raw("w", np.ones(4, np.float64))])
    save("fault_inner", [node("MatMul", ["x", "w"], ["y"])], x, y, [raw("w", np.ones((3, 2), np.float32))])
    save("fault_index", [node("Gather", ["x", "i"], ["y"], axis=1)], x, y, [raw("i", np.array([4], np.int64))])
    save("fault_elements", [node("Add", ["x", "w"], ["y"])], x, y,
         [TensorProto(name="w", data_type=FLOAT, dims=[4], raw_data=np.ones(3, np.float32).tobytes())])
    save("fault_string", [node("Identity", ["x"], ["y"])], x, y, [helper.make_tensor("w", TensorProto.STRING, [1], [b"text"])])


def inputs():
    save("inputs", [node("Add", ["x", "bias"], ["a"]), node("Mul", ["y", "sr"], ["b"]), node("ReduceSum", ["b"], ["c"], keepdims=0), node("Add", ["a", "c"], ["out"])],
         [info("x", ["batch", "width"]), info("y", [None, "batch"]), info("sr", [])], [info("out", ["batch", "width"])],
         [raw("bias", np.ones(1, np.float32))])


def exporters():
    """dynamo's marks: a parameter, a buffer, a lifted scalar, the module of a node"""
    save("exporters", [node("Mul", ["x", "p"], ["a"]), node("Mul", ["a", "rope.inv_freq"], ["b"]), node("Mul", ["b", "val_3"], ["y"], "node_mul")],
         [info("x", ["batch", 2])], [info("y", ["batch", 2])],
         [raw("p", np.ones(2, np.float32)), raw("rope.inv_freq", np.ones(2, np.float32)), raw("val_3", np.float32(2))], producer="pytorch")
    path = os.path.join(FOLDER, "exporters.onnx")
    model = onnx.load(path)
    for name, kind in (("p", "PARAMETER"), ("rope.inv_freq", "BUFFER")):
        v = model.graph.value_info.add(name=name)
        v.type.CopyFrom(info(name, [2]).type)
        v.metadata_props.add(key="pkg.torch.export.graph_signature.InputSpec.kind", value=kind)
    model.graph.node[2].metadata_props.add(key="pkg.torch.onnx.name_scopes", value="['', 'model', 'model.layers.0', 'mul']")
    onnx.save(model, path)


def lifted():
    """dynamo's default export of norm(x @ w.t()) * table * mask: the weight is folded into val_0 without a mark, and so are constants of the code"""
    fx, c, inf = "pkg.torch.onnx.fx_node", "call_function[target=torch.ops.aten.", np.float32(-3.4e38)
    nodes = [node("MatMul", ["x", "val_0"], ["a"]), node("LayerNormalization", ["a", "val_1"], ["b"]), node("Mul", ["b", "val_2"], ["c"]),
             node("Add", ["c", "val_3"], ["d"]), node("Mul", ["d", "ones_1"], ["e"]), node("Mul", ["e", "half"], ["f"]), node("Mul", ["f", "p"], ["g"]),
             node("Mul", ["g", "cos"], ["y"])]
    calls = ["linear.default](args = (%x, %p_l_weight)", "layer_norm.default](args = (%a, [2])", "mul.Tensor](args = (%b, 1.5)",
             "add.Tensor](args = (%c, %masked)", "mul.Tensor](args = (%d, %ones)", "mul.Tensor](args = (%e, 0.5)", "mul.Tensor](args = (%f, %p_p)",
             "mul.Tensor](args = (%g, %cos)"]
    for n, call in zip(nodes, calls):
        n.metadata_props.add(key=fx, value=f"%{n.output[0]} : [num_users=1] = {c}{call}, kwargs = {{}})")
    save("lifted", nodes, [info("x", ["batch", 3])], [info("y", ["batch", 2])],
         [raw("val_0", np.arange(6, dtype=np.float32).reshape(3, 2)), raw("val_1", np.ones(2, np.float32)), raw("val_2", np.full(2, 1.5, np.float32)),
          raw("val_3", np.array([0, inf], np.float32)), raw("ones_1", np.ones(2, np.float32)), raw("half", np.float32(0.5)), raw("p", np.ones(2, np.float32)),
          raw("cos", np.array([1, 0.5], np.float32))], producer="pytorch")
    path = os.path.join(FOLDER, "lifted.onnx")
    model = onnx.load(path)
    model.graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value="""
# inputs
p_l_weight: PARAMETER target='l.weight'
p_p: PARAMETER target='p'
x: USER_INPUT

# outputs
y: USER_OUTPUT
""")
    v = model.graph.value_info.add(name="p")
    v.type.CopyFrom(info("p", [2]).type)
    v.metadata_props.add(key="pkg.torch.export.graph_signature.InputSpec.kind", value="PARAMETER")
    onnx.save(model, path)


def padding():
    """an embedding of which row 1 is zeros, as nn.Embedding(padding_idx=1) starts; and the same from another producer"""
    table = np.arange(24, dtype=np.float32).reshape(6, 4) + 1
    table[1] = 0
    for name, producer in (("padding", "pytorch"), ("padding_other", "tool")):
        save(name, [node("Gather", ["table", "ids"], ["y"])], [info("ids", ["batch", 3], INT64)], [info("y", ["batch", 3, 4])], [raw("table", table)],
             producer=producer)
    for name, index in (("padding_traced", ", 2"), ("padding_none", "")):    # what dynamo's metadata say, whatever the rows hold
        lookup = node("Gather", ["table", "ids"], ["y"])
        lookup.metadata_props.add(key="pkg.torch.onnx.fx_node", value="%y : [num_users=1] = call_function[target=torch.ops.aten.embedding.default]"
                                  f"(args = (%p_table, %ids{index}), kwargs = {{}})")
        save(name, [lookup], [info("ids", ["batch", 3], INT64)], [info("y", ["batch", 3, 4])], [raw("table", table)], producer="pytorch")


def geometry():
    """what geometric operators refuse, and wide ones whose plan must stay small (geometry.onnx itself: tests/gradients/torch_geometry.py)"""
    def constant(name, value):
        return node("Constant", [], [name], value=raw(name, value))
    image, boxes = info("x", [1, 2, 7, 7]), info("boxes", [3, 4])
    save("geometry_refused",
         [constant("length", np.array(0)), constant("step", np.array(4)), constant("frame", np.array(90)), constant("which", np.zeros(3, np.int64)),
          constant("small", np.array([1, 2, -1, 3])),
          node("GridSample", ["x", "grid"], ["a"], mode="quintic"), node("GridSample", ["x", "grid"], ["b"], padding_mode="mirror"),
          node("GridSample", ["x", "boxes"], ["c"]), node("Det", ["x"], ["d"]), node("Det", ["boxes"], ["e"]),
          node("RoiAlign", ["x", "boxes", "which"], ["f"], mode="max"), node("RoiAlign", ["x", "boxes", "which"], ["g"], mode="median"),
          node("MaxRoiPool", ["x", "boxes"], ["h"], pooled_shape=[2, 2]), node("DFT", ["grid", "length"], ["i"]), node("DFT", ["x"], ["j"]),
          node("STFT", ["signal", "step", "", "frame"], ["k"]), node("Resize", ["x", "", "", "small"], ["l"]),
          node("Resize", ["x", "", "", "small"], ["m"], keep_aspect_ratio_policy="crop"), node("DepthToSpace", ["x"], ["n"], blocksize=3),
          node("MaxUnpool", ["x", "which"], ["o"], kernel_shape=[2, 2]), node("CenterCropPad", ["x", "small"], ["p"]),
          node("DeformConv", ["x", "x", "x"], ["q"]), node("Col2Im", ["signal", "frame", "frame"], ["r"])],
         [image, boxes, info("grid", [1, 3, 3, 2]), info("signal", [1, 50, 1])], [info(c, None) for c in "abcdefghijklmnopqr"], opset=20)
    window = dict(kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    save("geometry_wide",
         [constant("double", np.array([1, 1, 8192, 8192])), constant("around", np.array([0, 0, 9, 9, 0, 0, 9, 9])), constant("step", np.array(160)),
          constant("frame", np.array(400)), constant("sizes", np.array([1, 1, 2048, 2048])), constant("long", np.array(1 << 20)),
          node("MaxPool", ["x"], ["a", "places"], **window), node("AveragePool", ["x"], ["b"], **window), node("LpPool", ["x"], ["c"], **window),
          node("Resize", ["x", "", "", "double"], ["d"], mode="linear"), node("Pad", ["x", "around"], ["e"], mode="reflect"),
          node("AffineGrid", ["theta", "sizes"], ["grid"]), node("GridSample", ["x", "grid"], ["f"]),
          node("DFT", ["audio"], ["g"]), node("HannWindow", ["frame"], ["hann"]), node("STFT", ["audio", "step", "hann"], ["h"]),
          node("BlackmanWindow", ["long"], ["i"])],
         [info("x", [1, 1, 4096, 4096]), info("theta", [1, 2, 3]), info("audio", [1, 160000, 1])],
         [info(c, None) for c in "abcdefghi"] + [info("places", None, INT64)], opset=20)


def recurrent():
    """loops that are long, draw random numbers, or cannot be (recurrent.onnx itself: tests/gradients/torch_recurrent.py)"""
    rng = np.random.default_rng(3)

    def weights(name, *dims):
        return raw(name, (0.3 * rng.standard_normal(dims)).astype(np.float32))
    save("recurrent_long",
         [node("Transpose", ["x"], ["xt"], perm=[1, 0, 2]), node("LSTM", ["xt", "w", "r", "b"], ["h"], hidden_size=4, direction="bidirectional"),
          node("Transpose", ["h"], ["ht"], perm=[0, 2, 1, 3]), node("Reshape", ["ht", "flat"], ["hf"]),
          node("GRU", ["hf", "w2", "r2"], ["g", "last"], hidden_size=5), node("Squeeze", ["last", "zero"], ["y"])],
         [info("x", ["batch", "sequence", 3])], [info("y", ["batch", 5])],
         [weights("w", 2, 16, 3), weights("r", 2, 16, 4), weights("b", 2, 32), weights("w2", 1, 15, 8), weights("r2", 1, 15, 5),
          raw("flat", np.array([0, 0, 8])), raw("zero", np.array([0]))])
    rows = np.arange(1, 6, dtype=np.float32)[:, None] + np.array([1, 2], np.float32)   # what five steps append
    append = helper.make_graph([node("Identity", ["go"], ["go2"]), node("Constant", [], ["c"], value=raw("c", np.float32(1))), node("Add", ["s", "c"], ["s2"]),
                                node("SequenceInsert", ["q", "s2"], ["q2"])], "body",
                               [info("i", [], INT64), info("go", [], BOOL), info("s", [2]), helper.make_tensor_sequence_value_info("q", FLOAT, None)],
                               [info("go2", [], BOOL), info("s2", [2]), helper.make_tensor_sequence_value_info("q2", FLOAT, None)])
    wants = {"stacked": rows, "across": rows.T, "joined": rows.reshape(-1), "third": rows[3], "length": np.array(5)}
    save("recurrent_sequence",
         [node("ReduceMean", ["one"], ["m"], keepdims=0), node("Constant", [], ["start"], value=raw("start", np.array([1, 2], np.float32))),
          node("Mul", ["start", "m"], ["s"]), node("SequenceEmpty", [], ["q"]), node("Constant", [], ["five"], value=raw("five", np.int64(5))),
          node("Loop", ["five", "", "s", "q"], ["last", "all"], body=append), node("ConcatFromSequence", ["all"], ["stacked"], axis=0, new_axis=1),
          node("ConcatFromSequence", ["all"], ["across"], axis=-1, new_axis=1), node("ConcatFromSequence", ["all"], ["joined"], axis=0),
          node("Constant", [], ["three"], value=raw("three", np.int64(3))), node("SequenceAt", ["all", "three"], ["third"]),
          node("SequenceLength", ["all"], ["length"])] +
         [node("Constant", [], [n + ".want"], value=raw(n, w)) for n, w in wants.items()],
         [info("one", ["batch"])],
         [info(n + end, w.shape, INT64 if n == "length" else FLOAT) for n, w in wants.items() for end in ("", ".want")])
    step = [info("s", [2, 3]), info("u", [2, 3])]
    body = helper.make_graph([node("Dropout", ["s", "half", "on"], ["d"]), node("Mul", ["d", "w"], ["dw"]), node("Add", ["dw", "u"], ["s2"])], "body", step,
                             [info("s2", [2, 3])])
    save("recurrent_dropout", [node("Transpose", ["x"], ["xt"], perm=[1, 0, 2]), node("Scan", ["start", "xt"], ["y"], body=body, num_scan_inputs=1)],
         [info("x", ["batch", 5, 3])], [info("y", ["batch", 3])],
         [weights("w", 3), raw("half", np.float32(0.5)), raw("on", np.array(True)), raw("start", np.zeros((2, 3), np.float32))])

    path = os.path.join(FOLDER, "recurrent_lifted.onnx")      # dynamo folds the zeros that a recurrence begins with, without a mark
    save("recurrent_lifted", [node("LSTM", ["x", "w", "r", "", "", "val_5", "val_5"], ["y"], hidden_size=2)], [info("x", [4, 2, 3])], [info("y", [4, 1, 2, 2])],
         [weights("w", 1, 8, 3), weights("r", 1, 8, 2), raw("val_5", np.zeros((1, 2, 2), np.float32))], producer="pytorch")
    model = onnx.load(path)
    for name, dims in (("w", [1, 8, 3]), ("r", [1, 8, 2])):
        v = model.graph.value_info.add(name=name)
        v.type.CopyFrom(info(name, dims).type)
        v.metadata_props.add(key="pkg.torch.export.graph_signature.InputSpec.kind", value="PARAMETER")
    onnx.save(model, path)

    def constant(name, value):
        return node("Constant", [], [name], value=raw(name, value))
    go = [info("i", [], INT64), info("go", [], BOOL)]
    depends = helper.make_graph([node("ReduceSum", ["s"], ["sum"], keepdims=0), constant("ten", np.float32(10)), node("Less", ["sum", "ten"], ["go2"]),
                                 node("Add", ["s", "s"], ["s2"])], "body", go + [info("s", [2, 3])], [info("go2", [], BOOL), info("s2", [2, 3])])
    plain = helper.make_graph([node("Identity", ["go"], ["go2"]), node("Add", ["s", "s"], ["s2"])], "body", go + [info("s", [2, 3])],
                              [info("go2", [], BOOL), info("s2", [2, 3])])
    one = helper.make_graph([node("Identity", ["go"], ["go2"]), constant("axis", np.array([0])), node("Unsqueeze", ["i", "axis"], ["from"]),
                             constant("end", np.array([9999])), node("Slice", ["s", "from", "end"], ["part"]),
                             node("ReduceSum", ["part"], ["sum"], keepdims=0), node("Add", ["s", "sum"], ["s2"])], "body", go + [info("s", [2, 3])],
                            [info("go2", [], BOOL), info("s2", [2, 3])])
    grow = helper.make_graph([node("Concat", ["s", "u"], ["s2"], axis=0), node("Identity", ["u"], ["y"])], "body", [info("s", [3]), info("u", [3])],
                             [info("s2", [6]), info("y", [3])])
    pair = helper.make_graph([node("Add", ["u", "v"], ["y"])], "body", [info("u", [3]), info("v", [3])], [info("y", [3])])
    moving = ["s", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"]
    norm = node("BatchNormalization", moving, ["n", "mean", "var"], training_mode=1)
    statistics = helper.make_graph([node("Identity", ["go"], ["go2"]), norm, node("Identity", ["n"], ["s2"])], "body", go + [info("s", [2, 3])],
                                   [info("go2", [], BOOL), info("s2", [2, 3])])
    scanned = helper.make_graph([norm], "body", [info("s", [2, 3])], [info("n", [2, 3])])
    four, five, start = (constant(n, np.zeros(d, np.float32)) for n, d in (("four", (4, 3)), ("five", (5, 3)), ("start", (3,))))
    save("recurrent_refused",
         [constant("yes", np.array(True)), constant("many", np.int64(2000)), constant("three", np.int64(3)), four, five, start,
          node("LSTM", ["x", "w", "r"], ["a"], hidden_size=2, direction="sideways"), node("LSTM", ["x", "w", "r"], ["b"], activations=["Odd", "Tanh", "Tanh"]),
          node("LSTM", ["x", "w", "r"], ["c"], activations=["Tanh", "Tanh"]), node("LSTM", ["x", "w", "r_wide"], ["d"]),
          node("LSTM", ["x", "w", "r", "", "lens"], ["e"]), node("Loop", ["three", "yes", "z"], ["f"], body=depends),
          node("ReduceMax", ["lens"], ["most"], keepdims=0), node("Loop", ["most", "yes", "z"], ["g"], body=plain),
          node("Loop", ["many", "yes", "z"], ["h"], body=one), node("Scan", ["start", "four"], ["i1", "j"], body=grow, num_scan_inputs=1),
          node("Scan", ["four", "five"], ["k"], body=pair, num_scan_inputs=2), node("Scan", ["four", "five"], ["l"], body=pair, num_scan_inputs=3),
          node("Loop", ["three", "yes", "z"], ["m"], body=statistics), node("Scan", ["x"], ["o"], body=scanned, num_scan_inputs=1)],
         [info("x", [4, "batch", 3]), info("z", ["batch", 3]), info("lens", [3], INT64)], [info(n, None) for n in ("a", "b", "c", "d", "e", "f", "g", "h", "j", "k", "l", "m", "o")],
         [raw(n, np.ones(3, np.float32)) for n in moving[1:]] + [weights("w", 1, 8, 3), weights("r", 1, 8, 2), weights("r_wide", 1, 8, 3)])


def types():
    """Quantised weights, random numbers, and what indices, orders, types and sequences refuse."""
    rng = np.random.default_rng(3)
    four = helper.make_tensor("w4", TensorProto.INT4, [8, 3], rng.integers(-8, 8, 24).tolist())
    save("quantised",
         [node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]), node("DequantizeLinear", ["xq", "xs", "xz"], ["xf"]),
          node("DequantizeLinear", ["w8", "s8", "z8"], ["wf"], axis=1), node("MatMul", ["xf", "a"], ["xa"]), node("MatMul", ["xa", "wf"], ["h"]),
          node("DequantizeLinear", ["w4", "s4"], ["w4f"], axis=0, block_size=4), node("MatMul", ["h", "w4f"], ["y"]),
          node("MatMul", ["x", "early"], ["e"]), node("QuantizeLinear", ["e", "xs", "xz"], ["eq"]), node("DequantizeLinear", ["eq", "xs", "xz"], ["z"])],
         [info("x", ["batch", 5])], [info("y", ["batch", 3]), info("z", ["batch", 5])],
         [raw("xs", np.float32(0.05)), raw("xz", np.uint8(128)), raw("w8", rng.integers(-128, 128, (6, 8)).astype(np.int8)),
          raw("s8", np.full(8, 0.01, np.float32)), raw("z8", np.zeros(8, np.int8)), raw("a", rng.standard_normal((5, 6)).astype(np.float32)),
          four, raw("s4", np.full((2, 3), 0.1, np.float32)), raw("early", rng.standard_normal((5, 5)).astype(np.float32))], opset=21)
    logits = np.log(np.array([[0.2, 0.5, 0.3]], np.float32))
    save("random",
         [node("Constant", [], ["logits"], value=raw("logits", logits)), node("RandomNormal", [], ["normal"], mean=2.0, scale=3.0, shape=[200, 300]), node("RandomUniform", [], ["uniform"], low=-1.0, high=4.0, shape=[60000]),
          node("RandomUniform", [], ["other"], low=-1.0, high=4.0, shape=[60000]), node("RandomUniform", [], ["seeded"], seed=3.0, shape=[100]),
          node("RandomUniform", [], ["again"], seed=3.0, shape=[100]), node("ConstantOfShape", ["shape"], ["p"], value=raw("v", np.array([0.3], np.float32))),
          node("Bernoulli", ["p"], ["truth"], dtype=TensorProto.BOOL), node("Multinomial", ["logits"], ["choice"], sample_size=30000, dtype=TensorProto.INT64),
          node("RandomNormalLike", ["p"], ["like"], dtype=TensorProto.DOUBLE), node("Identity", ["one"], ["same"])],
         [info("one", ["batch"])],
         [info("normal", [200, 300]), info("uniform", [60000]), info("other", [60000]), info("seeded", [100]), info("again", [100]), info("truth", [40000], BOOL),
          info("choice", [1, 30000], INT64), info("like", [40000], TensorProto.DOUBLE), info("same", ["batch"])],
         [raw("shape", np.array([40000]))])

    def constant(name, value):
        return node("Constant", [], [name], value=raw(name, value))
    outs = [f"o{i}" for i in range(22)]
    save("types_refused",
         [constant("nine", np.array([9])), constant("tenth", np.float32(0.1)), constant("index", np.array([[0, 3]])), constant("one", np.array(1)),
          constant("five", np.array(5)), node("TopK", ["x", "nine"], ["o0", "i0"]), node("Unique", ["x"], ["o1"]), node("Compress", ["x", "flags"], ["o2"]),
          node("NonZero", ["x"], ["o3"]), node("ScatterElements", ["x", "places", "x"], ["o4"], reduction="mean"), node("GatherND", ["x", "index"], ["o5"]),
          node("DequantizeLinear", ["bytes", "scale"], ["o6"]), node("QuantizeLinear", ["x", "tenth"], ["o7"], output_dtype=TensorProto.INT64),
          node("RandomNormal", [], ["o8"], shape=[2], dtype=INT64), node("Multinomial", ["scale"], ["o9"]), node("ReverseSequence", ["x", "places"], ["o10"]),
          node("SequenceConstruct", ["x", "x"], ["s"]), node("SequenceErase", ["s", "five"], ["t"]), node("SequenceAt", ["t", "one"], ["o11"]),
          node("SequenceAt", ["s", "five"], ["o12"]), node("Optional", [], ["none"], type=onnx.helper.make_tensor_type_proto(FLOAT, [1])),
          node("OptionalGetElement", ["none"], ["o13"]), node("BitShift", ["bytes", "bytes"], ["o14"], direction="UP"), node("Cast", ["x"], ["o15"], to=8),
          node("TfIdfVectorizer", ["places"], ["o16"], mode="TF", min_gram_length=1, max_gram_length=1, max_skip_count=0, ngram_counts=[0], ngram_indexes=[0, 1],
               pool_int64s=[1]), node("OneHot", ["places", "most", "scale"], ["o17"]), node("BitCast", ["x"], ["o18"], to=INT64),
          node("NonMaxSuppression", ["boxes", "boxes"], ["o19"]), node("TensorScatter", ["x", "x", "most"], ["o20"], axis=0), node("ReduceMax", ["most"], ["big"], keepdims=0),
          node("Range", ["zero", "big", "one"], ["o21"])],
         [info("x", [2, 3]), info("flags", [2], BOOL), info("places", [2, 3], INT64), info("bytes", [2, 3], TensorProto.UINT8), info("scale", [2]),
          info("most", [1], INT64), info("boxes", [1, 2, 4])],
         [info(n, None) for n in outs], [raw("zero", np.array(0))], opset=26)


if __name__ == "__main__":
    os.makedirs(FOLDER, exist_ok=True)
    for make in (tiny, external_files, obstacles, beside_the_loss, fold, versions, inlining, training, statistics, inference_norm, faults, inputs, exporters, lifted, padding, geometry,
                 recurrent, types):
        make()
