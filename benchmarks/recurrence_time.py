#!/usr/bin/env python3
"""Step time of an LSTM over a long sequence (fp32, AdamW): trainc beside PyTorch eager, in one run on the same threads.

    python benchmarks/recurrence_time.py --trainc build/trainc [--sequence 1000] [--batch 16] [--hidden 128] [--kind LSTM|GRU|RNN]
                                         [--threads 1] [--steps 10] [--rounds 3]

Exports one layer with a linear head over all steps, compiles it for this length, then alternates rounds of both. The machine may be
shared: what counts is the ratio of medians; with several threads on a busy machine both mostly wait (docs/runtime.md). Needs torch.
"""
import argparse, json, os, statistics, subprocess, time, warnings
from pathlib import Path

ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("--trainc", default="build/trainc")
ap.add_argument("--work", default="build/benchmarks")
ap.add_argument("--kind", default="LSTM", choices=("LSTM", "GRU", "RNN"))
ap.add_argument("--sequence", type=int, default=1000)
ap.add_argument("--batch", type=int, default=16)
ap.add_argument("--hidden", type=int, default=128)
ap.add_argument("--threads", type=int, default=1)
ap.add_argument("--steps", type=int, default=10)
ap.add_argument("--rounds", type=int, default=3)
a = ap.parse_args()
os.environ["OMP_NUM_THREADS"] = str(a.threads)
import numpy as np
import torch

warnings.filterwarnings("ignore")
torch.set_num_threads(a.threads)
torch.manual_seed(0)
work = Path(a.work)
work.mkdir(parents=True, exist_ok=True)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = getattr(torch.nn, a.kind)(a.hidden, a.hidden, batch_first=True)
        self.head = torch.nn.Linear(a.hidden, 8)

    def forward(self, x):
        return self.head(self.rnn(x)[0])


model = Net()
x = np.random.default_rng(0).standard_normal((a.batch, a.sequence, a.hidden), dtype=np.float32)
y = np.random.default_rng(1).standard_normal((a.batch, a.sequence, 8), dtype=np.float32)
np.save(work / "x.npy", x)
np.save(work / "y.npy", y)
onnx_path, step_dir = work / f"{a.kind}.onnx", work / f"{a.kind}-step"
torch.onnx.export(model, (torch.zeros(2, 5, a.hidden),), str(onnx_path), dynamo=False, opset_version=17, do_constant_folding=False,
                  training=torch.onnx.TrainingMode.TRAINING, input_names=["x"], output_names=["out"],
                  dynamic_axes={"x": {0: "batch", 1: "sequence"}})
began = time.time()
subprocess.run([a.trainc, str(onnx_path), "-o", str(step_dir), "--dim", f"batch={a.batch},sequence={a.sequence}", "--loss", "mse"],
               check=True, stderr=subprocess.DEVNULL)
print(f"compiled in {time.time() - began:.2f} s")


def trainc_round():
    log = work / "log.jsonl"
    subprocess.run([a.trainc, "run", str(step_dir), "--data", f"x={work}/x.npy", "--data", f"labels={work}/y.npy", "--steps", str(a.steps),
                    "--log", str(log)], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rows = [json.loads(line) for line in open(log)]
    return [r["ms"] for r in rows[2:]], [r["loss"] for r in rows]


def torch_round():
    net = Net()
    net.load_state_dict(model.state_dict())
    optimizer = torch.optim.AdamW(net.parameters())
    times, losses, inputs, labels = [], [], torch.from_numpy(x), torch.from_numpy(y)
    for _ in range(a.steps):
        began = time.perf_counter()
        loss = torch.nn.functional.mse_loss(net(inputs), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        times.append(1e3 * (time.perf_counter() - began))
    return times[2:], losses


ours, theirs = [], []
for _ in range(a.rounds):
    times, our_losses = trainc_round()
    ours += times
    times, their_losses = torch_round()
    theirs += times
apart = max(abs(p - q) for p, q in zip(our_losses, their_losses))
print(f"{a.kind} sequence {a.sequence} batch {a.batch} hidden {a.hidden} threads {a.threads}: trainc {statistics.median(ours):.1f} ms, "
      f"PyTorch {statistics.median(theirs):.1f} ms, ratio {statistics.median(ours) / statistics.median(theirs):.2f}; losses apart {apart:.1e}")
