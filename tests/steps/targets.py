#!/usr/bin/env python3
"""targets.py BUILD WORK CASE... - does each case compile for the CPU and four GPUs into machine code without waste?

WORK/CASE becomes the step folder. Four code objects must appear in emit/, and no kernel in them may spill, use scratch memory, address
flat memory or add floats atomically (isa_report reads the ELF notes and the disassembly). A test that needs the same step reads WORK/CASE."""
import json, shutil
from pathlib import Path
from common import *

RULES = {"*": {"spills": 0, "scratch": 0, "flat": 0, "float_atomics": 0}}


def compile_case(build, work, name):
    step = work / name
    shutil.rmtree(step, ignore_errors=True)
    need(f"{name}: compile", [build.trainc, "model.onnx", "-o", step, *spec_of(name)["compile"], "--target", ",".join(("cpu",) + GPUS),
                              "--emit", "co,hip"], CASES / name)
    return step


def check_objects(step, name):
    objects = sorted((step / "emit").glob("*.co"))
    missing = [g for g in GPUS if not any(g in o.name for o in objects)]
    if missing or len(objects) != len(GPUS):
        raise Failed(f"{name}: emit/ holds {[o.name for o in objects]}, one for each of {GPUS} expected")
    if not list((step / "emit").glob("*.hip")):
        raise Failed(f"{name}: no HIP source in emit/")
    rules = step / "rules.json"
    rules.write_text(json.dumps(RULES))
    rows = json.loads(need(f"{name}: machine code", [STEPS / "isa_report", "--json", "--check", rules, *objects]))
    rules.unlink()
    kernels = {g: sorted(r["kernel"] for r in rows if r["arch"] == g) for g in GPUS}
    if not kernels[GPUS[0]] or any(kernels[g] != kernels[GPUS[0]] for g in GPUS):
        raise Failed(f"{name}: the code objects hold different kernels: { {g: len(k) for g, k in kernels.items()} }")
    planned = {k["name"] for k in json.loads((step / "plan.json").read_text())["targets"]["gfx90a"]["kernels"]}
    return len(kernels[GPUS[0]]), planned


def test(argv):
    build, work = Build(argv[0]), Path(argv[1]).resolve()
    work.mkdir(parents=True, exist_ok=True)
    for name in argv[2:]:
        n, _ = check_objects(compile_case(build, work, name), name)
        print(f"PASS {name}: {n} kernels for each of {', '.join(GPUS)}")


finish(test)
