#!/usr/bin/env python3
"""Gradients of geometric and signal operators beside PyTorch's autograd in float64.

    torch_geometry.py --trainc PATH [--only GLOB] [--device cpu] [--keep DIR]
    torch_geometry.py --write FILE.onnx

Every case is one ONNX node, a PyTorch function that computes the same, and inputs, some of which train; many lie on kinks and
ties on purpose. All cases are one model whose output is the sum of all results under fixed random weights, so that one compilation
checks them all: trainc --loss output, trainc run --save-grads. A gradient agrees where no element is off by more than 1e-5 of the
largest.
--write makes the file that tests/frontend/ops_geometry.c reads: the small cases, with PyTorch's gradients as outputs NAME.grad, and
results at odd numbers (infinities, NaN, least integers) beside outputs NAME.want.
Needs numpy, onnx and torch. Not run by ctest.
"""
import argparse, fnmatch, json, subprocess, sys, tempfile
from pathlib import Path
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
import torch
import torch.nn.functional as F

CASES = []
random = np.random.default_rng(7)


class Fixed:
    """An input that does not train: a constant of the model."""
    def __init__(self, array):
        self.array = np.asarray(array)


class Same:
    """Input i once more: a parameter that is read twice."""
    def __init__(self, i):
        self.i = i


def numbers(*shape):
    return random.standard_normal(shape).astype(np.float32)


def ties(*shape):
    """Few different values: windows hold their maximum more than once."""
    return random.integers(0, 3, shape).astype(np.float32)


def case(name, op, inputs, function, opset=23, outputs=1, **attributes):
    """inputs: arrays (they train), Fixed, Same, or None where one is left out. function takes the torch tensors that are there.
    op: its name, or a function of (names of inputs, name of the output) that gives nodes."""
    CASES.append((name, op, inputs, function, opset, outputs, attributes))


# ---------------------------------------------------------------- the cases

def grid_cases():
    onnx_mode = {"bilinear": "linear", "nearest": "nearest", "bicubic": "cubic"}
    for mode in onnx_mode:
        for padding in ("zeros", "border", "reflection"):
            for align in (0, 1):
                grid = random.uniform(-1.7, 1.7, (2, 3, 4, 2)).astype(np.float32)
                grid[0, 0, 0] = (-1, 1)        # on the border itself
                grid[0, 0, 1] = (1, -1)
                grid[0, 0, 2] = (0, -3)
                case(f"grid_{mode}_{padding}_{align}", "GridSample", [numbers(2, 3, 5, 5), grid],
                     lambda x, g, m=mode, p=padding, a=align: F.grid_sample(x, g, m, p, bool(a)),
                     mode=onnx_mode[mode], padding_mode=padding, align_corners=align)
    for mode in ("bilinear", "nearest"):
        for padding in ("zeros", "border", "reflection"):
            grid = random.uniform(-1.5, 1.5, (1, 2, 3, 2, 3)).astype(np.float32)
            case(f"grid3d_{mode}_{padding}", "GridSample", [numbers(1, 2, 3, 4, 5), grid],
                 lambda x, g, m=mode, p=padding: F.grid_sample(x, g, m, p, False),
                 mode=onnx_mode[mode], padding_mode=padding, align_corners=0)
    for align in (0, 1):
        case(f"affine_grid_{align}", "AffineGrid", [numbers(2, 2, 3), Fixed(np.array([2, 3, 4, 5]))],
             lambda t, _, a=align: F.affine_grid(t, [2, 3, 4, 5], bool(a)), align_corners=align)
        case(f"affine_grid3d_{align}", "AffineGrid", [numbers(1, 3, 4), Fixed(np.array([1, 3, 2, 3, 4]))],
             lambda t, _, a=align: F.affine_grid(t, [1, 3, 2, 3, 4], bool(a)), align_corners=align)


