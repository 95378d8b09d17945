#!/usr/bin/env python3
"""LSTM, GRU, RNN, Scan and Loop beside PyTorch in float64: results and gradients.

    torch_recurrent.py --trainc PATH [--only GLOB] [--device cpu] [--keep DIR]
    torch_recurrent.py --write FILE.onnx

As torch_geometry.py, with all results of a node under weights. The functions here are the formulas of the ONNX specification, step by
step and sample by sample, in PyTorch; nn.LSTM, nn.GRU and nn.RNN are what torch_modules.py compares.
--write makes the file that tests/frontend/recurrent.c reads.
Needs numpy, onnx and torch. Not run by ctest.
"""
import sys
from pathlib import Path
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
import torch
import torch.nn.functional as F
import torch_geometry as t
from torch_geometry import Fixed, case, numbers

I32, I64, FLOAT, BOOL = TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL


class Fed:
    """Integers that are known at run time only: made from the input."""
    def __init__(self, array):
        self.array = np.asarray(array)


# ---------------------------------------------------------------- the specification

def activation(name, alpha=None, beta=None):
    a = lambda d: d if alpha is None else float(np.float32(alpha))
    b = lambda d: d if beta is None else float(np.float32(beta))
    return {
        "Sigmoid": torch.sigmoid, "Tanh": torch.tanh, "Relu": torch.relu,
        "Affine": lambda x: a(1) * x + b(0), "LeakyRelu": lambda x: torch.where(x < 0, a(0.01) * x, x),
        "ThresholdedRelu": lambda x: torch.where(x > a(1), x, torch.zeros_like(x)),
        "ScaledTanh": lambda x: a(1) * torch.tanh(b(1) * x),
        "HardSigmoid": lambda x: torch.clamp(a(float(np.float32(0.2))) * x + b(0.5), 0, 1),
        "Elu": lambda x: torch.where(x < 0, a(1) * torch.expm1(torch.clamp(x, max=0)), x),
        "Softsign": lambda x: x / (1 + x.abs()), "Softplus": F.softplus}[name]


def cell(kind, x, h, c, w, r, wb, rb, p, f, clip, couple, linear):
    """One sample, one step: the next h and c."""
    n = h.shape[0]
    cut = (lambda v: v) if not clip else lambda v: torch.clamp(v, -clip, clip)
    part = lambda m, i: m[i * n:(i + 1) * n]
    gate = lambda i: part(w, i) @ x + part(wb, i) + part(r, i) @ h + part(rb, i)
    if kind == "RNN":
        return f[0](cut(gate(0))), c
    if kind == "GRU":
        z, reset = f[0](cut(gate(0))), f[0](cut(gate(1)))
        inner = part(r, 2) @ h + part(rb, 2) if linear else part(r, 2) @ (reset * h) + part(rb, 2)
        new = f[1](cut(part(w, 2) @ x + part(wb, 2) + (reset * inner if linear else inner)))
        return (1 - z) * new + z * h, c
    i = f[0](cut(gate(0) + part(p, 0) * c))
    forget = 1 - i if couple else f[0](cut(gate(2) + part(p, 2) * c))
    c = forget * c + i * f[1](cut(gate(3)))
    o = f[0](cut(gate(1) + part(p, 1) * c))
    return o * f[2](cut(c)), c


