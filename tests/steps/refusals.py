#!/usr/bin/env python3
"""refusals.py BUILD WORK - what a user does wrong ends in the exit status that is promised and a sentence that helps.

Each row: exit status, words that stderr must hold, and the command line. Exit statuses: 2 wrong usage, 3 does not fit, 4 a model, step
folder or checkpoint is invalid, 5 data or output cannot be used. A command that fails must leave no traceback of a sanitizer or an assert."""
import shutil
from pathlib import Path
from common import *

GPT2, DIGITS = CASES / "gpt2_ts", CASES / "mlp_digits"
MODEL = GPT2 / "model.onnx"
BOUND = ["--dim", "batch=8,sequence=16"]
LM = [MODEL, "-o", "x", *BOUND, "--loss", "causal_lm"]


def make_files():
    """Good and bad data, and a step folder of each of two models, in the working folder."""
    ids = [5] * 128
    write_npy("ids.npy", "<i8", (8, 16), ids)
    write_npy("high.npy", "<i8", (8, 16), ids[:100] + [99999] + ids[:27])
    write_npy("low.npy", "<i8", (8, 16), ids[:100] + [-99] + ids[:27])
    write_npy("float.npy", "<f4", (8, 16), [5.5] * 128)
    write_npy("narrow.npy", "<i8", (8, 15), [5] * 120)
    write_npy("none.npy", "<i8", (0, 16), [])
    write_npy("big_endian.npy", ">i8", (8, 16), ids)
    write_npy("fortran.npy", "<i8", (8, 16), ids, fortran=True)
    write_npy("x.npy", "<f4", (16, 64), [0.25] * 1024)
    write_npy("labels.npy", "<i8", (16,), [1] * 16)
    write_npy("class77.npy", "<i8", (16,), [1] * 15 + [77])
    write_npy("labels15.npy", "<i8", (15,), [1] * 15)
    Path("cut.npy").write_bytes(Path("ids.npy").read_bytes()[:400])
    Path("empty.npy").write_bytes(b"")
    Path("text.npy").write_bytes(b"hello world" * 20)
    Path("three.bin").write_bytes(b"\1\0\2\0\3\0")
    Path("tokens.bin").write_bytes(struct.pack("<32H", *[5] * 31, 64))
    Path("empty.onnx").write_bytes(b"")
    Path("cut.onnx").write_bytes(MODEL.read_bytes()[:100000])
    Path("text.onnx").write_bytes(b"{}\n")
    Path("external.onnx").write_bytes((CASES / "external_data/model.onnx").read_bytes())
    Path("folder").mkdir()
    Path("folder/mine.txt").write_text("no checkpoint\n")