def bilinear(x, y0, x0):
    """x[C,H,W] at (y0, x0): within a pixel of the image as at its border, 0 beyond."""
    h, w = x.shape[1:]
    if not (-1 <= y0 <= h and -1 <= x0 <= w):
        return x.new_zeros(x.shape[0])
    y0, x0 = min(max(y0, 0), h - 1), min(max(x0, 0), w - 1)
    top, left = min(int(y0), max(h - 2, 0)), min(int(x0), max(w - 2, 0))
    fy, fx = y0 - top, x0 - left
    rows = x[:, top] * (1 - fy) + x[:, min(top + 1, h - 1)] * fy
    return rows[:, left] * (1 - fx) + rows[:, min(left + 1, w - 1)] * fx


def roi_align(x, boxes, image, size, scale, ratio, aligned):
    out = []
    for box, i in zip(boxes.detach().numpy(), image.numpy()):
        left, top, right, bottom = box * scale - (0.5 if aligned else 0)
        lengths = [bottom - top, right - left]
        step = [(length if aligned else max(length, 1.0)) / n for length, n in zip(lengths, size)]
        count = [ratio or int(np.ceil(s)) for s in step]
        bins = []
        for row in range(size[0]):
            for column in range(size[1]):
                v = [bilinear(x[i], top + (row + (a + 0.5) / count[0]) * step[0],
                              left + (column + (b + 0.5) / count[1]) * step[1])
                     for a in range(count[0]) for b in range(count[1])]
                bins.append(sum(v, x.new_zeros(x.shape[1])) / max(len(v), 1))
        out.append(torch.stack(bins, 1).reshape(-1, *size))
    return torch.stack(out)


def roi_pool(x, boxes, size, scale):
    away = lambda v: int(np.sign(v) * np.floor(abs(v) + 0.5))
    h, w = x.shape[2:]
    out = x.new_zeros(len(boxes), x.shape[1], *size)
    for r, (i, *box) in enumerate(boxes.numpy()):
        left, top, right, bottom = (away(v * scale) for v in box)
        high, wide = max(bottom - top + 1, 1) / size[0], max(right - left + 1, 1) / size[1]
        for a in range(size[0]):
            for b in range(size[1]):
                rows = [min(max(top + int(f), 0), h) for f in (np.floor(a * high), np.ceil((a + 1) * high))]
                columns = [min(max(left + int(f), 0), w) for f in (np.floor(b * wide), np.ceil((b + 1) * wide))]
                part = x[int(i), :, rows[0]:rows[1], columns[0]:columns[1]].flatten(1)
                if part.shape[1]:
                    first = torch.tensor(part.detach().numpy().argmax(1))
                    out[r, :, a, b] = part.gather(1, first[:, None])[:, 0]
    return out


