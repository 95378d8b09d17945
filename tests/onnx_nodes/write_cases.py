#!/usr/bin/env python3
"""Writes the node tests of the installed `onnx` package as folders that test_frontend and test_onnx_nodes read.

usage: write_cases.py DIR [NAME-GLOB ...]     then: ONNX_CASES=DIR build/tests/test_frontend --filter 'node_tests/*'

DIR/node/NAME/model.onnx, DIR/node/NAME/test_data_set_0/{input,output}_N.pb: the layout of onnx's own releases. The data
of a case are made by its own generator, with seeds that onnx fixes; the expected values are those of its reference.
What cannot be had as tensors (strings stay, sequences and optionals are written as SequenceProto and OptionalProto)
is written as it is: the reader says that it holds no dense tensors.
"""
import fnmatch
import os
import sys

import numpy
import onnx
from onnx import numpy_helper
from onnx.backend.test.case import node as cases
from onnx.backend.test.case import test_case


def as_proto(value, info):
    """The protobuf of one value: arrays by numpy, lists as sequences, None as an empty optional."""
    kind = info.type.WhichOneof("value")
    if isinstance(value, onnx.TensorProto):
        value.name = info.name
        return value
    if kind == "sequence_type":
        return numpy_helper.from_list(list(value), info.name)
    if kind == "optional_type":
        return numpy_helper.from_optional(value, info.name)
    return numpy_helper.from_array(numpy.asarray(value), info.name)


def write_values(folder, kind, values, infos):
    for i, (value, info) in enumerate(zip(values, infos)):
        with open(os.path.join(folder, f"{kind}_{i}.pb"), "wb") as f:
            f.write(as_proto(value, info).SerializeToString(deterministic=True))


def write_case(case, out):
    folder = os.path.join(out, "node", case.name)
    data = os.path.join(folder, "test_data_set_0")
    os.makedirs(data, exist_ok=True)
    inputs, outputs = case.data_sets[0]
    write_values(data, "input", inputs, case.model.graph.input)
    write_values(data, "output", outputs, case.model.graph.output)
    with open(os.path.join(folder, "model.onnx"), "wb") as f:
        f.write(case.model.SerializeToString(deterministic=True))


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    globs = sys.argv[2:] or ["*"]
    written = 0
    for case in cases.collect_testcases(None):
        if case.model is None or not any(fnmatch.fnmatch(case.name, g) for g in globs):
            continue
        write_case(case, sys.argv[1])
        written += 1
    print(f"onnx {onnx.__version__}: {written} cases in {sys.argv[1]}")


if __name__ == "__main__":
    main()
