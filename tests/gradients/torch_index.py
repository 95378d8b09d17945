#!/usr/bin/env python3
"""Gradients of operators on indices, orders, reductions and types beside PyTorch's autograd in float64.

    torch_index.py --trainc PATH [--only GLOB] [--device cpu] [--keep DIR]
    torch_index.py --write FILE.onnx

Cases and machinery are those of torch_geometry.py, and so are the options; many cases hold ties, duplicate indices and zeros on purpose.
--write makes the file that tests/frontend/ops_torch.c reads.
Needs numpy, onnx and torch. Not run by ctest.
"""
import sys
import numpy as np
import torch
import torch_geometry as t
from torch_geometry import Fixed, case, numbers, random, ties


def zeros_among(*shape):
    return (ties(*shape) - 1).astype(np.float32)


def order_cases():
    for largest in (0, 1):
        kind = "largest" if largest else "smallest"
        for name, x, k, axis in (("few", numbers(2, 40), 3, 1), ("all", numbers(3, 7), 7, 1), ("axis", numbers(5, 2, 3), 4, 0),
                                 ("one", numbers(4, 1), 1, 1), ("long", numbers(1, 2100), 600, 1)):
            case(f"topk_{kind}_{name}", "TopK", [x, Fixed(np.array([k]))],
                 lambda x, _, k=k, a=axis, l=largest: torch.topk(x, k, a, bool(l))[0], outputs=2, axis=axis, largest=largest)

        def stable(x, _, k, l):    # of equals the first, as ONNX has it
            return torch.sort(x, dim=1, descending=bool(l), stable=True)[0][:, :k]
        for name, x, k in (("few", ties(2, 40), 9), ("counted", ties(3, 9), 5)):
            case(f"topk_{kind}_ties_{name}", "TopK", [x, Fixed(np.array([k]))], lambda x, _, k=k, l=largest: stable(x, _, k, l),
                 outputs=2, axis=1, largest=largest)
    lengths = np.array([2, 5, 0])
    case("reverse_sequence", "ReverseSequence", [numbers(5, 3, 2), Fixed(lengths)],
         lambda x, l: torch.stack([torch.cat([x[:n, b].flip(0), x[n:, b]]) for b, n in enumerate(l.tolist())], 1))
    for exclusive in (0, 1):
        for reverse in (0, 1):
            def running(x, _, e=exclusive, r=reverse, f=torch.cumsum, start=0.0):
                x = x.flip(1) if r else x
                y = f(x, 1)
                if e:
                    y = torch.cat([torch.full_like(y[:, :1], start), y[:, :-1]], 1)
                return y.flip(1) if r else y
            case(f"cumsum_{exclusive}{reverse}", "CumSum", [numbers(2, 5, 3), Fixed(np.array(1))], running,
                 exclusive=exclusive, reverse=reverse)
            case(f"cumsum_long_{exclusive}{reverse}", "CumSum", [numbers(2, 301), Fixed(np.array(1))], running,
                 exclusive=exclusive, reverse=reverse)


def index_cases():
    x = numbers(4, 5, 3)
    rows = np.array([[0, -1], [2, 2]])
    case("gather_repeated", "Gather", [x, Fixed(rows)], lambda x, i: x[i % 4])
    case("gather_axis", "Gather", [x, Fixed(rows)], lambda x, i: x[:, i % 5], axis=1)
    at = random.integers(-4, 4, (3, 5, 2))
    case("gather_elements", "GatherElements", [x, Fixed(at)], lambda x, i: torch.gather(x, 0, i % 4))
    pairs = np.array([[0, 1], [3, -1], [0, 1]])
    case("gather_nd", "GatherND", [x, Fixed(pairs)], lambda x, i: x[i[:, 0], i[:, 1] % 5])
    case("gather_nd_batch", "GatherND", [x, Fixed(np.array([[0], [-1], [2], [2]]))],
         lambda x, i: x[torch.arange(4), i[:, 0] % 5], batch_dims=1)
    fill = {"mul": "prod", "min": "amin", "max": "amax", "add": "sum"}
    for kind in ("none", "add", "mul", "min", "max"):
        for name, base, updates in (("", numbers(4, 3), numbers(5, 3)), ("_ties", zeros_among(4, 3), zeros_among(5, 3))):
            at = np.stack([random.permutation(4)[:4] for _ in range(3)], 1) if kind == "none" else random.integers(-4, 4, (5, 3))
            updates = updates[:len(at)]

            def scattered(x, i, u, k=kind):
                return x.scatter(0, i % 4, u) if k == "none" else x.scatter_reduce(0, i % 4, u, fill[k])
            case(f"scatter_elements_{kind}{name}", "ScatterElements", [base, Fixed(at), updates], scattered, reduction=kind)
            at = np.array([[2], [0], [3]]) if kind == "none" else np.array([[2], [-2], [0], [2]])

            def rows_of(x, i, u, k=kind):
                i = (i % 4).expand(-1, 3)
                return x.scatter(0, i, u) if k == "none" else x.scatter_reduce(0, i, u, fill[k])
            case(f"scatter_nd_{kind}{name}", "ScatterND", [base, Fixed(at), updates[:len(at)]], rows_of, reduction=kind)
    case("one_hot_values", "OneHot", [Fixed(np.array([1, -1, 7, 0])), Fixed(np.array(3)), numbers(2)],
         lambda i, d, v: torch.where(torch.stack([(i + (i < 0) * 3) == k for k in range(3)], 1), v[1], v[0]))
    case("trilu", "Trilu", [numbers(2, 4, 5), Fixed(np.array(-1))], lambda x, k: torch.tril(x, -1), upper=0)
    case("tile", "Tile", [numbers(2, 3), Fixed(np.array([2, 3]))], lambda x, r: x.tile(2, 3))
    case("expand", "Expand", [numbers(2, 1, 3), Fixed(np.array([4, 1, 5, 1]))], lambda x, s: x.expand(4, 2, 5, 3))
    case("compress", "Compress", [numbers(3, 4), Fixed(np.array([True, False, True]))], lambda x, c: x[:, [0, 2]], axis=1)
    case("tensor_scatter", "TensorScatter", [numbers(2, 5, 3), numbers(2, 2, 3), Fixed(np.array([1, 3]))],
         lambda x, u, i: torch.stack([torch.cat([x[b, :n], u[b], x[b, n + 2:]]) for b, n in enumerate(i.tolist())]), opset=24)


