#!/usr/bin/env python3
"""Gradients of pointwise operators, products, norms, losses, recurrences and attention beside PyTorch's autograd in float64.

    torch_autograd.py --trainc PATH [--only GLOB] [--device cpu] [--keep DIR]

Cases and machinery are those of torch_geometry.py, and so are the options. Many cases lie on kinks, ties and borders on purpose: relu and
abs at 0, bounds of clip, roots of 0, x ** 0 and 0 ** x, products with zeros, deviations of equal numbers, a branch that is not taken,
soft functions far out, parameters that are read twice or broadcast, axes of extent 0.
Needs numpy, onnx and torch. Not run by ctest.
"""
import sys
import numpy as np
import torch
import torch.nn.functional as F
import torch_geometry as t
from torch_geometry import Fixed, Same, case, helper, numbers, numpy_helper, random

TIES = np.array([-1, 0, 1, 0, -0.0, 1, -1, 2], np.float32)


def node(op, inputs, output, **attributes):
    return helper.make_node(op, inputs, [output], **attributes)


def constant(name, array):
    return helper.make_node("Constant", [], [name], value=numpy_helper.from_array(np.asarray(array), name))


def spread():
    """Numbers of all sizes, zeros among them."""
    return np.array([-90, -30, -8, -2.5, -1, -0.5, -1e-3, -1e-6, 0, 1e-6, 1e-3, 0.5, 1, 2.5, 8, 30, 88], np.float32)


def inside():
    return np.array([-0.99, -0.5, -1e-3, 0, 1e-4, 0.3, 0.999], np.float32)


def pointwise_cases():
    for name, f, x in (
            ("Abs", torch.abs, TIES), ("Neg", torch.neg, spread()), ("Exp", torch.exp, spread()[:-2]), ("Sqrt", torch.sqrt, np.abs(spread()) + 1e-8),
            ("Log", torch.log, np.abs(spread()) + 1e-3), ("Reciprocal", torch.reciprocal, spread() + 0.25), ("Sin", torch.sin, spread()),
            ("Cos", torch.cos, spread()), ("Tan", torch.tan, inside()), ("Asin", torch.asin, inside()), ("Acos", torch.acos, inside()),
            ("Atan", torch.atan, spread()), ("Sinh", torch.sinh, spread()[2:-2]), ("Cosh", torch.cosh, spread()[2:-2]),
            ("Asinh", torch.asinh, spread()), ("Acosh", torch.acosh, np.abs(spread()) + 1.01), ("Atanh", torch.atanh, inside()),
            ("Tanh", torch.tanh, spread()), ("Sigmoid", torch.sigmoid, spread()), ("Erf", torch.erf, spread()), ("Relu", torch.relu, TIES),
            ("Softplus", lambda x: torch.logaddexp(x, torch.zeros_like(x)), spread()), ("Softsign", F.softsign, spread()), ("Mish", F.mish, spread()),
            ("HardSwish", F.hardswish, np.concatenate([spread(), [-2.9, 2.9]]).astype(np.float32)), ("Selu", F.selu, spread()),
            ("Elu", F.elu, spread()), ("Celu", F.celu, spread()), ("LeakyRelu", F.leaky_relu, TIES), ("Gelu", F.gelu, spread()),
            ("Floor", torch.floor, spread()), ("Round", torch.round, spread()), ("Sign", torch.sign, spread())):
        if name in ("Floor", "Round", "Sign"):     # no gradient: read beside a use that has one
            case(name, lambda i, o, op=name: [node(op, i[:1], o + "f"), node("Add", [o + "f", i[0]], o)], [x], lambda x, f=f: f(x) + x)
        else:
            case(name, name, [x], f, **({"alpha": 0.01} if name == "LeakyRelu" else {}))
    case("Gelu_tanh", "Gelu", [spread()], lambda x: F.gelu(x, approximate="tanh"), approximate="tanh")
    case("ThresholdedRelu", "ThresholdedRelu", [spread()], lambda x: F.threshold(x, 1.0, 0.0), alpha=1.0)
    case("HardSigmoid", "HardSigmoid", [numbers(40)], lambda x: (x * 0.2 + 0.5).clamp(0, 1))
    case("Shrink", "Shrink", [numbers(40)], lambda x: F.softshrink(x, 0.5), bias=0.5, lambd=0.5)
    case("sqrt_of_zero", "Sqrt", [np.array([0, 4, 0, 1e-30], np.float32)], torch.sqrt)
    case("Swish", "Swish", [spread()], lambda x: x * torch.sigmoid(0.7 * x), opset=24, alpha=0.7)


