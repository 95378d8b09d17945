#!/usr/bin/env python3
"""PyTorch's recurrent modules as its exporters write them, beside PyTorch's own gradients in float64.

    torch_modules.py --trainc PATH [--only GLOB] [--device cpu] [--keep DIR]

Each case is a module around nn.LSTM, nn.GRU, nn.RNN or their cells in a loop; its output is a sum of all results under weights.
It is exported by torch.onnx (TorchScript and dynamo), compiled with --loss output, run for one step with --save-grads, and every
parameter's gradient is compared by its name in the state_dict: none may be off by more than 1e-5 of the largest, or four times as
far as PyTorch's in float32. Dynamo's optimizer folds the gates' order into new tensors that have no names: it is off here. Projections (proj_size) are not among
the cases: TorchScript refuses them, and dynamo leaves them out of the model.
Needs numpy, onnx, onnxscript and torch. Not run by ctest.
"""
import argparse, fnmatch, subprocess, sys, tempfile, warnings
from pathlib import Path
import numpy as np
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch_geometry import read_safetensors

warnings.filterwarnings("ignore")
CASES = {}


def weighted(*results):
    """A sum under weights that differ from element to element."""
    return sum((r * torch.sin(torch.arange(r.numel(), dtype=torch.float32).to(r.dtype) * 1.3 + 0.2).reshape(r.shape)).sum() for r in results)


class Plain(nn.Module):
    def __init__(self, rnn, with_states=False):
        super().__init__()
        self.rnn, self.with_states = rnn, with_states
        self.embed = nn.Linear(3, 4)

    def forward(self, x):
        y, last = self.rnn(self.embed(x))
        last = last if isinstance(last, tuple) else (last,)
        return weighted(y, *last)


class Given(nn.Module):
    """First states that train."""
    def __init__(self, rnn, shape):
        super().__init__()
        self.rnn = rnn
        self.h = nn.Parameter(torch.randn(shape))
        self.c = nn.Parameter(torch.randn(shape)) if isinstance(rnn, nn.LSTM) else None
        self.embed = nn.Linear(3, 4)

    def forward(self, x):
        y, last = self.rnn(self.embed(x), self.h if self.c is None else (self.h, self.c))
        return weighted(y, *(last if isinstance(last, tuple) else (last,)))


class Packed(nn.Module):
    def __init__(self, rnn):
        super().__init__()
        self.rnn = rnn
        self.embed = nn.Linear(3, 4)

    def forward(self, x, lengths):
        packed = pack_padded_sequence(self.embed(x), lengths, batch_first=self.rnn.batch_first, enforce_sorted=False)
        y, last = self.rnn(packed)
        y, _ = pad_packed_sequence(y, batch_first=self.rnn.batch_first, total_length=5)
        return weighted(y, *(last if isinstance(last, tuple) else (last,)))


class Cells(nn.Module):
    """A cell in a Python loop."""
    def __init__(self, cell):
        super().__init__()
        self.cell = cell
        self.embed = nn.Linear(3, 4)

    def forward(self, x):
        x = self.embed(x)
        h = c = x.new_zeros(x.shape[1], self.cell.hidden_size)
        ys = []
        for step in x:
            if isinstance(self.cell, nn.LSTMCell):
                h, c = self.cell(step, (h, c))
            else:
                h = self.cell(step, h)
            ys.append(h)
        return weighted(torch.stack(ys))


class Scripted(nn.Module):
    """A loop that TorchScript keeps: ONNX's Loop."""
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(3, 4) * 0.5)
        self.u = nn.Parameter(torch.randn(4, 4) * 0.5)
        self.h = nn.Parameter(torch.randn(2, 4))

    def forward(self, x):
        h = self.h
        for i in range(x.size(0)):
            h = torch.tanh(torch.matmul(x[i], self.w) + torch.matmul(h, self.u))
        return (h * h * h).sum()


class Appended(Scripted):
    """The same with a list, which is a sequence in ONNX."""
    def __init__(self, axis: int, joins: bool):
        super().__init__()
        self.axis, self.joins = axis, joins

    def forward(self, x):
        h = self.h
        ys = [h] if self.joins else []
        for i in range(x.size(0)):
            h = torch.tanh(torch.matmul(x[i], self.w) + torch.matmul(h, self.u))
            ys.append(h)
        y = torch.cat(ys, self.axis) if self.joins else torch.stack(ys, self.axis)
        return (torch.sin(y * 3) * y.transpose(0, -1).reshape(y.shape)).sum()