def recurrent(kind, x, w, r, b=None, lens=None, h0=None, c0=None, p=None, direction="forward", functions=None, clip=0,
              input_forget=0, linear_before_reset=0, layout=0):
    gates, per = {"RNN": (1, 1), "GRU": (3, 2), "LSTM": (4, 3)}[kind]
    d, n = r.shape[0], r.shape[2]
    if layout:
        x = x.transpose(0, 1)
        h0, c0 = (None if v is None else v.transpose(0, 1) for v in (h0, c0))
    steps, batch = x.shape[:2]
    zeros = x.new_zeros
    b = zeros(d, 2 * gates * n) if b is None else b
    p = zeros(d, 3 * n) if p is None else p
    h0 = zeros(d, batch, n) if h0 is None else h0
    c0 = zeros(d, batch, n) if c0 is None else c0
    functions = functions or [torch.sigmoid, torch.tanh, torch.tanh][3 - per if kind == "RNN" else 0:][:per] * d
    if kind == "RNN" and len(functions) != d:
        functions = [torch.tanh] * d
    ys, hs, cs = [], [], []
    for k in range(d):
        backwards = direction == "reverse" or k == 1
        for s in range(batch):
            length = steps if lens is None else min(int(lens[s]), steps)
            h, c = h0[k, s], c0[k, s]
            y = [zeros(n) for _ in range(steps)]
            for step in (reversed(range(length)) if backwards else range(length)):
                h, c = cell(kind, x[step, s], h, c, w[k], r[k], b[k, :gates * n], b[k, gates * n:], p[k],
                            functions[k * per:(k + 1) * per], clip, input_forget, linear_before_reset)
                y[step] = h
            ys.append(torch.stack(y)), hs.append(h), cs.append(c)
    y = torch.stack(ys).reshape(d, batch, steps, n).permute(2, 0, 1, 3)
    states = [torch.stack(v).reshape(d, batch, n) for v in ((hs, cs) if kind == "LSTM" else (hs,))]
    if layout:
        y, states = y.permute(2, 0, 1, 3), [v.transpose(0, 1) for v in states]
    return [y, *states]


# ---------------------------------------------------------------- LSTM, GRU, RNN

GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}


def add(name, kind, steps=4, batch=3, inputs=3, n=2, direction="forward", layout=0, bias=True, lens=None, initial=True,
        peephole=False, activations=None, alphas=None, betas=None, opset=22, **attributes):
    d, g = 2 if direction == "bidirectional" else 1, GATES[kind]
    state = (batch, d, n) if layout else (d, batch, n)
    x = numbers(*((batch, steps, inputs) if layout else (steps, batch, inputs)))
    values = [x, numbers(d, g * n, inputs), numbers(d, g * n, n), numbers(d, 2 * g * n) if bias else None, lens,
              numbers(*state) if initial else None]
    if kind == "LSTM":
        values += [numbers(*state) if initial else None, numbers(d, 3 * n) if peephole else None]
    onnx_attributes = dict(attributes, hidden_size=n, direction=direction)
    if layout:
        onnx_attributes["layout"] = 1
    functions = None
    if activations:
        onnx_attributes["activations"] = activations
        names = list(activations)
        a, b = iter(alphas or []), iter(betas or [])
        with_alpha = ("Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu")
        with_beta = ("Affine", "ScaledTanh", "HardSigmoid")
        functions = [activation(f, next(a, None) if f in with_alpha else None, next(b, None) if f in with_beta else None) for f in names]
        if alphas:
            onnx_attributes["activation_alpha"] = alphas
        if betas:
            onnx_attributes["activation_beta"] = betas
    present = [v is not None for v in values]

    def function(*given):
        it = iter(given)
        v = [next(it) if there else None for there in present]
        names = ("x", "w", "r", "b", "lens", "h0", "c0", "p")
        return recurrent(kind, **dict(zip(names, v)), direction=direction, functions=functions, layout=layout, **attributes)

    while values and values[-1] is None:
        values.pop()
    case(name, kind, values, function, opset, 3 if kind == "LSTM" else 2, **onnx_attributes)