def two_cases():
    a, row, column = numbers(3, 4), numbers(4), numbers(3, 1)
    for op, f in (("Add", torch.add), ("Sub", torch.sub), ("Mul", torch.mul), ("Div", torch.div), ("Max", torch.maximum), ("Min", torch.minimum)):
        case(f"{op}_row", op, [a.copy(), row.copy()], f)
        case(f"{op}_both", op, [column.copy(), row.copy()], f)
        case(f"{op}_scalar", op, [np.array(1.5, np.float32), a.copy()], f)
        case(f"{op}_itself", op, [np.abs(a) + 0.5, Same(0)], f)
        case(f"{op}_more_axes", op, [numbers(2, 1, 4), np.abs(numbers(3, 1)) + 0.5], f)
    case("pow_zero_exponent", "Pow", [TIES.copy(), Fixed(np.zeros(8, np.float32))], torch.pow)
    case("pow_of_zeros", "Pow", [np.array([0, 0, 0, 2, 2], np.float32), np.array([2, 1, 3, 0, -1], np.float32)], torch.pow)
    case("pow_zero_fraction", "Pow", [np.array([0, 4], np.float32), Fixed(np.array([0.5, 0.5], np.float32))], torch.pow)
    case("pow_negative", "Pow", [np.array([-2, -1, 3], np.float32), Fixed(np.array([3, 2, -2], np.float32))], torch.pow)
    case("prelu_zero", "PRelu", [TIES.copy(), numbers(1)], F.prelu)

    def guarded(i, o):    # log of what is positive, elsewhere 0: the usual way, its argument guarded as well
        return [constant(o + "z", np.zeros(1, np.float32)), constant(o + "1", np.ones(1, np.float32)), node("Greater", [i[0], o + "z"], o + "c"),
                node("Where", [o + "c", i[0], o + "1"], o + "s"), node("Log", [o + "s"], o + "l"), node("Where", [o + "c", o + "l", o + "z"], o)]
    case("where_guarded", guarded, [TIES.copy()], lambda x: torch.where(x > 0, torch.log(torch.where(x > 0, x, torch.ones_like(x))), torch.zeros_like(x)))

    def unguarded(i, o):    # PyTorch: 0 * inf is NaN where the branch is not taken
        return [constant(o + "z", np.zeros(1, np.float32)), node("Greater", [i[0], o + "z"], o + "c"), node("Sqrt", i[:1], o + "l"),
                node("Where", [o + "c", o + "l", o + "z"], o)]
    case("where_unguarded", unguarded, [np.array([0, 1, 4, 0], np.float32)], lambda x: torch.where(x > 0, torch.sqrt(x), torch.zeros_like(x)))


def reduction_cases():
    axes = Fixed(np.array([1]))
    x = np.array([[2, 0, 3], [0, 0, 5], [1, 2, 3], [0, 1, 0]], np.float32)
    case("prod_zeros", "ReduceProd", [x.copy(), axes], lambda x, a: x.prod(1, True))
    case("l2_zero", "ReduceL2", [x * 0, axes], lambda x, a: torch.linalg.vector_norm(x, dim=1, keepdim=True))
    case("l1_zeros", "ReduceL1", [x - 1, axes], lambda x, a: (x).abs().sum(1, True))
    case("logsumexp_far", "ReduceLogSumExp", [np.array([[1000, 999, -1000], [-2000, -2000, -2001]], np.float32), axes], lambda x, a: x.logsumexp(1, True))

    def masked(i, o):    # additive mask of -inf
        return [constant(o + "m", np.array([[0, -np.inf, 0], [-np.inf, 0, -np.inf]], np.float32)), node("Add", [i[0], o + "m"], o + "s"),
                constant(o + "a", np.array([1])), node("ReduceLogSumExp", [o + "s", o + "a"], o)]
    case("logsumexp_masked", masked, [numbers(2, 3)],
         lambda x: (x + torch.tensor([[0, -torch.inf, 0], [-torch.inf, 0, -torch.inf]]).double()).logsumexp(1, True))

    def deviation(i, o, eps=0.0):
        return [constant(o + "a", np.array([1])), node("ReduceMean", [i[0], o + "a"], o + "m"), node("Sub", [i[0], o + "m"], o + "d"),
                node("Mul", [o + "d", o + "d"], o + "q"), node("ReduceMean", [o + "q", o + "a"], o + "v"),
                constant(o + "e", np.array(eps, np.float32)), node("Add", [o + "v", o + "e"], o + "w"), node("Sqrt", [o + "w"], o)]
    case("std", deviation, [numbers(3, 5)], lambda x: x.std(1, correction=0, keepdim=True))
    case("std_eps_of_equals", lambda i, o: deviation(i, o, 1e-3), [np.ones((2, 3), np.float32)],
         lambda x: ((x - x.mean(1, keepdim=True)).square().mean(1, keepdim=True) + np.float32(1e-3)).sqrt())
    case("sum_empty_axis", "ReduceSum", [np.zeros((3, 0), np.float32), axes], lambda x, a: x.sum(1, True))
    case("mul_empty", "Mul", [np.zeros((2, 0), np.float32), numbers(2, 1)], torch.mul)
    case("concat_empty", "Concat", [np.zeros((2, 0), np.float32), numbers(2, 3)], lambda a, b: torch.cat([a, b], 1), axis=1)
    case("matmul_empty", "MatMul", [np.zeros((2, 0), np.float32), np.zeros((0, 3), np.float32)], torch.matmul)
    for e in (0, 1):
        case(f"cumsum_{e}", "CumSum", [numbers(3, 4), Fixed(np.array(1))], lambda x, a, e=e: torch.cumsum(x, 1) - (x if e else 0), exclusive=e)