def reduction_cases():
    axes = Fixed(np.array([1]))
    for name, x in (("", numbers(3, 4, 2)), ("_ties", zeros_among(3, 4, 2))):
        for op, f in (("ReduceMax", lambda x, a: x.amax(1, True)), ("ReduceMin", lambda x, a: x.amin(1, True)),
                      ("ReduceProd", lambda x, a: x.prod(1, True)), ("ReduceSum", lambda x, a: x.sum(1, True)),
                      ("ReduceMean", lambda x, a: x.mean(1, True)), ("ReduceL1", lambda x, a: x.abs().sum(1, True)),
                      ("ReduceSumSquare", lambda x, a: x.square().sum(1, True)),
                      ("ReduceL2", lambda x, a: torch.linalg.vector_norm(x, dim=1, keepdim=True)),
                      ("ReduceLogSumExp", lambda x, a: x.logsumexp(1, True))):
            case(f"{op}{name}", op, [x.copy(), axes], f)
    case("ReduceL2_zero", "ReduceL2", [np.zeros((2, 3), np.float32), axes], lambda x, a: torch.linalg.vector_norm(x, dim=1, keepdim=True))
    case("ReduceLogSum", "ReduceLogSum", [np.abs(numbers(3, 4)) + 0.1, axes], lambda x, a: x.sum(1, True).log())
    case("ReduceMax_all", "ReduceMax", [ties(3, 4)], lambda x: x.amax(), keepdims=0)
    case("ReduceSum_none", "ReduceSum", [numbers(3, 4)], lambda x: x + 0, noop_with_empty_axes=1)
    a, b, c = ties(3, 4), ties(4), ties(3, 1)
    case("Max_ties", "Max", [a, b], torch.maximum)
    case("Max_three", "Max", [a.copy(), b.copy(), c], lambda a, b, c: torch.maximum(torch.maximum(a, b), c))
    case("Min_ties", "Min", [a.copy(), b.copy()], torch.minimum)
    case("Mean_three", "Mean", [numbers(3, 4), numbers(4), numbers(3, 1)], lambda a, b, c: (a + b + c) / 3)
    case("Sum_three", "Sum", [numbers(3, 4), numbers(4), numbers(3, 1)], lambda a, b, c: a + b + c)


