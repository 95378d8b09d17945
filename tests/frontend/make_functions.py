#!/usr/bin/env python3
"""make_functions.py - the models of functions.c, and the cases of tests/onnx_nodes/functions.tar.xz.

usage: make_functions.py MODELS_DIR                      writes function_*.onnx, branches_*.onnx
       make_functions.py --archive functions.tar.xz      local functions and If in the layout of ONNX's node tests

Expected outputs of the archive are onnxruntime's; numpy's for a function of another opset than the model, which onnxruntime does
not keep apart. Needs onnx, onnxruntime, numpy.
"""
import io, os, sys, tarfile
import numpy as np, onnx
from onnx import parser, helper as h, numpy_helper as nh

R = np.random.RandomState(3)
BRANCHES = '''<ir_version: 9, opset_import: ["" : 18]>
m (float[2,3] x, float[3] b) => (float[2,3] y, float z) { s = ReduceSum<keepdims = 0>(x) zero = Constant<value = float {0}>() c = %s(s, zero)
 y, z = If (c) <then_branch = th () => (float[2,3] p, float pz) { p = Mul(x, b) pz = ReduceSum<keepdims = 0>(p) },
  else_branch = el () => (float[2,3] q, float qz) { r = Sqrt(x) q = Div(r, b) qz = ReduceMax<keepdims = 0>(b) }> }'''
CASES = {
'function_defaults': '''<ir_version: 9, opset_import: ["" : 18, "f" : 1, "g" : 1]>
m (float[2,3] x, float[3] w) => (float[2,3] y, float[2,3] z) { y = f.outer<slope=0.3>(x, w)  z = f.outer(x) }
<opset_import: ["" : 18, "g" : 1], domain: "f">
outer <slope: float = 0.7> (a, b) => (o) { t = g.inner <alpha: float = @slope>(a, b)  o = Tanh(t) }
<opset_import: ["" : 15, "f" : 1], domain: "g">
inner <alpha: float = 0.2> (a, b) => (o) { x = LeakyRelu<alpha: float = @alpha>(a)  o = Clip(x) }''',
'function_names': '''<ir_version: 9, opset_import: ["" : 18, "f" : 1]>
m (float[2,3] x, float[2,3] t) => (float[2,3] y) { s = f.f(x, t) t2 = f.f(s, x) y = Add(t2, t) }
<opset_import: ["" : 18], domain: "f">
f (y, x) => (t) { s = Sub(y, x) t = Sigmoid(s) }''',
'function_opset': '''<ir_version: 9, opset_import: ["" : 18, "f" : 1]>
m (float[2,3,4] x) => (float[2,3,4] y, float[2,4] r) { y, r = f.f(x) }
<opset_import: ["" : 11], domain: "f">
f (x) => (o, r) { o = Softmax<axis = 1>(x) r = ReduceSum<axes = [1], keepdims = 0>(x) }''',
'function_of_contrib': '''<ir_version: 9, opset_import: ["" : 18, "f" : 1, "com.microsoft" : 1]>
m (float[2,3] x, float[3] b) => (float[2,3] y) { y = f.f(x, b) }
<opset_import: ["" : 18, "com.microsoft" : 1], domain: "f">
f (x, b) => (o) { t = com.microsoft.BiasGelu(x, b) o = com.microsoft.QuickGelu<alpha = 1.5>(t) }''',
'function_in_contrib': '''<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
m (float[2,3] x) => (float[2,3] y) { y = com.microsoft.MyGelu(x) }
<opset_import: ["" : 18], domain: "com.microsoft">
MyGelu (x) => (o) { o = Relu(x) }''',
'function_if': '''<ir_version: 9, opset_import: ["" : 18, "f" : 1]>
m (float[2,3] x, float[3] b, bool c) => (float[2,3] y) { y = f.f(x, b, c) }
<opset_import: ["" : 18], domain: "f">
f (x, b, c) => (o) { t = Mul(x, b) o = If (c) <then_branch = th () => (float[2,3] p) { p = Add(t, x) }, else_branch = el () => (float[2,3] q) { q = Exp(t) }> }''',
'function_loop': '''<ir_version: 9, opset_import: ["" : 18, "f" : 1]>
m (float[2,3] x, float[3] b) => (float[2,3] y) { y = f.f<n = 3>(x, b) }
<opset_import: ["" : 18], domain: "f">
f <n> (x, b) => (o) { trip = Constant<value_int: int = @n>()  yes = Constant<value = bool {1}>() o = Loop (trip, yes, x) <body = bo (int64 i, bool k, float[2,3] v) => (bool k2, float[2,3] v2) { k2 = Identity(k) u = Mul(v, b) v2 = Tanh(u) }> }''',
'function_omitted': '''<ir_version: 9, opset_import: ["" : 18, "f" : 1]>
m (float[2,3] x, float mx) => (float[2,3] y) { y = f.a(x, , mx) }
<opset_import: ["" : 18, "f" : 1], domain: "f">
a (x, lo, hi) => (o) { o = f.b(x, lo, hi) }
<opset_import: ["" : 18, "f" : 1], domain: "f">
b (x, lo, hi) => (o) { o = Clip(x, lo, hi) }''',
'function_outputs': '''<ir_version: 9, opset_import: ["" : 18, "f" : 1]>
m (float[2,6] x) => (float[2,3] y) { a, b = f.halves(x) c, _ = f.halves(x) d = Mul(a, b) y = Add(c, d) }
<opset_import: ["" : 18], domain: "f">
halves (x) => (p, q) { p, q = Split<axis = 1, num_outputs = 2>(x) }''',
'branches_then': BRANCHES % 'Greater',
'branches_else': BRANCHES % 'Less',
'branches_nested': '''<ir_version: 9, opset_import: ["" : 18]>
m (float[2,3] x, bool c, bool d) => (float[2,3] y) {
 y = If (c) <then_branch = th () => (float[2,3] p) { e = Exp(x) p = If (d) <then_branch = t2 () => (float[2,3] u) { u = Add(e, x) }, else_branch = e2 () => (float[2,3] v) { v = Neg(e) }> }, else_branch = el () => (float[2,3] q) { q = Log(x) }> }''',
'branches_known': '''<ir_version: 9, opset_import: ["" : 18]>
m (float[2,3] x) => (float[n] y) { sh = Shape(x) two = Constant<value = int64 {2}>() zero = Constant<value = int64 {0}>() n0 = Gather(sh, zero) c = Equal(n0, two)
 y = If (c) <then_branch = th () => (float[n] p) { sx = Constant<value = int64[1] {-1}>() p = Reshape(x, sx) }, else_branch = el () => (float[1,1,1] q) { bad = Constant<value = int64[3] {1,1,1}>() q = Reshape(x, bad) }> }''',
}