def softmax_cases():
    x = np.concatenate([numbers(2, 5), [[1000, 0, -1000, 999, 1000], [0, 0, 0, 0, 0]]]).astype(np.float32)
    for axis in (0, 1):
        case(f"softmax_{axis}", "Softmax", [x.copy()], lambda x, a=axis: x.softmax(a), axis=axis)
        case(f"log_softmax_{axis}", "LogSoftmax", [x.copy()], lambda x, a=axis: x.log_softmax(a), axis=axis)
    case("softmax_11", "Softmax", [numbers(2, 3, 4)], lambda x: x.flatten(1).softmax(1).reshape(2, 3, 4), opset=11, axis=1)
    labels, weight = np.array([1, 0, 3, 1, 4, 2]), np.abs(numbers(5)) + 0.2
    for reduction in ("mean", "sum", "none"):
        for w in (None, weight):
            for ignore in (None, 1):
                extra = {} if ignore is None else {"ignore_index": ignore}
                more = [Fixed(labels)] + ([Fixed(w)] if w is not None else [])

                def loss(x, y, w=None, r=reduction, i=ignore, f=F.cross_entropy):
                    return f(x, y, weight=w if w is None else w.double(), reduction=r, **({} if i is None else {"ignore_index": i}))
                name = f"{reduction}_{w is not None}_{ignore}"
                case(f"xent_{name}", "SoftmaxCrossEntropyLoss", [numbers(6, 5)] + more, loss, reduction=reduction, **extra)
                case(f"nll_{name}", "NegativeLogLikelihoodLoss", [numbers(6, 5)] + more,
                     lambda x, y, w=None, l=loss: l(x, y, w, f=F.nll_loss), reduction=reduction, **extra)
    case("xent_images", "SoftmaxCrossEntropyLoss", [numbers(2, 3, 4, 2), Fixed(random.integers(0, 3, (2, 4, 2)))],
         lambda x, y: F.cross_entropy(x, y))


def product_cases():
    for name, a, b in (("plain", (3, 4), (4, 5)), ("batch", (2, 3, 4), (2, 4, 5)), ("broadcast", (2, 1, 3, 4), (5, 4, 2)), ("vector", (4,), (4, 5)),
                       ("vector_right", (2, 3, 4), (4,)), ("dot", (4,), (4,)), ("fold", (2, 3, 4), (4, 5))):
        case(f"matmul_{name}", "MatMul", [numbers(*a), numbers(*b)], torch.matmul)
    case("matmul_itself", lambda i, o: [node("Transpose", i[:1], o + "t"), node("MatMul", [i[0], o + "t"], o)], [numbers(3, 4)], lambda x: x @ x.T)
    for ta in (0, 1):
        for tb in (0, 1):
            case(f"gemm_{ta}{tb}", "Gemm", [numbers(*((4, 3) if ta else (3, 4))), numbers(*((5, 4) if tb else (4, 5))), numbers(5)],
                 lambda a, b, c, ta=ta, tb=tb: 0.5 * (a.T if ta else a) @ (b.T if tb else b) + 2 * c, transA=ta, transB=tb, alpha=0.5, beta=2.0)
    for name, equation, shapes in (("outer", "i,j->ij", [(3,), (4,)]), ("trace", "ii->", [(4, 4)]), ("diagonal", "bii->bi", [(2, 3, 3)]),
                                   ("attention", "bhqd,bhkd->bhqk", [(2, 2, 3, 4), (2, 2, 5, 4)]), ("ellipsis", "...ij,...jk->...ik", [(2, 3, 4), (4, 2)]),
                                   ("bilinear", "bi,oij,bj->bo", [(3, 4), (2, 4, 5), (3, 5)]), ("sum", "ij->j", [(3, 4)])):
        case(f"einsum_{name}", "Einsum", [numbers(*s) for s in shapes], lambda *x, e=equation: torch.einsum(e, *x), equation=equation)
    tied = np.array([[1, 3, 1], [0, 1, 3]])

    def tied_nodes(i, o):    # embedding with equal indices, and the same table as the head
        return [constant(o + "i", tied), node("Gather", [i[0], o + "i"], o + "g"), node("Transpose", i[:1], o + "t"),
                node("MatMul", [o + "g", o + "t"], o)]
    case("tied_embedding", tied_nodes, [numbers(5, 4)], lambda w: F.embedding(torch.tensor(tied), w) @ w.T)