def arithmetic_cases():
    x = numbers(4, 5)
    case("pow_integer", "Pow", [zeros_among(4, 5), Fixed(np.array([2, 3, 0, 1, 5]))], lambda x, e: x ** e)
    case("pow_float", "Pow", [np.abs(x) + 0.2, numbers(5)], torch.pow)
    case("pow_of_zero", "Pow", [np.zeros(3, np.float32), np.array([2, 1, 0.5], np.float32)[:2].repeat(2)[:3].copy()], torch.pow)
    case("mod_fmod", "Mod", [x * 3, numbers(5) + 2.5], torch.fmod, fmod=1)
    case("mod_floor", "Mod", [x * 3, Fixed(np.array([2, -1.5, 0.7, -3, 1], np.float32))], torch.remainder, opset=26)
    bounds = [np.array(-1, np.float32), np.array(1, np.float32)]
    case("clip_bounds", "Clip", [zeros_among(4, 5) * 1.0] + [Fixed(b) for b in bounds], lambda x, a, b: x.clamp(-1, 1))
    case("clip_trained", "Clip", [x * 2, *[b.copy() for b in bounds]], torch.clamp)
    case("clip_low", "Clip", [zeros_among(4, 5), Fixed(bounds[0])], lambda x, a: x.clamp(min=-1))
    case("clip_crossed", "Clip", [x.copy(), Fixed(bounds[1]), Fixed(bounds[0])], lambda x, a, b: torch.clamp(x, 1, -1))
    case("abs_kink", "Abs", [zeros_among(4, 5)], torch.abs)
    case("relu_kink", "Relu", [zeros_among(4, 5)], torch.relu)
    case("sqrt", "Sqrt", [np.abs(x) + 0.1], torch.sqrt)
    case("prelu", "PRelu", [zeros_among(4, 5), numbers(5)], lambda x, s: torch.where(x > 0, x, s * x))
    case("where", "Where", [Fixed(x > 0), numbers(4, 1), numbers(5)], lambda c, a, b: torch.where(c, a, b))