def recurrent_cases():
    for kind in GATES:
        k = kind.lower()
        for direction in ("forward", "reverse", "bidirectional"):
            add(f"{k}_{direction}", kind, direction=direction)
            add(f"{k}_{direction}_layout", kind, direction=direction, layout=1)
            for what, lens in (("known", Fixed(np.array([2, 4, 1], np.int32))), ("fed", Fed(np.array([3, 0, 4], np.int32)))):
                add(f"{k}_{direction}_{what}", kind, direction=direction, lens=lens)
            add(f"{k}_{direction}_fed_layout", kind, direction=direction, lens=Fed(np.array([1, 4, 2], np.int32)), layout=1)
        add(f"{k}_full", kind, lens=Fixed(np.array([4, 4, 4], np.int32)), direction="reverse")
        add(f"{k}_plain", kind, bias=False, initial=False)
        add(f"{k}_no_bias", kind, bias=False, direction="bidirectional")
        add(f"{k}_one_step", kind, steps=1, direction="bidirectional")
        add(f"{k}_7", kind, opset=7)
        add(f"{k}_14", kind, opset=14, layout=1)
        add(f"{k}_clip", kind, clip=0.5, direction="bidirectional")
    for direction in ("forward", "bidirectional"):
        add(f"lstm_peephole_{direction}", "LSTM", peephole=True, direction=direction, lens=Fixed(np.array([2, 4, 3], np.int32)))
        add(f"gru_linear_{direction}", "GRU", linear_before_reset=1, direction=direction)
        add(f"gru_linear_{direction}_fed", "GRU", linear_before_reset=1, direction=direction, lens=Fed(np.array([2, 4, 3], np.int32)))
    add("gru_linear_plain", "GRU", linear_before_reset=1, bias=False)
    add("gru_linear_clip", "GRU", linear_before_reset=1, clip=0.4)
    add("lstm_coupled", "LSTM", input_forget=1)
    add("lstm_coupled_peephole", "LSTM", input_forget=1, peephole=True, clip=1.5)
    simple = ("Sigmoid", "Tanh", "Relu", "Affine", "LeakyRelu", "ThresholdedRelu", "ScaledTanh", "HardSigmoid", "Elu", "Softsign", "Softplus")
    for f in simple:
        add(f"rnn_{f}", "RNN", activations=[f])
        add(f"gru_{f}", "GRU", activations=["Sigmoid", f])
    for f, alpha, beta in (("Affine", 0.5, 0.1), ("LeakyRelu", 0.3, None), ("ThresholdedRelu", 0.2, None), ("ScaledTanh", 0.7, 0.4),
                           ("HardSigmoid", 0.3, 0.4), ("Elu", 0.6, None)):
        add(f"rnn_{f}_set", "RNN", activations=[f], alphas=[alpha], betas=beta and [beta])
    add("lstm_functions", "LSTM", direction="bidirectional", activations=["HardSigmoid", "Elu", "Tanh", "Sigmoid", "LeakyRelu", "ScaledTanh"],
        alphas=[0.3, 0.7, 0.2, 1.2], betas=[0.45, 0.8])


# ---------------------------------------------------------------- Scan and Loop

def info(name, dims, dtype=FLOAT):
    return helper.make_tensor_value_info(name, dtype, dims)


def constant(name, value):
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(value)))


def node(op, inputs, outputs, **attributes):
    return helper.make_node(op, inputs, outputs, **attributes)


def graph(nodes, inputs, outputs):
    return helper.make_graph(nodes, "body", inputs, outputs)


def scan_body():
    """s' = tanh(s + a * b), y = s' * a, z = s - b; per step a, b, s of three numbers"""
    return graph([node("Mul", ["a", "b"], ["ab"]), node("Add", ["s", "ab"], ["sum"]), node("Tanh", ["sum"], ["s2"]),
                  node("Mul", ["s2", "a"], ["y"]), node("Sub", ["s", "b"], ["z"])],
                 [info(n, [3]) for n in "sab"], [info(n, [3]) for n in ("s2", "y", "z")])


def scan_reference(s, a, b, in_directions=(0, 0), out_directions=(0, 0)):
    a, b = (v.flip(0) if back else v for v, back in zip((a, b), in_directions))
    ys, zs = [], []
    for i in range(a.shape[0]):
        n = torch.tanh(s + a[i] * b[i])
        ys.append(n * a[i]), zs.append(s - b[i])
        s = n
    y, z = (torch.stack(v[::-1] if back else v) for v, back in zip((ys, zs), out_directions))
    return s, y, z


