#!/usr/bin/env python3
"""make_options.py - writes the cases whose subject is an option of the compiler: --set, a loss on an inner tensor, dimensions
without names, --batch-dim, --batchnorm, --bn-variance. Needs torch, onnx and numpy; the cases are in the repository.

    python tests/cases/make_options.py [FOLDER]

Plain SGD, some steps, in float64; gradients and parameters as README.md says, with the floors of its tolerances.
"""
import copy, json, logging, sys, warnings
from pathlib import Path

import numpy as np
import onnx
import torch
import torch.nn as nn
import torch.nn.functional as F

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
ROOT = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
LR = 0.05


def safetensors(path, tensors):
    head, at, blobs = {}, 0, []
    for name, t in tensors.items():
        raw = np.ascontiguousarray(t.detach().numpy().astype(np.float32)).tobytes()
        head[name] = {"dtype": "F32", "shape": list(t.shape), "data_offsets": [at, at + len(raw)]}
        at += len(raw)
        blobs.append(raw)
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def train(model, loss_of, steps, batch, rows):
    """Losses, norms, first gradients, last parameters, of SGD in float64."""
    model = copy.deepcopy(model).double()
    losses, norms, first = [], [], None
    for s in range(steps):
        model.zero_grad()
        loss = loss_of(model, [(s * batch + i) % rows for i in range(batch)])
        loss.backward()
        grads = {k: p.grad.clone() for k, p in model.named_parameters()}
        first = first or grads
        losses.append(loss.item())
        norms.append(sum(g.square().sum() for g in grads.values()).sqrt().item())
        with torch.no_grad():
            for p in model.parameters():
                p -= LR * p.grad
    kept = dict(model.named_parameters())
    kept.update({k: b for k, b in model.named_buffers() if b.is_floating_point()})
    return losses, norms, first, kept


def write(name, why, made, model, data, options, loss_of, steps, batch, rows):
    folder = ROOT / name
    (folder / "expect").mkdir(parents=True, exist_ok=True)
    before = {k: v.double() for k, v in model.state_dict().items()}
    losses, norms, grads, params = train(model, loss_of, steps, batch, rows)
    for k, v in data.items():
        np.save(folder / f"{k}.npy", v.numpy())
    safetensors(folder / "expect/grads.safetensors", grads)
    safetensors(folder / "expect/params.safetensors", params)
    json.dump({"loss": losses, "grad_norm": norms, "lr": [LR] * steps}, open(folder / "expect/losses.json", "w"), indent=1)
    whole = norms[0]
    n = sum(g.numel() for g in grads.values())

    def entry(norm, floor):
        return {"norm": float(f"{norm:.3g}"), "err": 0.0, "tol": float(f"{max(1e-5 * norm, floor):.3g}")}

    gradient = {k: entry(g.norm().item(), 1e-6 * whole * (g.numel() / n) ** 0.5) for k, g in grads.items()}
    update = {k: entry((p - before[k]).norm().item(), 3e-7 * steps * p.norm().item() + LR * steps * gradient.get(k, {"tol": 0})["tol"])
              for k, p in params.items()}
    case = {"why": why, "made": made, "forward": {"engine": "none", "rel_err": 0}, "precision": "fp32", "compile": options,
            "run": [w for k in data for w in ("--data", f"{k}={k}.npy")] + ["--steps", str(steps), "--lr", str(LR)],
            "expect": {"exit": 0, "factor": 4.0, "loss": {"err": 0.0, "tol": float(f"{2e-6 * max(losses):.3g}")},
                       "grad_norm": {"err": 0.0, "tol": 1e-05}, "grads": gradient, "params": update}}
    json.dump(case, open(folder / "case.json", "w"), indent=2)


def dynamo(model, args, path, **options):
    torch.onnx.export(model, args, str(path), dynamo=True, optimize=False, verbose=False, external_data=False, **options)