IDS, DATA = ["--data", "input_ids=ids.npy"], ["--data", "x=x.npy", "--data", "labels=labels.npy"]
COMPILE = [
    (2, "usage:", []),
    (2, "no such command", ["help", "nonsense"]),
    (4, "nofile.onnx", ["nofile.onnx"]),
    (4, "not a file", ["folder", "-o", "x"]),
    (4, "ONNX", ["empty.onnx", "-o", "x"]),
    (4, "truncated", ["cut.onnx", "-o", "x", *BOUND]),
    (4, "text.onnx", ["text.onnx", "-o", "x"]),
    (4, "model.onnx.data", ["external.onnx", "-o", "x", "--dim", "batch=8,sequence=10", "--loss", "causal_lm"]),
    (2, "--dim batch=N", [MODEL, "-o", "x", "--loss", "causal_lm"]),
    (2, "--dim sequence=N", [MODEL, "-o", "x", "--loss", "causal_lm"]),
    (2, "it has: batch, sequence", [*LM, "--dim", "foo=3"]),
    (2, "positive", [*LM, "--dim", "sequence=0"]),
    (2, "did you mean --dim?", [*LM, "--dims=3"]),
    (2, "missing", [*LM, "--loss"]),
    (2, "logits f32[8,16,64]", [MODEL, "-o", "x", *BOUND]),
    (2, "cross_entropy", [*LM, "--loss", "entropy"]),
    (2, "logits f32[8,16,64]", [*LM, "--loss", "cross_entropy:nothing"]),
    (2, "transformer.", [*LM, "--freeze", "nomatch*"]),
    (2, "micro-batch of 3", [*LM, "--micro-batch", "3"]),
    (2, "gfx90a", [*LM, "--target", "gfx906"]),
    (2, "adamw", [*LM, "--optimizer", "adm"]),
    (2, "--emit", [*LM, "--emit", "foo"]),
    (2, "not a size", [*LM, "--mem", "1X"]),
    (3, "--mem ", [*LM, "--mem", "100K"]),
    (2, "16 and to 25", [*LM, "--dim", "sequence=25"]),
    (4, "wpe", [MODEL, "-o", "x", "--dim", "batch=8,sequence=25", "--loss", "causal_lm"]),
    (5, "/proc/x", [MODEL, "-o", "/proc/x", *BOUND, "--loss", "causal_lm"]),
    (5, "ids.npy", [MODEL, "-o", "ids.npy", *BOUND, "--loss", "causal_lm"]),
]
RUN = [
    (2, "step folder", ["run"]),
    (4, "nodir", ["run", "nodir", *IDS]),
    (4, "folder", ["run", "folder", *IDS]),
    (2, "input_ids", ["run", "gpt2"]),
    (2, "input_ids", ["run", "gpt2", "--data", "foo=ids.npy"]),
    (2, "NAME=FILE", ["run", "gpt2", "--data", "input_ids"]),
    (2, "twice", ["run", "gpt2", *IDS, *IDS]),
    (5, "nofile.npy", ["run", "gpt2", "--data", "input_ids=nofile.npy"]),
    (5, "value 99999 in sample 6", ["run", "gpt2", "--data", "input_ids=high.npy"]),
    (5, "64 rows", ["run", "gpt2", "--data", "input_ids=high.npy"]),
    (5, "value -99 in sample 6", ["run", "gpt2", "--data", "input_ids=low.npy"]),
    (5, "f32", ["run", "gpt2", "--data", "input_ids=float.npy"]),
    (5, "[8, 15]", ["run", "gpt2", "--data", "input_ids=narrow.npy"]),
    (5, "no sample", ["run", "gpt2", "--data", "input_ids=none.npy"]),
    (5, "truncated", ["run", "gpt2", "--data", "input_ids=cut.npy"]),
    (5, "empty.npy", ["run", "gpt2", "--data", "input_ids=empty.npy"]),
    (5, "text.npy", ["run", "gpt2", "--data", "input_ids=text.npy"]),
    (5, "big-endian", ["run", "gpt2", "--data", "input_ids=big_endian.npy"]),
    (5, "Fortran order", ["run", "gpt2", "--data", "input_ids=fortran.npy"]),
    (5, "3 of the 16", ["run", "gpt2", "--data", "input_ids=three.bin:u16"]),
    (5, "value 64 in sample 1", ["run", "gpt2", "--data", "input_ids=tokens.bin:u16"]),
    (2, "tokens.bin:u16", ["run", "gpt2", "--data", "input_ids=tokens.bin"]),
    (2, "u99", ["run", "gpt2", "--data", "input_ids=tokens.bin:u99"]),
    (2, "did you mean --steps?", ["run", "gpt2", *IDS, "--stepz", "3"]),
    (2, "--steps", ["run", "gpt2", *IDS, "--steps", "-1"]),
    (2, "--steps", ["run", "gpt2", *IDS, "--steps", "abc"]),
    (2, "--lr", ["run", "gpt2", *IDS, "--lr", "nan"]),
    (2, "--clip", ["run", "gpt2", *IDS, "--clip", "-1"]),
    (2, "--betas", ["run", "gpt2", *IDS, "--betas", "0.9"]),
    (2, "adamw has no --momentum", ["run", "gpt2", *IDS, "--momentum", "0.9"]),
    (2, "cosine", ["run", "gpt2", *IDS, "--schedule", "foo"]),
    (2, "hip:N", ["run", "gpt2", *IDS, "--device", "gpu"]),
    (2, "not compiled for", ["run", "gpt2", *IDS, "--device", "hip"]),
    (2, "--threads", ["run", "gpt2", *IDS, "--threads", "0"]),
    (2, "--eval-data", ["run", "gpt2", *IDS, "--eval-every", "2"]),
    (5, "/nodir/log", ["run", "gpt2", *IDS, "--log", "/nodir/log"]),
    (5, "/nodir/save", ["run", "gpt2", *IDS, "--save", "/nodir/save"]),
    (5, "no checkpoint", ["run", "gpt2", *IDS, "--save", "folder"]),
    (5, "/nodir/grads", ["run", "gpt2", *IDS, "--save-grads", "/nodir/grads"]),
    (5, "/nodir/x.onnx", ["run", "gpt2", *IDS, "--export", "/nodir/x.onnx"]),
    (4, "nodir", ["run", "gpt2", *IDS, "--resume", "nodir"]),
    (4, "folder", ["run", "gpt2", *IDS, "--resume", "folder"]),
    (4, "has changed since", ["run", "changed", *IDS]),
    (4, "transformer.", ["run", "gpt2", *IDS, "--resume", "saved"]),
    (4, "no parameter", ["run", "gpt2", *IDS, "--init", "saved/model.safetensors"]),
    (4, "nofile", ["run", "gpt2", *IDS, "--init", "nofile"]),
    (4, "safetensors", ["run", "gpt2", *IDS, "--init", "text.npy"]),
    (2, "labels", ["run", "digits", "--data", "x=x.npy"]),
    (2, "input x", ["run", "digits", "--data", "labels=labels.npy"]),
    (5, "15", ["run", "digits", "--data", "x=x.npy", "--data", "labels=labels15.npy"]),
    (5, "value 77 in sample 15", ["run", "digits", "--data", "x=x.npy", "--data", "labels=class77.npy"]),
    (5, "x", ["run", "digits", "--data", "x=labels.npy", "--data", "labels=labels.npy"]),
]


