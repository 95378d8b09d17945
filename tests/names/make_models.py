#!/usr/bin/env python3
"""Writes models/*.onnx, what tests/frontend/names.c imports: spellings that no small module gives by itself. Needs onnx."""
from pathlib import Path
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FOLDER = Path(__file__).parent / "models"
FX, ATEN = "pkg.torch.onnx.fx_node", "call_function[target=torch.ops.aten."


def node(op, inputs, outputs, name, fx=None, **attributes):
    n = helper.make_node(op, inputs, outputs, name, **attributes)
    if fx:
        n.metadata_props.add(key=FX, value=f"%{outputs[0]} : [num_users=1] = {ATEN}{fx}")
    return n


def info(name, dims):
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, dims)


def save(name, nodes, x, y, tensors, signature=None):
    graph = helper.make_graph(nodes, name, [info("x", x)], [info("y", y)],
                              [numpy_helper.from_array(np.asarray(a, np.float32), k) for k, a in tensors.items()])
    if signature:
        graph.metadata_props.add(key="pkg.torch.export.ExportedProgram.graph_signature", value=signature)
    model = helper.make_model(graph, producer_name="pytorch", opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model)
    onnx.save(model, FOLDER / f"{name}.onnx")


def main():
    FOLDER.mkdir(exist_ok=True)
    grid = np.arange(12).reshape(3, 4)
    # TorchScript: the root multiplies by a folded matrix itself, so no module's name says whose it is; a table by no layer
    save("unnamed", [node("MatMul", ["x", "onnx::MatMul_3"], ["a"], "/MatMul"), node("Mul", ["a", "table"], ["y"], "/Mul")],
         ["batch", 3], ["batch", 4], {"onnx::MatMul_3": grid, "table": np.arange(4) + 1})
    # TorchScript: two matrices in one leaf module cannot both be its weight
    save("twice", [node("MatMul", ["x", "onnx::MatMul_3"], ["a"], "/low/MatMul"), node("MatMul", ["a", "onnx::MatMul_4"], ["y"], "/low/MatMul_1")],
         ["batch", 3], ["batch", 3], {"onnx::MatMul_3": grid, "onnx::MatMul_4": grid.reshape(4, 3)})
    # TorchScript: a module that is registered twice stands in the state_dict under the name that its bias has
    save("registered", [node("MatMul", ["x", "onnx::MatMul_3"], ["a"], "/second/MatMul"), node("Add", ["first.bias", "a"], ["y"], "/second/Add")],
         ["batch", 3], ["batch", 4], {"onnx::MatMul_3": grid, "first.bias": np.arange(4)})
    # dynamo in training mode: the dropout of attention is an argument of the operation and nowhere else
    call = "scaled_dot_product_attention.default](args = (%q, %k, %v, None, 0.25), kwargs = {scale: 1.0})"
    save("dropout", [node("MatMul", ["x", "q"], ["s"], "node_MatMul", call), node("Softmax", ["s"], ["p"], "node_Softmax", call, axis=-1),
                     node("MatMul", ["p", "v"], ["y"], "node_sdpa", call)],
         ["batch", 3], ["batch", 3], {"q": grid, "v": grid.reshape(4, 3)})
    # PyTorch before 1.12: no paths, and a number for the folded copy of the tied matrix
    table = np.arange(20).reshape(5, 4)
    old = helper.make_model(helper.make_graph(
        [helper.make_node("Gather", ["wte.weight", "ids"], ["a"], "Gather_0"), helper.make_node("MatMul", ["a", "7"], ["y"], "MatMul_1")], "old",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", 3])], [info("y", ["batch", 3, 5])],
        [numpy_helper.from_array(table.astype(np.float32), "wte.weight"), numpy_helper.from_array(table.T.astype(np.float32), "7")]),
        producer_name="pytorch", opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    onnx.save(old, FOLDER / "old.onnx")
    # dynamo in bf16: the softmax that the code asks for in fp32
    half = helper.make_model(helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["a"]), helper.make_node("Softmax", ["a"], ["y"], axis=-1)], "half",
        [helper.make_tensor_value_info("x", TensorProto.BFLOAT16, ["batch", 3])],
        [helper.make_tensor_value_info("y", TensorProto.BFLOAT16, ["batch", 3])],
        [helper.make_tensor("w", TensorProto.BFLOAT16, [3], [1.0, 2.0, 3.0])]), producer_name="pytorch",
        opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(half, FOLDER / "half.onnx")


main()
