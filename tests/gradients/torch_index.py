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
    case("prelu", "PRelu", [zeros_among(4, 5), numbers(5)], lambda x, s: torch.where(x >= 0, x, s * x))
    case("where", "Where", [Fixed(x > 0), numbers(4, 1), numbers(5)], lambda c, a, b: torch.where(c, a, b))


def main():
    t.__doc__ = __doc__
    t.CASES.clear()
    t.families = (order_cases, index_cases, reduction_cases, arithmetic_cases)
    return t.main()


if __name__ == "__main__":
    sys.exit(main())