def norm_cases():
    x, w, b = numbers(2, 4, 5), numbers(5), numbers(5)
    case("layer_norm", "LayerNormalization", [x.copy(), w.copy(), b.copy()], lambda x, w, b: F.layer_norm(x, (5,), w, b, 1e-5), axis=-1, epsilon=1e-5)
    case("layer_norm_two", "LayerNormalization", [x.copy(), numbers(4, 5), numbers(4, 5)], lambda x, w, b: F.layer_norm(x, (4, 5), w, b, 1e-5), axis=1)
    case("layer_norm_equals", "LayerNormalization", [np.ones((2, 5), np.float32), w.copy()], lambda x, w: F.layer_norm(x, (5,), w, None, 1e-5))
    case("rms_norm", "RMSNormalization", [x.copy(), w.copy()], lambda x, w: F.rms_norm(x, (5,), w, 1e-5), axis=-1, epsilon=1e-5)
    case("rms_norm_zeros", "RMSNormalization", [x * 0, w.copy()], lambda x, w: F.rms_norm(x, (5,), w, 1e-5))
    image = numbers(3, 4, 5, 2)
    case("group_norm", "GroupNormalization", [image.copy(), numbers(4), numbers(4)], lambda x, w, b: F.group_norm(x, 2, w, b, 1e-5), num_groups=2)
    case("instance_norm", "InstanceNormalization", [image.copy(), numbers(4), numbers(4)], lambda x, w, b: F.instance_norm(x, weight=w, bias=b, eps=1e-5))
    mean, var = Fixed(numbers(4)), Fixed(np.abs(numbers(4)) + 0.3)
    case("batch_norm", "BatchNormalization", [image.copy(), numbers(4), numbers(4), mean, var],
         lambda x, w, b, m, v: F.batch_norm(x, m.double(), v.double(), w, b, False, 0.1, 1e-5))
    case("lrn", "LRN", [image.copy()], lambda x: F.local_response_norm(x, 3, 1e-2, 0.75, 1.0), size=3, alpha=1e-2)
    case("l2_normalization", "LpNormalization", [numbers(3, 4)], lambda x: x / torch.linalg.vector_norm(x, dim=1, keepdim=True), axis=1, p=2)
    case("mvn", "MeanVarianceNormalization", [image.copy()],
         lambda x: (x - x.mean((0, 2, 3), True)) / (x.std((0, 2, 3), correction=0, keepdim=True) + 1e-9), axes=[0, 2, 3])


def shape_cases():
    x = numbers(2, 3, 4)
    case("reshape", "Reshape", [x.copy(), Fixed(np.array([4, -1]))], lambda x, s: x.reshape(4, -1))
    case("transpose", "Transpose", [x.copy()], lambda x: x.permute(2, 0, 1), perm=[2, 0, 1])
    case("slice", "Slice", [x.copy(), *map(Fixed, (np.array([3, 1]), np.array([-100, 3]), np.array([2, 1]), np.array([-2, 1])))],
         lambda x, *_: x[:, 1:3].flip(2)[:, :, ::2])
    case("slice_overlap", lambda i, o: [constant(o + k, np.array([v])) for k, v in (("0", 0), ("1", 1), ("3", 3), ("4", 4), ("a", 2))]
         + [node("Slice", [i[0], o + "0", o + "3", o + "a"], o + "l"), node("Slice", [i[0], o + "1", o + "4", o + "a"], o + "r"),
            node("Mul", [o + "l", o + "r"], o)], [x.copy()], lambda x: x[:, :, :3] * x[:, :, 1:])
    for mode in ("constant", "reflect", "edge", "wrap"):
        name = {"constant": "constant", "reflect": "reflect", "edge": "replicate", "wrap": "circular"}[mode]
        case(f"pad_{mode}", "Pad", [x.copy(), Fixed(np.array([0, 0, 2, 0, 0, 1]))], lambda x, p, m=name: F.pad(x, (2, 1), m), mode=mode)
    case("concat_itself", "Concat", [x.copy(), Same(0)], lambda a, b: torch.cat([a, b], 2), axis=2)
    case("depth_to_space", "DepthToSpace", [numbers(1, 8, 2, 3)], lambda x: F.pixel_shuffle(x, 2), blocksize=2, mode="CRD")
    case("gather_twice", "Gather", [numbers(4, 3), Fixed(np.array([[1, 1], [-1, 0]]))], lambda x, i: x[i % 4], axis=0)