def scan_cases():
    for ins in ((0, 0), (1, 0), (1, 1)):
        for outs in ((0, 0), (0, 1), (1, 1)):
            name = "scan_" + "".join(map(str, ins + outs))
            case(name, "Scan", [numbers(3), numbers(4, 3), numbers(4, 3)], lambda s, a, b, i=ins, o=outs: scan_reference(s, a, b, i, o),
                 22, 3, body=scan_body(), num_scan_inputs=2, scan_input_directions=ins, scan_output_directions=outs)
    case("scan_axes", "Scan", [numbers(3), numbers(3, 5), numbers(5, 3)],
         lambda s, a, b: (lambda v: (v[0], v[1].T, v[2]))(scan_reference(s, a.T, b)), 11, 3,
         body=scan_body(), num_scan_inputs=2, scan_input_axes=[1, -2], scan_output_axes=[-1, 0])
    case("scan_9", "Scan", [numbers(3), numbers(2, 3), numbers(2, 3)], scan_reference, 9, 3, body=scan_body(), num_scan_inputs=2)

    def batch(s, a, b, back=0):
        parts = [scan_reference(s[i], a[i], b[i], (back, back)) for i in range(s.shape[0])]
        return [torch.stack(v) for v in zip(*parts)]
    case("scan_8", "Scan", [None, numbers(2, 3), numbers(2, 4, 3), numbers(2, 4, 3)], batch, 8, 3, body=scan_body(), num_scan_inputs=2)
    case("scan_8_reverse", "Scan", [None, numbers(2, 3), numbers(2, 4, 3), numbers(2, 4, 3)], lambda s, a, b: batch(s, a, b, 1), 8, 3,
         body=scan_body(), num_scan_inputs=2, directions=[1, 1])

    # a scan within a scan: rows, then the numbers of a row; what is outside is read by the inner one
    inner = graph([node("Mul", ["u", "v"], ["uv"]), node("Sin", ["uv"], ["w"]), node("Add", ["w", "s"], ["u2"]), node("Identity", ["w"], ["out"])],
                  [info("u", [2]), info("v", [2])], [info("u2", [2]), info("out", [2])])
    outer = graph([node("Scan", ["s", "rows"], ["s2", "outs"], body=inner, num_scan_inputs=1), node("ReduceMean", ["outs"], ["m"], keepdims=0)],
                  [info("s", [2]), info("rows", [3, 2])], [info("s2", [2]), info("m", [])])

    def nested(s, x):
        means = []
        for rows in x:
            u, outs = s, []
            for v in rows:
                w = torch.sin(u * v)
                outs.append(w)
                u = w + s
            s = u
            means.append(torch.stack(outs).mean())
        return s, torch.stack(means)
    case("scan_nested", "Scan", [numbers(2), numbers(4, 3, 2)], nested, 22, 2, body=outer, num_scan_inputs=1)


def loop(name, values, body, function, trips, outputs, opset=22, condition=True):
    inputs = [Fixed(np.array(trips)), Fixed(np.array(condition)) if condition is not None else None, *values]
    case(name, "Loop", inputs, lambda *v: function(*v[2 if condition is not None else 1:]), opset, outputs, body=body)


def loop_body(nodes, carried, outputs):
    return graph([node("Identity", ["go"], ["go2"]), *nodes], [info("i", [], I64), info("go", [], BOOL), *carried],
                 [info("go2", [], BOOL), *outputs])


