#!/usr/bin/env python3
"""memory.py BUILD WORK - is the arena what the plan says, and does a step allocate nothing?

Each model runs on the CPU and on the stand-in GPU. The log's arena_bytes must be the plan's, and a preloaded library must see one mapping of
just that many pages (on the CPU, where the arena is mapped by itself). Another preloaded library counts allocations between the second step
and the last: there must be none."""
import shutil
from pathlib import Path
from common import *

NAMES = ("gpt2_ts", "lstm_seq")                              # all in own code: oneDNN 2 allocates in every dnnl_primitive_execute
STEPS_RUN = 20


def run(build, name, step, work, device, preload, env):
    log = work / f"{device}.jsonl"
    spec = spec_of(name)
    env = dict(env, LD_PRELOAD=preload, TRAINC_ALLOCATIONS=str(work / "allocations.txt"), TRAINC_ALLOCATIONS_SHOW="1",
               TRAINC_MAPPINGS=str(work / "mappings.txt"))
    code, out, err = call([build.trainc, "run", step, *with_option(spec["run"], "--steps", STEPS_RUN), "--log", log, "--device", device], CASES / name, env)
    if code:
        raise Failed(f"{name} on {device}: exit {code}\n{out}{err}")
    return read_log(log), err


def check(build, name, step, work, device, target, env):
    planned = json.loads((step / "plan.json").read_text())["targets"][target]["arena_bytes"]
    rows, err = run(build, name, step, work, device, build.malloc_count, env)
    if {r["arena_bytes"] for r in rows} != {planned}:
        raise Failed(f"{name} on {device}: the plan's arena has {planned} bytes, the log's {rows[0]['arena_bytes']}")
    said = (work / "allocations.txt").read_text().split()
    if said != ["steps", str(STEPS_RUN), "allocations", "0"]:
        raise Failed(f"{name} on {device}: {' '.join(said)}; expected {STEPS_RUN} steps, 0 allocations\n{err}")
    print(f"PASS {name} on {device}: {planned} bytes planned and reserved, no allocation in a step")
    if device == "cpu":
        run(build, name, step, work, device, build.mappings, env)
        sizes = [int(x) for x in (work / "mappings.txt").read_text().split()]
        if sizes.count((planned + 4095) // 4096 * 4096) != 1:
            raise Failed(f"{name}: no mapping of {planned} bytes in whole pages among {sizes}")
        print(f"PASS {name}: one mapping of {planned} bytes in whole pages")


def test(argv):
    build, work = Build(argv[0]), Path(argv[1]).resolve()
    shutil.rmtree(work, ignore_errors=True)
    for name in NAMES:
        step, kernels = work / name, work / f"{name}-kernels"
        need("compile", [build.trainc, "model.onnx", "-o", step, *spec_of(name)["compile"], "--target", "cpu,gfx90a", "--emit", "hip,co"], CASES / name)
        check(build, name, step, work, "cpu", "cpu", {})
        need("kernels for the host", [STEPS.parent / "hip_host/build_standin", step, "gfx90a", kernels])
        check(build, name, step, work, "hip", "gfx90a", build.standin_environment(kernels, "gfx90a"))


finish(test)
