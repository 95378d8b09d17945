#!/usr/bin/env python3
"""recurrence.py BUILD WORK - does a recurrence of 1,000 steps cost one step's code, and does it train?

The two LSTM layers of lstm_seq are compiled for sequences of 100 and of 1,000 tokens, for the CPU and a GPU. The step of 1,000 must have as
many kernels and launches, character for character the same kernels inside its loops, sources of the same size to 5 % (kernels around the
loops are larger and may take other forms), and take the compiler's planning as much processor time to a factor of 2. Its first step must be the interpreter's to a relative error of 1e-5; then it trains on sequences whose class shows in every
token, and the loss must fall below a tenth."""
import json, random, resource, shutil
from pathlib import Path
from common import *

NAME, FEW, MANY, BATCH, SAMPLES = "lstm_seq", 100, 1000, 4, 16
STEPS_RUN, LOWEST_LOSS = 12, 0.14


def options(length):
    return ["--dim", f"batch={BATCH},sequence={length}", "--loss", "cross_entropy", "--optimizer", "adam"]


def launches_of(items, kernels, depth=0):
    """Launches that are listed, and the trips of the loops among them; names of the kernels in loops go to `kernels`."""
    n, trips = 0, []
    for item in items:
        if "loop" in item:
            inner, deeper = launches_of(item["loop"]["launches"], kernels, depth + 1)
            n += len(item["loop"]["before"]) + inner
            trips += [item["loop"]["trips"]] + deeper
        else:
            n += 1
            kernels += [item["kernel"]] * (depth > 0)
    return n, trips


def text_of(source, kernel):
    begin = source.index(f" {kernel}(")
    return source[begin:source.index("\n}\n", begin)]


def compile_for(build, work, length):
    """The step folder; kernels and launches per target; the text of what runs in loops; bytes of sources."""
    step = work / f"step{length}"
    need(f"compile for {length}", [build.trainc, CASES / NAME / "model.onnx", "-o", step, *options(length), "--target", "cpu,gfx90a"])
    plan = json.loads((step / "plan.json").read_text())
    shape, texts, size = {}, [], 0
    for target, pattern in (("cpu", "*_cpu*.c"), ("gfx90a", "*.hip")):
        t, kernels = plan["targets"][target], []
        listed = {entry: launches_of(items, kernels) for entry, items in t["entries"].items()}
        if listed["micro"][1] != [length] * 8:
            raise Failed(f"{target}: micro has loops of {listed['micro'][1]} steps, 8 of {length} expected (two layers, two ways, and back)")
        shape[target] = (len(t["kernels"]), {entry: n for entry, (n, _) in listed.items()})
        source = "".join(f.read_text() for f in sorted(step.glob(pattern)))
        texts += [text_of(source, k) for k in kernels]
        size += len(source)
    return step, shape, texts, size


def seconds_of_plan(build, length):
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    for _ in range(5):
        need("plan", [build.trainc, "plan", CASES / NAME / "model.onnx", *options(length)])
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def write_data(work):
    rng = random.Random(3)
    labels = [i % 4 for i in range(SAMPLES)]
    write_npy(work / "labels.npy", "<i8", (SAMPLES,), labels)
    write_npy(work / "tokens.npy", "<i8", (SAMPLES, MANY), [7 * c + rng.randrange(7) for c in labels for _ in range(MANY)])
    return ["--data", f"tokens={work / 'tokens.npy'}", "--data", f"labels={work / 'labels.npy'}"]


def test(argv):
    build, work = Build(argv[0]), Path(argv[1]).resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    _, few, few_texts, few_bytes = compile_for(build, work, FEW)
    step, many, many_texts, many_bytes = compile_for(build, work, MANY)
    if few != many:
        raise Failed(f"kernels and launches for {FEW} steps {few}, for {MANY} {many}")
    if few_texts != many_texts:
        raise Failed(f"of {len(few_texts)} launches in loops {sum(a != b for a, b in zip(few_texts, many_texts))} have other code for {MANY} steps")
    if abs(many_bytes - few_bytes) > 0.05 * few_bytes:
        raise Failed(f"{few_bytes} bytes of C and HIP for {FEW} steps, {many_bytes} for {MANY}")
    seconds = [seconds_of_plan(build, n) for n in (FEW, MANY)]
    if seconds[1] > 2 * seconds[0] + 0.05:
        raise Failed(f"planning takes {seconds[0]:.2f} s for {FEW} steps, {seconds[1]:.2f} s for {MANY}")
    print(f"PASS {NAME}: {len(few_texts)} launches in loops, {few_bytes} bytes of code for {FEW} steps, {many_bytes} for {MANY}; planned five times in {seconds[0]:.2f} and {seconds[1]:.2f} s")
    data = write_data(work)
    out = need("compare", [build.compare, CASES / NAME / "model.onnx", *options(MANY), "--step", step, "--device", "cpu", *data])
    print(out.splitlines()[-1])
    log = work / "log.jsonl"
    need("train", [build.trainc, "run", step, *data, "--device", "cpu", "--steps", STEPS_RUN, "--lr", "0.02", "--log", log])
    losses = [r["loss"] for r in read_log(log)]
    if not losses[-1] < LOWEST_LOSS or not losses[0] > 1:
        raise Failed(f"losses of {MANY} steps: {losses}")
    print(f"PASS {NAME} over {MANY} steps: loss {losses[0]:.3f} to {losses[-1]:.3f}")


finish(test)
