#!/usr/bin/env python3
"""hiprtc.py BUILD WORK CASE ARCH... - does hipRTC compile the source that a step library embeds?

The source in emit/ must stand in the library byte for byte; hipRTC compiles it in a process of its own. Skipped (77) without hipRTC."""
import shutil
from pathlib import Path
from common import *


def test(argv):
    build, work, name = Build(argv[0]), Path(argv[1]).resolve(), argv[2]
    step = work / name
    shutil.rmtree(step, ignore_errors=True)
    need(f"{name}: compile", [build.trainc, "model.onnx", "-o", step, *spec_of(name)["compile"], "--target", "gfx90a", "--emit", "hip"], CASES / name)
    source = next((step / "emit").glob("*.hip"))
    if source.read_bytes() not in next(step.glob("lib*.so")).read_bytes():
        raise Failed(f"{name}: the library does not hold {source.name}")
    for arch in argv[3:]:
        code, out, err = call([build.hiprtc, source, arch, work / f"{arch}.co"], env={"ASAN_OPTIONS": "detect_leaks=0"})     # hipRTC's own
        if code == SKIPPED:
            print("no hipRTC on this machine")
            return SKIPPED
        if code:
            raise Failed(f"{name}: hipRTC refuses it for {arch}, exit {code}\n{out}{err}")
        if (work / f"{arch}.co").read_bytes()[:4] != b"\x7fELF":
            raise Failed(f"{name}: what hipRTC made for {arch} is no code object")
        print(f"PASS {name}: hipRTC compiles the embedded source for {arch}")


finish(test)