def recurrent_cases():
    n, steps, size, hidden = 2, 4, 3, 5

    def gates(w, order, count):    # PyTorch's order of gates -> ONNX's
        return np.concatenate([w[hidden * k:hidden * (k + 1)] for k in order[:count]])
    for op, count, order, function in (("RNN", 1, [0], torch.nn.RNN), ("GRU", 3, [1, 0, 2], torch.nn.GRU), ("LSTM", 4, [0, 3, 1, 2], torch.nn.LSTM)):
        for both in (False, True):
            d = 2 if both else 1
            w, r, b = numbers(d, count * hidden, size), numbers(d, count * hidden, hidden), numbers(d, 2 * count * hidden)

            def run(x, w, r, b, f=function, count=count, order=order, d=d):
                back = list(np.argsort(order))
                net = f(size, hidden, bidirectional=d == 2).double()
                pick = lambda m: torch.cat([m[hidden * k:hidden * (k + 1)] for k in back])
                names = {}
                for k in range(d):
                    suffix = "_reverse" if k else ""
                    names["weight_ih_l0" + suffix], names["weight_hh_l0" + suffix] = pick(w[k]), pick(r[k])
                    names["bias_ih_l0" + suffix], names["bias_hh_l0" + suffix] = pick(b[k][:count * hidden]), pick(b[k][count * hidden:])
                y = torch.func.functional_call(net, names, (x,))[0]
                return y.reshape(steps, n, d, hidden).permute(0, 2, 1, 3)
            extra = {"linear_before_reset": 1} if op == "GRU" else {}
            case(f"{op}_{d}", op, [numbers(steps, n, size), w * 0.4, r * 0.4, b * 0.4], run, hidden_size=hidden,
                 direction="bidirectional" if both else "forward", **extra)


def attention_cases():
    q, k, v = numbers(2, 4, 3, 8), numbers(2, 2, 5, 8), numbers(2, 2, 5, 8)
    case("attention_gqa", "Attention", [q.copy(), k.copy(), v.copy()], lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True))
    case("attention_bias", "Attention", [q.copy(), numbers(2, 4, 5, 8), numbers(2, 4, 5, 8), numbers(3, 5)],
         lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m))
    allowed = np.array([[1, 0, 0, 1, 0], [1, 1, 0, 0, 0], [1, 1, 1, 1, 1]]) > 0
    case("attention_boolean", "Attention", [q.copy(), numbers(2, 4, 5, 8), numbers(2, 4, 5, 8), Fixed(allowed)],
         lambda q, k, v, m: F.scaled_dot_product_attention(q, k, v, m))
    case("attention_causal", "Attention", [numbers(1, 2, 5, 4), numbers(1, 2, 5, 4), numbers(1, 2, 5, 4)],
         lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), is_causal=1)
    case("attention_itself", "Attention", [numbers(1, 2, 5, 4), Same(0), Same(0)], F.scaled_dot_product_attention)
    case("attention_softcap", "Attention", [numbers(1, 2, 3, 4) * 3, numbers(1, 2, 5, 4) * 3, numbers(1, 2, 5, 4)],
         lambda q, k, v: (2 * torch.tanh(q @ k.transpose(2, 3) / 2 / 2)).softmax(3) @ v, softcap=2.0)


def main():
    t.__doc__ = __doc__
    t.CASES.clear()
    t.families = (pointwise_cases, two_cases, reduction_cases, softmax_cases, product_cases, norm_cases, shape_cases, recurrent_cases, attention_cases)
    return t.main()


if __name__ == "__main__":
    sys.exit(main())