def loop_cases():
    power = loop_body([node("Mul", ["s", "f"], ["p"]), node("Cos", ["p"], ["s2"]), node("Cast", ["i"], ["fi"], to=FLOAT),
                       node("Mul", ["s2", "fi"], ["y"]), node("Identity", ["f"], ["f2"])],
                      [info("s", [3]), info("f", [3])], [info("s2", [3]), info("f2", [3]), info("y", [3])])

    def powers(trips):
        def run(s, f):
            ys = []
            for i in range(trips):
                s = torch.cos(s * f)
                ys.append(s * i)
            return s, f, torch.stack(ys) if ys else s.new_zeros(0, 3)
        return run
    for trips in (1, 2, 5):
        loop(f"loop_{trips}", [numbers(3), numbers(3)], power, powers(trips), trips, 3)
    loop("loop_no_condition", [numbers(3), numbers(3)], power, powers(3), 3, 3, condition=None)
    # the carried value grows: steps are laid out
    grow = loop_body([node("Concat", ["s", "s"], ["d"], axis=0), node("Sin", ["d"], ["s2"]), node("ReduceSum", ["d"], ["y"], keepdims=0)],
                     [info("s", ["n"])], [info("s2", ["m"]), info("y", [])])

    def growing(s):
        ys = []
        for _ in range(3):
            d = torch.cat([s, s])
            ys.append(d.sum())
            s = torch.sin(d)
        return s, torch.stack(ys)
    loop("loop_grows", [numbers(2)], grow, growing, 3, 2)
    # the step's number chooses a slice
    pick = loop_body([constant("one", np.int64(1)), node("Add", ["i", "one"], ["j"]), constant("zero", np.array([0])),
                      node("Unsqueeze", ["i", "zero"], ["from"]), node("Unsqueeze", ["j", "zero"], ["to"]),
                      node("Slice", ["s", "from", "to"], ["v"]), node("Mul", ["s", "v"], ["s2"]), node("Identity", ["v"], ["y"])],
                     [info("s", [4])], [info("s2", [4]), info("y", [1])])

    def picking(s):
        ys = []
        for i in range(3):
            ys.append(s[i:i + 1])
            s = s * s[i]
        return s, torch.stack(ys)
    loop("loop_slices", [numbers(4)], pick, picking, 3, 2)
    # a condition that turns false by itself, the number of steps not given
    until = graph([constant("three", np.int64(3)), node("Less", ["i", "three"], ["go2"]), node("Exp", ["s"], ["e"]), node("Neg", ["e"], ["s2"])],
                  [info("i", [], I64), info("go", [], BOOL), info("s", [2])], [info("go2", [], BOOL), info("s2", [2])])

    def untiling(s):
        for _ in range(4):
            s = -torch.exp(s)
        return [s]
    case("loop_until", "Loop", [None, Fixed(np.array(True)), numbers(2)], lambda c, s: untiling(s), 22, 1, body=until)
    # a counter of the loop's own decides, more steps than would be laid out
    tick = graph([constant("by", np.float32(3)), node("Add", ["n", "by"], ["n2"]), constant("most", np.float32(6000)), node("Less", ["n2", "most"], ["few"]),
                  node("And", ["few", "go"], ["go2"]), node("Tanh", ["s"], ["th"]), constant("c", np.float32(0.999)), node("Mul", ["th", "c"], ["s2"])],
                 [info("i", [], I64), info("go", [], BOOL), info("n", []), info("s", [2])],
                 [info("go2", [], BOOL), info("n2", []), info("s2", [2])])

    def ticking(n, s):
        for _ in range(2000):
            s = torch.tanh(s) * float(np.float32(0.999))
        return n + 6000, s
    case("loop_counts", "Loop", [None, Fixed(np.array(True)), Fixed(np.array(0, np.float32)), numbers(2)],
         lambda c, n, s: ticking(n, s), 22, 2, body=tick)
    # a row per step by the step's number; an If and a Loop within
    then = graph([node("Sin", ["r"], ["b"])], [], [info("b", [3])])
    other = graph([node("Neg", ["r"], ["b"])], [], [info("b", [3])])
    deep = loop_body([node("Mul", ["q", "b"], ["q2"])], [info("q", [3])], [info("q2", [3])])
    choose = loop_body([node("Gather", ["s", "i"], ["r"], axis=0), constant("yes", np.array(True)),
                        node("If", ["yes"], ["b"], then_branch=then, else_branch=other), constant("two", np.int64(2)), constant("ok", np.array(True)),
                        node("Loop", ["two", "ok", "r"], ["q3"], body=deep), node("Add", ["s", "q3"], ["s2"])],
                       [info("s", [4, 3])], [info("s2", [4, 3]), info("q3", [3])])

    def choosing(s):
        ys = []
        for i in range(4):
            r = s[i]
            q = r * torch.sin(r) ** 2
            ys.append(q)
            s = s + q
        return s, torch.stack(ys)
    loop("loop_within", [numbers(4, 3) * 0.5], choose, choosing, 4, 2)


