#!/usr/bin/env python3
"""pack.py BUILD WORK - is a step whose weights are packed the step of the same model without?

The character model, compiled with every packing that the library takes and with none: losses of training and evaluation agree to rounding, by
oneDNN and by own loops; the first step is the interpreter's; a run that starts from other weights, and one that is saved and resumed, see
them; a checkpoint holds no packed bytes. With a budget that has no room for copies the step is compiled without."""
import shutil
from pathlib import Path
from common import *

EXAMPLES = STEPS.parent.parent / "docs/examples"
MODEL, TEXT = EXAMPLES / "chargpt.onnx", EXAMPLES / "data/jargon.bin"
OPTIONS = ["--dim", "batch=16,sequence=32", "--micro-batch", "8", "--loss", "causal_lm"]
OWN_LOOPS = {"TRAINC_ONEDNN": "0"}


def packed_of(step):
    return [y for y in json.loads((step / "plan.json").read_text())["targets"]["cpu"]["symbols"] if y["class"] == "packed"]


class Runs:
    def __init__(self, build, work):
        self.build, self.work, self.tokens = build, work, work / "tokens.bin"
        self.tokens.write_bytes(TEXT.read_bytes()[:4 * 16 * 32])

    def compile(self, mode, *extra):
        step = self.work / f"{mode}{len(extra)}"
        need(f"compile ({mode})", [self.build.trainc, MODEL, "-o", step, *OPTIONS, *extra], env={"TRAINC_PACK": mode})
        return step

    def losses(self, step, *options, steps=6, env=None):
        log = self.work / "log.jsonl"
        need(f"run {step.name} {options}", [self.build.trainc, "run", step, "--data", f"input_ids={self.tokens}:u8", "--eval-data", f"input_ids={self.tokens}:u8",
             "--eval-every", "3", "--steps", steps, "--log", log, *options], env=env)
        return [x for r in read_log(log) for x in (r["loss"], r.get("eval_loss")) if x is not None]


def need_close(what, a, b):
    if len(a) != len(b) or any(abs(x - y) > 1e-5 * abs(y) for x, y in zip(a, b)):
        raise Failed(f"{what}: {a} and {b}")
    print(f"PASS {what}")


def test(argv):
    build, work = Build(argv[0]), Path(argv[1]).resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    runs = Runs(build, work)
    packed, plain = runs.compile("always"), runs.compile("never")
    copies = packed_of(packed)
    if packed_of(plain):
        raise Failed("TRAINC_PACK=never packs")
    if not copies:
        print("no oneDNN that packs: nothing to compare")
        return SKIPPED
    want = runs.losses(plain, "--save", work / "plain")
    need_close(f"{len(copies)} packed weights give the same losses", runs.losses(packed, "--save", work / "packed"), want)
    need_close("by own loops too", runs.losses(packed, env=OWN_LOOPS), runs.losses(plain, env=OWN_LOOPS))
    if any(b"pack." in f.read_bytes()[:65536] for f in (work / "packed").glob("*.safetensors")):
        raise Failed("the checkpoint holds packed bytes")
    weights = work / "packed/model.safetensors"
    need_close("other weights are packed", runs.losses(packed, "--init", weights, steps=3), runs.losses(plain, "--init", weights, steps=3))
    runs.losses(packed, "--save", work / "half", steps=3)
    runs.losses(packed, "--resume", work / "half", "--save", work / "resumed")
    if (work / "resumed/model.safetensors").read_bytes() != weights.read_bytes():
        raise Failed("resumed: the weights differ")
    print("PASS a resumed run gives the same bits")
    ids = work / "ids.npy"
    write_npy(ids, "<i8", (16, 32), list(TEXT.read_bytes()[:16 * 32]))
    print(need("compare", [build.compare, MODEL, *OPTIONS, "--step", packed, "--device", "cpu", "--data", f"input_ids={ids}"],
               env={"TRAINC_PACK": "always"}).strip())
    plan = json.loads((plain / "plan.json").read_text())
    if packed_of(runs.compile("always", "--mem", str(plan["peak_bytes"]))):
        raise Failed("packs beyond the budget")
    print("PASS a tight budget is met by leaving the copies out")


finish(test)