def add_cases():
    for name, make in (("lstm", nn.LSTM), ("gru", nn.GRU), ("rnn", nn.RNN)):
        CASES[f"{name}"] = lambda m=make: (Plain(m(4, 5)), (torch.randn(5, 2, 3),))
        CASES[f"{name}_batch_first"] = lambda m=make: (Plain(m(4, 5, batch_first=True)), (torch.randn(2, 5, 3),))
        CASES[f"{name}_bidirectional"] = lambda m=make: (Plain(m(4, 5, bidirectional=True)), (torch.randn(5, 2, 3),))
        CASES[f"{name}_layers"] = lambda m=make: (Plain(m(4, 5, num_layers=3, bidirectional=True, batch_first=True)), (torch.randn(2, 5, 3),))
        CASES[f"{name}_no_bias"] = lambda m=make: (Plain(m(4, 5, num_layers=2, bias=False)), (torch.randn(5, 2, 3),))
        CASES[f"{name}_states"] = lambda m=make: (Given(m(4, 5, num_layers=2, bidirectional=True), (4, 2, 5)), (torch.randn(5, 2, 3),))
        for both in (False, True):
            CASES[f"{name}_packed{'_bidirectional' * both}"] = lambda m=make, b=both: (
                Packed(m(4, 5, bidirectional=b, batch_first=True)), (torch.randn(3, 5, 3), torch.tensor([3, 5, 2])))
    CASES["rnn_relu"] = lambda: (Plain(nn.RNN(4, 5, nonlinearity="relu", num_layers=2)), (torch.randn(5, 2, 3),))
    for name, make in (("lstm", nn.LSTMCell), ("gru", nn.GRUCell), ("rnn", nn.RNNCell)):
        CASES[f"{name}_cells"] = lambda m=make: (Cells(m(4, 5)), (torch.randn(5, 2, 3),))
    for axis in (0, 1, 2):
        CASES[f"appended_{axis}"] = lambda a=axis: (torch.jit.script(Appended(a, False)), (torch.randn(6, 2, 3),))
    for axis in (0, 1):
        CASES[f"joined_{axis}"] = lambda a=axis: (torch.jit.script(Appended(a, True)), (torch.randn(6, 2, 3),))
    CASES["scripted"] = lambda: (torch.jit.script(Scripted()), (torch.randn(6, 2, 3),))


def gradients(module, inputs, dtype):
    module.to(dtype).zero_grad()
    module(*[x.to(dtype) if x.is_floating_point() else x for x in inputs]).backward()
    grads = {n: np.zeros(p.shape) if p.grad is None else p.grad.double().numpy() for n, p in module.named_parameters()}
    module.float()
    return grads


def truth(module, inputs):
    """{parameter: (gradient, how far off PyTorch itself is in float32)}"""
    single, double = gradients(module, inputs, torch.float32), gradients(module, inputs, torch.float64)
    return {n: (g, np.abs(g - single[n]).max()) for n, g in double.items()}


def export(module, inputs, path, exporter):
    names = ["x", "lengths"][:len(inputs)]
    if exporter == "dynamo":
        torch.onnx.export(module, inputs, path, input_names=names, output_names=["loss"], dynamo=True, optimize=False, verbose=False)
    else:
        torch.onnx.export(module, inputs, path, input_names=names, output_names=["loss"], dynamo=False, opset_version=17,
                          training=torch.onnx.TrainingMode.TRAINING, do_constant_folding=False)


def step(trainc, folder, inputs, device):
    data = []
    for name, x in zip(("x", "lengths"), inputs):
        np.save(folder / f"{name}.npy", x.numpy())
        data += ["--data", f"{name}={folder}/{name}.npy"]
    for command in ([trainc, folder / "model.onnx", "-o", folder / "step", "--loss", "output"],
                    [trainc, "run", folder / "step", *data, "--steps", "1", "--device", device, "--save-grads", folder / "grads.safetensors"]):
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(" ".join((done.stdout + done.stderr).split())[:600])
    return read_safetensors(folder / "grads.safetensors")


def compare(found, want):
    for name, (grad, own) in want.items():
        got = found.get(name)
        if got is None or got.shape != grad.shape:
            return f"{name} is missing; there are {', '.join(sorted(found))}"
        error, scale = np.abs(got - grad).max(), max(np.abs(grad).max(), 1e-3)
        if error > max(1e-5 * scale, 4 * own):
            return f"{name}: off by {error:.3g}, the largest is {scale:.3g}"
    return None


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--trainc", required=True)
    p.add_argument("--only", default="*")
    p.add_argument("--device", default="cpu")
    p.add_argument("--keep")
    a = p.parse_args()
    add_cases()
    counts = {"agree": 0, "differ": 0, "not exported": 0}
    with tempfile.TemporaryDirectory() as temp:
        for name, make in CASES.items():
            for exporter in ("torchscript", "dynamo"):
                if not fnmatch.fnmatch(f"{name}.{exporter}", a.only):
                    continue
                torch.manual_seed(5)
                module, inputs = make()
                folder = Path(a.keep or temp) / f"{name}.{exporter}"
                folder.mkdir(parents=True, exist_ok=True)
                want = truth(module, inputs)
                try:
                    export(module, inputs, folder / "model.onnx", exporter)
                except Exception as e:             # the exporter's own limits
                    counts["not exported"] += 1
                    print(f"{name}.{exporter}: not exported: {str(e).splitlines()[0][:150]}")
                    continue
                try:
                    fault = compare(step(a.trainc, folder, inputs, a.device), want)
                except RuntimeError as e:
                    fault = str(e)
                counts["differ" if fault else "agree"] += 1
                if fault:
                    print(f"{name}.{exporter}: {fault}")
    print(", ".join(f"{n} {what}" for what, n in counts.items()))
    return counts["differ"] > 0


if __name__ == "__main__":
    sys.exit(main())
