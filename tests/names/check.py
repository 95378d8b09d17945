#!/usr/bin/env python3
"""Compares the parameters that `trainc plan -v` says a model trains with the lists of make_lists.py.

    check.py TRAINC FOLDER [NAME ...]         the models of ../models, all or these, unpacked in FOLDER one by one

Names and shapes must be those of the module; a tied parameter has one of its names, and the plan shows the others as
its aliases where metadata or paths tell them. The folded convolutional nets are compared as far as fusion left them."""
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(1, str(Path(__file__).parents[1] / "models"))
from check_model import unpack
from spellings import SPELLINGS

DIMS = {
    "llama": "batch=1,sequence=16", "qwen": "batch=1,sequence=16", "gpt2": "batch=1,sequence=16", "bert": "batch=1,sequence=16",
    "vit": "batch=1", "resnet": "batch=2,height=64,width=64", "t5": "batch=1,sequence=16,decoder_sequence=8",
    "sd15": "batch=1,height=16,width=16", "whisper": "batch=1,sequence=8",
}
LOSSES = {"llama": "causal_lm:logits", "qwen": "causal_lm:logits", "gpt2": "causal_lm:logits", "sd15": "mse:noise"}
# what fusion left: the parameters of batch norms are inside the convolutions in front of them
FUSED = {"resnet50_folded": re.compile(r"(.*\.)?(bn\d|downsample\.1)\.(weight|bias)")}
MADE = {"resnet50_folded": re.compile(r".*\.weight_bias")}


def of_kind(table, name, default=None):
    return next((v for k, v in table.items() if name.startswith(k)), default)


def wanted(name):
    """{frozenset of names: shape}"""
    listed = next(k for k, v in SPELLINGS.items() if name in v)
    out = {}
    for line in (Path(__file__).parent / "lists" / f"{listed}.txt").read_text().splitlines():
        names, shape = line.rsplit(" ", 1)
        names = names.split(" = ")
        if not (name in FUSED and FUSED[name].fullmatch(names[0])):
            out[frozenset(names)] = shape
    return out


def planned(trainc, path):
    """[(name, aliases, shape, all of the line)] of what trains"""
    name = path.stem
    args = [trainc, "plan", "-v", str(path), "--dim", of_kind(DIMS, name), "--loss", of_kind(LOSSES, name, "cross_entropy:logits"),
            "--mem", "8T"]
    p = subprocess.run(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if p.returncode:
        raise SystemExit(f"{name}: exit {p.returncode}: {p.stderr[-2000:]}")
    out = []
    for m in re.finditer(r"^ +trains +\w+ +\[(.*?)\] ([^ ,\n]+)(.*)$", p.stdout, re.M):
        shape = "x".join(m[1].split(", ")) if m[1] else ""
        out.append((m[2], set(re.findall(r" = ([^ ,\n]+)", m[3])), shape, m[0].strip()))
    return out


def check(trainc, folder, name):
    want, faults = wanted(name), []
    left = dict(want)
    files = [Path(f) for f in unpack(name, folder)]
    plan = planned(trainc, files[0])
    for f in files:
        f.unlink()
    for key, aliases, shape, line in plan:
        names = next((k for k in want if key in k), None)
        if name in MADE and MADE[name].fullmatch(key):
            continue
        if names is None:
            faults.append(f"no such parameter: {line}")
        elif names not in left:
            faults.append(f"twice: {line}")
        else:
            if left.pop(names) != shape:
                faults.append(f"shape {want[names]} wanted: {line}")
            if not aliases <= names:
                faults.append(f"a wrong alias: {line}")
    faults += [f"missing: {' = '.join(sorted(k))} {v}" for k, v in left.items()]
    print(f"{name}: {len(want)} parameters, {len(faults)} faults", *faults[:8], sep="\n  ")
    return not faults


if __name__ == "__main__":
    names = sys.argv[3:] or [n for group in SPELLINGS.values() for n in group]
    results = [check(sys.argv[1], sys.argv[2], n) for n in names]
    sys.exit(0 if all(results) else 1)
