#!/usr/bin/env python3
"""reports.py BUILD WORK - faults that strangers reported of other training tools, looked for here.

Models and data lie in reports/; reference.json there holds PyTorch's values in float64. Each function below is one report: where it comes
from, what went wrong there, and what is right."""
import shutil
from array import array
from pathlib import Path
from common import *

FOLDER = STEPS / "reports"
REFERENCE = json.loads((FOLDER / "reference.json").read_text())
TOK = ["--data", f"ids={FOLDER}/tok_ids.npy", "--data", f"labels={FOLDER}/tok_labels.npy"]
LIN = ["--data", f"x={FOLDER}/lin_x.npy", "--data", f"t={FOLDER}/lin_t.npy"]


def tensors(path):
    """{name: values} of a float32 safetensors file"""
    raw = Path(path).read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    return {k: array("f", raw[8 + n + t["data_offsets"][0]:8 + n + t["data_offsets"][1]])
            for k, t in json.loads(raw[8:8 + n]).items() if k != "__metadata__" and t["dtype"] == "F32"}


def close(got, want, what, tol=1e-5):
    for i, (a, b) in enumerate(zip(got, want)):
        if not abs(a - b) <= tol * max(1, abs(b)):
            raise Failed(f"{what}[{i}] is {a}, expected {b}")


class Step:
    """A compiled model of reports/; paths are in the working folder."""

    def __init__(self, build, model, tag, *options):
        self.build, self.folder = build, f"{model}-{tag}"
        need(self.folder, [build.trainc, FOLDER / f"{model}.onnx", "-o", self.folder, *options])

    def run(self, *options):
        """(log rows, stderr) of one training run"""
        code, out, err = call([self.build.trainc, "run", self.folder, *options, "--log", "log.jsonl"])
        if code:
            raise Failed(f"{self.folder}: exit {code}\n{err}")
        return read_log("log.jsonl"), err


def running_statistics(build):
    """pytorch/pytorch#96136: running statistics moved twice in a step."""
    want = REFERENCE["bn, one step on 4 samples"]
    for variance, key in (("onnx", "running_var by the ONNX text (population)"), ("pytorch", "running_var by PyTorch (unbiased)")):
        step = Step(build, "bn", variance, "--dim", "N=4", "--loss", "cross_entropy", "--bn-variance", variance)
        rows, _ = step.run("--data", f"x={FOLDER}/bn_x.npy", "--data", f"labels={FOLDER}/bn_labels.npy", "--steps", 1, "--save", "bn-saved", "--save-grads", "bn-grads")
        saved, grads = tensors("bn-saved/model.safetensors"), tensors("bn-grads")
        close([rows[0]["loss"], rows[0]["grad_norm"]], [want["loss"], want["grad_norm"]], "loss and grad_norm")
        close(saved["bn.running_mean"], want["running_mean"], "running_mean")
        close(saved["bn.running_var"], want[key], f"running_var, {variance}")
        for name, values in want["grad"].items():
            close(grads[name], values, f"gradient of {name}")


def incomplete_window(build):
    """tracel-ai/burn#5695: the last accumulation window was lost, and the schedule went on with every micro-batch."""
    logs = []
    for micro in (1, 4):
        step = Step(build, "lin", micro, "--dim", f"N={micro}", "--batch", 4, "--micro-batch", micro)
        rows, err = step.run(*LIN, "--epochs", 1, "--schedule", "linear", "--warmup", 2)
        if len(rows) != 3 and not (len(rows) == 2 and "2 samples" in err):
            raise Failed(f"10 samples in batches of 4: {len(rows)} steps, and nothing said of 2 samples\n{err}")
        logs.append(rows)
    if [r["lr"] for r in logs[0]] != [r["lr"] for r in logs[1]]:
        raise Failed("the learning rate follows micro-batches")
    want = REFERENCE["lin first 4 samples"]
    for rows in logs:
        close([rows[0]["loss"], rows[0]["grad_norm"]], [want["loss"], want["grad_norm"]], "loss and grad_norm")


def token_weighting(build):
    """huggingface/transformers#37766, #35203: micro-batches with different numbers of valid tokens were averaged evenly."""
    want = REFERENCE["tok, batch 4, mean over the 10 valid tokens"]
    for micro in (1, 2, 4):
        step = Step(build, "tok", micro, "--dim", f"N={micro}", "--batch", 4, "--micro-batch", micro, "--loss", "cross_entropy")
        rows, _ = step.run(*TOK, "--steps", 1, "--save-grads", "tok-grads")
        close([rows[0]["loss"], rows[0]["grad_norm"]], [want["loss"], want["grad_norm"]], f"micro-batch {micro}: loss and grad_norm")
        grads = tensors("tok-grads")
        for name, values in want["grad"].items():
            close(grads[name], values, f"micro-batch {micro}: gradient of {name}")


