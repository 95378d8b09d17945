#!/usr/bin/env python3
"""Writes steps/NAME/: small fresh modules as both of PyTorch's exporters write them by default, and one step of training.

    make_steps.py [NAME ...]          needs torch, onnx, onnxscript, safetensors

A fresh module is what exporters confuse most: all its norms hold the same ones, copied layers the same matrices. A
folder holds model_dynamo.onnx and model_ts.onnx, the inputs x.npy and labels.npy, and expect.safetensors: every
parameter after one step of SGD at a rate of 0.5, under its first name in the state_dict; names.json has the tied
ones, and what dynamo's optimizer drops for being neutral."""
import json
import sys
import warnings
from pathlib import Path
import numpy as np
import torch
from safetensors.torch import save_file
from torch import nn
import torch.nn.functional as F

warnings.filterwarnings("ignore")
D = 8


class Copied(nn.Module):
    """layers that are deep copies of one: equal matrices, equal norms, MultiheadAttention's packed projection"""
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(D, 2, 12, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(D, 5)

    def forward(self, x):
        return self.head(self.encoder(x))


class Tied(nn.Module):
    """a lookup and a last layer that share a matrix; linear layers with and without bias; a learned table of positions"""
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.ln_1 = nn.LayerNorm(D)
            self.fc = nn.Linear(D, 2 * D)
            self.proj = nn.Linear(2 * D, D, bias=False)

        def forward(self, x):
            return x + self.proj(F.gelu(self.fc(self.ln_1(x))))

    def __init__(self):
        super().__init__()
        self.transformer = nn.ModuleDict({"wte": nn.Embedding(11, D), "wpe": nn.Embedding(9, D),
                                          "h": nn.ModuleList([Tied.Block(), Tied.Block()]), "ln_f": nn.LayerNorm(D)})
        self.lm_head = nn.Linear(D, 11, bias=False)
        self.lm_head.weight = self.transformer["wte"].weight

    def forward(self, x):
        t = self.transformer
        h = t["wte"](x) + t["wpe"](torch.arange(x.shape[1], device=x.device)[None])
        for block in t["h"]:
            h = block(h)
        return self.lm_head(t["ln_f"](h))


class Grouped(nn.Module):
    """group norms and PReLU, whose vectors are folded to [C,1,1]; a block of nested Sequentials"""
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(2, D, 3, padding=1), nn.GroupNorm(2, D), nn.SiLU())
        self.body = nn.Sequential(nn.Sequential(nn.Conv2d(D, D, 1, bias=False), nn.GroupNorm(2, D)), nn.Sequential(nn.PReLU(D)))
        self.head = nn.Linear(D, 3)

    def forward(self, x):
        return self.head(self.body(self.stem(x)).mean((2, 3)))


class Scaled(nn.Module):
    """parameters that are 1 beside constants that are 1, norms of one's own, and a matrix that is read twice"""
    class Norm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(D))

        def forward(self, x):
            return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = Scaled.Norm()
            self.up = nn.Linear(D, D)
            self.gamma = nn.Parameter(torch.ones(D))

        def forward(self, x):
            return x + self.gamma * self.up(self.norm(x))

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.blocks = nn.ModuleList([Scaled.Block(), Scaled.Block()])
        self.mix = nn.Linear(D, D, bias=False)
        self.norm = Scaled.Norm()
        self.head = nn.Linear(D, 4)

    def forward(self, x):
        h = torch.tanh(x) * self.scale + 1.0
        for block in self.blocks:
            h = self.mix(block(h))
        return self.head(self.norm(h) * torch.ones(D))


class Cells(nn.Module):
    """a recurrence from zeros: dynamo's optimizer makes the first step a constant, its bias in every row"""
    def __init__(self):
        super().__init__()
        self.read = nn.Linear(D, 5)
        self.turn = nn.Linear(5, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x):
        h = torch.zeros(1, 5, dtype=x.dtype)
        for t in range(x.shape[1]):
            h = torch.tanh(self.read(x[:, t]) + self.turn(h))
        return self.head(h)


class Recurrent(nn.Module):
    """recurrent layers, whose matrices and biases ONNX packs, with its gates in another order"""
    class Inner(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.GRU(6, 4, num_layers=2, bias=False, batch_first=True)
            self.second = nn.GRU(4, 3, batch_first=True)

        def forward(self, x):
            return self.second(self.first(x)[0])[0]

    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(D, 3, num_layers=2, bidirectional=True, batch_first=True)
        self.inner = Recurrent.Inner()
        self.rnn = nn.RNN(3, 3, batch_first=True)
        self.head = nn.Linear(3, 4)

    def forward(self, x):
        return self.head(self.rnn(self.inner(self.lstm(x)[0]))[0])


def inputs(name):
    r = np.random.default_rng(7)
    if name == "tied":
        return r.integers(0, 11, (4, 6)), r.integers(0, 11, (4, 6))
    if name == "grouped":
        return r.normal(size=(4, 2, 5, 5)).astype(np.float32), r.integers(0, 3, 4)
    if name == "cells":
        return r.normal(size=(4, 3, D)).astype(np.float32), r.integers(0, 3, 4)
    return r.normal(size=(4, 6, D)).astype(np.float32), r.integers(0, {"copied": 5, "scaled": 4, "recurrent": 4}[name], (4, 6))


LOST = {"scaled": ["scale"]}  # a scale of 1
MODULES = {"copied": Copied, "tied": Tied, "grouped": Grouped, "scaled": Scaled, "cells": Cells, "recurrent": Recurrent}


def step(model, x, labels):
    """The parameters after one step, computed in float64."""
    model = model.double()
    x = torch.tensor(x)
    y = model(x if x.dtype == torch.int64 else x.double())
    loss = F.cross_entropy(y.reshape(-1, y.shape[-1]), torch.tensor(labels).reshape(-1))
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= 0.5 * p.grad
    return {k: p.detach().float().contiguous() for k, p in model.named_parameters()}


def make(name, folder):
    torch.manual_seed(0)
    model, (x, labels) = MODULES[name](), inputs(name)
    folder.mkdir(parents=True, exist_ok=True)
    np.save(folder / "x.npy", x)
    np.save(folder / "labels.npy", labels)
    free = {0: torch.export.Dim("batch", min=2, max=64)}
    if name == "tied":
        free[1] = torch.export.Dim("sequence", min=2, max=9)
    model.eval()
    torch.onnx.export(model, (torch.tensor(x),), folder / "model_dynamo.onnx", dynamo=True, input_names=["x"], output_names=["y"],
                      dynamic_shapes=(free,), external_data=False, verbose=False)
    torch.onnx.export(model, (torch.tensor(x),), folder / "model_ts.onnx", dynamo=False, input_names=["x"], output_names=["y"],
                      dynamic_axes={"x": {a: d.__name__ for a, d in free.items()}}, opset_version=17)
    strip(folder / "model_dynamo.onnx")
    names = {}
    for key, p in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(p), []).append(key)
    (folder / "names.json").write_text(json.dumps({"tied": [n for n in names.values() if len(n) > 1], "lost": LOST.get(name, [])}) + "\n")
    save_file(step(model, x, labels), folder / "expect.safetensors")


def strip(path):
    """Without stack traces, which name files of this machine."""
    import onnx
    model = onnx.load(path)
    for node in model.graph.node:
        for p in [p for p in node.metadata_props if p.key == "pkg.torch.onnx.stack_trace"]:
            node.metadata_props.remove(p)
    onnx.save(model, path)


if __name__ == "__main__":
    for n in sys.argv[1:] or MODULES:
        make(n, Path(__file__).parent / "steps" / n)