def deform_conv(x, w, offset, bias, mask, stride, pad, dilation, groups, offset_groups):
    """Every tap by grid_sample, then one product per group."""
    n, c, h, width = x.shape
    kh, kw = w.shape[2:]
    oh, ow = offset.shape[2:]
    offset = offset.reshape(n, offset_groups, kh * kw, 2, oh, ow)
    rows = torch.arange(oh).double() * stride[0] - pad[0]
    columns = torch.arange(ow).double() * stride[1] - pad[1]
    taps = []
    for k in range(kh * kw):
        y = offset[:, :, k, 0] + rows[:, None] + k // kw * dilation[0]
        xs = offset[:, :, k, 1] + columns + k % kw * dilation[1]
        grid = torch.stack([xs * 2 / (width - 1) - 1, y * 2 / (h - 1) - 1], -1).flatten(0, 1)
        v = F.grid_sample(x.reshape(n * offset_groups, c // offset_groups, h, width), grid, align_corners=True)
        v = v.reshape(n, offset_groups, c // offset_groups, oh, ow)
        taps.append((v if mask is None else v * mask.reshape(n, offset_groups, kh * kw, oh, ow)[:, :, None, k]).flatten(1, 2))
    v = torch.stack(taps, 2).reshape(n, groups, c // groups, kh * kw, oh, ow)
    y = torch.einsum("ngckhw,gock->ngohw", v, w.reshape(groups, w.shape[0] // groups, c // groups, kh * kw))
    return y.flatten(1, 2) + bias[:, None, None]


def roi_cases():
    boxes = np.array([[0.3, 1.2, 6.1, 5.4], [2, 0, 3, 2], [-3, -2, 9.5, 9], [4, 4, 3, 3], [-40, -9, 70, 500]], np.float32)
    image = np.array([0, 1, 0, 1, 1])
    for aligned in (False, True):
        for ratio in (2, 0):
            for known in (True, False):
                mode = "half_pixel" if aligned else "output_half_pixel"
                case(f"roi_align_{aligned}_{ratio}_{known}", "RoiAlign",
                     [numbers(2, 3, 7, 8), Fixed(boxes) if known else boxes, Fixed(image)],
                     lambda x, b, i, r=ratio, a=aligned: roi_align(x, b, i, (2, 3), 0.75, r, a),
                     output_height=2, output_width=3, spatial_scale=0.75, sampling_ratio=ratio,
                     coordinate_transformation_mode=mode)
    case("max_roi_pool", "MaxRoiPool",
         [ties(2, 3, 7, 8), Fixed(np.concatenate([image[:, None].astype(np.float32), boxes], 1))],
         lambda x, b: roi_pool(x, b, (2, 3), 0.75), pooled_shape=[2, 3], spatial_scale=0.75)
    for groups, offsets, masked in ((1, 1, False), (2, 2, True), (1, 2, True)):
        offset = random.uniform(-2.5, 2.5, (2, offsets * 12, 6, 3)).astype(np.float32)
        case(f"deform_conv_{groups}_{offsets}_{masked}", "DeformConv",
             [numbers(2, 4, 6, 5), numbers(4, 4 // groups, 3, 2), offset, numbers(4)]
             + ([numbers(2, offsets * 6, 6, 3)] if masked else []),
             lambda x, w, o, b, m=None, g=groups, og=offsets: deform_conv(x, w, o, b, m, (1, 2), (2, 1), (2, 1), g, og),
             strides=[1, 2], pads=[2, 1, 2, 1], dilations=[2, 1], group=groups, offset_group=offsets, kernel_shape=[3, 2])


def pool_cases():
    pool = [F.max_pool1d, F.max_pool2d, F.max_pool3d]
    average = [None, F.avg_pool2d, F.avg_pool3d]
    for d in (1, 2, 3):
        x = ties(*[2, 2, 7, 6, 5][:2 + d])
        case(f"max_pool{d}d", "MaxPool", [x], lambda x, d=d: pool[d - 1](x, 3, 2, 1),
             kernel_shape=[3] * d, strides=[2] * d, pads=[1] * 2 * d)
        case(f"max_pool{d}d_dilated_ceil", "MaxPool", [ties(*[1, 2, 9, 8, 7][:2 + d])],
             lambda x, d=d: pool[d - 1](x, 2, 2, 1, 2, True),
             kernel_shape=[2] * d, strides=[2] * d, pads=[1] * 2 * d, dilations=[2] * d, ceil_mode=1)
        for counts in (0, 1):
            if d == 1:
                f = lambda x, c=counts: F.avg_pool1d(x, 3, 2, 1, True, bool(c))
            else:
                f = lambda x, d=d, c=counts: average[d - 1](x, 3, 2, 1, True, bool(c))
            case(f"avg_pool{d}d_{counts}", "AveragePool", [numbers(*[2, 2, 8, 6, 5][:2 + d])], f,
                 kernel_shape=[3] * d, strides=[2] * d, pads=[1] * 2 * d, ceil_mode=1, count_include_pad=counts)
    x = numbers(1, 2, 6, 6)
    x[0, 0, :3, :3] = 0                            # a window of zeros
    case("lp_pool_2", "LpPool", [x], lambda x: F.lp_pool2d(x, 2, 3, 3), kernel_shape=[3, 3], strides=[3, 3], p=2)
    case("lp_pool_3", "LpPool", [np.abs(numbers(1, 2, 6, 6)) + 0.1], lambda x: F.lp_pool2d(x, 3, 2, 2),
         kernel_shape=[2, 2], strides=[2, 2], p=3)
    case("global_max", "GlobalMaxPool", [ties(2, 3, 4, 5)], lambda x: F.adaptive_max_pool2d(x, 1))
    case("global_average", "GlobalAveragePool", [numbers(2, 3, 4, 5)], lambda x: F.adaptive_avg_pool2d(x, 1))
    case("global_lp", "GlobalLpPool", [numbers(2, 3, 4, 5)], lambda x: x.norm(dim=(2, 3), keepdim=True))
    places = F.max_pool2d(torch.tensor(numbers(2, 2, 6, 6)), 2, 2, return_indices=True)[1]
    whole = places + 36 * torch.arange(4).reshape(2, 2, 1, 1)
    case("max_unpool", "MaxUnpool", [numbers(2, 2, 3, 3), Fixed(whole.numpy())],
         lambda x, i, p=places: F.max_unpool2d(x, p, 2, 2), kernel_shape=[2, 2], strides=[2, 2])


def conv_cases():
    conv = [F.conv1d, F.conv2d, F.conv3d]
    turned = [F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d]
    for d in (1, 2, 3):
        for groups in (1, 2):
            x = numbers(*[2, 4, 7, 6, 5][:2 + d])
            case(f"conv{d}d_{groups}", "Conv", [x, numbers(6, 4 // groups, *[3] * d), numbers(6)],
                 lambda x, w, b, d=d, g=groups: conv[d - 1](x, w, b, 2, 2, 2, g),
                 strides=[2] * d, pads=[2] * 2 * d, dilations=[2] * d, group=groups)
            case(f"conv_transpose{d}d_{groups}", "ConvTranspose", [x, numbers(4, 3, *[3] * d), numbers(3 * groups)],
                 lambda x, w, b, d=d, g=groups: turned[d - 1](x, w, b, 2, 1, 1, g, 2),
                 strides=[2] * d, pads=[1] * 2 * d, dilations=[2] * d, group=groups, output_padding=[1] * d)
    case("conv_same", "Conv", [numbers(1, 2, 5, 6), numbers(3, 2, 3, 4)],
         lambda x, w: F.conv2d(F.pad(x, (1, 2, 1, 1)), w), auto_pad="SAME_UPPER")
    case("col2im", "Col2Im", [numbers(2, 3 * 6, 12), Fixed(np.array([6, 5])), Fixed(np.array([2, 3]))],
         lambda x, *_: F.fold(x, (6, 5), (2, 3), dilation=(1, 1), padding=(1, 0), stride=(2, 1)),
         strides=[2, 1], pads=[1, 0, 1, 0], dilations=[1, 1])


def resize_cases():
    sizes = lambda *s: Fixed(np.array(s, np.int64))
    scales = lambda *s: Fixed(np.array(s, np.float32))
    for out in ((7, 9), (3, 4), (10, 12), (6, 10)):
        args = [numbers(1, 2, 5, 6), None, None, sizes(1, 2, *out)]
        case(f"nearest_{out}", "Resize", args, lambda x, _, o=out: F.interpolate(x, o, mode="nearest"),
             mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
        case(f"nearest_exact_{out}", "Resize", args, lambda x, _, o=out: F.interpolate(x, o, mode="nearest-exact"),
             mode="nearest", coordinate_transformation_mode="half_pixel", nearest_mode="round_prefer_ceil")
        for align in (0, 1):
            for mode in ("bilinear", "bicubic"):
                case(f"{mode}_{out}_{align}", "Resize", args,
                     lambda x, _, o=out, m=mode, a=align: F.interpolate(x, o, mode=m, align_corners=bool(a)),
                     mode="linear" if mode == "bilinear" else "cubic",
                     coordinate_transformation_mode="align_corners" if align else "pytorch_half_pixel")
        for mode in ("bilinear", "bicubic"):
            case(f"{mode}_{out}_antialias", "Resize", args,
                 lambda x, _, o=out, m=mode: F.interpolate(x, o, mode=m, antialias=True),
                 mode="linear" if mode == "bilinear" else "cubic", antialias=1, exclude_outside=1,
                 cubic_coeff_a=-0.5, coordinate_transformation_mode="half_pixel")
    for scale in (1 / 3, 0.7, 1.5, 0.3, 2.0):
        case(f"nearest_scale_{scale:.2f}", "Resize", [numbers(1, 1, 10, 12), None, scales(1, 1, scale, scale)],
             lambda x, _, s=scale: F.interpolate(x, scale_factor=s, mode="nearest"),
             mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    case("trilinear", "Resize", [numbers(1, 2, 3, 4, 5), None, None, sizes(1, 2, 5, 6, 3)],
         lambda x, _: F.interpolate(x, (5, 6, 3), mode="trilinear"), mode="linear",
         coordinate_transformation_mode="half_pixel")
    for mode, other in (("reflect", "reflect"), ("edge", "replicate"), ("wrap", "circular")):
        case(f"pad_{mode}", "Pad", [numbers(1, 2, 4, 5), Fixed(np.array([0, 0, 2, 1, 0, 0, 3, 4]))],
             lambda x, _, o=other: F.pad(x, (1, 4, 2, 3), o), mode=mode)
    case("pad_negative", "Pad", [numbers(1, 2, 4, 5), Fixed(np.array([0, 0, -1, 1, 0, 0, 3, -2]))],
         lambda x, _: F.pad(x, (1, -2, -1, 3)))
    case("center_crop_pad", "CenterCropPad", [numbers(4, 5, 3), Fixed(np.array([3, 8]))],
         lambda x, _: F.pad(x, (0, 0, 1, 2, 0, -1)), axes=[0, 1])
    case("depth_to_space", "DepthToSpace", [numbers(1, 8, 2, 3)], lambda x: F.pixel_shuffle(x, 2), blocksize=2, mode="CRD")
    case("space_to_depth", "SpaceToDepth", [numbers(1, 2, 4, 6)],
         lambda x: F.pixel_unshuffle(x, 2).reshape(1, 2, 4, 2, 3).transpose(1, 2).reshape(1, 8, 2, 3), blocksize=2)


def pairs(z):
    return torch.view_as_real(z)


def signal_cases():
    axis = Fixed(np.array(1))
    for n in (12, 15, 1024, 1155, 641):
        length = Fixed(np.array(n))
        case(f"fft_{n}", "DFT", [numbers(2, n, 2), length, axis], lambda x, *_: pairs(torch.fft.fft(torch.view_as_complex(x), dim=1)))
        case(f"ifft_{n}", "DFT", [numbers(2, n, 2), length, axis],
             lambda x, *_: pairs(torch.fft.ifft(torch.view_as_complex(x), dim=1)), inverse=1)
        case(f"rfft_{n}", "DFT", [numbers(2, n, 1), length, axis],
             lambda x, *_: pairs(torch.fft.rfft(x[..., 0], dim=1)), onesided=1)
        case(f"irfft_{n}", "DFT", [numbers(2, n // 2 + 1, 2), length, axis],
             lambda x, *_, n=n: torch.fft.irfft(torch.view_as_complex(x), n, dim=1)[..., None], inverse=1, onesided=1)
    for n in (7, 20):
        case(f"fft_length_{n}", "DFT", [numbers(3, 2, 12, 2), Fixed(np.array(n)), Fixed(np.array(-2))],
             lambda x, *_, n=n: pairs(torch.fft.fft(torch.view_as_complex(x), n, dim=2)))
    case("dft_17", "DFT", [numbers(2, 6, 4, 2)], lambda x: pairs(torch.fft.fft(torch.view_as_complex(x), dim=2)), opset=19, axis=2)
    for onesided in (0, 1):
        case(f"stft_{onesided}", "STFT", [numbers(2, 50, 1), Fixed(np.array(6)), numbers(16), Fixed(np.array(16))],
             lambda x, _, w, __, o=onesided: pairs(torch.stft(x[..., 0], 16, 6, 16, w, center=False, onesided=bool(o),
                                                             return_complex=True)).transpose(1, 2), onesided=onesided)
    for n in (1, 2, 3, 4, 5):
        case(f"det_{n}", "Det", [numbers(2, n, n)], torch.linalg.det)
    case("lrn", "LRN", [numbers(2, 6, 3, 3)], lambda x: F.local_response_norm(x, 3, 0.3, 0.75, 1.5), size=3, alpha=0.3, beta=0.75, bias=1.5)
    case("l1_normalization", "LpNormalization", [numbers(2, 3, 4)], lambda x: F.normalize(x, 1, 1), p=1, axis=1)
    case("l2_normalization", "LpNormalization", [numbers(2, 3, 4)], lambda x: F.normalize(x, 2, -1), p=2, axis=-1)
    case("mean_variance", "MeanVarianceNormalization", [numbers(2, 3, 4, 4)],
         lambda x: (x - x.mean((0, 2, 3), True)) / x.var((0, 2, 3), unbiased=False, keepdim=True).sqrt())


# ---------------------------------------------------------------- one model of them

def build(cases):
    """{opset: model}, and what PyTorch says: {parameter: gradient}"""
    graphs, expected = {}, {}
    for name, op, inputs, function, opset, outputs, attributes in cases:
        g = graphs.setdefault(opset, {"nodes": [], "init": [], "sums": []})
        names, tensors, trained = [], [], {}
        for i, value in enumerate(inputs):
            if value is None:
                names.append("")
                continue
            if isinstance(value, Same):
                names.append(names[value.i])
                tensors.append(tensors[value.i])
                continue
            fixed = isinstance(value, Fixed)
            array = value.array if fixed else value
            key = f"{name}.{i}"
            names.append(key)
            t = torch.tensor(array.astype(np.float64) if array.dtype == np.float32 else array)
            if fixed:
                g["nodes"].append(helper.make_node("Constant", [], [key], value=numpy_helper.from_array(array, key)))
            else:
                g["init"].append(numpy_helper.from_array(array, key))
                trained[key] = t.requires_grad_()
            tensors.append(t)
        y = function(*tensors)
        weight = random.standard_normal(y.shape).astype(np.float32)
        (y * torch.tensor(weight.astype(np.float64))).sum().backward()
        for key, t in trained.items():
            expected[key] = np.zeros(t.shape) if t.grad is None else t.grad.numpy()
        n = op(names, f"{name}.y") if callable(op) else [helper.make_node(op, names, [f"{name}.y"], name=name, **attributes)]
        w = numpy_helper.from_array(weight, f"{name}.w")
        g["nodes"] += n + [helper.make_node("Constant", [], [f"{name}.w"], value=w),
                       helper.make_node("Mul", [f"{name}.y", f"{name}.w"], [f"{name}.p"]),
                       helper.make_node("ReduceSum", [f"{name}.p"], [f"{name}.s"], keepdims=0)]
        g["sums"].append(f"{name}.s")
    models = {}
    for opset, g in graphs.items():
        g["nodes"] += [helper.make_node("Sum", g["sums"], ["all"]), helper.make_node("ReduceMean", ["one"], ["m"], keepdims=0),
                       helper.make_node("Mul", ["all", "m"], ["loss"])]
        one = helper.make_tensor_value_info("one", TensorProto.FLOAT, ["batch"])
        loss = helper.make_tensor_value_info("loss", TensorProto.FLOAT, [])
        graph = helper.make_graph(g["nodes"], "geometry", [one], [loss], g["init"])
        models[opset] = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    return models, expected


def odd_values():
    """(node, {constant: array}, [what its outputs are])"""
    out = []

    def value(name, op, arrays, wants, **attributes):
        arrays = [a.copy() for a in arrays]
        names = [f"{name}.{i}" for i in range(len(arrays))]
        node = helper.make_node(op, names, [f"{name}.y{i}" for i in range(len(wants))], name=name, **attributes)
        out.append((node, dict(zip(names, arrays)), wants))

    def pooled(x, *sizes, **more):
        """Values, and places in the flattened tensor."""
        y, at = F.max_pool2d(torch.tensor(x.astype(np.float64)), *sizes, return_indices=True, **more)
        plane = x.shape[2] * x.shape[3]
        return [y.numpy().astype(x.dtype), (at + plane * torch.arange(len(y[0])).reshape(1, -1, 1, 1)).numpy()]

    x = numbers(1, 2, 5, 6)
    x[0, 0, :3, :3] = -np.inf                      # whole windows equal their padding
    value("pool_infinite", "MaxPool", [x], pooled(x, 3, 2, 1), kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    value("pool_dilated", "MaxPool", [x], pooled(x, 2, 1, 1, dilation=3), kernel_shape=[2, 2], dilations=[3, 3], pads=[1, 1, 1, 1])
    for dtype, least in ((np.uint8, 0), (np.int8, -128)):
        x = np.where(random.random((1, 2, 5, 6)) < 0.6, least, 3).astype(dtype)
        value(f"pool_{np.dtype(dtype).name}", "MaxPool", [x], pooled(x, 3, 2, 1),
              kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    x = ties(1, 1, 4, 4)
    y, at = pooled(x, 2, 2)
    value("pool_columns", "MaxPool", [x], [y, at % 4 * 4 + at // 4], kernel_shape=[2, 2], strides=[2, 2], storage_order=1)
    grid = random.uniform(-1.5, 1.5, (1, 3, 3, 2)).astype(np.float32)
    grid[0, 0] = [[np.nan, 0], [np.inf, 0.5], [1e30, -np.inf]]
    x = numbers(1, 2, 4, 4)
    for padding in ("zeros", "border"):
        want = F.grid_sample(torch.tensor(x).double(), torch.tensor(grid).double(), "nearest", padding, False)
        value(f"grid_odd_{padding}", "GridSample", [x, grid], [want.numpy().astype(np.float32)],
              mode="nearest", padding_mode=padding)
    x[0, 0, 0, 0] = np.inf
    inner = np.array([[[[2.5, 2.5], [0.1, 0.3], [-2, 1.5]]]], np.float32)
    want = F.grid_sample(torch.tensor(x).double(), torch.tensor(inner).double(), "bilinear", "zeros", False)
    value("grid_infinite_pixel", "GridSample", [x, inner], [want.numpy().astype(np.float32)])
    whole = random.integers(-9, 9, (1, 1, 4, 4))
    want = F.grid_sample(torch.tensor(whole).double(), torch.tensor(inner).double(), "nearest", "border", True).numpy()
    value("grid_integers", "GridSample", [whole, inner.astype(np.float16)], [want.astype(np.int64)],
          mode="nearest", padding_mode="border", align_corners=1)
    value("grid_bool", "GridSample", [whole > 0, inner],
          [F.grid_sample(torch.tensor(whole > 0).double(), torch.tensor(inner).double(), "nearest", "border", True).numpy() > 0],
          mode="nearest", padding_mode="border", align_corners=1)
    value("resize_integers", "Resize", [whole, np.array([], np.float32), np.array([], np.float32), np.array([1, 1, 6, 7])],
          [F.interpolate(torch.tensor(whole).double(), (6, 7), mode="nearest").numpy().astype(np.int64)],
          mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor")
    one = np.array([[1, 2], [2, 4]], np.float32)   # singular
    value("det_singular", "Det", [one], [np.array(0, np.float32)])
    return out


def write(path):
    """The small cases of the newest opset in one file, for the interpreter."""
    small = [c for c in CASES if c[4] == 23 and sum(v.size for v in c[2] if isinstance(v, np.ndarray)) <= 200]
    models, expected = build(small)
    model = models[23]
    for name, gradient in expected.items():
        value = numpy_helper.from_array(gradient.astype(np.float32), f"{name}.grad")
        model.graph.node.append(helper.make_node("Constant", [], [f"{name}.grad"], value=value))
        model.graph.output.append(helper.make_tensor_value_info(f"{name}.grad", TensorProto.FLOAT, gradient.shape))
    for node, constants, wants in odd_values():
        for name, array in constants.items():
            model.graph.node.append(helper.make_node("Constant", [], [name], value=numpy_helper.from_array(array)))
        model.graph.node.append(node)
        for name, want in zip(node.output, wants):
            value = numpy_helper.from_array(want)
            model.graph.node.append(helper.make_node("Constant", [], [f"{name}.want"], value=value))
            for output in (name, f"{name}.want"):
                model.graph.output.append(helper.make_tensor_value_info(output, value.data_type, want.shape))
    onnx.save(model, path)
    print(f"{len(small)} cases, {len(expected)} gradients, {Path(path).stat().st_size} bytes")


def read_safetensors(path):
    data = Path(path).read_bytes()
    size = int.from_bytes(data[:8], "little")
    head, out = json.loads(data[8:8 + size]), {}
    for name, t in head.items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            out[name] = np.frombuffer(data[8 + size + a:8 + size + b], np.float32).reshape(t["shape"])
    return out


def gradients(model, trainc, device, folder):
    folder.mkdir(parents=True, exist_ok=True)
    onnx.save(model, folder / "model.onnx")
    np.save(folder / "one.npy", np.ones(1, np.float32))
    for command in ([trainc, folder / "model.onnx", "-o", folder / "step", "--dim", "batch=1", "--loss", "output"],
                    [trainc, "run", folder / "step", "--data", f"one={folder}/one.npy", "--steps", "1", "--device", device,
                     "--save-grads", folder / "grads.safetensors"]):
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return read_safetensors(folder / "grads.safetensors")


def parts(cases, most=30):
    """Models of some cases each: a model of very many is slow to plan."""
    for first in range(0, len(cases), most):
        models, expected = build(cases[first:first + most])
        for opset, model in models.items():
            yield first, opset, model, expected


def off_by(got, want):
    """The largest error, and the largest number wanted. What is infinite or no number must be just that."""
    finite = np.isfinite(want)
    scale = max(np.abs(want[finite]).max(initial=0), 1e-3)
    if got is None or got.shape != want.shape or not np.array_equal(got[~finite], want[~finite], equal_nan=True):
        return np.inf, scale
    return np.abs(got[finite] - want[finite]).max(initial=0), scale


families = (grid_cases, roi_cases, pool_cases, conv_cases, resize_cases, signal_cases)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--trainc")
    p.add_argument("--write")
    p.add_argument("--only", default="*")
    p.add_argument("--device", default="cpu")
    p.add_argument("--keep")
    a = p.parse_args()
    for add in families:
        add()
    if a.write:
        return write(a.write)
    chosen = [c for c in CASES if fnmatch.fnmatch(c[0], a.only)]
    passed = failed = 0
    with tempfile.TemporaryDirectory() as temp:
        for first, opset, model, expected in parts(chosen):
            found = gradients(model, a.trainc, a.device, Path(a.keep or temp) / f"{opset}_{first}")
            for name in [i.name for i in model.graph.initializer]:
                want = expected[name]
                got = found.get(name)
                if got is None and not want.any():
                    got = np.zeros(want.shape)
                error, scale = off_by(got, want)
                good = error <= 1e-5 * scale
                passed, failed = passed + good, failed + (not good)
                if not good:
                    print(f"{name}: off by {error:.3g}, the largest is {scale:.3g}"
                          + ("" if got is None or got.shape != want.shape else f", at {np.unravel_index(np.abs(got - want).argmax(), want.shape)}"))
    print(f"{passed} gradients agree, {failed} do not")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
