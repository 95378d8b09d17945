#!/usr/bin/env python3
"""adapters.py BUILD WORK - are adapters, outside the step, what they are in it?

Models of three exporters, whose layers stand in the file as they are, transposed, and as [in, out], train with --lora for a few steps.
Their own weights must not change; adapter_model.safetensors must be the checkpoint's adapters, bit for bit, and adapter_config.json name
their modules; a run that starts from that file alone must have the loss of one that starts from the checkpoint. The exported model,
compiled without adapters, must have the loss of the adapted one to 1e-5, which must differ from that of the model as it was."""
import json, shutil, struct
from pathlib import Path
from common import *

RANK, ALPHA = 3, 12
MODELS = {"gpt2_ts": 8, "gpt2_dynamo": 8, "vit_tiny": 12, "llama_accum": 14}          # how many matrices have adapters


def compile_options(name):
    given, out = spec_of(name)["compile"], []
    for option, value in zip(given[::2], given[1::2]):
        if option not in ("--micro-batch", "--optimizer"):
            out += [option, value]
    return out


def tensors(path):
    bytes_ = Path(path).read_bytes()
    n, = struct.unpack("<Q", bytes_[:8])
    head = json.loads(bytes_[8:8 + n])
    return {k: bytes_[8 + n + v["data_offsets"][0]:8 + n + v["data_offsets"][1]] for k, v in head.items() if k != "__metadata__"}


def losses(build, step, name, options):
    """eval_loss after each step: nothing is dropped out there."""
    data = data_options(spec_of(name)["run"])
    log = step.with_suffix(".jsonl")
    need(f"{name}: run", [build.trainc, "run", step, *data, *[x.replace("--data", "--eval-data") for x in data], "--eval-every", "1",
                          "--log", log, *options], CASES / name)
    return [row["eval_loss"] for row in read_log(log)]


def near(a, b):
    return abs(a - b) <= 1e-5 * abs(b)


def check_files(name, n, before, saved):
    model, adapters = tensors(saved / "model.safetensors"), tensors(saved / "adapter_model.safetensors")
    config = json.loads((saved / "adapter_config.json").read_text())
    changed = [k for k, v in before.items() if not k.startswith("base_model.") and model[k] != v]
    if changed:
        raise Failed(f"{name}: {changed} changed, though frozen")
    if adapters != {k: v for k, v in model.items() if k.startswith("base_model.")} or len(adapters) != 2 * n:
        raise Failed(f"{name}: {len(adapters)} adapters are not those {2 * n} of the checkpoint")
    modules = {k[len("base_model.model."):-len(".lora_A.weight")] for k in adapters if ".lora_A." in k}
    if set(config["target_modules"]) != modules or (config["r"], config["lora_alpha"]) != (RANK, ALPHA):
        raise Failed(f"{name}: adapter_config.json says {config}")
    if config["fan_in_fan_out"] != name.startswith("gpt2"):
        raise Failed(f"{name}: fan_in_fan_out is {config['fan_in_fan_out']}")


def test_model(build, work, name, n):
    step, merged, first, saved = work / name, work / f"{name}-merged", work / f"{name}-first", work / f"{name}-saved"
    exported = work / f"{name}.onnx"
    options = compile_options(name)
    still = ["--steps", "1", "--lr", "0"]
    need(f"{name}: compile", [build.trainc, CASES / name / "model.onnx", "-o", step, *options, "--lora", RANK, "--lora-alpha", ALPHA])
    begun, = losses(build, step, name, [*still, "--save", first])
    trained = losses(build, step, name, ["--steps", "5", "--lr", "0.01", "--save", saved, "--export", exported])[-1]
    check_files(name, n, tensors(first / "model.safetensors"), saved)
    again, = losses(build, step, name, [*still, "--init", saved / "adapter_model.safetensors"])
    need(f"{name}: compile the merged model", [build.trainc, exported, "-o", merged, *options])
    whole, = losses(build, merged, name, still)
    if again != trained:
        raise Failed(f"{name}: from adapter_model.safetensors the loss is {again}, it was {trained}")
    if not near(whole, trained) or near(begun, trained):
        raise Failed(f"{name}: began at {begun}, is {trained} with adapters, {whole} with merged ones")
    print(f"{name}: {n} adapters, loss {begun:.6f} -> {trained:.6f}, merged {whole:.6f}")


def test(argv):
    build, work = Build(argv[0]), Path(argv[1]).resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    for name, n in MODELS.items():
        test_model(build, work, name, n)


finish(test)