def refused(build, row):
    status, words, args = row
    code, out, err = call([build.trainc, *args], timeout=120)
    wrong = [] if code == status else [f"exit {code}, expected {status}"]
    if words not in err:
        wrong.append(f"stderr does not say {words!r}")
    if "Assertion" in err or "Sanitizer" in err:
        wrong.append("a fault of ours")
    return f"trainc {' '.join(str(a) for a in args)}: {'; '.join(wrong)}\n{err}" if wrong else None


def test(argv):
    build, work = Build(argv[0]), Path(argv[1]).resolve()
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    os.chdir(work)
    make_files()
    need("compile", [build.trainc, MODEL, "-o", "gpt2", *BOUND, "--loss", "causal_lm"])
    need("compile", [build.trainc, DIGITS / "model.onnx", "-o", "digits", "--dim", "batch=16", "--loss", "cross_entropy"])
    shutil.copy(MODEL, "my-model.onnx")
    need("compile", [build.trainc, "my-model.onnx", *BOUND, "--loss", "causal_lm"])
    Path("my-model-step").rename("changed")
    with open("my-model.onnx", "ab") as f:
        f.write(b"xx")
    need("run", [build.trainc, "run", "digits", *DATA, "--steps", 1, "--save", "saved"])
    wrong = [w for w in (refused(build, row) for row in COMPILE + RUN) if w]
    if wrong:
        raise Failed(f"{len(wrong)} of {len(COMPILE + RUN)}:\n" + "\n".join(wrong))
    print(f"PASS {len(COMPILE + RUN)} refusals")
    os.chdir("/")
    shutil.rmtree(work)


finish(test)