# ---------------------------------------------------------------- one model of them

def build(cases):
    """{opset: model}, and {parameter: gradient}; results under weights are summed, and compared with what they should be"""
    graphs, expected = {}, {}
    for name, op, inputs, function, opset, outputs, attributes in cases:
        g = graphs.setdefault(opset, {"nodes": [helper.make_node("ReduceMean", ["one"], ["m"], keepdims=0)], "init": [], "sums": [], "outputs": []})
        names, tensors, trained = [], [], {}
        for i, value in enumerate(inputs):
            if value is None:
                names.append("")
                continue
            array = value.array if isinstance(value, (Fixed, Fed)) else value
            key = f"{name}.{i}"
            names.append(key)
            x = torch.tensor(array.astype(np.float64) if array.dtype == np.float32 else array)
            if isinstance(value, Fixed):
                g["nodes"].append(constant(key, array))
            elif isinstance(value, Fed):
                g["nodes"] += [constant(f"{key}.k", array.astype(np.float32)), node("Mul", [f"{key}.k", "m"], [f"{key}.f"]),
                               node("Cast", [f"{key}.f"], [key], to=I32)]
            else:
                g["init"].append(numpy_helper.from_array(array, key))
                trained[key] = x.requires_grad_()
            tensors.append(x)
        results = list(function(*tensors))
        assert len(results) == outputs, name
        g["nodes"].append(helper.make_node(op, names, [f"{name}.y{i}" for i in range(outputs)], name=name, **attributes))
        total = 0
        for i, y in enumerate(results):
            weight = t.random.standard_normal(y.shape).astype(np.float32)
            total = total + (y * torch.tensor(weight.astype(np.float64))).sum()
            key = f"{name}.y{i}"
            want = y.detach().numpy().astype(np.float32)
            g["nodes"] += [constant(f"{key}.w", weight), node("Mul", [key, f"{key}.w"], [f"{key}.p"]),
                           node("ReduceSum", [f"{key}.p"], [f"{key}.s"], keepdims=0), constant(f"{key}.want", want)]
            g["sums"].append(f"{key}.s")
            g["outputs"] += [info(key, y.shape), info(f"{key}.want", y.shape)]
        total.backward()
        for key, x in trained.items():
            expected[key] = np.zeros(x.shape) if x.grad is None else x.grad.numpy()
    models = {}
    for opset, g in graphs.items():
        g["nodes"] += [node("Sum", g["sums"], ["all"]), node("Mul", ["all", "m"], ["loss"])]
        whole = helper.make_graph(g["nodes"], "recurrent", [info("one", ["batch"])], [info("loss", [])], g["init"])
        models[opset] = helper.make_model(whole, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
        OUTPUTS[opset] = g["outputs"]
    return models, expected


OUTPUTS = {}


def write(path):
    """What has opset 22, in one file, for the interpreter."""
    models, expected = build([c for c in t.CASES if c[4] == 22])
    model = models[22]
    for i in model.graph.initializer:
        gradient = expected[i.name].astype(np.float32)
        model.graph.node.append(constant(f"{i.name}.grad", gradient))
        model.graph.output.append(info(f"{i.name}.grad", gradient.shape))
    model.graph.output.extend(OUTPUTS[22])
    onnx.save(model, path)
    print(f"{len(model.graph.initializer)} gradients, {Path(path).stat().st_size} bytes")


def main():
    t.__doc__ = __doc__
    t.random = np.random.default_rng(11)
    t.CASES.clear()
    t.build = build
    t.write = write
    t.families = (recurrent_cases, scan_cases, loop_cases)
    return t.main()


if __name__ == "__main__":
    sys.exit(main())