def nothing_counts(build):
    """pytorch/pytorch#70348: a batch whose labels are all ignored gives NaN, which then spreads."""
    step = Step(build, "tok", "ignored", "--dim", "N=4", "--loss", "cross_entropy")
    start, _ = step.run(*TOK, "--steps", 0, "--save", "tok-start")
    rows, _ = step.run(TOK[0], TOK[1], "--data", f"labels={FOLDER}/tok_labels_all_ignored.npy", "--steps", 3, "--save", "tok-saved")
    if any(r["loss"] is not None or not r["skipped"] for r in rows):
        raise Failed(f"steps without a counted label: {rows}")
    if tensors("tok-saved/model.safetensors") != tensors("tok-start/model.safetensors"):
        raise Failed("steps without a counted label moved the weights")


def token_out_of_range(build):
    """ROCm/legacy-rocm-build#1724: a token id beyond the table hung the GPU."""
    kernels = Path("tok-kernels").resolve()
    step = Step(build, "tok", "range", "--dim", "N=4", "--loss", "cross_entropy", "--target", "cpu,gfx90a", "--emit", "co,hip")
    need("kernels for the host", [STEPS.parent / "hip_host/build_standin", step.folder, "gfx90a", kernels])
    for device in ("cpu", "hip"):
        code, out, err = call([build.trainc, "run", step.folder, "--data", f"ids={FOLDER}/tok_ids_99.npy", *TOK[2:], "--steps", 1, "--device", device],
                              env=build.standin_environment(kernels, "gfx90a"))
        if code != 5 or "value 99" not in err or "11 rows" not in err or "sample 3" not in err:
            raise Failed(f"token 99 of a table of 11 on {device}: exit {code}\n{err}")


def exact_tokens(build):
    """maderix/ANE#17: a token file shorter than a window made a length wrap. 24 tokens are 4 windows of 6, as ids and as labels."""
    step = Step(build, "tok", "tokens", "--dim", "N=4", "--loss", "cross_entropy")
    rows, _ = step.run("--data", f"ids={FOLDER}/tokens_24.bin:u16", "--data", f"labels={FOLDER}/tok_labels.npy", "--epochs", 1)
    if len(rows) != 1:
        raise Failed(f"4 windows in batches of 4: {len(rows)} steps")


def mapped_weights(build):
    """ROCm/legacy-rocm-build#6582: a copy from a file mapping to the device spun for ever. The stand-in refuses each such copy here."""
    env = {"TRAINC_STANDIN_MAPPED": "1"}
    probe = ("import ctypes, mmap, sys; hip = ctypes.CDLL(sys.argv[1]); p = ctypes.c_void_p(); hip.hipInit(0); hip.hipMalloc(ctypes.byref(p), 64)\n"
             "page = mmap.mmap(open(sys.argv[2], 'r+b').fileno(), 64) if len(sys.argv) > 2 else bytearray(64)\n"
             "sys.exit(hip.hipMemcpy(p, ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page))), ctypes.c_size_t(64), 1))")
    Path("page.bin").write_bytes(bytes(64))
    library = f"{build.standin}/libamdhip64.so.6"
    from_memory, _, err = call([sys.executable, "-c", probe, library], env=env)
    from_file = call([sys.executable, "-c", probe, library, "page.bin"], env=env)[0]
    if "asan" not in err.lower() and (from_memory != 0 or from_file == 0):     # Python cannot load a sanitized library
        raise Failed("the stand-in does not tell a file mapping from memory")
    case, spec, step = CASES / "external_data", spec_of("external_data"), Path("external").resolve()
    need("compile", [build.trainc, "model.onnx", "-o", step, *spec["compile"], "--target", "gfx90a", "--emit", "co,hip"], case)
    need("kernels for the host", [STEPS.parent / "hip_host/build_standin", step, "gfx90a", f"{step}-kernels"])
    need("weights go up", [build.trainc, "run", step, *spec["run"], "--device", "hip"], case, dict(build.standin_environment(f"{step}-kernels", "gfx90a"), **env))


def flat_labels(build):
    """pytorch/pytorch#19699: labels [N] against outputs [N,1] were broadcast to N x N."""
    want = REFERENCE["lin_out, --loss mse, 10 samples"]
    step = Step(build, "lin_out", "mse", "--dim", "N=10", "--loss", "mse")
    for labels in ("lin_t_flat.npy", "lin_t.npy"):
        rows, _ = step.run("--data", f"x={FOLDER}/lin_x.npy", "--data", f"labels={FOLDER}/{labels}", "--steps", 1)
        close([rows[0]["loss"], rows[0]["grad_norm"]], [want["loss"], want["grad_norm"]], f"{labels}: loss and grad_norm")


def test(argv):
    build, work = Build(argv[0]), Path(argv[1]).resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    os.chdir(work)
    for report in (running_statistics, incomplete_window, token_weighting, nothing_counts, token_out_of_range, exact_tokens, mapped_weights, flat_labels):
        report(build)
        print(f"PASS {report.__name__}: {report.__doc__.split(': ')[0]}")
    os.chdir("/")
    shutil.rmtree(work)


finish(test)