def feed_of(name, m):
    feed = {}
    for i in m.graph.input:
        t = i.type.tensor_type
        shape = [d.dim_value for d in t.shape.dim]
        feed[i.name] = np.array(True) if t.elem_type == onnx.TensorProto.BOOL else R.randn(*shape).astype(np.float32) if shape else np.array(0.4, np.float32)
    # the other branch takes roots of negative numbers: its NaN must not reach the gradients
    if name == 'branches_then': feed['x'] = np.array([[1, -2, 3], [2, -1, 0.5]], np.float32)
    if name == 'branches_else': feed['x'] = np.array([[1, 2, 3], [2, 0.25, 0.5]], np.float32)
    if name == 'branches_nested': feed['d'] = np.array(False)
    return feed

def truth(name, m, feed):
    if name == 'function_opset':
        x = feed['x']
        e = np.exp(x.reshape(2, 12))
        return [(e / e.sum(1, keepdims=True)).reshape(2, 3, 4), x.sum(1)]
    import onnxruntime as ort
    return ort.InferenceSession(m.SerializeToString(), providers=['CPUExecutionProvider']).run(None, feed)

def archive(path):
    def add(tar, name, content):
        info = tarfile.TarInfo(name); info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    with tarfile.open(path, 'w:xz', preset=9) as tar:
        for name, text in CASES.items():
            m = parser.parse_model(text)
            m.graph.name = name
            feed = feed_of(name, m)
            want = truth(name, m, feed)
            for o, w in zip(m.graph.output, want): o.CopyFrom(h.make_tensor_value_info(o.name, 1, np.shape(w)))
            add(tar, 'node/test_%s/model.onnx' % name, m.SerializeToString(deterministic=True))
            for k, (n, x) in enumerate(feed.items()): add(tar, 'node/test_%s/test_data_set_0/input_%d.pb' % (name, k), nh.from_array(np.asarray(x), n).SerializeToString())
            for k, w in enumerate(want): add(tar, 'node/test_%s/test_data_set_0/output_%d.pb' % (name, k), nh.from_array(np.asarray(w, np.float32), m.graph.output[k].name).SerializeToString())
    print('%d cases, %d bytes' % (len(CASES), os.path.getsize(path)))

def models(folder):
    def save(name, text, change=None):
        m = parser.parse_model(text)
        if change: change(m)
        m.graph.name = name
        onnx.save(m, os.path.join(folder, name + '.onnx'))
    head = '<ir_version: 10, opset_import: ["" : 18, "f" : 1]>\nm (float[3] x) => (float[3] y%s) { %s }\n'
    function = '<opset_import: ["" : 18, "f" : 1], domain: "f">\n%s (a) => (o) { %s }\n'
    save('function_recursive', head % ('', 'y = f.ping(x)') + function % ('ping', 'o = f.pong(a)') + function % ('pong', 't = Relu(a) o = f.ping(t)'))
    save('function_doubling', head % ('', 'y = f.f0(x)') + ''.join(function % ('f%d' % i, 't = f.f%d(a) o = f.f%d(t)' % (i + 1, i + 1)) for i in range(30))
         + function % ('f30', 'o = Relu(a)'))
    def overload(m):
        m.functions[0].overload = m.graph.node[1].overload = 'soft'
        m.functions[1].overload = m.graph.node[0].overload = 'smooth'
        m.functions[0].name = m.functions[1].name = m.graph.node[0].op_type = m.graph.node[1].op_type = 'act'
    save('function_overload', head % (', float[3] z', 'y = f.act(x) z = f.act(x)') + function % ('act', 'o = Relu(a)') + function % ('act2', 'o = Tanh(a)'), overload)
    branch = '''<ir_version: 9, opset_import: ["" : 18]>
m (float[3] x, bool c) => (float[n] y) { y = If (c) <then_branch = th () => (float[3] p) { p = Exp(x) }, else_branch = el () => (float[1] q) { q = ReduceSum(x) }> }'''
    save('branches_shapes', branch)
    sequences = '''<ir_version: 9, opset_import: ["" : 18]>
m (float[3] x, bool c) => (float[3] y) { zero = Constant<value = int64 {0}>() s = If (c) <then_branch = th () => (seq(float[3]) p) { e = Exp(x) p = SequenceConstruct(e) }, else_branch = el () => (seq(float[3]) q) { q = SequenceConstruct(x) }>
 y = SequenceAt(s, zero) }'''
    save('branches_sequences', sequences)

if __name__ == '__main__':
    archive(sys.argv[2]) if sys.argv[1] == '--archive' else models(sys.argv[1])
