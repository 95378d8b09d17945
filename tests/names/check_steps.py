#!/usr/bin/env python3
"""Trains the modules of make_steps.py one step and compares every parameter with PyTorch's, by name, shape and value.

    check_steps.py TRAINC WORK [NAME ...]         standard library only

The checkpoint must hold the state_dict's parameters, tied ones once, and nothing else; what dynamo dropped must be said.
The exported model, compiled and trained one more step, must end where two steps of the first end; so must a run that
starts from the checkpoint with tied parameters under their other names."""
import json
import math
import shutil
import struct
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "steps"


class Failed(Exception):
    pass


def trainc(*args):
    p = subprocess.run([str(a) for a in args], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=600)
    if p.returncode:
        raise Failed(f"{' '.join(map(str, args[1:3]))}: exit {p.returncode}\n{p.stderr}")
    return p.stderr


def tensors(path):
    """{name: (shape, values)} of a safetensors file of floats"""
    raw = Path(path).read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    out = {}
    for name, t in json.loads(raw[8:8 + n]).items():
        if name != "__metadata__":
            data = raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]]
            out[name] = (t["shape"], struct.unpack(f"<{len(data) // 4}f", data))
    return out


def write_tensors(path, named):
    header, data = {}, b""
    for name, (shape, values) in named.items():
        raw = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


def distance(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b)))


def compare(got, want, lost):
    missing, extra = set(want) - set(got) - set(lost), set(got) - set(want)
    if missing or extra or set(lost) & set(got):
        raise Failed(f"missing {sorted(missing)}, too many {sorted(extra)}")
    for name, (shape, values) in got.items():
        if shape != want[name][0]:
            raise Failed(f"{name}: shape {shape}, PyTorch's is {want[name][0]}")
        error = distance(values, want[name][1])
        if not error <= 1e-5 * (1 + math.sqrt(sum(x * x for x in want[name][1]))):
            raise Failed(f"{name}: {error:.3g} off")


def run(program, step, folder, steps, save, *more):
    data = ["--data", f"x={folder}/x.npy", "--data", f"labels={folder}/labels.npy"]
    trainc(program, "run", step, *data, "--steps", steps, "--lr", "0.5", "--save", save, *more)
    return tensors(save / "model.safetensors")


def compiled(program, model, out):
    sequence = ",sequence=6" if model.parent.name == "tied" or "tied" in out.name else ""
    return trainc(program, model, "-o", out, "--dim", f"batch=4{sequence}", "--loss", "cross_entropy", "--optimizer", "sgd")


def check(program, folder, exporter, work):
    name = f"{folder.name}_{exporter}"
    names = json.loads((folder / "names.json").read_text())
    lost = names["lost"] if exporter == "dynamo" else []
    said = compiled(program, folder / f"model_{exporter}.onnx", work / name)
    if any(n not in said for n in lost):
        raise Failed(f"nothing says that {lost} are lost:\n{said}")
    once = run(program, work / name, folder, 1, work / f"{name}_once", "--export", work / f"{name}.onnx")
    compare(once, tensors(folder / "expect.safetensors"), lost)
    again = compiled(program, work / f"{name}.onnx", work / f"{name}_again")
    if "N_SPLIT" in again:
        raise Failed(f"the exported model is merged still:\n{again}")
    twice = run(program, work / name, folder, 2, work / f"{name}_twice")
    if run(program, work / f"{name}_again", folder, 1, work / f"{name}_more") != twice:
        raise Failed("the exported model goes on otherwise")
    other = {n: tied[-1] for tied in names["tied"] for n in tied}
    write_tensors(work / f"{name}.safetensors", {other.get(n, n): t for n, t in once.items()})
    if run(program, work / name, folder, 1, work / f"{name}_init", "--init", work / f"{name}.safetensors") != twice:
        raise Failed("a run from the checkpoint's weights goes on otherwise")


if __name__ == "__main__":
    work, faults = Path(sys.argv[2]).resolve(), 0
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for folder in sorted(FOLDER.iterdir()):
        for exporter in ("dynamo", "ts") if not sys.argv[3:] or folder.name in sys.argv[3:] else ():
            try:
                check(sys.argv[1], folder, exporter, work)
                print(f"{folder.name} {exporter}: as PyTorch")
            except Failed as e:
                faults += 1
                print(f"{folder.name} {exporter}: {e}")
    sys.exit(1 if faults else 0)
