#!/usr/bin/env python3
"""hip_step.py BUILD WORK CASE... - is the first step on a GPU the step of the reference interpreter?

WORK/CASE is a step folder that targets.py has compiled. Its HIP source is compiled for the host, for a GPU with waves of 64 and one with
waves of 32; trainc-compare then takes one step through the product's own HIP device on the stand-in runtime and compares the loss and
every gradient with the interpreter's, to a relative L2 error of 1e-5."""
import shutil
from pathlib import Path
from common import *


def compare(build, step, name, arch):
    kernels = step.with_name(f"{step.name}-{arch}")
    shutil.rmtree(kernels, ignore_errors=True)
    need(f"{name}: kernels of {arch} for the host", [STEPS.parent / "hip_host/build_standin", step, arch, kernels])
    spec = spec_of(name)
    out = need(f"{name} on {arch}", [build.compare, "model.onnx", *spec["compile"], "--target", arch, "--step", step, "--device", "hip",
                                     "--rtol", "1e-5", *data_options(spec["run"])], CASES / name, build.standin_environment(kernels, arch))
    shutil.rmtree(kernels)
    last = out.splitlines()[-1] if out else ""
    if not last.startswith("PASS on hip"):
        raise Failed(f"{name} on {arch}: {out}")
    print(f"{last} [{name}, {arch}]")


def test(argv):
    build, work = Build(argv[0]), Path(argv[1]).resolve()
    for name in argv[2:]:
        for arch in WAVES:
            compare(build, work / name, name, arch)


finish(test)
