#!/usr/bin/env python3
"""contrib.py - com.microsoft operators beside ONNX Runtime: forward values, and gradients against differences of its results.

usage: contrib.py --trainc build/trainc [NAME...]
       contrib.py --archive tests/onnx_nodes/contrib.tar.xz    writes the cases in the layout of ONNX's own node tests

Each case is one node. Forward: `trainc eval` within 1e-4 of onnxruntime. Gradient: the float inputs that are marked become
parameters, the loss is a fixed weighting of the first output, and `trainc run --save-grads` must fall along random directions as
central differences of onnxruntime's result do (relative 2e-2: onnxruntime works in float32). Needs onnx, onnxruntime, numpy,
safetensors. Exit status 1 where a case fails.
"""
import argparse, io, os, subprocess, sys, tarfile, tempfile
import numpy as np, onnx, onnxruntime as ort
from onnx import helper as h, numpy_helper as nh
from safetensors.numpy import load_file

R = np.random.RandomState(7)
F = lambda *s: R.randn(*s).astype(np.float32)
I = lambda *v: np.array(v, np.int32)
MS = 'com.microsoft'
CASES = []

def case(name, op, inputs, n_out=1, trained=None, domain=MS, truth=None, **attrs):
    CASES.append((name, op, inputs, n_out, trained, domain, truth, attrs))

# What onnxruntime's CPU lacks is compared with a form that it has, or with arithmetic.
def attention(q, k, v):    # [B,H,S,D]
    s = q @ k.swapaxes(2, 3) / np.sqrt(q.shape[3]); s = np.exp(s - s.max(-1, keepdims=True))
    y = (s / s.sum(-1, keepdims=True)) @ v
    return [y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)]
def packed_qkv(x): return attention(*(x[:, :, :, i].swapaxes(1, 2) for i in range(3)))
def packed_kv(q, x):
    return attention(q.reshape(B, S, H, D).swapaxes(1, 2), *(x[:, :, :, i].swapaxes(1, 2) for i in range(2)))
