#!/usr/bin/env python3
"""check_model.py - does trainc find in a large graph what the model is made of?

usage: check_model.py TRAINC FOLDER NAME...

Unpacks NAME.onnx.xz into FOLDER and gives it a weights file of the right size, all holes; plans the training step as expected.txt
says, and compares `macros` of plan.json. The graphs came out of PyTorch's exporters at full size (see README.md); weights are not
needed to plan. Exit status: 0 all as expected, 1 not.
"""
import json, lzma, os, subprocess, sys

HERE = os.path.dirname(os.path.abspath(__file__))
UNCHECKED = {"transpose"}


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def parts(data, wanted):
    """The length-delimited fields of a protobuf message that have the number `wanted`."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        kind = key & 7
        if kind == 2:
            size, at = varint(data, at)
            if key >> 3 == wanted:
                yield data[at : at + size]
            at += size
        elif kind == 0:
            _, at = varint(data, at)
        else:
            at += 8 if kind == 1 else 4


def external_sizes(model):
    """File name -> bytes, from ModelProto.graph 7, initializer 5, external_data 13 (key 1, value 2)."""
    sizes = {}
    for graph in parts(model, 7):
        for tensor in parts(graph, 5):
            entry = {bytes(k): bytes(v) for pair in parts(tensor, 13) for k, v in zip(parts(pair, 1), parts(pair, 2))}
            if entry:
                name = entry[b"location"].decode()
                end = int(entry.get(b"offset", 0)) + int(entry[b"length"])
                sizes[name] = max(end, sizes.get(name, 0))
    return sizes


def unpack(name, folder):
    """The paths of the model and of its weights file."""
    os.makedirs(folder, exist_ok=True)
    with lzma.open(os.path.join(HERE, name + ".onnx.xz")) as packed:
        model = packed.read()
    path = os.path.join(folder, name + ".onnx")
    with open(path, "wb") as f:
        f.write(model)
    made = [path]
    for file, size in external_sizes(memoryview(model)).items():
        made.append(os.path.join(folder, file))
        with open(made[-1], "wb") as f:
            f.truncate(size)
    return made


def expectations():
    """Name -> (dims, loss, {kind: count})."""
    known, now = {}, {}
    for line in open(os.path.join(HERE, "expected.txt")):
        key, _, rest = line.split("#")[0].strip().partition(" ")
        now[key] = rest.strip()
        if key == "counts":
            counts = {k: int(n) for k, n in (word.split("=") for word in rest.split())}
            for name in now["models"].split():
                known[name] = (now["dims"], now["loss"], counts)
    return known


def printed(text):
    """What `plan -v` lists: {kind: count}."""
    lines = text.partition("found in the forward graph:\n")[2].split("\n\n")[0].splitlines()
    return {line.split()[0]: int(line.split()[1]) for line in lines if line.startswith("    ")}


def check(trainc, folder, name):
    dims, loss, wanted = expectations()[name]
    files = unpack(name, folder)
    out = os.path.join(folder, name + "-plan")
    command = [trainc, "plan", files[0], "--dim", dims, "--loss", loss, "--mem", "999T", "-o", out, "-v"]
    run = subprocess.run(command, capture_output=True, text=True)
    for f in files:
        os.remove(f)
    if run.returncode:
        print(f"{name}: exit status {run.returncode}\n{run.stdout}{run.stderr}")
        return False
    found = json.load(open(os.path.join(out, "plan.json")))["macros"]
    wrong = [f"{k}: {found.get(k, 0)}, not {wanted.get(k, 0)}"
             for k in sorted(set(found) | set(wanted)) if k not in UNCHECKED and found.get(k, 0) != wanted.get(k, 0)]
    if printed(run.stdout) != {k: n for k, n in found.items() if n}:
        wrong.append("plan -v prints other counts than plan.json holds")
    print(f"{name}: " + ("; ".join(wrong) if wrong else "as expected"))
    if wrong:
        print(run.stdout)
    return not wrong


if __name__ == "__main__":
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    results = [check(sys.argv[1], sys.argv[2], name) for name in sys.argv[3:]]
    sys.exit(0 if all(results) else 1)