class TimeFirst(nn.Module):
    """[time, samples, features] -> probabilities: a loss needs the tensor before the softmax."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(5, 7), nn.Linear(7, 4)

    def forward(self, x):
        return torch.softmax(self.b(torch.tanh(self.a(x)).mean(0)), -1)

    def logits(self, x):
        return self.b(torch.tanh(self.a(x)).mean(0))


def inner_time_first():
    torch.manual_seed(5)
    model, x, y = TimeFirst(), torch.randn(12, 3, 5), torch.randint(0, 4, (12,))
    path = ROOT / "inner_time_first"
    path.mkdir(exist_ok=True)
    torch.onnx.export(model, (torch.randn(3, 6, 5),), str(path / "model.onnx"), dynamo=False, do_constant_folding=False,
                      training=torch.onnx.TrainingMode.TRAINING, input_names=["x"], output_names=["probabilities"],
                      dynamic_axes={"x": {0: "t", 1: "n"}})
    m = onnx.load(path / "model.onnx")
    inner = next(n.input[0] for n in m.graph.node if n.op_type == "Softmax")
    for value in list(m.graph.input) + list(m.graph.output):
        for d in value.type.tensor_type.shape.dim:
            if d.dim_param:
                d.ClearField("dim_param")
    onnx.save(m, path / "model.onnx")
    xd = x.double()
    write("inner_time_first", "samples on the second axis, no dimension has a name, and the loss reads the tensor before a softmax; "
          "data files have samples first all the same", "torch.onnx.export(dynamo=False), dimensions' names removed", model,
          {"x": x, "labels": y},
          ["--dim", "x[0]=3,x[1]=6", "--batch-dim", "x[1]", "--micro-batch", "3", "--loss", f"cross_entropy:{inner}", "--optimizer", "sgd"],
          lambda net, at: F.cross_entropy(net.logits(xd[at].transpose(0, 1)), y[at]), 4, 6, 12)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(5, 3)

    def forward(self, x, scale, offset):
        return self.f(x) * scale + offset


def set_inputs():
    torch.manual_seed(6)
    model, x, t = Scaled(), torch.randn(8, 5), torch.randn(8, 3)
    scale, offset = torch.tensor(2.5), torch.tensor([1.0, -2.0, 3.0])
    path = ROOT / "set_inputs"
    path.mkdir(exist_ok=True)
    dynamo(model, (x, scale, offset), path / "model.onnx", input_names=["x", "scale", "offset"], output_names=["y"],
           dynamic_shapes=({0: torch.export.Dim("batch")}, None, None))
    np.save(path / "offset.npy", offset.numpy())
    xd, td = x.double(), t.double()
    write("set_inputs", "two inputs are constants of the step: a number, and a data file", "torch.onnx.export(dynamo=True, optimize=False)",
          model, {"x": x, "labels": t}, ["--set", "scale=2.5", "--set", "offset=offset.npy", "--batch", "4", "--loss", "mse", "--optimizer", "sgd"],
          lambda net, at: F.mse_loss(net(xd[at], scale.double(), offset.double()), td[at]), 4, 4, 8)


class Norms(nn.Module):
    def __init__(self, unbiased):
        super().__init__()
        self.c, self.bn, self.f = nn.Conv2d(2, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4), nn.Linear(4, 3)
        self.unbiased = unbiased

    def forward(self, x):
        h = self.c(x)
        if self.unbiased or not self.training:
            h = self.bn(h)
        else:  # as ONNX says it: the variance of the population is what is kept
            with torch.no_grad():
                self.bn.running_mean.lerp_(h.mean((0, 2, 3)), 0.1)
                self.bn.running_var.lerp_(h.var((0, 2, 3), unbiased=False), 0.1)
            h = F.batch_norm(h, None, None, self.bn.weight, self.bn.bias, True, eps=self.bn.eps)
        return self.f(F.relu(h).mean((2, 3)))


def norms(name, unbiased, options):
    torch.manual_seed(7)
    model, x, y = Norms(unbiased), torch.randn(12, 2, 5, 5), torch.randint(0, 3, (12,))
    model.bn.running_mean.normal_(0, 0.3)
    model.bn.running_var.uniform_(0.5, 1.5)
    path = ROOT / name
    path.mkdir(exist_ok=True)
    dynamo(copy.deepcopy(model).eval(), (x[:6],), path / "model.onnx", input_names=["x"], output_names=["logits"],
           dynamic_shapes=({0: torch.export.Dim("batch")},))
    xd = x.double()
    model.train()
    write(name, "an inference export trains with batch statistics; running variance " + ("unbiased" if unbiased else "of the population"),
          "torch.onnx.export(dynamo=True, optimize=False), evaluation mode", model, {"x": x, "labels": y},
          ["--dim", "batch=6", "--micro-batch", "6", "--loss", "cross_entropy", "--optimizer", "sgd", "--batchnorm", "train"] + options,
          lambda net, at: F.cross_entropy(net(xd[at]), y[at]), 4, 6, 12)


inner_time_first()
set_inputs()
norms("batchnorm_train", True, [])
norms("batchnorm_train_onnx", False, ["--bn-variance", "onnx"])