def group_norm(x, gamma, beta, groups=4):
    n, hh, w, c = x.shape
    g = x.reshape(n, hh, w, groups, c // groups)
    g = (g - g.mean((1, 2, 4), keepdims=True)) / np.sqrt(g.var((1, 2, 4), keepdims=True) + 1e-5)
    y = g.reshape(x.shape) * gamma + beta
    return [y / (1 + np.exp(-y))]
def skip_group_norm(x, gamma, beta, skip, bias):
    t = x + skip + bias
    return group_norm(t, gamma, beta) + [t]

B, S, H, D = 2, 6, 4, 8
C = H * D
mask2 = np.array([[1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1]], np.int32)
table = lambda r: (np.cos(F(16, r)), np.sin(F(16, r)))
case('gelu', 'Gelu', [F(3, 5)])
case('bias_gelu', 'BiasGelu', [F(3, 5), F(5)])
case('fast_gelu', 'FastGelu', [F(3, 5)])
case('fast_gelu_bias', 'FastGelu', [F(3, 5), F(5)])
case('quick_gelu', 'QuickGelu', [F(3, 5)], alpha=1.5)
case('fused_matmul', 'FusedMatMul', [F(2, 3, 4), F(2, 4, 5)], alpha=0.5)
case('fused_matmul_ta', 'FusedMatMul', [F(2, 4, 3), F(2, 5, 4)], transA=1, transB=1)
case('fused_matmul_batch', 'FusedMatMul', [F(3, 2, 4), F(5, 2, 4)], transBatchA=1, transBatchB=1, transB=1)
case('fused_conv', 'FusedConv', [F(1, 3, 6, 6), F(4, 3, 3, 3), F(4)], activation='LeakyRelu', activation_params=[0.2], pads=[1, 1, 1, 1])
case('fused_conv_z', 'FusedConv', [F(1, 3, 6, 6), F(4, 3, 3, 3), F(4), F(1, 4, 4, 4)], activation='Relu')
case('fused_gemm', 'FusedGemm', [F(3, 4), F(4, 5), F(5)], activation='Relu')
case('skip_ln', 'SkipLayerNormalization', [F(B, S, C), F(B, S, C), F(C), F(C), F(C)], epsilon=1e-5)
case('skip_ln_sum', 'SkipLayerNormalization', [F(B, S, C), F(B, S, C), F(C), F(C)], n_out=4, epsilon=1e-5)
case('rms', 'SimplifiedLayerNormalization', [F(B, S, C), F(C)], domain='', epsilon=1e-5, axis=-1)
case('skip_rms', 'SkipSimplifiedLayerNormalization', [F(B, S, C), F(B, S, C), F(C), F(C)], n_out=4, epsilon=1e-5)
ids = R.randint(0, 10, (B, S)).astype(np.int32)
case('embed', 'EmbedLayerNormalization', [ids, ids % 2, F(10, C), F(12, C), F(2, C), F(C), F(C), mask2], n_out=2, epsilon=1e-5)
case('embed_no_segment', 'EmbedLayerNormalization', [ids, None, F(10, C), F(12, C), None, F(C), F(C)], n_out=3, epsilon=1e-5)
case('attention', 'Attention', [F(B, S, C), F(C, 3 * C) * 0.3, F(3 * C)], num_heads=H)
case('attention_mask', 'Attention', [F(B, S, C), F(C, 3 * C) * 0.3, F(3 * C), mask2], num_heads=H)
case('attention_lengths', 'Attention', [F(B, S, C), F(C, 3 * C) * 0.3, F(3 * C), I(4, 6)], num_heads=H)
case('attention_causal', 'Attention', [F(B, S, C), F(C, 3 * C) * 0.3, F(3 * C)], num_heads=H, unidirectional=1)
case('attention_sizes', 'Attention', [F(B, S, C), F(C, 16 + 16 + 24) * 0.3, F(56)], num_heads=H, qkv_hidden_sizes=[16, 16, 24])
case('attention_bias', 'Attention', [F(B, S, C), F(C, 3 * C) * 0.3, F(3 * C), None, None, F(1, H, S, S)], num_heads=H, scale=0.2)
case('attention_mask3', 'Attention', [F(B, S, C), F(C, 3 * C) * 0.3, F(3 * C), (R.rand(B, S, S) > 0.3).astype(np.int32)], num_heads=H)
case('mha', 'MultiHeadAttention', [F(B, S, C), F(B, 5, C), F(B, 5, C)], num_heads=H)
case('mha_bias', 'MultiHeadAttention', [F(B, S, C), F(B, S, C), F(B, S, C), F(3 * C)], num_heads=H)
case('mha_packed', 'MultiHeadAttention', [F(B, S, H, 3, D)], num_heads=H, truth=packed_qkv)
case('mha_packed_kv', 'MultiHeadAttention', [F(B, S, C), F(B, 5, H, 2, D)], num_heads=H, truth=packed_kv)
case('mha_mask', 'MultiHeadAttention', [F(B, S, C), F(B, S, C), F(B, S, C), None, mask2], num_heads=H)
case('mha_attn_bias', 'MultiHeadAttention', [F(B, S, C), F(B, S, C), F(B, S, C), None, None, F(B, H, S, S)], num_heads=H, scale=0.5)
case('mha_causal', 'MultiHeadAttention', [F(B, S, C), F(B, S, C), F(B, S, C)], num_heads=H, unidirectional=1)
case('mha_4d', 'MultiHeadAttention', [F(B, S, C), F(B, H, 5, D), F(B, H, 5, D)], num_heads=H)
lens, total = I(S - 1, S - 1), np.array(S, np.int32)
case('gqa', 'GroupQueryAttention', [F(B, S, C), F(B, S, 2 * D), F(B, S, 2 * D), None, None, lens, total], n_out=3, trained=[0, 1, 2], num_heads=H, kv_num_heads=2)
D16 = 16
case('gqa_rotary', 'GroupQueryAttention', [F(B, S, 2 * D16 * 2), F(B, S, 2 * D16), F(B, S, 2 * D16), None, None, lens, total, *table(D16 // 2)], n_out=3, trained=[0, 1, 2], num_heads=4, kv_num_heads=2, do_rotary=1)
case('gqa_window', 'GroupQueryAttention', [F(B, S, C), F(B, S, 2 * D), F(B, S, 2 * D), None, None, lens, total], n_out=3, trained=[0, 1, 2], num_heads=H, kv_num_heads=2, local_window_size=3)
case('gqa_packed', 'GroupQueryAttention', [F(B, S, C + 4 * D), None, None, None, None, lens, total], n_out=3, trained=[0], num_heads=H, kv_num_heads=2, softcap=2.0)
pos = np.stack([np.arange(S), np.arange(S) + 2]).astype(np.int64)
case('rotary', 'RotaryEmbedding', [F(B, S, 2 * 16), pos, *table(8)], trained=[0])
case('rotary_4d', 'RotaryEmbedding', [F(B, 2, S, 16), pos, *table(8)], trained=[0], interleaved=1)
case('rotary_offset', 'RotaryEmbedding', [F(B, S, 2 * 16), np.array([3], np.int64), *table(8)], trained=[0])
case('rotary_partial', 'RotaryEmbedding', [F(B, S, 2 * 16), pos, *table(4)], trained=[0], num_heads=2, rotary_embedding_dim=8)
case('group_norm', 'GroupNorm', [F(2, 4, 4, 8), F(8), F(8)], groups=4, activation=1, truth=group_norm)
case('skip_group_norm', 'SkipGroupNorm', [F(2, 4, 4, 8), F(8), F(8), F(2, 4, 4, 8), F(8)], n_out=2, groups=4, activation=1, truth=skip_group_norm)
U = lambda *s: R.randint(0, 256, s).astype(np.uint8)
case('nbits', 'MatMulNBits', [F(2, 3, 40), U(5, 3, 8), F(5, 3)], trained=[0], N=5, K=40, bits=4, block_size=16)
case('nbits_zero', 'MatMulNBits', [F(3, 40), U(5, 3, 8), F(5, 3), U(5, 2), None, F(5)], trained=[0, 5], N=5, K=40, bits=4, block_size=16)
case('nbits_8', 'MatMulNBits', [F(3, 64), U(5, 2, 32), F(5, 2), U(5, 2)], trained=[0], N=5, K=64, bits=8, block_size=32)
case('nbits_float_zero', 'MatMulNBits', [F(3, 64), U(5, 2, 16), F(5, 2), F(5, 2)], trained=[0], N=5, K=64, bits=4, block_size=32)
case('dequantize', 'DequantizeLinear', [U(3, 4), np.array(0.1, np.float32), np.array(7, np.uint8)], trained=[])
case('dequantize_axis', 'DequantizeLinear', [U(3, 4), np.abs(F(4)), U(4)], trained=[], axis=1)
case('bias_dropout', 'BiasDropout', [F(3, 4), F(4), F(3, 4)], truth=lambda x, b, r: [x + b + r])
def nhwc_conv(x, w, b):
    node = h.make_node('Conv', ['x', 'w', 'b'], ['y'], pads=[1, 1, 1, 1])
    info = lambda n, v: h.make_tensor_value_info(n, 1, v)
    x = np.ascontiguousarray(x.transpose(0, 3, 1, 2))
    m = proto([node], [info('x', x.shape), info('w', w.shape), info('b', b.shape)], [], [info('y', None)])
    return [runtime(m, {'x': x, 'w': w, 'b': b})[0].transpose(0, 2, 3, 1)]
case('nhwc_conv', 'NhwcConv', [F(1, 6, 6, 3), F(4, 3, 3, 3), F(4)], pads=[1, 1, 1, 1], truth=nhwc_conv)

def model_of(op, inputs, n_out, domain, attrs, parameters):
    names = ['' if x is None else 'i%d' % k for k, x in enumerate(inputs)]
    outs = ['o%d' % k for k in range(n_out)]
    if op == 'EmbedLayerNormalization' and n_out == 3: outs[1] = 'o1'
    if op in ('SkipLayerNormalization', 'SkipSimplifiedLayerNormalization') and n_out == 4: outs[1] = outs[2] = ''
    node = h.make_node(op, names, outs, domain=domain, name='node', **attrs)
    keep = [o for o in outs if o]
    init = [nh.from_array(inputs[k], names[k]) for k in parameters]
    feeds = [h.make_tensor_value_info(names[k], h.np_dtype_to_tensor_dtype(x.dtype), x.shape)
             for k, x in enumerate(inputs) if x is not None and k not in parameters]
    nodes, outputs = [node], [h.make_tensor_value_info(o, 1 if not (op == 'EmbedLayerNormalization' and o == 'o1') else 6, None) for o in keep]
    return nodes, feeds, init, outputs, names

def proto(nodes, feeds, init, outputs):
    m = h.make_model(h.make_graph(nodes, 'g', feeds, outputs, init),
                     opset_imports=[h.make_opsetid('', 17), h.make_opsetid(MS, 1)])
    m.ir_version = 8
    return m

def runtime(m, feed):
    o = ort.SessionOptions(); o.log_severity_level = 3
    o.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(m.SerializeToString(), o, providers=['CPUExecutionProvider']).run(None, feed)

def check(trainc, folder, c):
    name, op, inputs, n_out, trained, domain, truth, attrs = c
    results = lambda m, f: truth(*[f[k] for k in names if k]) if truth else runtime(m, f)
    os.makedirs(folder, exist_ok=True)
    nodes, feeds, init, outputs, names = model_of(op, inputs, n_out, domain, attrs, [])
    feed = {names[k]: x for k, x in enumerate(inputs) if x is not None}
    path = os.path.join(folder, 'f.onnx')
    m = proto(nodes, feeds, init, outputs)
    onnx.save(m, path)
    try: want = [np.asarray(w).astype(np.float32) if truth else w for w in results(m, feed)]
    except Exception as e: return 'onnxruntime: ' + str(e)[:150]
    data = []
    for k, x in feed.items():
        np.save(os.path.join(folder, k + '.npy'), x)
        data += ['--data', '%s=%s/%s.npy' % (k, folder, k)]
    for o, w in zip(outputs, want):
        np.save(os.path.join(folder, o.name + '.npy'), w)
        data += ['--expect', '%s=%s/%s.npy' % (o.name, folder, o.name)]
    r = subprocess.run([trainc, 'eval', path, '--engine', 'interp', '--rtol', '1e-4', '--atol', '1e-5', *data], capture_output=True, text=True)
    if r.returncode: return 'forward: ' + (r.stdout + r.stderr).strip()[:400]
    # gradients
    if trained is None: trained = [k for k, x in enumerate(inputs) if x is not None and x.dtype == np.float32]
    if not trained: return ''
    nodes, feeds, init, outputs, names = model_of(op, inputs, n_out, domain, attrs, trained)
    weights = F(*want[0].shape)
    init.append(nh.from_array(weights, 'loss.weights'))
    nodes += [h.make_node('Mul', ['o0', 'loss.weights'], ['weighted']), h.make_node('ReduceSum', ['weighted'], ['loss'], keepdims=0)]
    m = proto(nodes, feeds, init, [h.make_tensor_value_info('loss', 1, [])])
    onnx.save(m, path)
    rest = []
    for k, x in feed.items():
        if k in [f.name for f in feeds]: rest += ['--data', '%s=%s/%s.npy' % (k, folder, k)]
    if not rest:    # a step needs data: one input that changes nothing
        np.save(os.path.join(folder, 'unused.npy'), np.zeros((1, 1), np.float32))
        feeds.append(h.make_tensor_value_info('unused', 1, [1, 1]))
        nodes += [h.make_node('ReduceSum', ['unused'], ['u'], keepdims=0), h.make_node('Add', ['loss', 'u'], ['loss2'])]
        m = proto(nodes, feeds, init, [h.make_tensor_value_info('loss2', 1, [])])
        onnx.save(m, path)
        rest = ['--data', 'unused=%s/unused.npy' % folder]
    step = os.path.join(folder, 'step')
    r = subprocess.run([trainc, path, '-o', step, '--loss', 'output', '--freeze', 'loss.weights', '--optimizer', 'sgd'], capture_output=True, text=True)
    if r.returncode: return 'compile: ' + r.stderr.strip()[:400]
    grads = os.path.join(folder, 'grads.safetensors')
    r = subprocess.run([trainc, 'run', step, *rest, '--steps', '1', '--lr', '0', '--save-grads', grads], capture_output=True, text=True)
    if r.returncode: return 'run: ' + r.stderr.strip()[:400]
    got = load_file(grads)
    nodes2, feeds2, _, outputs2, _ = model_of(op, inputs, n_out, domain, attrs, [])
    m2 = proto(nodes2, feeds2, [], outputs2)
    session = lambda f: float((np.asarray(results(m2, f)[0]).astype(np.float64) * weights).sum())
    for k in trained:
        if names[k] not in got: return 'no gradient of ' + names[k]
        d = R.randn(*inputs[k].shape); d /= np.linalg.norm(d)
        d += got[names[k]].reshape(d.shape) / (np.linalg.norm(got[names[k]]) + 1e-12)
        e = 1e-2
        up, down = (dict(feed, **{names[k]: (inputs[k] + s * e * d).astype(np.float32)}) for s in (1, -1))
        numeric, ours = (session(up) - session(down)) / (2 * e), float((got[names[k]].reshape(d.shape) * d).sum())
        if abs(numeric - ours) > 2e-2 * max(abs(numeric), abs(ours)) + 2e-3: return 'gradient of %s: %g, differences say %g' % (names[k], ours, numeric)
    return ''

def archive(path):
    def add(tar, name, content):
        info = tarfile.TarInfo(name); info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    with tarfile.open(path, 'w:xz', preset=9) as tar:
        for name, op, inputs, n_out, _, domain, truth, attrs in CASES:
            nodes, feeds, init, outputs, names = model_of(op, inputs, n_out, domain, attrs, [])
            feed = {names[k]: x for k, x in enumerate(inputs) if x is not None}
            m = proto(nodes, feeds, init, outputs)
            want = truth(*feed.values()) if truth else runtime(m, feed)
            folder = 'node/test_contrib_' + name
            for o, w in zip(outputs, want): o.CopyFrom(h.make_tensor_value_info(o.name, h.np_dtype_to_tensor_dtype(np.asarray(w).dtype) if not truth else 1, w.shape))
            m = proto(nodes, feeds, init, outputs)
            add(tar, folder + '/model.onnx', m.SerializeToString(deterministic=True))
            for k, x in enumerate(feed.values()): add(tar, '%s/test_data_set_0/input_%d.pb' % (folder, k), nh.from_array(x, feeds[k].name).SerializeToString())
            for k, w in enumerate(want): add(tar, '%s/test_data_set_0/output_%d.pb' % (folder, k), nh.from_array(np.asarray(w).astype(np.float32) if truth else w, outputs[k].name).SerializeToString())
    print('%d cases, %d bytes' % (len(CASES), os.path.getsize(path)))

def main():
    p = argparse.ArgumentParser(); p.add_argument('--trainc', default='build/trainc'); p.add_argument('--archive'); p.add_argument('names', nargs='*')
    a = p.parse_args(); bad = 0; n = 0
    if a.archive: return archive(a.archive)
    with tempfile.TemporaryDirectory() as t:
        for c in CASES:
            if a.names and c[0] not in a.names: continue
            n += 1; why = check(a.trainc, os.path.join(t, c[0]), c)
            if why: bad += 1; print('%-20s %s' % (c[0], why))
    print('%d cases, %d failed' % (n, bad))
    return bad != 0

if __name__ == '__main__': sys.exit(main())
