#!/usr/bin/env python3
"""Writes the node tests of the installed `onnx` package as folders that test_frontend and test_onnx_nodes read.

usage: write_cases.py DIR [NAME-GLOB ...]     then: ONNX_CASES=DIR build/tests/test_frontend --filter 'node_tests/*'
       write_cases.py --newer-than DATA ARCHIVE.tar.xz    how newer.tar.xz was made, DATA being Debian's folder

DIR/node/NAME/model.onnx, DIR/node/NAME/test_data_set_0/{input,output}_N.pb: the layout of onnx's own releases. The data
of a case are made by its own generator, with seeds that onnx fixes; the expected values are those of its reference.
What cannot be had as tensors (strings stay, sequences and optionals are written as SequenceProto and OptionalProto)
is written as it is: the reader says that it holds no dense tensors.

The archive has the cases that the older data lack: those of another name, and those whose op has another version by
now; without the few that are larger than 60 kB.
"""
import fnmatch
import io
import os
import sys
import tarfile
import tempfile

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


def op_versions(model):
    """Which version of its op each node is, by the model's opsets."""
    opsets = {o.domain: o.version for o in model.opset_import}
    versions = []
    for node in model.graph.node:
        try:
            schema = onnx.defs.get_schema(node.op_type, opsets.get(node.domain, 1), node.domain)
            versions.append((node.op_type, schema.since_version))
        except onnx.defs.SchemaError:
            versions.append((node.op_type, 0))
    return versions


def is_newer(case, data):
    path = os.path.join(data, "node", case.name, "model.onnx")
    return not os.path.exists(path) or op_versions(onnx.load(path)) != op_versions(case.model)


def files_of(folder):
    return sorted(os.path.join(root, name) for root, _, names in os.walk(folder) for name in names)


def pack(data, archive, largest=60000):
    chosen = 0
    with tempfile.TemporaryDirectory() as work, tarfile.open(archive, "w:xz", preset=9) as tar:
        for case in sorted(cases.collect_testcases(None), key=lambda c: c.name):
            if case.model is None or not is_newer(case, data):
                continue
            write_case(case, work)
            files = files_of(os.path.join(work, "node", case.name))
            if sum(map(os.path.getsize, files)) > largest:
                continue
            for path in files:
                info = tarfile.TarInfo(os.path.relpath(path, work))
                content = open(path, "rb").read()
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
            chosen += 1
    print(f"onnx {onnx.__version__}: {chosen} cases in {archive}, {os.path.getsize(archive)} bytes")


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--newer-than":
        return pack(sys.argv[2], sys.argv[3])
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
