#!/usr/bin/env python3
"""repeat.py BUILD WORK - does the same input give the same bits?

Two compiles of a model give byte-identical folders. Two runs give bit-identical losses, gradients and checkpoints; so do a run that was
saved at step 5 and resumed and, where no convolution is summed by oneDNN, runs with one thread and with two. Every run shuffles; the cases bring momentum, dropout, batch statistics,
accumulation and a schedule. One case runs on the stand-in GPU too."""
import shutil
from pathlib import Path
from common import *

STEPS_IN_ALL, SAVED_AT = 10, 5
CASES_RUN = ("gpt2_ts", "llama_accum", "dropout_stat", "resnet_tiny", "cnn_bn", "lstm_seq")
THREADS_COUNT = ("resnet_tiny", "cnn_bn")         # oneDNN sums a convolution's weight gradient in as many parts as there are threads


def compile_twice(build, work, name, options):
    folders = [work / "first" / name, work / "second" / "elsewhere" / name]
    for f in folders:
        shutil.rmtree(f, ignore_errors=True)
        need(f"{name}: compile", [build.trainc, "model.onnx", "-o", f, *spec_of(name)["compile"], *options], CASES / name)
    differ = same_folders(*folders)
    if differ:
        raise Failed(f"{name}: two compiles differ in {', '.join(differ)}")
    print(f"PASS {name}: two compiles give the same {sum(1 for _ in folders[0].rglob('*'))} files")
    return folders[0]


class Runs:
    """Runs of one case, each leaving a log, gradients and a checkpoint."""

    def __init__(self, build, step, name, device="cpu", env=None):
        self.build, self.step, self.name, self.device, self.env = build, step, name, device, env
        options = list(spec_of(name)["run"])
        for flag in ("--eval-every", "--eval-data"):
            while flag in options:
                del options[options.index(flag):options.index(flag) + 2]
        self.options = options + ["--shuffle", "--device", device]
        if "--schedule" in options:
            self.options += ["--schedule-steps", STEPS_IN_ALL]

    def run(self, tag, steps=STEPS_IN_ALL, extra=()):
        folder = self.step.parent / f"{self.name}-{self.device}-{tag}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        args = with_option(self.options, "--steps", steps)
        if "--resume" not in extra:
            args += ["--save-grads", folder / "grads.safetensors"]
        need(f"{self.name}: run ({tag})", [self.build.trainc, "run", self.step, *args, "--log", folder / "log.jsonl", "--save",
                                           folder / "checkpoint", *extra], CASES / self.name, self.env)
        return folder

    def compare(self, a, b, what, log=None):
        """Are the runs a and b the same? `log` is what a's log must be, where that is not all of b's."""
        if read_log(a / "log.jsonl") != (read_log(b / "log.jsonl") if log is None else log):
            raise Failed(f"{self.name} on {self.device}, {what}: the logs differ")
        grads = [f / "grads.safetensors" for f in (a, b)]
        if all(g.exists() for g in grads) and grads[0].read_bytes() != grads[1].read_bytes():
            raise Failed(f"{self.name} on {self.device}, {what}: the gradients differ")
        differ = same_folders(a / "checkpoint", b / "checkpoint")
        if differ:
            raise Failed(f"{self.name} on {self.device}, {what}: the checkpoints differ in {', '.join(differ)}")
        print(f"PASS {self.name} on {self.device}: {what}")

    def all(self):
        whole = self.run("whole")
        self.compare(whole, self.run("again"), "two runs")
        first = self.run("first", SAVED_AT)
        rest = self.run("rest", extra=["--resume", first / "checkpoint"])
        rows = read_log(whole / "log.jsonl")
        if read_log(first / "log.jsonl") != rows[:SAVED_AT]:
            raise Failed(f"{self.name} on {self.device}: the first {SAVED_AT} steps of a short run are not those of a long one")
        self.compare(rest, whole, f"saved at step {SAVED_AT} and resumed", rows[SAVED_AT:])
        if self.device == "cpu" and self.name not in THREADS_COUNT:
            self.compare(self.run("one", extra=["--threads", 1]), self.run("two", extra=["--threads", 2]), "one thread and two")


def test(argv):
    build, work = Build(argv[0]), Path(argv[1]).resolve()
    shutil.rmtree(work, ignore_errors=True)
    for name in CASES_RUN:
        gpu = name == "gpt2_ts"
        step = compile_twice(build, work, name, ["--target", "cpu,gfx90a,gfx1100", "--emit", "tir,c,hip,asm,co"] if gpu else [])
        Runs(build, step, name).all()
        if gpu:
            kernels = work / "kernels"
            need("kernels for the host", [STEPS.parent / "hip_host/build_standin", step, "gfx1100", kernels])
            Runs(build, step, name, "hip", build.standin_environment(kernels, "gfx1100")).all()
    shutil.rmtree(work)


finish(test)
