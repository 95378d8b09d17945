#!/usr/bin/env python3
"""Step time of GPT-2 small (124M parameters, fp32, AdamW): trainc beside PyTorch eager, in one run on the same threads.

    python benchmarks/step_time.py --trainc build/trainc [--batch 1] [--sequence 256] [--threads 2] [--steps 8] [--rounds 3] [--compile]

Exports the model once (TorchScript form), compiles it, then alternates rounds of both. The machine may be shared: what counts is the ratio of medians.
Needs torch and transformers; --compile adds torch.compile as a further peer.
"""
import argparse, json, os, statistics, subprocess, sys, time, warnings
from pathlib import Path

ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
ap.add_argument("--trainc", default="build/trainc")
ap.add_argument("--work", default="build/benchmarks")
ap.add_argument("--batch", type=int, default=1)
ap.add_argument("--sequence", type=int, default=256)
ap.add_argument("--threads", type=int, default=2)
ap.add_argument("--steps", type=int, default=8)
ap.add_argument("--rounds", type=int, default=3)
ap.add_argument("--layers", type=int, default=12)
ap.add_argument("--compile", action="store_true")
a = ap.parse_args()
os.environ["OMP_NUM_THREADS"] = str(a.threads)
import numpy as np
import torch
import transformers

warnings.filterwarnings("ignore")
torch.set_num_threads(a.threads)
torch.manual_seed(0)
work = Path(a.work)
work.mkdir(parents=True, exist_ok=True)
config = transformers.GPT2Config(n_layer=a.layers, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False, attn_implementation="eager")


class Logits(torch.nn.Module):
    def __init__(self, gpt):
        super().__init__()
        self.transformer, self.lm_head = gpt.transformer, gpt.lm_head

    def forward(self, input_ids):
        return self.lm_head(self.transformer(input_ids=input_ids, attention_mask=torch.ones_like(input_ids)).last_hidden_state)


model = Logits(transformers.GPT2LMHeadModel(config)).train()
with torch.no_grad():
    for p in model.parameters():
        p.add_(1e-4 * torch.randn_like(p))
onnx_path = work / f"gpt2_{a.layers}.onnx"
if not onnx_path.exists():
    torch.onnx.export(model, (torch.arange(32).reshape(2, 16),), str(onnx_path), dynamo=False, opset_version=17,
                      do_constant_folding=False, training=torch.onnx.TrainingMode.TRAINING, input_names=["input_ids"],
                      output_names=["logits"], dynamic_axes={"input_ids": {0: "batch", 1: "sequence"}, "logits": {0: "batch", 1: "sequence"}})
ids = np.random.default_rng(0).integers(0, 50257, (a.batch * 2, a.sequence))
np.save(work / "ids.npy", ids)
step_dir = work / f"gpt2_{a.layers}-step"
began = time.time()
subprocess.run([a.trainc, str(onnx_path), "-o", str(step_dir), "--dim", f"batch={a.batch},sequence={a.sequence}", "--loss", "causal_lm"], check=True)
print(f"compiled in {time.time() - began:.2f} s")


def trainc_round():
    log = work / "log.jsonl"
    subprocess.run([a.trainc, "run", str(step_dir), "--data", f"input_ids={work}/ids.npy", "--steps", str(a.steps), "--log", str(log)],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    rows = [json.loads(line) for line in open(log)]
    return [r["ms"] for r in rows[2:]], [r["loss"] for r in rows]


def torch_round(step_model, optimizer):
    times, losses = [], []
    for i in range(a.steps):
        rows = np.arange(i * a.batch, (i + 1) * a.batch) % len(ids)
        batch = torch.from_numpy(ids[rows])
        began = time.perf_counter()
        logits = step_model(batch)
        loss = torch.nn.functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        times.append(1e3 * (time.perf_counter() - began))
        losses.append(loss.item())
    return times[2:], losses


peers = {"PyTorch eager": model}
if a.compile:
    peers["torch.compile"] = torch.compile(model)
optimizers = {k: torch.optim.AdamW(m.parameters(), lr=1e-3) for k, m in peers.items()}
ours, theirs, first = [], {k: [] for k in peers}, None
for r in range(a.rounds):
    times, losses = trainc_round()
    ours += times
    for k, m in peers.items():
        t, l = torch_round(m, optimizers[k])
        theirs[k] += t
        if first is None:
            first = True
            print(f"first losses: trainc {losses[0]:.6f} {losses[1]:.6f}, {k} {l[0]:.6f} {l[1]:.6f}")
mine = statistics.median(ours)
print(f"trainc          {mine:9.1f} ms")
for k, t in theirs.items():
    print(f"{k:15s} {statistics.median(t):9.1f} ms   trainc takes {mine / statistics.median(t):.3f} of it")