def odd_values():
    """(node, {constant: array}, [what its outputs are])"""
    out = []

    def value(name, op, arrays, *wants, **attributes):
        arrays = [np.asarray(a).copy() for a in arrays]
        names = [f"{name}.{i}" for i in range(len(arrays))]
        node = t.helper.make_node(op, names, [f"{name}.y{i}" for i in range(len(wants))], name=name, **attributes)
        out.append((node, dict(zip(names, arrays)), [np.asarray(w) for w in wants]))

    x = np.array([[3, 1, 3, np.inf, 1, 3], [-np.inf, 0, -np.inf, -0.0, 0, -np.inf]], np.float32)
    for largest in (0, 1):
        order = np.argsort(-x if largest else x, 1, kind="stable")
        for k in (1, 5, 6):
            at = order[:, :k]
            value(f"topk_{largest}{k}", "TopK", [x, np.array([k])], np.take_along_axis(x, at, 1), at, largest=largest)
    for dtype in (np.int8, np.uint8, np.int64, np.uint64, np.int32, np.uint32, np.int16, np.uint16):
        least, most, name = np.iinfo(dtype).min, np.iinfo(dtype).max, np.dtype(dtype).name
        a = np.array([least, most, most - 1, 5, 7, least], dtype)
        b = np.array([1, 2, most, 3, 2, most], dtype)
        big, small = np.sort(a)[::-1][:2], np.argsort(a.astype(object), kind="stable")[:3]
        with np.errstate(over="ignore"):
            value(f"add_{name}", "Add", [a, b], a + b)
            value(f"mul_{name}", "Mul", [a, b], a * b)
            value(f"pow_{name}", "Pow", [a, np.array(5, np.int64)], a * a * a * a * a)
        value(f"div_{name}", "Div", [a, b], np.array([int(p) // int(q) if p >= 0 else -(-int(p) // int(q)) for p, q in zip(a, b)], dtype))
        value(f"mod_{name}", "Mod", [a, b], np.mod(a, b))
        value(f"less_{name}", "Less", [a, b], a < b)
        value(f"max_{name}", "ReduceMax", [a], np.max(a, keepdims=True))
        value(f"min_{name}", "ReduceMin", [a], np.min(a, keepdims=True))
        value(f"arg_{name}", "ArgMax", [a], [np.argmax(a)])
        value(f"arg_last_{name}", "ArgMin", [a], [len(a) - 1 - np.argmin(a[::-1])], select_last_index=1)
        value(f"topk_{name}", "TopK", [a, np.array([2])], big, np.argsort([-int(v) for v in a], kind="stable")[:2])
        value(f"topk_least_{name}", "TopK", [a, np.array([3])], a[small], small, largest=0)
        value(f"clip_{name}", "Clip", [a, np.array(3, dtype), np.array(most - 1, dtype)], np.clip(a, 3, most - 1))
        value(f"float_{name}", "Cast", [a], a.astype(np.float32), to=t.TensorProto.FLOAT)
        hits = np.array([0, 0, 1, 1, 0, 1])
        for kind, f in (("max", max), ("min", min)):
            want = np.array([5, 5], dtype)
            for i, v in zip(hits, a):
                want[i] = f(want[i], v)
            value(f"scatter_{kind}_{name}", "ScatterElements", [np.array([5, 5], dtype), hits, a], want, reduction=kind)
    n = np.array([1, np.nan, 7, -2], np.float32)
    value("argmax_nan", "ArgMax", [n], [1])
    value("argmin_nan", "ArgMin", [n], [1])
    value("max_nan", "ReduceMax", [n], [np.float32(np.nan)])
    value("shift_far", "BitShift", [np.array([1, 255, 3], np.uint8), np.array([7, 8, 200], np.uint8)], np.array([128, 0, 0], np.uint8), direction="LEFT")
    value("unique", "Unique", [np.array([2, 1, 1, 3, 4, 3], np.float32)], np.array([2, 1, 3, 4], np.float32), np.array([0, 1, 3, 4]),
          np.array([0, 1, 1, 2, 3, 2]), np.array([1, 2, 2, 1]), sorted=0)
    value("non_zero", "NonZero", [np.array([[1, 0], [1, 1]])], np.array([[0, 1, 1], [0, 0, 1]]))
    value("sum_nothing", "ReduceSum", [np.zeros((2, 0, 3), np.float32), np.array([1])], np.zeros((2, 1, 3), np.float32))
    value("prod_nothing", "ReduceProd", [np.zeros((2, 0), np.float32), np.array([1])], np.ones((2, 1), np.float32))
    make = t.helper.make_node
    a, b, c = (np.full(2, k, np.float32) for k in (1, 2, 3))
    for node in (make("SequenceEmpty", [], ["seq.0"]), make("SequenceInsert", ["seq.0", "seq.a"], ["seq.1"]),
                 make("SequenceInsert", ["seq.1", "seq.b"], ["seq.2"]), make("SequenceInsert", ["seq.2", "seq.c", "seq.first"], ["seq.3"]),
                 make("SequenceErase", ["seq.3", "seq.last"], ["seq.4"]), make("Optional", ["seq.4"], ["seq.5"]),
                 make("OptionalGetElement", ["seq.5"], ["seq.6"])):
        out.append((node, {"seq.a": a, "seq.b": b, "seq.c": c, "seq.first": np.array(0), "seq.last": np.array(-1)}
                    if node.op_type == "SequenceEmpty" else {}, []))
    out.append((make("ConcatFromSequence", ["seq.6"], ["seq.y0"], axis=0, new_axis=1), {}, [np.stack([c, a])]))
    out.append((make("SequenceLength", ["seq.3"], ["seq.y1"]), {}, [np.array(3)]))
    out.append((make("SequenceAt", ["seq.3", "seq.last"], ["seq.y2"]), {}, [b]))
    out.append((make("OptionalHasElement", ["seq.5"], ["seq.y3"]), {}, [np.array(True)]))
    info = [t.helper.make_tensor_value_info(n, t.TensorProto.FLOAT, [2]) for n in ("item", "same", "made")]
    body = t.helper.make_graph([make("Add", ["item", "same"], ["made"])], "body", info[:2], info[2:])
    out.append((make("SequenceMap", ["seq.3", "seq.b"], ["seq.7"], body=body), {}, []))
    out.append((make("ConcatFromSequence", ["seq.7"], ["seq.y4"], axis=0), {}, [np.concatenate([c + b, a + b, b + b])]))
    codes = torch.arange(256, dtype=torch.uint8)
    points = np.array([0, 0.3, -0.3, 1.0625, 1.1875, 17, 230, 250, 447, 460, 1e5, -1e5, 1e-4, 2 ** -9, 2 ** -10, 3 * 2 ** -11], np.float32)
    for name, dtype, code in (("e4m3fn", torch.float8_e4m3fn, 17), ("e4m3fnuz", torch.float8_e4m3fnuz, 18),
                              ("e5m2", torch.float8_e5m2, 19), ("e5m2fnuz", torch.float8_e5m2fnuz, 20)):
        most = torch.finfo(dtype).max
        want = torch.tensor(points).clamp(-most, most).to(dtype).float().numpy()
        there = t.helper.make_node("Cast", [f"f8_{name}.0"], [f"f8_{name}.c"], to=code)
        out.append((there, {f"f8_{name}.0": points}, []))
        out.append((t.helper.make_node("Cast", [f"f8_{name}.c"], [f"f8_{name}.y0"], to=1), {}, [want]))
        raw = t.helper.make_tensor(f"f8_all_{name}.0", code, [256], codes.numpy().tobytes(), raw=True)
        out.append((t.helper.make_node("Constant", [], [raw.name], value=raw), {}, []))
        out.append((t.helper.make_node("Cast", [raw.name], [f"f8_all_{name}.y0"], to=1), {}, [codes.view(dtype).float().numpy()]))
    return out


def main():
    t.odd_values = odd_values
    t.__doc__ = __doc__
    t.CASES.clear()
    t.families = (order_cases, index_cases, reduction_cases, arithmetic_cases)
    return t.main()


if __name__ == "__main__":
    sys.exit(main())
